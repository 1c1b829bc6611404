"""How the files of a data set that anyone may have made are opened, and what their records hold.

Where a data set lies that is looked at: a folder of this machine, or an address that the loader's stores read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from halofeed.errors import CorruptFileError, ManifestError
from halofeed.loader.store.base import HeldFile, Piece, ShardSource
from halofeed.loader.store.choose import CONCURRENT_READS
from halofeed.loader.store.remote import RemoteStore
from halofeed.prep.options.recipe import recipe_problems
from halofeed.schemas.files import MANIFEST
from halofeed.schemas.limits import LINE_BYTES
from halofeed.schemas.manifest import Manifest, Shard, read_manifest
from halofeed.schemas.shard_file import CURE, OpenFile, ShardFile, read_whole
from halofeed.system.addresses import Address, address_of
from halofeed.system.atomic_files import open_regular, read_regular

_PIECE_BYTES = 1 << 20


class Place:
    """The files of one data set in a folder of this machine; as text it is the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def path(self, name: str) -> str:
        """A file's path or address, for messages."""
        return str(self._folder / name)

    def entries(self) -> Mapping[str, bool] | None:
        """The names of all that lies there, and whether each is a file; None where nobody can list them."""
        return {entry.name: entry.is_file() for entry in sorted(self._folder.iterdir())}

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self._folder / name).exists()

    def manifest(self) -> Manifest:
        """What the data set says of itself; errors as of `read_manifest`."""
        return read_manifest(self._folder)

    def read(self, name: str, most_bytes: int) -> bytes:
        """A file, but not more than so many bytes; OSError, FileNotFoundError where there is none."""
        return read_regular(self._folder / name, most_bytes)

    def lines(self, name: str) -> Iterator[bytes]:
        """Each line of a file with its end; OSError, and CorruptFileError where one is longer than any is written."""
        return lines_of(self._folder / name)

    def index(self, name: str, most_bytes: int) -> bytes:
        """As `read`, of a file that the manifest names; CorruptFileError where it cannot be read."""
        return read_whole(self._folder / name, most_bytes)

    def source(self, shard: Shard) -> ShardSource:
        """What opens a shard, to read some records by place."""
        return ShardFile(self._folder / shard.file)

    def in_order(self, shard: Shard) -> OpenFile:
        """A shard, to be read from its beginning to its end; CorruptFileError where it cannot be opened."""
        return ShardFile(self._folder / shard.file, shard.file).open()


class _FarPlace(Place):
    """The same at an address."""

    def __init__(self, address: Address) -> None:
        self._store = RemoteStore(address, CONCURRENT_READS)

    def __str__(self) -> str:
        return self._store.place

    def path(self, name: str) -> str:
        return f"{self._store.place}/{name}"

    @cached_property
    def _sizes(self) -> Mapping[str, int] | None:
        return self._store.listed()

    def entries(self) -> Mapping[str, bool] | None:
        return None if self._sizes is None else dict.fromkeys(sorted(filter(None, self._sizes)), True)

    def _size(self, name: str) -> int | None:
        return self._store.size(name) if self._sizes is None else self._sizes.get(name)

    def exists(self, name: str) -> bool:
        return self._size(name) is not None

    def manifest(self) -> Manifest:
        return self._store.manifest()

    def read(self, name: str, most_bytes: int) -> bytes:
        return b"".join(self._whole(name, most_bytes))

    def lines(self, name: str) -> Iterator[bytes]:
        return _lines(self._whole(name), self.path(name))

    def index(self, name: str, most_bytes: int) -> bytes:
        try:
            return self.read(name, most_bytes)
        except OSError as error:
            what = "it is missing" if isinstance(error, FileNotFoundError) else str(error)
            raise CorruptFileError(f"{self.path(name)}: {what}; {CURE}") from error

    def _whole(self, name: str, most_bytes: int | None = None) -> Iterator[Piece]:
        size = self._size(name)
        if size is None:
            raise FileNotFoundError(self.path(name))
        if most_bytes is not None and size > most_bytes:
            raise OSError(f"expected at most {most_bytes:,} bytes, found {size:,}")
        return self._pieces(name, size)

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
        pieces = self._pieces(shard.file, min(size, shard.bytes))
        return _InOrder(shard.file, size, pieces, self._store.source(shard))


def open_place(path: str | os.PathLike[str] | Place) -> Place:
    """The place of a path or an address; UsageError, MissingExtraError where nothing reads such addresses."""
    if isinstance(path, Place):
        return path
    address = address_of(path)
    return Place(Path(path)) if address is None else _FarPlace(address)


def open_manifest(path: str | os.PathLike[str] | Place) -> Manifest:
    """The manifest of a data set, which anyone may have made.

    Raises:
        UsageError, ManifestError: as `read_manifest`; the latter also where an option is not of its kind.
    """
    place = open_place(path)
    manifest = place.manifest()
    check_recipe(manifest, place.path(MANIFEST))
    return manifest


def check_recipe(manifest: Manifest, where: str) -> None:
    """Refuse a manifest whose recipe holds what no option can; ManifestError names each."""
    problems = [(f"recipe.{name}"[:200], problem) for name, problem in recipe_problems(manifest.recipe)]
    if problems:
        raise ManifestError(where, problems)


class _InOrder(HeldFile):
    """A shard of a store whose bytes come ahead of who reads them in order; what lies behind is asked for again."""

    __slots__ = ("_coming", "_held", "_source", "_start")

    def __init__(self, name: str, size: int, pieces: Iterator[Piece], source: ShardSource) -> None:
        super().__init__(name, size)
        self._coming, self._source = pieces, source
        self._start, self._held = 0, bytearray()

    def read_into(self, buffers: Sequence[Any], offset: int, size: int) -> None:
        if offset < self._start:
            self._source.open().read_into(buffers, offset, size)
            return
        self._pass(offset)
        while (end := self._start + len(self._held)) < offset + size:
            piece = next(self._coming, b"")
            if not len(piece):
                raise CorruptFileError(f"{self.name}: it ends at byte {end:,}, and more belongs to it")
            self._held += piece
            self._pass(offset)
        at = offset - self._start
        for buffer in buffers:
            out = memoryview(buffer).cast("B")
            out[:] = memoryview(self._held)[at : at + len(out)]
            at += len(out)

    def _pass(self, offset: int) -> None:
        """Let go of what lies before."""
        passed = min(offset - self._start, len(self._held))
        del self._held[:passed]
        self._start += passed


def lines_of(file: Path) -> Iterator[bytes]:
    """Each line of a regular file with its end.

    Raises:
        OSError: it cannot be read.
        CorruptFileError: a line is longer than any that is written.
    """
    with open_regular(file) as stream:
        yield from _lines(iter(lambda: stream.read(_PIECE_BYTES), b""), str(file))


def _lines(pieces: Iterable[Piece], name: str) -> Iterator[bytes]:
    number, begun = 1, b""
    for piece in pieces:
        *lines, begun = (begun + piece).split(b"\n")
        for line in (*(line + b"\n" for line in lines), begun):
            if len(line) > LINE_BYTES:
                raise CorruptFileError(f"{name}: line {number} is longer than {LINE_BYTES:,} bytes")
            if line is not begun:
                yield line
                number += 1
    if begun:
        yield begun
