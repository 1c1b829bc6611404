"""How the driver of a local run learns how far its workers are: a small file in a temporary folder.

Beam's run() blocks and says nothing until it ends, and raises an error that passed through it as a wall of text.
So workers share a file in which each shard has a place for two counters, whoever writes it and how often, and what a
process of its own could not do is kept beside Beam.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from halofeed.errors import HalofeedError, JobError
from halofeed.system.atomic_files import open_own
from halofeed.system.console import write_if_possible
from halofeed.system.resource_errors import in_words

_COUNTS = struct.Struct("<qq")
_COUNTS_FILE = "counts"
_SECONDS_BETWEEN_COUNTS = 0.1

_errors: dict[str, str] = {}
"""The message of the first error of each job in this process, by its progress folder."""


class WorkerProgress:
    """A worker's side: counts examples and rejects of one shard after another, and keeps the error that ended it.

    A shard that is begun again counts from nothing, here and, by its place in the file, wherever else it was begun.

    Args:
        folder: where to count; None on a remote runner, which has its own counters.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._shard: int | None = None
        self._done = 0
        self._rejected: dict[int, int] = {}
        self.rejected = 0
        """Inputs that this worker has rejected, each once."""
        self._told = 0.0
        self._file = None
        if self._folder:
            self._file = open_own(Path(self._folder, _COUNTS_FILE), os.O_WRONLY, 0o600)

    def begin(self, shard: int) -> None:
        """Count for this shard, by its number among all, from now on."""
        self.rejected -= self._rejected.pop(shard, 0)
        self._shard, self._done = shard, 0

    def add(self, done: int, rejected: int) -> None:
        """Count examples of the shard that were written and inputs that were rejected."""
        assert self._shard is not None
        self._done += done
        if rejected:
            self._rejected[self._shard] = self._rejected.get(self._shard, 0) + rejected
            self.rejected += rejected
        if time.monotonic() - self._told > _SECONDS_BETWEEN_COUNTS:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        if self._file is not None and self._shard is not None:
            counts = _COUNTS.pack(self._done, self._rejected.get(self._shard, 0))
            os.pwrite(self._file, counts, self._shard * _COUNTS.size)

    @contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Keep the message of an error that passes through here; of a local run, it becomes one of halofeed's.

        Raises:
            HalofeedError: as it was; a JobError that says `what` in place of any other.
        """
        try:
            yield
        except Exception as error:
            if not self._folder:
                raise
            if isinstance(error, HalofeedError):
                _errors.setdefault(self._folder, str(error))
                raise
            told = f"{what}: {in_words(error)}"
            _errors.setdefault(self._folder, told)
            raise JobError(told) from error
        finally:
            self._tell()


def job_counts(folder: str) -> tuple[int, int]:
    """Examples written and inputs rejected so far, by all workers of the job with this progress folder."""
    try:
        data = Path(folder, _COUNTS_FILE).read_bytes()
    except FileNotFoundError:
        return 0, 0
    done, rejected = np.frombuffer(data, "<i8").reshape(-1, 2).sum(0).tolist()
    return done, rejected


def job_error(folder: str) -> str | None:
    """The message of the job's first error in this process."""
    return _errors.get(folder)


class Bar:
    """A line that says how far a job is: in place on a terminal, now and then elsewhere.

    Args:
        total: how many steps there are.
        unit: what a step is, in the plural.
        stream: where to write; standard error by default.
        show: False writes nothing.
    """

    def __init__(self, total: int, unit: str, *, stream: TextIO | None = None, show: bool = True) -> None:
        self.total, self.unit, self._show = total, unit, show
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._start = time.monotonic()
        self._next = 0.0 if self._terminal else 10.0
        self._drawn = 0

    def update(self, done: int, rejected: int | None = 0) -> None:
        """Show a new state, at most five times a second on a terminal and every ten seconds elsewhere.

        Args:
            rejected: None where nobody knows yet.
        """
        elapsed = time.monotonic() - self._start
        if self._show and elapsed >= self._next:
            self._next = elapsed + (0.2 if self._terminal else 10.0)
            self._draw(self.line(done, rejected, elapsed))

    def line(self, done: int, rejected: int | None, elapsed: float) -> str:
        """The text of a state.

        >>> Bar(200, "images").line(50, 2, 10.0)
        '[######..................]  26%  50 of 200 images  5.0/s  2 rejected  0:28 left'
        """
        through_all = done + (rejected or 0)
        share = min(1.0, through_all / self.total) if self.total else 1.0
        rate = done / elapsed if elapsed > 0 else 0.0
        through = through_all / elapsed if elapsed > 0 else 0.0
        left = (self.total - through_all) / through if through else None
        filled = int(24 * share)
        pieces = [
            f"[{'#' * filled}{'.' * (24 - filled)}] {share:4.0%}",
            f"{done:,} of {self.total:,} {self.unit}",
            f"{rate:,.1f}/s",
            "" if rejected is None else f"{rejected:,} rejected",
            "" if left is None else f"{int(left) // 60}:{int(left) % 60:02d} left",
        ]
        return "  ".join(piece for piece in pieces if piece)

    def _draw(self, text: str) -> None:
        end = "" if self._terminal else "\n"
        start = "\r" if self._terminal else ""
        write_if_possible(self._stream, f"{start}{text:<{self._drawn}}{end}")
        self._drawn = len(text) if self._terminal else 0

    def close(self) -> None:
        """Clear the line."""
        if self._show and self._terminal and self._drawn:
            write_if_possible(self._stream, "\r" + " " * self._drawn + "\r")
