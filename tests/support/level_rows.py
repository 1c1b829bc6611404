"""Table rows that run only at a slower level of the tests."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def others(rows: Iterable[Any], quick: Collection[Any], mark=pytest.mark.long) -> list[Any]:
    """Return the rows of a table for `parametrize`, with the mark on all but the quick ones."""
    return [row if row in quick else _marked([row], mark)[0] for row in rows]


def levels(*quick: Any, long: Iterable[Any] = (), exhaustive: Iterable[Any] = ()) -> list[Any]:
    """Return the rows of a table for `parametrize`: the quick ones, and the slower ones with their marks."""
    return [*quick, *_marked(long, pytest.mark.long), *_marked(exhaustive, pytest.mark.exhaustive)]


def _marked(rows: Iterable[Any], mark: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=mark) for row in rows]
