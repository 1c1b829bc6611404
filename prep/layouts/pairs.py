"""Readers of pairs of image and label files: by patterns, by names (also those of LiTS), or one mask per class."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from halofeed.prep.annotations.advice import Suggestion, option_values
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    grouped,
    read_required,
    refuse_annotation_file,
    rejected_example,
)
from halofeed.prep.annotations.dicom_evidence import hint_of_dicom
from halofeed.prep.annotations.labels import from_file, shared_names
from halofeed.prep.annotations.pairing import (
    NEITHER,
    PairKey,
    SortedFiles,
    by_pattern,
    class_values,
    find_split_folder,
    join_class_masks,
    pair_up,
    split_at,
    split_by_folder,
    target_classes,
)
from halofeed.prep.annotations.patterns import compile_pair
from halofeed.prep.annotations.resolve_boxes import resolve_grid
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.annotations.suggest_patterns import LayoutError, pattern_advice, suggest_patterns
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import (
    ARCHIVE_EXTENSIONS,
    DICOM_EXTENSIONS,
    extension_of,
    is_volume_name,
    iterate_scans,
    stem_of,
)
from halofeed.prep.sources.files import SourceFiles, unlisted_folders
from halofeed.system.errors import AnnotationsError

_CLASSES_FILE = "_classes.csv"
_SUFFIX_SPLITS = {"tr": "train", "ts": "test", "va": "validation", "val": "validation"}
_IMAGE_FOLDER = re.compile(r"(?:(?:JPEG)?images?|imgs?|volumes?|scans?)(tr|ts|va|val)?", re.IGNORECASE)
_CLIP_FOLDER = re.compile(r"(?:videos?|clips?|frames)(tr|ts|va|val)?", re.IGNORECASE)
_LABEL_FOLDER = re.compile(
    r"(?:labels?|masks?|segmentations?|segs?|annotations?|SegmentationClass)(tr|ts|va|val)?", re.IGNORECASE
)
_LABEL_STEM = re.compile(
    r"(.+?)[-_.](?:d?seg|segmentation|masks?|labels?|gt|groundtruth)(?:[-_.].+)?", re.IGNORECASE
)
LITS_VALUES = {0: "background", 1: "liver", 2: "tumour"}
"""Class names of the values in a LiTS segmentation."""
_LITS_NAME = re.compile(
    r"(?P<test>test[-_])?(?:(?P<image>volume|ct)|segmentation|seg)[-_](?P<number>\d+)", re.IGNORECASE
)


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every image with the label that matches its name.

    With patterns in the options, an image and its label have the same values of the placeholders {id}, {split} and
    {group} that both patterns contain. Files that differ only in {channel} are channels of one image. Without
    patterns, the first of these rules that finds a label for any image applies:

    1. The label's path has a folder `labels` (label, masks, segmentations, ...) in place of `images` (image, scans,
       ...). Other pairs of folders are labelsTr for imagesTr and SegmentationClass for JPEGImages (VOC). Extensions
       may differ, and the label's name may have a suffix of rule 2. The split is Tr: train, Ts: test, Val:
       validation. Images in imagesTs are for prediction if there is no labelsTs.
    2. Both files are in one folder, and the label's name is the image's name followed by _seg, -mask, _label or
       similar, and any further text.
    3. BIDS: the image is called sub-01_...; the label, in a folder `derivatives`, has the same name followed by
       _dseg, _seg, _mask or similar.
    4. The first rule, with a folder `videos`, `clips` or `frames` in place of `images`.

    If neither {split} nor a suffix such as Tr names the split, a folder called train, val, test, ... does.

    Raises:
        AnnotationsError: no rule finds a pair, or only some images are in the folder of a split.
    """
    is_archive = annotation_file is not None and annotation_file.lower().endswith(ARCHIVE_EXTENSIONS)
    cure = (
        "unpack it, and name its folder" if is_archive else "name its folder with --source, or --layout csv"
    )
    refuse_annotation_file(
        annotation_file, f"pairs are a folder of files, without an annotation file; {cure}"
    )
    # Patterns define what names mean, so no convention may add to them.
    if options.image_pattern is None and options.label_pattern is None:
        found = _pair_by_convention(images, options)
        pairs = _pair_up_tests(found, images, options, lambda key: key[0] == "ts", several=True)
        pairs = _note_other_labels(pairs, found, images, options)
    else:
        found = _pair_by_patterns(images, options)
        yield from found.left_out
        pairs = _pair_up_tests(found, images, options, lambda key: False, several=True)
    yield from resolve_grid(pairs, images, options)
    for path in [*found.neither, *other_scans(images, options)]:
        yield rejected_example(path, NEITHER)


