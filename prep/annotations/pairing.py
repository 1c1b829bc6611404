"""Pairing of images with labels, and joining of the files of an image's channels and of its masks of classes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from halofeed.prep.annotations.class_names import sort_class_names
from halofeed.prep.annotations.contract import LayoutOptions, is_split_name, rejected_example, sort_examples
from halofeed.prep.annotations.patterns import PatternPair
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import DICOM_EXTENSIONS, iterate_scans, missing_part
from halofeed.system.errors import AnnotationsError, Problem

CHANNEL_LEFT_OUT: Problem = ("selection", "channel is left out by --channel-order", "")
PairKey = tuple[str, ...]
T = TypeVar("T")
NO_LABEL: Problem = (
    "selection",
    "image has no label",
    "--missing-masks prediction keeps it without one, in a split for prediction",
)
NO_IMAGE: Problem = ("annotation", "label has no image", "delete it, or add the image")
MERGE_ADVICE = (
    "--several-masks merge takes them together if they show different structures, majority or staple makes one label "
    "of several readings"
)
_SEVERAL_OF_CLASS = (
    "--several-masks merge joins them; for readings of the same structures, name the reader as {reader} in "
    "--label-pattern with --several-masks majority or staple"
)
NEITHER: Problem = ("selection", "file is neither image nor label by its name", "")


@dataclass(frozen=True, kw_only=True)
class LabelFiles:
    """Label of one example: its files and their readers in the form of `SourceExample`, or its problem."""

    path: str
    mask: str | None = None
    class_masks: tuple[tuple[str, str], ...] = ()
    readers: tuple[tuple[str, str], ...] = ()
    problem: Problem | None = None


def single_file_label(
    path: str, problem: Problem | None = None, values: Mapping[str, str] | None = None
) -> LabelFiles:
    """Return a label of one file, for all classes or for one class.

    Args:
        values: values of the placeholders of a pattern in its path: the class and the reader, if the pattern has them.
    """
    name, reader = ((values or {}).get(key) for key in ("class", "reader"))
    readers = () if reader is None else ((path, reader),)
    if name is not None:
        return LabelFiles(path=path, class_masks=((name, path),), problem=problem, readers=readers)
    return LabelFiles(path=path, mask=path, problem=problem, readers=readers)


@dataclass(kw_only=True)
class SortedFiles:
    """Files of a folder, sorted into images and labels.

    Args:
        paths: paths of all files, to find missing parts of pairs such as .hdr and .img.
        images: (pairing key, example) of each image; its channel files are already joined.
        labels: (pairing key, label) of each label.
        neither: paths of files that are neither image nor label.
        left_out: examples of channels that were not taken.
    """

    paths: Mapping[str, int]
    images: list[tuple[PairKey, SourceExample]] = field(default_factory=list)
    labels: list[tuple[PairKey, LabelFiles]] = field(default_factory=list)
    neither: list[str] = field(default_factory=list)
    left_out: list[SourceExample] = field(default_factory=list)

    def add_image(self, key: PairKey, path: str, split: str = "train") -> None:
        """Add an image in one file."""
        problem = missing_part(path, self.paths)
        self.images.append((key, SourceExample(source=path, key=path, split=split, problem=problem)))

    def add_label(self, key: PairKey, path: str, values: Mapping[str, str] | None = None) -> None:
        """Add a label in one file; for `values` see `single_file_label`."""
        self.labels.append((key, single_file_label(path, missing_part(path, self.paths), values)))

    def has_pair(self) -> bool:
        """Return whether any image has a label."""
        return not {key for key, _ in self.images}.isdisjoint(key for key, _ in self.labels)


def pair_up(
    images: Iterable[tuple[PairKey, SourceExample]],
    labels: Iterable[tuple[PairKey, LabelFiles]],
    missing_masks: str,
    has_no_label: Callable[[PairKey], bool] = lambda key: False,
    several_masks: str | None = None,
    several_fix: str = MERGE_ADVICE,
) -> list[SourceExample]:
    """Return one example for each image, and one for each label without an image, sorted by source.

    An image with several labels, several images with one label, and a missing partner are problems.

    Args:
        images: (pairing key, example) of each image.
        labels: (pairing key, label) of each label.
        missing_masks: "refuse" or "prediction", see `LayoutOptions`.
        has_no_label: returns whether the layout defines that images with this key have no labels.
        several_masks: handling of several labels of one image, see `LayoutOptions`; None if the layout never allows
            them.
        several_fix: advice for an image with several labels.
    """
    labels_by_key = _by_key(labels)
    fixes = {None: "", "refuse": f"; {several_fix}"}
    fix = fixes.get(several_masks)
    examples = []
    for key, found in _by_key(images).items():
        masks = sorted(labels_by_key.pop(key, []), key=lambda label: label.path)
        problem = _problem_of_pair(found, masks, fix)
        # A layout may define images without a label, such as imagesTs of nnU-Net.
        if not masks and missing_masks != "prediction" and not has_no_label(key):
            problem = problem or NO_LABEL
        examples += [_paired(image, masks, problem) for image in found]
    remaining = [label for others in labels_by_key.values() for label in others]
    examples += [rejected_example(label.path, label.problem or NO_IMAGE) for label in remaining]
    return sort_examples(examples)


def _by_key(found: Iterable[tuple[PairKey, T]]) -> dict[PairKey, list[T]]:
    by_key: dict[PairKey, list[T]] = {}
    for key, one in found:
        by_key.setdefault(key, []).append(one)
    return by_key


def _paired(image: SourceExample, masks: Sequence[LabelFiles], problem: Problem | None) -> SourceExample:
    """Return an image with its labels, or with its own problem or that of its pair."""
    # A file that cannot be read says more than the missing partner.
    if problem := image.problem or problem:
        return replace(image, problem=problem)
    if not masks:
        return image
    more = tuple(other.path for other in masks[1:])
    return replace(
        image,
        mask=masks[0].mask,
        more_masks=more,
        class_masks=masks[0].class_masks,
        mask_readers=tuple(reader for label in masks for reader in label.readers),
    )


def _problem_of_pair(
    images: Sequence[SourceExample], labels: Sequence[LabelFiles], several_fix: str | None
) -> Problem | None:
    """Return what keeps images and labels of one key from being a pair; None for a label that is absent.

    Args:
        several_fix: end of the message about several labels; None if these are allowed.
    """
    problem = _one_problem("several images for one label", [image.source for image in images])
    if several_fix is not None:
        paths = [label.path for label in labels]
        problem = problem or _one_problem("several labels for one image", paths, several_fix)
    return problem or next((one.problem for one in labels if one.problem is not None), None)


def _one_problem(reason: str, paths: Sequence[str], fix: str = "") -> Problem | None:
    return ("annotation", reason, ", ".join(sorted(paths)[:3]) + fix) if len(paths) > 1 else None


def find_split_folder(paths: Sequence[Sequence[str]], chosen: bool | None, root: str) -> int | None:
    """Return the depth of the folder that names the split, counted from 0; None if there is none.

    It is the first depth at which any image has a folder with a split name. All images must have one there.

    Args:
        paths: folders of each image, outermost first.
        chosen: --split-folders: True for the first folder, False for none, None to decide by the names.
        root: root of the source, for messages.

    Raises:
        AnnotationsError: only some of the images have a split folder at that depth.

    >>> find_split_folder([["train", "images"], ["val", "images"]], None, "scans")
    0
    >>> find_split_folder([["p1"], ["p2"]], None, "scans") is None
    True
    """
    if chosen is not None:
        return 0 if chosen else None
    for place in range(max(map(len, paths), default=0)):
        named = [path for path in paths if is_split_name(_folder_at(path, place))]
        # An image outside of the splits would be in none, or in train by accident.
        if named and len(named) < len(paths):
            other = next(path for path in paths if not is_split_name(_folder_at(path, place)))
            raise AnnotationsError(
                f"{root}: folder {'/'.join(named[0])} names a split and {'/'.join(other) or 'the root'} does not; put "
                "every image in the folder of a split, or use --split-folders no"
            )
        if named:
            return place
    return None


def _folder_at(folders: Sequence[str], place: int) -> str:
    return folders[place] if len(folders) > place else ""


def split_at(folders: Sequence[str], place: int | None) -> str:
    """Return the split of an image with these folders; "train" if no folder names it."""
    return folders[place] if place is not None and len(folders) > place else "train"


def join_channels(
    images: Iterable[tuple[PairKey, Mapping[str, str], SourceExample]], order: Sequence[str], root: str
) -> tuple[list[tuple[PairKey, SourceExample]], list[SourceExample]]:
    """Return each image with all its channels, and the channel files that `order` leaves out.

    Args:
        images: (pairing key, values of the pattern's placeholders, example) for each file of an image.
        order: channels to take; () takes all, sorted by name, and adds a note.
        root: root of the source, for messages.

    Raises:
        AnnotationsError: no image has a channel of the order.
    """
    cases: dict[tuple[str, ...], _Channels] = {}
    for key, values, example in images:
        case = tuple(value for name, value in sorted(values.items()) if name != "channel")
        cases.setdefault(case, {}).setdefault(values["channel"], []).append((key, example))
    present = sorted(set().union(*cases.values()))
    # A misspelled channel would reject every image.
    if missing := [name for name in order if name not in present]:
        raise AnnotationsError(
            f"--channel-order: {', '.join(missing)}: no such channel in {root}; found {', '.join(present[:20])}"
        )
    names = tuple(order) or tuple(present)
    note = () if order or len(names) == 1 else (f"channels in order of name: {', '.join(names)}",)
    joined = [_joined(channels, names, note) for channels in cases.values()]
    return [one for one in joined if one is not None], list(_left_out(cases.values(), names))


_Channels = dict[str, list[tuple[PairKey, SourceExample]]]
"""Files of each channel of one image."""


def _joined(
    channels: _Channels, names: Sequence[str], note: tuple[str, ...]
) -> tuple[PairKey, SourceExample] | None:
    """Return the image with the named channels; None if it has none of them."""
    taken = [channels[name] for name in names if name in channels]
    if not taken:
        return None
    key, first = taken[0][0]
    examples = [found[0][1] for found in taken]
    more = tuple(example.source for example in examples[1:])
    problem = _problem(channels, names, examples)
    return key, replace(first, channels=more, problem=problem, notes=(*first.notes, *note))


def _left_out(cases: Iterable[_Channels], names: Sequence[str]) -> Iterator[SourceExample]:
    for channels in cases:
        others = (found for name, found in channels.items() if name not in names)
        for found in others:
            yield from (replace(example, problem=CHANNEL_LEFT_OUT) for _, example in found)


def _problem(
    channels: Mapping[str, Sequence[tuple[PairKey, SourceExample]]],
    names: Sequence[str],
    examples: Sequence[SourceExample],
) -> Problem | None:
    # All records of a data set have the same channels.
    if missing := [name for name in names if name not in channels]:
        listed = f"no {', '.join(missing)}; --channel-order takes fewer"
        return ("annotation", "channel is missing", listed)
    if twice := [name for name in names if len(channels[name]) > 1]:
        paths = ", ".join(example.source for _, example in channels[twice[0]][:3])
        return ("annotation", "several files of one channel", paths)
    return next((example.problem for example in examples if example.problem), None)


# Masks of one class each -----------------------------------------------------------------------------------


def target_classes(names: Iterable[str], root: str, options: LayoutOptions) -> Mapping[str, str]:
    """Return the data set class of each mask class, in the order of its values."""
    choice, names = options.choice, sort_class_names(names)
    targets = {name: target for name in names if (target := choice.target(name)) is not None}
    present = ", ".join(names[:20])
    # A class without any mask would be in the manifest and in no record.
    kept = choice.with_names(names).keep
    if missing := [name for name in kept if name not in targets.values()]:
        raise AnnotationsError(
            f"{root}: no mask of class {', '.join(missing[:10])} anywhere; found {present}"
        )
    choice.check_known(names, f"the masks of {root}")
    if not targets:
        raise AnnotationsError(f"--map-classes leaves out every class: {present}")
    order = kept or sort_class_names(targets.values())
    return dict(sorted(targets.items(), key=lambda item: order.index(item[1])))


def class_values(classes: Mapping[str, str], options: LayoutOptions) -> Mapping[int, str]:
    """Return the data set classes by value, from the result of `target_classes`."""
    order = options.choice.with_names(classes).keep or sort_class_names(classes.values())
    return {0: "background", **dict(enumerate(order, start=1))}


def join_class_masks(
    labels: Sequence[tuple[PairKey, LabelFiles]], root: str, options: LayoutOptions
) -> list[tuple[PairKey, LabelFiles]]:
    """Return one label for each scan, with its mask of each selected class."""
    masks: dict[PairKey, dict[str, list[LabelFiles]]] = {}
    for key, label in labels:
        for name, _ in label.class_masks:
            masks.setdefault(key, {}).setdefault(name, []).append(label)
    names = (name for of_scan in masks.values() for name in of_scan)
    classes = target_classes(names, root, options)
    return [(key, join_masks(of_scan, classes, options)) for key, of_scan in masks.items()]


def join_masks(
    masks: Mapping[str, Sequence[LabelFiles]], classes: Mapping[str, str], options: LayoutOptions
) -> LabelFiles:
    """Return the label of a scan: its mask of each selected class."""
    chosen = {name: masks[name] for name in classes if name in masks}
    first = min(label.path for found in masks.values() for label in found)
    found_of_all = [(classes[name], one) for name, found in chosen.items() for one in found]
    return LabelFiles(
        path=first,
        class_masks=tuple((name, one.path) for name, one in found_of_all),
        readers=tuple(reader for _, one in found_of_all for reader in one.readers),
        problem=_problem_of_masks(chosen, classes, options),
    )


def _problem_of_masks(
    chosen: Mapping[str, Sequence[LabelFiles]], classes: Collection[str], options: LayoutOptions
) -> Problem | None:
    """Return what keeps a scan from having one mask of each class; several files of one class come first."""
    if several := next((found for found in chosen.values() if _is_unclear(found, options)), None):
        listed = ", ".join(sorted(one.path for one in several)[:3])
        return ("annotation", "several masks of one class", f"{listed}; {_SEVERAL_OF_CLASS}")
    if not chosen:
        return ("annotation", "scan has no mask of any class", f"of {', '.join([*classes][:10])}")
    absent = [name for name in classes if name not in chosen]
    # An absent mask may mean that there is no such structure, or that nobody drew it; the user knows.
    if absent and options.missing_classes == "refuse":
        more = f" and {len(absent) - 10} more" if len(absent) > 10 else ""
        return ("annotation", "mask of a class is missing", ", ".join(absent[:10]) + more)
    return next((found[0].problem for found in chosen.values() if found[0].problem), None)


def _is_unclear(masks: Sequence[LabelFiles], options: LayoutOptions) -> bool:
    """Return whether a class has several masks, and nothing says what becomes of them."""
    if len(masks) < 2 or options.several_masks == "merge":
        return False
    # A vote needs to know which files are one reading.
    return options.several_masks == "refuse" or not all(one.readers for one in masks)


# Files that patterns pair ------------------------------------------------------------------------------------


def by_pattern(paths: Mapping[str, int], root: str, pair: PatternPair, options: LayoutOptions) -> SortedFiles:
    """Sort files by the patterns of images and labels; for errors see `join_channels`."""
    result = SortedFiles(paths=paths)
    channels: list[tuple[PairKey, Mapping[str, str], SourceExample]] = []
    # A SEG or RTSTRUCT is a label where the pattern names DICOM files; other DICOM files are no volumes by themselves.
    names_dicom = (options.label_pattern or "").lower().endswith(DICOM_EXTENSIONS)
    of_dicom = [path for path in paths if names_dicom and path.lower().endswith(DICOM_EXTENSIONS)]
    masks = [path for path in of_dicom if (found := pair.classify(path)) is not None and not found[0]]
    for path in dict.fromkeys((*iterate_scans(paths, options.takes_scan), *masks)):
        understood = pair.classify(path)
        if understood is None:
            result.neither.append(path)
            continue
        is_image, values = understood
        key = tuple(values[name] for name in pair.shared)
        if not is_image:
            result.add_label(key, path, values)
            continue
        example = SourceExample(
            source=path,
            key=path,
            split=values.get("split", "train"),
            group=values.get("group"),
            problem=missing_part(path, paths),
        )
        # Files of the channels of one image are joined when all of them are known.
        if "channel" in values:
            channels.append((key, values, example))
        else:
            result.images.append((key, example))
    joined, result.left_out = join_channels(channels, options.channel_order, root)
    result.images += joined
    return result


def split_by_folder(
    images: list[tuple[PairKey, SourceExample]], root: str, chosen: bool | None
) -> list[tuple[PairKey, SourceExample]]:
    """Return the images with the split that a folder of their path names."""
    folders = [example.source.split("/")[:-1] for _, example in images]
    place = find_split_folder(folders, chosen, root)
    return [
        (key, replace(example, split=split_at(path, place)))
        for (key, example), path in zip(images, folders, strict=True)
    ]
