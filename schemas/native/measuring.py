"""Python interface to measuring.c, which makes the sums of a picture's measures.

A call releases the interpreter's lock, so that threads work in parallel.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.native import kernel

_MEASURING = struct.Struct("=9q")
"""`Measuring` of measuring.c."""
_READ = {np.dtype(np.uint8), np.dtype("<u2")}


def measure(
    pixels: NDArray[Any], near: int, far: int, histogram: NDArray[np.int64]
) -> tuple[int, int, float] | None:
    """Return two sums of squared differences, and the sum of n log2 n of the counts n of a histogram.

    Args:
        pixels: uint8 or uint16 [row, column, channel], with more than `far` columns.
        near, far: the differences are those of pixels so many columns apart, within channels.
        histogram: int64 [channel, bin], contiguous.

    Returns:
        None if the kernel is not built, or if it does not read such arrays: the pixels of a row must be adjacent.
    """
    library = kernel.library()
    (rows, columns, channels), item, strides = pixels.shape, pixels.itemsize, pixels.strides
    is_read = pixels.dtype in _READ and strides[2] == item and strides[1] == item * channels
    if library is None or library.measure is None or not is_read or columns <= far:
        return None
    if not histogram.flags.c_contiguous or histogram.dtype != np.int64:
        return None
    sums = (ctypes.c_int64 * 2)()
    first, counts = (array.__array_interface__["data"][0] for array in (pixels, histogram))
    apart = near * channels, far * channels
    bins = histogram.size
    words = _MEASURING.pack(first, rows, strides[0], columns * channels, item, *apart, counts, bins)
    information = library.measure(words, sums)
    return sums[0], sums[1], information
