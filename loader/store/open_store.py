"""Choice of the store for a path and a cache setting."""

from __future__ import annotations

import os
from pathlib import Path

from halofeed.loader.store.dataset_store import Store
from halofeed.loader.store.local_store import LocalStore, MemoryStore
from halofeed.schemas.manifest import Manifest
from halofeed.system.addresses import address_of
from halofeed.system.arguments import whole_number
from halofeed.system.errors import UsageError

CONCURRENT_READS = 32


def open_store(path: str | os.PathLike[str], concurrent_reads: int = CONCURRENT_READS) -> Store:
    """Return the store of a local folder, or of an address with :// (see `Address`).

    Raises:
        MissingExtraError: the package that reads such addresses is not installed.
        UsageError: no package reads such addresses.
    """
    if (address := address_of(path)) is not None:
        # Its HTTP client and TLS take a fifth of the import of a loader.
        from halofeed.loader.store.remote_store import RemoteStore

        return RemoteStore(address, concurrent_reads)
    return LocalStore(Path(path))


def cached(store: Store, manifest: Manifest, split: str, cache: str | None, max_bytes: int | None) -> Store:
    """Return a store of the same files, with the shards of a split in a cache.

    Args:
        store: the store to read from.
        manifest: the data set's manifest.
        split: name of the split.
        cache: "memory", "disk:/a/folder" or None.
        max_bytes: bound for everything in that folder.

    Raises:
        UsageError: the cache is not one of these, or is too small.
    """
    if cache is None and max_bytes is None:
        return store
    kind, _, folder = str(cache).partition(":")
    shards = manifest.split(split).shards
    if max_bytes is not None:
        max_bytes = _checked_bytes(max_bytes, kind)
    if cache == "memory":
        store.check_sizes(shards)
        return MemoryStore(store, shards)
    if kind == "disk" and folder:
        from halofeed.loader.store.disk import DiskStore

        return DiskStore(store, manifest, shards, Path(folder).absolute(), max_bytes)
    # If the user gave only a folder, the message shows it with disk:.
    named = str(cache) if isinstance(cache, str | os.PathLike) and "/" in str(cache) else "/a/folder"
    raise UsageError(f"cache: expected None, 'memory' or 'disk:{named}', got {cache!r}")


def _checked_bytes(max_bytes: int, kind: str) -> int:
    max_bytes = whole_number("cache_bytes", max_bytes, 10**10)
    if kind != "disk" or max_bytes < 1:
        raise UsageError(f"cache_bytes {max_bytes}: expected 1 or more, and with cache='disk:/a/folder'")
    return max_bytes
