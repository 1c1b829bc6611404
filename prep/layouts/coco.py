"""Reader of COCO JSON: instances, and panoptic files."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from halofeed.errors import AnnotationsError, SourceError
from halofeed.prep.annotations.columns import is_geometry, normalize_name
from halofeed.prep.annotations.contract import LayoutOptions, read_required, sort_examples, split_in_file_name
from halofeed.prep.annotations.images import ImageIndex, ImageMatch, ImageQuery
from halofeed.prep.annotations.resolve_boxes import note_similar_classes, resolve_boxes
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.annotations.written_boxes import (
    MIN_BAD_OBJECTS,
    check_rotation,
    declared_size,
    is_mostly_bad,
    parse_flag,
    parse_number,
    rectangle_of,
    usable_boxes,
)
from halofeed.prep.layouts import coco_panoptic
from halofeed.prep.layouts.coco_keypoints import (
    WITH_FRACTIONS,
    Skeletons,
    are_pixel_numbers_in,
    keypoints_of,
    notes_of,
    skeletons_of,
)
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.files import SourceFiles

_KNOWN_KEYS = frozenset(("id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"))
"""Keys of an annotation that the reader uses, in addition to other spellings of iscrowd."""
_KEPT = {"occluded": ("occluded", "attributes"), "keypoints": ("keypoints", "num_keypoints")}
_CROWD = ("iscrowd", "crowd")
_FLAGS = {0: False, 1: True}
_NO_OUTLINE = frozenset(("keypoints", "num_keypoints"))
_MAX_DIGITS = 4300
"""Python converts no longer text to an int."""
_CORNER_SIZE_MODES = (None, 1, "XYWH_ABS", "XYWH")
_ROBOFLOW = "_annotations.coco.json"
_SHARE_LOST = 0.1
"""Share of annotations with an undefined category. More show that a class was lost; fewer are slips."""


@dataclass(frozen=True, kw_only=True)
class InstancesFile:
    """Checked content of one instances file.

    Args:
        file: name of the file.
        split: split of its images.
        names_split: whether the file name contains the split.
        images: valid image entries.
        faulty: (file name or place, reason, detail) of each invalid image entry.
        annotations: annotation entries, with ids for comparisons.
        names_by_id: category names by id, without unused categories that conflict with others.
        used: ids of the categories that annotations have.
        categories: all categories, with ids for comparisons.
        label_images: panoptic files: name of the label image of each image, by the image's id for comparisons.
    """

    file: str
    split: str
    names_split: bool
    images: tuple[dict[str, Any], ...]
    faulty: tuple[tuple[str, str, str], ...]
    annotations: tuple[dict[str, Any], ...]
    names_by_id: dict[int, str]
    used: frozenset[int]
    categories: tuple[dict[str, Any], ...]
    label_images: Mapping[int | str | None, str]


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every image of the named instances file, or of all instances files of the folder.

    The key is the image id; the image's path if several files use the same ids. An image without annotations has no
    boxes, which is valid. The file name contains the split (val2017 for `instances_val2017.json`, train for
    `instances.json`). For `valid/_annotations.coco.json` the folder is the split.

    Raises:
        AnnotationsError: a file is not COCO instances, or an image id occurs twice in it; a category has no
            definition or shares its name with another; or an image is in two splits.
    """
    names = _instance_files(annotations, annotation_file, label_images=options.wants_label_images)
    documents = [
        _read_document(annotations, name, outlines=options.masks, label_images=options.wants_label_images)
        for name in names
    ]
    index = ImageIndex(images, annotations.root)
    ids = Counter(_normalize_id(entry["id"]) for document in documents for entry in document.images)
    ids_restart = any(count > 1 for count in ids.values())
    found = index.match(
        {
            (document.file, entry["id"]): _image_query(entry["file_name"], document)
            for document in documents
            for entry in document.images
        }
    )
    drawn = index.match(
        {
            (document.file, identity): coco_panoptic.label_image_query(document.file, written)
            for document in documents
            for identity, written in document.label_images.items()
        }
    )
    if found and not any(isinstance(one, ImageMatch) for one in found.values()):
        index.check_any_image(names[0])
    if "occluded" in options.keep and not any(
        "occluded" in one or "attributes" in one for document in documents for one in document.annotations
    ):
        raise AnnotationsError(f"{names[0]}: --keep occluded: no annotation says it; leave it out")
    skeletons = None
    if "keypoints" in options.keep:
        skeletons = skeletons_of((one.file, one.annotations, one.categories) for one in documents)
    listed: list[SourceExample] = []
    for document in documents if options.wants_label_images else ():
        values = {name: value for value, name in _values_of_classes(documents).items()}
        listed += (
            replace(one, source=index.relative(one.source))
            for one in _label_image_examples(document, found, drawn, values)
        )
    for document in () if options.wants_label_images else documents:
        _check_form(document.file, document.images, document.annotations, options)
        notes = _unread_keys(document.file, document.annotations, options)
        are_pixel_numbers = skeletons is not None and are_pixel_numbers_in(document.annotations)
        if skeletons is not None and not are_pixel_numbers:
            notes += (WITH_FRACTIONS,)
        examples = _document_examples(document, found, options, skeletons, are_pixel_numbers)
        examples = (replace(one, notes=(*one.notes, *notes)) if one.boxes else one for one in examples)
        examples = (replace(one, source=index.relative(one.source)) for one in examples)
        listed += resolve_boxes(list(examples), images, options, document.file)
    if ids_restart:
        listed = [replace(example, key=example.source) for example in listed]
    listed = _check_sources(listed)
    known = {one.path for one in found.values() if isinstance(one, ImageMatch)}
    used = {example.source: example.split for example in listed if example.source in known}
    used |= {one.path: "train" for one in drawn.values() if isinstance(one, ImageMatch)}
    listed += index.without_annotation(used.items, only_used_folders=annotation_file is not None)
    yield from sort_examples(note_similar_classes(listed))


