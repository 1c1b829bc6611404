"""Are the voxels of every plan those of the definition?"""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halofeed.prep.geometry import volume_plan as volume
from halofeed.prep.geometry.orientation import plan_canonical, plan_orthogonal
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.voxels.phantom import grid_around, stored_grid
from halofeed.prep.voxels.resample import apply_image, apply_mask
from tests.support.phantom import ORIENTATIONS, map_back
from tests.support.volume_support import as_simpleitk


class CloseCallError(Exception):
    """Two classes weigh nearly the same, so that rounding of positions decides."""


def slow(plan: volume.VolumePlan, array: NDArray[Any], fill: float, mask: bool) -> NDArray[Any]:
    for step in plan.steps:
        result = np.full(step.shape, fill, array.dtype)
        closest = slow_nearest(step, array.shape) if isinstance(step, volume.Resample) else {}
        for voxel in np.ndindex(*step.shape):
            if isinstance(step, volume.AxisView):
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


def slow_nearest(step: volume.Resample, source: tuple[int, ...]) -> dict[tuple[int, int], int]:
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


def slow_value(step: volume.Resample, array: NDArray[Any], place: Any, closest: Any, mask: bool) -> Any:
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
def small_chains(draw: Any) -> volume.VolumePlan:
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
            "antialias": draw(st.booleans()),
        }
        kind = draw(st.sampled_from(["resample", "stretch", "crop", "window", "turn"]))
        if kind == "resample":
            slice_wise: Any = draw(st.sampled_from(["auto", "always", "never"]))
            spacing_mm = draw(st.tuples(spacing, spacing, spacing))
            plans.append(volume.plan_resample(grid, spacing_mm, slice_wise=slice_wise, **kernels))
        elif kind == "stretch":
            plans.append(volume.plan_stretch(grid, draw(shapes), **kernels))
        elif kind == "crop":
            plans.append(volume.plan_crop_or_pad(grid, draw(shapes)))
        elif kind == "window":
            plans.append(volume.plan_window(grid, draw(st.tuples(*[st.integers(-3, 3)] * 3)), draw(shapes)))
        else:
            turned = Grid(
                shape=grid.shape, affine=stored_grid(grid, draw(st.sampled_from(ORIENTATIONS))).affine
            )
            turn = plan_canonical(turned)  # as if the grid had been stored in that order
            plans.append(volume.VolumePlan(source=grid, target=turn.target, steps=turn.steps))
    return volume.join_plans(plans)


@settings(max_examples=60, deadline=None)
@given(
    plan=small_chains(),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["int16", "uint8", "float32", "float64"]),
)
def test_images_hold_what_the_definition_says(plan, seed, dtype):
    image = (np.random.default_rng(seed).random(plan.source.shape) * 100 + 50).astype(dtype)
    ours, oracle = apply_image(plan, image, 7), slow(plan, image, 7, mask=False)
    assert ours.dtype == dtype and ours.shape == plan.target.shape and ours.flags.c_contiguous
    difference = np.abs(ours.astype(np.float64) - oracle.astype(np.float64))
    resamplings = sum(isinstance(step, volume.Resample) for step in plan.steps)
    # Integers may round the other way; each further resampling starts from that.
    assert difference.max() <= (2 * resamplings if image.dtype.kind in "iu" else 0.1)
    if not resamplings:
        assert np.array_equal(ours, oracle)


@settings(max_examples=60, deadline=None)
@given(plan=small_chains(), seed=st.integers(0, 99), dtype=st.sampled_from(["uint8", "uint16", "int32"]))
def test_masks_hold_what_the_definition_says(plan, seed, dtype):
    mask = np.random.default_rng(seed).integers(0, 4, plan.source.shape).astype(dtype)
    ours = apply_mask(plan, mask)
    assert ours.dtype == dtype and ours.flags.c_contiguous
    try:
        expected = slow(plan, mask, 0, mask=True)
    except CloseCallError:
        assume(False)
    assert np.array_equal(ours, expected)


def test_sheared_volumes_hold_what_the_definition_says():
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
    rest = volume.plan_crop_or_pad(plan.target, (3, 9, 9))
    assert np.array_equal(
        apply_image(volume.join_plans([plan, rest]), image, -5),
        apply_image(rest, apply_image(plan, image, -5), -5),
    )


def load(path: Path) -> tuple[Grid, NDArray[Any]]:
    nibabel = pytest.importorskip("nibabel")
    file = nibabel.load(path)
    array = np.asarray(file.dataobj).T
    return Grid(shape=array.shape, affine=file.affine[:, [2, 1, 0, 3]].astype(np.float64)), array


@pytest.fixture(scope="module")
def spleen(test_data: Path) -> tuple[Grid, NDArray[Any], NDArray[Any]]:
    folder = test_data / "volumes" / "spleen"
    grid, image = load(folder / "sub-spleen2_ct.nii.gz")
    _, mask = load(folder / "sub-spleen2_ct_seg-manual.nii.gz")
    return grid, image.astype(np.float32), mask.astype(np.uint8)


@pytest.mark.parametrize("kind", ["spacing", "finer", "stretch", "crop"])
def test_simpleitk_resamples_to_the_same_voxels(spleen, kind):
    grid, image, mask = spleen
    canonical = plan_canonical(grid)
    same = {"antialias": False, "slice_wise": "never"}
    rest = {
        "spacing": lambda grid: volume.plan_resample(grid, (2.0, 2.0, 2.0), **same),
        "finer": lambda grid: volume.plan_resample(grid, (3.1, 0.9, 1.1), **same),
        "stretch": lambda grid: volume.plan_stretch(grid, (40, 100, 120), antialias=False),
        "crop": lambda grid: volume.plan_crop_or_pad(grid, (32, 150, 180)),
    }[kind](canonical.target)
    plan = volume.join_plans([canonical, rest])
    reference = as_simpleitk(np.zeros(plan.target.shape, np.float32), plan.target)

    def theirs(array, *how):
        moved = SimpleITK.Resample(as_simpleitk(array, grid), reference, SimpleITK.Transform(), *how)
        return SimpleITK.GetArrayFromImage(moved)

    linear = theirs(image, SimpleITK.sitkLinear, -1024.0, SimpleITK.sitkFloat32)
    difference = np.abs(apply_image(plan, image, -1024) - linear)
    # Positions are rounded to 3e-5 voxels, and neighbors differ by up to 3000 HU.
    assert difference.max() <= 0.2
    assert difference.mean() <= 2e-3
    labels = theirs(mask, SimpleITK.sitkNearestNeighbor, 0, SimpleITK.sitkUInt8)
    places = map_back(rest, np.argwhere(np.ones(plan.target.shape)))
    tie = (np.abs(places % 1 - 0.5) < 1e-4).any(axis=1).reshape(plan.target.shape)
    assert np.array_equal(apply_mask(plan, mask)[~tie], labels[~tie])
