"""Kinds of image: picture, volume and clip. A new kind is one entry of `KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halofeed.schemas import keys
from halofeed.schemas.fields import Field

ImageShape = tuple[int, ...]
_VOXELS = ("uint8", "uint16", "int16", "float32", "bfloat16")


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """Properties of all records of one kind, whatever their task.

    Args:
        name: name in manifests.
        axes: axes of the image without the channel.
        stored: allowed dtypes of each encoding of the image.
        channels: allowed numbers of channels of each encoding; None allows any.
        origin: function from the image's shape, without the channel, to the fields that describe where a record came
            from.
        pads_around: True if the stored image has padding on all sides; else the loader adds it at the end of the last
            axes after augmentation.
    """

    name: str
    axes: tuple[str, ...]
    stored: Mapping[str, tuple[str, ...]]
    channels: Mapping[str, Sequence[int]] | None
    origin: Callable[[ImageShape], tuple[Field, ...]]
    pads_around: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return kind_of, ((*self.axes, "channel"),)  # `origin` may be a lambda, which cannot be pickled

    def image_problem(self, image: Field) -> str:
        """Return the problem of the image's field, or ""."""
        if image.encoding not in self.stored:
            first, *others = self.stored
            expected = f"{first}, or as {' or '.join(others)}" if others else first
            return f"expected it to be stored {expected}, got {image.encoding!r}"
        if image.dtype not in self.stored[image.encoding]:
            expected = " or ".join(self.stored[image.encoding])
            return f"expected {expected} stored as {image.encoding}, got {image.dtype!r}"
        if self.channels and image.shape[-1] not in self.channels[image.encoding]:
            allowed = self.channels[image.encoding]
            listed = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else allowed
            return f"expected {listed} channels of a {self.name}, got {image.shape[-1]}"
        return ""


def value_field(
    name: str, key: str, dtype: str, shape: ImageShape = (), axes: tuple[str, ...] = (), **more: Any
) -> Field:
    """Return an optional field of one key with the encoding "value".

    Args:
        name: name of the field.
        key: key in tf.train.Example.
        dtype: dtype of the field.
        shape: shape of the field; () is a single number.
        axes: names of the axes; default: coordinate for one axis, row and column for two.
        **more: further members of `Field`, which override the defaults.
    """
    how: dict[str, Any] = {"encoding": "value", "optional": True, **more}
    axes = axes or ((), ("coordinate",), ("row", "column"))[len(shape)]
    return Field(name=name, keys=(key,), dtype=dtype, axes=axes, shape=shape, **how)


_NAMES = (
    Field(name="id", keys=(keys.SOURCE_ID,), dtype="int64", encoding="text"),
    Field(name="source", keys=(keys.FILENAME,), dtype="str", encoding="text", optional=True),
    Field(name="key", keys=(keys.KEY_SOURCE,), dtype="str", encoding="text", optional=True),
)

_PICTURE_ORIGIN = (
    *_NAMES,
    value_field("unpadded_height", keys.UNPADDED_HEIGHT, "int32"),
    value_field("unpadded_width", keys.UNPADDED_WIDTH, "int32"),
    value_field("source_height", keys.SOURCE_HEIGHT, "int32"),
    value_field("source_width", keys.SOURCE_WIDTH, "int32"),
    value_field("transform", keys.TRANSFORM, "float32", (2, 3)),
)
"""Origin of a picture's record. The unpadded size is the picture's size before padding to the static shape.

`transform` maps stored pixels to source pixels: [y_source, x_source] = transform @ [y, x, 1], in continuous
coordinates whose origin is the corner of the first pixel."""

PICTURE_TILE_FIELDS = (
    value_field("tile", keys.TILE, "int32"),
    value_field("tile_origin", keys.TILE_ORIGIN, "int32", (2,)),
    value_field("tile_whole", keys.TILE_WHOLE, "int32", (2,)),
    Field(name="crs", keys=(keys.CRS,), dtype="str", encoding="text", optional=True),
    Field(name="geotransform", keys=(keys.GEOTRANSFORM,), dtype="str", encoding="text", optional=True),
)
"""Origin of a tile of a picture: its number from 0, its first row and column in the scaled and displayed picture, and
the (height, width) of that picture; and the position of the source file on a map.

`crs` is the coordinate system as a code or WKT, and `geotransform` the six numbers a to f of x = a * column + b * row +
c and y = d * column + e * row + f, from continuous pixels of the source file; both are "" without a position. They are
texts, because float32 has 7 digits, and a northing in centimeters has 9."""

SPACING, LATERALITY, VIEW, BODY_PART = "spacing_mm", "laterality", "view", "body_part"
STATED_FIELDS = {
    SPACING: value_field(SPACING, keys.SPACING_MM, "float32", (2,)),
    **{
        name: Field(name=name, keys=(key,), dtype="str", encoding="text", optional=True)
        for name, key in zip((LATERALITY, VIEW, BODY_PART), keys.WORDS, strict=True)
    },
}
"""Fields of what sources of pictures may state, by name. A data set has those that at least one of its records has.

`spacing_mm` is the distance between rows and between columns of the stored pixels in millimeters, NaN where it is not
known. `laterality`, `view` and `body_part` are words of DICOM, such as "L", "MLO" and "BREAST", and "" where they are
not known."""

