"""Tables of memory addresses for the kernel, which puts the raw values of a batch's records into its rows.

A copy plan (`plan_moves`) copies windows from memory-mapped shards, for all rows in one call. It applies if no checksum
is left to compute. Only the TFRecord frames are compared, and each file's stamp once per batch instead of once per
record. So a row costs little more than its copy.

`VerifiedReads` read complete records from local files, one per call, and compute their checksums. They apply if
checksums are left to compute and all raw values go into the batch as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.augmented_example import Windows
from halofeed.loader.augment.view import Ranges
from halofeed.loader.record import StoredRecord
from halofeed.loader.shards import Bytes, Integers, Shards
from halofeed.schemas.fields import Field
from halofeed.schemas.native import kernel
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
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
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
        return self._bases + self._shards.raw_starts[key][self._numbers]

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


def plan_moves(
    fields: Sequence[Field],
    batch: Mapping[str, NDArray[Any]],
    padding: Mapping[str, NDArray[Any]],
    rows: Integers,
    windows: Windows,
    slab: Ranges | None,
    records: MappedRecords,
) -> Moves:
    """Return the kernel's moves that fill rows of a batch: all rows of one array after the other, then padding.

    Args:
        fields: the raw fields to fill; each has one key.
        batch: arrays [row, axis ..., channel, or none], each contiguous.
        padding: values for the parts of a row outside its window, of a row's shape, by name. A name is missing if
            windows always fill the row.
        rows: rows of the batch, int64 [row].
        windows: the window of each row.
        slab: the part of each window that the batch holds, as (start, stop) per axis as seen; None is all.
        records: each row's record.
    """
    count, axes = windows.start.shape
    outer = KERNEL_AXES - axes  # leading axes of the kernel that the image lacks; their size is 1
    first, shown = _first_shown(windows, slab)
    signs = 1 - 2 * windows.backwards.astype(np.int64)
    moves = no_moves(len(fields) * count)
    tables = moves.reshape(len(fields), count, -1)
    tables[:, :, FRAME] = records.frames()
    tables[:, :, SHAPE][:, :, outer:] = shown
    for field, table in zip(fields, tables, strict=True):
        stored, out = field.stored_shape, batch[field.name]
        pixel = math.prod(stored[axes:]) * out.itemsize
        strides = np.array([pixel * math.prod(stored[axis + 1 : axes]) for axis in range(axes)])
        table[:, SOURCE] = records.addresses(field.keys[0]) + first @ strides
        table[:, TARGET] = out.ctypes.data + rows * out.strides[0]
        table[:, SOURCE_STRIDES][:, outer:] = signs * strides
        table[:, TARGET_STRIDES][:, outer:] = out.strides[1 : axes + 1]
        table[:, PIXEL_BYTES] = pixel
    pads = [
        _pad_moves(padding[field.name], table, shown, axis)
        for field, table in zip(fields, tables, strict=True)
        if field.name in padding
        for axis in range(axes)
    ]
    return np.concatenate([moves, *pads]) if pads else moves


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
        self._rest_bytes = lengths + HEADER_BYTES + FOOTER_BYTES - shards.all_raw_bytes
        self._rest_ends = np.cumsum(self._rest_bytes)
        self._rest = np.empty(int(self._rest_bytes.sum()), np.uint8)
        self._checksums = {key: shards.raw_checksums[key][numbers] for key in into}
        # `Value` and `Read` of kernel.c name the columns of these tables.
        self._values = np.empty((len(numbers), len(into), kernel.VALUE_COLUMNS), np.int64)
        for place, (key, size) in enumerate(shards.raw_bytes.items()):
            self._values[:, place] = np.stack(
                np.broadcast_arrays(
                    shards.raw_starts[key][numbers],
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
        if not kernel.reads() or into.keys() != shards.raw_bytes.keys() or not into:
            return None
        # Without checksums to compute, the copy plan is faster.
        if shards.is_verified(numbers, tuple(into)):
            return None
        rest_bytes = int(shards.lengths[numbers].sum()) - len(numbers) * shards.all_raw_bytes
        files = shards.open_all(numbers)
        # The kernel reads by descriptor, and a transferred file has none.
        if not files or any(file.is_transferred for file in files.values()) or rest_bytes > MAX_REST_BYTES:
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
