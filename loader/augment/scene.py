"""What augmentations are made of: the frame known before any example, the scene that they move, how each is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halofeed.loader.augment.resampled import Resampled, Warp
from halofeed.loader.augment.source import Array, Label
from halofeed.loader.augment.uniform import Uniform
from halofeed.loader.augment.view import Ranges, Shape, View
from halofeed.prep.geometry.boxes import crop_boxes
from halofeed.schemas.errors import UsageError
from halofeed.schemas.kinds import Kind

DEPTH, HEIGHT, WIDTH = -3, -2, -1
"""Axes, counted from the end, so that those of a picture and of a volume are the same."""
_SIDES = {"frame": "frames long", "depth": "deep", "height": "high", "width": "wide"}
_SPACE = ("depth", "height", "width")
_NOISE_SHARE = 1e-9
_FLOAT32_NOISE = 2.0**-23


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What is known before any example: the static shape, the kind, and what goes with the image.

    Args:
        shape: of what is shown, padding included.
        kind: of image.
        has_label: whether a label is on the image's grid.
        has_boxes: whether there are objects with boxes.
        dtype: of the image.
        lost: which augmentation moves points so that no affine says where they come from; "" where none does.
    """

    shape: Shape
    kind: Kind
    has_label: bool = False
    has_boxes: bool = False
    dtype: str = "float32"
    lost: str = ""

    def __str__(self) -> str:
        """In words.

        >>> from halofeed.schemas.kinds import KINDS
        >>> str(Frame(shape=(480, 640), kind=KINDS["picture"]))
        '480 high and 640 wide'
        """
        words = [f"{size} {_SIDES[axis]}" for size, axis in zip(self.shape, self.kind.axes, strict=True)]
        return f"{', '.join(words[:-1])} and {words[-1]}"


@dataclass(frozen=True, kw_only=True)
class Objects:
    """The objects that a view shows.

    Args:
        boxes: float64 [n, 4], ymin, xmin, ymax, xmax, normalized to the view.
        areas: float64 [n], in stored pixels².
        kept: int64 [n]: which of the record's objects these are; those of records shown with it are counted on.
        masks: of each object uint8, 0 and 1, on the image's grid; none where nobody asked for them.
    """

    boxes: NDArray[np.float64]
    areas: NDArray[np.float64]
    kept: NDArray[np.int64]
    masks: tuple[Array, ...] = ()

    def crop(self, window: ArrayLike, minimum_visible: float) -> Objects:
        """Those of which enough lies in a window, clipped to it; an area shrinks by the box's visible share.

        Args:
            window: top, left, height and width, normalized to the view; [4], or [n, 4] of objects in several views.
            minimum_visible: a share of a box's area, 0 to 1.
        """
        if not len(self.kept):
            return self
        # A box that only touches the window, or lies in it whole, must not hang on the last bit of a division.
        minimum = min(max(minimum_visible - _NOISE_SHARE, _NOISE_SHARE), 1.0)
        windows = np.broadcast_to(np.asarray(window), self.boxes.shape)
        boxes, stays, areas = crop_boxes(self.boxes[:, None], self.areas[:, None], windows, minimum)
        masks = tuple(mask for mask, here in zip(self.masks, stays[:, 0].tolist(), strict=False) if here)
        return Objects(boxes=boxes[stays], areas=areas[stays], kept=self.kept[stays[:, 0]], masks=masks)

    def and_those(self, others: Objects) -> Objects:
        """These, and then others of the same view."""
        return Objects(
            boxes=np.concatenate([self.boxes, others.boxes]),
            areas=np.concatenate([self.areas, others.areas]),
            kept=np.concatenate([self.kept, others.kept]),
            masks=(*self.masks, *others.masks),
        )


