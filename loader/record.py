"""Reader of one record: its values, views of its raw values, and their checksums.

A view of a raw value (`StoredArray`) is copied into a batch in chunks:

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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import ImageShape, Ranges, View, common, slices_within
from halofeed.loader.shards import Bytes, Integers, ObjectLists, Shards
from halofeed.schemas.native import kernel
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfexample import Decoded, decode_parts
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.system.checksum import BLOCK_BYTES, combine, combine_blocks, crc32c, mask_crc
from halofeed.system.errors import CorruptFileError

NEVER_SPLIT_BYTES, SPLIT_BYTES_FOR_CROPS, SPLIT_BYTES_FOR_SLABS = 1 << 62, 2 << 20, BLOCK_BYTES
"""Raw values up to this size are fetched completely: a further request may cost more than the unused bytes."""
CHUNK_BYTES = 3 << 18
"""Size of one read; the chunk and its destination fit into a core's cache."""
_GAP_BYTES = 1 << 13
"""Unneeded bytes between two rows that cost less than a separate read."""
_NO_TARGETS: Mapping[str, Bytes] = {}

ByteRuns = Callable[[], tuple[list[int], int]]
"""Returns the first byte of each run within a raw value, and the length of every run in bytes."""


class StoredRecord:
    """One record, of which only the requested parts are read.

    Attributes:
        id: the example's id.
        shard: number of its shard.
        end: the byte of the file after its frame.
    """

    __slots__ = (
        "_frame",
        "_has_mapping",
        "_length",
        "_mapping",
        "_number",
        "_offset",
        "_opened",
        "_read_token",
        "_shards",
        "_stamp",
        "_verified_frame",
        "_verify",
        "end",
        "id",
        "shard",
    )
    _opened: OpenFile
    """Set by `features`."""

    def __init__(
        self, shards: Shards, shard: int, number: int, offset: int, length: int, identity: int
    ) -> None:
        self._shards, self.shard, self._number = shards, shard, number
        self._offset, self._length, self.id = offset, length, identity
        self.end = offset + HEADER_BYTES + length + FOOTER_BYTES
        self._verify = shards.verify
        self._stamp: tuple[int, ...] = ()
        self._mapping: Bytes | None = None
        self._has_mapping = False
        self._read_token = object()
        self._verified_frame: memoryview | None = None
        self._frame = memoryview(b"")

    @property
    def place(self) -> str:
        """Return "file: record at byte offset (id ...)", for messages."""
        return self._shards.place(self.shard, self._number)

    # Values of the record ------------------------------------------------------------------------------------

    def features(
        self, keys: frozenset[str], into: Mapping[str, Bytes] = _NO_TARGETS, *, outlives: bool = False
    ) -> Decoded:
        """Return the values of keys, except raw values, and read the raw values of `into` to its memory.

        Args:
            keys: names of the values to decode.
            into: memory for complete raw values, by key.
            outlives: whether bytes values are copied to separate memory. Otherwise they are views of the thread's
                scratch and are valid until this thread reads another record.

        Raises:
            CorruptFileError: names file, offset, id and the cure.
        """
        shards, number = self._shards, self._number
        if self._verified_frame is not None:
            self._frame, self._verified_frame = self._verified_frame, None
            return self._decode(self._parts_around_raw(self._frame), keys)
        self._opened = opened = shards.open(self.shard)
        self._stamp, self._has_mapping = opened.stamp, False
        self._read_token = object()  # verified blocks in the scratch belong to an earlier read
        if opened.is_transferred:
            if self._verify == "first":
                self._verify = "always"  # a verified transfer says nothing about the next one
            opened.begin(self._offset, lambda: shards.spans(np.array([number]), SPLIT_BYTES_FOR_CROPS))
        size = self.end - self._offset - shards.all_raw_bytes
        frame = np.empty(size, np.uint8).data if outlives else shards.scratch.bytes("rest", size).data
        self._frame = frame
        around = self._parts_around_raw(frame)
        # A record whose checksums are known is copied from the mapped file; otherwise it is read and verified.
        if not self._copy_from_mapping(opened, into, around):
            for at, part in around:
                opened.read_into((part,), at, len(part))
            self._check_frame(around)
            if self._verify == "always" or (self._verify == "first" and not shards.verified[number]):
                self._check_data([part for _, part in self._without_frame(around)])
            for key, out in into.items():
                self.fetch(key, [0], len(out), out)
        return self._decode(around, keys)

    def accept_verified(self, opened: OpenFile, stamp: tuple[int, ...], frame: memoryview) -> None:
        """Take over a record that the kernel has read and verified; `features` then reads nothing.

        Args:
            opened: the shard's file.
            stamp: the file's stamp before the read.
            frame: the record's frame without its raw values.
        """
        self._opened, self._stamp, self._verified_frame = opened, stamp, frame

    def frame_part(self, start: int, stop: int) -> memoryview:
        """Return bytes of the frame without raw values, after `features`; valid as long as its result."""
        return self._frame[start:stop]

    def span_of(self, part: memoryview) -> tuple[int, int]:
        """Return the `start` and `stop` for which `frame_part` returns a bytes value of `features`."""
        start = _address(part) - _address(self._frame)
        return start, start + len(part)

    def _parts_around_raw(self, frame: memoryview) -> list[tuple[int, memoryview]]:
        """Split the frame at the raw values, which it does not hold; each part has its offset in the file."""
        around, at, used = [], self._offset, 0
        for key, value_bytes in self._shards.raw_bytes.items():
            begin = self.raw_start(key)
            stop = used + begin - at
            around.append((at, frame[used:stop]))
            at, used = begin + value_bytes, stop
        return [*around, (at, frame[used:])]

    def _without_frame(self, around: list[tuple[int, memoryview]]) -> list[tuple[int, memoryview]]:
        """Return the same parts without header and footer, and with offsets in the record's data."""
        first = self._offset + HEADER_BYTES
        parts = [(max(0, at - first), part) for at, part in around]
        parts[0] = (0, parts[0][1][HEADER_BYTES:])
        parts[-1] = (parts[-1][0], parts[-1][1][:-FOOTER_BYTES])
        return parts

    def _decode(self, around: list[tuple[int, memoryview]], keys: frozenset[str]) -> Decoded:
        if not keys:
            return {}
        try:
            return decode_parts(self._without_frame(around), self._length, keys)
        except CorruptFileError as error:
            raise CorruptFileError(f"{self.place}: {error}") from error

    def _copy_from_mapping(
        self, opened: OpenFile, into: Mapping[str, Bytes], around: list[tuple[int, memoryview]]
    ) -> bool:
        """Copy a verified record from the mapped shard, after checking its frame; False if that is impossible."""
        shards = self._shards
        # Encoded files such as JPEG are decoded from the scratch anyway. A record with checksums left to compute is
        # read, because the mapped bytes are copied without verification.
        if not shards.raw_bytes or not shards.is_verified(self._number, into):
            return False
        mapping = self._mapped_shard()
        if mapping is None:
            return False
        for at, part in around:
            part[:] = mapping.data[at : at + len(part)]
        for key, out in into.items():
            begin = self.raw_start(key)
            value = mapping[begin : begin + len(out)]
            if not kernel.copy(value, out, 1):  # the machine code is not built on this machine
                np.copyto(out, value)
        if opened.is_lost():  # the file was shortened meanwhile, and zeros were copied
            return False
        self._check_frame(around)
        return True

    # Raw values, after `features` was called -----------------------------------------------------------------

    def raw_start(self, key: str) -> int:
        """Return the file offset of a raw value."""
        return int(self._shards.raw_starts[key][self._number])

    def mapped_value(self, key: str, runs: ByteRuns) -> Bytes | None:
        """Return a complete raw value, uint8 [byte], in the mapped shard; None if it must be fetched.

        Call `is_lost` after using it.

        Args:
            key: the value's key.
            runs: the bytes that the caller will use; their checksums are verified.
        """
        mapping = self._mapped_shard()
        if mapping is None:
            return None
        shards, begin = self._shards, self.raw_start(key)
        value = mapping[begin : begin + shards.raw_bytes[key]]
        if not self._is_verified(key):
            for block in _blocks_of(*runs()):
                if self._is_verified_block(key, block):
                    continue
                data = value[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
                if crc32c(data) != shards.raw_checksums[key][self._number, block]:
                    return None  # `fetch` finds the error again, or says why the file cannot be read
                self._mark_verified(key, block)
        return value

    def is_lost(self) -> bool:
        """Return whether the file was shortened under its mapping; then discard the copied bytes and fetch them."""
        if self._opened.is_lost():
            self._mapping = None
        return self._mapping is None

    def prefetch(self, key: str, runs: ByteRuns) -> None:
        """Begin to transfer the blocks of a raw value that hold `runs`, if the shard is remote."""
        if self._opened.is_transferred:
            begin, size = self.raw_start(key), self._shards.raw_bytes[key]
            starts = [block * BLOCK_BYTES for block in _blocks_of(*runs())]
            self._opened.expect([(begin + at, begin + min(at + BLOCK_BYTES, size)) for at in starts])

    def fetch(self, key: str, starts: Sequence[int], length: int, out: Bytes) -> None:
        """Read parts of a raw value.

        Checksums cover complete blocks. A block that `out` holds completely is verified there, while it is in the
        processor's cache.

        Args:
            key: the value's key.
            starts: first byte of each part within the value.
            length: bytes of each part.
            out: memory for all parts, one after the other.

        Raises:
            CorruptFileError: as `features`.
        """
        opened, begin, target = self._opened, self.raw_start(key), out.data
        checked = not self._is_verified(key)
        for at, start in enumerate(starts):
            part = target[at * length : (at + 1) * length]
            if checked:
                self._fetch_checked(key, start, part)
            else:
                opened.read_into((part,), begin + start, length)

    def _fetch_checked(self, key: str, start: int, out: memoryview) -> None:
        shards, stop = self._shards, start + len(out)
        for block in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            low, high = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, shards.raw_bytes[key])
            first, last = max(start, low), min(stop, high)
            target = out[first - start : last - start]
            if self._is_verified_block(key, block):
                self._opened.read_into((target,), self.raw_start(key) + first, last - first)
                continue
            # The caller wants the complete block, so it is verified in place.
            if (first, last) == (low, high):
                self._read_block(key, block, target)
                continue
            scratch = shards.scratch
            complete = scratch.bytes("block", BLOCK_BYTES).data[: high - low]
            # Several rows of a window are often in one block, which is read and verified once.
            if scratch.block != (self._read_token, key, block):
                scratch.block = None
                self._read_block(key, block, complete)
                scratch.block = (self._read_token, key, block)
            target[:] = complete[first - low : last - low]

    def _read_block(self, key: str, block: int, out: memoryview) -> None:
        self._opened.read_into((out,), self.raw_start(key) + block * BLOCK_BYTES, len(out))
        if crc32c(out) != self._shards.raw_checksums[key][self._number, block]:
            raise self._checksum_error(f"the checksum is wrong of block {block} of {key}")
        self._mark_verified(key, block)

    def _mapped_shard(self) -> Bytes | None:
        """Return the mapped shard; checked once per read, because the check takes a tenth of a picture's copy."""
        if not self._has_mapping:
            self._mapping, self._has_mapping = self._opened.as_array(), True
        return self._mapping

    def scratch(self, size: int) -> Bytes:
        """Return `size` bytes of this thread's memory for `fetch`; later calls return the same memory."""
        return self._shards.scratch.bytes("piece", size)

    # Caches --------------------------------------------------------------------------------------------------

    def cached_fields(self, names: Sequence[str]) -> dict[str, NDArray[Any]] | None:
        """Return the cached values of fields by name; None if any is missing, or with `verify="always"`."""
        return self._shards.cached_fields(self._number, names)

    def cached_objects(self) -> ObjectLists | None:
        """Return the cached lists of the record's objects, as `cached_fields`."""
        found = self._shards.cached_objects(np.array([self._number]))
        return None if found is None else found[0]

    def cache(self, values: Mapping[str, NDArray[Any]], objects: ObjectLists) -> None:
        """Cache values of static shape and lists of objects, if there is room; call `is_unchanged` before."""
        for name, value in values.items():
            self._shards.fields.put(name, self._number, value)
        if objects:
            self._shards.objects.put(self._number, objects)

    def cached_count(self, key: Hashable, count: Callable[[], Integers]) -> Integers:
        """Return what `count` returned for a key of this record; see `Shards.cached_count`."""
        return self._shards.cached_count((self._number, key), count)

    # Changes of the file and checksums -----------------------------------------------------------------------

    def is_unchanged(self) -> bool:
        """Return whether nothing wrote to the shard since `features` began; otherwise read the record again."""
        return self._opened.is_unchanged(self._stamp)

    def changed_error(self) -> CorruptFileError:
        """Return the error to raise if the shard changes during every attempt."""
        return CorruptFileError(
            f"{self.place}: the shard is being written to while it is read; wait until that is done, and make a new "
            "Loader then"
        )

    def invalidate(self) -> None:
        """Discard the record's transferred bytes, which are wrong."""
        self._shards.invalidate(self.shard, self._offset, self.end)

    def _check_frame(self, around: list[tuple[int, memoryview]]) -> None:
        header, footer = around[0][1][:HEADER_BYTES], around[-1][1][-FOOTER_BYTES:]
        self._shards.check_frame(self.shard, self._number, header, footer)

    def _check_data(self, parts: list[memoryview]) -> None:
        """Verify the data's checksum; for raw values it is combined from the index's block checksums."""
        shards, number = self._shards, self._number
        checksum = crc32c(parts[0])
        for (key, value_bytes), part in zip(shards.raw_bytes.items(), parts[1:], strict=True):
            value = combine_blocks(shards.raw_checksums[key][number].tolist(), value_bytes)
            checksum = crc32c(part, combine(checksum, value, value_bytes))
        if mask_crc(checksum) != shards.checksums[number]:
            raise self._checksum_error("the data's checksum is wrong")
        if self._verify == "first":
            shards.verified[number] = True

    def _is_verified(self, key: str) -> bool:
        """Return whether no checksum of a raw value is left to compute."""
        if self._verify == "first":
            return bool(self._shards.verified_blocks[key][self._number].all())
        return self._verify == "never"

    def _is_verified_block(self, key: str, block: int) -> bool:
        return self._verify == "first" and bool(self._shards.verified_blocks[key][self._number, block])

    def _mark_verified(self, key: str, block: int) -> None:
        if self._verify == "first":
            self._shards.verified_blocks[key][self._number, block] = True

    def _checksum_error(self, what: str) -> CorruptFileError:
        return self._shards.checksum_error(self.shard, self._number, what)