def list_labels(annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the category names in the order of their ids, including unused ones."""
    names = _instance_files(annotations, annotation_file)
    return _class_names([_read_document(annotations, name, outlines=False) for name in names])


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Return the class of each value in the label images of panoptic files, in the order of the category ids."""
    names = _instance_files(annotations, annotation_file, label_images=True)
    return _values_of_classes(
        [_read_document(annotations, name, outlines=False, label_images=True) for name in names]
    )


def _values_of_classes(documents: Sequence[InstancesFile]) -> dict[int, str]:
    return dict(enumerate(_class_names(documents), start=1))


def _class_names(documents: Sequence[InstancesFile]) -> tuple[str, ...]:
    """Return the category names of all files, in the order of their ids; raise AnnotationsError if files disagree."""
    names_by_id: dict[int, str] = {}
    for document in documents:
        for identity in document.used:
            label = document.names_by_id[identity]
            if names_by_id.setdefault(identity, label) != label:
                raise AnnotationsError(
                    f"{document.file}: category {identity} is {label!r}, and {names_by_id[identity]!r} in a file "
                    "before; convert the files one by one, or make their categories agree"
                )
    for document in documents:
        for identity, label in document.names_by_id.items():
            if label not in names_by_id.values():
                names_by_id.setdefault(identity, label)
    return tuple(dict.fromkeys(names_by_id[identity] for identity in sorted(names_by_id)))


def _instance_files(
    annotations: SourceFiles, annotation_file: str | None, *, label_images: bool = False
) -> list[str]:
    """Return the files with objects or with label images: the named one, or those found by their names."""
    if annotation_file is not None:
        return [annotation_file]
    found = [path for path in annotations.sizes() if path.lower().endswith(".json")]
    near = [path for path in found if "/" not in path or path.rpartition("/")[0] == "annotations"]
    instances = [path for path in near if path.rsplit("/", 1)[-1].startswith("instances")]
    roboflow = [path for path in found if path.endswith(_ROBOFLOW) and path.count("/") <= 1]
    panoptic = [path for path in near if path.rsplit("/", 1)[-1].startswith("panoptic")]
    splits = {split_in_file_name(path) for path in near}
    alone = near if len(near) == 1 or (None not in splits and len(splits) == len(near)) else []
    chosen = panoptic or alone if label_images else instances or roboflow or alone or panoptic
    if label_images and not chosen:
        raise AnnotationsError(
            f"{annotations.root}: expected panoptic*.json or annotations/panoptic*.json with classes of pixels; found "
            f"{', '.join(found[:5]) or 'no .json file'}; name the file itself, or take --task detection"
        )
    if not chosen:
        raise AnnotationsError(
            f"{annotations.root}: expected instances*.json, annotations/instances*.json, */{_ROBOFLOW}, or a file per "
            f"split such as train.json and val.json; found {', '.join(found[:5]) or 'no .json file'}; name the file "
            f"itself{layout_hint(annotations, 'coco')}"
        )
    return chosen


def _without_outline(entry: dict[str, Any]) -> dict[str, Any]:
    """Remove the outline of an object, which is most of its content, and return the object."""
    if "segmentation" in entry:
        entry["segmentation"] = None
    return entry


def _read_document(
    annotations: SourceFiles, name: str, *, outlines: bool, label_images: bool = False
) -> InstancesFile:
    """Return the content of an instances or panoptic file.

    Args:
        outlines: whether to keep the outlines of objects.
        label_images: whether segments of all categories are needed, as in label images, and not only objects.

    Raises:
        AnnotationsError: a fault that affects the complete file.
    """
    data = read_required(annotations, name)
    try:
        content = json.loads(data.decode("utf-8-sig"), object_hook=None if outlines else _without_outline)
    except (ValueError, RecursionError) as error:
        fix = "correct it" if data.rstrip().endswith((b"}", b"]")) else "it ends early, so copy it again"
        raise AnnotationsError(f"{name}: expected COCO instances as JSON: {error}; {fix}") from error
    lists: dict[str, list[dict[str, Any]]] = {}
    for part in ("images", "annotations", "categories"):
        entries = content.get(part) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            found = ", ".join(content) if isinstance(content, dict) else type(content).__name__
            raise AnnotationsError(
                f"{name}: expected COCO instances with the lists images, annotations and categories; "
                f"{part} is no list of objects (found {found}); name an instances file"
            )
        lists[part] = entries
    images, faulty = _valid_images(name, lists["images"])
    pictures = {}
    if coco_panoptic.is_panoptic(lists):
        if outlines:
            raise AnnotationsError(
                f"{name}: a panoptic file, whose masks are pictures: take --task segmentation in place of --masks"
            )
        pictures = {
            _normalize_id(one.get("image_id")): written
            for one in lists["annotations"]
            if isinstance(written := one.get("file_name"), str)
        }
        lists = coco_panoptic.segments_as_objects(name, lists, things_only=not label_images)
    elif label_images:
        raise AnnotationsError(
            f"{name}: segmentation takes a panoptic file, whose annotations have segments_info; this one has objects: "
            "take --task detection"
        )
    if lists["annotations"] and not any("bbox" in entry for entry in lists["annotations"]):
        keys = ", ".join(sorted(lists["annotations"][0]))
        raise AnnotationsError(
            f"{name}: no annotation has a bbox (found {keys}); expected an instances file, not captions"
        )
    objects = lists["annotations"]
    written = [entry.get("category_id") for entry in objects]
    for entry in objects:
        entry["category_id"] = _normalize_id(entry.get("category_id"))
    used = {entry["category_id"] for entry in objects}
    names_by_id = _names_by_id(name, lists["categories"], used)
    _refuse_lost_categories(name, written, objects, names_by_id)
    return InstancesFile(
        file=name,
        split=_split_of(name) or "train",
        names_split=_split_of(name) is not None,
        images=images,
        faulty=faulty,
        annotations=tuple(objects),
        names_by_id=names_by_id,
        used=frozenset(identity for identity in names_by_id if identity in used),
        categories=tuple({**one, "id": _normalize_id(one.get("id"))} for one in lists["categories"]),
        label_images=pictures,
    )


def _shorten(values: Sequence[object]) -> str:
    return ", ".join(map(str, values[:20])) + (", ..." if len(values) > 20 else "")


def _split_of(name: str) -> str | None:
    folder, _, file = name.rpartition("/")
    if file == _ROBOFLOW and folder:
        return folder
    return split_in_file_name(file)


def _valid_images(
    name: str, entries: Sequence[dict[str, Any]]
) -> tuple[tuple[dict[str, Any], ...], tuple[tuple[str, str, str], ...]]:
    """Return the image entries with an unambiguous image, and (place, reason, detail) of all others.

    Raises:
        AnnotationsError: no entry has both an id and a file name.
    """
    by_id: dict[int | str, dict[str, dict[str, Any]]] = {}
    faulty: list[tuple[str, str, str]] = []
    for place, entry in enumerate(entries):
        identity, file_name = _normalize_id(entry.get("id")), entry.get("file_name")
        if file_name is None and isinstance(url := entry.get("coco_url"), str):
            # LVIS: http://images.cocodataset.org/val2017/000000000009.jpg means val2017/000000000009.jpg.
            file_name = "/".join(url.partition("?")[0].split("/")[-2:])
            entry = {**entry, "file_name": file_name}
        if identity is None or not isinstance(file_name, str):
            detail = f"expected a whole number or a text, and a file name; got {entry!r:.100}"
            faulty.append((f"{name}#images[{place}]", "image entry has no id or no file_name", detail))
        else:
            by_id.setdefault(identity, {}).setdefault(file_name, entry)
    if faulty and not by_id:
        raise AnnotationsError(f"{name}: each image needs an id and a file_name; {faulty[0][2]}")
    valid: list[dict[str, Any]] = []
    for identity, named in by_id.items():
        if len(named) == 1:
            valid += named.values()
            continue
        detail = f"{name}: id {identity!r} is {' and '.join(list(named)[:3])}; give each its own"
        faulty += [(file_name, "image id comes twice", detail) for file_name in named]
    return tuple(valid), tuple(faulty)


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
        if one["category_id"] not in names_by_id
    ]
    many = len(lost) >= MIN_BAD_OBJECTS and len(lost) > _SHARE_LOST * len(annotations)
    if lost and (many or len(lost) == len(annotations)):
        raise AnnotationsError(
            f"{name}: annotation {lost[0][0]} has category_id {lost[0][1]!r}, which is no "
            f"category, as have {len(lost)} of {len(annotations)} annotations; defined: "
            f"{_shorten(sorted(names_by_id)) or 'none'}; add what is missing to categories"
        )


