"""Mirrored along an axis with a probability."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.scene import DEPTH, HEIGHT, WIDTH, Frame, Scene, check_share
from halofeed.loader.augment.uniform import Uniform
from halofeed.loader.augment.windows import Windows
from halofeed.prep.geometry.boxes import flip_left_right, flip_up_down
from halofeed.schemas.errors import UsageError


@dataclass(frozen=True)
class FlipLeftRight:
    """Mirrors the image along its width with the given probability."""

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
        objects = replace(scene.objects, boxes=flip_left_right(scene.objects.boxes))
        return replace(scene, view=scene.view.flip(WIDTH), objects=objects)

    def plan(self, windows: Windows, uniforms: NDArray[np.float64]) -> None:
        """As `apply`, of all rows at once."""
        windows.backwards[:, WIDTH] ^= uniforms[:, 0] < self.probability


@dataclass(frozen=True)
class FlipUpDown:
    """Mirrors the image along its height (a picture as in water) with the given probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_share("probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Unchanged."""
        return frame

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """Flipped, or unchanged."""
        if uniform[0] >= self.probability:
            return scene
        objects = replace(scene.objects, boxes=flip_up_down(scene.objects.boxes))
        return replace(scene, view=scene.view.flip(HEIGHT), objects=objects)

    def plan(self, windows: Windows, uniforms: NDArray[np.float64]) -> None:
        """As `apply`, of all rows at once."""
        windows.backwards[:, HEIGHT] ^= uniforms[:, 0] < self.probability


@dataclass(frozen=True)
class FlipDepth:
    """Mirrors a volume along its depth with the given probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_share("probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Unchanged; only volumes have a depth."""
        if "depth" not in frame.kind.axes:
            raise UsageError(f"FlipDepth: {frame.kind.name}s have no depth; use FlipUpDown or FlipLeftRight")
        return frame

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """Flipped, or unchanged."""
        if uniform[0] >= self.probability:
            return scene
        return replace(scene, view=scene.view.flip(DEPTH))

    def plan(self, windows: Windows, uniforms: NDArray[np.float64]) -> None:
        """As `apply`, of all rows at once."""
        windows.backwards[:, DEPTH] ^= uniforms[:, 0] < self.probability
