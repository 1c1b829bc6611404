"""Where the dataset.json of MSD and of nnU-Net lies, and what both say in the same way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from halofeed.prep.annotations.contract import read_whole
from halofeed.prep.annotations.recognize import hint
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.volume_files import extension_of, relative_path
from halofeed.schemas.errors import AnnotationsError

NAME = "dataset.json"


@dataclass(frozen=True, kw_only=True)
class DatasetJson:
    """A dataset.json: its path, the folder in which it lies ("" is the root), and its content."""

    path: str
    folder: str
    content: Mapping[str, Any]

    def part(self, name: str, kind: type, expected: str) -> Any:
        """The value of a key; AnnotationsError where it is missing or of another type."""
        value = self.content.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            found = f"got {str(value)[:80]!r}" if name in self.content else f"found {', '.join(self.content)}"
            raise AnnotationsError(f"{self.path}: {name}: expected {expected}; {found}")
        return value


def read_dataset_json(annotations: SourceFiles, annotation_file: str | None) -> DatasetJson:
    """The file that was named, the one in the folder, or the only one in a folder straight below."""
    path = annotation_file or _find(annotations)
    try:
        content = json.loads(read_whole(annotations, path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise AnnotationsError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise AnnotationsError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return DatasetJson(path=path, folder=path.rpartition("/")[0], content=content)


def _find(annotations: SourceFiles) -> str:
    paths = annotations.sizes()
    if NAME in paths:
        return NAME
    below = [path for path in paths if path.count("/") == 1 and path.endswith(f"/{NAME}")]
    if len(below) == 1:
        return below[0]
    found = f"found {', '.join(below[:5])}; name one of their folders" if below else "found none"
    raise AnnotationsError(f"{annotations.root}: expected {NAME} in it; {found}{hint(annotations, '')}")


def names_cases(document: DatasetJson, files: SourceFiles) -> bool | None:
    """Whether the lists name cases, each of whose channels is a file CASE_0000: so nnU-Net's version 1 has it.

    Returns:
        False: they name files, as the Decathlon does; None: neither is there.
    """
    for part in ("training", "test"):
        entries = document.content.get(part)
        for entry in entries if isinstance(entries, list) else ():
            image = entry.get("image") if isinstance(entry, dict) else entry
            if not isinstance(image, str) or is_left_behind(image):
                continue
            path = relative_path(image, files.root, document.folder)
            extension = extension_of(path)
            if path.startswith(("/", "..")):
                continue
            if files.size(path) is not None:
                return False
            if files.size(f"{path.removesuffix(extension)}_0000{extension}") is not None:
                return True
    return None


def is_left_behind(path: str) -> bool:
    """Whether a file is what a copy from a Mac leaves: ._NAME."""
    return path.rpartition("/")[2].startswith("._")


def check_values(path: str, values: Iterable[tuple[Any, Any]]) -> Mapping[int, str]:
    """The class names by value, in ascending order; AnnotationsError where a value or a name is unfit or comes twice.

    Args:
        path: of the file, for messages.
        values: (value, name) as they are written; a value may be text, as it is as a key of JSON.
    """
    found: dict[int, str] = {}
    for written, name in values:
        is_digits = isinstance(written, str) and written.isascii() and written.isdigit()
        value = int(written) if is_digits else written
        if type(value) is not int or not 0 <= value < 2**31:
            raise AnnotationsError(f"{path}: labels: {written!r} of {name!r}: expected a whole number from 0")
        if not isinstance(name, str) or not name.strip():
            raise AnnotationsError(f"{path}: labels: value {value} has the name {name!r}; expected a text")
        if value in found or name in found.values():
            raise AnnotationsError(
                f"{path}: labels: {value} {name!r} is there twice; give each class one value"
            )
        found[value] = name
    if not set(found) - {0}:
        raise AnnotationsError(f"{path}: labels: expected at least one class beside the background")
    return dict(sorted(found.items()))


def check_channel_names(path: str, part: str, names: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the channels 0, 1, ... in order; AnnotationsError where a number is missing."""
    expected = [str(number) for number in range(len(names))]
    if not names or set(names) != set(expected) or not all(isinstance(name, str) for name in names.values()):
        found = f'expected {{"0": "CT", ...}} without gaps, got {dict(names)}'
        raise AnnotationsError(f"{path}: {part}: {found}"[:300])
    return tuple(names[number] for number in expected)
