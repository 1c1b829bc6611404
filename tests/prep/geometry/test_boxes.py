"""Do boxes lie on the stored image where they lie on the source, and does the policy do what it says?"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import SourceError, UsageError
from halofeed.prep.geometry import resize
from halofeed.prep.geometry.boxes import (
    BoxPolicy,
    PlacedBoxes,
    corner_features,
    crop_boxes,
    flip_left_right,
    flip_up_down,
    place_annotated_boxes,
)
from halofeed.prep.sources.example import Box
from halofeed.schemas import keys

PLAN = resize.plan_unchanged((100, 200))


def place(boxes: Any, plan: resize.ResizePlan = PLAN, orientation: int = 1, **others: Any) -> PlacedBoxes:
    unset = {"areas": np.nan, "is_crowd": False, "difficults": False}
    columns = [others.pop(name, [value] * len(boxes)) for name, value in unset.items()]
    return place_annotated_boxes(boxes, *columns, plan, orientation, BoxPolicy(**others))


def map_back(placed: PlacedBoxes, plan: resize.ResizePlan, orientation: int) -> npt.NDArray[np.float64]:
    stored = placed.boxes.astype(np.float64) * np.array(plan.output_size * 2)
    return resize.apply_to_boxes(resize.stored_to_file(plan, orientation), stored)


def plans(size: tuple[int, int]) -> list[resize.ResizePlan]:
    return [
        resize.plan_fixed_shape(size, 300, 300),
        resize.plan_fixed_shape(size, 17, 1024),
        resize.plan_keep_aspect(size, 800, 1333, pad=False),
        resize.plan_keep_aspect(size, 600, 1024, pad=True),
        resize.plan_unchanged(size),
    ]


sides = st.integers(20, 6000)


@st.composite
def size_and_boxes(draw: st.DrawFn) -> tuple[tuple[int, int], list[list[float]]]:
    height, width = draw(sides), draw(sides)
    rows = st.lists(st.floats(0, 1), min_size=4, max_size=4)
    boxes = []
    for y0, x0, y1, x1 in draw(st.lists(rows, max_size=6)):
        ymin, ymax = sorted((y0 * height, y1 * height))
        xmin, xmax = sorted((x0 * width, x1 * width))
        boxes.append([ymin, xmin, ymax, xmax])
    return (height, width), boxes


@given(case=size_and_boxes(), orientation=st.integers(1, 8))
def test_placed_boxes_lead_back_to_the_annotation(case, orientation):
    file_size, boxes = case
    for plan in plans(resize.displayed_size(orientation, file_size)):
        placed = place(boxes, plan, orientation, zero_area="keep")
        assert placed.kept.tolist() == list(range(len(boxes)))
        assert placed.counts["clipped"] == 0
        back = map_back(placed, plan, orientation)
        assert np.abs(back - np.reshape(boxes, (-1, 4))).max(initial=0) < 1e-3
        assert (placed.boxes >= 0).all() and (placed.boxes <= 1).all()
        assert (placed.boxes.dtype, placed.area.dtype) == (np.float32, np.float32)


@given(case=size_and_boxes(), orientation=st.integers(1, 8))
def test_areas_follow_the_boxes(case, orientation):
    file_size, boxes = case
    areas = [0.5 * (ymax - ymin) * (xmax - xmin) for ymin, xmin, ymax, xmax in boxes]
    for plan in plans(resize.displayed_size(orientation, file_size)):
        placed = place(boxes, plan, orientation, areas=areas, zero_area="keep")
        unannotated = place(boxes, plan, orientation, zero_area="keep")
        (source_height, source_width), (height, width) = plan.source_size, plan.resized_size
        factor = height * width / (source_height * source_width)
        assert np.allclose(placed.area, np.array(areas) * factor, rtol=1e-5, atol=1e-6)
        assert np.allclose(placed.area, 0.5 * unannotated.area, rtol=1e-4, atol=1e-3)


def test_padding_and_scale_move_the_box_and_an_annotated_area_stays_when_it_is_clipped():
    plan = resize.plan_keep_aspect((100, 200), 50, 100, pad=True)
    placed = place([[0, 0, 100, 200], [50, 100, 100, 200]], plan)
    assert placed.boxes.tolist() == [[0, 0, 0.5, 1], [0.25, 0.5, 0.5, 1]]
    assert placed.area.tolist() == [5000, 1250]
    placed = place([[-10, 20, 30, 60]], resize.plan_fixed_shape((100, 200), 50, 100), areas=[1000.0])
    assert placed.area.tolist() == [250]


OUTSIDE = [[-10, 20, 30, 60], [10, 20, 30, 201], [10, 20, 30, 60], [120, 0, 130, 10], [10, 200, 20, 230]]


def test_clip_cuts_what_overlaps_drop_leaves_it_out_and_fail_names_box_and_picture():
    for outside in ("clip", "drop", "fail"):
        placed = place([[-1e-7, 0, 100 + 1e-7, 200 + 9e-7]], outside=outside)
        assert placed.boxes.tolist() == [[0, 0, 1, 1]], "rounding noise at the edge is inside"
        assert not any(placed.counts.values()) and len(placed.counts) == 5
        assert place([[0, 0, 50, 200.0001]], outside=outside).counts == placed.counts, "YOLO has 6 decimals"
    placed = place([])
    assert (placed.boxes.shape, placed.area.shape, placed.kept.shape) == ((0, 4), (0,), (0,))
    placed = place(OUTSIDE)
    assert placed.kept.tolist() == [0, 1, 2]
    assert (placed.counts["clipped"], placed.counts["dropped outside"]) == (2, 2)
    assert np.allclose(placed.boxes[0] * [100, 200, 100, 200], [0, 20, 30, 60])
    assert placed.area.tolist() == [1200, 3600, 800]
    placed = place(OUTSIDE, outside="drop")
    assert placed.kept.tolist() == [2]
    assert (placed.counts["clipped"], placed.counts["dropped outside"]) == (0, 4)
    message = r"boxes: box reaches outside the picture .box 1: ymin 10, .* xmax 201; the picture is 100 high"
    with pytest.raises(SourceError, match=message):
        place([OUTSIDE[2], OUTSIDE[1]], outside="fail")
    assert place([OUTSIDE[2]], outside="fail").kept.tolist() == [0]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_failing_box_is_named_as_the_annotation_has_it(orientation):
    plan = resize.plan_unchanged(resize.displayed_size(orientation, (100, 200)))
    with pytest.raises(SourceError, match="xmax 201; the picture is 100 high and 200 wide"):
        place([OUTSIDE[1]], plan, orientation, outside="fail")


ZERO = [[10, 20, 10, 60], [10, 20, 30, 20], [10, 200, 20, 200], [10, 20, 30, 60]]


def test_boxes_without_area_are_dropped_kept_clipped_or_fail():
    dropped = place(ZERO)
    assert (dropped.kept.tolist(), dropped.counts["dropped zero area"]) == ([3], 3)
    kept = place(ZERO, zero_area="keep")
    assert (kept.kept.tolist(), kept.counts["dropped zero area"]) == ([0, 1, 2, 3], 0)
    assert kept.area.tolist() == [0, 0, 0, 800]
    with pytest.raises(SourceError, match=r"boxes: box has zero area \(box 0: ymin 10"):
        place(ZERO, zero_area="fail")
    placed = place([[-5, 20, 10, 20], [10, 230, 20, 230]], zero_area="keep")
    assert placed.kept.tolist() == [0]
    assert (placed.counts["clipped"], placed.counts["dropped outside"]) == (1, 1)


def test_crowd_and_difficult_boxes_are_kept_unless_told_and_fail_no_other_policy():
    boxes, crowd, difficult = [[0, 0, 9, 9]] * 4, [True, False, True, False], [False, True, True, False]
    assert len(place(boxes, is_crowd=crowd, difficults=difficult).kept) == 4
    dropped = place(boxes, is_crowd=crowd, difficults=difficult, crowd="drop", difficult="drop")
    assert dropped.kept.tolist() == [3]
    assert (dropped.counts["dropped crowd"], dropped.counts["dropped difficult"]) == (2, 1)
    placed = place([[0, 0, 200, 300], [5, 5, 5, 5]], is_crowd=[True, True], crowd="drop", outside="fail")
    assert placed.boxes.shape == (0, 4)


@pytest.mark.parametrize(
    ("box", "area", "reason"),
    [
        ([30, 20, 10, 60], np.nan, "box is inverted .box 1: ymin 30, xmin 20, ymax 10, xmax 60"),
        ([10, 60, 30, 20], np.nan, "box is inverted .box 1"),
        ([10, np.nan, 30, 20], np.nan, "box coordinate is not finite .box 1"),
        ([10, 20, np.inf, 20], np.nan, "box coordinate is not finite .box 1"),
        ([10, 20, 30, 60], -1, "box area is not a number of at least 0 .box 1: .*area -1"),
        ([10, 20, 30, 60], np.inf, "box area is not a number of at least 0 .box 1: .*area inf"),
    ],
)
@pytest.mark.parametrize("crowd", ["keep", "drop"])
def test_a_broken_box_is_a_fault_of_the_annotation(box, area, reason, crowd):
    with pytest.raises(SourceError, match=f"annotation: {reason}"):
        place([[0, 0, 1, 1], box], areas=[np.nan, area], is_crowd=[True, True], crowd=crowd)


def random_boxes(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    corners = np.sort(np.random.default_rng(len(shape)).random((*shape, 2, 2)), axis=-2)
    return corners.reshape(*shape, 4).astype(np.float32)


def test_flips_undo_themselves_and_a_whole_window_changes_nothing_and_impossible_ones_are_refused():
    picture = np.zeros((10, 20), np.uint8)
    picture[1:4, 5:18] = 1
    boxes = np.array([[0.1, 0.25, 0.4, 0.9]], np.float32)
    for flip, axis in ((flip_left_right, 1), (flip_up_down, 0)):
        rows, columns = np.nonzero(np.flip(picture, axis))
        frame = [rows.min() / 10, columns.min() / 20, (rows.max() + 1) / 10, (columns.max() + 1) / 20]
        assert np.allclose(flip(boxes), [frame])
        assert np.allclose(flip(flip(boxes)), boxes)
        assert flip(boxes).dtype == np.float32
    boxes, areas = random_boxes((4,)), np.arange(4, dtype=np.float32)
    moved, kept, new_areas = crop_boxes(boxes, areas, (0, 0, 1, 1), minimum_visible=1.0)
    assert np.allclose(moved, boxes) and kept.all() and np.allclose(new_areas, areas)
    assert (moved.dtype, new_areas.dtype) == (np.float32, np.float32)
    _, kept, _ = crop_boxes(np.array([[0, 0, 0.5, 0.5]]), np.ones(1), (0.5, 0.5, 0.5, 0.5))
    assert not kept[0]
    boxes = np.array([[0.5, 0.5, 0.5, 0.7], [0.1, 0.1, 0.1, 0.1]])
    _, kept, areas = crop_boxes(boxes, np.zeros(2), (0.4, 0.4, 0.5, 0.5), minimum_visible=0.5)
    assert kept.tolist() == [True, False] and areas.tolist() == [0, 0]
    for window, minimum in (((0, 0, 0, 1), 0.0), ((0, 0, 1, 1), 1.5), ((0, 0, 1, 1), -0.1)):
        with pytest.raises(UsageError):
            crop_boxes(np.zeros((1, 4)), np.zeros(1), window, minimum)


@given(seed=st.integers(0, 10_000), minimum=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_crops_of_a_batch_are_those_of_each_box_alone(seed, minimum):
    random = np.random.default_rng(seed)
    boxes = np.sort(random.random((2, 3, 2, 2)), axis=-2).reshape(2, 3, 4)
    areas = random.random((2, 3)) * 1000
    windows = np.concatenate([random.random((2, 2)) / 2, random.random((2, 2)) / 2 + 1e-3], axis=1)
    moved, kept, new_areas = crop_boxes(boxes, areas, windows, minimum)
    for i, j in np.ndindex(2, 3):
        (ymin, xmin, ymax, xmax), (top, left, height, width) = boxes[i, j], windows[i]
        low_y, high_y = max(ymin, top), min(ymax, top + height)
        low_x, high_x = max(xmin, left), min(xmax, left + width)
        visible = max(high_y - low_y, 0) * max(high_x - low_x, 0) / ((ymax - ymin) * (xmax - xmin))
        if abs(visible - minimum) < 1e-9 and minimum > 0:
            continue
        assert kept[i, j] == (visible > 0 and visible >= minimum)
        if kept[i, j]:
            expected = [(low_y - top) / height, (low_x - left) / width]
            expected += [(high_y - top) / height, (high_x - left) / width]
            assert np.allclose(moved[i, j], expected) and np.isclose(new_areas[i, j], areas[i, j] * visible)
        else:
            assert (moved[i, j] == 0).all() and new_areas[i, j] == 0


@st.composite
def plans_of_tiles(draw: st.DrawFn) -> tuple[resize.ResizePlan, int, list[Box]]:
    """Return a plan of a whole picture or of one of its tiles, an orientation, and objects partly outside of both."""
    file_size, orientation = (draw(sides), draw(sides)), draw(st.integers(1, 8))
    displayed = resize.displayed_size(orientation, file_size)
    if draw(st.booleans()):
        plan = draw(st.sampled_from(plans(displayed)))
    else:
        whole = (draw(sides), draw(sides))
        shown = (draw(st.integers(1, whole[0])), draw(st.integers(1, whole[1])))
        origin = tuple(draw(st.integers(0, size - side)) for size, side in zip(whole, shown, strict=True))
        plan = resize.ResizePlan(
            source_size=displayed,
            scaled_size=whole,
            origin=origin,
            resized_size=shown,
            output_size=(shown[0] + 7, shown[1] + 3),
        )
    side = st.floats(-3000, 9000)
    boxes = []
    for corners in draw(st.lists(st.lists(side, min_size=8, max_size=8), max_size=4)):
        x, y = corners[::2], corners[1::2]
        extent = {"ymin": min(y), "xmin": min(x), "ymax": max(y), "xmax": max(x)}
        boxes.append(Box(**extent, label="a", corners=tuple(corners) if draw(st.booleans()) else ()))
    return plan, orientation, boxes


@given(plans_of_tiles())
def test_each_corner_leads_back_to_the_annotation_from_any_tile_and_is_not_clipped(case):
    plan, orientation, boxes = case
    features = corner_features(boxes, plan, orientation)
    assert list(features) == list(keys.CORNER_POINTS)
    assert {value.dtype for value in features.values()} == {np.dtype(np.float32)}
    to_file = resize.stored_to_file(plan, orientation).reshape(2, 3)
    for number, box in enumerate(boxes):
        written = box.corners or (
            *(box.xmin, box.ymin, box.xmax, box.ymin),
            *(box.xmax, box.ymax, box.xmin, box.ymax),
        )
        for point in range(4):
            y, x = (features[f"{keys.OBJECT_CORNERS}/{axis}{point + 1}"][number] for axis in "yx")
            stored = np.array([y * plan.output_size[0], x * plan.output_size[1], 1], np.float64)
            # float32 has 24 bits for a share of the stored side.
            scale = np.abs(to_file) @ np.maximum(np.abs(stored), [*plan.output_size, 1]) * 2.0**-22
            expected = [written[2 * point + 1], written[2 * point]]
            assert (np.abs(to_file @ stored - expected) <= scale + 1e-6).all()
