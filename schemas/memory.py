"""How much memory there is."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

from halofeed.schemas.shortage import limit_of


@cache
def machine_memory() -> int:
    """Bytes of memory that this machine has, or that its control group (of a container) may use, if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            memory = min(memory, int(Path(path).read_text()))
    return memory


def process_memory() -> int:
    """Bytes of memory that this process may have: the machine's, or what its own limit (`ulimit -v`) leaves of it."""
    return min(machine_memory(), limit_of("AS") or machine_memory())
