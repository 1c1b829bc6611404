"""Pairs of images and labels, and images of several channel files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from halofeed.errors import AnnotationsError, Problem
from halofeed.prep.annotations.contract import is_split_name, sort_examples
from halofeed.prep.sources.reference import SourceExample

CHANNEL_LEFT_OUT: Problem = ("selection", "channel is left out by --channel-order", "")


def join_channels(
    images: Iterable[tuple[Key, Mapping[str, str], SourceExample]], order: Sequence[str], root: str
) -> tuple[list[tuple[Key, SourceExample]], list[SourceExample]]:
    """Each image once, with all its channels, and the files of channels that the order leaves out.

    Args:
        images: each file of an image: what it shares with its label, what its pattern's placeholders stand for, and its
            example.
        order: the channels to take; (): all that there are, by name, which is noted.
        root: of the source, for messages.

    Raises:
        AnnotationsError: a channel of the order is nowhere.
    """
    cases: dict[tuple[str, ...], dict[str, list[tuple[Key, SourceExample]]]] = {}
    for key, values, example in images:
        case = tuple(value for name, value in sorted(values.items()) if name != "channel")
        cases.setdefault(case, {}).setdefault(values["channel"], []).append((key, example))
    present = sorted({name for channels in cases.values() for name in channels})
    if missing := [name for name in order if name not in present]:
        raise AnnotationsError(
            f"--channel-order: {', '.join(missing)}: no such channel in {root}; found {', '.join(present[:20])}"
        )
    names = tuple(order) or tuple(present)
    note = () if order or len(names) == 1 else (f"channels in order of name: {', '.join(names)}",)
    joined, left_out = [], []
    for channels in cases.values():
        taken = [channels[name] for name in names if name in channels]
        left_out += [
            replace(example, problem=CHANNEL_LEFT_OUT)
            for name, found in channels.items()
            if name not in names
            for _, example in found
        ]
        if taken:
            key, first = taken[0][0]
            examples = [found[0][1] for found in taken]
            more = tuple(example.source for example in examples[1:])
            problem = _problem(channels, names, examples)
            joined.append((key, replace(first, channels=more, problem=problem, notes=(*first.notes, *note))))
    return joined, left_out


def _problem(
    channels: Mapping[str, Sequence[tuple[Key, SourceExample]]],
    names: Sequence[str],
    examples: Sequence[SourceExample],
) -> Problem | None:
    if missing := [name for name in names if name not in channels]:
        listed = f"no {', '.join(missing)}; --channel-order takes fewer"
        return ("annotation", "channel is missing", listed)
    if twice := [name for name in names if len(channels[name]) > 1]:
        paths = ", ".join(example.source for _, example in channels[twice[0]][:3])
        return ("annotation", "several files of one channel", paths)
    return next((example.problem for example in examples if example.problem), None)


Key = tuple[str, ...]
NO_LABEL: Problem = ("selection", "image has no label", "--missing-masks prediction keeps it without one")
NO_IMAGE: Problem = ("annotation", "label has no image", "")
NEITHER: Problem = ("selection", "file is neither image nor label by its name", "")


@dataclass(frozen=True, kw_only=True)
class Label:
    """The label of one example: its files as a Reference has them, or what is wrong with it."""

    path: str
    mask: str | None = None
    class_masks: tuple[tuple[str, str], ...] = ()
    problem: Problem | None = None


def single_file_label(path: str, problem: Problem | None = None, name: str | None = None) -> Label:
    """The label that is one file, of all classes or of the one that is named."""
    if name is not None:
        return Label(path=path, class_masks=((name, path),), problem=problem)
    return Label(path=path, mask=path, problem=problem)


@dataclass(kw_only=True)
class SortedFiles:
    """The files of a folder, sorted into images and labels.

    Args:
        images: each with what it shares with its label; channels in files of their own are joined.
        labels: likewise.
        neither: files that are no image and no label.
        left_out: channels that were not taken.
    """

    images: list[tuple[Key, SourceExample]] = field(default_factory=list)
    labels: list[tuple[Key, Label]] = field(default_factory=list)
    neither: list[str] = field(default_factory=list)
    left_out: list[SourceExample] = field(default_factory=list)

    def has_pair(self) -> bool:
        """Whether any image has a label."""
        return not {key for key, _ in self.images}.isdisjoint(key for key, _ in self.labels)


def pair_up(
    images: Iterable[tuple[Key, SourceExample]],
    labels: Iterable[tuple[Key, Label]],
    missing_masks: str,
    has_no_label: Callable[[Key], bool] = lambda key: False,
    several_masks: str | None = None,
) -> list[SourceExample]:
    """One example for each image, and for each label without one, in order of source.

    An image with two labels, two images with one label, and an image or a label left alone are problems.

    Args:
        images: each with what it shares with its label.
        labels: likewise.
        missing_masks: "refuse" or "prediction", see `LayoutOptions`.
        has_no_label: whether the layout itself says that images of this key have no labels.
        several_masks: what becomes of several labels of one image, see `LayoutOptions`; None: the layout allows none.
    """
    labels_by_key: dict[Key, list[Label]] = defaultdict(list)
    for key, label in labels:
        labels_by_key[key].append(label)
    images_by_key: dict[Key, list[SourceExample]] = defaultdict(list)
    for key, image in images:
        images_by_key[key].append(image)
    examples = []
    for key, found in images_by_key.items():
        masks = sorted(labels_by_key.pop(key, []), key=lambda label: label.path)
        keep = missing_masks == "prediction" or has_no_label(key)
        together = _one_problem("several images for one label", [image.source for image in found])
        if several_masks != "merge":
            fix = "" if several_masks is None else "; --several-masks merge takes them together"
            paths = [label.path for label in masks]
            together = together or _one_problem("several labels for one image", paths, fix)
        together = together or next((one.problem for one in masks if one.problem is not None), None)
        if not masks and not keep:
            together = together or NO_LABEL
        for image in found:
            if problem := image.problem or together:
                image = replace(image, problem=problem)
            elif masks:
                more = tuple(other.path for other in masks[1:])
                image = replace(image, mask=masks[0].mask, more_masks=more, class_masks=masks[0].class_masks)
            examples.append(image)
    left = [label for others in labels_by_key.values() for label in others]
    examples += [
        SourceExample(source=label.path, key=label.path, problem=label.problem or NO_IMAGE) for label in left
    ]
    return sort_examples(examples)


def _one_problem(reason: str, paths: Sequence[str], fix: str = "") -> Problem | None:
    return ("annotation", reason, ", ".join(sorted(paths)[:3]) + fix) if len(paths) > 1 else None


def find_split_folder(paths: Sequence[Sequence[str]], chosen: bool | None, root: str) -> int | None:
    """Which folder of the images' paths names the split, counted from 0; None where none does.

    It is the first place at which any image has a folder called like a split; then all must have one there.

    Args:
        paths: the folders of each image, outermost first.
        chosen: --split-folders: True is the first folder, False is none, None is found out by the names.

    >>> find_split_folder([["train", "images"], ["val", "images"]], None, "scans")
    0
    >>> find_split_folder([["p1"], ["p2"]], None, "scans") is None
    True
    """
    if chosen is not None or not paths:
        return 0 if chosen else None
    for place in range(max(map(len, paths))):
        named = [path for path in paths if len(path) > place and is_split_name(path[place])]
        if not named:
            continue
        if len(named) < len(paths):
            other = next(path for path in paths if len(path) <= place or not is_split_name(path[place]))
            raise AnnotationsError(
                f"{root}: folder {'/'.join(named[0])} names a split and {'/'.join(other) or 'the root'} does not; put "
                "every image in the folder of a split, or say --split-folders no"
            )
        return place
    return None


def split_at(folders: Sequence[str], place: int | None) -> str:
    """The split of an image with these folders; "train" where none names it."""
    return folders[place] if place is not None and len(folders) > place else "train"
