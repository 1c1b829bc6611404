"""Reader of COCO JSON: instances, their masks and keypoints, panoptic files, and classes of images."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

from halofeed.prep.annotations.class_names import note_similar_classes, shorten_list
from halofeed.prep.annotations.columns import is_geometry, normalize_name
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    Listing,
    attributes_of,
    grouped,
    rejected_example,
    sort_examples,
)
from halofeed.prep.annotations.image_index import ImageIndex, ImageMatch, ImageQuery
from halofeed.prep.annotations.picture_classes import means_empty, settle_classes, with_classes
from halofeed.prep.annotations.resolve_boxes import resolve_boxes
from halofeed.prep.annotations.written_boxes import (
    BOX_IS_ORIENTED,
    angle_of,
    check_oriented,
    declared_size,
    is_mostly_bad,
    keeps_corners,
    numbers_of,
    parse_flag,
    parse_number,
    rectangle_of,
    region_of,
    usable_boxes,
    usable_parts,
    with_corners,
)
from halofeed.prep.layouts.coco_files import (
    CROWD_KEYS,
    TURNED_SHARE,
    FileClasses,
    InstancesFile,
    crowd_of,
    is_class_alone,
    is_ignored_region,
    normalize_id,
    read_files,
    values_of_classes,
)
from halofeed.prep.sources.example import Box, Keypoint, SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import plural

_KNOWN_KEYS = frozenset(
    (
        *(TURNED_SHARE, "id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"),
        "ignore",
        *("difficult", "truncated"),  # halofeed's own exports have them, and those of VOC's converters
    )
)
"""Keys of an annotation that the reader uses, in addition to other spellings of iscrowd."""
_IMAGE_KEYS = frozenset(("id", "file_name", "height", "width"))
"""Keys of an image entry that the reader uses; the others may name its group."""
_KEPT = {"occluded": ("occluded", "attributes"), "keypoints": ("keypoints", "num_keypoints")}
_FLAGS = {0: False, 1: True}
_IGNORED = (
    "annotations with ignore are ignored regions: training and evaluation leave them out for every class"
)
_NO_OUTLINE = frozenset(("keypoints", "num_keypoints"))
"""Keys that have words of geometry in their names; --keep reads them, and without it no box is lost."""
_CORNER_SIZE_MODES = (None, 1, "XYWH_ABS", "XYWH")
_OF_ALL = "; --task classification takes the classes of all pictures"
UNLABELED = 0
"""Value of pixels without a segment; classes have the values from 1."""
_LARGEST_SEGMENT = (1 << 24) - 1


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Listing:
    """Yield an example for every image of the named instances file, or of all instances files of the folder.

    The key is the image id; the image's path if several files use the same ids. An image without annotations has no
    boxes, which is valid. The file name contains the split (val2017 for `instances_val2017.json`, train for
    `instances.json`). For `valid/_annotations.coco.json` the folder is the split.

    Returns:
        The category names in the order of their ids, including unused ones, by their values in label images of
        panoptic files.

    Raises:
        AnnotationsError: a file is not COCO instances, or an image id occurs twice in it; a category has no
            definition or shares its name with another; or an image is in two splits.
    """
    documents = read_files(
        annotations,
        annotation_file,
        outlines=_needed_outlines(options),
        label_images=options.wants_label_images,
    )
    index = ImageIndex(images, annotations.root, options.takes)
    named = _match_images(documents, index)
    # All images are missing: a wrong folder, which one message tells better than a problem of each image.
    if named.of_entry and not named.paths:
        index.check_any_image(documents[0].file)
    _check_occluded(documents, options)
    skeletons = _skeletons_of(documents) if "keypoints" in options.keep else None
    # The documents take most of the memory of planning, so only their classes are kept.
    class_values = partial(values_of_classes, [_classes_of(document, options) for document in documents])
    listed: list[SourceExample] = []
    if options.wants_label_images:
        values = {name: value for value, name in class_values().items()}
        for document in documents:
            listed += _label_image_examples(document, named, values, options)
    elif _are_of_classes(documents, options):
        for document in documents:
            listed += _classified_images(document, named, options)
    else:
        for document in documents:
            examples = list(_object_examples(document, named, options, skeletons))
            listed += resolve_boxes(examples, images, options, document.file)
    # Keys are unique in a data set, and these ids are not.
    if _ids_restart(documents):
        listed = [replace(example, key=example.source) for example in listed]
    listed = _check_sources(listed)
    used = {example.source: example.split for example in listed if example.source in named.paths}
    # The PNGs of a panoptic file are images by their names, and no pictures without an annotation.
    used |= dict.fromkeys(named.label_images, "train")
    listed += index.without_annotation(used.items, only_used_folders=annotation_file is not None)
    yield from sort_examples(note_similar_classes(listed))
    return class_values


def _ids_restart(documents: Sequence[InstancesFile]) -> bool:
    """Return whether an image id occurs twice, as in exports that count images from 1 in the file of each split."""
    counts = Counter(normalize_id(entry["id"]) for document in documents for entry in document.images)
    return any(count > 1 for count in counts.values())


def _check_occluded(documents: Sequence[InstancesFile], options: LayoutOptions) -> None:
    """Raise AnnotationsError if occlusion is to be kept and no file has it."""
    annotations = (one for document in documents for one in document.annotations)
    # COCO has no such key; CVAT and halofeed's exports write it.
    if "occluded" in options.keep and not any(
        "occluded" in one or "attributes" in one for one in annotations
    ):
        raise AnnotationsError(f"{documents[0].file}: --keep occluded: no annotation says it; leave it out")


@dataclass(frozen=True, kw_only=True)
class _NamedImages:
    """Files that the entries of all documents name.

    Args:
        index: images of the source.
        of_entry: image by document and id of its entry.
        of_label: panoptic files: label image by document and normalized id of its entry.
    """

    index: ImageIndex
    of_entry: Mapping[tuple[str, int | str], ImageMatch | SourceError]
    of_label: Mapping[tuple[str, int | str | None], ImageMatch | SourceError]

    @cached_property
    def paths(self) -> frozenset[str]:
        """Paths of the images that exist."""
        return frozenset(one.path for one in self.of_entry.values() if isinstance(one, ImageMatch))

    @property
    def label_images(self) -> list[str]:
        """Paths of the label images that exist."""
        return [one.path for one in self.of_label.values() if isinstance(one, ImageMatch)]


def _match_images(documents: Sequence[InstancesFile], index: ImageIndex) -> _NamedImages:
    """Return the files that the entries of all documents name; all are matched at once, since names may be partial."""
    of_entry = {
        (document.file, entry["id"]): _image_query(entry["file_name"], document)
        for document in documents
        for entry in document.images
    }
    of_label = {
        (document.file, identity): _label_image_query(document.file, written)
        for document in documents
        for identity, written in document.label_images.items()
    }
    return _NamedImages(index=index, of_entry=index.match(of_entry), of_label=index.match(of_label))


def _entry_example(
    document: InstancesFile, entry: Mapping[str, Any], named: _NamedImages, options: LayoutOptions
) -> SourceExample:
    """Return the example of an image entry without its annotations; it has a problem if its file is missing."""
    image = named.of_entry[document.file, entry["id"]]
    example = SourceExample(
        source=named.index.relative(entry["file_name"]),  # an entry without a file is listed by its name
        # Tools that go through a table of floats write ids as 1.0; keys are whole numbers or texts.
        key=int(entry["id"]) if isinstance(entry["id"], float) else entry["id"],
        split=document.split,
        attributes=attributes_of(entry, _IMAGE_KEYS) if options.needs_groups else (),
    )
    if isinstance(image, SourceError):
        return replace(example, problem=image.args)
    return replace(example, source=image.path, notes=(image.note,) if image.note else ())


def _annotations_by_image(
    document: InstancesFile,
) -> tuple[Mapping[int | str | None, Sequence[dict[str, Any]]], list[SourceExample]]:
    """Return the annotations of each image, and an example with a problem for each id that no image has."""
    of_id = grouped((normalize_id(one.get("image_id")), one) for one in document.annotations)
    by_image = {
        identity: of_id.pop(identity, [])
        for identity in dict.fromkeys(normalize_id(entry["id"]) for entry in document.images)
    }
    # Images whose id comes twice are rejected with that reason, which their annotations share.
    lost = [one for identity, some in of_id.items() if identity not in document.repeated_ids for one in some]
    orphans = grouped((repr(one.get("image_id")), one.get("id")) for one in lost)
    _refuse_lost_annotations(document, by_image, orphans)
    return by_image, list(_orphaned(document, orphans))


def _are_of_classes(documents: Sequence[InstancesFile], options: LayoutOptions) -> bool:
    """Return whether the files give classes of images; raise AnnotationsError if the task needs something else."""
    # The user's word: sets of camera traps have boxes of some pictures, and classes of all. A picture of several
    # classes has a problem unless its set of classes is wanted.
    if options.task == "classification":
        return True
    of_classes = next((one for one in documents if one.classes_only), None)
    of_objects = next((one for one in documents if one.annotations and not one.classes_only), None)
    # A record has a class or boxes, so one conversion cannot take both.
    if of_classes and of_objects:
        raise AnnotationsError(
            f"{of_classes.file} has classes of images, and {of_objects.file} has objects; name one of the two with "
            "--source"
        )
    # iNaturalist's files look like instances files, and have neither bbox nor segmentation.
    if of_classes and options.wants_boxes:
        raise AnnotationsError(
            f"{of_classes.file}: its annotations have no boxes and no outlines, and give each image a class: take "
            "--task classification"
        )
    return of_classes is not None


def _classes_of(document: InstancesFile, options: LayoutOptions) -> FileClasses:
    """Return the classes of a file: those of its objects do not include one that means a picture without objects."""
    # Classification keeps it, as a class of pictures.
    if options.task == "classification" or document.classes_only or options.wants_label_images:
        return document.classes
    empty = _empty_classes(document, options)
    names = {identity: name for identity, name in document.names_by_id.items() if identity not in empty}
    return replace(document.classes, names_by_id=names, used=document.used.difference(empty))


def _empty_classes(document: InstancesFile, options: LayoutOptions) -> dict[int, str]:
    """Return the categories of pictures without objects, such as those of camera traps that show no animal.

    An unused category of such a name stays a class, since only annotations without a place show what it means.
    """
    alone: set[Any] = set()
    placed: set[Any] = set()
    for one in document.annotations:
        (alone if is_class_alone(one) else placed).add(one["category_id"])
    names = ((identity, document.names_by_id.get(identity)) for identity in alone - placed)
    return {identity: name for identity, name in names if name and means_empty(name, options)}


def _classified_images(
    document: InstancesFile, named: _NamedImages, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example with its class, or its classes, for each image of a file whose annotations are classes."""
    by_image, orphaned = _annotations_by_image(document)
    for entry in document.images:
        example = _entry_example(document, entry, named, options)
        numbers = dict.fromkeys(one["category_id"] for one in by_image[normalize_id(entry["id"])])
        unknown = [one for one in numbers if one not in document.names_by_id]
        # Without the class the image would count as an image of no class.
        if unknown and example.problem is None:
            detail = f"category_id {unknown[0]!r} is no category of {document.file}"
            example = replace(example, problem=("annotation", "image has no class", detail))
        names = [document.names_by_id[one] for one in numbers if one not in unknown]
        yield with_classes(example, names, document.file, options)
    yield from document.faulty
    yield from orphaned


