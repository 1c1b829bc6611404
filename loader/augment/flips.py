"""Mirrored along an axis with a probability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.scene import DEPTH, HEIGHT, WIDTH, Frame, Scene, check_share
from halofeed.loader.augment.uniform import Uniform
from halofeed.loader.augment.windows import Windows
from halofeed.prep.geometry.boxes import flip_left_right, flip_up_down
from halofeed.schemas.errors import UsageError

_FLIP_BOXES = {WIDTH: flip_left_right, HEIGHT: flip_up_down}
"""What becomes of boxes, which only pictures have."""


@dataclass(frozen=True)
class _Flip:
    """Mirrors the image along an axis with the given probability."""

    axis: ClassVar[int]
    probability: float = 0.5

    def __post_init__(self) -> None:
        check_share("probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Unchanged."""
        return frame

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """Mirrored, or unchanged."""
        if uniform[0] >= self.probability:
            return scene
        objects = scene.objects
        if len(objects.kept):
            objects = replace(objects, boxes=_FLIP_BOXES[self.axis](objects.boxes))
        return replace(scene, view=scene.view.flip(self.axis), objects=objects)

    def plan(self, windows: Windows, uniforms: NDArray[np.float64]) -> None:
        """As `apply`, of all rows at once."""
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
    """Mirrors the image along its height (a picture as in water) with the given probability."""

    axis = HEIGHT


class FlipDepth(_Flip):
    """Mirrors a volume along its depth with the given probability."""

    axis = DEPTH

    def frame(self, frame: Frame) -> Frame:
        """Unchanged; only volumes have a depth."""
        if "depth" not in frame.kind.axes:
            raise UsageError(f"FlipDepth: {frame.kind.name}s have no depth; use FlipUpDown or FlipLeftRight")
        return frame
