"""Which part of a stored image a batch shows and which way round, and the one copy that puts it there.

    stored                          row of the batch
    ┌──────────────┬───┐            ┌────────┬─┐
    │   ┌──────┐   │pad│   crop,    │  view  │ │
    │   │ view │   │   │ ─────────> ├────────┘ │
    ├───┴──────┴───┘   │   flip,    │   pad    │
    └──────────────────┘   turn     └──────────┘

Of a picture the view shows no padding, so that it always begins at the top left. A volume has padding on all sides, so
that a view begins as the whole of it, and `extent` says where in the view the scan is.

What an augmentation may know of an image's or a label's array before anything of it is read, or made.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.native import kernel
from halofeed.prep.voxels.copying import copy_voxels

Shape = tuple[int, ...]
"""(height, width) or (depth, height, width)."""
Ranges = tuple[tuple[int, int], ...]
"""Per axis (start, stop), the stop left out."""
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.float64}
"""Types that stand for all others of their size in bytes where bits are only moved."""
_SMALLEST_SIDE = 16
"""Planes below this are left to NumPy: calling OpenCV costs more than copying."""
_LARGE_BYTES = 1 << 17
"""Below this NumPy copies rows sooner than the kernel is called."""
_MOST_CHANNELS, _MOST_TURNED_CHANNELS = 64, 4
"""What OpenCV flips for certain, and what it transposes."""


def common(first: Ranges, second: Ranges) -> Ranges:
    """What lies in both boxes; a side ends before it begins where nothing does."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))


def slices_within(box: Ranges, within: Ranges) -> tuple[slice, ...]:
    """Where a box lies in an array that holds another."""
    return tuple(slice(low - at, high - at) for (low, high), (at, _) in zip(box, within, strict=True))


