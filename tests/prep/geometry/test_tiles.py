"""Do patches cover the volume, overlap as asked, and know where they come from?"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.prep.geometry.scan import Grid, Shape
from halofeed.prep.geometry.tiles import plan_tiles, tile_starts
from halofeed.prep.voxels.apply import apply_image
from halofeed.prep.voxels.phantom import grid_around
from halofeed.schemas.errors import UsageError
from tests.support.phantom import map_back


@given(size=st.integers(1, 300), tile=st.integers(1, 60), data=st.data())
def test_an_axis_is_covered_by_as_few_even_tiles_as_will_do(size: int, tile: int, data: Any) -> None:
    overlap = data.draw(st.integers(0, tile - 1))
    size = max(size, tile)
    starts = tile_starts(size, tile, overlap)
    assert starts[0] == 0 and starts[-1] == size - tile
    gaps = np.diff(starts)
    assert (gaps <= tile - overlap).all(), "neighbors share at least the overlap"
    assert not len(gaps) or gaps.max() - gaps.min() <= 1, "evenly"
    # One tile fewer could not: together they would span less than the axis.
    assert len(starts) == 1 or tile + (len(starts) - 2) * (tile - overlap) < size


@settings(deadline=None, max_examples=50)
@given(
    shape=st.tuples(*[st.integers(1, 15)] * 3),
    tile=st.tuples(*[st.integers(1, 8)] * 3),
    data=st.data(),
)
def test_every_voxel_is_in_a_tile_and_every_tile_in_its_place(shape: Shape, tile: Shape, data: Any) -> None:
    overlap = data.draw(st.tuples(*[st.integers(0, side - 1) for side in tile]))
    grid = Grid(shape=shape, affine=grid_around(turn_degrees=20).affine)
    image = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    seen = set()
    tiles = plan_tiles(grid, tile, overlap)
    assert [each.number for each in tiles] == list(range(len(tiles)))
    for each in tiles:
        patch = apply_image(each.plan, image, -1)
        assert patch.shape == tile
        assert map_back(each.plan, (0, 0, 0)).tolist() == list(each.origin)
        assert np.allclose(each.plan.target.to_mm(np.zeros(3)), grid.to_mm(np.array(each.origin)))
        seen |= set(patch.ravel().tolist())
        for value in patch.ravel()[::7].tolist():
            if value >= 0:
                voxel = np.argwhere(patch == value)[0]
                assert tuple(map_back(each.plan, voxel)) == tuple(np.argwhere(image == value)[0])
    assert seen - {-1} == set(range(image.size))


def test_tiles_are_numbered_with_the_width_fastest() -> None:
    tiles = plan_tiles(grid_around((30, 30, 30), (30, 120, 240)), (1, 2, 4), (0, 0, 1))
    assert [each.origin for each in tiles] == list(product((0,), (0, 2), (0, 2, 4)))


def test_a_short_axis_is_padded_about_its_center_and_has_one_tile() -> None:
    tiles = plan_tiles(Grid(shape=(3, 8, 8), affine=np.eye(4)), (6, 8, 8))
    assert [each.origin for each in tiles] == [(-2, 0, 0)]


def test_a_volume_of_the_tiles_shape_is_one_tile_that_moves_nothing() -> None:
    (tile,) = plan_tiles(Grid(shape=(6, 8, 8), affine=np.eye(4)), (6, 8, 8), (5, 7, 7))
    assert tile.plan.steps == ()


@pytest.mark.parametrize("overlap", [(6, 0, 0), (0, -1, 0)])
def test_an_overlap_that_never_ends_is_refused(overlap: Shape) -> None:
    with pytest.raises(UsageError, match="expected an overlap of 0 to"):
        plan_tiles(Grid(shape=(9, 9, 9), affine=np.eye(4)), (6, 8, 8), overlap)
