"""Bent smoothly: every point moved by a drawn field of displacements, of volumes in millimeters.

x───────x───────x     control points, `grid` apart, each displaced by a draw of at most `magnitude` along each axis;
│       │       │     between them cubic B-splines, so that the field is smooth and nowhere larger than that
x───────x───────x
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from halofeed.loader.augment.points import Float32, Points, around
from halofeed.loader.augment.scene import Frame, Scene, check_fill, check_share, check_space
from halofeed.loader.augment.uniform import Uniform
from halofeed.loader.augment.view import Ranges, Shape
from halofeed.schemas.errors import UsageError

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

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
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
