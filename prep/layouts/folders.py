"""Reader of class folders: `class/image` or `split/class/image`.

It refuses folders that probably are not classes: those that hold masks, views or annotations of other images.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from posixpath import basename, splitext

from halofeed.prep.annotations.class_names import add_class_notes, similar_class_notes
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    grouped,
    is_split_name,
    refuse_annotation_file,
    rejected_example,
)
from halofeed.prep.annotations.file_content import is_label_of, read_content
from halofeed.prep.annotations.patterns import compile_pair
from halofeed.prep.annotations.suggest_layout import may_suggest_layout, suggest_layout
from halofeed.prep.annotations.suggest_patterns import LayoutError, pattern_advice
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import (
    UNREAD_EXTENSIONS,
    is_dicom_name,
    is_document_name,
    is_image_name,
    is_still_name,
    is_video_name,
)
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.addresses import is_remote
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import plural

IMAGE_FOLDER = re.compile(
    r"(jpeg|png)?_?(images?|imgs?|pictures?|photos?)(tr|ts)?([-_ ]?\d{1,2})?|rgb|colou?rs?|leftimg8bit|frames?",
    re.IGNORECASE,
)
MASK_FOLDER = re.compile(
    r"segmentations?(class|object)?(aug|raw)?|(seg|instance|semantic)?[-_ ]?(masks?|labels?|maps?)([-_ ]?\d{1,2})?"
    r"|segs?|gts?|gt(fine|coarse)|ground[-_ ]?truths?|annotations?|annots?|trimaps?|instances?|semantics?"
    r"|depths?|disparity",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?!.*\d)")
MAX_FOLDERS = 20
"""Most folders to compare. Sets of images and masks have a few; among more, two may share names by chance."""
_SAMPLE = 4
_MIN_DISTINCTIVE_CHARACTERS = 6
"""Length of a distinctive name: two files do not share such a name by chance, unless the files are numbered."""
_PNG_HEAD = 26
_FIX = "use --folders-are-classes if each folder is a class"
MAY_SHOW_ONE_THING = "they may show one thing"
_ANNOTATION_EXTENSIONS = (".txt", ".json", ".xml", ".csv", ".npy", ".mat", ".yaml")
_SPLIT_FIX = "state with --split-folders yes or no whether the first folder is a split"
_VIDEO = "a video; --frames takes clips"


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every image below the folder, with the class of its folder.

    The first folder is a split if all first folders have split names (train, val, test, fold_1, ...). Otherwise the
    first folder is the class. Images at any depth below a class folder belong to that class. Documents such as text
    files, tables and licenses are ignored. Any other file without an image name gets a problem. So does an image
    outside the class folders or in an unsupported format.

    Raises:
        AnnotationsError: split and class folders are mixed or ambiguous; no image is in a class folder; or other
            files indicate another layout, unless the options say that folders are classes.
    """
    refuse_annotation_file(annotation_file, "class folders need no annotation file; name the folder")
    paths = images.sizes()
    seen = summarize(paths, options)
    # The user's option decides, and saves the checks below, which read files or compare names.
    if not options.folders_are_classes and not _has_slides(paths, options):
        _check_no_other_layout(annotations, images)
    rules = _resolve_rules(seen, (path for path in paths if not options.takes(path)), images.root, options)
    if not options.folders_are_classes:
        taken = list(filter(options.takes, paths))
        _refuse_partners(images, taken, options)
        notes = _check_class_folders(images, taken, rules.first_is_split, _classes_of(seen, rules), options)
        rules = replace(rules, notes=_join_notes(rules.notes, notes))
    yield from references_of(paths, rules, options)


