"""Lists that may exceed memory: they spill to disk, and one is sorted there."""

from __future__ import annotations

import heapq
import marshal
import os
import pickle
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
SPILL_CHUNK = 20_000
"""Things that are held at once; fewer than that never touch the disk."""
_CHUNK = 200


class SpillList(Generic[T]):
    """Things in the order in which they were added; first they are added, then gone through, one loop at a time.

    >>> aside = Aside()
    >>> for number in range(3):
    ...     aside.add(number)
    >>> list(aside)
    [0, 1, 2]
    """

    def __init__(self) -> None:
        self._held: list[T] = []
        self._file: Any = None
        self._chunks = 0

    def add(self, thing: T) -> None:
        """Take one more."""
        self._held.append(thing)
        if len(self._held) >= SPILL_CHUNK:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - gone with this object
                weakref.finalize(self, self._file.close)
            for first in range(0, len(self._held), _CHUNK):
                pickle.dump(self._held[first : first + _CHUNK], self._file)
                self._chunks += 1
            self._held = []

    def __iter__(self) -> Iterator[T]:
        if self._file is not None:
            self._file.seek(0)
            for _ in range(self._chunks):
                yield from pickle.load(self._file)  # noqa: S301 - written above
        yield from self._held


SORT_CHUNK = 50_000
"""Records that are held and sorted at once; fewer than that never touch the disk."""
_SORTED_CHUNK = 200
Record = tuple[str, int, Any]
"""What it is sorted by, its number, and whatever `marshal` takes: texts, numbers, tuples, lists and dicts of them."""


class ExternalSort:
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
        if len(self._held) >= SORT_CHUNK:
            self._write_run()

    def _write_run(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - gone with this object
            weakref.finalize(self, self._file.close)
        self._held.sort()
        places = []
        for first in range(0, len(self._held), _SORTED_CHUNK):
            data = marshal.dumps(self._held[first : first + _SORTED_CHUNK])
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
