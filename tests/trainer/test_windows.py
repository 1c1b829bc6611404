"""Overlapping windows of a scan are blended: each voxel is the weighted mean of the tiles that show it."""

from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.loader import Loader
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume import plan_tiles
from halofeed.prep.voxels.phantom import grid_around
from halofeed.trainer.source_grid import labels_in_source
from halofeed.trainer.windows import TileBlender, WindowTile, window_weight
from tests.support.phantom import dice
from tests.support.training import convert_scans

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


def test_where_tiles_disagree_each_counts_by_its_weight():
    grid = Grid(shape=(4, 4, 10), affine=np.eye(4))
    tiles = tiles_of(grid, (4, 4, 6), (0, 0, 2))
    generator = np.random.default_rng(1)
    predictions = {number: generator.random((4, 4, 6, 2)).astype(np.float32) for number in tiles}
    blend = TileBlender(tiles, 2)
    for number, prediction in predictions.items():
        blend.add(number, prediction)
    found, _ = blend.result()
    weight = window_weight((4, 4, 6))
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


@pytest.mark.parametrize("spacing", [(), (3, 1, 1)])
def test_true_labels_of_a_real_scans_tiles_overlay_the_scan(test_data, tmp_path, spacing):
    image, mask = (f"volumes/spleen/sub-spleen2_ct{end}.nii.gz" for end in ("", "_seg-manual"))
    tiles = {"depth": 16, "height": 64, "width": 96, "fit": "tiles", "tile_overlap": (4, 16, 24)}
    done = convert_scans(tmp_path, [("a", image, mask)], test_data, **tiles, spacing_mm=spacing)
    include = ("affine", "source_affine", "source_shape", "extent", "tile", "tile_origin")
    rows = list(Loader(done.folder, batch_size=1, training=False, include=include).batches())
    tiles = {}
    for row in rows:
        grid = Grid(shape=(16, 64, 96), affine=row["affine"][0].astype(np.float64))
        number, origin = int(row["tile"][0]), tuple(row["tile_origin"][0].tolist())
        tiles[number] = WindowTile(number=number, origin=origin, extent=np.int64(row["extent"][0]), grid=grid)
    blend = TileBlender(tiles, 2)
    for row in rows:
        label = row["label"][0]
        blend.add(int(row["tile"][0]), label if row["tile"][0] % 2 else np.eye(2)[label])
    found, grid = blend.result()
    assert len(rows) > 8 and (spacing or grid.shape == (26, 166, 164))
    shape, affine = (rows[0][f"source_{name}"][0] for name in ("shape", "affine"))
    source = Grid(shape=tuple(shape.tolist()), affine=affine.astype(np.float64))
    truth = np.asarray(nibabel.load(test_data / mask).dataobj).T
    label = labels_in_source(found, grid, source)
    assert dice(label == 1, truth == 1) >= (0.97 if spacing else 1.0)
