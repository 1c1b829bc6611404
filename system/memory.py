"""Memory of the machine and of this process, and the budget that inputs share.

MemoryBudget    bytes that a process may use for the inputs that it decodes at the same time
Share           part of the budget that one input holds
with_room       repeats the work of an input once memory is free
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from halofeed.system.errors import SourceError
from halofeed.system.resource_errors import resource_limit


@cache
def machine_memory() -> int:
    """Return the bytes of memory of this machine, or the limit of its control group (container) if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Control groups of version 2, whose file may say "max", and of version 1.
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            memory = min(memory, int(Path(path).read_text()))
    return memory


def available_memory() -> int:
    """Return the bytes of free memory that this process may use, as far as the system reports them."""
    memory = process_memory()
    with contextlib.suppress(OSError, ValueError):
        values = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        memory = min(memory, int(values["MemAvailable"].split()[0]) << 10)
    with contextlib.suppress(OSError, ValueError, KeyError):
        group = Path("/sys/fs/cgroup")
        values = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # The page cache counts as used by the group, but the kernel reclaims its inactive part first.
        used = int((group / "memory.current").read_text()) - int(values["inactive_file"])
        memory = min(memory, machine_memory() - used)
    return max(0, memory)


def process_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its own limit (`ulimit -v`)."""
    return min(machine_memory(), resource_limit("AS") or machine_memory())


T = TypeVar("T")

MEBIBYTE = 1 << 20
PICTURES_MIB, VOLUMES_MIB = 4096, 8192
"""Defaults of --max-memory."""
TOO_MUCH_MEMORY = "takes too much memory"
ReserveMemory = Callable[[int], None]
"""Function that reserves the total bytes that an input needs from now on, and a margin; it may raise."""

_OUT_OF_MEMORY_WORDS = (
    "bad_alloc",
    "cannot allocate",
    "insufficient memory",
    "out of memory",
    "unable to allocate",
)
_OPENCV_NO_MEMORY = -4


def with_margin(byte_count: float) -> int:
    """Add what allocators keep of freed memory to a number of bytes: a fifth, and 16 MiB."""
    return round(1.2 * byte_count) + 16 * MEBIBYTE


def no_memory_limit(byte_count: int) -> None:
    """Accept any number of bytes."""


class RetryWhenMemoryFree(BaseException):
    """Signal that there is no memory for an input now; `retry_when_memory_free` drops its work and repeats it later.

    It is not an Exception, so that no handler treats it as an error of the input.
    """


class MemoryBudget:
    """Bytes for the inputs that all threads of a process decode at the same time.

    Args:
        allowed_bytes: limit of the recipe (--max-memory).
        room_bytes: memory that the machine has for this process; None if unknown.

    >>> budget = MemoryBudget(100)
    >>> share = budget.share()
    >>> share.reserve(60)
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
        """Return an empty share for one more input."""
        return Share(self)

    def take(self, byte_count: int) -> bool:
        """Reserve more bytes, or free some if negative; return False if there is no room or another input waits."""
        with self._changed:
            # Nobody overtakes a waiting input; else small inputs would keep a large one waiting without end.
            if byte_count > 0 and (self._waiting or self.used + byte_count > self.limit_bytes):
                return False
            self._add(byte_count)
            return True

    def wait(self, share: Share, byte_count: int) -> None:
        """Reserve bytes as soon as there is room; the first waiting share is served first."""
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
    """Bytes of a budget that one input holds. It never waits while it holds bytes, so there is no deadlock.

    Attributes:
        held: bytes that it holds now.
        needed: largest number of bytes that the input needed so far.
        lacked: True if the input was refused because of this machine, and another machine may accept it.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.limit_bytes = budget.limit_bytes
        self.held = self.needed = self._asked = 0
        self.lacked = self._alone = False

    def reserve(self, byte_count: int) -> None:
        """Reserve bytes until the input holds this number in total.

        Raises:
            SourceError: the input needs more than the complete budget.
            RetryWhenMemoryFree: there is no room now.
        """
        self.needed = max(self.needed, byte_count)
        # Of the recipe, so every machine rejects the same inputs; what this machine lacks is checked below.
        if byte_count > self._budget.allowed_bytes:
            allowed = self._budget.allowed_bytes // MEBIBYTE
            raise SourceError(
                "decode",
                TOO_MUCH_MEMORY,
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

    def reserve_with_margin(self, byte_count: int) -> None:
        """Reserve bytes as a `ReserveMemory`: with what allocators keep of freed memory."""
        self.reserve(with_margin(byte_count))

    def wait(self) -> None:
        """Free everything, and return when the bytes of the last refused `reserve` are reserved."""
        self.free()
        self._budget.wait(self, self._asked)
        self.held = self._asked

    def alone_or_never(self) -> SourceError:
        """Return the rejection of an input that ran out of memory while it was decoded alone.

        Raises:
            RetryWhenMemoryFree: it was not alone; `wait` then reserves the complete budget.
        """
        if not self._alone:
            self._alone, self._asked = True, self.limit_bytes
            raise RetryWhenMemoryFree
        return self.lack("has less left; take fewer --workers")

    def lack(self, had: str) -> SourceError:
        """Return the rejection of an input for which this machine has too little memory."""
        self.lacked = True
        return SourceError(
            "decode", TOO_MUCH_MEMORY, f"about {mebibytes(self.needed)} MiB; this machine {had}"
        )

    def free(self) -> None:
        """Free everything."""
        self._budget.take(-self.held)
        self.held = 0


@cache
def process_budget(allowed_bytes: int, room_bytes: int | None) -> MemoryBudget:
    """Return the budget that all threads of this process share."""
    return MemoryBudget(allowed_bytes, room_bytes)


def mebibytes(byte_count: int) -> str:
    """Return a size in MiB for messages, rounded up.

    >>> mebibytes(3_200_000_000)
    '3,052'
    """
    return f"{-(-byte_count // MEBIBYTE):,}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error of Python or of a library says that there was no memory.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("std::bad_alloc"))
    (True, True)
    """
    if isinstance(error, MemoryError) or getattr(error, "code", None) == _OPENCV_NO_MEMORY:
        return True
    # C++ libraries raise RuntimeError or ValueError with the text of std::bad_alloc or of another check.
    message = str(error).lower()
    return any(words in message for words in _OUT_OF_MEMORY_WORDS)