@dataclass(kw_only=True)
class FolderSummary:
    """Folders of the images, which determine all rules; one image per folder is enough.

    Args:
        firsts: first image of each folder.
        classes: first image in a supported format, for each folder.
        count: number of images.
    """

    firsts: dict[str, str] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def add(self, other: FolderSummary) -> None:
        """Merge the summary of files that come later."""
        for folder, path in other.firsts.items():
            self.firsts.setdefault(folder, path)
        for folder, path in other.classes.items():
            self.classes.setdefault(folder, path)
        self.count += other.count


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Meaning of the folders.

    Args:
        first_is_split: whether the first folder of a path is a split.
        notes: note per class.
        markers: first files of the class folders that hold no image.
    """

    first_is_split: bool
    notes: dict[str, str]
    markers: frozenset[str] = frozenset()


def summarize(paths: Iterable[str], options: LayoutOptions) -> FolderSummary:
    """Return the summary of the paths of all files, or of the files below some folders."""
    seen = FolderSummary()
    for path in filter(options.takes, paths):
        folder = path.rpartition("/")[0]
        seen.firsts.setdefault(folder, path)
        # A folder of JPEG 2000 files alone is a class without a single usable image.
        if folder not in seen.classes and not path.lower().endswith(UNREAD_EXTENSIONS):
            seen.classes[folder] = path
        seen.count += 1
    return seen


def resolve_rules(
    seen: FolderSummary, others: Iterable[str], files: SourceFiles, options: LayoutOptions
) -> Rules | None:
    """Return the rules from the merged summary; None if the decision needs all paths.

    Args:
        seen: merged summary of all parts.
        others: paths of all files except images.

    Raises:
        AnnotationsError: see `list_references`.
    """
    others = list(others)
    # Workers see the paths of their part only; files of another layout may be anywhere.
    if not options.folders_are_classes and may_suggest_layout(files, others, seen.firsts.values()):
        return None
    rules = _resolve_rules(seen, others, files.root, options)
    if not options.folders_are_classes and _may_not_be_classes(
        files, seen.firsts.values(), _classes_of(seen, rules)
    ):
        return None
    return rules


def _classes_of(seen: FolderSummary, rules: Rules) -> set[str]:
    parts = (path.split("/")[rules.first_is_split :] for path in seen.firsts.values())
    return {path[0] for path in parts if len(path) > 1}


def _resolve_rules(seen: FolderSummary, others: Iterable[str], root: str, options: LayoutOptions) -> Rules:
    firsts = sorted(seen.firsts.values())
    if not options.folders_are_classes:
        _check_not_image_folder(seen.firsts, root)
    # A folder of videos is a usual mistake, so the message names the first.
    if not firsts:
        video = next(filter(is_video_name, others), None)
        more = "" if video is None else f"; {video} is {_VIDEO}"
        raise AnnotationsError(f"{root}: no image file lies below it; expected class/image.jpg{more}")
    # The user named a class folder, or the folder inside of a split.
    if not any(seen.firsts):
        raise AnnotationsError(
            f"{root}: {plural(seen.count, 'image lies', 'images lie')} directly in it, and none in a class "
            f"folder; expected class/image.jpg: if this folder is a class, name the folder "
            f"above{_above(root)}; else put the images into a folder for each class"
        )
    first_is_split = options.split_folders
    # The user's --split-folders settles the question, also against the names.
    if first_is_split is None:
        first_is_split = _decide_split_folders([path.split("/") for path in firsts], root)
        # The user may take a folder above others for a class.
        if not options.folders_are_classes:
            _refuse_folders_above_classes(firsts, first_is_split, root)
    labels = (_example(path, first_is_split, options).label for path in seen.classes.values())
    notes = similar_class_notes(label for label in labels if label is not None)
    notes = _join_notes(notes, _deep_notes(firsts, first_is_split))
    markers = _first_files_without_images(firsts, others, first_is_split)
    return Rules(first_is_split=first_is_split, notes=notes, markers=frozenset(markers))


def _above(root: str) -> str:
    """Return the folder above a local one, for a message."""
    return "" if is_remote(root) else f", {os.path.dirname(os.path.abspath(root))}"


def _deep_notes(firsts: Iterable[str], first_is_split: bool) -> dict[str, str]:
    """Return a note per class whose images are all in subfolders, of which there are several."""
    below: dict[str, set[str]] = {}
    for path in firsts:
        folders = path.split("/")[first_is_split:-1]
        if folders:
            below.setdefault(folders[0], set()).add(folders[1] if len(folders) > 1 else "")
    return {
        label: f"all images of the class {label!r} lie in folders below its own: {', '.join(sorted(inside)[:3])}"
        + (", ..." if len(inside) > 3 else "")
        for label, inside in below.items()
        if len(inside) > 1 and "" not in inside
    }


def _first_files_without_images(
    firsts: Iterable[str], others: Iterable[str], first_is_split: bool
) -> Iterator[str]:
    """Yield the first document of each class folder that holds no image."""
    depth = 1 + first_is_split
    known = {tuple(path.split("/")[:depth]) for path in firsts}
    for path in others:
        folders = tuple(path.split("/")[:-1][:depth])
        if len(folders) < depth or folders in known or not is_document_name(path):
            continue
        # A folder with the name of a document, such as licenses, is not a class.
        if not is_document_name(folders[-1]):
            known.add(folders)
            yield path


def references_of(paths: Iterable[str], rules: Rules, options: LayoutOptions) -> Iterator[SourceExample]:
    """Yield the examples of these paths, in order."""
    taken = (
        path for path in paths if options.takes(path) or not is_document_name(path) or path in rules.markers
    )
    return add_class_notes(
        (
            _empty_class_folder(path, rules)
            if path in rules.markers
            else _example(path, rules.first_is_split, options)
            for path in taken
        ),
        rules.notes,
    )


def _empty_class_folder(path: str, rules: Rules) -> SourceExample:
    """Return an example with a problem for a class folder without images, named after its first file."""
    folder = "/".join(path.split("/")[: 1 + rules.first_is_split])
    split = path.split("/")[0] if rules.first_is_split else "train"
    return rejected_example(path, ("selection", "class folder holds no image", folder), split)


def _refuse_folders_above_classes(paths: Sequence[str], first_is_split: bool, root: str) -> None:
    """Raise AnnotationsError if splits are below the first folder, or if the first folder would be the only class."""
    inside = [below for path in paths if len(below := path.split("/")[first_is_split:]) > 1]
    _refuse_one_level_too_deep(inside, root)
    # Pictures straight in a first folder prove that it is a class.
    if not inside or any(len(path) == 2 for path in inside):
        return
    above = inside[0][0]
    holds_splits = all(is_split_name(path[1]) for path in inside)
    fix = "name the folder that holds the class folders or the splits"
    # Only if the folders below hold the pictures of classes.
    if {len(path) for path in inside} == {3 + holds_splits}:
        fix += f", such as --source {shlex.quote(f'{root}/{above}')}"
    found = _split_inside(inside[0]) if holds_splits else _only_class(inside)
    if found is not None:
        raise LayoutError(
            f"{root}: {found}: {fix}", lambda: f"or use --folders-are-classes to take {above} for a class"
        )


def _split_inside(path: Sequence[str]) -> str:
    """Return what is wrong if the split is the second folder of a path."""
    where = f"{'/'.join(path)} has a split, {path[1]}, in the folder {path[0]}"
    return f"{where}; expected split/class/image or class/image"


def _only_class(inside: Sequence[Sequence[str]]) -> str | None:
    """Return what is wrong if one folder holds all pictures, and each in one of several folders; else None."""
    shown = sorted({path[1] for path in inside})
    if len({path[0] for path in inside}) > 1 or len(shown) < 2:
        return None
    more = ", ..." if len(shown) > 3 else ""
    return (
        f"{inside[0][0]} would be the only class, and all its images lie in folders of their own "
        f"({', '.join(shown[:3])}{more})"
    )


def _refuse_one_level_too_deep(inside: Sequence[Sequence[str]], root: str) -> None:
    """Raise AnnotationsError for data/cat/1.jpg and data/dog/1.jpg with samples/1.jpg: `data` may not be a class."""
    below = grouped((path[0], path[1] if len(path) > 2 else "") for path in inside)
    flat = next((name for name, folders in below.items() if "" in folders), None)
    deep = [name for name, folders in below.items() if len(set(folders)) > 1 and "" not in folders]
    # Two first folders with subfolders are classes with subclasses.
    if flat is not None and len(deep) == 1 and not is_split_name(deep[0]):
        shown = ", ".join(sorted(set(below[deep[0]]))[:3])
        raise AnnotationsError(
            f"{root}: all images of {deep[0]} lie in folders of their own ({shown}), and those of {flat} straight in "
            f"it; expected class/image: name the folder {deep[0]} with --source if its folders are the classes, or use "
            "--folders-are-classes"
        )


def _has_slides(paths: Iterable[str], options: LayoutOptions) -> bool:
    """Return whether DICOM files are slides that are cut into tiles."""
    if options.fit != "tiles":
        return False
    return any(is_dicom_name(path) and options.takes(path) for path in paths)


def _check_no_other_layout(annotations: SourceFiles, images: SourceFiles) -> None:
    for files in (annotations,) if annotations is images else (annotations, images):
        if (found := suggest_layout(files)) is not None:
            message = f"{files.root}: no class folders: {found}"
            inside = [path for path in images.sizes() if "/" in path]
            # No class folder has a picture, so --folders-are-classes would not help.
            if not any(map(is_image_name, inside)):
                raise AnnotationsError(f"{message}; or save class folders of pictures as PNG files")
            if not any(map(is_still_name, inside)):
                raise LayoutError(
                    message,
                    lambda: (
                        "or use --folders-are-classes to take each folder for a class, and each slice for a "
                        "picture of it"
                    ),
                )
            raise LayoutError(
                message,
                lambda: "or use --folders-are-classes to take each folder for a class and ignore such files",
            )


def _check_not_image_folder(folders: Iterable[str], root: str) -> None:
    names = {folder.rpartition("/")[2] for folder in folders}
    # photos/images/1.jpg: nobody calls a class images, so the classes are in a file.
    if names and all(map(IMAGE_FOLDER.fullmatch, names)):
        shown = min(folders)
        raise LayoutError(
            f"{root}: all images lie in {shown}, so that its name would be the only class; expected "
            "class/image.jpg: name the folder that holds class folders, or the layout of the annotations with --layout",
            lambda: "or use --folders-are-classes",
        )


def _example(path: str, first_is_split: bool, options: LayoutOptions) -> SourceExample:
    *folders, _ = path.split("/")
    split = folders.pop(0) if first_is_split and folders else "train"
    is_unread = path.lower().endswith(UNREAD_EXTENSIONS)
    problem = None
    # Files that are no documents may be images of an unknown format, so none is left out silently.
    if not is_unread and not options.takes(path):
        problem = ("selection", "not an image file name", _VIDEO if is_video_name(path) else "")
    # Pictures beside the class folders are samples or previews of a set.
    elif not folders:
        problem = ("selection", "image lies in no class folder", "")
    # JPEG 2000: images for certain, which are not decoded here.
    elif is_unread:
        extension = splitext(path)[1].lower()
        problem = ("decode", "format not supported", f"{extension}; convert it to JPEG or PNG first")
    label = folders[0] if problem is None else None
    return SourceExample(source=path, key=path, split=split, label=label, problem=problem)


def _decide_split_folders(paths: Sequence[Sequence[str]], root: str) -> bool:
    """Return whether the first component of the image paths is a split.

    >>> _decide_split_folders([["train", "hat", "1.jpg"], ["test", "hat", "2.jpg"]], "photos")
    True
    >>> _decide_split_folders([["train", "1.jpg"], ["car", "2.jpg"], ["car", "2019", "3.jpg"]], "photos")
    False
    """
    inside = [path for path in paths if len(path) > 1]
    splits = [path for path in inside if is_split_name(path[0])]
    others = [path for path in inside if not is_split_name(path[0])]
    deep_splits = [path for path in splits if len(path) > 2]
    # A class called test beside cat and dog is a class; test beside train is a split.
    if splits and not others:
        # train/1.jpg: the classes are in a file, or these folders are classes called train and test.
        if not deep_splits:
            raise AnnotationsError(
                f"{root}: {'/'.join(splits[0])} lies in a split folder but in no class folder; expected "
                "split/class/image; if a file gives the classes, take its layout, such as --layout csv, jsonl, coco or "
                "voc; --split-folders no treats these folders as classes"
            )
        return True
    # train/cat/1.jpg beside cat/1.jpg: either reading gives some images a wrong class.
    if deep_splits:
        raise AnnotationsError(
            f"{root}: split and class folders are mixed: {'/'.join(deep_splits[0])} and "
            f"{'/'.join(others[0])}; expected split/class/image or class/image throughout, or {_SPLIT_FIX}"
        )
    _refuse_unknown_splits(inside, root)
    return False


def _refuse_unknown_splits(inside: Sequence[Sequence[str]], root: str) -> None:
    """Raise AnnotationsError for a/cat/1.jpg with b/cat/2.jpg: a and b may be classes or unusual split names."""
    # Splits hold class/image alone, so other depths are folders of a class.
    if any(len(path) != 3 for path in inside):
        return
    second: dict[str, set[str]] = {}
    for path in inside:
        second.setdefault(path[0], set()).add(path[1])
    # The same names below each first folder, as PACS has: photo/dog and sketch/dog, whose second folder is the class.
    if len(second) > 1 and len(set(map(frozenset, second.values()))) == 1:
        first, last = min(second), max(second)
        shared = min(second[first])
        raise AnnotationsError(
            f"{root}: {first}/{shared} and {last}/{shared} may be split/class or class/folder; {_SPLIT_FIX}"
        )


def _may_not_be_classes(files: SourceFiles, firsts: Iterable[str], classes: Collection[str]) -> bool:
    """Return whether `_check_class_folders` could find something, judged by one image per folder.

    A True result may be a false alarm. A False result may miss folders whose first files do not pair.
    """
    firsts = list(firsts)
    folders = [path.rpartition("/")[0] for path in firsts[:_SAMPLE]]
    # These need the names of all files.
    if len(classes) == 1 or any(_partner_suffix(map(_stem, files.files_in(one))) for one in folders):
        return True
    if len(classes) > MAX_FOLDERS:
        return False
    # The names alone raise the doubt, which contents settle.
    if any(map(MASK_FOLDER.fullmatch, classes)) or _folder_pairs(classes):
        return True
    stems = Counter(stem for path in firsts if len(stem := _stem(path)) >= _MIN_DISTINCTIVE_CHARACTERS)
    # One name in two folders, or gray beside colors, as masks beside pictures.
    return max(stems.values(), default=0) > 1 or len({_is_gray(files, path) for path in firsts}) > 1


def _check_class_folders(
    files: SourceFiles,
    paths: Sequence[str],
    first_is_split: bool,
    classes: Collection[str],
    options: LayoutOptions,
) -> dict[str, str]:
    """Return a note per class for folders that may not be classes.

    Args:
        first_is_split: whether the first folder of a path is a split and the second one the class.
    """
    if len(classes) > MAX_FOLDERS:
        return {}
    # One class trains nothing, so its folder is usually that of pictures with annotations.
    if len(classes) == 1:
        (only,) = classes
        _refuse_annotations_beside(files, paths, only)
        return {only: f"all images have one class, {only!r}"}
    by_class = _paths_by_name(paths, first_is_split)
    _refuse_paired_folders(files, by_class, first_is_split)
    notes: dict[str, str] = {}
    for one, other in combinations(sorted(by_class), 2):
        shared = sorted(by_class[one].keys() & by_class[other].keys())
        smaller = min(len(by_class[one]), len(by_class[other]))
        # Masks exist for most pictures; fewer shared names are chance.
        if not shared or 2 * len(shared) < smaller:
            continue
        pairs = [(by_class[one][name], by_class[other][name]) for name in shared]
        _refuse_masks(files, one, other, pairs, smaller, options)
        # Nine of ten shared names may be two views or exposures of one thing, which a split would divide.
        if 10 * len(pairs) >= 9 * smaller and _are_no_chance(pairs, by_class[one], by_class[other]):
            message = (
                f"{pairs[0][0]} and {pairs[0][1]} have one name, as have {plural(len(pairs), 'file')} of "
                f"their classes: {MAY_SHOW_ONE_THING}"
            )
            notes = _join_notes(notes, dict.fromkeys((one, other), message))
    return notes


def _paths_by_name(paths: Iterable[str], first_is_split: bool) -> dict[str, dict[str, str]]:
    """Return the images of each class by their names: the path without the class and the extension."""
    by_class: dict[str, dict[str, str]] = {}
    for path in paths:
        folders = path.split("/")[:-1]
        if len(folders) > first_is_split:
            label = folders.pop(int(first_is_split))
            by_class.setdefault(label, {})["/".join([*folders, _stem(path)])] = path
    return by_class


def _are_no_chance(pairs: Sequence[tuple[str, str]], one: Iterable[str], other: Iterable[str]) -> bool:
    """Return whether two folders do not share names by chance, as numbered files and short names do."""
    if len(pairs) < _SAMPLE or _are_counters(one) or _are_counters(other):
        return False
    return all(len(_stem(path)) >= _MIN_DISTINCTIVE_CHARACTERS for path, _ in pairs)


def _folder_pairs(names: Collection[str]) -> dict[str, str]:
    """Return the partner of each folder, if one text added to the names of a half gives the other half; else {}.

    >>> _folder_pairs(["train", "trainannot", "val", "valannot"])
    {'train': 'trainannot', 'val': 'valannot'}
    >>> _folder_pairs(["cat", "dog", "hotdog"])
    {}
    """
    shortest = min(names, key=lambda name: (len(name), name), default="")
    for longer in sorted(names):
        start, found, end = longer.partition(shortest)
        # The shortest name is the text that all others of its half begin or end with, if any is.
        if longer == shortest or not found:
            continue
        added = [name for name in names if name.startswith(start) and name.endswith(end)]
        pairs = {name[len(start) : len(name) - len(end)]: name for name in sorted(added)}
        # Exactly half of the names are the other half's with one text added: [cat, dog, hotdog] are no pairs.
        if set(pairs) | set(added) == set(names) and len(pairs) * 2 == len(names):
            return pairs
    return {}


def _refuse_paired_folders(
    files: SourceFiles, by_class: Mapping[str, Mapping[str, str]], first_is_split: bool
) -> None:
    """Raise AnnotationsError if each picture of a half of the folders has a partner of its name in the other half.

    Two classes that are numbered from 1 share names by chance; two pairs of folders with partners by name do not.
    CamVid has train with trainannot, and val with valannot.
    """
    pairs = _folder_pairs(by_class)
    # Each picture has its annotation, or they are no pairs.
    if not pairs or any(by_class[one].keys() != by_class[other].keys() for one, other in pairs.items()):
        return
    # One pair of numbered folders, such as 0 and 01, shares names by chance.
    if len(pairs) < 2 and any(_are_counters(by_class[one]) for one in pairs):
        return
    one = min(pairs)
    name = min(by_class[one])
    image, label = by_class[one][name], by_class[pairs[one]][name]
    count = sum(len(by_class[one]) for one in pairs)
    # Patterns would need the split within both, which a trial on this source cannot show.
    if first_is_split:
        fix = "name the folder of the images and that of the labels with --image-pattern and --label-pattern"
    else:
        fix = _pairing_patterns(files, pairs, (image, label), count)
    raise AnnotationsError(
        f"{files.root}: {image} and {label} have one name, as have {plural(count, 'picture')} of the folders "
        f"{', '.join(pairs)} with {', '.join(pairs.values())}, so that one is the mask or annotation of the other; "
        f"{fix}; or {_FIX}"
    )


def _pairing_patterns(
    files: SourceFiles, pairs: Mapping[str, str], example: tuple[str, str], count: int
) -> str:
    """Return patterns for layout pairs that were tried on all files."""
    one, other = min(pairs), pairs[min(pairs)]
    start, _, end = other.partition(one)
    for endings in ([splitext(path)[1] for path in example], (".*", ".*")):
        image, label = f"{{split}}/{{id}}{endings[0]}", f"{start}{{split}}{end}/{{id}}{endings[1]}"
        pair = compile_pair(image, label, with_class=False)
        found: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}
        for path in files.sizes():
            if kind := pair.classify(path):
                found[kind[0]].add((kind[1]["split"], kind[1]["id"]))
        # Advice is printed only if it pairs all files, see docs/decisions.md, "A suggestion is typed before it is
        # printed".
        if found[True] == found[False] and len(found[True]) == count:
            return (
                f"for label images use --layout pairs --image-pattern '{image}' --label-pattern '{label}', which pairs "
                f"{plural(count, 'image')} with {plural(count, 'label')}"
            )
    return "name the images and labels with --layout pairs, --image-pattern and --label-pattern"


def _join_notes(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    """Return the notes of both mappings, joined per class."""
    return {
        **second,
        **first,
        **{name: f"{first[name]}; {second[name]}" for name in first.keys() & second.keys()},
    }


def _refuse_annotations_beside(files: SourceFiles, paths: Sequence[str], only: str) -> None:
    """Raise AnnotationsError if annotation files accompany the images of the only class."""
    stems = {_stem(path): path for path in paths}
    beside = next(
        (
            path
            for path in files.sizes()
            if path.lower().endswith(_ANNOTATION_EXTENSIONS) and _stem(path) in stems
        ),
        None,
    )
    # 1.txt beside 1.jpg in a single folder: YOLO, VOC or captions.
    if beside is not None:
        raise AnnotationsError(
            f"{files.root}: {only} would be the only class, and {beside} is by its name the annotation of "
            f"{stems[_stem(beside)]}; take the layout of the annotations, or export them as COCO or Pascal VOC and "
            f"take --layout coco or voc; or {_FIX}"
        )


def _refuse_partners(files: SourceFiles, paths: Sequence[str], options: LayoutOptions) -> None:
    """Raise AnnotationsError if most pictures have a label with the same name and a suffix, as 1.tif and 1_mask.tif."""
    by_name = {f"{path.rpartition('/')[0]}/{_stem(path)}": path for path in paths}
    suffix = _partner_suffix(by_name)
    named = [(by_name[name], by_name[f"{name}{suffix}"]) for name in by_name if f"{name}{suffix}" in by_name]
    if not suffix or not named:
        return
    contents = [(read_content(files, image), read_content(files, label)) for image, label in named[:_SAMPLE]]
    # Names such as 1.jpg and 1_2.jpg may be variants of a picture; contents decide.
    if any(not image or not label or is_label_of(label, image) is False for image, label in contents):
        return
    image, label = named[0]
    raise AnnotationsError(
        f"{files.root}: {label} is by its name and content the label of {image}, as are {len(named):,} of "
        f"{plural(len(paths), 'file')}; for label images {pattern_advice(files, options)}; or {_FIX}"
    )


def _partner_suffix(names: Iterable[str]) -> str:
    """Return the suffix with which nearly all names come in pairs; "" if there is none.

    >>> _partner_suffix(["1", "1_mask", "2", "2_mask"]), _partner_suffix(["1", "10", "2", "20"])
    ('_mask', '')
    """
    known = set(names)
    suffixes = Counter(name[end:] for name in known for end in range(1, len(name)) if name[:end] in known)
    words = [(count, suffix) for suffix, count in suffixes.items() if not suffix.isdecimal()]
    count, suffix = max(words, default=(0, ""))
    return suffix if count > 1 and 20 * count >= 9 * len(known) else ""


def _refuse_masks(
    files: SourceFiles,
    one: str,
    other: str,
    pairs: Sequence[tuple[str, str]],
    smaller: int,
    options: LayoutOptions,
) -> None:
    """Raise AnnotationsError if two folders share file names and one holds the masks of the other."""
    named = [bool(MASK_FOLDER.fullmatch(name)) for name in (one, other)]
    # Two names of masks, or none, do not tell which folder has the masks; contents may.
    place = named.index(True) if sum(named) == 1 else _gray_folder(files, pairs, smaller)
    # Two folders of photographs of one name, such as frames of two cameras.
    if place is None and not any(named):
        return
    image, mask = pairs[0][::-1] if place == 0 else pairs[0]
    raise AnnotationsError(
        f"{files.root}: {image} and {mask} have one name, as have {len(pairs)} of "
        f"{plural(smaller, 'file')}, so that one is the "
        f"mask or annotation of the other; for label images {pattern_advice(files, options)}; or {_FIX}"
    )


def _gray_folder(files: SourceFiles, pairs: Sequence[tuple[str, str]], smaller: int) -> int | None:
    """Return 0 or 1 for the folder whose files alone are gray, if nearly all files of both pair; else None."""
    # A single gray file may be a gray photograph.
    if len(pairs) < 2 or 10 * len(pairs) < 9 * smaller:
        return None
    sample = pairs[:: max(1, len(pairs) // _SAMPLE)][:_SAMPLE]
    gray = [{_is_gray(files, pair[place]) for pair in sample} for place in (0, 1)]
    return gray.index({True}) if {True} in gray and {False} in gray else None


def _stem(path: str) -> str:
    return splitext(basename(path))[0]


def _are_counters(names: Iterable[str]) -> bool:
    """Return whether the files are numbered from 0 or 1, so that they share names by chance.

    >>> _are_counters(["dog/0001", "dog/0002"]), _are_counters(["2011_000417", "2011_000912"])
    (True, False)
    """
    found = [_NUMBER.search(basename(name)) for name in names]
    numbers = {int(one[0]) for one in found if one}
    return all(found) and min(numbers) in (0, 1) and max(numbers) < 2 * len(numbers) + 1


def _is_gray(files: SourceFiles, path: str) -> bool:
    """Return whether a file is a grayscale or palette PNG, as masks are."""
    try:
        head = files.head(path, _PNG_HEAD)
    except SourceError:
        return False
    return head.startswith(b"\x89PNG") and head[25:26] in (b"\0", b"\3")