def _names_by_id(
    name: str, categories: Sequence[dict[str, Any]], used: AbstractSet[object]
) -> dict[int, str]:
    """Return the category names by id, without unused categories that conflict with others."""
    names_by_id: dict[int, str] = {}
    for in_use in (True, False):
        for category in categories:
            identity, label = _normalize_id(category.get("id")), category.get("name")
            if (identity in used) is not in_use or (identity, label) in names_by_id.items():
                continue
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


def _image_query(file_name: str, document: InstancesFile) -> ImageQuery:
    """Return the possible locations of an entry's image: the folder of the document's split, the root, or images/."""
    split, common = document.split, ("", "images")
    own = (split, f"images/{split}", f"{split}/images")
    return ImageQuery(name=file_name, places=(own, common) if document.names_split else ((*common, *own),))


def _label_image_examples(
    document: InstancesFile,
    found: Mapping[tuple[str, int | str], ImageMatch | SourceError],
    drawn: Mapping[tuple[str, int | str | None], ImageMatch | SourceError],
    values: Mapping[str, int],
) -> Iterator[SourceExample]:
    """Yield the examples of one panoptic file, each with its label image and the class of each segment."""
    value_of_category = {identity: values[name] for identity, name in document.names_by_id.items()}
    segments: dict[int | str | None, list[dict[str, Any]]] = {}
    for one in document.annotations:
        segments.setdefault(_normalize_id(one["image_id"]), []).append(one)
    for entry in document.images:
        image, identity = found[document.file, entry["id"]], _normalize_id(entry["id"])
        known: dict[str, Any] = {"source": entry["file_name"], "key": identity, "split": document.split}
        try:
            if isinstance(image, SourceError):
                raise image
            known["source"] = image.path
            label = drawn.get((document.file, identity))
            if label is None:
                raise SourceError("annotation", "image has no label", f"{document.file}: image_id {identity}")
            if isinstance(label, SourceError):
                raise SourceError("annotation", "label image file not found", label.detail)
            known |= {
                "mask": label.path,
                "segments": coco_panoptic.segment_values(segments.get(identity, ()), value_of_category),
            }
        except SourceError as error:
            yield SourceExample(**known, problem=error.args)
            continue
        yield SourceExample(**known)
    for place, reason, detail in document.faulty:
        fault = ("annotation", reason, detail)
        yield SourceExample(source=place, key=place, split=document.split, problem=fault)


