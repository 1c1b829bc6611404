"""Pictures that are resized and cropped to a frame (ScaleJitter), or cropped and stretched to their size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.augmented_example import (
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
from halofeed.prep.geometry.volume_plan import Resample
from halofeed.prep.voxels.kernels import nearest_lines, resize_image
from halofeed.prep.voxels.resample import sample_image
from halofeed.system.arguments import explains_fields
from halofeed.system.errors import UsageError


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
        minimum_visible: as in `RandomCrop`.
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
        if source.dtype == np.uint8:  # the converter's kernel for pictures, so that both give the same pixels
            self.decoded_image(source, start, 1, box, out)
            return
        ratios = self._ratios
        matrix = np.diag([1.0, *ratios, 1.0])
        matrix[1:3, 3] = [(ratio - 1) / 2 - first for ratio, first in zip(ratios, start, strict=True)]
        channels = source.shape[2]
        step = Resample(shape=(channels, *self.shape), matrix=matrix, antialias=True)
        (top, bottom), (left, right) = box
        ranges = ((0, channels), (top, bottom), (left, right))
        sample_image(np.ascontiguousarray(source.transpose(2, 0, 1)), step, ranges, out.transpose(2, 0, 1))

    @property
    def reduction(self) -> int:
        """Largest of 1, 2, 4 and 8 that both sides shrink by at least; see `ShrinkingWarp`."""
        return max(factor for factor in (1, 2, 4, 8) if factor <= max(1.0, min(self._ratios)))

    def decoded_image(
        self, source: NDArray[Any], start: ImageShape, factor: int, box: Ranges, out: NDArray[Any]
    ) -> None:
        """Resize an 8-bit picture whose sides were divided by a factor; see `ShrinkingWarp`."""
        size = (out.shape[0], out.shape[1])
        plan = ResizePlan(source_size=size, resized_size=size, output_size=size)
        edges = [
            [min(max(0.0, (edge * ratio - first) / factor), float(most)) for edge in sides]
            for sides, ratio, first, most in zip(box, self._ratios, start, source.shape, strict=False)
        ]
        (top, bottom), (left, right) = edges
        out[...] = resize_image(source, plan, extent=(top, left, bottom, right))

    def label(self, source: NDArray[Any], start: ImageShape, box: Ranges, out: NDArray[Any]) -> None:
        """Take the nearest pixels, as the converter does."""
        lines = nearest_lines((self.source[0], self.source[1]), (self.shape[0], self.shape[1]))
        rows, columns = (
            line[low:high] - first for line, (low, high), first in zip(lines, box, start, strict=True)
        )
        out[...] = source.take(rows, axis=0).take(columns, axis=1)


ATTEMPTS = 100
_ROUNDING = 1e-7
_CHOICE_NUMBER, _COEFFICIENT_NUMBER, _SEED_NUMBER = 0, 1, 2
"""Indices of the random numbers that choose a window of `SsdRandomCrop`, keep the picture, and draw a window."""


@explains_fields
@dataclass(frozen=True)
class RandomCropImage:
    """Shows a window of random area and aspect ratio, stretched to the size of the picture before.

    A window is drawn up to 100 times until it covers enough of any object; the picture stays as it is if none does.
    Boxes are clipped to the window. Pixels are resized as by `ScaleJitter`.

    Args:
        min_object_covered: required share of the area of one object in the window; a picture without objects counts as
            one.
        aspect_ratio_range: smallest and largest width / height of a window, in pixels of the stored picture.
        area_range: smallest and largest area of a window as a share of the picture's.
        overlap_thresh: boxes with a smaller share of their area in the window are dropped.
        random_coef: probability that the picture stays as it is.

    Source: `random_crop_image` of the TensorFlow Object Detection API with `tf.image.sample_distorted_bounding_box`.
    Its configurations write each range as two fields, such as min_area and max_area.
    """

    min_object_covered: float = 1.0
    aspect_ratio_range: tuple[float, float] = (0.75, 1.33)
    area_range: tuple[float, float] = (0.1, 1.0)
    overlap_thresh: float = 0.3
    random_coef: float = 0.0

    def __post_init__(self) -> None:
        _check_window_ranges(self)
        for name in ("min_object_covered", "overlap_thresh", "random_coef"):
            check_share(f"RandomCropImage: {name}", getattr(self, name))

    def frame(self, frame: Frame) -> Frame:
        """Return the same frame; only for pictures."""
        check_pictures("RandomCropImage", frame)
        return frame

    def apply(self, example: Example, uniform: Uniform) -> Example:
        if uniform[_COEFFICIENT_NUMBER] < self.random_coef:
            return example
        shape = example.view.shape
        sides = np.array([*shape, *shape])
        objects = example.objects
        boxes = objects.boxes[~objects.is_region]
        boxes = boxes if len(boxes) else np.array([[0.0, 0.0, 1.0, 1.0]])
        window = self.draw_window(shape, (boxes * sides).astype(np.int64), window_draws(uniform))
        if window is None:
            return example
        start, size = window
        return resize_view(example.crop(start, size, self.overlap_thresh), shape)

    def draw_window(
        self, shape: ImageShape, boxes: NDArray[np.int64], draws: NDArray[np.float64]
    ) -> tuple[ImageShape, ImageShape] | None:
        """Return the start and the shape of the first window that covers enough of a box; None if there is none.

        Args:
            shape: height and width of the picture.
            boxes: int64 [n, 4], ymin, xmin, ymax, xmax in pixels; those without a pixel do not count.
            draws: random numbers, float64 [attempt, 4].
        """
        areas = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(-1)
        boxes, areas = boxes[areas > 0], areas[areas > 0]
        for start, size in draw_windows(shape, self.area_range, self.aspect_ratio_range, draws):
            end = start[0] + size[0], start[1] + size[1]
            common = np.minimum(boxes[:, 2:], end) - np.maximum(boxes[:, :2], start)
            if (common.clip(0).prod(-1) >= self.min_object_covered * areas).any():
                return start, size
        return None


def _check_window_ranges(given: RandomCropImage | RandomResizedCrop) -> None:
    """Check the ranges of a window's aspect ratio and area, and make them tuples."""
    name = type(given).__name__
    for key in ("aspect_ratio_range", "area_range"):
        low, high = check_range(f"{name}: {key}", getattr(given, key))
        object.__setattr__(given, key, (low, high))
        if low <= 0:
            raise UsageError(f"{name}: {key}: expected values above 0, got {(low, high)}")
    check_share(f"{name}: area_range", given.area_range[1])


