"""Readers of a shard: `StoredShard` for single records by index, `SequentialShard` for all records in file order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from halofeed.errors import CorruptFileError, HalofeedError
from halofeed.inspection.dataset_files import DatasetFiles, open_files
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.limits import INDEX_BYTES
from halofeed.schemas.manifest import Shard
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfexample import MAX_EXAMPLE_BYTES, Decoded, decode_example, decode_small
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_header, check_record, footer_of
from halofeed.system.checksum import crc32c
from halofeed.system.wording import plural


class StoredShard:
    """Random access to the records of a shard through its index.

    Raises:
        CorruptFileError: the index is missing or damaged, or belongs to another shard.
    """

    def __init__(self, folder: Path | DatasetFiles, shard: Shard) -> None:
        self._files, self._shard = open_files(folder), shard
        name = shard.index
        path = self._files.path(name)
        data = self._files.index(name, min(shard.index_bytes, INDEX_BYTES))
        if crc32c(data) != shard.index_crc32c:
            raise CorruptFileError(f"{path}: its checksum is not the manifest's; {self._fix}")
        self.index = ShardIndex.from_bytes(data, path)
        if len(self.index) != shard.records:
            raise CorruptFileError(
                f"{path}: holds {plural(len(self.index), 'record')}, the manifest says {shard.records}; {self._fix}"
            )
        self._file = self._files.source(shard)

    @property
    def _fix(self) -> str:
        return f"run `halofeed verify {self._files}`"

    def byte_range(self, row: int) -> tuple[int, int]:
        """Return the byte at which a record begins, and the bytes of its data.

        Raises:
            CorruptFileError: the range is outside of the file.
        """
        offset, length = int(self.index.offsets[row]), int(self.index.lengths[row])
        end = offset + HEADER_BYTES + length + FOOTER_BYTES
        if offset < 0 or length < 0 or end > self._file.open().bytes:
            raise self._error(row, "the file ends inside the record, or before it")
        return offset, length

    def features(self, row: int) -> Decoded:
        """Read all values of a record and compare its checksums; bytes values are views of one new buffer.

        Raises:
            CorruptFileError: the record is not what was written.
        """
        offset, length = self.byte_range(row)
        data = self._file.open().read(offset, HEADER_BYTES + length + FOOTER_BYTES)
        try:
            record = check_record(data, self._shard.file)
            if len(record) != length or footer_of(data) != self.index.checksums[row]:
                raise self._error(row, "it is another record than the index says")
            return decode_example(record)
        except CorruptFileError as error:
            what = str(error).removeprefix(f"{self._shard.file}: record at byte 0: ")
            raise self._error(row, what) from error

    def small_features(self, row: int, keys: Collection[str]) -> Decoded:
        """Read only the values of some keys, which should be small, without comparing the checksum.

        Raises:
            CorruptFileError: the record is not a `tf.train.Example`.
        """
        offset, length = self.byte_range(row)
        opened = self._file.open()
        try:
            return decode_small(lambda at, size: opened.read(offset + HEADER_BYTES + at, size), length, keys)
        except CorruptFileError as error:
            raise self._error(row, str(error)) from error

    def _error(self, row: int, what: str) -> CorruptFileError:
        path = self._files.path(self._shard.file)
        place = f"{path}: record {row} at byte {int(self.index.offsets[row]):,}: "
        return CorruptFileError(what if what.startswith(path) else f"{place}{what}; {self._fix}")


_CHUNK_BYTES = 1 << 20


class SequentialShard:
    """Reader of the records in the first `size` bytes of a file, with one record in memory at a time.

    Attributes:
        footer: stored masked CRC32C of the record read last.
    """

    def __init__(self, file: OpenFile, size: int) -> None:
        self._file = file
        self.name, self.bytes = file.name, size
        self._memory = np.empty(0, np.uint8)
        self._checksum, self._summed, self.footer = 0, 0, 0

    def record(self, offset: int) -> memoryview:
        """Read the data of the record at a byte offset; it is valid until the next read. CorruptFileError."""
        place = f"{self.name}: record at byte {offset:,}"
        size = HEADER_BYTES + check_header(self._read(offset, HEADER_BYTES), place) + FOOTER_BYTES
        # If the stated length cannot be right, only the header is read, and `check_record` reports it.
        fits = size <= min(self.bytes - offset, HEADER_BYTES + MAX_EXAMPLE_BYTES + FOOTER_BYTES)
        frame = self._read(offset, size if fits else HEADER_BYTES)
        data = check_record(frame, self.name, offset)
        self.footer = footer_of(frame)
        if offset == self._summed:
            self._checksum = crc32c(frame, self._checksum)
            self._summed += len(frame)
        return data

    def records(self, index: ShardIndex | None) -> Iterator[tuple[int, memoryview | CorruptFileError]]:
        """Yield the offset of each record, and its data or its error; without an index, stop at the first error."""
        if index is not None:
            frame = HEADER_BYTES + FOOTER_BYTES
            for number, (offset, length) in enumerate(
                zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
            ):
                try:
                    yield offset, self.record(offset)
                except HalofeedError as error:
                    cut_off = len(index) - number - 1 if offset + length + frame > self.bytes else 0
                    also = f"; the {plural(cut_off, 'record')} after it are missing too" if cut_off else ""
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
        """Return the CRC32C of the file; only bytes after the records read in order are read again."""
        while self._summed < self.bytes:
            self._checksum = crc32c(piece := self._read(self._summed, _CHUNK_BYTES), self._checksum)
            self._summed += len(piece)
        return self._checksum

    def _read(self, offset: int, size: int) -> memoryview:
        """Read up to `size` bytes at an offset; fewer at the end of the file."""
        size = min(size, max(0, self.bytes - offset))
        if size > len(self._memory):
            self._memory = np.empty(size, np.uint8)
        view = self._memory[:size].data
        if size:
            self._file.read_into((view,), offset, size)
        return view
