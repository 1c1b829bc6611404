"""Reader of nnU-Net's raw data sets (versions 1 and 2): imagesTr, imagesTs, labelsTr and dataset.json."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

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
    SINGLE_FILE_EXTENSIONS,
    STILL_EXTENSIONS,
    extension_of,
    find_annotated_file,
    is_document_name,
    iterate_scans,
)
from halofeed.prep.sources.files import SourceFiles, unlisted_folders
from halofeed.system.errors import AnnotationsError, Problem, SourceError
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

    @property
    def below(self) -> str:
        """Start of the paths of its folders: that of dataset.json's folder."""
        return f"{self.document.folder}/" if self.document.folder else ""


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every case of imagesTr (split `train`) and imagesTs (split `test`).

    A case consists of its channels CASE_0000, CASE_0001, ... Its label is labelsTr/CASE or labelsTs/CASE. With one
    channel, an image may be named CASE if no file has a number and its label exists. Without labelsTs, the cases of
    imagesTs are for prediction only. A case that lacks a channel of dataset.json has a problem. So has any file in
    these folders that is neither channel nor label. If dataset.json lists the files of its cases under `dataset`, these
    are the training cases, and imagesTr and labelsTr may be absent. Version 1 lists the cases of each folder: a case
    that only the folder or only the list has, or whose listed label is that of another case, has a problem too.

    Raises:
        AnnotationsError: dataset.json is missing or is the Decathlon's; it has regions and no option handles them; or
            its number of training cases is wrong.
    """
    dataset = _read(annotations, annotation_file)
    _check_not_decathlon(dataset.document, images)
    _named_values(dataset.document, options)  # checks the labels before any case
    dataset = replace(dataset, channels_of_files=_channels_of_files(dataset, images))
    found: list[tuple[PairKey, SourceExample]] = []
    labels: list[tuple[PairKey, LabelFiles]] = []
    strays: list[SourceExample] = []
    is_listed = "dataset" in dataset.document.content
    if is_listed:
        found, labels = _listed_cases(dataset, images)
    for suffix, split in _FOLDERS.items():
        # nnU-Net's `get_filenames_of_train_images_and_targets`: with `dataset`, it does not look into imagesTr.
        if is_listed and suffix == "Tr":
            continue
        cases, not_channels = _sort_channels(suffix, dataset, images)
        found += [((suffix, case), _case(case, files, split, dataset)) for case, files in cases.items()]
        of_folder, not_labels = _sort_labels(suffix, dataset, images)
        labels += of_folder
        strays += [*not_channels, *not_labels]
    _check_count(found, strays, dataset, images)
    # Version 1 has lists of its cases, as the Decathlon has; version 2 has none.
    if "modality" in dataset.document.content:
        found, missing = _compare_with_lists(found, dataset)
        strays += missing
    # The format does not need labelsTs. If it exists, a test case without a label lacks its file.
    test_label = next(_files(images, f"{dataset.below}labelsTs/"), None)
    may_have_test_labels = test_label is not None or bool(unlisted_folders(images))
    paired = pair_up(
        found, labels, options.missing_masks, lambda key: key[0] == "Ts" and not may_have_test_labels
    )
    if is_listed:
        strays += _unlisted_files([*paired, *strays], dataset, images)
    yield from sort_examples([*paired, *strays])


def _listed_cases(
    dataset: _Dataset, images: SourceFiles
) -> tuple[list[tuple[PairKey, SourceExample]], list[tuple[PairKey, LabelFiles]]]:
    """Return the cases and labels that `dataset` lists, {"CASE": {"images": [...], "label": ...}}, in any folder.

    Paths are relative to the folder of dataset.json. Images are in the order of channel_names.

    Source: nnU-Net, documentation/dataset_format.md, and `get_filenames_of_train_images_and_targets`, which replaces
    environment variables in paths.

    Raises:
        AnnotationsError: `dataset` is no such object.
    """
    document = dataset.document
    expected = '{"CASE": {"images": ["a.nii.gz"], "label": "b.nii.gz"}, ...}'
    found: list[tuple[PairKey, SourceExample]] = []
    labels: list[tuple[PairKey, LabelFiles]] = []
    for case, entry in document.part("dataset", dict, expected).items():
        place, key = f"{document.path}#dataset[{case}]", ("Tr", case)
        written = entry.get("images") if isinstance(entry, dict) else None
        label = entry.get("label") if isinstance(entry, dict) else None
        if not _is_list_of_texts(written) or not isinstance(label, str | None):
            problem = ("annotation", "entry names no image", f"{place}: expected {expected}")
            found.append((key, rejected_example(place, problem)))
            continue
        try:
            paths = [_listed_file(one, "image", dataset, images) for one in written or ()]
            mask = _listed_file(label, "label", dataset, images) if label else None
        except SourceError as error:
            found.append((key, rejected_example(place, error.at(place).args)))
            continue
        found.append((key, _case(case, dict(enumerate(paths)), "train", dataset)))
        if mask is not None:
            labels.append((key, single_file_label(mask)))
    return found, labels


def _is_list_of_texts(written: Any) -> bool:
    return isinstance(written, list) and bool(written) and all(isinstance(one, str) for one in written)


def _unlisted_files(
    used: Sequence[SourceExample], dataset: _Dataset, images: SourceFiles
) -> list[SourceExample]:
    """Return an example for each volume and picture that no other example uses, and no entry of `dataset` names."""
    paths = {path for one in used for path in one.paths}
    for entry in dataset.document.content["dataset"].values():
        values = entry.values() if isinstance(entry, dict) else (entry,)
        for written in chain.from_iterable(one if isinstance(one, list) else [one] for one in values):
            with suppress(SourceError):  # the example of the entry has this error
                paths.add(_listed_file(str(written), "image", dataset, images))
    return [
        rejected_example(path, ("selection", "file is not in dataset.json", ""))
        for path in iterate_scans(images.sizes())
        if path not in paths
    ]


def _listed_file(written: str, what: str, dataset: _Dataset, images: SourceFiles) -> str:
    return find_annotated_file(os.path.expandvars(written), what, images, dataset.document.folder)


def _sort_channels(
    suffix: str, dataset: _Dataset, images: SourceFiles
) -> tuple[dict[str, dict[int, str]], list[SourceExample]]:
    """Return the files of each case of imagesTr or imagesTs by channel, and an example for each other file."""
    ending, is_unnumbered = dataset.file_ending, _is_unnumbered(dataset, images)
    cases: dict[str, dict[int, str]] = {}
    strays = []
    for path in _files(images, f"{dataset.below}images{suffix}/"):
        stem = path.rpartition("/")[2].removesuffix(ending)
        match = _CASE.fullmatch(stem)
        # CASE.nii.gz of one channel, see `_is_unnumbered`.
        if is_unnumbered and path.endswith(ending):
            cases[stem] = {0: path}
        # nnU-Net, documentation/dataset_format.md: {CASE_IDENTIFIER}_{XXXX}.{FILE_ENDING}.
        elif not path.endswith(ending) or match is None:
            expected = f"expected CASE_0000{ending}, such as {stem}_0000{ending}"
            problem = ("annotation", "file is no channel of a case", expected)
            strays.append(rejected_example(path, problem, _FOLDERS[suffix]))
        else:
            cases.setdefault(match[1], {})[int(match[2])] = path
    return cases, strays


def _sort_labels(
    suffix: str, dataset: _Dataset, images: SourceFiles
) -> tuple[list[tuple[PairKey, LabelFiles]], list[SourceExample]]:
    """Return the label of each case of labelsTr or labelsTs, and an example for each other file."""
    labels: list[tuple[PairKey, LabelFiles]] = []
    strays = []
    for path in _files(images, f"{dataset.below}labels{suffix}/"):
        if path.endswith(dataset.file_ending):
            labels.append(((suffix, _case_of(path, dataset.file_ending)), single_file_label(path)))
        else:
            problem = ("annotation", "file is no label of a case", f"expected CASE{dataset.file_ending}")
            strays.append(rejected_example(path, problem, _FOLDERS[suffix]))
    return labels, strays


def _check_count(
    found: Sequence[tuple[PairKey, SourceExample]],
    strays: Sequence[SourceExample],
    dataset: _Dataset,
    images: SourceFiles,
) -> None:
    """Raise AnnotationsError if numTraining is another number than that of the training cases.

    nnU-Net's `verify_dataset_integrity` requires this too: a copy may lack cases.
    """
    cases, ending = sum(key[0] == "Tr" for key, _ in found), dataset.file_ending
    if cases == dataset.training:
        return
    endings = {extension_of(path) for path in _files(images, f"{dataset.below}imagesTr/")}
    # A wrong file_ending looks like a set without cases.
    if not cases and len(endings) == 1 and ending not in endings:
        (only,) = endings
        raise AnnotationsError(
            f"{dataset.document.path}: file_ending is {ending}, and the files of imagesTr end in {only}; write "
            f'"file_ending": "{only}"'
        )
    of_train = ((one, one.problem) for one in strays if one.split == "train")
    stray = next((f"; {one.source}: {problem[2]}" for one, problem in of_train if problem), "")
    holds = "dataset lists" if "dataset" in dataset.document.content else "imagesTr holds"
    raise AnnotationsError(
        f"{dataset.document.path}: numTraining is {dataset.training}, and {holds} "
        f"{plural(cases, 'case')}{stray}; complete the folder or correct the number"
    )


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
    problems = {key: _list_problem(key, listed, dataset) for key in cases}
    return [(key, replace(one, problem=problems[key] or one.problem)) for key, one in found], missing


def _list_problem(key: PairKey, listed: Mapping[PairKey, str], dataset: _Dataset) -> Problem | None:
    """Return the problem of a case that is in no list, or whose listed label is another case's; else None."""
    (suffix, case), path = key, dataset.document.path
    named = listed.get(key)
    if named is None:
        if not any(other == suffix for other, _ in listed):
            return None
        detail = f"{path}: {_LISTS[suffix]}: add {case}{dataset.file_ending}, or remove the file"
        return ("selection", "case is not in dataset.json", detail)
    if named != case:
        detail = f"{path}: training: {case} has the label of {named}; correct the entry"
        return ("annotation", "listed label is that of another case", detail)
    return None


