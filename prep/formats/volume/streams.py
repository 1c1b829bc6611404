"""Streams of decompressed bytes: plain, gzip, zlib, bzip2, zstd, text and hexadecimal."""

from __future__ import annotations

import bz2
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import numpy as np
from isal import igzip_lib

from halofeed.system.errors import SourceError, require_extra
from halofeed.system.wording import plural

COPY_AGAIN: Final = "copy or download the file again"
"""What to do about a file that ends early, or whose bytes are not those that were written."""
GZIP_MAGIC = b"\x1f\x8b"
GZIP_WINDOW_BITS = 31
"""The `wbits` argument with which zlib expects a gzip header."""
ISAL_ERROR: Final[Any] = igzip_lib.IsalError  # the type stub declares it as an instance
DEFLATE, HAS_HEADER_CHECKSUM, HAS_EXTRA, HAS_NAME, HAS_COMMENT = 8, 2, 4, 8, 16
MAX_DEFLATE_RATIO = 1032
"""Largest expansion of deflate: 258 bytes for a length and a distance of one bit each (RFC 1951)."""
INPUT_BYTES = 1 << 16
OUTPUT_BYTES = 1 << 18
"""Block sizes that stay in the CPU cache between decompression and copy."""
BZIP2_MAGIC = b"BZh"
MAX_BZIP2_RATIO = 2_000_000
"""Upper limit: a block of 900,000 bytes encodes runs of 259 bytes in five, and takes at least 30 bytes."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MAX_ZSTD_RATIO = 1 << 15
"""Largest expansion of zstd: 128 KiB for a block of 4 bytes that repeats one byte (RFC 8878, 3.1.1.2)."""
MAX_NUMBER_BYTES = 4096
_TO_BLANKS = bytes.maketrans(b",\t\r\n\v\f", b"      ")


class DecodedStream(Protocol):
    """Decompressed content of one file, which is read once from its start to its end."""

    @property
    def max_bytes(self) -> int:
        """Upper limit on the size of the content, computed without decompression."""

    def read_into(self, target: memoryview) -> int:
        """Fill a target and return the number of bytes, which is smaller than the target only at the end.

        Raises:
            SourceError: the compressed data is damaged, truncated, or followed by other data (stage `decode`).
        """


class PlainStream:
    """Bytes of an uncompressed file, from `start` on."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._data, self._at = memoryview(data), start
        self.max_bytes = len(data) - start

    def read_into(self, target: memoryview) -> int:
        piece = self._data[self._at : self._at + len(target)]
        target[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class GzipStream:
    """Content of a gzip file (RFC 1952), from `start` on. It has one or more members; zeros may follow the last."""

    _name = "gzip"

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._data, self._view, self._at = data, memoryview(data), start
        self._member: Any = None
        self.max_bytes = MAX_DEFLATE_RATIO * (len(data) - start)

    def read_into(self, target: memoryview) -> int:
        filled = 0
        while filled < len(target) and (self._member or self._open_member()):
            piece = self._next_piece(min(len(target) - filled, OUTPUT_BYTES))
            target[filled : filled + len(piece)] = piece
            filled += len(piece)
            # What ISA-L read beyond the end belongs to the next member.
            if self._member.eof:
                self._at -= len(self._member.unused_data)
                self._member = None
        return filled

    def _open_member(self) -> bool:
        """Open the member at the current position; return False at the end of the data."""
        rest = len(self._data) - self._at
        if rest == 0:
            return False
        # Tapes and block devices pad with zeros, which gzip ignores too; other bytes are a damaged copy.
        if not self._data.startswith(GZIP_MAGIC, self._at):
            if self._data.count(0, self._at) != rest:
                raise SourceError("decode", "gzip data is followed by something else", plural(rest, "byte"))
            self._at = len(self._data)
            return False
        self._at = self._header_end()
        self._member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP_NO_HDR_VER)
        return True

    def _header_end(self) -> int:
        """Return the offset of the deflated data of the member at the current position (RFC 1952, 2.3).

        ISA-L has a parser for this header, but it fails if the first block of input does not contain all of it.
        """
        data, end = self._data, self._at + 10
        if len(data) < end:
            raise self._truncated()
        method, flags = data[self._at + 2], data[self._at + 3]
        if method != DEFLATE:  # RFC 1952 defines no other method
            raise SourceError("decode", "gzip data is damaged", f"compression method {method}")
        if flags & HAS_EXTRA:
            end += 2 + int.from_bytes(data[end : end + 2], "little")
        for flag in (HAS_NAME, HAS_COMMENT):
            # The name and the comment end with a zero byte (RFC 1952, 2.3.1).
            if flags & flag:
                end = data.find(b"\0", end) + 1
                if not end:
                    raise self._truncated()
        return min(end + 2 * bool(flags & HAS_HEADER_CHECKSUM), len(data))

    def _truncated(self) -> SourceError:
        detail = f"it ends at byte {len(self._data)}; {COPY_AGAIN}"
        return SourceError("decode", f"{self._name} data is truncated", detail)

    def _next_piece(self, most: int) -> bytes:
        piece = self._view[self._at : self._at + INPUT_BYTES] if self._member.needs_input else b""
        # zlib and ISA-L report no error at a missing end; they wait for more input.
        if self._member.needs_input and not piece:
            raise self._truncated()
        self._at += len(piece)
        try:
            decoded: bytes = self._member.decompress(piece, most)
        except ISAL_ERROR as error:
            fault = "checksum is wrong" if "checksum" in str(error) else "data is damaged"
            detail = f"before byte {self._at}: {error}; {COPY_AGAIN}"
            raise SourceError("decode", f"{self._name} {fault}", detail) from error
        return decoded


