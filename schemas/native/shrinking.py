"""Python interface to triangle.c, which shrinks pictures exactly as Pillow's triangle filter does.

A call releases the interpreter's lock, so that threads work in parallel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.native import kernel

_COLORS = 3


def shrink(pixels: NDArray[np.uint8], box: tuple[float, float, float, float], out: NDArray[np.uint8]) -> bool:
    """Resize a picture, and return whether it was.

    Args:
        pixels: uint8 [height, width, 3]; pixels of a row are contiguous.
        box: (top, left, bottom, right) of the part that is resized, in pixels; rounded to float32, as Pillow does.
        out: uint8 [height, width, 3], as `pixels`.

    Returns:
        False, with nothing written, if the kernel is not built, the processor or the layout of the pixels is not
        supported, or the box leaves the picture.
    """
    library = kernel.library()
    if library is None or not (_is_supported(pixels) and _is_supported(out) and out.flags.writeable):
        return False
    top, left, bottom, right = box
    if not (0 <= top < bottom <= pixels.shape[0] and 0 <= left < right <= pixels.shape[1]):
        return False
    table = np.array([*_columns(pixels), *_columns(out)], np.int64)
    edges = np.array(box, np.float32)
    return bool(library.shrink(table.ctypes.data, edges.ctypes.data))


def _is_supported(pixels: NDArray[Any]) -> bool:
    strides = pixels.strides
    return (
        pixels.dtype == np.uint8
        and pixels.ndim == 3
        and pixels.size > 0
        and strides[1:] == (_COLORS, 1)
        and pixels.shape[2] == _COLORS
        and strides[0] >= pixels.shape[1] * _COLORS
    )


def _columns(pixels: NDArray[np.uint8]) -> tuple[int, int, int, int]:
    return pixels.ctypes.data, pixels.strides[0], pixels.shape[0], pixels.shape[1]
