"""Rows of a decoder that gives each row once, from top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.region.region_reader import RegionFacts, check_window

ReadRows = Callable[[int], NDArray[Any]]
"""Function that returns the next rows [row, width, band], at least one and at most the given number."""


class RowWindows:
    """Windows of rows that come in order.

    Args:
        facts: facts of the picture, with `in_order`.
        next_rows: function that decodes the next rows.
    """

    def __init__(self, facts: RegionFacts, next_rows: ReadRows) -> None:
        self._facts, self._next_rows, self._next = facts, next_rows, 0

    def read(self, level: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window, see `RegionReader.read`; rows above it are decoded and dropped.

        Raises:
            RuntimeError: a row was read before.
        """
        facts = self._facts
        check_window(facts, level, top, left, height, width)
        if top < self._next:
            raise RuntimeError(
                f"row {top} was asked for after row {self._next - 1}: the rows of this picture can be read once, from "
                "top to bottom; open it again"
            )
        while self._next < top:
            self._next += len(self._next_rows(top - self._next))
        window = np.empty((height, width, facts.bands), facts.dtype)
        while self._next < top + height:
            rows = self._next_rows(top + height - self._next)
            window[self._next - top :][: len(rows)] = rows[:, left : left + width]
            self._next += len(rows)
        return window
