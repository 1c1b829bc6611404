"""References between the plan and the writing of their shards, in files below the output's temporary folder.

    for a runner's shuffle    references-00000.jsonl and so on, in the order of the listing
    for a local run           references, with a few chunks for each shard, and references.npy, the index of the chunks

A local run does not shuffle, because a shuffle on one machine would hold all references in memory. Instead, the listing
process sorts the references by shard, one buffer at a time, and the writer of a shard reads its chunks.
"""

from __future__ import annotations

import contextlib
import heapq
import io
import json
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from halofeed.pipelines.earlier_version import AddedShards, EarlierVersion
from halofeed.pipelines.job import ShardJob, ShardKey, reference_from_json
from halofeed.pipelines.output_folder import OutputFolder, TemporaryFile, reporting_disk_errors
from halofeed.prep.sources.example import SourceExample
from halofeed.schemas.file_layout import SELECTION, TEMPORARY_FOLDER
from halofeed.schemas.identity import example_id, shards_of
from halofeed.storage.paths import open_path
from halofeed.storage.spill import SpillList
from halofeed.system.checksum import crc32c, with_checksum, without_checksum
from halofeed.system.errors import JobError

REFERENCES_PER_FILE = 10_000
REFERENCE_BUFFER_BYTES = 32 << 20
_MIXER = 0x9E3779B97F4A7C15
"""Odd multiplier (2**64 / golden ratio). Shards are chosen by ids, and a sample by the products is spread over them."""
_SELECTION = SELECTION.encode()
_STRIDE = 1 << 20
"""More than the shards of any split."""
_BY_SHARD = f"{TEMPORARY_FOLDER}/references"
_INDEX = f"{TEMPORARY_FOLDER}/references.npy"


class ReferenceWriter(Protocol):
    """Writer of references."""

    @property
    def count(self) -> int:
        """Return the number of numbered files, including those of other writers."""

    def add(self, split: str, identity: int, line: bytes) -> None:
        """Add a reference.

        Args:
            split: split of the reference.
            identity: id of its example.
            line: the reference as JSON.
        """

    def finish(self, splits: Sequence[str]) -> None:
        """Write the rest.

        Args:
            splits: splits of the data set; a rejected reference of another split counts to the first.
        """

    def close(self) -> None:
        """Free what the writer holds."""


class NumberedFiles:
    """Writer of references for a runner's shuffle."""

    def __init__(self, output: OutputFolder) -> None:
        self._output = output
        self._lines: list[bytes] = []
        self.count = 0

    def add(self, split: str, identity: int, line: bytes) -> None:
        self._lines.append(line)
        if len(self._lines) == REFERENCES_PER_FILE:
            self._write()

    def finish(self, splits: Sequence[str]) -> None:
        if self._lines:
            self._write()

    def close(self) -> None:
        """Do nothing; every file is complete."""

    def _write(self) -> None:
        write_file(self._output, self.count, self._lines)
        self._lines, self.count = [], self.count + 1


class SampledReferences:
    """Writer that passes a sample on to another writer: random references by their ids, the same in each run.

    Files that were left out on purpose, such as hidden ones, are not inputs, so no sample has them.

    Args:
        writer: receives the sample in the order of the references.
        limit: number of references. Splits are sampled in proportion, with at least one reference each.
    """

    def __init__(self, writer: ReferenceWriter, limit: int) -> None:
        self._writer, self._limit = writer, limit
        self._counts: Counter[str] = Counter()
        self._smallest: dict[str, list[tuple[int, int, int, bytes]]] = {}

    @property
    def count(self) -> int:
        return self._writer.count

    def add(self, split: str, identity: int, line: bytes) -> None:
        if _is_left_out(line):
            return
        # A heap per split keeps the `limit` smallest products; negative numbers put the largest of them first.
        entry = (-(identity * _MIXER % 2**64), -self._counts.total(), identity, line)
        self._counts[split] += 1
        kept = self._smallest.setdefault(split, [])
        if len(kept) < self._limit:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)

    def finish(self, splits: Sequence[str]) -> None:
        chosen, before = [], 0
        for split, kept in self._smallest.items():
            until = before + self._counts[split]
            # Rounding running totals, and not each share, makes the shares add up to the limit.
            ends = (round(self._limit * count / self._counts.total()) for count in (before, until))
            share, before = max(1, -next(ends) + next(ends)), until
            chosen += [(place, split, identity, line) for _, place, identity, line in sorted(kept)[-share:]]
        for _, split, identity, line in sorted(chosen, reverse=True):
            self._writer.add(split, identity, line)
        self._writer.finish(splits)

    def close(self) -> None:
        self._writer.close()


