"""Flips, rotations by 90° in the plane of height and width, and windows of a fixed size, which RandomCrop draws."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.augmented_example import (
    DEPTH,
    HEIGHT,
    WIDTH,
    Example,
    Frame,
    Uniform,
    Windows,
    check_share,
)
from halofeed.loader.augment.view import ImageShape, LabelArray, Ranges
from halofeed.prep.geometry.boxes import flip_boxes, turn_boxes
from halofeed.system.arguments import explains_fields, truth_value
from halofeed.system.errors import CorruptFileError, UsageError


def draw_foreground(
    label: LabelArray, box: Ranges, uniform: float, ignored: int = 0, class_uniform: float | None = None
) -> ImageShape | None:
    """Choose a pixel or voxel of any class in a box, each with the same probability; None if there is none.

    With `class_uniform`, first a class in the box is chosen, each with the same probability, then one of its voxels.

    OpenCV counts 25 to 40 GB/s of labels on one core: 0.3 ms for uint8 [32, 512, 512], once per draw.

    Args:
        label: [height, width] or [depth, height, width], as stored, class indices or sets of classes.
        box: the box to search, along the label's axes.
        uniform: random number, 0 (inclusive) to 1 (exclusive).
        ignored: a value above 0 that is not a class; 0 if there is none.
        class_uniform: random number of the same range that chooses the class; None for any class.
    >>> draw_foreground(np.array([[0, 0, 7], [0, 9, 0]], np.uint8), ((0, 2), (0, 3)), 0.6)
    (1, 1)
    >>> draw_foreground(np.array([[0, 0, 7], [9, 9, 9]], np.uint8), ((0, 2), (0, 3)), 0.6, class_uniform=0.4)
    (0, 2)
    """
    wanted = 0
    if class_uniform is None:
        count = partial(_count, ignored=ignored)
        totals = count(label, box) if isinstance(label, np.ndarray) else label.cached_count(box, count)
    else:
        of_classes = partial(_count_by_class, ignored=ignored)
        table = (
            of_classes(label, box)
            if isinstance(label, np.ndarray)
            else label.cached_count(box, of_classes, "by class")
        )
        if not len(table):
            return None
        wanted, *_ = row = table[int(class_uniform * len(table))]
        totals = row[1:]
    if not len(totals) or not totals[-1]:
        return None
    # First the slice, by the counts of slices; then the voxel in it, so that only one slice is read again.
    chosen, rank = _place_of(int(uniform * totals[-1]), totals)
    at = box[0][0] + chosen
    for held, stored in _chunks(label, ((at, at + 1), *box[1:]) if len(box) == 3 else box, ignored):
        chunk = stored == wanted if wanted else stored
        rows = np.cumsum(np.count_nonzero(chunk, axis=-1).reshape(-1))
        if rank >= rows[-1]:  # the voxel is in a later chunk of the slice
            rank -= int(rows[-1])
            continue
        row, rank = _place_of(rank, rows)
        line = tuple(map(int, np.unravel_index(row, chunk.shape[:-1])))
        inside = (*line, int(np.flatnonzero(chunk[line])[rank]))
        return tuple(low + place for (low, _), place in zip(held, inside, strict=True))
    place = "a label" if isinstance(label, np.ndarray) else label.place
    raise CorruptFileError(
        f"{place}: the label holds less foreground than was counted in it: it changed in the meantime"
    )


def _place_of(rank: int, totals: NDArray[np.int64]) -> tuple[int, int]:
    """Return which of several parts holds the item of a rank, by their cumulative counts, and the rank within it."""
    part = int(np.searchsorted(totals, rank, side="right"))
    return part, rank - (int(totals[part - 1]) if part else 0)


def _count(label: LabelArray, box: Ranges, ignored: int = 0) -> NDArray[np.int64]:
    """Return the cumulative count of foreground voxels over a box's slices; a picture is one slice."""
    counts = np.zeros(max(0, box[0][1] - box[0][0]) if len(box) == 3 else 1, np.int64)
    for held, chunk in _chunks(label, box, ignored):
        first = held[0][0] - box[0][0] if len(box) == 3 else 0
        for number, plane in enumerate(chunk if chunk.ndim == 3 else chunk[None], first):
            counts[number] += cv2.countNonZero(plane)
    return np.cumsum(counts)


