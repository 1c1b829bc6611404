"""Tilted volumes are made upright, masks on other grids refused or resampled, and boxes carried along."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import SourceError, UsageError
from halofeed.prep.geometry.orientation import check_same_space, plan_canonical, plan_onto, plan_orthogonal
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_plan import join_plans, plan_crop_or_pad, plan_resample
from halofeed.prep.voxels.label_volumes import (
    VoxelBox,
    foreground_box,
    label_box,
    mean_intensity,
    plan_foreground_crop,
    transform_box,
)
from halofeed.prep.voxels.phantom import (
    LABELED_ORGANS,
    PHANTOM_AIR_HU,
    centroid_mm,
    draw,
    grid_around,
    interior,
    margin_mm,
    stored,
    stored_grid,
)
from halofeed.prep.voxels.resample import apply_image, apply_mask, view_of
from tests.support.phantom import ORIENTATIONS, map_back


@settings(max_examples=50, deadline=None)
@given(tilt=st.floats(1, 40), orientation=st.sampled_from(ORIENTATIONS), turn=st.floats(0, 90))
def test_all_of_a_tilted_volume_lies_within_the_upright(tilt, orientation, turn):
    grid = stored_grid(grid_around((10, 9, 8), tilt_degrees=tilt, turn_degrees=turn), orientation)
    plan = plan_orthogonal(grid)
    corners = np.indices((2, 2, 2)).reshape(3, 8).T * (np.array(grid.shape) - 1)
    inverse = np.linalg.inv(plan.to_source)
    reached = corners @ inverse[:3, :3].T + inverse[:3, 3]
    assert (reached >= -0.501).all()
    assert (reached <= np.array(plan.target.shape) - 0.499).all()


def test_each_tilted_slice_stays_in_its_plane_and_a_slight_tilt_is_left_to_the_affine():
    plan = plan_orthogonal(grid_around(tilt_degrees=17))
    assert plan.to_source[0].tolist() == [1, 0, 0, 0]
    assert plan_orthogonal(grid_around(tilt_degrees=0.05, turn_degrees=30)).steps == ()
    assert plan_orthogonal(grid_around(tilt_degrees=0.5)).resamples


def test_a_mask_in_another_order_of_axes_is_on_the_same_grid_and_on_another_refused_with_both():
    grid = grid_around(turn_degrees=8)
    for orientation in ORIENTATIONS:
        assert check_same_space(grid, stored_grid(grid, orientation)) < 1e-9
    grid = grid_around()
    moved = grid.affine.copy()
    moved[2, 3] += 3
    with pytest.raises(SourceError, match="mask lies on another grid than its image") as caught:
        check_same_space(grid, Grid(shape=grid.shape, affine=moved))
    assert (
        caught.value.detail
        == "image 40×68×84 voxels of 3×1.5×1.5 mm, mask 40×68×84 voxels of 3×1.5×1.5 mm"
        + ", up to 3 mm apart (1 voxel); --mask-grid resample brings it onto the image's"
    )
    near = grid.affine.copy()
    near[2, 3] += 0.3
    with pytest.raises(SourceError, match=r"\(0.1 voxels\); .*--mask-grid-tolerance 0.1 accepts it"):
        check_same_space(grid, Grid(shape=grid.shape, affine=near))
    assert check_same_space(grid, Grid(shape=grid.shape, affine=near), 0.11) == pytest.approx(0.1)
    with pytest.raises(SourceError, match="mask 122×102×112"):
        check_same_space(grid, Grid(shape=(122, 102, 112), affine=grid.affine))


def test_brought_onto_a_turned_and_shifted_grid_of_the_same_voxels_every_voxel_is_moved_whole():
    grid = grid_around((8, 7, 6), turn_degrees=11)
    image, mask = draw(grid)
    for orientation in ORIENTATIONS[::3]:
        target = plan_crop_or_pad(stored_grid(grid, orientation), (9, 30, 11)).target
        plan = plan_onto(grid, target)
        assert not plan.resamples
        assert plan.target is target
        expected = plan_crop_or_pad(stored_grid(grid, orientation), (9, 30, 11))
        assert np.array_equal(
            apply_image(plan, image, PHANTOM_AIR_HU),
            apply_image(expected, stored(image, orientation), PHANTOM_AIR_HU),
        )
        assert np.array_equal(apply_mask(plan, mask), apply_mask(expected, stored(mask, orientation)))


@pytest.mark.parametrize("orientation", ORIENTATIONS[::7])
def test_brought_onto_another_spacing_a_volume_is_what_resampling_makes_of_it(orientation):
    grid = grid_around((8, 7, 6))
    image, mask = draw(grid)
    resampling = plan_resample(grid, (5, 4, 9), antialias=False, slice_wise="never")
    plan = plan_onto(stored_grid(grid, orientation), resampling.target)
    assert np.array_equal(
        apply_image(plan, stored(image, orientation), PHANTOM_AIR_HU),
        apply_image(resampling, image, PHANTOM_AIR_HU),
    )
    assert np.array_equal(apply_mask(plan, stored(mask, orientation)), apply_mask(resampling, mask))


def test_brought_onto_a_turned_grid_organs_stay_in_place_and_onto_one_far_away_all_is_fill():
    source, target = grid_around((2, 2, 2)), grid_around((3, 2, 2), turn_degrees=25, center_mm=(9, 0, 0))
    image, mask = draw(source)
    plan = plan_onto(source, target)
    turned, labels = apply_image(plan, image, -3000), apply_mask(plan, mask)
    for organ in LABELED_ORGANS:
        assert np.abs(centroid_mm(target, labels, organ.label) - organ.center_mm).max() < 0.5
        assert abs(turned[interior(target, organ, margin_mm(source, target))].mean() - organ.hu) < 1
    back = map_back(plan, np.argwhere(turned == -3000))
    assert len(back)
    assert ((back < -0.499) | (back > np.array(source.shape) - 0.501)).any(axis=-1).all()
    grid = grid_around((8, 7, 6))
    image, mask = draw(grid)
    for far in (
        grid_around((8, 7, 6), center_mm=(0, 0, 5000)),
        grid_around((5, 5, 5), center_mm=(0, 5000, 0)),
    ):
        assert (apply_image(plan_onto(grid, far), image, -7) == -7).all()
        assert not apply_mask(plan_onto(grid, far), mask).any()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    share=st.sampled_from([0.0, 0.005, 0.05, 0.5]),
    orientation=st.sampled_from(ORIENTATIONS),
)
def test_a_box_holds_the_outermost_voxels_in_any_order(seed, share, orientation):
    random = np.random.default_rng(seed)
    mask = stored((random.random((5, 9, 14)) < share).astype(np.uint8), orientation)
    mask = view_of(
        plan_canonical(stored_grid(Grid(shape=(5, 9, 14), affine=grid_around().affine), orientation)), mask
    )
    places = np.argwhere(mask)
    expected = VoxelBox(start=tuple(places.min(0)), stop=tuple(places.max(0) + 1)) if len(places) else None
    assert label_box(mask) == expected
    assert foreground_box(mask.astype(np.int16), 0.5) == expected


def test_a_box_found_as_stored_is_carried_to_the_plans_target():
    grid = grid_around((3, 1.5, 1.5))
    _, mask = draw(grid)
    for orientation in ORIENTATIONS[::6]:
        stored_as = stored_grid(grid, orientation)
        canonical = plan_canonical(stored_as)
        box = label_box(stored(mask, orientation) == 2)
        assert box is not None
        assert transform_box(canonical, box) == label_box(mask == 2)
        plan = join_plans([canonical, plan_resample(canonical.target, (2, 2, 2))])
        carried, found = transform_box(plan, box), label_box(apply_mask(plan, stored(mask, orientation)) == 2)
        assert carried is not None and found is not None
        assert np.abs(np.subtract(carried.start, found.start)).max() <= 1
        assert np.abs(np.subtract(carried.stop, found.stop)).max() <= 1
    whole = apply_mask(plan_foreground_crop(grid, label_box(mask)), mask)
    assert np.count_nonzero(whole) == np.count_nonzero(mask)
    cropped = plan_crop_or_pad(grid, (2, 2, 2))
    assert transform_box(cropped, VoxelBox(start=(0, 0, 0), stop=(1, 1, 1))) is None


def test_the_mean_parts_an_mr_scan_from_its_background_and_none_is_rejected():
    image = np.zeros((4, 20, 20), np.float32)
    image[1:3, 5:9, 7:12] = 900
    assert mean_intensity(image) == pytest.approx(image.mean())
    assert foreground_box(image, mean_intensity(image)) == VoxelBox(start=(1, 5, 7), stop=(3, 9, 12))
    with pytest.raises(SourceError, match="no foreground found"):
        plan_foreground_crop(grid_around(), foreground_box(np.full((2, 3, 4), -1000, np.int16), -500))
    with pytest.raises(UsageError, match="starts below stops"):
        VoxelBox(start=(0, 0, 0), stop=(1, 0, 1))
