"""Whether folders of images are classes at all: they may hold the masks, views or annotations of one another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from posixpath import basename, splitext

from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.errors import AnnotationsError, SourceError

_IMAGE_FOLDER = re.compile(
    r"(jpeg|png)?_?(images?|imgs?|pictures?|photos?)(tr|ts)?([-_ ]?\d{1,2})?|rgb|colou?rs?|leftimg8bit|frames?",
    re.IGNORECASE,
)
_MASK_FOLDER = re.compile(
    r"segmentations?(class|object)?(aug|raw)?|(seg|instance|semantic)?[-_ ]?(masks?|labels?|maps?)([-_ ]?\d{1,2})?"
    r"|segs?|gts?|gt(fine|coarse)|ground[-_ ]?truths?|annotations?|annots?|trimaps?|instances?|semantics?"
    r"|depths?|disparity",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?!.*\d)")
_MOST_FOLDERS = 20
"""Folders that are compared: sets of images and masks have a few, and of more any two may share names by chance."""
_SAMPLE = 4
_TELLING = 6
"""Characters of a name: two files do not share a longer one by chance, unless files are counted."""
_PNG_HEAD = 26
_CURE = "say --folders-are-classes if each folder is a class"
_BESIDE = (".txt", ".json", ".xml", ".csv", ".npy", ".mat", ".yaml")


def is_image_folder(name: str) -> bool:
    """Whether a folder is called as one of all images of a set.

    >>> [is_image_folder(name) for name in ("JPEGImages", "image_2", "rgb", "dog")]
    [True, True, True, False]
    """
    return _IMAGE_FOLDER.fullmatch(name) is not None


def may_be_no_classes(
    files: SourceFiles, firsts: Iterable[str], first_is_split: bool, classes: Collection[str]
) -> bool:
    """Whether `check_class_folders` may find something, by one image of each folder; rather once too often."""
    if len(classes) == 1:
        return True
    if len(classes) > _MOST_FOLDERS:
        return False
    firsts = list(firsts)
    stems = Counter(stem for path in firsts if len(stem := _stem(path)) >= _TELLING)
    named = any(map(_MASK_FOLDER.fullmatch, classes))
    return named or max(stems.values(), default=0) > 1 or len({_is_gray(files, path) for path in firsts}) > 1


def check_class_folders(
    files: SourceFiles, paths: Sequence[str], first_is_split: bool, classes: Collection[str]
) -> dict[str, str]:
    """What is to be said of class folders that may be none, by class.

    Args:
        paths: of all images.
        first_is_split: whether the first folder of a path is a split, and the second one the class.

    Raises:
        AnnotationsError: the names of folders and files, or the files' colors, show that one folder holds what belongs
            to the images of another.
    """
    if len(classes) > _MOST_FOLDERS:
        return {}
    if len(classes) == 1:
        (only,) = classes
        _refuse_annotations_beside(files, paths, only)
        return {only: f"all images have one class, {only!r}"}
    by_class: dict[str, dict[str, str]] = {}
    for path in paths:
        parts = path.split("/")
        folders = parts[:-1]
        if len(folders) > first_is_split:
            label = folders.pop(int(first_is_split))
            by_class.setdefault(label, {})["/".join([*folders, _stem(path)])] = path
    notes: dict[str, str] = {}
    for one, other in combinations(sorted(by_class), 2):
        shared = sorted(by_class[one].keys() & by_class[other].keys())
        smaller = min(len(by_class[one]), len(by_class[other]))
        if 2 * len(shared) < smaller or not shared:
            continue
        pairs = [(by_class[one][name], by_class[other][name]) for name in shared]
        _refuse_masks(files, one, other, pairs, smaller)
        is_telling = len(pairs) >= _SAMPLE and all(len(_stem(path)) >= _TELLING for path, _ in pairs)
        are_counters = _are_counters(by_class[one]) or _are_counters(by_class[other])
        if 10 * len(pairs) >= 9 * smaller and is_telling and not are_counters:
            said = (
                f"{pairs[0][0]} and {pairs[0][1]} have one name, as have {len(pairs)} files of their classes: they may "
                "show one thing"
            )
            notes = join_notes(notes, dict.fromkeys((one, other), said))
    return notes


def join_notes(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    """Both notes of each class."""
    return {
        **second,
        **first,
        **{name: f"{first[name]}; {second[name]}" for name in first.keys() & second.keys()},
    }


def _refuse_annotations_beside(files: SourceFiles, paths: Sequence[str], only: str) -> None:
    stems = {_stem(path): path for path in paths}
    beside = next(
        (path for path in files.sizes() if path.lower().endswith(_BESIDE) and _stem(path) in stems), None
    )
    if beside is not None:
        raise AnnotationsError(
            f"{files.root}: {only} would be the only class, and {beside} is by its name the annotation of "
            f"{stems[_stem(beside)]}; take the layout of the annotations, or export them as COCO or Pascal VOC and "
            f"take --layout coco or voc; or {_CURE}"
        )


def _refuse_masks(
    files: SourceFiles, one: str, other: str, pairs: Sequence[tuple[str, str]], smaller: int
) -> None:
    """Refuse two folders that share names and of which one holds the masks of the other."""
    named = [bool(_MASK_FOLDER.fullmatch(name)) for name in (one, other)]
    if sum(named) != 1:
        sample = pairs[:: max(1, len(pairs) // _SAMPLE)][:_SAMPLE]
        gray = [{_is_gray(files, pair[place]) for pair in sample} for place in (0, 1)]
        is_proof = len(pairs) > 1 and 10 * len(pairs) >= 9 * smaller and {True} in gray and {False} in gray
        if not any(named) and not is_proof:
            return
        named = [gray[0] == {True}, gray[1] == {True}] if is_proof else [False, True]
    image, mask = pairs[0][::-1] if named[0] else pairs[0]
    patterns = [f"{path.removesuffix(basename(path))}{{id}}{splitext(path)[1]}" for path in (image, mask)]
    raise AnnotationsError(
        f"{files.root}: {image} and {mask} have one name, as have {len(pairs)} of {smaller} files, so that one is the "
        f"mask or annotation of the other; for label images take --layout pairs --image-pattern '{patterns[0]}' "
        f"--label-pattern '{patterns[1]}'; or {_CURE}"
    )


def _stem(path: str) -> str:
    return splitext(basename(path))[0]


def _are_counters(names: Iterable[str]) -> bool:
    """Whether files are counted from 0 or 1, so that names are shared by chance.

    >>> _are_counters(["dog/0001", "dog/0002"]), _are_counters(["2011_000417", "2011_000912"])
    (True, False)
    """
    found = [_NUMBER.search(basename(name)) for name in names]
    numbers = {int(one[0]) for one in found if one}
    return all(found) and min(numbers) in (0, 1) and max(numbers) < 2 * len(numbers) + 1


def _is_gray(files: SourceFiles, path: str) -> bool:
    """Whether a file is a PNG of gray values or of a palette, as masks are."""
    try:
        head = files.head(path, _PNG_HEAD)
    except SourceError:
        return False
    return head.startswith(b"\x89PNG") and head[25:26] in (b"\0", b"\3")
