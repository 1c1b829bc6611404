"""Color planes in batches (`color="planes"`): luma and chroma as they are stored, for conversion on the device.

    image [height, width, 3]   ->   luma [height, width, 1]   chroma [height / 2, width / 2, 2]

A batch of planes is half of one of RGB, and so is its transfer to a device. A window of a picture begins at an even row
and column, so that it has the chroma of its pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.augmented_example import Windows
from halofeed.loader.augment.view import ImageShape, Ranges, View
from halofeed.schemas.color_planes import colors_of, planes_of, split_colors
from halofeed.schemas.fields import Field
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.partition import Partition
from halofeed.system.errors import UsageError

LUMA, CHROMA = "luma", "chroma"
COLOR_CHOICES = {
    "rgb": "pixels of three colors",
    "planes": "luma and chroma, of which halofeed.loader.device.to_rgb makes pixels",
}


@dataclass(frozen=True, kw_only=True)
class ColorPlane(Field):
    """A plane of a picture that is stored as color planes, as a raw field of its bytes.

    Args:
        scale: stored pixels per pixel of the plane, along height and width.
        offset: byte of the value at which the plane begins.
    """

    scale: int = 1
    offset: int = 0


def planes_of_field(image: Field, place: str) -> tuple[ColorPlane, ColorPlane]:
    """Return luma and chroma of an image's field.

    Raises:
        UsageError: the pictures are not stored as color planes.
    """
    if not image.holds_planes:
        raise UsageError(
            f"{place}: color='planes' needs pictures that are stored as color planes, and these are stored as "
            f"{image.encoding}; leave color out, or convert with --encoding yuv420"
        )
    height, width, _ = image.shape
    color = np.empty((2, 2, 3), np.uint8)
    color[...] = image.fill
    luma, chroma = planes_of(split_colors(color), (2, 2))
    shared: dict[str, Any] = {"keys": image.keys, "dtype": image.dtype, "axes": image.axes, "encoding": "raw"}
    return (
        ColorPlane(name=LUMA, shape=(height, width, 1), fill=(int(luma[0, 0]),), **shared),
        ColorPlane(
            name=CHROMA,
            shape=(height // 2, width // 2, 2),
            fill=tuple(map(int, chroma[0, 0])),
            scale=2,
            offset=height * width,
            **shared,
        ),
    )


def partition_of_planes(partition: Partition, image: str) -> Partition:
    """Return a partition in which luma and chroma are split like the image, whose name is given."""
    if image not in partition.dims:
        return partition
    others = {name: parts for name, parts in partition.dims.items() if name != image}
    return replace(partition, dims={LUMA: partition.dims[image], CHROMA: partition.dims[image], **others})


def with_colors(batch: Mapping[str, NDArray[Any]], image: str) -> dict[str, NDArray[Any]]:
    """Return a batch on the host with RGB pixels in the place of luma and chroma, under the name `image`.

    >>> planes = {"luma": np.full((1, 2, 2, 1), 90, np.uint8), "chroma": np.full((1, 1, 1, 2), 128, np.uint8)}
    >>> with_colors(planes, "image")["image"].tolist()
    [[[[90, 90, 90], [90, 90, 90]], [[90, 90, 90], [90, 90, 90]]]]
    """
    if LUMA not in batch:
        return dict(batch)
    others = {name: array for name, array in batch.items() if name not in (LUMA, CHROMA)}
    wide = batch[CHROMA].repeat(2, axis=1).repeat(2, axis=2)
    return {image: colors_of(batch[LUMA][..., 0], wide), **others}


def plane_scale(field: Field) -> int:
    """Return how many stored pixels a pixel of a field has along each axis."""
    return field.scale if isinstance(field, ColorPlane) else 1


def plane_offset(field: Field) -> int:
    """Return the byte of the stored value at which a field's numbers begin."""
    return field.offset if isinstance(field, ColorPlane) else 0


def scaled_shape(shape: ImageShape, scale: int) -> ImageShape:
    """Return the size of a plane, for the size of its picture."""
    return tuple(side // scale for side in shape)


def scaled_slab(slab: Ranges, scale: int) -> Ranges:
    """Return the part of a plane for a part of a picture."""
    return tuple((low // scale, high // scale) for low, high in slab)


def scaled_view(view: View, scale: int) -> View:
    """Return the view of a plane for a view of a picture."""
    return replace(view, start=scaled_shape(view.start, scale), shape=scaled_shape(view.shape, scale))


def scaled_windows(windows: Windows, scale: int) -> Windows:
    """Return the windows of a plane for windows of pictures."""
    if scale == 1:
        return windows
    return replace(windows, start=windows.start // scale, shape=windows.shape // scale)


def check_even(augmentations: Sequence[Any], slab: Ranges, shape: ImageShape) -> None:
    """Raise UsageError if a picture or a part of it may begin or end at an odd row or column.

    Args:
        augmentations: the loader's augmentations.
        slab: the part of what is shown that a batch holds.
        shape: size of what is shown.
    """
    for one in augmentations:
        if not hasattr(one, "plan"):
            raise UsageError(
                f"{type(one).__name__}: color='planes' shows windows of pictures, also mirrored, as they are stored; "
                "leave color out to load RGB"
            )
        if getattr(one, "step", 2) % 2:
            sides = ", ".join(str(side + side % 2) for side in one.sides)
            raise UsageError(
                f"{one!r}: color='planes' shows windows from even rows and columns; take RandomCrop({sides}, step=2)"
            )
    if any(number % 2 for number in (*shape, *(place for side in slab for place in side))):
        raise UsageError(
            f"color='planes': expected an even height and width of what is shown, and of a core's part of it, got "
            f"{shape} and {slab}; leave color out to load RGB"
        )


def check_unpadded(manifest: Manifest, augmentations: Sequence[Any]) -> None:
    """Raise UsageError if windows of pictures of odd sizes may be mirrored.

    A padded picture may have an odd size, also in a tile at its edge; mirrored, it begins at an odd row or column.
    """
    paddings = [split.statistics.padding for split in manifest.splits.values() if split.records]
    if augmentations and any(padding is None or padding.padded_pixels for padding in paddings):
        raise UsageError(
            "color='planes': some of these pictures were padded, so that a window may end at an odd row or column; "
            "leave out augment, or color to load RGB, or convert with --resize fixed-shape"
        )
