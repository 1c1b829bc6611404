"""Which store a path and a choice of cache mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from halofeed.loader.store.base import Store
from halofeed.loader.store.local import LocalStore
from halofeed.loader.store.memory import MemoryStore
from halofeed.loader.store.remote import RemoteStore
from halofeed.schemas.errors import UsageError
from halofeed.schemas.manifest import Shard

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


def cached(store: Store, cache: str | None, shards: Sequence[Shard]) -> Store:
    """A store of what another one has, with the shards of a split in a cache.

    Args:
        store: where they are.
        cache: "memory" or None.
        shards: of the split.

    Raises:
        UsageError: another cache, or one that has no room.
    """
    if cache is None:
        return store
    if cache == "memory":
        store.check_sizes(shards)
        return MemoryStore(store, shards)
    raise UsageError(f"cache: expected None or 'memory', got {cache!r}")
