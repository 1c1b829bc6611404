"""How a volume larger than the static shape is cut into patches that overlap and together cover it.

axis of 10, tiles of 4, overlap of at least 1:      0 1 2 3 4 5 6 7 8 9
                                                    └─────┘   └─────┘
                                                          └─────┘          start at 0, 3, 6
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from halofeed.prep.geometry.scan import Grid, Shape
from halofeed.prep.geometry.volume import Plan, plan_crop_or_pad, plan_window, triple
from halofeed.schemas.errors import UsageError


@dataclass(frozen=True, kw_only=True, eq=False)
class Tile:
    """One patch of a volume.

    Args:
        number: from 0, depth slowest and width fastest.
        origin: the volume's voxel at which the patch begins; negative where it begins with padding.
        plan: from the volume to the patch, whose affine is its own.
    """

    number: int
    origin: Shape
    plan: Plan


def tile_starts(size: int, tile: int, overlap: int) -> list[int]:
    """Where the tiles of an axis that is longer than one begin: as few as will do, evenly spread.

    >>> tile_starts(10, 4, 1)
    [0, 3, 6]
    """
    gaps = -(-(size - tile) // (tile - overlap))
    return [round(number * (size - tile) / gaps) for number in range(gaps + 1)] if gaps else [0]


def plan_tiles(grid: Grid, shape: Shape, overlap: Shape = (0, 0, 0)) -> tuple[Tile, ...]:
    """Patches of `shape` that cover the volume, neighbors sharing at least `overlap` voxels along each axis.

    An axis shorter than its tile is padded about its center and has one tile.

    Args:
        overlap: in voxels per axis, less than `shape`.
    """
    for name, side, shared in zip(("depth", "height", "width"), shape, overlap, strict=True):
        if side < 1 or not 0 <= shared < side:
            raise UsageError(
                f"tiles: expected an overlap of 0 to {side - 1} voxels of {name} {side}, got {shared}"
            )
    padded = plan_crop_or_pad(grid, triple([max(sizes) for sizes in zip(grid.shape, shape, strict=True)]))
    start = [round(first) for first in padded.to_source[:3, 3].tolist()]
    starts = [
        [first + begin for begin in tile_starts(size, side, shared)]
        for first, size, side, shared in zip(start, padded.target.shape, shape, overlap, strict=True)
    ]
    return tuple(
        Tile(number=number, origin=triple(origin), plan=plan_window(grid, triple(origin), shape))
        for number, origin in enumerate(product(*starts))
    )
