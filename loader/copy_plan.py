"""Where in memory do the pixels of planned rows lie and, as a table for the kernel, where do they go?

Where the raw values of all records lie in memory, with nothing of them left to check but their frames, a row costs its
copy and little more: files are looked at once a batch, before its first copy and after its last one, and not a record
at a time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import Ranges
from halofeed.loader.augment.windows import Windows
from halofeed.loader.decode import stored_dtype
from halofeed.loader.native.kernel import (
    FRAME,
    MOST_AXES,
    PIXEL_BYTES,
    SHAPE,
    SOURCE,
    SOURCE_STRIDES,
    TARGET,
    TARGET_STRIDES,
    Moves,
    no_moves,
)
from halofeed.schemas.fields import Field
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfrecord import HEADER_BYTES
from halofeed.system.checksum import crc32c, mask_crc

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """A shard of which all bytes lie in memory, and its stamp of before they were looked at."""

    opened: OpenFile
    stamp: tuple[int, ...]
    bytes: NDArray[np.uint8]

    def is_sure(self) -> bool:
        """Whether what was copied since then are the bytes that the file had then."""
        return not self.opened.is_lost() and self.opened.is_unchanged(self.stamp)


class InMemory:
    """The raw values of some records.

    Args:
        shards: int64 [record], which file each is in.
        files: those files.
        offsets, lengths, checksums: int64 [record], where frames begin, bytes of their data, its masked checksum.
        starts: of each key, int64 [record], where the values begin in their files.
        sums_length: whether the length's own checksum is compared too.
    """

    def __init__(
        self,
        shards: Integers,
        files: dict[int, Looked],
        offsets: Integers,
        lengths: Integers,
        checksums: Integers,
        starts: dict[str, Integers],
        *,
        sums_length: bool,
    ) -> None:
        self._shards, self._files = shards, files
        self._offsets, self._lengths, self._checksums = offsets, lengths, checksums
        self._starts, self._sums_length = starts, sums_length

    def has(self, at: int) -> bool:
        """Whether a record's frame is as `frames` has it; else it is to be read by itself, which tells why not."""
        whole, offset, length = self._file_of(at), int(self._offsets[at]), int(self._lengths[at])
        stated, checksum = struct.unpack_from("<QI", whole, offset)
        (footer,) = struct.unpack_from("<I", whole, offset + HEADER_BYTES + length)
        expected = _length_checksum(length) if self._sums_length else checksum
        return (stated, checksum, footer) == (length, expected, int(self._checksums[at]))

    def array(self, at: int, field: Field) -> NDArray[Any]:
        """A record's value of a raw field as it lies in memory, of its stored shape."""
        start = int(self._starts[field.keys[0]][at])
        return np.ndarray(field.stored_shape, stored_dtype(field), self._file_of(at), start)

    def _file_of(self, at: int) -> memoryview:
        return self._files[int(self._shards[at])].bytes.data

    def addresses(self, key: str) -> Integers:
        """Where the records' values lie in memory, int64 [record]."""
        return self._bases + self._starts[key]

    def frames(self) -> Integers:
        """What is compared of the records' frames, int64 [record, 5]; see `halofeed.loader.native.kernel.FRAME`."""
        header = self._bases + self._offsets
        stated = length_checksums(self._lengths) if self._sums_length else np.full(len(header), -1)
        footer = header + HEADER_BYTES + self._lengths
        return np.stack([header, self._lengths, stated, footer, self._checksums], axis=1)

    @cached_property
    def _bases(self) -> Integers:
        """Where each record's file begins in memory."""
        bases = {shard: file.bytes.ctypes.data for shard, file in self._files.items()}
        return np.array([bases[shard] for shard in self._shards.tolist()], np.int64)

    def sure(self) -> NDArray[np.bool_]:
        """Of which records what was copied is theirs, bool [record], once all was."""
        sure = {shard: file.is_sure() for shard, file in self._files.items()}
        return np.array([sure[shard] for shard in self._shards.tolist()], np.bool_)


def length_checksums(lengths: Integers) -> Integers:
    """What stands masked behind each of those lengths of records' data, int64 [record]."""
    return np.array([_length_checksum(length) for length in lengths.tolist()], np.int64)


@lru_cache(maxsize=1024)
def _length_checksum(length: int) -> int:
    return mask_crc(crc32c(length.to_bytes(8, "little")))


def moves_of(
    fields: Sequence[Field],
    batch: Mapping[str, NDArray[Any]],
    padding: Mapping[str, NDArray[Any]],
    rows: Integers,
    windows: Windows,
    slab: Ranges | None,
    memory: InMemory,
) -> Moves:
    """The moves that fill rows of a batch, those of all rows for one array after the other; then those of padding.

    Args:
        fields: what is filled.
        batch: arrays [row, axis ..., channel, or none], each in one piece.
        padding: what a row is filled with where it shows nothing, of a row's shape; none where it shows all.
        rows: int64 [row], of the batch.
        windows: what each row shows.
        slab: which part of that, along the axes of what is shown, is in the batch; None is all.
        memory: where each row's record lies.
    """
    count, axes = windows.start.shape
    unpadded = MOST_AXES - axes
    first, shown = windows.start, windows.shape
    if slab is not None:
        low, high = (np.minimum([side[end] for side in slab], windows.shape) for end in (0, 1))
        first, shown = first + np.where(windows.backwards, windows.shape - high, low), high - low
    begin = first + windows.backwards * (shown - 1)
    signs = 1 - 2 * windows.backwards.astype(np.int64)
    moves = no_moves(len(fields) * count)
    tables = moves.reshape(len(fields), count, -1)
    tables[:, :, FRAME] = memory.frames()
    tables[:, :, SHAPE][:, :, unpadded:] = shown
    for field, table in zip(fields, tables, strict=True):
        stored, out = field.stored_shape, batch[field.name]
        pixel = math.prod(stored[axes:]) * out.itemsize
        strides = np.array([pixel * math.prod(stored[axis + 1 : axes]) for axis in range(axes)])
        table[:, SOURCE] = memory.addresses(field.keys[0]) + begin @ strides
        table[:, TARGET] = out.ctypes.data + rows * out.strides[0]
        table[:, SOURCE_STRIDES][:, unpadded:] = signs * strides
        table[:, TARGET_STRIDES][:, unpadded:] = out.strides[1 : axes + 1]
        table[:, PIXEL_BYTES] = pixel
    following = [
        _padding(padding[field.name], table, shown, axis)
        for field, table in zip(fields, tables, strict=True)
        if field.name in padding
        for axis in range(axes)
    ]
    return np.concatenate([moves, *following]) if following else moves


def _padding(frame: NDArray[Any], moves: Moves, shown: Integers, axis: int) -> Moves:
    """What follows along one axis upon all that is shown along the axes before it."""
    axes = shown.shape[1]
    size, strides = frame.shape[axis], frame.strides[:axes]
    (short,) = np.nonzero(shown[:, axis] < size)
    padding, unpadded = moves[short], MOST_AXES - axes
    offset = shown[short, axis] * strides[axis]
    padding[:, SOURCE] = frame.ctypes.data + offset
    padding[:, TARGET] += offset
    # All along the axes after it; along those before it no more than what is shown, for the rest has its own.
    padding[:, SHAPE][:, unpadded + axis + 1 :] = frame.shape[axis + 1 : axes]
    padding[:, SHAPE][:, unpadded + axis] = size - shown[short, axis]
    padding[:, SOURCE_STRIDES][:, unpadded:] = strides
    padding[:, FRAME] = 0
    return padding
