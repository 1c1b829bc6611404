"""How much memory there is."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

from halofeed.schemas.system_errors import limit_of


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