def _case_of(path: str, ending: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2].removesuffix(ending)


def _is_unnumbered(dataset: _Dataset, images: SourceFiles) -> bool:
    """Return whether all images of the only channel are named like their labels, without _0000.

    nnU-Net needs the number, but a set of one channel is unambiguous without it. A case may end in four digits itself,
    so the labels must exist under the same names.
    """
    # With several channels only the number tells which one a file is.
    if len(dataset.channels) > 1:
        return False
    stems, cases = (
        {
            path.rpartition("/")[2].removesuffix(dataset.file_ending)
            for path in _files(images, f"{dataset.below}{folder}/")
            if path.endswith(dataset.file_ending)
        }
        for folder in ("imagesTr", "labelsTr")
    )
    return bool(stems) and stems <= cases and not any(f"{stem}_0000" in stems for stem in cases)


def _channels_of_files(dataset: _Dataset, images: SourceFiles) -> int:
    """Return 3 if each case is one color picture with the three channels of dataset.json, else 1.

    nnU-Net's NaturalImage2DIO stores RGB pictures so, as CASE_0000.png. The names alone could be those of cases whose
    other channels are lost; the first picture shows whether it has three channels itself.

    Source: nnU-Net, nnunetv2/imageio/natural_image_reader_writer.py; Dataset120_RoadSegmentation.
    """
    from halofeed.prep.formats.picture.picture_formats import (
        open_header,  # imports OpenCV, which --help does without
    )

    ending = dataset.file_ending
    paths = [path for path in _files(images, f"{dataset.below}imagesTr/") if path.endswith(ending)]
    if "dataset" in dataset.document.content:
        paths = _single_files(dataset, images)
    # Only pictures hold several channels in one file; volumes have one file each.
    if len(dataset.channels) != _COLORS or not paths or ending not in STILL_EXTENSIONS:
        return 1
    is_listed = "dataset" in dataset.document.content
    if not is_listed and not all(path.endswith(f"_0000{ending}") for path in paths):
        return 1
    opened = open_header(images.read(paths[0]))
    if opened is None or opened.load(False, (0, 0)).pixels.shape[2:] != (_COLORS,):
        return 1
    return _COLORS


