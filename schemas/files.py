"""How the files of a folder that someone else may have made are opened: regular files alone, none without an end.

A pipe in place of a file would be waited for, a device read without end, and a file larger than memory read whole.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO

from halofeed.schemas.sizes import human_bytes

_MOST_AT_ONCE = 1 << 30
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike[str], most_bytes: int | None = None) -> FileIO:
    """A regular file, of at most `most_bytes`, as a stream of bytes without a buffer; links to one are followed.

    Raises:
        OSError: there is none, it may not be read, or it is a folder, a pipe, a device or a socket, as `strerror` says;
            none of them is waited for, or opened if it can be helped.
    """
    descriptor, _ = _opened(path, most_bytes)
    return open(descriptor, "rb", buffering=0)


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The bytes of a regular file of at most `most_bytes`, as many as its size says.

    Raises:
        OSError: as `open_regular`, and where it is larger, or somebody writes into it meanwhile.
    """
    descriptor, found = _opened(path, most_bytes)
    size = found.st_size
    try:
        if size > _MOST_AT_ONCE:
            # Filled piece by piece in one place: pieces put together would take the memory twice.
            with open(descriptor, "rb", closefd=False) as stream:
                data = stream.read(size) or b""
        else:
            data = os.read(descriptor, size) if size else b""
            while len(data) < size and (piece := os.read(descriptor, size - len(data))):
                data += piece
        now = os.fstat(descriptor)
        if (now.st_size, now.st_mtime_ns) != (size, found.st_mtime_ns):
            raise OSError(errno.EBUSY, "it was changed while it was read", os.fspath(path))
        return data
    finally:
        os.close(descriptor)


def _opened(path: str | os.PathLike[str], most_bytes: int | None) -> tuple[int, os.stat_result]:
    """The descriptor of a regular file, and what is known of it."""
    _check_regular(os.stat(path), path)  # before it is opened: opening a device may do something
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        _check_regular(found, path)
        if most_bytes is not None and found.st_size > most_bytes:
            message = f"it holds {human_bytes(found.st_size)}, and at most {human_bytes(most_bytes)} are read"
            raise OSError(errno.EFBIG, message, os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found


def _check_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(found.st_mode):
        message = f"it is {kind_of(found.st_mode)}; expected a regular file"
        raise OSError(errno.EINVAL, message, os.fspath(path))


def kind_of(mode: int) -> str:
    """What is no regular file, by its `st_mode`.

    >>> kind_of(os.stat("/dev/null").st_mode)
    'a device'
    """
    return _KINDS.get(stat.S_IFMT(mode), "no file")
