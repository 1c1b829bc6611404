"""In which order class names stand where neither a label map nor the layout says it."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def in_class_order(names: Iterable[str]) -> list[str]:
    """Each name once: those that are numbers first, by their value, then the others as text.

    >>> in_class_order(["10", "2", "hat", "9", "coat", "2"])
    ['2', '9', '10', 'coat', 'hat']
    """
    return sorted(set(names), key=_order)


def _order(name: str) -> tuple[bool, float, str]:
    value = number_of(name)
    return value is None, value or 0.0, name


def some_of(names: Iterable[str]) -> str:
    """The first twenty names, for a message, and how many there are where these are not all."""
    listed = list(names)
    return ", ".join(listed[:20]) + (f", ... ({len(listed)} in all)" if len(listed) > 20 else "")


def number_of(name: str) -> float | None:
    """The number that a class name is, or None.

    >>> number_of("10"), number_of("2.0"), number_of("hat 2")
    (10.0, 2.0, None)
    """
    return float(name) if _NUMBER.fullmatch(name) else None
