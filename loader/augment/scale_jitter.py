"""ScaleJitter: a picture resized by a random scale, then cropped or padded to a fixed frame, as detectors train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.loader.augment.example import (
    Example,
    Frame,
    Uniform,
    check_pictures,
    check_range,
    check_share,
    check_sides,
)
from halofeed.loader.augment.view import ImageShape, Ranges
from halofeed.prep.geometry.resize import ResizePlan
from halofeed.prep.geometry.volume import Resample
from halofeed.prep.voxels.kernels import nearest_lines, resize_image
from halofeed.prep.voxels.resample import sample_image
from halofeed.system.arguments import explains_fields


@explains_fields
@dataclass(frozen=True)
class ScaleJitter:
    """Resizes a picture by a random scale without distorting it, and crops or pads it to (height, width).

    At scale 1 the picture just fits into the frame. A larger one is cropped to a window, anywhere with equal
    probability. A smaller one is at the top left, with padding at the bottom and right.

    Pixels are averaged by a triangle filter as wide as the reduction needs, so that nothing aliases. Label maps and
    masks use the nearest pixel. Boxes are clipped to the window. Boxes with less than `minimum_visible` (a share of
    their area, 0 to 1) in it are dropped. Areas are in pixels² as shown.

    Memory: in each thread, the window's part of a raw or decoded picture, and the resized part.

    Args:
        height, width: size of the frame, in pixels.
        scales: smallest and largest scale; all scales between are equally likely.
        minimum_visible: as of `RandomCrop`.
    """

    height: int
    width: int
    scales: tuple[float, float] = (0.1, 2.0)
    minimum_visible: float = 0.3

    def __post_init__(self) -> None:
        check_sides("ScaleJitter", self.height, self.width)
        object.__setattr__(self, "scales", check_range("ScaleJitter: scales", self.scales))
        if self.scales[0] <= 0:
            raise UsageError(f"ScaleJitter: scales: expected scales above 0, got {self.scales}")
        check_share("ScaleJitter: minimum_visible", self.minimum_visible)

    def frame(self, frame: Frame) -> Frame:
        """Return the frame of the given size; only for pictures."""
        check_pictures("ScaleJitter", frame)
        return replace(frame, shape=(self.height, self.width))

    def apply(self, example: Example, uniform: Uniform) -> Example:
        frame = (self.height, self.width)
        low, high = self.scales
        example = scaled(example, frame, low + float(uniform[0]) * (high - low))
        shape = tuple(min(side, size) for side, size in zip(frame, example.view.shape, strict=True))
        start = [
            int(number * (size - side + 1))
            for number, size, side in zip(uniform[1:], example.view.shape, shape, strict=False)
        ]
        return example.crop(start, shape, self.minimum_visible)


def scaled(example: Example, frame: ImageShape, scale: float) -> Example:
    """Resize a picture without distortion; at scale 1 it just fits into the frame."""
    source = example.view.shape
    factor = scale * min(side / size for side, size in zip(frame, source, strict=True))
    return resize_view(example, tuple(max(1, round(size * factor)) for size in source))


def resize_view(example: Example, shape: ImageShape) -> Example:
    """Resize what a picture's view shows to a shape."""
    source = example.view.shape
    if shape == source:
        return example
    area = shape[0] * shape[1] / (source[0] * source[1])
    return example.resampled(
        ScaleWarp(source, shape),
        extent=tuple((0, size) for size in shape),
        objects=replace(example.objects, areas=example.objects.areas * area),
    )


@dataclass(frozen=True)
class ScaleWarp:
    """Map from a picture of one size to another; see `Warp`.

    Args:
        source: (height, width) before.
        shape: (height, width) after.
    """

    source: ImageShape
    shape: ImageShape

    @property
    def _ratios(self) -> tuple[float, ...]:
        return tuple(before / after for before, after in zip(self.source, self.shape, strict=True))

    @property
    def matrix(self) -> NDArray[np.float64]:
        return np.diag([*self._ratios, 1.0])

    def needed(self, box: Ranges) -> Ranges:
        """Return the part of the source that the filter reaches; see `Warp.needed`."""
        ranges = []
        for (low, high), ratio, size in zip(box, self._ratios, self.source, strict=True):
            reach = max(ratio, 1.0) + 1
            ranges.append((max(0, int(low * ratio - reach)), min(size, int(high * ratio + reach) + 1)))
        return tuple(ranges)

    def image(self, source: NDArray[Any], start: ImageShape, box: Ranges, out: NDArray[Any]) -> None:
        """Resize 8-bit pictures in integers as the converter does, others in floats with repeated edges."""
        if source.dtype == np.uint8:
            size = (out.shape[0], out.shape[1])
            plan = ResizePlan(source_size=size, resized_size=size, output_size=size)
            edges = [
                [min(max(0.0, edge * ratio - first), float(most)) for edge in sides]
                for sides, ratio, first, most in zip(box, self._ratios, start, source.shape, strict=False)
            ]
            (top, bottom), (left, right) = edges
            out[...] = resize_image(source, plan, extent=(top, left, bottom, right))
            return
        ratios = self._ratios
        matrix = np.diag([1.0, *ratios, 1.0])
        matrix[1:3, 3] = [(ratio - 1) / 2 - first for ratio, first in zip(ratios, start, strict=True)]
        channels = source.shape[2]
        step = Resample(shape=(channels, *self.shape), matrix=matrix, antialias=True)
        (top, bottom), (left, right) = box
        ranges = ((0, channels), (top, bottom), (left, right))
        sample_image(np.ascontiguousarray(source.transpose(2, 0, 1)), step, ranges, out.transpose(2, 0, 1))

    def label(self, source: NDArray[Any], start: ImageShape, box: Ranges, out: NDArray[Any]) -> None:
        """Take the nearest pixels, as the converter does."""
        lines = nearest_lines((self.source[0], self.source[1]), (self.shape[0], self.shape[1]))
        rows, columns = (
            line[low:high] - first for line, (low, high), first in zip(lines, box, start, strict=True)
        )
        out[...] = source.take(rows, axis=0).take(columns, axis=1)
