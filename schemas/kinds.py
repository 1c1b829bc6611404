"""Which kinds of image there are: picture, volume, clip. A new one is one entry of `KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halofeed.schemas import keys
from halofeed.schemas.fields import Field

Shape = tuple[int, ...]
_VOXELS = ("uint8", "uint16", "int16", "float32", "bfloat16")


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """What records of one kind have in common, whatever their task.

    Args:
        name: as manifests have it.
        axes: of the image, without the channel.
        stored: the dtypes that each encoding of the image may have.
        channels: the numbers of channels that each encoding may have; None: any.
        origin: from the image's shape, without the channel, to the fields that say where a record came from.
        pads_around: whether a batch shows the padding on all sides as it is stored; else it is added at the end of the
            last axes, after augmentation.
    """

    name: str
    axes: tuple[str, ...]
    stored: Mapping[str, tuple[str, ...]]
    channels: Mapping[str, tuple[int, ...]] | None
    origin: Callable[[Shape], tuple[Field, ...]]
    pads_around: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return kind_of, ((*self.axes, "channel"),)  # `origin` may be a lambda, which is not pickled

    def image_problem(self, image: Field) -> str:
        """What is wrong with the field of the image itself, "" where nothing is."""
        if image.encoding not in self.stored:
            first, *others = self.stored
            expected = f"{first}, or as {' or '.join(others)}" if others else first
            return f"expected it to be stored {expected}, got {image.encoding!r}"
        if image.dtype not in self.stored[image.encoding]:
            expected = " or ".join(self.stored[image.encoding])
            return f"expected {expected} stored as {image.encoding}, got {image.dtype!r}"
        if self.channels and image.shape[-1] not in self.channels[image.encoding]:
            allowed = self.channels[image.encoding]
            return f"expected {allowed} channels of a {self.name}, got {image.shape[-1]}"
        return ""


def value(
    name: str, key: str, dtype: str, shape: Shape = (), axes: tuple[str, ...] = (), **more: Any
) -> Field:
    """The field of one key: a number, or as many as a shape says, coordinates or rows and columns unless named.

    It is optional, and of the encoding "value", unless `more` members of a `Field` say otherwise.
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
    value("unpadded_height", keys.UNPADDED_HEIGHT, "int32"),
    value("unpadded_width", keys.UNPADDED_WIDTH, "int32"),
    value("source_height", keys.SOURCE_HEIGHT, "int32"),
    value("source_width", keys.SOURCE_WIDTH, "int32"),
    value("transform", keys.TRANSFORM, "float32", (2, 3)),
)
"""Where a record came from. The unpadded size is the picture's before padding to the static shape.

`transform` maps stored pixels to source pixels: [y_source, x_source] = transform @ [y, x, 1], in continuous
coordinates whose origin is the corner of the first pixel."""

_EXTENT = value("extent", keys.EXTENT, "int32", (2, 3))
_VOLUME_ORIGIN = (
    *_NAMES,
    value("spacing_mm", keys.SPACING_MM, "float32", (3,)),
    value("affine", keys.AFFINE, "float32", (4, 4)),
    value("source_affine", keys.SOURCE_AFFINE, "float32", (4, 4)),
    value("source_shape", keys.SOURCE_SHAPE, "int32", (3,)),
    _EXTENT,
    value("tile", keys.TILE, "int32"),
    value("tile_origin", keys.TILE_ORIGIN, "int32", (3,)),
)
"""Where the record of a volume came from; triples are depth, height, width.

`affine` maps stored voxels to the patient: [x, y, z, 1] = affine @ [depth, height, width, 1], in millimeters to the
right, to anterior and to superior (RAS+, as NIfTI has it), from the center of the first voxel. `source_affine` does
so for the voxels of the source as its file lists them, the slowest index first: of a NIfTI array [i, j, k] it
takes [k, j, i, 1]. So source voxel = inverse(source_affine) @ affine @ stored voxel. `extent` is the first voxel
that shows the scan, and the one after the last, along each axis; the rest is padding. `tile` counts the patches of a
scan from 0 and `tile_origin` is where the patch begins on the grid of the whole resampled scan. Where each scan has a
scale of its own there are `intensity_scale` and `intensity_offset` too, one a channel: a source's value is
scale · stored + offset, but for what a window cut off."""


def _clip_origin(shape: Shape) -> tuple[Field, ...]:
    """Of each frame as of a picture; `times_s` is when each is shown, in seconds from the source's first frame.

    -1 of a folder of frames whose rate nobody said. `tile` counts the records of a source from 0; `extent` is as of
    volumes: frames that repeat the last one of a short clip are padding.
    """
    times = value("times_s", keys.TIMES_S, "float32", shape[:1], ("frame",))
    return (*_PICTURE_ORIGIN, times, value("tile", keys.TILE, "int32"), _EXTENT)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="picture",
            axes=("height", "width"),
            stored={"raw": _VOXELS, "jpeg": ("uint8",), "png": ("uint8", "uint16")},
            channels={"raw": (1, 3, 4), "jpeg": (1, 3), "png": (1, 3, 4)},
            origin=lambda shape: _PICTURE_ORIGIN,
            pads_around=False,
        ),
        Kind(
            name="volume",
            axes=("depth", "height", "width"),
            stored={"raw": _VOXELS},
            channels=None,
            origin=lambda shape: _VOLUME_ORIGIN,
            pads_around=True,
        ),
        Kind(
            name="clip",
            axes=("frame", "height", "width"),
            stored={"raw": ("uint8",)},
            channels={"raw": (1, 3)},
            origin=_clip_origin,
            pads_around=True,
        ),
    )
}


EARLY_KINDS = {3: "picture", 4: "volume"}
"""By the rank of the image with its channels: of runs that name no kind."""


def kind_of(axes: Sequence[str]) -> Kind | None:
    """The kind of image that has these axes, the channel last; None where there is none.

    >>> kind_of(("depth", "height", "width", "channel")).name
    'volume'
    """
    return next((kind for kind in KINDS.values() if (*kind.axes, "channel") == tuple(axes)), None)


_EARLIER_NAMES = {"store": "dtype", "kernel": "interpolation"}


def in_todays_names(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe as JSON with today's name of each option, whichever version wrote it.

    `kernel` was of pictures and clips, beside volumes' `interpolation`; each recipe held both.

    >>> in_todays_names({"depth": None, "kernel": "tf2-area", "interpolation": "linear", "store": "uint8"})
    {'depth': None, 'interpolation': 'tf2-area', 'dtype': 'uint8'}
    >>> in_todays_names({"depth": 32, "kernel": "antialias", "interpolation": "cubic"})
    {'depth': 32, 'interpolation': 'cubic'}
    """
    idle = "kernel" if recipe.get("depth") is not None else "interpolation"
    return {
        _EARLIER_NAMES.get(name, name): value
        for name, value in recipe.items()
        if name != idle or "kernel" not in recipe
    }
