"""What only tests need of `halofeed.prep.voxels.phantom`: all orientations, and the Dice overlap."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

from numpy.typing import NDArray

from halofeed.prep.voxels.phantom import Orientation

ORIENTATIONS: tuple[Orientation, ...] = tuple(
    (order, direction)  # type: ignore[misc]
    for order in permutations(range(3))
    for direction in product((1, -1), repeat=3)
)
"""All 48 ways to store a volume."""


def dice(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Twice the shared voxels over all voxels of both."""
    return float(2 * (first & second).sum() / (first.sum() + second.sum()))
