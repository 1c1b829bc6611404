"""Python interface to kernel.c, which copies windows of stored arrays, for many rows in one call.

`packing`, `coloring`, `shrinking`, `signing` and `measuring` call the other C files of the same library.

Installation builds the kernel if there is a C compiler. Without it NumPy and OpenCV make the same copies row by row.
A call releases the interpreter's lock, so that threads work in parallel.
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.system.checksum import extend_address

VERSION = 2
"""Version of kernel.c; a library of another version is not used."""
KERNEL_AXES = 3
STREAMED_BYTES = 1 << 24
"""Calls that copy more bytes bypass the cache, which could not hold the result until it is used."""
_STREAMED_COPY_BYTES = 1 << 19
"""The same for a copy of one array, because a batch has many."""
SOURCE, TARGET, PIXEL_BYTES, DONE = 0, 1, 11, 22
SHAPE, SOURCE_STRIDES, TARGET_STRIDES = slice(2, 5), slice(5, 8), slice(8, 11)
FRAME = slice(12, 17)
"""Header address, data length, the length's masked checksum or -1, footer address, and data checksum of a record."""
BLOCKS = slice(17, 22)
"""Address, bytes, block size, address of the blocks' checksums, and address of their flags, 0 to verify nothing."""
_COLUMNS = 23

Moves = NDArray[np.int64]
"""Table of copies, [move, column]: addresses, shapes along three axes, strides in bytes; see `Move` of kernel.c."""
READ_COLUMNS, VALUE_COLUMNS, REST_COLUMNS, WANTED_COLUMNS, PARSE_COLUMNS = 8, 5, 8, 5, 4
"""Number of columns of `Read`, `Value`, `Rest`, `Wanted` and `Parse` of kernel.c."""
FLOATS, INTEGERS = 2, 3
"""Kinds of lists in a `Wanted`."""
UNPACK_COLUMNS, COLORING_COLUMNS = 23, 21
"""Number of columns of `Unpack` of packed.c, and of `Coloring` of coloring.c."""
_ONE_MOVE = struct.Struct(f"={_COLUMNS}q")


class _Library:
    """The library built from the C files of this folder.

    Raises:
        OSError: it is missing or was built from another version.
        AttributeError: it was built from a version that lacks a function.
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        stated = (library.halofeed_version(), *map(library.halofeed_columns, range(6)))
        stated = (*stated, library.halofeed_unpack_columns(), library.halofeed_coloring_columns())
        tables = READ_COLUMNS, VALUE_COLUMNS, REST_COLUMNS, WANTED_COLUMNS, PARSE_COLUMNS
        if stated != (VERSION, _COLUMNS, *tables, UNPACK_COLUMNS, COLORING_COLUMNS):
            raise OSError("built of another version of kernel.c")
        self.move, self.read = library.halofeed_move, library.halofeed_read
        address, count = ctypes.c_void_p, ctypes.c_int64
        self.move.argtypes = (address, count, address, ctypes.c_int, address)
        self.move.restype = None
        self.copy = library.halofeed_copy
        self.copy.argtypes, self.copy.restype = (ctypes.c_char_p, ctypes.c_int), None
        self.read.argtypes, self.read.restype = (address, address), ctypes.c_int
        self.unpack, self.pack = library.halofeed_unpack, library.halofeed_pack
        self.unpack.argtypes = self.move.argtypes
        self.unpack.restype = None
        self.pack.argtypes = (address, address, address, ctypes.c_int, address)
        self.pack.restype = count
        self.shrink = library.halofeed_shrink
        self.shrink.argtypes, self.shrink.restype = (address, address), ctypes.c_int
        self.color, self.split_colors = library.halofeed_color, library.halofeed_split_colors
        self.color.argtypes, self.color.restype = self.move.argtypes, None
        self.split_colors.argtypes = (address, count, count, address)
        self.split_colors.restype = ctypes.c_int
        self.verify, self.parse = library.halofeed_verify, library.halofeed_parse
        self.verify.argtypes, self.verify.restype = (address, count, address), None
        self.parse.argtypes, self.parse.restype = (address, count, address, count), None
        # Absent in the library of an earlier build, which an editable install keeps; all else of it is used.
        self.sign = getattr(library, "halofeed_sign", None)
        if self.sign is not None:
            self.sign.argtypes = (ctypes.c_char_p, ctypes.c_char_p, address)
            self.sign.restype = ctypes.c_int
        self.measure = getattr(library, "halofeed_measure", None)
        if self.measure is not None:
            self.measure.argtypes, self.measure.restype = (ctypes.c_char_p, address), ctypes.c_double
        library.halofeed_prepare()
        self.instructions = library.halofeed_instructions
        self.instructions.argtypes, self.instructions.restype = (ctypes.c_int,), ctypes.c_int


def _load() -> _Library | None:
    found = importlib.util.find_spec("halofeed.schemas.native._kernel")
    try:
        return _Library(found.origin if found and found.origin else "absent")
    except (AttributeError, OSError):
        return None


_library = _load()


def library() -> _Library | None:
    """Return the library; None where it is not built."""
    return _library


def is_built() -> bool:
    """Return whether the kernel is available."""
    return _library is not None


def reads() -> bool:
    """Return whether the kernel can also read records, which needs the address of a checksum function."""
    return _library is not None and extend_address() is not None


def no_moves(count: int) -> Moves:
    """Return a table of `count` moves of shape 1 that copy nothing and compare no frame."""
    moves = np.zeros((count, _COLUMNS), np.int64)
    moves[:, SHAPE] = 1
    return moves


def run_table(
    function: Callable[[int, int, int, bool | int, int | None], None],
    table: NDArray[np.int64],
    streams: bool | int,
    run_in_threads: Callable[[Callable[[], None]], None],
    owners: object,
) -> None:
    """Call a function of the library for the rows of a table, in several threads that take row after row.

    Args:
        function: takes the addresses and numbers of `halofeed_move`, and writes each row's last column.
        table: int64 [row, column].
        streams: which rows bypass the cache, as the function defines it.
        run_in_threads: calls a function in several threads at the same time, and waits for all.
        owners: objects that own the memory to which the table's addresses point. They exist until the last thread has
            left the kernel, even if `run_in_threads` is interrupted.
    """
    next_row, extend = np.zeros(1, np.int64), extend_address()

    def work(_owners: object = owners) -> None:
        # An interrupt may end the caller's wait while threads are in the kernel. Each of them holds this function, and
        # so the memory that the kernel uses.
        function(table.ctypes.data, len(table), next_row.ctypes.data, streams, extend)

    try:
        run_in_threads(work)
    except BaseException:
        next_row[0] = len(table)  # no thread begins another row
        raise


def move(
    moves: Moves, run_in_threads: Callable[[Callable[[], None]], None], owners: object
) -> NDArray[np.bool_]:
    """Make the moves of a table, and return which were made: those whose record has a valid frame.

    Args:
        moves: the table; the kernel writes its column `DONE`.
        run_in_threads, owners: as in `run_table`.
    """
    assert _library is not None
    sizes = moves[:, SHAPE].prod(axis=1) * moves[:, PIXEL_BYTES]
    run_table(_library.move, moves, int(sizes.sum()) >= STREAMED_BYTES, run_in_threads, owners)
    return np.asarray(moves[:, DONE] == 1)


def read(read: NDArray[np.int64]) -> bool:
    """Read one record, and return whether all its checksums are right.

    Args:
        read: int64 [column], a row of `Read` of kernel.c; its addresses must stay valid during the call.
    """
    assert _library is not None
    return bool(_library.read(read.ctypes.data, extend_address()))


def verify_rests(rests: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Verify mapped records without their arrays, and return which are right, bool [record].

    Args:
        rests: int64 [record, column], rows of `Rest` of kernel.c.
    """
    assert _library is not None
    _library.verify(rests.ctypes.data, len(rests), extend_address())
    return np.asarray(rests[:, -1] == 1)


