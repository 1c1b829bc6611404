"""How one process holds a folder, so that a second writer stays away: a lock that ends with its holder.

The lock is on the folder itself, so that nothing is left behind, whichever way the holder ended. Where the file
system knows no such locks (some network file systems) nothing is held, and two writers must be kept apart by whoever
starts them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halofeed.errors import JobError

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]


def try_lock(folder: str | Path) -> int | None:
    """The descriptor that holds the folder, to be closed; None where there are no locks.

    Raises:
        BlockingIOError: another holds it.
    """
    if fcntl is None:
        return None
    while True:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another run may have put a new folder in its place meanwhile.
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
    """Holds local folders against other writers until it is released.

    Args:
        does: what another holder does, for the message, such as "training".
        cure: what to do then.
    """

    def __init__(self, does: str, cure: str) -> None:
        self._does, self._cure = does, cure
        self._held: list[int] = []
        self._made: list[str] = []

    def take(self, folder: str | Path) -> None:
        """Hold a folder, which is there.

        Raises:
            JobError: another process holds it; it is named.
        """
        try:
            descriptor = try_lock(folder)
        except BlockingIOError as error:
            raise JobError(
                f"{folder}: {_holder(folder)} {self._does} it; wait until that has ended, or {self._cure}"
            ) from error
        if descriptor is not None:
            self._held.append(descriptor)

    def make(self, folder: str | Path) -> None:
        """Hold a folder that is made where it is not there; it goes at the release if it is empty still.

        Raises:
            JobError: as `take`.
        """
        while True:
            missing = [str(folder)] if not os.path.lexists(folder) else []
            os.makedirs(folder, exist_ok=True)
            try:
                self.take(folder)
            except FileNotFoundError:  # another process has made it and given it up
                continue
            self._made += missing
            return

    def release(self) -> None:
        """Let go of all that is held."""
        for folder in self._made:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        while self._held:
            os.close(self._held.pop())


@contextmanager
def holding(folder: str | Path, does: str, cure: str) -> Iterator[None]:
    """Hold a local folder, made where it is not there, within a block; JobError where another process holds it."""
    lock = FolderLock(does, cure)
    lock.make(folder)
    try:
        yield
    finally:
        lock.release()


def _holder(folder: str | Path) -> str:
    """Who holds the folder: `process 1234`, where this system's list of locks says it."""
    try:
        inode = str(os.stat(folder).st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and int(words[4]) > 0:
                return f"process {words[4]}"
    except (OSError, IndexError, ValueError):
        pass
    return "another process"
