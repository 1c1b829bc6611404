"""Beam pipeline of a conversion: its graph, and transforms that only re-key, call and count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from halofeed.pipelines.commit import commit, group_of, shards_of_group, sum_up
from halofeed.pipelines.heartbeat import Heartbeat
from halofeed.pipelines.job import ShardJob, ShardKey
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.references import read_file
from halofeed.pipelines.reject_limit import failures_in
from halofeed.pipelines.run_counts import ShardOutcome
from halofeed.pipelines.shard_writer import ShardWriter
from halofeed.schemas.identity import example_id, shard_of
from halofeed.storage.choose import use_settings
from halofeed.system.errors import JobError

SHARDS_AT_ONCE = 1_000
_Keyed = tuple[str, bytes]


def build_pipeline(pipeline: Any, job: ShardJob, reference_files: int) -> None:
    """Add the conversion to a pipeline.

    The pipeline shuffles the key of every shard by itself, so that it also makes shards without examples.

    Args:
        reference_files: number of reference files.
    """
    text = job.to_json()

    def keys_from(first: int) -> Iterator[_Keyed]:
        for key in ShardJob.from_json(text).shard_keys()[first : first + SHARDS_AT_ONCE]:
            yield key.to_text(), b""

    shards = (
        pipeline
        | "ranges of shards" >> Numbers(len(job.shard_keys()), SHARDS_AT_ONCE)
        | "name shards" >> beam.FlatMap(keys_from).with_output_types(_Keyed)
    )
    references = []
    if job.references_folder is None:
        references += [
            pipeline
            | "reference files" >> Numbers(reference_files, 1)
            | "read references" >> beam.ParDo(ReadReferences(text)).with_output_types(_Keyed)
        ]
    (
        (shards, *references)
        | "gather" >> beam.Flatten()
        | "group by shard" >> beam.GroupByKey()
        | "write shards" >> beam.ParDo(WriteShards(text)).with_output_types(tuple[int, str])
        | "some shards" >> beam.GroupByKey()
        | "sum up" >> beam.ParDo(SumUp(text)).with_output_types(tuple[int, str])
        | "all shards" >> beam.GroupByKey()
        | "commit" >> beam.ParDo(Commit(text)).with_output_types(int)
    )


NAMESPACE = "halofeed"
"""Namespace of the job's counters."""


def counters_of(outcome: ShardOutcome) -> dict[str, int]:
    """Return what a finished shard adds to the job's counters, by name.

    All counters of a shard are added at once, after its index is written. So an attempt that fails in the middle of a
    shard adds nothing, and the sums of records and rejects equal the manifest's where a runner counts each bundle once.

    >>> rejected = {"read: file is empty": 1}
    >>> done = ShardOutcome(
    ...     key="train/0", is_kept=False, bytes_read=9, bytes_written=7, records=3, rejected=rejected
    ... )
    >>> for name, count in counters_of(done).items():
    ...     print(name, count)
    shards written 1
    records 3
    bytes read 9
    bytes written 7
    rejected 1
    rejected: read: file is empty 1
    """
    return {
        "shards kept" if outcome.is_kept else "shards written": 1,
        "records": outcome.records,
        "bytes read": outcome.bytes_read,
        "bytes written": outcome.bytes_written,
        "rejected": failures_in(outcome.rejected).total(),
        **{f"rejected: {reason}": count for reason, count in outcome.rejected.items()},
    }


def _load_job(text: str) -> ShardJob:
    """Return the job of a JSON text, and use its store settings in this process."""
    job = ShardJob.from_json(text)
    use_settings(job.store_settings)
    return job


class ReadReferences(beam.DoFn):  # type: ignore[misc]
    """Read a reference file by its number; yield (shard key, reference)."""

    def __init__(self, job: str) -> None:
        self._job_text = job

    def setup(self) -> None:
        self._job = _load_job(self._job_text)
        self._heartbeat = Heartbeat(self._job.heartbeat_path)

    def process(self, number: int) -> Iterator[tuple[str, bytes]]:
        job = self._job
        self._heartbeat.beat()
        for reference, line in read_file(OutputFolder(job.folder), number):
            shard = shard_of(example_id(reference.key), job.recipe.shards)
            split = reference.split if reference.split in job.splits else job.splits[0]
            yield ShardKey(split, shard).to_text(), line


class WriteShards(beam.DoFn):  # type: ignore[misc]
    """Write the shard of a key and its index; yield (number of the shard's group, what was done in JSON)."""

    def __init__(self, job: str) -> None:
        self._job_text = job

    def setup(self) -> None:
        self._job = _load_job(self._job_text)
        self._writer = ShardWriter(self._job)

    def process(self, element: tuple[str, Iterable[bytes]]) -> Iterator[tuple[int, str]]:
        key, grouped = element
        outcome = self._writer.write(key, [line for line in grouped if line])
        for name, count in counters_of(outcome).items():
            Metrics.counter(NAMESPACE, name).inc(count)
        yield group_of(self._job, ShardKey.from_text(key)), outcome.to_json()

    def teardown(self) -> None:
        self._writer.close()


class SumUp(beam.DoFn):  # type: ignore[misc]
    """Summarize the shards of a group by the group's number; yield (0, the summary)."""

    def __init__(self, job: str) -> None:
        self._job_text = job

    def setup(self) -> None:
        self._job = _load_job(self._job_text)

    def process(self, element: tuple[int, Iterable[str]]) -> Iterator[tuple[int, str]]:
        number, outcomes = element[0], {one.key: one for one in map(ShardOutcome.from_json, element[1])}
        keys = [key.to_text() for key in shards_of_group(self._job, number)]
        if missing := [key for key in keys if key not in outcomes]:
            raise JobError(f"shards were not written: {', '.join(missing)}; run the same command again")
        yield 0, sum_up(self._job, number, outcomes.values())


class Commit(beam.DoFn):  # type: ignore[misc]
    """Commit the data set from the summaries of all groups; yield its number of records."""

    def __init__(self, job: str) -> None:
        self._job = job

    def process(self, element: tuple[Any, Iterable[str]]) -> Iterator[int]:
        manifest = commit(_load_job(self._job), element[1])
        yield sum(split.records for split in manifest.splits.values())


class Numbers(beam.PTransform):  # type: ignore[misc]
    """First number of each range of `step` numbers below a limit, distributed over idle workers."""

    def __init__(self, limit: int, step: int) -> None:
        super().__init__()
        self._limit, self._step = limit, step

    def expand(self, pipeline: Any) -> Any:
        limit, step = self._limit, self._step

        def numbers(_: bytes) -> Iterator[int]:
            return iter(range(0, limit, step))

        return pipeline | beam.Impulse() | beam.FlatMap(numbers).with_output_types(int) | beam.Reshuffle()
