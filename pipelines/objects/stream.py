"""An object as a stream: read by ranges, or written in parts while it is made."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Self

import numpy as np

from halofeed.pipelines.objects.base import ABSENT, ObjectStore, Parts
from halofeed.schemas.checksum import crc32c

PART_BYTES: Final = 16 << 20
_PARTS_OF_A_SIZE: Final = 1000
"""After so many parts the next ones are twice as large: S3 takes ten thousand."""


class ObjectReader:
    """Reads an object in order."""

    def __init__(self, store: ObjectStore, address: str) -> None:
        self._store, self._address = store, address
        self._offset, self._ahead = 0, b""

    def read(self, size: int) -> bytes:
        """The next bytes, fewer at the end."""
        if len(self._ahead) < size:
            start = self._offset + len(self._ahead)
            self._ahead += self._store.read(self._address, start, start + max(size, PART_BYTES))
        piece, self._ahead = self._ahead[:size], self._ahead[size:]
        self._offset += len(piece)
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what was read ahead."""
        self._ahead = b""


class ObjectWriter:
    """Takes the bytes of an object, which is there once it is finished, and only where nobody wrote it meanwhile.

    Memory: two parts.
    """

    def __init__(self, store: ObjectStore, address: str) -> None:
        self._store, self._address = store, address
        stands = store.stat(address)
        self._expected = ABSENT if stands is None else stands.version
        self._pending, self._bytes, self._checksum, self._sent = bytearray(), 0, 0, 0
        self._parts: Parts | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None

    def write(self, data: Any, /) -> int:
        """Take the next bytes."""
        view = np.frombuffer(data, np.uint8).data
        self._pending += view
        self._bytes += len(view)
        while len(self._pending) > (size := PART_BYTES << self._sent // _PARTS_OF_A_SIZE):
            part, self._pending = bytes(self._pending[:size]), self._pending[size:]
            self._send(part)
        return len(view)

    def tell(self) -> int:
        """How many bytes were taken."""
        return self._bytes

    def _send(self, part: bytes) -> None:
        self._checksum = crc32c(part, self._checksum)
        if self._parts is None:
            self._parts = self._store.parts(self._address, self._expected)
            self._thread = ThreadPoolExecutor(1, "upload")
        assert self._thread is not None
        self._wait()
        self._sending = self._thread.submit(self._parts.send, part)
        self._sent += 1

    def _wait(self) -> None:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            sending.result()

    def finish(self) -> None:
        """Have the object be there; ChangedError where another wrote or deleted it meanwhile."""
        last = bytes(self._pending)
        self._checksum, self._pending = crc32c(last, self._checksum), bytearray()
        if self._parts is None:
            self._store.write(self._address, last, self._expected)
            return
        self._wait()
        self._parts.finish(last)
        self._end()

    def is_there(self) -> bool:
        """Whether what stands is what was written here, by another that made the same."""
        checksum = 0
        with ObjectReader(self._store, self._address) as reader:
            try:
                while piece := reader.read(PART_BYTES):
                    checksum = crc32c(piece, checksum)
            except FileNotFoundError:
                return False
        self.abort()
        return checksum == self._checksum

    def abort(self) -> None:
        """Leave nothing of it."""
        self._end()
        if self._parts is not None:
            parts, self._parts = self._parts, None
            parts.abort()

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
