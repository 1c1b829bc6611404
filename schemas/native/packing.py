"""Python interface to packing.c, which packs arrays, and packed.c, which unpacks windows of packed values.

A call releases the interpreter's lock, so that threads work in parallel.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.native import kernel
from halofeed.schemas.packed.packed_layout import PackedLayout
from halofeed.system.checksum import extend_address

VALUE, VALUE_BYTES, LAYOUT = 0, 1, 2
START, SHAPE, BACKWARDS = slice(3, 6), slice(6, 9), slice(9, 12)
TARGET, TARGET_STRIDES, FLAGS = 12, slice(13, 16), 16
FRAME, DONE = slice(17, 22), 22
"""Columns of `Unpack` of packed.c; FRAME is that of `kernel.Moves`."""
NEVER, ALWAYS = 0, 1
"""Values of the column FLAGS other than an address: compare no checksum, or all of them each time."""
Unpacks = NDArray[np.int64]
"""Table of windows to unpack, [window, column]."""
_STREAMS_LARGE = -1
"""Large windows, and all windows of a large table, bypass the cache."""


def packs() -> bool:
    """Return whether the kernel can pack and unpack."""
    return kernel.library() is not None and extend_address() is not None and sys.byteorder == "little"


def no_unpacks(count: int, layout: PackedLayout) -> Unpacks:
    """Return a table of `count` empty windows of values of a layout, which compare no frame and no checksum.

    The table holds the address of `layout.numbers`, so the layout must outlive it.
    """
    unpacks = np.zeros((count, kernel.UNPACK_COLUMNS), np.int64)
    unpacks[:, LAYOUT] = layout.numbers.ctypes.data
    return unpacks


def unpack_all(
    unpacks: Unpacks, run_in_threads: Callable[[Callable[[], None]], None], owners: object
) -> NDArray[np.bool_]:
    """Unpack the windows of a table, and return which were unpacked, bool [window].

    A window is not unpacked if the record's frame differs from the table's, or if a checksum or a size of its bands is
    wrong.

    Args:
        unpacks: the table; the kernel writes its column `DONE`.
        run_in_threads, owners: as in `halofeed.schemas.native.kernel.run_table`.
    """
    library = kernel.library()
    assert library is not None
    unpacks[:, DONE] = 0
    kernel.run_table(library.unpack, unpacks, _STREAMS_LARGE, run_in_threads, owners)
    return np.asarray(unpacks[:, DONE] == 1)


def unpack_window(
    value: NDArray[np.uint8],
    layout: PackedLayout,
    start: Sequence[int],
    backwards: Sequence[bool],
    out: NDArray[Any],
    flags: NDArray[np.uint8] | None = None,
    *,
    verifies: bool = True,
) -> bool:
    """Unpack a window of a packed value in this thread.

    Args:
        value: uint8 [byte], contiguous, at any address.
        layout: layout of the value.
        start: the window's first stored pixel along each axis, [plane, row, column].
        backwards: which of the three axes are mirrored.
        out: [plane, row, column, channel ...], contiguous pixels and adjacent pixels in rows, of the window's shape.
        flags: for each band whether its checksum was compared, uint8 [band]; bands that were are set to 1.
        verifies: compare the checksums that `flags` does not mark as compared, or all without flags.

    Returns:
        False if the value is damaged or the window is not in the array; `out` may be partly written.

    Raises:
        ValueError: an array has another form, so that the kernel would read or write outside it.
    """
    _check_target(layout, out)
    _check_value(value, layout, flags)
    unpacks = no_unpacks(1, layout)
    one = unpacks[0]
    one[VALUE], one[VALUE_BYTES] = value.ctypes.data, value.nbytes
    one[START], one[SHAPE], one[BACKWARDS] = start, out.shape[:3], backwards
    one[TARGET], one[TARGET_STRIDES] = out.ctypes.data, out.strides[:3]
    if verifies:
        one[FLAGS] = ALWAYS if flags is None else flags.ctypes.data
    return bool(unpack_all(unpacks, lambda work: work(), (value, out, flags))[0])


def _check_target(layout: PackedLayout, out: NDArray[Any]) -> None:
    """Raise ValueError if rows of `out` are not writable and adjacent pixels of the layout's size."""
    has_whole_pixels = out[:1, :1, :1].flags.c_contiguous
    has_adjacent_pixels = out.shape[2] == 1 or out.strides[2] == layout.pixel_bytes
    pixel_bytes = out.itemsize * math.prod(out.shape[3:])
    is_fitting = has_whole_pixels and has_adjacent_pixels and pixel_bytes == layout.pixel_bytes
    if not (is_fitting and out.flags.writeable):
        form = f"{out.dtype} of shape {out.shape} and strides {out.strides}"
        raise ValueError(f"expected a target of adjacent pixels of {layout.pixel_bytes} bytes, got {form}")


def _check_value(value: NDArray[np.uint8], layout: PackedLayout, flags: NDArray[np.uint8] | None) -> None:
    """Raise ValueError if the value or the flags are not contiguous bytes, one flag for each band."""
    if not value.flags.c_contiguous or value.dtype != np.uint8:
        raise ValueError(f"expected a value of adjacent bytes, got {value.dtype} of strides {value.strides}")
    if flags is not None and (flags.nbytes != layout.bands or not flags.flags.c_contiguous):
        raise ValueError(f"expected {layout.bands:,} adjacent flags of one byte, got {flags.nbytes:,} bytes")


def pack_bytes(array: NDArray[np.uint8], layout: PackedLayout, *, patches: bool) -> NDArray[np.uint8]:
    """Return the packed value of an array, uint8 [byte].

    Args:
        array: the array's little-endian bytes, uint8 [byte], contiguous, at any address.
        layout: layout of the array.
        patches: also try the mode for label maps, band by band.

    Raises:
        ValueError: the array's size is not the layout's, or its bytes are not contiguous.
        MemoryError: the kernel has no memory for a band.
    """
    if array.nbytes != layout.array_bytes or not array.flags.c_contiguous:
        raise ValueError(f"expected {layout.array_bytes:,} adjacent bytes, got {array.nbytes:,}")
    library = kernel.library()
    assert library is not None
    value = np.empty(layout.packing_bytes, np.uint8)
    size = library.pack(
        layout.numbers.ctypes.data, array.ctypes.data, value.ctypes.data, int(patches), extend_address()
    )
    if not size:
        raise MemoryError(f"packing an array of {layout.array_bytes:,} bytes")
    # Records that wait to be written hold no more than their values; a slice would hold the complete memory.
    value.resize(size, refcheck=False)
    return value


def use_instructions(wanted: int = -1) -> int:
    """Choose the instructions in use, for tests: 0 plain C, 1 AVX2 or NEON, 2 AVX-512 with VBMI, -1 the best.

    Returns:
        The number of those in use, which is lower where the processor lacks them.
    """
    library = kernel.library()
    assert library is not None
    return int(library.instructions(wanted))
