"""Do the contours of structure sets cover the voxels whose centers they enclose?"""

import itertools
from typing import Any

import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halofeed.errors import SourceError, UsageError
from halofeed.prep.geometry.scan import Finding, Grid, MaskScan
from halofeed.prep.voxels.label_volumes import OVERLAP_HINT
from tests.support.dicom_folders import damage, last_wins, mask_outcome, mask_refusal, open_mask
from tests.support.dicom_mask_writer import inside_polygon, saved, structure_set

CLOSED = "CLOSED_PLANAR"
SHAPE = (12, 40, 50)
Contours = list[tuple[str, NDArray[np.float64]]]


def grid_of(seed: int | None = None, shape: tuple[int, int, int] = SHAPE, shear: float = 0.0) -> Grid:
    """A grid of 2.5 x 0.7 x 0.8 mm: axial for no seed, else turned at random."""
    rotation = np.array([[0, 0, -1.0], [0, -1.0, 0], [1.0, 0, 0]])
    if seed is not None:
        rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = rotation * (2.5, 0.7, 0.8), (31.5, -80.25, 412.0)
    affine[:3, 0] += shear * affine[:3, 1]
    return Grid(shape=shape, affine=affine)


def circle(
    grid: Grid, depth: float, radius: float, center: tuple[float, float] = (19.2, 24.7), count: int = 400
) -> Any:
    """A circle in voxels of a slice, as points in millimeters."""
    angle = np.arange(count) * 2 * np.pi / count
    row, column = center[0] + radius * np.sin(angle), center[1] + radius * np.cos(angle)
    return CLOSED, grid.to_mm(np.stack([np.full(count, depth), row, column], axis=1))


def rectangle(grid: Grid, depth: float, top: float, left: float, bottom: float, right: float) -> Any:
    corners = [(depth, top, left), (depth, top, right), (depth, bottom, right), (depth, bottom, left)]
    return CLOSED, grid.to_mm(np.array(corners))


def written(contours: Contours | dict[int, Any]) -> bytes:
    return saved(structure_set(contours if isinstance(contours, dict) else {3: ("organ", contours)}))


def opened(contours: Contours | dict[int, Any], grid: Grid | None) -> MaskScan:
    return open_mask(written(contours), grid)


def refused(contours: Contours | dict[int, Any], grid: Grid) -> SourceError:
    return mask_refusal(written(contours), grid)


def told(mask: MaskScan) -> list[tuple[str, str]]:
    return [(finding.name, finding.detail) for finding in mask.findings]


GRIDS = [grid_of(), grid_of(1), grid_of(2), grid_of(shear=0.9), grid_of(3, shear=-1.3)]


@pytest.mark.parametrize("grid", GRIDS)
def test_circles_and_rings_cover_the_voxels_whose_centers_they_enclose(grid):
    contours = [circle(grid, depth, 15) for depth in range(2, 9)]
    contours += [circle(grid, depth, 6.5) for depth in range(4, 7)]  # holes
    contours += [circle(grid, 5, 2.2)]  # and an island in the hole
    row, column = np.mgrid[:40, :50]
    distance = np.hypot(row - 19.2, column - 24.7)
    truth = np.zeros(SHAPE, bool)
    truth[2:9] = distance <= 15
    truth[4:7] &= distance > 6.5
    truth[5] |= distance <= 2.2
    mask = opened(contours, grid)
    assert np.array_equal(mask.read() == 3, truth)
    assert mask.read().dtype == np.uint8 and mask.names == {3: "organ"} and mask.findings == ()
    assert mask.grid is grid and mask.files == ("mask.dcm",)


@pytest.mark.parametrize(("order", "sign"), [*itertools.product(itertools.permutations(range(3)), (1, -1))])
def test_slices_are_found_along_any_axis_of_the_grid(order, sign):
    grid = grid_of(4)
    contours = [circle(grid, depth, 11) for depth in (0, 3, 11)]
    expected = opened(contours, grid).read().transpose(order)[:, ::sign]
    affine = grid.affine.copy()
    affine[:3, :3] = grid.affine[:3, list(order)]
    if sign < 0:
        affine[:3, 3] += affine[:3, 1] * (expected.shape[1] - 1)
        affine[:3, 1] *= -1
    assert np.array_equal(opened(contours, Grid(shape=expected.shape, affine=affine)).read(), expected)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 9999), count=st.integers(3, 12))
