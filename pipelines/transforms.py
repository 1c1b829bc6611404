"""The Beam transforms: thin classes that re-key, call a function and count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows

from halofeed.pipelines.job import ShardJob, ShardKey
from halofeed.pipelines.objects.choose import use_settings
from halofeed.pipelines.progress import WorkerProgress
from halofeed.pipelines.references import read_file
from halofeed.pipelines.shard_writer import ShardWriter, write_shard_of_job
from halofeed.pipelines.sinks import commit
from halofeed.pipelines.storage import OutputFolder
from halofeed.pipelines.workers import workers_for
from halofeed.schemas.errors import JobError
from halofeed.schemas.identity import example_id, shard_of


def _job_of(text: str) -> ShardJob:
    """The job of a text, whose stores this process reaches from now on."""
    job = ShardJob.from_json(text)
    use_settings(job.store_settings)
    return job


class NameShards(beam.DoFn):  # type: ignore[misc]
    """From the first number of a range of shards to (shard key, no reference) of each.

    Args:
        count: of a range.
    """

    def __init__(self, job: str, count: int) -> None:
        self._job, self._count = job, count

    def process(self, first: int) -> Iterator[tuple[str, bytes]]:
        for key in ShardJob.from_json(self._job).shard_keys()[first : first + self._count]:
            yield key.to_text(), b""


class ReadReferences(beam.DoFn):  # type: ignore[misc]
    """From the number of a file of references to (shard key, reference)."""

    def __init__(self, job: str) -> None:
        self._job = job

    def process(self, number: int) -> Iterator[tuple[str, bytes]]:
        job = _job_of(self._job)
        for reference, line in read_file(OutputFolder(job.folder), number):
            shard = shard_of(example_id(reference.key), job.recipe.shards)
            split = reference.split if reference.split in job.splits else job.splits[0]
            yield ShardKey(split, shard).to_text(), line


class WriteShards(beam.DoFn):  # type: ignore[misc]
    """From (shard key, its references) to the shard's file and index; passes the key on.

    A local job with worker processes has them write, all at once, and waits for them at the end of the bundle.
    """

    def __init__(self, job: str) -> None:
        self._text = job

    def setup(self) -> None:
        job = _job_of(self._text)
        self._workers = workers_for(job)
        self._writer = None
        if self._workers is None:
            self._writer = ShardWriter(job, Metrics.counter("halofeed", "rejected").inc)

    def process(self, element: tuple[str, Iterable[bytes]]) -> Iterator[str]:
        key, grouped = element
        references = [line for line in grouped if line]
        if self._workers is not None:
            self._workers.ask(write_shard_of_job, (self._text, key, references), f"wrote shard {key}", key)
        elif self._writer is not None:
            _count_shard(self._writer.write(key, references))
            yield key

    def finish_bundle(self) -> Iterator[Any]:
        if self._workers is not None:
            for key, made in self._workers.answers():
                _count_shard(made)
                yield GlobalWindows.windowed_value(key)

    def teardown(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _count_shard(made: bool) -> None:
    Metrics.counter("halofeed", "shards written" if made else "shards kept").inc()


class Commit(beam.DoFn):  # type: ignore[misc]
    """From all shard keys to the committed manifest."""

    def __init__(self, job: str) -> None:
        self._job = job

    def process(self, element: tuple[Any, Iterable[str]]) -> Iterator[int]:
        job = _job_of(self._job)
        written = set(element[1])
        if missing := [key.to_text() for key in job.shard_keys() if key.to_text() not in written]:
            raise JobError(f"shards were not written: {', '.join(missing)}; run the same command again")
        with WorkerProgress(job.progress_folder).reporting("the commit"):
            manifest = commit(job)
        yield sum(split.records for split in manifest.splits.values())
