"""Objects that are drawn as pictures: a mask file for each object, or a label image whose values number objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import PngImagePlugin

from halofeed.prep.annotations.documents import read_limited
from halofeed.prep.formats.picture.image import decode_error
from halofeed.prep.formats.picture.picture_formats import FORMATS, sniff
from halofeed.prep.formats.picture.pillow import decoder_failures, open_with_plugin
from halofeed.prep.formats.picture.png import PALETTE, read_png_header
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.masks import encode_run_lengths
from halofeed.system.memory import ReserveMemory, no_memory_limit

_MAX_BYTES = 1 << 28
_MAX_PIXELS = 1 << 28
"""Largest mask file, in bytes and pixels (estimates): its values take eight times as many bytes."""
_BYTES_PER_PIXEL = 32
"""Memory for a drawing: its values take 8 bytes, those of its colors twice as much, and four samples of 16 bits 8."""
_LOSSY = ("jpeg", "webp")


@dataclass(frozen=True, kw_only=True)
class DrawnObject:
    """One object of a drawing.

    Args:
        number: its value; of a drawing in color, a number of its color.
        box: xmin, ymin, xmax, ymax around its pixels.
        area: number of its pixels.
        mask: its pixels as COCO's run lengths, if they were asked for.
    """

    number: int
    box: tuple[int, int, int, int]
    area: int
    mask: dict[str, Any] | None


def read_drawing(
    files: SourceFiles, path: str, reserve: ReserveMemory = no_memory_limit
) -> NDArray[np.int64]:
    """Return the values [height, width] of a mask or label image: gray values, palette indices, or numbers of colors.

    0 is outside of all objects: black, and what is transparent.

    Args:
        reserve: called with the number of bytes before the pixels are decoded.

    Raises:
        SourceError: the file cannot be read, is stored with loss, or is too large.
    """
    data = read_limited(files, path, "mask", _MAX_BYTES)
    name = sniff(data)
    # Lossy files blur the values at the borders of objects.
    if name in _LOSSY:
        fix = "save masks as PNG by the tool that drew them"
        raise decode_error("mask is stored with loss", f"{path} is {name}; {fix}")
    opened = FORMATS[name][1](data)
    height, width = opened.stored_size
    if not 0 < height * width <= _MAX_PIXELS:
        raise decode_error("mask has too many pixels", f"{path}: {width} x {height}")
    reserve(len(data) + height * width * _BYTES_PER_PIXEL)
    # Palettes of label images may repeat colors; the indices are the values.
    if name == "png" and read_png_header(data).color_type == PALETTE:
        with decoder_failures():
            image = open_with_plugin(PngImagePlugin.PngImageFile, data)
            image.load()
            return np.asarray(image).astype(np.int64)
    return _numbers(opened.load(True, opened.stored_size).pixels)


def _numbers(pixels: NDArray[Any]) -> NDArray[np.int64]:
    """Return one number for each color of pixels [height, width, channel], of which the fourth, or second, is alpha."""
    channels = pixels.shape[2]
    # Most masks are gray: 0.3 of the 1.5 ms of a mask of 256 x 320 pixels were spent on their sum of one channel.
    if channels == 1:
        return pixels[..., 0].astype(np.int64)
    values = np.zeros(pixels.shape[:2], np.int64)
    for channel in range(min(channels, 3) - (channels == 2)):
        values = values << (16 if pixels.dtype == np.uint16 else 8) | pixels[..., channel]
    if channels in (2, 4):
        values[pixels[..., -1] == 0] = 0
    # Gray values are equal channels, whose number is the value itself.
    if channels >= 3 and all(np.array_equal(pixels[..., 0], pixels[..., at]) for at in (1, 2)):
        values = np.where(values == 0, 0, pixels[..., 0]).astype(np.int64)
    return values


def drawn_objects(values: NDArray[np.int64], *, has_masks: bool = True) -> Iterator[DrawnObject]:
    """Yield the object of each value but 0, in the order of the values; with their masks, if `has_masks`.

    >>> found = list(drawn_objects(np.array([[0, 7, 7], [0, 0, 2]])))
    >>> [(one.number, one.box, one.area) for one in found]
    [(2, (2, 1, 3, 2), 1), (7, (1, 0, 3, 1), 2)]
    """
    for number in np.unique(values):
        if number:
            yield object_of_pixels(values == number, int(number), has_masks=has_masks)


def object_of_pixels(inside: NDArray[np.bool_], number: int = 1, *, has_masks: bool = True) -> DrawnObject:
    """Return the object of the pixels of a mask [height, width], which has at least one."""
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    return DrawnObject(
        number=number,
        box=(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1),
        area=int(np.count_nonzero(inside)),
        # A quarter of the time of an object.
        mask=encode_run_lengths(inside) if has_masks else None,
    )
