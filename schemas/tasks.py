"""Fields of each task's records. A new task is one function and one line in `TASKS`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from halofeed.schemas import keys, kinds
from halofeed.schemas.fields import Field
from halofeed.schemas.kinds import Kind, kind_of
from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean

MASKS: Final = "masks"
"""Name of the field of the objects' masks, which data sets without `--masks` lack."""
IGNORED_BOXES: Final = "ignored_boxes"
"""Name of the field of ignored regions, which data sets without such regions lack."""
IGNORED_SOURCE_BOXES: Final = "ignored_source_boxes"
"""Name of the field of the complete regions of a tile."""
REGION_FIELDS: Final = (IGNORED_BOXES, IGNORED_SOURCE_BOXES)
"""Fields with a value for each ignored region, where other lists have one for each object."""


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """Storage of the image and the label.

    Args:
        kind: kind of image.
        shape: static size along the kind's axes, or the largest size in the data set.
        channels: number of channels.
        dtype: dtype of the image's `Field`.
        encoding: encoding of the image's `Field`.
        pad_value: padding value, one or one per channel.
        label_dtype: dtype of the class indices of segmentation.
        classes: number of classes of a segmentation in which a voxel may have several; else 0.
        ignore_label: label value of unknown pixels and of padding in a segmentation; None if there is none.
        scaled: True if each record of a volume states the scale of its values.
        tiled: True if a record is a tile of a picture.
        stated: names of `kinds.STATED_FIELDS` that some records of pictures have.
    """

    kind: Kind
    shape: tuple[int, ...]
    channels: int
    dtype: str
    encoding: str
    pad_value: tuple[float, ...] = (0,)
    label_dtype: str = "uint8"
    classes: int = 0
    ignore_label: int | None = None
    scaled: bool = False
    tiled: bool = False
    stated: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task:
    """Task that a data set serves.

    Args:
        name: name in manifests.
        first_label_id: id of the first label.
        has_label_image: True if each record has a class at every pixel or voxel.
        has_boxes: True if each record has objects with boxes.
        own_fields: function of the image's format, the number of boxes, and whether objects have masks, to the fields
            of the task.
    """

    name: str
    first_label_id: int
    has_label_image: bool = False
    has_boxes: bool = False
    own_fields: Callable[[ImageFormat, int, bool], tuple[Field, ...]]

    def fields(
        self,
        image: ImageFormat,
        *,
        max_boxes: int,
        masks: bool,
        keep: Collection[str] = (),
        several_classes: int | None = None,
        ignored_boxes: int = 0,
    ) -> tuple[Field, ...]:
        """Return all fields of a record: image, task, further attributes, origin.

        Args:
            image: storage of the image.
            max_boxes: detection: number of boxes to which the loader pads.
            masks: detection: True if objects have masks.
            keep: detection: keys of `OPTIONAL_ATTRIBUTES` that the records have.
            several_classes: classification: number of classes, if a picture may have several of them.
            ignored_boxes: detection: largest number of ignored regions in a record; 0 for data sets without any.
        """
        pixels = Field(
            name="image",
            keys=(keys.ENCODED,),
            dtype=image.dtype,
            axes=(*image.kind.axes, "channel"),
            shape=(*image.shape, image.channels),
            encoding=image.encoding,
            fill=tuple(image.pad_value),
        )
        origin = image.kind.origin(image.shape)
        if image.scaled:
            for name, key in (("scale", keys.INTENSITY_SCALE), ("offset", keys.INTENSITY_OFFSET)):
                origin += (kinds.value_field(f"intensity_{name}", key, "float32", (image.channels,)),)
        if image.tiled:
            origin += kinds.PICTURE_TILE_FIELDS
        origin += tuple(field for name, field in kinds.STATED_FIELDS.items() if name in image.stated)
        kept = [
            _per_box(field, OPTIONAL_ATTRIBUTES[name], dtype, max_boxes, optional=True)
            for name, (field, dtype) in _KEPT_FIELDS.items()
            if name in keep
        ]
        if "corners" in keep:
            kept.append(_corners(max_boxes))
        if ignored_boxes and self.has_boxes:
            kept += _ignored_boxes(ignored_boxes, is_tiled=image.tiled)
        own = self.own_fields(image, max_boxes, masks)
        if several_classes is not None:
            label = ("labels", keys.CLASS_LABEL, "uint8", (several_classes,), ("class",))
            own = (kinds.value_field(*label, encoding="classes", optional=False),)
        return (pixels, *own, *kept, *origin)


