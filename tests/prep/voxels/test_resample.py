"""Are the voxels of every plan those of the definition, and of the patient?"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halofeed.prep.geometry.orientation import plan_canonical, plan_orthogonal
from halofeed.prep.geometry.scan import Grid, Shape
from halofeed.prep.geometry.volume import (
    Plan,
    Resample,
    View,
    compose,
    map_back,
    plan_crop_or_pad,
    plan_nothing,
    plan_resample,
    plan_stretch,
    plan_window,
)
from halofeed.prep.voxels import resample
from halofeed.prep.voxels.apply import apply_image, apply_mask, view_of
from halofeed.prep.voxels.copying import copy_voxels
from halofeed.prep.voxels.foreground import label_box, plan_foreground_crop
from halofeed.prep.voxels.phantom import (
    AIR_HU,
    LABELLED,
    centroid_mm,
    draw,
    grid_around,
    interior,
    margin_mm,
    stored,
    stored_grid,
)
from halofeed.schemas.errors import UsageError
from tests.allocations import traced
from tests.phantom import ORIENTATIONS, dice
from tests.volume_support import lead_back

# A slow oracle: voxel by voxel, step by step, straight from the definitions --------------------------------


class CloseCallError(Exception):
    """Two classes weigh nearly the same, so that rounding of positions decides."""


def slow(plan: Plan, array: NDArray[Any], fill: float, mask: bool) -> NDArray[Any]:
    for step in plan.steps:
        result = np.full(step.shape, fill, array.dtype)
        closest = slow_nearest(step, array.shape) if isinstance(step, Resample) else {}
        for voxel in np.ndindex(*step.shape):
            if isinstance(step, View):
                if all(low <= at < high for at, (low, high) in zip(voxel, step.inside, strict=True)):
                    place = step.matrix @ [*voxel, 1]
                    result[voxel] = array[tuple(place[:3].astype(int))]
                continue
            # To a 10,000th of a voxel, so that a half is a half.
            place = np.round((step.matrix @ [*voxel, 1])[:3], 4)
            if all(-0.5 <= at <= size - 0.5 for at, size in zip(place, array.shape, strict=True)):
                near = tuple(closest[axis, at] for axis, at in enumerate(voxel))
                result[voxel] = slow_value(step, array, place, near, mask)
        array = result
    return array


def slow_nearest(step: Resample, source: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """By axis and target voxel; of two equally near, the later and the earlier in turn."""
    found = {}
    for axis in range(3):
        later = True
        for voxel in range(step.shape[axis]):
            place = round(step.matrix[axis, axis] * voxel + step.matrix[axis, 3], 4)
            index = round(place)
            if place % 1 == 0.5:
                index = int(np.ceil(place) if later else np.floor(place))
                later = not later
            found[axis, voxel] = min(max(index, 0), source[axis] - 1)
    return found


def slow_value(step: Resample, array: NDArray[Any], place: Any, closest: Any, mask: bool) -> Any:
    if mask and step.mask_kernel == "nearest":
        return array[closest]
    per_axis = []
    for axis in range(3):
        at, kernel, size = place[axis], step.image_kernels[axis], array.shape[axis]
        widen = max(step.matrix[axis, axis], 1) if step.antialias else 1
        weights = dict.fromkeys(range(size), 0.0)
        if kernel == "nearest":
            weights[closest[axis]] = 1.0
        else:
            for index in range(int(at - 3 * widen) - 2, int(at + 3 * widen) + 3):
                weights[min(max(index, 0), size - 1)] += slow_weight(kernel, abs(index - at) / widen)
        total = sum(weights.values())
        per_axis.append([(index, weight / total) for index, weight in weights.items() if weight])
    shares: dict[int, float] = {}
    value = 0.0
    for (d, a), (h, b), (w, c) in product(*per_axis):
        value += float(array[d, h, w]) * a * b * c
        shares[int(array[d, h, w])] = shares.get(int(array[d, h, w]), 0.0) + a * b * c
    if mask:
        best = max(shares.values())
        close = [label for label, share in shares.items() if share > best - 1e-3]
        winners = [label for label in close if shares[label] > best - 1e-8]
        exact = all((shares[label] * 4096).is_integer() for label in winners)
        if close != winners or (len(winners) > 1 and not exact):
            raise CloseCallError
        return array[closest] if array[closest] in winners else min(winners)
    if array.dtype.kind == "f":
        return value
    limits = np.iinfo(array.dtype)  # cubic weights below 0 lead beyond the least and the largest number
    return np.clip(np.rint(value), limits.min, limits.max)


def slow_weight(kernel: str, x: float) -> float:
    if kernel == "linear":
        return max(0.0, 1 - x)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


@st.composite
def small_chains(draw: Any) -> Plan:
    sides = st.integers(1, 6)
    shapes = st.tuples(sides, sides, sides)
    spacing = st.sampled_from([0.5, 0.75, 1.0, 1.25, 2.0, 3.5])
    grid = Grid(
        shape=draw(shapes),
        affine=grid_around(draw(st.tuples(spacing, spacing, spacing)), turn_degrees=5).affine,
    )
    plans = [plan_canonical(stored_grid(grid, draw(st.sampled_from(ORIENTATIONS))))]
    for _ in range(draw(st.integers(1, 3))):
        grid = plans[-1].target
        kernels: Any = {
            "image_kernel": draw(st.sampled_from(["linear", "cubic"])),
            "mask_kernel": draw(st.sampled_from(["nearest", "onehot-linear"])),
            "slice_wise": draw(st.sampled_from(["auto", "always", "never"])),
            "antialias": draw(st.booleans()),
        }
        kind = draw(st.sampled_from(["resample", "stretch", "crop", "window", "turn"]))
        if kind == "resample":
            plans.append(plan_resample(grid, draw(st.tuples(spacing, spacing, spacing)), **kernels))
        elif kind == "stretch":
            plans.append(plan_stretch(grid, draw(shapes), **kernels))
        elif kind == "crop":
            plans.append(plan_crop_or_pad(grid, draw(shapes)))
        elif kind == "window":
            plans.append(plan_window(grid, draw(st.tuples(*[st.integers(-3, 3)] * 3)), draw(shapes)))
        else:
            turned = Grid(
                shape=grid.shape, affine=stored_grid(grid, draw(st.sampled_from(ORIENTATIONS))).affine
            )
            turn = plan_canonical(turned)  # as if the grid had been stored in that order
            plans.append(Plan(source=grid, target=turn.target, steps=turn.steps))
    return compose(plans)


@settings(max_examples=60, deadline=None)
@given(
    plan=small_chains(),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["int16", "uint8", "float32", "float64"]),
)
def test_images_hold_what_the_definition_says(plan: Plan, seed: int, dtype: str) -> None:
    image = (np.random.default_rng(seed).random(plan.source.shape) * 100 + 50).astype(dtype)
    ours, oracle = apply_image(plan, image, 7), slow(plan, image, 7, mask=False)
    assert ours.dtype == dtype and ours.shape == plan.target.shape and ours.flags.c_contiguous
    difference = np.abs(ours.astype(np.float64) - oracle.astype(np.float64))
    resamplings = sum(isinstance(step, Resample) for step in plan.steps)
    # Integers may round the other way; each further resampling starts from that.
    assert difference.max() <= (2 * resamplings if image.dtype.kind in "iu" else 0.1)
    if not resamplings:
        assert np.array_equal(ours, oracle)


@settings(max_examples=60, deadline=None)
@given(plan=small_chains(), seed=st.integers(0, 99), dtype=st.sampled_from(["uint8", "uint16", "int32"]))
def test_masks_hold_what_the_definition_says(plan: Plan, seed: int, dtype: str) -> None:
    mask = np.random.default_rng(seed).integers(0, 4, plan.source.shape).astype(dtype)
    ours = apply_mask(plan, mask)
    assert ours.dtype == dtype and ours.flags.c_contiguous
    try:
        expected = slow(plan, mask, 0, mask=True)
    except CloseCallError:
        assume(False)
    assert np.array_equal(ours, expected)


@settings(max_examples=40, deadline=None)
@given(plan=small_chains(), seed=st.integers(0, 99))
def test_steps_put_together_give_what_they_give_one_by_one(plan: Plan, seed: int) -> None:
    image = np.random.default_rng(seed).integers(-1000, 1000, plan.source.shape, dtype=np.int16)
    apart = image
    for step in plan.steps:
        affine = np.eye(4)
        grid = Grid(shape=apart.shape, affine=affine)  # type: ignore[arg-type]
        one = Plan(source=grid, target=Grid(shape=step.shape, affine=affine), steps=(step,))
        apart = apply_image(one, apart, -9)
    assert np.array_equal(apply_image(plan, image, -9), apart)


def test_sheared_volumes_hold_what_the_definition_says() -> None:
    grid = grid_around((30, 20, 15), tilt_degrees=17)
    plan = plan_orthogonal(grid)
    random = np.random.default_rng(3)
    image = random.random(grid.shape) * 100
    mask = random.integers(0, 4, grid.shape).astype(np.uint8)
    assert np.abs(apply_image(plan, image, -5) - slow(plan, image, -5, mask=False)).max() < 0.1
    places = np.floor(map_back(plan, np.argwhere(np.ones(plan.target.shape))) + 0.5 + 1e-6).astype(int)
    inside = ((places >= 0) & (places < grid.shape)).all(axis=1)
    expected = np.where(inside, mask[tuple(np.clip(places, 0, np.array(grid.shape) - 1).T)], 0)
    assert np.array_equal(apply_mask(plan, mask).ravel(), expected)
    rest = plan_crop_or_pad(plan.target, (3, 9, 9))
    assert np.array_equal(
        apply_image(compose([plan, rest]), image, -5), apply_image(rest, apply_image(plan, image, -5), -5)
    )


@settings(max_examples=80, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 40)] * 3),
    first=st.sampled_from(ORIENTATIONS),
    second=st.sampled_from(ORIENTATIONS),
    dtype=st.sampled_from(["uint8", "int16", "uint32", "float32", "int64"]),
    crop=st.integers(0, 2),
)
def test_copying_is_assignment_in_any_order(
    shape: Shape, first: Any, second: Any, dtype: str, crop: int
) -> None:
    numbers = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)

    def in_order(orientation: Any) -> NDArray[Any]:
        """The same voxels, held in memory in another order."""
        order, direction = orientation
        kept = stored(numbers, orientation)
        return kept[tuple(slice(None, None, step) for step in direction)].transpose(np.argsort(order))

    source, target = in_order(first), np.zeros_like(numbers)
    order, direction = second
    target = target.transpose(order).copy()[tuple(slice(None, None, step) for step in direction)]
    target = target.transpose(np.argsort(order))
    copy_voxels(source[crop:, :, crop:], target[crop:, :, crop:])
    assert np.array_equal(target[crop:, :, crop:], numbers[crop:, :, crop:])
    assert not target[:crop].any() and not target[:, :, :crop].any()


# The phantom --------------------------------------------------------------------------------------------

MODES: dict[str, Any] = {
    "unchanged": plan_nothing,
    "spacing": lambda grid: plan_resample(grid, (2.0, 2.0, 2.0)),
    "spacing, not antialiased": lambda grid: plan_resample(grid, (2.0, 2.0, 2.0), antialias=False),
    "spacing, one-hot": lambda grid: plan_resample(grid, (2.0, 2.0, 2.0), mask_kernel="onehot-linear"),
    "spacing, cubic": lambda grid: plan_resample(grid, (1.7, 1.3, 1.1), image_kernel="cubic"),
    "spacing, slice by slice": lambda grid: plan_resample(grid, (2.5, 1.0, 1.0), slice_wise="always"),
    "crop or pad": lambda grid: plan_crop_or_pad(grid, (96, 81, 112)),
    "about the foreground": lambda grid: plan_crop_or_pad(grid, (80, 80, 90), (40, 40, 50)),
    "crop": lambda grid: plan_window(grid, (1, 2, 3), (78, 79, 96)),
    "stretch": lambda grid: plan_stretch(grid, (32, 64, 96)),
    "all": lambda grid: compose(
        [
            # Nearest, three times over, moves the spleen by 0.52 mm.
            plan := plan_resample(grid, (2.0, 1.8, 1.8), mask_kernel="onehot-linear"),
            crop := plan_crop_or_pad(plan.target, (64, 56, 70)),
            plan_stretch(crop.target, (60, 60, 60), mask_kernel="onehot-linear"),
        ]
    ),
}
REACH = {"spacing, cubic": 2.0, "all": 2.0}
GRIDS = {
    "straight": grid_around((1.5, 1.25, 1.25), center_mm=(0.4, -0.3, 0.2)),
    "oblique": grid_around((1.5, 1.25, 1.25), turn_degrees=12),
    "tilted": grid_around((1.5, 1.25, 1.25), tilt_degrees=17),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", GRIDS)
def test_organs_keep_their_place_and_their_hounsfield_units(name: str, mode: str) -> None:
    """Centroids are of the record's mask; mean HU of what lies inside, further than interpolation reaches."""
    grid = GRIDS[name]
    image, mask = draw(grid)
    upright = plan_orthogonal(grid)
    plan = compose([upright, MODES[mode](upright.target)])
    ours, labels = apply_image(plan, image, AIR_HU), apply_mask(plan, mask)
    assert set(np.unique(labels)) == set(np.unique(mask))
    for organ in LABELLED:
        assert np.abs(centroid_mm(plan.target, labels, organ.label) - organ.center_mm).max() < 0.5, organ.name
        inner = interior(plan.target, organ, margin_mm(upright.target, plan.target, REACH.get(mode, 1.0)))
        assert inner.sum() > 20
        assert abs(ours[inner].mean() - organ.hu) < 1, organ.name


