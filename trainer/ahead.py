"""Preparation of the next batches while the device works on this one."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

Item = TypeVar("Item")

JOIN_SECONDS = 10.0
"""How long `close` waits for an item that is being made; the thread never keeps the interpreter alive."""


class Ahead(Iterator[Item], Generic[Item]):
    """The items of an iterator, made in one background thread from the moment this is built.

    An exception of the iterator is raised by the `next` that would have given its item. After `close`, or when this
    is no longer referred to, the thread ends, and the iterator is closed where it can be (a generator).

    Args:
        iterator: gives the items; only the thread touches it from now on.
        depth: how many items at most wait to be taken, the one being made included.

    >>> with Ahead(iter("abc")) as letters:
    ...     "".join(letters)
    'abc'
    """

    def __init__(self, iterator: Iterable[Item], depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"depth: expected 1 or more, got {depth}")
        self.waited_seconds = 0.0
        """How long `next` has blocked, in total."""
        # The thread refers to the channel alone, so that an Ahead nobody refers to is collected and closed.
        self._channel: _Channel[Item] = _Channel(depth)
        self._thread = threading.Thread(
            target=self._channel.fill, args=(iter(iterator),), name="ahead", daemon=True
        )
        self._thread.start()
        # Handlers run last in, first out: the thread ends before JAX takes its devices down.
        self._at_exit = _Exit(self._channel, self._thread)
        atexit.register(self._at_exit)

    def __next__(self) -> Item:
        started = time.perf_counter()
        try:
            return self._channel.take()
        finally:
            self.waited_seconds += time.perf_counter() - started

    def close(self) -> None:
        """End the thread and drop what it has made; `next` raises StopIteration from now on."""
        atexit.unregister(self._at_exit)
        self._at_exit()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        # Where the interpreter ends, modules are empty and the thread has ended already.
        with suppress(AttributeError, TypeError):
            self.close()


class _Exit:
    """Ends a thread; an object of its own, for atexit must not refer to the Ahead."""

    def __init__(self, channel: _Channel[Any], thread: threading.Thread) -> None:
        self._channel, self._thread = channel, thread

    def __call__(self) -> None:
        self._channel.close()
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)


class _Channel(Generic[Item]):
    """State shared by the thread and the consumer."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._ended = False
        self._error: BaseException | None = None

    def fill(self, iterator: Iterator[Item]) -> None:
        """Make items until the iterator ends or fails, or the channel is closed."""
        error: BaseException | None = None
        try:
            while self._wait_for_room():
                try:
                    item = next(iterator)
                except StopIteration:
                    break
                with self._changed:
                    if not self._ended:
                        self._items.append(item)
                    self._changed.notify_all()
                del item
            if hasattr(iterator, "close"):
                iterator.close()
        except BaseException as raised:  # the taker raises it
            error = raised
        with self._changed:
            if not self._ended:
                self._error = error
            self._ended = True
            self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._items) < self._depth)
            return not self._ended

    def take(self) -> Item:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended)
            if self._items:
                self._changed.notify_all()
                return self._items.popleft()
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._error = None
            self._items.clear()
            self._changed.notify_all()
