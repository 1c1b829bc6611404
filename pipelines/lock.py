"""How one conversion holds the folder that it writes, so that a second one stays away.

A local folder is locked (halofeed.schemas.lock), one of an object store is leased (halofeed.pipelines.lease).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from halofeed.schemas.lock import FolderLock


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
    lock = FolderLock("is converting into", "take another --name or --version")
    if "://" not in folder:
        lock.take(folder)
    try:
        yield None
    finally:
        lock.release()
