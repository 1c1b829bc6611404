"""Reader of nnU-Net's raw data sets (versions 1 and 2): imagesTr, imagesTs, labelsTr and dataset.json."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from halofeed.errors import AnnotationsError, Problem
from halofeed.prep.annotations.class_documents import pairs_of_dict
from halofeed.prep.annotations.contract import LayoutOptions, rejected_example, sort_examples
from halofeed.prep.annotations.pairing import LabelFiles, PairKey, pair_up, single_file_label
from halofeed.prep.layouts.msd import (
    DatasetJson,
    check_dataset_channel_names,
    check_label_values,
    listed_files,
    names_cases,
    read_dataset_json,
)
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import (
    IMAGE_EXTENSIONS,
    SINGLE_FILE_EXTENSIONS,
    extension_of,
    is_document_name,
)
from halofeed.prep.sources.files import SourceFiles, unlisted_folders
from halofeed.system.wording import plural

_FOLDERS = {"Tr": "train", "Ts": "test"}
_LISTS = {"Tr": "training", "Ts": "test"}
_COLORS = 3
_CASE = re.compile(r"(.+)_(\d{4})")


@dataclass(frozen=True, kw_only=True)
class _Dataset:
    """Checked description of the files from dataset.json.

    Args:
        document: the document.
        channels: names of the channels.
        file_ending: extension of all files.
        training: number of training cases.
        channels_of_files: number of channels in each file.
    """

    document: DatasetJson
    channels: tuple[str, ...]
    file_ending: str
    training: int
    channels_of_files: int = 1


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every case of imagesTr (split `train`) and imagesTs (split `test`).

    A case consists of its channels CASE_0000, CASE_0001, ... Its label is labelsTr/CASE or labelsTs/CASE. With one
    channel, an image may be named CASE if no file has a number and its label exists. Without labelsTs, the cases of
    imagesTs are for prediction only. A case that lacks a channel of dataset.json has a problem. So has any file in
    these folders that is neither channel nor label. Version 1 lists the cases of each folder: a case that only the
    folder or only the list has, or whose listed label is that of another case, has a problem too.

    Raises:
        AnnotationsError: dataset.json is missing or is the Decathlon's; it has regions and no option handles them; or
            its number of training cases is wrong.
    """
    dataset = _read(annotations, annotation_file)
    _check_not_decathlon(dataset.document, images)
    label_values(annotations, images, annotation_file, options)
    below = f"{dataset.document.folder}/" if dataset.document.folder else ""
    found: list[tuple[PairKey, SourceExample]] = []
    labels: list[tuple[PairKey, LabelFiles]] = []
    strays: list[SourceExample] = []
    ending = dataset.file_ending
    is_unnumbered = _is_unnumbered(dataset, images, below)
    dataset = replace(dataset, channels_of_files=_channels_of_files(dataset, images, below))
    for suffix, split in _FOLDERS.items():
        channels: dict[str, dict[int, str]] = {}
        for path in _files(images, f"{below}images{suffix}/"):
            stem = path.rpartition("/")[2].removesuffix(ending)
            match = _CASE.fullmatch(stem)
            if is_unnumbered and path.endswith(ending):
                channels[stem] = {0: path}
            elif not path.endswith(ending) or match is None:
                expected = f"expected CASE_0000{ending}, such as {stem}_0000{ending}"
                strays.append(
                    rejected_example(path, ("annotation", "file is no channel of a case", expected), split)
                )
            else:
                channels.setdefault(match[1], {})[int(match[2])] = path
        found += [((suffix, case), _case(case, files, split, dataset)) for case, files in channels.items()]
        for path in _files(images, f"{below}labels{suffix}/"):
            if path.endswith(ending):
                labels.append(((suffix, _case_of(path, ending)), single_file_label(path)))
            else:
                expected = f"expected CASE{ending}"
                strays.append(
                    rejected_example(path, ("annotation", "file is no label of a case", expected), split)
                )
    cases = sum(key[0] == "Tr" for key, _ in found)
    if cases != dataset.training:
        stray = next(
            (f"; {one.source}: {one.problem[2]}" for one in strays if one.problem and one.split == "train"),
            "",
        )
        there = {extension_of(path) for path in _files(images, f"{below}imagesTr/")}
        if not cases and len(there) == 1 and ending not in there:
            (only,) = there
            raise AnnotationsError(
                f"{dataset.document.path}: file_ending is {ending}, and the files of imagesTr end in {only}; write "
                f'"file_ending": "{only}"'
            )
        raise AnnotationsError(
            f"{dataset.document.path}: numTraining is {dataset.training}, and imagesTr holds "
            f"{plural(cases, 'case')}{stray}; complete the folder or correct the number"
        )
    if "modality" in dataset.document.content:
        found, missing = _compare_with_lists(found, dataset)
        strays += missing
    test_label = next(_files(images, f"{below}labelsTs/"), None)
    may_have_test_labels = test_label is not None or bool(unlisted_folders(images))
    paired = pair_up(
        found, labels, options.missing_masks, lambda key: key[0] == "Ts" and not may_have_test_labels
    )
    yield from sort_examples([*paired, *strays])