def _is_left_out(line: bytes) -> bool:
    """Return whether a reference is of a file that was left out on purpose."""
    if _SELECTION not in line:  # parsing each of a million lines would take seconds
        return False
    problem = reference_from_json(line.decode("utf-8", "surrogateescape")).problem
    return problem is not None and problem[0] == SELECTION


class FileByShard:
    """Writer of references into one local file by shard.

    Args:
        shards: number of shards of each split.
        earlier: version whose examples keep their shards; new ones are in further shards.

    Attributes:
        shard_counts: number of shards by split once it is finished; {} without an earlier version.
    """

    count = 0

    def __init__(self, output: OutputFolder, shards: int, earlier: EarlierVersion | None = None) -> None:
        self._output, self._shards, self._earlier = output, shards, earlier
        self._new: SpillList[tuple[str, int, bytes]] = SpillList()
        self._lines: list[bytes] = []
        self._numbers, self._identities = array("q"), array("q")
        self._kept_shards = array("q")
        self._bytes = 0
        self.shard_counts: dict[str, int] = {}
        self._splits: dict[str, int] = {}
        self._places: list[np.ndarray] = []
        self._stack = contextlib.ExitStack()
        self._file: TemporaryFile | None = None

    def add(self, split: str, identity: int, line: bytes) -> None:
        if self._earlier is None:
            self._append(split, identity, line)
            return
        shard = self._earlier.shard_of(split, identity, _source_of(line))
        if shard is None:
            self._new.add((split, identity, line))
        else:
            self._append(split, identity, line, shard)

    def _append(self, split: str, identity: int, line: bytes, shard: int = -1) -> None:
        """Add a reference to the buffer; its shard is by its id, or the one of an earlier version."""
        self._numbers.append(self._splits.setdefault(split, len(self._splits)))
        self._identities.append(identity)
        self._kept_shards.append(shard)
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > REFERENCE_BUFFER_BYTES:
            with reporting_disk_errors(self._output.root):
                self._write()

    def _write(self) -> None:
        if self._file is None:
            self._file = self._stack.enter_context(self._output.temporary(_BY_SHARD))
        # Splits are numbered as they come, because their final order is known only at the end (see `finish`).
        kept = np.array(self._kept_shards)
        shards = np.where(kept < 0, shards_of(np.array(self._identities), self._shards), kept)
        numbers = np.array(self._numbers) * _STRIDE + shards
        order = np.argsort(numbers, kind="stable")
        chunks = np.flatnonzero(np.diff(numbers[order])) + 1
        places = []
        for lines in np.split(order, chunks) if self._lines else ():
            chunk = b"".join(self._lines[line] + b"\n" for line in lines.tolist())
            places.append((numbers[lines[0]], self._file.stream.tell(), len(chunk), crc32c(chunk)))
            self._file.stream.write(chunk)
        self._places.append(np.array(places, np.int64).reshape(-1, 4))
        self._lines, self._bytes = [], 0
        self._numbers, self._identities, self._kept_shards = array("q"), array("q"), array("q")

    def _add_new(self, earlier: EarlierVersion, splits: Sequence[str]) -> None:
        """Add the references that the earlier version does not have, to shards behind its own."""
        added = AddedShards(earlier, self._shards)
        placed: SpillList[tuple[str, int, bytes, int | None]] = SpillList()
        for split, identity, line in self._new:
            shard = None
            if (
                split not in splits
            ):  # a rejected one, which counts in the first split, as in the earlier version
                split = splits[0]
                shard = earlier.shard_of(split, identity, _source_of(line))
            if shard is None:
                added.add(split)
            placed.add((split, identity, line, shard))
        for split, identity, line, shard in placed:
            self._append(split, identity, line, added.shard_of(split, identity) if shard is None else shard)
            if self._bytes > REFERENCE_BUFFER_BYTES:
                self._write()
        self.shard_counts = {split: added.shard_count(split) for split in splits}

    def finish(self, splits: Sequence[str]) -> None:
        with reporting_disk_errors(self._output.root):
            if self._earlier is not None:
                self._add_new(self._earlier, splits)
            self._write()
            assert self._file is not None
            self._file.keep()
        places = np.concatenate(self._places)
        # The data set lacks a split that has only rejected references; these count in the first split.
        of_split = np.array([splits.index(one) if one in splits else 0 for one in self._splits], np.int64)
        counts = [self.shard_counts.get(one, self._shards) for one in splits]
        firsts = np.cumsum([0, *counts[:-1]])
        split, shard = np.divmod(places[:, 0], _STRIDE)
        places[:, 0] = firsts[of_split[split]] + shard
        stream = io.BytesIO()
        np.save(stream, places[np.argsort(places[:, 0], kind="stable")])
        self._output.write(_INDEX, with_checksum(stream.getvalue()))

    def take_over(self, output: OutputFolder, count: int, splits: Sequence[str]) -> None:
        """Copy the references of the first `count` numbered files of a folder, and finish."""
        with contextlib.closing(self):
            for number in range(count):
                for reference, line in read_file(output, number):
                    self.add(reference.split, example_id(reference.key), line)
            self.finish(splits)

    def close(self) -> None:
        self._stack.close()


