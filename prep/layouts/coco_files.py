"""Content of COCO JSON files, instances and panoptic: which files of a folder they are, and checks of each.

An annotation of a panoptic file names a PNG and lists its segments; a pixel belongs to the segment
R + 256 G + 65536 B, 0 to none.

Source: https://cocodataset.org/#format-data, and the checks of cocodataset/panopticapi.
"""

from __future__ import annotations

import json
import math
import posixpath
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from halofeed.prep.annotations.class_names import shorten_list
from halofeed.prep.annotations.columns import normalize_name
from halofeed.prep.annotations.contract import read_required, rejected_example, split_in_file_name
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.annotations.written_boxes import MIN_BAD_OBJECTS, polygon_area, share_of_turned_rectangle
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError

Lists: TypeAlias = "dict[str, list[dict[str, Any]]]"
_MAX_DIGITS = 4300
"""Python converts no longer text to an int."""
_FROM_OUTLINE, TURNED_SHARE = "\0box of the outline", "\0share of the turned box"
"""Keys that the reader adds to annotations; no JSON file has them by chance."""
_ROBOFLOW = "_annotations.coco.json"
_SHARE_LOST = 0.1
"""Share of annotations with an undefined category. More show that a class was lost; fewer are single errors."""


@dataclass(frozen=True, kw_only=True)
class FileClasses:
    """Classes of one instances file; see `InstancesFile` for the fields."""

    file: str
    names_by_id: Mapping[int, str]
    used: frozenset[int]
    only_ignored: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class InstancesFile:
    """Checked content of one instances file.

    Args:
        file: name of the file.
        split: split of its images.
        names_split: whether the file name contains the split.
        images: valid image entries.
        faulty: an example with a problem for each invalid image entry.
        annotations: annotation entries, with ids for comparisons.
        names_by_id: category names by id, without unused categories that conflict with others.
        used: ids of the categories that annotations have.
        only_ignored: ids of the categories that only ignored regions have, which are no classes.
        categories: all categories, with ids for comparisons.
        label_images: panoptic files: name of the label image of each image, by the image's id for comparisons.
        outlined: number of annotations whose box is that of their outline.
        classes_only: whether annotations are classes of images, and no objects.
        repeated_ids: ids that several images have, so that the annotations with them belong to no certain image.
    """

    file: str
    split: str
    names_split: bool
    images: tuple[dict[str, Any], ...]
    faulty: tuple[SourceExample, ...]
    annotations: tuple[dict[str, Any], ...]
    names_by_id: dict[int, str]
    used: frozenset[int]
    categories: tuple[dict[str, Any], ...]
    label_images: Mapping[int | str | None, str]
    outlined: int = 0
    classes_only: bool = False
    repeated_ids: frozenset[int | str] = frozenset()
    only_ignored: frozenset[int] = frozenset()

    @property
    def classes(self) -> FileClasses:
        """Return the classes, which do not hold the annotations in memory."""
        return FileClasses(
            file=self.file, names_by_id=self.names_by_id, used=self.used, only_ignored=self.only_ignored
        )


def read_files(
    annotations: SourceFiles,
    annotation_file: str | None,
    *,
    outlines: str = "none",
    label_images: bool = False,
) -> list[InstancesFile]:
    """Return the content of the named file, or of all files of the folder with objects or with label images.

    Args:
        outlines: outlines of objects to keep: "none", "corners" (those of four points) or "all".
        label_images: whether segments of all categories are needed, as in label images, and not only objects.

    Raises:
        AnnotationsError: there is no such file, or a fault affects a complete file.
    """
    names = _instance_files(annotations, annotation_file, label_images=label_images)
    read = partial(_read_document, annotations, outlines=outlines, label_images=label_images)
    found = [read(name, may_be_bare=len(names) > 1) for name in names]
    documents = [one for one in found if one is not None]
    # No file has annotations: the message of the first one says so.
    return documents or [one for one in [read(names[0])] if one is not None]


