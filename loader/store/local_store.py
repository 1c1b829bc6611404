"""Local stores: a data set's files on local disk, read ahead if they are not cached, and a split in memory."""

from __future__ import annotations

import contextlib
import mmap
import resource
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.store.dataset_store import (
    PIECE_BYTES,
    HeldFile,
    Item,
    Piece,
    RemoteShard,
    Result,
    Span,
    Store,
    StoreWrapper,
    check_size,
    checked_pieces,
)
from halofeed.schemas.limits import INDEX_BYTES
from halofeed.schemas.manifest import Manifest, Shard, read_manifest
from halofeed.schemas.shard_file import CURE, ShardFile, read_small_file
from halofeed.storage.local import LocalDisk
from halofeed.storage.paths import advise_reads
from halofeed.system.console import human_bytes
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.memory import available_memory

_MAX_PREFETCHED = 8
"""Number of recent batches whose prefetch is not repeated."""
_COLD_BATCHES = 4
"""Number of batches that are prefetched after the last read from the disk; asking the system takes time."""


class LocalStore:
    """The files of a folder; see `halofeed.loader.store.dataset_store.Store`."""

    fetches = False
    has_windows = True
    is_checked = False
    attempts = 1
    threads = 1
    retries = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = str(folder)
        self._files = LocalDisk().at(self.place)
        self._cold_batches = _COLD_BATCHES
        self._prefetched: deque[bytes] = deque(maxlen=_MAX_PREFETCHED)
        self._disk_reads = _disk_reads()

    @property
    def is_prefetching(self) -> bool:
        return self._cold_batches > 0

    def manifest(self) -> Manifest:
        return read_manifest(self._folder)

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        found = self._files.stat(name)
        return None if found is None else found.size

    def listed(self) -> Mapping[str, int | None]:
        """Return the size in bytes of every file by name; None for what is no file."""
        return {name: size for name, size, _ in sorted(self._files.entries(deep=False))}

    def check_sizes(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            self._check_size(shard.file, shard.bytes)
            self._check_size(shard.index, shard.index_bytes)

    def read(self, name: str, size: int) -> bytes:
        self._check_size(name, size)
        return read_small_file(self._folder / name, min(size, INDEX_BYTES))

    def pieces(self, shard: Shard) -> Iterator[Piece]:
        opened, memory = self.source(shard).open(), memoryview(bytearray(min(PIECE_BYTES, shard.bytes)))
        for start in range(0, shard.bytes, PIECE_BYTES):
            piece = memory[: shard.bytes - start]
            opened.read_into((piece,), start, len(piece))
            yield piece

    def source(self, shard: Shard) -> ShardFile:
        return ShardFile(self._folder / shard.file)

    def for_each(self, act: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return [act(item) for item in items]

    def prefetch(self, key: bytes, spans: Callable[[], list[Span]]) -> None:
        # The system has this advice already.
        if key in self._prefetched:
            return
        self._prefetched.append(key)
        by_file: dict[str, list[tuple[int, int]]] = {}
        for name, start, stop in spans():
            by_file.setdefault(name, []).append((start, stop))
        for name, places in by_file.items():
            # This is only advice: the read itself reports a file's problems.
            with contextlib.suppress(OSError):
                advise_reads(self._folder / name, sorted(places))

    @contextlib.contextmanager
    def window(self, key: bytes, spans: Callable[[], list[Span]]) -> Iterator[None]:
        yield
        # Disk reads since the last batch, including prefetches, mean that the data is not cached.
        before, self._disk_reads = self._disk_reads, _disk_reads()
        self._cold_batches = _COLD_BATCHES if self._disk_reads > before else max(0, self._cold_batches - 1)

    def invalidate(self, name: str, start: int, stop: int) -> None:
        pass

    def _check_size(self, name: str, size: int) -> None:
        path = self._folder / name
        found: int | None = None
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            pass
        except OSError as error:
            raise CorruptFileError(f"{path}: cannot be read: {error.strerror or error}; {CURE}") from error
        check_size(str(path), found, size)


def _disk_reads() -> int:
    """Return a counter that grows when this process reads from the disk: by offset, ahead, or in a mapped file."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_inblock + used.ru_majflt


class MemoryStore(StoreWrapper):
    """The shards of a split in memory; everything else as in the store that they come from.

    Memory: the shards' bytes, once for a process and all that it forks; the memory cannot be modified.

    Args:
        base: the store to read the shards from.
        shards: the split's shards.

    Raises:
        UsageError: there is not enough memory; nothing was read.
        CorruptFileError, StoreError: a shard cannot be read, or its checksum is not the manifest's.
    """

    fetches = has_windows = is_prefetching = False
    is_checked = True
    attempts = 1

    def __init__(self, base: Store, shards: Sequence[Shard]) -> None:
        super().__init__(base)
        needed, memory = sum(shard.bytes for shard in shards), available_memory()
        if needed > memory:
            raise UsageError(
                f"cache='memory': the split's shards are {human_bytes(needed)}, and there are {human_bytes(memory)} "
                "of free memory; use cache='disk:/a/folder', or leave it out"
            )
        self._memory = {shard.file: self._read(shard) for shard in shards}

    def source(self, shard: Shard) -> RemoteShard:
        opened = MemoryFile(f"{self.place}/{shard.file}", self._memory[shard.file])
        return RemoteShard(lambda: opened)

    def _read(self, shard: Shard) -> NDArray[np.uint8]:
        """Read a complete shard, uint8 [bytes], read-only."""
        for attempts_left in reversed(range(self._base.attempts)):
            memory = _allocate(shard.bytes)
            try:
                done = 0
                for piece in checked_pieces(self._base, shard):
                    memory[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
                    done += len(piece)
                break
            except CorruptFileError:
                if not attempts_left:
                    raise
                # A transfer may have damaged it; a further one is made.
                self._base.invalidate(shard.file, 0, shard.bytes)
        memory.flags.writeable = False
        return memory


class MemoryFile(HeldFile):
    """A shard's bytes in memory; see `OpenFile`."""

    __slots__ = ("_memory",)

    def __init__(self, name: str, memory: NDArray[np.uint8]) -> None:
        super().__init__(name, len(memory))
        self._memory = memory

    def as_array(self) -> NDArray[np.uint8]:
        """Return all bytes."""
        return self._memory

    def read_into(self, buffers: Sequence[Any], offset: int, size: int) -> None:
        if offset + size > self.bytes:
            raise CorruptFileError(
                f"{self.name}: it ends at byte {self.bytes:,}, expected {size:,} bytes from byte {offset:,} on; {CURE}"
            )
        for buffer in buffers:
            target = np.frombuffer(buffer, np.uint8)
            np.copyto(target, self._memory[offset : offset + len(target)])
            offset += len(target)


def _allocate(size: int) -> NDArray[np.uint8]:
    """Return zeros in pages that forked processes share until someone writes."""
    if not size:
        return np.zeros(0, np.uint8)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        pages = mmap.mmap(-1, size, flags=private)
    except OSError as error:
        raise UsageError(
            f"cache='memory': {human_bytes(size)} cannot be allocated: {error.strerror}; use cache='disk:/a/folder', "
            "or leave it out"
        ) from error
    # Fewer page faults in random reads.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
