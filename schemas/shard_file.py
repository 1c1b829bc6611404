"""How a shard is read by place: with few files open at a time, and so that no fault of the file ends the process.

A read by place (`preadv`) of a file that was shortened, or whose disk fails, comes back short, or with an error. What
is copied out of a shard again and again is mapped as well (`look`), where that is safe: it is twice as fast.

One cache holds the descriptors of the whole process, the least recently used one given up first. Whoever reads holds on
to the `OpenFile`, so that a descriptor is closed when nobody reads from it any more.
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

from halofeed.errors import CorruptFileError, SystemLimitError
from halofeed.system.atomic_files import open_regular, read_regular
from halofeed.system.mapped_files import MappedFile, is_guarded, map_file

CURE = "run the same `halofeed convert` with --overwrite to rebuild it, or copy the data set again"
MOST_OPEN = 128
_SHARE_OF_LIMIT = 8
"""Of the files that the process may have open, halofeed keeps at most one in so many."""
_ATTEMPTS, _WAIT_SECONDS = 6, 0.01
_TICK_SECONDS = 0.02
"""Two changes within a tick of the kernel's clock, of 10 ms at most, may have the same time."""

Result = TypeVar("Result")
_tokens = itertools.count()
_recent: OrderedDict[int, OpenFile] = OrderedDict()
_lock = threading.Lock()


def most_open() -> int:
    """How many files the cache keeps open: a share of the limit that holds now, and `MOST_OPEN` at most."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if limit == resource.RLIM_INFINITY else max(1, min(MOST_OPEN, limit // _SHARE_OF_LIMIT))


class OpenFile:
    """An open regular file; it is closed when nobody holds this object.

    Attributes:
        name: of the file, for messages.
        checked: whether whoever opened it has found it to be the file that is meant.
        bytes: its size when it was opened.
        descriptor: the system's number of it, as long as this object lives.
        identity: equal for two openings of one file that nobody changed between them.
        stamp: of its last change, as far as is known; see `is_unchanged`.

    Raises:
        OSError: as `open_regular`.
    """

    is_transferred = False
    """Whether its bytes come again with each read, so that they are asked for beforehand and checked each time."""

    __slots__ = (
        *("_bytes", "_mapped", "_stream"),
        *("bytes", "checked", "descriptor", "identity", "name", "stamp"),
    )

    def __init__(self, path: Path | str, name: str) -> None:
        self._stream = open_regular(path)
        self.descriptor = self._stream.fileno()
        self.name, self.checked = name, False
        found = self._settled()
        self.bytes, self.stamp = found.st_size, _stamp(found)
        self.identity = (found.st_dev, found.st_ino, *self.stamp)
        self._mapped: MappedFile | None = None
        self._bytes: NDArray[np.uint8] | None = None

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        # Where the interpreter ends, modules are empty already.
        with suppress(AttributeError, OSError):
            self._stream.close()

    def read_into(self, buffers: Sequence[Any], offset: int, size: int) -> None:
        """Fill writable buffers, of `size` bytes together, with what stands from `offset` on.

        Raises:
            CorruptFileError: the file ends before, or cannot be read; names it.
        """
        try:
            got = os.preadv(self.descriptor, buffers, offset)
            if got != size:
                self._read_on(buffers, offset, size, got)
        except OSError as error:
            raise CorruptFileError(
                f"{self.name}: cannot be read at byte {offset:,}: {error.strerror or error}; {CURE}"
            ) from error

    def begin(self, first: int, spans: Callable[[], Sequence[tuple[str, int, int]]]) -> None:
        """A record is about to be read, whose first byte and spans are these."""

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """These bytes, from one to before another, are about to be read."""

    def look(self) -> NDArray[np.uint8] | None:
        """All of its bytes, uint8 [bytes], as they lie in memory; None where they are to be read by place.

        Whoever looked at them asks `is_lost` afterwards.
        """
        if self._mapped is None:
            self._mapped = map_file(self.descriptor, self.bytes)
            self._bytes = None if self._mapped is None else np.asarray(self._mapped)
        elif self._mapped.lost or not is_guarded():
            return None
        # Of a file that was shortened within its last page the rest are zeros, without a fault.
        return self._bytes if os.fstat(self.descriptor).st_size >= self.bytes else None

    def is_lost(self) -> bool:
        """Whether some of what was looked at were zeros in place of the file's bytes."""
        return self._mapped is not None and self._mapped.lost

    def is_unchanged(self, stamp: tuple[int, ...]) -> bool:
        """Whether the file is as it was when `stamp` was taken from the attribute, before something was read.

        What is read while a file is shortened and written again may be neither the old bytes nor the new ones, and no
        error. After False read again, from a new stamp.
        """
        if _stamp(os.fstat(self.descriptor)) == stamp == self.stamp:
            return True
        self.stamp = _stamp(self._settled())
        return False

    def _settled(self) -> os.stat_result:
        """The file's facts, once a further change would give it another time than the last one."""
        for _ in range(_ATTEMPTS):
            found = os.fstat(self.descriptor)
            age = time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns)
            if not 0 <= age < _TICK_SECONDS * 1e9:
                break
            time.sleep(_TICK_SECONDS)
        return found

    def read(self, offset: int, size: int) -> memoryview:
        """The `size` bytes from `offset` on, in memory of their own."""
        data = bytearray(size)
        self.read_into([data], offset, size)
        return memoryview(data)

    def _read_on(self, buffers: Sequence[Any], offset: int, size: int, done: int) -> None:
        """The rest, where one call gave `done` bytes: it gives less than 2 GiB, and some file systems stop early."""
        passed = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while done < passed + len(view):
                got = os.preadv(self.descriptor, [view[done - passed :]], offset + done)
                if not got:
                    raise CorruptFileError(
                        f"{self.name}: it ends at byte {offset + done:,}, and {size:,} bytes from byte {offset:,} on "
                        f"belong to it: it was shortened; {CURE}"
                    )
                done += got
            passed += len(view)


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


