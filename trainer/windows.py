"""What does a model say of a whole scan, of which it has seen overlapping windows?

           ┌──────────────┐
weight     │ ╱╲  tile 0   │         probability at a voxel = sum of weight * prediction / sum of weight,
          ╱│╱  ╲          │         over the tiles that show it: most is believed of what lies in a tile's middle
         ╱ │    ╲  ┌──────┼──────┐
           └─────╲─┼╱─────┘      │
                   │    tile 1   │
                   └─────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.prep.geometry.scan import Grid, Shape
from halofeed.prep.geometry.volume import triple

GAUSSIAN_DEVIATIONS = 4.0
"""From a tile's middle to its edge: as in nnU-Net, whose standard deviation is an eighth of the tile."""


def window_weight(shape: Sequence[int]) -> NDArray[np.float32]:
    """How much each voxel of a tile is believed: the product of a Gaussian along each axis.

    Returns:
        float32 of the shape, above 0 and at most 1.

    >>> [round(weight, 4) for weight in window_weight((1, 1, 4)).ravel().tolist()]
    [0.0111, 0.6065, 0.6065, 0.0111]
    """
    weight = np.ones((), np.float64)
    for size in shape:
        place = (np.arange(size) + 0.5) / size * 2 - 1
        weight = weight[..., None] * np.exp(-0.5 * (GAUSSIAN_DEVIATIONS * place) ** 2)
    return weight.astype(np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tile:
    """Where a record's voxels are on the grid of its whole resampled scan.

    Args:
        number: from 0.
        origin: the scan's voxel at which the record begins; negative where it begins with padding.
        extent: int [2, 3], the first voxel of the record that shows the scan, and the one after the last.
        grid: of the record.
    """

    number: int
    origin: Shape
    extent: NDArray[np.int64]
    grid: Grid

    @property
    def ends(self) -> NDArray[np.int64]:
        """int [2, 3]: the first voxel of the scan that the record shows, and the one after the last."""
        return np.asarray(self.extent + np.array(self.origin))


class TileBlender:
    """The class probabilities of one whole scan, gathered from its tiles in any order.

    Memory: float32 [class, depth, height, width] of sums and [depth, height, width] of weights over the part of the
    scan that its tiles show: 4 * (classes + 1) bytes a voxel, and one class of a tile.

    Args:
        tiles: all that are to come, by their number.
        classes: how many.

    Raises:
        UsageError: tiles of different shapes or spacings.
    """

    def __init__(self, tiles: Mapping[int, Tile], classes: int) -> None:
        first = next(iter(tiles.values()))
        for tile in tiles.values():
            if tile.grid.shape != first.grid.shape or not np.allclose(
                tile.grid.spacing_mm, first.grid.spacing_mm
            ):
                raise UsageError(f"tile {tile.number}: its grid differs from that of tile {first.number}")
        self._tiles, self._awaited = tiles, set(tiles)
        self._low = np.min([tile.ends[0] for tile in tiles.values()], axis=0)
        self._shape = triple(np.max([tile.ends[1] for tile in tiles.values()], axis=0) - self._low)
        self._weight = window_weight(first.grid.shape)
        self._sums = np.zeros((classes, *self._shape), np.float32)
        self._weights = np.zeros(self._shape, np.float32)

    @property
    def complete(self) -> bool:
        """Whether every tile has come."""
        return not self._awaited

    @property
    def awaited(self) -> list[int]:
        """The numbers of the tiles that have not come yet."""
        return sorted(self._awaited)

    def add(self, number: int, probabilities: NDArray[Any]) -> None:
        """Add the prediction of one tile.

        Args:
            number: which one; each comes once.
            probabilities: [depth, height, width, class] of any float type; or class indices [depth, height, width],
                which count as probabilities of 0 and 1.
        """
        if number not in self._awaited:
            raise UsageError(f"tile {number}: came twice, or is none of this scan")
        self._awaited.remove(number)
        tile = self._tiles[number]
        shown = tuple(slice(start, stop) for start, stop in zip(*tile.extent.tolist(), strict=True))
        place = tuple(
            slice(start, stop) for start, stop in zip(*(tile.ends - self._low).tolist(), strict=True)
        )
        weight = self._weight[shown]
        for label, sums in enumerate(self._sums):
            if probabilities.ndim == 3:
                sums[place] += weight * (probabilities[shown] == label)
            else:
                sums[place] += weight * probabilities[..., label][shown].astype(np.float32)
        self._weights[place] += weight

    def result(self) -> tuple[NDArray[np.float32], Grid]:
        """The averages, float32 [depth, height, width, class], and their grid; nothing may be added afterwards.

        Raises:
            UsageError: a tile has not come.
        """
        if self._awaited:
            raise UsageError(f"tiles {self.awaited}: have not come, so that the scan is not whole")
        np.maximum(self._weights, np.finfo(np.float32).tiny, out=self._weights)
        for sums in self._sums:
            sums /= self._weights
        tile = next(iter(self._tiles.values()))
        affine = tile.grid.affine.copy()
        affine[:3, 3] += affine[:3, :3] @ (self._low - np.array(tile.origin))
        return np.moveaxis(self._sums, 0, -1), Grid(shape=self._shape, affine=affine)
