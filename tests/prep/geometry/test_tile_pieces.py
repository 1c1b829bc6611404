"""The tiles of a picture show every object, and each tile exactly the part that is inside it."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.prep.geometry.picture_tiles import PictureTiles, plan_picture_tiles
from halofeed.prep.geometry.tile_pieces import ObjectGrid, TileWindow, is_inside, shown_share

sides = st.integers(1, 90)


@st.composite
def tiles_and_boxes(draw: st.DrawFn) -> tuple[PictureTiles, npt.NDArray[np.float64]]:
    tile = draw(sides), draw(sides)
    overlap = tuple(draw(st.integers(0, side - 1)) for side in tile)
    whole = draw(st.integers(1, 200)), draw(st.integers(1, 200))
    count = draw(st.integers(0, 8))
    # Whole numbers put many edges onto the rims of tiles.
    share = st.one_of(st.floats(0, 1), st.integers(0, 20).map(lambda part: part / 20))
    ends = [[draw(share) * side for _ in range(2 * count)] for side in whole]
    if draw(st.booleans()):
        ends = [[float(round(end)) for end in of_axis] for of_axis in ends]
    rows, columns = (np.sort(np.array(of_axis).reshape(count, 2), axis=1) for of_axis in ends)
    boxes = np.column_stack([rows[:, 0], columns[:, 0], rows[:, 1], columns[:, 1]])
    return plan_picture_tiles(whole, tile, overlap), boxes  # type: ignore[arg-type]


def slow_pieces(box: list[float], window: TileWindow) -> tuple[list[float], float] | None:
    """Return the part of one box and its share, by the definition."""
    part, share = [0.0] * 4, 1.0
    for axis in range(2):
        low, high, start = box[axis], box[2 + axis], window.origin[axis]
        end = start + window.size[axis]
        first, last = max(low, start), min(high, end)
        if high - low > 1e-6:
            share *= max(0.0, last - first) / (high - low)
        else:
            share *= start <= low and (low < end or end == window.whole[axis])
        part[axis], part[2 + axis] = first - start, last - start
    return (part, share) if share > 1e-9 else None


@given(tiles_and_boxes())
def test_every_tile_gets_the_part_of_each_box_that_is_inside_it(drawn):
    tiles, boxes = drawn
    grid = ObjectGrid(boxes, tiles.scaled_size)
    for tile in tiles:
        window = TileWindow.of(tile.plan)
        pieces = grid.pieces(window)
        expected = {
            row: found for row, box in enumerate(boxes.tolist()) if (found := slow_pieces(box, window))
        }
        assert pieces.rows.tolist() == list(expected)
        for row, piece, visible in zip(pieces.rows, pieces.boxes, pieces.visible, strict=True):
            assert np.allclose(piece, expected[row][0], atol=1e-9)
            assert visible == pytest.approx(expected[row][1], abs=1e-9)


@given(tiles_and_boxes())
def test_the_union_of_the_pieces_of_a_box_is_the_box(drawn):
    tiles, boxes = drawn
    grid = ObjectGrid(boxes, tiles.scaled_size)
    union = np.tile([np.inf, np.inf, -np.inf, -np.inf], (len(boxes), 1))
    for tile in tiles:
        pieces = grid.pieces(TileWindow.of(tile.plan))
        moved = pieces.boxes + np.array(tile.plan.origin * 2)
        union[pieces.rows, :2] = np.minimum(union[pieces.rows, :2], moved[:, :2])
        union[pieces.rows, 2:] = np.maximum(union[pieces.rows, 2:], moved[:, 2:])
    assert np.allclose(union, boxes, atol=1e-5)


@given(tiles_and_boxes())
def test_the_largest_visible_share_is_that_of_the_best_tile(drawn):
    tiles, boxes = drawn
    grid = ObjectGrid(boxes, tiles.scaled_size)
    best = np.zeros(len(boxes))
    for tile in tiles:
        pieces = grid.pieces(TileWindow.of(tile.plan))
        best[pieces.rows] = np.maximum(best[pieces.rows], pieces.visible)
    size = TileWindow.of(tiles.tile(0).plan).size
    most = grid.most_visible((tiles.tops, tiles.lefts), size)
    assert np.allclose(most.prod(axis=1), best)
    assert (best > 0).all()


@given(st.data())
def test_shares_of_a_grid_without_overlap_add_up_to_one(data):
    height, width = data.draw(sides), data.draw(sides)
    tiles = plan_picture_tiles((3 * height, 2 * width), (height, width))
    low = data.draw(st.lists(st.floats(0, 3 * height), min_size=2, max_size=2).map(sorted))
    across = data.draw(st.lists(st.floats(0, 2 * width), min_size=2, max_size=2).map(sorted))
    grid = ObjectGrid([[low[0], across[0], low[1], across[1]]], tiles.scaled_size)
    total = sum(grid.pieces(TileWindow.of(tile.plan)).visible.sum() for tile in tiles)
    # Slivers of up to 1e-6 pixels are no pieces.
    slack = sum(1e-6 / max(1e-6, high - begin) for begin, high in (low, across))
    assert total == pytest.approx(1, abs=1e-9 + 4 * slack)


def test_a_point_on_the_border_of_two_tiles_is_in_the_later_one_and_at_the_end_in_the_last():
    tiles = plan_picture_tiles((16, 16), (8, 8))
    grid = ObjectGrid([[8, 8, 8, 8], [16, 16, 16, 16], [0, 8, 16, 8]], (16, 16))
    found = [grid.pieces(TileWindow.of(tile.plan)).rows.tolist() for tile in tiles]
    assert found == [[], [2], [], [0, 1, 2]]
    windows = [TileWindow.of(tile.plan) for tile in tiles]
    assert [is_inside([[8, 8], [16, 16], [8, 7]], window).tolist() for window in windows] == [
        [False, False, False],
        [False, False, False],
        [False, False, True],
        [True, True, False],
    ]


def test_a_thin_object_that_a_rim_divides_stays_in_the_tile_with_its_larger_part():
    shares = [shown_share([8 - 0.4e-6], [8 + 0.8e-6], start, 8, 16).item() for start in (0, 8)]
    assert shares[0] == 0 and shares[1] == pytest.approx(2 / 3, abs=1e-3)


def test_a_window_that_leaves_the_whole_is_refused():
    with pytest.raises(UsageError, match="expected a part of"):
        TileWindow(origin=(4, 0), size=(8, 8), whole=(8, 8))
