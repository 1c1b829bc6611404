"""How records are framed in a TFRecord file, without TensorFlow.

A record is: uint64 length, uint32 masked CRC32C of those 8 bytes, the data, uint32 masked CRC32C of the data,
all little-endian. https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from halofeed.errors import CorruptFileError
from halofeed.system.checksum import combine, crc32c, mask_crc

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

HEADER_BYTES = 12
FOOTER_BYTES = 4
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")


class RecordWriter:
    """Writes records to a sink and keeps the whole file's checksum.

    Attributes:
        offset: bytes written so far, which is where the next record begins.
        checksum: CRC32C of all bytes written so far.
    """

    def __init__(self, sink: SupportsWrite[Any]) -> None:
        self._sink = sink
        self.offset = 0
        self.checksum = 0

    def write(self, chunks: Iterable[Any], length: int, known: Mapping[int, int] | None = None) -> int:
        """Write one record that is given in pieces of `length` bytes together.

        Args:
            known: by the position of a piece in the record its CRC32C, where that was computed already.

        Returns:
            the masked CRC32C of its data, as its footer states it.
        """
        write = self._sink.write
        header = _LENGTH.pack(length)
        header += _CHECKSUM.pack(mask_crc(crc32c(header)))
        write(header)
        whole, crc, written = crc32c(header, self.checksum), 0, 0
        for chunk in chunks:
            size = len(chunk)
            if known is not None and written in known:
                piece = known[written]
                crc, whole = combine(crc, piece, size), combine(whole, piece, size)
            else:
                crc, whole = crc32c(chunk, crc), crc32c(chunk, whole)
            written += size
            write(chunk)
        if written != length:
            raise ValueError(f"a record of {length} bytes was announced and {written} came")
        masked = mask_crc(crc)
        footer = _CHECKSUM.pack(masked)
        write(footer)
        self.checksum = crc32c(footer, whole)
        self.offset += HEADER_BYTES + length + FOOTER_BYTES
        return masked


def footer_of(frame: memoryview) -> int:
    """The masked CRC32C of the data that a whole record's last bytes state."""
    return int(_CHECKSUM.unpack_from(frame, len(frame) - FOOTER_BYTES)[0])


def check_header(header: memoryview, place: str) -> int:
    """How many bytes of data follow a record's first 12 bytes; CorruptFileError where these are damaged or fewer."""
    if len(header) < HEADER_BYTES:
        raise CorruptFileError(f"{place}: the file ends inside the record's header")
    length, length_crc = struct.unpack("<QI", header)
    if mask_crc(crc32c(header[:8])) != length_crc:
        raise CorruptFileError(f"{place}: the length's checksum is wrong")
    return int(length)


def check_record(frame: memoryview, where: str, at: int = 0) -> memoryview:
    """The data of the record that a frame begins with, after both its checksums.

    Args:
        where: the file's name.
        at: the byte of the file at which the frame begins.

    Raises:
        CorruptFileError: names `where`, the byte and what is wrong.
    """
    place = f"{where}: record at byte {at:,}"
    length = check_header(frame[:HEADER_BYTES], place)
    end = HEADER_BYTES + length
    if end + FOOTER_BYTES > len(frame):
        raise CorruptFileError(f"{place}: the file ends inside the record ({length:,} bytes announced)")
    data = frame[HEADER_BYTES:end]
    if mask_crc(crc32c(data)) != footer_of(frame[: end + FOOTER_BYTES]):
        raise CorruptFileError(f"{place}: the data's checksum is wrong")
    return data


def read_records(data: Any, where: str) -> Iterator[tuple[int, memoryview]]:
    """Each record of a whole TFRecord file: its offset and its data, both checksums verified."""
    view = memoryview(data).cast("B")
    offset = 0
    while offset < len(view):
        record = check_record(view[offset:], where, offset)
        yield offset, record
        offset += HEADER_BYTES + len(record) + FOOTER_BYTES
