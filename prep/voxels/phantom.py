"""Phantom: a body with organs of known Hounsfield units, shapes and positions in mm, drawn on any grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Grid, Triple, VolumeShape

PHANTOM_AIR_HU = -1000


@dataclass(frozen=True, kw_only=True)
class Organ:
    """Ellipsoid of constant intensity.

    Args:
        name: name of the organ.
        label: class value; 0 if the organ is not labelled.
        hu: intensity in Hounsfield units.
        center_mm: center along right, anterior, superior.
        radii_mm: radii along right, anterior, superior.
    """

    name: str
    label: int
    hu: int
    center_mm: Triple
    radii_mm: Triple


ORGANS = (
    Organ(name="body", label=0, hu=-80, center_mm=(0, 0, 0), radii_mm=(58, 46, 55)),
    Organ(name="liver", label=1, hu=89, center_mm=(24, 8, 12), radii_mm=(17, 15, 16)),
    Organ(name="spleen", label=2, hu=80, center_mm=(-28, -6, 14), radii_mm=(11, 13, 12)),
    Organ(name="bone", label=3, hu=700, center_mm=(1, -26, -4), radii_mm=(9, 9, 26)),
    Organ(name="bladder", label=4, hu=8, center_mm=(-4, 12, -28), radii_mm=(12, 10, 11)),
)
"""Asymmetric, so a swapped or reversed axis changes the position of every organ. In mm of the patient."""
LABELED_ORGANS = tuple(organ for organ in ORGANS if organ.label)


def draw(grid: Grid, organs: Sequence[Organ] = ORGANS) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Draw image (HU) and mask on a grid; a voxel has the value at its center."""
    image = np.full(grid.shape, PHANTOM_AIR_HU, np.int16)
    mask = np.zeros(grid.shape, np.uint8)
    height, width = np.indices(grid.shape[1:], dtype=np.float64)
    for depth in range(grid.shape[0]):
        points = grid.to_mm(np.stack([np.full_like(height, depth), height, width], axis=-1))
        for organ in organs:
            within = (((points - organ.center_mm) / organ.radii_mm) ** 2).sum(axis=-1) <= 1
            image[depth][within] = organ.hu
            mask[depth][within] = organ.label
    return image, mask


def grid_around(
    spacing_mm: Triple = (3.0, 1.5, 1.5),
    extent_mm: Triple = (120.0, 102.0, 126.0),
    turn_degrees: float = 0.0,
    tilt_degrees: float = 0.0,
    center_mm: Triple = (0.0, 0.0, 0.0),
) -> Grid:
    """Return a canonical grid around the phantom, along depth, height, width.

    Args:
        spacing_mm: distance between voxels.
        extent_mm: size of the volume.
        turn_degrees: rotation of the scan about an axis that is not a patient axis.
        tilt_degrees: gantry tilt: each slice is further anterior than the one below.
        center_mm: center of the volume (right, anterior, superior).
    """
    shape: VolumeShape = tuple(  # type: ignore[assignment]
        max(1, round(extent / spacing)) for extent, spacing in zip(extent_mm, spacing_mm, strict=True)
    )
    affine = np.eye(4)
    affine[:3, :3] = np.array([[0, 0, 1.0], [0, 1.0, 0], [1.0, 0, 0]]) * spacing_mm
    affine[1, 0] = spacing_mm[0] * np.tan(np.radians(tilt_degrees))
    affine[:3, :3] = rotation(turn_degrees) @ affine[:3, :3]
    affine[:3, 3] = np.array(center_mm) - affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    return Grid(shape=shape, affine=affine)


def rotation(degrees: float) -> NDArray[np.float64]:
    """Return the rotation about the axis (1, 2, 3), by Rodrigues' formula."""
    x, y, z = np.array([1, 2, 3]) / np.sqrt(14)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.radians(degrees)
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross)


Orientation = tuple[VolumeShape, VolumeShape]
"""(order, direction): stored axis a is axis order[a], forwards (1) or backwards (-1)."""


def stored(array: NDArray[Any], orientation: Orientation) -> NDArray[Any]:
    """Return the voxels as a file with this orientation stores them, C-contiguous."""
    order, direction = orientation
    return np.ascontiguousarray(array.transpose(order)[tuple(slice(None, None, step) for step in direction)])


def stored_grid(grid: Grid, orientation: Orientation) -> Grid:
    """Return the grid of `stored`."""
    order, direction = orientation
    shape = tuple(grid.shape[axis] for axis in order)
    matrix = np.zeros((4, 4))
    matrix[3, 3] = 1
    for axis in range(3):
        matrix[order[axis], axis] = direction[axis]
        matrix[order[axis], 3] = 0 if direction[axis] > 0 else shape[axis] - 1
    return Grid(shape=shape, affine=grid.affine @ matrix)  # type: ignore[arg-type]


def centroid_mm(grid: Grid, mask: NDArray[Any], label: int) -> NDArray[np.float64]:
    """Return the mean position of the voxels of a class."""
    return np.asarray(grid.to_mm(np.argwhere(mask == label)).mean(axis=0), np.float64)


def interior(grid: Grid, organ: Organ, margin_mm: Triple) -> NDArray[np.bool_]:
    """Return the voxels of a grid inside an organ by `margin_mm` (right, anterior, superior) or more."""
    smaller = replace(organ, label=1, radii_mm=tuple(np.subtract(organ.radii_mm, margin_mm).tolist()))
    return np.asarray(draw(grid, [smaller])[1] == 1, np.bool_)


def margin_mm(source: Grid, target: Grid, reach: float = 1.0) -> Triple:
    """Return the margin inside an organ where a record's voxel depends on the organ alone.

    It is the reach of interpolation plus half a voxel. Both grids are canonical, or slightly rotated.
    """
    spacing = np.maximum(source.spacing_mm, target.spacing_mm) * reach + np.array(source.spacing_mm) / 2
    superior, anterior, right = spacing.tolist()
    return right, anterior, superior
