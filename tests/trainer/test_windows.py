"""Overlapping windows of a scan are blended: each voxel is the weighted mean of the tiles that show it."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_plan import plan_tiles
from halofeed.prep.voxels.phantom import grid_around
from halofeed.trainer.windows import TileBlender, WindowTile, window_weight

SCAN = grid_around()


def tiles_of(grid: Grid, shape: tuple[int, int, int], overlap: tuple[int, int, int]) -> dict[int, WindowTile]:
    found = {}
    for tile in plan_tiles(grid, shape, overlap):
        low = np.maximum(0, -np.array(tile.origin))
        high = np.minimum(shape, np.array(grid.shape) - tile.origin)
        place = {"origin": tile.origin, "extent": np.array([low, high]), "grid": tile.plan.target}
        found[tile.number] = WindowTile(number=tile.number, **place)
    return found


def cut(array: NDArray[Any], tile: WindowTile, fill: float) -> NDArray[Any]:
    """What a tile shows of an array on the scan's grid; padding is `fill`."""
    margin = max(tile.grid.shape)
    widths = [(margin, margin)] * 3 + [(0, 0)] * (array.ndim - 3)
    padded = np.pad(array, widths, constant_values=fill)
    starts = [margin + first for first in tile.origin]
    return padded[tuple(slice(a, a + size) for a, size in zip(starts, tile.grid.shape, strict=True))]


@pytest.mark.parametrize("shape", [(20, 30, 40), (50, 32, 32)])
def test_tiles_of_one_truth_give_the_truth_on_the_scans_grid(shape):
    truth = np.random.default_rng(0).random((*SCAN.shape, 3)).astype(np.float32)
    tiles = tiles_of(SCAN, shape, (5, 8, 10))
    blend = TileBlender(tiles, 3)
    for number in reversed(tiles):
        assert blend.missing
        blend.add(number, cut(truth, tiles[number], 99))
    found, grid = blend.result()
    assert not blend.missing and grid.shape == SCAN.shape and np.abs(grid.affine - SCAN.affine).max() < 1e-9
    assert np.abs(found - truth).max() < 1e-6


@pytest.mark.parametrize("weights", ["gaussian", "uniform"])
def test_where_tiles_disagree_each_counts_by_its_weight(weights):
    grid = Grid(shape=(4, 4, 10), affine=np.eye(4))
    tiles = tiles_of(grid, (4, 4, 6), (0, 0, 2))
    generator = np.random.default_rng(1)
    predictions = {number: generator.random((4, 4, 6, 2)).astype(np.float32) for number in tiles}
    blend = TileBlender(tiles, 2, weights)
    for number, prediction in predictions.items():
        blend.add(number, prediction)
    found, _ = blend.result()
    weight = window_weight((4, 4, 6), weights)
    assert (weight == 1).all() == (weights == "uniform")
    for at in np.ndindex(grid.shape):
        total, weights = np.zeros(2), 0.0
        for number, tile in tiles.items():
            inside = tuple(np.array(at) - tile.origin)
            if all(0 <= place < size for place, size in zip(inside, (4, 4, 6), strict=True)):
                total += float(weight[inside]) * predictions[number][inside]
                weights += float(weight[inside])
        assert np.abs(found[at] - total / weights).max() < 1e-5


def test_weights_are_never_zero_fall_to_the_edges_and_are_symmetric():
    weight = window_weight((128, 5, 1))
    assert weight.min() > 0 and weight.max() <= 1 and weight.dtype == np.float32
    assert np.array_equal(weight, weight[::-1]) and (np.diff(weight[:64, 2, 0]) > 0).all()


def test_a_tile_that_is_missing_or_comes_twice_is_refused():
    tiles = tiles_of(SCAN, (30, 60, 60), (4, 4, 4))
    blend = TileBlender(tiles, 1)
    blend.add(0, np.zeros((30, 60, 60, 1), np.float32))
    with pytest.raises(UsageError, match="twice"):
        blend.add(0, np.zeros((30, 60, 60, 1), np.float32))
    with pytest.raises(UsageError, match="were not added"):
        blend.result()