def _image_query(file_name: str, document: InstancesFile) -> ImageQuery:
    """Return the possible locations of an entry's image: the folder of the document's split, the root, or images/."""
    # COCO's archives unpack to val2017/; converters write images/val2017/. Roboflow's pictures are beside their file.
    split, common = document.split, ("", "images")
    own = (split, f"images/{split}", f"{split}/images")
    return ImageQuery(name=file_name, places=(own, common) if document.names_split else ((*common, *own),))


def _label_image_examples(
    document: InstancesFile, named: _NamedImages, values: Mapping[str, int], options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield the examples of one panoptic file, each with its label image and the class of each segment."""
    value_of_category = {identity: values[name] for identity, name in document.names_by_id.items()}
    segments = grouped((normalize_id(one["image_id"]), one) for one in document.annotations)
    for entry in document.images:
        identity = cast("int | str", normalize_id(entry["id"]))  # entries with other ids are faulty
        label = named.of_label.get(
            (document.file, identity),
            SourceError("annotation", "image has no label", f"{document.file}: image_id {identity}"),
        )
        example = replace(_entry_example(document, entry, named, options), key=identity)
        if example.problem is None:
            example = _with_label_image(example, label, segments.get(identity, ()), value_of_category)
        yield example
    yield from document.faulty


def _with_label_image(
    example: SourceExample,
    label: ImageMatch | SourceError,
    segments: Sequence[Mapping[str, Any]],
    value_of_category: Mapping[Any, int],
) -> SourceExample:
    """Return the example with its label image and the class of each segment, or with a problem."""
    try:
        if isinstance(label, SourceError):
            raise label
        of_segments = _segment_values(segments, value_of_category)
    except SourceError as error:
        return replace(example, problem=error.args)
    return replace(example, mask=label.path, segments=of_segments)


def _label_image_query(name: str, written: str) -> ImageQuery:
    """Return the possible locations of a label image: the folder with the name of the file, or that file's folder."""
    folder, _, file = name.rpartition("/")
    # COCO's archives have annotations/panoptic_val2017.json beside the folder annotations/panoptic_val2017.
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
    halofeed.system.errors.SourceError: ...
    """
    found: dict[int, int] = {}
    for one in segments:
        identity, category = one.get("id"), one.get("category_id")
        # COCO's panoptic format: a pixel's segment is R + 256 G + 65536 B, so ids have 24 bits; 0 is no segment.
        if not isinstance(identity, int) or not 0 < identity <= _LARGEST_SEGMENT or identity in found:
            detail = f"{identity!r}; expected different whole numbers from 1 to {_LARGEST_SEGMENT}"
            raise SourceError("annotation", "segment id is invalid or comes twice", detail)
        # A segment without a class would be background.
        if category not in value_of_category:
            detail = f"segment {identity}: category_id {category!r} is no category of the file"
            raise SourceError("annotation", "object has no class", detail)
        found[identity] = value_of_category[category]
    return tuple(found.items())


def _object_examples(
    document: InstancesFile, named: _NamedImages, options: LayoutOptions, skeletons: _Skeletons | None
) -> Iterator[SourceExample]:
    """Yield the examples of one file in the order of its images, followed by those of its faulty entries."""
    _check_form(document, options)
    notes = _unread_keys(document, options)
    if document.outlined:
        count = plural(document.outlined, "annotation has", "annotations have")
        notes += (f"{document.file}: {count} no bbox: the box is that of the outline",)
    for name in _empty_classes(document, options).values():
        notes += (f"{document.file}: {name} means a picture without objects, and is no class of objects",)
    if skeletons is not None:
        are_pixel_numbers = _are_pixel_numbers_in(document.annotations)
        skeletons = replace(skeletons, shift=_MIDDLE if are_pixel_numbers else 0.0)
        notes += () if are_pixel_numbers else (_WITH_FRACTIONS,)
    reader = _ObjectReader(document=document, options=options, skeletons=skeletons)
    by_image, orphaned = _annotations_by_image(document)
    read = []
    for entry in document.images:
        annotations = by_image[normalize_id(entry["id"])]
        example = _entry_example(document, entry, named, options)
        if example.problem is None:
            example = reader.with_objects(example, entry, annotations)
        read.append((example, reader.classes_alone(annotations), document.file))
    settled = settle_classes(read, options, are_objects=True, advice=_OF_ALL)
    for example in (*settled, *document.faulty, *orphaned):
        yield replace(example, notes=(*example.notes, *notes)) if example.boxes else example


@dataclass(frozen=True, kw_only=True)
class _ObjectReader:
    """Reader of the annotations of one file; with `skeletons`, objects have keypoints."""

    document: InstancesFile
    options: LayoutOptions
    skeletons: _Skeletons | None

    def with_objects(
        self, example: SourceExample, entry: Mapping[str, Any], annotations: Sequence[dict[str, Any]]
    ) -> SourceExample:
        """Return the example with the objects of its image, or with the problem of one of them."""
        placed = [one for one in annotations if not is_class_alone(one)]
        try:
            boxes, bad = usable_boxes(placed, self._box, self.options)
            size = declared_size(entry.get("height"), entry.get("width"))
        except SourceError as error:
            return replace(example, problem=error.args)
        notes = example.notes + (_IGNORED,) * any(box.is_region for box in boxes)
        if self.skeletons is not None and boxes:
            notes += _notes_of(annotations, self.skeletons)
        return replace(example, boxes=boxes, declared_size=size, bad_objects=bad, notes=notes)

    def classes_alone(self, annotations: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the classes that annotations give an image without a place in it, as in COCO Camera Traps."""
        names = self.document.names_by_id
        numbers = [one["category_id"] for one in annotations if is_class_alone(one)]
        return [names[number] for number in numbers if number in names]

    def _box(self, annotation: dict[str, Any]) -> Box:
        box = _box(annotation, self.document.names_by_id, self.options)
        if self.skeletons is None:
            return box
        what = f"annotation {annotation.get('id')}"
        return replace(box, keypoints=_keypoints_of(annotation, self.skeletons, what))


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
    # Single orphans are errors. Many, with images that lack objects, mean that image_id has other ids than images.
    if lost and (lost == count or (is_mostly_bad(lost, count) and 2 * bare >= len(by_image))):
        raise AnnotationsError(
            f"{document.file}: {lost} of {count} annotations belong to no image, the first has image_id "
            f"{next(iter(orphans))}; ids of images are {', '.join(map(str, list(by_image)[:3]))}; make image_id the "
            "id of an image, or name the file that holds these images"
        )


def _box(annotation: dict[str, Any], names_by_id: dict[int, str], options: LayoutOptions) -> Box:
    what = f"annotation {annotation.get('id')}"
    bbox = _four_numbers(annotation.get("bbox"), what)
    if is_ignored_region(annotation):
        values = [parse_number(value, f"{what} bbox") for value in bbox]
        return region_of(values, what, options, form="corner-size")
    # Few such annotations: of many, `_refuse_lost_categories` says that categories lacks entries.
    if annotation["category_id"] not in names_by_id:
        detail = f"{what}: category_id {annotation['category_id']!r} is no category of the file"
        raise SourceError("annotation", "object has no class", detail)
    values = [parse_number(value, f"{what} bbox") for value in bbox]
    # CVAT's COCO export puts the rotation of a box and its occlusion into `attributes`.
    written = annotation.get("attributes")
    attributes = written if isinstance(written, dict) else {}
    turn = angle_of(attributes.get("rotation"), what, options)
    is_crowd = parse_flag(crowd_of(annotation), f"{what} iscrowd", _FLAGS)
    occluded = annotation.get("occluded", attributes.get("occluded", 0))
    area = annotation.get("area")
    # A mask shows a turned object as it is, so only boxes need to be upright.
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
        difficult=_flag(annotation, "difficult", what),
        truncated=_flag(annotation, "truncated", what),
        occluded="occluded" in options.keep and parse_flag(occluded, f"{what} occluded", _FLAGS),
        category_id=annotation["category_id"] if "category_id" in options.keep else None,
        area=None if area is None else parse_number(area, f"{what} area"),
        mask=mask,
        lost_parts=lost,
    )
    # `rectangle_of` has measured the rotation of a box.
    box = replace(box, turned_share=share or box.turned_share)
    # The rotation of a box, where there is one, says more than an outline that may be upright.
    return box if box.corners else with_corners(box, _only_polygon(annotation), what, options)


