"""The Beam transforms: thin classes that re-key, call a function and count."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import cv2
from apache_beam.metrics import Metrics

from halofeed.pipelines.job import ShardJob, ShardKey
from halofeed.pipelines.ordered import OrderedThreads
from halofeed.pipelines.plan import read_references
from halofeed.pipelines.progress import WorkerProgress
from halofeed.pipelines.sinks import commit, is_failure, write_shard
from halofeed.pipelines.storage import OutputFolder, source_files
from halofeed.prep.sources import SourceFiles
from halofeed.schemas.errors import JobError, SourceError
from halofeed.schemas.identity import example_id, shard_of

LISTED = 10
"""How many rejected inputs the error of a job names that was stopped by its budget."""


class ReadReferences(beam.DoFn):  # type: ignore[misc]
    """From the name of a file of references to (shard key, reference)."""

    def __init__(self, job: str) -> None:
        self._job = job

    def process(self, name: str) -> Iterator[tuple[str, bytes]]:
        job = ShardJob.from_json(self._job)
        for reference, line in read_references(OutputFolder(job.folder), name):
            shard = shard_of(example_id(reference.key), job.recipe.shards)
            split = reference.split if reference.split in job.splits else job.splits[0]
            yield ShardKey(split, shard).to_text(), line


class WriteShards(beam.DoFn):  # type: ignore[misc]
    """From (shard key, its references) to the shard's file and index; passes the key on."""

    def __init__(self, job: str) -> None:
        self._text = job

    def setup(self) -> None:
        self._job = ShardJob.from_json(self._text)
        self._sources: SourceFiles = source_files(self._job.images)
        self._threads = OrderedThreads(self._job.threads)
        # OpenCV's own pool would spin beside these threads: it took half of all system time.
        self._opencv_threads = cv2.getNumThreads()
        cv2.setNumThreads(1)
        self._progress = WorkerProgress(self._job.progress_folder)
        self._last: deque[Mapping[str, str]] = deque(maxlen=LISTED)

    def process(self, element: tuple[str, Iterable[bytes]]) -> Iterator[str]:
        key, grouped = element
        references = [line.decode("utf-8", "surrogateescape") for line in grouped if line]
        with self._progress.reporting(f"shard {key}"):
            made = write_shard(
                self._job, ShardKey.from_text(key), references, self._sources, self._threads, self._count
            )
        Metrics.counter("halofeed", "shards written" if made else "shards kept").inc()
        yield key

    def _count(self, done: int, rejected: Sequence[Mapping[str, str]]) -> None:
        """Count, and stop as soon as this worker alone has passed the budget."""
        failures = [entry for entry in rejected if is_failure(entry)]
        limit = self._job.max_rejected
        if limit is not None:
            del failures[max(0, limit + 1 - self._progress.rejected) :]
        self._progress.add(done, len(failures))
        self._last.extend(failures)
        if failures:
            Metrics.counter("halofeed", "rejected").inc(len(failures))
        if limit is not None and self._progress.rejected > limit and failures:
            last, *others = [_describe(entry) for entry in reversed(self._last)]
            raise JobError(
                "\n".join(
                    [
                        f"more than --max-rejected {limit} inputs were rejected; a higher limit lists all in "
                        f"rejected.jsonl; the last was {last}" + ("; and before it:" if others else ""),
                        *(f"  {line}" for line in others),
                    ]
                )
            )

    def teardown(self) -> None:
        cv2.setNumThreads(self._opencv_threads)
        self._threads.close()


def _describe(entry: Mapping[str, str]) -> str:
    return f"{entry['source']}: {SourceError(entry['stage'], entry['reason'], entry['detail'])}"


class Commit(beam.DoFn):  # type: ignore[misc]
    """From all shard keys to the committed manifest."""

    def __init__(self, job: str) -> None:
        self._job = job

    def process(self, element: tuple[Any, Iterable[str]]) -> Iterator[int]:
        job = ShardJob.from_json(self._job)
        written = set(element[1])
        if missing := [key.to_text() for key in job.shard_keys() if key.to_text() not in written]:
            raise JobError(f"shards were not written: {', '.join(missing)}; run the same command again")
        with WorkerProgress(job.progress_folder).reporting("the commit"):
            manifest = commit(job)
        yield sum(split.records for split in manifest.splits.values())