class ZlibStream(GzipStream):
    """Content of zlib data (RFC 1950), from `start` on. Other data may follow it."""

    _name = "zlib"
    _opened = False

    def _open_member(self) -> bool:
        if not self._opened:
            self._opened = True
            self._member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_ZLIB)
        return self._member is not None


def open_stream(data: bytes) -> DecodedStream:
    """Return a stream of a file's content, which is gzip or zstd if it begins with their magic bytes."""
    return unpacker_of(data)(data, 0)


def unpacker_of(data: bytes) -> Callable[[bytes, int], DecodedStream]:
    """Return what unpacks a file's content, by its first bytes."""
    if data.startswith(GZIP_MAGIC):
        return GzipStream
    return zstd_stream if data.startswith(ZSTD_MAGIC) else PlainStream


def read_start(data: bytes, byte_count: int) -> bytes:
    """Return the first bytes of a file's decompressed content, or fewer if it is shorter."""
    start = bytearray(byte_count)
    filled = open_stream(data).read_into(memoryview(start))
    return bytes(start[:filled])


def unpack_head(head: bytes, byte_count: int) -> tuple[bytes, bool]:
    """Return the first bytes of a file's decompressed content from its first stored bytes.

    Returns:
        At most `byte_count` bytes, fewer if `head` is too short; and whether they are the complete content if the file
        is gzip.

    Raises:
        SourceError: the gzip data is damaged.
    """
    if head.startswith(ZSTD_MAGIC):
        return read_start(head, byte_count), False
    if not head.startswith(GZIP_MAGIC):
        return head[:byte_count], False
    # zlib reads a header of any length; ISA-L's parser does not, see `GzipStream._header_end`.
    stream = zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        start = stream.decompress(head, byte_count)
    except zlib.error as error:
        raise SourceError("decode", "gzip data is damaged", "in its first bytes") from error
    return start, stream.eof and len(start) < byte_count


def skip(stream: DecodedStream, byte_count: int) -> int:
    """Skip bytes of a stream; return their number, which is smaller than `byte_count` only at the end."""
    scratch = memoryview(bytearray(min(byte_count, OUTPUT_BYTES)))
    skipped = 0
    while skipped < byte_count and (got := stream.read_into(scratch[: byte_count - skipped])):
        skipped += got
    return skipped


class PieceStream:
    """Content of a file whose decoder yields blocks of any size."""

    def __init__(self, pieces: Iterator[bytes], max_bytes: int) -> None:
        self._pieces = filter(None, pieces)
        self._left = memoryview(b"")
        self.max_bytes = max_bytes

    def read_into(self, target: memoryview) -> int:
        filled = 0
        while filled < len(target):
            if not self._left:
                self._left = memoryview(next(self._pieces, b""))
                if not self._left:
                    break
            piece = self._left[: len(target) - filled]
            target[filled : filled + len(piece)] = piece
            self._left = self._left[len(piece) :]
            filled += len(piece)
        return filled


def bzip2_stream(data: bytes, start: int = 0) -> PieceStream:
    """Return the content of bzip2 data with one or more streams; zeros may follow the last."""
    return PieceStream(_bzip2_pieces(data, start), MAX_BZIP2_RATIO * (len(data) - start))


