"""Prefetcher of items, such as batches: the next ones are made in threads while one is used."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Generic, NoReturn, Self, TypeVar

from halofeed.system.threads import InterruptibleThreads, ThreadTask

Item = TypeVar("Item")
_SECONDS_TO_END = 10.0
"""How long `close` waits for the items that are being made."""


class Prefetcher(Iterator[Item], Generic[Item]):
    """Iterator over `make(step)` for each step, in order; after the first item, some are made ahead in threads.

    One thread plans with the interpreter's lock while another copies without it. An exception of `make` is raised by
    the `next` of its step, and the next item follows. An interrupt loses no item that was not returned yet. Several
    threads may take items; each item goes to one of them. After a fork, the child makes its parent's unfinished items
    itself. Threads end with the last item, with `close`, or when the iterator is no longer referred to.

    A `with` block starts making items when it is entered, and closes the iterator at its end.

    Args:
        make: returns the item of a step; called from several threads. StopIteration ends the iteration.
        steps: the steps in order.
        ahead: number of items that are made or ready while one is used; 0 makes each item on request.
        prefetch: called before the first item, with its step and each later step that is made ahead.

    Attributes:
        waited_seconds: how long callers have waited for items, in total.

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
        self.waited_seconds = 0.0

    @classmethod
    def of(cls, items: Iterable[Item], ahead: int = 2) -> Self:
        """Return a prefetcher of the items of another iterator, which one thread at a time advances.

        A forked process cannot continue it. After `close` nothing refers to the other iterator, which closes a
        generator.

        >>> with Prefetcher.of("abc") as letters:
        ...     "".join(letters)
        'abc'
        """
        return cls(_ByNumber(items), itertools.count(), ahead)

    def __next__(self) -> Item:
        self._check_process()
        began = time.perf_counter()
        with self._lock:
            try:
                return self._next_ahead() if self._makes_ahead else self._next_here()
            except StopIteration:
                self._end()
                raise
            finally:
                self.waited_seconds += time.perf_counter() - began

    def close(self) -> None:
        """End the iteration, and wait for the items that are being made."""
        self._check_process()
        with self._lock:
            workers = self._workers
            self._end()
        if workers is not None:
            workers.join(_SECONDS_TO_END)

    def __enter__(self) -> Self:
        with self._lock:
            self._makes_ahead = self._ahead > 0
            if self._makes_ahead:
                self._take_steps(self._ahead)
                self._begin()
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _check_process(self) -> None:
        # A fork copies no threads, and another thread may have held the lock.
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
            self._workers, self._tasks = None, {}

    def _end(self) -> None:
        self._steps, self._waiting = iter(()), deque()
        self._cancel()
        self._make, self._workers = _no_item, None

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
        task = self._tasks[self._waiting[0]]
        try:
            item = task.result()
        except Exception:
            self._pass_first()
            raise
        except BaseException:
            if task.is_lost():  # the next call makes it again
                self._tasks.pop(self._waiting[0], None)
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


def _no_item(step: int) -> NoReturn:
    raise StopIteration


class _ByNumber(Generic[Item]):
    """Function from a number, 0, 1, 2, ..., to that item of an iterator, for threads that ask in any order."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._iterator, self._count = iter(items), 0
        self._lock = threading.Lock()
        self._made: dict[int, Callable[[], Item]] = {}
        """Outcomes of the items that were not asked for yet: `result` of each."""

    def __call__(self, number: int) -> Item:
        with self._lock:
            while self._count <= number:
                self._made[self._count] = self._advance()
                self._count += 1
            item = self._made.pop(number)
        return item()

    def _advance(self) -> Callable[[], Item]:
        made: Future[Item] = Future()
        try:
            made.set_result(next(self._iterator))
        except Exception as error:
            made.set_exception(error)
        return made.result
