"""Boxes in volumes: placement in the scan, and the same steps as its voxels, against label maps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from halofeed.errors import SourceError
from halofeed.prep.geometry.boxes import BoxPolicy, crop_boxes, flip_boxes, turn_boxes
from halofeed.prep.geometry.orientation import plan_canonical
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_boxes import (
    boxes_in_record,
    boxes_of_instances,
    map_boxes,
    matrix_between,
    place_in_source,
    select_scan_boxes,
)
from halofeed.prep.geometry.volume_plan import join_plans, plan_crop_or_pad, plan_resample, plan_stretch
from halofeed.prep.sources.example import Box
from halofeed.prep.voxels.resample import apply_mask
from tests.support.scan_box_sets import oblique_affine, turned_affine

SHAPE = (15, 12, 17)


def of_find_objects(label):
    """The boxes of a label map by SciPy, by instance."""
    found = enumerate(ndimage.find_objects(label), start=1)
    return {
        number: [side.start for side in box] + [side.stop for side in box] for number, box in found if box
    }


@st.composite
def instance_maps(draw):
    """Three solid boxes in slabs of their own, so that no object covers another."""
    label = np.zeros(SHAPE, np.uint8)
    for number in range(3):
        spans = []
        for axis, side in enumerate(SHAPE):
            first, size = (5 * number, 5) if axis == 0 else (0, side)
            low = draw(st.integers(0, size - 2))
            spans.append(slice(first + low, first + draw(st.integers(low + 1, size))))
        label[tuple(spans)] = number + 1
    return label


@given(label=instance_maps())
def test_boxes_of_instances_are_those_of_find_objects(label):
    found = boxes_of_instances(label)
    assert {number: box.tolist() for number, box in found.items()} == of_find_objects(label)


@given(
    label=instance_maps(),
    seed=st.integers(0, 1000),
    shape=st.tuples(*[st.integers(4, 24)] * 3),
    step=st.sampled_from([None, "stretch", (1.0, 1.0, 1.0), (3.1, 0.7, 1.9)]),
)
def test_boxes_of_a_moved_label_are_the_moved_boxes(label, seed, shape, step):
    """A voxel gets the label at its center, so that a side of the label is at most half a voxel from the box's."""
    grid = Grid(shape=SHAPE, affine=turned_affine(seed))
    plans = [plan_canonical(grid)]
    if isinstance(step, tuple):
        plans.append(plan_resample(plans[-1].target, step))
    fit = plan_stretch if step == "stretch" else plan_crop_or_pad
    plan = join_plans([*plans, fit(plans[-1].target, shape)])
    numbers, boxes = zip(*boxes_of_instances(label).items(), strict=True)
    shown = boxes_in_record(np.array(boxes), matrix_between(grid, plan.target), shape)
    moved = shown.boxes.astype(np.float64) * np.tile(shape, 2)
    expected = of_find_objects(apply_mask(plan, label))
    found = {numbers[row]: box for row, box in zip(shown.kept.tolist(), moved, strict=True)}
    assert set(expected) <= set(found)
    for number, box in expected.items():
        tolerance = 0.5 if plan.resamples else 0
        np.testing.assert_allclose(found[number], box, atol=tolerance + 1e-4)


@given(seed=st.integers(0, 1000), target=st.integers(0, 1000))
def test_mapping_to_another_grid_and_back_is_exact_for_aligned_axes(seed, target):
    source = Grid(shape=SHAPE, affine=turned_affine(seed))
    other = Grid(shape=SHAPE, affine=turned_affine(target, spacing=(0.8, 2.5, 1.1)))
    boxes = np.array([[1.25, 0, 3, 4, 5.5, 16]])
    there = map_boxes(matrix_between(source, other), boxes)
    np.testing.assert_allclose(map_boxes(matrix_between(other, source), there), boxes, atol=1e-9)


