"""How are the report's sections, cards and colours put together?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from halofeed.inspection.markup import Markup, element

_CLASS_COLOURS = (
    "#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#a855f7", "#06b6d4",
    "#ec4899", "#84cc16", "#f97316", "#6366f1", "#14b8a6", "#eab308",
)  # fmt: skip
_DARK_INK = frozenset({"#f59e0b", "#10b981", "#06b6d4", "#84cc16", "#f97316", "#14b8a6", "#eab308"})


def colour_of(rank: int) -> str:
    """The colour of the class of that rank, as a style."""
    colour = _CLASS_COLOURS[rank % len(_CLASS_COLOURS)]
    return f"--k:{colour};--on:{'#1a1a1a' if colour in _DARK_INK else '#fff'}"


def rgb_of(rank: int) -> tuple[int, int, int]:
    """The same colour in numbers, for pictures."""
    red, green, blue = bytes.fromhex(_CLASS_COLOURS[rank % len(_CLASS_COLOURS)][1:])
    return red, green, blue


def section(name: str, title: str, *children: Any, lead: str | Markup | None = None) -> Markup:
    """One section of the page with its heading and a sentence under it."""
    opening = element("p", "lead", lead) if lead else None
    return element("section", {"id": name}, element("h2", None, title), opening, *children)


def card(title: str, *children: Any, note: str | Markup | None = None) -> Markup:
    """A chart or table with its heading."""
    foot = element("p", "note", note) if note else None
    return element("div", "card", element("h3", None, title), *children, foot)


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    return element(
        "p",
        "legend",
        [element("span", None, element("i", f"swatch {kind}"), words) for kind, words in entries],
    )