def _needed_outlines(options: LayoutOptions) -> str:
    """Return which outlines of objects the options need, as `read_files` takes it."""
    if options.masks:
        return "all"
    return "corners" if keeps_corners(options) else "none"


def _only_polygon(annotation: Mapping[str, Any]) -> list[float]:
    """Return x, y, x, y, ... of an outline of one polygon; [] without one."""
    outline = annotation.get("segmentation")
    # Several polygons, and run lengths, have no four corners.
    if not isinstance(outline, list) or len(outline) != 1 or not isinstance(outline[0], list):
        return []
    return numbers_of(outline[0], f"annotation {annotation.get('id')} segmentation")


def _four_numbers(bbox: Any, what: str) -> list[Any]:
    """Return a written bbox; raise SourceError if it is no list of four values."""
    values = bbox if isinstance(bbox, list) else []
    if len(values) == 5:
        # Detectron2 and others write an angle, in degrees or radians, after a center or a corner.
        detail = f"{what}: {bbox!r:.80} has an angle; write the upright box as x, y, width, height"
        raise SourceError("annotation", BOX_IS_ORIENTED, detail)
    if len(values) != 4:
        raise SourceError("annotation", "bbox is not four numbers", f"{what}: {bbox!r}"[:200])
    return values


def _flag(annotation: Mapping[str, Any], name: str, what: str) -> bool:
    """Return a flag of VOC that converters and halofeed's own exports write; COCO itself has none."""
    return parse_flag(annotation.get(name) or 0, f"{what} {name}", _FLAGS)


