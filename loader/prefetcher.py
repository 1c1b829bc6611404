"""Prefetcher of items, such as batches: the next ones are made in threads while one is used."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from halofeed.system.threads import InterruptibleThreads, ThreadTask

Item = TypeVar("Item")


class Prefetcher(Iterator[Item], Generic[Item]):
    """Iterator over `make(step)` for each step, in order; after the first item, some are made ahead in threads.

    One thread plans with the interpreter's lock while another copies without it. An exception of `make` is raised by
    the `next` of its step, and the next item follows. An interrupt loses no item that was not returned yet. Several
    threads may take items; each item goes to one of them. After a fork, the child makes its parent's unfinished items
    itself.

    Args:
        make: returns the item of a step; called from several threads.
        steps: the steps in order.
        ahead: number of items that are made or ready while one is used; 0 makes each item on request.
        prefetch: called before the first item, with its step and each later step that is made ahead.

    >>> "".join(Prefetcher(str, range(5), 2))
    '01234'
    """

    def __init__(
        self,
        make: Callable[[int], Item],
        steps: Iterable[int],
        ahead: int,
        prefetch: Callable[[int], object] = lambda step: None,
    ) -> None:
        self._make, self._steps, self._ahead, self._prefetch = make, iter(steps), ahead, prefetch
        self._waiting: deque[int] = deque()
        """Steps taken from `steps` whose items were not returned yet."""
        self._tasks: dict[int, ThreadTask[Item]] = {}
        self._workers: InterruptibleThreads | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()
        # Callers who take only one item do not pay for the next ones.
        self._makes_ahead = False

    def __next__(self) -> Item:
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
            self._workers, self._tasks = None, {}
        with self._lock:
            return self._next_ahead() if self._makes_ahead else self._next_here()

    def close(self) -> None:
        """Stop making items, and end the iteration."""
        with self._lock:
            self._steps, self._waiting = iter(()), deque()
            self._cancel()
            self._workers = None

    def _next_here(self) -> Item:
        self._take_steps(1 + self._ahead)
        if not self._waiting:
            raise StopIteration
        for step in self._waiting:
            self._prefetch(step)
        try:
            item = self._make(self._waiting[0])
        except Exception:
            self._pass_first()
            raise
        self._pass_first()
        return item

    def _next_ahead(self) -> Item:
        self._take_steps(self._ahead)
        if not self._waiting:
            raise StopIteration
        self._begin()
        step = self._waiting[0]
        try:
            item = self._tasks[step].result()
        except Exception:
            self._pass_first()
            raise
        except BaseException:
            self._tasks.pop(step, None)  # an interrupt; the next call makes it again
            raise
        self._take_steps(self._ahead + 1)
        self._begin()
        self._pass_first()
        return item

    def _pass_first(self) -> None:
        self._makes_ahead = self._ahead > 0
        self._tasks.pop(self._waiting[0], None)
        self._waiting.popleft()

    def _take_steps(self, count: int) -> None:
        # In one call, which no interrupt divides, so that no step is lost.
        self._waiting.extend(itertools.islice(self._steps, max(0, count - len(self._waiting))))

    def _begin(self) -> None:
        if self._workers is None:
            self._workers = InterruptibleThreads(self._ahead)
        for step in self._waiting:
            if step not in self._tasks:
                self._tasks[step] = self._workers.submit(functools.partial(self._make, step))

    def _cancel(self) -> None:
        while self._tasks:
            self._tasks.popitem()[1].cancel()

    def __del__(self) -> None:
        if hasattr(self, "_tasks"):  # an interrupt may have ended __init__
            self._cancel()
