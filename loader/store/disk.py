"""Disk cache: shards staged on a local disk, as far as they fit, for all processes of a machine and later runs.

    folder/
      .lock                            held by the process that makes room
      cards-1.0.0-<manifest's hash>/   each conversion has its own folder
        cards-train.tfrecord-...       complete and checked: renamed to this name when its content is on the disk
        ...part                        being written by the holder of the lock, or left by a killed process
        ...lock                        its modification time is the shard's last use

One thread stages the requested shards. Until a shard is staged, it is read from its original place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from halofeed.loader.store.dataset_store import ShardSource, Store, StoreWrapper, checked_pieces
from halofeed.loader.store.local_store import LocalStore
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.shard_file import OpenFile, ShardFile, close_idle
from halofeed.storage.atomic_files import create_file, fsync_paths, open_owned_file
from halofeed.storage.paths import names_in, open_path, paths_in
from halofeed.system.console import human_bytes
from halofeed.system.errors import CorruptFileError, HalofeedError, StoreError, SystemLimitError, UsageError
from halofeed.system.wording import plural

PART, LOCK = ".part", ".lock"
_FOLDER = re.compile(r".+-\d+\.\d+\.\d+-[0-9a-f]{16}")
_SHARD = re.compile(r".+\.tfrecord-\d{5}-of-\d{5}(\.part)?")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_held: set[int] = set()
_stores: weakref.WeakSet[DiskStore] = weakref.WeakSet()


class DiskStore(StoreWrapper):
    """The shards of a split, staged in a folder; everything else as in the store that they come from.

    Args:
        base: the store to read the shards from.
        manifest: the data set's manifest.
        shards: the split's shards.
        folder: the cache folder; several data sets and processes may share it.
        max_bytes: bound for everything in the folder; None is the disk's free space. The least recently used shards
            are deleted first, but none that a loader of this process uses. Shards that do not fit are not staged.

    Raises:
        UsageError: the folder cannot be created or written to, or the largest shard can never fit.
    """

    is_checked = False

    def __init__(
        self, base: Store, manifest: Manifest, shards: Sequence[Shard], folder: Path, max_bytes: int | None
    ) -> None:
        super().__init__(base)
        self.fetches = self.has_windows = self.is_prefetching = base.fetches
        self.attempts = max(2, base.attempts)
        self._root, self._most = folder, max_bytes
        key = hashlib.sha256(manifest.to_json().encode()).hexdigest()[:16]
        self.folder = folder / f"{manifest.name}-{manifest.version}-{key}"
        largest = max((shard.bytes for shard in shards), default=0)
        if max_bytes is not None and max_bytes < largest:
            raise UsageError(
                f"cache_bytes {max_bytes:,}: the split's largest shard has {plural(largest, 'byte')}; "
                "allow more, or leave "
                "cache out"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self._root / LOCK):
                pass
        except OSError as error:
            raise UsageError(
                f"cache='disk:{folder}': {error.strerror or error}; name a folder of a local disk"
            ) from error
        self._shards = {shard.file: shard for shard in shards}
        self._staging_retries = 0
        self._thread: threading.Thread | None = None
        self._failed: SystemLimitError | None = None
        self.reset_after_fork()
        self.staged: set[str] = {shard.file for shard in shards if self._is_complete(shard)}
        _stores.add(self)

    @property
    def retries(self) -> int:
        return self._base.retries + self._staging_retries

    def path(self, name: str) -> Path:
        """Return the path of a staged shard."""
        return self.folder / name

    def source(self, shard: Shard) -> StagedShard:
        return StagedShard(self, shard, self._base.source(shard))

    def invalidate(self, name: str, start: int, stop: int) -> None:
        shard = self._shards.get(name)
        if shard is None or name not in self.staged:
            self._base.invalidate(name, start, stop)
        # The cache is at fault only if its copy is damaged; otherwise the record is wrong at its origin too.
        elif not self._is_intact(shard):
            with self._lock:
                self._staging_retries += 1
            self.drop(name)
            self.path(name).unlink(missing_ok=True)
        close_idle()  # a deleted file may still be open

    def drop(self, name: str) -> None:
        """Note that a shard is not staged any more, because it is gone or wrong."""
        with self._lock:
            self.staged.discard(name)
            self._requested.discard(name)

    def request(self, shard: Shard) -> None:
        """Request that a shard is staged.

        Raises:
            SystemLimitError: an earlier request failed, for example because the disk is full.
        """
        if self._failed is not None:
            raise self._failed
        with self._lock:
            if shard.file in self._requested:
                return
            self._requested.add(shard.file)
            self._waiting.append(shard)
            # A new thread after each pause, so that an idle loader has none.
            if self._thread is None:
                # The end of the process may stop this daemon thread at any time.
                self._thread = threading.Thread(
                    target=_stage_all, args=(weakref.ref(self),), name="halofeed-staging", daemon=True
                )
                self._thread.start()

    def next(self) -> Shard | None:
        """Return the next shard to stage; None ends the staging thread."""
        with self._lock:
            if self._waiting and self._failed is None:
                return self._waiting.popleft()
            self._thread = None
            return None

    def stage(self, shard: Shard) -> None:
        """Stage a shard, unless another process did so or only shards in use could make room for it."""
        try:
            with _locked(self.path(shard.file + LOCK)):
                # Another process may have staged it while this one waited for the lock.
                if self._is_complete(shard) or self._write(shard):
                    self.touch(shard.file)
                    self.staged.add(shard.file)
        except OSError as error:
            cure = "make room or allow fewer cache_bytes" if error.errno in _NO_ROOM else "check the disk"
            self._failed = SystemLimitError(
                f"{self.path(shard.file)}: {os.strerror(error.errno or 0)}; {human_bytes(shard.bytes)} cannot be "
                f"staged there: {cure}, or use another cache"
            )

    def touch(self, name: str) -> None:
        """Record a shard's use in its lock file; the shard's own time must stay, because it reveals changes."""
        with contextlib.suppress(OSError):
            os.utime(self.path(name + LOCK))

    def reset_after_fork(self) -> None:
        """Initialize the thread and lock of this process; a forked process stages shards itself."""
        self._lock = threading.Lock()
        self._waiting: deque[Shard] = deque()
        self._requested: set[str] = set()
        self._thread = None

    def _is_complete(self, shard: Shard) -> bool:
        try:
            return self.path(shard.file).stat().st_size == shard.bytes
        except OSError:
            return False

    def _is_intact(self, shard: Shard) -> bool:
        """Return whether a staged shard's size and checksum are the manifest's."""
        if not self._is_complete(shard):
            return False
        try:
            for _ in checked_pieces(LocalStore(self.folder), shard):
                pass
        except CorruptFileError:
            return False
        return True

    def _write(self, shard: Shard) -> bool:
        """Copy and check a shard; False if there is no room or the original cannot be read."""
        part = self.path(shard.file + PART)
        try:
            descriptor = self._reserve(part, shard.bytes)
            if descriptor is None:
                return False
            with open_path(descriptor, "wb", buffering=0) as stream:
                for piece in checked_pieces(self._base, shard):
                    left = memoryview(piece)
                    while left:
                        left = left[stream.write(left) :]
            fsync_paths([str(part)])
            os.replace(part, self.path(shard.file))
            fsync_paths([str(self.folder)])
        except (CorruptFileError, StoreError):
            # Reading the original raises an error that names the record.
            part.unlink(missing_ok=True)
            return False
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return True

    def _reserve(self, part: Path, size: int) -> int | None:
        """Return the descriptor of a new file with reserved disk space; None if the bound leaves no room."""
        with _locked(self._root / LOCK):
            part.unlink(missing_ok=True)
            self._sweep()
            while self._most is not None and self._used() + size > self._most:
                if not self._evict():
                    return None
            descriptor = create_file(part, 0o644)
            try:
                while size:
                    try:
                        os.posix_fallocate(descriptor, 0, size)
                        break
                    except OSError as error:
                        # Without a limit the disk may be full; then the oldest shards are deleted.
                        if error.errno not in _NO_ROOM or not self._evict():
                            raise
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor

    def _used(self) -> int:
        """Return the bytes of all staged shards, including those being written."""
        return sum(found.st_size for _, found in _files(self._root))

    def _evict(self) -> bool:
        """Delete the least recently used shard that no loader of this process uses; False if there is none."""
        used = {store.path(name) for store in list(_stores) for name in set(store.staged)}
        idle = [
            (_last_use(path, found), path)
            for path, found in _files(self._root)
            if path.suffix != PART and path not in used
        ]
        if not idle:
            return False
        min(idle)[1].unlink(missing_ok=True)
        return True

    def _sweep(self) -> None:
        """Delete the unfinished files of killed processes."""
        for path, _ in list(_files(self._root)):
            if path.suffix == PART:
                with contextlib.suppress(OSError), _locked(path.with_suffix(LOCK), wait=False):
                    path.unlink(missing_ok=True)


class StagedShard:
    """A shard that is read from the cache once it is staged, and from its original place before."""

    def __init__(self, store: DiskStore, shard: Shard, base: ShardSource) -> None:
        self._store, self._shard, self._base = store, shard, base
        self._file = ShardFile(store.path(shard.file))

    def open(self) -> OpenFile:
        name = self._shard.file
        if name in self._store.staged:
            try:
                opened = self._file.open()
            except CorruptFileError:
                self._store.drop(name)  # another process deleted it to make room
            else:
                if not opened.checked:
                    self._store.touch(name)
                return opened
        self._store.request(self._shard)
        return self._base.open()

    def close(self) -> None:
        self._file.close()
        self._base.close()


def _stage_all(reference: weakref.ref[DiskStore]) -> None:
    """Stage requested shards until there are none, or the store is garbage-collected."""
    while (store := reference()) is not None and (shard := store.next()) is not None:
        with contextlib.suppress(HalofeedError):
            store.stage(shard)
        del store


def _files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the shards below the folder, complete or being written: files with a shard's name and a lock file."""
    for folder in paths_in(root):
        # Only files whose names and lock files halofeed makes are counted and deleted.
        if _FOLDER.fullmatch(folder.name) and not folder.is_symlink():
            names = set(names_in(folder))
            for name in names:
                if f"{name.removesuffix(PART)}{LOCK}" in names and _SHARD.fullmatch(name):
                    with contextlib.suppress(OSError):
                        yield folder / name, (folder / name).lstat()


def _last_use(path: Path, found: os.stat_result) -> int:
    try:
        return path.with_name(path.name + LOCK).stat().st_mtime_ns
    except OSError:
        return found.st_mtime_ns


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a file's exclusive lock; OSError if another process holds it and `wait` is False.

    The system releases the lock when the process ends in any way.
    """
    descriptor = open_owned_file(path, os.O_RDWR, 0o644)
    try:
        _held.add(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        _held.discard(descriptor)
        with contextlib.suppress(OSError):
            fcntl.flock(
                descriptor, fcntl.LOCK_UN
            )  # closing is not enough if a forked process has the descriptor too
        os.close(descriptor)


def _after_fork() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()
    for store in list(_stores):
        store.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork)