def _single_files(dataset: _Dataset, images: SourceFiles) -> list[str]:
    """Return the listed image of each case if all cases have one; else []."""
    entries = dataset.document.content["dataset"]
    listed = [entry.get("images") for entry in entries.values()] if isinstance(entries, dict) else []
    if not all(_is_list_of_texts(one) and len(one) == 1 for one in listed):
        return []
    try:
        return [_listed_file(one[0], "image", dataset, images) for one in listed]
    except SourceError:  # the case is rejected with its reason
        return []


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Return the class names by value, from dataset.json's {"background": 0, "spleen": 1}; "ignore" is a class.

    If classes are regions, the names are combined. With the option "channels", `regions` defines the classes instead.
    """
    return _named_values(_read(annotations, annotation_file).document, options)


def _named_values(document: DatasetJson, options: LayoutOptions) -> Mapping[int, str]:
    labels = document.part("labels", dict, '{"background": 0, "spleen": 1, ...}')
    # nnU-Net, documentation/region_based_training.md: a region is a list of values, and regions overlap.
    regions = [name for name, value in labels.items() if isinstance(value, list)]
    if not regions:
        pairs = pairs_of_dict(labels) or [(value, name) for name, value in labels.items()]
        return check_label_values(document.path, pairs)
    # Combining loses nothing, but its classes are other ones than the file's, so the user decides.
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
    # Without a list of values classes are single values, as everywhere.
    if not any(isinstance(value, list) for value in labels.values()):
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for name, written in labels.items():
        values = written if isinstance(written, list) else [written]
        # Value 0 is the background under any name.
        if values == [0]:
            continue
        checked = check_label_values(document.path, ((value, f"{name} {value}") for value in values))
        # A region of background would overlap all others.
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
    # Two values of the same regions are distinct in the file, so their names need the value.
    twice = Counter(names.values())
    return [(value, name if twice[name] == 1 else f"{name} {value}") for value, name in names.items()]


def channel_names(annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the names of the channels, from dataset.json's channel_names {"0": "CT"}."""
    return _read(annotations, annotation_file).channels


