"""Choice of the store for a path and a cache setting."""

from __future__ import annotations

import os
from pathlib import Path

from halofeed.errors import UsageError
from halofeed.loader.store.base import Store
from halofeed.loader.store.disk import DiskStore
from halofeed.loader.store.local import LocalStore, MemoryStore
from halofeed.loader.store.remote import RemoteStore
from halofeed.schemas.manifest import Manifest
from halofeed.system.addresses import address_of
from halofeed.system.arguments import whole_number

CONCURRENT_READS = 32


def open_store(path: str | os.PathLike[str], concurrent_reads: int = CONCURRENT_READS) -> Store:
    """Return the store of a local folder, or of an address with :// (see `Address`).

    Raises:
        MissingExtraError: the package that reads such addresses is not installed.
        UsageError: no package reads such addresses.
    """
    if (address := address_of(path)) is not None:
        return RemoteStore(address, concurrent_reads)
    return LocalStore(Path(path))


def cached(store: Store, manifest: Manifest, split: str, cache: str | None, most_bytes: int | None) -> Store:
    """Return a store of the same files, with the shards of a split in a cache.

    Args:
        store: the store to read from.
        manifest: the data set's manifest.
        split: name of the split.
        cache: "memory", "disk:/a/folder" or None.
        most_bytes: bound for everything in that folder.

    Raises:
        UsageError: the cache is not one of these, or is too small.
    """
    if cache is None and most_bytes is None:
        return store
    kind, _, folder = str(cache).partition(":")
    shards = manifest.split(split).shards
    if most_bytes is not None:
        most_bytes = _checked_bytes(most_bytes, kind)
    if cache == "memory":
        store.check_sizes(shards)
        return MemoryStore(store, shards)
    if kind == "disk" and folder:
        return DiskStore(store, manifest, shards, Path(folder).absolute(), most_bytes)
    # Whoever gave only a folder sees it in the cure.
    named = str(cache) if isinstance(cache, str | os.PathLike) and "/" in str(cache) else "/a/folder"
    raise UsageError(f"cache: expected None, 'memory' or 'disk:{named}', got {cache!r}")


def _checked_bytes(most_bytes: int, kind: str) -> int:
    most_bytes = whole_number("cache_bytes", most_bytes, 10**10)
    if kind != "disk" or most_bytes < 1:
        raise UsageError(f"cache_bytes {most_bytes}: expected 1 or more, and with cache='disk:/a/folder'")
    return most_bytes
