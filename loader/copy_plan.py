"""Tables of memory addresses for the kernel, which puts the arrays of a batch's records into its rows.

A copy plan (`CopyPlan`) copies or unpacks windows from memory-mapped shards, for all rows in one call. It applies if no
checksum is left to compute. Only the TFRecord frames are compared, and each file's stamp once per batch instead of once
per record. So a row costs little more than its copy.

`VerifiedReads` read complete records from local files, one per call, and compute their checksums. They apply if
checksums are left to compute and all raw values go into the batch as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.augmented_example import Windows
from halofeed.loader.augment.view import Ranges
from halofeed.loader.planes import offset_of, scale_of, scaled_slab, scaled_windows
from halofeed.loader.record import StoredRecord
from halofeed.loader.shards import Bytes, Integers, Shards
from halofeed.schemas.fields import Field
from halofeed.schemas.native import coloring, kernel, packing
from halofeed.schemas.native.coloring import Colorings
from halofeed.schemas.native.kernel import (
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
from halofeed.schemas.packed.packed_layout import PackedLayout
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfrecord import HEADER_BYTES
from halofeed.system.checksum import block_shifts, crc32c, mask_crc

MAX_REST_BYTES = 1 << 24
"""Limit for all bytes of a batch's records except raw values; they are in memory until each record is parsed."""


@dataclass(frozen=True, slots=True, eq=False)
class MappedShard:
    """A memory-mapped shard, and its `OpenFile.stamp` from before it was mapped."""

    opened: OpenFile
    stamp: tuple[int, ...]
    mapping: Bytes

    def is_unchanged(self) -> bool:
        """Return whether the file has not changed since the stamp, so that copies of the mapping are right."""
        return not self.opened.is_lost() and self.opened.is_unchanged(self.stamp)


class MappedRecords:
    """The raw values of some records in mapped shards.

    Args:
        shards: the split's shards.
        numbers: numbers of the records, int64 [record].
        files: the mapped shards of these records, by shard number.
    """

    def __init__(self, shards: Shards, numbers: Integers, files: Mapping[int, MappedShard]) -> None:
        self._shards, self._numbers, self._files = shards, numbers, files
        self._shard_of = shards.shards_of(numbers).tolist()
        bases = {shard: file.mapping.ctypes.data for shard, file in files.items()}
        # The memory address of each record's shard.
        self._bases = np.array([bases[shard] for shard in self._shard_of], np.int64)

    @classmethod
    def of(cls, shards: Shards, numbers: Integers, keys: Sequence[str]) -> MappedRecords | None:
        """Return the raw values of records; None if a shard cannot be mapped or checksums are left to compute.

        Args:
            shards: the split's shards.
            numbers: numbers of the records, int64 [record].
            keys: keys of the raw values.

        Raises:
            CorruptFileError, SystemLimitError: as `Shards.open_all`.
        """
        # A copy in the kernel does not compute checksums; `VerifiedReads` or `StoredRecord` do.
        if not shards.is_verified(numbers, keys):
            return None
        files = {}
        for shard, opened in shards.open_all(numbers).items():
            stamp, mapping = opened.stamp, None if opened.is_transferred else opened.as_array()
            if mapping is None:
                return None
            files[shard] = MappedShard(opened, stamp, mapping)
        # No file: too many to be open at once. If a shard was replaced, opening it has discarded what was verified.
        if not files or not shards.is_verified(numbers, keys):
            return None
        return cls(shards, numbers, files)

    def addresses(self, key: str) -> Integers:
        """Return the memory addresses of the records' values, int64 [record]."""
        return self._bases + self._shards.value_starts[key][self._numbers]

    def layout(self, key: str) -> PackedLayout:
        """Return the layout of a packed value."""
        return self._shards.layouts[key]

    def sizes(self, key: str) -> Integers:
        """Return the stored bytes of the records' values, int64 [record]."""
        return self._shards.value_bytes[key][self._numbers]

    def flags(self, key: str) -> Integers:
        """Return what tells the kernel which bands to verify, int64 [record]; see `packing.FLAGS`."""
        shards = self._shards
        if shards.verify != "first":
            return np.full(len(self._numbers), packing.ALWAYS if shards.verify == "always" else packing.NEVER)
        return _row_addresses(shards.verified_parts[key])[self._numbers]

    def frames(self) -> Integers:
        """Return where headers and footers are and what they must state, int64 [record, 5]; `FRAME` has the columns."""
        shards, numbers = self._shards, self._numbers
        header, lengths = self._bases + shards.offsets[numbers], shards.lengths[numbers]
        stated = _length_checksums(lengths) if shards.verify != "never" else np.full(len(numbers), -1)
        footer = header + HEADER_BYTES + lengths
        return np.stack([header, lengths, stated, footer, shards.checksums[numbers]], axis=1, dtype=np.int64)

    def are_unchanged(self) -> NDArray[np.bool_]:
        """Return whether each record's file has not changed since `of`, bool [record]; call it after the copy."""
        unchanged = {shard: file.is_unchanged() for shard, file in self._files.items()}
        return np.array([unchanged[shard] for shard in self._shard_of], np.bool_)


def _length_checksums(lengths: Integers) -> Integers:
    """Return the masked CRC32C of each record length, int64 [record], as a TFRecord header states it."""
    return np.array([_length_checksum(length) for length in lengths.tolist()], np.int64)


@lru_cache(maxsize=1024)
def _length_checksum(length: int) -> int:
    return mask_crc(crc32c(length.to_bytes(8, "little")))


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
        table[:, SOURCE] = records.addresses(field.keys[0]) + offset_of(field) + first @ strides
        table[:, TARGET] = out.ctypes.data + rows * out.strides[0]
        table[:, SOURCE_STRIDES][:, outer:] = signs * strides
        table[:, TARGET_STRIDES][:, outer:] = out.strides[1 : axes + 1]
        table[:, PIXEL_BYTES] = pixel
    return tables


def _shown_of(field: Field, windows: Windows, slab: Ranges | None) -> tuple[Integers, Integers]:
    """Return `_first_shown` for a field, which may be a plane of a picture."""
    scale = scale_of(field)
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
    pads[:, FRAME] = 0
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
        for place, (key, size) in enumerate(shards.array_bytes.items()):
            self._values[:, place] = np.stack(
                np.broadcast_arrays(
                    shards.value_starts[key][numbers],
                    size,
                    into[key],
                    _row_addresses(self._checksums[key]),
                    block_shifts(size).ctypes.data,  # its cache owns this array
                ),
                axis=1,
            )
        self._reads = np.stack(
            np.broadcast_arrays(
                [files[shard].descriptor for shard in shards.shards_of(numbers).tolist()],
                shards.offsets[numbers],
                lengths,
                _length_checksums(lengths),
                shards.checksums[numbers].astype(np.int64),
                self._rest.ctypes.data + self._rest_ends - self._rest_bytes,
                _row_addresses(self._values),
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


def _row_addresses(array: NDArray[Any]) -> Integers:
    """Return the memory addresses of an array's rows."""
    return array.ctypes.data + np.arange(len(array)) * array.strides[0]
