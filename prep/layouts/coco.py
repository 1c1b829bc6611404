"""Reader of COCO JSON: instances, their masks and keypoints, panoptic files, and classes of images."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from halofeed.errors import AnnotationsError, SourceError
from halofeed.prep.annotations.class_names import note_similar_classes, shorten_list
from halofeed.prep.annotations.columns import is_geometry, normalize_name
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    attributes_of,
    rejected_example,
    sort_examples,
)
from halofeed.prep.annotations.image_index import ImageIndex, ImageMatch, ImageQuery
from halofeed.prep.annotations.picture_classes import settle_classes, with_classes
from halofeed.prep.annotations.resolve_boxes import resolve_boxes
from halofeed.prep.annotations.written_boxes import (
    BOX_IS_ORIENTED,
    angle_of,
    check_oriented,
    declared_size,
    is_mostly_bad,
    parse_flag,
    parse_number,
    rectangle_of,
    usable_boxes,
    usable_parts,
)
from halofeed.prep.layouts.coco_files import (
    TURNED_SHARE,
    InstancesFile,
    category_names,
    is_class_alone,
    normalize_id,
    read_files,
)
from halofeed.prep.sources.example import Box, Keypoint, SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.wording import plural

_KNOWN_KEYS = frozenset(
    (
        *(TURNED_SHARE, "id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"),
        *("difficult", "truncated"),  # halofeed's own exports have them, and those of VOC's converters
    )
)
"""Keys of an annotation that the reader uses, in addition to other spellings of iscrowd."""
_IMAGE_KEYS = frozenset(("id", "file_name", "height", "width"))
"""Keys of an image entry that the reader uses; the others may name its group."""
_KEPT = {"occluded": ("occluded", "attributes"), "keypoints": ("keypoints", "num_keypoints")}
_CROWD = ("iscrowd", "crowd")
_FLAGS = {0: False, 1: True}
_NO_OUTLINE = frozenset(("keypoints", "num_keypoints"))
_CORNER_SIZE_MODES = (None, 1, "XYWH_ABS", "XYWH")
UNLABELED = 0
"""Value of pixels without a segment; classes have the values from 1."""
_LARGEST_SEGMENT = (1 << 24) - 1


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
    wants_labels = options.wants_label_images
    documents = read_files(annotations, annotation_file, outlines=options.masks, label_images=wants_labels)
    index = ImageIndex(images, annotations.root)
    ids = Counter(normalize_id(entry["id"]) for document in documents for entry in document.images)
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
            (document.file, identity): _label_image_query(document.file, written)
            for document in documents
            for identity, written in document.label_images.items()
        }
    )
    if found and not any(isinstance(one, ImageMatch) for one in found.values()):
        index.check_any_image(documents[0].file)
    if "occluded" in options.keep and not any(
        "occluded" in one or "attributes" in one for document in documents for one in document.annotations
    ):
        raise AnnotationsError(f"{documents[0].file}: --keep occluded: no annotation says it; leave it out")
    skeletons = None
    if "keypoints" in options.keep:
        skeletons = _skeletons_of(documents)
    listed: list[SourceExample] = []
    for document in documents if wants_labels else ():
        values = {name: value for value, name in _values_of_classes(documents).items()}
        listed += (
            replace(one, source=index.relative(one.source))
            for one in _label_image_examples(document, found, drawn, values, options)
        )
    of_classes = _are_of_classes(documents, options)
    if of_classes:
        listed += (
            replace(one, source=index.relative(one.source))
            for document in documents
            for one in _classified_images(document, found, options)
        )
    for document in () if wants_labels or of_classes else documents:
        _check_form(document, options)
        notes = _unread_keys(document, options)
        if document.outlined:
            count = plural(document.outlined, "annotation has", "annotations have")
            notes += (f"{document.file}: {count} no bbox: the box is that of the outline",)
        if skeletons is not None:
            are_pixel_numbers = _are_pixel_numbers_in(document.annotations)
            skeletons = replace(skeletons, shift=_MIDDLE if are_pixel_numbers else 0.0)
            notes += () if are_pixel_numbers else (_WITH_FRACTIONS,)
        examples = _document_examples(document, found, options, skeletons)
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


def _are_of_classes(documents: Sequence[InstancesFile], options: LayoutOptions) -> bool:
    """Return whether the files give classes of images; raise AnnotationsError if the task needs something else."""
    of_classes = next((one for one in documents if one.classes_only), None)
    of_objects = next((one for one in documents if one.annotations and not one.classes_only), None)
    if of_classes and of_objects:
        raise AnnotationsError(
            f"{of_classes.file} has classes of images, and {of_objects.file} has objects; name one of the two with "
            "--source"
        )
    if of_classes and options.wants_boxes:
        raise AnnotationsError(
            f"{of_classes.file}: its annotations have no boxes and no outlines, and give each image a class: take "
            "--task classification"
        )
    if options.task == "classification" and not of_classes:
        raise AnnotationsError(
            f"{documents[0].file}: its annotations are objects, and no classes of images: take --task detection"
        )
    return of_classes is not None


def _classified_images(
    document: InstancesFile,
    found: Mapping[tuple[str, int | str], ImageMatch | SourceError],
    options: LayoutOptions,
) -> Iterator[SourceExample]:
    """Yield an example with its class, or its classes, for each image of a file whose annotations are classes."""
    by_image: dict[int | str | None, list[Any]] = {normalize_id(one["id"]): [] for one in document.images}
    orphans: dict[str, list[object]] = {}
    for annotation in document.annotations:
        image_id = normalize_id(annotation.get("image_id"))
        if image_id in by_image:
            by_image[image_id].append(annotation)
        else:
            orphans.setdefault(repr(annotation.get("image_id")), []).append(annotation.get("id"))
    _refuse_lost_annotations(document, by_image, orphans)
    for entry in document.images:
        image = found[document.file, entry["id"]]
        key = int(entry["id"]) if isinstance(entry["id"], float) else entry["id"]
        known: dict[str, Any] = {"source": entry["file_name"], "key": key, "split": document.split}
        numbers = dict.fromkeys(one["category_id"] for one in by_image[normalize_id(entry["id"])])
        names = tuple(document.names_by_id[one] for one in numbers if one in document.names_by_id)
        try:
            if isinstance(image, SourceError):
                raise image
            known |= {"source": image.path, "notes": (image.note,) if image.note else ()}
            if unknown := [one for one in numbers if one not in document.names_by_id]:
                detail = f"category_id {unknown[0]!r} is no category of {document.file}"
                raise SourceError("annotation", "image has no class", detail)
        except SourceError as error:
            yield SourceExample(**known, problem=error.args)
            continue
        yield with_classes(SourceExample(**known), names, document.file, options)
    yield from document.faulty
    yield from _orphaned(document, orphans)


def list_labels(annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the category names in the order of their ids, including unused ones."""
    return category_names(read_files(annotations, annotation_file))


