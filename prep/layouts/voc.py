"""Reader of Pascal VOC XML, with ImageSets/Main lists or with XML files in the folders of the images."""

from __future__ import annotations

import math
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import PurePosixPath
from typing import Any
from xml.etree import ElementTree

from halofeed.prep.annotations.annotation_tools import refuse_shared_images
from halofeed.prep.annotations.class_names import note_similar_classes
from halofeed.prep.annotations.classes_beside import classes_beside, ordered_classes
from halofeed.prep.annotations.columns import CORNERS
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    grouped,
    is_split_name,
    read_required,
    rejected_example,
    sort_examples,
)
from halofeed.prep.annotations.documents import parse_xml_document, read_limited
from halofeed.prep.annotations.image_index import ImageIndex, ImageMatch, ImageQuery
from halofeed.prep.annotations.picture_classes import settle_classes
from halofeed.prep.annotations.resolve_boxes import Size, possible_sizes, resolve_boxes
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.annotations.written_boxes import (
    angle_of,
    check_ignored_columns,
    class_of,
    declared_size,
    parse_flag,
    parse_number,
    rectangle_of,
    usable_boxes,
)
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.file_names import common_folder, is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError

_LIST_PATH = re.compile(r"((?P<prefix>.*)/)?ImageSets/Main/(?P<name>[^/]+)\.txt")
_LIST_FLAG = re.compile(r"\s+(-1|0|1)$")
_IMAGE_FOLDERS = ("JPEGImages", "images")
_MASK_FOLDERS = ("SegmentationClass", "SegmentationObject")
_FLAGS = ("difficult", "truncated", "occluded")
_FLAG_TEXTS = {"": False, "0": False, "false": False, "1": True, "true": True}
_NOT_VOC = "not a VOC annotation"
_MAX_XML_BYTES = 64 << 20
"""Limit for one file; a hundred thousand boxes of an image take half of it."""
_XML_NAME_TAKEN = (
    "<filename> names another picture than the XML file's own name, which was taken, as declared sizes or other XML "
    "files prove; --voc-images filename takes the former"
)
_FILENAME_TAKEN = (
    "<filename> names another picture than the XML file's own name, and was taken, as declared sizes or the other XML "
    "files prove; --voc-images xml-name takes the latter"
)
_NO_SUCH_FILE = "<filename> names no file; the picture of the XML file's own name was taken"
_OPEN = "<filename> and the XML file's name mean two images"
_FIX = "--voc-images filename or --voc-images xml-name says which is meant"


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every XML annotation, every image, and every list entry below the folder.

    The image of an XML file is its <filename> in the same folder, in JPEGImages/, or anywhere below; otherwise a file
    with the XML file's name. If both exist and differ, see `_resolve_names`.

    ImageSets/Main lists define the splits: train, val, test and any other list. Per-class lists (`cat_train`) are
    ignored, and so is trainval if train and val exist. If the user assigns the splits, the reader uses only lists
    that the options name, to select images. Without lists the first folder is the split if all have split names;
    otherwise all images belong to `train`.

    Raises:
        AnnotationsError: an image is in two lists, a list entry matches two images, or a requested list is missing.
    """
    check_ignored_columns(options, "VOC")
    index = ImageIndex(images, annotations.root, options.takes)
    files = _read_files(annotations, annotation_file, options)
    paths = [file.path for file in files]
    queries = _image_queries({file.path: file.filename for file in files})
    sizes = {file.path: file.example.declared_size for file in files}
    found = _resolve_names(index, queries, sizes, images, options)
    # All images are missing: a wrong folder, which one message tells better than a problem of each file.
    if not any(isinstance(one, ImageMatch) for one in found.values()):
        index.check_any_image(f"{annotations.root} ({len(paths)} XML files)")
    listed = [_with_image(file.example, found[file.path]) for file in files]
    listed = refuse_shared_images(listed, paths)
    # VOC devkit: the first pixel of a picture has the number 1.
    listed = resolve_boxes(listed, images, options, annotation_file or annotations.root, origin=1)
    # A named file is one image; its folder holds many that the user did not ask for.
    if annotation_file is None:
        others = list(_other_images(index, listed))
        listed, paths = [*listed, *others], [*paths, *(one.source for one in others)]
        lists = _read_image_sets(annotations, options) if options.image_sets or options.source_splits else {}
        listed = _split_by_lists(listed, paths, lists) if lists else _split_by_folders(listed, paths)
    yield from sort_examples(note_similar_classes(listed))


def _other_images(index: ImageIndex, listed: Sequence[SourceExample]) -> Iterator[SourceExample]:
    """Yield an example for each image without an XML file, except VOC's label images for segmentation."""
    used = {example.source: example.split for example in listed}
    for example in index.without_annotation(used.items, only_used_folders=False):
        if not set(example.source.split("/")[:-1]).intersection(_MASK_FOLDERS):
            yield example


