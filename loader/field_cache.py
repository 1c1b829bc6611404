"""Caches of parsed values, so that a record's numbers are parsed once.

Values of static shape are cached in columns, lists of objects record by record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_FIELD_BYTES = 1 << 26
"""Bound for all columns of a split; a field that does not fit is parsed at every read."""
MAX_OBJECT_BYTES = 1 << 26
"""Bound for the objects of a split; objects that do not fit are parsed at every read."""
_ENTRY_BYTES = 160
"""Python's memory for one record's entry, without the objects themselves."""

ObjectLists = Mapping[str, NDArray[Any]]
"""Lists by field name, each [object, ...]."""


class FieldCache:
    """Values of fields of static shape, by record number; safe to use from several threads.

    >>> FieldCache(10).get("label", 3) is None
    True
    """

    def __init__(self, records: int) -> None:
        self._records, self._free_bytes = records, MAX_FIELD_BYTES
        self._columns: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]] = {}
        """By name: the values, and for which records they are cached."""

    def get(self, name: str, numbers: NDArray[np.int64] | int) -> NDArray[Any] | None:
        """Return a field's values of several records, [record, ...], or of one; None if any is missing."""
        column = self._columns.get(name)
        return column[0][numbers] if column is not None and column[1][numbers].all() else None

    def put(self, name: str, number: int, value: NDArray[Any]) -> None:
        """Cache a record's value, if there is room for this field of all records."""
        column = self._columns.get(name) or self._add_column(name, value)
        if column is not None:
            values, cached = column
            values[number] = value
            cached[number] = True

    def invalidate(self, rows: slice) -> None:
        """Discard the values of some records."""
        for _, cached in list(self._columns.values()):
            cached[rows] = False

    def _add_column(self, name: str, value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
        size = self._records * (1 + value.nbytes)
        if size > self._free_bytes:
            return None
        # Zeros take no memory before they are written.
        column = np.zeros((self._records, *value.shape), value.dtype), np.zeros(self._records, np.bool_)
        # `setdefault` is atomic: threads that add the column at the same time all use the first one.
        kept = self._columns.setdefault(name, column)
        if kept is column:
            self._free_bytes -= size
        return kept


class ObjectCache:
    """Lists of the objects of records, by record number; safe to use from several threads.

    >>> cache = ObjectCache()
    >>> cache.put(7, {"classes": np.array([3, 1])})
    >>> cache.get(np.array([7, 7]))[0]["classes"].tolist(), cache.get(np.array([7, 8]))
    ([3, 1, 3, 1], None)
    """

    def __init__(self) -> None:
        self._free_bytes = MAX_OBJECT_BYTES
        self._tables: dict[int, bytes] = {}
        self._dtype: np.dtype[np.void] | None = None

    def get(self, numbers: NDArray[np.int64]) -> tuple[ObjectLists, NDArray[np.int64]] | None:
        """Return the concatenated lists of records and each record's object count; None if any is missing."""
        found = [self._tables.get(number) for number in numbers.tolist()]
        tables = [table for table in found if table is not None]
        if len(tables) < len(found) or self._dtype is None:
            return None
        table = np.frombuffer(b"".join(tables), self._dtype)
        sizes = np.array([len(one) for one in tables], np.int64)
        return {name: table[name] for name in table.dtype.names or ()}, sizes // self._dtype.itemsize

    def put(self, number: int, lists: ObjectLists) -> None:
        """Cache a record's lists, if there is room; all have one length, and all records the same names."""
        if self._free_bytes <= 0 or number in self._tables:
            return
        dtype = np.dtype([(name, one.dtype, one.shape[1:]) for name, one in lists.items()], align=True)
        table = np.zeros(max((len(one) for one in lists.values()), default=0), dtype)
        for name, values in lists.items():
            table[name] = values
        self._dtype = dtype
        self._tables[number] = table.tobytes()
        self._free_bytes -= table.nbytes + _ENTRY_BYTES

    def invalidate(self, rows: slice) -> None:
        """Discard the lists of some records."""
        for number in range(rows.start, rows.stop):
            found = self._tables.pop(number, None)
            self._free_bytes += 0 if found is None else len(found) + _ENTRY_BYTES