def label_values(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Mapping[int, str]:
    """Return the class of each value in the label images of panoptic files, in the order of the category ids."""
    return _values_of_classes(read_files(annotations, annotation_file, label_images=True))


def _values_of_classes(documents: Sequence[InstancesFile]) -> dict[int, str]:
    return dict(enumerate(category_names(documents), start=1))


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
    options: LayoutOptions,
) -> Iterator[SourceExample]:
    """Yield the examples of one panoptic file, each with its label image and the class of each segment."""
    value_of_category = {identity: values[name] for identity, name in document.names_by_id.items()}
    segments: dict[int | str | None, list[dict[str, Any]]] = {}
    for one in document.annotations:
        segments.setdefault(normalize_id(one["image_id"]), []).append(one)
    for entry in document.images:
        image, identity = found[document.file, entry["id"]], normalize_id(entry["id"])
        known: dict[str, Any] = {"source": entry["file_name"], "key": identity, "split": document.split}
        if options.needs_groups:
            known["attributes"] = attributes_of(entry, _IMAGE_KEYS)
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
                "segments": _segment_values(segments.get(identity, ()), value_of_category),
            }
        except SourceError as error:
            yield SourceExample(**known, problem=error.args)
            continue
        yield SourceExample(**known)
    yield from document.faulty


def _label_image_query(name: str, written: str) -> ImageQuery:
    """Return the possible locations of a label image: the folder with the name of the file, or that file's folder."""
    folder, _, file = name.rpartition("/")
    stem = file.removesuffix(".json")
    beside = f"{folder}/{stem}" if folder else stem
    return ImageQuery(name=written, places=((beside, stem), (folder,)), beside=(beside, stem))