def _document_examples(
    document: InstancesFile,
    found: Mapping[tuple[str, int | str], ImageMatch | SourceError],
    options: LayoutOptions,
    skeletons: Skeletons | None,
    are_pixel_numbers: bool,
) -> Iterator[SourceExample]:
    """Yield the examples of one file in the order of its images, followed by those of its faulty entries."""

    def box_of(annotation: dict[str, Any]) -> Box:
        box = _box(annotation, document.names_by_id, options)
        if skeletons is None:
            return box
        what = f"annotation {annotation.get('id')}"
        return replace(box, keypoints=keypoints_of(annotation, skeletons, are_pixel_numbers, what))

    by_image: dict[int | str | None, list[dict[str, Any]]] = {
        _normalize_id(entry["id"]): [] for entry in document.images
    }
    orphans: dict[str, list[object]] = {}
    for annotation in document.annotations:
        image_id = _normalize_id(annotation.get("image_id"))
        if image_id in by_image:
            by_image[image_id].append(annotation)
        else:
            orphans.setdefault(repr(annotation.get("image_id")), []).append(annotation.get("id"))
    _refuse_lost_annotations(document, by_image, orphans)
    for entry in document.images:
        image, annotations = found[document.file, entry["id"]], by_image[_normalize_id(entry["id"])]
        key = int(entry["id"]) if isinstance(entry["id"], float) else entry["id"]
        known: dict[str, Any] = {"source": entry["file_name"], "key": key, "split": document.split}
        try:
            if isinstance(image, SourceError):
                raise image
            known["source"] = image.path
            boxes, bad = usable_boxes(annotations, box_of, options)
            size = declared_size(entry.get("height"), entry.get("width"))
        except SourceError as error:
            yield SourceExample(**known, problem=error.args)
            continue
        notes: tuple[str, ...] = (image.note,) if image.note else ()
        if skeletons is not None and boxes:
            notes += notes_of(annotations, skeletons)
        yield SourceExample(**known, boxes=boxes, declared_size=size, bad_objects=bad, notes=notes)
    for place, reason, detail in document.faulty:
        yield SourceExample(
            source=place, key=place, split=document.split, problem=("annotation", reason, detail)
        )
    for image_id, ids in orphans.items():
        place = f"{document.file}#image_id={image_id}"
        fault = ("annotation", "annotation of an unknown image", f"{len(ids)} annotations: {_shorten(ids)}")
        yield SourceExample(source=place, key=place, split=document.split, problem=fault)


