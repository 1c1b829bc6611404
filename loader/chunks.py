"""Chunked reads of a raw value, so that a view of it is copied into a batch.

    stored in the file            scratch of the thread       row of the batch
    ┌────────────────────┐        ┌────────────────────┐      ┌──────────┐
    │      ┌──────┐      │  read  │ rows of one chunk  │ copy │ flipped, │
    │------│ view │------│ ─────> └────────────────────┘ ───> │  turned  │
    │------└──────┘------│        stays in the cache          └──────────┘
    └────────────────────┘

The scratch holds one chunk at a time: complete rows, or only their shown part if the bytes between are worth another
read. If the shard is mapped, one copy transfers the complete view.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import ImageShape, Ranges, View, common, slices_within
from halofeed.loader.record import StoredRecord

CHUNK_BYTES = 3 << 18
"""Size of one read; the chunk and its destination fit into a core's cache."""
_GAP_BYTES = 1 << 13
"""Unneeded bytes between two rows that cost less than a separate read."""


class StoredArray:
    """A raw field's array, of which only the viewed part is read.

    Args:
        record: the record that holds the array.
        key: the array's key in the record.
        shape: shape of the complete array, [height, width] or [depth, height, width] first.
        dtype: the stored dtype, little-endian.
        axes: number of leading axes that a view has.
    """

    __slots__ = ("_axes", "_key", "_pixel_bytes", "_record", "dtype", "shape")

    def __init__(
        self, record: StoredRecord, key: str, shape: ImageShape, dtype: np.dtype[Any], axes: int
    ) -> None:
        self._record, self._key, self._axes = record, key, axes
        self.shape, self.dtype = shape, dtype
        self._pixel_bytes = math.prod(shape[axes:]) * dtype.itemsize

    @property
    def place(self) -> str:
        """Return the record's place, for messages."""
        return self._record.place

    def copy(self, view: View, out: NDArray[Any]) -> None:
        """Copy what the view shows into `out`, of the view's shape and this array's channels."""
        shown = view.box
        if self._copy_from_mapping(view, shown, out):
            return
        for box, chunk in self._read_chunks(shown):
            part, region = view.part(box)
            part.copy(chunk, out[region])

    def _copy_from_mapping(self, view: View, shown: Ranges, out: NDArray[Any]) -> bool:
        """Copy the view from the mapped shard; False if it is not mapped."""
        value = self._record.mapped_value(self._key, lambda: self._runs(shown))
        if value is None:
            return False
        view.copy(value.view(self.dtype).reshape(self.shape), out)
        return not self._record.is_lost()

    def chunks(self, box: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """Yield the chunks of a box in stored order: the part of the box, and its array.

        An array is valid until the next one is requested.
        """
        for held, chunk in self._read_chunks(box):
            inside = common(held, box)
            yield inside, chunk[slices_within(inside, held)]

    def cached_count(
        self, box: Ranges, count: Callable[[StoredArray, Ranges], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """Return what `count` returns for a box of this array; see `Shards.cached_count`."""
        return self._record.cached_count((self._key, box), lambda: count(self, box))

    def _read_box(self, box: Ranges) -> Ranges:
        """Return the box to read for a shown box: an axis is read in full if the unneeded part is a small gap."""
        held, size = list(box), self._pixel_bytes
        for axis in range(self._axes - 1, 0, -1):
            low, high = box[axis]
            full = self.shape[axis]
            if (full - high + low) * size > _GAP_BYTES:
                break
            held[axis] = (0, full)
            size *= full
        return tuple(held)

    def _read_chunks(self, shown: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """Read the chunks that show a part of a box, and yield each one's box and array."""
        held = self._read_box(shown)
        self._record.prefetch(self._key, lambda: self._runs(held))
        for box in self._chunk_boxes(held, 0):
            if any(low >= high for low, high in common(box, shown)):
                continue
            shape = (*(high - low for low, high in box), *self.shape[self._axes :])
            memory = self._record.scratch(math.prod(shape) * self.dtype.itemsize)
            self._record.fetch(self._key, *self._runs(box), memory)
            yield box, memory.view(self.dtype).reshape(shape)

    def _chunk_boxes(self, held: Ranges, axis: int) -> Iterator[Ranges]:
        """Cut a box along its first axes into boxes of complete rows that fit the scratch, or of one row."""
        each = math.prod(high - low for low, high in held[axis + 1 :]) * self._pixel_bytes
        low, high = held[axis]
        if each > CHUNK_BYTES and axis + 2 < self._axes:
            for at in range(low, high):
                yield from self._chunk_boxes((*held[:axis], (at, at + 1), *held[axis + 1 :]), axis + 1)
            return
        step = max(1, CHUNK_BYTES // max(1, each))
        for at in range(low, high, step):
            yield (*held[:axis], (at, min(at + step, high)), *held[axis + 1 :])

    def _runs(self, box: Ranges) -> tuple[list[int], int]:
        """Return the contiguous runs of a box: the first byte of each, in order, and the length of all."""
        axis, stride = self._axes - 1, self._pixel_bytes
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
    """Return whether numbers of a dtype have the same bytes in memory as in a file."""
    return sys.byteorder == "little" or dtype in ("uint8", "int8", "bool")
