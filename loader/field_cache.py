"""Which numbers of records are kept once they were read, so that a record is not parsed for them again?

Those of static shape in columns, those of objects record by record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 1 << 26
"""Of all columns of a split; a field that does not fit is read from its record each time."""
MOST_LIST_BYTES = 1 << 26
"""Of the objects of a split; what does not fit is read from its record each time."""
_ENTRY_BYTES = 160
"""That Python takes to keep one record's objects, beside these."""

KeptLists = Mapping[str, NDArray[Any]]
"""Lists by name, each [object, ...]."""


class Columns:
    """The values of fields of static shape, by the record's number; safe to use from several threads.

    >>> Columns(10).get("label", 3) is None
    True
    """

    def __init__(self, records: int) -> None:
        self._records, self._left = records, MOST_BYTES
        self._columns: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]] = {}
        """By name: the values, and of which records they are known."""

    def get(self, name: str, numbers: NDArray[np.int64] | int) -> NDArray[Any] | None:
        """The values of a field of several records, [record, ...], or of one; None where one was not kept."""
        column = self._columns.get(name)
        return column[0][numbers] if column is not None and column[1][numbers].all() else None

    def keep(self, name: str, number: int, value: NDArray[Any]) -> None:
        """Keep a record's value, if there is room for all records'."""
        column = self._columns.get(name) or self._made(name, value)
        if column is not None:
            values, known = column
            values[number] = value
            known[number] = True

    def forget(self, rows: slice) -> None:
        """Let go of the values of some records."""
        for _, known in list(self._columns.values()):
            known[rows] = False

    def _made(self, name: str, value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
        size = self._records * (1 + value.nbytes)
        if size > self._left:
            return None
        # Zeros take no memory before they are written.
        column = np.zeros((self._records, *value.shape), value.dtype), np.zeros(self._records, np.bool_)
        # One step, so that where several threads make the column at the same time all write into one.
        kept = self._columns.setdefault(name, column)
        if kept is column:
            self._left -= size
        return kept


class Lists:
    """The lists of records' objects, by the record's number; safe to use from several threads.

    >>> lists = Lists()
    >>> lists.keep(7, {"classes": np.array([3, 1])})
    >>> lists.rows(np.array([7, 7]))[0]["classes"].tolist(), lists.rows(np.array([7, 8]))
    ([3, 1, 3, 1], None)
    """

    def __init__(self) -> None:
        self._left = MOST_LIST_BYTES
        self._kept: dict[int, bytes] = {}
        self._dtype: np.dtype[np.void] | None = None

    def rows(self, numbers: NDArray[np.int64]) -> tuple[KeptLists, NDArray[np.int64]] | None:
        """Those of records, one after the other, and how many objects each has; None where one was not kept."""
        found = [self._kept.get(number) for number in numbers.tolist()]
        kept = [one for one in found if one is not None]
        if len(kept) < len(found) or self._dtype is None:
            return None
        table, sizes = (
            np.frombuffer(b"".join(kept), self._dtype),
            np.array([len(one) for one in kept], np.int64),
        )
        return {name: table[name] for name in table.dtype.names or ()}, sizes // self._dtype.itemsize

    def keep(self, number: int, lists: KeptLists) -> None:
        """Keep a record's lists, all of one length, if there is room; those of all records have the same names."""
        if self._left <= 0 or number in self._kept:
            return
        dtype = np.dtype([(name, one.dtype, one.shape[1:]) for name, one in lists.items()], align=True)
        table = np.zeros(max((len(one) for one in lists.values()), default=0), dtype)
        for name, values in lists.items():
            table[name] = values
        self._dtype = dtype
        self._kept[number] = table.tobytes()
        self._left -= table.nbytes + _ENTRY_BYTES

    def forget(self, rows: slice) -> None:
        """Let go of the lists of some records."""
        for number in range(rows.start, rows.stop):
            found = self._kept.pop(number, None)
            self._left += 0 if found is None else len(found) + _ENTRY_BYTES
