"""The phantom of `halofeed.prep.voxels.phantom` with what only tests need: all orientations, and the Dice overlap."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

from numpy.typing import NDArray

from halofeed.prep.voxels.phantom import (
    AIR_HU,
    LABELLED,
    ORGANS,
    Organ,
    Orientation,
    centroid_mm,
    draw,
    grid_around,
    interior,
    margin_mm,
    stored,
    stored_grid,
)

__all__ = [
    "AIR_HU",
    "LABELLED",
    "ORGANS",
    "ORIENTATIONS",
    "Organ",
    "Orientation",
    "centroid_mm",
    "dice",
    "draw",
    "grid_around",
    "interior",
    "margin_mm",
    "stored",
    "stored_grid",
]

ORIENTATIONS: tuple[Orientation, ...] = tuple(
    (order, direction)  # type: ignore[misc]
    for order in permutations(range(3))
    for direction in product((1, -1), repeat=3)
)
"""All 48 ways to store a volume."""


def dice(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Twice the shared voxels over all voxels of both."""
    return float(2 * (first & second).sum() / (first.sum() + second.sum()))
