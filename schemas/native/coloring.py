"""Python interface to coloring.c, which splits pictures into color planes and colors windows of them.

A call releases the interpreter's lock, so that threads work in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.native import kernel

VALUE, SIZE = 0, slice(1, 3)
START, SHAPE, BACKWARDS = slice(3, 5), slice(5, 7), slice(7, 9)
TARGET, TARGET_STRIDE = 9, 10
FRAME, BLOCKS, DONE = slice(11, 16), slice(16, 20), 20
"""Columns of `Coloring` of coloring.c; FRAME and BLOCKS are those of `kernel.Moves`, the latter without the value."""
Colorings = NDArray[np.int64]
"""Table of windows to color, [window, column]."""
_STREAMED_BYTES = 1 << 19
"""A window of more bytes bypasses the cache, which could not hold the result until it is used."""


def colors_pictures() -> bool:
    """Return whether the kernel can split and color pictures, which it can where it is built."""
    return kernel.is_built()


def no_colorings(count: int, size: Sequence[int]) -> Colorings:
    """Return a table of `count` empty windows of pictures of a size (height, width), which compare no frame."""
    colorings = np.zeros((count, kernel.COLORING_COLUMNS), np.int64)
    colorings[:, SIZE] = size
    return colorings


def color_all(
    colorings: Colorings, run_in_threads: Callable[[Callable[[], None]], None], owners: object
) -> NDArray[np.bool_]:
    """Color the windows of a table, and return which were colored, bool [window].

    Args:
        colorings: the table; the kernel writes its column `DONE`.
        run_in_threads, owners: as in `halofeed.schemas.native.kernel.run_table`.
    """
    library = kernel.library()
    assert library is not None
    sizes = 3 * colorings[:, SHAPE].prod(axis=1)
    streams = int(sizes.sum()) >= kernel.STREAMED_BYTES or int(sizes.max(initial=0)) >= _STREAMED_BYTES
    kernel.run_table(library.color, colorings, streams, run_in_threads, owners)
    return np.asarray(colorings[:, DONE] == 1)


def color_one(
    value: NDArray[np.uint8],
    size: Sequence[int],
    start: Sequence[int],
    backwards: Sequence[bool],
    out: NDArray[np.uint8],
) -> None:
    """Color a window in this thread.

    Args:
        value: color planes, uint8 [byte], contiguous.
        size: (height, width) of the picture, both even.
        start: the window's first stored row and column.
        backwards: whether rows and columns are mirrored.
        out: uint8 [height, width, 3] of the window's size, with contiguous rows.

    Raises:
        MemoryError: the kernel has no memory for a row.
    """
    colorings = no_colorings(1, size)
    one = colorings[0]
    one[VALUE], one[START], one[SHAPE], one[BACKWARDS] = value.ctypes.data, start, out.shape[:2], backwards
    one[TARGET], one[TARGET_STRIDE] = out.ctypes.data, out.strides[0]
    if not color_all(colorings, lambda work: work(), (value, out))[0]:
        raise MemoryError(f"coloring {out.shape} pixels")


def split_planes(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the planes of RGB pixels, uint8 [byte].

    Args:
        pixels: uint8 [height, width, 3], contiguous; height and width are even.

    Raises:
        MemoryError: the kernel has no memory for a row.
    """
    library = kernel.library()
    assert library is not None
    height, width, _ = pixels.shape
    value = np.empty(pixels.size // 2, np.uint8)
    if not library.split_colors(pixels.ctypes.data, height, width, value.ctypes.data):
        raise MemoryError(f"splitting {pixels.shape} pixels")
    return value
