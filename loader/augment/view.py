"""Views: the part of a stored image that a batch shows, its orientation, and the one copy that puts it there.

    stored                          row of the batch
    ┌──────────────┬───┐            ┌────────┬─┐
    │   ┌──────┐   │pad│   crop,    │  view  │ │
    │   │ view │   │   │ ─────────> ├────────┘ │
    ├───┴──────┴───┘   │   flip,    │   pad    │
    └──────────────────┘   turn     └──────────┘

A picture's view shows no padding, so it always begins at the top left. A volume has padding on all sides. Its view
begins as the complete volume, and `extent` says where in the view the scan is.

Augmentations see images and labels as arrays that are not read or computed yet (`ArraySource`, `LazyArray`).
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
from halofeed.prep.voxels.resample import copy_voxels

ImageShape = tuple[int, ...]
"""Shape (height, width) or (depth, height, width)."""
Ranges = tuple[tuple[int, int], ...]
"""(start, stop) per axis."""
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.float64}
"""Types that stand for all others of their size in bytes if bits are only moved."""
_SMALLEST_SIDE = 16
"""NumPy copies planes below this, because calling OpenCV costs more than the copy."""
_LARGE_BYTES = 1 << 17
"""NumPy copies rows below this, because calling the kernel costs more than the copy."""
_MOST_CHANNELS, _MOST_TURNED_CHANNELS = 64, 4
"""Channels that OpenCV can flip and transpose."""


def common(first: Ranges, second: Ranges) -> Ranges:
    """Return the intersection of two boxes; if it is empty, a stop is not above its start."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))


def slices_within(box: Ranges, within: Ranges) -> tuple[slice, ...]:
    """Return the slices of a box in an array that holds the box `within`."""
    return tuple(slice(low - at, high - at) for (low, high), (at, _) in zip(box, within, strict=True))


