"""Counts of one run of a conversion, in two steps: what a worker did for a shard, and the sum that users see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from halofeed.schemas.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class ShardOutcome:
    """Outcome of one call of a worker for a shard.

    Args:
        key: key of the shard as text.
        is_kept: whether the shard was finished before, and its inputs have not changed.
        bytes_read: bytes of source files that the worker read, also to compare a finished shard with its inputs.
        bytes_written: bytes of the shard and its index; 0 for a kept one.
        records: records in the shard.
        rejected: entries of rejected.jsonl by stage and reason, as in the manifest.
    """

    key: str
    is_kept: bool
    bytes_read: int
    bytes_written: int
    records: int
    rejected: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the outcome as JSON, in which runners pass it on."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> ShardOutcome:
        """Parse an outcome that `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class WorkDone:
    """Sum of what the workers of a job did.

    A runner may repeat a step, and a repeated step finds the shards of the first attempt. So only the keys of kept
    shards are added up here; which of them an earlier run had finished, the command knows (`ConversionSummary.of`).

    Args:
        kept: keys of the shards that were kept.
        bytes_read: bytes of source files that were read.

    >>> WorkDone.from_json(WorkDone(kept=("train/0",), bytes_read=5).to_json())
    WorkDone(kept=('train/0',), bytes_read=5)
    """

    kept: tuple[str, ...] = ()
    bytes_read: int = 0

    @classmethod
    def of(cls, outcomes: Iterable[ShardOutcome]) -> WorkDone:
        """Return the sum over shards."""
        outcomes = list(outcomes)
        return cls(
            kept=tuple(one.key for one in outcomes if one.is_kept),
            bytes_read=sum(one.bytes_read for one in outcomes),
        )

    @classmethod
    def total(cls, parts: Iterable[WorkDone]) -> WorkDone:
        """Return the sum of several sums."""
        parts = list(parts)
        return cls(
            kept=tuple(key for part in parts for key in part.kept),
            bytes_read=sum(part.bytes_read for part in parts),
        )

    def to_json(self) -> str:
        """Return the sum as JSON."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkDone:
        """Parse a sum that `to_json` wrote."""
        document: dict[str, Any] = json.loads(text)
        return cls(kept=tuple(document["kept"]), bytes_read=document["bytes_read"])


@dataclass(frozen=True, kw_only=True)
class ConversionSummary:
    """Result of one run of a conversion: its time, its bytes, and what it kept and rejected.

    Args:
        elapsed_seconds: time from the call to the committed data set.
        records: records that this run wrote; those of kept shards do not count.
        shards: shards of the data set, in all splits.
        shards_kept: shards that an earlier run had finished, and that were kept because their inputs are unchanged.
        bytes_read: bytes of source files that the workers read, also to compare finished shards with their inputs.
            Annotations and headers that are read for the plan do not count.
        bytes_written: bytes of the shards and indexes that this run wrote.
        rejected: number of inputs that are not in the data set by reason, as in `Dataset.rejected`.

    >>> import halofeed
    >>> done = halofeed.ConversionSummary(
    ...     elapsed_seconds=4.0, records=800, shards=4, shards_kept=3, bytes_read=96_000_000, bytes_written=120_000_000
    ... )
    >>> done.records_per_second, done.shards_written
    (200.0, 1)
    """

    elapsed_seconds: float
    records: int
    shards: int
    shards_kept: int
    bytes_read: int
    bytes_written: int
    rejected: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, manifest: Manifest, done: WorkDone, *, before: Set[str], elapsed_seconds: float
    ) -> ConversionSummary:
        """Return the summary of a run.

        Args:
            manifest: manifest of the data set.
            done: what the workers did.
            before: names of the shards that were finished before the run, here or in the version that it replaced.
        """
        kept = set(done.kept)
        shards = [
            (shard, f"{split}/{number}" in kept and shard.file in before)
            for split, content in manifest.splits.items()
            for number, shard in enumerate(content.shards)
        ]
        new = [shard for shard, is_kept in shards if not is_kept]
        return cls(
            elapsed_seconds=elapsed_seconds,
            records=sum(shard.records for shard in new),
            shards=len(shards),
            shards_kept=len(shards) - len(new),
            bytes_read=done.bytes_read,
            bytes_written=sum(shard.bytes + shard.index_bytes for shard in new),
            rejected=dict(manifest.rejected),
        )

    @property
    def records_per_second(self) -> float:
        """Return the records that this run wrote per second of elapsed time."""
        return self.records / self.elapsed_seconds if self.elapsed_seconds > 0 else 0.0

    @property
    def shards_written(self) -> int:
        """Return the number of shards that this run wrote."""
        return self.shards - self.shards_kept