def _count_by_class(label: LabelArray, box: Ranges, ignored: int = 0) -> NDArray[np.int64]:
    """Return a row for each value above 0 in a box: the value, then its cumulative counts over the box's slices."""
    slices = max(0, box[0][1] - box[0][0]) if len(box) == 3 else 1
    counts: dict[int, NDArray[np.int64]] = {}
    for held, chunk in _chunks(label, box, ignored):
        first = held[0][0] - box[0][0] if len(box) == 3 else 0
        for number, plane in enumerate(chunk if chunk.ndim == 3 else chunk[None], first):
            # Most slices of a scan have no foreground, which OpenCV finds sooner than a sort.
            if not cv2.countNonZero(plane):
                continue
            for value, voxels in zip(*np.unique(plane[plane != 0], return_counts=True), strict=True):
                counts.setdefault(int(value), np.zeros(slices, np.int64))[number] += voxels
    rows = [np.concatenate([[value], np.cumsum(counts[value])]) for value in sorted(counts)]
    return np.array(rows, np.int64).reshape(len(rows), 1 + slices)


def _chunks(label: LabelArray, box: Ranges, ignored: int) -> Iterator[tuple[Ranges, NDArray[Any]]]:
    """Yield the chunks of a box, with the ignored value set to 0."""
    if any(low >= high for low, high in box):
        return
    chunks: Iterable[tuple[Ranges, NDArray[Any]]]
    if isinstance(label, np.ndarray):
        chunks = [(box, label[tuple(slice(low, high) for low, high in box)])]
    else:
        chunks = label.chunks(box)
    for held, chunk in chunks:
        yield held, np.where(chunk == ignored, chunk.dtype.type(0), chunk) if ignored else chunk


_POSITION_NUMBERS = (2, 0, 1)
"""Indices of the random numbers that place a window along depth, height and width."""
_FOREGROUND_NUMBER, _VOXEL_NUMBER, _CLASS_NUMBER = 3, 4, 5


