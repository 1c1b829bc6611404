"""What only tests need of `halofeed.prep.voxels.phantom`: all orientations, the way back, and the Dice overlap."""

from collections.abc import Iterable
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.volume_plan import VolumePlan
from halofeed.prep.voxels.phantom import Orientation, draw, grid_around, stored, stored_grid
from tests.support.volume_support import save_nifti

ORIENTATIONS: tuple[Orientation, ...] = tuple(
    (order, direction)  # type: ignore[misc]
    for order in permutations(range(3))
    for direction in product((1, -1), repeat=3)
)
"""All 48 ways to store a volume."""


def write_phantom(folder, numbers: Iterable[int], grids=None, ending=".nii") -> list[tuple[str, str, str]]:
    """Write the phantom and its mask in some of the 48 orientations, and on other grids.

    Returns: the name, the image's file and the mask's file of each scan; names are numbers of two digits.
    """
    straight = grid_around()
    image, mask = draw(straight)
    scans = {}
    for number in numbers:
        way = ORIENTATIONS[number]
        scans[f"{number:02}"] = stored(image, way), stored(mask, way), stored_grid(straight, way).affine
    scans |= {name: (*draw(grid), grid.affine) for name, grid in (grids or {}).items()}
    for name, (image, mask, affine) in scans.items():
        save_nifti(folder / f"{name}{ending}", image, affine)
        save_nifti(folder / f"{name}-mask{ending}", mask, affine)
    return [(name, f"{name}{ending}", f"{name}-mask{ending}") for name in scans]


def map_back(plan: VolumePlan, points: Any) -> NDArray[np.float64]:
    """Points [..., 3] in voxels of the target, as points in voxels of the source; exact where nothing is resampled."""
    matrix = plan.to_source
    return np.asarray(points, np.float64) @ matrix[:3, :3].T + matrix[:3, 3]


def dice(first: NDArray[Any], second: NDArray[Any]) -> float:
    return float(2 * (first & second).sum() / (first.sum() + second.sum()))
