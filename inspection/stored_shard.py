"""How are the records of a shard read to be looked at: one of them whole, or the small values of many?

How is a whole shard gone through, record by record, with one of them in memory at a time?
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from halofeed.errors import CorruptFileError, HalofeedError
from halofeed.inspection.dataset_files import DatasetFiles, open_files
from halofeed.schemas.files import index_file
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.limits import INDEX_BYTES
from halofeed.schemas.manifest import Shard
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfexample import MAX_EXAMPLE_BYTES, Decoded, decode_example, decode_small
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_header, check_record, footer_of
from halofeed.system.checksum import crc32c


class StoredShard:
    """A shard of a data set, read by place with the index that the manifest names.

    Raises:
        CorruptFileError: the index is missing, damaged or another one.
    """

    def __init__(self, folder: Path | DatasetFiles, shard: Shard) -> None:
        self._place, self._shard = open_files(folder), shard
        name = index_file(shard.file)
        path = self._place.path(name)
        data = self._place.index(name, min(shard.index_bytes, INDEX_BYTES))
        if crc32c(data) != shard.index_crc32c:
            raise CorruptFileError(f"{path}: its checksum is not the manifest's; {self._cure}")
        self.index = ShardIndex.from_bytes(data, path)
        if len(self.index) != shard.records:
            raise CorruptFileError(
                f"{path}: holds {len(self.index)} records, the manifest says {shard.records}; {self._cure}"
            )
        self._file = self._place.source(shard)

    @property
    def _cure(self) -> str:
        return f"run `halofeed verify {self._place}`"

    def place(self, row: int) -> tuple[int, int]:
        """At which byte of the file a record begins, and how many bytes of data it has.

        Raises:
            CorruptFileError: it does not lie in the file.
        """
        offset, length = int(self.index.offsets[row]), int(self.index.lengths[row])
        if (
            offset < 0
            or length < 0
            or offset + HEADER_BYTES + length + FOOTER_BYTES > self._file.open().bytes
        ):
            raise self._wrong(row, "the file ends inside the record, or before it")
        return offset, length

    def features(self, row: int) -> Decoded:
        """All values of a record, after its checksums were compared; bytes are views of memory of its own.

        Raises:
            CorruptFileError: the record is not what was written.
        """
        offset, length = self.place(row)
        data = self._file.open().read(offset, HEADER_BYTES + length + FOOTER_BYTES)
        try:
            record = check_record(data, self._shard.file)
            if len(record) != length or footer_of(data) != self.index.checksums[row]:
                raise self._wrong(row, "it is another record than the index says")
            return decode_example(record)
        except CorruptFileError as error:
            raise self._wrong(
                row, str(error).removeprefix(f"{self._shard.file}: record at byte 0: ")
            ) from error

    def small_features(self, row: int, keys: Collection[str]) -> Decoded:
        """The values of those keys, which are small; of others no more is read than it takes to pass over them.

        Raises:
            CorruptFileError: the record is no Example; its checksum is not compared.
        """
        offset, length = self.place(row)
        opened = self._file.open()
        try:
            return decode_small(lambda at, size: opened.read(offset + HEADER_BYTES + at, size), length, keys)
        except CorruptFileError as error:
            raise self._wrong(row, str(error)) from error

    def _wrong(self, row: int, what: str) -> CorruptFileError:
        path = self._place.path(self._shard.file)
        place = f"{path}: record {row} at byte {int(self.index.offsets[row]):,}: "
        return CorruptFileError(what if what.startswith(path) else f"{place}{what}; {self._cure}")


_CHUNK_BYTES = 1 << 20


class SequentialShard:
    """The records in the first bytes of a file, one in memory at a time, and the checksum of all of them.

    Attributes:
        footer: the masked CRC32C that the last record read states.
    """

    def __init__(self, file: OpenFile, size: int) -> None:
        self._file = file
        self.name, self.bytes = file.name, size
        self._memory = np.empty(0, np.uint8)
        self._checksum, self._summed, self.footer = 0, 0, 0

    def record(self, offset: int) -> memoryview:
        """The data of the record that begins at that byte, which holds until the next is read; CorruptFileError."""
        place = f"{self.name}: record at byte {offset:,}"
        size = HEADER_BYTES + check_header(self._read(offset, HEADER_BYTES), place) + FOOTER_BYTES
        # Of one that is longer than the file, or than any example, no more is read than says so.
        fits = size <= min(self.bytes - offset, HEADER_BYTES + MAX_EXAMPLE_BYTES + FOOTER_BYTES)
        frame = self._read(offset, size if fits else HEADER_BYTES)
        data = check_record(frame, self.name, offset)
        self.footer = footer_of(frame)
        if offset == self._summed:
            self._checksum = crc32c(frame, self._checksum)
            self._summed += len(frame)
        return data

    def records(self, index: ShardIndex | None) -> Iterator[tuple[int, memoryview | CorruptFileError]]:
        """Each record's offset, and its data or what is wrong; by the index where there is one, else one by one."""
        if index is not None:
            frame = HEADER_BYTES + FOOTER_BYTES
            for number, (offset, length) in enumerate(
                zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
            ):
                try:
                    yield offset, self.record(offset)
                except HalofeedError as error:
                    cut_off = len(index) - number - 1 if offset + length + frame > self.bytes else 0
                    also = f"; the {cut_off:,} records after it are missing too" if cut_off else ""
                    yield offset, CorruptFileError(f"{error}{also}")
                    if cut_off:
                        return
            return
        offset = 0
        while offset < self.bytes:
            try:
                data = self.record(offset)
            except CorruptFileError as error:
                yield offset, error
                return
            yield offset, data
            offset += HEADER_BYTES + len(data) + FOOTER_BYTES

    def checksum(self) -> int:
        """Of the whole file: of the records, as far as they were read in order, and of what follows."""
        while self._summed < self.bytes:
            self._checksum = crc32c(piece := self._read(self._summed, _CHUNK_BYTES), self._checksum)
            self._summed += len(piece)
        return self._checksum

    def _read(self, offset: int, size: int) -> memoryview:
        """The bytes from there on, fewer where the file ends before."""
        left = max(0, self.bytes - offset)
        size = min(size, left)
        if size > len(self._memory):
            self._memory = np.empty(size, np.uint8)
        view = self._memory[:size].data
        if size:
            self._file.read_into((view,), offset, size)
        return view
