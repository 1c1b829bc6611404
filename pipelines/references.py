"""Where references wait, below the output's temporary folder, from the plan until their shards are written.

    for a runner's shuffle    references-00000.jsonl, each of as many as come one after the other
    for this machine alone    references, in which each shard has its pieces, and references.npy, which says where

This machine's own runner would hold all that it shuffles in memory. So they are put in the order of their shards by the
one who lists them, a buffer at a time, and whoever writes a shard reads its pieces.
"""

from __future__ import annotations

import contextlib
import io
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import JobError
from halofeed.pipelines.job import ShardJob, ShardKey, reference_from_json
from halofeed.pipelines.storage import OutputFolder, TemporaryFile, naming_what_the_disk_lacks
from halofeed.prep.sources.reference import SourceExample
from halofeed.schemas.files import TEMPORARY_FOLDER
from halofeed.schemas.identity import example_id, shards_of
from halofeed.system.checksum import crc32c, with_checksum, without_checksum

REFERENCES_PER_FILE = 10_000
BUFFER_BYTES = 32 << 20
_BY_SHARD = f"{TEMPORARY_FOLDER}/references"
_PLACES = f"{TEMPORARY_FOLDER}/references.npy"


class NumberedFiles:
    """Writes references into files for a runner's shuffle; `count` is how many files there are, others' among them."""

    def __init__(self, output: OutputFolder) -> None:
        self._output = output
        self._lines: list[bytes] = []
        self.count = 0

    def add(self, split: str, identity: int, line: bytes) -> None:
        """Take one more reference, as text.

        Args:
            split: of the reference.
            identity: of its example.
        """
        self._lines.append(line)
        if len(self._lines) == REFERENCES_PER_FILE:
            self._write()

    def finish(self, splits: Sequence[str]) -> None:
        """Have all of them lie there.

        Args:
            splits: of the data set; a reference of no split among them goes to the first, as it is rejected.
        """
        if self._lines:
            self._write()

    def close(self) -> None:
        """Leave nothing behind that is not finished."""

    def _write(self) -> None:
        write_file(self._output, self.count, self._lines)
        self._lines, self.count = [], self.count + 1


class FileByShard:
    """Writes references into one local file, those of a shard in a few pieces; methods as of `NumberedFiles`."""

    count = 0

    def __init__(self, output: OutputFolder, shards: int) -> None:
        self._output, self._shards = output, shards
        self._lines: list[bytes] = []
        self._numbers, self._identities = array("q"), array("q")
        self._bytes = 0
        self._splits: dict[str, int] = {}
        self._places: list[np.ndarray] = []
        self._stack = contextlib.ExitStack()
        self._file: TemporaryFile | None = None

    def add(self, split: str, identity: int, line: bytes) -> None:
        self._numbers.append(self._splits.setdefault(split, len(self._splits)))
        self._identities.append(identity)
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > BUFFER_BYTES:
            with naming_what_the_disk_lacks(self._output.root):
                self._write()

    def _write(self) -> None:
        if self._file is None:
            self._file = self._stack.enter_context(self._output.temporary(_BY_SHARD))
        numbers = np.array(self._numbers) * self._shards + shards_of(np.array(self._identities), self._shards)
        order = np.argsort(numbers, kind="stable")
        pieces = np.flatnonzero(np.diff(numbers[order])) + 1
        places = []
        for some in np.split(order, pieces) if self._lines else ():
            piece = b"".join(self._lines[line] + b"\n" for line in some.tolist())
            places.append((numbers[some[0]], self._file.stream.tell(), len(piece), crc32c(piece)))
            self._file.stream.write(piece)
        self._places.append(np.array(places, np.int64).reshape(-1, 4))
        self._lines, self._numbers, self._identities, self._bytes = [], array("q"), array("q"), 0

    def finish(self, splits: Sequence[str]) -> None:
        with naming_what_the_disk_lacks(self._output.root):
            self._write()
            assert self._file is not None
            self._file.keep()
        places = np.concatenate(self._places)
        of_split = np.array([splits.index(one) if one in splits else 0 for one in self._splits], np.int64)
        split, shard = np.divmod(places[:, 0], self._shards)
        places[:, 0] = of_split[split] * self._shards + shard
        stream = io.BytesIO()
        np.save(stream, places[np.argsort(places[:, 0], kind="stable")])
        self._output.write(_PLACES, with_checksum(stream.getvalue()))

    def take_over(self, output: OutputFolder, count: int, splits: Sequence[str]) -> None:
        """Take the references of the first `count` numbered files of a folder, and finish."""
        with contextlib.closing(self):
            for number in range(count):
                for reference, line in read_file(output, number):
                    self.add(reference.split, example_id(reference.key), line)
            self.finish(splits)

    def close(self) -> None:
        self._stack.close()


def reference_file(number: int) -> str:
    """The name of one of the files for a shuffle."""
    return f"{TEMPORARY_FOLDER}/references-{number:05d}.jsonl"


def write_file(output: OutputFolder, number: int, lines: Sequence[bytes]) -> None:
    """Write one of the files for a shuffle."""
    output.write(reference_file(number), with_checksum(b"\n".join(lines)))


def read_file(output: OutputFolder, number: int) -> Iterator[tuple[SourceExample, bytes]]:
    """The references of one file, parsed and as they stand; JobError where they are not as they were written."""
    name = reference_file(number)
    with _naming(output.path(name)):
        data = without_checksum(output.read(name))
    for line in data.split(b"\n"):
        if line:
            yield reference_from_json(line.decode("utf-8", "surrogateescape")), line


def read_shard(job: ShardJob, key: ShardKey) -> list[bytes]:
    """The references of a shard of a job whose references lie by shard; JobError as of `read_file`."""
    assert job.references_folder is not None
    output = OutputFolder(job.references_folder)
    found = os.stat(output.path(_PLACES))
    places = _places(output.path(_PLACES), (found.st_ino, found.st_mtime_ns))
    first, last = np.searchsorted(places[:, 0], (job.number_of(key), job.number_of(key) + 1))
    lines: list[bytes] = []
    with output.open(_BY_SHARD) as stream:
        for _, start, size, checksum in places[first:last].tolist():
            stream.seek(start)
            piece = stream.read(size)
            if crc32c(piece) != checksum:
                raise _changed(output.path(_BY_SHARD))
            lines += piece.splitlines()
    return lines


@lru_cache(maxsize=1)
def _places(path: str, _: tuple[int, int]) -> NDArray[np.int64]:
    """Where the pieces lie, read once for all shards that this process writes."""
    with _naming(path), open(path, "rb") as stream:
        return np.asarray(np.load(io.BytesIO(without_checksum(stream.read()))))


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise _changed(path) from error


def _changed(path: str) -> JobError:
    return JobError(f"{path}: was changed after it was written; run the same command again")
