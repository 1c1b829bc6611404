"""Store: the interface to a data set's files, local or remote, and helpers for its implementations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Protocol, TypeVar

from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.shard_file import CURE, OpenFile
from halofeed.system.checksum import crc32c
from halofeed.system.errors import CorruptFileError

PIECE_BYTES = 8 << 20
"""Size of a read while a complete shard is read, and the largest request."""

Span = tuple[str, int, int]
"""A byte range of a file: name, start, stop."""
Piece = bytes | bytearray | memoryview
Result = TypeVar("Result")
Item = TypeVar("Item")


class ShardSource(Protocol):
    """A shard that can be opened, such as `halofeed.schemas.shard_file.ShardFile`."""

    def open(self) -> OpenFile:
        """Return the open file; raise as `ShardFile.open`."""

    def close(self) -> None:
        """Close the file."""


class Store(Protocol):
    """The files of one version of a data set; safe to use from several threads and after a fork.

    Attributes:
        place: the folder or address, for messages.
        fetches: whether bytes come over a network, so that a batch's bytes are requested together.
        has_windows: whether `window` has an effect.
        is_prefetching: whether `prefetch` currently has an effect.
        attempts: number of reads of a record whose checksum is wrong.
        threads: minimum number of threads that fill rows.
        retries: number of repeated requests so far.
        is_checked: whether all bytes of shards were compared with the manifest's checksums.
    """

    place: str
    fetches: bool
    has_windows: bool
    attempts: int
    threads: int
    is_checked: bool

    @property
    def is_prefetching(self) -> bool: ...
    @property
    def retries(self) -> int: ...

    def manifest(self) -> Manifest:
        """Return the data set's manifest; raise as `read_manifest`."""

    def check_sizes(self, shards: Sequence[Shard]) -> None:
        """Raise CorruptFileError if a shard or its index is missing or has another size."""

    def read(self, name: str, size: int) -> bytes:
        """Return the content of a small file; CorruptFileError if its size differs."""

    def pieces(self, shard: Shard) -> Iterator[Piece]:
        """Yield all bytes of a shard in order; each piece is valid until the next one is requested."""

    def source(self, shard: Shard) -> ShardSource:
        """Return the source that opens a shard."""

    def for_each(self, act: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Call `act` with every item, concurrently if that saves waiting, and return the results."""

    def prefetch(self, key: bytes, spans: Callable[[], list[Span]]) -> None:
        """Begin to fetch the bytes that `window` with the same key needs."""

    def window(
        self, key: bytes, spans: Callable[[], list[Span]]
    ) -> contextlib.AbstractContextManager[object]:
        """Return a context in which the bytes of the spans are available or being fetched."""

    def invalidate(self, name: str, start: int, stop: int) -> None:
        """Discard bytes with a wrong checksum, so that they are read again."""


class StoreWrapper:
    """Base class of stores that read their files from another store; see `Store`.

    Attributes:
        staged: names of the shards that need not be fetched from the other store any more.
    """

    staged: Set[str] = frozenset()

    def __init__(self, base: Store) -> None:
        self._base, self.place, self.threads = base, base.place, base.threads

    @property
    def retries(self) -> int:
        return self._base.retries

    def manifest(self) -> Manifest:
        return self._base.manifest()

    def check_sizes(self, shards: Sequence[Shard]) -> None:
        self._base.check_sizes(shards)

    def read(self, name: str, size: int) -> bytes:
        return self._base.read(name, size)

    def for_each(self, act: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return self._base.for_each(act, items)

    def prefetch(self, key: bytes, spans: Callable[[], list[Span]]) -> None:
        self._base.prefetch(key, lambda: self._not_staged(spans()))

    def window(
        self, key: bytes, spans: Callable[[], list[Span]]
    ) -> contextlib.AbstractContextManager[object]:
        return self._base.window(key, lambda: self._not_staged(spans()))

    def invalidate(self, name: str, start: int, stop: int) -> None:
        self._base.invalidate(name, start, stop)

    def pieces(self, shard: Shard) -> Iterator[Piece]:
        return self._base.pieces(shard)

    def _not_staged(self, spans: list[Span]) -> list[Span]:
        return [span for span in spans if span[0] not in self.staged]


class HeldFile(OpenFile):
    """A shard that is not a local file and does not change while it is read."""

    __slots__ = ()

    def __init__(self, name: str, size: int) -> None:
        self.name, self.bytes, self.checked = name, size, True
        self.identity, self.stamp = (), ()

    def is_lost(self) -> bool:
        return False

    def is_unchanged(self, stamp: tuple[int, ...]) -> bool:
        return True


class RemoteShard:
    """A shard without a local file to open; `open` returns its reader."""

    def __init__(self, open: Callable[[], HeldFile]) -> None:
        self.open = open

    def close(self) -> None:
        pass


def check_size(file: str, found: int | None, size: int) -> None:
    """Compare the size of a file with the manifest's; None is a missing file.

    Raises:
        CorruptFileError: they differ.
    """
    if found is None:
        raise CorruptFileError(f"{file}: it is missing, and the manifest names it; {CURE}")
    if found != size:
        raise CorruptFileError(f"{file}: expected {size:,} bytes, found {found:,}; {CURE}")


def checked_pieces(store: Store, shard: Shard) -> Iterator[Piece]:
    """Yield all bytes of a shard, and verify its checksum at the end.

    Raises:
        CorruptFileError: the checksum is not the manifest's.
    """
    checksum = 0
    for piece in store.pieces(shard):
        checksum = crc32c(piece, checksum)
        yield piece
    if checksum != shard.crc32c:
        raise CorruptFileError(f"{store.place}/{shard.file}: its checksum is not the manifest's; {CURE}")
