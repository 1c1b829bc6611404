"""Tables of memory addresses for the kernel, which puts the arrays of a batch's records into its rows.

A copy plan (`CopyPlan`) copies or unpacks windows from memory-mapped shards, for all rows in one call. The TFRecord
frames are compared, and each file's stamp once per batch instead of once per record. A part whose checksum was not
computed yet is verified just before it is copied, so that the copy finds it in the cache.

`VerifiedReads` read complete records from local files, one per call, and compute their checksums. They apply if
checksums are left to compute and all raw values go into the batch as they are stored: reading a file into the batch
is faster than the page faults of a map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.augmented_example import Windows
from halofeed.loader.augment.view import Ranges
from halofeed.loader.mapped_records import MappedRecords, length_checksums, row_addresses
from halofeed.loader.planes import plane_offset, plane_scale, scaled_slab, scaled_windows
from halofeed.loader.record import StoredRecord
from halofeed.loader.shards import Integers, Shards
from halofeed.schemas.fields import Field
from halofeed.schemas.native import coloring, kernel, packing
from halofeed.schemas.native.coloring import Colorings
from halofeed.schemas.native.kernel import (
    BLOCKS,
    FRAME,
    KERNEL_AXES,
    PIXEL_BYTES,
    SHAPE,
    SOURCE,
    SOURCE_STRIDES,
    TARGET,
    TARGET_STRIDES,
    Moves,
    no_moves,
)
from halofeed.schemas.native.packing import Unpacks
from halofeed.schemas.shard_file import OpenFile

MAX_REST_BYTES = 1 << 24
"""Limit for all bytes of a batch's records except raw values; they are in memory until each record is parsed."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CopyPlan:
    """Tables that fill rows of a batch.

    Args:
        rows: number of rows.
        raw_fields: number of raw fields.
        moves: copies of raw windows, all rows of one field after the other, then padding.
        unpacks: windows of packed values, all rows of one field after the other.
        colorings: windows of color planes, all rows of one field after the other.
    """

    rows: int
    raw_fields: int
    moves: Moves
    unpacks: Unpacks
    colorings: Colorings

    def run(self, run_in_threads: Callable[[Callable[[], None]], None], owners: object) -> NDArray[np.bool_]:
        """Fill the rows, and return which are complete, bool [row]; see `halofeed.schemas.native.kernel.move`."""
        done = np.ones((1, self.rows), np.bool_)
        if len(self.unpacks):
            unpacked = packing.unpack_all(self.unpacks, run_in_threads, owners)
            done = np.concatenate([done, unpacked.reshape(-1, self.rows)])
        if len(self.colorings):
            colored = coloring.color_all(self.colorings, run_in_threads, owners)
            done = np.concatenate([done, colored.reshape(-1, self.rows)])
        if len(self.moves):
            moved = kernel.move(self.moves, run_in_threads, owners)[: self.raw_fields * self.rows]
            done = np.concatenate([done, moved.reshape(-1, self.rows)])
        return np.asarray(done.all(axis=0))


def plan_copies(
    fields: Sequence[Field],
    batch: Mapping[str, NDArray[Any]],
    padding: Mapping[str, NDArray[Any]],
    rows: Integers,
    windows: Windows,
    slab: Ranges | None,
    records: MappedRecords,
) -> CopyPlan:
    """Return the tables that fill rows of a batch.

    Args:
        fields: the array fields to fill; each has one key.
        batch: arrays [row, axis ..., channel, or none], each contiguous.
        padding: values for the parts of a row outside its window, of a row's shape, by name. A name is missing if
            windows always fill the row.
        rows: rows of the batch, int64 [row].
        windows: the window of each row.
        slab: the part of each window that the batch holds, as (start, stop) per axis as seen; None is all.
        records: each row's record.
    """
    targets = _plan_moves(fields, batch, rows, windows, slab, records)
    raw = [table for field, table in zip(fields, targets, strict=True) if field.is_raw]
    pads = [
        _pad_moves(padding[field.name], table, _shown_of(field, windows, slab)[1], axis)
        for field, table in zip(fields, targets, strict=True)
        if field.name in padding
        for axis in range(windows.shape.shape[1])
    ]
    unpacks = [
        _plan_unpacks(field, table, windows, slab, records)
        for field, table in zip(fields, targets, strict=True)
        if field.is_packed
    ]
    colorings = [
        _plan_colorings(field, table, windows, slab, records)
        for field, table in zip(fields, targets, strict=True)
        if field.holds_planes
    ]
    none = no_moves(0)
    return CopyPlan(
        rows=len(rows),
        raw_fields=len(raw),
        moves=np.concatenate([none, *raw, *pads]),
        unpacks=np.concatenate(unpacks or [none]),
        colorings=np.concatenate(colorings or [none]),
    )


