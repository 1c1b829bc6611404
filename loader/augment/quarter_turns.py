"""Turned by quarters in the plane of height and width."""

from __future__ import annotations

from dataclasses import dataclass, replace

from halofeed.loader.augment.scene import Frame, Scene, check_share
from halofeed.loader.augment.uniform import Uniform
from halofeed.prep.geometry.boxes import flip_up_down
from halofeed.schemas.errors import UsageError


@dataclass(frozen=True)
class Rotate90:
    """Turns the image by 90, 180 or 270° in the plane of height and width with the given probability.

    The three are equally frequent, so that by default all four orientations are.
    """

    probability: float = 0.75

    def __post_init__(self) -> None:
        check_share("probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Unchanged; it must be as high as wide."""
        height, width = frame.shape[-2:]
        if height != width:
            square = (*frame.shape[:-2], *[min(height, width)] * 2)
            raise UsageError(
                f"Rotate90: the images are {frame}, and a quarter turn needs them as high as wide; "
                f"crop them first, such as RandomCrop({', '.join(map(str, square))})"
            )
        return frame

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """Turned, or unchanged."""
        if uniform[0] >= self.probability:
            return scene
        for _ in range(1 + int(uniform[1] * 3)):
            # Counter-clockwise: y and x change places, then up and down.
            boxes = flip_up_down(scene.objects.boxes[:, [1, 0, 3, 2]])
            scene = replace(scene, view=scene.view.turn(), objects=replace(scene.objects, boxes=boxes))
        return scene
