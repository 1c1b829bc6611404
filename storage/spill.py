"""Lists that may exceed memory: they spill to a temporary SQLite database, and one of them sorts its records there."""

from __future__ import annotations

import errno
import marshal
import pickle
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
SPILL_CHUNK, SORT_CHUNK = 20_000, 50_000
"""Items of a `SpillList` and records of an `ExternalSort` that stay in memory; shorter lists never touch the disk."""
_ITEMS_PER_ROW = 200
"""Items that are pickled together: a row for each item takes 1.5 times as long."""
SortedRecord = tuple[str, int, Any]
"""The sort key (text, number) and a value that `marshal` accepts: texts, numbers, tuples, lists and dicts of them."""


class SpillList(Generic[T]):
    """List of items in the order in which they were added; add all items before the first loop.

    >>> items = SpillList()
    >>> for number in range(3):
    ...     items.add(number)
    >>> list(items)
    [0, 1, 2]
    """

    def __init__(self) -> None:
        self._in_memory: list[T] = []
        self._database: sqlite3.Connection | None = None

    def add(self, item: T) -> None:
        """Append an item."""
        self._in_memory.append(item)
        if len(self._in_memory) < SPILL_CHUNK:
            return
        if self._database is None:
            self._database = _temporary_database(self, "items blob")
        starts = range(0, len(self._in_memory), _ITEMS_PER_ROW)
        chunks = (self._in_memory[start : start + _ITEMS_PER_ROW] for start in starts)
        _insert(self._database, "insert into kept values (?)", ((pickle.dumps(chunk),) for chunk in chunks))
        self._in_memory = []

    def __iter__(self) -> Iterator[T]:
        if self._database is not None:
            for (items,) in _select(self._database, "select items from kept order by rowid"):
                yield from pickle.loads(items)  # noqa: S301 - written above
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
        self._database: sqlite3.Connection | None = None

    def add(self, record: SortedRecord) -> None:
        """Add a record; no two records may have the same text and number."""
        self._in_memory.append(record)
        if len(self._in_memory) >= SORT_CHUNK:
            self._spill()

    def _spill(self) -> None:
        if self._database is None:
            self._database = _temporary_database(self, "text blob, number integer, value blob")
        _insert(self._database, "insert into kept values (?, ?, ?)", map(_to_row, self._in_memory))
        self._in_memory = []

    def __iter__(self) -> Iterator[SortedRecord]:
        if self._database is None:
            self._in_memory.sort()
            return iter(self._in_memory)
        self._spill()
        # Sorting at the end takes half the time of an index that every insertion updates.
        rows = _select(self._database, "select text, number, value from kept order by text, number")
        return map(_from_row, rows)


def _to_row(record: SortedRecord) -> tuple[bytes, int, bytes]:
    text, number, value = record
    # File names that are not UTF-8 have lone surrogates, which SQLite's text refuses. The bytes sort as the texts do.
    return text.encode("utf-8", "surrogatepass"), number, marshal.dumps(value)


def _from_row(row: tuple[bytes, int, bytes]) -> SortedRecord:
    text, number, value = row
    return text.decode("utf-8", "surrogatepass"), number, marshal.loads(value)  # noqa: S302 - written above


def _temporary_database(owner: object, columns: str) -> sqlite3.Connection:
    """Open a database that is deleted together with its owner, with one table "kept" of these columns.

    SQLite keeps 2 MB of it in memory and the rest in a file below $TMPDIR that it unlinks at once, so that a killed
    process leaves no file.
    """
    import sqlite3  # only long lists need it

    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    weakref.finalize(owner, database.close)
    # Nobody reads the database after a crash, so it needs neither a journal nor transactions that end.
    for statement in ("pragma journal_mode = off", f"create table kept ({columns})", "begin"):
        database.execute(statement)
    return database


def _insert(database: sqlite3.Connection, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
    with _disk_errors():
        database.executemany(statement, rows)


def _select(database: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    with _disk_errors():
        yield from database.execute(query)


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Raise SQLite's errors of the disk as OSError, for which `halofeed.system.resource_errors` has the fix."""
    import sqlite3

    try:
        yield
    except sqlite3.OperationalError as error:
        is_full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
        raise OSError(errno.ENOSPC if is_full else errno.EIO, f"temporary file: {error}") from error
