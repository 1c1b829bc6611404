"""Thread pools whose waiting thread may be interrupted at any time.

InterruptibleThreads    runs calls in the order in which they are submitted (the loader)
OrderedThreads          maps a function over items and yields the results in order (the conversion)
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import gc
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_POLL_SECONDS = 0.2
_SECONDS_TO_FINISH = 0.8
"""How long the end of a script waits for calls. The loader's calls stop between two records, within milliseconds. A
call that takes longer waits for a store that does not answer; the process ends without it."""
_IDLE_SECONDS = 0.05
"""How long no outside call may have begun. tf.data begins the next one some microseconds after a result is taken."""
_SECONDS_FOR_OUTSIDE = 0.5
"""How long to wait for outside calls; what they serve is not destroyed, so that the exit is not delayed by them."""
_ending = False


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ThreadTask(Generic[Result]):
    """Call that one thread makes once.

    The task keeps the call until it has ended. So memory whose addresses the call uses exists until then, even if the
    caller was interrupted.
    """

    __slots__ = ("_call", "_claim", "_ended", "_error", "_result", "_running", "_thread", "is_over")

    def __init__(self, call: Callable[[], Result], running: set[int]) -> None:
        self._call: Callable[[], Result] | None = call
        self._running = running
        self._claim, self._ended = threading.Lock(), threading.Lock()
        self._ended.acquire()
        self.is_over = False
        self._thread = 0
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> bool:
        """Make the call in this thread; return False if another thread makes it or it was canceled."""
        if not self._claim.acquire(blocking=False):
            return False
        self._thread = threading.get_ident()
        try:
            if self._call is not None:
                self._result = self._call()
        except BaseException as error:
            self._error = error
        finally:
            self._call = None
            self.is_over = True
            self._ended.release()
        return True

    def cancel(self) -> bool:
        """Prevent a call that no thread has begun; return False if a thread is making it."""
        if self._claim.acquire(blocking=False):  # so no thread has begun it, and none will
            self._call, self.is_over = None, True
        return self.is_over

    def is_lost(self) -> bool:
        """Return whether no thread will give a result, because an interrupt came while a thread made the call."""
        if self.is_over:
            return self._error is not None and not isinstance(self._error, Exception)
        return self._claim.locked() and self._thread not in self._running

    def wait(self) -> None:
        """Return once the call has ended; make it here if no thread is free for it.

        Raises:
            RuntimeError: an exception from outside has ended the thread that made the call.
        """
        if not self._running:  # the system refused every thread, or they have ended
            self.run()
        while not self.is_over:
            # Short waits, because a thread may end from outside without a notice (see `is_lost`).
            if not self._ended.acquire(timeout=_POLL_SECONDS):
                self.run()
                if not self.is_over and self._thread and self._thread not in self._running:
                    raise RuntimeError(
                        "a thread of the loader was ended from outside; ask for the batch again"
                    )

    def result(self) -> Result:
        """Wait for the call and return its result, or raise its exception."""
        self.wait()
        if self._error is not None:
            raise self._error
        result: Result = self._result
        return result


class InterruptibleThreads:
    """Fixed number of threads that make calls in the order in which they are submitted.

    The threads start with the first call and end with the object. If the system refuses a thread, the other threads or
    the waiting thread make the calls. A fork has no threads: make a new object after it.

    Args:
        count: number of threads.

    Attributes:
        process: id of the process that made the object.
        running: identifiers of the threads that run now.

    >>> threads = InterruptibleThreads(2)
    >>> threads.submit(lambda: 6 * 7).result()
    42
    """

    def __init__(self, count: int) -> None:
        self._queue: SimpleQueue[ThreadTask[Any] | None] = SimpleQueue()
        self.count = count
        self.process = os.getpid()
        self.running: set[int] = set()
        self._started = 0
        _all.add(self)

    def submit(self, call: Callable[[], Result]) -> ThreadTask[Result]:
        """Queue a call and return its task."""
        if self.count and not self._started:
            # Handlers run last in, first out: the threads end before JAX, imported earlier, shuts down its devices.
            end_before_interpreter()
        while self._started < self.count:
            try:
                # Added here too, so that the caller leaves the call to a thread that has not begun yet.
                self.running.add(_thread.start_new_thread(_work, (self._queue, self.running)))
            except (MemoryError, RuntimeError):
                break
            self._started += 1
        task = ThreadTask(call, self.running)
        if self._started:
            self._queue.put(task)
        return task

    def together(self, call: Callable[[], object], most: int) -> None:
        """Make a call in up to `most` threads at the same time, including this one, and wait for all of them.

        Raises:
            BaseException: the exception of the call in one of the threads.
        """
        tasks: list[ThreadTask[object]] = []
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
        """End the threads after the submitted calls."""
        self._queue.put(None)

    def join(self, seconds: float) -> None:
        """End the threads after the submitted calls, and wait up to this long for all but the caller's own."""
        self.close()
        deadline = time.monotonic() + seconds
        while self.running - {_thread.get_ident()} and time.monotonic() < deadline:
            time.sleep(0.001)

    def __del__(self) -> None:
        if hasattr(self, "_queue"):  # an interrupt may have ended __init__
            self.close()


_all: weakref.WeakSet[InterruptibleThreads] = weakref.WeakSet()


class ScriptEndedError(RuntimeError):
    """A call was stopped because the script has ended."""


