"""The bytes of a table, which may be more than memory holds: read again for each pass, and the same each time."""

from __future__ import annotations

import codecs
import hashlib
import io
from collections.abc import Callable
from contextlib import closing
from typing import Any

from halofeed.prep.annotations.contract import telling_unread
from halofeed.prep.sources.files import ByteStream, SourceFiles
from halofeed.schemas.errors import AnnotationsError

HELD_BYTES = 4 << 20
"""Of a table that is held, and its rows too; those of a larger one take a hundred times its bytes."""
_PIECE_BYTES = 1 << 20


class TableBytes:
    """The text of one table, gone through as often as one likes.

    Raises:
        AnnotationsError: it cannot be read, or is not UTF-8; at the end of each later pass, if it has changed.
    """

    def __init__(self, files: SourceFiles, name: str) -> None:
        self._files, self._name = files, name
        with telling_unread(files, name):
            head = files.head(name, HELD_BYTES + 1)
        self._held = head if len(head) <= HELD_BYTES else None
        self._digest = self._check_text()

    @property
    def path(self) -> str:
        """Where the table lies, for a command."""
        return f"{self._files.root}/{self._name}"

    @property
    def is_held(self) -> bool:
        """Whether the table is a small one."""
        return self._held is not None

    def lines(self, newline: str) -> io.TextIOWrapper:
        """The text line by line, without a byte order mark; `newline` is that of `open`."""
        # What is no UTF-8 now was changed, as the end will tell.
        stream = io.BufferedReader(_Pass(self._open(), self._check_same))
        return io.TextIOWrapper(stream, "utf-8-sig", "replace", newline)

    def _open(self) -> ByteStream:
        if self._held is not None:
            return io.BytesIO(self._held)
        with telling_unread(self._files, self._name):
            return self._files.open(self._name)

    def _check_text(self) -> str:
        digest, start = hashlib.sha256(), 0
        decoder = codecs.getincrementaldecoder("utf-8")()
        with telling_unread(self._files, self._name), closing(self._open()) as stream:
            try:
                while piece := stream.read(_PIECE_BYTES):
                    digest.update(piece)
                    decoder.decode(piece)
                    start += len(piece)
                piece = b""
                decoder.decode(piece, final=True)
            except UnicodeDecodeError as error:
                # What it was given begins with what was left of the piece before.
                at, wrong = start + len(piece) - len(error.object) + error.start, error.object[error.start]
                raise AnnotationsError(
                    f"{self._name}: expected UTF-8 text, byte {at} is 0x{wrong:02x}; save it as UTF-8"
                ) from error
        return digest.hexdigest()

    def _check_same(self, digest: str) -> None:
        if digest != self._digest:
            raise AnnotationsError(
                f"{self._name} in {self._files.root}: it was changed while it was read; run the same command again "
                "once it is finished"
            )


class _Pass(io.RawIOBase):
    """One pass over a stream, at whose end `check` is told the digest of all that was read."""

    def __init__(self, stream: ByteStream, check: Callable[[str], None]) -> None:
        self._stream, self._check = stream, check
        self._piece, self._digest = memoryview(b""), hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._piece:
            self._piece = memoryview(self._stream.read(_PIECE_BYTES))
            self._digest.update(self._piece)
            if not self._piece:
                self._check(self._digest.hexdigest())
        size = min(len(buffer), len(self._piece))
        buffer[:size], self._piece = self._piece[:size], self._piece[size:]
        return size

    def close(self) -> None:
        self._stream.close()
        super().close()