def test_any_polygon_covers_the_centers_inside_it_and_is_cut_at_the_edge(seed, count):
    rng = np.random.default_rng(seed)
    grid = grid_of(seed, (3, 11, 13))
    polygon = rng.uniform((-4, -4), (15, 17), (count, 2))
    polygon[0] = 5.03, 5.07  # no polygon lies wholly outside
    polygon[1:3] = [[5.1, 9.2], [9.3, 5.4]]
    points = grid.to_mm(np.column_stack([np.ones(count), polygon]))
    labels = opened([(CLOSED, points)], grid).read()
    expected = inside_polygon((polygon[:, ::-1] + 0.5).ravel().tolist(), (11, 13))  # of a voxel's corner
    assert np.array_equal(labels[1] == 3, expected)
    assert not labels[[0, 2]].any()


def test_a_huge_contour_drawn_in_parts_covers_what_it_covers_in_one(monkeypatch):
    from halofeed.prep.formats.dicom import rtstruct as dicom_contours

    grid = grid_of()
    rng = np.random.default_rng(0)
    points = grid.to_mm(np.column_stack([np.full(300, 5.0), rng.uniform((0, 0), (39, 49), (300, 2))]))
    whole = opened([(CLOSED, points)], grid).read()
    for most in (50, 700, 3000):
        monkeypatch.setattr(dicom_contours, "EDGE_ROWS_PER_BLOCK", most)
        assert np.array_equal(opened([(CLOSED, points)], grid).read(), whole)


def test_overlapping_structures_are_refused_or_the_last_wins_and_those_that_touch_do_not_overlap():
    grid = grid_of()
    structures = {
        300: ("b", [rectangle(grid, 5, 4.5, 4.5, 9.5, 9.5)]),
        2: ("a", [rectangle(grid, 5, 7.5, 4.5, 12.5, 9.5), rectangle(grid, 6, 1.5, 1.5, 3.5, 3.5)]),
    }
    error = refused(structures, grid)
    assert error.reason == "structures overlap"
    assert error.detail == f"10 voxels are in more than one of the structures 2, 300; {OVERLAP_HINT}"
    labels = last_wins(opened(structures, grid))
    assert labels.dtype == np.uint16
    counts = dict(zip(*np.unique(labels, return_counts=True), strict=True))
    assert counts == {0: labels.size - 44, 2: 19, 300: 25}
    grid = grid_of()
    structures = {
        1: ("left", [rectangle(grid, 5, 4, 4, 10, 10)]),
        2: ("right", [rectangle(grid, 5, 4, 10, 10, 16)]),
    }
    labels = opened(structures, grid).read()[5]
    assert np.unique(labels[4:11, 4:10]).tolist() == [1] and np.unique(labels[4:10, 10:17]).tolist() == [2]
    assert np.count_nonzero(labels) == 7 * 13
    last = last_wins(opened(structures, grid))
    assert np.count_nonzero(last == 2) == 7 * 7
    within = {1: structures[1], 2: ("line", [rectangle(grid, 5, 6, 5, 6, 9)])}
    assert refused(within, grid).detail.startswith("5 voxels are in more than one of the structures 1, 2;")
    assert refused({1: structures[1], 2: structures[1]}, grid).detail.startswith("49 voxels")