class ShardFile:
    """A file that is opened when it is read, and may be closed and opened again at any time in between.

    Safe to use from several threads and after a fork.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self._path = os.path.abspath(path)
        self._name = name or str(path)
        self._token = next(_tokens)

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        # Runs on any thread and at any moment, so no lock may be taken here; this is one step.
        with suppress(AttributeError, TypeError):
            self.close()

    def open(self) -> OpenFile:
        """The open file; whoever reads holds on to it.

        Raises:
            CorruptFileError: it is missing, cannot be opened, or is no regular file.
            SystemLimitError: the process may not open another file.
        """
        with _lock:
            if (found := _recent.get(self._token)) is not None:
                _recent.move_to_end(self._token)
                return found
        opened = _with_room(lambda: OpenFile(self._path, self._name), self._name)
        most = most_open()
        with _lock:
            found = _recent.setdefault(self._token, opened)
            given_up = _oldest(len(_recent) - most)
        del given_up
        return found

    def close(self) -> None:
        """Let go of the open file; `open` opens it again."""
        _recent.pop(self._token, None)


def read_whole(path: Path | str, size: int) -> bytes:
    """The bytes of a small file beside the shards, of at most `size` bytes.

    Raises:
        CorruptFileError, SystemLimitError: as `ShardFile.open`.
    """
    return _with_room(lambda: read_regular(path, size), str(path))


def _with_room(act: Callable[[], Result], name: str) -> Result:
    """What opens a file, with idle shards closed for it where the process may open no other."""
    for attempt in range(_ATTEMPTS):
        try:
            return act()
        except FileNotFoundError:
            raise CorruptFileError(f"{name}: it is missing; {CURE}") from None
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise CorruptFileError(
                    f"{name}: cannot be read: {error.strerror or error}; {CURE}"
                ) from error
        close_idle()
        # Another thread may be about to finish with one.
        time.sleep(attempt * _WAIT_SECONDS)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise SystemLimitError(
        f"{name}: cannot be opened, since this process has as many files open as it may ({limit:,}), none of them an "
        f"idle shard; allow more (`ulimit -n {max(4096, 4 * limit)}`), or close files that it holds open"
    )


def close_idle() -> None:
    """Close the files that nobody reads at this moment; they are opened again when they are needed."""
    with _lock:
        given_up = _oldest(len(_recent))
    del given_up


def _oldest(count: int) -> list[tuple[int, OpenFile]]:
    """Take so many out of the cache; they are closed when the list is dropped, which waits for no lock."""
    taken = []
    with contextlib.suppress(KeyError):  # a ShardFile that died meanwhile has taken out its own
        for _ in range(count):
            taken.append(_recent.popitem(last=False))
    return taken


def _renew_lock() -> None:
    # Another thread may have held the lock when the process forked; nobody would release it here.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
