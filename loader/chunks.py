"""Which pieces of a stored array are read, one after the other, so that what a view shows of it comes into a batch?

    stored in the file            scratch of the thread       row of the batch
    ┌────────────────────┐        ┌────────────────────┐      ┌──────────┐
    │      ┌──────┐      │  read  │ rows of one piece  │ copy │ flipped, │
    │------│ view │------│ ─────> └────────────────────┘ ───> │  turned  │
    │------└──────┘------│        stays in the cache          └──────────┘
    └────────────────────┘

The scratch holds a piece at a time: whole rows, or the part of them that is shown where what lies between is worth a
call of its own. Of a shard that is mapped into memory one copy shows all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import Ranges, Shape, View, common, slices_within
from halofeed.loader.record import StoredRecord

PIECE_BYTES = 3 << 18
"""What a thread reads at a time; with what it is copied to, it stays in a processor's own cache."""
_GAP_BYTES = 1 << 13
"""What is read for nothing rather than left out by one more call."""


class StoredArray:
    """A raw field's array as it is stored, of which no more is read than what is looked at.

    Args:
        record: that holds it.
        key: under which.
        shape: of all of it, [height, width] or [depth, height, width] first.
        dtype: of its numbers, little-endian.
        axes: how many of the first axes a view has.
    """

    __slots__ = ("_axes", "_key", "_pixel", "_record", "dtype", "shape")

    def __init__(self, record: StoredRecord, key: str, shape: Shape, dtype: np.dtype[Any], axes: int) -> None:
        self._record, self._key, self._axes = record, key, axes
        self.shape, self.dtype = shape, dtype
        self._pixel = math.prod(shape[axes:]) * dtype.itemsize

    @property
    def place(self) -> str:
        """Of its record, for messages."""
        return self._record.place

    def copy(self, view: View, out: NDArray[Any]) -> None:
        """Copy what the view shows into `out`, of the view's shape and this array's channels."""
        shown = view.box
        if self._is_copied_from_memory(view, shown, out):
            return
        for box, piece in self._pieces(shown):
            part, region = view.part(box)
            part.copy(piece, out[region])

    def _is_copied_from_memory(self, view: View, shown: Ranges, out: NDArray[Any]) -> bool:
        """Whether the shard is mapped, so that one copy from there did it."""
        value = self._record.look(self._key, lambda: self._runs(shown))
        if value is None:
            return False
        view.copy(value.view(self.dtype).reshape(self.shape), out)
        return not self._record.is_lost()

    def pieces(self, box: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """All of a box, piece by piece in the order in which it is stored.

        Yields:
            which part of the box, and its array, which holds until the next is asked for.
        """
        for held, piece in self._pieces(box):
            inside = common(held, box)
            yield inside, piece[slices_within(inside, held)]

    def remembered(
        self, box: Ranges, count: Callable[[StoredArray, Ranges], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """What was counted in a box of this array; it is counted once, as long as there is room to remember it."""
        return self._record.remembered((self._key, box), lambda: count(self, box))

    def _held(self, box: Ranges) -> Ranges:
        """What is read to show a box: an axis in full where what is left out would be less than a gap."""
        held, size = list(box), self._pixel
        for axis in range(self._axes - 1, 0, -1):
            low, high = box[axis]
            full = self.shape[axis]
            if (full - high + low) * size > _GAP_BYTES:
                break
            held[axis] = (0, full)
            size *= full
        return tuple(held)

    def _pieces(self, shown: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """The parts of what is read to show a box that fit the scratch and show something, each with its array."""
        held = self._held(shown)
        self._record.expect(self._key, lambda: self._runs(held))
        for box in self._boxes(held, 0):
            if any(low >= high for low, high in common(box, shown)):
                continue
            shape = (*(high - low for low, high in box), *self.shape[self._axes :])
            memory = self._record.scratch(math.prod(shape) * self.dtype.itemsize)
            self._record.fetch(self._key, *self._runs(box), memory)
            yield box, memory.view(self.dtype).reshape(shape)

    def _boxes(self, held: Ranges, axis: int) -> Iterator[Ranges]:
        """What is held, cut along its first axes into parts of whole rows that fit the scratch, or of one."""
        each = math.prod(high - low for low, high in held[axis + 1 :]) * self._pixel
        low, high = held[axis]
        if each > PIECE_BYTES and axis + 2 < self._axes:
            for at in range(low, high):
                yield from self._boxes((*held[:axis], (at, at + 1), *held[axis + 1 :]), axis + 1)
            return
        step = max(1, PIECE_BYTES // max(1, each))
        for at in range(low, high, step):
            yield (*held[:axis], (at, min(at + step, high)), *held[axis + 1 :])

    def _runs(self, box: Ranges) -> tuple[list[int], int]:
        """Where the bytes of a box begin that lie together, in order, and how many they are each time."""
        axis, stride = self._axes - 1, self._pixel
        while axis and box[axis] == (0, self.shape[axis]):
            stride *= self.shape[axis]
            axis -= 1
        low, high = box[axis]
        starts, length = [low * stride], (high - low) * stride
        for outer in range(axis - 1, -1, -1):
            stride *= self.shape[outer + 1]
            starts = [at * stride + start for at in range(*box[outer]) for start in starts]
        return starts, length


def is_little_endian(dtype: str) -> bool:
    """Whether numbers of that dtype lie in memory as they are stored."""
    return sys.byteorder == "little" or dtype in ("uint8", "int8", "bool")