def retry_when_memory_free(budget: MemoryBudget, work: Callable[[Share], T]) -> T:
    """Return the result of `work`; repeat it when memory is free again if it raises RetryWhenMemoryFree."""
    share = budget.share()
    try:
        while True:
            try:
                return work(share)
            except RetryWhenMemoryFree:
                pass  # dropping the exception frees the arrays of the work
            share.wait()
    finally:
        share.free()


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8
"""Parameter numbers of glibc's mallopt(3)."""
_MMAP_BYTES = 32 << 20


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Import heavy libraries without garbage collection, and exclude their objects from later collections.

    A full collection visits all of Beam's modules, which took 7 % of a conversion.

    Pillow reads its settings when it is imported. By default it allocates large images in blocks of 16 MiB, which
    `keep_freed_memory` would keep beside the array of the image. Larger blocks go back to the system. Arrow, which Beam
    imports, would start a thread, and a process that forks must have none.
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
    """Make glibc keep freed blocks of up to 32 MiB, 256 MiB in total, instead of returning them to the system.

    Every new megabyte costs 256 page faults, and threads wait for each other at each one. The setting applies to the
    complete process, so only the command line and its workers call this. It has no effect on other C libraries.
    """
    _set_glibc({_MMAP_THRESHOLD: _MMAP_BYTES, _TRIM_THRESHOLD: 256 << 20, _TOP_PAD: 16 << 20})


def keep_all_freed_memory() -> None:
    """Make glibc keep all freed blocks, of any size, in one heap.

    XLA on a processor allocates the memory of a step anew for each step. glibc maps blocks above 32 MiB at each call
    and unmaps them when they are freed, whatever its threshold, and the kernel clears each page again: a fifth of the
    time of a run of a small U-Net. Only the first heap can hold blocks of any size, so threads must not open others.
    That must be set before their first allocation, and so before JAX starts. The setting applies to the complete
    process, which keeps its largest memory to its end.
    """
    _set_glibc({_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 << 20})


def give_back_freed_memory() -> None:
    """Return freed blocks to the system once, also after `keep_all_freed_memory`, by glibc's malloc_trim(3)."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def _set_glibc(values: Mapping[int, int]) -> None:
    """Call glibc's mallopt(3) with numbers of parameters and values, where the system has glibc."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    for parameter, value in values.items():
        mallopt(parameter, value)
