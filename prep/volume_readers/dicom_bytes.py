"""The bytes of a DICOM file, plain or compressed as a whole by gzip, whatever its name."""

from __future__ import annotations

import zlib

from halofeed.prep.sources import SourceFiles
from halofeed.prep.volume_readers.gzip_stream import MAGIC, OUTPUT_BYTES, open_stream
from halofeed.schemas.errors import SourceError

MAX_UNPACKED_BYTES = 1 << 32
GZIP_FORMAT = 31


def is_packed(data: bytes) -> bool:
    """Whether a file's bytes are those of gzip."""
    return data.startswith(MAGIC)


def read_file(files: SourceFiles, path: str) -> bytes:
    """The bytes of a DICOM file, unpacked where they are gzip.

    Raises:
        SourceError: it cannot be read, is damaged gzip, or has more than `MAX_UNPACKED_BYTES` when unpacked.
    """
    data = files.read(path)
    if not is_packed(data):
        return data
    stream, found = open_stream(data), bytearray()
    piece = memoryview(bytearray(OUTPUT_BYTES))
    while filled := stream.read_into(piece):
        found += piece[:filled]
        if len(found) > MAX_UNPACKED_BYTES:
            raise SourceError("read", "DICOM file is too large", f"over {MAX_UNPACKED_BYTES} bytes unpacked")
    return bytes(found)


def read_start(files: SourceFiles, path: str, size: int) -> tuple[bytes, bool, bool]:
    """The first bytes of a DICOM file, whether they are all of it, and whether it is packed.

    Raises:
        SourceError: it cannot be read, or is damaged gzip.
    """
    head = files.head(path, size)
    if not is_packed(head):
        return head, len(head) < size, False
    stream = zlib.decompressobj(GZIP_FORMAT)
    try:
        found = stream.decompress(head, size)
    except zlib.error as error:
        raise SourceError("decode", "gzip data is damaged", "in its first bytes") from error
    return found, stream.eof and len(found) < size, True
