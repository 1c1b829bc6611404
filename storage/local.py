"""Local disk: files of a store, and a writer of large files that bypasses the page cache (O_DIRECT).

The writer works in the background. The system time of 1.6 GB is 0.36 s with direct writes and 0.96 s through the page
cache, without the kernel's own threads (Linux 6.18, ext4, 2026-11-28, `python benchmarks/overlap.py`). The page cache
would also evict everything else. A file that fits into the first buffer is written like any file.

Where the file system does not support direct writes, the kernel is told to write each buffer at once. It would
otherwise begin after 30 s, and the fsync of a commit would write most of a data set while nothing converts.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedReader
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.storage.atomic_files import copy_mode, create_replacing, open_regular, read_regular
from halofeed.storage.base import ANY, Entry, FileInfo, FileRanges, Files
from halofeed.storage.paths import scan_folder
from halofeed.storage.writing_ways import WAYS, WritingCost
from halofeed.system.memory import machine_memory

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

BUFFER_BYTES = 2 << 20
"""Size of a buffer, a multiple of every device's block size. The writer of a shard waits for its last buffer."""
_MOST_BUFFERS_AT_ONCE = 4
"""Buffers that one call writes. More would leave none for the writer in the meantime."""
_BLOCK_BYTES = 4096
"""Unit of direct writes at the end of a file. A device with larger blocks refuses them, and the end is cached."""


class LocalDisk(Files):
    """Files below a local folder, without conditional writes; see `Files`."""

    def address(self, path: str) -> str:
        return os.path.join(self.root, path)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if not start and stop is None:
            return read_regular(self.address(path), machine_memory())
        with open_regular(self.address(path)) as stream:
            stream.seek(start)
            return stream.read(-1 if stop is None else stop - start) or b""

    def open(self, path: str) -> BufferedReader:
        return BufferedReader(open_regular(self.address(path)))

    def open_ranges(self, path: str) -> LocalRanges:
        return LocalRanges(self.address(path))

    def stat(self, path: str) -> FileInfo | None:
        try:
            found = os.stat(self.address(path))
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return FileInfo(size=found.st_size, version=ANY, age_seconds=0)

    def entries(self, folder: str = "", *, deep: bool = True) -> Iterator[Entry]:
        """Yield files as `Files.entries` does, without those deleted meanwhile; what is no regular file has no size."""
        start = f"{folder}/" if folder else ""
        with scan_folder(self.address(folder)) as found:
            for one in found:
                with contextlib.suppress(FileNotFoundError):
                    if deep and one.is_dir(follow_symlinks=False):
                        yield from self.entries(start + one.name)
                    else:
                        yield Entry(start + one.name, one.stat().st_size if one.is_file() else None)

    def delete(self, paths: Iterable[str]) -> None:
        for path in map(self.address, paths):
            if os.path.isfile(path):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)


class LocalRanges(FileRanges):
    """Reader of ranges of one regular file, which is opened once; see `FileRanges`."""

    def __init__(self, path: str) -> None:
        self._file = open_regular(path)
        found = os.fstat(self._file.fileno())
        self.size: int = found.st_size
        self._changed_ns = found.st_mtime_ns

    def read(self, start: int, stop: int) -> bytes:
        # `pread` has no position that threads would share. One call returns at most 2 GiB.
        data = os.pread(self._file.fileno(), stop - start, start) if stop > start else b""
        while len(data) < stop - start:
            piece = os.pread(self._file.fileno(), stop - start - len(data), start + len(data))
            if not piece:
                break
            data += piece
        return data

    def is_unchanged(self) -> bool:
        found = os.fstat(self._file.fileno())
        return (found.st_size, found.st_mtime_ns) == (self.size, self._changed_ns)

    def close(self) -> None:
        self._file.close()


