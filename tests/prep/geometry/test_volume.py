"""Do plans say where every voxel lies, before and after each step?"""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import SourceError, UsageError
from halofeed.prep.geometry import volume_plan as volume
from halofeed.prep.geometry.orientation import plan_canonical
from halofeed.prep.geometry.scan import Grid, Triple, VolumeShape
from halofeed.prep.geometry.volume_plan import plan_tiles, tile_starts
from halofeed.prep.voxels.phantom import grid_around, stored_grid
from halofeed.prep.voxels.resample import apply_image
from tests.support.phantom import ORIENTATIONS, map_back

sides = st.integers(1, 40)
shapes = st.tuples(sides, sides, sides)
spacings = st.tuples(*[st.floats(0.3, 9.0)] * 3)


def plain(shape: VolumeShape = (4, 5, 6), spacing_mm: Triple = (1.0, 1.0, 1.0)) -> Grid:
    affine = np.eye(4)
    affine[:3, :3] = np.array([[0, 0, 1.0], [0, 1.0, 0], [1.0, 0, 0]]) * spacing_mm
    return Grid(shape=shape, affine=affine)


@st.composite
def grids(draw: Any) -> Grid:
    grid = grid_around(
        spacing_mm=draw(spacings),
        turn_degrees=draw(st.floats(-180, 180)),
        tilt_degrees=draw(st.sampled_from([0.0, 0.0, 17.0, -30.0])),
        center_mm=draw(st.tuples(*[st.floats(-300, 300)] * 3)),
    )
    grid = Grid(shape=draw(shapes), affine=grid.affine)
    return stored_grid(grid, draw(st.sampled_from(ORIENTATIONS)))


@st.composite
def next_plans(draw: Any, grid: Grid) -> volume.VolumePlan:
    kind = draw(st.sampled_from(["canonical", "resample", "stretch", "crop", "centered", "window"]))
    if kind == "canonical":
        return plan_canonical(grid)
    if kind == "resample":
        return volume.plan_resample(grid, draw(spacings))
    shape = draw(shapes)
    if kind == "stretch":
        return volume.plan_stretch(grid, shape)
    if kind == "window":
        return volume.plan_window(grid, draw(st.tuples(*[st.integers(-20, 20)] * 3)), shape)
    center = draw(st.tuples(*[st.floats(-50, 50)] * 3)) if kind == "centered" else None
    return volume.plan_crop_or_pad(grid, shape, center)


@st.composite
def chains(draw: Any) -> list[volume.VolumePlan]:
    plans = [draw(next_plans(draw(grids())))]
    for _ in range(draw(st.integers(0, 4))):
        plans.append(draw(next_plans(plans[-1].target)))
    return plans


