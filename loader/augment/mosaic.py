"""Four pictures in one frame, around a drawn point.

┌─────────┬──────┐
│ itself  │  2nd │     each resized by a scale of its own, with the corner that is the inner one at the point;
│         │      │     what leaves its quarter is cut off, what does not fill it is padded
├─────────x──────┤
│   3rd   │  4th │
└─────────┴──────┘
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from halofeed.loader.augment.collage import Collage, Piece
from halofeed.loader.augment.scale_jitter import scaled
from halofeed.loader.augment.scene import (
    Frame,
    Objects,
    Scene,
    check_pictures,
    check_range,
    check_share,
    check_sides,
)
from halofeed.loader.augment.uniform import Uniform
from halofeed.loader.augment.view import Shape, View
from halofeed.schemas.errors import UsageError

_OTHERS = 3


@dataclass(frozen=True)
class Mosaic:
    """Shows a picture and three others around a drawn point of a (height, width) frame, with the given probability.

    The others are drawn from all records that the loader takes (of this split, and of `where`), each equally likely,
    from seed, epoch and id; what stands before in the list of augmentations moves each on its own. Objects of all four
    are given, the picture's own first, at most max_boxes; of label maps the parts are put together alike, and
    `labelled` is True where all four are. `id` and the other fields are the picture's own. No affine says where a point
    comes from: `transform` cannot be included. Without a mosaic the picture alone is fitted into the frame.

    Memory: in each thread, four decoded pictures, and what is shown of each, resized.

    Args:
        height, width: of the frame, in pixels.
        scales: the least and the largest of each picture; at 1 it would just fit into the frame.
        center: between which shares of the frame's height and width the point lies.
        probability: that there is a mosaic at all.
        minimum_visible: as of `RandomCrop`.
    """

    height: int
    width: int
    scales: tuple[float, float] = (0.4, 1.0)
    center: tuple[float, float] = (0.3, 0.7)
    probability: float = 1.0
    minimum_visible: float = 0.3

    def __post_init__(self) -> None:
        check_sides("Mosaic", self.height, self.width)
        object.__setattr__(self, "scales", check_range("Mosaic: scales", self.scales))
        object.__setattr__(self, "center", check_range("Mosaic: center", self.center))
        if self.scales[0] <= 0 or not 0 < self.center[0] <= self.center[1] < 1:
            raise UsageError(
                f"Mosaic: expected scales above 0 and a center between 0 and 1, got {self.scales} and {self.center}"
            )
        check_share("Mosaic: probability", self.probability)
        check_share("Mosaic: minimum_visible", self.minimum_visible)

    def frame(self, frame: Frame) -> Frame:
        """Of the given size, without an affine; only of pictures with boxes or a label on their grid."""
        check_pictures("Mosaic", frame)
        if not (frame.has_boxes or frame.has_label):
            raise UsageError("Mosaic: four pictures have no one class; take it for detection or segmentation")
        return replace(frame, shape=(self.height, self.width), lost="Mosaic")

    def partners(self, uniform: Uniform) -> int:
        """Three, or none."""
        return _OTHERS if uniform[0] < self.probability else 0

    def combine(self, scenes: Sequence[Scene], uniform: Uniform) -> Scene:
        """The four in one frame, or the one fitted into it."""
        frame = (self.height, self.width)
        if len(scenes) == 1:
            return scaled(scenes[0], frame, 1.0)
        low, high = self.center
        point = [
            min(max(1, round((low + float(number) * (high - low)) * side)), side - 1)
            for number, side in zip(uniform[1:3], frame, strict=True)
        ]
        placed = []
        for number, (scene, drawn) in enumerate(zip(scenes, uniform[3:].tolist(), strict=False)):
            scale = self.scales[0] + drawn * (self.scales[1] - self.scales[0])
            placed.append(self._placed(scaled(scene, frame, scale), divmod(number, 2), point))
        return collage(placed, frame)

    def _placed(self, scene: Scene, quarter: tuple[int, int], point: Sequence[int]) -> tuple[Scene, int, int]:
        """What is seen of a picture in a quarter (0 or 1 from the top, and from the left), and where that begins."""
        starts, shape, begins = [], [], []
        for after, at, side, size in zip(
            quarter, point, (self.height, self.width), scene.view.shape, strict=True
        ):
            shown = min(size, side - at if after else at)
            starts.append(0 if after else size - shown)
            shape.append(shown)
            begins.append(at if after else at - shown)
        return scene.crop(starts, shape, self.minimum_visible), begins[0], begins[1]


def collage(placed: Sequence[tuple[Scene, int, int]], frame: Shape) -> Scene:
    """Pictures put onto one frame, each at its (top, left); the fill and all else is the first one's."""
    first = placed[0][0]
    objects = [_moved(scene, top, left, frame) for scene, top, left in placed]

    def together(sources: Sequence[object], fill: Sequence[float]) -> Collage:
        pieces = [
            Piece(source=source, view=scene.view, top=top, left=left)  # type: ignore[arg-type]
            for source, (scene, top, left) in zip(sources, placed, strict=True)
        ]
        return Collage(frame, pieces, fill)

    return replace(
        first,
        view=View.whole(frame),
        extent=tuple((0, size) for size in frame),
        objects=functools.reduce(Objects.and_those, objects),
        pixels=None
        if first.pixels is None
        else together([scene.pixels for scene, _, _ in placed], first.fill or (0,)),
        label=None
        if first.label is None
        else together([scene.label for scene, _, _ in placed], (first.ignored,)),
        to_stored=None,
    )


def _moved(scene: Scene, top: int, left: int, frame: Shape) -> Objects:
    """The objects of a picture on the frame."""
    boxes = scene.objects.boxes * np.array(scene.view.shape * 2) + np.array([top, left, top, left])
    masks = tuple(
        Collage(frame, [Piece(source=mask, view=scene.view, top=top, left=left)], (0,))
        for mask in scene.objects.masks
    )
    return replace(scene.objects, boxes=boxes / np.array(frame * 2), masks=masks)
