"""What a place with a data set's files can do, wherever it is: `Store`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Protocol, TypeVar

from halofeed.errors import CorruptFileError
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.shard_file import CURE, OpenFile
from halofeed.system.checksum import crc32c

PIECE_BYTES = 8 << 20
"""What is read at a time of a shard that is read whole, and at most in one request."""

Span = tuple[str, int, int]
"""Bytes of a file: its name, the first byte, and the one after the last."""
Piece = bytes | bytearray | memoryview
Result = TypeVar("Result")
Item = TypeVar("Item")


class ShardSource(Protocol):
    """A shard that can be opened; `halofeed.schemas.shard_file.ShardFile` is one."""

    def open(self) -> OpenFile:
        """What reads it by place; errors as of `ShardFile.open`."""

    def close(self) -> None:
        """Let go of what is open."""


class Store(Protocol):
    """The files of one version of a data set; safe to use from several threads and after a fork.

    Attributes:
        place: the folder or address, for messages.
        fetches: whether bytes come over a network, so that those of a batch are asked for together.
        looks_ahead: whether `window` does anything.
        reads_ahead: whether `expect` does anything at present.
        attempts: how often a record is read whose bytes are not what they should be.
        threads: in how many threads rows are filled at least.
        retries: what had to be asked for again so far.
        is_checked: whether all bytes of shards were compared with the manifest's checksums.
    """

    place: str
    fetches: bool
    looks_ahead: bool
    attempts: int
    threads: int
    is_checked: bool

    @property
    def reads_ahead(self) -> bool: ...
    @property
    def retries(self) -> int: ...

    def manifest(self) -> Manifest:
        """What the data set says of itself; errors as of `read_manifest`."""

    def check_sizes(self, shards: Sequence[Shard]) -> None:
        """CorruptFileError where a shard or its index is missing or of another size."""

    def read(self, name: str, size: int) -> bytes:
        """A small file of that size; CorruptFileError where it has another."""

    def pieces(self, shard: Shard) -> Iterator[Piece]:
        """All bytes of a shard in order; each piece holds until the next is asked for."""

    def source(self, shard: Shard) -> ShardSource:
        """What opens a shard."""

    def each(self, act: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """`act` of every item, side by side where that saves waiting."""

    def expect(self, key: bytes, spans: Callable[[], list[Span]]) -> None:
        """Begin to fetch what `window` of that key will need."""

    def window(
        self, key: bytes, spans: Callable[[], list[Span]]
    ) -> contextlib.AbstractContextManager[object]:
        """While it is open the bytes of the spans are at hand, or on their way."""

    def forget(self, name: str, start: int, stop: int) -> None:
        """Have bytes that were found to be wrong read again."""


class StoreWrapper:
    """What a store is that has its files from another one; see `Store`.

    Attributes:
        staged: the names of shards whose bytes need not be fetched from there any more.
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

    def each(self, act: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return self._base.each(act, items)

    def expect(self, key: bytes, spans: Callable[[], list[Span]]) -> None:
        self._base.expect(key, lambda: self._far(spans()))

    def window(
        self, key: bytes, spans: Callable[[], list[Span]]
    ) -> contextlib.AbstractContextManager[object]:
        return self._base.window(key, lambda: self._far(spans()))

    def forget(self, name: str, start: int, stop: int) -> None:
        self._base.forget(name, start, stop)

    def pieces(self, shard: Shard) -> Iterator[Piece]:
        return self._base.pieces(shard)

    def _far(self, spans: list[Span]) -> list[Span]:
        return [span for span in spans if span[0] not in self.staged]


class HeldFile(OpenFile):
    """A shard that is no file of this machine, and that nobody else writes to while it is read."""

    __slots__ = ()

    def __init__(self, name: str, size: int) -> None:
        self.name, self.bytes, self.checked = name, size, True
        self.identity, self.stamp = (), ()

    def is_lost(self) -> bool:
        return False

    def is_unchanged(self, stamp: tuple[int, ...]) -> bool:
        return True


class RemoteShard:
    """A shard that needs no opening: `open` gives what reads it."""

    def __init__(self, open: Callable[[], HeldFile]) -> None:
        self.open = open

    def close(self) -> None:
        pass


def checked_pieces(store: Store, shard: Shard) -> Iterator[Piece]:
    """All bytes of a shard, whose checksum is compared at the end.

    Raises:
        CorruptFileError: it is not the manifest's.
    """
    checksum = 0
    for piece in store.pieces(shard):
        checksum = crc32c(piece, checksum)
        yield piece
    if checksum != shard.crc32c:
        raise CorruptFileError(f"{store.place}/{shard.file}: its checksum is not the manifest's; {CURE}")
