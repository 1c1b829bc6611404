"""Tables for the kernel, which copies or reads the raw values of a batch's records.

A copy plan fills all rows of a batch in one call. It applies if all raw values of the records are in mapped shards and
only their frames are left to check. Then a row costs little more than its copy. Each file is checked once per batch,
before the first copy and after the last one, instead of once per record.

Verified reads also compute checksums, before a record is parsed. They apply to local shards if all raw values go into
the batch as they are stored and checksums must be computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.example import Windows
from halofeed.loader.augment.view import Ranges
from halofeed.loader.native import kernel
from halofeed.loader.native.kernel import (
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
from halofeed.loader.record import StoredRecord
from halofeed.loader.shards import Bytes, Integers, Shards
from halofeed.schemas.fields import Field
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.system.checksum import block_shifts, crc32c, mask_crc

MAX_FRAME_BYTES = 1 << 24
"""Bound for the frames of a batch's records, without raw values; they are held until each is parsed."""


@dataclass(frozen=True, slots=True, eq=False)
class MappedShard:
    """A shard whose bytes are all in memory, and its stamp from before they were mapped."""

    opened: OpenFile
    stamp: tuple[int, ...]
    bytes: Bytes

    def is_unchanged(self) -> bool:
        """Return whether bytes that were copied since then are the bytes that the file had then."""
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
        self._offsets, self._lengths = shards.offsets[numbers], shards.lengths[numbers]
        self._checksums = shards.checksums[numbers].astype(np.int64)
        self._checks_length = shards.verify != "never"

    @classmethod
    def of(cls, shards: Shards, numbers: Integers, keys: Sequence[str]) -> MappedRecords | None:
        """Return the raw values of records, if all of them are in memory and verified; otherwise None.

        Args:
            shards: the split's shards.
            numbers: numbers of the records, int64 [record].
            keys: keys of the raw values.

        Raises:
            CorruptFileError: as `Shards.shards_of` and `Shards.open`.
        """
        if not shards.is_verified(numbers, keys):
            return None
        files = {}
        for shard, opened in shards.open_all(numbers).items():
            stamp, mapping = opened.stamp, None if opened.is_transferred else opened.as_array()
            if mapping is None:
                return None
            files[shard] = MappedShard(opened, stamp, mapping)
        # Opening a file that was replaced has reset what was verified.
        if not files or not shards.is_verified(numbers, keys):
            return None
        return cls(shards, numbers, files)

    def addresses(self, key: str) -> Integers:
        """Return the memory addresses of the records' values, int64 [record]."""
        return self._bases + self._shards.raw_starts[key][self._numbers]

    def frames(self) -> Integers:
        """Return what the kernel compares of frames, int64 [record, 5]; see `halofeed.loader.native.kernel.FRAME`."""
        header = self._bases + self._offsets
        stated = length_checksums(self._lengths) if self._checks_length else np.full(len(header), -1)
        footer = header + HEADER_BYTES + self._lengths
        return np.stack([header, self._lengths, stated, footer, self._checksums], axis=1)

    @cached_property
    def _bases(self) -> Integers:
        """The memory address of each record's file."""
        bases = {shard: file.bytes.ctypes.data for shard, file in self._files.items()}
        return np.array([bases[shard] for shard in self._shard_of], np.int64)

    def unchanged(self) -> NDArray[np.bool_]:
        """Return for each record whether its file did not change while it was copied, bool [record]."""
        unchanged = {shard: file.is_unchanged() for shard, file in self._files.items()}
        return np.array([unchanged[shard] for shard in self._shard_of], np.bool_)