def test_points_and_open_contours_are_left_out_and_one_given_twice_is_drawn_once():
    grid = grid_of()
    line = grid.to_mm(np.array([[5, 5, 5], [5, 9, 9], [7, 12, 3.0]]))
    structures = {
        1: ("organ", [circle(grid, 5, 9), ("OPEN_PLANAR", line), (CLOSED, line[:2])]),
        2: ("isocentre", [("POINT", line[:1])]),
        4: ("never drawn", []),
    }
    mask = opened(structures, grid)
    assert dict(told(mask)) == {
        "contours that enclose no area": "points and open contours left out: 2",
        "contours of fewer than three points": "left out: 1",
        "structures without contours": "1",
    }
    assert mask.names == {1: "organ", 4: "never drawn"}
    assert np.array_equal(mask.read(), opened({1: ("organ", [circle(grid, 5, 9)])}, grid).read())
    grid = grid_of()
    kind, points = circle(grid, 5, 9)
    turned = (kind, np.roll(points, 17, axis=0)[::-1])
    closed = (kind, np.concatenate([points, points[:1]]))
    mask = opened([(kind, points), turned, closed], grid)
    assert np.array_equal(mask.read(), opened([(kind, points)], grid).read())
    assert told(mask) == [("repeated contours", "drawn once: 2 left out")]


def test_points_on_the_border_count_and_borders_between_voxels_stay_where_they_are():
    grid = grid_of(1)
    for top, left, bottom, right, count in (
        (4, 5, 9, 11, 6 * 7),
        (4, 5.5, 9, 10.5, 6 * 5),
        (3.5, 4.5, 8.5, 10.5, 5 * 6),
        (4.03, 5.03, 8.97, 10.97, 4 * 5),
        (3.9, 4.9, 9.1, 11.1, 6 * 7),
        (4.004, 4.996, 9.002, 11.003, 6 * 7),
    ):
        labels = opened([rectangle(grid, 5, top, left, bottom, right)], grid).read()
        assert np.count_nonzero(labels) == count, (top, left, bottom, right)
    hole = [rectangle(grid, 5, 4, 4, 20, 20), rectangle(grid, 5, 8, 8, 12, 12)]
    assert np.count_nonzero(opened(hole, grid).read()) == 17 * 17 - 3 * 3


def test_contours_near_a_slice_are_moved_to_it_and_slices_between_them_counted():
    grid = grid_of(6)
    mask = opened([circle(grid, 5.2, 9), circle(grid, 3.9, 9), circle(grid, 6.001, 9)], grid)
    assert np.flatnonzero(mask.read().any(axis=(1, 2))).tolist() == [4, 5, 6]
    moved = "moved to the nearest slice: 2"
    assert mask.findings == (Finding.corrected("contours off their slice", moved),)
    grid = grid_of(6)
    mask = opened([circle(grid, height, 9) for height in (2, 3, 5, 8)], grid)
    assert np.flatnonzero(mask.read().any(axis=(1, 2))).tolist() == [2, 3, 5, 8]
    detail = "slices without a contour between two that lie over each other: 3"
    assert mask.findings == (Finding.noted("structures that skip slices", detail),)
    apart = opened([circle(grid, 2, 4, (8, 8)), circle(grid, 5, 4, (30, 40))], grid)
    assert apart.findings == ()


def test_contours_off_the_grid_are_refused_with_their_reason_and_those_next_to_it_left_out():
    grid = grid_of(7)
    tilted = circle(grid, 5, 9)[1] + np.linspace(0, 1, 400)[:, None] * grid.affine[:3, 0]
    for contours, reason in (
        ([circle(grid, 5, 9), circle(grid, 4.5, 9)], "contours lie between the image's slices"),
        ([circle(grid, 5, 9), (CLOSED, tilted)], "contours do not lie in the image's slices"),
        ([circle(grid, 5, 9), circle(grid, 14, 9)], "contours lie outside of the image"),
        ([circle(grid, 5, 9), circle(grid, -3, 9)], "contours lie outside of the image"),
        ([circle(grid, -1, 9)], "contours lie outside of the image"),
        ([circle(grid, 5, 9, (500, 20))], "contours lie outside of the image"),
        ([circle(grid, 1e9, 9)], "contours lie outside of the image"),
        ([circle(grid, 4.8, 9), circle(grid, 5.2, 9)], "contours lie closer than the image's slices"),
        ([circle(grid, 5, 9), circle(grid, 5, 9, (25, 25))], "contours of one structure cross"),
    ):
        error = refused(contours, grid)
        assert error.reason == reason
        if "slices, of" in error.detail:
            assert "=background' leaves a structure out" in error.detail
    grid = grid_of(8)
    mask = opened([circle(grid, 11, 9), circle(grid, 12, 9), circle(grid, 4, 9, (38.1, 3.2))], grid)
    labels = mask.read()
    row, column = np.mgrid[:40, :50]
    assert np.array_equal(labels[4] == 3, np.hypot(row - 38.1, column - 3.2) <= 9)
    assert labels[11].any()
    assert dict(told(mask)).keys() == {"contours beyond the slices", "contours cut at the image's edge"}