def _classification(image: ImageFormat, max_boxes: int, masks: bool) -> tuple[Field, ...]:
    return (kinds.value_field("label", keys.CLASS_LABEL, "int32", optional=False),)


def _per_box(name: str, key: str, dtype: str, max_boxes: int, *, optional: bool = False) -> Field:
    return kinds.value_field(name, key, dtype, (max_boxes,), ("box",), encoding="list", optional=optional)


def _corners(max_boxes: int) -> Field:
    return Field(
        name="corners",
        keys=keys.CORNER_POINTS,
        dtype="float32",
        axes=("box", "coordinate"),
        shape=(max_boxes, 8),
        encoding="list",
        optional=True,
    )


def _ignored_boxes(count: int, *, is_tiled: bool) -> tuple[Field, ...]:
    """Return the fields of rectangles of no class, which the loader pads with rectangles without area.

    The second one is optional and of tiles: the complete rectangles of which a tile shows parts, in pixels of the file.
    """
    shown = Field(
        name=IGNORED_BOXES,
        keys=keys.IGNORED_CORNERS,
        dtype="float32",
        axes=("box", "coordinate"),
        shape=(count, 4),
        encoding="list",
    )
    complete = replace(shown, name=IGNORED_SOURCE_BOXES, keys=keys.IGNORED_SOURCE_CORNERS, optional=True)
    return (shown, complete) if is_tiled else (shown,)


def _detection(image: ImageFormat, max_boxes: int, masks: bool) -> tuple[Field, ...]:
    if "depth" in image.kind.axes:
        return _detection_in_volumes(max_boxes)
    fields: tuple[Field, ...] = (
        Field(
            name="boxes",
            keys=keys.BOX_CORNERS,
            dtype="float32",
            axes=("box", "coordinate"),
            shape=(max_boxes, 4),
            encoding="list",
        ),
        _per_box("classes", keys.OBJECT_CLASS_LABEL, "int32", max_boxes),
        _per_box("is_crowd", keys.OBJECT_IS_CROWD, "bool", max_boxes),
        _per_box("area", keys.OBJECT_AREA, "float32", max_boxes),
        _per_box("difficult", keys.OBJECT_DIFFICULT, "bool", max_boxes, optional=True),
        _per_box("truncated", keys.OBJECT_TRUNCATED, "bool", max_boxes, optional=True),
    )
    if image.tiled:
        fields += _objects_of_tile(max_boxes)
    if not masks:
        return fields
    # A mask has the size of its own picture, so the field has no static shape. The loader returns uint8 [box, height,
    # width] of 0 and 1, padded to the number of `boxes` and to the size of `image`.
    mask = Field(name=MASKS, keys=(keys.OBJECT_MASK,), dtype="uint8", encoding="png_list", optional=True)
    return (*fields, mask)