def _refuse_lost_annotations(
    document: InstancesFile,
    by_image: Mapping[int | str | None, Sequence[object]],
    orphans: Mapping[str, Sequence[object]],
) -> None:
    """Raise AnnotationsError if annotations belong to no image, so that images would seem to contain no objects.

    A subset of the images with the annotations of all images is valid, since these images have their annotations.
    """
    lost, count = sum(map(len, orphans.values())), len(document.annotations)
    bare = sum(not annotations for annotations in by_image.values())
    if lost and (lost == count or (is_mostly_bad(lost, count) and 2 * bare >= len(by_image))):
        raise AnnotationsError(
            f"{document.file}: {lost} of {count} annotations belong to no image, the first has image_id "
            f"{next(iter(orphans))}; ids of images are {_shorten(list(by_image)[:3])}; make image_id the id of an "
            "image, or name the file that holds these images"
        )


def _box(annotation: dict[str, Any], names_by_id: dict[int, str], options: LayoutOptions) -> Box:
    what = f"annotation {annotation.get('id')}"
    bbox = annotation.get("bbox")
    if not isinstance(bbox, list) or len(bbox) != 4:
        raise SourceError("annotation", "bbox is not four numbers", f"{what}: {bbox!r}"[:200])
    if annotation["category_id"] not in names_by_id:
        detail = f"{what}: category_id {annotation['category_id']!r} is no category of the file"
        raise SourceError("annotation", "object has no class", detail)
    values = [parse_number(value, f"{what} bbox") for value in bbox]
    attributes = annotation.get("attributes")
    attributes = attributes if isinstance(attributes, dict) else {}  # from CVAT
    check_rotation(attributes.get("rotation"), what, options)
    is_crowd = parse_flag(_crowd_of(annotation), f"{what} iscrowd", _FLAGS)
    occluded = annotation.get("occluded", attributes.get("occluded", 0))
    area = annotation.get("area")
    return rectangle_of(
        names_by_id[annotation["category_id"]],
        values,
        what,
        options,
        form="corner-size",
        is_crowd=is_crowd,
        occluded="occluded" in options.keep and parse_flag(occluded, f"{what} occluded", _FLAGS),
        category_id=annotation["category_id"] if "category_id" in options.keep else None,
        area=None if area is None else parse_number(area, f"{what} area"),
        mask=_mask(annotation.get("segmentation"), what) if options.masks else None,
    )