def _segment_values(
    segments: Sequence[Mapping[str, Any]], value_of_category: Mapping[Any, int]
) -> tuple[tuple[int, int], ...]:
    """Return (id, value of its class) of each segment of one label image.

    >>> _segment_values([{"id": 70000, "category_id": 9}, {"id": 5, "category_id": 4}], {4: 1, 9: 2})
    ((70000, 2), (5, 1))
    >>> _segment_values([{"id": 1 << 24, "category_id": 9}], {9: 1})
    Traceback (most recent call last):
    halofeed.errors.SourceError: ...
    """
    found: dict[int, int] = {}
    for one in segments:
        identity, category = one.get("id"), one.get("category_id")
        if not isinstance(identity, int) or not 0 < identity <= _LARGEST_SEGMENT or identity in found:
            detail = f"{identity!r}; expected different whole numbers from 1 to {_LARGEST_SEGMENT}"
            raise SourceError("annotation", "segment id is invalid or comes twice", detail)
        if category not in value_of_category:
            detail = f"segment {identity}: category_id {category!r} is no category of the file"
            raise SourceError("annotation", "object has no class", detail)
        found[identity] = value_of_category[category]
    return tuple(found.items())


def _document_examples(
    document: InstancesFile,
    found: Mapping[tuple[str, int | str], ImageMatch | SourceError],
    options: LayoutOptions,
    skeletons: _Skeletons | None,
) -> Iterator[SourceExample]:
    """Yield the examples of one file in the order of its images, followed by those of its faulty entries."""

    def box_of(annotation: dict[str, Any]) -> Box:
        box = _box(annotation, document.names_by_id, options)
        if skeletons is None:
            return box
        what = f"annotation {annotation.get('id')}"
        return replace(box, keypoints=_keypoints_of(annotation, skeletons, what))

    by_image: dict[int | str | None, list[dict[str, Any]]] = {
        normalize_id(entry["id"]): [] for entry in document.images
    }
    orphans: dict[str, list[object]] = {}
    for annotation in document.annotations:
        image_id = normalize_id(annotation.get("image_id"))
        if image_id in by_image:
            by_image[image_id].append(annotation)
        else:
            orphans.setdefault(repr(annotation.get("image_id")), []).append(annotation.get("id"))
    _refuse_lost_annotations(document, by_image, orphans)
    read: list[tuple[SourceExample, list[str], str]] = []
    for entry in document.images:
        image, annotations = found[document.file, entry["id"]], by_image[normalize_id(entry["id"])]
        placed = [one for one in annotations if not is_class_alone(one)]
        names = [
            document.names_by_id[one["category_id"]]
            for one in annotations
            if is_class_alone(one) and one["category_id"] in document.names_by_id
        ]
        key = int(entry["id"]) if isinstance(entry["id"], float) else entry["id"]
        known: dict[str, Any] = {"source": entry["file_name"], "key": key, "split": document.split}
        if options.needs_groups:
            known["attributes"] = attributes_of(entry, _IMAGE_KEYS)
        try:
            if isinstance(image, SourceError):
                raise image
            known["source"] = image.path
            boxes, bad = usable_boxes(placed, box_of, options)
            size = declared_size(entry.get("height"), entry.get("width"))
        except SourceError as error:
            read.append((SourceExample(**known, problem=error.args), names, document.file))
            continue
        notes: tuple[str, ...] = (image.note,) if image.note else ()
        if skeletons is not None and boxes:
            notes += _notes_of(annotations, skeletons)
        example = SourceExample(**known, boxes=boxes, declared_size=size, bad_objects=bad, notes=notes)
        read.append((example, names, document.file))
    yield from settle_classes(read, options, are_objects=True)
    yield from document.faulty
    yield from _orphaned(document, orphans)


def _orphaned(document: InstancesFile, orphans: Mapping[str, Sequence[object]]) -> Iterator[SourceExample]:
    """Yield an example with a problem for each image id that annotations have and no image has."""
    for image_id, ids in orphans.items():
        place = f"{document.file}#image_id={image_id}"
        detail = f"{len(ids)} annotations: {shorten_list(map(str, ids))}"
        fault = ("annotation", "annotation of an unknown image", detail)
        yield rejected_example(place, fault, document.split)


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
            f"{next(iter(orphans))}; ids of images are {', '.join(map(str, list(by_image)[:3]))}; make image_id the "
            "id of an image, or name the file that holds these images"
        )


