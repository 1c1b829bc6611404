"""Orientation of grids relative to the patient and to each other: canonical order, orthogonal axes, common grid.

stored                    canonical                  orthogonal (gantry tilt removed)

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

from halofeed.prep.geometry.scan import GRID_TOLERANCE_VOXELS, MAX_GRID_TOLERANCE_VOXELS, Grid, VolumeShape
from halofeed.prep.geometry.volume_plan import (
    AxisView,
    Resample,
    VolumePlan,
    describe_grid,
    distance_mm,
    distance_voxels,
    full_ranges,
    join_plans,
    plan_nothing,
    plan_volume_step,
    plan_window,
    triple,
)
from halofeed.system.errors import SourceError

SHEAR_COSINE: Final = 1e-3
"""Axes within this cosine of a right angle (0.06°) are not resampled. Over 400 mm their ends deviate by 0.4 mm from a
right angle, which the affine still records."""
SAME_VOXEL: Final = 1e-3
"""`plan_onto` treats voxels of two grids as the same if they are within this fraction of a voxel."""
FIELD_OF_VIEW_VOXELS: Final = 0.75
"""Maximum distance, in voxels of a record, from a record's voxel center to a source voxel that the record shows.

Half a voxel is the voxel itself. Rounding the field of view in a conversion loses up to a quarter more at each end."""


def plan_canonical(grid: Grid) -> VolumePlan:
    """Plan to permute and reverse axes so that depth points to superior, height to anterior, width to the right.

    The assignment of voxel axes to patient axes maximizes the sum of the cosines. The affine keeps oblique
    directions. The result is a view of the voxels.

    Raises:
        SourceError: the affine is not finite, or maps the volume to a plane.
    """
    cosines = _cosines(grid)
    rows = (2, 1, 0)  # patient axes (right, anterior, superior) for depth, height, width
    order = max(
        permutations(range(3)),
        key=lambda order: round(
            sum(abs(float(cosines[row, axis])) for row, axis in zip(rows, order, strict=True)), 6
        ),
    )
    direction = triple([1 if cosines[row, axis] > 0 else -1 for row, axis in zip(rows, order, strict=True)])
    return _plan_turn(grid, triple(order), direction)


def _plan_turn(grid: Grid, order: VolumeShape, direction: VolumeShape) -> VolumePlan:
    # The axes have this order and direction already.
    if order == (0, 1, 2) and direction == (1, 1, 1):
        return plan_nothing(grid)
    shape = triple([grid.shape[axis] for axis in order])
    first = triple([0 if sign > 0 else size - 1 for sign, size in zip(direction, shape, strict=True)])
    return plan_volume_step(
        grid, AxisView(shape=shape, order=order, direction=direction, first=first, inside=full_ranges(shape))
    )


def _cosines(grid: Grid) -> NDArray[np.float64]:
    """Return the directions of the voxel axes as unit columns."""
    if not np.isfinite(grid.affine).all():
        raise SourceError("geometry", "affine is not finite")
    linear = grid.affine[:3, :3]
    lengths = np.linalg.norm(linear, axis=0)
    cosines = linear / np.where(lengths > 0, lengths, 1)
    # With a column of zeros, or with columns in one plane, the affine has no inverse.
    if abs(np.linalg.det(cosines)) < 1e-6:
        listed = ", ".join(f"{length:.4g}" for length in lengths)
        detail = f"the voxel axes, {listed} mm long, lie in a plane"
        raise SourceError("geometry", "affine is not invertible", detail)
    return np.asarray(cosines, np.float64)


def shear_cosine(grid: Grid) -> float:
    """Return the largest cosine between two voxel axes: 0 if all are orthogonal, 0.29 at a tilt of 17°."""
    cosines = _cosines(grid)
    return max(abs(float(cosines[:, a] @ cosines[:, b])) for a, b in combinations(range(3), 2))


def plan_orthogonal(grid: Grid) -> VolumePlan:
    """Plan to resample a sheared volume (gantry tilt) on an orthogonal grid that covers it; else change nothing.

    The two axes nearest to a right angle keep their directions and spacings. The third axis becomes their normal, and
    its spacing is the distance of the slices along the normal. So a slice stays in its plane, and is shifted in it with
    linear interpolation; masks use the nearest voxel. Voxels outside all slices get the fill value. If two pairs of
    axes are orthogonal, as with a gantry tilt, height and width are the slice.
    """
    # Resampling blurs, so a grid that is orthogonal except for rounding stays.
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

    corner_voxels = np.indices((2, 2, 2)).reshape(3, 8).T * (np.array(grid.shape) - 1)
    corners = corner_voxels @ np.linalg.solve(columns, linear).T
    low, high = corners.min(axis=0), corners.max(axis=0)
    sizes = np.ceil(high - low - SAME_VOXEL) + 1
    matrix = np.eye(4)
    matrix[:3, :3] = np.linalg.solve(linear, columns)
    matrix[:3, 3] = matrix[:3, :3] @ ((low + high - sizes + 1) / 2)
    step = Resample(shape=triple(sizes.tolist()), matrix=_clean(matrix))
    return plan_volume_step(grid, step)


def plan_onto(source: Grid, target: Grid, *, antialias: bool = False) -> VolumePlan:
    """Plan to bring a volume onto another grid: linear interpolation for images, nearest voxel for masks.

    If the voxels of both grids coincide, they are copied unchanged. A target voxel more than half a voxel outside
    the source gets the fill value.

    Args:
        source: grid of the volume.
        target: grid onto which it is brought.
        antialias: whether to widen the kernel of images along axes that shrink; without effect where axes are turned.
    """
    _cosines(source)
    _cosines(target)
    matrix = _clean(np.linalg.solve(source.affine, target.affine))
    turn = _turn_of(source, target.shape, matrix)
    if turn is None:
        plan = plan_volume_step(source, Resample(shape=target.shape, matrix=matrix))
    else:
        inner = _clean(np.linalg.solve(turn.to_source, matrix))
        ratios = np.diag(inner)[:3]
        sizes = np.array(target.shape)
        start = np.rint(inner[:3, 3])
        # Voxels that coincide are copied, so that a mask on a crop of its scan keeps every value.
        if (np.abs(ratios - 1) * sizes + np.abs(inner[:3, 3] - start) <= SAME_VOXEL).all():
            last = plan_window(turn.target, triple(start.tolist()), target.shape)
        else:
            inner[:3, :3] = np.diag(ratios)
            step = Resample(shape=target.shape, matrix=inner, antialias=antialias)
            last = plan_volume_step(turn.target, step)
        plan = join_plans([turn, last])
    return replace(plan, target=target)


def _turn_of(source: Grid, shape: VolumeShape, matrix: NDArray[np.float64]) -> VolumePlan | None:
    """Return the permutation that aligns each source axis with one target axis, or None if there is none."""
    linear = matrix[:3, :3]
    order = triple(np.abs(linear).argmax(axis=0).tolist())
    # If two axes are closest to the same target axis, the grid is oblique: no turn aligns it.
    if sorted(order) != [0, 1, 2]:
        return None
    rest = np.abs(linear) * np.array(shape)
    rest[order, range(3)] = 0
    # Over the length of the volume, the axes may deviate by a fraction of a voxel.
    if rest.max() > SAME_VOXEL:
        return None
    return _plan_turn(
        source, order, triple([1 if linear[order[axis], axis] > 0 else -1 for axis in range(3)])
    )


def _clean(matrix: NDArray[Any]) -> NDArray[np.float64]:
    """Round away the last digits that solving leaves next to integers."""
    rounded = np.rint(matrix)
    return np.asarray(np.where(np.abs(matrix - rounded) < 1e-9, rounded, matrix), np.float64)


def check_same_space(image: Grid, mask: Grid, tolerance_voxels: float = GRID_TOLERANCE_VOXELS) -> float:
    """Refuse a mask whose voxels are not at the positions of the image voxels, in any stored order.

    Args:
        image: grid of the image.
        mask: grid of the mask.
        tolerance_voxels: allowed offset along each axis, as a fraction of a voxel.

    Returns:
        The offset in voxels.

    Raises:
        SourceError: the shapes differ in canonical order, or the offset exceeds the tolerance.
    """
    first, second = plan_canonical(image).target, plan_canonical(mask).target
    offset, distance_text = offset_between(first, second)
    if offset <= tolerance_voxels:
        return offset
    detail = f"image {describe_grid(first)}, mask {describe_grid(second)}{distance_text}"
    cure = "--mask-grid resample brings it onto the image's"
    detail += f"; {cure}{tolerance_for(offset)}"
    raise SourceError("geometry", "mask lies on another grid than its image", detail)


def plan_part(whole: Grid, part: Grid, tolerance_voxels: float = GRID_TOLERANCE_VOXELS) -> VolumePlan | None:
    """Plan to pad a volume that has some of the voxels of another grid to all of them; None for any other volume.

    The grid of the part has the axes of the whole grid, in their order, and an offset of whole voxels. Along at least
    one axis it begins and ends inside:

        whole   · · · · · · · ·            part   o o o            result   0 0 0 o o o 0 0
                      o o o

    Args:
        whole: grid of the scan, in canonical order.
        part: smaller grid, in canonical order.
        tolerance_voxels: allowed offset along each axis, as a fraction of a voxel.
    """
    if part.shape == whole.shape or any(
        low > high for low, high in zip(part.shape, whole.shape, strict=True)
    ):
        return None
    first = np.linalg.solve(whole.affine, part.affine)[:3, 3]
    start = np.rint(first)
    sizes = np.array(part.shape)
    end = start + sizes
    if (start < 0).any() or (end > whole.shape).any():
        return None
    # A label that lost slices, and kept its header, looks like a part at one end of the scan. Only a part that begins
    # and ends inside, along an axis, shows that its program wrote where it lies.
    inside = (start > 0) & (end < whole.shape)
    if not inside.any():
        return None
    same = Grid(shape=part.shape, affine=whole.affine.copy())
    same.affine[:3, 3] = whole.to_mm(start)
    # The corners of both grids, so that other sides of voxels add up.
    if distance_voxels(same, part) > tolerance_voxels:
        return None
    plan = plan_window(part, triple((-start).tolist()), whole.shape)
    return replace(plan, target=whole)


def tolerance_for(offset: float) -> str:
    """Return the option that accepts grids with this offset in voxels; "" if no tolerance is large enough.

    >>> tolerance_for(0.2345), tolerance_for(0.5)
    ('; --mask-grid-tolerance 0.24 accepts it', '')
    """
    # At half a voxel, the nearest voxel is another one.
    if offset > MAX_GRID_TOLERANCE_VOXELS - 0.01:
        return ""
    return f"; --mask-grid-tolerance {math.ceil(100 * offset) / 100:g} accepts it"


def offset_between(first: Grid, second: Grid) -> tuple[float, str]:
    """Return the offset of two grids along an axis, in voxels, and text about it; infinity for different shapes."""
    # Voxels of other shapes do not correspond, whatever the affines are.
    if first.shape != second.shape:
        return math.inf, ""
    offset = distance_voxels(first, second)
    return (
        offset,
        f", up to {distance_mm(first, second):.4g} mm apart ({offset:.2g} "
        f"{'voxel' if f'{offset:.2g}' == '1' else 'voxels'})",
    )
