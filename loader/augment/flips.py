"""Flips along an axis, and rotations by 90° in the plane of height and width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.loader.augment.example import DEPTH, HEIGHT, WIDTH, Example, Frame, Uniform, check_share
from halofeed.loader.augment.windows import Windows
from halofeed.prep.geometry.boxes import flip_left_right, flip_up_down
from halofeed.system.arguments import explains_fields

_FLIP_BOXES = {WIDTH: flip_left_right, HEIGHT: flip_up_down}
"""Flips of boxes, which only pictures have."""


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
            objects = replace(objects, boxes=_FLIP_BOXES[self.axis](objects.boxes))
        return replace(example, view=example.view.flip(self.axis), objects=objects)

    def plan(self, windows: Windows, uniforms: NDArray[np.float64]) -> None:
        flips, objects = uniforms[:, 0] < self.probability, windows.objects
        windows.backwards[:, self.axis] ^= flips
        if len(objects.kept):
            chosen = flips[windows.object_rows, None]
            boxes = np.where(chosen, _FLIP_BOXES[self.axis](objects.boxes), objects.boxes)
            windows.objects = replace(objects, boxes=boxes)


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
            # Counter-clockwise: swap y and x, then flip up and down.
            boxes = flip_up_down(example.objects.boxes[:, [1, 0, 3, 2]])
            example = replace(
                example, view=example.view.turn(), objects=replace(example.objects, boxes=boxes)
            )
        return example