@pytest.mark.parametrize("turn", [0.0, 12.0])
def test_one_hot_masks_keep_organs_of_few_thick_slices_in_place_where_nearest_moves_them(turn: float) -> None:
    grid = grid_around((3.0, 1.5, 1.5), turn_degrees=turn)
    _, mask = draw(grid)
    furthest = {}
    for kernel in ("nearest", "onehot-linear"):
        plans = [
            plan_resample(grid, (2.0, 2.0, 2.0), mask_kernel=kernel),
            plan_stretch(grid, (32, 64, 96), mask_kernel=kernel),
        ]
        furthest[kernel] = max(
            np.abs(centroid_mm(plan.target, apply_mask(plan, mask), organ.label) - organ.center_mm).max()
            for plan in plans
            for organ in LABELLED
        )
    assert furthest["onehot-linear"] < 0.5 < furthest["nearest"]
    assert furthest["nearest"] < 1.5  # half a slice


@pytest.mark.parametrize("mode", ["unchanged", "spacing", "all"])
@pytest.mark.parametrize("name", ["straight", "oblique"])
def test_all_48_orientations_give_the_same_voxels(name: str, mode: str) -> None:
    grid = GRIDS[name]
    image, mask = draw(grid)
    expected: list[NDArray[Any]] = []
    for orientation in ORIENTATIONS:
        canonical = plan_canonical(stored_grid(grid, orientation))
        plan = compose([canonical, MODES[mode](canonical.target)])
        ours = [
            apply_image(plan, stored(image, orientation), AIR_HU),
            apply_mask(plan, stored(mask, orientation)),
        ]
        expected = expected or ours
        assert all(np.array_equal(one, other) for one, other in zip(ours, expected, strict=True)), orientation
    if mode == "unchanged":
        assert np.array_equal(expected[0], image) and np.array_equal(expected[1], mask)


