"""How the process handles memory: pictures come and go by the megabyte, and Beam's modules stay."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
