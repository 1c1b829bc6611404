"""What do plans promise of the arrays that they are applied to: ties, borders, channels, copies, memory?"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.prep.geometry import volume_plan as volume
from halofeed.prep.geometry.orientation import plan_canonical, plan_orthogonal
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.voxels import resample
from halofeed.prep.voxels.phantom import centroid_mm, grid_around, stored, stored_grid
from halofeed.prep.voxels.resample import apply_image, apply_mask, copy_voxels, make_contiguous, view_of
from tests.support.allocations import traced
from tests.support.phantom import ORIENTATIONS


def test_what_was_cropped_away_does_not_come_back_with_padding():
    grid = Grid(shape=(1, 1, 6), affine=np.eye(4))
    image = np.arange(6, dtype=np.int16).reshape(1, 1, 6)
    crop = volume.plan_window(grid, (0, 0, 2), (1, 1, 2))
    plan = volume.join_plans([crop, volume.plan_crop_or_pad(crop.target, (1, 1, 5))])
    assert len(plan.steps) == 1
    assert apply_image(plan, image, -9).ravel().tolist() == [-9, -9, 2, 3, -9]


@pytest.mark.parametrize("kernel", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32"])
def test_one_value_stays_that_value_and_overshoot_stays_within_the_type(kernel, dtype):
    grid = Grid(shape=(5, 7, 9), affine=np.diag([3.0, 1.0, 1.0, 1]))
    limits = np.iinfo(dtype)
    plan = volume.plan_resample(grid, (0.7, 1.9, 0.6), image_kernel=kernel, slice_wise="never")
    for value in (limits.min, 3, limits.max):
        assert (apply_image(plan, np.full(grid.shape, value, dtype), 0) == value).all()
    edge = np.full(grid.shape, limits.min, dtype)
    edge[:, :, 4:] = limits.max
    ours = apply_image(plan, edge, 0)
    assert ours[..., 0].max() < 0.1 * limits.max and ours[..., -1].min() > 0.9 * limits.max


def test_channels_are_resampled_each_on_its_own():
    grid = grid_around((20, 15, 12))
    image = np.random.default_rng(0).random((*grid.shape, 3)).astype(np.float32)
    plan = volume.plan_resample(grid, (9, 9, 9))
    ours = apply_image(plan, image, 0)
    assert ours.shape == (*plan.target.shape, 3)
    for channel in range(3):
        assert np.array_equal(ours[..., channel], apply_image(plan, image[..., channel], 0))
    assert np.array_equal(apply_image(plan, image[..., :1], 0)[..., 0], ours[..., 0])


def test_a_mask_of_half_the_resolution_is_not_moved_though_every_voxel_is_a_tie():
    grid = Grid(shape=(1, 1, 64), affine=grid_around((1.0, 1.0, 1.0)).affine)
    plan = volume.plan_resample(grid, (1, 1, 2))
    shifts = []
    for start in range(8, 40):
        mask = np.zeros(grid.shape, np.uint8)
        mask[..., start : start + 13] = 1
        shifts.append(centroid_mm(plan.target, apply_mask(plan, mask), 1) - centroid_mm(grid, mask, 1))
    assert abs(np.mean(shifts)) < 0.01
    assert np.abs(shifts).max() < 0.6


def test_applying_a_plan_changes_no_image_and_copies_none_where_nothing_is_padded():
    grid = grid_around((12, 11, 10))
    image = np.random.default_rng(0).random(grid.shape).astype(np.float32)
    before = image.copy()
    for spacing in (20.0, 7.0, 10.5):
        for kernel in ("linear", "cubic"):
            apply_image(volume.plan_resample(grid, (spacing,) * 3, image_kernel=kernel), image, 0)
    assert np.array_equal(image, before)
    grid = stored_grid(grid_around(), ORIENTATIONS[9])
    image = np.zeros(grid.shape, np.int16)
    canonical = plan_canonical(grid)
    plan = volume.join_plans([canonical, volume.plan_window(canonical.target, (1, 2, 3), (5, 6, 7))])
    assert np.shares_memory(view_of(plan, image), image)
    assert view_of(plan, image).shape == (5, 6, 7)
    with pytest.raises(UsageError, match="padding and resampling need a copy"):
        view_of(volume.plan_resample(grid, (9, 9, 9)), image)


def test_arrays_that_do_not_fit_the_plan_are_refused():
    plan = volume.plan_crop_or_pad(Grid(shape=(2, 3, 4), affine=np.eye(4)), (5, 5, 5))
    for last, dtype, fill, message in (
        (5, "uint8", 0, "expected .2, 3, 4."),
        (4, "uint8", -1024, "-1024 is no value of uint8"),
        (4, "int16", float("nan"), "nan is no value of int16"),
        (4, "bool", 0, "expected integers, float32 or float64"),
    ):
        with pytest.raises(UsageError, match=message):
            apply_image(plan, np.zeros((2, 3, last), dtype), fill)


@pytest.mark.parametrize("orientation", [ORIENTATIONS[0], ORIENTATIONS[21], ORIENTATIONS[47]])
@pytest.mark.parametrize(
    "mode", ["unchanged", "crop or pad", "spacing", "spacing, cubic", "stretch", "coarse", "one-hot", "tilt"]
)
def test_applying_holds_few_slices(mode, orientation, monkeypatch):
    monkeypatch.setattr(resample, "SLAB_BYTES", 1 << 20)
    affine = grid_around((1.0, 1.0, 1.0)).affine.copy()
    if mode == "tilt":
        affine[1, 0] = 0.2
    grid = stored_grid(Grid(shape=(100, 192, 192), affine=affine), orientation)
    make = {
        "unchanged": volume.plan_nothing,
        "crop or pad": lambda grid: volume.plan_crop_or_pad(grid, (96, 81, 112)),
        "spacing": lambda grid: volume.plan_resample(grid, (2.0, 2.0, 2.0)),
        "spacing, cubic": lambda grid: volume.plan_resample(grid, (1.7, 1.3, 1.1), image_kernel="cubic"),
        "stretch": lambda grid: volume.plan_stretch(grid, (32, 64, 96)),
        "coarse": lambda grid: volume.plan_stretch(grid, (2, 64, 64)),
        "one-hot": lambda grid: volume.plan_resample(grid, (1.0, 1.5, 1.5), mask_kernel="onehot-linear"),
        "tilt": plan_orthogonal,
    }[mode]
    canonical = plan_canonical(grid)
    plan = volume.join_plans([canonical, make(canonical.target)])
    image = np.zeros(grid.shape, np.int16)
    image[::2] = 3
    with traced() as memory:
        result = apply_mask(plan, image) if mode == "one-hot" else apply_image(plan, image, -1024)
    slabs = {"one-hot": 1.0, "tilt": 1.6}.get(mode, 0.0) * image.nbytes
    # Blocks of 16 slices and planes of float32; at this size they are a third of the volume.
    assert memory.peak - result.nbytes * (result is not image) <= image.nbytes * 0.5 + slabs


DTYPES = st.sampled_from(["uint8", "int16", "int32", "float32", "float64"])
SIDES = st.tuples(*[st.integers(1, 20)] * 3)
FLIPS = st.sets(st.integers(0, 2)).map(lambda axes: tuple(sorted(axes)))


def numbered(shape: tuple[int, ...], dtype: str) -> Any:
    return (np.arange(np.prod(shape)) % 251).astype(dtype).reshape(shape)


@settings(deadline=None, max_examples=200)
@given(
    shape=SIDES, dtype=DTYPES, flips=FLIPS, order=st.permutations(range(3)), cut=st.booleans(), data=st.data()
)
def test_put_in_order_every_voxel_keeps_its_place(shape, dtype, flips, order, cut, data):
    seen = np.flip(numbered(shape, dtype), flips).transpose(order)
    if cut:
        seen = seen[:, 1:] if seen.shape[1] > 1 else seen
    expected = seen.tolist()
    result = make_contiguous(seen, spare=data.draw(st.booleans()))
    assert result.flags.c_contiguous and result.dtype == dtype
    assert result.tolist() == expected


@given(shape=SIDES, dtype=DTYPES, flips=FLIPS)
@settings(deadline=None)
def test_a_spare_reversed_volume_is_turned_in_its_own_memory(shape, dtype, flips):
    stored = numbered(shape, dtype)
    expected = np.flip(stored, flips).copy()
    turned = make_contiguous(np.flip(stored, flips), spare=True)
    assert np.shares_memory(turned, stored)
    assert np.array_equal(turned, expected)


def test_what_is_not_spare_or_cannot_be_written_stays_as_it_was():
    stored = numbered((3, 4, 5), "int16")
    before = stored.copy()
    make_contiguous(stored[::-1, ::-1])
    stored.flags.writeable = False
    turned = make_contiguous(stored[::-1, ::-1], spare=True)
    assert np.array_equal(stored, before) and np.array_equal(turned, before[::-1, ::-1])


@settings(max_examples=80, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 40)] * 3),
    first=st.sampled_from(ORIENTATIONS),
    second=st.sampled_from(ORIENTATIONS),
    dtype=st.sampled_from(["uint8", "int16", "uint32", "float32", "int64"]),
    crop=st.integers(0, 2),
)
def test_copying_is_assignment_in_any_order(shape, first, second, dtype, crop):
    numbers = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)

    def held(orientation):
        """The same voxels, held in memory in another order."""
        order, direction = orientation
        kept = stored(numbers, orientation)
        return kept[tuple(slice(None, None, step) for step in direction)].transpose(np.argsort(order))

    source, target = held(first), np.zeros_like(numbers)
    order, direction = second
    target = target.transpose(order).copy()[tuple(slice(None, None, step) for step in direction)]
    target = target.transpose(np.argsort(order))
    copy_voxels(source[crop:, :, crop:], target[crop:, :, crop:])
    assert np.array_equal(target[crop:, :, crop:], numbers[crop:, :, crop:])
    assert not target[:crop].any() and not target[:, :, :crop].any()
