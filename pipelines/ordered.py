"""How calls are made by other threads: by one that is watched, or by a few while their results come out in order.

Of the few, the thread that asks for the results computes too, whenever the next one is not there yet: as many threads
run as were asked for, and the one that writes is never a third one on two cores.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_thread(call: Callable[[], R], name: str) -> Future[R]:
    """Have a call made by a thread of its own, which nobody waits for at the end of this process."""
    outcome: Future[R] = Future()

    def make() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=make, name=name, daemon=True).start()
    return outcome


def is_done(outcome: Future[Any], seconds: float) -> bool:
    """Whether a call is done within so many seconds."""
    return bool(wait([outcome], seconds).done)


class _Call(Generic[T, R]):
    """function(item), made once, by whichever thread comes first."""

    def __init__(self, function: Callable[[T], R], item: T) -> None:
        self._function, self._item = function, item
        self._claim = threading.Lock()
        self.outcome: Future[R] = Future()

    def run(self) -> bool:
        """Make the call, unless it was claimed before; whether it was made here."""
        if not self._claim.acquire(blocking=False):
            return False
        try:
            self.outcome.set_result(self._function(self._item))
        except BaseException as error:
            self.outcome.set_exception(error)
        return True

    def cancel(self) -> None:
        """Claim the call and leave it."""
        self._claim.acquire(blocking=False)


class OrderedThreads:
    """So many threads, the caller's own among them.

    >>> threads = OrderedThreads(2)
    >>> list(threads.map(str.upper, "abc"))
    ['A', 'B', 'C']
    >>> threads.close()
    """

    def __init__(self, threads: int) -> None:
        self._ahead = threads + 2
        self._executor = ThreadPoolExecutor(threads - 1, "decode") if threads > 1 else None

    def map(self, function: Callable[[T], R], items: Iterable[T], ahead: int | None = None) -> Iterator[R]:
        """function(item) for each item in order.

        Args:
            ahead: how many calls may be made, or under way, before their outcome is asked for; two more than there
                are threads if it is left out.
        """
        ahead = self._ahead if ahead is None else ahead
        waiting: deque[_Call[T, R]] = deque()
        try:
            for item in items:
                call = _Call(function, item)
                waiting.append(call)
                if self._executor is not None:
                    self._executor.submit(call.run)
                if len(waiting) > ahead:
                    yield _take(waiting)
            while waiting:
                yield _take(waiting)
        finally:
            for call in waiting:
                call.cancel()

    def close(self) -> None:
        """Let the threads end when they are done with what they do."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _take(waiting: deque[_Call[T, R]]) -> R:
    """The first outcome; while it is not there, this thread makes the calls that nobody makes yet."""
    while not waiting[0].outcome.done() and any(call.run() for call in waiting):
        pass
    return waiting.popleft().outcome.result()
