"""Stream of a file that is read by ranges."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class RangeStream(io.RawIOBase):
    """Seekable stream of one file; from one thread.

    Args:
        size: bytes of the file.
        read_range: function from (start, stop) to the bytes between them, fewer at the end of the file.
        block_bytes: size of the blocks that are read and kept; 0: exactly what is asked for is read, and not kept.
        blocks: maximum number of blocks that are kept, the last used ones.

    >>> stream = RangeStream(6, lambda start, stop: b"abcdef"[start:stop], block_bytes=4)
    >>> stream.seek(3), stream.read(2), stream.tell(), stream.read()
    (3, b'de', 5, b'f')
    """

    def __init__(
        self, size: int, read_range: Callable[[int, int], bytes], block_bytes: int = 0, blocks: int = 32
    ) -> None:
        self._size, self._read_range = size, read_range
        self._block_bytes, self._most = block_bytes, blocks
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError(f"negative position {at}")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._size, self._at + size)
        data = self._between(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")  # the buffer may be an array of wider numbers
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _between(self, start: int, stop: int) -> bytes:
        """Return the bytes of a range inside the file, from the kept blocks if it is short."""
        if stop - start > self._block_bytes:
            return self._read_range(start, stop)
        first, last = start // self._block_bytes, (stop - 1) // self._block_bytes
        joined = b"".join(self._block(number) for number in range(first, last + 1))
        begin = start - first * self._block_bytes
        return joined[begin : begin + stop - start]

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            start = number * self._block_bytes
            self._blocks[number] = self._read_range(start, min(start + self._block_bytes, self._size))
        self._blocks.move_to_end(number)
        if len(self._blocks) > self._most:
            del self._blocks[next(iter(self._blocks))]
        return self._blocks[number]
