"""Where a data set lies that is looked at: a folder of this machine, or an address that the loader's stores read."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from halofeed.loader.store.base import HeldFile, Piece, ShardSource
from halofeed.loader.store.choose import CONCURRENT_READS
from halofeed.loader.store.remote import RemoteStore
from halofeed.schemas.errors import CorruptFileError
from halofeed.schemas.files import open_regular, read_regular
from halofeed.schemas.limits import LINE_BYTES
from halofeed.schemas.manifest import Manifest, Shard, read_manifest
from halofeed.schemas.shard_file import CURE, OpenFile, ShardFile, read_whole


class Place(Protocol):
    """The files of one data set; as text it is the folder or address."""

    def path(self, name: str) -> str:
        """A file's path or address, for messages."""
        ...

    def entries(self) -> Mapping[str, bool] | None:
        """The names of all that lies there, and whether each is a file; None where nobody can list them."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        ...

    def manifest(self) -> Manifest:
        """What the data set says of itself; errors as of `read_manifest`."""
        ...

    def read(self, name: str, most_bytes: int) -> bytes:
        """A file, but not more than so many bytes; OSError, FileNotFoundError where there is none."""
        ...

    def lines(self, name: str) -> Iterator[bytes]:
        """Each line of a file with its end; OSError, and CorruptFileError where one is longer than any is written."""
        ...

    def index(self, name: str, most_bytes: int) -> bytes:
        """As `read`, of a file that the manifest names; CorruptFileError where it cannot be read."""
        ...

    def source(self, shard: Shard) -> ShardSource:
        """What opens a shard, to read some records by place."""
        ...

    def in_order(self, shard: Shard) -> OpenFile:
        """A shard, to be read from its beginning to its end; CorruptFileError where it cannot be opened."""
        ...


def open_place(path: str | os.PathLike[str] | Place) -> Place:
    """The place of a path or an address; UsageError, MissingExtraError where nothing reads such addresses."""
    if not isinstance(path, str | os.PathLike):
        return path
    return _FarPlace(os.fspath(path)) if "://" in os.fspath(path) else _LocalPlace(Path(path))


class _LocalPlace:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def path(self, name: str) -> str:
        return str(self._folder / name)

    def entries(self) -> Mapping[str, bool]:
        return {entry.name: entry.is_file() for entry in sorted(self._folder.iterdir())}

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def manifest(self) -> Manifest:
        return read_manifest(self._folder)

    def read(self, name: str, most_bytes: int) -> bytes:
        return read_regular(self._folder / name, most_bytes)

    def lines(self, name: str) -> Iterator[bytes]:
        return lines_of(self._folder / name)

    def index(self, name: str, most_bytes: int) -> bytes:
        return read_whole(self._folder / name, most_bytes)

    def source(self, shard: Shard) -> ShardSource:
        return ShardFile(self._folder / shard.file)

    def in_order(self, shard: Shard) -> OpenFile:
        return ShardFile(self._folder / shard.file, shard.file).open()


class _FarPlace:
    def __init__(self, address: str) -> None:
        self._store = RemoteStore(address, CONCURRENT_READS)
        self._listed: Mapping[str, int] | None = None

    def __str__(self) -> str:
        return self._store.place

    def path(self, name: str) -> str:
        return f"{self._store.place}/{name}"

    def _sizes(self) -> Mapping[str, int] | None:
        if self._listed is None:
            self._listed = self._store.listed()
        return self._listed

    def entries(self) -> Mapping[str, bool] | None:
        sizes = self._sizes()
        return None if sizes is None else dict.fromkeys(sorted(filter(None, sizes)), True)

    def _size(self, name: str) -> int | None:
        sizes = self._sizes()
        return self._store.size(name) if sizes is None else sizes.get(name)

    def exists(self, name: str) -> bool:
        return self._size(name) is not None

    def manifest(self) -> Manifest:
        return self._store.manifest()

    def _bytes_of(self, name: str) -> int:
        size = self._size(name)
        if size is None:
            raise FileNotFoundError(self.path(name))
        return size

    def read(self, name: str, most_bytes: int) -> bytes:
        size = self._bytes_of(name)
        if size > most_bytes:
            raise OSError(f"expected at most {most_bytes:,} bytes, found {size:,}")
        return b"".join(self._pieces(name, size))

    def lines(self, name: str) -> Iterator[bytes]:
        pieces = self._pieces(name, self._bytes_of(name))
        with io.BufferedReader(_Pieces(pieces)) as lines:
            yield from _lines(lines, self.path(name))

    def index(self, name: str, most_bytes: int) -> bytes:
        try:
            return self.read(name, most_bytes)
        except OSError as error:
            what = "it is missing" if isinstance(error, FileNotFoundError) else str(error)
            raise CorruptFileError(f"{self.path(name)}: {what}; {CURE}") from error

    def _pieces(self, name: str, size: int) -> Iterator[Piece]:
        return self._store.pieces(
            Shard(file=name, records=0, bytes=size, crc32c=0, index_bytes=0, index_crc32c=0)
        )

    def source(self, shard: Shard) -> ShardSource:
        return self._store.source(shard)

    def in_order(self, shard: Shard) -> OpenFile:
        size = self._size(shard.file)
        if size is None:
            raise CorruptFileError(f"{shard.file}: it is missing")
        return _InOrder(
            shard.file, size, self._pieces(shard.file, min(size, shard.bytes)), self._store, shard
        )


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a stream."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces, self._left = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        out = memoryview(buffer).cast("B")
        size = min(len(out), len(self._left))
        out[:size], self._left = self._left[:size], self._left[size:]
        return size


class _InOrder(HeldFile):
    """A shard of a store whose bytes come ahead of who reads them in order; what lies behind is asked for again."""

    __slots__ = ("_coming", "_held", "_shard", "_start", "_store")

    def __init__(
        self, name: str, size: int, pieces: Iterator[Piece], store: RemoteStore, shard: Shard
    ) -> None:
        super().__init__(name, size)
        self._coming, self._store, self._shard = pieces, store, shard
        self._held: deque[memoryview] = deque()
        self._start = 0

    def read_into(self, buffers: Sequence[Any], offset: int, size: int) -> None:
        if offset < self._start:
            self._store.source(self._shard).open().read_into(buffers, offset, size)
            return
        while self._held and self._start + len(self._held[0]) <= offset:
            self._start += len(self._held.popleft())
        at, end = offset, self._start + sum(map(len, self._held))
        for buffer in buffers:
            out = memoryview(buffer).cast("B")
            while len(out):
                while end <= at:
                    # A copy, as a piece holds until the next is asked for.
                    piece = memoryview(bytes(next(self._coming, b"")))
                    if not len(piece):
                        raise CorruptFileError(
                            f"{self.name}: it ends at byte {end:,}, and more belongs to it"
                        )
                    if end <= offset and not self._held and end + len(piece) <= offset:
                        self._start = end = end + len(piece)
                        continue
                    self._held.append(piece)
                    end += len(piece)
                begin = self._start
                for piece in self._held:
                    if at < begin + len(piece):
                        some = piece[at - begin : at - begin + len(out)]
                        out[: len(some)] = some
                        out, at = out[len(some) :], at + len(some)
                        break
                    begin += len(piece)


def lines_of(file: Path) -> Iterator[bytes]:
    """Each line of a regular file with its end.

    Raises:
        OSError: it cannot be read.
        CorruptFileError: a line is longer than any that is written.
    """
    with open_regular(file) as stream, io.BufferedReader(stream) as lines:
        yield from _lines(lines, str(file))


def _lines(lines: IO[bytes], name: str) -> Iterator[bytes]:
    number = 0
    while line := lines.readline(LINE_BYTES + 1):
        number += 1
        if len(line) > LINE_BYTES:
            raise CorruptFileError(f"{name}: line {number} is longer than {LINE_BYTES:,} bytes")
        yield line
