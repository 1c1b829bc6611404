"""RandomRotation and ElasticDeformation; for volumes both are in millimeters."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.augmented_example import (
    Example,
    Frame,
    Objects,
    Uniform,
    check_fill,
    check_pictures,
    check_share,
    check_space,
)
from halofeed.loader.augment.view import ImageShape, PointWarp, Positions, Ranges, sampling_box
from halofeed.system.arguments import explains_fields
from halofeed.system.errors import UsageError


@explains_fields
@dataclass(frozen=True)
class RandomRotation:
    """Rotates the image around its center by random angles, with the given probability.

    A picture is rotated by -degrees to degrees, each angle equally likely. A volume is rotated so around each of its
    axes, first width, then height, then depth, in millimeters, so that unequal spacing does not shear it.

    The shape stays, and so does the spacing of volumes. `affine` and `transform` map each voxel to its source, and
    `extent` is the box around the rotated scan. Parts from outside are filled. Pixels are interpolated linearly;
    labels and masks use the nearest voxel.

    A box becomes the one around its rotated corners, which is larger than the object needs, unless the data set has
    the corners of its objects (`--keep corners`): then it becomes the one around these. Objects with less than
    `minimum_visible` (a share of the box's area, 0 to 1) in the image are dropped. Use small angles if boxes matter.

    Memory: in each thread, the needed part of the stored image, about 1 MiB, and as much for labels and masks.

    Args:
        degrees: the largest angle; for a volume one for all axes, or (depth, height, width).
        probability: probability of a rotation.
        fill: value from outside; None is a picture's padding, and the minimum of the sampled part of a volume.
        minimum_visible: as in `RandomCrop`.
    """

    uses_corners: ClassVar = True
    """Whether boxes depend on the corners of their objects, which are then read even if the batch has none."""

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
        """Return the frame unchanged; only for pictures and volumes."""
        check_space("RandomRotation", frame)
        check_fill("RandomRotation", self.fill, frame)
        # A picture turns around one axis only.
        if isinstance(self.degrees, tuple) and len(frame.shape) != 3:
            raise UsageError(
                f"RandomRotation: {frame.kind.name}s are turned by one angle, got {self.degrees}"
            )
        return frame

    def apply(self, example: Example, uniform: Uniform) -> Example:
        shape = example.view.shape
        most = (
            self.degrees
            if isinstance(self.degrees, tuple)
            else (self.degrees,) * (1 if len(shape) == 2 else 3)
        )
        if uniform[0] >= self.probability or not any(most):  # angles of 0 change nothing
            return example
        numbers = zip(most, uniform[1:].tolist(), strict=False)
        angles = [math.radians(angle * (2 * number - 1)) for angle, number in numbers]
        matrix = _rotation_matrix(angles, shape, example.shown_spacing_mm())
        return moved(example, matrix, self.minimum_visible, self.fill)


def _rotation_matrix(
    angles: list[float], shape: ImageShape, spacing_mm: tuple[float, ...]
) -> NDArray[np.float64]:
    """Return the matrix from points of the rotated grid to the source: around the center, in millimeters."""
    axes = len(shape)
    planes = [(0, 1)] if axes == 2 else [(1, 2), (0, 2), (0, 1)]
    rotation = np.eye(axes)
    for angle, (first, second) in zip(angles, planes, strict=True):
        one = np.eye(axes)
        one[[first, second], [first, second]] = math.cos(angle)
        one[first, second], one[second, first] = math.sin(angle), -math.sin(angle)
        rotation = rotation @ one
    scale = np.array(spacing_mm)
    matrix = np.eye(axes + 1)
    matrix[:-1, :-1] = rotation * scale / scale[:, None]
    center = np.array(shape) / 2
    matrix[:-1, -1] = center - matrix[:-1, :-1] @ center
    return matrix


def _rotate_box(box: Ranges, matrix: NDArray[np.float64], shape: ImageShape) -> Ranges:
    """Return the smallest box of voxels around a box that a matrix moves."""
    if any(low >= high for low, high in box):  # a window outside of the scan
        return tuple((0, 0) for _ in shape)
    corners = np.array(list(itertools.product(*box)), np.float64)
    moved = corners @ matrix[:-1, :-1].T + matrix[:-1, -1]
    # The tolerance keeps rounding from adding a voxel when the rotation is zero or a right angle.
    low, high = np.floor(moved.min(axis=0) + 1e-6), np.ceil(moved.max(axis=0) - 1e-6)
    return tuple(
        (int(min(max(first, 0), size)), int(min(max(last, 0), size)))
        for first, last, size in zip(low, high, shape, strict=True)
    )


def _rotate_objects(
    objects: Objects, matrix: NDArray[np.float64], shape: ImageShape, minimum_visible: float
) -> Objects:
    if not len(objects.kept):
        return objects
    size, axes = np.array(shape, np.float64), len(shape)

    def move(points: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((points * size) @ matrix[:axes, :axes].T + matrix[:axes, axes]) / size

    # Of pictures [[0, 1], [0, 3], [2, 1], [2, 3]]: the columns of each corner.
    corners = list(itertools.product(*((axis, axis + axes) for axis in range(axes))))
    boxes = _bounds(move(objects.boxes[:, corners]))
    if objects.corners is not None:
        boxes = _common_boxes(boxes, _bounds(move(objects.corners)))
    return objects.placed(boxes, move).crop((0.0,) * axes + (1.0,) * axes, minimum_visible)


def _bounds(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the upright boxes [n, 4] around points [n, 4, 2], or [n, 6] around points [n, 8, 3]."""
    return np.concatenate([points.min(axis=1), points.max(axis=1)], axis=1)


def _common_boxes(boxes: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the common part of two boxes of each object; the first one where they have none.

    An earlier crop may have cut the box, and not the corners: what is shown is inside of both.
    """
    low = np.maximum(boxes[:, :2], others[:, :2])
    high = np.minimum(boxes[:, 2:], others[:, 2:])
    overlap = (low <= high).all(axis=1, keepdims=True)
    return np.where(overlap, np.concatenate([low, high], axis=1), boxes)


@dataclass(frozen=True, eq=False)
class MatrixWarp(PointWarp):
    """Map by a matrix from points of the new grid to points of the source; see `PointWarp`."""

    source: ImageShape
    matrix: NDArray[np.float64]

    def positions(self, box: Ranges) -> list[Positions]:
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
        """Return the part of the source around the mapped corners; see `Warp.needed`."""
        corners = np.array(list(itertools.product(*((low + 0.5, high - 0.5) for low, high in box))))
        moved = corners @ self.matrix[:-1, :-1].T + self.matrix[:-1, -1] - 0.5
        return sampling_box(moved.min(axis=0).tolist(), moved.max(axis=0).tolist(), self.source)


@explains_fields
@dataclass(frozen=True)
class PadAndCrop:
    """Pads each side by a number of pixels and shows a window of the former size, each with equal probability.

    This shifts the image by whole pixels, so that no pixel is interpolated. Boxes are clipped to the window. Objects
    with less than `minimum_visible` (a share of their area, 0 to 1) in it are dropped. Volumes are shifted along all
    axes.

    Args:
        padding: number of pixels or voxels on each side, 1 or more.
        fill: value of the padding; None is a picture's padding, and the minimum of the sampled part of a volume.
        minimum_visible: as in `RandomCrop`.

    Source: He et al., Deep Residual Learning for Image Recognition (arXiv 1512.03385), section 4.2: 4 pixels for
    CIFAR-10.

    >>> PadAndCrop(4).padding
    4
    """

    padding: int = 4
    fill: float | None = None
    minimum_visible: float = 0.3

    def __post_init__(self) -> None:
        if not hasattr(self.padding, "__index__") or self.padding < 1:
            raise UsageError(
                f"PadAndCrop: padding: expected a whole number of at least 1, got {self.padding!r}"
            )
        check_share("PadAndCrop: minimum_visible", self.minimum_visible)

    def frame(self, frame: Frame) -> Frame:
        """Return the frame unchanged; only for pictures and volumes, whose sides must exceed the padding."""
        check_space("PadAndCrop", frame)
        check_fill("PadAndCrop", self.fill, frame)
        if min(frame.shape) <= self.padding:
            raise UsageError(
                f"PadAndCrop: the images are {frame}; pad by less than {min(frame.shape)}, so that a part is shown"
            )
        return frame

    def apply(self, example: Example, uniform: Uniform) -> Example:
        shape = example.view.shape
        choices = 2 * self.padding + 1
        shifts = [int(number * choices) - self.padding for number in uniform[: len(shape)].tolist()]
        if not any(shifts):
            return example
        matrix = np.eye(len(shape) + 1)
        matrix[:-1, -1] = shifts
        return moved(example, matrix, self.minimum_visible, self.fill)


_RAND_AUGMENT_OPERATIONS = 14
"""Operations of RandAugment: identity, five that move pixels, and eight that change values."""
_MOVES = ("rotate", "shear rows", "shear columns", "shift rows", "shift columns")
_MAX_OPERATIONS = 8
"""Random numbers that an augmentation gets."""
_MAX_MAGNITUDE = 10
_MAX_DEGREES, _MAX_SHEAR, _MAX_SHIFT = 30.0, 0.3, 150 / 331
"""Strengths at magnitude 10: an angle, a slope, and a share of the side (100 of 224 pixels in the paper's code)."""


@explains_fields
@dataclass(frozen=True)
class RandAugmentMoves:
    """Rotates, shears or shifts a picture: those operations of RandAugment that move pixels.

    Each of `operations` draws is one of RandAugment's 14 with equal probability, and here the five that move pixels
    apply: rotation, shear and shift along each axis, to either side. The others change values, which is the work of
    augmentations on the device. All moves of a picture are one resampling around its center, and `transform` maps each
    pixel to its source. Boxes, corners and masks follow as in `RandomRotation`.

    Args:
        operations: number of draws, 1 to 8; N of the paper.
        magnitude: strength of every operation, 0 to 10: at 10, 30 degrees, a slope of 0.3 and 0.45 of the side; M of
            the paper.
        fill: value from outside; None is the picture's padding.
        minimum_visible: as in `RandomCrop`.

    Source: Cubuk et al., "RandAugment: Practical automated data augmentation" (arXiv 1909.13719); the strengths are
    those of AutoAugment's table, as in torchvision.

    >>> RandAugmentMoves().operations
    2
    """

    uses_corners: ClassVar = True
    """As in `RandomRotation`."""

    operations: int = 2
    magnitude: float = 9.0
    fill: float | None = None
    minimum_visible: float = 0.3

    def __post_init__(self) -> None:
        if not hasattr(self.operations, "__index__") or not 1 <= self.operations <= _MAX_OPERATIONS:
            raise UsageError(
                f"RandAugmentMoves: operations: expected 1 to {_MAX_OPERATIONS}, got {self.operations!r}"
            )
        if not 0 <= self.magnitude <= _MAX_MAGNITUDE:
            raise UsageError(
                f"RandAugmentMoves: magnitude: expected 0 to {_MAX_MAGNITUDE}, got {self.magnitude!r}"
            )
        check_share("RandAugmentMoves: minimum_visible", self.minimum_visible)

    def frame(self, frame: Frame) -> Frame:
        """Return the frame unchanged; only for pictures."""
        check_pictures("RandAugmentMoves", frame)
        check_fill("RandAugmentMoves", self.fill, frame)
        return frame

    def apply(self, example: Example, uniform: Uniform) -> Example:
        shape = example.view.shape
        matrix = np.eye(3)
        for number in uniform[: self.operations].tolist():
            place, side = divmod(int(number * 2 * _RAND_AUGMENT_OPERATIONS), 2)
            if place < len(_MOVES):
                strength = self.magnitude / _MAX_MAGNITUDE * (2 * side - 1)
                # The last operation comes first on the way from the new grid to the source.
                matrix = matrix @ move_matrix(_MOVES[place], strength, shape)
        if np.array_equal(matrix, np.eye(3)):
            return example
        return moved(example, matrix, self.minimum_visible, self.fill)


def move_matrix(name: str, strength: float, shape: ImageShape) -> NDArray[np.float64]:
    """Return the matrix from points (y, x, 1) of the moved picture to points of the picture, float64 [3, 3].

    Args:
        name: one of "rotate", "shear rows", "shear columns", "shift rows", "shift columns".
        strength: -1 to 1.
        shape: height and width.

    >>> move_matrix("shift rows", 1.0, (331, 100))[:2, 2].round(6).tolist()
    [150.0, 0.0]
    """
    if name == "rotate":
        return _rotation_matrix([math.radians(_MAX_DEGREES * strength)], shape, (1.0, 1.0))
    matrix = np.eye(3)
    kind, axis = name.split()[0], ("rows", "columns").index(name.split()[1])
    if kind == "shift":
        matrix[axis, 2] = _MAX_SHIFT * strength * shape[axis]
    else:
        slope = _MAX_SHEAR * strength
        matrix[axis, 1 - axis] = slope
        # The center stays.
        matrix[axis, 2] = -slope * shape[1 - axis] / 2
    return matrix


def moved(
    example: Example, matrix: NDArray[np.float64], minimum_visible: float, fill: float | None = None
) -> Example:
    """Return an example resampled by a matrix on a grid of the same shape.

    Args:
        example: the example.
        matrix: float64 [axes + 1, axes + 1], from points of the new grid to points of the view.
        minimum_visible: as in `RandomCrop`.
        fill: value from outside; None is the example's.
    """
    shape = example.view.shape
    inverse = np.asarray(np.linalg.inv(matrix), np.float64)
    return example.resampled(
        MatrixWarp(shape, matrix),
        extent=_rotate_box(example.view.seen(example.extent), inverse, shape),
        objects=_rotate_objects(example.objects, inverse, shape, minimum_visible),
        fill=fill,
    )


_MAX_SHARE = 0.4
"""Largest displacement as a share of the grid that cannot fold the image (Choi, Lee, "Injectivity conditions of 2D and
3D uniform cubic B-spline functions", 2000: 1 / 2.48 in 3-D)."""
_FEWEST_VOXELS = 2


@explains_fields
@dataclass(frozen=True)
class ElasticDeformation:
    """Deforms the image smoothly, with the given probability.

    Control points at a distance of `grid` are displaced along each axis by -magnitude to magnitude, each displacement
    equally likely. Cubic B-splines interpolate between them. The unit is millimeters for volumes, pixels for pictures.

    The shape and the spacing stay. No affine maps points to the source afterwards: `affine` and `transform` cannot be
    included, `spacing_mm` is the grid's, and `extent` is a box that contains the scan. Boxes would not stay boxes, so
    detection is refused. Pixels are interpolated linearly, labels use the nearest voxel, and parts from outside are
    filled.

    Memory: in each thread, the needed part of the stored image and of the label, and about 1 MiB.

    Args:
        magnitude: the largest displacement, at most 0.4 of the grid, so that nothing folds.
        grid: distance of control points; along an axis at least two voxels.
        probability: probability of a deformation.
        fill: value from outside; None is a picture's padding, and the minimum of the sampled part of a volume.
    """

    magnitude: float = 5.0
    grid: float = 40.0
    probability: float = 1.0
    fill: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.grid < math.inf and 0 <= self.magnitude <= _MAX_SHARE * self.grid):
            raise UsageError(
                f"ElasticDeformation: magnitude: expected 0 to {_MAX_SHARE} of the grid, so that nothing folds, got "
                f"{self.magnitude} of {self.grid}"
            )
        check_share("ElasticDeformation: probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Return the frame without an affine; only for pictures and volumes without boxes."""
        check_space("ElasticDeformation", frame)
        check_fill("ElasticDeformation", self.fill, frame)
        if frame.has_boxes:
            raise UsageError("ElasticDeformation: bent boxes are no boxes; use RandomRotation or ScaleJitter")
        return replace(frame, lost="ElasticDeformation")

    def apply(self, example: Example, uniform: Uniform) -> Example:
        if uniform[0] >= self.probability or not self.magnitude:
            return example
        shape = example.view.shape
        warp = self._draw_warp(shape, example.shown_spacing_mm(), uniform)
        extent = example.view.seen(example.extent)
        if all(low < high for low, high in extent):  # an empty extent stays empty
            reach = [math.ceil(most) for most in warp.max_displacement]
            extent = tuple(
                (max(0, low - far), min(size, high + far))
                for (low, high), far, size in zip(extent, reach, shape, strict=True)
            )
        return example.resampled(warp, extent=extent, objects=example.objects, fill=self.fill)

    def _draw_warp(self, shape: ImageShape, spacing: tuple[float, ...], uniform: Uniform) -> DeformationWarp:
        """Return a deformation with random displacements of its control points."""
        steps = tuple(max(self.grid / each, float(_FEWEST_VOXELS)) for each in spacing)
        # A cubic B-spline reaches one control point before each interval and two after it.
        counts = [math.floor((size - 1) / step) + 4 for size, step in zip(shape, steps, strict=True)]
        # Two of the numbers seed a generator for the displacements.
        key = (uniform[1:3] * 2.0**53).astype(np.uint64)
        raw = np.random.Philox(key=key).random_raw(len(shape) * math.prod(counts))
        uniforms = (raw >> np.uint64(11)) * 2.0**-52 - 1
        nodes = np.reshape(uniforms, (len(shape), *counts))
        scale = np.reshape([self.magnitude / each for each in spacing], (-1, *(1 for _ in shape)))
        return DeformationWarp(shape, steps, np.asarray(nodes * scale, np.float32))


@dataclass(frozen=True, eq=False)
class DeformationWarp(PointWarp):
    """Map by displacements that are smooth between control points; see `PointWarp`.

    Args:
        source: shape of source and grid.
        steps: voxels from one control point to the next, per axis; the second one is at the first voxel.
        nodes: float32 [axis, control point ...], displacements in voxels.
    """

    source: ImageShape
    steps: tuple[float, ...]
    nodes: Positions
    matrix: ClassVar = None

    @property
    def max_displacement(self) -> tuple[float, ...]:
        """Upper bound of displacements per axis, in voxels."""
        return tuple(float(np.abs(nodes).max()) for nodes in self.nodes)

    def positions(self, box: Ranges) -> list[Positions]:
        tables = [self._weights(axis, *side) for axis, side in enumerate(box)]
        field = self.nodes[(slice(None), *(slice(*used) for used, _ in tables))]
        for axis, (_, table) in reversed(list(enumerate(tables, 1))):
            # The summed axis is moved to the front and back. Not by BLAS: its threads would compete with the loader's.
            field = np.moveaxis(field, axis, 0)
            summed = np.einsum("vn,nx->vx", table, np.ascontiguousarray(field).reshape(len(field), -1))
            field = np.moveaxis(summed.reshape(-1, *field.shape[1:]), 0, axis)
        steps = np.ix_(*(np.arange(low, high, dtype=np.float32) for low, high in box))
        return [moved + step for moved, step in zip(field, steps, strict=True)]

    def _weights(self, axis: int, low: int, high: int) -> tuple[tuple[int, int], Positions]:
        """Return the range of control points for voxels along an axis, and their weights, float32 [voxel, point]."""
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
        """Return the part of the source that displacements can reach; see `Warp.needed`."""
        most = self.max_displacement
        low = [first - far for (first, _), far in zip(box, most, strict=True)]
        high = [last - 1 + far for (_, last), far in zip(box, most, strict=True)]
        return sampling_box(low, high, self.source)
