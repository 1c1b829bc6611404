"""How voxels that are stored as bzip2, as text or in hexadecimal digits become bytes, piece by piece."""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from typing import Any

import numpy as np

from halofeed.prep.formats.volume.gzip_stream import INPUT_BYTES, OUTPUT_BYTES
from halofeed.schemas.errors import SourceError

BZIP2_MAGIC = b"BZh"
BZIP2_MOST_PER_BYTE = 2_000_000
"""A block of 900,000 bytes holds runs of 259 bytes in five, and takes no less than 30 bytes."""
LONGEST_NUMBER = 4096
_TO_BLANKS = bytes.maketrans(b",\t\r\n\v\f", b"      ")


class PieceStream:
    """The content of a file that is decoded in pieces of any size."""

    def __init__(self, pieces: Iterator[bytes], most_bytes: int) -> None:
        self._pieces = filter(None, pieces)
        self._left = memoryview(b"")
        self.most_bytes = most_bytes

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
    """The content of bzip2 data of one or several streams; zeros may follow the last."""
    return PieceStream(_bzip2_pieces(data, start), BZIP2_MOST_PER_BYTE * (len(data) - start))


def _bzip2_pieces(data: bytes, at: int) -> Iterator[bytes]:
    while data.count(0, at) < len(data) - at:
        if not data.startswith(BZIP2_MAGIC, at):
            raise SourceError("decode", "bzip2 data is damaged", f"no stream begins at byte {at}")
        stream = bz2.BZ2Decompressor()
        while not stream.eof:
            packed = data[at : at + INPUT_BYTES] if stream.needs_input else b""
            if stream.needs_input and not packed:
                raise SourceError("decode", "bzip2 data is truncated", f"it ends at byte {len(data)}")
            at += len(packed)
            try:
                decoded = stream.decompress(packed, OUTPUT_BYTES)
            except (OSError, ValueError) as error:
                detail = f"before byte {at}: {error}"
                raise SourceError("decode", "bzip2 data is damaged", detail) from error
            yield decoded
        at -= len(stream.unused_data)


def hex_stream(data: bytes, start: int = 0) -> PieceStream:
    """Two hexadecimal digits a byte, with blanks and line ends wherever they are."""
    return PieceStream(_hex_pieces(data, start), (len(data) - start) // 2)


def _hex_pieces(data: bytes, start: int) -> Iterator[bytes]:
    odd = b""
    for at in range(start, len(data), INPUT_BYTES):
        digits = odd + data[at : at + INPUT_BYTES].translate(None, b" \t\r\n\v\f")
        whole = len(digits) // 2 * 2
        odd = digits[whole:]
        try:
            decoded = bytes.fromhex(digits[:whole].decode("ascii"))
        except ValueError as error:
            detail = f"after byte {at}: {error}"
            raise SourceError("decode", "hexadecimal digits are damaged", detail) from error
        yield decoded
    if odd:
        raise SourceError("decode", "hexadecimal digits are damaged", "the last byte has one digit")


def text_stream(data: bytes, start: int = 0, *, dtype: np.dtype[Any]) -> PieceStream:
    """Numbers as text, with blanks, commas or line ends between them, as values of a type."""
    return PieceStream(_text_pieces(data, start, dtype), (len(data) - start + 1) // 2 * dtype.itemsize)


def _text_pieces(data: bytes, at: int, dtype: np.dtype[Any]) -> Iterator[bytes]:
    while at < len(data):
        text = data[at : at + INPUT_BYTES].translate(_TO_BLANKS)
        if at + len(text) < len(data):
            # A number that goes on in the next piece begins there.
            whole = text.rfind(b" ") + 1
            if len(text) - whole > LONGEST_NUMBER:
                raise _no_numbers(at, f"a number of more than {LONGEST_NUMBER} characters")
            text = text[:whole]
        if b"_" in text:  # which Python reads in numbers
            raise _no_numbers(at, "an underscore")
        if words := text.split():
            yield _values(words, at, dtype)
        at += len(text)


def _values(words: list[bytes], at: int, dtype: np.dtype[Any]) -> bytes:
    try:
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                return np.array([float(word) for word in words]).astype(dtype).tobytes()
        numbers = [int(word) for word in words]
    except ValueError as error:
        raise _no_numbers(at, str(error)[:100]) from error
    info = np.iinfo(dtype)
    if min(numbers) < info.min or max(numbers) > info.max:
        raise _no_numbers(at, f"{min(numbers)} to {max(numbers)} do not fit in {dtype.name}")
    return np.array(numbers, dtype).tobytes()


def _no_numbers(at: int, detail: str) -> SourceError:
    return SourceError("decode", "voxels are no numbers", f"after byte {at}: {detail}")
