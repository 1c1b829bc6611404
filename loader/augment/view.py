"""Views: the part of a stored image that a batch shows, its orientation, and the one copy that puts it there.

    stored                          row of the batch
    ┌──────────────┬───┐            ┌────────┬─┐
    │   ┌──────┐   │pad│   crop,    │  view  │ │
    │   │ view │   │   │ ─────────> ├────────┘ │
    ├───┴──────┴───┘   │   flip,    │   pad    │
    └──────────────────┘   turn     └──────────┘

A picture's view shows no padding, so it always begins at the top left. A volume has padding on all sides. Its view
begins as the complete volume, and `extent` says where in the view the scan is.

Augmentations see images and labels as arrays that are not read or computed yet (`ArraySource`, `LazyArray`). An array
is resampled to another grid only for the viewed part (`Resampled`):

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
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.native import kernel

ImageShape = tuple[int, ...]
"""Shape (height, width) or (depth, height, width)."""
Ranges = tuple[tuple[int, int], ...]
"""(start, stop) per axis."""
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.float64}
"""Types that represent all others of their size in bytes if bits are only moved."""
_SMALLEST_SIDE = 16
"""NumPy copies planes below this, because calling OpenCV costs more than the copy."""
_LARGE_BYTES = 1 << 17
"""NumPy copies rows below this, because calling the kernel costs more than the copy."""
_MAX_CHANNELS, _MAX_TURNED_CHANNELS = 64, 4
"""Channels that OpenCV can flip and transpose."""
Positions = NDArray[np.float32]
SampleFunction = Callable[[NDArray[Any], Sequence[Positions], NDArray[Any]], None]
_BLOCK_POINTS = 1 << 16
_MAX_ROWS = 32_000
"""OpenCV numbers rows and columns with 16 bits."""
_DIRECT = ("uint8", "uint16", "int16", "float32")
"""Dtypes that OpenCV samples without conversion."""


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
        else:
            _copy_pixels(window, out, len(self.shape))


def _copy_pixels(window: NDArray[Any], out: NDArray[Any], axes: int) -> None:
    """Copy [axis ..., channel, or none] pixel by pixel along reversed or exchanged axes, as one word if possible."""
    if window.ndim == axes:
        window, out = window[..., None], out[..., None]
    if word := _WORDS.get(window.itemsize):
        window, out = window.view(word), out.view(word)
    together = window.shape[-1] == 1 or window.strides[-1] == out.strides[-1] == window.itemsize
    if together and (word := _WORDS.get(window.itemsize * window.shape[-1])):
        # All channels of a pixel are one word.
        window, out = window.view(word), out.view(word)
    if window.shape[-1] == 1:
        from halofeed.prep.voxels.resample import copy_voxels

        words = (window[..., 0], out[..., 0]) if axes == 3 else (window[None, ..., 0], out[None, ..., 0])
        copy_voxels(*words)
    else:
        # Three channels of one byte have no word type; OpenCV flips and transposes planes of them.
        for index in np.ndindex(window.shape[:-3]):
            _copy_colors(window[index], out[index])


def _copy_colors(window: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy a plane [height, width, channel] of interleaved colors, which NumPy's strides do at 0.6 GB/s."""
    reversed_axes = tuple(axis for axis in range(2) if window.strides[axis] < 0)
    forward = np.flip(window, reversed_axes)
    turned = forward.strides[0] < forward.strides[1]
    most = _MAX_TURNED_CHANNELS if turned else _MAX_CHANNELS
    # OpenCV cannot, or its call costs more than NumPy's copy.
    if min(window.shape[:2]) < _SMALLEST_SIDE or window.shape[2] > most:
        out[...] = window
        return
    import cv2

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
        self, box: Ranges, count: Callable[[Any, Ranges], NDArray[np.int64]], name: str = ""
    ) -> NDArray[np.int64]:
        """Return what `count` returns for a box of this array; it may be cached, by the box and the count's name."""


class DecodedSource(ArraySource, Protocol):
    """A picture that is decoded into separate memory, perhaps at a fraction of its size."""

    def decoded(self, view: View, most: int) -> tuple[NDArray[Any], ImageShape, int]:
        """Return what the view shows.

        Args:
            view: the view, in pixels of the complete size.
            most: largest divisor of the sides that may be chosen: 1, 2, 4 or 8.

        Returns:
            Pixels [height, width, channel] as seen, of any strides, which are valid until this thread decodes another
            picture; the place of the first one's corner in the view, in pixels of the complete size, which is negative
            if that pixel covers more than the view; and the divisor of the sides.
        """


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
        if self._complete is not None:  # computed for a search of foreground
            view.copy(self._complete, out)
            return
        box = view.box
        if view.is_as_stored and out.dtype == self.dtype:  # computed in place, without a copy
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
        self, box: Ranges, count: Callable[[Any, Ranges], NDArray[np.int64]], name: str = ""
    ) -> NDArray[np.int64]:
        """Return what `count` returns, without a cache, because no other example has this array."""
        return count(self, box)


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