def _mask(segmentation: Any, what: str) -> Any:
    """Return the segmentation unchanged if it consists of polygons or of a run-length code."""
    if segmentation is None or segmentation == []:
        raise SourceError("annotation", "object has no segmentation", what)
    if isinstance(segmentation, dict):
        size, counts = segmentation.get("size"), segmentation.get("counts")
        if isinstance(size, list) and len(size) == 2 and isinstance(counts, list | str):
            return segmentation
    elif isinstance(segmentation, list) and all(
        isinstance(polygon, list) and len(polygon) >= 6 and len(polygon) % 2 == 0 for polygon in segmentation
    ):
        for polygon in segmentation:
            for value in polygon:
                parse_number(value, f"{what} segmentation")
        return segmentation
    detail = f"{what}: {segmentation!r:.60}"
    raise SourceError("annotation", "segmentation is neither polygons nor run lengths", detail)


def _check_sources(listed: Sequence[SourceExample]) -> list[SourceExample]:
    """Return the examples with a problem for each file of several entries; raise AnnotationsError for two splits."""
    first: dict[str, SourceExample] = {}
    counts = Counter(example.source for example in listed)
    checked = []
    for example in listed:
        other = first.setdefault(example.source, example)
        if other.split != example.split and other.problem is None and example.problem is None:
            raise AnnotationsError(
                f"{example.source}: lies in two splits, {other.split} and {example.split}; "
                "an image has one split"
            )
        if counts[example.source] > 1 and example.problem is None:
            fault = ("annotation", "several image entries name one file", f"key {example.key!r}")
            example = replace(example, boxes=None, problem=fault)
        checked.append(example)
    return checked


