"""What makes files outlive a power cut, and two folders change places in one step.

A rename is on the disk once its folder is synced, a file's content once the file is; in any other order a folder may
name files of zero bytes after a power cut (fsync(2), rename(2)).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable
from typing import Final

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

_NOT_KNOWN_HERE: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""What file systems answer that know no syncing, and no exchange."""
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def sync(paths: Iterable[str]) -> None:
    """Return once the content of these local files and folders is on the disk, in this order.

    Raises:
        OSError: the disk refused, or one of them cannot be opened.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync_descriptor(descriptor)
        except OSError as error:
            if error.errno not in _NOT_KNOWN_HERE:
                raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(descriptor)


def _sync_descriptor(descriptor: int) -> None:
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        # macOS's fsync stops at the drive's own cache.
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, full_sync)
            return
    os.fsync(descriptor)


def sync_tree(folder: str | os.PathLike[str]) -> None:
    """Return once all below a local folder, itself and its name are on the disk; OSError as `sync`."""
    for above, _, names in os.walk(folder, topdown=False):
        sync([*(os.path.join(above, name) for name in names), above])
    sync([os.path.dirname(os.path.abspath(folder))])


def exchange(one: str, other: str) -> bool:
    """Have two local paths of one file system change places, so that each is there at every moment.

    Returns:
        False where the system or the file system knows no such step (renameat2, Linux 3.15), or one of the two is a
        mount point; nothing was changed.

    Raises:
        OSError: any other failure.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if not renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in (*_NOT_KNOWN_HERE, errno.EXDEV, errno.EBUSY, errno.EPERM):
        return False
    raise OSError(number, os.strerror(number), one, None, other)
