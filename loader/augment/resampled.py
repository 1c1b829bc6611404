"""Resampling of an image, a label or a mask to another grid, computed only for the viewed part.

    source, as a view shows it           the warp's grid
    ┌──────────────────┐                 ┌────────────┐
    │   ┌────────┐     │    resample     │  ┌──────┐  │ copy   row of the
    │   │ needed │ <───┼──── once ───────┼──┤ box  │  │ ─────>   batch
    │   └────────┘     │                 │  └──────┘  │
    └──────────────────┘                 └────────────┘

A box is sampled block by block, so that a block's source stays in the cache. OpenCV samples planes and rounds
positions to 1/32 pixel. For a volume, the slices of the source box are stacked in one plane. Each point is
interpolated between the slice before it and the one after it.

Memory: the needed part of the source, and the box if the view is flipped or turned.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import (
    ImageShape,
    LazyArray,
    Ranges,
    SourceArray,
    View,
    copy_view,
    slices_within,
)
from halofeed.prep.voxels.resample import store_rounded

Positions = NDArray[np.float32]
SampleFunction = Callable[[NDArray[Any], Sequence[Positions], NDArray[Any]], None]
_BLOCK_POINTS = 1 << 16
_MOST_ROWS = 32_000
"""OpenCV numbers rows and columns with 16 bits."""
_DIRECT = ("uint8", "uint16", "int16", "float32")
"""Dtypes that OpenCV samples without conversion."""


class Warp(Protocol):
    """A map from the points of a grid to points of a source, and how the source is sampled there."""

    @property
    def shape(self) -> ImageShape:
        """Shape of the grid."""

    @property
    def matrix(self) -> NDArray[np.float64] | None:
        """Affine from points of the grid to points of the source, with edges at whole numbers; None if not affine."""

    def needed(self, box: Ranges) -> Ranges:
        """Return the part of the source, at least one voxel, that a box of the grid is computed from."""

    def image(
        self, source: NDArray[Any], start: ImageShape, box: Ranges, out: NDArray[Any]
    ) -> NDArray[np.bool_] | None:
        """Write a box of the grid.

        Args:
            source: the needed part of the source, [..., channel], contiguous.
            start: start of that part in the source.
            box: box of the grid.
            out: [..., channel], of the box's shape and the source's dtype.

        Returns:
            bool of the box's shape, True outside the source, where the caller fills; None if nothing is outside.
        """

    def label(
        self, source: NDArray[Any], start: ImageShape, box: Ranges, out: NDArray[Any]
    ) -> NDArray[np.bool_] | None:
        """Write a box of the grid as `image`, without channels, and without mixing values."""


class Resampled(LazyArray):
    """An array on a warp's grid; see `LabelSource`.

    Args:
        source: the array to resample.
        view: the view of it that the warp maps to.
        warp: the map from the new grid.
        image: whether values may be mixed, and have a channel; otherwise it is a label or a mask.
        fill: value outside the source; for labels 0, or the ignore label.
    """

    def __init__(
        self,
        source: SourceArray,
        view: View,
        warp: Warp,
        *,
        image: bool = False,
        fill: Sequence[float] | None = (0,),
    ) -> None:
        super().__init__(warp.shape, source)
        self._source, self._view, self._warp, self._image, self._fill = source, view, warp, image, fill

    def compute(self, box: Ranges, out: NDArray[Any]) -> None:
        needed = self._warp.needed(box)
        start, shape = tuple(low for low, _ in needed), tuple(high - low for low, high in needed)
        source = np.empty((*shape, *self._channels), self.dtype)
        copy_view(self._view.crop(start, shape), self._source, source)
        outside = (self._warp.image if self._image else self._warp.label)(source, start, box, out)
        if outside is not None:
            out[outside] = source.min() if self._fill is None else self._fill


class PointWarp(abc.ABC):
    """A `Warp` to a grid of the source's shape that computes each point's position in the source.

    Attributes:
        source: shape of source and grid.
    """

    source: ImageShape

    @abc.abstractmethod
    def positions(self, box: Ranges) -> list[Positions]:
        """Return positions per axis of the source, of the box's shape, in voxels from the first one's center."""

    @property
    def shape(self) -> ImageShape:
        return self.source

    def image(
        self, source: NDArray[Any], start: ImageShape, box: Ranges, out: NDArray[Any]
    ) -> NDArray[np.bool_] | None:
        """Write a box of the grid by linear interpolation; see `Warp.image`."""
        return self._sample(source, start, box, out, _sample_linear)

    def label(
        self, source: NDArray[Any], start: ImageShape, box: Ranges, out: NDArray[Any]
    ) -> NDArray[np.bool_] | None:
        """Write a box of the grid from the nearest voxels; see `Warp.label`."""
        return self._sample(source, start, box, out, _sample_nearest)

    def _sample(
        self, source: NDArray[Any], start: ImageShape, box: Ranges, out: NDArray[Any], sample: SampleFunction
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
            sample(source, inner, out[region])
        return outside


def sampling_box(low: Sequence[float], high: Sequence[float], source: ImageShape) -> Ranges:
    """Return the voxels that linear interpolation between two positions per axis needs, at least one."""
    ranges = []
    for first, last, size in zip(low, high, source, strict=True):
        start = min(max(math.floor(first) - 1, 0), size - 1)
        ranges.append((start, max(start + 1, min(math.ceil(last) + 2, size))))
    return tuple(ranges)


def _blocks(box: Ranges) -> Iterator[Ranges]:
    """Split a box into blocks whose sides are about equally long."""
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


def _sample_nearest(source: NDArray[Any], places: Sequence[Positions], out: NDArray[Any]) -> None:
    flat = np.zeros(places[0].shape, np.int64)
    for place, size in zip(places, source.shape, strict=True):
        flat *= size
        flat += np.minimum(np.floor(place + np.float32(0.5)).astype(np.int64), size - 1)
    out[...] = source.reshape(-1).take(flat)


def _sample_linear(source: NDArray[Any], places: Sequence[Positions], out: NDArray[Any]) -> None:
    """Interpolate [..., channel] at positions inside it, from the box around them."""
    box = sampling_box(
        [float(place.min()) for place in places], [float(place.max()) for place in places], source.shape[:-1]
    )
    sizes = [high - low for low, high in box]
    if math.prod(sizes[:-1]) > _MOST_ROWS or sizes[-1] > _MOST_ROWS:
        complete = tuple((0, side) for side in out.shape[:-1])
        for half in _halves(complete):
            region = tuple(slice(*side) for side in half)
            _sample_linear(source, [place[region] for place in places], out[region])
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


def _remap(plane: NDArray[Any], columns: Positions, rows: Positions) -> NDArray[Any]:
    return np.asarray(cv2.remap(plane, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))