@pytest.mark.parametrize(
    ("mode", "least"),
    [
        ("unchanged", 1.0),
        ("crop or pad", 1.0),
        ("crop", 1.0),
        ("about the foreground", 1.0),
        ("spacing", 0.9),
        ("spacing, one-hot", 0.9),
        ("stretch", 0.9),
    ],
)
def test_a_label_led_back_covers_the_source_mask(mode: str, least: float) -> None:
    grid = GRIDS["oblique"]
    _, mask = draw(grid)
    for orientation in ORIENTATIONS[::11]:
        canonical = plan_canonical(stored_grid(grid, orientation))
        plan = compose([canonical, MODES[mode](canonical.target)])
        kept = stored(mask, orientation)
        labels = lead_back(plan, apply_mask(plan, kept), kept.shape)  # type: ignore[arg-type]
        for organ in LABELLED:
            assert dice(labels == organ.label, kept == organ.label) >= least, organ.name


@given(seed=st.integers(0, 20))
def test_map_back_finds_the_source_voxel_of_every_voxel(seed: int) -> None:
    random = np.random.default_rng(seed)
    grid = stored_grid(grid_around((12, 11, 10)), ORIENTATIONS[seed])
    image = random.integers(0, 30000, grid.shape, dtype=np.int16)
    canonical = plan_canonical(grid)
    plan = compose([canonical, plan_crop_or_pad(canonical.target, (9, 12, 11))])
    ours = apply_image(plan, image, -1)
    voxels = np.argwhere(ours >= 0)
    assert np.array_equal(ours[tuple(voxels.T)], image[tuple(map_back(plan, voxels).astype(int).T)])


