"""The bytes of a DICOM file, plain or compressed as a whole by gzip, whatever its name."""

from __future__ import annotations

import io
import zlib

from halofeed.prep.formats.volume.gzip_stream import MAGIC, MOST_PER_BYTE, OUTPUT_BYTES, open_stream
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.errors import SourceError

MAX_UNPACKED_BYTES = 1 << 31
GZIP_FORMAT = 31


def most_unpacked(byte_count: int) -> int:
    """What so many bytes of a compressed file can become at most."""
    return min(MOST_PER_BYTE * byte_count, MAX_UNPACKED_BYTES)


def read_file(files: SourceFiles, path: str) -> bytes:
    """The bytes of a DICOM file, unpacked where they are gzip.

    Raises:
        SourceError: it cannot be read, is damaged gzip, or has more than `MAX_UNPACKED_BYTES` when unpacked.
    """
    data = files.read(path)
    if not data.startswith(MAGIC):
        return data
    stream, found = open_stream(data), io.BytesIO()  # which gives its bytes away without a copy
    piece = memoryview(bytearray(OUTPUT_BYTES))
    while filled := stream.read_into(piece):
        found.write(piece[:filled])
        if found.tell() > MAX_UNPACKED_BYTES:
            raise SourceError("read", "DICOM file is too large", f"over {MAX_UNPACKED_BYTES} bytes unpacked")
    return found.getvalue()


def read_start(files: SourceFiles, path: str, size: int) -> tuple[bytes, bool, bool]:
    """The first bytes of a DICOM file, whether they are all of it, and whether it is packed.

    Raises:
        SourceError: it cannot be read, or is damaged gzip.
    """
    head = files.head(path, size)
    if not head.startswith(MAGIC):
        return head, len(head) < size, False
    stream = zlib.decompressobj(GZIP_FORMAT)
    try:
        found = stream.decompress(head, size)
    except zlib.error as error:
        raise SourceError("decode", "gzip data is damaged", "in its first bytes") from error
    return found, stream.eof and len(found) < size, True
