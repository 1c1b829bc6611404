"""Which color has a class, in pictures and beside them?"""

from __future__ import annotations

_CLASS_COLORS = (
    "#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#a855f7", "#06b6d4",
    "#ec4899", "#84cc16", "#f97316", "#6366f1", "#14b8a6", "#eab308",
)  # fmt: skip
_DARK_INK = frozenset({"#f59e0b", "#10b981", "#06b6d4", "#84cc16", "#f97316", "#14b8a6", "#eab308"})


def color_of(rank: int) -> str:
    """The color of the class of that rank, as a style."""
    color = _CLASS_COLORS[rank % len(_CLASS_COLORS)]
    return f"--k:{color};--on:{'#1a1a1a' if color in _DARK_INK else '#fff'}"


def rgb_of(rank: int) -> tuple[int, int, int]:
    """The same color in numbers, for pictures."""
    red, green, blue = bytes.fromhex(_CLASS_COLORS[rank % len(_CLASS_COLORS)][1:])
    return red, green, blue