def _box(annotation: dict[str, Any], names_by_id: dict[int, str], options: LayoutOptions) -> Box:
    what = f"annotation {annotation.get('id')}"
    bbox = annotation.get("bbox")
    if isinstance(bbox, list) and len(bbox) == 5:
        # Detectron2 and others write an angle, in degrees or radians, after a center or a corner.
        detail = f"{what}: {bbox!r:.80} has an angle; write the upright box as x, y, width, height"
        raise SourceError("annotation", BOX_IS_ORIENTED, detail)
    if not isinstance(bbox, list) or len(bbox) != 4:
        raise SourceError("annotation", "bbox is not four numbers", f"{what}: {bbox!r}"[:200])
    if annotation["category_id"] not in names_by_id:
        detail = f"{what}: category_id {annotation['category_id']!r} is no category of the file"
        raise SourceError("annotation", "object has no class", detail)
    values = [parse_number(value, f"{what} bbox") for value in bbox]
    attributes = annotation.get("attributes")
    attributes = attributes if isinstance(attributes, dict) else {}  # from CVAT
    turn = angle_of(attributes.get("rotation"), what, options)
    is_crowd = parse_flag(_crowd_of(annotation), f"{what} iscrowd", _FLAGS)
    occluded = annotation.get("occluded", attributes.get("occluded", 0))
    area = annotation.get("area")
    share = None if options.masks else annotation.get(TURNED_SHARE)
    check_oriented(share, what, options)
    mask, lost = _mask(annotation.get("segmentation"), what, options) if options.masks else (None, 0)
    box = rectangle_of(
        names_by_id[annotation["category_id"]],
        values,
        what,
        options,
        form="corner-size",
        turn=turn,
        is_crowd=is_crowd,
        difficult=parse_flag(annotation.get("difficult") or 0, f"{what} difficult", _FLAGS),
        truncated=parse_flag(annotation.get("truncated") or 0, f"{what} truncated", _FLAGS),
        occluded="occluded" in options.keep and parse_flag(occluded, f"{what} occluded", _FLAGS),
        category_id=annotation["category_id"] if "category_id" in options.keep else None,
        area=None if area is None else parse_number(area, f"{what} area"),
        mask=mask,
        lost_parts=lost,
    )
    return box if share is None else replace(box, turned_share=share)


def _mask(segmentation: Any, what: str, options: LayoutOptions) -> tuple[Any, int]:
    """Return the polygons or the run-length code of a segmentation, and the number of polygons that are left out."""
    if segmentation is None or segmentation == []:
        raise SourceError("annotation", "object has no segmentation", what)
    if isinstance(segmentation, dict):
        size, counts = segmentation.get("size"), segmentation.get("counts")
        if isinstance(size, list) and len(size) == 2 and isinstance(counts, list | str):
            return segmentation, 0
    elif isinstance(segmentation, list):
        return usable_parts(segmentation, what, options)
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
                f"{example.source}: lies in two splits, {other.split} and {example.split}; an image has one split"
            )
        if counts[example.source] > 1 and example.problem is None:
            fault = ("annotation", "several image entries name one file", f"key {example.key!r}")
            example = replace(example, boxes=None, problem=fault)
        checked.append(example)
    return checked


def _unread_keys(document: InstancesFile, options: LayoutOptions) -> tuple[str, ...]:
    """Return a note if the annotations of an instances file have keys that the reader ignores."""
    file, annotations = document.file, document.annotations
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


def _check_form(document: InstancesFile, options: LayoutOptions) -> None:
    """Raise AnnotationsError if all bboxes fit their images as two corners, but many do not as corner and size."""
    if options.box_form != "auto":
        return
    sizes: dict[Any, tuple[Any, Any]] = {
        normalize_id(one.get("id")): (one.get("height"), one.get("width")) for one in document.images
    }
    boxes = outside = 0
    for one in document.annotations:
        box, size = one.get("bbox"), sizes.get(normalize_id(one.get("image_id")), (None, None))
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
            f"{document.file}: {outside} of {boxes} bboxes leave their image as x, y, width, height, and all fit as "
            "corners; say --box-form corners, or corner-size if that is meant all the same"
        )


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


# Keypoints: their names, which are stored in the categories, and their points -----------------------------

_WITH_FRACTIONS = (
    "keypoints have fractions: taken as places from the picture's corner, not as COCO's numbers of pixels"
)
_UNLABELED_WITH_PLACE = (
    "keypoints of visibility 0 (not labeled, says COCO) that have coordinates: kept as they are"
)
_OTHER_COUNT = (
    "num_keypoints of annotations is not how many of their keypoints are labeled; the keypoints are taken"
)
_MIDDLE = 0.5


@dataclass(frozen=True, kw_only=True)
class _Skeletons:
    """Keypoint names of one conversion.

    Args:
        names: distinct names of all categories, in the order of the category ids.
        by_category: names of each category that has keypoints, in its own order.
        shift: distance from the numbers of a file to places: those of pixels mean their middle.
    """

    names: tuple[str, ...]
    by_category: Mapping[int, tuple[str, ...]]
    shift: float = 0.0


