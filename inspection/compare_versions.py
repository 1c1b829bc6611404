"""Comparison of two versions: options, classes, statistics, rejects, and the examples that differ.

Shards of equal checksums are skipped, then records of equal checksums in the indexes; only the others are read. All are
read where the number of a class of label images means another class now.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.compare_records import RecordPair, compare_records, keeps_numbers, source_of
from halofeed.inspection.dataset_files import DatasetFiles, open_files, open_manifest
from halofeed.inspection.stored_records import StoredShard
from halofeed.inspection.version_difference import (
    ComparedVersion,
    ExampleChange,
    ValueChange,
    VersionDifference,
)
from halofeed.schemas import keys
from halofeed.schemas.kinds import with_current_option_names
from halofeed.schemas.lineage import lineage_of
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.system.errors import UsageError


def compare_versions(
    earlier: str | os.PathLike[str] | DatasetFiles, later: str | os.PathLike[str] | DatasetFiles
) -> VersionDifference:
    """Compare two versions of a data set, or two data sets.

    Raises:
        UsageError: one of them is no data set, or the kinds of their images differ.
        CorruptFileError: a shard or an index that must be read is damaged.
    """
    first, second = open_files(earlier), open_files(later)
    before, after = open_manifest(first), open_manifest(second)
    if before.kind != after.kind:
        raise UsageError(
            f"{first} holds {before.kind.name}s and {second} {after.kind.name}s; compare two versions of one data set"
        )
    shared = _shared_shards(before, after)
    pair = _Pair(
        first=first,
        second=second,
        before=before,
        after=after,
        shared=shared,
        classes=same_classes(before.labels, after.labels),
    )
    return VersionDifference(
        earlier=_facts_of(first, before),
        later=_facts_of(second, after),
        shards=(sum(len(split.shards) for split in after.splits.values()), shared.total()),
        facts=tuple(_changes(_manifest_facts(before), _manifest_facts(after))),
        options=tuple(_changes(*map(with_current_option_names, (before.recipe, after.recipe)))),
        classes=tuple(
            _changes(*({str(key): one.labels[key] for key in one.labels} for one in (before, after)))
        ),
        statistics=tuple(_changes(_figures(before), _figures(after))),
        rejected=tuple(_changes(before.rejected, after.rejected)),
        examples=tuple(pair.examples()),
    )


def _facts_of(files: DatasetFiles, manifest: Manifest) -> ComparedVersion:
    return ComparedVersion(
        name=manifest.name,
        version=manifest.version,
        folder=str(files),
        records=sum(split.records for split in manifest.splits.values()),
    )


def _manifest_facts(manifest: Manifest) -> dict[str, Any]:
    """Return the facts of a manifest that no other section has; the version itself always differs."""
    lineage = lineage_of(manifest.inputs)
    fields = {f"field {field.name}": field.to_json() for field in manifest.fields}
    return {
        "name": manifest.name,
        "task": manifest.task,
        "ignore_label": manifest.ignore_label,
        "where": None if lineage is None else lineage.where,
        **manifest.software,
        **fields,
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ValueChange]:
    """Yield the values that differ, in the order of the names; an absent value is None."""
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield ValueChange(name=name, before=before.get(name), after=after.get(name))


def _figures(manifest: Manifest) -> dict[str, Any]:
    """Return each figure of the statistics by split and name; counts are by their names, too."""
    found: dict[str, Any] = {}
    for name, split in manifest.splits.items():
        for figure, value in split.statistics.to_json().items():
            found.update(_flat(f"{name}.{figure}", value))
    return found


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _flat(f"{path}.{name}", one)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _flat(path, vars(value))
    else:
        yield path, value


def _identity(split: str, shard: Shard) -> tuple[Any, ...]:
    return split, shard.crc32c, shard.bytes, shard.records


def _shared_shards(before: Manifest, after: Manifest) -> Counter[tuple[Any, ...]]:
    """Return how often both versions have each shard."""
    counts = [
        Counter(_identity(name, shard) for name, split in one.splits.items() for shard in split.shards)
        for one in (before, after)
    ]
    return counts[0] & counts[1]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """Records of the shards that the other version lacks.

    Args:
        ids, checksums, lengths: columns of the indexes, by rising ids.
        shards: number of the shard in `stored` of each record.
        rows: number of each record in its shard.
        splits: split of each shard.
        stored: the shards.
    """

    ids: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    lengths: NDArray[np.int64]
    shards: NDArray[np.int64]
    rows: NDArray[np.int64]
    splits: Sequence[str]
    stored: Sequence[StoredShard]

    @classmethod
    def of(cls, files: DatasetFiles, manifest: Manifest, shared: Mapping[tuple[Any, ...], int]) -> _Rows:
        left = Counter(shared)
        splits, stored = [], []
        for name, split in manifest.splits.items():
            for shard in split.shards:
                if left[_identity(name, shard)] > 0:
                    left[_identity(name, shard)] -= 1
                    continue
                splits.append(name)
                stored.append(StoredShard(files, shard))
        indexes = [one.index for one in stored]
        counts = list(map(len, indexes))
        ids = np.concatenate([np.empty(0, np.int64), *(one.ids for one in indexes)])
        order = np.argsort(ids, kind="stable")
        return cls(
            ids=ids[order],
            checksums=np.concatenate([np.empty(0, np.uint32), *(one.checksums for one in indexes)])[order],
            lengths=np.concatenate([np.empty(0, np.int64), *(one.lengths for one in indexes)])[order],
            shards=np.repeat(np.arange(len(counts)), counts)[order],
            rows=np.concatenate([np.empty(0, np.int64), *map(np.arange, counts)])[order],
            splits=splits,
            stored=stored,
        )

    def split(self, number: int) -> str:
        """Return the split of a record."""
        return self.splits[int(self.shards[number])]

    def source(self, number: int) -> str:
        """Return the file of the source of a record, without reading its image."""
        shard = self.stored[int(self.shards[number])]
        return source_of(shard.small_features(int(self.rows[number]), (keys.FILENAME, keys.KEY_SOURCE)))

    def features(self, number: int) -> Any:
        """Return all values of a record."""
        return self.stored[int(self.shards[number])].features(int(self.rows[number]))


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """The two versions, the shards that both have, and the later number of each earlier class."""

    first: DatasetFiles
    second: DatasetFiles
    before: Manifest
    after: Manifest
    shared: Mapping[tuple[Any, ...], int]
    classes: Mapping[int, int]

    def examples(self) -> Iterator[ExampleChange]:
        """Yield each example that differs, by id."""
        keeps = keeps_numbers(self.before, self.after, self.classes)
        skipped = self.shared if keeps else {}
        one = _Rows.of(self.first, self.before, skipped)
        other = _Rows.of(self.second, self.after, skipped)
        ids = np.union1d(one.ids, other.ids)
        places = [np.searchsorted(rows.ids, ids) for rows in (one, other)]
        for identity, left, right in zip(ids.tolist(), places[0].tolist(), places[1].tolist(), strict=True):
            has_left = left < len(one.ids) and one.ids[left] == identity
            has_right = right < len(other.ids) and other.ids[right] == identity
            if not has_right:
                yield ExampleChange(id=identity, source=one.source(left), before=one.split(left), after=None)
            elif not has_left:
                yield ExampleChange(
                    id=identity, source=other.source(right), before=None, after=other.split(right)
                )
            elif (found := self._changed(identity, one, left, other, right, keeps=keeps)) is not None:
                yield found

    def _changed(
        self, identity: int, one: _Rows, left: int, other: _Rows, right: int, *, keeps: bool
    ) -> ExampleChange | None:
        """Return the changes of an example that both versions have; None where it is the same.

        Args:
            keeps: whether equal bytes show the same classes.
        """
        is_same = keeps and (
            one.checksums[left] == other.checksums[right] and one.lengths[left] == other.lengths[right]
        )
        changes: list[tuple[str, str]] = []
        if not is_same:
            pair = RecordPair(
                before=one.features(left),
                after=other.features(right),
                earlier=self.before,
                later=self.after,
                classes=self.classes,
            )
            changes = compare_records(pair)
        before, after = one.split(left), other.split(right)
        if before == after and not changes:
            return None
        return ExampleChange(
            id=identity, source=other.source(right), before=before, after=after, changes=tuple(changes)
        )


def same_classes(before: Mapping[int, str], after: Mapping[int, str]) -> dict[int, int]:
    """Return the later number of each earlier class: of the same name, or of a number whose name is another one now.

    >>> same_classes({1: "hat", 2: "coat", 3: "bag"}, {1: "cap", 2: "bag", 3: "coat"})
    {1: 1, 2: 3, 3: 2}
    """
    numbers = {name: number for number, name in after.items()}
    known = set(before.values())
    found = {number: numbers[name] for number, name in before.items() if name in numbers}
    for number in before.keys() - found.keys():
        if number in after and after[number] not in known:
            found[number] = number
    return dict(sorted(found.items()))