points = st.lists(st.tuples(*[st.floats(-100, 100)] * 3), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(chain=chains(), voxels=points)
def test_a_voxel_lies_at_the_same_millimeters_after_every_step(chain, voxels):
    whole = volume.join_plans(chain)
    for plan in (*chain, whole):
        limits = {"atol": 1e-6, "rtol": 1e-9} if plan is whole else {"atol": 1e-8, "rtol": 1e-10}
        assert np.allclose(plan.target.to_mm(voxels), plan.source.to_mm(map_back(plan, voxels)), **limits)
    assert whole.target.shape == chain[-1].target.shape


@settings(deadline=None)
@given(chain=chains(), voxels=st.lists(st.tuples(*[st.integers(-50, 50)] * 3), min_size=1, max_size=4))
def test_where_nothing_is_resampled_voxels_lead_back_to_whole_voxels(chain, voxels):
    whole = volume.join_plans(chain)
    if not whole.resamples:
        assert len(whole.steps) <= 1, "adjacent views are one"
        back = map_back(whole, voxels)
        assert (back == np.rint(back)).all()
        assert np.array_equal(np.abs(np.linalg.det(whole.to_source)), 1)


@pytest.mark.parametrize("turn", [0.0, 14.0])
def test_all_48_orientations_become_one_canonical_grid(turn):
    grid = grid_around(turn_degrees=turn, center_mm=(10, -20, 400))
    for orientation in ORIENTATIONS:
        plan = plan_canonical(stored_grid(grid, orientation))
        assert plan.target.shape == grid.shape
        assert np.allclose(plan.target.affine, grid.affine, atol=1e-9)
        assert not plan.resamples


def test_canonical_axes_grow_to_superior_anterior_and_right_and_grids_agree_up_to_noise():
    # A file in radiological order: voxel (i, j, k) at (-x, y, z), read as [k, j, i].
    affine = np.array([[0, 0, -2.0, 90], [0, 3.0, 0, -100], [4.0, 0, 0, 7], [0, 0, 0, 1]])
    plan = plan_canonical(Grid(shape=(5, 6, 7), affine=affine))
    assert plan.target.affine.tolist() == [[0, 0, 2, 78], [0, 3, 0, -100], [4, 0, 0, 7], [0, 0, 0, 1]]
    assert map_back(plan, (1, 2, 0)).tolist() == [1, 2, 6]
    grid = grid_around(center_mm=(100, 100, 100))
    rounded = Grid(shape=grid.shape, affine=grid.affine.astype(np.float32).astype(np.float64))
    moved = grid.affine.copy()
    moved[0, 3] += 0.1
    assert volume.grids_agree(grid, rounded)
    assert not volume.grids_agree(grid, Grid(shape=grid.shape, affine=moved))
    assert not volume.grids_agree(grid, Grid(shape=(1, 2, 3), affine=grid.affine))


@settings(deadline=None)
@given(grid=grids())
def test_canonical_is_done_once(grid):
    assert plan_canonical(plan_canonical(grid).target).steps == ()


@settings(deadline=None)
@given(grid=grids(), spacing_mm=spacings)
def test_resampling_keeps_the_center_and_gives_the_spacing_asked(grid, spacing_mm):
    plan = volume.plan_resample(grid, spacing_mm)
    extents = np.multiply(grid.shape, grid.spacing_mm)
    sides = (plan.target.spacing_mm, spacing_mm, plan.target.shape, extents)
    for new, asked, size, extent in zip(*sides, strict=True):
        assert new == pytest.approx(asked, rel=2e-3)
        assert size == 1 or abs(size * asked - extent) / 2 <= 0.2501 * asked + 1e-3 * extent
    middles = [each.to_mm((np.array(each.shape) - 1) / 2) for each in (grid, plan.target)]
    assert np.allclose(*middles, atol=1e-8)


def test_spacings_and_sizes_do_not_hang_on_the_last_digits_of_an_affine():
    grid = plain((40, 512, 512), (2.0, float(np.float32(0.7)), 0.7000001))
    assert volume.plan_resample(grid, (2.0, 0.7, 0.7)).steps == ()
    step = volume.plan_resample(grid, (1.0, 0.7, 0.7)).steps[0]
    assert isinstance(step, volume.Resample)
    assert np.diag(step.matrix).tolist() == [0.5, 1, 1, 1]
    for noise in (-1e-7, 0.0, 1e-7):
        plan = volume.plan_resample(plain((5, 5, 5), (1 + noise,) * 3), (2.0, 2.0, 2.0))
        assert plan.target.shape == (3, 3, 3)


@settings(deadline=None)
@given(grid=grids(), shape=shapes)
def test_stretching_keeps_the_outer_edges(grid, shape):
    plan = volume.plan_stretch(grid, shape)
    assert plan.target.shape == shape
    assert np.allclose(map_back(plan, (-0.5, -0.5, -0.5)), -0.5)
    assert np.allclose(map_back(plan, np.array(shape) - 0.5), np.array(grid.shape) - 0.5)


def test_anisotropic_scans_take_the_nearest_slice():
    for spacing_mm, asked, slice_wise, low_axis in (
        ((5.0, 0.7, 0.7), (1.0, 1.0, 1.0), "auto", 0),
        ((5.0, 0.7, 0.7), (1.0, 1.0, 1.0), "never", None),
        ((2.0, 0.7, 0.7), (1.0, 1.0, 1.0), "auto", None),
        ((2.0, 0.7, 0.7), (1.0, 1.0, 1.0), "always", 0),
        ((1.0, 1.0, 1.0), (4.0, 1.1, 1.1), "auto", 0),
        ((0.6, 5.0, 0.6), (1.0, 1.0, 1.0), "auto", 1),
        ((0.24, 1.25, 1.25), (1.0, 1.0, 1.0), "auto", None),  # two axes are low: neither is "the" slice axis
        ((2.1, 0.7, 0.7), (1.0, 1.0, 1.0), "auto", None),  # 3 times exactly is not over 3 times
    ):
        how = {"image_kernel": "cubic", "slice_wise": slice_wise}
        step = volume.plan_resample(plain((9, 9, 9), spacing_mm), asked, **how).steps[0]
        assert isinstance(step, volume.Resample)
        nearest = [axis for axis in range(3) if step.image_kernels[axis] == "nearest"]
        assert nearest == ([] if low_axis is None else [low_axis])


def window(plan: volume.VolumePlan, axis: int = 2) -> tuple[int, int]:
    """(first source voxel, number of padding voxels before it) along an axis."""
    start = int(map_back(plan, (0, 0, 0))[axis])
    return max(start, 0), max(-start, 0)


@pytest.mark.parametrize(
    ("size", "asked", "first", "before"),
    [(4, 7, 0, 2), (7, 4, 2, 0), (4, 6, 0, 1), (6, 4, 1, 0), (5, 5, 0, 0), (1, 2, 0, 1), (2, 1, 1, 0)],
)
def test_odd_padding_puts_the_extra_voxel_first_and_odd_cropping_takes_it_first(size, asked, first, before):
    assert window(volume.plan_crop_or_pad(plain((4, 5, size)), (4, 5, asked))) == (first, before)


@given(shape=shapes, more=st.tuples(*[st.integers(0, 9)] * 3))
def test_cropping_undoes_padding(shape, more):
    grid = plain(shape)
    padded = volume.plan_crop_or_pad(grid, tuple(np.add(shape, more).tolist()))
    back = volume.join_plans([padded, volume.plan_crop_or_pad(padded.target, shape)])
    assert np.array_equal(back.to_source, np.eye(4))
    assert all(not (isinstance(step, volume.AxisView) and step.pads) for step in back.steps)


CENTERS = [  # size, asked, center, start
    *((10, 4, 4.5, 3), (10, 4, 5.0, 4)),  # a half goes away from zero
    *((10, 4, 0.0, 0), (10, 4, 99.0, 6)),  # not before the first voxel nor past the last
    *((4, 10, 0.0, -5), (4, 10, 99.0, 0), (4, 10, -99.0, -6)),
]


@pytest.mark.parametrize(("size", "asked", "center", "start"), CENTERS)
def test_a_center_is_had_as_far_as_no_padding_is_added_and_nothing_is_lost(size, asked, center, start):
    plan = volume.plan_crop_or_pad(plain((1, 1, size)), (1, 1, asked), (0, 0, center))
    assert map_back(plan, (0, 0, 0)).tolist() == [0, 0, start]


def test_what_cannot_be_is_a_usage_error():
    for make, message in (
        (lambda grid: volume.join_plans([]), "at least one plan"),
        (
            lambda grid: volume.join_plans([*map(volume.plan_nothing, (grid, plain((1, 1, 1))))]),
            "one to 4×5×6",
        ),
        (lambda grid: volume.plan_crop_or_pad(grid, (1, 1, 1), (0, 0, float("nan"))), "expected a voxel"),
    ):
        with pytest.raises(UsageError, match=message):
            make(plain())


def test_affines_that_are_none_and_spacings_of_kilometers_reject_the_source_and_allocate_nothing():
    with pytest.raises(SourceError, match="volume would become too large"):
        volume.plan_resample(plain((512, 512, 512), (1e6, 1e6, 1e6)), (1, 1, 1))
    for affine, reason in (
        (np.full((4, 4), np.nan), "affine is not finite"),
        (np.diag([1.0, 1.0, 0.0, 1.0]), "affine is not invertible"),
        (np.array([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]), "affine is not invertible"),
    ):
        with pytest.raises(SourceError, match=reason):
            plan_canonical(Grid(shape=(4, 5, 6), affine=affine))


@given(size=st.integers(1, 300), tile=st.integers(1, 60), data=st.data())
def test_an_axis_is_covered_by_as_few_even_tiles_as_will_do(size, tile, data):
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
@given(shape=st.tuples(*[st.integers(1, 15)] * 3), tile=st.tuples(*[st.integers(1, 8)] * 3), data=st.data())
def test_every_voxel_is_in_a_tile_and_every_tile_in_its_place(shape, tile, data):
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


def test_tiles_are_numbered_with_the_width_fastest_and_short_axes_padded_about_their_center():
    tiles = plan_tiles(grid_around((30, 30, 30), (30, 120, 240)), (1, 2, 4), (0, 0, 1))
    assert [each.origin for each in tiles] == list(product((0,), (0, 2), (0, 2, 4)))
    tiles = plan_tiles(Grid(shape=(3, 8, 8), affine=np.eye(4)), (6, 8, 8))
    assert [each.origin for each in tiles] == [(-2, 0, 0)]
    (tile,) = plan_tiles(Grid(shape=(6, 8, 8), affine=np.eye(4)), (6, 8, 8), (5, 7, 7))
    assert tile.plan.steps == (), "a volume of the tile's shape is not moved"
    for overlap in ((6, 0, 0), (0, -1, 0)):
        with pytest.raises(UsageError, match="expected an overlap of 0 to"):
            plan_tiles(Grid(shape=(9, 9, 9), affine=np.eye(4)), (6, 8, 8), overlap)
