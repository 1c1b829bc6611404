"""Shards of one split: open files, indexes, checksums and the records' places.

The manifest is held in memory and states the checksum of each index. The index states each record's length and
checksum as they are written in the shard. The loader compares both at every read. So a shard that was replaced,
restored or converted again is never mistaken for the original. `verify` decides whether the data's own checksums are
computed.

Parsed values are cached, so that a record's numbers are parsed once: values of static shape in columns, lists of
objects record by record.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.store.dataset_store import Span, Store
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.shard_file import CURE, OpenFile, max_open
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.system.checksum import BLOCK_BYTES, crc32c, mask_crc
from halofeed.system.console import human_bytes
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.memory import process_memory
from halofeed.system.wording import plural

VERIFY = {
    "first": "the checksums of what is read, when it is first read",
    "always": "the checksums of what is read, every time",
    "never": "no checksum of the data; length and checksum must still be stated as the index has them",
}
SHARD_CHANGED = (
    "the shard was replaced or changed since it was indexed; if the data set was converted or copied again, make a new "
    f"Loader, else {CURE}"
)
MAX_COUNT_CACHE_BYTES = 1 << 22
MAX_FIELD_BYTES = 1 << 26
"""Bound for all columns of a split; a field that does not fit is parsed at every read."""
MAX_OBJECT_BYTES = 1 << 26
"""Bound for the objects of a split; objects that do not fit are parsed at every read."""
_ENTRY_BYTES = 160
"""Python's memory for one record's entry, without the objects themselves."""
_MAX_SCRATCH_BYTES = 1 << 24
_HEADER, _FOOTER = struct.Struct("<QI"), struct.Struct("<I")

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
ObjectLists = Mapping[str, NDArray[Any]]
"""Lists by field name, each [object, ...]."""


class Scratch(threading.local):
    """Memory that a thread reads into and reuses from record to record."""

    def __init__(self) -> None:
        self._memory: dict[str, Bytes] = {}
        self.block: tuple[object, str, int] | None = None
        """The read, key and block number whose verified bytes the scratch "block" holds."""

    def bytes(self, use: str, size: int) -> Bytes:
        """Return `size` bytes for a use; later calls return the same memory."""
        memory = self._memory.get(use)
        if memory is None or len(memory) < size:
            # A power of 2, so that growing sizes allocate rarely.
            memory = np.empty(1 << max(12, (size - 1).bit_length()), np.uint8)
            if size <= _MAX_SCRATCH_BYTES:  # one huge record must not hold its memory in every thread
                self._memory[use] = memory
        return memory[:size]


class Shards:
    """The records of one split by their number; safe to use from several threads and after a fork.

    `halofeed.loader.record.stored_record` reads a record.

    Memory: 28 bytes per record, 8 per raw field and 4 per block of it; 20 per packed field. With `verify="first"` one
    more byte per record, per block and per band, in the shards that were read. Each thread reads into about 2 MiB of
    scratch, and into scratch for one record's packed values and other fields (for jpeg and png all of them). While
    checksums are computed, a batch holds the other fields of all its records, up to 16 MiB.

    Attributes:
        layouts: the layout of each packed array, by key.
        array_bytes: bytes of each array as it is unpacked, by key, in the order of the values in a record.
        value_starts, value_bytes: the file offset and the size of each record's value, int64 [record], by key.
        block_bytes: bytes of a block of raw values; 0 before the first index is read.
        value_checksums: CRC32C of the blocks of raw values, or of a packed value, uint32 [record, block], by key.
        verified_parts: which blocks or bands are verified, bool [record, part], by key; only with verify="first".
    """

    def __init__(self, store: Store, manifest: Manifest, split: str, verify: str) -> None:
        if verify not in VERIFY:
            raise UsageError(f"verify: expected one of {', '.join(VERIFY)}, got {verify!r}")
        self.store, self.verify = store, verify
        self._shards = manifest.split(split).shards
        store.check_sizes(self._shards)
        self._files = [store.source(shard) for shard in self._shards]
        self._identities: list[object] = [None] * len(self._shards)
        ends = np.cumsum([0, *(shard.records for shard in self._shards)], dtype=np.int64)
        self._starts, self._ends = ends[:-1], ends[1:]
        count = int(ends[-1])
        self._loaded = np.zeros(len(self._shards), np.bool_)
        # The keys of a tf.train.Example are sorted, so this is also the order of the values in a record.
        arrays = sorted((field for field in manifest.fields if field.is_array), key=lambda field: field.keys)
        self.layouts = {field.keys[0]: field.packed_layout for field in arrays if field.is_packed}
        self.array_bytes = {field.keys[0]: field.stored_bytes for field in arrays}
        sums, parts = self._counts_of_parts(BLOCK_BYTES)
        _check_index_memory(count, len(arrays) + len(self.layouts), sums, parts, store.place)
        # Zeros take no memory before they are written.
        self.offsets, self.lengths, self.ids = (np.zeros(count, np.int64) for _ in range(3))
        self.checksums = np.zeros(count, np.uint32)
        self.value_starts = {key: np.zeros(count, np.int64) for key in self.array_bytes}
        self.value_bytes = {
            key: np.zeros(count, np.int64)
            if key in self.layouts
            else np.broadcast_to(np.int64(size), (count,))
            for key, size in self.array_bytes.items()
        }
        self._fresh = np.ones if store.is_checked else np.zeros
        self.verified = self._fresh(count if verify == "first" else 0, np.bool_)
        # The first index states the size of blocks.
        self.block_bytes = 0
        self.value_checksums: dict[str, NDArray[np.uint32]] = {}
        self.verified_parts: dict[str, NDArray[np.bool_]] = {}
        self.fields, self.objects = FieldCache(count), ObjectCache()
        self.scratch = Scratch()
        self._counts: dict[Hashable, Integers] = {}
        self._counts_bytes = 0
        self._lock, self._process = threading.Lock(), os.getpid()
        self._columns_lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.offsets)

    # The index -----------------------------------------------------------------------------------------------

    def shards_of(self, numbers: Integers) -> Integers:
        """Return the shard number of each record, int64 [record], after reading their indexes.

        Raises:
            CorruptFileError: an index is not the one that the manifest names.
        """
        shards = np.searchsorted(self._ends, numbers, side="right")
        if not self._loaded[shards].all():
            # np.unique imports numpy.ma, which takes 10 ms.
            self._load(np.flatnonzero(np.bincount(shards)).tolist())
        return shards

    def ids_of(self, numbers: Integers) -> Integers:
        """Return the ids of records, int64 [record]; raise as `shards_of`."""
        self.shards_of(numbers)
        return self.ids[numbers]

    def all_ids(self) -> Integers:
        """Return the id of each record, int64 [record]; raise as `shards_of`."""
        self._load(range(len(self._shards)))
        return self.ids

    def _load(self, shards: Sequence[int]) -> None:
        """Copy the columns of indexes; the rest of them (inputs and rejects) is dropped."""
        if self._process != os.getpid():
            # Another thread may have held the lock when the process forked; nothing would release it here.
            self._lock, self._process = threading.Lock(), os.getpid()
            self._columns_lock = threading.Lock()
        with self._lock:
            self.store.for_each(self._load_one, [shard for shard in shards if not self._loaded[shard]])

    def _load_one(self, shard: int) -> None:
        index = self._read_index(shard)
        rows = slice(int(self._starts[shard]), int(self._ends[shard]))
        self.offsets[rows], self.lengths[rows] = index.offsets, index.lengths
        self.ids[rows], self.checksums[rows] = index.ids, index.checksums
        for key in self.array_bytes if len(index) else ():
            self.value_starts[key][rows] = index.raw_starts[key]
            self.value_checksums[key][rows] = index.raw_checksums[key]
            if key in self.layouts:
                self.value_bytes[key][rows] = index.packed_bytes[key]
        self._loaded[shard] = True

    def _read_index(self, shard: int) -> ShardIndex:
        entry, name = self._shards[shard], self._shards[shard].index
        path = f"{self.store.place}/{name}"
        for attempt in range(self.store.attempts):
            data = self.store.read(name, entry.index_bytes)
            # A transfer may damage bytes, so stores with several attempts fetch the index again.
            if crc32c(data) == entry.index_crc32c:
                break
            if attempt + 1 == self.store.attempts:
                raise CorruptFileError(f"{path}: its checksum is not the manifest's; {SHARD_CHANGED}")
            self.store.invalidate(name, 0, entry.index_bytes)
        index = ShardIndex.from_bytes(data, path, columns_only=True)
        if len(index) != entry.records:
            raise CorruptFileError(
                f"{path}: expected {plural(entry.records, 'record')}, got {len(index)}; {CURE}"
            )
        if len(index):
            self._use_blocks(index.block_bytes, path)
        self._check_ranges(index, entry.bytes, path)
        return index

    def _counts_of_parts(self, block_bytes: int) -> tuple[dict[str, int], dict[str, int]]:
        """Return how many checksums the index has of a record's array, and how many parts are verified, by key."""
        blocks = {key: -(-size // block_bytes) for key, size in self.array_bytes.items()}
        # The index has one checksum of a packed value, whose bands have theirs in the value itself.
        sums = blocks | dict.fromkeys(self.layouts, 1)
        return sums, blocks | {key: layout.bands for key, layout in self.layouts.items()}

    def _use_blocks(self, block_bytes: int, path: str) -> None:
        """Allocate the columns of checksums for the first index; raise CorruptFileError if another one differs."""
        with self._columns_lock:
            if not self.block_bytes:
                sums, parts = self._counts_of_parts(block_bytes)
                flags, count = len(self.verified), len(self)
                # Zeros take no memory before they are written.
                self.value_checksums = {key: np.zeros((count, many), np.uint32) for key, many in sums.items()}
                self.verified_parts = {
                    key: self._fresh((flags, many), np.bool_) for key, many in parts.items()
                }
                self.block_bytes = block_bytes
        if self.block_bytes != block_bytes and self.array_bytes.keys() != self.layouts.keys():
            raise CorruptFileError(
                f"{path}: expected checksums of blocks of {self.block_bytes:,} bytes, as other shards have, got "
                f"{block_bytes:,}; {CURE}"
            )

    def _check_ranges(self, index: ShardIndex, size: int, path: str) -> None:
        """Check that records are inside the file, and arrays inside their record, without overlap."""
        if not len(index):
            return
        frame = HEADER_BYTES + FOOTER_BYTES
        wrong = (index.offsets < 0) | (index.lengths < 0) | (index.lengths > size - frame)
        wrong |= index.offsets > size - frame - index.lengths
        end = index.offsets + HEADER_BYTES
        for key in self.array_bytes:
            starts = index.raw_starts.get(key)
            # The index was made for other fields, such as by a conversion without this one.
            if starts is None:
                raise CorruptFileError(f"{path}: the index does not say where {key} begins; {CURE}")
            expected, got = self.value_checksums[key].shape[1], index.raw_checksums[key].shape[1]
            if got != expected:
                raise CorruptFileError(
                    f"{path}: expected {expected} block checksums of {key}, got {got}; {CURE}"
                )
            value_bytes = self._stated_bytes(index, key, path)
            wrong |= (starts < end) | (starts > size - value_bytes)
            end = starts + value_bytes
        wrong |= end > index.offsets + HEADER_BYTES + index.lengths
        if wrong.any():
            row = int(np.argmax(wrong))
            raise CorruptFileError(
                f"{path}: record at byte {int(index.offsets[row]):,} (id {int(index.ids[row])}): it or a value of it "
                f"does not fit in its place; {CURE}"
            )

    def _stated_bytes(self, index: ShardIndex, key: str, path: str) -> Integers:
        """Return the bytes of each record's value under a key, int64 [record], as the index states them."""
        layout = self.layouts.get(key)
        if layout is None:
            return np.broadcast_to(np.int64(self.array_bytes[key]), (len(index),))
        sizes = index.packed_bytes.get(key)
        if sizes is None:
            raise CorruptFileError(f"{path}: the index does not say how many bytes {key} has; {CURE}")
        wrong = (sizes < layout.min_bytes) | (sizes > layout.max_bytes)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise CorruptFileError(
                f"{path}: record at byte {int(index.offsets[row]):,} (id {int(index.ids[row])}): expected "
                f"{layout.min_bytes:,} to {layout.max_bytes:,} bytes of {key}, got {int(sizes[row]):,}; {CURE}"
            )
        return np.asarray(sizes)

    # Files ---------------------------------------------------------------------------------------------------

    def file_name(self, shard: int) -> str:
        """Return the shard's path, for messages."""
        return f"{self.store.place}/{self._shards[shard].file}"

    def place(self, shard: int, number: int) -> str:
        """Return "file: record at byte offset (id ...)", for messages."""
        return f"{self.file_name(shard)}: record at byte {self.offsets[number]:,} (id {self.ids[number]})"

    def open(self, shard: int) -> OpenFile:
        """Return the shard's open file, after comparing its size and its first record's frame with the index.

        Raises:
            CorruptFileError: it is missing, was replaced or cannot be opened.
            SystemLimitError: as `ShardFile.open`.
        """
        opened = self._files[shard].open()
        if not opened.checked:
            try:
                self._check_opened(shard, opened)
            except CorruptFileError:
                self._files[shard].close()
                raise
            opened.checked = True
        return opened

    def open_all(self, numbers: Integers) -> dict[int, OpenFile]:
        """Return the open files of records by shard number; empty if they are too many to be open at once.

        Raises:
            CorruptFileError, SystemLimitError: as `shards_of` and `open`.
        """
        different = sorted(set(self.shards_of(numbers).tolist()))
        return {shard: self.open(shard) for shard in different} if len(different) <= max_open() // 2 else {}

    def _check_opened(self, shard: int, opened: OpenFile) -> None:
        if opened.bytes != (expected := self._shards[shard].bytes):
            raise CorruptFileError(
                f"{opened.name}: expected {plural(expected, 'byte')}, found {opened.bytes:,}: {SHARD_CHANGED}"
            )
        first = int(self._starts[shard])
        if first < self._ends[shard]:  # else the shard has no record to compare
            self.shards_of(np.array([first]))
            start, length = int(self.offsets[first]), int(self.lengths[first])
            header = opened.read(start, HEADER_BYTES)
            footer = opened.read(start + HEADER_BYTES + length, FOOTER_BYTES)
            self.check_frame(shard, first, header, footer)
        identity, self._identities[shard] = self._identities[shard], opened.identity
        if identity not in (None, opened.identity):
            # This is another file, even if its content is equal: verify and parse its records again.
            rows = slice(first, int(self._ends[shard]))
            for flags in (self.verified, *self.verified_parts.values()):
                flags[rows] = False
            self.fields.invalidate(rows)
            self.objects.invalidate(rows)

    def rest_bytes(self, numbers: Integers) -> Integers:
        """Return the bytes of records' frames without their arrays, int64 [record]; call `shards_of` before."""
        rest = self.lengths[numbers] + (HEADER_BYTES + FOOTER_BYTES)
        for sizes in self.value_bytes.values():
            rest -= sizes[numbers]
        return rest

    # Checksums -----------------------------------------------------------------------------------------------

    def check_frame(self, shard: int, number: int, header: memoryview, footer: memoryview) -> None:
        """Compare the bytes around a record's data with the index.

        Raises:
            CorruptFileError: the stated length or a stated checksum differs.
        """
        length, length_checksum = _HEADER.unpack(header)
        if length != self.lengths[number]:
            raise CorruptFileError(
                f"{self.place(shard, number)}: its length is not the {plural(self.lengths[number], 'byte')} "
                "of the index: "
                f"{SHARD_CHANGED}"
            )
        if self.verify != "never" and mask_crc(crc32c(header[:8])) != length_checksum:
            raise self.checksum_error(shard, number, "the length's checksum is wrong")
        if _FOOTER.unpack(footer)[0] != self.checksums[number]:
            raise CorruptFileError(
                f"{self.place(shard, number)}: the checksum that it states is not the index's: {SHARD_CHANGED}"
            )

    def checksum_error(self, shard: int, number: int, what: str) -> CorruptFileError:
        """Return the error for a wrong checksum in a record."""
        return CorruptFileError(
            f"{self.file_name(shard)}: record at byte {self.offsets[number]:,}: {what} (id {self.ids[number]}); {CURE}"
        )

    def mark_verified(self, number: int) -> None:
        """Note that all bytes of a record are as the index states them."""
        if self.verify == "first":
            self.verified[number] = True
            for parts in self.verified_parts.values():
                parts[number] = True

    def is_verified(self, numbers: Integers | int, keys: Iterable[str]) -> bool:
        """Return whether all checksums of these records and arrays were computed, or none is wanted."""
        if self.verify == "first":
            parts = (self.verified_parts[key][numbers] for key in keys)
            return bool(self.verified[numbers].all()) and all(bool(found.all()) for found in parts)
        return self.verify == "never"

    # Cached values -------------------------------------------------------------------------------------------

    def cached_fields(self, numbers: Integers | int, names: Sequence[str]) -> dict[str, NDArray[Any]] | None:
        """Return the cached values of fields by name, [record, ...] or of one record; None if any is missing.

        With `verify="always"` the cache is not used.
        """
        values: dict[str, NDArray[Any]] = {}
        for name in names:
            found = None if self.verify == "always" else self.fields.get(name, numbers)
            if found is None:
                return None
            values[name] = found
        return values

    def cached_objects(self, numbers: Integers) -> tuple[ObjectLists, Integers] | None:
        """Return the cached objects of records, as `cached_fields`; see `ObjectCache.get`."""
        return None if self.verify == "always" else self.objects.get(numbers)

    def cached_count(self, key: Hashable, count: Callable[[], Integers]) -> Integers:
        """Return what `count` returned for a key; `MAX_COUNT_CACHE_BYTES` bounds the cache, which then restarts."""
        found = self._counts.get(key)
        if found is None:
            found = count()
            self._counts_bytes += found.nbytes
            if self._counts_bytes > MAX_COUNT_CACHE_BYTES:
                self._counts, self._counts_bytes = {}, found.nbytes
            self._counts[key] = found
        return found

    # Transfers from remote stores and disk -------------------------------------------------------------------

    def prefetch(self, numbers: Integers, split_bytes: int) -> None:
        """Begin to fetch the bytes that `fetch_window` with the same arguments needs."""
        if len(numbers):
            self.store.prefetch(numbers.tobytes(), lambda: self.spans(numbers, split_bytes))

    def fetch_window(self, numbers: Integers, split_bytes: int) -> contextlib.AbstractContextManager[object]:
        """Return a context in which the bytes of records are available or being fetched.

        Args:
            numbers: numbers of the records, in the order in which they are read.
            split_bytes: arrays up to this size are fetched completely. Larger ones are fetched as far as a view
                shows them, when it is copied.

        Raises:
            CorruptFileError: as `shards_of`.
        """
        if not self.store.has_windows:
            return contextlib.nullcontext()
        return self.store.window(numbers.tobytes(), lambda: self.spans(numbers, split_bytes))

    def fetches_parts(self, split_bytes: int) -> bool:
        """Return whether some arrays may be fetched record by record, as far as views show them."""
        return self.store.fetches and any(size > split_bytes for size in self.array_bytes.values())

    def invalidate(self, shard: int, start: int, stop: int) -> None:
        """Discard wrong bytes of a shard, so that they are fetched again."""
        self.store.invalidate(self._shards[shard].file, start, stop)

    def spans(self, numbers: Integers, split_bytes: int) -> list[Span]:
        """Return the byte ranges of records, in the order of `numbers`; see `fetch_window`."""
        spans = []
        shards = self.shards_of(numbers)
        for number, shard in zip(numbers.tolist(), shards.tolist(), strict=True):
            name, at = self._shards[shard].file, int(self.offsets[number])
            end = at + HEADER_BYTES + int(self.lengths[number]) + FOOTER_BYTES
            for key in self.array_bytes:
                size = int(self.value_bytes[key][number])
                if size > split_bytes:
                    start = int(self.value_starts[key][number])
                    # The table of a packed value says which bytes a view needs.
                    table_bytes = self.layouts[key].table_bytes if key in self.layouts else 0
                    spans.append((name, at, start + table_bytes))
                    at = start + size
            spans.append((name, at, end))
        return spans


def _check_index_memory(
    records: int, columns: int, sums: Mapping[str, int], parts: Mapping[str, int], folder: str
) -> None:
    """Refuse a split whose indexes need more memory than this process may use.

    Args:
        records: number of records.
        columns: number of 64-bit columns of arrays.
        sums: checksums of a record's array, by key.
        parts: parts of a record's array that are verified separately, by key.
        folder: the data set's folder, for messages.
    """
    needed = records * (29 + 8 * columns + 4 * sum(sums.values()) + sum(parts.values()))
    if needed > (memory := process_memory()):
        raise UsageError(
            f"{folder}: the indexes of {records:,} records take {human_bytes(needed)}, and there are "
            f"{human_bytes(memory)}; load it where there is more memory"
        )


class FieldCache:
    """Values of fields of static shape, by record number; safe to use from several threads.

    >>> FieldCache(10).get("label", 3) is None
    True
    """

    def __init__(self, records: int) -> None:
        self._records, self._free_bytes = records, MAX_FIELD_BYTES
        self._columns: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]] = {}
        """By name: the values, and for which records they are cached."""

    def get(self, name: str, numbers: NDArray[np.int64] | int) -> NDArray[Any] | None:
        """Return a field's values of several records, [record, ...], or of one; None if any is missing."""
        column = self._columns.get(name)
        return column[0][numbers] if column is not None and column[1][numbers].all() else None

    def put(self, name: str, number: int, value: NDArray[Any]) -> None:
        """Cache a record's value, if there is room for this field of all records."""
        column = self._columns.get(name) or self._add_column(name, value)
        if column is not None:
            values, cached = column
            values[number] = value
            cached[number] = True

    def put_all(self, name: str, numbers: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Cache the values of several records, [record, ...], as `put`."""
        column = self._columns.get(name) or self._add_column(name, values[0])
        if column is not None:
            column[0][numbers] = values
            column[1][numbers] = True

    def missing(self, names: Sequence[str], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return of which records a value is missing, bool [record]."""
        missing = np.zeros(len(numbers), np.bool_)
        for name in names:
            column = self._columns.get(name)
            missing |= True if column is None else ~column[1][numbers]
        return missing

    def invalidate(self, rows: slice) -> None:
        """Discard the values of some records."""
        for _, cached in list(self._columns.values()):
            cached[rows] = False

    def _add_column(self, name: str, value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
        size = self._records * (1 + value.nbytes)
        if size > self._free_bytes:  # the field is parsed at each read instead
            return None
        # Zeros take no memory before they are written.
        column = np.zeros((self._records, *value.shape), value.dtype), np.zeros(self._records, np.bool_)
        # `setdefault` is atomic: threads that add the column at the same time all use the first one.
        kept = self._columns.setdefault(name, column)
        if kept is column:
            self._free_bytes -= size
        return kept


class ObjectCache:
    """Lists of the objects of records, by record number; safe to use from several threads.

    >>> cache = ObjectCache()
    >>> cache.put(7, {"classes": np.array([3, 1])})
    >>> cache.get(np.array([7, 7]))[0]["classes"].tolist(), cache.get(np.array([7, 8]))
    ([3, 1, 3, 1], None)
    """

    def __init__(self) -> None:
        self._free_bytes = MAX_OBJECT_BYTES
        self._tables: dict[int, bytes] = {}
        self._dtype: np.dtype[np.void] | None = None

    def get(self, numbers: NDArray[np.int64]) -> tuple[ObjectLists, NDArray[np.int64]] | None:
        """Return the concatenated lists of records and each record's object count; None if any is missing."""
        found = [self._tables.get(number) for number in numbers.tolist()]
        tables = [table for table in found if table is not None]
        if len(tables) < len(found) or self._dtype is None:
            return None
        table = np.frombuffer(b"".join(tables), self._dtype)
        sizes = np.array([len(one) for one in tables], np.int64)
        return {name: table[name] for name in table.dtype.names or ()}, sizes // self._dtype.itemsize

    def put(self, number: int, lists: ObjectLists) -> None:
        """Cache a record's lists, if there is room; all have one length, and all records the same names."""
        if self._free_bytes <= 0 or number in self._tables:  # two threads may read one record
            return
        dtype = np.dtype([(name, one.dtype, one.shape[1:]) for name, one in lists.items()], align=True)
        table = np.zeros(max((len(one) for one in lists.values()), default=0), dtype)
        for name, values in lists.items():
            table[name] = values
        self._dtype = dtype
        self._tables[number] = table.tobytes()
        self._free_bytes -= table.nbytes + _ENTRY_BYTES

    def invalidate(self, rows: slice) -> None:
        """Discard the lists of some records."""
        for number in range(rows.start, rows.stop):
            found = self._tables.pop(number, None)
            self._free_bytes += 0 if found is None else len(found) + _ENTRY_BYTES
