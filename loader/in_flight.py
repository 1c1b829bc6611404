"""How are the next batches made while one is used?"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class InFlight(Iterator[Item], Generic[Item]):
    """What `make` gives for each step, in order; from the second one on some are made ahead, each in a thread.

    What one thread plans with the interpreter's lock, another copies without it. What `make` raises is raised in its
    turn, and the next item follows upon it. A child of a fork begins again what its parent had begun.

    Args:
        make: gives the item of a step; is called from several threads.
        steps: which, in order.
        ahead: how many items are made or wait while one is used; with 0 each is made when it is asked for.
        expect: is told, before the first item is made, of its step and as many after it as are made ahead.

    >>> "".join(InFlight(str, range(5), 2))
    '01234'
    """

    def __init__(
        self,
        make: Callable[[int], Item],
        steps: Iterable[int],
        ahead: int,
        expect: Callable[[int], object] = lambda step: None,
    ) -> None:
        self._make, self._steps, self._ahead, self._expect = make, iter(steps), ahead, expect
        self._begun: deque[tuple[int, Future[Item]]] = deque()
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        # Whoever takes one item alone does not pay for those after it.
        self._makes_ahead = False

    def __next__(self) -> Item:
        if not self._makes_ahead:
            return self._first()
        executor = self._executor()
        self._begin(executor)
        if not self._begun:
            raise StopIteration
        _, future = self._begun[0]
        future.exception()  # waits; an interrupt meanwhile loses nothing
        self._begun.popleft()
        self._begin(executor)
        return future.result()

    def _first(self) -> Item:
        step, following = next(self._steps), list(itertools.islice(self._steps, self._ahead))
        self._steps = itertools.chain(following, self._steps)
        for expected in (step, *following):
            self._expect(expected)
        self._makes_ahead = self._ahead > 0
        return self._make(step)

    def _begin(self, executor: ThreadPoolExecutor) -> None:
        while len(self._begun) < self._ahead:
            try:
                step = next(self._steps)
            except StopIteration:
                return
            self._begun.append((step, executor.submit(self._make, step)))

    def _executor(self) -> ThreadPoolExecutor:
        if self._threads is None or self._threads[0] != os.getpid():
            executor = ThreadPoolExecutor(self._ahead, "halofeed-ahead")
            self._threads = (os.getpid(), executor)
            self._begun = deque((step, executor.submit(self._make, step)) for step, _ in self._begun)
        return self._threads[1]

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        # Where the interpreter ends, modules are empty and the threads have ended already.
        with suppress(AttributeError, TypeError):
            if self._threads is not None and self._threads[0] == os.getpid():
                self._threads[1].shutdown(wait=False, cancel_futures=True)
