"""Epochs of a stream: numbers of the batches of each iteration, and torch's map from step to batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

from halofeed.loader.batch import VALID, Batch
from halofeed.system.arguments import whole_number


class _Batches(Protocol):
    """Part of a stream that a map of its batches needs."""

    steps: int | None

    @property
    def steps_per_epoch(self) -> int: ...

    def batch(self, step: int) -> Batch: ...

    def __len__(self) -> int: ...


class EpochPlace:
    """First number of the next iteration: a data set moves on when an iteration has given its last number.

    An iteration that ends earlier begins again at the same number. Keras takes one batch to find the shapes before it
    begins to train, which would otherwise lose the rest of an epoch after a resume.

    Args:
        start: first number of the first iteration.
        count: numbers of each iteration.

    >>> place = EpochPlace(6, 3)
    >>> place.first, place.finish(8), place.first
    (6, 9, 9)
    """

    def __init__(self, start: int, count: int) -> None:
        self.start, self.count, self.first = start, count, start
        self._lock = threading.Lock()

    def finish(self, last: int) -> int:
        """Note that an iteration has given its last number; return the first number of the next iteration."""
        with self._lock:
            # Of two iterations at the same time, the one that began earlier may end later.
            self.first = max(self.first, last + 1)
            return self.first


class BatchesByStep:
    """A stream as a map from step to batch, for torch's DataLoader, whose workers then make complete batches.

    `batches = loader.by_step()` and `DataLoader(batches, batch_size=None, sampler=batches.sampler(), num_workers=2)`:
    each iteration is one epoch.

    Args:
        stream: stream of the batches.
        leaves_out: whether a batch is without the rows that are not valid.
    """

    def __init__(self, stream: _Batches, *, leaves_out: bool = False) -> None:
        self._stream, self._leaves_out = stream, leaves_out

    def __len__(self) -> int:
        if self._stream.steps is None:
            raise TypeError(
                "the stream has no end and so no length; with batches = loader.by_step(), each iteration of "
                "DataLoader(batches, batch_size=None, sampler=batches.sampler()) is one epoch"
            )
        return len(self._stream)

    def __getitem__(self, step: int) -> Batch:
        batch = self._stream.batch(step)
        return only_valid(batch) if self._leaves_out else batch

    def sampler(self, start_step: int = 0) -> EpochSteps:
        """Return a sampler for torch's DataLoader whose iterations are the steps of one epoch each.

        Args:
            start_step: number of steps that an earlier process took: the first iteration begins after them.
        """
        return EpochSteps(whole_number("start_step", start_step, 0), self._stream.steps_per_epoch)


class EpochSteps:
    """Sampler for torch's DataLoader: each iteration gives the steps of one epoch in order, and the next one goes on.

    An iteration that ends early begins again at the same step; `set_epoch`, as torch's DistributedSampler has it,
    chooses the epoch of the next iteration.

    >>> steps = EpochSteps(0, 3)
    >>> list(steps), list(steps)
    ([0, 1, 2], [3, 4, 5])
    """

    def __init__(self, start_step: int, steps_per_epoch: int) -> None:
        self._place = EpochPlace(start_step, steps_per_epoch)

    def __len__(self) -> int:
        return self._place.count

    def __iter__(self) -> Iterator[int]:
        first = self._place.first
        for step in range(first, first + len(self)):
            if step == first + len(self) - 1:
                self._place.finish(step)
            yield step

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration at an epoch, numbered from 0."""
        self._place = EpochPlace(whole_number("epoch", epoch, 0) * len(self), len(self))


def only_valid(batch: Batch) -> Batch:
    """Return a batch without the rows that are not valid."""
    valid = batch[VALID]
    return batch if valid.all() else {name: array[valid] for name, array in batch.items()}