def _instance_files(
    annotations: SourceFiles, annotation_file: str | None, *, label_images: bool
) -> list[str]:
    """Return the files with objects or with label images: the named one, or those found by their names."""
    # A named file may have any name.
    if annotation_file is not None:
        return [annotation_file]
    found = [path for path in annotations.sizes() if path.lower().endswith(".json")]
    candidates = _candidates(found)
    kinds = ("panoptic", "alone") if label_images else ("instances", "roboflow", "alone", "panoptic")
    chosen = next((candidates[kind] for kind in kinds if candidates[kind]), None)
    if chosen is not None:
        return chosen
    listed = ", ".join(found[:5]) or "no .json file"
    if label_images:
        raise AnnotationsError(
            f"{annotations.root}: expected panoptic*.json or annotations/panoptic*.json with classes of pixels; found "
            f"{listed}; name the file itself, or take --task detection"
        )
    raise AnnotationsError(
        f"{annotations.root}: expected instances*.json, annotations/instances*.json, */{_ROBOFLOW}, or a file per "
        f"split such as train.json and val.json; found {listed}; name the file itself"
        f"{layout_hint(annotations, 'coco')}"
    )


def _candidates(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the JSON files that may belong together, by the reason.

    COCO's own archives hold annotations/instances_val2017.json beside files of captions and person keypoints, which
    describe the same images. Roboflow writes valid/_annotations.coco.json. Other tools write a file for each split.
    """
    near = [path for path in paths if posixpath.dirname(path) in ("", "annotations")]
    splits = {split_in_file_name(path) for path in near}
    is_file_per_split = None not in splits and len(splits) == len(near)
    return {
        "instances": [path for path in near if posixpath.basename(path).startswith("instances")],
        "panoptic": [path for path in near if posixpath.basename(path).startswith("panoptic")],
        "roboflow": [path for path in paths if path.endswith(_ROBOFLOW) and path.count("/") <= 1],
        "alone": near if len(near) == 1 or is_file_per_split else [],
    }


def _with_box(entry: dict[str, Any]) -> dict[str, Any]:
    """Add the box of its outline to an object that has an outline and no box, and return the object.

    Some tools, such as kwcoco's, write outlines alone. pycocotools computes boxes of outlines too.
    """
    # json.loads calls this for every object of a file, so images and categories pass through unchanged.
    if entry.get("segmentation") and not entry.get("bbox") and (box := _box_of(entry["segmentation"])):
        entry["bbox"], entry[_FROM_OUTLINE] = box, True
        outline = entry["segmentation"]
        if isinstance(outline, list):  # `_box_of` took only polygons of numbers
            polygons = [part for part in outline if isinstance(part, list) and len(part) >= 6]
            # COCO's area is that of the outline, by which its evaluation divides small from large objects.
            if entry.get("area") is None:
                entry["area"] = sum(map(polygon_area, polygons))
            # The upright box of a turned rectangle is too large; --oriented-boxes says what to do with it.
            if len(polygons) == 1 and (share := share_of_turned_rectangle(polygons[0])):
                entry[TURNED_SHARE] = share
    return entry


def _box_of(outline: Any) -> list[float] | None:
    """Return the x, y, width and height of an outline; None if it is damaged.

    >>> _box_of([[10, 20, 50, 20, 50, 60]]), _box_of([[1, 2]]), _box_of([["a"] * 6])
    ([10, 20, 40, 40], None, None)
    """
    # Run lengths: COCO's data format for crowds, and the output of most models.
    if isinstance(outline, dict):
        from halofeed.prep.voxels.masks import run_length_box

        try:
            return [*run_length_box(outline)]
        except SourceError:
            return None
    return _box_of_polygons(outline) if isinstance(outline, list) else None


def _box_of_polygons(outline: Sequence[Any]) -> list[float] | None:
    """Return the x, y, width and height around polygons; None without one, or if a side is no number."""
    # A polygon has at least three points; pycocotools takes a list of four numbers for a box.
    parts = [part for part in outline if isinstance(part, list) and len(part) >= 6 and len(part) % 2 == 0]
    across = [value for part in parts for value in part[::2]]
    down = [value for part in parts for value in part[1::2]]
    if not parts or not all(map(_is_finite, [*across, *down])):
        return None
    return [min(across), min(down), max(across) - min(across), max(down) - min(down)]


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _without_outline(entry: dict[str, Any]) -> dict[str, Any]:
    """Remove the outline of an object, which is most of its content, and return the object with its box."""
    entry = _with_box(entry)
    # True keeps the fact that there was one, which makes it an object (`is_class_alone`).
    if entry.get("segmentation"):
        entry["segmentation"] = True
    return entry


def _with_corners_alone(entry: dict[str, Any]) -> dict[str, Any]:
    """Do the same, except for an outline of one polygon of four points, the first of which may be repeated."""
    outline = entry.get("segmentation")
    polygon = outline[0] if isinstance(outline, list) and len(outline) == 1 else None
    if isinstance(polygon, list) and len(polygon) in (8, 10):
        return _with_box(entry)
    return _without_outline(entry)


_HOOKS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "none": _without_outline,
    "corners": _with_corners_alone,
    "all": _with_box,
}
"""Function that each object of a file passes while it is parsed, by the outlines that are kept."""


def _read_document(
    annotations: SourceFiles, name: str, *, outlines: str, label_images: bool, may_be_bare: bool = False
) -> InstancesFile | None:
    """Return the content of one file, see `read_files`; None for one that lists pictures alone, if that may be."""
    lists = _read_lists(annotations, name, outlines=outlines, may_be_bare=may_be_bare)
    if lists is None:
        return None
    images, faulty, repeated_ids = _valid_images(name, lists["images"])
    pictures: dict[int | str | None, str] = {}
    if _is_panoptic(name, lists["annotations"], outlines=outlines, label_images=label_images):
        pictures = _label_images(lists["annotations"])
        lists = _segments_as_objects(name, lists, things_only=not label_images)
    objects, split = lists["annotations"], _split_of(name) or "train"
    _check_any_place(name, objects)
    outlined = sum(entry.pop(_FROM_OUTLINE, False) for entry in objects)
    classes_only = is_of_classes(objects)
    written = [entry.get("category_id") for entry in objects]
    for entry in objects:
        entry["category_id"] = normalize_id(entry.get("category_id"))
    used = {entry["category_id"] for entry in objects if not is_ignored_region(entry)}
    only_ignored = {entry["category_id"] for entry in objects} - used
    names_by_id = _names_by_id(name, lists["categories"], used)
    _refuse_lost_categories(name, written, objects, names_by_id)
    return InstancesFile(
        file=name,
        split=split,
        names_split=_split_of(name) is not None,
        images=images,
        faulty=tuple(
            rejected_example(place, ("annotation", reason, detail), split) for place, reason, detail in faulty
        ),
        annotations=tuple(objects),
        names_by_id=names_by_id,
        used=frozenset(identity for identity in names_by_id if identity in used),
        only_ignored=frozenset(identity for identity in names_by_id if identity in only_ignored),
        categories=tuple({**one, "id": normalize_id(one.get("id"))} for one in lists["categories"]),
        label_images=pictures,
        outlined=outlined,
        classes_only=classes_only,
        repeated_ids=repeated_ids,
    )


def _read_lists(
    annotations: SourceFiles, name: str, *, outlines: str, may_be_bare: bool = False
) -> Lists | None:
    """Return the images, annotations and categories of a file, or None for a file that lists pictures alone.

    iNaturalist's test2018.json is such a file. Its pictures have no annotation, as those that no file names.

    Raises:
        AnnotationsError: the file lacks one of the lists.
    """
    data = read_required(annotations, name)
    try:
        # The hook drops outlines while the file is parsed, since they are most of its memory.
        content = json.loads(data.decode("utf-8-sig"), object_hook=_HOOKS[outlines])
    except (ValueError, RecursionError) as error:
        fix = "correct it" if data.rstrip().endswith((b"}", b"]")) else "it ends early, so copy it again"
        raise AnnotationsError(f"{name}: expected COCO instances as JSON: {error}; {fix}") from error
    if may_be_bare and isinstance(content, dict) and content.get("images") and "annotations" not in content:
        return None
    lists: Lists = {}
    for part in ("images", "annotations", "categories"):
        entries = content.get(part) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise AnnotationsError(
                f"{name}: expected COCO instances with the lists images, annotations and categories; {part} is no list "
                f"of objects (found {_content_found(content, lists)}); name an instances file"
                f"{layout_hint(annotations, 'coco', name)}"
            )
        lists[part] = entries
    return lists


def _content_found(content: Any, lists: Lists) -> str:
    """Return what a file holds that lacks one of COCO's lists; `lists` are those that were found."""
    found = ", ".join(content) if isinstance(content, dict) else type(content).__name__
    # Captions have no categories, so their keys tell more than the missing list.
    if lists.get("annotations"):
        found = f"{found}; annotations with {', '.join(sorted(lists['annotations'][0]))}"
    return found


def _is_panoptic(
    name: str, annotations: Sequence[Mapping[str, Any]], *, outlines: str, label_images: bool
) -> bool:
    """Return whether a file is panoptic; raise AnnotationsError if it cannot serve the task."""
    is_panoptic = any("segments_info" in one for one in annotations)
    # Masks of objects would have to be cut from the PNG, which --task segmentation stores whole.
    if is_panoptic and outlines == "all":
        raise AnnotationsError(
            f"{name}: a panoptic file, whose masks are pictures: take --task segmentation in place of --masks"
        )
    # Instances may overlap and leave pixels without a class, so they make no label image.
    if label_images and not is_panoptic:
        raise AnnotationsError(
            f"{name}: segmentation takes a panoptic file, whose annotations have segments_info; this one has objects: "
            "take --task detection"
        )
    return is_panoptic


def _label_images(annotations: Sequence[Mapping[str, Any]]) -> dict[int | str | None, str]:
    """Return the name of the PNG of each image of a panoptic file."""
    return {
        normalize_id(one.get("image_id")): written
        for one in annotations
        if isinstance(written := one.get("file_name"), str)
    }


def _check_any_place(name: str, annotations: Sequence[Mapping[str, Any]]) -> None:
    """Raise AnnotationsError for annotations of another kind, such as captions, which have neither box nor class."""
    # captions_val2017.json has the same lists but categories.
    if annotations and not is_of_classes(annotations) and not any("bbox" in one for one in annotations):
        keys = ", ".join(sorted(annotations[0]))
        raise AnnotationsError(
            f"{name}: no annotation has a bbox, a segmentation or a category_id alone (found {keys}); name an "
            "instances file"
        )


def is_of_classes(annotations: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether annotations give each picture a class, and no objects, as those of iNaturalist do.

    Captions have no category_id.
    """
    return bool(annotations) and all(map(is_class_alone, annotations))


def is_class_alone(annotation: Mapping[str, Any]) -> bool:
    """Return whether an annotation gives its picture a class and has no place in it, as in sets of camera traps.

    >>> is_class_alone({"category_id": 1}), is_class_alone({"category_id": 1, "bbox": [], "segmentation": []})
    (True, True)
    >>> is_class_alone({"category_id": 1, "bbox": [0, 0, 0, 0]})
    True
    >>> is_class_alone({"category_id": 1, "bbox": [1, 2]}), is_class_alone({"caption": "a hat"})
    (False, False)
    """
    places = ("bbox", "segmentation", "segments_info", "keypoints", "caption")
    has_place = any(any(found) if isinstance(found := annotation.get(one), list) else found for one in places)
    return "category_id" in annotation and not has_place


def _segments_as_objects(name: str, lists: Lists, *, things_only: bool) -> Lists:
    """Return the lists of a file with one annotation per segment, as in an instances file.

    Args:
        things_only: whether to leave out stuff, such as sky, which is not an object.

    >>> categories = [{"id": 1, "name": "cat", "isthing": 1}, {"id": 2, "name": "sky", "isthing": 0}]
    >>> one = {"image_id": 7, "segments_info": [{"id": 3, "category_id": 1}, {"id": 4, "category_id": 2}]}
    >>> lists = {"images": [], "annotations": [one], "categories": categories}
    >>> _segments_as_objects("a.json", lists, things_only=True)["annotations"]
    [{'id': 3, 'category_id': 1, 'image_id': 7}]
    >>> _segments_as_objects("a.json", {**lists, "categories": [{"id": 1, "name": "cat"}]}, things_only=True)
    Traceback (most recent call last):
    halofeed.system.errors.AnnotationsError: a.json: category 'cat': expected isthing 0 or 1, got None; ...
    """
    categories = lists["categories"]
    stuff = _ids_of_stuff(name, categories) if things_only else set()
    objects = [
        {**one, "image_id": entry.get("image_id")}
        for entry in lists["annotations"]
        for one in _segments_of(name, entry)
        if repr(one.get("category_id")) not in stuff
    ]
    kept = [one for one in categories if repr(one.get("id")) not in stuff]
    return {**lists, "annotations": objects, "categories": kept}


def _ids_of_stuff(name: str, categories: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the ids, as written, of the categories that are no things: COCO's panoptic format marks them isthing 0."""
    for one in categories:
        # Without it, sky would become an object with a box.
        if one.get("isthing") not in (0, 1):
            raise AnnotationsError(
                f"{name}: category {one.get('name')!r}: expected isthing 0 or 1, got {one.get('isthing')!r}; add it: "
                "things have boxes"
            )
    return {repr(one.get("id")) for one in categories if not one["isthing"]}


def _segments_of(name: str, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the segments of an image; raise AnnotationsError if they are no list of objects."""
    segments = entry.get("segments_info")
    if not isinstance(segments, list) or not all(isinstance(one, dict) for one in segments):
        raise AnnotationsError(
            f"{name}: annotation of image {entry.get('image_id')!r}: expected a list segments_info, got "
            f"{segments!r:.60}"
        )
    return segments


def _split_of(name: str) -> str | None:
    folder, _, file = name.rpartition("/")
    # Roboflow names the file alike in each split's folder: train/_annotations.coco.json.
    if file == _ROBOFLOW and folder:
        return folder
    return split_in_file_name(file)


def _valid_images(
    name: str, entries: Sequence[dict[str, Any]]
) -> tuple[tuple[dict[str, Any], ...], tuple[tuple[str, str, str], ...], frozenset[int | str]]:
    """Return the image entries with an unambiguous image, (place, reason, detail) of all others, and ids of several."""
    by_id: dict[int | str, dict[str, dict[str, Any]]] = {}
    faulty: list[tuple[str, str, str]] = []
    for place, written in enumerate(entries):
        entry = _with_file_name(written)
        identity, file_name = normalize_id(entry.get("id")), entry.get("file_name")
        # Annotations point to ids, and pictures are found by names: an entry needs both.
        if identity is None or not isinstance(file_name, str):
            detail = f"expected a whole number or a text, and a file name; got {entry!r:.100}"
            faulty.append((f"{name}#images[{place}]", "image entry has no id or no file_name", detail))
        else:
            by_id.setdefault(identity, {}).setdefault(file_name, entry)
    # A fault of every entry is one of the file's form.
    if faulty and not by_id:
        raise AnnotationsError(f"{name}: each image needs an id and a file_name; {faulty[0][2]}")
    valid: list[dict[str, Any]] = []
    for identity, named in by_id.items():
        if len(named) == 1:  # an entry that is there twice is harmless
            valid += named.values()
            continue
        # Annotations point to an image by its id, so those of these images cannot be assigned.
        detail = f"{name}: id {identity!r} is {' and '.join(list(named)[:3])}; give each its own"
        faulty += [(file_name, "image id comes twice", detail) for file_name in named]
    repeated_ids = frozenset(identity for identity, named in by_id.items() if len(named) > 1)
    return tuple(valid), tuple(faulty), repeated_ids


def _with_file_name(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an image entry with its file name; LVIS has addresses of COCO's images in its place.

    Source: lvisdataset.org: http://images.cocodataset.org/val2017/000000000009.jpg is val2017/000000000009.jpg.
    """
    url = entry.get("coco_url")
    if entry.get("file_name") is not None or not isinstance(url, str):
        return entry
    return {**entry, "file_name": "/".join(url.partition("?")[0].split("/")[-2:])}


def _refuse_lost_categories(
    name: str,
    written: Sequence[object],
    annotations: Sequence[dict[str, Any]],
    names_by_id: Mapping[int, str],
) -> None:
    """Raise AnnotationsError if a file lacks categories of many annotations; a few are bad objects, see `_box`."""
    lost = [
        (one.get("id"), category)
        for one, category in zip(annotations, written, strict=True)
        if one["category_id"] not in names_by_id and not is_ignored_region(one)
    ]
    many = len(lost) >= MIN_BAD_OBJECTS and len(lost) > _SHARE_LOST * len(annotations)
    # See _SHARE_LOST: dropping a class's objects would make background of them.
    if lost and (many or len(lost) == len(annotations)):
        raise AnnotationsError(
            f"{name}: annotation {lost[0][0]} has category_id {lost[0][1]!r}, which is no "
            f"category, as have {len(lost)} of {len(annotations)} annotations; defined: "
            f"{shorten_list(map(str, sorted(names_by_id))) or 'none'}; add what is missing to categories"
        )


def _names_by_id(
    name: str, categories: Sequence[dict[str, Any]], used: AbstractSet[object]
) -> dict[int, str]:
    """Return the category names by id, without unused categories that conflict with others."""
    names_by_id: dict[int, str] = {}
    # Used ones first, so that they keep their names. Unused ones may repeat a name: Roboflow adds a category 0 with the
    # name of the project.
    for in_use in (True, False):
        for category in categories:
            identity, label = normalize_id(category.get("id")), category.get("name")
            if (identity in used) is not in_use or (identity, label) in names_by_id.items():
                continue
            # COCO's category ids are integers; texts would be sorted in another order.
            if not isinstance(identity, int) or not isinstance(label, str):
                fault = "needs an integer id and a name"
            elif identity in names_by_id or label in names_by_id.values():
                fault = "has an id or a name of another one that is used; both must differ"
            else:
                names_by_id[identity] = label
                continue
            if in_use:
                raise AnnotationsError(f"{name}: a category {fault}; got {category!r:.100}")
    return dict(sorted(names_by_id.items()))


# COCO's key is iscrowd; is_crowd, isCrowd and crowd are read too.
CROWD_KEYS: Final = ("iscrowd", "crowd")


def crowd_of(annotation: Mapping[str, Any]) -> Any:
    """Return the written flag that marks an object as a crowd; 0 if there is none."""
    written = annotation.get("iscrowd")
    # The exact key counts where a file has several spellings.
    if written is None:
        written = next(
            (value for key, value in annotation.items() if normalize_name(key) in CROWD_KEYS), None
        )
    return 0 if written is None else written


def is_ignored_region(annotation: Mapping[str, Any]) -> bool:
    """Return whether an annotation is an ignored region: it has `ignore`, and is no crowd, which has a class.

    COCO has no such key. The evaluations of CityPersons (eval_MR_multisetup.py) and TinyPerson (cocoeval.py) neither
    require nor count detections of such objects; pycocotools overwrites the key by iscrowd.

    >>> [is_ignored_region(one) for one in ({"ignore": 1}, {"ignore": 0}, {"ignore": True, "iscrowd": 1}, {})]
    [True, False, False, False]
    """
    return annotation.get("ignore") in (1, "1", "true", "True") and crowd_of(annotation) in (0, "0", False)


def values_of_classes(documents: Sequence[FileClasses]) -> dict[int, str]:
    """Return the category names of all files by value, in the order of their ids; values begin at 1.

    Raises:
        AnnotationsError: files disagree.
    """
    names_by_id: dict[int, str] = {}
    for document in documents:
        for identity in document.used:
            label = document.names_by_id[identity]
            # Files of one set share their categories; train.json and val.json that count their own differ here.
            if names_by_id.setdefault(identity, label) != label:
                raise AnnotationsError(
                    f"{document.file}: category {identity} is {label!r}, and {names_by_id[identity]!r} in a file "
                    "before; convert the files one by one, or make their categories agree"
                )
    for document in documents:
        for identity, label in document.names_by_id.items():
            # Unused categories keep their place, so that class ids do not depend on which objects a subset has.
            if label not in names_by_id.values() and identity not in document.only_ignored:
                names_by_id.setdefault(identity, label)
    names = dict.fromkeys(names_by_id[identity] for identity in sorted(names_by_id))
    return dict(enumerate(names, start=1))


def normalize_id(value: object) -> int | str | None:
    """Return an id for comparisons: 1.0 and "1" are 1, other texts are unchanged, anything else is None.

    COCO's ids are integers. pandas writes those of a column with gaps as floats, and some tools write all values as
    texts, in one list of the file or in all.

    >>> normalize_id(1.0), normalize_id("1"), normalize_id("a1"), normalize_id("01")
    (1, 1, 'a1', '01')
    >>> normalize_id(True), normalize_id(1.5)
    (None, None)
    """
    # From pandas, see above.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    # "01" is another id than "1": file names such as COCO's have leading zeros.
    if isinstance(value, str) and len(value) < _MAX_DIGITS and value.isdecimal() and str(int(value)) == value:
        return int(value)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None