def _named_keypoints(file: str, categories: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, ...]]:
    """Return the keypoint names by category id, for the categories that have keypoints."""
    found: dict[int, tuple[str, ...]] = {}
    for category in categories:
        names, identity = category.get("keypoints") or [], category.get("id")
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise AnnotationsError(
                f"{file}: keypoints of category {category.get('name')!r}: expected a list of names, got {names!r:.80}"
            )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise AnnotationsError(
                f"{file}: keypoints of category {category.get('name')!r}: {twice!r} comes twice; give each its own name"
            )
        if names and isinstance(identity, int):
            found[identity] = tuple(names)
    return found


def _skeletons_of(documents: Iterable[InstancesFile]) -> _Skeletons:
    """Return the keypoint names of all files."""
    by_category: dict[int, tuple[str, ...]] = {}
    first = ""
    has_keypoints = False
    for document in documents:
        file = document.file
        first = first or file
        named = _named_keypoints(file, document.categories)
        nameless = {category.get("id") for category in document.categories} - set(named)
        for identity, names in named.items():
            if by_category.setdefault(identity, names) != names:
                raise AnnotationsError(
                    f"{file}: keypoints of category {identity} have other names than in a file before; convert the "
                    "files one by one, or make their categories agree"
                )
        for annotation in document.annotations:
            if not annotation.get("keypoints"):
                continue
            has_keypoints = True
            if annotation["category_id"] in nameless and _is_any_set(annotation["keypoints"]):
                raise AnnotationsError(
                    f"{file}: --keep keypoints: annotation {annotation.get('id')} has keypoints, and its category "
                    f'{annotation["category_id"]} no list of their names; add it to the category as "keypoints", or '
                    "leave --keep keypoints out"
                )
    if not has_keypoints:
        raise AnnotationsError(f"{first}: --keep keypoints: no annotation says it; leave it out")
    each = dict.fromkeys(name for identity in sorted(by_category) for name in by_category[identity])
    return _Skeletons(names=tuple(each), by_category=by_category)


def _are_pixel_numbers_in(annotations: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all keypoints of a file are whole numbers, so that they count pixels as COCO's own do.

    >>> _are_pixel_numbers_in([{"keypoints": [3, 4.0, 2]}]), _are_pixel_numbers_in([{"keypoints": [3, 4.5, 2]}])
    (True, False)
    """
    return all(
        float(value).is_integer()
        for annotation in annotations
        for x, y, _ in _triples(annotation.get("keypoints"))
        for value in (x, y)
        if isinstance(value, int | float)
    )


def _keypoints_of(annotation: Mapping[str, Any], skeletons: _Skeletons, what: str) -> tuple[Keypoint, ...]:
    """Return a point for each of `skeletons.names`; missing points are unlabeled, at (0, 0)."""
    own = skeletons.by_category.get(annotation["category_id"], ())
    written = annotation.get("keypoints") or []
    if not isinstance(written, list) or (written and own and len(written) != 3 * len(own)):
        got = f"{len(written)} numbers" if isinstance(written, list) else repr(written)[:60]
        detail = f"{what}: {got} for {plural(len(own), 'name')}"
        raise SourceError("annotation", "keypoints are not three numbers for each name", detail)
    points = {}
    for name, (x, y, visibility) in zip(own, _triples(written), strict=False):
        if visibility not in (0, 1, 2):
            detail = f"{what} {name}: {visibility!r}"
            raise SourceError("annotation", "visibility of a keypoint is not 0, 1 or 2", detail)
        x, y = parse_number(x, f"{what} {name}"), parse_number(y, f"{what} {name}")
        if visibility or x or y:
            points[name] = Keypoint(
                name=name, y=y + skeletons.shift, x=x + skeletons.shift, visibility=int(visibility)
            )
    return tuple(points.get(name, Keypoint(name=name)) for name in skeletons.names)


def _notes_of(annotations: Sequence[Mapping[str, Any]], skeletons: _Skeletons) -> tuple[str, ...]:
    """Return notes for the user about the keypoints of one image."""
    placed = other = False
    for annotation in annotations:
        if annotation["category_id"] not in skeletons.by_category:
            continue
        triples = _triples(annotation.get("keypoints"))
        placed |= any(visibility == 0 and (x or y) for x, y, visibility in triples)
        labeled = sum(visibility in (1, 2) for *_, visibility in triples)
        other |= annotation.get("num_keypoints", labeled) != labeled
    return (*([_UNLABELED_WITH_PLACE] if placed else []), *([_OTHER_COUNT] if other else []))


def _triples(written: Any) -> list[tuple[Any, Any, Any]]:
    if not isinstance(written, list):
        return []
    return list(zip(written[::3], written[1::3], written[2::3], strict=False))


def _is_any_set(written: Any) -> bool:
    return not isinstance(written, list) or any(value != 0 for value in written)
