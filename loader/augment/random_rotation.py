"""Turned by small drawn angles, of volumes in millimeters."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.points import Float32, Points, around
from halofeed.loader.augment.scene import Frame, Objects, Scene, check_fill, check_share, check_space
from halofeed.loader.augment.uniform import Uniform
from halofeed.loader.augment.view import Ranges, Shape
from halofeed.schemas.errors import UsageError


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

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
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
