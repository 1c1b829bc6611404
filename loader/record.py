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

import abc
import contextlib
import math
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import ImageShape, Ranges, View, common, slices_within
from halofeed.loader.planes import ColorPlane
from halofeed.loader.shards import Bytes, Integers, ObjectLists, Shards
from halofeed.schemas.color_planes import color_window
from halofeed.schemas.fields import Field
from halofeed.schemas.native import kernel
from halofeed.schemas.packed.packed_layout import BAND_ROWS, SLACK_BYTES
from halofeed.schemas.packed.packed_windows import PackedWindow, pixels_of, read_window
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfexample import Decoded, decode_parts
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.system.checksum import combine, combine_blocks, crc32c, mask_crc
from halofeed.system.errors import CorruptFileError

NEVER_SPLIT_BYTES, SPLIT_BYTES_FOR_CROPS, SPLIT_BYTES_FOR_SLABS = 1 << 62, 2 << 20, 1 << 20
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
        """Return the values of keys, except arrays, and read the arrays of `into` to its memory.

        Args:
            keys: names of the values to decode.
            into: memory for complete arrays, uint8 [byte], by key; packed ones are unpacked.
            outlives: whether bytes values are copied to separate memory. Otherwise they are views of the thread's
                scratch and are valid until this thread reads another record.

        Raises:
            CorruptFileError: names file, offset, id and the cure.
        """
        shards, number = self._shards, self._number
        if self._verified_frame is not None:
            self._frame, self._verified_frame = self._verified_frame, None
            return self._decode(self._parts_around_arrays(self._frame), keys)
        self._opened = opened = shards.open(self.shard)
        self._stamp, self._has_mapping = opened.stamp, False
        self._read_token = object()  # verified blocks in the scratch belong to an earlier read
        if opened.is_transferred:
            if self._verify == "first":
                self._verify = "always"  # the next transfer may be damaged although this one is verified
            opened.begin(self._offset, lambda: shards.spans(np.array([number]), SPLIT_BYTES_FOR_CROPS))
        size = int(shards.rest_bytes(np.array([number]))[0])
        frame = np.empty(size, np.uint8).data if outlives else shards.scratch.bytes("rest", size).data
        self._frame = frame
        around = self._parts_around_arrays(frame)
        # A record whose checksums are known is copied from the mapped file; otherwise it is read and verified.
        if not self._copy_from_mapping(opened, into, around):
            self._read_and_verify(opened, into, around)
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

    def _parts_around_arrays(self, frame: memoryview) -> list[tuple[int, memoryview]]:
        """Split the frame at the arrays, which it does not hold; each part has its offset in the file."""
        around, at, used = [], self._offset, 0
        for key in self._shards.array_bytes:
            begin = self.value_start(key)
            stop = used + begin - at
            around.append((at, frame[used:stop]))
            at, used = begin + self.value_bytes(key), stop
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

    def _read_and_verify(
        self, opened: OpenFile, into: Mapping[str, Bytes], around: list[tuple[int, memoryview]]
    ) -> None:
        """Read the parts around the arrays and the arrays of `into`, and verify what was not verified."""
        shards = self._shards
        for at, part in around:
            opened.read_into((part,), at, len(part))
        self._check_frame(around)
        if self._verify == "always" or (self._verify == "first" and not shards.verified[self._number]):
            self._check_data([part for _, part in self._without_frame(around)])
        for key, out in into.items():
            if key in shards.layouts:
                self.unpack(key, PackedWindow.whole(shards.layouts[key]), out)
            else:
                self.fetch(key, [0], len(out), out)

    def _copy_from_mapping(
        self, opened: OpenFile, into: Mapping[str, Bytes], around: list[tuple[int, memoryview]]
    ) -> bool:
        """Copy a verified record from the mapped shard, after checking its frame; False if that is impossible."""
        shards = self._shards
        # Encoded files such as JPEG are decoded from the scratch anyway. A record with checksums left to compute is
        # read, because the mapped bytes are copied without verification.
        if not shards.array_bytes or not shards.is_verified(self._number, into):
            return False
        mapping = self._mapped_shard()
        if mapping is None:
            return False
        for at, part in around:
            part[:] = mapping.data[at : at + len(part)]
        for key, out in into.items():
            begin = self.value_start(key)
            value = mapping[begin : begin + self.value_bytes(key)]
            if key in shards.layouts:
                try:
                    self._unpack_value(key, PackedWindow.whole(shards.layouts[key]), value, out)
                except ValueError:  # `unpack` finds the error again and raises it with the record's place
                    return False
            elif not kernel.copy(value, out, 1):  # the kernel is not built on this machine
                np.copyto(out, value)
        if opened.is_lost():  # the file was shortened meanwhile, and zeros were copied
            return False
        self._check_frame(around)
        return True

    # Arrays, after `features` was called ---------------------------------------------------------------------

    def value_start(self, key: str) -> int:
        """Return the file offset of an array's value."""
        return int(self._shards.value_starts[key][self._number])

    def value_bytes(self, key: str) -> int:
        """Return the stored bytes of an array's value."""
        return int(self._shards.value_bytes[key][self._number])

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
        shards, begin, size = self._shards, self.value_start(key), self._shards.block_bytes
        value = mapping[begin : begin + shards.array_bytes[key]]
        if not self._is_verified(key):
            for block in _blocks_of(*runs(), size):
                if self._is_verified_block(key, block):
                    continue
                data = value[block * size : (block + 1) * size]
                if crc32c(data) != shards.value_checksums[key][self._number, block]:
                    return None  # `fetch` finds the error again and raises it with the record's place
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
            begin, size, each = self.value_start(key), self.value_bytes(key), self._shards.block_bytes
            starts = [block * each for block in _blocks_of(*runs(), each)]
            self._opened.expect([(begin + at, begin + min(at + each, size)) for at in starts])

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
        opened, begin, target = self._opened, self.value_start(key), out.data
        checked = not self._is_verified(key)
        for at, start in enumerate(starts):
            part = target[at * length : (at + 1) * length]
            if checked:
                self._fetch_checked(key, start, part)
            else:
                opened.read_into((part,), begin + start, length)

    def _fetch_checked(self, key: str, start: int, out: memoryview) -> None:
        shards, stop, size = self._shards, start + len(out), self._shards.block_bytes
        at = start
        while at < stop:
            block = at // size
            low, high = block * size, min((block + 1) * size, shards.array_bytes[key])
            if self._is_verified_block(key, block):
                last = min(stop, high)
                self._opened.read_into(
                    (out[at - start : last - start],), self.value_start(key) + at, last - at
                )
            elif at == low and stop >= high:
                # The caller wants complete blocks, so they are verified in place, several for one read.
                last = low + max(size, min(CHUNK_BYTES, stop - low) // size * size)
                last = high if last > stop else last
                self._read_blocks(key, block, out[at - start : last - start])
            else:
                last = min(stop, high)
                self._copy_of_block(key, block, at - low, out[at - start : last - start], high - low)
            at = last

    def _copy_of_block(self, key: str, block: int, first: int, out: memoryview, size: int) -> None:
        """Copy a part of a block of `size` bytes, from its byte `first` on, after verifying all of it."""
        scratch = self._shards.scratch
        complete = scratch.bytes("block", self._shards.block_bytes).data[:size]
        # Several rows of a window are often in one block, which is read and verified once.
        if scratch.block != (self._read_token, key, block):
            scratch.block = None
            self._read_blocks(key, block, complete)
            scratch.block = (self._read_token, key, block)
        out[:] = complete[first : first + len(out)]

    def _read_blocks(self, key: str, first: int, out: memoryview) -> None:
        """Read complete blocks one after the other, from the block `first` on, and verify each."""
        size = self._shards.block_bytes
        self._opened.read_into((out,), self.value_start(key) + first * size, len(out))
        for block, at in enumerate(range(0, len(out), size), first):
            if crc32c(out[at : at + size]) != self._shards.value_checksums[key][self._number, block]:
                raise self._checksum_error(f"the checksum of block {block} of {key} is wrong")
            self._mark_verified(key, block)

    def _mapped_shard(self) -> Bytes | None:
        """Return the mapped shard; checked once per read, because the check takes a tenth of a picture's copy."""
        if not self._has_mapping:
            self._mapping, self._has_mapping = self._opened.as_array(), True
        return self._mapping

    # Packed values, after `features` was called --------------------------------------------------------------

    def unpack(self, key: str, window: PackedWindow, out: NDArray[Any]) -> None:
        """Unpack a window of a packed value, after verifying its table and those of its bands that are not verified.

        Args:
            key: the value's key.
            window: the part to unpack.
            out: uint8 [plane, row, column, byte] of the window's shape, or contiguous bytes, uint8 [byte].

        Raises:
            CorruptFileError: as `features`; the message names the band.
        """
        mapping = self._mapped_shard()
        if mapping is not None:
            begin = self.value_start(key)
            # After an error the read below finds it again and raises it with the record's place.
            with contextlib.suppress(ValueError):
                self._unpack_value(key, window, mapping[begin : begin + self.value_bytes(key)], out)
                if not self.is_lost():
                    return
        try:
            value = self._read_bands(key, window.bands(self._shards.layouts[key]))
            self._unpack_value(key, window, value, out)
        except ValueError as error:
            raise self._checksum_error(f"{key}: {error}") from error

    def prefetch_bands(self, key: str, window: PackedWindow) -> None:
        """Begin to transfer the bands of a packed value that hold a window, if the shard is remote."""
        if self._opened.is_transferred:
            layout = self._shards.layouts[key]
            try:
                self._expect_bands(key, window.bands(layout), self._read_table(key))
            except ValueError as error:
                raise self._checksum_error(f"{key}: {error}") from error

    def _unpack_value(self, key: str, window: PackedWindow, value: Bytes, out: NDArray[Any]) -> None:
        """Unpack a window of a value in memory; ValueError if it is damaged."""
        layout, flags = self._shards.layouts[key], self._band_flags(key)
        # No band's checksum covers the bytes after the last band.
        verifies_last = flags is not None and not flags[-1] and window.bands(layout)[-1] == layout.bands - 1
        if verifies_last and value[-SLACK_BYTES:].any():
            raise ValueError("expected zeros after its last band")
        read_window(value, layout, window, out.reshape(*window.shape, layout.pixel_bytes), flags)

    def _band_flags(self, key: str) -> NDArray[np.bool_] | None:
        """Return which bands of a packed value are verified, bool [band]; None if none is to be verified."""
        if self._verify == "first":
            flags: NDArray[np.bool_] = self._shards.verified_parts[key][self._number]
            return flags
        return None if self._verify == "never" else np.zeros(self._shards.layouts[key].bands, np.bool_)

    def _read_table(self, key: str) -> NDArray[np.int64]:
        """Return where the bands of a packed value begin and end, int64 [band + 1]; ValueError if it is damaged."""
        layout, size = self._shards.layouts[key], self.value_bytes(key)
        table = self._shards.scratch.bytes("packed", size)[: layout.table_bytes]
        self._opened.read_into((table.data,), self.value_start(key), len(table))
        return layout.read_table(table.data, size)[0]

    def _expect_bands(self, key: str, bands: Integers, places: Integers) -> list[tuple[int, int]]:
        """Begin to transfer bands, if the shard is remote, and return the byte ranges of the value that hold them."""
        ranges = _merged(places[bands], places[bands + 1], _GAP_BYTES)
        if ranges and ranges[-1][1] == places[-1]:  # the kernel reads up to 16 bytes after the last band
            ranges[-1] = ranges[-1][0], ranges[-1][1] + SLACK_BYTES
        begin = self.value_start(key)
        self._opened.expect([(begin + low, begin + high) for low, high in ranges])
        return ranges

    def _read_bands(self, key: str, bands: Integers) -> Bytes:
        """Read the table and some bands of a packed value; ValueError if the table is damaged.

        Returns:
            The value, uint8 [byte], in this thread's memory; the contents of other bands are undefined.
        """
        opened, begin = self._opened, self.value_start(key)
        ranges = self._expect_bands(key, bands, self._read_table(key))
        value = self._shards.scratch.bytes("packed", self.value_bytes(key))
        for low, high in ranges:
            opened.read_into((value[low:high].data,), begin + low, high - low)
        return value

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
        """Verify the data's checksum; for arrays it is combined from the index's checksums of them."""
        shards, number = self._shards, self._number
        checksum = crc32c(parts[0])
        for key, part in zip(shards.array_bytes, parts[1:], strict=True):
            sums, value_bytes = shards.value_checksums[key][number].tolist(), self.value_bytes(key)
            value = (
                sums[0] if key in shards.layouts else combine_blocks(sums, value_bytes, shards.block_bytes)
            )
            checksum = crc32c(part, combine(checksum, value, value_bytes))
        if mask_crc(checksum) != shards.checksums[number]:
            raise self._checksum_error("the data's checksum is wrong")
        if self._verify == "first":
            shards.verified[number] = True

    def _is_verified(self, key: str) -> bool:
        """Return whether no checksum of an array is left to compute."""
        if self._verify == "first":
            return bool(self._shards.verified_parts[key][self._number].all())
        return self._verify == "never"

    def _is_verified_block(self, key: str, block: int) -> bool:
        return self._verify == "first" and bool(self._shards.verified_parts[key][self._number, block])

    def _mark_verified(self, key: str, block: int) -> None:
        if self._verify == "first":
            self._shards.verified_parts[key][self._number, block] = True

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


def _blocks_of(starts: Sequence[int], length: int, block_bytes: int) -> list[int]:
    """Return the numbers of the blocks that hold runs of a raw value, ascending."""
    # A difference array: +1 where a run enters a block, -1 after its last block, and the sum counts the runs.
    begin = np.array(starts)
    first, last = begin // block_bytes, (begin + length - 1) // block_bytes
    touched = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(touched, first, 1)
    np.add.at(touched, last + 1, -1)
    return list(np.flatnonzero(np.cumsum(touched) > 0).tolist())


def _address(part: memoryview) -> int:
    return int(np.frombuffer(part, np.uint8).ctypes.data)


class RecordArray(abc.ABC):
    """An array field of a record, of which only the viewed part is read; see `LabelSource`.

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
        if self._copy_at_once(view, out):
            return
        for box, chunk in self._read_chunks(view.box):
            part, region = view.part(box)
            part.copy(chunk, out[region])

    def chunks(self, box: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """Yield the chunks of a box in stored order: the part of the box, and its array.

        An array is valid until the next one is requested.
        """
        for held, chunk in self._read_chunks(box):
            inside = common(held, box)
            yield inside, chunk[slices_within(inside, held)]

    def cached_count(
        self, box: Ranges, count: Callable[[RecordArray, Ranges], NDArray[np.int64]], name: str = ""
    ) -> NDArray[np.int64]:
        """Return what `count` returns for a box of this array; see `Shards.cached_count`."""
        return self._record.cached_count((self._key, box, name), lambda: count(self, box))

    @abc.abstractmethod
    def _copy_at_once(self, view: View, out: NDArray[Any]) -> bool:
        """Copy the view without chunks; False if that is impossible."""

    @abc.abstractmethod
    def _read_chunks(self, shown: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """Read the chunks that show a part of a box, and yield each one's box and array."""

    def _chunk_boxes(self, held: Ranges, axis: int, rows: int = 1) -> Iterator[Ranges]:
        """Cut a box along its first axes into boxes of complete rows that fit the scratch, or of a few rows.

        Args:
            held: the box.
            axis: the axis to cut.
            rows: boxes within a plane begin at multiples of as many rows.
        """
        each = math.prod(high - low for low, high in held[axis + 1 :]) * self._pixel_bytes
        low, high = held[axis]
        # A slice that does not fit the cache is read by its rows; the last two axes are never divided further.
        if each > CHUNK_BYTES and axis + 2 < self._axes:
            for at in range(low, high):
                yield from self._chunk_boxes((*held[:axis], (at, at + 1), *held[axis + 1 :]), axis + 1, rows)
            return
        unit = rows if axis + 2 == self._axes else 1
        step = max(1, CHUNK_BYTES // max(1, each) // unit) * unit
        while low < high:
            stop = min((low // unit * unit) + step, high)
            yield (*held[:axis], (low, stop), *held[axis + 1 :])
            low = stop


def record_array(record: StoredRecord, field: Field, dtype: np.dtype[Any], axes: int) -> RecordArray:
    """Return an array field of a record without reading it.

    Args:
        record: the record.
        field: the field.
        dtype: its stored dtype, little-endian.
        axes: number of leading axes that a view has.
    """
    kind = PackedArray if field.is_packed else ColoredPlanes if field.holds_planes else StoredArray
    return kind(record, field.keys[0], field.stored_shape, dtype, axes)


class PackedArray(RecordArray):
    """A packed field's array; a view unpacks only the bands of its rows."""

    __slots__ = ()

    def _copy_at_once(self, view: View, out: NDArray[Any]) -> bool:
        """Unpack the view straight into `out`; False if axes are transposed or numbers converted."""
        if view.order != tuple(range(self._axes)) or out.dtype != self.dtype:
            return False
        if out.size:  # a slab may hold nothing of a small picture
            window = PackedWindow.of(view.start, view.shape, view.backwards)
            self._record.unpack(self._key, window, pixels_of(out, self._axes))
        return True

    def _read_chunks(self, shown: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        if any(low >= high for low, high in shown):
            return
        self._record.prefetch_bands(self._key, _window_of(shown))
        # A band is unpacked from its first row, so that no band is cut.
        for box in self._chunk_boxes(shown, 0, BAND_ROWS):
            shape = (*(high - low for low, high in box), *self.shape[self._axes :])
            memory = self._record.scratch(math.prod(shape) * self.dtype.itemsize)
            self._record.unpack(self._key, _window_of(box), memory)
            yield box, memory.view(self.dtype).reshape(shape)


def _window_of(box: Ranges) -> PackedWindow:
    """Return the window that shows a box as it is stored."""
    return PackedWindow.of([low for low, _ in box], [high - low for low, high in box])


def _merged(starts: Integers, stops: Integers, gap: int) -> list[tuple[int, int]]:
    """Return ranges, ascending, as (start, stop), after merging those with at most `gap` bytes between them.

    >>> _merged(np.array([0, 5, 90]), np.array([5, 8, 95]), 3)
    [(0, 8), (90, 95)]
    """
    if not len(starts):
        return []
    (cuts,) = np.nonzero(starts[1:] - stops[:-1] > gap)
    first, last = starts[[0, *(cuts + 1)]], stops[[*cuts, -1]]
    return list(zip(first.tolist(), last.tolist(), strict=True))


class ColoredPlanes(RecordArray):
    """The RGB pixels of a picture that is stored as color planes; see `halofeed.schemas.color_planes`."""

    __slots__ = ()

    def _copy_at_once(self, view: View, out: NDArray[Any]) -> bool:
        """Color the view straight into `out`; False if axes are transposed or the shard is not mapped."""
        if view.order != (0, 1) or out.dtype != self.dtype:
            return False
        if not out.size:  # a slab may hold nothing of a small picture
            return True
        value = self._record.mapped_value(self._key, lambda: self._runs(view.box))
        if value is None:
            return False
        color_window(value, self._size, view.box, view.backwards, out)
        return not self._record.is_lost()

    def _read_chunks(self, shown: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        if any(low >= high for low, high in shown):
            return
        self._record.prefetch(self._key, lambda: self._runs(shown))
        width, columns = self._size[1], shown[1]
        for (low, high), _ in self._chunk_boxes(shown, 0):
            # Complete rows of both planes, from an even row to an even row, are a small picture.
            first, last = low // 2 * 2, -(-high // 2) * 2
            planes = np.empty((last - first) * width * 3 // 2, np.uint8)
            split = (last - first) * width
            starts, lengths = self._plane_runs(first, last)
            for start, length, part in zip(starts, lengths, (planes[:split], planes[split:]), strict=True):
                self._record.fetch(self._key, [start], length, part)
            box = ((low - first, high - first), columns)
            yield ((low, high), columns), color_window(planes, (last - first, width), box)

    def plane(self, plane: ColorPlane) -> StoredArray:
        """Return one of the planes."""
        return StoredPlane(plane.offset, self._record, self._key, plane.shape, self.dtype, self._axes)

    @property
    def _size(self) -> tuple[int, int]:
        return self.shape[0], self.shape[1]

    def _plane_runs(self, first: int, last: int) -> tuple[list[int], list[int]]:
        """Return where the luma and the chroma of rows begin in the value, and their bytes; both rows are even."""
        height, width = self._size
        starts = [first * width, (height + first // 2) * width]
        return starts, [(last - first) * width, (last - first) // 2 * width]

    def _runs(self, box: Ranges) -> tuple[list[int], int]:
        """Return runs of one length that cover the rows of a box in both planes; see `ByteRuns`."""
        first, last = box[0][0] // 2 * 2, -(-box[0][1] // 2) * 2
        # The luma has twice the bytes of the chroma, so it is two runs of the chroma's length.
        (luma, chroma), (_, length) = self._plane_runs(first, last)
        return [luma, luma + length, chroma], length


class StoredArray(RecordArray):
    """A raw field's array."""

    __slots__ = ()

    def _copy_at_once(self, view: View, out: NDArray[Any]) -> bool:
        """Copy the view from the mapped shard; False if it is not mapped."""
        shown = view.box
        value = self._record.mapped_value(self._key, lambda: self._runs(shown))
        if value is None:
            return False
        view.copy(self._bytes_of(value).view(self.dtype).reshape(self.shape), out)
        return not self._record.is_lost()

    def _bytes_of(self, value: Bytes) -> Bytes:
        """Return the array's bytes of a complete value."""
        return value

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


class StoredPlane(StoredArray):
    """A plane of a picture that is stored as color planes.

    Args:
        offset: byte of the value at which the plane begins.
        others: the arguments of `RecordArray`.
    """

    __slots__ = ("_offset",)

    def __init__(self, offset: int, *others: Any) -> None:
        super().__init__(*others)
        self._offset = offset

    def _bytes_of(self, value: Bytes) -> Bytes:
        return value[self._offset : self._offset + math.prod(self.shape) * self.dtype.itemsize]

    def _runs(self, box: Ranges) -> tuple[list[int], int]:
        starts, length = super()._runs(box)
        return [start + self._offset for start in starts], length


def is_little_endian(dtype: str) -> bool:
    """Return whether numbers of a dtype have the same bytes in memory as in a file."""
    return sys.byteorder == "little" or dtype in ("uint8", "int8", "bool")