_EXTENT = value_field("extent", keys.EXTENT, "int32", (2, 3))
_VOLUME_ORIGIN = (
    *_NAMES,
    value_field("spacing_mm", keys.SPACING_MM, "float32", (3,)),
    value_field("affine", keys.AFFINE, "float32", (4, 4)),
    value_field("source_affine", keys.SOURCE_AFFINE, "float32", (4, 4)),
    value_field("source_shape", keys.SOURCE_SHAPE, "int32", (3,)),
    _EXTENT,
    value_field("tile", keys.TILE, "int32"),
    value_field("tile_origin", keys.TILE_ORIGIN, "int32", (3,)),
)
"""Origin of a volume's record; triples are depth, height, width.

`affine` maps stored voxels to the patient: [x, y, z, 1] = affine @ [depth, height, width, 1], in millimeters to the
right, to anterior and to superior (RAS+, as in NIfTI), from the center of the first voxel. `source_affine` does the
same for the voxels of the source in the order of its file, the slowest index first: for a NIfTI array [i, j, k] it
takes [k, j, i, 1]. So source voxel = inverse(source_affine) @ affine @ stored voxel.

`extent` is the first voxel that shows the scan, and the one after the last, along each axis; the rest is padding.
`tile` is the number of a tile of the scan, from 0, and `tile_origin` is its first voxel on the grid of the complete
resampled scan. If each scan has its own scale, `intensity_scale` and `intensity_offset` hold it per channel: a source's
value is scale · stored + offset, unless a window has clipped it."""


def _clip_origin(shape: ImageShape) -> tuple[Field, ...]:
    """Return the origin fields of a clip: those of a picture for its frames, and `times_s`, `tile` and `extent`.

    `times_s` is the time of each frame in seconds from the source's first frame, or -1 for a folder of frames without
    a known rate. `tile` is the number of a record of its source, from 0. `extent` is as for volumes: frames that repeat
    the last frame of a short clip are padding.
    """
    times = value_field("times_s", keys.TIMES_S, "float32", shape[:1], ("frame",))
    return (*_PICTURE_ORIGIN, times, value_field("tile", keys.TILE, "int32"), _EXTENT)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="picture",
            axes=("height", "width"),
            stored={
                "raw": _VOXELS,
                "packed": _VOXELS,
                "yuv420": ("uint8",),
                "jpeg": ("uint8",),
                "png": ("uint8", "uint16"),
            },
            channels={
                "raw": range(1, 257),
                "packed": range(1, 257),
                "yuv420": (3,),
                "jpeg": (1, 3),
                "png": (1, 3, 4),
            },
            origin=lambda shape: _PICTURE_ORIGIN,
            pads_around=False,
        ),
        Kind(
            name="volume",
            axes=("depth", "height", "width"),
            stored={"raw": _VOXELS, "packed": _VOXELS},
            channels=None,
            origin=lambda shape: _VOLUME_ORIGIN,
            pads_around=True,
        ),
        Kind(
            name="clip",
            axes=("frame", "height", "width"),
            stored={"raw": ("uint8",), "packed": ("uint8",)},
            channels={"raw": (1, 3), "packed": (1, 3)},
            origin=_clip_origin,
            pads_around=True,
        ),
    )
}


KIND_BY_RANK = {3: "picture", 4: "volume"}
"""Kind of the runs of early versions, which name none, by the rank of the image with its channels."""


def kind_of(axes: Sequence[str]) -> Kind | None:
    """Return the kind of image with these axes, the channel last; None if there is none.

    >>> kind_of(("depth", "height", "width", "channel")).name
    'volume'
    """
    return next((kind for kind in KINDS.values() if (*kind.axes, "channel") == tuple(axes)), None)


_EARLIER_NAMES = {"store": "dtype", "kernel": "interpolation"}


def with_current_option_names(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the names of options in a recipe's JSON form of any version by today's names.

    Recipes of early versions had `kernel` for pictures and clips, and `interpolation` for volumes.

    >>> with_current_option_names({"depth": None, "kernel": "tf2-area", "interpolation": "linear", "store": "uint8"})
    {'depth': None, 'interpolation': 'tf2-area', 'dtype': 'uint8'}
    >>> with_current_option_names({"depth": 32, "kernel": "antialias", "interpolation": "cubic"})
    {'depth': 32, 'interpolation': 'cubic'}
    """
    if isinstance(ignored := recipe.get("ignore_label"), int):  # one value until several could be given
        recipe = {**recipe, "ignore_label": [str(ignored)]}
    # Of the two, the one that the kind did not use held a default without effect.
    unused = "kernel" if recipe.get("depth") is not None else "interpolation"
    return {
        _EARLIER_NAMES.get(name, name): value
        for name, value in recipe.items()
        if name != unused or "kernel" not in recipe
    }
