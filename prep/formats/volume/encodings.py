"""How voxels that are stored as bzip2, as text or in hexadecimal digits become bytes, piece by piece."""

from __future__ import annotations

import abc
import bz2
from typing import Any

import numpy as np

from halofeed.prep.formats.volume.gzip_stream import INPUT_BYTES, OUTPUT_BYTES
from halofeed.schemas.errors import SourceError

BZIP2_MAGIC = b"BZh"
BZIP2_MOST_PER_BYTE = 2_000_000
"""A block of 900,000 bytes holds runs of 259 bytes in five, and takes no less than 30 bytes."""
LONGEST_NUMBER = 4096


class _PieceStream(abc.ABC):
    """The content of a file that is decoded in pieces of any size."""

    def __init__(self, data: bytes, start: int, most_bytes: int) -> None:
        self._data, self._at = data, start
        self._left = memoryview(b"")
        self.most_bytes = most_bytes

    def read_into(self, target: memoryview) -> int:
        filled = 0
        while filled < len(target):
            if not self._left:
                self._left = memoryview(self._next_piece())
                if not self._left:
                    break
            piece = self._left[: len(target) - filled]
            target[filled : filled + len(piece)] = piece
            self._left = self._left[len(piece) :]
            filled += len(piece)
        return filled

    @abc.abstractmethod
    def _next_piece(self) -> bytes:
        """The next bytes of the content; none at its end."""

    def _input(self) -> bytes:
        piece = self._data[self._at : self._at + INPUT_BYTES]
        self._at += len(piece)
        return piece


class Bzip2Stream(_PieceStream):
    """The content of bzip2 data of one or several streams; zeros may follow the last."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        super().__init__(data, start, BZIP2_MOST_PER_BYTE * (len(data) - start))
        self._stream: Any = None

    def _next_piece(self) -> bytes:
        while True:
            if self._stream is None:
                rest = len(self._data) - self._at
                if self._data.count(0, self._at) == rest:
                    return b""
                if not self._data.startswith(BZIP2_MAGIC, self._at):
                    raise SourceError(
                        "decode", "bzip2 data is damaged", f"no stream begins at byte {self._at}"
                    )
                self._stream = bz2.BZ2Decompressor()
            packed = self._input() if self._stream.needs_input else b""
            if self._stream.needs_input and not packed:
                raise SourceError("decode", "bzip2 data is truncated", f"it ends at byte {len(self._data)}")
            try:
                decoded: bytes = self._stream.decompress(packed, OUTPUT_BYTES)
            except (OSError, ValueError) as error:
                raise SourceError(
                    "decode", "bzip2 data is damaged", f"before byte {self._at}: {error}"
                ) from error
            if self._stream.eof:
                self._at -= len(self._stream.unused_data)
                self._stream = None
            if decoded:
                return decoded


class HexStream(_PieceStream):
    """Two hexadecimal digits a byte, with blanks and line ends wherever they are."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        super().__init__(data, start, (len(data) - start) // 2)
        self._odd = b""

    def _next_piece(self) -> bytes:
        while True:
            at, piece = self._at, self._input()
            digits = self._odd + piece.translate(None, b" \t\r\n\v\f")
            if not piece and digits:
                raise SourceError("decode", "hexadecimal digits are damaged", "the last byte has one digit")
            whole = len(digits) // 2 * 2
            self._odd = digits[whole:]
            try:
                decoded = bytes.fromhex(digits[:whole].decode("ascii"))
            except ValueError as error:
                raise SourceError(
                    "decode", "hexadecimal digits are damaged", f"after byte {at}: {error}"
                ) from error
            if decoded or not piece:
                return decoded


class TextStream(_PieceStream):
    """Numbers as text, with blanks, commas or line ends between them, as values of a type."""

    def __init__(self, data: bytes, start: int = 0, *, dtype: np.dtype[Any]) -> None:
        super().__init__(data, start, (len(data) - start + 1) // 2 * dtype.itemsize)
        self._dtype = dtype

    def _next_piece(self) -> bytes:
        while True:
            at, piece = self._at, self._input()
            if not piece:
                return b""
            if self._at < len(self._data):
                # A number that goes on in the next piece begins there.
                text = piece.translate(_TO_BLANKS)
                whole = text.rfind(b" ") + 1
                if len(text) - whole > LONGEST_NUMBER:
                    raise self._damaged(at, f"a number of more than {LONGEST_NUMBER} characters")
                self._at = at + whole
                piece = text[:whole]
            words = piece.translate(_TO_BLANKS).split()
            if b"_" in piece:  # which Python reads in numbers
                raise self._damaged(at, "an underscore")
            if words:
                return self._values(words, at)

    def _values(self, words: list[bytes], at: int) -> bytes:
        try:
            if self._dtype.kind == "f":
                with np.errstate(over="ignore"):
                    return np.array([float(word) for word in words]).astype(self._dtype).tobytes()
            numbers = [int(word) for word in words]
        except ValueError as error:
            raise self._damaged(at, str(error)[:100]) from error
        info = np.iinfo(self._dtype)
        if min(numbers) < info.min or max(numbers) > info.max:
            raise self._damaged(at, f"{min(numbers)} to {max(numbers)} do not fit in {self._dtype.name}")
        return np.array(numbers, self._dtype).tobytes()

    def _damaged(self, at: int, detail: str) -> SourceError:
        return SourceError("decode", "voxels are no numbers", f"after byte {at}: {detail}")


_TO_BLANKS = bytes.maketrans(b",\t\r\n\v\f", b"      ")