def _mask(segmentation: Any, what: str, options: LayoutOptions) -> tuple[Any, int]:
    """Return the polygons or the run-length code of a segmentation, and the number of polygons that are left out."""
    # With --masks, an object without a mask would be background in the mask of its image.
    if segmentation is None or segmentation == []:
        raise SourceError("annotation", "object has no segmentation", what)
    if isinstance(segmentation, dict):
        # COCO's data format: crowds have run lengths {"size": [height, width], "counts": ...}, as a list or, encoded
        # by pycocotools, as a text; other objects have polygons.
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
        # An image in train and in val would be evaluated on what it was trained on.
        if other.split != example.split and other.problem is None and example.problem is None:
            raise AnnotationsError(
                f"{example.source}: lies in two splits, {other.split} and {example.split}; an image has one split"
            )
        # Either entry may lack objects of the other, and a part of the objects trains on a wrong background.
        if counts[example.source] > 1 and example.problem is None:
            fault = ("annotation", "several image entries name one file", f"key {example.key!r}")
            example = replace(example, boxes=None, problem=fault)
        checked.append(example)
    return checked


def _unread_keys(document: InstancesFile, options: LayoutOptions) -> tuple[str, ...]:
    """Return a note if the annotations of an instances file have keys that the reader ignores.

    Raises:
        AnnotationsError: a key that may hold boxes or outlines would be ignored, or bbox has another form.
    """
    _check_bbox_mode(document, options)
    read = set(_KNOWN_KEYS).union(*(keys for name, keys in _KEPT.items() if name in options.keep))
    ignored = {*CROWD_KEYS, *map(normalize_name, options.ignore_columns)}
    # By spelling first: a file has millions of keys, and few spellings.
    spellings = {key for one in document.annotations for key in one} - read
    unread = sorted(key for key in spellings if normalize_name(key) not in ignored)
    # A bbox may be a placeholder beside rbox or polygon; the user says which counts.
    if geometry := [key for key in unread if key not in _NO_OUTLINE and is_geometry(key)]:
        raise AnnotationsError(
            f"{document.file}: annotations have {', '.join(geometry)}, which would not be read and may hold boxes or "
            f"outlines; --ignore-columns {','.join(geometry)} ignores them"
        )
    named = [key for key in unread if key != "bbox_mode"]
    return (f"keys of annotations in {document.file} that are not read: {', '.join(named)}",) if named else ()


