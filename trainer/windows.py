"""Blending of a scan's predictions from overlapping tiles.

           ┌──────────────┐
weight     │ ╱╲  tile 0   │         probability at a voxel = sum of weight * prediction / sum of weight,
          ╱│╱  ╲          │         over the tiles that show it; the weight is largest in the middle of a tile
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

from halofeed.prep.geometry.scan import Grid, VolumeShape
from halofeed.prep.geometry.volume_plan import triple
from halofeed.system.errors import UsageError
from halofeed.trainer.mask_rule import GAUSSIAN, UNIFORM

CompleteScan = tuple[NDArray[Any], Grid, NDArray[np.int64] | None]
"""Probabilities or class indices of a complete scan, their grid, and the extent of the scan in it (None for all)."""
GAUSSIAN_DEVIATIONS = 4.0
"""Standard deviations from a tile's middle to its edge; as in nnU-Net, a deviation is an eighth of the tile."""


def window_weight(shape: Sequence[int], weights: str = GAUSSIAN) -> NDArray[np.float32]:
    """Return the weight of each voxel of a tile: the product of a Gaussian along each axis, or 1 for "uniform".

    Source: nnU-Net's `compute_gaussian` with `sigma_scale` 1/8, without its limit to the precision of float16.

    Returns:
        float32 of the given shape, above 0 and at most 1.

    >>> [round(weight, 4) for weight in window_weight((1, 1, 4)).ravel().tolist()]
    [0.0111, 0.6065, 0.6065, 0.0111]
    """
    if weights == UNIFORM:
        return np.ones(tuple(shape), np.float32)
    weight = np.ones((), np.float64)
    for size in shape:
        place = (np.arange(size) + 0.5) / size * 2 - 1
        weight = weight[..., None] * np.exp(-0.5 * (GAUSSIAN_DEVIATIONS * place) ** 2)
    return weight.astype(np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowTile:
    """Position of a record on the grid of its complete resampled scan.

    Args:
        number: number of the tile, from 0.
        origin: voxel of the scan at which the record begins; negative if it begins with padding.
        extent: int [2, 3], the first voxel of the record that shows the scan, and the one after the last.
        grid: grid of the record.
    """

    number: int
    origin: VolumeShape
    extent: NDArray[np.int64]
    grid: Grid

    @property
    def ends(self) -> NDArray[np.int64]:
        """First voxel of the scan that the record shows, and the one after the last, int [2, 3]."""
        return np.asarray(self.extent + np.array(self.origin))


class TileBlender:
    """Class probabilities of one complete scan, averaged over its tiles, which may be added in any order.

    Memory: 4 * (classes + 1) bytes per voxel of the scan that the tiles show, and one class of a tile.

    Args:
        tiles: all tiles of the scan by their number.
        classes: number of classes, or of regions.
        weights: weights of a tile's voxels, one of `WINDOW_WEIGHTS`.

    Raises:
        UsageError: tiles have different shapes or spacings.
    """

    def __init__(self, tiles: Mapping[int, WindowTile], classes: int, weights: str = GAUSSIAN) -> None:
        first = next(iter(tiles.values()))
        for tile in tiles.values():
            # One weight serves all tiles, and their voxels are added without resampling.
            if tile.grid.shape != first.grid.shape or not np.allclose(
                tile.grid.spacing_mm, first.grid.spacing_mm
            ):
                raise UsageError(f"tile {tile.number}: its grid differs from that of tile {first.number}")
        self._tiles, self._missing = tiles, set(tiles)
        self._low = np.min([tile.ends[0] for tile in tiles.values()], axis=0)
        self._shape = triple(np.max([tile.ends[1] for tile in tiles.values()], axis=0) - self._low)
        self._weight = window_weight(first.grid.shape, weights)
        self._sums = np.zeros((classes, *self._shape), np.float32)
        self._weights = np.zeros(self._shape, np.float32)

    @property
    def missing(self) -> list[int]:
        """Numbers of the tiles that have not been added yet."""
        return sorted(self._missing)

    def add(self, number: int, probabilities: NDArray[Any]) -> None:
        """Add the prediction of one tile.

        Args:
            number: number of the tile.
            probabilities: [depth, height, width, class] of any float type; or class indices [depth, height, width],
                which count as probabilities of 0 and 1.

        Raises:
            UsageError: the tile was added before, or is not in the scan.
        """
        if number not in self._missing:
            raise UsageError(f"tile {number}: was added twice, or is not in this scan")
        self._missing.remove(number)
        tile = self._tiles[number]
        in_tile = tuple(map(slice, *tile.extent.tolist()))
        in_scan = tuple(map(slice, *(tile.ends - self._low).tolist()))
        weight = self._weight[in_tile]
        for label, sums in enumerate(self._sums):
            # Models of the user may give class indices in place of probabilities.
            if probabilities.ndim == 3:
                sums[in_scan] += weight * (probabilities[in_tile] == label)
            else:
                sums[in_scan] += weight * probabilities[..., label][in_tile].astype(np.float32)
        self._weights[in_scan] += weight

    def result(self) -> tuple[NDArray[np.float32], Grid]:
        """Return the averages, float32 [depth, height, width, class], and their grid; call it once, at the end.

        Raises:
            UsageError: a tile is missing.
        """
        if self._missing:
            raise UsageError(f"tiles {self.missing}: were not added, so the scan is incomplete")
        # A voxel that no tile shows has no weight, and stays 0.
        np.maximum(self._weights, np.finfo(np.float32).tiny, out=self._weights)
        for sums in self._sums:
            sums /= self._weights
        tile = next(iter(self._tiles.values()))
        affine = tile.grid.affine.copy()
        affine[:3, 3] += affine[:3, :3] @ (self._low - np.array(tile.origin))
        return np.moveaxis(self._sums, 0, -1), Grid(shape=self._shape, affine=affine)


class ScanBlender:
    """Class probabilities of complete scans, each stored as one record or as tiles.

    Memory: a `TileBlender` per scan with missing tiles.

    Args:
        tiles: tiles of each scan by their number.
        classes: number of classes, or of regions.
        weights: weights of a tile's voxels, one of `WINDOW_WEIGHTS`.
    """

    def __init__(
        self, tiles: Mapping[str, Mapping[int, WindowTile]], classes: int, weights: str = GAUSSIAN
    ) -> None:
        self._tiles, self._classes, self._weights = tiles, classes, weights
        self.incomplete: dict[str, TileBlender] = {}

    def add(self, key: str, number: int, predicted: NDArray[Any]) -> CompleteScan | None:
        """Add one tile as `TileBlender.add`; return the scan after its last tile, else None."""
        tiles = self._tiles[key]
        # A scan that is one record needs no sums.
        if len(tiles) == 1:
            return predicted, tiles[number].grid, tiles[number].extent
        if key not in self.incomplete:
            self.incomplete[key] = TileBlender(tiles, self._classes, self._weights)
        blender = self.incomplete[key]
        blender.add(number, predicted)
        return None if blender.missing else (*self.incomplete.pop(key).result(), None)