def _plan_unpacks(
    field: Field, moves: Moves, windows: Windows, slab: Ranges | None, records: MappedRecords
) -> Unpacks:
    """Return the windows of a packed field to unpack, for the targets of its `moves`."""
    key, axes = field.keys[0], windows.start.shape[1]
    outer = KERNEL_AXES - axes
    layout = records.layout(key)
    table = packing.no_unpacks(len(moves), layout)
    table[:, packing.VALUE], table[:, packing.VALUE_BYTES] = records.addresses(key), records.sizes(key)
    table[:, packing.START][:, outer:] = _box_start(windows, slab)
    table[:, packing.SHAPE], table[:, packing.FRAME] = moves[:, SHAPE], moves[:, FRAME]
    table[:, packing.BACKWARDS][:, outer:] = windows.backwards
    table[:, packing.TARGET], table[:, packing.TARGET_STRIDES] = moves[:, TARGET], moves[:, TARGET_STRIDES]
    table[:, packing.FLAGS] = records.flags(key)
    return table


def _plan_colorings(
    field: Field, moves: Moves, windows: Windows, slab: Ranges | None, records: MappedRecords
) -> Colorings:
    """Return the windows of a field of color planes, for the targets of its `moves`."""
    table = coloring.no_colorings(len(moves), field.shape[:2])
    table[:, coloring.VALUE], table[:, coloring.START] = (
        records.addresses(field.keys[0]),
        _box_start(windows, slab),
    )
    table[:, coloring.SHAPE], table[:, coloring.BACKWARDS] = moves[:, SHAPE][:, 1:], windows.backwards
    table[:, coloring.TARGET], table[:, coloring.TARGET_STRIDE] = (
        moves[:, TARGET],
        moves[:, TARGET_STRIDES][:, 1],
    )
    table[:, coloring.FRAME] = moves[:, FRAME]
    table[:, coloring.BLOCKS] = records.blocks(field.keys[0])[:, 1:]
    return table


def _plan_moves(
    fields: Sequence[Field],
    batch: Mapping[str, NDArray[Any]],
    rows: Integers,
    windows: Windows,
    slab: Ranges | None,
    records: MappedRecords,
) -> NDArray[np.int64]:
    """Return the moves of each row of each field, int64 [field, row, column]; see `plan_copies`."""
    count, axes = windows.start.shape
    outer = KERNEL_AXES - axes  # leading axes of the kernel that the image lacks; their size is 1
    signs = 1 - 2 * windows.backwards.astype(np.int64)
    moves = no_moves(len(fields) * count)
    tables = moves.reshape(len(fields), count, -1)
    tables[:, :, FRAME] = records.frames()
    for field, table in zip(fields, tables, strict=True):
        stored, out = field.stored_shape, batch[field.name]
        first, shown = _shown_of(field, windows, slab)
        table[:, SHAPE][:, outer:] = shown
        pixel = math.prod(stored[axes:]) * out.itemsize
        strides = np.array([pixel * math.prod(stored[axis + 1 : axes]) for axis in range(axes)])
        table[:, SOURCE] = records.addresses(field.keys[0]) + plane_offset(field) + first @ strides
        table[:, TARGET] = out.ctypes.data + rows * out.strides[0]
        table[:, SOURCE_STRIDES][:, outer:] = signs * strides
        table[:, TARGET_STRIDES][:, outer:] = out.strides[1 : axes + 1]
        table[:, PIXEL_BYTES] = pixel
        if field.is_raw:
            table[:, BLOCKS] = records.blocks(field.keys[0])
    return tables


def _shown_of(field: Field, windows: Windows, slab: Ranges | None) -> tuple[Integers, Integers]:
    """Return `_first_shown` for a field, which may be a plane of a picture."""
    scale = plane_scale(field)
    return _first_shown(scaled_windows(windows, scale), None if slab is None else scaled_slab(slab, scale))


def _box_start(windows: Windows, slab: Ranges | None) -> Integers:
    """Return the lowest stored position that each row shows, int64 [row, axis]."""
    first, shown = _first_shown(windows, slab)
    return np.asarray(first - windows.backwards * (shown - 1))


def _first_shown(windows: Windows, slab: Ranges | None) -> tuple[Integers, Integers]:
    """Return the stored position of each row's first pixel as seen, and the size shown, both int64 [row, axis]."""
    start, shown = windows.start, windows.shape
    if slab is not None:
        low, high = (np.minimum([side[end] for side in slab], windows.shape) for end in (0, 1))
        start, shown = start + np.where(windows.backwards, windows.shape - high, low), high - low
    return start + windows.backwards * (shown - 1), shown


