"""How are numbers and tables written for people?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PERHAPS_UNPRINTABLE = re.compile(r"[^\n -~]+")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> list[str]:
    """The rows under their head, each column as wide as it needs; `right` are the numbers' columns."""
    texts = [tuple(map(str, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    ]


def section(title: str, lines: Sequence[str]) -> list[str]:
    """An empty line, the title and the lines under it, further in; "none" where there are none."""
    return ["", title, *(f"  {line}" for line in (lines or ["none"]))]


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count and its noun.

    >>> plural(1, "box", "boxes"), plural(1200, "record")
    ('1 box', '1,200 records')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def percent(share: float) -> str:
    """A share for reading.

    >>> percent(0), percent(0.0004), percent(0.278)
    ('0 %', '< 0.1 %', '27.8 %')
    """
    return "0 %" if share <= 0 else "< 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"


def printable(text: str) -> str:
    """The text without what a terminal would obey or could not show: control characters, lone surrogates.

    >>> printable("a\\x1b[31m\\udcff")
    'a\\\\x1b[31m\\\\udcff'
    """
    return _PERHAPS_UNPRINTABLE.sub(
        lambda found: "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in found[0]
        ),
        text,
    )