# Small promises -----------------------------------------------------------------------------------------


def test_what_was_cropped_away_does_not_come_back_with_padding() -> None:
    grid = Grid(shape=(1, 1, 6), affine=np.eye(4))
    image = np.arange(6, dtype=np.int16).reshape(1, 1, 6)
    crop = plan_window(grid, (0, 0, 2), (1, 1, 2))
    plan = compose([crop, plan_crop_or_pad(crop.target, (1, 1, 5))])
    assert len(plan.steps) == 1
    assert apply_image(plan, image, -9).ravel().tolist() == [-9, -9, 2, 3, -9]


@pytest.mark.parametrize("kernel", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32"])
def test_one_value_stays_that_value_and_overshoot_stays_within_the_type(kernel: str, dtype: str) -> None:
    grid = Grid(shape=(5, 7, 9), affine=np.diag([3.0, 1.0, 1.0, 1]))
    limits = np.iinfo(dtype)
    plan = plan_resample(grid, (0.7, 1.9, 0.6), image_kernel=kernel, slice_wise="never")
    for value in (limits.min, 3, limits.max):
        assert (apply_image(plan, np.full(grid.shape, value, dtype), 0) == value).all()
    edge = np.full(grid.shape, limits.min, dtype)
    edge[:, :, 4:] = limits.max
    ours = apply_image(plan, edge, 0)
    assert ours[..., 0].max() < 0.1 * limits.max and ours[..., -1].min() > 0.9 * limits.max


def test_channels_are_resampled_each_on_its_own() -> None:
    grid = grid_around((20, 15, 12))
    image = np.random.default_rng(0).random((*grid.shape, 3)).astype(np.float32)
    plan = plan_resample(grid, (9, 9, 9))
    ours = apply_image(plan, image, 0)
    assert ours.shape == (*plan.target.shape, 3)
    for channel in range(3):
        assert np.array_equal(ours[..., channel], apply_image(plan, image[..., channel], 0))
    assert np.array_equal(apply_image(plan, image[..., :1], 0)[..., 0], ours[..., 0])


def test_a_tie_between_classes_goes_to_the_nearest_voxel_so_that_no_class_shrinks() -> None:
    mask = np.array([[[0, 0, 1, 1, 1, 1, 0, 0]]], np.uint8)
    plan = plan_stretch(
        Grid(shape=(1, 1, 8), affine=np.eye(4)), (1, 1, 4), mask_kernel="onehot-linear", antialias=False
    )
    for shift in (-2, -1, 0, 1, 2):
        assert apply_mask(plan, np.roll(mask, shift)).sum() == 2


def test_a_mask_of_half_the_resolution_is_not_moved_though_every_voxel_is_a_tie() -> None:
    grid = Grid(shape=(1, 1, 64), affine=grid_around((1.0, 1.0, 1.0)).affine)
    plan = plan_resample(grid, (1, 1, 2))
    shifts = []
    for start in range(8, 40):
        mask = np.zeros(grid.shape, np.uint8)
        mask[..., start : start + 13] = 1
        shifts.append(centroid_mm(plan.target, apply_mask(plan, mask), 1) - centroid_mm(grid, mask, 1))
    assert abs(np.mean(shifts)) < 0.01
    assert np.abs(shifts).max() < 0.6


def test_antialiasing_lets_a_pattern_finer_than_the_new_voxels_fade() -> None:
    stripes = np.tile(np.array([0, 1000], np.int16), (4, 40, 20))
    grid = Grid(shape=(4, 40, 40), affine=np.eye(4))
    antialiased = apply_image(plan_resample(grid, (1, 1, 2.9)), stripes, 0)[..., 1:-1]
    plain = apply_image(plan_resample(grid, (1, 1, 2.9), antialias=False), stripes, 0)[..., 1:-1]
    assert antialiased.std() < 60 < 200 < plain.std()


def test_an_image_is_not_changed_by_applying_plans_to_it() -> None:
    grid = grid_around((12, 11, 10))
    image = np.random.default_rng(0).random(grid.shape).astype(np.float32)
    before = image.copy()
    for spacing in (20.0, 7.0, 10.5):
        for kernel in ("linear", "cubic"):
            apply_image(plan_resample(grid, (spacing, spacing, spacing), image_kernel=kernel), image, 0)
    assert np.array_equal(image, before)


def test_views_without_padding_are_had_without_a_copy() -> None:
    grid = stored_grid(grid_around(), ORIENTATIONS[9])
    image = np.zeros(grid.shape, np.int16)
    canonical = plan_canonical(grid)
    plan = compose([canonical, plan_window(canonical.target, (1, 2, 3), (5, 6, 7))])
    assert np.shares_memory(view_of(plan, image), image)
    assert view_of(plan, image).shape == (5, 6, 7)
    with pytest.raises(UsageError, match="padding and resampling need a copy"):
        view_of(plan_resample(grid, (9, 9, 9)), image)


def test_a_foreground_crop_of_a_mask_holds_the_whole_mask() -> None:
    _, mask = draw(GRIDS["straight"])
    plan = plan_foreground_crop(GRIDS["straight"], label_box(mask))
    assert (apply_mask(plan, mask) != 0).sum() == (mask != 0).sum()


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda plan: apply_image(plan, np.zeros((2, 3, 5)), 0), "expected .2, 3, 4."),
        (lambda plan: apply_image(plan, np.zeros((2, 3, 4), np.uint8), -1024), "-1024 is no value of uint8"),
        (
            lambda plan: apply_image(plan, np.zeros((2, 3, 4), np.int16), float("nan")),
            "nan is no value of int16",
        ),
        (
            lambda plan: apply_image(plan, np.zeros((2, 3, 4), bool), 0),
            "expected integers, float32 or float64",
        ),
        (lambda plan: apply_mask(plan, np.zeros((2, 3, 4), np.float32)), r"expected integers \[depth"),
    ],
)
def test_arrays_that_do_not_fit_the_plan_are_refused(run: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(plan_crop_or_pad(Grid(shape=(2, 3, 4), affine=np.eye(4)), (5, 5, 5)))


# Memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", [ORIENTATIONS[0], ORIENTATIONS[21], ORIENTATIONS[47]])
@pytest.mark.parametrize(
    "mode", ["unchanged", "crop or pad", "spacing", "spacing, cubic", "stretch", "coarse", "one-hot", "tilt"]
)
def test_applying_holds_few_slices(mode: str, orientation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resample, "SLAB_BYTES", 1 << 20)
    affine = grid_around((1.0, 1.0, 1.0)).affine.copy()
    if mode == "tilt":
        affine[1, 0] = 0.2
    grid = stored_grid(Grid(shape=(100, 192, 192), affine=affine), orientation)
    make = {
        **MODES,
        "coarse": lambda grid: plan_stretch(grid, (2, 64, 64)),
        "one-hot": lambda grid: plan_resample(grid, (1.0, 1.5, 1.5), mask_kernel="onehot-linear"),
        "tilt": plan_orthogonal,
    }[mode]
    canonical = plan_canonical(grid)
    plan = compose([canonical, make(canonical.target)])
    image = np.zeros(grid.shape, np.int16)
    image[::2] = 3
    with traced() as memory:
        result = apply_mask(plan, image) if mode == "one-hot" else apply_image(plan, image, -1024)
    slabs = {"one-hot": 1.0, "tilt": 1.6}.get(mode, 0.0) * image.nbytes
    # Blocks of 16 slices and planes of float32; at this size they are a third of the volume.
    assert memory.peak - result.nbytes * (result is not image) <= image.nbytes * 0.5 + slabs
