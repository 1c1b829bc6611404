"""Augmentations that show several pictures: mosaic and mix-up."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.loader.augment.scale_jitter import scaled
from halofeed.loader.augment.scene import (
    Example,
    Frame,
    Objects,
    Uniform,
    check_pictures,
    check_range,
    check_share,
    check_sides,
)
from halofeed.loader.augment.view import Array, Made, Ranges, Shape, View, common, copy_view, slices_within

_DIRECT = ("uint8", "uint16", "int16", "float32")
"""What OpenCV adds as it is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """One picture of a collage.

    Args:
        source: where it comes from.
        view: what is seen of that.
        top, left: where that begins on the grid.
    """

    source: Array
    view: View
    top: int = 0
    left: int = 0


class Collage(Made):
    """Pieces that do not overlap; see `LabelSource`.

    Args:
        shape: (height, width) of the grid.
        pieces: on it, one or more.
        fill: what lies between, one number or one a channel.
    """

    def __init__(self, shape: Shape, pieces: Sequence[Piece], fill: Sequence[float]) -> None:
        super().__init__(shape, pieces[0].source)
        self._pieces, self._fill = pieces, fill

    def make(self, box: Ranges, out: NDArray[Any]) -> None:
        """As of `Made`."""
        parts = []
        for piece in self._pieces:
            begins = (piece.top, piece.left)
            held = tuple((at, at + size) for at, size in zip(begins, piece.view.shape, strict=True))
            inside = common(box, held)
            shape = [high - low for low, high in inside]
            if min(shape) > 0:
                start = [low - at for (low, _), at in zip(inside, begins, strict=True)]
                view = piece.view.crop(start, shape)
                parts.append((piece, view, slices_within(inside, box), shape[0] * shape[1]))
        if sum(area for *_, area in parts) < out.shape[0] * out.shape[1]:
            out[...] = self._fill
        for piece, view, region, _ in parts:
            copy_view(view, piece.source, out[region])


class Blend(Made):
    """One picture shining through another of the same shape; see `Source`.

    Args:
        shape: (height, width) of both.
        first, second: the pictures.
        share: the first one's, 0 to 1.
    """

    def __init__(self, shape: Shape, first: Made, second: Made, share: float) -> None:
        super().__init__(shape, first)
        self._first, self._second, self._share = first, second, share

    def make(self, box: Ranges, out: NDArray[Any]) -> None:
        """As of `Made`."""
        first, second = self._first.part(box), self._second.part(box)
        if first.dtype.name not in _DIRECT:
            first, second = first.astype(np.float32), second.astype(np.float32)
        mixed = cv2.addWeighted(first, self._share, second, 1 - self._share, 0)
        out[...] = mixed.reshape(out.shape)


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

    def combine(self, scenes: Sequence[Example], uniform: Uniform) -> Example:
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

    def _placed(
        self, scene: Example, quarter: tuple[int, int], point: Sequence[int]
    ) -> tuple[Example, int, int]:
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


def collage(placed: Sequence[tuple[Example, int, int]], frame: Shape) -> Example:
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


def _moved(scene: Example, top: int, left: int, frame: Shape) -> Objects:
    """The objects of a picture on the frame."""
    boxes = scene.objects.boxes * np.array(scene.view.shape * 2) + np.array([top, left, top, left])
    masks = tuple(
        Collage(frame, [Piece(source=mask, view=scene.view, top=top, left=left)], (0,))
        for mask in scene.objects.masks
    )
    return replace(scene.objects, boxes=boxes / np.array(frame * 2), masks=masks)


@dataclass(frozen=True)
class MixUp:
    """Mixes a picture with another one, with the given probability: the weighted mean of both, and all their objects.

    The other one is drawn, and moved by what stands before in the list, as of `Mosaic`. Both begin at the top left;
    where only one of them reaches, it is mixed with the padding. The picture's own objects come first, at most
    max_boxes in all. For detection: of classes and label maps nothing lies between two.

    Memory: in each thread, two decoded pictures, and what is shown of both.

    Args:
        shares: the least and the largest share of the picture itself, 0 to 1; every one between is equally likely.
        probability: that it is mixed at all.
    """

    shares: tuple[float, float] = (0.4, 0.6)
    probability: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", check_range("MixUp: shares", self.shares))
        for share in self.shares:
            check_share("MixUp: shares", share)
        check_share("MixUp: probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Without an affine; only of pictures with boxes."""
        check_pictures("MixUp", frame)
        if not frame.has_boxes:
            raise UsageError(
                "MixUp: nothing lies between two classes as they are stored; take it for detection, and mix classes in "
                "the training step"
            )
        return replace(frame, lost="MixUp")

    def partners(self, uniform: Uniform) -> int:
        """One, or none."""
        return int(uniform[0] < self.probability)

    def combine(self, scenes: Sequence[Example], uniform: Uniform) -> Example:
        """The mean of both, or the one."""
        if len(scenes) == 1:
            return scenes[0]
        shape = tuple(max(sides) for sides in zip(*(scene.view.shape for scene in scenes), strict=True))
        first, second = (collage([(scene, 0, 0)], shape) for scene in scenes)
        low, high = self.shares
        mixed = None
        if isinstance(first.pixels, Made) and isinstance(second.pixels, Made):
            mixed = Blend(shape, first.pixels, second.pixels, low + float(uniform[1]) * (high - low))
        return replace(first, pixels=mixed, objects=first.objects.and_those(second.objects))
