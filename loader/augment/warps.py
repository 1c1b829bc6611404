"""Rotation by small angles and elastic deformation, of volumes in millimeters."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.loader.augment.resampled import Float32, Points, around
from halofeed.loader.augment.scene import (
    Example,
    Frame,
    Objects,
    Uniform,
    check_fill,
    check_share,
    check_space,
)
from halofeed.loader.augment.view import Ranges, Shape


@dataclass(frozen=True)
class RandomRotation:
    """Turns the image about its center by drawn angles, with the given probability.

    A picture is turned by -degrees to degrees, each angle equally likely; a volume so about each of its axes, first
    width, then height, then depth, in millimeters: where slices lie further apart than pixels, no organ is sheared.

    The shape and, of volumes, the spacing stay; `affine` and `transform` say exactly where each voxel comes from, and
    `extent` is the box around the turned scan. What comes from outside is filled. Pixels are interpolated linearly,
    labels and masks are the nearest ones'.

    A box becomes the one around its turned corners, so that it is larger than the object needs; objects of whose box
    less than `minimum_visible` (a share of its area, 0 to 1) is left are dropped. Use small angles where boxes count.

    Memory: in each thread, what is needed of the stored image, some 1 MiB, and of labels and masks as much.

    Args:
        degrees: the largest angle; of a volume one for all axes, or (depth, height, width).
        probability: that an image is turned at all.
        fill: what comes from outside; None is a picture's padding, and the least value around of a volume.
        minimum_visible: as of `RandomCrop`.
    """

    degrees: float | tuple[float, ...] = 10.0
    probability: float = 1.0
    fill: float | None = None
    minimum_visible: float = 0.3

    def __post_init__(self) -> None:
        angles = (self.degrees,) if isinstance(self.degrees, int | float) else tuple(self.degrees)
        if len(angles) not in (1, 3) or not all(0 <= angle <= 180 for angle in angles):
            raise UsageError(
                f"RandomRotation: degrees: expected an angle, or (depth, height, width), from 0 to 180, got "
                f"{self.degrees!r}"
            )
        object.__setattr__(self, "degrees", angles if len(angles) == 3 else angles[0])
        check_share("RandomRotation: probability", self.probability)
        check_share("RandomRotation: minimum_visible", self.minimum_visible)

    def frame(self, frame: Frame) -> Frame:
        """Unchanged; only of pictures and volumes."""
        check_space("RandomRotation", frame)
        check_fill("RandomRotation", self.fill, frame)
        if isinstance(self.degrees, tuple) and len(frame.shape) != 3:
            raise UsageError(
                f"RandomRotation: {frame.kind.name}s are turned by one angle, got {self.degrees}"
            )
        return frame

    def apply(self, scene: Example, uniform: Uniform) -> Example:
        """Turned, or unchanged."""
        shape = scene.view.shape
        most = (
            self.degrees
            if isinstance(self.degrees, tuple)
            else (self.degrees,) * (1 if len(shape) == 2 else 3)
        )
        if uniform[0] >= self.probability or not any(most):
            return scene
        drawn = zip(most, uniform[1:].tolist(), strict=False)
        angles = [math.radians(angle * (2 * number - 1)) for angle, number in drawn]
        matrix = _turned(angles, shape, scene.shown_spacing_mm())
        inverse = np.asarray(np.linalg.inv(matrix), np.float64)
        return scene.resampled(
            Turning(shape, matrix),
            extent=_turned_box(scene.view.seen(scene.extent), inverse, shape),
            objects=_turned_objects(scene.objects, inverse, shape, self.minimum_visible),
            fill=self.fill,
        )


def _turned(angles: list[float], shape: Shape, spacing_mm: tuple[float, ...]) -> NDArray[np.float64]:
    """From points of the turned grid to points of the source: about the center, in millimeters."""
    axes = len(shape)
    planes = [(0, 1)] if axes == 2 else [(1, 2), (0, 2), (0, 1)]
    turn = np.eye(axes)
    for angle, (first, second) in zip(angles, planes, strict=True):
        one = np.eye(axes)
        one[[first, second], [first, second]] = math.cos(angle)
        one[first, second], one[second, first] = math.sin(angle), -math.sin(angle)
        turn = turn @ one
    scale = np.array(spacing_mm)
    matrix = np.eye(axes + 1)
    matrix[:-1, :-1] = turn * scale / scale[:, None]
    center = np.array(shape) / 2
    matrix[:-1, -1] = center - matrix[:-1, :-1] @ center
    return matrix


def _turned_box(box: Ranges, matrix: NDArray[np.float64], shape: Shape) -> Ranges:
    """The whole voxels around a box that a matrix moves."""
    if any(low >= high for low, high in box):
        return tuple((0, 0) for _ in shape)
    corners = np.array(list(itertools.product(*box)), np.float64)
    moved = corners @ matrix[:-1, :-1].T + matrix[:-1, -1]
    # A turn by nothing, or by a right angle, must not take in a voxel for a rounding.
    low, high = np.floor(moved.min(axis=0) + 1e-6), np.ceil(moved.max(axis=0) - 1e-6)
    return tuple(
        (int(min(max(first, 0), size)), int(min(max(last, 0), size)))
        for first, last, size in zip(low, high, shape, strict=True)
    )


def _turned_objects(
    objects: Objects, matrix: NDArray[np.float64], shape: Shape, minimum_visible: float
) -> Objects:
    if not len(objects.kept):
        return objects
    size = np.array(shape, np.float64)
    corners = objects.boxes[:, [[0, 1], [0, 3], [2, 1], [2, 3]]] * size
    moved = (corners @ matrix[:2, :2].T + matrix[:2, 2]) / size
    around_them = np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)
    return replace(objects, boxes=around_them).crop((0.0, 0.0, 1.0, 1.0), minimum_visible)


@dataclass(frozen=True, eq=False)
class Turning(Points):
    """By a matrix from points of the new grid to points of the source; see `Points`."""

    source: Shape
    matrix: NDArray[np.float64]

    def positions(self, box: Ranges) -> list[Float32]:
        """As of `Points`."""
        steps = np.ix_(*(np.arange(low, high) + 0.5 for low, high in box))
        places = []
        for row in self.matrix[:-1]:
            parts = [step * weight for step, weight in zip(steps, row, strict=False)]
            total = parts[0] + (row[-1] - 0.5)
            for part in parts[1:-1]:
                total = total + part
            places.append(np.asarray(total, np.float32) + np.asarray(parts[-1], np.float32))
        return places

    def needed(self, box: Ranges) -> Ranges:
        """As of `Warp`."""
        corners = np.array(list(itertools.product(*((low + 0.5, high - 0.5) for low, high in box))))
        moved = corners @ self.matrix[:-1, :-1].T + self.matrix[:-1, -1] - 0.5
        return around(moved.min(axis=0).tolist(), moved.max(axis=0).tolist(), self.source)


_UNFOLDED = 0.4
"""Of the grid: displacements up to this leave neighbors neighbors (Choi, Lee, "Injectivity conditions of 2D and 3D
uniform cubic B-spline functions", 2000: 1 / 2.48 in 3-D)."""
_FEWEST_VOXELS = 2


@dataclass(frozen=True)
class ElasticDeformation:
    """Bends the image smoothly, with the given probability.

    Control points `grid` apart are displaced along each axis by -magnitude to magnitude, each displacement equally
    likely, and the points between by cubic B-splines. Of volumes both are millimeters, of pictures pixels.

    The shape and the spacing stay. No affine says where a point comes from afterwards: `affine` and `transform` cannot
    be included, `spacing_mm` is the grid's, and `extent` a box that holds all of the scan. Boxes do not stay boxes, so
    that detection is refused. Pixels are interpolated linearly, labels are the nearest ones'; what comes from outside
    is filled.

    Memory: in each thread, what is needed of the stored image and of the label, and some 1 MiB.

    Args:
        magnitude: the largest displacement, at most 0.4 of the grid, so that nothing folds.
        grid: from one control point to the next; along an axis no less than two voxels.
        probability: that an image is bent at all.
        fill: what comes from outside; None is a picture's padding, and the least value around of a volume.
    """

    magnitude: float = 5.0
    grid: float = 40.0
    probability: float = 1.0
    fill: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.grid < math.inf and 0 <= self.magnitude <= _UNFOLDED * self.grid):
            raise UsageError(
                f"ElasticDeformation: magnitude: expected 0 to {_UNFOLDED} of the grid, so that nothing folds, got "
                f"{self.magnitude} of {self.grid}"
            )
        check_share("ElasticDeformation: probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Without an affine; only of pictures and volumes without boxes."""
        check_space("ElasticDeformation", frame)
        check_fill("ElasticDeformation", self.fill, frame)
        if frame.has_boxes:
            raise UsageError("ElasticDeformation: bent boxes are no boxes; use RandomRotation or ScaleJitter")
        return replace(frame, lost="ElasticDeformation")

    def apply(self, scene: Example, uniform: Uniform) -> Example:
        """Bent, or unchanged."""
        if uniform[0] >= self.probability or not self.magnitude:
            return scene
        shape, spacing = scene.view.shape, scene.shown_spacing_mm()
        steps = tuple(max(self.grid / each, float(_FEWEST_VOXELS)) for each in spacing)
        counts = [math.floor((size - 1) / step) + 4 for size, step in zip(shape, steps, strict=True)]
        # Two of the numbers begin a sequence of their own.
        key = (uniform[1:3] * 2.0**53).astype(np.uint64)
        raw = np.random.Philox(key=key).random_raw(len(shape) * math.prod(counts))
        drawn = (raw >> np.uint64(11)) * 2.0**-52 - 1
        nodes = np.reshape(drawn, (len(shape), *counts))
        scale = np.reshape([self.magnitude / each for each in spacing], (-1, *(1 for _ in shape)))
        bending = Bending(shape, steps, np.asarray(nodes * scale, np.float32))
        extent = scene.view.seen(scene.extent)
        if all(low < high for low, high in extent):
            reach = [math.ceil(most) for most in bending.most]
            extent = tuple(
                (max(0, low - far), min(size, high + far))
                for (low, high), far, size in zip(extent, reach, shape, strict=True)
            )
        return scene.resampled(bending, extent=extent, objects=scene.objects, fill=self.fill)


@dataclass(frozen=True, eq=False)
class Bending(Points):
    """By displacements, smooth between control points; see `Points`.

    Args:
        steps: per axis, voxels from one control point to the next; the second one lies at the first voxel.
        nodes: float32 [axis, control point ...], displacements in voxels.
    """

    source: Shape
    steps: tuple[float, ...]
    nodes: Float32
    matrix: ClassVar = None

    @property
    def most(self) -> tuple[float, ...]:
        """Per axis what no displacement is larger than."""
        return tuple(float(np.abs(nodes).max()) for nodes in self.nodes)

    def positions(self, box: Ranges) -> list[Float32]:
        """As of `Points`."""
        tables = [self._weights(axis, *side) for axis, side in enumerate(box)]
        field = self.nodes[(slice(None), *(slice(*used) for used, _ in tables))]
        for axis, (_, table) in reversed(list(enumerate(tables, 1))):
            # The axis that is summed comes first, and goes back. Not by BLAS: its threads would meet the loader's.
            field = np.moveaxis(field, axis, 0)
            summed = np.einsum("vn,nx->vx", table, np.ascontiguousarray(field).reshape(len(field), -1))
            field = np.moveaxis(summed.reshape(-1, *field.shape[1:]), 0, axis)
        steps = np.ix_(*(np.arange(low, high, dtype=np.float32) for low, high in box))
        return [moved + step for moved, step in zip(field, steps, strict=True)]

    def _weights(self, axis: int, low: int, high: int) -> tuple[tuple[int, int], Float32]:
        """Which control points voxels along an axis look at, and float32 [voxel, those], four of them above 0."""
        places = np.arange(low, high) / self.steps[axis]
        first = np.floor(places).astype(np.int64)
        far = places - first
        near = 1 - far
        splines = (
            near**3 / 6,
            (3 * far**3 - 6 * far**2 + 4) / 6,
            (3 * near**3 - 6 * near**2 + 4) / 6,
            far**3 / 6,
        )
        start, stop = int(first[0]), int(first[-1]) + len(splines)
        table = np.zeros((high - low, stop - start))
        for number, weights in enumerate(splines):
            table[np.arange(high - low), first - start + number] = weights
        return (start, stop), table.astype(np.float32)

    def needed(self, box: Ranges) -> Ranges:
        """As of `Warp`."""
        most = self.most
        low = [first - far for (first, _), far in zip(box, most, strict=True)]
        high = [last - 1 + far for (_, last), far in zip(box, most, strict=True)]
        return around(low, high, self.source)
