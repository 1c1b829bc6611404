"""How the Medical Segmentation Decathlon's dataset.json is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from halofeed.prep.annotations.contract import LayoutOptions, in_order
from halofeed.prep.layouts.dataset_json import (
    DatasetJson,
    check_channel_names,
    check_values,
    is_left_behind,
    names_cases,
    read_dataset_json,
)
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.reference import Reference
from halofeed.prep.sources.volume_files import locate, whole_scans
from halofeed.schemas.errors import AnnotationsError, SourceError

SPLITS = {"training": "train", "validation": "validation", "test": "test"}
"""The lists of a dataset.json and their splits; the Decathlon itself has no validation list."""

_EXPECTED = 'a list of {"image": ..., "label": ...}, or of paths where there are no labels'


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[Reference]:
    """Every entry of the lists training (split `train`) and test (split `test`), and every scan that is in neither.

    Paths are relative to the folder of dataset.json. An entry of `test` without label is for prediction only; one
    of `training` is a problem, unless the options keep it. Entries and files called `._*` are passed over: they are
    no scans, but what a copy from a Mac leaves.

    Raises:
        AnnotationsError: if dataset.json is missing or is not that of the Decathlon.
    """
    document = read_dataset_json(annotations, annotation_file)
    label_values(annotations, images, annotation_file, options)
    document.part("training", list, _EXPECTED)
    if names_cases(document, images):
        raise AnnotationsError(
            f"{document.path}: training: its images are cases whose channels are files CASE_0000, as nnU-Net's "
            "version 1 has them; say --layout nnunet"
        )
    listed: list[Reference] = []
    for part, split in SPLITS.items():
        entries = document.part(part, list, _EXPECTED) if part in document.content else []
        for number, entry in enumerate(entries):
            if not _is_left_behind(entry):
                place = f"{document.path}#{part}[{number}]"
                listed.append(_reference(entry, place, split, document, images, options))
    listed = refuse_repeated(listed)
    used = {path for reference in listed for path in reference.paths} | _named(document, images)
    for path in whole_scans(images.sizes()):
        if path not in used:
            problem = ("selection", "file is not in dataset.json", "")
            listed.append(Reference(source=path, key=path, problem=problem))
    yield from in_order(listed)


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """The class names by value, from dataset.json's {"0": "background", "1": "spleen"}."""
    document = read_dataset_json(annotations, annotation_file)
    labels = document.part("labels", dict, '{"0": "background", "1": "spleen", ...}')
    if labels and not any(key.isascii() and key.isdigit() for key in labels):
        raise AnnotationsError(
            f'{document.path}: labels: expected {{"1": "spleen"}}, got names before values, as nnU-Net writes them; '
            "say --layout nnunet"
        )
    return check_values(document.path, labels.items())


def channel_names(annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """The names of the channels, from dataset.json's modality {"0": "CT"}; () where it has none."""
    document = read_dataset_json(annotations, annotation_file)
    if "modality" not in document.content:
        return ()
    names = document.part("modality", dict, '{"0": "CT", ...}')
    return check_channel_names(document.path, "modality", names)


def _is_left_behind(entry: Any) -> bool:
    path = entry.get("image") if isinstance(entry, dict) else entry
    return isinstance(path, str) and is_left_behind(path)


def _reference(
    entry: Any, place: str, split: str, document: DatasetJson, images: SourceFiles, options: LayoutOptions
) -> Reference:
    image, label = (entry.get("image"), entry.get("label")) if isinstance(entry, dict) else (entry, None)
    if not isinstance(image, str) or not image or not isinstance(label, str | None):
        problem = ("annotation", "entry names no image", f"{place}: expected {_EXPECTED}")
        return Reference(source=place, key=place, split=split, problem=problem)
    source = image
    try:
        source = locate(image, "image", images, document.folder)
        mask = locate(label, "label", images, document.folder) if label else None
    except SourceError as error:
        return Reference(source=source, key=source, split=split, problem=error.at(place).args)
    fault = None
    if mask == source:
        fault, mask = ("annotation", "image and label are one file", place), None
    elif mask is None and split != "test" and options.missing_masks == "refuse":
        fault = ("annotation", "image has no label", place)
    return Reference(source=source, key=source, split=split, mask=mask, problem=fault)


def refuse_repeated(listed: Sequence[Reference]) -> list[Reference]:
    """One problem for each image that is listed several times, even in two splits, in place of its entries."""
    counts = Counter(reference.source for reference in listed)
    first = {reference.source: reference for reference in reversed(listed)}
    fault = ("annotation", "image is listed several times")
    return [
        one if counts[source] == 1 else replace(one, mask=None, problem=(*fault, f"{counts[source]} times"))
        for source, one in first.items()
    ]


def _named(document: DatasetJson, images: SourceFiles) -> set[str]:
    """The files that any entry names, also one with a problem: they are accounted for."""
    found = set()
    for part in SPLITS:
        for entry in document.content.get(part, ()):
            for written in entry.values() if isinstance(entry, dict) else (entry,):
                try:
                    found.add(locate(str(written), "image", images, document.folder))
                except SourceError:
                    continue
    return found
