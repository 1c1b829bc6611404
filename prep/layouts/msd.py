"""Reader of the Medical Segmentation Decathlon's dataset.json, and of the parts that nnU-Net's dataset.json shares."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from halofeed.prep.annotations.class_documents import pairs_of_dict
from halofeed.prep.annotations.class_names import is_whole_number
from halofeed.prep.annotations.contract import LayoutOptions, read_required, rejected_example, sort_examples
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import (
    ARCHIVE_EXTENSIONS,
    extension_of,
    find_annotated_file,
    iterate_scans,
    relative_path,
    stem_of,
)
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import plural

NAME = "dataset.json"


@dataclass(frozen=True, kw_only=True)
class DatasetJson:
    """Content of a dataset.json with its path and its folder ("" is the root)."""

    path: str
    folder: str
    content: Mapping[str, Any]

    def part(self, name: str, kind: type, expected: str) -> Any:
        """Return the value of a key; raise AnnotationsError if it is missing or has another type."""
        value = self.content.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            found = f"got {str(value)[:80]!r}" if name in self.content else f"found {', '.join(self.content)}"
            raise AnnotationsError(f"{self.path}: {name}: expected {expected}; {found}")
        return value


def read_dataset_json(annotations: SourceFiles, annotation_file: str | None) -> DatasetJson:
    """Return the named file, the one in the folder, or the only one directly in a subfolder."""
    return read_json_object(annotations, annotation_file or _find(annotations))


def read_json_object(annotations: SourceFiles, path: str) -> DatasetJson:
    """Return a JSON file whose content is an object; raise AnnotationsError for another one."""
    try:
        content = json.loads(read_required(annotations, path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise AnnotationsError(
            f"{path}: not readable as JSON: {error}; correct that place (JSON has double quotes and no comments)"
        ) from error
    if not isinstance(content, dict):
        raise AnnotationsError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return DatasetJson(path=path, folder=path.rpartition("/")[0], content=content)


def _find(annotations: SourceFiles) -> str:
    paths = annotations.sizes()
    # A set in a subfolder may hold a copy of the file; the topmost counts.
    if NAME in paths:
        return NAME
    below = [path for path in paths if path.count("/") == 1 and path.endswith(f"/{NAME}")]
    # The user named the folder above a set, such as the one that an archive unpacks to.
    if len(below) == 1:
        return below[0]
    above = Path(annotations.root).absolute().parent
    # Several sets side by side, such as the Decathlon's ten tasks.
    if below:
        found = f"found {', '.join(below[:5])}; name one of their folders"
    # The user named imagesTr.
    elif (above / NAME).is_file():
        found = f"it is in the folder above: --source {above}"
    elif archive := next((path for path in paths if path.lower().endswith(ARCHIVE_EXTENSIONS)), None):
        found = f"{archive} is an archive: unpack it, and name the folder in it"
    else:
        found = f"found none{layout_hint(annotations, '')}"
    raise AnnotationsError(f"{annotations.root}: expected {NAME} in it; {found}")


def names_cases(document: DatasetJson, files: SourceFiles) -> bool | None:
    """Return whether the lists name cases with channel files CASE_0000, as nnU-Net's version 1 does.

    Returns:
        False if the lists name files, as the Decathlon does; None if neither kind exists.
    """
    for part in ("training", "test"):
        for image, _ in listed_files(document, part):
            path = relative_path(image, files.root, document.folder)
            extension = extension_of(path)
            # Paths of another machine may have other names here.
            if path.startswith(("/", "..")):
                continue
            # The Decathlon lists the real names of files.
            if files.size(path) is not None:
                return False
            # nnU-Net's version 1 lists CASE.nii.gz for the files CASE_0000.nii.gz, ...
            if files.size(f"{path.removesuffix(extension)}_0000{extension}") is not None:
                return True
    return None


def listed_files(document: DatasetJson, part: str) -> Iterator[tuple[str, str | None]]:
    """Yield (image, label or None) of each usable entry of a list, as they are written."""
    entries = document.content.get(part)
    for entry in entries if isinstance(entries, list) else ():
        image, label = _image_of(entry), _label_of(entry)
        if isinstance(image, str) and not is_mac_metadata(image):
            yield image, label if isinstance(label, str) else None


def _image_of(entry: Any) -> Any:
    return entry.get("image") if isinstance(entry, dict) else entry


def _label_of(entry: Any) -> Any:
    return entry.get("label") if isinstance(entry, dict) else None


def is_mac_metadata(path: Any) -> bool:
    """Return whether a file is metadata that macOS leaves in copies: ._NAME."""
    return isinstance(path, str) and path.rpartition("/")[2].startswith("._")


def check_label_values(path: str, values: Iterable[tuple[Any, Any]]) -> Mapping[int, str]:
    """Return the class names by value, in ascending order; raise AnnotationsError for an invalid or duplicate entry.

    Args:
        path: path of the file, for messages.
        values: (value, name) from the file; a value may be text, since JSON keys are text.
    """
    found: dict[int, str] = {}
    for written, name in values:
        value = _label_value(path, written, name)
        # Names become classes of the data set.
        if not isinstance(name, str) or not name.strip():
            raise AnnotationsError(f"{path}: labels: value {value} has the name {name!r}; expected a text")
        # Two values of one name would be one class, and two names of one value two.
        if value in found or name in found.values():
            raise AnnotationsError(
                f"{path}: labels: {value} {name!r} is there twice; give each class one value"
            )
        found[value] = name
    # A set with the background alone trains nothing.
    if not set(found) - {0}:
        raise AnnotationsError(f"{path}: labels: expected at least one class beside the background")
    return dict(sorted(found.items()))


def _label_value(path: str, written: Any, name: Any) -> int:
    """Return the value of a class; raise AnnotationsError if it is no whole number of a voxel."""
    value = int(written) if isinstance(written, str) and is_whole_number(written) else written
    # Voxels of labels are at most int32; JSON's true would be 1.
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise AnnotationsError(
            f"{path}: labels: {written!r} of {name!r}: expected a whole number from 0, or a negative one that is "
            "ignored"
        )
    return value


def check_dataset_channel_names(path: str, part: str, names: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the channels 0, 1, ... in order; raise AnnotationsError if a number is missing."""
    expected = [str(number) for number in range(len(names))]
    # Both formats number channels from 0; a gap means that one was removed from the list alone.
    if not names or set(names) != set(expected) or not all(isinstance(name, str) for name in names.values()):
        found = f'expected {{"0": "CT", ...}} without gaps, got {dict(names)}'
        raise AnnotationsError(f"{path}: {part}: {found}"[:300])
    return tuple(names[number] for number in expected)