class ShrinkingWarp(Warp, Protocol):
    """A `Warp` of pictures that can use one of a fraction of its size."""

    @property
    def reduction(self) -> int:
        """Largest of 1, 2, 4 and 8 by which the sides of the source may be divided before."""

    def decoded_image(
        self, source: NDArray[Any], start: ImageShape, factor: int, box: Ranges, out: NDArray[Any]
    ) -> None:
        """Write a box of the grid as `image`, from a source whose sides were divided by a factor.

        Args:
            source: the needed part of the source, [..., channel], of any strides.
            start: start of that part, in pixels of the complete source.
            factor: the divisor of its sides.
            box, out: as in `image`.
        """


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
        view = self._view.crop(start, shape)
        if self._image and self._compute_decoded(view, start, box, out):
            return
        source = np.empty((*shape, *self._channels), self.dtype)
        copy_view(view, self._source, source)
        outside = (self._warp.image if self._image else self._warp.label)(source, start, box, out)
        if outside is not None:
            out[outside] = source.min() if self._fill is None else self._fill

    def _compute_decoded(self, view: View, start: ImageShape, box: Ranges, out: NDArray[Any]) -> bool:
        """Write a box from pixels as they were decoded, without a copy, if source and warp allow it.

        Args:
            view: shows the part of the source that the box needs.
            start: start of that part in the source.
            box, out: as in `compute`.
        """
        warp, source = self._warp, self._source
        if not (_shrinks(warp) and _decodes(source)):
            return False
        pixels, place, factor = source.decoded(view, warp.reduction)
        moved = tuple(first + at for first, at in zip(start, place, strict=True))
        warp.decoded_image(pixels, moved, factor, box, out)
        return True


# Attributes are tested, because `isinstance` with a protocol takes longer than planning a crop.


def _shrinks(warp: Warp) -> TypeGuard[ShrinkingWarp]:
    return hasattr(warp, "decoded_image")


def _decodes(source: SourceArray) -> TypeGuard[DecodedSource]:
    return hasattr(source, "decoded")


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
            places, beyond = self._clipped_positions(block)
            if beyond is not None:
                if outside is None:
                    outside = np.zeros(tuple(high - low for low, high in box), np.bool_)
                outside[region] = beyond
            inner = [place - np.float32(first) for place, first in zip(places, start, strict=True)]
            sample(source, inner, out[region])
        return outside

    def _clipped_positions(self, block: Ranges) -> tuple[list[Positions], NDArray[np.bool_] | None]:
        """Return the positions moved into the source, and which were outside; None if none was.

        A voxel reaches half its size beyond its center: only positions farther out show nothing of the source.
        """
        inner, beyond = [], None
        for place, size in zip(self.positions(block), self.source, strict=True):
            low, high = float(place.min()), float(place.max())
            if low < -0.5 or high > size - 0.5:
                beyond = np.zeros(place.shape, np.bool_) if beyond is None else beyond
                beyond |= (place < -0.5) | (place > size - 0.5)
            if low < 0 or high > size - 1:
                place = np.clip(place, 0, size - 1)
            inner.append(place)
        return inner, beyond


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
    if math.prod(sides) <= _BLOCK_POINTS and max(sides) < _MAX_ROWS:
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
    from halofeed.prep.voxels.resample import store_rounded

    box = sampling_box(
        [float(place.min()) for place in places], [float(place.max()) for place in places], source.shape[:-1]
    )
    sizes = [high - low for low, high in box]
    # The slices of a volume's box are stacked in one plane, so its rows are those of all slices.
    if math.prod(sizes[:-1]) > _MAX_ROWS or sizes[-1] > _MAX_ROWS:
        complete = tuple((0, side) for side in out.shape[:-1])
        for half in _halves(complete):
            region = tuple(slice(*side) for side in half)
            _sample_linear(source, [place[region] for place in places], out[region])
        return
    part = source[tuple(slice(*side) for side in box)]
    places = [place - np.float32(low) for place, (low, _) in zip(places, box, strict=True)]
    if len(places) == 2:  # OpenCV samples planes only
        direct = part if part.dtype.name in _DIRECT else part.astype(np.float32)
        store_rounded(_remap(direct, places[1], places[0]).reshape(out.shape), out)
    else:
        _sample_volume(part, places, out)


def _sample_volume(part: NDArray[Any], places: Sequence[Positions], out: NDArray[Any]) -> None:
    """Interpolate [depth, height, width, channel]: in two slices by OpenCV, then between them."""
    from halofeed.prep.voxels.resample import store_rounded

    depth, height, width = places
    sizes = part.shape[:3]
    lower = np.minimum(np.floor(depth), np.float32(max(0, sizes[0] - 2)))
    share = depth - lower
    plane = (-1, out.shape[2])
    columns, rows = width.reshape(plane), (lower * np.float32(sizes[1]) + height).reshape(plane)
    step = np.float32(sizes[1] if sizes[0] > 1 else 0)  # a single slice is its own neighbor
    for channel in range(out.shape[3]):
        slices = part[..., channel].astype(np.float32).reshape(-1, sizes[2])
        before, after = (_remap(slices, columns, at).reshape(depth.shape) for at in (rows, rows + step))
        store_rounded(before + (after - before) * share, out[..., channel])


def _remap(plane: NDArray[Any], columns: Positions, rows: Positions) -> NDArray[Any]:
    import cv2

    return np.asarray(cv2.remap(plane, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))
