"""Where a record's bytes are on local disk: shards memory-mapped, indexes beside them, checksums on first touch."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.checksum import crc32c
from halofeed.schemas.errors import CorruptFileError, UsageError
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.layout import index_file
from halofeed.schemas.manifest import Shard
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_record

VERIFY = {
    "first": "both CRCs of a record when it is first read",
    "always": "both CRCs of a record every time",
    "never": "no CRC",
}
MAX_OPEN_SHARDS = 256
"""A mapped shard costs a file descriptor, of which a process often may have only 1,024."""

_CURE = "run the same `halofeed convert` with --overwrite to make it anew, or copy the data set again"


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the records of one shard are: the part of its index that the loader keeps, each array [record]."""

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    ids: NDArray[np.int64]
    raw_starts: Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class StoredRecord:
    """One record's bytes, as views into the mapped file, and where they are.

    Args:
        place: "file: record at byte offset (id ...)", for messages.
        data: the serialized Example.
        file: the whole shard.
        first: the byte of the file at which `data` begins.
        id: of the example.
        raw_starts: per raw key the byte of the file at which its value begins.
    """

    place: str
    data: memoryview
    file: memoryview
    first: int
    id: int
    raw_starts: Mapping[str, int]

    def raw(self, key: str, size: int) -> memoryview:
        """The `size` bytes of a raw field.

        Raises:
            CorruptFileError: the index says nothing of it, or a place outside the record.
        """
        begin = self.raw_starts.get(key)
        if begin is None:
            raise CorruptFileError(f"{self.place}: the index does not say where {key} begins; {_CURE}")
        view = self.file[begin : begin + size]
        # Within this record, so that another record's bytes never pass for its own.
        if len(view) != size or not self.first <= begin <= self.first + len(self.data) - size:
            raise CorruptFileError(f"{self.place}: {size:,} bytes of {key} do not fit in the record; {_CURE}")
        return view


class Shards:
    """The records of one split, by their number; safe to use from several threads and after a fork.

    Memory: 24 bytes a record, 8 more for each raw field and 1 for `verify="first"`, as far as the shards were
    touched, and the page cache.
    """

    def __init__(self, folder: Path, shards: tuple[Shard, ...], verify: str) -> None:
        if verify not in VERIFY:
            raise UsageError(f"verify: expected one of {', '.join(VERIFY)}, got {verify!r}")
        self._folder, self._shards, self._verify = folder, shards, verify
        self._ends = np.cumsum([shard.records for shard in shards], dtype=np.int64)
        self._verified = np.zeros(self._ends[-1] if verify == "first" else 0, np.bool_)
        self._places: dict[int, Places] = {}
        self._open: OrderedDict[int, memoryview] = OrderedDict()
        self._lock, self._process = threading.Lock(), os.getpid()
        for shard in shards:
            self._check_file(folder / shard.file, shard.bytes)
            self._check_file(folder / index_file(shard.file), shard.index_bytes)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def record(self, number: int) -> StoredRecord:
        """The record of that number, 0 .. len-1, verified as was asked for.

        Raises:
            CorruptFileError: names the file, the offset, the id, and the cure.
        """
        shard = int(np.searchsorted(self._ends, number, side="right"))
        row = number - (int(self._ends[shard - 1]) if shard else 0)
        file, places = self._opened(shard)
        offset, length, identity = int(places.offsets[row]), int(places.lengths[row]), int(places.ids[row])
        name = self._folder / self._shards[shard].file
        place = f"{name}: record at byte {offset:,} (id {identity})"
        if self._verify == "always" or (self._verify == "first" and not self._verified[number]):
            try:
                check_record(file, offset, str(name))
            except CorruptFileError as error:
                raise CorruptFileError(f"{error} (id {identity}); {_CURE}") from error
            if self._verify == "first":
                self._verified[number] = True
        first = offset + HEADER_BYTES
        if first + length + FOOTER_BYTES > len(file) or struct.unpack_from("<Q", file, offset)[0] != length:
            raise CorruptFileError(f"{place}: its length is not the {length:,} bytes of the index; {_CURE}")
        return StoredRecord(
            place=place,
            data=file[first : first + length],
            file=file,
            first=first,
            id=identity,
            raw_starts={key: int(starts[row]) for key, starts in places.raw_starts.items()},
        )

    def _opened(self, shard: int) -> tuple[memoryview, Places]:
        if self._process != os.getpid():
            # Another thread may have held the lock when the process forked; nobody would release it here.
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            if shard not in self._places:
                self._places[shard] = self._read_places(shard)
            if shard in self._open:
                self._open.move_to_end(shard)
            else:
                self._open[shard] = self._map(shard)
                if len(self._open) > MAX_OPEN_SHARDS:
                    self._open.popitem(last=False)
            return self._open[shard], self._places[shard]

    def _map(self, shard: int) -> memoryview:
        path = self._folder / self._shards[shard].file
        self._check_file(path, self._shards[shard].bytes)
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def _read_places(self, shard: int) -> Places:
        entry = self._shards[shard]
        path = self._folder / index_file(entry.file)
        self._check_file(path, entry.index_bytes)
        data = path.read_bytes()
        if crc32c(data) != entry.index_crc32c:
            raise CorruptFileError(f"{path}: its checksum is not the manifest's; {_CURE}")
        index = ShardIndex.from_bytes(data, str(path))
        if len(index) != entry.records:
            raise CorruptFileError(f"{path}: expected {entry.records} records, got {len(index)}; {_CURE}")
        # Copies, so that the rest of the index (its inputs and rejects) is not kept.
        return Places(
            offsets=index.offsets.astype(np.int64),
            lengths=index.lengths.astype(np.int64),
            ids=index.ids.astype(np.int64),
            raw_starts={key: starts.astype(np.int64) for key, starts in index.raw_starts.items()},
        )

    @staticmethod
    def _check_file(path: Path, size: int) -> None:
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            raise CorruptFileError(f"{path}: it is missing, and the manifest names it; {_CURE}") from None
        if found != size:
            raise CorruptFileError(f"{path}: expected {size:,} bytes, found {found:,}; {_CURE}")
