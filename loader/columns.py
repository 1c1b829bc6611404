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
        self._values: dict[str, NDArray[Any]] = {}
        self._known: dict[str, NDArray[np.bool_]] = {}

    def get(self, name: str, number: int) -> NDArray[Any] | None:
        """A record's value of a field; None where it was not kept."""
        known = self._known.get(name)
        return self._values[name][number] if known is not None and known[number] else None

    def keep(self, name: str, number: int, value: NDArray[Any]) -> None:
        """Keep a record's value, if there is room for all records'."""
        if name not in self._values and not self._is_made(name, value):
            return
        self._values[name][number] = value
        self._known[name][number] = True

    def forget(self, rows: slice) -> None:
        """Let go of the values of some records."""
        for known in self._known.values():
            known[rows] = False

    def _is_made(self, name: str, value: NDArray[Any]) -> bool:
        size = self._records * (1 + value.nbytes)
        if size > self._left:
            return False
        self._left -= size
        # Zeros take no memory before they are written.
        self._values[name] = np.zeros((self._records, *value.shape), value.dtype)
        self._known[name] = np.zeros(self._records, np.bool_)
        return True