def _bzip2_pieces(data: bytes, at: int) -> Iterator[bytes]:
    while data.count(0, at) < len(data) - at:
        if not data.startswith(BZIP2_MAGIC, at):
            raise SourceError("decode", "bzip2 data is damaged", f"no stream begins at byte {at}")
        stream = bz2.BZ2Decompressor()
        while not stream.eof:
            packed = data[at : at + INPUT_BYTES] if stream.needs_input else b""
            if stream.needs_input and not packed:
                detail = f"it ends at byte {len(data)}; {COPY_AGAIN}"
                raise SourceError("decode", "bzip2 data is truncated", detail)
            at += len(packed)
            try:
                decoded = stream.decompress(packed, OUTPUT_BYTES)
            except (OSError, ValueError) as error:
                detail = f"before byte {at}: {error}"
                raise SourceError("decode", "bzip2 data is damaged", detail) from error
            yield decoded
        at -= len(stream.unused_data)


def zstd_stream(data: bytes, start: int = 0) -> PieceStream:
    """Return the content of zstd data with one or more frames (RFC 8878).

    Raises:
        MissingExtraError: zstandard is not installed.
    """
    with require_extra("large", "zstandard"):
        import zstandard  # noqa: F401
    return PieceStream(_zstd_pieces(data, start), MAX_ZSTD_RATIO * (len(data) - start))


def _zstd_pieces(data: bytes, start: int) -> Iterator[bytes]:
    import zstandard

    packed = io.BytesIO(memoryview(data)[start:])
    reader = zstandard.ZstdDecompressor().stream_reader(packed, INPUT_BYTES, read_across_frames=True)
    try:
        while piece := reader.read(OUTPUT_BYTES):
            yield piece
    except zstandard.ZstdError as error:
        detail = f"before byte {start + packed.tell()}: {error}; {COPY_AGAIN}"
        raise SourceError("decode", "zstd data is damaged", detail) from error


def hex_stream(data: bytes, start: int = 0) -> PieceStream:
    """Return the content of text with two hexadecimal digits per byte; whitespace is ignored."""
    return PieceStream(_hex_pieces(data, start), (len(data) - start) // 2)


def _hex_pieces(data: bytes, start: int) -> Iterator[bytes]:
    odd = b""
    for at in range(start, len(data), INPUT_BYTES):
        digits = odd + data[at : at + INPUT_BYTES].translate(None, b" \t\r\n\v\f")
        even = len(digits) // 2 * 2
        odd = digits[even:]
        try:
            decoded = bytes.fromhex(digits[:even].decode("ascii"))
        except ValueError as error:
            detail = f"after byte {at}: {error}"
            raise SourceError("decode", "hexadecimal digits are damaged", detail) from error
        yield decoded
    if odd:
        raise SourceError("decode", "hexadecimal digits are damaged", "the last byte has one digit")


def text_stream(data: bytes, start: int = 0, *, dtype: np.dtype[Any]) -> PieceStream:
    """Return the values, in the bytes of `dtype`, of numbers in text, separated by whitespace or commas."""
    return PieceStream(_text_pieces(data, start, dtype), (len(data) - start + 1) // 2 * dtype.itemsize)


def _text_pieces(data: bytes, at: int, dtype: np.dtype[Any]) -> Iterator[bytes]:
    while at < len(data):
        text = data[at : at + INPUT_BYTES].translate(_TO_BLANKS)
        if at + len(text) < len(data):
            # The last number may continue in the next block.
            end = text.rfind(b" ") + 1
            if len(text) - end > MAX_NUMBER_BYTES:
                raise _not_numbers(at, f"a number of more than {MAX_NUMBER_BYTES} characters")
            text = text[:end]
        if b"_" in text:  # Python allows underscores in numbers
            raise _not_numbers(at, "an underscore")
        if words := text.split():
            yield _values(words, at, dtype)
        at += len(text)


def _values(words: list[bytes], at: int, dtype: np.dtype[Any]) -> bytes:
    try:
        # A float beyond the type becomes infinite, and is checked like other infinite voxels; an integer is refused.
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                return np.array([float(word) for word in words]).astype(dtype).tobytes()
        numbers = [int(word) for word in words]
    except ValueError as error:
        raise _not_numbers(at, str(error)[:100]) from error
    info = np.iinfo(dtype)
    if min(numbers) < info.min or max(numbers) > info.max:
        raise _not_numbers(at, f"{min(numbers)} to {max(numbers)} do not fit in {dtype.name}")
    return np.array(numbers, dtype).tobytes()


def _not_numbers(at: int, detail: str) -> SourceError:
    return SourceError("decode", "voxels are no numbers", f"after byte {at}: {detail}")
