"""Python interface to jpeg.c, which decodes parts of JPEG pictures with restart intervals as libjpeg-turbo does.

A call releases the interpreter's lock, so that threads work in parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.native import kernel

_TABLE = 2 * (1 << 11) + 3 * 18 + 256
"""Numbers of a Huffman table; see TABLE of jpeg.c."""
_COLUMNS, _TARGET, _MEMORY = 18, 12, 16
"""Numbers of `Job` of jpeg.c, and the places of two of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class JpegTables:
    """Tables of the components of a JPEG picture, from its header.

    Args:
        is_subsampled: whether two components have half of the height and the width (4:2:0); else all are equal.
        quantization: int16 [component, 64], by rows.
        codes: int32 [component, 2, number], Huffman tables of the first and of the other coefficients.
    """

    is_subsampled: bool
    quantization: NDArray[np.int16]
    codes: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class JpegIntervals:
    """The compressed data of a file, and its restart intervals.

    Args:
        file: the file.
        size: (height, width) in pixels.
        interval: coded units of an interval, a divisor of those of a row.
        start: first byte of the compressed data.
        ends: int64 [interval], the byte at which each ends; intervals are separated by markers of two bytes.
    """

    file: memoryview
    size: tuple[int, int]
    interval: int
    start: int
    ends: NDArray[np.int64]


def code_tables(codes: list[tuple[bytes, bytes]]) -> NDArray[np.int32] | None:
    """Return the tables of a component's Huffman codes, int32 [code, number]; None if one is invalid or too long.

    Args:
        codes: the number of codes of each length, 16 bytes, and their symbols; first the code of first coefficients.
    """
    library = kernel.library()
    if library is None:
        return None
    tables = np.zeros((len(codes), _TABLE), np.int32)
    for place, (counts, symbols) in enumerate(codes):
        if not library.jpeg_table(counts, symbols, len(symbols), place == 0, tables[place].ctypes.data):
            return None
    return tables


def decode_part(
    intervals: JpegIntervals,
    tables: JpegTables,
    box: tuple[tuple[int, int], ...],
    out: NDArray[np.uint8] | None,
    scratch: Callable[[int], NDArray[np.uint8]],
) -> NDArray[np.uint8] | None:
    """Decode rows and columns of a picture.

    Args:
        intervals: the file.
        tables: its tables.
        box: rows and columns, in pixels, within the picture.
        out: [height, width, component], of the box's size, with contiguous pixels in rows; None is the scratch.
        scratch: returns memory of a size in bytes.

    Returns:
        The pixels; None, with `out` in any state, if the kernel is not built for this processor, or the data are
        damaged.
    """
    library = kernel.library()
    if library is None:
        return None
    (top, bottom), (left, right) = box
    shape = bottom - top, right - left, len(tables.quantization)
    data = np.frombuffer(intervals.file, np.uint8)
    job = np.array(
        [
            *(data.ctypes.data, intervals.ends.ctypes.data, intervals.start, *intervals.size, shape[2]),
            *(tables.is_subsampled, intervals.interval, top, bottom, left, right, 0, 0),
            *(tables.quantization.ctypes.data, tables.codes.ctypes.data, 0, 0),
        ],
        np.int64,
    )
    pixel_bytes = 0 if out is not None else shape[0] * shape[1] * shape[2]
    needed = library.jpeg_memory(job.ctypes.data)
    memory = scratch(pixel_bytes + needed)
    pixels = memory[:pixel_bytes].reshape(shape) if out is None else out
    job[_TARGET : _TARGET + 2] = pixels.ctypes.data, pixels.strides[0]
    job[_MEMORY:] = memory.ctypes.data + pixel_bytes, needed
    return pixels if library.jpeg(job.ctypes.data) else None
