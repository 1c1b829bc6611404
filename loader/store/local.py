"""A data set's files on local disk, which needs none of the means that others need."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from halofeed.loader.store.base import PIECE_BYTES, Item, Piece, Result, Span
from halofeed.schemas.errors import CorruptFileError
from halofeed.schemas.layout import index_file
from halofeed.schemas.limits import INDEX_BYTES
from halofeed.schemas.manifest import Manifest, Shard, read_manifest
from halofeed.schemas.shard_file import CURE, ShardFile, read_whole


class LocalStore:
    """The files of a folder; see `halofeed.loader.store.base.Store`."""

    fetches = False
    is_checked = False
    attempts = 1
    threads = 1
    retries = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = str(folder)

    def manifest(self) -> Manifest:
        return read_manifest(self._folder)

    def check_sizes(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            self._check_size(shard.file, shard.bytes)
            self._check_size(index_file(shard.file), shard.index_bytes)

    def read(self, name: str, size: int) -> bytes:
        self._check_size(name, size)
        return read_whole(self._folder / name, min(size, INDEX_BYTES))

    def pieces(self, shard: Shard) -> Iterator[Piece]:
        opened, memory = self.source(shard).open(), memoryview(bytearray(min(PIECE_BYTES, shard.bytes)))
        for start in range(0, shard.bytes, PIECE_BYTES):
            piece = memory[: shard.bytes - start]
            opened.read_into((piece,), start, len(piece))
            yield piece

    def source(self, shard: Shard) -> ShardFile:
        return ShardFile(self._folder / shard.file)

    def settled(self, name: str) -> bool:
        return True

    def each(self, act: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return [act(item) for item in items]

    def expect(self, key: bytes, spans: Callable[[], list[Span]]) -> None:
        pass

    def window(
        self, key: bytes, spans: Callable[[], list[Span]]
    ) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def forget(self, name: str, start: int, stop: int) -> None:
        pass

    def _check_size(self, name: str, size: int) -> None:
        path = self._folder / name
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            raise CorruptFileError(f"{path}: it is missing, and the manifest names it; {CURE}") from None
        except OSError as error:
            raise CorruptFileError(f"{path}: cannot be read: {error.strerror or error}; {CURE}") from error
        if found != size:
            raise CorruptFileError(f"{path}: expected {size:,} bytes, found {found:,}; {CURE}")