@dataclass(frozen=True, kw_only=True)
class View:
    """A window of the stored image and its orientation, in whole pixels or voxels.

    Args:
        start: per axis as seen, the window's start along the stored axis that is seen there.
        shape: the window's size per axis as seen.
        order: the stored axis of each axis as seen.
        backwards: per axis as seen, whether the first pixel shown is the last one stored.
    """

    start: ImageShape
    shape: ImageShape
    order: ImageShape
    backwards: tuple[bool, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> View:
        """Return the view of a complete image, as it is stored."""
        axes = len(shape)
        return cls(start=(0,) * axes, shape=tuple(shape), order=tuple(range(axes)), backwards=(False,) * axes)

    @property
    def box(self) -> Ranges:
        """The window, along the stored axes."""
        sides = zip(self.order, self.start, self.shape, strict=True)
        return tuple((start, start + size) for _, start, size in sorted(sides))

    @property
    def is_as_stored(self) -> bool:
        """Return whether no axis is transposed or reversed."""
        return not any(self.backwards) and self.order == tuple(range(len(self.order)))

    def crop(self, start: Sequence[int], shape: Sequence[int]) -> View:
        """Return a window of this view, in its own pixels as seen.

        >>> View.whole((4, 10)).flip(-1).crop((0, 1), (4, 3)).start
        (0, 6)
        """
        axes = zip(self.start, self.shape, self.backwards, start, shape, strict=True)
        moved = tuple(first + (whole - at - size if back else at) for first, whole, back, at, size in axes)
        return replace(self, start=moved, shape=tuple(shape))

    def flip(self, axis: int) -> View:
        """Return the view mirrored along an axis as seen."""
        backwards = list(self.backwards)
        backwards[axis] = not backwards[axis]
        return replace(self, backwards=tuple(backwards))

    def turn(self) -> View:
        """Return the view rotated by 90° in the plane of height and width, counter-clockwise, as np.rot90 does."""

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
        """Return a box along the stored axes as it is seen, clipped to the view."""
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
        """Return the view of an array that holds only a part of the stored image.

        Args:
            box: the part that the array holds, along the stored axes.

        Returns:
            The view of that array, and the region of this view that it fills.
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
        """Return the affine, float64 [axes + 1, axes + 1], from points of the view to points of the stored image.

        Pixel edges are at whole numbers.
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

    def shown(self, source: NDArray[Any]) -> NDArray[Any]:
        """Return what the view shows of `source` [stored axes ..., channel, or none], without a copy."""
        axes = len(self.shape)
        window = source[tuple(slice(low, high) for low, high in self.box)]
        turned = window.transpose(*self.order, *range(axes, source.ndim))
        return turned[tuple(slice(None, None, -1 if back else 1) for back in self.backwards)]

    def copy(self, source: NDArray[Any], out: NDArray[Any]) -> None:
        """Copy what the view shows of `source` into `out`, of the view's shape and the source's channels."""
        window = self.shown(source)
        turned, mirrored = self.order != tuple(sorted(self.order)), self.backwards[-1]
        if (
            not turned
            and (mirrored or window.nbytes >= _LARGE_BYTES)
            and kernel.copy(window, out, len(self.shape))
        ):
            return
        if window.dtype != out.dtype or not (turned or mirrored):
            # NumPy copies complete rows fast, in any order.
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
    """Copy a plane [height, width, channel] of interleaved colors, which NumPy's strides do at 0.6 GB/s."""
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


class ArraySource(Protocol):
    """An array, [height, width] or [depth, height, width] first, of which only the viewed part is read or computed."""

    @property
    def shape(self) -> ImageShape:
        """Shape of the complete array, channels included."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored dtype."""

    @property
    def place(self) -> str:
        """The record's place, for messages."""

    def copy(self, view: View, out: NDArray[Any]) -> None:
        """Copy what the view shows into `out`, of the view's shape and this array's channels."""


class LabelSource(ArraySource, Protocol):
    """A label in which foreground can be searched."""

    def chunks(self, box: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """Yield a box in chunks in order; each array is valid until the next one is requested."""

    def cached_count(
        self, box: Ranges, count: Callable[[Any, Ranges], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """Return what `count` returns for a box of this array; it may be cached."""


SourceArray = ArraySource | NDArray[Any]
LabelArray = LabelSource | NDArray[Any]


def copy_view(view: View, source: SourceArray, out: NDArray[Any]) -> None:
    """Copy what the view shows of an array into `out`, of the view's shape and the array's channels."""
    if isinstance(source, np.ndarray):
        view.copy(source, out)
    else:
        source.copy(view, out)


class LazyArray(abc.ABC):
    """A `LabelSource` whose boxes are computed when they are viewed; subclasses define `compute`.

    Args:
        shape: shape of the grid.
        like: an input array, which has the same channels, dtype and place.
    """

    def __init__(self, shape: ImageShape, like: SourceArray) -> None:
        self._grid, self._like = shape, like
        self._channels = tuple(like.shape[len(shape) :])
        self.shape: ImageShape = (*shape, *self._channels)
        self.dtype = like.dtype.newbyteorder("=")
        self._complete: NDArray[Any] | None = None

    @abc.abstractmethod
    def compute(self, box: Ranges, out: NDArray[Any]) -> None:
        """Write a box of the grid to `out`, [..., channel] of the box's shape and this array's dtype."""

    @property
    def place(self) -> str:
        """The record's place, for messages."""
        return "a picture" if isinstance(self._like, np.ndarray) else self._like.place

    def copy(self, view: View, out: NDArray[Any]) -> None:
        if self._complete is not None:
            view.copy(self._complete, out)
            return
        box = view.box
        if view.is_as_stored and out.dtype == self.dtype:
            self.compute(box, out)
            return
        part = self.part(box)
        view.part(box)[0].copy(part, out)

    def part(self, box: Ranges) -> NDArray[Any]:
        """Return a box of the grid."""
        part = np.empty((*(high - low for low, high in box), *self._channels), self.dtype)
        self.compute(box, part)
        return part

    def chunks(self, box: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """Yield the box as one chunk; the complete array is computed for it and kept."""
        if self._complete is None:
            self._complete = self.part(tuple((0, size) for size in self._grid))
        yield box, self._complete[tuple(slice(low, high) for low, high in box)]

    def cached_count(
        self, box: Ranges, count: Callable[[Any, Ranges], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """Return what `count` returns, without a cache, because no other example has this array."""
        return count(self, box)
