"""Which fields the records of each task hold. A new task is one function and one line in `TASKS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from halofeed.schemas.errors import UsageError
from halofeed.schemas.fields import Field


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """How the task's image is stored: static (height, width), channels, dtype, encoding, padding value."""

    height: int
    width: int
    channels: int
    dtype: str
    encoding: str
    pad_value: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a data set is for: the first label's id and the fields beyond image, id and origin."""

    name: str
    first_label_id: int
    own_fields: Callable[[int, bool], tuple[Field, ...]]

    def fields(self, image: ImageFormat, *, max_boxes: int, masks: bool) -> tuple[Field, ...]:
        """All fields of a record, in the order in which people read them."""
        pixels = Field(
            name="image",
            keys=("image/encoded",),
            dtype=image.dtype,
            axes=("height", "width", "channel"),
            shape=(image.height, image.width, image.channels),
            encoding=image.encoding,
            fill=tuple(image.pad_value),
        )
        return (pixels, *self.own_fields(max_boxes, masks), *ORIGIN_FIELDS)


def _value(name: str, key: str, dtype: str, *, optional: bool = True) -> Field:
    return Field(name=name, keys=(key,), dtype=dtype, encoding="value", optional=optional)


ORIGIN_FIELDS = (
    Field(name="id", keys=("image/source_id",), dtype="int64", encoding="text"),
    Field(name="source", keys=("image/filename",), dtype="str", encoding="text", optional=True),
    Field(name="key", keys=("image/key/source",), dtype="str", encoding="text", optional=True),
    _value("unpadded_height", "image/unpadded/height", "int32"),
    _value("unpadded_width", "image/unpadded/width", "int32"),
    _value("source_height", "image/source/height", "int32"),
    _value("source_width", "image/source/width", "int32"),
    Field(
        name="transform",
        keys=("image/transform",),
        dtype="float32",
        axes=("row", "column"),
        shape=(2, 3),
        encoding="value",
        optional=True,
    ),
)
"""Where a record came from. The unpadded size is the picture's before padding to the static shape.

`transform` maps stored pixels to source pixels: [y_source, x_source] = transform @ [y, x, 1], in continuous
coordinates whose origin is the corner of the first pixel."""


def _classification(max_boxes: int, masks: bool) -> tuple[Field, ...]:
    return (_value("label", "image/class/label", "int32", optional=False),)


def _per_box(name: str, key: str, dtype: str, max_boxes: int, *, optional: bool = False) -> Field:
    return Field(
        name=name,
        keys=(key,),
        dtype=dtype,
        axes=("box",),
        shape=(max_boxes,),
        encoding="list",
        optional=optional,
    )


def _detection(max_boxes: int, masks: bool) -> tuple[Field, ...]:
    corners = tuple(f"image/object/bbox/{corner}" for corner in ("ymin", "xmin", "ymax", "xmax"))
    fields = (
        Field(
            name="boxes",
            keys=corners,
            dtype="float32",
            axes=("box", "coordinate"),
            shape=(max_boxes, 4),
            encoding="list",
        ),
        _per_box("classes", "image/object/class/label", "int32", max_boxes),
        _per_box("is_crowd", "image/object/is_crowd", "bool", max_boxes),
        _per_box("area", "image/object/area", "float32", max_boxes),
        _per_box("difficult", "image/object/difficult", "bool", max_boxes, optional=True),
        _per_box("truncated", "image/object/truncated", "bool", max_boxes, optional=True),
    )
    if not masks:
        return fields
    # A mask is as large as its own picture, so that the field names no shape: the loader gives uint8 [box, height,
    # width], 0 and 1, where `box` and its size are those of `boxes`, `height` and `width` those of `image`.
    mask = Field(name="masks", keys=("image/object/mask",), dtype="uint8", encoding="png_list", optional=True)
    return (*fields, mask)


TASKS = {
    "classification": Task(name="classification", first_label_id=0, own_fields=_classification),
    "detection": Task(name="detection", first_label_id=1, own_fields=_detection),
}
"""Known tasks. Detection's labels begin at 1: 0 is background and padding."""


def task_named(name: str) -> Task:
    """The task of that name; UsageError that lists the known ones."""
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}; known: {', '.join(TASKS)}")
    return TASKS[name]
