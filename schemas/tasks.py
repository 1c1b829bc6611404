"""Which fields the records of each task hold. A new task is one function and one line in `TASKS`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from halofeed.schemas.errors import UsageError
from halofeed.schemas.fields import Field


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """How the task's image is stored.

    Args:
        height, width: the static size, or the largest of the data set.
        depth: of volumes; None for pictures.
        channels, dtype, encoding: as of a `Field`.
        pad_value: what padding holds.
        label_dtype: of the class indices of segmentation.
        classes: segmentation: where a voxel may be in several, how many there are, each a channel of the label; else 0.
        scaled: volumes: whether each record says the scale of its values.
    """

    height: int
    width: int
    channels: int
    dtype: str
    encoding: str
    pad_value: tuple[float, ...] = (0,)
    depth: int | None = None
    label_dtype: str = "uint8"
    classes: int = 0
    scaled: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the image's axes but for the channel."""
        return ("height", "width") if self.depth is None else ("depth", "height", "width")

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes along `axes`."""
        return (self.height, self.width) if self.depth is None else (self.depth, self.height, self.width)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a data set is for: the first label's id and the fields beyond image, id and origin."""

    name: str
    first_label_id: int
    own_fields: Callable[[ImageFormat, int, bool], tuple[Field, ...]]

    def fields(
        self,
        image: ImageFormat,
        *,
        max_boxes: int,
        masks: bool,
        keep: Collection[str] = (),
        several_classes: int | None = None,
    ) -> tuple[Field, ...]:
        """All fields of a record, in the order in which people read them.

        Args:
            keep: detection: of `KEPT`, what else of each object the records have.
            several_classes: classification: how many classes there are, where a picture may have several of them.
        """
        pixels = Field(
            name="image",
            keys=("image/encoded",),
            dtype=image.dtype,
            axes=(*image.axes, "channel"),
            shape=(*image.shape, image.channels),
            encoding=image.encoding,
            fill=tuple(image.pad_value),
        )
        origin = ORIGIN_FIELDS if image.depth is None else VOLUME_ORIGIN_FIELDS
        if image.scaled:
            scale = [
                _numbers(f"intensity_{name}", (f"image/intensity/{name}",), "float32", (image.channels,))
                for name in ("scale", "offset")
            ]
            origin = (*origin, *scale)
        kept = [
            _per_box(field, KEPT[name], dtype, max_boxes, optional=True)
            for name, (field, dtype) in _KEPT_FIELDS.items()
            if name in keep
        ]
        own = self.own_fields(image, max_boxes, masks)
        if several_classes is not None:
            own = (_several_classes(several_classes),)
        return (pixels, *own, *kept, *origin)


def _value(name: str, key: str, dtype: str, *, optional: bool = True) -> Field:
    return Field(name=name, keys=(key,), dtype=dtype, encoding="value", optional=optional)


def _numbers(name: str, keys: tuple[str, ...], dtype: str, shape: tuple[int, ...]) -> Field:
    axes = ("coordinate",) if len(shape) == 1 else ("row", "column")
    return Field(name=name, keys=keys, dtype=dtype, axes=axes, shape=shape, encoding="value", optional=True)


_NAMES = (
    Field(name="id", keys=("image/source_id",), dtype="int64", encoding="text"),
    Field(name="source", keys=("image/filename",), dtype="str", encoding="text", optional=True),
    Field(name="key", keys=("image/key/source",), dtype="str", encoding="text", optional=True),
)

ORIGIN_FIELDS = (
    *_NAMES,
    _value("unpadded_height", "image/unpadded/height", "int32"),
    _value("unpadded_width", "image/unpadded/width", "int32"),
    _value("source_height", "image/source/height", "int32"),
    _value("source_width", "image/source/width", "int32"),
    _numbers("transform", ("image/transform",), "float32", (2, 3)),
)
"""Where a record came from. The unpadded size is the picture's before padding to the static shape.

`transform` maps stored pixels to source pixels: [y_source, x_source] = transform @ [y, x, 1], in continuous
coordinates whose origin is the corner of the first pixel."""


