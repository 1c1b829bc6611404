"""What lies at any points of a picture or volume, block by block: linearly between its pixels, or the nearest one.

    block of the new grid ──> its points in the source ──> the box around them ──> sampled while it is in the cache

OpenCV samples planes. Of a volume, the slices of the box lie below each other in one plane, and each point is taken
from the slice before it and the one after it. In a plane OpenCV rounds places to 1/32 pixel.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import Ranges, Shape, slices_within
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
