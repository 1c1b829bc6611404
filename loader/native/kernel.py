"""How are windows of stored arrays copied by machine code, those of many rows in one call?

kernel.c says how. It is built when halofeed is installed where there is a C compiler; without it NumPy and OpenCV copy
the same, row by row: `is_built` tells. A call lets go of the interpreter's lock, so that threads work side by side.
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.system.checksum import extend_address

VERSION = 1
"""Of kernel.c; one that was built of another is not used."""
MOST_AXES = 3
STREAMED_BYTES = 1 << 24
"""Calls that copy more write past the cache: what they write has left it before anybody looks."""
_STREAMED_COPY_BYTES = 1 << 19
"""Of one array, of which a batch has many."""
SOURCE, TARGET, PIXEL_BYTES, DONE = 0, 1, 11, 17
SHAPE, SOURCE_STRIDES, TARGET_STRIDES = slice(2, 5), slice(5, 8), slice(8, 11)
FRAME = slice(12, 17)
"""Where a record's header lies, its length, the length's masked checksum or -1, where its footer lies, its checksum."""
_COLUMNS = 18

Moves = NDArray[np.int64]
"""[move, column]: addresses, shapes along three axes, strides in bytes; see `Move` of kernel.c."""


READ_COLUMNS, VALUE_COLUMNS = 8, 5
"""Of `Read` and `Value` of kernel.c."""


_ONE_MOVE = struct.Struct(f"={_COLUMNS}q")


class _Library:
    """What kernel.c was built to; OSError or AttributeError where it was not, or is another one."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        stated = (library.halofeed_version(), *map(library.halofeed_columns, range(3)))
        if stated != (VERSION, _COLUMNS, READ_COLUMNS, VALUE_COLUMNS):
            raise OSError("built of another version of kernel.c")
        self.move, self.read = library.halofeed_move, library.halofeed_read
        self.move.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int)
        self.move.restype = None
        self.copy = library.halofeed_copy
        self.copy.argtypes, self.copy.restype = (ctypes.c_char_p, ctypes.c_int), None
        self.read.argtypes, self.read.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int


def _found() -> _Library | None:
    found = importlib.util.find_spec("halofeed.loader.native._kernel")
    try:
        return _Library(found.origin if found and found.origin else "absent")
    except (AttributeError, OSError):
        return None


_library = _found()


def is_built() -> bool:
    """Whether there is a kernel."""
    return _library is not None


def reads() -> bool:
    """Whether it reads records too: it needs the function that sums them."""
    return _library is not None and extend_address() is not None


def no_moves(count: int) -> Moves:
    """A table of so many moves of nothing: one axis of one pixel each, no frame to compare."""
    moves = np.zeros((count, _COLUMNS), np.int64)
    moves[:, SHAPE] = 1
    return moves


@dataclass(frozen=True, eq=False, slots=True)
class _Copying:
    """A call of the kernel that holds all memory whose addresses the kernel uses.

    An interrupt may end the caller's wait while other threads are in the kernel. Each of them holds this object.

    Args:
        moves: the table.
        following: int64 [1], the next move that no thread has begun.
        streams: whether the kernel writes past the cache.
        owners: of the memory that the table's addresses point into.
    """

    moves: Moves
    following: NDArray[np.int64]
    streams: bool
    owners: object

    def __call__(self) -> None:
        assert _library is not None
        _library.move(self.moves.ctypes.data, len(self.moves), self.following.ctypes.data, self.streams)

    def stop(self) -> None:
        """Let no thread begin another move."""
        self.following[0] = len(self.moves)


def move(moves: Moves, together: Callable[[Callable[[], None]], None], owners: object) -> NDArray[np.bool_]:
    """Make the moves of a table, and say which were made: all whose frames are as they should be.

    Args:
        moves: the kernel writes its column `DONE`.
        together: calls what it is given in as many threads as shall work at the same time, and waits for all.
        owners: objects that own the memory which the table's addresses point into. They live until the last thread has
            left the kernel, whatever interrupts `together`.
    """
    sizes = moves[:, SHAPE].prod(axis=1) * moves[:, PIXEL_BYTES]
    streams = int(sizes.sum()) >= STREAMED_BYTES
    copying = _Copying(moves, np.zeros(1, np.int64), streams, owners)
    try:
        together(copying)
    except BaseException:
        copying.stop()
        raise
    return np.asarray(moves[:, DONE] == 1)


def read(read: NDArray[np.int64]) -> bool:
    """Read one record, and say whether every checksum of it is right.

    Args:
        read: int64 [column], a row of `Read` of kernel.c, whose addresses hold meanwhile.
    """
    assert _library is not None
    return bool(_library.read(read.ctypes.data, extend_address()))


def copy(source: NDArray[Any], target: NDArray[Any], axes: int) -> bool:
    """Copy an array into another in this thread, a large one past the cache; False where that is not done.

    Args:
        source: [axis ..., channel, or without], of any strides, but pixels are in one piece, rows perhaps backwards.
        target: of the same shape and dtype.
        axes: how many of the first axes are no channels, at most three.
    """
    strides, into, shape = source.strides, target.strides, source.shape
    if _library is None or axes > MOST_AXES or source.dtype != target.dtype or shape != target.shape:
        return False
    if not (source.size and target.flags.writeable):
        return False
    pixel = source.itemsize
    for axis in range(len(shape) - 1, axes - 1, -1):
        if strides[axis] != pixel or into[axis] != pixel:
            return False
        pixel *= shape[axis]
    if abs(strides[axes - 1]) != pixel or into[axes - 1] != pixel:
        return False
    outer = MOST_AXES - axes
    addresses = source.__array_interface__["data"][0], target.__array_interface__["data"][0]
    sides = (*(1,) * outer, *shape[:axes], *(0,) * outer, *strides[:axes], *(0,) * outer, *into[:axes])
    _library.copy(
        _ONE_MOVE.pack(*addresses, *sides, pixel, *(0,) * (_COLUMNS - PIXEL_BYTES - 1)),
        source.nbytes >= _STREAMED_COPY_BYTES,
    )
    return True