def _compare_with_lists(
    found: Sequence[tuple[PairKey, SourceExample]], dataset: _Dataset
) -> tuple[list[tuple[PairKey, SourceExample]], list[SourceExample]]:
    """Return the cases compared with the lists of version 1, and one example for each listed case without a file.

    An absent or empty list is not compared: the cases of imagesTs need no list.
    """
    document, ending = dataset.document, dataset.file_ending
    listed: dict[PairKey, str] = {}
    missing: list[SourceExample] = []
    cases = {key for key, _ in found}
    for suffix, split in _FOLDERS.items():
        for image, label in listed_files(document, _LISTS[suffix]):
            case, of_label = (_case_of(path, ending) for path in (image, label or image))
            listed[suffix, case] = of_label
            if (suffix, case) not in cases:
                expected = f"{document.path}: {_LISTS[suffix]}: expected images{suffix}/{case}_0000{ending}"
                missing.append(
                    rejected_example(image, ("annotation", "listed case has no file", expected), split)
                )
    compared = []
    for key, example in found:
        named = listed.get(key)
        if named is None and any(suffix == key[0] for suffix, _ in listed):
            detail = f"{document.path}: {_LISTS[key[0]]}: add {key[1]}{ending}, or remove the file"
            example = replace(example, problem=("selection", "case is not in dataset.json", detail))
        elif named not in (None, key[1]):
            detail = f"{document.path}: training: {key[1]} has the label of {named}; correct the entry"
            example = replace(example, problem=("annotation", "listed label is that of another case", detail))
        compared.append((key, example))
    return compared, missing


def _case_of(path: str, ending: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2].removesuffix(ending)


def _is_unnumbered(dataset: _Dataset, images: SourceFiles, below: str) -> bool:
    """Return whether all images of the only channel are named like their labels, without _0000."""
    if len(dataset.channels) > 1:
        return False
    stems, cases = (
        {
            path.rpartition("/")[2].removesuffix(dataset.file_ending)
            for path in _files(images, f"{below}{folder}/")
            if path.endswith(dataset.file_ending)
        }
        for folder in ("imagesTr", "labelsTr")
    )
    return bool(stems) and stems <= cases and not any(f"{stem}_0000" in stems for stem in cases)


def _channels_of_files(dataset: _Dataset, images: SourceFiles, below: str) -> int:
    """Return 3 if each case is one color picture with the three channels of dataset.json, else 1.

    nnU-Net's NaturalImage2DIO stores RGB pictures so, as CASE_0000.png. The names alone could be those of cases whose
    other channels are lost; the first picture shows whether it has three channels itself.

    Source: nnU-Net, nnunetv2/imageio/natural_image_reader_writer.py; Dataset120_RoadSegmentation.
    """
    from halofeed.prep.formats.picture.table import open_header  # imports OpenCV, which --help does without

    paths = [path for path in _files(images, f"{below}imagesTr/") if path.endswith(dataset.file_ending)]
    if len(dataset.channels) != _COLORS or not paths or dataset.file_ending not in IMAGE_EXTENSIONS:
        return 1
    if not all(path.endswith(f"_0000{dataset.file_ending}") for path in paths):
        return 1
    opened = open_header(images.read(paths[0]))
    if opened is None or opened.load(False, (0, 0)).pixels.shape[2:] != (_COLORS,):
        return 1
    return _COLORS


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Return the class names by value, from dataset.json's {"background": 0, "spleen": 1}; "ignore" is a class.

    If classes are regions, the names are combined. With the option "channels", `regions` defines the classes instead.
    """
    document = _read(annotations, annotation_file).document
    labels = document.part("labels", dict, '{"background": 0, "spleen": 1, ...}')
    regions = [name for name, value in labels.items() if isinstance(value, list)]
    if not regions:
        pairs = pairs_of_dict(labels) or [(value, name) for name, value in labels.items()]
        return check_label_values(document.path, pairs)
    if options.regions == "refuse":
        raise AnnotationsError(
            f"{document.path}: labels: {', '.join(regions[:5])}: a region is several values, and a label volume "
            "has one class a voxel; --regions combine keeps the values, each with the names of all regions that hold "
            "it, and --class-overlap channels (volumes) makes each region a channel"
        )
    return check_label_values(document.path, _combine_regions(labels))


def regions(annotations: SourceFiles, annotation_file: str | None) -> Mapping[str, tuple[int, ...]]:
    """Return the values of each region and class except the background, in file order; {} if no entry is a list.

    Raises:
        AnnotationsError: a region has no values, or a value is not a whole number above 0.
    """
    document = _read(annotations, annotation_file).document
    labels = document.part("labels", dict, '{"background": 0, "tumor": [1, 2], ...}')
    if not any(isinstance(value, list) for value in labels.values()):
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for name, written in labels.items():
        values = written if isinstance(written, list) else [written]
        if values == [0]:
            continue
        checked = check_label_values(document.path, ((value, f"{name} {value}") for value in values))
        if not checked or 0 in checked:
            raise AnnotationsError(
                f"{document.path}: labels: {name}: expected values above 0, such as [1, 2], got {written!r}; 0 is the "
                "background"
            )
        found[name] = tuple(checked)
    return found


def _combine_regions(labels: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Return (value, names of its regions): [1, 2] "tumor" and [2] "core" give 2 "tumor+core"."""
    held: dict[Any, list[str]] = {}
    for name, written in labels.items():
        for value in written if isinstance(written, list) else [written]:
            held.setdefault(value if isinstance(value, int | str) else str(value), []).append(name)
    names = {value: "+".join(regions) for value, regions in held.items()}
    twice = Counter(names.values())
    return [(value, name if twice[name] == 1 else f"{name} {value}") for value, name in names.items()]