MSD_SPLITS = {"training": "train", "validation": "validation", "test": "test"}
"""Lists of a dataset.json and their splits; the Decathlon itself has no validation list."""

_EXPECTED = 'a list of {"image": ..., "label": ...}, or of paths where there are no labels'


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every entry of the lists in `MSD_SPLITS`, and one for every scan that is in no list.

    Paths are relative to the folder of dataset.json. An entry of `test` without a label is for prediction only. An
    entry of `training` without a label has a problem, unless the options keep it. The reader ignores entries and
    files called `._*`, which macOS leaves in copies.

    Raises:
        AnnotationsError: dataset.json is missing or is not the Decathlon's.
    """
    document = read_dataset_json(annotations, annotation_file)
    named_values(document)  # checks the labels before any entry
    _check_not_nnunet(document, images)
    listed = [
        _example(entry, f"{document.path}#{part}[{number}]", MSD_SPLITS[part], document, images, options)
        for part, number, entry in _entries(document)
    ]
    listed = refuse_exchanged(refuse_repeated(listed), document.path)
    note = _note_on_number(document)
    listed = [replace(one, notes=(*one.notes, *note)) if one.split == "train" else one for one in listed]
    used = {path for example in listed for path in example.paths} | _named_paths(document, images)
    listed += [
        rejected_example(path, ("selection", "file is not in dataset.json", ""))
        for path in iterate_scans(images.sizes())
        if path not in used
    ]
    yield from sort_examples(listed)


def _check_not_nnunet(document: DatasetJson, images: SourceFiles) -> None:
    """Raise AnnotationsError if a dataset.json is that of nnU-Net, which has the Decathlon's name and other rules."""
    if "training" not in document.content and "channel_names" in document.content:
        # nnU-Net's version 2 lists no files and names the channels (its documentation/dataset_format.md).
        raise AnnotationsError(
            f"{document.path}: it has channel_names and no training, as nnU-Net's has; use --layout nnunet"
        )
    document.part("training", list, _EXPECTED)
    if names_cases(document, images):
        raise AnnotationsError(
            f"{document.path}: training: its images are cases whose channels are files CASE_0000, as nnU-Net's "
            "version 1 has them; use --layout nnunet"
        )