@dataclass(frozen=True, kw_only=True)
class _XmlFile:
    """Content of an XML file.

    Args:
        path: path of the file.
        filename: its <filename>; "" without one.
        example: example under the file's own path, with its boxes or its problem.
        classes: classes of objects without a place.
    """

    path: str
    filename: str
    example: SourceExample
    classes: tuple[str, ...] = ()


def _read_files(
    annotations: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> list[_XmlFile]:
    """Return the content of the named XML file or of all; raise AnnotationsError if none is Pascal VOC's."""
    paths = [path for path in annotations.sizes() if path.lower().endswith(".xml")]
    if annotation_file is not None:
        paths = [annotation_file]
    if not paths:
        raise AnnotationsError(
            f"{annotations.root}: no .xml file lies below it; expected Pascal VOC annotations"
            f"{layout_hint(annotations, 'voc')}"
        )
    files = [_read(path, annotations, options) for path in paths]
    settled = settle_classes(
        [(one.example, one.classes, one.path) for one in files], options, are_objects=True
    )
    problems = {example.problem[1] for example in settled if example.problem is not None}
    # Other tools write XML too, such as CVAT's; a hint names their layout.
    if problems == {_NOT_VOC} and (other := layout_hint(annotations, "voc", annotation_file)):
        raise AnnotationsError(
            f"{annotations.root}: none of its {len(paths)} .xml files is Pascal VOC's{other}"
        )
    return [replace(file, example=example) for file, example in zip(files, settled, strict=True)]


def list_labels(annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the classes of a class table in the folder itself, such as CVAT's labelmap.txt; () without one."""
    return ordered_classes(classes_beside(annotations, [""]))


def _read(path: str, annotations: SourceFiles, options: LayoutOptions) -> _XmlFile:
    """Return the content of one XML file."""
    name = ""
    try:
        root = parse_xml_document(read_limited(annotations, path, "XML", _MAX_XML_BYTES))
        # VOC devkit: the root is <annotation>; CVAT's is <annotations>.
        if root.tag != "annotation":
            raise SourceError("annotation", _NOT_VOC, f"expected <annotation>, got <{root.tag}>"[:200])
        name = _text(root, "filename")
        size = declared_size(_text(root, "size/height"), _text(root, "size/width"))
        objects = list(enumerate(root.findall("object"), start=1))
        alone = [one for _, one in objects if _is_class_alone(one)]
        if len(alone) < len(objects):  # beside objects with boxes, one without is damaged
            alone = []
        boxes, bad = usable_boxes(
            () if alone else objects,
            lambda numbered: _box(numbered[1], f"object {numbered[0]}", options),
            options,
            path,
        )
    except SourceError as error:
        return _XmlFile(path=path, filename=name, example=rejected_example(path, error.at(path).args))
    example = SourceExample(source=path, key=path, boxes=boxes, declared_size=size, bad_objects=bad)
    classes = tuple(_text(one, "name") for one in alone)
    return _XmlFile(path=path, filename=name, example=example, classes=classes)


def _is_class_alone(element: ElementTree.Element) -> bool:
    has_place = element.find("bndbox") is not None or element.find("robndbox") is not None
    return bool(_text(element, "name")) and not has_place


def _with_image(example: SourceExample, image: ImageMatch | SourceError) -> SourceExample:
    """Return the example with the image that its XML file names."""
    # Without the image, the XML file is listed in its place, under its own name.
    if isinstance(image, SourceError):
        problem = example.problem or image.at(example.source).args
        return replace(example, boxes=None, declared_size=None, bad_objects=(), problem=problem)
    notes = (image.note,) if image.note else ()
    return replace(example, source=image.path, key=image.path, notes=notes)


def _image_queries(names: Mapping[str, str]) -> dict[str, ImageQuery]:
    """Return the possible locations of each XML file's image; `names` are the <filename> values.

    If XML files are in several folders, an image elsewhere must be in a folder with the name of its XML file's
    folder. Annotations/cam1/a.xml belongs to JPEGImages/cam1/a.jpg, and never to JPEGImages/cam2/a.jpg.
    """
    common = common_folder(names)
    result = {}
    for path, written in names.items():
        folder = posixpath.dirname(path)
        images = [posixpath.join(posixpath.dirname(folder), one) for one in _IMAGE_FOLDERS]
        below = folder.removeprefix("" if common == "." else common).strip("/")
        # Tools on Windows write backslashes.
        name = written.replace("\\", "/")
        # cam1 and cam2 may both have an a.jpg.
        if below and name and "/" not in name:
            name = f"{below}/{name}"
        result[path] = ImageQuery(
            name=name,
            places=((folder,), tuple(images), ("",)),
            beside=(folder, *_parallel_folders(path), *images),
            stem=str(PurePosixPath(path).with_suffix("")),
        )
    return result


def _parallel_folders(path: str) -> list[str]:
    """Return the folders of images that correspond to the folder of an XML file.

    >>> _parallel_folders("voc/Annotations/cam1/a.xml")
    ['voc/JPEGImages/cam1', 'voc/images/cam1']
    """
    folders = path.split("/")[:-1]
    places = [place for place, folder in enumerate(folders) if folder.lower() == "annotations"]
    return [
        "/".join([*folders[:place], one, *folders[place + 1 :]]) for place in places for one in _IMAGE_FOLDERS
    ]


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


_TURNED_SIDES = ("cx", "cy", "w", "h", "angle")


def _turned_box(element: ElementTree.Element, what: str) -> tuple[list[float], float]:
    """Return the corners and the angle in degrees of roLabelImg's box, which has a center, a size and radians."""
    x, y, width, height, angle = (
        parse_number(_text(element, f"robndbox/{side}"), f"{what} {side}") for side in _TURNED_SIDES
    )
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2], math.degrees(angle)


def _box(element: ElementTree.Element, what: str, options: LayoutOptions) -> Box:
    label = class_of(_text(element, "name"), what)
    # VOC devkit: <bndbox> has the sides; roLabelImg writes <robndbox> in its place.
    if element.find("bndbox") is not None:
        turn = _rotation_of_cvat(element, what, options)
        sides = [parse_number(_text(element, f"bndbox/{side}"), f"{what} {side}") for side in CORNERS]
    elif element.find("robndbox") is not None:
        sides, degrees = _turned_box(element, what)
        turn = angle_of(degrees, what, options)
    else:
        raise SourceError("annotation", "object has no box", f"{what} {label!r}")
    flags: dict[str, Any] = {
        name: parse_flag(_text(element, name).lower(), f"{what} {name}", _FLAG_TEXTS) for name in _FLAGS
    }
    view = (_text(element, "pose") or None) if "view" in options.keep else None
    return rectangle_of(label, sides, what, options, turn=turn, view=view, **flags)


def _rotation_of_cvat(element: ElementTree.Element, what: str, options: LayoutOptions) -> float:
    """Return the angle that CVAT's export to VOC writes as an attribute `rotation`; 0 without one."""
    turn = 0.0
    for attribute in element.iterfind("attributes/attribute"):
        if _text(attribute, "name").lower() == "rotation":
            turn = angle_of(_text(attribute, "value"), what, options)
    return turn


def _read_image_sets(annotations: SourceFiles, options: LayoutOptions) -> dict[str, dict[str, str]]:
    """Return the split of each listed name, for each folder with ImageSets/Main.

    The lists are those that the options name, otherwise those of `_choose_image_sets`. An image may be in only one of
    them, unless the user assigns the splits.
    """
    chosen = options.image_sets
    matches = [(path, match) for path in annotations.sizes() if (match := _LIST_PATH.fullmatch(path))]
    found = grouped((match["prefix"] or "", (match["name"], path)) for path, match in matches)
    # A typed list that does not exist must not select everything.
    if chosen and not found:
        raise AnnotationsError(
            f"{annotations.root}: image sets {', '.join(chosen)} asked for; no ImageSets/Main; leave --image-sets out"
        )
    splits = {}
    # Archives of several years unpack to VOC2007/ImageSets/Main and VOC2012/ImageSets/Main.
    for prefix, listed in found.items():
        names = _names_of_lists(prefix, dict(listed), annotations, options)
        if names is not None:
            splits[prefix] = names
    return splits


def _names_of_lists(
    prefix: str, files: Mapping[str, str], annotations: SourceFiles, options: LayoutOptions
) -> dict[str, str] | None:
    """Return the split of each name in the lists of one folder; None if none of its lists defines a split."""
    chosen = options.image_sets
    # A typed list that does not exist must not select everything.
    if missing := [name for name in chosen if name not in files]:
        raise AnnotationsError(
            f"{annotations.root}: no list {', '.join(missing)} in ImageSets/Main; found {', '.join(sorted(files))}"
        )
    names = tuple(dict.fromkeys(chosen)) or _choose_image_sets(files)
    entries = {name: dict.fromkeys(_entries(read_required(annotations, files[name]))) for name in names}
    # An image of two lists has no single split; --split-shares makes new ones.
    if options.source_splits:
        _refuse_shared_names(f"{prefix}/ImageSets/Main".lstrip("/"), entries, files)
    return {entry: name for name, listed in entries.items() for entry in listed} if names else None


def _refuse_shared_names(
    place: str, entries: Mapping[str, Mapping[str, None]], files: Mapping[str, str]
) -> None:
    """Raise AnnotationsError if two lists share a name; the message contains the available lists."""
    shared = []
    for one, other in combinations(entries, 2):
        # Any two, since users join lists that overlap, such as train and trainval.
        if both := [entry for entry in entries[one] if entry in entries[other]]:
            more = f", {len(both)} in all" if len(both) > 1 else ""
            shared.append(f"{one} and {other} ({both[0]}{more})")
    # An image has one split; all overlaps are named at once.
    if shared:
        known = ", ".join(
            f"{name} ({len(entries[name])})" if name in entries else name for name in sorted(files)
        )
        listed = "; ".join(shared[:5]) + (f"; and {len(shared) - 5} pairs more" if len(shared) > 5 else "")
        raise AnnotationsError(
            f"{place}: an image has one split, and lists share names: {listed}; choose lists with --image-sets of "
            f"{known}; or let --split-shares make the splits"
        )


def _choose_image_sets(names: Iterable[str]) -> tuple[str, ...]:
    """Return the lists that define the splits.

    Source: VOC devkit: ImageSets/Main has train, val, trainval (their union) and test, and for each class
    CLASS_train and so on, which list the same images with a flag.

    >>> _choose_image_sets(["aeroplane_train", "test", "train", "trainval", "val"])
    ('test', 'train', 'val')
    >>> _choose_image_sets(["test", "trainval"])
    ('test', 'trainval')
    """
    present = set(names)
    kept = []
    for name in sorted(present):
        _, of_class, split = name.rpartition("_")
        is_of_class = of_class and split in present and is_split_name(split)
        if not is_of_class and not (name == "trainval" and {"train", "val"} <= present):
            kept.append(name)
    return tuple(kept)


def _entries(data: bytes) -> Iterator[str]:
    for line in data.decode("utf-8-sig", "surrogateescape").splitlines():
        if line.strip():
            # Per-class lists, which --image-sets may name, have a flag: -1 absent, 1 present, 0 difficult.
            yield _entry_name(_LIST_FLAG.sub("", line.strip()))


def _entry_name(entry: str) -> str:
    r"""Return the name in a list entry without folders above the images, extension, or backslashes.

    >>> _entry_name("cam1/a"), _entry_name(r"D:\voc\JPEGImages\cam1\a.jpg"), _entry_name("v1.2")
    ('cam1/a', 'cam1/a', 'v1.2')
    """
    parts = [part for part in entry.replace("\\", "/").split("/") if part not in ("", ".")]
    starts = [place for place, part in enumerate(parts[:-1]) if part in (*_IMAGE_FOLDERS, "Annotations")]
    name = "/".join(parts[starts[-1] + 1 :] if starts else parts)
    return _without_extension(name)


def _without_extension(name: str) -> str:
    return posixpath.splitext(name)[0] if is_image_name(name) or name.lower().endswith(".xml") else name


def _split_by_lists(
    listed: Sequence[SourceExample], paths: Sequence[str], lists: Mapping[str, Mapping[str, str]]
) -> list[SourceExample]:
    """Return each example with the split of its list; `paths` are compared with the names in the lists."""
    seen: dict[tuple[str, str], str] = {}
    result = []
    for example, path in zip(listed, paths, strict=True):
        entry = _entry_of(path, lists)
        if entry is not None:
            prefix, name = entry
            _refuse_two_files(seen.setdefault(entry, path), path, entry, lists[prefix][name])
            result.append(replace(example, split=lists[prefix][name]))
        # Damaged files keep their own reason, whether or not a list names them.
        elif example.problem is None or example.problem[0] == "selection":
            fault = ("selection", "in no ImageSets list", "")
            result.append(replace(example, boxes=None, declared_size=None, problem=fault))
        else:
            result.append(example)
    fault = ("annotation", "listed image has no annotation", "add its XML file, or remove the line")
    unused = (
        (f"{_list_file(prefix, split)}#{name}", split)
        for prefix, splits in lists.items()
        for name, split in splits.items()
        if (prefix, name) not in seen
    )
    return result + [rejected_example(place, fault, split) for place, split in unused]


def _list_file(prefix: str, name: str) -> str:
    return f"{prefix}/ImageSets/Main/{name}.txt".lstrip("/")


def _entry_of(path: str, lists: Mapping[str, Mapping[str, str]]) -> tuple[str, str] | None:
    """Return the folder with ImageSets/Main and the name in its lists that mean a file; None if none does."""
    under = [prefix for prefix in lists if path.startswith(f"{prefix}/" if prefix else "")]
    # Lists may be beside the images: lists/ImageSets/Main with data/JPEGImages.
    under = under or (list(lists) if len(lists) == 1 else [])
    if not under:
        return None
    prefix = max(under, key=len)
    below = _path_below_first_folder(path, prefix)
    # An entry names a file by its path below the first folder, or by its file name.
    name = next((name for name in (below, PurePosixPath(below).name) if name in lists[prefix]), None)
    return None if name is None else (prefix, name)


def _refuse_two_files(other: str, path: str, entry: tuple[str, str], split: str) -> None:
    """Raise AnnotationsError if an entry means two XML files, so that either may belong to another split."""
    prefix, name = entry
    # An XML file and its image have one name, and mean one entry.
    if other != path and path.lower().endswith(".xml") and other.lower().endswith(".xml"):
        below = _path_below_first_folder(path, prefix)
        raise AnnotationsError(
            f"{_list_file(prefix, split)}: {name} means {other} and {path}; write the folder into the list, such as "
            f"{below}, or let --split-shares make the splits"
        )


def _path_below_first_folder(path: str, prefix: str) -> str:
    """Return a path below Annotations/, JPEGImages/ or any other first folder, without its extension."""
    start = f"{prefix}/" if prefix else ""
    inside = PurePosixPath(_without_extension(_without_extension(path.removeprefix(start))))
    return "/".join(inside.parts[1:]) or inside.name


def _split_by_folders(listed: Sequence[SourceExample], paths: Sequence[str]) -> list[SourceExample]:
    """Return the examples with their first folders as splits if all XML files are in folders with split names."""
    firsts = [_first_folder(path) for path in paths]
    xml_firsts = {first for first, path in zip(firsts, paths, strict=True) if path.lower().endswith(".xml")}
    # One folder of another name means that folders are something else, such as cameras.
    if not all(is_split_name(first) for first in xml_firsts):
        return list(listed)
    return [
        replace(example, split=first if is_split_name(first) else "train")
        for example, first in zip(listed, firsts, strict=True)
    ]


def _first_folder(path: str) -> str:
    """Return the first folder of a path, or the one below Annotations/; "" in the root."""
    folders = path.split("/")[:-1]
    # Annotations/train/a.xml with JPEGImages/train/a.jpg.
    if folders and folders[0].lower() == "annotations":
        folders = folders[1:]
    return folders[0] if folders else ""


@dataclass(frozen=True, kw_only=True)
class _Conflict:
    """Two images that one XML file may name; `beside` has several if only their extensions differ."""

    written: ImageMatch
    beside: tuple[str, ...]


def _resolve_names(
    index: ImageIndex,
    queries: Mapping[str, ImageQuery],
    declared: Mapping[str, Size | None],
    images: SourceFiles,
    options: LayoutOptions,
) -> dict[str, ImageMatch | SourceError]:
    """Return the image that each XML file names, or an error if it is ambiguous.

    If <filename> and the name of the XML file match two different images, the first of these rules decides:

    1. The declared size matches only one of them. If all such proofs agree, they apply to the other XML files too.
    2. One of them is the image of another XML file.
    3. Other XML files with two different names have an image under only one of these names, the same for all files.

    Files are renamed and copied after they were annotated, so either name may be the old one.

    Args:
        declared: size that each XML file declares.
    """
    names = _find_names(index, queries)
    found, conflicts = names.found, names.conflicts
    # Nearly all sets have one name for both files.
    if not conflicts:
        return found
    chosen = dict.fromkeys(conflicts, options.voc_images)
    # Otherwise the user has said which name counts, for all files.
    if options.voc_images == "auto":
        chosen = _prove_names(names, declared, images)
    remaining = [path for path in conflicts if path not in chosen]
    # A few open conflicts are problems of their images; many mean that the user must say which name counts.
    if 2 * len(remaining) > len(found):
        one = conflicts[remaining[0]]
        raise AnnotationsError(
            f"{remaining[0]}: <filename> is that of {one.written.path}, and its own name that of {one.beside[0]}, as "
            f"in {len(remaining)} of {len(found)} XML files; {_FIX}"
        )
    answers = {path: _conflict_result(one, chosen.get(path), options) for path, one in conflicts.items()}
    claimed = {answer.path for answer in (found | answers).values() if isinstance(answer, ImageMatch)}
    own = {
        path: ImageMatch(path=image, note=_NO_SUCH_FILE)
        for path, image in names.lost.items()
        if image not in claimed
    }
    return found | answers | own


@dataclass(kw_only=True)
class _Names:
    """Images that <filename> and the XML files' own names match.

    Args:
        found: answer to <filename> of each XML file.
        conflicts: XML files with two images.
        lost: image of the own name of XML files whose <filename> matches no image.
        taken: images of the XML files without a conflict.
        alone: "filename" or "xml-name", for XML files with two names of which only this one has an image.
    """

    found: dict[str, ImageMatch | SourceError]
    conflicts: dict[str, _Conflict] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    alone: set[str] = field(default_factory=set)


def _find_names(index: ImageIndex, queries: Mapping[str, ImageQuery]) -> _Names:
    """Return the images of both names of all XML files."""
    names = _Names(found=index.match(queries))
    for path, answer in names.found.items():
        # One name, so that its image is taken for certain.
        if not _names_differ(path, queries[path].name):
            names.taken.update([answer.path] if isinstance(answer, ImageMatch) else [])
            continue
        beside = tuple(index.neighbors(queries[path]))
        if isinstance(answer, SourceError):
            # Renamed pictures keep their old name in <filename>.
            if len(beside) == 1 and answer.reason == "image file not found":
                names.lost[path] = beside[0]
                names.taken.add(beside[0])
                names.alone.add("xml-name")
        # Both names have an image, and they are two.
        elif beside and answer.path not in beside:
            names.conflicts[path] = _Conflict(written=answer, beside=beside)
        else:
            names.taken.add(answer.path)
            names.alone.add("xml-name" if beside else "filename")
            if beside:
                names.found[path] = replace(answer, note=answer.note or _NO_SUCH_FILE)
    return names


def _prove_names(names: _Names, declared: Mapping[str, Size | None], images: SourceFiles) -> dict[str, str]:
    """Return which name counts in each conflict that one of the three rules of `_resolve_names` decides."""
    conflicts = names.conflicts
    chosen = _resolve_by_size(conflicts, declared, images)
    # Rule 1: one mistake was made for all files, by one script.
    if len(proven := set(chosen.values())) == 1:
        chosen = dict.fromkeys(conflicts, proven.pop())
    chosen = _resolve_by_other_files(conflicts, chosen, names.taken)
    # Rule 3, behind the others: it argues from other files.
    if len(names.alone) == 1:
        chosen = dict.fromkeys(conflicts, *names.alone) | chosen
    return chosen


def _names_differ(path: str, written: str) -> bool:
    """Return whether a <filename> differs from the name of the XML file, apart from the extension.

    >>> _names_differ("a/1.xml", "1.JPG"), _names_differ("a/1.jpg.xml", "1.jpg")
    (False, False)
    >>> _names_differ("1.xml", "2.jpg"), _names_differ("1.xml", "")
    (True, False)
    """
    names = {_stem(PurePosixPath(path).stem), PurePosixPath(path).stem}
    name = PurePosixPath(written.replace("\\", "/")).name
    return bool(name) and not names.intersection((_stem(name), name))


def _stem(name: str) -> str:
    return PurePosixPath(name).stem if is_image_name(name) else name


def _resolve_by_size(
    conflicts: Mapping[str, _Conflict], declared: Mapping[str, Size | None], images: SourceFiles
) -> dict[str, str]:
    """Return the correct name of each conflict in which the declared size matches only one image."""
    asked = [path for path in conflicts if declared[path] is not None and len(conflicts[path].beside) == 1]
    written = possible_sizes([conflicts[path].written.path for path in asked], images)
    beside = possible_sizes([conflicts[path].beside[0] for path in asked], images)
    return {
        path: "filename" if declared[path] in one else "xml-name"
        for path, one, other in zip(asked, written, beside, strict=True)
        if one and other and (declared[path] in one) is not (declared[path] in other)
    }


def _resolve_by_other_files(
    conflicts: Mapping[str, _Conflict], chosen: dict[str, str], taken: set[str]
) -> dict[str, str]:
    """Return the correct names, with those of conflicts in which another XML file has one of the images.

    Each result can resolve further conflicts.
    """
    chosen = dict(chosen)
    taken = taken | {_path(conflicts[path], what) for path, what in chosen.items()}
    while True:
        remaining = {path: one for path, one in conflicts.items() if path not in chosen}
        found = _resolve_by_taken(remaining, taken)
        if not found:
            return chosen
        chosen |= found
        taken |= {_path(remaining[path], what) for path, what in found.items()}


def _resolve_by_taken(conflicts: Mapping[str, _Conflict], taken: set[str]) -> dict[str, str]:
    """Return the correct name of each conflict in which only one of the two images is another file's."""
    # Several files with one <filename>, such as copies of a template, cannot all mean it.
    claims = Counter(one.written.path for one in conflicts.values())
    found = {}
    for path, one in conflicts.items():
        is_written_taken = one.written.path in taken or claims[one.written.path] > 1
        if is_written_taken is not (one.beside[0] in taken):
            found[path] = "xml-name" if is_written_taken else "filename"
    return found


def _path(one: _Conflict, what: str) -> str:
    return one.written.path if what == "filename" else one.beside[0]


def _conflict_result(one: _Conflict, what: str | None, options: LayoutOptions) -> ImageMatch | SourceError:
    proven = options.voc_images == "auto"
    # A choice of the user needs no note on it.
    if what == "filename":
        return replace(one.written, note=_FILENAME_TAKEN if proven else one.written.note)
    if what == "xml-name" and len(one.beside) == 1:
        return ImageMatch(path=one.beside[0], note=_XML_NAME_TAKEN if proven else "")
    # a.jpg and a.png beside a.xml: the name alone does not tell which was annotated.
    if what == "xml-name":
        return SourceError("annotation", "file name is ambiguous", ", ".join(one.beside[:3]))
    return SourceError("annotation", _OPEN, f"{one.written.path} and {one.beside[0]}; {_FIX}")
