"""Reader of nnDetection's raw data sets: imagesTr/CASE_0000.nii.gz, labelsTr/CASE.nii.gz and labelsTr/CASE.json.

The label of a case numbers its objects, and its document has the class of each, counted from 0:
{"instances": {"1": 0}}. The box of an object is the one around its voxels. dataset.json or dataset.yaml has the names
of the classes as `labels`, {"0": "nodule"}, and those of the channels as `modalities`.

Source: nnDetection (github.com/MIC-DKFZ/nnDetection), README, "Adding New Data Sets".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from halofeed.prep.annotations.contract import (
    LayoutOptions,
    Listing,
    read_required,
    rejected_example,
    sort_examples,
)
from halofeed.prep.annotations.documents import parse_json_document, parse_yaml, read_limited
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.file_names import is_document_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, Problem, SourceError

ENDING: Final = ".nii.gz"
_CASE = re.compile(
    r"(?P<folder>(?:.*/)?)images(?P<part>Tr|Ts)/(?P<case>[^/]+)_(?P<channel>[0-9]{4})\.nii\.gz"
)
_SPLITS: Final = {"Tr": "train", "Ts": "test"}
_MAX_BYTES: Final = 1 << 20
_DOCUMENTS: Final = ("dataset.json", "dataset.yaml", "dataset.yml")


@dataclass(frozen=True, kw_only=True)
class _Case:
    """Files of one case.

    Args:
        name: name of the case.
        folder: path above imagesTr, with "/" at its end, or "".
        part: "Tr" or "Ts".
        channels: file of each channel by its number.
    """

    name: str
    folder: str
    part: str
    channels: Mapping[int, str]

    @property
    def label(self) -> str:
        """Path of the label."""
        return f"{self.folder}labels{self.part}/{self.name}{ENDING}"

    @property
    def document(self) -> str:
        """Path of the document with the classes of the objects."""
        return f"{self.folder}labels{self.part}/{self.name}.json"


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Listing:
    """Yield an example for every case with its objects, and one for every other file in the folders of the images.

    A case of imagesTs without a label is for prediction, and left out. One of imagesTr without one is a problem.

    Raises:
        AnnotationsError: there is no case, or the classes are not as the format has them.
    """
    classes, channels = _read_names(annotations, annotation_file)
    cases, strays = _find_cases(images)
    if not cases:
        raise AnnotationsError(
            f"{images.root}: expected imagesTr/CASE_0000{ENDING}, labelsTr/CASE{ENDING} and labelsTr/CASE.json"
        )
    examples = [_example(case, images, classes, channels) for case in cases]
    yield from sort_examples([*examples, *strays])
    names = classes or {number: str(number) for number in _numbers(examples)}
    return lambda: names


def _numbers(examples: list[SourceExample]) -> list[int]:
    return sorted({int(box.label) for one in examples for box in one.boxes or ()})


def _find_cases(images: SourceFiles) -> tuple[list[_Case], list[SourceExample]]:
    """Return the cases, and an example for each other file beside their images."""
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    strays = []
    for path in sorted(images.sizes()):
        match = _CASE.fullmatch(path)
        if match is not None:
            key = match["folder"], match["part"], match["case"]
            found.setdefault(key, {})[int(match["channel"])] = path
        elif re.search(r"(^|/)images(Tr|Ts)/[^/]+$", path) and not is_document_name(path):
            problem = ("annotation", "file is no channel of a case", f"expected CASE_0000{ENDING}")
            strays.append(rejected_example(path, problem))
    cases = [
        _Case(name=name, folder=folder, part=part, channels=channels)
        for (folder, part, name), channels in found.items()
    ]
    return cases, strays


def _example(
    case: _Case, images: SourceFiles, classes: Mapping[int, str], channels: tuple[str, ...]
) -> SourceExample:
    first, *rest = (case.channels[number] for number in sorted(case.channels))
    split = _SPLITS[case.part]
    problem = _problem_of_files(case, images, channels)
    instances: Mapping[int, int] = {}
    if problem is None:
        try:
            instances = _read_instances(case, images, classes)
        except SourceError as error:
            problem = (error.stage, error.reason, error.detail)
    if problem is not None:
        return SourceExample(source=first, key=first, split=split, channels=tuple(rest), problem=problem)
    return SourceExample(
        source=first,
        key=first,
        split=split,
        channels=tuple(rest),
        mask=case.label,
        segments=tuple(instances.items()),
        boxes=tuple(
            Box(
                xmin=0,
                ymin=0,
                zmin=0,
                xmax=0,
                ymax=0,
                zmax=0,
                label=classes.get(one, str(one)),
                instance=number,
            )
            for number, one in instances.items()
        ),
    )


def _problem_of_files(case: _Case, images: SourceFiles, channels: tuple[str, ...]) -> Problem | None:
    """Return the problem of a case that lacks a channel, its label or its document."""
    expected = range(len(channels)) if channels else range(max(case.channels) + 1)
    if missing := [number for number in expected if number not in case.channels]:
        return ("annotation", "channel is missing", f"{case.name}: {missing[0]:04d}")
    if unknown := [number for number in case.channels if number not in expected]:
        return ("annotation", "channel is not in the data set's document", f"{case.name}: {unknown[0]:04d}")
    for path in (case.label, case.document):
        if images.size(path) is None:
            # Cases of imagesTs are for prediction.
            stage = "selection" if case.part == "Ts" else "annotation"
            return (stage, "case has no label", f"expected {path}")
    return None


def _read_instances(case: _Case, images: SourceFiles, classes: Mapping[int, str]) -> Mapping[int, int]:
    """Return the class of each number in a label.

    Raises:
        SourceError: the document is damaged, or gives a class that the data set does not have.
    """
    document = parse_json_document(read_limited(images, case.document, "document of a label", _MAX_BYTES))
    written = document.get("instances") if isinstance(document, dict) else None
    if not isinstance(written, dict):
        detail = f'{case.document}: expected {{"instances": {{"1": 0}}}}'
        raise SourceError("annotation", "document of a label has no instances", detail)
    for number, one in written.items():
        if not _is_instance(number, one, classes):
            named = ", ".join(f"{key} {name}" for key, name in list(classes.items())[:10])
            known = named or "whole numbers from 0"
            detail = f"{case.document}: {number!r}: {one!r}; expected a number from 1, and a class of {known}"
            raise SourceError("annotation", "object has no known class", detail)
    return {int(number): written[number] for number in sorted(written, key=int)}


def _is_instance(number: str, one: Any, classes: Mapping[int, str]) -> bool:
    """Return whether a document gives a number of an object, from 1, and one of the classes, or any without names."""
    if not number.isdecimal() or int(number) < 1 or type(one) is not int:
        return False
    return one in classes if classes else one >= 0


def _read_names(
    annotations: SourceFiles, annotation_file: str | None
) -> tuple[Mapping[int, str], tuple[str, ...]]:
    """Return the names of the classes by number, and those of the channels; both empty without a document."""
    document = _read_document(annotations, annotation_file)
    if document is None:
        return {}, ()
    path, content = document
    classes = _numbered(path, content, "labels")
    modalities = _numbered(path, content, "modalities") if "modalities" in content else {}
    return classes, tuple(name for _, name in sorted(modalities.items()))


def channel_names(annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the names of the channels, from `modalities` of the data set's document."""
    return _read_names(annotations, annotation_file)[1]


