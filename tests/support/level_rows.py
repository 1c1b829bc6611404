"""Table rows that run only at a slower level of the tests."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def others(rows: Iterable[Any], quick: Collection[Any], mark=pytest.mark.long) -> list[Any]:
    """Return the rows of a table for `parametrize`, with the mark on all but the quick ones."""
    return [
        row if row in quick else pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=mark)
        for row in rows
    ]
