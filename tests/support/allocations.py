"""How much memory Python allocates in a while."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Traced:
    """Bytes: the most that was allocated at once, and what still is."""

    peak: int = 0
    kept: int = 0


@contextmanager
def traced() -> Iterator[Traced]:
    """Count what is allocated inside; the figures are there afterwards."""
    found = Traced()
    tracemalloc.start()
    try:
        yield found
    finally:
        found.kept, found.peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
