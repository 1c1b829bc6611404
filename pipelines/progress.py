"""Progress of a local run: counts by shard in a shared file, the first error of a job, and a progress bar.

A worker returns only when its shard is finished. So it writes two counters at the place of its shard in a shared file,
which the driver reads. The driver ends the job at the first error whose message is kept here.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from halofeed.storage.atomic_files import open_owned_file
from halofeed.storage.paths import load_bytes
from halofeed.system.console import StatusLine
from halofeed.system.errors import HalofeedError, JobError
from halofeed.system.resource_errors import describe_error

_COUNTS = struct.Struct("<qq")
_COUNTS_FILE = "counts"
_SECONDS_BETWEEN_COUNTS = 0.1

_errors: dict[str, str] = {}
"""Message of the first error of each job in this process, by its progress folder; see `Workers.failure` for others."""


class WorkerProgress:
    """Counters of a worker's current shard, and the error that ends it.

    A repeated shard starts from zero: in this worker's counters, and in the file, where any worker overwrites it.

    Args:
        folder: folder of the counts; None on a remote runner, which has its own counters.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._shard: int | None = None
        self._done = 0
        self._rejected: dict[int, int] = {}
        self.rejected = 0
        """Number of different inputs that this worker has rejected."""
        self._written_at = 0.0

    def begin(self, shard: int) -> None:
        """Start to count for the shard of this number."""
        self.rejected -= self._rejected.pop(shard, 0)
        self._shard, self._done = shard, 0

    def add(self, done: int, rejected: int) -> None:
        """Add written examples and rejected inputs of the shard."""
        assert self._shard is not None
        self._done += done
        if rejected:
            self._rejected[self._shard] = self._rejected.get(self._shard, 0) + rejected
            self.rejected += rejected
        if time.monotonic() - self._written_at > _SECONDS_BETWEEN_COUNTS:
            self._write()

    def _write(self) -> None:
        self._written_at = time.monotonic()
        if self._folder is None or self._shard is None:
            return
        counts = _COUNTS.pack(self._done, self._rejected.get(self._shard, 0))
        # The file is opened for each write, at most ten times a second. A program may convert thousands of data sets,
        # and an open file would stay open as long as anything refers to this object.
        file = open_owned_file(Path(self._folder, _COUNTS_FILE), os.O_WRONLY, 0o600)
        try:
            os.pwrite(file, counts, self._shard * _COUNTS.size)
        finally:
            os.close(file)

    @contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Keep the message of an error in the block; in a local run, convert it to an error of halofeed.

        Raises:
            HalofeedError: an error of halofeed, unchanged, or a JobError that begins with `what`.
        """
        try:
            yield
        except Exception as error:
            # A remote runner gets the original error, with its traceback.
            if not self._folder:
                raise
            if isinstance(error, HalofeedError):
                _errors.setdefault(self._folder, str(error))
                raise
            message = f"{what}: {describe_error(error)}"
            _errors.setdefault(self._folder, message)
            raise JobError(message) from error
        finally:
            self._write()


def job_counts(folder: str) -> tuple[int, int]:
    """Return the examples written and inputs rejected so far by all workers of the job with this progress folder."""
    try:
        data = load_bytes(Path(folder, _COUNTS_FILE))
    except FileNotFoundError:  # the first write creates it
        return 0, 0
    done, rejected = np.frombuffer(data, "<i8").reshape(-1, 2).sum(0).tolist()
    return done, rejected


def job_error(folder: str) -> str | None:
    """Return the message of the job's first error in this process."""
    return _errors.get(folder)


class Bar:
    """Progress bar: one updated line on a terminal, occasional lines elsewhere.

    Args:
        total: number of steps.
        unit: plural noun for the steps.
        stream: output stream; default: standard error.
        show: whether to write anything.
    """

    def __init__(self, total: int, unit: str, *, stream: TextIO | None = None, show: bool = True) -> None:
        self.total, self.unit = total, unit
        self._line = StatusLine(stream=stream, show=show)

    def update(self, done: int, rejected: int | None = 0) -> None:
        """Show a new state, at most five times a second on a terminal and every 10 s elsewhere.

        Args:
            done: number of finished steps, without rejected inputs.
            rejected: number of rejected inputs; None if unknown.
        """
        self._line.update(lambda elapsed: self.line(done, rejected, elapsed))

    def line(self, done: int, rejected: int | None, elapsed: float) -> str:
        """Return the text of a state.

        >>> Bar(200, "images").line(50, 2, 10.0)
        '[######..................]  26%  50 of 200 images  5.0/s  2 rejected  0:28 left'
        """
        # Rejected inputs take time too, so the remaining time counts them; the rate is that of the written ones.
        processed = done + (rejected or 0)
        share = min(1.0, processed / self.total) if self.total else 1.0
        rate = done / elapsed if elapsed > 0 else 0.0
        processed_rate = processed / elapsed if elapsed > 0 else 0.0
        left = (self.total - processed) / processed_rate if processed_rate else None
        filled = int(24 * share)
        columns = [
            f"[{'#' * filled}{'.' * (24 - filled)}] {share:4.0%}",
            f"{done:,} of {self.total:,} {self.unit}",
            f"{rate:,.1f}/s",
            "" if rejected is None else f"{rejected:,} rejected",
            "" if left is None else f"{int(left) // 60}:{int(left) % 60:02d} left",
        ]
        return "  ".join(column for column in columns if column)

    def close(self) -> None:
        """Clear the line."""
        self._line.close()
