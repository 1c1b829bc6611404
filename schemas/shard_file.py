"""Reads at offsets of shard files, with a limited number of open files and without crashes on damaged files.

A read at an offset (`preadv`) of a shortened file, or of a failing disk, returns fewer bytes or an error. Repeated
copies use a memory map (`as_array`) where that is safe: it is twice as fast.

One cache holds the descriptors of the process and closes the least recently used one first. A reader keeps a reference
to its `OpenFile`, so that the descriptor is closed only after the last read.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from halofeed.storage.atomic_files import open_regular, read_regular
from halofeed.storage.mapped_files import MappedFile, is_guarded, map_file
from halofeed.system.errors import CorruptFileError, SystemLimitError

CURE = "run the same `halofeed convert` with --overwrite to rebuild it, or copy the data set again"
MAX_OPEN = 128
_LIMIT_DIVISOR = 8
"""The cache uses at most 1/8 of the files that the process may have open."""
_ATTEMPTS, _WAIT_SECONDS = 6, 0.01
_TICK_SECONDS = 0.02
"""Two ticks of the kernel's clock (at most 10 ms each). Two changes within one tick may have the same time stamp."""

Result = TypeVar("Result")
_tokens = itertools.count()
_cache: OrderedDict[int, OpenFile] = OrderedDict()
"""Open files of this process by the token of their `ShardFile`, the least recently used one first."""
_lock = threading.Lock()


def max_open() -> int:
    """Return the number of files that the cache keeps open: a part of the current limit, at most `MAX_OPEN`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN if limit == resource.RLIM_INFINITY else max(1, min(MAX_OPEN, limit // _LIMIT_DIVISOR))


class OpenFile:
    """Open regular file; it is closed with the last reference to this object.

    Attributes:
        name: name of the file, for messages.
        checked: True once a reader has verified that it is the expected file.
        bytes: size of the file when it was opened.
        descriptor: file descriptor, valid as long as this object exists.
        identity: equal for two openings of one unchanged file.
        stamp: size and times of the last known change, see `is_unchanged`.

    Raises:
        OSError: as `open_regular`.
    """

    is_transferred = False
    """True if every read transfers the bytes again, so that readers prefetch and check them each time."""

    __slots__ = (
        *("_bytes", "_mapped", "_stream"),
        *("bytes", "checked", "descriptor", "identity", "name", "stamp"),
    )

    def __init__(self, path: Path | str, name: str) -> None:
        self._stream = open_regular(path)
        self.descriptor = self._stream.fileno()
        self.name, self.checked = name, False
        status = self._settled_status()
        self.bytes, self.stamp = status.st_size, _stamp(status)
        self.identity = (status.st_dev, status.st_ino, *self.stamp)
        self._mapped: MappedFile | None = None
        self._bytes: NDArray[np.uint8] | None = None

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        # Modules may already be empty when the interpreter ends.
        with suppress(AttributeError, OSError):
            self._stream.close()

    def read_into(self, buffers: Sequence[Any], offset: int, size: int) -> None:
        """Fill writable buffers of `size` bytes in total with the bytes from `offset` on.

        Raises:
            CorruptFileError: the file is too short or cannot be read; the message names it.
        """
        try:
            done = os.preadv(self.descriptor, buffers, offset)
            if done != size:
                self._read_rest(buffers, offset, size, done)
        except OSError as error:
            raise CorruptFileError(
                f"{self.name}: cannot be read at byte {offset:,}: {error.strerror or error}; {CURE}"
            ) from error

    def begin(self, first: int, spans: Callable[[], Sequence[tuple[str, int, int]]]) -> None:
        """Announce the read of a record by its first byte and its spans; local files ignore it."""

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Announce the read of these byte ranges [start, stop); local files ignore it."""

    def as_array(self) -> NDArray[np.uint8] | None:
        """Return all bytes as a memory map, uint8 [bytes]; None if they must be read with `read_into`.

        The reader calls `is_lost` after it has used them.
        """
        if self._mapped is None:
            self._mapped = map_file(self.descriptor, self.bytes)
            self._bytes = None if self._mapped is None else np.asarray(self._mapped)
        elif self._mapped.lost or not is_guarded():
            return None
        # A file that was shortened within its last page has zeros there, without a fault.
        return self._bytes if os.fstat(self.descriptor).st_size >= self.bytes else None

    def is_lost(self) -> bool:
        """Return True if zeros replaced some bytes of the memory map."""
        return self._mapped is not None and self._mapped.lost

    def is_unchanged(self, stamp: tuple[int, ...]) -> bool:
        """Return True if the file has not changed since `stamp` was copied from the attribute, before a read.

        A read during a change may return neither the old nor the new bytes, without an error. After False, the reader
        must read again with the new stamp.
        """
        if _stamp(os.fstat(self.descriptor)) == stamp == self.stamp:
            return True
        self.stamp = _stamp(self._settled_status())
        return False

    def _settled_status(self) -> os.stat_result:
        """Return the file's status, once a further change would get a different time stamp."""
        for _ in range(_ATTEMPTS):
            status = os.fstat(self.descriptor)
            age = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns)
            if not 0 <= age < _TICK_SECONDS * 1e9:  # below 0: the clock of another machine is ahead
                break
            time.sleep(_TICK_SECONDS)
        return status

    def read(self, offset: int, size: int) -> memoryview:
        """Return a copy of `size` bytes from `offset` on."""
        data = bytearray(size)
        self.read_into([data], offset, size)
        return memoryview(data)

    def _read_rest(self, buffers: Sequence[Any], offset: int, size: int, done: int) -> None:
        """Read the rest after `done` bytes: one call reads less than 2 GiB, and some file systems return less."""
        before = 0  # bytes of the buffers before the current one
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while done < before + len(view):
                count = os.preadv(self.descriptor, [view[done - before :]], offset + done)
                if not count:
                    raise CorruptFileError(
                        f"{self.name}: it ends at byte {offset + done:,}, and {size:,} bytes from byte {offset:,} on "
                        f"belong to it: it was shortened; {CURE}"
                    )
                done += count
            before += len(view)


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