def window_draws(uniform: Uniform) -> NDArray[np.float64]:
    """Return the random numbers of `draw_windows`, float64 [attempt, 4], for the numbers of an augmentation."""
    return np.random.default_rng(int(uniform[_SEED_NUMBER] * 2**53)).random((ATTEMPTS, 4))


def draw_windows(
    shape: ImageShape,
    area_range: tuple[float, float],
    aspect_ratio_range: tuple[float, float],
    draws: NDArray[np.float64],
) -> Iterator[tuple[ImageShape, ImageShape]]:
    """Yield the start and the shape of windows of random area and aspect ratio that fit into a picture.

    Args:
        shape: height and width of the picture.
        area_range: smallest and largest area as a share of the picture's.
        aspect_ratio_range: smallest and largest width / height.
        draws: random numbers, float64 [attempt, 4].
    """
    low, high = aspect_ratio_range
    for ratio, side, y, x in draws.tolist():
        size = _draw_size(shape, area_range, low + ratio * (high - low), side)
        if size is not None:
            # The last start is left out, as in the source.
            yield (int(y * (shape[0] - size[0])), int(x * (shape[1] - size[1]))), size


def _draw_size(
    shape: ImageShape, area_range: tuple[float, float], ratio: float, uniform: float
) -> ImageShape | None:
    """Return a height and a width; None if no window of this ratio has an area within the range."""
    height, width = shape
    least, most = (share * height * width for share in area_range)
    low, high = round(math.sqrt(least / ratio)), round(math.sqrt(most / ratio))
    # Steps and rounding of GenerateRandomCrop in TensorFlow's sample_distorted_bounding_box_op.cc.
    if round(high * ratio) > width:
        high = int((width + 0.5 - _ROUNDING) / ratio)
        high -= round(high * ratio) > width
    high = min(high, height)
    side = min(low, high)
    side += int(uniform * (high - side + 1))
    if side * round(side * ratio) < least:
        side += 1
    if side * round(side * ratio) > most:
        side -= 1
    size = side, round(side * ratio)
    fits = least <= size[0] * size[1] <= most and size[0] <= height and size[1] <= width
    return size if fits and min(size) > 0 else None