def test_contours_that_the_file_says_cross_are_drawn_by_parity():
    grid = grid_of()
    contours = [
        ("CLOSEDPLANAR_XOR", points)
        for _, points in (rectangle(grid, 5, 0.5, 0.5, 6.5, 6.5), rectangle(grid, 5, 3.5, 3.5, 9.5, 9.5))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pydicom.config.settings, "writing_validation_mode", 0)
        labels = opened(contours, grid).read()
    assert np.count_nonzero(labels) == 36 + 36 - 2 * 9
    grid = grid_of()
    _, outer = rectangle(grid, 5, 4.5, 4.5, 20.5, 20.5)
    _, inner = rectangle(grid, 5, 8.5, 8.5, 12.5, 12.5)
    keyhole = np.concatenate([outer, outer[:1], inner[[0, 3, 2, 1, 0]]])
    labels = opened([(CLOSED, keyhole)], grid).read()[5]
    truth = np.zeros((40, 50), bool)
    truth[5:21, 5:21] = True
    truth[9:13, 9:13] = False
    assert np.array_equal(labels == 3, truth)


def test_structures_numbered_below_one_get_unused_numbers_and_none_is_drawn_without_a_scan():
    grid = grid_of()
    mask = opened({0: ("a", [circle(grid, 5, 3)]), 7: ("", []), -2: ("b", [circle(grid, 6, 3)])}, grid)
    assert mask.names == {8: "a", 7: "structure 7", 9: "b"}
    assert sorted(np.unique(mask.read()).tolist()) == [0, 8, 9]
    assert {"structures renumbered", "structures without a name"} < dict(told(mask)).keys()
    with pytest.raises(UsageError, match="give image_grid"):
        opened([circle(grid_of(), 5, 9)], None)


def changed(edit: Any) -> bytes:
    dataset = structure_set({1: ("organ", [circle(grid_of(), 5, 9, count=8)])})
    edit(dataset)
    return saved(dataset)


def contour(**values: Any) -> Any:
    """An edit of the first contour."""
    return lambda d: d.ROIContourSequence[0].ContourSequence[0].update(values)


FAULTS = {
    "no structures": lambda d: d.pop("StructureSetROISequence"),
    "unknown structure": lambda d: setattr(d.ROIContourSequence[0], "ReferencedROINumber", 5),
    "points that lack": contour(NumberOfContourPoints=9),
    "odd data": contour(ContourData=["1"] * 23),
    "unknown kind": contour(ContourGeometricType="ROUND"),
    "number twice": lambda d: d.StructureSetROISequence.append(d.StructureSetROISequence[0]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_structure_sets_are_refused(fault):
    with pytest.raises(SourceError, match=r"DICOM file is damaged|structure set has no structures"):
        open_mask(changed(FAULTS[fault]), grid_of())


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2", "1.2.840.10008.1.2.1"])
def test_a_truncated_file_loses_no_contour_silently(syntax):
    grid = grid_of()
    contours = [circle(grid, depth, 9, count=4) for depth in range(3)]
    whole = saved(structure_set({1: ("organ", contours[:2]), 2: ("other", contours[2:])}, syntax=syntax))
    expected = mask_outcome(whole, grid)
    for end in range(len(whole)):
        result = mask_outcome(whole[:end], grid)
        # What ends between two elements is a whole file; its structures are then named, but not drawn.
        assert isinstance(result, SourceError) or np.array_equal(result, expected) or not result.any(), end


def test_damaged_bytes_end_in_no_other_error():
    damage(changed(lambda dataset: None), grid_of(), 3, 300)
