"""Access to the files of one data set, in a local folder or at an address of an object store or web server."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from halofeed.loader.store.dataset_store import HeldFile, Piece, ShardSource
from halofeed.loader.store.local_store import LocalStore
from halofeed.loader.store.open_store import CONCURRENT_READS
from halofeed.loader.store.remote_store import RemoteStore
from halofeed.prep.options.recipe import recipe_problems
from halofeed.schemas.file_layout import MANIFEST
from halofeed.schemas.limits import LINE_BYTES
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.shard_file import CURE, OpenFile, ShardFile, read_small_file
from halofeed.storage.atomic_files import open_regular, read_regular
from halofeed.system.addresses import address_of
from halofeed.system.errors import CorruptFileError, ManifestError

_PIECE_BYTES = 1 << 20


class DatasetFiles:
    """The files of one data set; `str` gives its folder or address."""

    def __init__(self, store: LocalStore | RemoteStore) -> None:
        self._store = store

    def __str__(self) -> str:
        return self._store.place

    def path(self, name: str) -> str:
        """Return the path or address of a file, for messages."""
        return str(Path(self._store.place, name))

    def entries(self) -> Mapping[str, bool] | None:
        """Map the name of each entry to whether it is a file; None if the server cannot list them."""
        return None if self._sizes is None else {name: size is not None for name, size in self._sizes.items()}

    @cached_property
    def _sizes(self) -> Mapping[str, int | None] | None:
        return self._store.listed()

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        return self._store.size(name) is not None if self._sizes is None else name in self._sizes

    def manifest(self) -> Manifest:
        """Read the manifest; errors as in `read_manifest`."""
        return self._store.manifest()

    def source(self, shard: Shard) -> ShardSource:
        """Return a source that reads records of a shard at any offset."""
        return self._store.source(shard)

    def read(self, name: str, max_bytes: int) -> bytes:
        """Read a file of at most `max_bytes`; FileNotFoundError if it is missing, else OSError."""
        return read_regular(self.path(name), max_bytes)

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield each line of a file with its line end; OSError, or CorruptFileError if a line is too long."""
        return read_lines(Path(self.path(name)))

    def index(self, name: str, max_bytes: int) -> bytes:
        """Read a file that the manifest names; CorruptFileError if it cannot be read."""
        return read_small_file(self.path(name), max_bytes)

    def in_order(self, shard: Shard) -> OpenFile:
        """Open a shard to read it from beginning to end; CorruptFileError if it cannot be opened."""
        return ShardFile(Path(self.path(shard.file)), shard.file).open()


class _RemoteFiles(DatasetFiles):
    """The files of one data set at an address, which are fetched in pieces, some ahead."""

    def path(self, name: str) -> str:
        return f"{self._store.place}/{name}"

    def _size(self, name: str) -> int | None:
        return self._store.size(name) if self._sizes is None else self._sizes.get(name)

    def read(self, name: str, max_bytes: int) -> bytes:
        return b"".join(self._read_pieces(name, max_bytes))

    def lines(self, name: str) -> Iterator[bytes]:
        return _split_lines(self._read_pieces(name), self.path(name))

    def index(self, name: str, max_bytes: int) -> bytes:
        try:
            return self.read(name, max_bytes)
        except OSError as error:
            what = "it is missing" if isinstance(error, FileNotFoundError) else str(error)
            raise CorruptFileError(f"{self.path(name)}: {what}; {CURE}") from error

    def in_order(self, shard: Shard) -> OpenFile:
        size = self._size(shard.file)
        if size is None:
            raise CorruptFileError(f"{shard.file}: it is missing")
        pieces = self._pieces(shard.file, min(size, shard.bytes))
        return _StreamedShard(shard.file, size, pieces, self._store.source(shard))

    def _read_pieces(self, name: str, max_bytes: int | None = None) -> Iterator[Piece]:
        size = self._size(name)
        if size is None:
            raise FileNotFoundError(self.path(name))
        if max_bytes is not None and size > max_bytes:
            raise OSError(f"expected at most {max_bytes:,} bytes, found {size:,}")
        return self._pieces(name, size)

    def _pieces(self, name: str, size: int) -> Iterator[Piece]:
        return self._store.pieces(
            Shard(file=name, index="", records=0, bytes=size, crc32c=0, index_bytes=0, index_crc32c=0)
        )


def open_files(path: str | os.PathLike[str] | DatasetFiles) -> DatasetFiles:
    """Return the files at a path or an address.

    Raises:
        UsageError, MissingExtraError: no installed client reads such addresses.
    """
    if isinstance(path, DatasetFiles):
        return path
    if (address := address_of(path)) is None:
        return DatasetFiles(LocalStore(Path(path)))
    return _RemoteFiles(RemoteStore(address, CONCURRENT_READS))


def open_manifest(path: str | os.PathLike[str] | DatasetFiles) -> Manifest:
    """Read the manifest of a data set that may come from a stranger.

    Raises:
        UsageError, ManifestError: as `read_manifest`; ManifestError also if a recipe option has an invalid value.
    """
    files = open_files(path)
    manifest = files.manifest()
    check_recipe(manifest, files.path(MANIFEST))
    return manifest


def check_recipe(manifest: Manifest, file: str) -> None:
    """Raise ManifestError that names each recipe option with an invalid value; `file` is the manifest's path."""
    problems = [(f"recipe.{name}"[:200], problem) for name, problem in recipe_problems(manifest.recipe)]
    if problems:
        raise ManifestError(file, problems)


class _StreamedShard(HeldFile):
    """A remote shard that is fetched ahead in order; reading backwards costs a new request."""

    __slots__ = ("_buffer", "_buffer_start", "_pieces", "_source")

    def __init__(self, name: str, size: int, pieces: Iterator[Piece], source: ShardSource) -> None:
        super().__init__(name, size)
        self._pieces, self._source = pieces, source
        self._buffer_start, self._buffer = 0, bytearray()

    def read_into(self, buffers: Sequence[Any], offset: int, size: int) -> None:
        if offset < self._buffer_start:
            self._source.open().read_into(buffers, offset, size)
            return
        self._discard_before(offset)
        while (end := self._buffer_start + len(self._buffer)) < offset + size:
            piece = next(self._pieces, b"")
            if not len(piece):
                raise CorruptFileError(f"{self.name}: it ends at byte {end:,}, expected more bytes")
            self._buffer += piece
            self._discard_before(offset)
        at = offset - self._buffer_start
        for buffer in buffers:
            out = memoryview(buffer).cast("B")
            out[:] = memoryview(self._buffer)[at : at + len(out)]
            at += len(out)

    def _discard_before(self, offset: int) -> None:
        count = min(offset - self._buffer_start, len(self._buffer))
        del self._buffer[:count]
        self._buffer_start += count


def read_lines(file: Path) -> Iterator[bytes]:
    """Yield each line of a regular file with its line end.

    Raises:
        OSError: the file cannot be read.
        CorruptFileError: a line is longer than any that halofeed writes.
    """
    with open_regular(file) as stream:
        yield from _split_lines(iter(lambda: stream.read(_PIECE_BYTES), b""), str(file))


def _split_lines(pieces: Iterable[Piece], name: str) -> Iterator[bytes]:
    number, rest = 1, b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in (*(line + b"\n" for line in lines), rest):
            if len(line) > LINE_BYTES:
                raise CorruptFileError(f"{name}: line {number} is longer than {LINE_BYTES:,} bytes")
            if line is not rest:
                yield line
                number += 1
    if rest:
        yield rest
