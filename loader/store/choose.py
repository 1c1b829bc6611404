"""Which store a path and a choice of cache mean."""

from __future__ import annotations

import os
from pathlib import Path

from halofeed.loader.store.base import Store
from halofeed.loader.store.local import LocalStore
from halofeed.loader.store.remote import RemoteStore

CONCURRENT_READS = 32


def open_store(path: str | os.PathLike[str], concurrent_reads: int = CONCURRENT_READS) -> Store:
    """Where a version's files are: a folder of this machine, or an address with ://.

    Raises:
        MissingExtraError: what reads such addresses is not installed.
        UsageError: nothing reads such addresses.
    """
    if "://" in os.fspath(path):
        return RemoteStore(str(path), concurrent_reads)
    return LocalStore(Path(path))
