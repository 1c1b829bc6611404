"""Lists that may exceed memory: they spill to a temporary file, and one of them sorts its records there."""

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
SPILL_CHUNK, SORT_CHUNK = 20_000, 50_000
"""Items of a `SpillList` and records of an `ExternalSort` that stay in memory; shorter lists never touch the disk."""
_ITEMS_PER_READ = 200
SortedRecord = tuple[str, int, Any]
"""The sort key (text, number) and a value that `marshal` accepts: texts, numbers, tuples, lists and dicts of them."""


class SpillList(Generic[T]):
    """List of items in the order in which they were added; add all items before the first loop.

    Only one loop at a time may read it.

    >>> items = SpillList()
    >>> for number in range(3):
    ...     items.add(number)
    >>> list(items)
    [0, 1, 2]
    """

    def __init__(self) -> None:
        self._in_memory: list[T] = []
        self._file: Any = None
        self._chunks = 0

    def add(self, item: T) -> None:
        """Append an item."""
        self._in_memory.append(item)
        # In groups: one pickle per item would state its classes each time, and one for all would be read at once.
        if len(self._in_memory) >= SPILL_CHUNK:
            self._file = self._file or _temporary_file(self)
            for first in range(0, len(self._in_memory), _ITEMS_PER_READ):
                pickle.dump(self._in_memory[first : first + _ITEMS_PER_READ], self._file)
                self._chunks += 1
            self._in_memory = []

    def __iter__(self) -> Iterator[T]:
        if self._file is not None:
            self._file.seek(0)
            for _ in range(self._chunks):
                yield from pickle.load(self._file)  # noqa: S301 - written above
        yield from self._in_memory


class ExternalSort:
    """Records that every loop yields sorted by text, then by number.

    >>> records = ExternalSort()
    >>> for text, number in (("b", 0), ("a", 2), ("a", 1)):
    ...     records.add((text, number, None))
    >>> [record[:2] for record in records]
    [('a', 1), ('a', 2), ('b', 0)]
    """

    def __init__(self) -> None:
        self._in_memory: list[SortedRecord] = []
        self._runs: list[list[tuple[int, int]]] = []
        self._file: Any = None

    def add(self, record: SortedRecord) -> None:
        """Add a record; no two records may have the same text and number."""
        self._in_memory.append(record)
        if len(self._in_memory) >= SORT_CHUNK:
            self._write_run()

    def _write_run(self) -> None:
        self._file = self._file or _temporary_file(self)
        self._in_memory.sort()
        spans = []
        for first in range(0, len(self._in_memory), _ITEMS_PER_READ):
            data = marshal.dumps(self._in_memory[first : first + _ITEMS_PER_READ])
            spans.append((self._file.tell(), len(data)))
            self._file.write(data)
        self._file.flush()
        self._runs.append(spans)
        self._in_memory = []

    def __iter__(self) -> Iterator[SortedRecord]:
        self._in_memory.sort()
        return heapq.merge(*map(self._read_run, self._runs), self._in_memory)

    def _read_run(self, spans: list[tuple[int, int]]) -> Iterator[SortedRecord]:
        for start, size in spans:
            yield from marshal.loads(os.pread(self._file.fileno(), size, start))  # noqa: S302 - written above


def _temporary_file(owner: object) -> Any:
    """Open a temporary file that is closed and deleted together with its owner."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the finalizer
    weakref.finalize(owner, file.close)
    return file