def _pair_by_patterns(images: SourceFiles, options: LayoutOptions) -> SortedFiles:
    """Return the files that the user's patterns sort; raise AnnotationsError if none is an image."""
    pair = compile_pair(options.image_pattern, options.label_pattern, with_class=False)
    found = by_pattern(images.sizes(), images.root, pair, options)
    if not found.images:
        there = [*found.neither, *(label.path for _, label in found.labels)]
        example = f"; there is {there[0]}" if there else ""
        raise AnnotationsError(
            f"{images.root}: no volume, picture or clip matches the image pattern {pair.image.text!r}"
            f"{example}; {pattern_advice(images, options, 'pairs')}"
        )
    # A pattern with {split} has said it.
    if "split" not in pair.image.names:
        found.images = split_by_folder(found.images, images.root, options.split_folders)
    return found


def _note_other_labels(
    pairs: list[SourceExample], found: SortedFiles, images: SourceFiles, options: LayoutOptions
) -> list[SourceExample]:
    """Return the examples, with a note where files in no pair are labels of the same images by their content.

    DRIVE has a mask of the field of view, which a name calls a mask, and vessels in a folder `1st_manual`.
    """
    good = {one.source: one.mask for one in pairs if one.problem is None and one.mask}
    # The labels of at least half of the images must be among the other files.
    if not good or 2 * len(found.neither) < len(good):
        return pairs
    for suggested in suggest_patterns(images, options, "pairs"):
        note = _note_on_pattern(suggested, good, images, options)
        if note is not None:
            return [replace(one, notes=(*one.notes, note)) if one.source in good else one for one in pairs]
    return pairs


def _note_on_pattern(
    suggested: Suggestion, good: Mapping[str, str], images: SourceFiles, options: LayoutOptions
) -> str | None:
    """Return a note if patterns pair at least half of the images with other labels; `good` has the present ones."""
    words = option_values(suggested.words)
    pair = compile_pair(words["--image-pattern"], words["--label-pattern"], with_class=False)
    others = by_pattern(images.sizes(), images.root, pair, options)
    labels = [label.path for _, label in others.labels]
    same = [one.source for _, one in others.images if one.source in good]
    # The same labels by another pattern are no second choice.
    if 2 * len(same) < len(good) or not set(labels).isdisjoint(good.values()):
        return None
    return f"{labels[0]} can be a label, too, as {good[same[0]]} is one by its name; {suggested}"


def _pair_up_tests(
    found: SortedFiles,
    images: SourceFiles,
    options: LayoutOptions,
    is_test: Callable[[PairKey], bool],
    *,
    several: bool = False,
) -> list[SourceExample]:
    """Return the paired examples; test images are for prediction if no label of one may exist."""
    may_be_labelled = any(is_test(key) for key, _ in found.labels) or bool(unlisted_folders(images))
    return pair_up(
        found.images,
        found.labels,
        options.missing_masks,
        lambda key: is_test(key) and not may_be_labelled,
        options.several_masks if several else None,
    )


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> dict[int, str]:
    """Return the classes of Roboflow's `_classes.csv`, one in each split folder; {} if there is none.

    Raises:
        AnnotationsError: the files differ.
    """
    found: dict[str, dict[int, str]] = {}
    for path in annotations.sizes():
        # Roboflow's export of semantic segmentation has one such table beside the masks of each split.
        if path.rpartition("/")[2] == _CLASSES_FILE:
            found[path] = from_file(path, read_required(annotations, path), 0).names
    return {value: name for value, name in shared_names(found).items() if value}


def other_scans(images: SourceFiles, options: LayoutOptions) -> list[str]:
    """Return the volumes and pictures that are neither images nor labels of the requested kind."""
    return [path for path in iterate_scans(images.sizes()) if not options.takes_scan(path)]


def _pair_by_convention(images: SourceFiles, options: LayoutOptions) -> SortedFiles:
    paths = images.sizes()
    scans = list(iterate_scans(paths, options.takes_scan))
    # Rule 4 is last, so that a folder of clips beside images/ and labels/ changes nothing.
    for sort in (
        _sort_by_folder,
        _sort_by_suffix,
        _sort_by_bids,
        partial(_sort_by_folder, image_folder=_CLIP_FOLDER),
    ):
        found = sort(scans, paths)
        # One pair is enough: others lack their label, which is a problem of each, not of the rule.
        if found.has_pair():
            unnamed = [entry for entry in found.images if not entry[0][0]]
            split = split_by_folder(unnamed, images.root, options.split_folders)
            found.images = [entry for entry in found.images if entry[0][0]] + split
            return found
    dicom = next((path for path in paths if extension_of(path).lower() in DICOM_EXTENSIONS), None)
    expected = (
        "expected images/a.nii.gz with labels/a.nii.gz, imagesTr with labelsTr, or a.nii.gz with a_seg.nii.gz"
    )
    brief = f"{images.root}: no volume, picture or clip has a label by its name"
    # Folders of slices are no files to pair; the message names the layout that reads them.
    if dicom is not None:
        raise AnnotationsError(f"{brief}; {hint_of_dicom(images, dicom)}")
    raise LayoutError(
        f"{brief}; {expected}",
        lambda: f"else {pattern_advice(images, options, 'pairs')}",
    )