@given(seed=st.integers(0, 1000))
def test_a_sphere_reaches_as_far_as_its_voxels_in_any_direction(seed):
    grid = Grid(shape=(40, 60, 44), affine=oblique_affine(seed))
    center = grid.to_mm(np.array([18.3, 30.2, 21.7]))
    low, high = center - 11, center + 11
    box = Box(
        **dict(zip(("xmin", "ymin", "zmin", "xmax", "ymax", "zmax"), [*low, *high], strict=True)),
        label="nodule",
        space="sphere",
    )
    (found,) = place_in_source([box], grid)
    directions = np.random.default_rng(seed).normal(size=(20_000, 3))
    surface = center + 11 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    voxels = (surface - grid.affine[:3, 3]) @ np.linalg.inv(grid.affine[:3, :3]).T + 0.5
    np.testing.assert_allclose(found, [*voxels.min(0), *voxels.max(0)], atol=0.05)


def box_between(z1, z2, space="voxels"):
    return Box(xmin=1, ymin=2, zmin=z1, xmax=3, ymax=5, zmax=z2, label="a", space=space)


def test_positions_of_slices_hold_both_slices_in_either_order():
    for step in (2.5, -2.5):
        affine = np.diag([1.0, 1, 1, 1])
        affine[:3, :3] = [[0, 0, -0.7], [0, -0.7, 0], [step, 0, 0]]
        affine[2, 3] = 40
        first, last = sorted([40 + 3 * step, 40 + 5 * step])
        (found,) = place_in_source([box_between(first, last, "slices")], Grid(shape=(9, 9, 9), affine=affine))
        assert found.tolist() == [3, 2, 1, 6, 5, 3]


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        (box_between(4, 3), "inverted"),
        (box_between(float("nan"), 3), "not finite"),
        (box_between(41.2, 41.2, "slices"), "no slice"),
    ],
)
def test_boxes_that_cannot_be_placed_are_refused(box, reason):
    affine = np.array([[0, 0, 1.0, 0], [0, 1, 0, 0], [2.5, 0, 0, 40], [0, 0, 0, 1]])
    with pytest.raises(SourceError, match=reason):
        place_in_source([box], Grid(shape=(9, 9, 9), affine=affine))


def test_boxes_outside_of_the_scan_follow_the_policy():
    boxes = np.array([[-2, 0, 0, 2, 4, 4], [8, 0, 0, 9, 4, 4], [1, 1, 1, 1, 2, 2], [0, 0, 0, 8, 8, 8]], float)
    kept = {rule: select_scan_boxes(boxes, (8, 8, 8), BoxPolicy(outside=rule)) for rule in ("clip", "drop")}
    assert kept["clip"].kept.tolist() == [0, 3]
    assert kept["clip"].boxes[0].tolist() == [0, 0, 0, 2, 4, 4]
    assert kept["clip"].counts == {"clipped": 1, "dropped outside": 1, "dropped zero area": 1}
    assert kept["drop"].kept.tolist() == [3]
    with pytest.raises(SourceError, match=r"outside of the scan.*box 1: .* -2"):
        select_scan_boxes(boxes, (8, 8, 8), BoxPolicy(outside="fail"))


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 6), min_size=1, max_size=4), st.sampled_from([-1, -2, -3]))
def test_flipping_twice_and_turning_four_times_gives_the_box_back(rows, axis):
    boxes = np.sort(np.array(rows).reshape(-1, 2, 3), axis=1).reshape(-1, 6)
    np.testing.assert_allclose(flip_boxes(flip_boxes(boxes, axis), axis), boxes, atol=1e-12)
    turned = boxes
    for _ in range(4):
        turned = turn_boxes(turned)
    np.testing.assert_allclose(turned, boxes, atol=1e-12)


def test_a_crop_keeps_a_box_by_the_share_of_its_volume():
    box = np.array([[0.0, 0, 0, 0.5, 0.5, 0.5]])
    window = (0.25, 0.25, 0.0, 0.5, 0.5, 1.0)  # a quarter of the box is inside
    for minimum, is_kept in ((0.25, True), (0.26, False)):
        _, kept, _ = crop_boxes(box, np.zeros(1), window, minimum)
        assert kept.tolist() == [is_kept]
    np.testing.assert_allclose(crop_boxes(box, np.zeros(1), window)[0], [[0, 0, 0, 0.5, 0.5, 0.5]])
