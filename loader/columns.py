"""Which numbers of records are kept once they were read, so that a record is not parsed for them again?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 1 << 26
"""Of all columns of a split; a field that does not fit is read from its record each time."""


class Columns:
    """The values of fields of static shape, by the record's number; safe to use from several threads.

    >>> Columns(10).get("label", 3) is None
    True
    """

    def __init__(self, records: int) -> None:
        self._records, self._left = records, MOST_BYTES
        self._columns: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]] = {}
        """By name: the values, and of which records they are known."""

    def get(self, name: str, number: int) -> NDArray[Any] | None:
        """A record's value of a field; None where it was not kept."""
        column = self._columns.get(name)
        return column[0][number] if column is not None and column[1][number] else None

    def rows(self, name: str, numbers: NDArray[np.int64]) -> NDArray[Any] | None:
        """Those of several records, [record, ...]; None where one was not kept."""
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