def _pad_moves(padding: NDArray[Any], moves: Moves, shown: Integers, axis: int) -> Moves:
    """Return the moves that pad one axis of rows beyond the size shown, int64 [row, axis], if that is smaller."""
    axes = shown.shape[1]
    size, strides = padding.shape[axis], padding.strides[:axes]
    (short,) = np.nonzero(shown[:, axis] < size)
    pads, outer = moves[short], KERNEL_AXES - axes
    offset = shown[short, axis] * strides[axis]
    pads[:, SOURCE] = padding.ctypes.data + offset
    pads[:, TARGET] += offset
    # Later axes are padded in full length; earlier ones as far as the window, since their padding is moved separately.
    pads[:, SHAPE][:, outer + axis + 1 :] = padding.shape[axis + 1 : axes]
    pads[:, SHAPE][:, outer + axis] = size - shown[short, axis]
    pads[:, SOURCE_STRIDES][:, outer:] = strides
    pads[:, FRAME], pads[:, BLOCKS] = 0, 0
    return pads


class VerifiedReads:
    """Records that the kernel reads and verifies, and the memory of its tables; safe to use from several threads.

    Args:
        shards: the split's shards.
        files: the open files, by shard number.
        numbers: numbers of the records, int64 [record].
        into: the target address of each record's raw value, int64 [record], by the value's key.
    """

    def __init__(
        self, shards: Shards, files: Mapping[int, OpenFile], numbers: Integers, into: Mapping[str, Integers]
    ) -> None:
        self._shards, self._files, self._numbers = shards, files, numbers
        self._stamps = {shard: opened.stamp for shard, opened in files.items()}
        lengths = shards.lengths[numbers]
        self._rest_bytes = shards.rest_bytes(numbers)
        self._rest_ends = np.cumsum(self._rest_bytes)
        self._rest = np.empty(int(self._rest_bytes.sum()), np.uint8)
        self._checksums = {key: shards.value_checksums[key][numbers] for key in into}
        # `Value` and `Read` of kernel.c name the columns of these tables.
        self._values = np.empty((len(numbers), len(into), kernel.VALUE_COLUMNS), np.int64)
        rows = np.arange(len(numbers))
        for place, (key, size) in enumerate(shards.array_bytes.items()):
            sums = row_addresses(self._checksums[key], rows)
            self._values[:, place] = np.stack(
                np.broadcast_arrays(
                    shards.value_starts[key][numbers], size, into[key], sums, shards.block_bytes
                ),
                axis=1,
            )
        self._reads = np.stack(
            np.broadcast_arrays(
                [files[shard].descriptor for shard in shards.shards_of(numbers).tolist()],
                shards.offsets[numbers],
                lengths,
                length_checksums(lengths),
                shards.checksums[numbers].astype(np.int64),
                self._rest.ctypes.data + self._rest_ends - self._rest_bytes,
                row_addresses(self._values, rows),
                len(into),
            ),
            axis=1,
        )

    @classmethod
    def of(cls, shards: Shards, numbers: Integers, into: Mapping[str, Integers]) -> VerifiedReads | None:
        """Return the reads of some records; None if the kernel cannot read them or no checksum is left to compute.

        Raises:
            CorruptFileError, SystemLimitError: as `Shards.open_all`.
        """
        # The kernel puts each raw value into the batch; others would need additional memory.
        if not kernel.reads() or into.keys() != shards.array_bytes.keys() or not into or shards.layouts:
            return None
        # Without checksums to compute, the copy plan is faster.
        if shards.is_verified(numbers, tuple(into)):
            return None
        files = shards.open_all(numbers)
        # The kernel reads by descriptor, and a transferred file has none.
        if not files or any(file.is_transferred for file in files.values()):
            return None
        if int(shards.rest_bytes(numbers).sum()) > MAX_REST_BYTES:
            return None
        return cls(shards, files, numbers, into)

    def read(self, position: int, record: StoredRecord) -> None:
        """Read the record at a position of `numbers`, and give its bytes to its `StoredRecord`."""
        # A damaged record is not marked: its StoredRecord reads it again and raises the error with the place.
        if kernel.read(self._reads[position]):
            self._shards.mark_verified(int(self._numbers[position]))
            end, shard = int(self._rest_ends[position]), record.shard
            rest = self._rest.data[end - int(self._rest_bytes[position]) : end]
            record.accept_verified(self._files[shard], self._stamps[shard], rest)
