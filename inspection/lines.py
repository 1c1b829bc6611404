"""How are numbers and tables written for people?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