class ShardFile:
    """File that is opened when it is read; the cache may close and open it again between reads.

    It is safe to use from several threads and after a fork.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self._path = os.path.abspath(path)
        self._name = name or str(path)
        self._token = next(_tokens)

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        # Python may call this in any thread at any time, so it must not take a lock; `close` is one atomic step.
        with suppress(AttributeError, TypeError):
            self.close()

    def open(self) -> OpenFile:
        """Return the open file; the reader keeps the reference while it reads.

        Raises:
            CorruptFileError: the file is missing, cannot be opened, or is not a regular file.
            SystemLimitError: the process may not open another file.
        """
        with _lock:
            if (cached := _cache.get(self._token)) is not None:
                _cache.move_to_end(self._token)
                return cached
        # Without the lock, because a network file system may take seconds to open a file.
        opened = _retry_after_closing(lambda: OpenFile(self._path, self._name), self._name)
        limit = max_open()
        with _lock:
            cached = _cache.setdefault(self._token, opened)
            evicted = _evict(len(_cache) - limit)
        del evicted  # closes the files without the lock
        return cached

    def close(self) -> None:
        """Remove the file from the cache; `open` opens it again."""
        _cache.pop(self._token, None)


def read_small_file(path: Path | str, size: int) -> bytes:
    """Read a small file beside the shards of at most `size` bytes.

    Raises:
        CorruptFileError, SystemLimitError: as `ShardFile.open`.
    """
    return _retry_after_closing(lambda: read_regular(path, size), str(path))


def _retry_after_closing(open_file: Callable[[], Result], name: str) -> Result:
    """Call a function that opens a file; if the process has too many open files, close idle shards and retry."""
    for attempt in range(_ATTEMPTS):
        try:
            return open_file()
        except FileNotFoundError:
            raise CorruptFileError(f"{name}: it is missing; {CURE}") from None
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise CorruptFileError(
                    f"{name}: cannot be read: {error.strerror or error}; {CURE}"
                ) from error
        close_idle()
        # Another thread may soon release a file.
        time.sleep(attempt * _WAIT_SECONDS)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise SystemLimitError(
        f"{name}: cannot be opened, since this process has as many files open as it may ({limit:,}), none of them an "
        f"idle shard; allow more (`ulimit -n {max(4096, 4 * limit)}`), or close files that it holds open"
    )


def close_idle() -> None:
    """Close the files that no reader uses now; they are opened again when they are needed."""
    with _lock:
        evicted = _evict(len(_cache))
    del evicted


def _evict(count: int) -> list[tuple[int, OpenFile]]:
    """Remove the least recently used files from the cache; deleting the returned list closes them."""
    evicted = []
    with contextlib.suppress(KeyError):  # a deleted ShardFile may have removed its own entry meanwhile
        for _ in range(count):
            evicted.append(_cache.popitem(last=False))
    return evicted


def _renew_lock() -> None:
    # Another thread may have held the lock when the process forked; nothing would release it here.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