def _check_bbox_mode(document: InstancesFile, options: LayoutOptions) -> None:
    """Raise AnnotationsError for a form of boxes that only --box-form reads.

    Detectron2's dicts have the key bbox_mode, an entry of its `BoxMode`: 0 is corners, 1 is a corner and a size, as
    COCO has it.
    """
    modes = [
        one["bbox_mode"] for one in document.annotations if one.get("bbox_mode") not in _CORNER_SIZE_MODES
    ]
    if modes and options.box_form == "auto":
        raise AnnotationsError(
            f"{document.file}: bbox_mode is {modes[0]!r}, not COCO's x, y, width, height; state with --box-form what "
            "bbox has"
        )


def _check_form(document: InstancesFile, options: LayoutOptions) -> None:
    """Raise AnnotationsError if all bboxes fit their images as two corners, but many do not as corner and size.

    Scripts write corners into COCO files by mistake. A file of corners has boxes that leave their image when they are
    read as a corner and a size; one box that does not fit as corners proves COCO's form.
    """
    # The user has said what bbox has.
    if options.box_form != "auto":
        return
    boxes = outside = 0
    for height, width, (x, y, third, fourth) in _boxes_with_sizes(document):
        # One pixel more than the size, for tools that count the last pixel.
        if not (x < third <= width + 1 and y < fourth <= height + 1):
            return
        boxes += 1
        outside += x + third > width + 1 or y + fourth > height + 1
    # Small boxes near the upper left fit both ways; a third outside is too many for single errors.
    if boxes and 3 * outside >= boxes:
        raise AnnotationsError(
            f"{document.file}: {outside} of {boxes} bboxes leave their image as x, y, width, height, and all fit as "
            "corners; use --box-form corners, or corner-size if that is meant all the same"
        )