def _detection_in_volumes(max_boxes: int) -> tuple[Field, ...]:
    """Return the fields of objects in volumes.

    `boxes` are zmin, ymin, xmin, zmax, ymax, xmax along depth, height and width, normalized to the stored volume with
    its padding. An object is flagged `is_crowd`, to be ignored, if the record shows less of it than --min-visible.
    `index` is the number of the object in its source from 0, and `visible` the share of its box that the record shows.
    `source_boxes` are the complete boxes in voxels of the source, in the order of its file like `source_affine`, with
    the origin at the corner of the first voxel: a box of all of a file of 40 slices extends from 0 to 40.
    """
    return (
        _solid_boxes("boxes", keys.SOLID_CORNERS, max_boxes),
        _per_box("classes", keys.OBJECT_CLASS_LABEL, "int32", max_boxes),
        _per_box("is_crowd", keys.OBJECT_IS_CROWD, "bool", max_boxes),
        _per_box("index", keys.OBJECT_INDEX, "int32", max_boxes, optional=True),
        _per_box("visible", keys.OBJECT_VISIBLE, "float32", max_boxes, optional=True),
        _solid_boxes("source_boxes", keys.OBJECT_SOURCE_SOLID_CORNERS, max_boxes, optional=True),
    )


def _solid_boxes(name: str, corners: tuple[str, ...], max_boxes: int, *, optional: bool = False) -> Field:
    return Field(
        name=name,
        keys=corners,
        dtype="float32",
        axes=("box", "coordinate"),
        shape=(max_boxes, 6),
        encoding="list",
        optional=optional,
    )


def _objects_of_tile(max_boxes: int) -> tuple[Field, ...]:
    """Return the fields that lead from the pieces of objects in a tile to the complete objects of its source.

    `index` is the number of the object in its source from 0, and `visible` the share of its box inside the tile.
    `source_boxes`, `source_area` and `source_is_crowd` describe the complete object in pixels of the source file.
    """
    source_boxes = Field(
        name="source_boxes",
        keys=keys.OBJECT_SOURCE_CORNERS,
        dtype="float32",
        axes=("box", "coordinate"),
        shape=(max_boxes, 4),
        encoding="list",
        optional=True,
    )
    return (
        _per_box("index", keys.OBJECT_INDEX, "int32", max_boxes, optional=True),
        _per_box("visible", keys.OBJECT_VISIBLE, "float32", max_boxes, optional=True),
        source_boxes,
        _per_box("source_area", keys.OBJECT_SOURCE_AREA, "float32", max_boxes, optional=True),
        _per_box("source_is_crowd", keys.OBJECT_SOURCE_IS_CROWD, "bool", max_boxes, optional=True),
    )


LABEL_ENCODINGS = {
    "raw": ("raw", "sets"),
    "packed": ("packed", "packed_sets"),
    "yuv420": ("packed", "packed_sets"),
    "jpeg": ("png", "sets"),
    "png": ("png", "sets"),
}
"""Encoding of a label map by that of its image: of class indices, and of class sets."""


def _segmentation(image: ImageFormat, max_boxes: int, masks: bool) -> tuple[Field, ...]:
    label = Field(
        name="label",
        keys=(keys.LABEL,),
        dtype="uint8" if image.classes else image.label_dtype,
        axes=(*image.kind.axes, "class") if image.classes else image.kind.axes,
        shape=(*image.shape, image.classes) if image.classes else image.shape,
        encoding=LABEL_ENCODINGS[image.encoding][bool(image.classes)],
        fill=(image.ignore_label or 0,),
    )
    return (label, kinds.value_field("labelled", keys.LABELLED, "bool", optional=False))


OPTIONAL_ATTRIBUTES = {
    "category_id": keys.OBJECT_CLASS_SOURCE_LABEL,
    "corners": keys.OBJECT_CORNERS,
    "group_of": keys.OBJECT_GROUP_OF,
    "keypoints": keys.OBJECT_KEYPOINT,
    "occluded": keys.OBJECT_OCCLUDED,
    "view": keys.OBJECT_VIEW,
}
"""Optional attributes of objects in records of detection, and the key of each. Only TensorFlow's readers give the view,
which is a text, and the keypoints, of which an object has several with keys of this prefix; the loader does not. The
keys of corners have their prefix too, and the loader gives them as one array."""
_KEPT_FIELDS = {
    "category_id": ("source_classes", "int32"),
    "group_of": ("group_of", "bool"),
    "occluded": ("occluded", "bool"),
}