@explains_fields
@dataclass(frozen=True, init=False)
class RandomCrop:
    """Shows a window of the given size, anywhere with equal probability, or around the foreground.

    RandomCrop(512, 512) is a height and a width, RandomCrop(32, 512, 512) a depth, a height and a width.

    Windows are inside the part that shows the source, not in the padding. If that part is smaller than the window along
    an axis, all of it is shown, with padding: at the bottom and right of a picture, and the stored padding of a volume.

    With the probability `foreground` (segmentation), first a voxel of label > 0 is chosen, each with equal probability.
    Then a window that contains it is chosen, each with equal probability. If the label is empty, any window is chosen.
    With `by_class`, first one of the record's classes is chosen, each with equal probability, and then one of its
    voxels: a small class is shown as often as a large one, as nnU-Net samples its foreground.

    Boxes are clipped to the window. Boxes with less than `minimum_visible` (a share of their area, 0 to 1) in it are
    dropped, and the rest move to the front. An area shrinks by the box's visible share.

    A window begins at a multiple of `step` pixels along each axis, where the choice has one: 2 for `color="planes"`.
    """

    sides: ImageShape
    minimum_visible: float
    foreground: float
    step: int
    by_class: bool

    def __init__(
        self,
        *sides: int,
        minimum_visible: float = 0.3,
        foreground: float = 0.0,
        step: int = 1,
        by_class: bool = False,
    ) -> None:
        valid = all(hasattr(side, "__index__") and side >= 1 for side in sides)
        if len(sides) not in (2, 3) or not valid:
            pair = sides[0] if len(sides) == 1 and isinstance(sides[0], Sequence) else (512, 512)
            raise UsageError(
                "RandomCrop: expected a height and a width, or a depth, a height and a width, each at least 1, such as "
                f"RandomCrop({', '.join(map(str, pair))}), got RandomCrop({', '.join(map(repr, sides))})"
            )
        check_share("RandomCrop: minimum_visible", minimum_visible)
        check_share("RandomCrop: foreground", foreground)
        if not hasattr(step, "__index__") or step < 1:
            raise UsageError(f"RandomCrop: step: expected a whole number of at least 1, got {step!r}")
        object.__setattr__(self, "sides", tuple(map(operator.index, sides)))
        object.__setattr__(self, "minimum_visible", minimum_visible)
        object.__setattr__(self, "foreground", foreground)
        object.__setattr__(self, "step", operator.index(step))
        object.__setattr__(self, "by_class", truth_value("RandomCrop: by_class", by_class))

    def __repr__(self) -> str:
        sides = ", ".join(map(str, self.sides))
        step = f", step={self.step}" if self.step > 1 else ""
        step += ", by_class=True" if self.by_class else ""
        return (
            f"RandomCrop({sides}, minimum_visible={self.minimum_visible}, foreground={self.foreground}{step})"
        )

    def frame(self, frame: Frame) -> Frame:
        name = f"RandomCrop({', '.join(map(str, self.sides))})"
        # RandomCrop(512, 512) of volumes: the sides are those of the last axes.
        if len(self.sides) != len(frame.shape):
            likely = ", ".join(map(str, (*frame.shape[: -len(self.sides)], *self.sides)[-len(frame.shape) :]))
            raise UsageError(
                f"{name}: the images are {frame}; name a side for each, such as RandomCrop({likely})"
            )
        if any(side > size for side, size in zip(self.sides, frame.shape, strict=True)):
            raise UsageError(
                f"{name}: the images are {frame}; crop at most that, or convert the data to a larger size"
            )
        if self.foreground and not frame.has_label:
            raise UsageError(
                f"{name}: foreground={self.foreground} needs a label on the image's grid, which only segmentation has; "
                "leave it out"
            )
        return replace(frame, shape=self.sides)

    def apply(self, example: Example, uniform: Uniform) -> Example:
        view = example.view
        shape = [min(side, size) for side, size in zip(self.sides, view.shape, strict=True)]
        starts = [_starts(*sizes) for sizes in zip(view.seen(example.extent), shape, view.shape, strict=True)]
        if uniform[_FOREGROUND_NUMBER] < self.foreground and example.label is not None:
            shown = zip(example.extent, view.box, strict=True)
            both = tuple((max(low, first), min(high, last)) for (low, high), (first, last) in shown)
            of_class = float(uniform[_CLASS_NUMBER]) if self.by_class else None
            voxel = draw_foreground(
                example.label, both, float(uniform[_VOXEL_NUMBER]), example.ignored, of_class
            )
            if voxel is not None:
                places = view.seen(tuple((place, place + 1) for place in voxel))
                starts = [
                    (max(first, place - side + 1), min(last, place))
                    for (first, last), (place, _), side in zip(starts, places, shape, strict=True)
                ]
        starts = [on_steps(first, last, self.step) for first, last in starts]
        numbers = zip(_POSITION_NUMBERS[-len(shape) :], starts, strict=True)
        start = [
            first + int(uniform[at] * ((last - first) // self.step + 1)) * self.step
            for at, (first, last) in numbers
        ]
        return example.crop(start, shape, self.minimum_visible)

    def plan(self, windows: Windows, uniforms: NDArray[np.float64]) -> None:
        """Crop all rows at once; only without foreground."""
        numbers = uniforms[:, _POSITION_NUMBERS[-len(self.sides) :]]
        windows.crop(self.sides, numbers, self.minimum_visible, self.step)


def on_steps(first: int, last: int, step: int) -> tuple[int, int]:
    """Return the first and last multiples of a step in a range; the range's start if it holds none.

    >>> on_steps(3, 9, 2), on_steps(3, 3, 2), on_steps(3, 9, 1)
    ((4, 8), (3, 3), (3, 9))
    """
    lowest, highest = -(-first // step) * step, last // step * step
    return (lowest, highest) if lowest <= highest else (first, first)


def _starts(inside: tuple[int, int], window: int, size: int) -> tuple[int, int]:
    """Return the first and last starts as `window_starts`, for one axis of one view, in half of NumPy's time."""
    low, high = inside if inside[0] < inside[1] else (0, size)
    fits = high - low >= window
    return (low, high - window) if fits else (max(0, high - window), min(low, size - window))


def _mirrored(points: NDArray[Any], axis: int) -> NDArray[Any]:
    """Mirror points [..., 2] (y, x) along an axis; their order stays."""
    mirrored = points.copy()
    mirrored[..., axis] = 1 - mirrored[..., axis]
    return mirrored


@explains_fields
@dataclass(frozen=True)
class _Flip:
    """Mirrors the image along an axis with the given probability."""

    axis: ClassVar[int]
    probability: float = 0.5

    def __post_init__(self) -> None:
        check_share(f"{type(self).__name__}: probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        return frame

    def apply(self, example: Example, uniform: Uniform) -> Example:
        if uniform[0] >= self.probability:
            return example
        objects = example.objects
        if len(objects.kept):
            boxes = flip_boxes(objects.boxes, self.axis)
            objects = objects.placed(boxes, partial(_mirrored, axis=self.axis))
        return replace(example, view=example.view.flip(self.axis), objects=objects)

    def plan(self, windows: Windows, uniforms: NDArray[np.float64]) -> None:
        flips, objects = uniforms[:, 0] < self.probability, windows.objects
        windows.backwards[:, self.axis] ^= flips
        if len(objects.kept):
            chosen = flips[windows.object_rows, None]
            boxes = np.where(chosen, flip_boxes(objects.boxes, self.axis), objects.boxes)

            def mirrored(corners: NDArray[Any]) -> NDArray[Any]:
                return np.where(chosen[..., None], _mirrored(corners, self.axis), corners)

            windows.objects = objects.placed(boxes, mirrored)


class FlipLeftRight(_Flip):
    """Mirrors the image along its width with the given probability."""

    axis = WIDTH


class FlipUpDown(_Flip):
    """Mirrors the image along its height (upside down) with the given probability."""

    axis = HEIGHT


class FlipDepth(_Flip):
    """Mirrors a volume along its depth with the given probability."""

    axis = DEPTH

    def frame(self, frame: Frame) -> Frame:
        """Return the frame unchanged; only for volumes."""
        if "depth" not in frame.kind.axes:
            raise UsageError(f"FlipDepth: {frame.kind.name}s have no depth; use FlipUpDown or FlipLeftRight")
        return frame


def _turned(points: NDArray[Any]) -> NDArray[Any]:
    """Turn points [..., 2] (y, x) counter-clockwise by a quarter: swap y and x, then flip up and down."""
    return _mirrored(points[..., ::-1], HEIGHT)


@explains_fields
@dataclass(frozen=True)
class Rotate90:
    """Rotates the image by 90, 180 or 270° in the plane of height and width with the given probability.

    The three angles are equally likely. So with the default probability all four orientations are equally likely.
    """

    probability: float = 0.75

    def __post_init__(self) -> None:
        check_share("Rotate90: probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Return the frame unchanged; it must be square."""
        height, width = frame.shape[-2:]
        # A turned row would not fit into the batch's shape.
        if height != width:
            square = (*frame.shape[:-2], *[min(height, width)] * 2)
            raise UsageError(
                f"Rotate90: the images are {frame}, and a quarter turn needs them as high as wide; "
                f"crop them first, such as RandomCrop({', '.join(map(str, square))})"
            )
        return frame

    def apply(self, example: Example, uniform: Uniform) -> Example:
        if uniform[0] >= self.probability:
            return example
        for _ in range(1 + int(uniform[1] * 3)):
            objects = example.objects.placed(turn_boxes(example.objects.boxes), _turned)
            example = replace(example, view=example.view.turn(), objects=objects)
        return example
