"""Formatting of numbers and tables for text output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_MAYBE_UNPRINTABLE = re.compile(r"[^\n -~]+")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> list[str]:
    """Format rows below a header, each column as wide as it needs.

    Args:
        right: numbers of the right-aligned columns.
    """
    texts = [tuple(map(str, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    ]


def titled_lines(title: str, lines: Sequence[str]) -> list[str]:
    """Return an empty line, the title and the indented lines; "none" if there are no lines."""
    return ["", title, *(f"  {line}" for line in (lines or ["none"]))]


def percent(share: float) -> str:
    """Format a share as a percentage.

    >>> percent(0), percent(0.0004), percent(0.278)
    ('0 %', '< 0.1 %', '27.8 %')
    """
    return "0 %" if share <= 0 else "< 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"


def escape_unprintable(text: str) -> str:
    """Escape characters that a terminal would execute or cannot show: control characters, lone surrogates.

    >>> escape_unprintable("a\\x1b[31m\\udcff")
    'a\\\\x1b[31m\\\\udcff'
    """
    return _MAYBE_UNPRINTABLE.sub(
        lambda found: "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in found[0]
        ),
        text,
    )


def times(sides: Any, each: str = "") -> str:
    """Join sizes with a multiplication sign.

    >>> times((2, 3)), times((2.5, 3.0), "g")
    ('2 × 3', '2.5 × 3')
    """
    return " × ".join(format(side, each) for side in sides)
