"""Memory of the machine and of this process, and the budget that inputs share."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from halofeed.errors import SourceError
from halofeed.system.resource_errors import limit_of


@cache
def machine_memory() -> int:
    """Bytes of memory that this machine has, or that its control group (of a container) may use, if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            memory = min(memory, int(Path(path).read_text()))
    return memory


def available_memory() -> int:
    """Bytes of memory that this process may have and nobody uses, as far as the system says."""
    memory = process_memory()
    with contextlib.suppress(OSError, ValueError):
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        memory = min(memory, int(facts["MemAvailable"].split()[0]) << 10)
    with contextlib.suppress(OSError, ValueError, KeyError):
        group = Path("/sys/fs/cgroup")
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(facts["inactive_file"])
        memory = min(memory, machine_memory() - used)
    return max(0, memory)


def process_memory() -> int:
    """Bytes of memory that this process may have: the machine's, or what its own limit (`ulimit -v`) leaves of it."""
    return min(machine_memory(), limit_of("AS") or machine_memory())


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


class RetryWhenMemoryFree(BaseException):
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
                raise RetryWhenMemoryFree
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
            raise RetryWhenMemoryFree
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
            except RetryWhenMemoryFree:
                pass  # with it goes what the work held
            share.wait()
    finally:
        share.free()


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's mallopt(3)."""
_MMAP_BYTES = 32 << 20


@contextmanager
def importing() -> Iterator[None]:
    """Import at length without the garbage collector, and spare it what was imported from then on.

    Each of its full rounds walks through all of Beam's modules: that took a fourteenth of a conversion.

    Pillow reads its settings when it is imported: it puts large images together from blocks of 16 MiB, which
    `keep_freed_memory` would keep beside the array that takes an image's place. Larger blocks are handed back. Arrow,
    which Beam imports, would start a thread, and a process that will be copied must have none.
    """
    os.environ.setdefault("PILLOW_BLOCK_SIZE", str(2 * _MMAP_BYTES))
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def keep_freed_memory() -> None:
    """Have glibc reuse freed blocks of up to 32 MiB, and up to 256 MiB of them, rather than hand them back.

    Every fresh megabyte costs 256 page faults, and threads wait for one another at each. It is a setting of the
    whole process, so only the command line and its workers call this. Other C libraries are left alone.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_TRIM_THRESHOLD, 256 << 20)
    mallopt(_TOP_PAD, 16 << 20)