def _entries(document: DatasetJson) -> Iterator[tuple[str, int, Any]]:
    """Yield the list, the number and the content of each entry, except metadata of macOS."""
    for part in MSD_SPLITS:
        entries = document.part(part, list, _EXPECTED) if part in document.content else []
        for number, entry in enumerate(entries):
            # Archives made on a Mac hold ._NAME beside NAME, and so do lists that were made from their folders.
            if not is_mac_metadata(_image_of(entry)):
                yield part, number, entry


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Return the class names by value, from dataset.json's {"0": "background", "1": "spleen"}, or as nnU-Net writes."""
    return named_values(read_dataset_json(annotations, annotation_file))


def named_values(document: DatasetJson) -> Mapping[int, str]:
    labels = document.part("labels", dict, '{"0": "background", "1": "spleen", ...}')
    # Of two numbers, the Decathlon's value is the key, and its name is no number.
    pairs = None if all(map(is_whole_number, labels)) else pairs_of_dict(labels)
    return check_label_values(document.path, pairs or labels.items())


def channel_names(annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the names of the channels, from dataset.json's modality {"0": "CT"}; () if it has none."""
    document = read_dataset_json(annotations, annotation_file)
    # Other sets in this format need not name their channels.
    if "modality" not in document.content:
        return ()
    names = document.part("modality", dict, '{"0": "CT", ...}')
    return check_dataset_channel_names(document.path, "modality", names)


def _example(
    entry: Any, place: str, split: str, document: DatasetJson, images: SourceFiles, options: LayoutOptions
) -> SourceExample:
    image, label = _image_of(entry), _label_of(entry)
    # The Decathlon writes {"image": ..., "label": ...}, and plain paths under test.
    if not isinstance(image, str) or not image or not isinstance(label, str | None):
        detail = f"{place}: expected {_EXPECTED}"
        return rejected_example(place, ("annotation", "entry names no image", detail), split)
    source = image
    try:
        source = find_annotated_file(image, "image", images, document.folder)
        mask = find_annotated_file(label, "label", images, document.folder) if label else None
    except SourceError as error:
        return rejected_example(source, error.at(place).args, split)
    # A copied line of the list.
    if mask == source:
        fault = ("annotation", "image and label are one file", place)
        return SourceExample(source=source, key=source, split=split, problem=fault)
    # The Decathlon publishes no labels of its test images.
    lacks_label = mask is None and split != "test" and options.missing_masks == "refuse"
    problem = ("annotation", "image has no label", place) if lacks_label else None
    return SourceExample(source=source, key=source, split=split, mask=mask, problem=problem)


def refuse_repeated(listed: Sequence[SourceExample]) -> list[SourceExample]:
    """Return the examples, with one problem in place of all entries of an image that is listed several times."""
    counts = Counter(example.source for example in listed)
    first = {example.source: example for example in reversed(listed)}
    fault = ("annotation", "image is listed several times")
    return [
        one
        if counts[source] == 1
        else replace(one, mask=None, problem=(*fault, plural(counts[source], "time")))
        for source, one in first.items()
    ]


def refuse_exchanged(listed: Sequence[SourceExample], path: str) -> list[SourceExample]:
    """Return the examples, with a problem where the label's name is that of another listed image.

    A list may pair files of any names, but where label and image share names, a label of another case is a mistake in
    the list: no later check would see it, because cases often have one grid.
    """
    stems = {stem_of(one.source) for one in listed}
    result = []
    for one in listed:
        image, label = stem_of(one.source), stem_of(one.mask or one.source)
        # See above: names that no case has are another scheme, such as a_seg.
        if label != image and label in stems and one.problem is None:
            detail = f"{path}: {image} has the label of {label}; correct the entry"
            one = replace(
                one, mask=None, problem=("annotation", "listed label is that of another case", detail)
            )
        result.append(one)
    return result


def _note_on_number(document: DatasetJson) -> tuple[str, ...]:
    """Return a remark if numTraining is another number than that of the entries: the list may be cut."""
    written, entries = document.content.get("numTraining"), document.content.get("training")
    count = (
        sum(not is_mac_metadata(_image_of(entry)) for entry in entries) if isinstance(entries, list) else 0
    )
    # An absent number is not compared.
    if not isinstance(written, int) or written == count:
        return ()
    return (f"{document.path}: numTraining is {written}, and training lists {plural(count, 'image')}",)


def _named_paths(document: DatasetJson, images: SourceFiles) -> set[str]:
    """Return the paths that any entry names, including entries with a problem."""
    found = set()
    entries = (entry for part in MSD_SPLITS for entry in document.content.get(part, ()))
    for entry in entries:
        for written in entry.values() if isinstance(entry, dict) else (entry,):
            with suppress(SourceError):  # the example of the entry has this error
                found.add(find_annotated_file(str(written), "image", images, document.folder))
    return found
