"""Records in order, of which there may be more than memory holds: sorted by the ten thousand, and merged from disk."""

from __future__ import annotations

import heapq
import marshal
import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any

AT_ONCE = 50_000
"""Records that are held and sorted at once; fewer than that never touch the disk."""
_CHUNK = 200
Record = tuple[str, int, Any]
"""What it is sorted by, its number, and whatever `marshal` takes: texts, numbers, tuples, lists and dicts of them."""


class SortedRecords:
    """Records that are sorted by their text, then their number, whenever they are gone through.

    >>> records = SortedRecords()
    >>> for text, number in (("b", 0), ("a", 2), ("a", 1)):
    ...     records.add((text, number, None))
    >>> [record[:2] for record in records]
    [('a', 1), ('a', 2), ('b', 0)]
    """

    def __init__(self) -> None:
        self._held: list[Record] = []
        self._runs: list[list[tuple[int, int]]] = []
        self._file: Any = None

    def add(self, record: Record) -> None:
        """Take one more; no two have the same text and number."""
        self._held.append(record)
        if len(self._held) >= AT_ONCE:
            self._write_run()

    def _write_run(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - gone with this object
            weakref.finalize(self, self._file.close)
        self._held.sort()
        places = []
        for first in range(0, len(self._held), _CHUNK):
            data = marshal.dumps(self._held[first : first + _CHUNK])
            places.append((self._file.tell(), len(data)))
            self._file.write(data)
        self._file.flush()
        self._runs.append(places)
        self._held = []

    def __iter__(self) -> Iterator[Record]:
        self._held.sort()
        return heapq.merge(*map(self._read_run, self._runs), self._held)

    def _read_run(self, places: list[tuple[int, int]]) -> Iterator[Record]:
        for start, size in places:
            yield from marshal.loads(os.pread(self._file.fileno(), size, start))  # noqa: S302 - written above