def _source_of(line: bytes) -> str:
    """Return the source of a reference."""
    return str(json.loads(line)["source"])


def reference_file(number: int) -> str:
    """Return the name of a file for a shuffle."""
    return f"{TEMPORARY_FOLDER}/references-{number:05d}.jsonl"


def write_file(output: OutputFolder, number: int, lines: Sequence[bytes]) -> None:
    """Write a file for a shuffle."""
    output.write(reference_file(number), with_checksum(b"\n".join(lines)))


def read_file(output: OutputFolder, number: int) -> Iterator[tuple[SourceExample, bytes]]:
    """Yield the references of one file, parsed and as JSON; raise JobError where the file was changed."""
    name = reference_file(number)
    with _reporting_changes(output.path(name)):
        data = without_checksum(output.read(name))
    for line in data.split(b"\n"):
        if line:
            yield reference_from_json(line.decode("utf-8", "surrogateescape")), line


def largest_first(job: ShardJob) -> list[ShardKey]:
    """Return the keys of all shards, those with most bytes of references first.

    Processes that take the next shard whenever they are free end at about the same time in this order. 96 volumes in 8
    shards, of 8 to 17 volumes each, end after 48 volumes in each of two processes instead of 50.
    """
    index, keys = _index_of(job), job.shard_keys()
    sizes = np.bincount(index[:, 0], index[:, 2], len(keys))
    return [keys[number] for number in np.argsort(-sizes, kind="stable").tolist()]


def _index_of(job: ShardJob) -> NDArray[np.int64]:
    """Return the index of the chunks of a job: number of the shard, offset, bytes and checksum."""
    assert job.references_folder is not None
    path = OutputFolder(job.references_folder).path(_INDEX)
    # The inode and the time distinguish the indexes of two conversions in one process.
    status = os.stat(path)
    return _read_index(path, (status.st_ino, status.st_mtime_ns))


def read_shard(job: ShardJob, key: ShardKey) -> list[bytes]:
    """Return the references of a shard from the file by shard; raise JobError where it was changed."""
    index = _index_of(job)
    assert job.references_folder is not None
    output = OutputFolder(job.references_folder)
    first, last = np.searchsorted(index[:, 0], (job.number_of(key), job.number_of(key) + 1))
    lines: list[bytes] = []
    with output.open(_BY_SHARD) as stream:
        for _, start, size, checksum in index[first:last].tolist():
            stream.seek(start)
            chunk = stream.read(size)
            if crc32c(chunk) != checksum:
                raise _changed_error(output.path(_BY_SHARD))
            lines += chunk.splitlines()
    return lines


@lru_cache(maxsize=1)
def _read_index(path: str, _: tuple[int, int]) -> NDArray[np.int64]:
    """Return the index of the chunks, read once for all shards that this process writes."""
    with _reporting_changes(path), open_path(path, "rb") as stream:
        return np.asarray(np.load(io.BytesIO(without_checksum(stream.read()))))


@contextmanager
def _reporting_changes(path: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise _changed_error(path) from error


def _changed_error(path: str) -> JobError:
    return JobError(f"{path}: was changed after it was written; run the same command again")