def _sort_by_folder(
    scans: Sequence[str], paths: Mapping[str, int], image_folder: re.Pattern[str] = _IMAGE_FOLDER
) -> SortedFiles:
    """Sort files by rules 1 and 4. A key is (tr or ts or "", the other folders and the stem)."""
    result = SortedFiles(paths=paths)
    for path in scans:
        *folders, _ = path.split("/")
        # The innermost folder with such a name counts: images/labels/a is a label.
        for place in reversed(range(len(folders))):
            image, label = image_folder.fullmatch(folders[place]), _LABEL_FOLDER.fullmatch(folders[place])
            found = image or label
            # Other folders are parts of the key: images/p1/a pairs with labels/p1/a.
            if found is None:
                continue
            suffix = (found[1] or "").lower()
            key = (suffix, "/".join([*folders[:place], "", *folders[place + 1 :], stem_of(path)]))
            if image:
                result.add_image(key, path, _SUFFIX_SPLITS[suffix] if suffix else "train")
            else:
                result.add_label(key, path)
            break
        else:
            result.neither.append(path)
    keys = {key for key, _ in result.images}
    result.labels = [(_without_suffix(key, keys), label) for key, label in result.labels]
    return result


def _without_suffix(key: PairKey, images: Collection[PairKey]) -> PairKey:
    """Return the key of a label without the suffix of rule 2 if only that key has an image: 1_mask for the image 1."""
    suffix, path = key
    folder, _, stem = path.rpartition("/")
    match = _LABEL_STEM.fullmatch(stem)
    shorter = (suffix, f"{folder}/{match[1]}") if match else key
    return shorter if key not in images and shorter in images else key


def _sort_by_suffix(scans: Sequence[str], paths: Mapping[str, int]) -> SortedFiles:
    """Sort files by rule 2. A key is ("", the folder and the image's stem)."""
    result = SortedFiles(paths=paths)
    for path in scans:
        folder = path.rpartition("/")[0]
        label = _LABEL_STEM.fullmatch(stem_of(path))
        if label:
            result.add_label(("", f"{folder}/{label[1]}"), path)
        else:
            result.add_image(("", f"{folder}/{stem_of(path)}"), path)
    return result


def _sort_by_bids(scans: Sequence[str], paths: Mapping[str, int]) -> SortedFiles:
    """Sort files by rule 3. A key is ("", the image's stem)."""
    result = SortedFiles(paths=paths)
    for path in scans:
        stem, is_derived = stem_of(path), "derivatives" in path.split("/")[:-1]
        label = _LABEL_STEM.fullmatch(stem)
        # BIDS keeps labels in derivatives, so neither a raw file that ends in _mask nor a derived image is a label.
        if not stem.startswith("sub-") or is_derived != bool(label):
            result.neither.append(path)
        elif label:
            result.add_label(("", label[1]), path)
        else:
            result.add_image(("", stem), path)
    return result


