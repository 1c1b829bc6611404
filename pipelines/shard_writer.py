"""How a process writes shards: with its threads, counting, and stopping where too much is rejected."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import cv2

from halofeed.pipelines.commit import is_failure
from halofeed.pipelines.job import ShardJob, ShardKey
from halofeed.pipelines.ordered import OrderedThreads
from halofeed.pipelines.progress import WorkerProgress
from halofeed.pipelines.references import read_shard
from halofeed.pipelines.remote import SignsOfLife
from halofeed.pipelines.sinks import write_shard
from halofeed.pipelines.storage import source_files
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.errors import JobError, SourceError

LISTED = 10
"""How many rejected inputs the error of a job names that was stopped by its budget."""


class ShardWriter:
    """Writes shards of one job, one at a time.

    Args:
        job: which.
        count_rejected: is called with how many inputs more were rejected.
    """

    def __init__(self, job: ShardJob, count_rejected: Callable[[int], None] = lambda count: None) -> None:
        self._job, self._count_rejected = job, count_rejected
        self._sources: SourceFiles = source_files(job.images)
        self._threads = OrderedThreads(job.threads)
        # OpenCV's own pool would spin beside these threads: it took half of all system time.
        self._opencv_threads = cv2.getNumThreads()
        cv2.setNumThreads(1)
        self._progress = WorkerProgress(job.progress_folder)
        self._signs = SignsOfLife(job.wanted)
        self._shard: ShardKey | None = None
        self._last: deque[tuple[ShardKey | None, Mapping[str, str]]] = deque(maxlen=LISTED)

    def write(self, key: str, references: Iterable[bytes]) -> bool:
        """Write the shard of this key with its references, and its index; whether it was made, not kept.

        A runner may have it written again, wholly or after it died in the middle: its inputs count once.

        Args:
            references: that came with the key; those that lie by shard are read here.

        Raises:
            JobError: this process alone has rejected more inputs than the job allows.
        """
        shard = self._shard = ShardKey.from_text(key)
        whole = references if self._job.references_folder is None else read_shard(self._job, shard)
        lines = [line.decode("utf-8", "surrogateescape") for line in whole]
        self._progress.begin(self._job.number_of(shard))
        self._last = deque((one for one in self._last if one[0] != shard), LISTED)
        with self._progress.reporting(f"shard {key}"):
            return write_shard(self._job, shard, lines, self._sources, self._threads, self._count)

    def close(self) -> None:
        """Let the threads end, and give OpenCV its own back."""
        cv2.setNumThreads(self._opencv_threads)
        self._threads.close()

    def _count(self, done: int, rejected: Sequence[Mapping[str, str]]) -> None:
        """Count, and stop as soon as this process alone has passed the budget."""
        self._signs.give()
        failures = [entry for entry in rejected if is_failure(entry)]
        limit = self._job.max_rejected
        if limit is not None:
            del failures[max(0, limit + 1 - self._progress.rejected) :]
        self._progress.add(done, len(failures))
        self._last.extend((self._shard, entry) for entry in failures)
        if failures:
            self._count_rejected(len(failures))
        if limit is not None and self._progress.rejected > limit and failures:
            last, *others = [
                f"{entry['source']}: {SourceError(entry['stage'], entry['reason'], entry['detail'])}"
                for _, entry in reversed(self._last)
            ]
            before = "".join(["; and before it:", *(f"\n  {line}" for line in others)]) if others else ""
            raise JobError(
                f"more than --max-rejected {limit} inputs were rejected; a higher limit lists all in "
                f"rejected.jsonl; the last was {last}{before}"
            )


@lru_cache(maxsize=1)
def _writer_of(job: str) -> ShardWriter:
    return ShardWriter(ShardJob.from_json(job))


def write_shard_of_job(shard: tuple[str, str, list[bytes]]) -> bool:
    """From a job's text, a key and references to the shard, in a process of its own; whether it was made, not kept."""
    job, key, references = shard
    return _writer_of(job).write(key, references)
