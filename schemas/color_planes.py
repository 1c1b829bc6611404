"""Color planes (`--encoding yuv420`): RGB pictures as luma, and chroma of half the height and width.

A value of a picture of an even height and width is the luma Y, uint8 [height, width], then the chroma Cb and Cr, uint8
[height / 2, width / 2, 2]. With full range (ITU-T T.871, section 7) and integer arithmetic, in which >> rounds down:

    Y  = (19595 R + 38470 G + 7471 B + 2^15) >> 16
    Cb = clamp((-11059 R - 21709 G + 32768 B + 128·2^18 + 2^17) >> 18)     R, G and B: sums of four pixels
    Cr = clamp((32768 R - 27439 G - 5329 B + 128·2^18 + 2^17) >> 18)

    R = clamp(Y + ((91881 (Cr - 128) + 2^15) >> 16))
    G = clamp(Y + ((-22554 (Cb - 128) - 46802 (Cr - 128) + 2^15) >> 16))
    B = clamp(Y + ((116130 (Cb - 128) + 2^15) >> 16))

The four pixels of a square have its chroma. So a crop needs no chroma beyond it, and is equal to the crop of the
complete picture.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.native import coloring

Bytes = NDArray[np.uint8]


def split_colors(pixels: Bytes) -> Bytes:
    """Return the planes of RGB pixels.

    Args:
        pixels: uint8 [height, width, 3]; height and width are even.

    Returns:
        uint8 [height · width · 3 / 2].

    >>> planes = split_colors(np.full((2, 2, 3), 200, np.uint8))
    >>> planes.tolist(), color_window(planes, (2, 2), ((0, 1), (1, 2))).tolist()
    ([200, 200, 200, 200, 128, 128], [[[200, 200, 200]]])
    """
    if coloring.colors_pictures():
        return coloring.split_planes(np.ascontiguousarray(pixels))
    height, width, _ = pixels.shape
    red, green, blue = np.moveaxis(pixels.astype(np.int32), -1, 0)
    luma = (19595 * red + 38470 * green + 7471 * blue + (1 << 15)) >> 16
    sums = pixels.reshape(height // 2, 2, width // 2, 2, 3).sum(axis=(1, 3), dtype=np.int32)
    red, green, blue = np.moveaxis(sums, -1, 0)
    offset = (128 << 18) + (1 << 17)
    blue_part = (-11059 * red - 21709 * green + 32768 * blue + offset) >> 18
    red_part = (32768 * red - 27439 * green - 5329 * blue + offset) >> 18
    chroma = np.stack([blue_part, red_part], axis=-1).clip(0, 255)
    return np.concatenate([luma.reshape(-1), chroma.reshape(-1)]).astype(np.uint8)


def color_window(
    value: Bytes,
    size: tuple[int, int],
    box: tuple[tuple[int, int], ...],
    backwards: tuple[bool, ...] = (False, False),
    out: NDArray[Any] | None = None,
) -> Bytes:
    """Return the RGB pixels of a window, uint8 [height, width, 3].

    Args:
        value: planes, uint8 [byte].
        size: (height, width) of the picture.
        box: (start, stop) of the window's rows and columns.
        backwards: whether rows and columns are mirrored.
        out: memory for the result.
    """
    shape = tuple(stop - start for start, stop in box)
    out = np.empty((*shape, 3), np.uint8) if out is None else out
    if coloring.colors_pictures() and out.strides[1:] == (3, 1):
        coloring.color_one(value, size, tuple(start for start, _ in box), backwards, out)
        return out
    luma, chroma = planes_of(value, size)
    (top, bottom), (left, right) = box
    wide = chroma[top // 2 : -(-bottom // 2), left // 2 : -(-right // 2)].repeat(2, axis=0).repeat(2, axis=1)
    first, last = top - top // 2 * 2, left - left // 2 * 2
    colors = colors_of(luma[top:bottom, left:right], wide[first : first + shape[0], last : last + shape[1]])
    out[...] = colors[tuple(slice(None, None, -1 if back else 1) for back in backwards)]
    return out


def colors_of(luma: Bytes, chroma: Bytes) -> Bytes:
    """Return RGB pixels [..., 3] of luma [...] and the chroma of each pixel [..., 2]."""
    brightness, blue_part, red_part = (
        numbers.astype(np.int32) for numbers in (luma, chroma[..., 0], chroma[..., 1])
    )
    red = (91881 * (red_part - 128) + (1 << 15)) >> 16
    green = (-22554 * (blue_part - 128) - 46802 * (red_part - 128) + (1 << 15)) >> 16
    blue = (116130 * (blue_part - 128) + (1 << 15)) >> 16
    colors = np.stack([brightness + red, brightness + green, brightness + blue], axis=-1)
    return colors.clip(0, 255).astype(np.uint8)


def planes_of(value: Bytes, size: tuple[int, int]) -> tuple[Bytes, Bytes]:
    """Return luma [height, width] and chroma [height / 2, width / 2, 2] of a value, as views."""
    height, width = size
    count = height * width
    return value[:count].reshape(size), value[count:].reshape(height // 2, width // 2, 2)