def list_lits(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every LiTS `volume-N` (or `ct_N`) with the `segmentation-N` of the same number.

    `test-volume-N` belongs to the split `test`; it is for prediction only if there is no `test-segmentation-N`.
    Folders with split names are splits, and numbers may restart in each. All other scans belong to `train`.

    Raises:
        AnnotationsError: there is no scan, or the user named an annotation file.
    """
    refuse_annotation_file(annotation_file, "LiTS names need no annotation file; name the folder")
    volumes = list(iterate_scans(images.sizes(), is_volume_name))
    named = {path: match for path in volumes if (match := _LITS_NAME.fullmatch(stem_of(path)))}
    found = _sort_lits(named, images, options)
    yield from _pair_up_tests(found, images, options, lambda key: bool(key[2]))
    yield from (rejected_example(path, NEITHER) for path in volumes if path not in named)


def _sort_lits(
    named: Mapping[str, re.Match[str]], images: SourceFiles, options: LayoutOptions
) -> SortedFiles:
    """Sort files by LiTS names. A key is (split, number, "test-" or "")."""
    scans = [path for path, match in named.items() if match["image"]]
    if not scans:
        raise AnnotationsError(
            f"{images.root}: no volume-N.nii.gz, .nii, .nrrd or .mha lies below it{layout_hint(images, 'lits')}"
        )
    trained = [path.split("/")[:-1] for path in scans if not named[path]["test"]]
    place = find_split_folder(trained, options.split_folders, images.root)
    found = SortedFiles(paths=images.sizes())
    for path, match in named.items():
        split = "test" if match["test"] else split_at(path.split("/")[:-1], place)
        key = (split, str(int(match["number"])), match["test"] or "")
        if match["image"]:
            found.add_image(key, path, split)
        else:
            found.add_label(key, path)
    return found


# One mask file for each class: s0001/ct.nii.gz with s0001/segmentations/liver.nii.gz ----------------------

_MASK_FOLDERS = ("segmentations", "segmentation", "masks", "labels", "segs")


def list_class_masks(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every scan with the mask of each class, in the order of the classes' values.

    Without patterns, a scan is the only volume, picture or clip in a folder that contains a mask folder. Mask folders
    are called segmentations, segmentation, masks, labels or segs. Their file names are the classes. Other
    arrangements need patterns, such as `images/{id}.nii.gz` and `{class}/{id}.nii.gz`. A folder called train, val,
    test, ... is the split.

    Raises:
        AnnotationsError: there is no scan or no mask, or no mask of a class from the options.
    """
    found = _find_class_masks(images, annotation_file, options)
    labels = join_class_masks(found.labels, images.root, options)
    yield from pair_up(found.images, labels, options.missing_masks)
    yield from found.left_out
    for path in [*found.neither, *other_scans(images, options)]:
        yield rejected_example(path, NEITHER)


def class_mask_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Return values from 1 for the classes of the options in their order, or for all classes sorted by name."""
    found = _find_class_masks(images, annotation_file, options)
    names = [label.class_masks[0][0] for _, label in found.labels]
    return class_values(target_classes(names, images.root, options), options)


def _find_class_masks(
    images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> SortedFiles:
    refuse_annotation_file(annotation_file, "class masks need no annotation file; name the folder")
    if options.image_pattern is None and options.label_pattern is None:
        found = _class_masks_by_convention(images, options.takes_scan)
        expected = f"one volume beside a folder {_MASK_FOLDERS[0]}"
        splits_named = False
    else:
        pair = compile_pair(options.image_pattern, options.label_pattern, with_class=True)
        found = by_pattern(images.sizes(), images.root, pair, options)
        _refuse_unlisted_classes(images, options)
        expected = f"{pair.image.text!r} with {pair.label.text!r}"
        splits_named = "split" in pair.image.names
    # Masks alone or images alone: a wrong folder, or other names than the rule's.
    if not found.images or not found.labels:
        what = "mask" if found.images else "image"
        raise LayoutError(
            f"{images.root}: no {what} found; expected {expected}",
            lambda: pattern_advice(images, options, "class-masks"),
        )
    # A folder called train or val above the scans is their split, as in the other layouts.
    if not splits_named:
        found.images = split_by_folder(found.images, images.root, options.split_folders)
    return found


def _refuse_unlisted_classes(images: SourceFiles, options: LayoutOptions) -> None:
    """Raise AnnotationsError if a folder cannot be listed and the classes are those that masks have."""
    unlisted = unlisted_folders(images)
    # Classes are those that masks have; --classes names them before.
    if unlisted and (not options.classes or options.missing_classes == "empty"):
        raise AnnotationsError(
            f"{images.root}: {', '.join(unlisted[:3])} cannot be listed, and may hold the masks of a class: all "
            "scans would seem to lack it; give yourself the right to read it (chmod u+rx), or name with --classes "
            "those to take"
        )


def _class_masks_by_convention(images: SourceFiles, takes: Callable[[str], bool]) -> SortedFiles:
    """Sort files by folders of masks, as in TotalSegmentator: s0001/ct.nii.gz, s0001/segmentations/liver.nii.gz."""
    paths = images.sizes()
    result = SortedFiles(paths=paths)
    others: list[tuple[str, str]] = []
    for path in iterate_scans(paths, takes):
        folder = path.rpartition("/")[0]
        scan, _, last = folder.rpartition("/")
        # The file's name is the class, in TotalSegmentator's data as in others.
        if last.lower() in _MASK_FOLDERS:
            result.add_label((scan,), path, {"class": stem_of(path)})
        else:
            others.append((folder, path))
    scans = {scan for (scan,), _ in result.labels}
    above = {scan.rpartition("/")[0] for scan in scans}
    for folder, found in grouped(others).items():
        # A scan whose masks are missing is like the others: alone in a folder beside theirs.
        if folder in scans or (len(found) == 1 and folder.rpartition("/")[0] in above):
            for path in found:
                result.add_image((folder,), path)
        else:
            result.neither += found
    return result
