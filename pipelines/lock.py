"""How one process holds a folder, so that a second run stays away: a lock that the kernel lets go of with its holder.

The lock is on the folder itself, so that nothing is left behind, whichever way the holder ended. Where the file
system knows no such locks (some network file systems) nothing is held, and two runs must be kept apart by whoever
starts them. An object store's folders are leased (halofeed.pipelines.lease).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halofeed.schemas.errors import JobError

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


def _holder(folder: str) -> str:
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


@contextmanager
def held(folder: str) -> Iterator[str | None]:
    """Hold a folder; a local one is there. Gives the word by which an object store's holder is known, else None.

    Raises:
        JobError: another run holds it; it is named.
    """
    if folder.startswith(("s3://", "gs://")):
        from halofeed.pipelines.lease import leased

        with leased(folder) as token:
            yield token
        return
    try:
        descriptor = None if "://" in folder else try_lock(folder)
    except BlockingIOError as error:
        raise JobError(
            f"{folder}: {_holder(folder)} is converting into it; wait until that has ended, or take another "
            "--name or --version"
        ) from error
    try:
        yield None
    finally:
        if descriptor is not None:
            os.close(descriptor)