def _normalize_id(value: object) -> int | str | None:
    """Return an id for comparisons: 1.0 and "1" are 1, other texts are unchanged, anything else is None.

    >>> _normalize_id(1.0), _normalize_id("1"), _normalize_id("a1"), _normalize_id("01")
    (1, 1, 'a1', '01')
    >>> _normalize_id(True), _normalize_id(1.5)
    (None, None)
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < _MAX_DIGITS and value.isdecimal() and str(int(value)) == value:
        return int(value)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _unread_keys(
    file: str, annotations: Sequence[Mapping[str, Any]], options: LayoutOptions
) -> tuple[str, ...]:
    """Return a note if the annotations of an instances file have keys that the reader ignores.

    Raises:
        AnnotationsError: such a key may hold another box or outline, and the options do not ignore it.
    """
    read = set(_KNOWN_KEYS).union(*(keys for name, keys in _KEPT.items() if name in options.keep))
    unread = {
        key for one in annotations for key in one if key not in read and normalize_name(key) not in _CROWD
    }
    modes = [one["bbox_mode"] for one in annotations if one.get("bbox_mode") not in _CORNER_SIZE_MODES]
    if modes and options.box_form == "auto":
        raise AnnotationsError(
            f"{file}: bbox_mode is {modes[0]!r}, not COCO's x, y, width, height; say with --box-form what bbox has"
        )
    ignored = {normalize_name(key) for key in options.ignore_columns}
    geometry = [
        key for key in sorted(unread - _NO_OUTLINE) if is_geometry(key) and normalize_name(key) not in ignored
    ]
    if geometry:
        raise AnnotationsError(
            f"{file}: annotations have {', '.join(geometry)}, which would not be read and may hold boxes or outlines; "
            f"--ignore-columns {','.join(geometry)} ignores them"
        )
    unread = {key for key in unread if normalize_name(key) not in ignored} - {"bbox_mode"}
    return (
        (f"keys of annotations in {file} that are not read: {', '.join(sorted(unread))}",) if unread else ()
    )


def _crowd_of(annotation: Mapping[str, Any]) -> Any:
    """Return the written flag that marks an object as a crowd; 0 if there is none."""
    written = annotation.get("iscrowd")
    if written is None:
        written = next((value for key, value in annotation.items() if normalize_name(key) in _CROWD), None)
    return 0 if written is None else written


def _check_form(
    file: str,
    images: Sequence[Mapping[str, Any]],
    annotations: Sequence[Mapping[str, Any]],
    options: LayoutOptions,
) -> None:
    """Raise AnnotationsError if all bboxes fit their images as two corners, but many do not as corner and size."""
    if options.box_form != "auto":
        return
    sizes: dict[Any, tuple[Any, Any]] = {
        _normalize_id(one.get("id")): (one.get("height"), one.get("width")) for one in images
    }
    boxes = outside = 0
    for one in annotations:
        box, size = one.get("bbox"), sizes.get(_normalize_id(one.get("image_id")), (None, None))
        if not all(map(_is_length, size)) or not isinstance(box, list) or len(box) != 4:
            continue
        if not all(isinstance(value, int | float) and abs(value) <= sys.float_info.max for value in box):
            continue
        (height, width), (x, y, third, fourth) = size, box
        if not (x < third <= width + 1 and y < fourth <= height + 1):
            return
        boxes += 1
        outside += x + third > width + 1 or y + fourth > height + 1
    if boxes and 3 * outside >= boxes:
        raise AnnotationsError(
            f"{file}: {outside} of {boxes} bboxes leave their image as x, y, width, height, and all fit as corners; "
            "say --box-form corners, or corner-size if that is meant all the same"
        )


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
