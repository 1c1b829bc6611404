"""A split in memory: read once, checked as it comes, and looked at from then on by this process and those it forks."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.store.base import Held, HeldFile, Store, Wrapped, checked_pieces
from halofeed.schemas.errors import CorruptFileError, UsageError
from halofeed.schemas.manifest import Shard
from halofeed.schemas.memory import available_memory
from halofeed.schemas.shard_file import CURE
from halofeed.schemas.sizes import human_bytes


class MemoryStore(Wrapped):
    """The shards of a split in memory; all else as in the store that they come from.

    Memory: the shards' bytes, once for a process and all that it forks; nobody can shorten or change them.

    Args:
        base: where they are.
        shards: of the split.

    Raises:
        UsageError: there is not so much memory; nothing was read.
        CorruptFileError, StoreError: a shard cannot be read, or its checksum is not the manifest's.
    """

    fetches = looks_ahead = reads_ahead = False
    is_checked = True
    attempts = 1

    def __init__(self, base: Store, shards: Sequence[Shard]) -> None:
        super().__init__(base)
        needed, memory = sum(shard.bytes for shard in shards), available_memory()
        if needed > memory:
            raise UsageError(
                f"cache='memory': the split's shards are {human_bytes(needed)}, and there are {human_bytes(memory)} "
                "of free memory; take cache='disk:/a/folder', or leave it out"
            )
        self._memory = {shard.file: self._read(shard) for shard in shards}

    def source(self, shard: Shard) -> Held:
        opened = MemoryFile(f"{self.place}/{shard.file}", self._memory[shard.file])
        return Held(lambda: opened)

    def _read(self, shard: Shard) -> NDArray[np.uint8]:
        """All of a shard, uint8 [bytes], read-only."""
        for left in reversed(range(self._base.attempts)):
            memory = _allocate(shard.bytes)
            try:
                done = 0
                for piece in checked_pieces(self._base, shard):
                    memory[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
                    done += len(piece)
                break
            except CorruptFileError:
                if not left:
                    raise
                self._base.forget(shard.file, 0, shard.bytes)
        memory.flags.writeable = False
        return memory


class MemoryFile(HeldFile):
    """A shard's bytes in memory."""

    __slots__ = ("_memory",)

    def __init__(self, name: str, memory: NDArray[np.uint8]) -> None:
        super().__init__(name, len(memory))
        self._memory = memory

    def look(self) -> NDArray[np.uint8]:
        """All bytes, as they lie there."""
        return self._memory

    def read_into(self, buffers: Sequence[Any], offset: int, size: int) -> None:
        if offset + size > self.bytes:
            raise CorruptFileError(
                f"{self.name}: it ends at byte {self.bytes:,}, and {size:,} bytes from byte {offset:,} on are "
                f"wanted; {CURE}"
            )
        for buffer in buffers:
            target = np.frombuffer(buffer, np.uint8)
            np.copyto(target, self._memory[offset : offset + len(target)])
            offset += len(target)


def _allocate(size: int) -> NDArray[np.uint8]:
    """Zeros, in pages of their own that forked processes share as long as nobody writes."""
    if not size:
        return np.zeros(0, np.uint8)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        pages = mmap.mmap(-1, size, flags=private)
    except OSError as error:
        raise UsageError(
            f"cache='memory': {human_bytes(size)} are not to be had: {error.strerror}; take cache='disk:/a/folder', "
            "or leave it out"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
