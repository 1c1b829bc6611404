"""Threads that stay safe whatever interrupts the thread that waits for them."""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")

_POLL_SECONDS = 0.2
_SECONDS_TO_END = 10.0


class Task(Generic[Result]):
    """A call that one thread makes, once.

    The task holds the call until it has ended. So memory whose addresses the call uses lives as long as the call, where
    its caller was interrupted too.
    """

    __slots__ = ("_call", "_claim", "_ended", "_error", "_is_over", "_result", "_running", "_thread")

    def __init__(self, call: Callable[[], Result], running: set[int]) -> None:
        self._call: Callable[[], Result] | None = call
        self._running = running
        self._claim, self._ended = threading.Lock(), threading.Lock()
        self._ended.acquire()
        self._is_over = False
        self._thread = 0
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call in this thread, unless another one does or it was canceled."""
        if not self._claim.acquire(blocking=False):
            return
        self._thread = threading.get_ident()
        try:
            if self._call is not None:
                self._result = self._call()
        except BaseException as error:
            self._error = error
        finally:
            self._call = None
            self._is_over = True
            self._ended.release()

    def cancel(self) -> bool:
        """Prevent a call that no thread has begun; return whether no thread makes it or will."""
        if self._claim.acquire(blocking=False):
            self._call, self._is_over = None, True
        return self._is_over

    def wait(self) -> None:
        """Return once the call has ended; make it here where no thread is free for it.

        Raises:
            RuntimeError: an exception from outside has ended the thread that made it.
        """
        if not self._running:
            self.run()
        while not self._is_over:
            if not self._ended.acquire(timeout=_POLL_SECONDS):
                self.run()
                if not self._is_over and self._thread and self._thread not in self._running:
                    raise RuntimeError(
                        "a thread of the loader was ended from outside; ask for the batch again"
                    )

    def result(self) -> Result:
        """Wait, and return what the call returned or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        result: Result = self._result
        return result


class InterruptibleThreads:
    """A fixed number of threads that make calls in the order in which they are submitted.

    The threads start with the first call and end when nobody holds the object. Where the system refuses a thread, the
    others make the calls, or the thread that waits for them. A fork has no threads: make new ones after it.

    Args:
        count: number of threads.

    Attributes:
        process: the number of the process that made it.
        running: the identifiers of the threads that run now.

    >>> workers = Workers(2)
    >>> workers.submit(lambda: 6 * 7).result()
    42
    """

    def __init__(self, count: int) -> None:
        self._queue: SimpleQueue[Task[Any] | None] = SimpleQueue()
        self.count = count
        self.process = os.getpid()
        self.running: set[int] = set()
        self._started = 0
        _all.add(self)

    def submit(self, call: Callable[[], Result]) -> Task[Result]:
        """Return a task whose call a thread will make."""
        while self._started < self.count:
            try:
                _thread.start_new_thread(_work, (self._queue, self.running))
            except (MemoryError, RuntimeError):
                break
            self._started += 1
        task = Task(call, self.running)
        self._queue.put(task)
        return task

    def together(self, call: Callable[[], object], most: int) -> None:
        """Make a call in up to `most` threads at the same time, of which this is one, and wait for all.

        Raises:
            BaseException: what the call raised in one of them.
        """
        tasks: list[Task[object]] = []
        try:
            for _ in range(min(self.count, most) - 1):
                tasks.append(self.submit(call))
            call()
        finally:
            for task in tasks:
                if not task.cancel():
                    task.wait()
        for task in tasks:
            task.result()

    def close(self) -> None:
        """End the threads once they have made the calls that were submitted."""
        self._queue.put(None)

    def __del__(self) -> None:
        if hasattr(self, "_queue"):  # an interrupt may have ended __init__
            self.close()


_all: weakref.WeakSet[InterruptibleThreads] = weakref.WeakSet()


def _work(queue: SimpleQueue[Task[Any] | None], running: set[int]) -> None:
    running.add(_thread.get_ident())
    try:
        while (task := queue.get()) is not None:
            task.run()
            task = None  # frees what the call used while this thread waits
        queue.put(None)  # for the next thread
    finally:
        running.discard(_thread.get_ident())


@atexit.register
def _end_all() -> None:
    """Let no call outlive the interpreter."""
    mine = [workers for workers in _all if workers.process == os.getpid()]
    for workers in mine:
        workers.close()
    end = time.monotonic() + _SECONDS_TO_END
    while any(workers.running for workers in mine) and time.monotonic() < end:
        time.sleep(0.001)


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