class DirectFile:
    """A new file, written sequentially, past the page cache if the disk is fast enough for it (see `writing_ways`).

    Args:
        buffers: maximum number of buffers; data that fits into them does not wait for the disk.

    Raises:
        OSError: as for any file; a later write or `close` may raise the error of an earlier write.
    """

    def __init__(self, path: str, buffers: int = 8) -> None:
        self._file = create_replacing(path)
        self._ways = WAYS.of(os.fstat(self._file).st_dev)
        self._direct, self._trial = self._ways.is_direct, self._ways.is_trial
        self._current = _new_buffer()
        self._more = buffers - 1
        self._filled = 0
        self._position = 0
        self._thread = ThreadPoolExecutor(1, "write")
        # Buffers to write, calls that write them, and buffers that were written.
        self._full: SimpleQueue[NDArray[np.uint8]] = SimpleQueue()
        self._calls: deque[Future[None]] = deque()
        self._free: SimpleQueue[NDArray[np.uint8]] = SimpleQueue()
        # From here on and not from the first write: volumes come in bursts that no disk can follow.
        self._timer = _Timer(began=time.perf_counter())
        self._is_large = False
        self._closed = False

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._position

    def write(self, data: Any, /) -> int:
        """Write all of `data`, which may be changed afterwards."""
        view = np.frombuffer(data, np.uint8)
        self._position += (size := len(view))
        while len(view):
            piece = view[: BUFFER_BYTES - self._filled]
            self._current[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            view = view[len(piece) :]
            # Full buffers only, so that direct writes begin and end at blocks.
            if self._filled == BUFFER_BYTES:
                self._hand_over()
        return size

    def _hand_over(self) -> None:
        """Write the full buffer in the background, and continue in another one."""
        if not self._is_large:
            self._is_large = True
            self._direct = self._direct and self._set_direct(True)
        elif self._direct or self._trial:
            self._choose_way()
        self._full.put(self._current)
        self._calls.append(self._thread.submit(self._write_full))
        while self._calls and self._calls[0].done():
            self._calls.popleft().result()
        # A further buffer is allocated only while the disk is slower than the writer.
        if self._free.empty() and self._more:
            self._more -= 1
            self._current = _new_buffer()
        else:
            began = time.perf_counter()
            while self._free.empty():
                self._calls.popleft().result()
            self._timer.waited += time.perf_counter() - began
            self._current = self._free.get()
        self._filled = 0

    def _write_full(self) -> None:
        """Write all full buffers by one call, because larger requests are faster; an earlier call may have done it."""
        buffers: list[NDArray[np.uint8]] = []
        with contextlib.suppress(Empty):
            while len(buffers) < (_MOST_BUFFERS_AT_ONCE if hasattr(os, "writev") else 1):
                buffers.append(self._full.get_nowait())
        if not buffers:
            return
        began, processor_began = time.perf_counter(), time.thread_time()
        self._write_all([buffer.data for buffer in buffers])
        self._timer.writing += time.perf_counter() - began
        self._timer.processor += time.thread_time() - processor_began
        for buffer in buffers:
            self._free.put(buffer)

    def _write_all(self, views: list[memoryview]) -> None:
        """Write memory in order; start to write what a large file has in the page cache."""
        views = [view for view in views if view]
        while views:
            try:
                written = os.writev(self._file, views) if len(views) > 1 else os.write(self._file, views[0])
            except OSError:
                # The last write may have ended inside one of the device's blocks.
                if not self._set_direct(False):
                    raise
                continue
            views = _after(views, written)
        if self._is_large and hasattr(os, "posix_fadvise"):
            # Writes dirty pages without waiting, and drops clean ones.
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _set_direct(self, direct: bool) -> bool:
        """Switch direct writes on or off; return whether that changed anything."""
        if fcntl is None or not hasattr(os, "O_DIRECT"):
            return False
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        wanted = flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._file, fcntl.F_SETFL, wanted)
        return fcntl.fcntl(self._file, fcntl.F_GETFL) != flags

    def keep_mode(self, target: str) -> None:
        """Copy the group and permissions of the file to be replaced, if there is one."""
        copy_mode(self._file, target)

    def close(self) -> None:
        """Write the rest, wait for all writes, and close the file; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        began = time.perf_counter()
        try:
            self._wait_for_calls()
            # Direct writes need whole blocks; the rest goes through the page cache.
            blocks = self._filled // _BLOCK_BYTES * _BLOCK_BYTES if self._direct else 0
            self._write_all([self._current[:blocks].data])
            self._set_direct(False)
            self._write_all([self._current[blocks : self._filled].data])
            self._measure(began)
        finally:
            self._thread.shutdown()
            os.close(self._file)

    def _choose_way(self) -> None:
        """Continue in the page cache, or past it, if this file shows that this takes less time on its disk."""
        cost = self._timer.cost(self._position)
        if self._trial and cost.is_large:
            self._wait_for_calls()
            began = time.perf_counter()
            os.fsync(self._file)
            self._timer.waited += time.perf_counter() - began
            cost = self._timer.cost(self._position)
        elif not cost.is_slow:
            return
        self._ways.add(cost, direct=self._direct)
        self._trial = self._ways.is_trial
        if self._direct != self._ways.is_direct:
            self._wait_for_calls()
            self._direct = self._ways.is_direct and self._set_direct(True)
            if not self._direct:
                self._set_direct(False)
        self._timer = _Timer(began=time.perf_counter(), start=self._position)

    def _wait_for_calls(self) -> None:
        """Wait until what was handed over is written."""
        began = time.perf_counter()
        while self._calls:
            self._calls.popleft().result()
        self._timer.waited += time.perf_counter() - began

    def _measure(self, close_began: float) -> None:
        """Add what the last direct writes of a large file took to the measurements of its disk."""
        if self._is_large and self._direct:
            self._timer.waited += time.perf_counter() - close_began
            self._ways.add(self._timer.cost(self._position), direct=True)


@dataclass(kw_only=True)
class _Timer:
    """Times of the writes of a file since some position, in seconds."""

    began: float
    start: int = 0
    waited: float = 0.0
    writing: float = 0.0
    processor: float = 0.0

    def cost(self, position: int) -> WritingCost:
        """Return the cost until now, at another position."""
        return WritingCost(
            waited_seconds=self.waited,
            writing_seconds=self.writing,
            processor_seconds=self.processor,
            all_seconds=time.perf_counter() - self.began,
            byte_count=position - self.start,
        )


def _after(views: list[memoryview], written: int) -> list[memoryview]:
    """Return what is left of memory to write in order, after its first `written` bytes.

    >>> [bytes(view) for view in _after([memoryview(b"ab"), memoryview(b"cde")], 3)]
    [b'de']
    """
    for number, view in enumerate(views):
        if written < len(view):
            return [view[written:], *views[number + 1 :]]
        written -= len(view)
    return []


def _new_buffer() -> NDArray[np.uint8]:
    """Return page-aligned memory, which direct writes require."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.frombuffer(mmap.mmap(-1, BUFFER_BYTES), np.uint8)
    # Shared memory, the default, has no huge pages.
    memory = mmap.mmap(-1, BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
