"""Frames of records in a TFRecord file, without TensorFlow.

A frame has a uint64 length, the uint32 masked CRC32C of these 8 bytes, the data, and the uint32 masked CRC32C of the
data, all little-endian. https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from halofeed.system.checksum import combine, crc32c, mask_crc
from halofeed.system.errors import CorruptFileError
from halofeed.system.wording import plural

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

HEADER_BYTES = 12
FOOTER_BYTES = 4
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")


class RecordWriter:
    """Writer of records that computes the checksum of the file.

    Attributes:
        offset: bytes written so far, the start of the next record.
        checksum: CRC32C of all bytes written so far.
    """

    def __init__(self, sink: SupportsWrite[Any]) -> None:
        self._sink = sink
        self.offset = 0
        self.checksum = 0

    def write(self, chunks: Iterable[Any], length: int, known: Mapping[int, int] | None = None) -> int:
        """Write one record.

        Args:
            chunks: the data in chunks.
            length: bytes of all chunks.
            known: CRC32C of chunks for which it is already known, by the chunk's offset in the record.

        Returns:
            the masked CRC32C of the data, which is also the footer.
        """
        write = self._sink.write
        header = _LENGTH.pack(length)
        header += _CHECKSUM.pack(mask_crc(crc32c(header)))
        write(header)
        file_crc, crc, written = crc32c(header, self.checksum), 0, 0
        for chunk in chunks:
            size = len(chunk)
            # Checksums of raw values were computed block by block for the index; combining costs four look-ups.
            if known is not None and written in known:
                chunk_crc = known[written]
                crc, file_crc = combine(crc, chunk_crc, size), combine(file_crc, chunk_crc, size)
            else:
                crc, file_crc = crc32c(chunk, crc), crc32c(chunk, file_crc)
            written += size
            write(chunk)
        if written != length:
            raise ValueError(f"expected a record of {plural(length, 'byte')}, got {written}")
        masked = mask_crc(crc)
        footer = _CHECKSUM.pack(masked)
        write(footer)
        self.checksum = crc32c(footer, file_crc)
        self.offset += HEADER_BYTES + length + FOOTER_BYTES
        return masked


def footer_of(frame: memoryview) -> int:
    """Return the masked CRC32C of the data from the last bytes of a complete record."""
    return int(_CHECKSUM.unpack_from(frame, len(frame) - FOOTER_BYTES)[0])


def check_header(header: memoryview, place: str) -> int:
    """Return the length of a record's data from its first 12 bytes; CorruptFileError if they are damaged or fewer."""
    if len(header) < HEADER_BYTES:
        raise CorruptFileError(f"{place}: the file ends inside the record's header")
    length, length_crc = struct.unpack("<QI", header)
    if mask_crc(crc32c(header[:8])) != length_crc:
        raise CorruptFileError(f"{place}: the length's checksum is wrong")
    return int(length)


def check_record(frame: memoryview, where: str, at: int = 0) -> memoryview:
    """Verify both checksums of the record at the start of `frame` and return its data.

    Args:
        frame: bytes that begin with the record.
        where: name of the file.
        at: offset of the record in the file.

    Raises:
        CorruptFileError: the message names `where`, the offset and the problem.
    """
    place = f"{where}: record at byte {at:,}"
    length = check_header(frame[:HEADER_BYTES], place)
    end = HEADER_BYTES + length
    if end + FOOTER_BYTES > len(frame):
        raise CorruptFileError(
            f"{place}: the file ends inside the record ({plural(length, 'byte')} announced)"
        )
    data = frame[HEADER_BYTES:end]
    if mask_crc(crc32c(data)) != footer_of(frame[: end + FOOTER_BYTES]):
        raise CorruptFileError(f"{place}: the data's checksum is wrong")
    return data


def read_records(data: Any, where: str) -> Iterator[tuple[int, memoryview]]:
    """Yield the offset and the data of each record of a TFRecord file, and verify both checksums."""
    view = memoryview(data).cast("B")
    offset = 0
    while offset < len(view):
        record = check_record(view[offset:], where, offset)
        yield offset, record
        offset += HEADER_BYTES + len(record) + FOOTER_BYTES
