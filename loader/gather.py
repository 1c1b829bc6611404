"""Where the records of a split are: shards, indexes beside them, checksums; `record` reads one.

The manifest, held in memory, states the checksum of each index; the index states length and checksum of each record
as they stand in the shard. Both are compared with every read, so that a shard that was replaced, restored or converted
again never passes for the one that is meant. Whether the bytes themselves are summed is what `verify` says.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError, UsageError
from halofeed.loader.copy_plan import InMemory, Looked
from halofeed.loader.field_cache import Columns, KeptLists, Lists
from halofeed.loader.record import CHANGED, Scratch, StoredRecord
from halofeed.loader.store.base import Span, Store
from halofeed.schemas.files import index_file
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.shard_file import CURE, OpenFile, most_open
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.system.checksum import BLOCK_BYTES, crc32c
from halofeed.system.console import human_bytes
from halofeed.system.memory import process_memory

VERIFY = {
    "first": "the checksums of what is read, when it is first read",
    "always": "the checksums of what is read, every time",
    "never": "no checksum of the data; length and checksum must still be stated as the index has them",
}
MOST_REMEMBERED_BYTES = 1 << 22

Integers = NDArray[np.int64]


def check_index_memory(count: int, raw_bytes: Sequence[int], folder: str) -> None:
    """Refuse a split whose indexes take more memory than there is, before any of it is taken.

    Raises:
        UsageError: names both.
    """
    blocks = sum(-(-size // BLOCK_BYTES) for size in raw_bytes)
    needed = count * (29 + 8 * len(raw_bytes) + 5 * blocks)
    if needed > (memory := process_memory()):
        raise UsageError(
            f"{folder}: the indexes of {count:,} records take {human_bytes(needed)}, and there are "
            f"{human_bytes(memory)}; load it where there is more memory"
        )


class Shards:
    """The records of one split, by their number; safe to use from several threads and after a fork.

    Memory: 28 bytes a record, 8 for each raw field and 4 for each started MiB of it, with `verify="first"` a byte for
    the record and each started MiB more, as far as the shards were touched. Each thread reads into scratch of some
    2 MiB, and of one record's other fields (of a jpeg or png all of it). While checksums are computed, a batch holds
    the other fields of all its records, up to 16 MiB.
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
        check_index_memory(
            count, [field.stored_bytes for field in manifest.fields if field.is_raw], store.place
        )
        # Zeros take no memory before they are written.
        self.offsets, self.lengths, self.ids = (np.zeros(count, np.int64) for _ in range(3))
        self.checksums = np.zeros(count, np.uint32)
        # The keys of an Example are sorted, so that this is also the order of the values in a record.
        raw = sorted((field for field in manifest.fields if field.is_raw), key=lambda field: field.keys)
        self.raw_bytes = {field.keys[0]: field.stored_bytes for field in raw}
        self.all_raw_bytes = sum(self.raw_bytes.values())
        self.raw_starts = {key: np.zeros(count, np.int64) for key in self.raw_bytes}
        blocks = {key: -(-size // BLOCK_BYTES) for key, size in self.raw_bytes.items()}
        self.raw_checksums = {key: np.zeros((count, many), np.uint32) for key, many in blocks.items()}
        fresh = np.ones if store.is_checked else np.zeros
        self.verified = fresh(count if verify == "first" else 0, np.bool_)
        self.verified_blocks = {
            key: fresh((len(self.verified), many), np.bool_) for key, many in blocks.items()
        }
        self.columns, self.lists = Columns(count), Lists()
        self.scratch = Scratch()
        self._remembered: dict[Hashable, Integers] = {}
        self._remembered_bytes = 0
        self._lock, self._process = threading.Lock(), os.getpid()

    def __len__(self) -> int:
        return len(self.offsets)

    def record(self, number: int) -> StoredRecord:
        """The record of that number, 0 .. len-1; no byte of it is read yet.

        Raises:
            CorruptFileError: as `records`.
        """
        return self.records(np.array([number]))[0]

    def records(self, numbers: Integers) -> list[StoredRecord]:
        """The records of those numbers, each 0 .. len-1; no byte of them is read yet.

        Raises:
            CorruptFileError: an index is not the one that the manifest names.
        """
        shards = self.shards_of(numbers)
        columns = (shards, numbers, self.offsets[numbers], self.lengths[numbers], self.ids[numbers])
        return [
            StoredRecord(self, *row) for row in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def ids_of(self, numbers: Integers) -> Integers:
        """The ids of records, int64 [record]; errors as of `records`."""
        self.shards_of(numbers)
        return self.ids[numbers]

    def known(self, numbers: Integers | int, names: Sequence[str]) -> dict[str, NDArray[Any]] | None:
        """The kept values of fields by name, [record, ...] or of one; None where one was not kept.

        With `verify="always"` none counts as kept.
        """
        values: dict[str, NDArray[Any]] = {}
        for name in names:
            found = None if self.verify == "always" else self.columns.get(name, numbers)
            if found is None:
                return None
            values[name] = found
        return values

    def known_lists(self, numbers: Integers) -> tuple[KeptLists, Integers] | None:
        """The kept lists of records, as `known`; see `Lists.rows`."""
        return None if self.verify == "always" else self.lists.rows(numbers)

    def in_memory(self, numbers: Integers, keys: Sequence[str]) -> InMemory | None:
        """The raw values of records, where all of them lie in memory and were checked; else they are read by place.

        Raises:
            CorruptFileError: as `records` and `open`.
        """
        if not self.is_verified(numbers, keys):
            return None
        shards, files = self.shards_of(numbers), {}
        for shard, opened in self.files(numbers).items():
            stamp, whole = opened.stamp, None if opened.is_transferred else opened.look()
            if whole is None:
                return None
            files[shard] = Looked(opened, stamp, whole)
        if not files:
            return None
        if not self.is_verified(numbers, keys):
            return None  # a file that was opened just now is another one
        return InMemory(
            shards,
            files,
            self.offsets[numbers],
            self.lengths[numbers],
            self.checksums[numbers].astype(np.int64),
            {key: self.raw_starts[key][numbers] for key in keys},
            sums_length=self.verify != "never",
        )

    def files(self, numbers: Integers) -> dict[int, OpenFile]:
        """The open files of those records, by shard; none where they are too many to be held open at the same time.

        Raises:
            CorruptFileError, SystemLimitError: as `records` and `open`.
        """
        different = sorted(set(self.shards_of(numbers).tolist()))
        return {shard: self.open(shard) for shard in different} if len(different) <= most_open() // 2 else {}

    def found_right(self, number: int) -> None:
        """Note that all bytes of a record are as the index states them."""
        if self.verify == "first":
            self.verified[number] = True
            for blocks in self.verified_blocks.values():
                blocks[number] = True

    def is_verified(self, numbers: Integers | int, keys: Iterable[str]) -> bool:
        """Whether no checksum of those records and raw values is to be computed, now or any more."""
        if self.verify == "first":
            blocks = (self.verified_blocks[key][numbers] for key in keys)
            return bool(self.verified[numbers].all()) and all(bool(found.all()) for found in blocks)
        return self.verify == "never"

    def all_ids(self) -> Integers:
        """The id of each record, int64 [record].

        Raises:
            CorruptFileError: as `records`.
        """
        self._load(range(len(self._shards)))
        return self.ids

    def file_name(self, shard: int) -> str:
        """The shard's path, for messages."""
        return f"{self.store.place}/{self._shards[shard].file}"

    def open(self, shard: int) -> OpenFile:
        """The shard's open file, after its size and its first record's frame were compared with the index.

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

    def remembered(self, what: Hashable, count: Callable[[], Integers]) -> Integers:
        """What `count` gives, kept under a name; all is forgotten when `MOST_REMEMBERED_BYTES` are full."""
        found = self._remembered.get(what)
        if found is None:
            found = count()
            self._remembered_bytes += found.nbytes
            if self._remembered_bytes > MOST_REMEMBERED_BYTES:
                self._remembered, self._remembered_bytes = {}, found.nbytes
            self._remembered[what] = found
        return found

    def expect(self, numbers: Integers, whole_bytes: int) -> None:
        """Begin to fetch what `at_hand` of the same arguments needs."""
        if len(numbers):
            self.store.expect(numbers.tobytes(), lambda: self.spans(numbers, whole_bytes))

    def at_hand(self, numbers: Integers, whole_bytes: int) -> contextlib.AbstractContextManager[object]:
        """While it is open the bytes of those records are here, or on their way from where they are.

        Args:
            numbers: of the records, in the order in which they are read.
            whole_bytes: raw values up to this size come as a whole, larger ones when a view of them is looked at.

        Raises:
            CorruptFileError: as `records`.
        """
        if not self.store.looks_ahead:
            return contextlib.nullcontext()
        return self.store.window(numbers.tobytes(), lambda: self.spans(numbers, whole_bytes))

    def comes_in_views(self, whole_bytes: int) -> bool:
        """Whether there are raw values that are fetched record by record, as far as they are seen."""
        return self.store.fetches and any(size > whole_bytes for size in self.raw_bytes.values())

    def forget(self, record: StoredRecord) -> None:
        """Have a record's bytes, which are not as they should be, fetched again."""
        self.store.forget(self._shards[record.shard].file, record._offset, record.end)

    def spans(self, numbers: Integers, whole_bytes: int) -> list[Span]:
        """Where the bytes of records are, in their order."""
        spans = []
        shards = self.shards_of(numbers)
        for number, shard in zip(numbers.tolist(), shards.tolist(), strict=True):
            name, at = self._shards[shard].file, int(self.offsets[number])
            end = at + HEADER_BYTES + int(self.lengths[number]) + FOOTER_BYTES
            for key, size in self.raw_bytes.items():
                if size > whole_bytes:
                    start = int(self.raw_starts[key][number])
                    spans.append((name, at, start))
                    at = start + size
            spans.append((name, at, end))
        return spans

    def shards_of(self, numbers: Integers) -> Integers:
        """Which shard each record is in, once their indexes are read."""
        shards = np.searchsorted(self._ends, numbers, side="right")
        if not self._loaded[shards].all():
            self._load(np.unique(shards).tolist())
        return shards

    def _check_opened(self, shard: int, opened: OpenFile) -> None:
        if opened.bytes != (expected := self._shards[shard].bytes):
            raise CorruptFileError(
                f"{opened.name}: expected {expected:,} bytes, found {opened.bytes:,}: {CHANGED}"
            )
        first = int(self._starts[shard])
        if first < self._ends[shard]:
            record = self.record(first)
            header = opened.read(int(self.offsets[first]), HEADER_BYTES)
            footer = opened.read(record.end - FOOTER_BYTES, FOOTER_BYTES)
            record.check_frame(header, footer)
        identity, self._identities[shard] = self._identities[shard], opened.identity
        if identity not in (None, opened.identity):
            # Another file, if of the same content: what was found of the first one does not hold for it.
            rows = slice(first, int(self._ends[shard]))
            for flags in (self.verified, *self.verified_blocks.values()):
                flags[rows] = False
            self.columns.forget(rows)
            self.lists.forget(rows)

    def _load(self, shards: Sequence[int]) -> None:
        """Copy the columns of indexes; the rest of them (inputs and rejects) is not kept."""
        if self._process != os.getpid():
            # Another thread may have held the lock when the process forked; nobody would release it here.
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            self.store.each(self._load_one, [shard for shard in shards if not self._loaded[shard]])

    def _load_one(self, shard: int) -> None:
        index = self._read_index(shard)
        rows = slice(int(self._starts[shard]), int(self._ends[shard]))
        self.offsets[rows], self.lengths[rows] = index.offsets, index.lengths
        self.ids[rows], self.checksums[rows] = index.ids, index.checksums
        for key in self.raw_bytes if len(index) else ():
            self.raw_starts[key][rows] = index.raw_starts[key]
            self.raw_checksums[key][rows] = index.raw_checksums[key]
        self._loaded[shard] = True

    def _read_index(self, shard: int) -> ShardIndex:
        entry, name = self._shards[shard], index_file(self._shards[shard].file)
        path = f"{self.store.place}/{name}"
        for attempt in range(self.store.attempts):
            data = self.store.read(name, entry.index_bytes)
            if crc32c(data) == entry.index_crc32c:
                break
            if attempt + 1 == self.store.attempts:
                raise CorruptFileError(f"{path}: its checksum is not the manifest's; {CHANGED}")
            self.store.forget(name, 0, entry.index_bytes)
        index = ShardIndex.from_bytes(data, path, columns_only=True)
        if len(index) != entry.records:
            raise CorruptFileError(f"{path}: expected {entry.records} records, got {len(index)}; {CURE}")
        self._check_places(index, entry.bytes, path)
        return index

    def _check_places(self, index: ShardIndex, size: int, path: str) -> None:
        """Every record within the file, every raw value within its record, one after the other."""
        if not len(index):
            return
        frame = HEADER_BYTES + FOOTER_BYTES
        wrong = (index.offsets < 0) | (index.lengths < 0) | (index.lengths > size - frame)
        wrong |= index.offsets > size - frame - index.lengths
        end = index.offsets + HEADER_BYTES
        for key, value_bytes in self.raw_bytes.items():
            starts = index.raw_starts.get(key)
            if starts is None:
                raise CorruptFileError(f"{path}: the index does not say where {key} begins; {CURE}")
            if index.raw_checksums[key].shape[1] != self.raw_checksums[key].shape[1]:
                raise CorruptFileError(
                    f"{path}: expected {self.raw_checksums[key].shape[1]} block checksums of {key}, got "
                    f"{index.raw_checksums[key].shape[1]}; {CURE}"
                )
            wrong |= (starts < end) | (starts > size - value_bytes)
            end = starts + value_bytes
        wrong |= end > index.offsets + HEADER_BYTES + index.lengths
        if wrong.any():
            row = int(np.argmax(wrong))
            raise CorruptFileError(
                f"{path}: record at byte {int(index.offsets[row]):,} (id {int(index.ids[row])}): it or a value of it "
                f"does not fit in its place; {CURE}"
            )
