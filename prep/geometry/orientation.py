"""How grids lie to the patient and to each other: canonical order, orthogonal axes, one grid onto another.

stored                    canonical                  orthogonal (gantry tilt undone)

┌──────> i                S ┌ ─ ─ ─┐                 ┌───────────┐
│ slices in any           A │ ╱ ╱ ╱│                 │  ╱│  │  ╱ │   outside the tilted
v j  order and turn       └─┴──────> R               │╱  │  │╱   │   volume: the fill value
                                                     └───────────┘
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.geometry.scan import LARGEST_TOLERANCE, SAME_GRID_VOXELS, Grid, Shape
from halofeed.prep.geometry.volume import (
    Plan,
    Resample,
    View,
    compose,
    describe,
    distance_mm,
    distance_voxels,
    plan_nothing,
    plan_step,
    plan_window,
    triple,
    whole,
)

SHEAR_COSINE: Final = 1e-3
"""Axes within this cosine of a right angle (0.06°) are left as they are: over 400 mm their ends lie 0.4 mm from
where a right angle puts them, and the affine still says so."""
SAME_VOXEL: Final = 1e-3
"""In `plan_onto`, voxels that lie no further than this from another grid's voxels are those voxels."""


def plan_canonical(grid: Grid) -> Plan:
    """Permutes and reverses axes so that depth grows to superior, height to anterior, width to the right.

    Each axis goes to the patient's axis it lies nearest to, all three together; what is oblique about the scan stays
    in the affine. The voxels are only looked at in another order.

    Raises:
        SourceError: the affine is not finite, or maps the volume to a plane.
    """
    cosines = _cosines(grid)
    rows = (2, 1, 0)  # of the patient's axes (right, anterior, superior), for depth, height, width
    order = max(
        permutations(range(3)),
        key=lambda order: round(
            sum(abs(float(cosines[row, axis])) for row, axis in zip(rows, order, strict=True)), 6
        ),
    )
    direction = triple([1 if cosines[row, axis] > 0 else -1 for row, axis in zip(rows, order, strict=True)])
    return _plan_turn(grid, triple(order), direction)


def _plan_turn(grid: Grid, order: Shape, direction: Shape) -> Plan:
    if order == (0, 1, 2) and direction == (1, 1, 1):
        return plan_nothing(grid)
    shape = triple([grid.shape[axis] for axis in order])
    first = triple([0 if sign > 0 else size - 1 for sign, size in zip(direction, shape, strict=True)])
    return plan_step(
        grid, View(shape=shape, order=order, direction=direction, first=first, inside=whole(shape))
    )


def _cosines(grid: Grid) -> NDArray[np.float64]:
    """The directions of the voxel axes as columns of length 1."""
    if not np.isfinite(grid.affine).all():
        raise SourceError("geometry", "affine is not finite")
    linear = grid.affine[:3, :3]
    lengths = np.linalg.norm(linear, axis=0)
    cosines = linear / np.where(lengths > 0, lengths, 1)
    if abs(np.linalg.det(cosines)) < 1e-6:
        listed = ", ".join(f"{length:.4g}" for length in lengths)
        detail = f"the voxel axes, {listed} mm long, lie in a plane"
        raise SourceError("geometry", "affine is not invertible", detail)
    return np.asarray(cosines, np.float64)


def shear_cosine(grid: Grid) -> float:
    """The largest cosine between two voxel axes: 0 where all are at right angles, 0.29 at a tilt of 17°."""
    cosines = _cosines(grid)
    return max(abs(float(cosines[:, a] @ cosines[:, b])) for a, b in combinations(range(3), 2))


def plan_orthogonal(grid: Grid) -> Plan:
    """Resamples a sheared volume (gantry tilt) on a grid at right angles that covers it; else nothing.

    The two axes nearest to a right angle keep their directions and spacings; the third, along which the slices
    slide, becomes their normal, spaced as the slices are along it. A slice thus stays in its plane and is moved
    within it, linearly interpolated; what no slice reaches is filled. Masks take the nearest voxel. Where two pairs
    are at right angles, as they are under a gantry tilt, height and width are taken for the slice.
    """
    if shear_cosine(grid) <= SHEAR_COSINE:
        return plan_nothing(grid)
    cosines, linear = _cosines(grid), grid.affine[:3, :3]
    first, second = min(
        combinations((1, 2, 0), 2),
        key=lambda pair: round(abs(float(cosines[:, pair[0]] @ cosines[:, pair[1]])), 6),
    )
    columns = linear.copy()
    kept = cosines[:, first]
    columns[:, second] -= (kept @ columns[:, second]) * kept
    normal = np.cross(kept, columns[:, second])
    normal /= np.linalg.norm(normal)
    third = 3 - first - second
    columns[:, third] = (normal @ columns[:, third]) * normal

    reach = np.indices((2, 2, 2)).reshape(3, 8).T * (np.array(grid.shape) - 1)
    corners = reach @ np.linalg.solve(columns, linear).T
    low, high = corners.min(axis=0), corners.max(axis=0)
    sizes = np.ceil(high - low - SAME_VOXEL) + 1
    matrix = np.eye(4)
    matrix[:3, :3] = np.linalg.solve(linear, columns)
    matrix[:3, 3] = matrix[:3, :3] @ ((low + high - sizes + 1) / 2)
    step = Resample(shape=triple(sizes.tolist()), matrix=_clean(matrix))
    return plan_step(grid, step)