def parse_record_numbers(parses: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Parse numbers of mapped records, and return which records have them in the converter's form, bool [record].

    Args:
        parses: int64 [record, column], rows of `Parse` of kernel.c.
        wanted: int64 [key, column], rows of `Wanted`, fewer than 64.
    """
    assert _library is not None
    _library.parse(parses.ctypes.data, len(parses), wanted.ctypes.data, len(wanted))
    return np.asarray(parses[:, -1] == 1)


def copy(source: NDArray[Any], target: NDArray[Any], axes: int) -> bool:
    """Copy an array in this thread, bypassing the cache if it is large; False if the kernel cannot copy it.

    Args:
        source: [axis ..., channel, or none], of any strides, but with contiguous pixels and adjacent pixels in rows;
            rows may be reversed.
        target: array of the same shape and dtype.
        axes: number of leading axes that are not channels, at most three.
    """
    strides, into, shape = source.strides, target.strides, source.shape
    # Checked one by one in the order of their cost: this runs for each row of a batch.
    if _library is None or axes > KERNEL_AXES or source.dtype != target.dtype or shape != target.shape:
        return False
    if not (source.size and target.flags.writeable):
        return False
    pixel = source.itemsize
    # Channels must be side by side, so that a pixel is one run of bytes.
    for axis in range(len(shape) - 1, axes - 1, -1):
        if strides[axis] != pixel or into[axis] != pixel:
            return False
        pixel *= shape[axis]
    # The last axis may be mirrored; any other step between pixels is NumPy's work.
    if abs(strides[axes - 1]) != pixel or into[axes - 1] != pixel:
        return False
    outer = KERNEL_AXES - axes
    addresses = source.__array_interface__["data"][0], target.__array_interface__["data"][0]
    sides = (*(1,) * outer, *shape[:axes], *(0,) * outer, *strides[:axes], *(0,) * outer, *into[:axes])
    _library.copy(
        _ONE_MOVE.pack(*addresses, *sides, pixel, *(0,) * (_COLUMNS - PIXEL_BYTES - 1)),
        source.nbytes >= _STREAMED_COPY_BYTES,
    )
    return True