TASKS = {
    "classification": Task(name="classification", first_label_id=0, own_fields=_classification),
    "detection": Task(name="detection", first_label_id=1, has_boxes=True, own_fields=_detection),
    "segmentation": Task(
        name="segmentation", first_label_id=0, has_label_image=True, own_fields=_segmentation
    ),
}
"""Known tasks. Labels of detection begin at 1, since 0 is background and padding. The label of segmentation is the
index of a class at every pixel or voxel, 0 for the background, or 0 and 1 for each class. It is 0 everywhere if the
source has no label (`labelled` is False)."""


def task_named(name: str) -> Task:
    """Return the task of this name; UsageError lists the known ones."""
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}; {did_you_mean(name, TASKS)}known: {', '.join(TASKS)}")
    return TASKS[name]


_COMPARED = ("keys", "dtype", "axes", "shape", "encoding")


def field_problems(task: str, fields: Sequence[Field], labels: Collection[int]) -> Iterator[tuple[str, str]]:
    """Yield (path in a manifest, problem) for each difference between fields and those of a task's records.

    Args:
        task: a key of `TASKS`.
        fields: fields that are valid by themselves, see `Field.problems`.
        labels: ids of the classes.
    """
    named = {field.name: field for field in fields}
    image = named.get("image")
    if image is None:
        yield "fields.image", "it is missing"
        return
    kind = kind_of(image.axes)
    if kind is None:
        known = "expected the axes height, width and channel, perhaps depth or frame before them"
        yield "fields.image", f"{known}, got {image.axes!s:.200}"
        return
    if problem := kind.image_problem(image):
        yield "fields.image", problem
        return
    yield from _differences(task, fields, _expected_fields(task, kind, named, labels))


def _expected_fields(
    task: str, kind: Kind, named: Mapping[str, Field], labels: Collection[int]
) -> tuple[Field, ...]:
    """Return the fields of a task's records with every choice that the given fields show."""
    image, label, boxes = named["image"], named.get("label"), named.get("boxes")
    ignored = named.get(IGNORED_BOXES)
    in_sets = task == "segmentation" and label is not None and label.holds_sets
    return task_named(task).fields(
        ImageFormat(
            kind=kind,
            shape=image.shape[:-1],
            channels=image.shape[-1],
            dtype=image.dtype,
            encoding=image.encoding,
            pad_value=image.fill,
            label_dtype="uint16" if label is not None and label.dtype == "uint16" else "uint8",
            classes=sum(identity > 0 for identity in labels) if in_sets else 0,
            scaled="intensity_scale" in named or "intensity_offset" in named,
            tiled=kind.name == "picture" and "tile" in named,
            stated=tuple(kinds.STATED_FIELDS.keys() & named) if kind.name == "picture" else (),
        ),
        max_boxes=boxes.shape[0] if boxes is not None and boxes.shape else 1,
        masks=MASKS in named,
        keep=(*_KEPT_FIELDS, "corners"),
        several_classes=len(labels) if task == "classification" and "labels" in named else None,
        ignored_boxes=ignored.shape[0] if ignored is not None and ignored.shape else 0,
    )


def _differences(task: str, fields: Sequence[Field], expected: Sequence[Field]) -> Iterator[tuple[str, str]]:
    """Yield (path in a manifest, problem) where fields are not as expected, or missing."""
    patterns = {pattern.name: pattern for pattern in expected}
    for field in fields:
        name = field.name
        if name not in patterns:
            yield f"fields.{name}", f"records of {task} have no such field"
            continue
        for attribute in _COMPARED:
            ours, theirs = getattr(field, attribute), getattr(patterns[name], attribute)
            if ours != theirs:
                yield f"fields.{name}.{attribute}", f"expected {theirs!r} of {task}, got {ours!r:.200}"
    given = {field.name for field in fields}
    for pattern in expected:
        if pattern.name not in given and not pattern.optional:
            yield f"fields.{pattern.name}", f"it is missing, and all records of {task} have it"
