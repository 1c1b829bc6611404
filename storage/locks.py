"""Locks on folders against a second writer; the system releases a lock when its process ends.

The lock is on the folder itself (flock), so a killed process leaves nothing behind. On file systems without such locks
(some network file systems) no lock is taken, and the user must not start two writers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halofeed.system.errors import JobError

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]


def try_lock(folder: str | Path) -> int | None:
    """Lock a folder and return the descriptor whose closing releases it; None where there are no locks.

    Raises:
        BlockingIOError: another process has locked it.
    """
    if fcntl is None:
        return None
    while True:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another run may have replaced the folder meanwhile.
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            raise
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)


class FolderLock:
    """Lock on local folders against other writers, until it is released.

    Args:
        does: words for the message about the other process, such as "is converting into".
        cure: advice for the message.
    """

    def __init__(self, does: str, cure: str) -> None:
        self._does, self._cure = does, cure
        self._descriptors: list[int] = []
        self._made: list[str] = []

    def take(self, folder: str | Path) -> None:
        """Lock an existing folder.

        Raises:
            JobError: another process has locked it; the message names the process.
        """
        try:
            descriptor = try_lock(folder)
        except BlockingIOError as error:
            raise JobError(
                f"{folder}: {_lock_owner(folder)} {self._does} it; wait until that has ended, or {self._cure}"
            ) from error
        if descriptor is not None:
            self._descriptors.append(descriptor)

    def make(self, folder: str | Path) -> None:
        """Lock a folder; make it if it is missing, and then delete it at the release if it is still empty.

        Raises:
            JobError: as `take`.
        """
        while True:
            # Only what this process makes is deleted at the release.
            missing = [str(folder)] if not os.path.lexists(folder) else []
            os.makedirs(folder, exist_ok=True)
            try:
                self.take(folder)
            except FileNotFoundError:  # another process has made and deleted it
                continue
            self._made += missing
            return

    def release(self) -> None:
        """Release all locks."""
        for folder in self._made:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        while self._descriptors:
            os.close(self._descriptors.pop())


@contextmanager
def locked_folder(folder: str | Path, does: str, cure: str) -> Iterator[None]:
    """Lock a local folder within a block, see `FolderLock.make`."""
    lock = FolderLock(does, cure)
    lock.make(folder)
    try:
        yield
    finally:
        lock.release()


def _lock_owner(folder: str | Path) -> str:
    """Return the owner of a folder's lock, such as `process 1234`, from the system's list of locks."""
    try:
        inode = str(os.stat(folder).st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and int(words[4]) > 0:
                return f"process {words[4]}"
    except (OSError, IndexError, ValueError):
        pass
    return "another process"
