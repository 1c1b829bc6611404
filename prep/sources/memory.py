"""How much memory the inputs that a process decodes at once may take, and which of them take too much.

What an input takes is worked out from its header, before anything of that size is made. What it may take is said by
the recipe, so that equal inputs are rejected everywhere, and by the machine only where it has less.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from halofeed.schemas.errors import SourceError

T = TypeVar("T")

MEBIBYTE = 1 << 20
PICTURES_MIB, VOLUMES_MIB = 4096, 8192
"""What --max-memory is where it is not given."""
TOO_MUCH = "takes too much memory"
Need = Callable[[int], None]
"""Told how many bytes an input takes in all from now on; raises where that is too much."""

_WORDS_OF_LACK = (
    "bad_alloc",
    "cannot allocate",
    "insufficient memory",
    "out of memory",
    "unable to allocate",
)
_OPENCV_NO_MEMORY = -4


def with_margin(byte_count: float) -> int:
    """Bytes that are held, with what allocators keep of memory that was given back: a fifth, and 16 MiB.

    >>> with_margin(100 * MEBIBYTE) // MEBIBYTE
    136
    """
    return round(1.2 * byte_count) + 16 * MEBIBYTE


def unlimited(byte_count: int) -> None:
    """Takes whatever is needed."""


class LaterError(BaseException):
    """There is no room for an input now: it is to be dropped, and started again after `Share.wait`.

    It is no Exception, so that nobody takes it for one of the input.
    """


class MemoryBudget:
    """So many bytes for the inputs that a process decodes at once, whichever of its threads decodes them.

    Args:
        allowed_bytes: by the recipe.
        room_bytes: that the machine has for this process; None where nobody knows.

    >>> budget = MemoryBudget(100)
    >>> share = budget.share()
    >>> share.need(60)
    >>> budget.used
    60
    >>> share.free()
    """

    def __init__(self, allowed_bytes: int, room_bytes: int | None = None) -> None:
        self.allowed_bytes = allowed_bytes
        self.limit_bytes = allowed_bytes if room_bytes is None else min(allowed_bytes, room_bytes)
        self.used = 0
        self._changed = threading.Condition()
        self._waiting: deque[Share] = deque()

    def share(self) -> Share:
        """What one more input may take."""
        return Share(self)

    def take(self, byte_count: int) -> bool:
        """Take so many bytes more, or fewer; whether there was room, and nobody waits for it."""
        with self._changed:
            if byte_count > 0 and (self._waiting or self.used + byte_count > self.limit_bytes):
                return False
            self._add(byte_count)
            return True

    def wait(self, share: Share, byte_count: int) -> None:
        """Take so many bytes as soon as there is room; whoever came first goes first."""
        with self._changed:
            self._waiting.append(share)
            try:
                self._changed.wait_for(
                    lambda: self._waiting[0] is share and self.used + byte_count <= self.limit_bytes
                )
                self._add(byte_count)
            finally:
                self._waiting.remove(share)
                self._changed.notify_all()

    def _add(self, byte_count: int) -> None:
        self.used += byte_count
        if byte_count < 0:
            self._changed.notify_all()


class Share:
    """What one input holds of a budget. It never waits while it holds something, so that no two wait for each other.

    `needed` is the most that it was found to need, and `lacked` says that another machine might have had enough.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.limit_bytes = budget.limit_bytes
        self.held = self.needed = self._asked = 0
        self.lacked = self._alone = False

    def need(self, byte_count: int) -> None:
        """See to it that the input holds so many bytes in all.

        Raises:
            SourceError: it takes more than the whole budget.
            LaterError: there is no room now.
        """
        self.needed = max(self.needed, byte_count)
        if byte_count > self._budget.allowed_bytes:
            allowed = self._budget.allowed_bytes // MEBIBYTE
            raise SourceError(
                "decode",
                TOO_MUCH,
                f"about {mebibytes(byte_count)} MiB; --max-memory allows {allowed:,}; raise it where the machine has "
                f"more, such as --max-memory {-(-2 * byte_count // MEBIBYTE)}",
            )
        if byte_count > self.limit_bytes:
            raise self.lack(f"has {self.limit_bytes // MEBIBYTE:,} for each worker; take fewer --workers")
        if byte_count > self.held:
            if not self._budget.take(byte_count - self.held):
                self._asked = byte_count
                raise LaterError
            self.held = byte_count

    def wait(self) -> None:
        """Give everything back, and go on when there is room for what was needed last."""
        self.free()
        self._budget.wait(self, self._asked)
        self.held = self._asked

    def alone_or_never(self) -> SourceError:
        """The reject of an input for which the machine had no more memory, once it had none beside it.

        Raises:
            LaterError: it had others beside it; `wait` is then for the whole budget.
        """
        if not self._alone:
            self._alone, self._asked = True, self.limit_bytes
            raise LaterError
        return self.lack("has less left; take fewer --workers")

    def lack(self, had: str) -> SourceError:
        """The reject of an input that this machine has too little memory for."""
        self.lacked = True
        return SourceError("decode", TOO_MUCH, f"about {mebibytes(self.needed)} MiB; this machine {had}")

    def free(self) -> None:
        """Give everything back."""
        self._budget.take(-self.held)
        self.held = 0


@cache
def budget_of_process(allowed_bytes: int, room_bytes: int | None) -> MemoryBudget:
    """The budget that all threads of this process share."""
    return MemoryBudget(allowed_bytes, room_bytes)


def mebibytes(byte_count: int) -> str:
    """A size for messages, rounded up.

    >>> mebibytes(3_200_000_000)
    '3,052'
    """
    return f"{-(-byte_count // MEBIBYTE):,}"


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory: Python's, or what libraries make of it.

    >>> lacks_memory(MemoryError()), lacks_memory(ValueError("std::bad_alloc")), lacks_memory(ValueError("bad"))
    (True, True, False)
    """
    if isinstance(error, MemoryError) or getattr(error, "code", None) == _OPENCV_NO_MEMORY:
        return True
    message = str(error).lower()
    return any(words in message for words in _WORDS_OF_LACK)


def with_room(budget: MemoryBudget, work: Callable[[Share], T]) -> T:
    """What `work` returns, which is begun again where there is no room, as soon as there is."""
    share = budget.share()
    try:
        while True:
            try:
                return work(share)
            except LaterError:
                pass  # with it goes what the work held
            share.wait()
    finally:
        share.free()