def _boxes_with_sizes(document: InstancesFile) -> Iterator[tuple[float, float, list[float]]]:
    """Yield the height and the width of its image with each bbox of four numbers; others are judged one by one."""
    sizes: dict[Any, tuple[Any, Any]] = {
        normalize_id(one.get("id")): (one.get("height"), one.get("width")) for one in document.images
    }
    for one in document.annotations:
        box, size = one.get("bbox"), sizes.get(normalize_id(one.get("image_id")), (None, None))
        # A box can only be compared with the size of its image.
        if not all(map(_is_length, size)) or not isinstance(box, list) or len(box) != 4:
            continue
        # JSON integers may be too large for a float.
        if all(isinstance(value, int | float) and abs(value) <= sys.float_info.max for value in box):
            yield *size, box


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
    named = [(category.get("id"), _keypoint_names(file, category)) for category in categories]
    return {identity: names for identity, names in named if names and isinstance(identity, int)}


def _keypoint_names(file: str, category: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names that COCO's format keeps in the list `keypoints` of a category; () without one."""
    names, what = category.get("keypoints") or [], f"{file}: keypoints of category {category.get('name')!r}"
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise AnnotationsError(f"{what}: expected a list of names, got {names!r:.80}")
    # Records keep keypoints by name.
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise AnnotationsError(f"{what}: {twice[0]!r} comes twice; give each its own name")
    return tuple(names)


def _skeletons_of(documents: Sequence[InstancesFile]) -> _Skeletons:
    """Return the keypoint names of all files."""
    by_category: dict[int, tuple[str, ...]] = {}
    for document in documents:
        for identity, names in _named_keypoints(document.file, document.categories).items():
            # Keypoints have one length and order for all objects (docs/decisions.md).
            if by_category.setdefault(identity, names) != names:
                raise AnnotationsError(
                    f"{document.file}: keypoints of category {identity} have other names than in a file before; "
                    "convert the files one by one, or make their categories agree"
                )
        _refuse_nameless_keypoints(document)
    # A typed field that no annotation has would silently keep nothing.
    if not any(one.get("keypoints") for document in documents for one in document.annotations):
        raise AnnotationsError(f"{documents[0].file}: --keep keypoints: no annotation says it; leave it out")
    each = dict.fromkeys(name for identity in sorted(by_category) for name in by_category[identity])
    return _Skeletons(names=tuple(each), by_category=by_category)


def _refuse_nameless_keypoints(document: InstancesFile) -> None:
    """Raise AnnotationsError if an annotation has keypoints, and its category no names for them.

    Lists of zeros are placeholders that exporters write for objects without keypoints.
    """
    named = _named_keypoints(document.file, document.categories)
    nameless = {category.get("id") for category in document.categories} - set(named)
    for annotation in document.annotations:
        written = annotation.get("keypoints")
        if written and annotation["category_id"] in nameless and _is_any_set(written):
            raise AnnotationsError(
                f"{document.file}: --keep keypoints: annotation {annotation.get('id')} has keypoints, and its category "
                f'{annotation["category_id"]} no list of their names; add it to the category as "keypoints", or leave '
                "--keep keypoints out"
            )


def _are_pixel_numbers_in(annotations: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all keypoints of a file are whole numbers, so that they count pixels as COCO's own do.

    COCO's data format gives a keypoint as a "0-indexed location", which is the number of a pixel.

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
    # COCO's data format: keypoints is a list of length 3k, x, y and v for each of the category's k names.
    if not isinstance(written, list) or (written and own and len(written) != 3 * len(own)):
        got = f"{len(written)} numbers" if isinstance(written, list) else repr(written)[:60]
        detail = f"{what}: {got} for {plural(len(own), 'name')}"
        raise SourceError("annotation", "keypoints are not three numbers for each name", detail)
    points = {
        name: _keypoint(name, triple, skeletons.shift, what)
        for name, triple in zip(own, _triples(written), strict=False)
    }
    return tuple(points.get(name, Keypoint(name=name)) for name in skeletons.names)


def _keypoint(name: str, triple: tuple[Any, Any, Any], shift: float, what: str) -> Keypoint:
    """Return the point of an x, a y and a visibility: 0 is not labeled, 1 labeled and not visible, 2 visible."""
    x, y, visibility = triple
    # COCO's data format defines v as 0, 1 and 2.
    if visibility not in (0, 1, 2):
        detail = f"{what} {name}: {visibility!r}"
        raise SourceError("annotation", "visibility of a keypoint is not 0, 1 or 2", detail)
    x, y = parse_number(x, f"{what} {name}"), parse_number(y, f"{what} {name}")
    # COCO's data format: a keypoint that is not labeled has v=0 and x=y=0, so there is no position to shift.
    if not (visibility or x or y):
        return Keypoint(name=name)
    return Keypoint(name=name, y=y + shift, x=x + shift, visibility=int(visibility))


def _notes_of(annotations: Sequence[Mapping[str, Any]], skeletons: _Skeletons) -> tuple[str, ...]:
    """Return notes for the user about the keypoints of one image."""
    placed = other = False
    for annotation in annotations:
        # Categories without keypoints have lists of zeros at most.
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