def channel_names(annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the names of the channels, from dataset.json's channel_names {"0": "CT"}."""
    return _read(annotations, annotation_file).channels


def _read(annotations: SourceFiles, annotation_file: str | None) -> _Dataset:
    document = read_dataset_json(annotations, annotation_file)
    if "channel_names" not in document.content and "modality" in document.content:
        document = _version_2(document, annotations)
    if "dataset" in document.content:
        raise AnnotationsError(
            f"{document.path}: dataset: lists of files are not followed; lay them out as imagesTr and labelsTr"
        )
    names = document.part("channel_names", dict, '{"0": "CT", ...}')
    ending = document.part("file_ending", str, "such as .nii.gz")
    known = (*SINGLE_FILE_EXTENSIONS, *IMAGE_EXTENSIONS)
    if ending not in known:
        raise AnnotationsError(
            f"{document.path}: file_ending {ending!r} is not read; known: {' '.join(known)}"
        )
    return _Dataset(
        document=document,
        channels=check_dataset_channel_names(document.path, "channel_names", names),
        file_ending=ending,
        training=document.part("numTraining", int, "the number of training cases"),
    )


def _version_2(document: DatasetJson, files: SourceFiles) -> DatasetJson:
    """Convert a document of version 1, which has the Decathlon's keys, to version 2."""
    _check_not_decathlon(document, files)
    values = check_label_values(
        document.path, document.part("labels", dict, '{"0": "background", ...}').items()
    )
    changed = {
        "channel_names": document.content["modality"],
        "labels": {name: value for value, name in values.items()},
        "file_ending": ".nii.gz",
    }
    return replace(document, content={**document.content, **changed})


def _check_not_decathlon(document: DatasetJson, files: SourceFiles) -> None:
    if "modality" in document.content and names_cases(document, files) is False:
        raise AnnotationsError(
            f"{document.path}: training: its images are files without the number of a channel, as the Medical "
            "Segmentation Decathlon has them; say --layout msd"
        )


def _files(images: SourceFiles, folder: str) -> Iterator[str]:
    """Yield the files directly in a folder that are not documents."""
    for path in images.sizes():
        if path.startswith(folder) and "/" not in path[len(folder) :] and not is_document_name(path):
            yield path


def _case(case: str, files: Mapping[int, str], split: str, dataset: _Dataset) -> SourceExample:
    first, *rest = (files[number] for number in sorted(files))
    expected = range(0, len(dataset.channels), dataset.channels_of_files)
    missing = [number for number in expected if number not in files]
    unknown = [number for number in sorted(files) if number not in expected]
    problem: Problem | None = None
    if missing:
        named = ", ".join(f"{number:04d} ({dataset.channels[number]})" for number in missing[:5])
        problem = ("annotation", "channel is missing", f"{case}: {named}")
    elif unknown:
        named = ", ".join(f"{number:04d}" for number in unknown[:5])
        problem = ("annotation", "channel is not in dataset.json", f"{case}: {named}")
    return SourceExample(source=first, key=first, split=split, channels=tuple(rest), problem=problem)
