"""Beam pipeline of a conversion: its graph, and transforms that only re-key, call and count."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows

from halofeed.errors import JobError
from halofeed.pipelines.commit import commit, group_of, shards_of_group, sum_up
from halofeed.pipelines.heartbeat import Heartbeat
from halofeed.pipelines.job import ShardJob, ShardKey
from halofeed.pipelines.progress import WorkerProgress
from halofeed.pipelines.references import read_file
from halofeed.pipelines.shard_writer import ShardWriter, write_shard_of_job
from halofeed.pipelines.workers import workers_for
from halofeed.schemas.identity import example_id, shard_of
from halofeed.storage.choose import use_settings
from halofeed.storage.output_folder import OutputFolder

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
        | "ranges of shards" >> Numbers(len(job.splits) * job.recipe.shards, SHARDS_AT_ONCE)
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


class _OnWorkers(beam.DoFn):  # type: ignore[misc]
    """Base of transforms whose calls run here, or in the worker processes of a local job until the bundle's end."""

    def __init__(self, job: str) -> None:
        self._job_text = job

    def setup(self) -> None:
        self._job = _load_job(self._job_text)
        self._workers = workers_for(self._job)

    def finish_bundle(self) -> Iterator[Any]:
        for key, answer in self._workers.results() if self._workers is not None else ():
            yield GlobalWindows.windowed_value(self._result(key, answer))

    @abc.abstractmethod
    def _result(self, key: str, answer: Any) -> Any:
        """Return the output element for the answer of one call."""


class WriteShards(_OnWorkers):
    """Write the shard of a key and its index; yield (number of the shard's group, shard key)."""

    def setup(self) -> None:
        super().setup()
        self._writer = None
        if self._workers is None:
            self._writer = ShardWriter(self._job, Metrics.counter("halofeed", "rejected").inc)

    def process(self, element: tuple[str, Iterable[bytes]]) -> Iterator[tuple[int, str]]:
        key, grouped = element
        references = [line for line in grouped if line]
        if self._workers is not None:
            self._workers.submit(
                write_shard_of_job, (self._job_text, key, references), f"wrote shard {key}", key
            )
        elif self._writer is not None:
            yield self._result(key, self._writer.write(key, references))

    def _result(self, key: str, answer: bool) -> tuple[int, str]:
        Metrics.counter("halofeed", "shards written" if answer else "shards kept").inc()
        return group_of(self._job, ShardKey.from_text(key)), key

    def teardown(self) -> None:
        if self._writer is not None:
            self._writer.close()


class SumUp(_OnWorkers):
    """Summarize the shards of a group by the group's number; yield (0, the summary)."""

    def process(self, element: tuple[int, Iterable[str]]) -> Iterator[tuple[int, str]]:
        number, written = element[0], set(element[1])
        keys = [key.to_text() for key in shards_of_group(self._job, number)]
        if missing := [key for key in keys if key not in written]:
            raise JobError(f"shards were not written: {', '.join(missing)}; run the same command again")
        if self._workers is not None:
            self._workers.submit(_sum_up_group, (self._job_text, number), f"summed up shards from {keys[0]}")
        else:
            yield self._result("", _sum_up_group((self._job_text, number)))

    def _result(self, key: str, answer: str) -> tuple[int, str]:
        return 0, answer


def _sum_up_group(group: tuple[str, int]) -> str:
    """Return the summary of a group, from a job's text and the group's number."""
    job = _load_job(group[0])
    with WorkerProgress(job.progress_folder).reporting("the commit"):
        return sum_up(job, group[1])


class Commit(beam.DoFn):  # type: ignore[misc]
    """Commit the data set from the summaries of all groups; yield its number of records."""

    def __init__(self, job: str) -> None:
        self._job = job

    def process(self, element: tuple[Any, Iterable[str]]) -> Iterator[int]:
        job = _load_job(self._job)
        with WorkerProgress(job.progress_folder).reporting("the commit"):
            manifest = commit(job, element[1])
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