class OutsideCalls:
    """Calls that threads of tf.data make into Python; they end before the interpreter does.

    A thread that asks for Python's lock while the interpreter shuts down never returns, and the destructor of tf.data's
    parallel map waits for it forever. So when the script has ended, calls in flight return and later ones fail at once.
    https://docs.python.org/3.11/c-api/init.html#c.PyEval_RestoreThread

    >>> calls = OutsideCalls()
    >>> calls.make(lambda: calls.active)
    1
    """

    def __init__(self) -> None:
        self.active = 0
        self.begun = 0
        self._owners: list[type] = []
        self._refused = False
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            # The threads that made calls at the time of a fork are not in the child.
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self.active, self._lock = 0, threading.Lock()

    def make(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call.

        Raises:
            StopIteration: the script has ended. TensorFlow logs any other exception of a function that it calls. It
                raises this one as an error too where a map has as many elements as its input, so that a thread that
                still reads does not take it for the end of the data.
        """
        with self._lock:
            self.active += 1
            self.begun += 1
        try:
            if self._refused:
                raise StopIteration
            return call()
        except ScriptEndedError:
            raise StopIteration from None
        finally:
            with self._lock:
                self.active -= 1

    def keep_until_exit(self, owner: type) -> None:
        """Destroy no object of this class, and of its subclasses, after the script has ended.

        Its destructor waits for calls. Some end too late, such as a read from a store that does not answer, or never:
        a forked child has no thread that would make its parent's calls.
        """
        if owner not in self._owners:
            self._owners.append(owner)

    def end(self, deadline: float) -> None:
        """Refuse further calls, and wait until none runs and none was begun for a while."""
        self._refused = True
        owners = tuple(self._owners)
        objects = gc.get_objects() if owners else []
        # A check for each of the few thousand classes, and not of each object: there are about a million objects.
        kept = {kind for kind in set(map(type, objects)) if issubclass(kind, owners)}
        for one in objects:
            if type(one) in kept:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
        begun, since = self.begun, time.monotonic() - (0 if self.begun else _IDLE_SECONDS)
        while (now := time.monotonic()) < deadline:
            if self.active or self.begun != begun:
                begun, since = self.begun, now
            elif now - since > _IDLE_SECONDS:
                return
            time.sleep(0.001)


outside_calls = OutsideCalls()


def end_before_interpreter() -> None:
    """Register the handler that ends threads and outside calls; it runs before all that were registered earlier."""
    atexit.unregister(_end_all)
    atexit.register(_end_all)


def is_ending() -> bool:
    """Return whether the script has ended and its threads are being ended: long calls stop early."""
    return _ending


def _work(queue: SimpleQueue[ThreadTask[Any] | None], running: set[int]) -> None:
    running.add(_thread.get_ident())
    try:
        while (task := queue.get()) is not None:
            task.run()
            task = None  # frees what the call used while this thread waits
        queue.put(None)  # for the next thread
    finally:
        running.discard(_thread.get_ident())


def _end_all() -> None:
    """Finish or stop all calls before the interpreter ends."""
    global _ending
    own = [threads for threads in _all if threads.process == os.getpid()]
    deadline = time.monotonic() + _SECONDS_TO_FINISH
    _ending = True
    try:
        for threads in own:
            threads.close()
        outside_calls.end(min(deadline, time.monotonic() + _SECONDS_FOR_OUTSIDE))
        for threads in own:
            threads.join(deadline - time.monotonic())
    finally:
        _ending = False  # handlers that were registered earlier may still use a loader


def run_in_thread(call: Callable[[], Result], name: str) -> Future[Result]:
    """Make a call in a new daemon thread."""
    future: Future[Result] = Future()
    threading.Thread(target=_complete, args=(future, call), name=name, daemon=True).start()
    return future


def _complete(future: Future[Result], call: Callable[[], Result]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)


def wait_until_done(future: Future[Any], seconds: float) -> bool:
    """Wait up to this many seconds, and return True if the call is done."""
    return bool(wait([future], seconds).done)


class OrderedThreads:
    """Threads, including the caller's own, that map a function over items in order.

    Args:
        threads: number of threads.

    >>> threads = OrderedThreads(2)
    >>> list(threads.map(str.upper, "abc"))
    ['A', 'B', 'C']
    >>> threads.close()
    """

    def __init__(self, threads: int) -> None:
        self.count, self._ahead = threads, threads + 2
        self._others = InterruptibleThreads(threads - 1)

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], ahead: int | None = None
    ) -> Iterator[Result]:
        """Yield function(item) for each item in order.

        Args:
            function: the function to call.
            items: the items.
            ahead: number of calls that may be made before their results are requested; default: two more than
                threads.
        """
        ahead = self._ahead if ahead is None else ahead
        waiting: deque[ThreadTask[Result]] = deque()
        try:
            for item in items:
                waiting.append(self._others.submit(partial(function, item)))
                if len(waiting) > ahead:
                    yield _take(waiting)
            while waiting:
                yield _take(waiting)
        finally:
            for task in waiting:
                task.cancel()

    def close(self) -> None:
        """End the threads after their current calls."""
        self._others.close()


def _take(waiting: deque[ThreadTask[Result]]) -> Result:
    """Return the first result; until it is there, make calls in this thread that no other thread has begun."""
    while not waiting[0].is_over and any(task.run() for task in waiting):
        pass
    return waiting.popleft().result()