def length_checksums(lengths: Integers) -> Integers:
    """Return the masked checksum of each record length, int64 [record]."""
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
        fields: the fields to fill.
        batch: arrays [row, axis ..., channel, or none], each contiguous.
        padding: values for the parts of a row outside its window, of a row's shape, by name. A name is missing if
            windows always fill the row.
        rows: rows of the batch, int64 [row].
        windows: the window of each row.
        slab: the part of what is shown that the batch holds, as (start, stop) per axis; None is all.
        records: each row's record.
    """
    count, axes = windows.start.shape
    unpadded = KERNEL_AXES - axes
    first, shown = windows.start, windows.shape
    if slab is not None:
        low, high = (np.minimum([side[end] for side in slab], windows.shape) for end in (0, 1))
        first, shown = first + np.where(windows.backwards, windows.shape - high, low), high - low
    begin = first + windows.backwards * (shown - 1)
    signs = 1 - 2 * windows.backwards.astype(np.int64)
    moves = no_moves(len(fields) * count)
    tables = moves.reshape(len(fields), count, -1)
    tables[:, :, FRAME] = records.frames()
    tables[:, :, SHAPE][:, :, unpadded:] = shown
    for field, table in zip(fields, tables, strict=True):
        stored, out = field.stored_shape, batch[field.name]
        pixel = math.prod(stored[axes:]) * out.itemsize
        strides = np.array([pixel * math.prod(stored[axis + 1 : axes]) for axis in range(axes)])
        table[:, SOURCE] = records.addresses(field.keys[0]) + begin @ strides
        table[:, TARGET] = out.ctypes.data + rows * out.strides[0]
        table[:, SOURCE_STRIDES][:, unpadded:] = signs * strides
        table[:, TARGET_STRIDES][:, unpadded:] = out.strides[1 : axes + 1]
        table[:, PIXEL_BYTES] = pixel
    pads = [
        _pad_moves(padding[field.name], table, shown, axis)
        for field, table in zip(fields, tables, strict=True)
        if field.name in padding
        for axis in range(axes)
    ]
    return np.concatenate([moves, *pads]) if pads else moves


def _pad_moves(frame: NDArray[Any], moves: Moves, shown: Integers, axis: int) -> Moves:
    """Return the moves that pad one axis beyond the shown window."""
    axes = shown.shape[1]
    size, strides = frame.shape[axis], frame.strides[:axes]
    (short,) = np.nonzero(shown[:, axis] < size)
    padding, unpadded = moves[short], KERNEL_AXES - axes
    offset = shown[short, axis] * strides[axis]
    padding[:, SOURCE] = frame.ctypes.data + offset
    padding[:, TARGET] += offset
    # Later axes are padded in full length; earlier ones as far as the window, since their padding is moved separately.
    padding[:, SHAPE][:, unpadded + axis + 1 :] = frame.shape[axis + 1 : axes]
    padding[:, SHAPE][:, unpadded + axis] = size - shown[short, axis]
    padding[:, SOURCE_STRIDES][:, unpadded:] = strides
    padding[:, FRAME] = 0
    return padding


class VerifiedReads:
    """The records of a batch that the kernel may read; safe to use from several threads.

    Args:
        shards: the split's shards.
        files: the open files, by shard number.
        numbers: numbers of the records.
        into: for each raw value's key, the target address of each record, int64 [record].
    """

    def __init__(
        self, shards: Shards, files: Mapping[int, OpenFile], numbers: Integers, into: Mapping[str, Integers]
    ) -> None:
        self._shards, self._files, self._numbers = shards, files, numbers
        self._stamps = {shard: opened.stamp for shard, opened in files.items()}
        lengths = shards.lengths[numbers]
        self._frame_bytes = lengths + HEADER_BYTES + FOOTER_BYTES - shards.all_raw_bytes
        self._ends = np.cumsum(self._frame_bytes)
        self._frames = np.empty(int(self._frame_bytes.sum()), np.uint8)
        self._checksums = {key: shards.raw_checksums[key][numbers] for key in into}
        self._values = np.empty((len(numbers), len(into), kernel.VALUE_COLUMNS), np.int64)
        for place, (key, size) in enumerate(shards.raw_bytes.items()):
            self._values[:, place] = np.stack(
                np.broadcast_arrays(
                    shards.raw_starts[key][numbers],
                    size,
                    into[key],
                    _row_addresses(self._checksums[key]),
                    block_shifts(size).ctypes.data,
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
                self._frames.ctypes.data + self._ends - self._frame_bytes,
                _row_addresses(self._values),
                len(into),
            ),
            axis=1,
        )

    @classmethod
    def of(cls, shards: Shards, numbers: Integers, into: Mapping[str, Integers]) -> VerifiedReads | None:
        """Return the reads of some records; None if the kernel cannot read or need not verify them.

        Raises:
            CorruptFileError, SystemLimitError: as `Shards.open`.
        """
        if not kernel.reads() or into.keys() != shards.raw_bytes.keys() or not into:
            return None
        if shards.is_verified(numbers, tuple(into)):
            return None
        frame_bytes = int(shards.lengths[numbers].sum()) - len(numbers) * shards.all_raw_bytes
        files = shards.open_all(numbers)
        if not files or any(file.is_transferred for file in files.values()) or frame_bytes > MAX_FRAME_BYTES:
            return None
        return cls(shards, files, numbers, into)

    def read(self, row: int, record: StoredRecord) -> None:
        """Read one record and hand it over if it is intact; otherwise the record reads itself and finds the error."""
        if kernel.read(self._reads[row]):
            self._shards.mark_verified(int(self._numbers[row]))
            end, shard = int(self._ends[row]), record.shard
            frame = self._frames.data[end - int(self._frame_bytes[row]) : end]
            record.accept_verified(self._files[shard], self._stamps[shard], frame)


def _row_addresses(array: NDArray[Any]) -> Integers:
    """Return the memory addresses of an array's rows."""
    return array.ctypes.data + np.arange(len(array)) * array.strides[0]
