"""How a large local file is written: past the page cache, in the background.

Copying pixels into the page cache takes the kernel 0.6 to 2 ms a megabyte, which was up to a quarter of a conversion,
and pushes everything else out of memory. The first buffer tells small files from large ones: what fits into it is
written like any file. Where the file system knows no direct writes, all is.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.system.atomic_files import create_anew, keep_mode

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

BUFFER_BYTES = 8 << 20
"""A multiple of every device's block size."""


class DirectFile:
    """A new file that is written from its beginning to its end.

    Args:
        buffers: how many are held at most; with so many, what fits into them is taken without waiting for the disk.

    Raises:
        OSError: as of any file; a write's may come with a later write, or with `close`.
    """

    def __init__(self, path: str, buffers: int = 2) -> None:
        self._file = create_anew(path)
        self._current = _new_buffer()
        self._more = buffers - 1
        self._filled = 0
        self._position = 0
        self._thread = ThreadPoolExecutor(1, "write")
        self._under_way: deque[Future[NDArray[np.uint8]]] = deque()
        self._is_large = False
        self._closed = False

    def tell(self) -> int:
        """The bytes that were given so far."""
        return self._position

    def write(self, data: Any, /) -> int:
        """Take all of `data`; it may change as soon as this returns."""
        view = np.frombuffer(data, np.uint8)
        taken = 0
        while taken < len(view):
            size = min(len(view) - taken, BUFFER_BYTES - self._filled)
            self._current[self._filled : self._filled + size] = view[taken : taken + size]
            taken += size
            self._filled += size
            if self._filled == BUFFER_BYTES:
                self._hand_over()
        self._position += len(view)
        return len(view)

    def _hand_over(self) -> None:
        """Have the full buffer written, and go on in another once there is one."""
        if not self._is_large:
            self._is_large = True
            self._set_direct(True)
        self._under_way.append(self._thread.submit(self._write_all, self._current))
        if self._more and not self._under_way[0].done():
            self._more -= 1
            self._current = _new_buffer()
        else:
            self._current = self._under_way.popleft().result()
        self._filled = 0

    def _write_all(self, buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Write all of it, and give it back."""
        view = buffer.data
        while view:
            try:
                view = view[os.write(self._file, view) :]
            except OSError:
                # A device with larger blocks than the place where the last write ended.
                if not self._set_direct(False):
                    raise
        return buffer

    def _set_direct(self, direct: bool) -> bool:
        """Whether that changed anything."""
        if fcntl is None or not hasattr(os, "O_DIRECT"):
            return False
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        wanted = flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._file, fcntl.F_SETFL, wanted)
        return fcntl.fcntl(self._file, fcntl.F_GETFL) != flags

    def keep_mode(self, target: str) -> None:
        """Take the group and permissions of the file whose place this one is to take, if there is one."""
        keep_mode(self._file, target)

    def close(self) -> None:
        """Write the rest, wait for everything, and close; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            while self._under_way:
                self._under_way.popleft().result()
            self._set_direct(False)
            self._write_all(self._current[: self._filled])
        finally:
            self._thread.shutdown()
            os.close(self._file)


def _new_buffer() -> NDArray[np.uint8]:
    """Memory that begins at a page, as direct writes ask for."""
    return np.frombuffer(mmap.mmap(-1, BUFFER_BYTES), np.uint8)
