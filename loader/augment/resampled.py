"""What lies at any points of a picture or volume, block by block: linearly between its pixels, or the nearest one.

    block of the new grid ──> its points in the source ──> the box around them ──> sampled while it is in the cache

OpenCV samples planes. Of a volume, the slices of the box lie below each other in one plane, and each point is taken
from the slice before it and the one after it. In a plane OpenCV rounds places to 1/32 pixel.

What an image, a label or a mask looks like on another grid, made of no more than what is looked at.

    source, as a view shows it           the warp's grid
    ┌──────────────────┐                 ┌────────────┐
    │   ┌────────┐     │    resample     │  ┌──────┐  │ copy   row of the
    │   │ needed │ <───┼──── once ───────┼──┤ box  │  │ ─────>   batch
    │   └────────┘     │                 │  └──────┘  │
    └──────────────────┘                 └────────────┘

Memory: what is needed of the source, and of what is turned on the way to the batch the box.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import Array, Made, Ranges, Shape, View, copy_view, slices_within
from halofeed.prep.voxels.resample import store_rounded

Float32 = NDArray[np.float32]
Take = Callable[[NDArray[Any], Sequence[Float32], NDArray[Any]], None]
_BLOCK_POINTS = 1 << 16
_MOST_ROWS = 32_000
"""OpenCV counts rows and columns in 16 bits."""
_DIRECT = ("uint8", "uint16", "int16", "float32")
"""What OpenCV samples in a plane as it is."""


class Points(abc.ABC):
    """A warp to a grid of the same shape that says of each point where it lies in the source; see `Warp`.

    Attributes:
        source: the shape of both.
    """

    source: Shape

    @abc.abstractmethod
    def positions(self, box: Ranges) -> list[Float32]:
        """Per axis of the source, of the box's shape: in voxels from the center of the first one."""

    @property
    def shape(self) -> Shape:
        """The grid's, which is the source's."""
        return self.source

    def image(
        self, source: NDArray[Any], start: Shape, box: Ranges, out: NDArray[Any]
    ) -> NDArray[np.bool_] | None:
        """As of `Warp`: linearly."""
        return self._sample(source, start, box, out, _linear)

    def label(
        self, source: NDArray[Any], start: Shape, box: Ranges, out: NDArray[Any]
    ) -> NDArray[np.bool_] | None:
        """As of `Warp`: the nearest."""
        return self._sample(source, start, box, out, _nearest)

    def _sample(
        self, source: NDArray[Any], start: Shape, box: Ranges, out: NDArray[Any], take: Take
    ) -> NDArray[np.bool_] | None:
        outside = None
        for block in _blocks(box):
            region = slices_within(block, box)
            inner, beyond = [], None
            for place, size, first in zip(self.positions(block), self.source, start, strict=True):
                low, high = float(place.min()), float(place.max())
                if low < -0.5 or high > size - 0.5:
                    beyond = np.zeros(place.shape, np.bool_) if beyond is None else beyond
                    beyond |= (place < -0.5) | (place > size - 0.5)
                if low < 0 or high > size - 1:
                    place = np.clip(place, 0, size - 1)
                inner.append(place - np.float32(first))
            if beyond is not None:
                if outside is None:
                    outside = np.zeros(tuple(high - low for low, high in box), np.bool_)
                outside[region] = beyond
            take(source, inner, out[region])
        return outside


def around(low: Sequence[float], high: Sequence[float], source: Shape) -> Ranges:
    """What linear sampling looks at between two positions per axis, at least one voxel of the source."""
    ranges = []
    for first, last, size in zip(low, high, source, strict=True):
        start = min(max(math.floor(first) - 1, 0), size - 1)
        ranges.append((start, max(start + 1, min(math.ceil(last) + 2, size))))
    return tuple(ranges)


def _blocks(box: Ranges) -> Iterator[Ranges]:
    """A box in parts, each about as long along every axis."""
    sides = [high - low for low, high in box]
    if math.prod(sides) <= _BLOCK_POINTS and max(sides) < _MOST_ROWS:
        yield box
        return
    for half in _halves(box):
        yield from _blocks(half)


def _halves(box: Ranges) -> tuple[Ranges, Ranges]:
    axis = max(range(len(box)), key=lambda axis: box[axis][1] - box[axis][0])
    low, high = box[axis]
    middle = (low + high) // 2
    return (*box[:axis], (low, middle), *box[axis + 1 :]), (*box[:axis], (middle, high), *box[axis + 1 :])