def stored_record(shards: Shards, number: int) -> StoredRecord:
    """Return the record of a number, 0 .. len-1, without reading it; raise as `stored_records`."""
    return stored_records(shards, np.array([number]))[0]


def stored_records(shards: Shards, numbers: Integers) -> list[StoredRecord]:
    """Return the records of numbers, each 0 .. len-1, without reading them.

    Raises:
        CorruptFileError: an index is not the one that the manifest names.
    """
    shard_of = shards.shards_of(numbers)
    columns = (shard_of, numbers, shards.offsets[numbers], shards.lengths[numbers], shards.ids[numbers])
    return [StoredRecord(shards, *row) for row in zip(*(column.tolist() for column in columns), strict=True)]


class ChosenRecords:
    """The records of a stream by number, 0 .. len-1: all of a split, or a subset.

    Args:
        shards: the split's shards.
        subset: the numbers of the records in the split, int64 [record], ascending; None is all.
    """

    def __init__(self, shards: Shards, subset: Integers | None) -> None:
        self.shards, self.subset = shards, subset
        self._count = len(shards) if subset is None else len(subset)

    def __len__(self) -> int:
        return self._count

    def in_split(self, numbers: Integers) -> Integers:
        """Return the numbers in the split of records, int64 [record]."""
        return numbers if self.subset is None else self.subset[numbers]

    def ids(self) -> Integers:
        """Return the id of each record, int64 [record]; raise CorruptFileError as `Shards.shards_of`."""
        ids = self.shards.all_ids()
        return ids if self.subset is None else ids[self.subset]

    def record(self, number: int) -> StoredRecord:
        """Return the record of a number without reading it; raise as `stored_records`."""
        return stored_record(self.shards, number if self.subset is None else int(self.subset[number]))


def _blocks_of(starts: Sequence[int], length: int) -> list[int]:
    """Return the numbers of the blocks that hold runs of a raw value, ascending."""
    # A difference array: +1 where a run enters a block, -1 after its last block, and the sum counts the runs.
    begin = np.array(starts)
    first, last = begin // BLOCK_BYTES, (begin + length - 1) // BLOCK_BYTES
    touched = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(touched, first, 1)
    np.add.at(touched, last + 1, -1)
    return list(np.flatnonzero(np.cumsum(touched) > 0).tolist())


def _address(part: memoryview) -> int:
    return int(np.frombuffer(part, np.uint8).ctypes.data)


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
            if (full - high + low) * size > _GAP_BYTES:  # a seek costs less than these bytes
                break
            held[axis] = (0, full)
            size *= full
        return tuple(held)

    def _read_chunks(self, shown: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """Read the chunks that show a part of a box, and yield each one's box and array."""
        held = self._read_box(shown)
        self._record.prefetch(self._key, lambda: self._runs(held))
        for box in self._chunk_boxes(held, 0):
            # Whole rows are read across small gaps, and a chunk may contain nothing else than a gap.
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
        # A slice that does not fit the cache is read by its rows; the last two axes are never divided further.
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
