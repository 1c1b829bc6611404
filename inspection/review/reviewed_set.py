"""The records of a data set as a review sees them: columns of the indexes, and single records."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_files import DatasetFiles, open_files, open_manifest
from halofeed.inspection.review.suspects import RecordPlace
from halofeed.inspection.stored_records import StoredShard, text_of
from halofeed.prep.voxels.copy_groups import MOST_COMPARED
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.tfexample import Decoded


@dataclass(frozen=True, kw_only=True, eq=False)
class _PlacedShard:
    """A shard: its split, the number of its first record in that split, and of all records."""

    split: str
    first_of_split: int
    first: int
    shard: Shard


class ReviewedSet:
    """Random access to the records of all splits, numbered in the order of the manifest.

    Args:
        path: folder or address of the data set's version.
        most_compared: pairs of pictures whose pixels the search for copies compares at most.

    Attributes:
        not_searched: what the searches of this set left out, and why; they add to it.
        watch: called with the number of each record that is read; None to call nothing.
    """

    def __init__(
        self, path: str | os.PathLike[str] | DatasetFiles, most_compared: int = MOST_COMPARED
    ) -> None:
        self.most_compared = most_compared
        self.files = open_files(path)
        self.manifest: Manifest = open_manifest(self.files)
        self._opened: dict[str, StoredShard] = {}
        self._shards: list[_PlacedShard] = []
        first = 0
        for split, content in self.manifest.splits.items():
            begin = first
            for shard in content.shards:
                self._shards.append(
                    _PlacedShard(split=split, first_of_split=first - begin, first=first, shard=shard)
                )
                first += shard.records
        self.records = first
        self.not_searched: list[str] = []
        self.watch: Callable[[int], None] | None = None

    def __len__(self) -> int:
        return self.records

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """Return the example id of each record, int64 [record]."""
        return np.concatenate([np.empty(0, np.int64), *(self._stored(one).index.ids for one in self._shards)])

    @cached_property
    def split_numbers(self) -> NDArray[np.int64]:
        """Return the number of each record's split in the order of the manifest, int64 [record]."""
        counts = [split.records for split in self.manifest.splits.values()]
        return np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def signatures(self) -> NDArray[np.int64]:
        """Return the signature of each record, int64 [record, word]; zeros where the index has none."""
        columns = [self._stored(one).index.signatures for one in self._shards]
        words = max((column.shape[1] for column in columns if column is not None), default=0)
        found = np.zeros((len(self), words), np.int64)
        for one, column in zip(self._shards, columns, strict=True):
            if column is not None:
                found[one.first : one.first + len(column), : column.shape[1]] = column
        return found

    def measure(self, name: str) -> NDArray[np.float64]:
        """Return a measure of each record, float64 [record]; NaN where the index has none."""
        found = np.full(len(self), np.nan)
        for one in self._shards:
            column = self._stored(one).index.measures.get(name)
            if column is not None:
                found[one.first : one.first + len(column)] = column
        return found

    @cached_property
    def measure_names(self) -> tuple[str, ...]:
        """Return the names of the measures that some record has."""
        return tuple(sorted({name for one in self._shards for name in self._stored(one).index.measures}))

    def features(self, record: int) -> Decoded:
        """Read all values of a record; CorruptFileError if they are not what was written."""
        one, row = self._at(record)
        return self._stored(one).features(row)

    def small_features(self, record: int, names: frozenset[str]) -> Decoded:
        """Read the values of some keys of a record, which should be small."""
        one, row = self._at(record)
        return self._stored(one).small_features(row, names)

    def content(self, record: int) -> bytes:
        """Return bytes that are equal for records with equal stored images; b"" where nothing shows that."""
        one, row = self._at(record)
        index = self._stored(one).index
        if (sums := index.raw_checksums.get(keys.ENCODED)) is not None:
            return bytes(sums[row].tobytes())
        digest = text_of(self.small_features(record, frozenset({keys.KEY_SHA256})), keys.KEY_SHA256)
        return (digest or "").encode()

    def label_content(self, record: int) -> bytes:
        """Return bytes that are equal for records with equal stored label maps; b"" where nothing shows that."""
        one, row = self._at(record)
        sums = self._stored(one).index.raw_checksums.get(keys.LABEL)
        return b"" if sums is None else bytes(sums[row].tobytes())

    def place(self, record: int) -> RecordPlace:
        """Return the split, number, id and source of a record."""
        source = text_of(self.small_features(record, frozenset({keys.FILENAME})), keys.FILENAME)
        return replace(self.place_of(record), source=source or "")

    def place_of(self, record: int) -> RecordPlace:
        """Return the split, number and id of a record without reading it; its source is ""."""
        one, row = self._at(record)
        identity = int(self._stored(one).index.ids[row])
        return RecordPlace(split=one.split, number=one.first_of_split + row, id=identity, source="")

    def number_of(self, place: RecordPlace) -> int | None:
        """Return the number of a record among those of all splits; None if there is no such record."""
        first, count = self._splits.get(place.split, (0, 0))
        return first + place.number if 0 <= place.number < count else None

    @cached_property
    def _splits(self) -> dict[str, tuple[int, int]]:
        """Return the number of the first record of each split, and the number of its records."""
        counts = [split.records for split in self.manifest.splits.values()]
        firsts = np.cumsum([0, *counts])[:-1].tolist()
        return dict(zip(self.manifest.splits, zip(firsts, counts, strict=True), strict=True))

    def _at(self, record: int) -> tuple[_PlacedShard, int]:
        if self.watch is not None:
            self.watch(record)
        firsts = self._firsts
        one = self._shards[int(np.searchsorted(firsts, record, side="right")) - 1]
        return one, record - one.first

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        return np.array([one.first for one in self._shards], np.int64)

    def _stored(self, one: _PlacedShard) -> StoredShard:
        if one.shard.file not in self._opened:
            self._opened[one.shard.file] = StoredShard(self.files, one.shard)
        return self._opened[one.shard.file]