def _nearest(source: NDArray[Any], places: Sequence[Float32], out: NDArray[Any]) -> None:
    flat = np.zeros(places[0].shape, np.int64)
    for place, size in zip(places, source.shape, strict=True):
        flat *= size
        flat += np.minimum(np.floor(place + np.float32(0.5)).astype(np.int64), size - 1)
    out[...] = source.reshape(-1).take(flat)


def _linear(source: NDArray[Any], places: Sequence[Float32], out: NDArray[Any]) -> None:
    """Samples [..., channel] at places within it, cut to the box around them."""
    box = around(
        [float(place.min()) for place in places], [float(place.max()) for place in places], source.shape[:-1]
    )
    sizes = [high - low for low, high in box]
    if math.prod(sizes[:-1]) > _MOST_ROWS or sizes[-1] > _MOST_ROWS:
        whole = tuple((0, side) for side in out.shape[:-1])
        for half in _halves(whole):
            region = tuple(slice(*side) for side in half)
            _linear(source, [place[region] for place in places], out[region])
        return
    part = source[tuple(slice(*side) for side in box)]
    places = [place - np.float32(low) for place, (low, _) in zip(places, box, strict=True)]
    if len(places) == 2:
        direct = part if part.dtype.name in _DIRECT else part.astype(np.float32)
        store_rounded(_remap(direct, places[1], places[0]).reshape(out.shape), out)
        return
    depth, height, width = places
    lower = np.minimum(np.floor(depth), np.float32(max(0, sizes[0] - 2)))
    share = depth - lower
    plane = (-1, out.shape[2])
    columns, rows = width.reshape(plane), (lower * np.float32(sizes[1]) + height).reshape(plane)
    step = np.float32(sizes[1] if sizes[0] > 1 else 0)
    for channel in range(out.shape[3]):
        slices = part[..., channel].astype(np.float32).reshape(-1, sizes[2])
        before, after = (_remap(slices, columns, at).reshape(depth.shape) for at in (rows, rows + step))
        store_rounded(before + (after - before) * share, out[..., channel])


def _remap(plane: NDArray[Any], columns: Float32, rows: Float32) -> NDArray[Any]:
    return np.asarray(cv2.remap(plane, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))


class Warp(Protocol):
    """Where the points of a grid come from, and what lies there."""

    @property
    def shape(self) -> Shape:
        """Of the grid."""

    @property
    def matrix(self) -> NDArray[np.float64] | None:
        """From points of the grid to points of the source, whole numbers the edges; None where that is no affine."""

    def needed(self, box: Ranges) -> Ranges:
        """What of the source a box of the grid is made of, at least one voxel of it."""

    def image(
        self, source: NDArray[Any], start: Shape, box: Ranges, out: NDArray[Any]
    ) -> NDArray[np.bool_] | None:
        """Writes a box of the grid.

        Args:
            source: what is needed, [..., channel], contiguous.
            start: where that begins.
            box: of the grid.
            out: [..., channel], of the box's shape and the source's dtype.

        Returns:
            bool of the box's shape, what lies outside of the source and is to be filled; None where nothing does.
        """

    def label(
        self, source: NDArray[Any], start: Shape, box: Ranges, out: NDArray[Any]
    ) -> NDArray[np.bool_] | None:
        """As `image`, without channels, and of values that nothing may lie between."""


class Resampled(Made):
    """An array on a warp's grid; see `LabelSource`.

    Args:
        source: where it comes from.
        view: what is seen of that, which the warp moves.
        warp: to the new grid.
        image: whether values may be mixed, and have a channel; else it is a label or a mask.
        fill: what lies outside; of labels 0, or the ignore label.
    """

    def __init__(
        self,
        source: Array,
        view: View,
        warp: Warp,
        *,
        image: bool = False,
        fill: Sequence[float] | None = (0,),
    ) -> None:
        super().__init__(warp.shape, source)
        self._source, self._view, self._warp, self._image, self._fill = source, view, warp, image, fill

    def make(self, box: Ranges, out: NDArray[Any]) -> None:
        """As of `Made`."""
        needed = self._warp.needed(box)
        start, shape = tuple(low for low, _ in needed), tuple(high - low for low, high in needed)
        source = np.empty((*shape, *self._channels), self.dtype)
        copy_view(self._view.crop(start, shape), self._source, source)
        outside = (self._warp.image if self._image else self._warp.label)(source, start, box, out)
        if outside is not None:
            out[outside] = source.min() if self._fill is None else self._fill
