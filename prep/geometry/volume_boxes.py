"""Placement of boxes in volumes: from annotations to the voxels of a scan, and from these to those of a record.

Boxes are rows of zmin, ymin, xmin, zmax, ymax, xmax along the axes of an array, in continuous voxels with the origin
at the corner of the first voxel: a box of the first two slices of 512 x 512 extends from 0, 0, 0 to 2, 512, 512.
Affines map centers of voxels, so that the center of a voxel is half a voxel after its index.

    annotation ──> voxels of the source ──> canonical, orthogonal, spacing, window ──> voxels of the record
    (SPACES)       clipped to the scan      one matrix; the box around 8 corners       clipped to the record
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.boxes import BoxPolicy
from halofeed.prep.geometry.scan import Grid
from halofeed.system.errors import SourceError

if TYPE_CHECKING:
    # The loader maps boxes back, and needs nothing that finds source files.
    from halofeed.prep.sources.example import Box

_Boxes = NDArray[np.float64]
SPACES: Final = {
    "voxels": "continuous voxels of the file, x along its fastest axis",
    "mm": "millimeters to the right, to anterior and to superior (RAS+, as in NIfTI)",
    "sphere": "the box around a sphere in the same millimeters",
    "slices": "continuous pixels of a slice, and the positions of the first and the last slice in millimeters",
}
"""Spaces of the coordinates of a `Box` in a volume."""
NOISE_VOXELS: Final = 1e-5
"""Tolerance in voxels: overhang that counts as inside, and thickness that counts as none; NIfTI has float32 affines."""
_CORNERS = np.array(list(itertools.product((0, 3), (1, 4), (2, 5))))


def map_boxes(matrix: NDArray[Any], boxes: NDArray[Any]) -> _Boxes:
    """Return the boxes around the corners of boxes that a matrix moves.

    Args:
        matrix: [4, 4], from voxel to voxel, with the centers of voxels at whole numbers.
        boxes: [n, 6], in continuous voxels.

    >>> half = np.diag([1, 1, 0.5, 1])  # every voxel of the new grid is two voxels wide
    >>> half[2, 3] = -0.25
    >>> map_boxes(half, np.array([[0, 0, 2, 1, 1, 8]])).tolist()
    [[0.0, 0.0, 1.0, 1.0, 1.0, 4.0]]
    """
    corners = np.asarray(boxes, np.float64).reshape(-1, 6)[:, _CORNERS] - 0.5
    moved = corners @ matrix[:3, :3].T + (matrix[:3, 3] + 0.5)
    return np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)


def matrix_between(source: Grid, target: Grid) -> NDArray[np.float64]:
    """Return the matrix [4, 4] from the voxels of one grid to those of another."""
    return np.asarray(np.linalg.solve(target.affine, source.affine), np.float64)


def place_in_source(boxes: Sequence[Box], grid: Grid) -> _Boxes:
    """Return annotated boxes in voxels of their scan.

    Args:
        boxes: objects of one scan.
        grid: grid of the scan as its file stores it.

    Returns:
        float64 [n, 6], not clipped to the scan.

    Raises:
        SourceError: a coordinate is missing or not finite, a box is inverted, or the scan's slices are not across the
            patient's axis, so that no position says which slice it is.
    """
    rows = [_row_in_source(number, box, grid) for number, box in enumerate(boxes)]
    return np.array(rows, np.float64).reshape(-1, 6)


def _row_in_source(number: int, box: Box, grid: Grid) -> _Boxes:
    written = np.array([box.zmin, box.ymin, box.xmin, box.zmax, box.ymax, box.xmax], np.float64)
    if not np.isfinite(written).all() or (written[:3] > written[3:]).any():
        listed = ", ".join(f"{side:g}" for side in written)
        detail = f"box {number + 1} ({box.label!r}): zmin, ymin, xmin, zmax, ymax, xmax are {listed}"
        raise SourceError("annotation", "box is inverted or not finite", detail)
    if box.space == "slices":
        return _between_slices(written, grid)
    return written if box.space == "voxels" else _from_mm(written, grid, is_sphere=box.space == "sphere")


def _from_mm(written: _Boxes, grid: Grid, *, is_sphere: bool) -> _Boxes:
    """Return a box in millimeters in voxels: the box around its corners, or around the sphere in it."""
    low, high = written[2::-1], written[:2:-1]  # right, anterior, superior
    inverse = np.linalg.inv(grid.affine)
    if not is_sphere:
        corners = np.array(list(itertools.product(*zip(low, high, strict=True))))
        voxels = corners @ inverse[:3, :3].T + inverse[:3, 3] + 0.5
        return np.concatenate([voxels.min(axis=0), voxels.max(axis=0)])
    center = inverse[:3, :3] @ ((low + high) / 2) + inverse[:3, 3] + 0.5
    # A sphere becomes an ellipsoid, whose half extent along an axis is the length of that row of the matrix.
    reach = float((high - low)[0]) / 2 * np.linalg.norm(inverse[:3, :3], axis=1)
    return np.concatenate([center - reach, center + reach])


def _between_slices(written: _Boxes, grid: Grid) -> _Boxes:
    """Return a box of pixels and slice positions in voxels; both slices belong to it."""
    step = float(grid.affine[2, 0])
    # LIDC's imageZposition is the last number of Image Position (Patient), of the slice's first pixel.
    if abs(step) < 1e-3:
        raise SourceError(
            "geometry",
            "slices have one position along the patient's axis",
            "no position of a box says which it is",
        )
    places = (written[[0, 3]] - grid.affine[2, 3]) / step
    slices = np.rint(places)
    if (np.abs(places - slices) > 0.5 - 1e-6).any() or np.abs(places - slices).max() > 0.1:
        detail = f"{written[0]:g} and {written[3]:g} mm, {np.abs(places - slices).max():.2g} slices off"
        raise SourceError("annotation", "position of a box is that of no slice", detail)
    found = written.copy()
    found[0], found[3] = slices.min(), slices.max() + 1
    return found


@dataclass(frozen=True, kw_only=True)
class ScanBoxes:
    """Boxes of one scan in its voxels, after the rules for unwanted ones.

    Args:
        boxes: float64 [m, 6], clipped to the scan.
        kept: int64 [m], ascending indices of these boxes among the annotated ones.
        counts: numbers of boxes that are "clipped", "dropped outside" and "dropped zero area".
        zero_size: indices of the boxes that were dropped because they have no volume.
    """

    boxes: _Boxes
    kept: NDArray[np.int64]
    counts: Mapping[str, int]
    zero_size: tuple[int, ...]


def select_scan_boxes(boxes: _Boxes, shape: Sequence[int], policy: BoxPolicy) -> ScanBoxes:
    """Clip boxes to their scan, and drop those that are outside or have no volume.

    Args:
        boxes: float64 [n, 6], in voxels of the scan.
        shape: depth, height and width of the scan.
        policy: the rules `outside` and `zero_area`.

    Raises:
        SourceError: a box breaks a rule that is "fail".

    >>> found = select_scan_boxes(np.array([[-1, 0, 0, 2, 4, 4], [9, 0, 0, 10, 4, 4]]), (8, 16, 16), BoxPolicy())
    >>> found.boxes.tolist(), found.counts
    ([[0.0, 0.0, 0.0, 2.0, 4.0, 4.0]], {'clipped': 1, 'dropped outside': 1, 'dropped zero area': 0})
    """
    boxes, limits = np.asarray(boxes, np.float64), np.asarray(shape, np.float64)
    beyond = np.maximum(-boxes[:, :3], boxes[:, 3:] - limits).max(axis=1, initial=0) > NOISE_VOXELS
    away = ((boxes[:, 3:] <= 0) | (boxes[:, :3] >= limits)).any(axis=1)
    flat = (boxes[:, 3:] - boxes[:, :3]).min(axis=1, initial=np.inf) <= NOISE_VOXELS
    outside = away | (beyond if policy.outside != "clip" else False)
    _refuse(policy.outside, "box reaches outside of the scan", boxes, beyond, shape)
    _refuse(policy.zero_area, "box has no volume", boxes, flat, shape)
    dropped_flat = flat & (policy.zero_area == "drop")
    kept = np.flatnonzero(~(outside | dropped_flat))
    clipped = np.clip(boxes, 0, np.tile(limits, 2))
    return ScanBoxes(
        boxes=clipped[kept],
        kept=kept.astype(np.int64),
        counts={
            "clipped": int(beyond[kept].sum()),
            "dropped outside": int((outside & ~dropped_flat).sum()),
            "dropped zero area": int(dropped_flat.sum()),
        },
        zero_size=tuple(np.flatnonzero(dropped_flat).tolist()),
    )


def _refuse(rule: str, reason: str, boxes: _Boxes, faulty: NDArray[np.bool_], shape: Sequence[int]) -> None:
    if rule == "fail" and faulty.any():
        number = int(np.argmax(faulty))
        sides = ", ".join(f"{side:.5g}" for side in boxes[number])
        size = " x ".join(map(str, shape))
        detail = f"box {number + 1}: zmin, ymin, xmin, zmax, ymax, xmax are {sides} of {size} voxels"
        raise SourceError("boxes", reason, detail)


@dataclass(frozen=True, kw_only=True)
class RecordBoxes:
    """Boxes that a record shows.

    Args:
        boxes: float32 [m, 6], normalized to the record, within 0 to 1.
        visible: float32 [m], the share of each box that the record shows, above 0.
        kept: int64 [m], ascending indices among the boxes of the scan.
    """

    boxes: NDArray[np.float32]
    visible: NDArray[np.float32]
    kept: NDArray[np.int64]


def boxes_in_record(boxes: _Boxes, matrix: NDArray[Any], shape: Sequence[int]) -> RecordBoxes:
    """Return the part of each box that a record shows.

    Args:
        boxes: float64 [n, 6], in voxels of the source.
        matrix: [4, 4], from voxels of the source to those of the record.
        shape: shape of the record.
    """
    moved, limits = map_boxes(matrix, boxes), np.asarray(shape, np.float64)
    # Rounding of affines must not decide about boxes that end at a whole voxel.
    whole = np.rint(moved)
    moved = np.where(np.abs(moved - whole) < NOISE_VOXELS, whole, moved)
    shown = np.clip(moved, 0, np.tile(limits, 2))
    before, after = ((one[:, 3:] - one[:, :3]).prod(axis=1) for one in (moved, shown))
    inside = ((moved[:, :3] <= limits) & (moved[:, 3:] >= 0)).all(axis=1)
    share = np.where(before > 0, after / np.where(before > 0, before, 1), inside)
    kept = np.flatnonzero(share > 0)
    return RecordBoxes(
        boxes=(shown[kept] / np.tile(limits, 2)).astype(np.float32),
        visible=share[kept].astype(np.float32),
        kept=kept.astype(np.int64),
    )


def boxes_of_instances(values: NDArray[Any]) -> dict[int, _Boxes]:
    """Return the box around the voxels of each value above 0, [6] in continuous voxels of the array.

    Args:
        values: integers [depth, height, width].

    >>> boxes_of_instances(np.array([[[0, 7, 7], [0, 0, 7]]]))[7].tolist()
    [0.0, 0.0, 1.0, 1.0, 2.0, 3.0]
    """
    found: dict[int, _Boxes] = {}
    # Plane by plane: the places of all voxels of large objects would take 24 bytes each.
    for depth, plane in enumerate(values):
        rows, columns = np.nonzero(plane)
        numbers, which = np.unique(plane[rows, columns], return_inverse=True)
        for at, number in enumerate(numbers.tolist()):
            inside = which == at
            y, x = rows[inside], columns[inside]
            box = np.array([depth, y.min(), x.min(), depth + 1, y.max() + 1, x.max() + 1], np.float64)
            known = found.get(number, box)
            found[number] = np.concatenate([np.minimum(known[:3], box[:3]), np.maximum(known[3:], box[3:])])
    return dict(sorted(found.items()))
