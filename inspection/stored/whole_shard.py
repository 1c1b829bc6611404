"""How is a whole shard gone through, record by record, with one of them in memory at a time?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from halofeed.schemas.checksum import crc32c
from halofeed.schemas.errors import CorruptFileError, HalofeedError
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfexample import MAX_EXAMPLE_BYTES
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_header, check_record, footer_of

_CHUNK_BYTES = 1 << 20


class WholeShard:
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