VOLUME_ORIGIN_FIELDS = (
    *_NAMES,
    _numbers("spacing_mm", ("image/spacing_mm",), "float32", (3,)),
    _numbers("affine", ("image/affine",), "float32", (4, 4)),
    _numbers("source_affine", ("image/source/affine",), "float32", (4, 4)),
    _numbers("source_shape", ("image/source/shape",), "int32", (3,)),
    _numbers("extent", ("image/extent",), "int32", (2, 3)),
    _value("tile", "image/tile", "int32"),
    _numbers("tile_origin", ("image/tile/origin",), "int32", (3,)),
)
"""Where the record of a volume came from; triples are depth, height, width.

`affine` maps stored voxels to the patient: [x, y, z, 1] = affine @ [depth, height, width, 1], in millimetres to the
right, to anterior and to superior (RAS+, as NIfTI has it), from the centre of the first voxel. `source_affine` does
so for the voxels of the source as its file lists them, the slowest index first: of a NIfTI array [i, j, k] it
takes [k, j, i, 1]. So source voxel = inverse(source_affine) @ affine @ stored voxel. `extent` is the first voxel
that shows the scan, and the one after the last, along each axis; the rest is padding. `tile` counts the patches of a
scan from 0 and `tile_origin` is where the patch begins on the grid of the whole resampled scan. Where each scan has a
scale of its own there are `intensity_scale` and `intensity_offset` too, one a channel: a source's value is
scale · stored + offset, but for what a window cut off."""


def _classification(image: ImageFormat, max_boxes: int, masks: bool) -> tuple[Field, ...]:
    return (_value("label", "image/class/label", "int32", optional=False),)


def _several_classes(classes: int) -> Field:
    return Field(
        name="labels",
        keys=("image/class/label",),
        dtype="uint8",
        axes=("class",),
        shape=(classes,),
        encoding="classes",
    )


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


def _detection(image: ImageFormat, max_boxes: int, masks: bool) -> tuple[Field, ...]:
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


def _segmentation(image: ImageFormat, max_boxes: int, masks: bool) -> tuple[Field, ...]:
    label = Field(
        name="label",
        keys=("image/label",),
        dtype="uint8" if image.classes else image.label_dtype,
        axes=(*image.axes, "class") if image.classes else image.axes,
        shape=(*image.shape, image.classes) if image.classes else image.shape,
        encoding="sets" if image.classes else "raw" if image.encoding == "raw" else "png",
    )
    return (label, _value("labelled", "image/labelled", "bool", optional=False))


KEPT = {
    "category_id": "image/object/class/source_label",
    "group_of": "image/object/group_of",
    "keypoints": "image/object/keypoint",
    "occluded": "image/object/occluded",
    "view": "image/object/view",
}
"""What records of detection can hold of each object beside what they always do, and the key of each. The view is a
text, and of keypoints (whose keys begin so) there are several an object: TensorFlow's readers give both, and no field
of the loader does."""
_KEPT_FIELDS = {
    "category_id": ("source_classes", "int32"),
    "group_of": ("group_of", "bool"),
    "occluded": ("occluded", "bool"),
}


TASKS = {
    "classification": Task(name="classification", first_label_id=0, own_fields=_classification),
    "detection": Task(name="detection", first_label_id=1, own_fields=_detection),
    "segmentation": Task(name="segmentation", first_label_id=0, own_fields=_segmentation),
}
"""Known tasks. Detection's labels begin at 1: 0 is background and padding. Segmentation's label is the index of a
class at every pixel or voxel, 0 the background, or of each class whether the voxel is in it; it is 0 throughout where
the source has none (`labelled` is False)."""


def task_named(name: str) -> Task:
    """The task of that name; UsageError that lists the known ones."""
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}; known: {', '.join(TASKS)}")
    return TASKS[name]
