"""What only tests need of `halofeed.prep.voxels.phantom`: all orientations, the way back, and the Dice overlap."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.volume import Plan
from halofeed.prep.voxels.phantom import Orientation

ORIENTATIONS: tuple[Orientation, ...] = tuple(
    (order, direction)  # type: ignore[misc]
    for order in permutations(range(3))
    for direction in product((1, -1), repeat=3)
)
"""All 48 ways to store a volume."""


def map_back(plan: Plan, points: Any) -> NDArray[np.float64]:
    """Points [..., 3] in voxels of the target, as points in voxels of the source; exact where nothing is resampled."""
    matrix = plan.to_source
    return np.asarray(points, np.float64) @ matrix[:3, :3].T + matrix[:3, 3]


def dice(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Twice the shared voxels over all voxels of both."""
    return float(2 * (first & second).sum() / (first.sum() + second.sum()))