NO_OBJECTS = Objects(boxes=np.zeros((0, 4)), areas=np.zeros(0), kept=np.zeros(0, np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """One example as far as augmentations have come.

    All arrays are on one grid, of which the view shows a window: the stored image's, until something is resampled.

    Args:
        view: what is shown.
        extent: along the grid's axes, what shows the source; the rest is padding.
        objects: in the view.
        pixels: the image; None where it is already where it belongs.
        label: class indices on the image's grid, where there are any.
        to_stored: float64 [axes + 1, axes + 1], from points of the grid to points of the stored image, whole numbers
            the edges of voxels; None where they are the same, or where no affine says it.
        spacing_mm: per axis of the grid from one voxel to the next; none of pictures.
        fill: what lies outside, one number or one a channel; None is the least value of what is looked at.
        ignored: the value of a label where nothing is known, as outside; 0, the background, where there is none.
    """

    view: View
    extent: Ranges
    objects: Objects = NO_OBJECTS
    pixels: Array | None = None
    label: Label | None = None
    to_stored: NDArray[np.float64] | None = None
    spacing_mm: tuple[float, ...] = ()
    fill: tuple[float, ...] | None = None
    ignored: int = 0

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Scene:
        """All of an image without padding, objects or label."""
        return cls(view=View.whole(shape), extent=tuple((0, size) for size in shape))

    def crop(self, start: Sequence[int], shape: Sequence[int], minimum_visible: float) -> Scene:
        """A window of what is seen; of the objects those of which a share of at least `minimum_visible` is left."""
        window = np.array([*start, *shape]) / np.array(self.view.shape * 2)
        objects = self.objects.crop(window.tolist(), minimum_visible)
        return replace(self, view=self.view.crop(start, shape), objects=objects)

    def stored_points(self, *, centers: bool) -> NDArray[np.float64]:
        """The affine float64 [axes + 1, axes + 1] from points of the view to points of the stored image.

        Args:
            centers: whole numbers are the centers of voxels, as in `image/affine`; else they are the edges of
                pixels, as in `image/transform`.
        """
        matrix = self.view.to_stored()
        if self.to_stored is not None:
            matrix = self.to_stored @ matrix
        if centers:
            matrix[:-1, -1] += matrix[:-1, :-1].sum(axis=1) / 2 - 0.5
        return matrix

    def shown_spacing_mm(self) -> tuple[float, ...]:
        """`spacing_mm` along the axes as seen; 1 where there is none."""
        if not self.spacing_mm:
            return (1.0,) * len(self.view.order)
        return tuple(self.spacing_mm[axis] for axis in self.view.order)

    def resampled(self, warp: Warp, *, extent: Ranges, objects: Objects, fill: float | None = None) -> Scene:
        """What the view shows on another grid of the same spacing, of which all is shown.

        Args:
            warp: from that grid to the view.
            extent: along that grid's axes, what shows the source.
            objects: in it, with the masks that they have now.
            fill: what lies outside; None is the scene's.
        """
        view = self.view
        matrix = None
        if warp.matrix is not None:
            matrix = self.stored_points(centers=False) @ warp.matrix
        masks = tuple(Resampled(mask, view, warp) for mask in objects.masks)
        return replace(
            self,
            view=View.whole(warp.shape),
            extent=extent,
            objects=replace(objects, masks=masks),
            pixels=None
            if self.pixels is None
            else Resampled(self.pixels, view, warp, image=True, fill=self.fill if fill is None else (fill,)),
            label=None if self.label is None else Resampled(self.label, view, warp, fill=(self.ignored,)),
            to_stored=matrix,
            spacing_mm=self.shown_spacing_mm(),
        )


def to_view(boxes: NDArray[np.float32], stored: ArrayLike, picture: ArrayLike) -> NDArray[np.float64]:
    """Boxes normalized to the stored image as float64 [n, 4] normalized to the picture, without its padding.

    Both are given as height and width, [2], or [n, 2] of boxes in several images. A side that lies within float32's
    rounding of a whole pixel is put onto it: windows have whole pixels for sides, and whether a box lies inside of one
    must not depend on the rounding.
    """
    sides, shown = (np.concatenate([size, size], axis=-1) for size in map(np.asarray, (stored, picture)))
    pixels = boxes.astype(np.float64) * sides
    whole = np.rint(pixels)
    return np.asarray(np.where(np.abs(pixels - whole) <= sides * _FLOAT32_NOISE, whole, pixels) / shown)


class Augmentation(Protocol):
    """What every augmentation is: a frozen value whose repr says all of it."""

    def frame(self, frame: Frame) -> Frame:
        """The frame that it makes of another; UsageError where that cannot be."""

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """The new scene, from the numbers drawn for this example and epoch."""


@runtime_checkable
class Combination(Protocol):
    """An augmentation that shows several examples in one; else as `Augmentation`."""

    def frame(self, frame: Frame) -> Frame:
        """As of `Augmentation`."""

    def partners(self, uniform: Uniform) -> int:
        """How many other examples it shows, at most 7."""

    def combine(self, scenes: Sequence[Scene], uniform: Uniform) -> Scene:
        """The new scene of an example and its partners, which the augmentations before have moved as well."""


def check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise UsageError(f"{name}: expected 0 to 1, got {share}")


def check_space(name: str, frame: Frame) -> None:
    """Refuse images of which not every axis lies in space."""
    if others := [axis for axis in frame.kind.axes if axis not in _SPACE]:
        raise UsageError(f"{name}: {frame.kind.name}s have an axis of {others[0]}s; take pictures or volumes")


def check_pictures(name: str, frame: Frame) -> None:
    """Refuse what is no picture."""
    if frame.kind.pads_around:
        raise UsageError(f"{name}: {frame.kind.name}s are not resized when loaded; it takes pictures")


def check_sides(name: str, *sides: int) -> None:
    """Refuse what is no height and width."""
    if not all(hasattr(side, "__index__") and side >= 1 for side in sides):
        raise UsageError(
            f"{name}: expected a height and a width of at least 1, got {', '.join(map(repr, sides))}"
        )


def check_fill(name: str, fill: float | None, frame: Frame) -> None:
    """Refuse what the image's numbers cannot be."""
    if fill is not None and frame.dtype in ("uint8", "uint16", "int16"):
        limits = np.iinfo(frame.dtype)
        if not (limits.min <= fill <= limits.max and fill == int(fill)):
            raise UsageError(
                f"{name}: fill: expected a whole number from {limits.min} to {limits.max} for {frame.dtype}, got {fill}"
            )


def check_range(name: str, given: Sequence[float]) -> tuple[float, float]:
    """A least and a largest number as a tuple; UsageError where they are none."""
    numbers = tuple(given) if isinstance(given, Sequence) else ()
    if len(numbers) != 2 or not numbers[0] <= numbers[1]:
        raise UsageError(f"{name}: expected the least and the largest, such as (0.5, 2.0), got {given!r}")
    return float(numbers[0]), float(numbers[1])