@explains_fields
@dataclass(frozen=True)
class RandomResizedCrop:
    """Shows a window of random area and aspect ratio, stretched to (height, width): the usual crop for classification.

    A window is drawn up to 100 times until it fits into the picture; the complete picture is shown if none does. Boxes
    are clipped to the window. Boxes with less than `minimum_visible` (a share of their area, 0 to 1) in it are dropped.
    Pixels are resized as by `ScaleJitter`. Only the needed part of a JPEG is decoded.

    Args:
        height, width: size of what is shown, in pixels.
        area_range: smallest and largest area of a window as a share of the picture's.
        aspect_ratio_range: smallest and largest width / height of a window, in pixels of the stored picture.
        minimum_visible: as in `RandomCrop`.

    Source: Szegedy et al., "Going deeper with convolutions", 2014, section 6; drawn as by
    `tf.image.sample_distorted_bounding_box`.

    >>> RandomResizedCrop(224, 224).area_range
    (0.08, 1.0)
    """

    height: int
    width: int
    area_range: tuple[float, float] = (0.08, 1.0)
    aspect_ratio_range: tuple[float, float] = (3 / 4, 4 / 3)
    minimum_visible: float = 0.3

    def __post_init__(self) -> None:
        check_sides("RandomResizedCrop", self.height, self.width)
        _check_window_ranges(self)
        check_share("RandomResizedCrop: minimum_visible", self.minimum_visible)

    def frame(self, frame: Frame) -> Frame:
        """Return the frame of the given size; only for pictures."""
        check_pictures("RandomResizedCrop", frame)
        return replace(frame, shape=(self.height, self.width))

    def apply(self, example: Example, uniform: Uniform) -> Example:
        shape = example.view.shape
        windows = draw_windows(shape, self.area_range, self.aspect_ratio_range, window_draws(uniform))
        start, size = next(windows, ((0, 0), shape))
        return resize_view(example.crop(start, size, self.minimum_visible), (self.height, self.width))


_SSD_SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_SSD_CROPS = tuple(
    RandomCropImage(
        min_object_covered=share,
        aspect_ratio_range=(0.5, 2.0),
        area_range=(0.1, 1.0),
        overlap_thresh=share,
        random_coef=0.15,
    )
    for share in _SSD_SHARES
)


@explains_fields
@dataclass(frozen=True)
class SsdRandomCrop:
    """Applies one of seven `RandomCropImage`, each with the same probability, that differ in the required overlap.

    Source: Liu et al., SSD (arXiv 1512.02325), section 2.2; `ssd_random_crop` of the TensorFlow Object Detection API
    with its defaults.
    """

    def frame(self, frame: Frame) -> Frame:
        """Return the same frame; only for pictures."""
        check_pictures("SsdRandomCrop", frame)
        return frame

    def apply(self, example: Example, uniform: Uniform) -> Example:
        return _SSD_CROPS[int(uniform[_CHOICE_NUMBER] * len(_SSD_CROPS))].apply(example, uniform)