def _read(annotations: SourceFiles, annotation_file: str | None) -> _Dataset:
    document = read_dataset_json(annotations, annotation_file)
    # nnU-Net's version 1 has modality and no file_ending (documentation/dataset_format.md of version 2).
    if "channel_names" not in document.content and "modality" in document.content:
        document = _version_2(document, annotations)
    names = document.part("channel_names", dict, '{"0": "CT", ...}')
    ending = document.part("file_ending", str, "such as .nii.gz")
    known = (*SINGLE_FILE_EXTENSIONS, *STILL_EXTENSIONS)
    # nnU-Net takes any ending that one of its readers supports; these are those that are read here.
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
    # Version 1 and the Decathlon have the same keys; the files in the lists distinguish them.
    if "modality" in document.content and names_cases(document, files) is False:
        raise AnnotationsError(
            f"{document.path}: training: its images are files without the number of a channel, as the Medical "
            "Segmentation Decathlon has them; use --layout msd"
        )


def _files(images: SourceFiles, folder: str) -> Iterator[str]:
    """Yield the files directly in a folder that are not documents."""
    for path in images.sizes():
        # nnU-Net reads no subfolders; documents such as a read-me are no cases.
        if path.startswith(folder) and "/" not in path[len(folder) :] and not is_document_name(path):
            yield path


def _case(case: str, files: Mapping[int, str], split: str, dataset: _Dataset) -> SourceExample:
    first, *rest = (files[number] for number in sorted(files))
    expected = range(0, len(dataset.channels), dataset.channels_of_files)
    missing = [number for number in expected if number not in files]
    unknown = [number for number in sorted(files) if number not in expected]
    problem: Problem | None = None
    # nnU-Net needs every channel of every case, under the numbers of channel_names.
    if missing:
        named = ", ".join(f"{number:04d} ({dataset.channels[number]})" for number in missing[:5])
        problem = ("annotation", "channel is missing", f"{case}: {named}")
    elif unknown:
        named = ", ".join(f"{number:04d}" for number in unknown[:5])
        problem = ("annotation", "channel is not in dataset.json", f"{case}: {named}")
    return SourceExample(source=first, key=first, split=split, channels=tuple(rest), problem=problem)
