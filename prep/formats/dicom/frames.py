"""On which voxels of a regular grid the frames of a multi-frame DICOM object lie.

Frames may come in any order, may leave slices out, and may lie turned in the grid:

    frame (rows down, columns right)         grid of the scan
    0---column                                 axis of the columns, here backwards
    |                    ->                  +---0
    row                                          | axis of the rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Grid
from halofeed.schemas.errors import SourceError

TOLERANCE = 0.05
"""How far, in voxels, a frame's corner may lie from the voxel that it is taken for."""
LPS_TO_RAS = np.array([-1.0, -1.0, 1.0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Frames:
    """Where frames of one size and direction lie in the patient, in millimeters to the right, anterior, superior.

    Args:
        size: (rows, columns).
        row_step: from one row to the next, float64 [3].
        column_step: from one column to the next, float64 [3].
        origins: the center of every frame's first pixel, float64 [frame, 3].
    """

    size: tuple[int, int]
    row_step: NDArray[np.float64]
    column_step: NDArray[np.float64]
    origins: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """Frames whose pixels are voxels of a grid.

    Args:
        size: (rows, columns) of the frames.
        axes: the grid's axis across the frames, along their rows' order and along their columns' order.
        signs: whether rows and columns run with (1) or against (-1) their axis.
        starts: the voxel of every frame's first pixel, int64 [frame, 3].
    """

    grid: Grid
    size: tuple[int, int]
    axes: tuple[int, int, int]
    signs: tuple[int, int]
    starts: NDArray[np.int64]

    def slice_of(self, frame: int) -> int:
        """The frame's index along the axis across the frames."""
        return int(self.starts[frame, self.axes[0]])

    def view(self, volume: NDArray[Any], frame: int) -> NDArray[Any]:
        """The part of a volume on `grid` that a frame covers, turned as the frame: [row, column]."""
        part: NDArray[Any] = np.moveaxis(volume, self.axes, (0, 1, 2))[self.slice_of(frame)]
        for axis, (count, sign) in enumerate(zip(self.size, self.signs, strict=True)):
            start = int(self.starts[frame, self.axes[axis + 1]])
            low = start if sign > 0 else start - count + 1
            part = np.moveaxis(np.moveaxis(part, axis, 0)[low : low + count][::sign], 0, axis)
        return part


def place_frames(frames: Frames, grid: Grid, tolerance_voxels: float = TOLERANCE) -> Placement | None:
    """Finds the voxels under the frames; None where some are not voxels of the grid, or lie outside of it."""
    to_voxels = np.linalg.inv(grid.affine[:3, :3])
    steps = np.stack([to_voxels @ frames.row_step, to_voxels @ frames.column_step])
    whole_steps = np.rint(steps)
    origins = (frames.origins - grid.affine[:3, 3]) @ to_voxels.T
    starts = np.rint(origins)
    reach = np.abs(steps - whole_steps).max(axis=1) @ (np.array(frames.size) - 1)
    off = np.abs(origins - starts).max() + reach
    if not (np.abs(whole_steps).sum(axis=1) == 1).all() or off > tolerance_voxels:
        return None
    row_axis, column_axis = (int(axis) for axis in np.abs(whole_steps).argmax(axis=1))
    if row_axis == column_axis:
        return None
    ends = starts + whole_steps.T @ (np.array(frames.size) - 1)
    if min(starts.min(), ends.min()) < 0 or (np.maximum(starts, ends) >= grid.shape).any():
        return None
    return Placement(
        grid=grid,
        size=frames.size,
        axes=(3 - row_axis - column_axis, row_axis, column_axis),
        signs=(int(whole_steps[0, row_axis]), int(whole_steps[1, column_axis])),
        starts=starts.astype(np.int64),
    )


def own_grid(frames: Frames, spacing_mm: float | None) -> Grid:
    """The regular grid that the frames span, slices without a frame included.

    Args:
        spacing_mm: between slices, as the file says it; where it does not fit, the smallest gap is taken.

    Raises:
        SourceError: of stage `annotation`, where the frames lie on no regular grid.
    """
    normal = np.cross(frames.column_step, frames.row_step)
    normal /= np.linalg.norm(normal)
    heights = frames.origins @ normal
    order = np.argsort(heights, kind="stable")
    gaps = np.diff(heights[order])
    same_plane_mm = 0.01 * min(np.linalg.norm(frames.row_step), np.linalg.norm(frames.column_step))
    gaps = gaps[gaps > same_plane_mm]
    first, last = frames.origins[order[0]], frames.origins[order[-1]]
    if not len(gaps):
        if spacing_mm is None:
            raise SourceError("annotation", "segmentation of one slice does not say how thick it is")
        return _grid(frames, first, spacing_mm * normal, 1)
    for spacing in filter(None, (spacing_mm, float(gaps.min()))):
        slices = int(min(np.rint((heights[order[-1]] - heights[order[0]]) / spacing), 2**40))
        if slices < 1:
            continue
        grid = _grid(frames, first, (last - first) / slices, slices + 1)
        if place_frames(frames, grid):
            return grid
    planes = f"{len(gaps) + 1} planes with gaps from {gaps.min():.4g} to {gaps.max():.4g} mm"
    detail = f"{planes} that are neither equal nor multiples of one, or shifted in their plane"
    raise SourceError("annotation", "segmentation frames lie on no regular grid", detail)


def _grid(frames: Frames, first: NDArray[np.float64], step: NDArray[np.float64], depth: int) -> Grid:
    affine = np.eye(4)
    affine[:3] = np.stack([step, frames.row_step, frames.column_step, first], axis=1)
    return Grid(shape=(depth, *frames.size), affine=affine)
