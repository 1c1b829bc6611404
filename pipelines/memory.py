"""How the process handles memory: pictures come and go by the megabyte, and Beam's modules stay."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's mallopt(3)."""


@contextmanager
def importing() -> Iterator[None]:
    """Import at length without the garbage collector, and spare it what was imported from then on.

    Each of its full rounds walks through all of Beam's modules: that took a fourteenth of a conversion.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def keep_freed_memory() -> None:
    """Have glibc reuse freed blocks of up to 32 MiB in place of handing them back to the system.

    Every fresh megabyte costs 256 page faults, and threads wait for one another at each. It is a setting of the
    whole process, so only the command line and its workers call this. Other C libraries are left alone.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, 32 << 20)
    mallopt(_TRIM_THRESHOLD, 256 << 20)
    mallopt(_TOP_PAD, 16 << 20)