def plan_onto(source: Grid, target: Grid) -> Plan:
    """Brings a volume onto another grid: image values by linear interpolation, masks by the nearest voxel.

    Where the voxels of both grids coincide they are moved whole. A target voxel further than half a voxel outside
    the source is filled.
    """
    _cosines(source)
    _cosines(target)
    matrix = _clean(np.linalg.solve(source.affine, target.affine))
    turn = _turn_of(source, target.shape, matrix)
    if turn is None:
        plan = plan_step(source, Resample(shape=target.shape, matrix=matrix))
    else:
        inner = _clean(np.linalg.solve(turn.to_source, matrix))
        ratios = np.diag(inner)[:3]
        sizes = np.array(target.shape)
        start = np.rint(inner[:3, 3])
        if (np.abs(ratios - 1) * sizes + np.abs(inner[:3, 3] - start) <= SAME_VOXEL).all():
            last = plan_window(turn.target, triple(start.tolist()), target.shape)
        else:
            inner[:3, :3] = np.diag(ratios)
            last = plan_step(turn.target, Resample(shape=target.shape, matrix=inner))
        plan = compose([turn, last])
    return replace(plan, target=target)


def _turn_of(source: Grid, shape: Shape, matrix: NDArray[np.float64]) -> Plan | None:
    """The turn of the source after which each target axis runs along one source axis, if there is one."""
    linear = matrix[:3, :3]
    order = triple(np.abs(linear).argmax(axis=0).tolist())
    if sorted(order) != [0, 1, 2]:
        return None
    rest = np.abs(linear) * np.array(shape)
    rest[order, range(3)] = 0
    if rest.max() > SAME_VOXEL:
        return None
    return _plan_turn(
        source, order, triple([1 if linear[order[axis], axis] > 0 else -1 for axis in range(3)])
    )


def _clean(matrix: NDArray[Any]) -> NDArray[np.float64]:
    """Without the last digits that solving leaves beside whole numbers."""
    rounded = np.rint(matrix)
    return np.asarray(np.where(np.abs(matrix - rounded) < 1e-9, rounded, matrix), np.float64)


def check_same_space(image: Grid, mask: Grid, tolerance_voxels: float = SAME_GRID_VOXELS) -> float:
    """Refuses a mask whose voxels are not those of its image, in whatever order either is stored.

    Args:
        tolerance_voxels: how far a voxel of the mask may lie from the image's along each axis, as a share of a voxel.

    Returns:
        How far it does lie, in voxels.

    Raises:
        SourceError: their shapes differ in canonical order, or a voxel lies further than the tolerance from the
            image's.
    """
    first, second = plan_canonical(image).target, plan_canonical(mask).target
    offset, apart = offset_between(first, second)
    if offset <= tolerance_voxels:
        return offset
    detail = f"image {describe(first)}, mask {describe(second)}{apart}"
    cure = "--mask-grid resample brings it onto the image's"
    detail += f"; {cure}{tolerance_for(offset)}"
    raise SourceError("geometry", "mask lies on another grid than its image", detail)


def tolerance_for(offset: float) -> str:
    """The option that takes grids that lie so many voxels apart; "" where none does.

    >>> tolerance_for(0.2345), tolerance_for(0.5)
    ('; --mask-grid-tolerance 0.24 takes it as it lies', '')
    """
    if offset > LARGEST_TOLERANCE - 0.01:
        return ""
    return f"; --mask-grid-tolerance {math.ceil(100 * offset) / 100:g} takes it as it lies"


def offset_between(first: Grid, second: Grid) -> tuple[float, str]:
    """How far apart two grids lie along an axis, as a share of a voxel, and words for it; infinity for other shapes."""
    if first.shape != second.shape:
        return math.inf, ""
    offset = distance_voxels(first, second)
    return offset, f", up to {distance_mm(first, second):.4g} mm apart ({offset:.2g} voxels)"