@dataclass(frozen=True, kw_only=True)
class View:
    """A window of the stored image and how it is turned, in whole pixels or voxels.

    Args:
        start: per axis as seen, where the window begins along the stored axis that is seen there.
        shape: per axis as seen.
        order: per axis as seen, which stored axis it is.
        backwards: per axis as seen, whether its first pixel is the last one stored.
    """

    start: Shape
    shape: Shape
    order: Shape
    backwards: tuple[bool, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> View:
        """All of an image, as it is stored."""
        axes = len(shape)
        return cls(start=(0,) * axes, shape=tuple(shape), order=tuple(range(axes)), backwards=(False,) * axes)

    @property
    def box(self) -> Ranges:
        """The window, along the stored axes."""
        sides = zip(self.order, self.start, self.shape, strict=True)
        return tuple((start, start + size) for _, start, size in sorted(sides))

    @property
    def is_as_stored(self) -> bool:
        """Whether no axis is turned or read backwards."""
        return not any(self.backwards) and self.order == tuple(range(len(self.order)))

    def crop(self, start: Sequence[int], shape: Sequence[int]) -> View:
        """A window of this view, in its own pixels as seen.

        >>> View.whole((4, 10)).flip(-1).crop((0, 1), (4, 3)).start
        (0, 6)
        """
        axes = zip(self.start, self.shape, self.backwards, start, shape, strict=True)
        moved = tuple(first + (whole - at - size if back else at) for first, whole, back, at, size in axes)
        return replace(self, start=moved, shape=tuple(shape))

    def flip(self, axis: int) -> View:
        """The view mirrored along an axis as seen."""
        backwards = list(self.backwards)
        backwards[axis] = not backwards[axis]
        return replace(self, backwards=tuple(backwards))

    def turn(self) -> View:
        """The view turned by 90° in the plane of height and width, counter-clockwise on a screen, as np.rot90 does."""

        def swapped(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return (*values[:-2], values[-1], values[-2])

        turned = View(
            start=swapped(self.start),
            shape=swapped(self.shape),
            order=swapped(self.order),
            backwards=swapped(self.backwards),
        )
        return turned.flip(-2)

    def seen(self, box: Ranges) -> Ranges:
        """A box along the stored axes as it is seen, cut to the view."""
        ranges = []
        for start, size, axis, back in zip(self.start, self.shape, self.order, self.backwards, strict=True):
            low, high = box[axis]
            if back:
                low, high = start + size - high, start + size - low
            else:
                low, high = low - start, high - start
            ranges.append((min(max(low, 0), size), min(max(high, 0), size)))
        return tuple(ranges)

    def part(self, box: Ranges) -> tuple[View, tuple[slice, ...]]:
        """What is seen of a part of the stored image, which lies in an array of its own.

        Args:
            box: along the stored axes, what that array holds.

        Returns:
            the view of that array, and the region of what this view shows that it fills.
        """
        region = self.seen(box)
        start, shape = [], []
        for first, size, axis, back, (low, high) in zip(
            self.start, self.shape, self.order, self.backwards, region, strict=True
        ):
            begin = first + (size - high if back else low)
            start.append(begin - box[axis][0])
            shape.append(high - low)
        part = View(start=tuple(start), shape=tuple(shape), order=self.order, backwards=self.backwards)
        return part, tuple(slice(*sides) for sides in region)

    def to_stored(self) -> NDArray[np.float64]:
        """The affine float64 [axes + 1, axes + 1] from points of the view to points of the stored image.

        Whole numbers are the edges of pixels.
        """
        axes = len(self.shape)
        matrix = np.zeros((axes + 1, axes + 1))
        matrix[axes, axes] = 1
        for seen, (start, size, axis, back) in enumerate(
            zip(self.start, self.shape, self.order, self.backwards, strict=True)
        ):
            matrix[axis, seen] = -1 if back else 1
            matrix[axis, axes] = start + (size if back else 0)
        return matrix

    def look(self, source: NDArray[Any]) -> NDArray[Any]:
        """What the view shows of `source` [stored axes ..., channel, or without], without a copy."""
        axes = len(self.shape)
        window = source[tuple(slice(low, high) for low, high in self.box)]
        turned = window.transpose(*self.order, *range(axes, source.ndim))
        return turned[tuple(slice(None, None, -1 if back else 1) for back in self.backwards)]

    def copy(self, source: NDArray[Any], out: NDArray[Any]) -> None:
        """Copy what the view shows of `source` into `out`, of the view's shape and the source's channels."""
        window = self.look(source)
        turned, mirrored = self.order != tuple(sorted(self.order)), self.backwards[-1]
        if (
            not turned
            and (mirrored or window.nbytes >= _LARGE_BYTES)
            and kernel.copy(window, out, len(self.shape))
        ):
            return
        if window.dtype != out.dtype or not (turned or mirrored):
            # Whole rows, perhaps in another order.
            out[...] = window
            return
        axes = len(self.shape)
        if window.ndim == axes:
            window, out = window[..., None], out[..., None]
        if word := _WORDS.get(window.itemsize):
            window, out = window.view(word), out.view(word)
        together = window.shape[-1] == 1 or window.strides[-1] == out.strides[-1] == window.itemsize
        if together and (word := _WORDS.get(window.itemsize * window.shape[-1])):
            # All channels of a pixel are one word.
            window, out = window.view(word), out.view(word)
        if window.shape[-1] == 1:
            words = (window[..., 0], out[..., 0]) if axes == 3 else (window[None, ..., 0], out[None, ..., 0])
            copy_voxels(*words)
        else:
            for index in np.ndindex(window.shape[:-3]):
                _copy_colors(window[index], out[index])


def _copy_colors(window: NDArray[Any], out: NDArray[Any]) -> None:
    """Copies a plane [height, width, channel] of interleaved colors, which NumPy's strides do at 0.6 GB/s."""
    reversed_axes = tuple(axis for axis in range(2) if window.strides[axis] < 0)
    forward = np.flip(window, reversed_axes)
    turned = forward.strides[0] < forward.strides[1]
    most = _MOST_TURNED_CHANNELS if turned else _MOST_CHANNELS
    if min(window.shape[:2]) < _SMALLEST_SIDE or window.shape[2] > most:
        out[...] = window
        return
    if turned:
        forward = cv2.transpose(forward.transpose(1, 0, 2))
    if not reversed_axes:
        out[...] = forward
        return
    flipped = cv2.flip(forward, {(0,): 0, (1,): 1, (0, 1): -1}[reversed_axes], dst=out)
    # OpenCV writes into `out` unless the layouts disagree.
    if not np.shares_memory(flipped, out):
        out[...] = flipped.reshape(out.shape)


class Source(Protocol):
    """An array, [height, width] or [depth, height, width] first, of which no more is made than what is looked at."""

    @property
    def shape(self) -> Shape:
        """Of all of it, channels included."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its numbers."""

    @property
    def place(self) -> str:
        """Of its record, for messages."""

    def copy(self, view: View, out: NDArray[Any]) -> None:
        """Copy what the view shows into `out`, of the view's shape and this array's channels."""


class LabelSource(Source, Protocol):
    """A label, in which foreground can be looked for."""

    def pieces(self, box: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """All of a box, piece by piece in order; each array holds until the next is asked for."""

    def remembered(self, box: Ranges, count: Callable[[Any, Ranges], NDArray[np.int64]]) -> NDArray[np.int64]:
        """What was counted in a box of this array, perhaps once for all."""


Array = Source | NDArray[Any]
Label = LabelSource | NDArray[Any]


def copy_view(view: View, source: Array, out: NDArray[Any]) -> None:
    """Copy what the view shows of an array into `out`, of the view's shape and the array's channels."""
    if isinstance(source, np.ndarray):
        view.copy(source, out)
    else:
        source.copy(view, out)


class Made(abc.ABC):
    """An array that is made when it is looked at, and of no more than that: `LabelSource` but for how a box is made.

    Args:
        shape: of the grid.
        like: what it is made of: says channels, dtype and place.
    """

    def __init__(self, shape: Shape, like: Array) -> None:
        self._grid, self._like = shape, like
        self._channels = tuple(like.shape[len(shape) :])
        self.shape: Shape = (*shape, *self._channels)
        self.dtype = like.dtype.newbyteorder("=")
        self._whole: NDArray[Any] | None = None

    @abc.abstractmethod
    def make(self, box: Ranges, out: NDArray[Any]) -> None:
        """Write a box of the grid to `out`, [..., channel] of the box's shape and this array's dtype."""

    @property
    def place(self) -> str:
        """Of its record, for messages."""
        return "a picture" if isinstance(self._like, np.ndarray) else self._like.place

    def copy(self, view: View, out: NDArray[Any]) -> None:
        """As of `Source`."""
        if self._whole is not None:
            view.copy(self._whole, out)
            return
        box = view.box
        if view.is_as_stored and out.dtype == self.dtype:
            self.make(box, out)
            return
        part = self.part(box)
        view.part(box)[0].copy(part, out)

    def part(self, box: Ranges) -> NDArray[Any]:
        """A box of the grid."""
        part = np.empty((*(high - low for low, high in box), *self._channels), self.dtype)
        self.make(box, part)
        return part

    def pieces(self, box: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """As of `LabelSource`: all at once, and what is made of the whole for that is kept."""
        if self._whole is None:
            self._whole = self.part(tuple((0, size) for size in self._grid))
        yield box, self._whole[tuple(slice(low, high) for low, high in box)]

    def remembered(self, box: Ranges, count: Callable[[Any, Ranges], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Counted each time: no other example has this array."""
        return count(self, box)