def _read_document(
    annotations: SourceFiles, annotation_file: str | None
) -> tuple[str, dict[str, Any]] | None:
    if annotation_file is None:
        paths = [path for path in annotations.sizes() if path.rpartition("/")[2] in _DOCUMENTS]
        annotation_file = min(paths, key=lambda path: (path.count("/"), path), default=None)
    if annotation_file is None:
        return None
    data = read_required(annotations, annotation_file)
    try:
        content = json.loads(data) if annotation_file.endswith(".json") else parse_yaml(data)
    except (ValueError, SourceError) as error:
        raise AnnotationsError(f"{annotation_file}: it cannot be read: {error}; correct it") from error
    if not isinstance(content, dict):
        raise AnnotationsError(f'{annotation_file}: expected an object with "labels": {{"0": "nodule"}}')
    return annotation_file, content


def _numbered(path: str, content: Mapping[str, Any], key: str) -> dict[int, str]:
    """Return the names under a key by their numbers, which count from 0."""
    written = content.get(key)
    example = f'{path}: {key}: expected names by numbers from 0, such as {{"0": "nodule"}}'
    if not isinstance(written, dict) or not written:
        raise AnnotationsError(f"{example}; got {str(written)[:80]!r}")
    found = {}
    for number, name in written.items():
        if not str(number).isdecimal() or not isinstance(name, str) or not name.strip():
            raise AnnotationsError(f"{example}; got {number!r}: {name!r}")
        found[int(number)] = name.strip()
    if len({*found.values()}) < len(found):
        raise AnnotationsError(f"{example}; a name is there twice")
    return dict(sorted(found.items()))


def label_names(annotations: SourceFiles, annotation_file: str | None) -> Iterator[str]:
    """Yield the names of the classes in their order."""
    yield from _read_names(annotations, annotation_file)[0].values()
