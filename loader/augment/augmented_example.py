"""Foundation of augmentations: the static frame, the example that they change, and their random numbers.

Random numbers are a function of seed, epoch, example id and position in the list of augmentations. Augmentations whose
only random choice is a window change all rows of a batch at once (`Windows`), so that no row needs an `Example`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halofeed.loader.augment.view import ImageShape, LabelArray, Ranges, Resampled, SourceArray, View, Warp
from halofeed.schemas.kinds import Kind
from halofeed.system.errors import UsageError

Uniform = NDArray[np.float64]
"""Random numbers of one augmentation, float64 [8], each in 0 (inclusive) to 1 (exclusive)."""
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

_WORD = (1 << 64) - 1
_ROUNDS = 10
_MULTIPLIERS = np.array([0xD2E7470EE14C6C93, 0xCA5A826395121157], np.uint64)[:, None, None, None]
_KEY_STEPS = np.array([0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B], np.uint64)[:, None, None, None]
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_TIMES_LOW, _TIMES_HIGH = _MULTIPLIERS & _LOW, _MULTIPLIERS >> _HALF
_BLOCKS = np.array([1, 2], np.uint64)
"""Counters of the two blocks of four words. They begin at 1, because NumPy's generator increments its counter first."""


def draw_uniform(seed: int, epoch: int, identity: int, number: int) -> Uniform:
    """Return eight numbers for one augmentation of one example in one epoch; see `draw_uniforms`."""
    return np.asarray(
        draw_uniforms(seed, np.array([epoch]), np.array([identity]), number + 1)[0, number], np.float64
    )


def draw_uniforms(
    seed: int, epochs: NDArray[np.int64], ids: NDArray[np.int64], count: int, *, partner: int = 0
) -> NDArray[np.float64]:
    """Return eight numbers for each augmentation of each example, independent of other draws.

    Philox4x64-10 is a generator whose state is a counter: key (seed, epoch), counter (block, partner, example,
    augmentation); the words are those of `np.random.Philox`. All examples of a batch at once take a fifth of the time
    of one generator per example. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.

    Args:
        seed: 0 to 2**64 - 1.
        epochs, ids: int64 [example].
        count: number of augmentations.
        partner: 0 for the example itself; otherwise the number of an example that is combined with it.

    Returns:
        float64 [example, augmentation, 8].

    >>> generator = np.random.Philox(key=np.array([7, 3], np.uint64), counter=np.array([0, 0, 5, 1], np.uint64))
    >>> first = (int(generator.random_raw()) >> 11) * 2.0**-53
    >>> float(draw_uniforms(7, np.array([3]), np.array([5]), 2)[0, 1, 0]) == first
    True
    """
    if not count:
        return np.zeros((len(ids), 0, 8))
    shape = (len(ids), count, len(_BLOCKS))
    keys, first, second = (np.zeros((2, *shape), np.uint64) for _ in range(3))
    keys[0], keys[1] = seed & _WORD, epochs.astype(np.int64).view(np.uint64)[:, None, None]
    first[0], first[1] = _BLOCKS, ids.astype(np.int64).view(np.uint64)[:, None, None]
    second[0], second[1] = partner, np.arange(count, dtype=np.uint64)[:, None]
    raw = np.stack(_philox(keys, first, second), axis=-1).reshape(len(ids), count, 8)
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53, np.float64)


def _philox(keys: Words, first: Words, second: Words) -> tuple[Words, ...]:
    """Return four words per counter, whose first and third, and second and fourth, words are given, uint64 [2, ...]."""
    for _ in range(_ROUNDS):
        first, second = _high(first)[::-1] ^ second ^ keys, (first * _MULTIPLIERS)[::-1]
        keys = keys + _KEY_STEPS
    return first[0], second[0], first[1], second[1]


def _high(words: Words) -> Words:
    """Return the upper 64 bits of each product with the multipliers."""
    low, high = words & _LOW, words >> _HALF
    crossed = low * _TIMES_HIGH
    middle = (low * _TIMES_LOW >> _HALF) + (crossed & _LOW) + high * _TIMES_LOW
    return np.asarray(high * _TIMES_HIGH + (crossed >> _HALF) + (middle >> _HALF), np.uint64)


DEPTH, HEIGHT, WIDTH = -3, -2, -1
"""Axes, counted from the end, so that they are equal for pictures and volumes."""
_SIDES = {"frame": "frames long", "depth": "deep", "height": "high", "width": "wide"}
_SPACE = ("depth", "height", "width")
_NOISE_SHARE = 1e-9
_FLOAT32_NOISE = 2.0**-23


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Facts that hold for all examples: the static shape, the kind, and what belongs to the image.

    Args:
        shape: shape of what is shown, padding included.
        kind: kind of the images.
        has_label: whether a label is on the image's grid.
        has_boxes: whether there are objects with boxes.
        dtype: the image's dtype.
        lost: name of the augmentation after which no affine maps points to the source; "" if none.
    """

    shape: ImageShape
    kind: Kind
    has_label: bool = False
    has_boxes: bool = False
    dtype: str = "float32"
    lost: str = ""

    def __str__(self) -> str:
        """Return the shape in words.

        >>> from halofeed.schemas.kinds import KINDS
        >>> str(Frame(shape=(480, 640), kind=KINDS["picture"]))
        '480 high and 640 wide'
        """
        words = [f"{size} {_SIDES[axis]}" for size, axis in zip(self.shape, self.kind.axes, strict=True)]
        return f"{', '.join(words[:-1])} and {words[-1]}"


@dataclass(frozen=True, kw_only=True)
class Objects:
    """The objects that a view shows, and its ignored regions, which are objects without a class.

    Each augmentation moves regions like boxes. A region stays as long as the view shows some of it. Those of one
    record follow its objects.

    Args:
        boxes: float64 [n, 4], ymin, xmin, ymax, xmax, normalized to the view; [n, 6] in volumes, with zmin and zmax
            before the others.
        areas: float64 [n], in stored pixels².
        kept: int64 [n], indices of these objects in the record; partners' objects are numbered after the record's.
        masks: uint8 mask of each object, 0 and 1, on the image's grid; empty if masks are not needed.
        corners: float64 [n, 4, 2], y and x of the four corners of each object, normalized to the view and not clipped;
            None if neither the batch nor an augmentation needs them.
        regions: bool, which of the record's objects, numbered as in `kept`, are ignored regions; None if none is.
    """

    boxes: NDArray[np.float64]
    areas: NDArray[np.float64]
    kept: NDArray[np.int64]
    masks: tuple[SourceArray, ...] = ()
    corners: NDArray[np.float64] | None = None
    regions: NDArray[np.bool_] | None = None

    @property
    def is_region(self) -> NDArray[np.bool_]:
        """Return whether each of these objects is an ignored region, bool [n]."""
        return np.zeros(len(self.kept), np.bool_) if self.regions is None else self.regions[self.kept]

    def crop(self, window: ArrayLike, minimum_visible: float) -> Objects:
        """Return the objects of which enough is inside a window, clipped to it; areas shrink with the boxes.

        Corners are not clipped.

        Args:
            window: top, left, height and width, normalized to the view; [4], or [n, 4] for objects in several views; of
                volumes [6] or [n, 6], with the first slice and the depth before each two.
            minimum_visible: required share of a box's area or volume, 0 to 1.
        """
        from halofeed.prep.geometry.boxes import crop_boxes

        if not len(self.kept):
            return self
        # The tolerance keeps rounding from deciding about boxes that touch the window or are completely inside.
        minimum: Any = min(max(minimum_visible - _NOISE_SHARE, _NOISE_SHARE), 1.0)
        if self.regions is not None:
            minimum = np.where(self.is_region, _NOISE_SHARE, minimum)[:, None]
        windows = np.broadcast_to(np.asarray(window), self.boxes.shape)
        boxes, stays, areas = crop_boxes(self.boxes[:, None], self.areas[:, None], windows, minimum)
        masks = tuple(mask for mask, here in zip(self.masks, stays[:, 0].tolist(), strict=False) if here)
        corners = None
        if self.corners is not None:
            start, extent = windows[:, None, :2], windows[:, None, 2:]
            corners = ((self.corners - start) / extent)[stays[:, 0]]
        return Objects(
            boxes=boxes[stays],
            areas=areas[stays],
            kept=self.kept[stays[:, 0]],
            masks=masks,
            corners=corners,
            regions=self.regions,
        )

    def placed(self, boxes: NDArray[np.float64], move: Callable[[NDArray[Any]], NDArray[Any]]) -> Objects:
        """Return the objects with other boxes, and with corners that `move` maps, float64 [n, 4, 2] to the same."""
        return replace(self, boxes=boxes, corners=None if self.corners is None else move(self.corners))

    def and_those(self, others: Objects) -> Objects:
        """Return these objects followed by others of the same view; all regions are last."""
        joined = Objects(
            boxes=np.concatenate([self.boxes, others.boxes]),
            areas=np.concatenate([self.areas, others.areas]),
            kept=np.concatenate([self.kept, others.kept]),
            masks=(*self.masks, *others.masks),
            corners=None
            if self.corners is None or others.corners is None
            else np.concatenate([self.corners, others.corners]),
            regions=_either(self.regions, others.regions),
        )
        # Masks, which regions have none of, are in the order of the objects.
        return joined if joined.regions is None else joined._regions_last()

    def _regions_last(self) -> Objects:
        order = np.argsort(self.is_region, kind="stable")
        return replace(
            self,
            boxes=self.boxes[order],
            areas=self.areas[order],
            kept=self.kept[order],
            corners=None if self.corners is None else self.corners[order],
        )

    def numbered_from(self, first: int) -> Objects:
        """Return the objects of a record that follows others with `first` objects and regions in all."""
        regions = None if self.regions is None else np.pad(self.regions, (first, 0))
        return replace(self, kept=self.kept + first, regions=regions)


def _either(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return which objects any of two records marks as regions; they may mark different numbers of objects."""
    if one is None or other is None:
        return other if one is None else one
    count = max(len(one), len(other))
    return np.asarray(np.pad(one, (0, count - len(one))) | np.pad(other, (0, count - len(other))))


NO_OBJECTS = Objects(boxes=np.zeros((0, 4)), areas=np.zeros(0), kept=np.zeros(0, np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """One example during augmentation.

    All arrays are on one grid, and the view shows a window of it. The grid is the stored image's until an augmentation
    resamples.

    Args:
        view: what is shown.
        extent: the part that shows the source, along the grid's axes; the rest is padding.
        objects: the objects in the view.
        pixels: the image; None if it is already in the batch.
        label: class indices on the image's grid, if there are any.
        to_stored: float64 [axes + 1, axes + 1], from points of the grid to points of the stored image, with voxel edges
            at whole numbers; None if the grids are equal, or if no affine describes the map.
        spacing_mm: distance of voxel centers per axis of the grid; empty for pictures.
        fill: value outside the image, one number or one per channel; None is the minimum of the sampled part.
        ignored: the label value for unknown pixels, also outside the image; 0, the background, if there is none.
    """

    view: View
    extent: Ranges
    objects: Objects = NO_OBJECTS
    pixels: SourceArray | None = None
    label: LabelArray | None = None
    to_stored: NDArray[np.float64] | None = None
    spacing_mm: tuple[float, ...] = ()
    fill: tuple[float, ...] | None = None
    ignored: int = 0

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Example:
        """Return a complete image without padding, objects or label."""
        return cls(view=View.whole(shape), extent=tuple((0, size) for size in shape))

    def crop(self, start: Sequence[int], shape: Sequence[int], minimum_visible: float) -> Example:
        """Return a window of the view; objects with less than the share `minimum_visible` in it are dropped."""
        window = np.array([*start, *shape]) / np.array([*self.view.shape, *self.view.shape])
        objects = self.objects.crop(window.tolist(), minimum_visible)
        return replace(self, view=self.view.crop(start, shape), objects=objects)

    def stored_points(self, *, centers: bool) -> NDArray[np.float64]:
        """Return the affine, float64 [axes + 1, axes + 1], from points of the view to points of the stored image.

        Args:
            centers: voxel centers are at whole numbers, as in `image/affine`; otherwise pixel edges are, as in
                `image/transform`.
        """
        matrix = self.view.to_stored()
        if self.to_stored is not None:
            matrix = self.to_stored @ matrix
        if centers:
            matrix[:-1, -1] += matrix[:-1, :-1].sum(axis=1) / 2 - 0.5
        return matrix

    def shown_spacing_mm(self) -> tuple[float, ...]:
        """Return `spacing_mm` along the axes as seen; 1 if there is none."""
        if not self.spacing_mm:
            return (1.0,) * len(self.view.order)
        return tuple(self.spacing_mm[axis] for axis in self.view.order)

    def resampled(
        self, warp: Warp, *, extent: Ranges, objects: Objects, fill: float | None = None
    ) -> Example:
        """Return what the view shows, resampled to another grid of the same spacing and shown completely.

        Args:
            warp: the map from that grid to the view.
            extent: the part that shows the source, along that grid's axes.
            objects: the objects on that grid, with their masks before the warp.
            fill: value outside the image; None is the example's.
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
    """Convert boxes normalized to the stored image to float64 [n, 4] normalized to the picture without its padding.

    The boxes may be corners, [n, 8], or of volumes, [n, 6]. Both sizes are height and width, [2], or [n, 2] for boxes
    in several images; of volumes the depth comes first. A
    side within float32's rounding error of a whole pixel is moved onto it: windows have whole pixels, and rounding must
    not decide whether a box is inside.
    """
    points = boxes.shape[-1] // np.asarray(stored).shape[-1]
    sides, shown = (np.concatenate([size] * points, axis=-1) for size in map(np.asarray, (stored, picture)))
    pixels = boxes.astype(np.float64) * sides
    whole = np.rint(pixels)
    return np.asarray(np.where(np.abs(pixels - whole) <= sides * _FLOAT32_NOISE, whole, pixels) / shown)


class Augmentation(Protocol):
    """Interface of augmentations: frozen values; the repr names all arguments."""

    def frame(self, frame: Frame) -> Frame:
        """Return the frame after this augmentation; UsageError if it cannot be applied."""

    def apply(self, example: Example, uniform: Uniform) -> Example:
        """Return the changed example, from the random numbers of this example and epoch."""


@runtime_checkable
class Combination(Protocol):
    """Interface of augmentations that combine several examples into one; otherwise as `Augmentation`."""

    def frame(self, frame: Frame) -> Frame:
        """Return the frame after this augmentation; UsageError if it cannot be applied."""

    def partners(self, uniform: Uniform) -> int:
        """Return the number of other examples that it needs, at most 7."""

    def combine(self, examples: Sequence[Example], uniform: Uniform) -> Example:
        """Return the combination of an example and its partners, which earlier augmentations have changed as well."""


def check_share(name: str, share: float) -> None:
    if not isinstance(share, float | int | np.floating) or not 0 <= share <= 1:
        raise UsageError(f"{name}: expected 0 to 1, such as 0.5, got {share!r}")


def check_space(name: str, frame: Frame) -> None:
    """Refuse images with an axis that is not spatial."""
    if others := [axis for axis in frame.kind.axes if axis not in _SPACE]:
        raise UsageError(f"{name}: {frame.kind.name}s have an axis of {others[0]}s; take pictures or volumes")


def check_pictures(name: str, frame: Frame) -> None:
    """Refuse images that are not pictures."""
    if frame.kind.pads_around:
        raise UsageError(f"{name}: {frame.kind.name}s are not resized when loaded; it takes pictures")


def check_sides(name: str, *sides: int) -> None:
    """Refuse values that are not a height and a width."""
    if not all(hasattr(side, "__index__") and side >= 1 for side in sides):
        raise UsageError(
            f"{name}: expected a height and a width of at least 1, got {', '.join(map(repr, sides))}"
        )


def check_fill(name: str, fill: float | None, frame: Frame) -> None:
    """Refuse a fill value that the image's dtype cannot hold."""
    # NumPy would wrap -1000 in uint8 to 24.
    if fill is not None and frame.dtype in ("uint8", "uint16", "int16"):
        limits = np.iinfo(frame.dtype)
        if not (limits.min <= fill <= limits.max and fill == int(fill)):
            raise UsageError(
                f"{name}: fill: expected a whole number from {limits.min} to {limits.max} for {frame.dtype}, got {fill}"
            )


def check_range(name: str, given: Sequence[float]) -> tuple[float, float]:
    """Return a minimum and a maximum as a tuple; UsageError if they are not valid."""
    numbers = tuple(given) if isinstance(given, Sequence) else ()
    if len(numbers) != 2 or not numbers[0] <= numbers[1]:
        raise UsageError(f"{name}: expected a minimum and a maximum, such as (0.5, 2.0), got {given!r}")
    return float(numbers[0]), float(numbers[1])


_PARTNER_BASE = 8
_CHOICE = 1 << 32
"""Added to the partner's number for the choice of partners."""


@dataclass(frozen=True, kw_only=True)
class PartnerSampler:
    """Sampler of the examples that are combined with one.

    Args:
        seed, epoch, identity: random key of the partners and their augmentations; the id is the first example's.
        find: maps a sampled number, 0 (inclusive) to 1 (exclusive), to another example as it is stored.
        partner: 0 for the example itself; otherwise the number of the partner that needs partners itself.
    """

    seed: int
    epoch: int
    identity: int
    find: Callable[[float], Example]
    partner: int = 0

    def _draw(self, count: int, *, choice: int = 0) -> NDArray[np.float64]:
        """Return float64 [augmentation, 8]."""
        epochs, ids = np.array([self.epoch]), np.array([self.identity])
        return np.asarray(
            draw_uniforms(self.seed, epochs, ids, count, partner=self.partner + choice)[0], np.float64
        )

    def sample(self, augmentations: Sequence[Augmentation | Combination], count: int) -> list[Example]:
        """Return `count` other examples, each changed by the augmentations."""
        number, examples = len(augmentations), []
        positions = self._draw(number + 1, choice=_CHOICE)[number, :count].tolist()
        for place, position in enumerate(positions, 1):
            own = replace(self, partner=self.partner * _PARTNER_BASE + place)
            examples.append(augment(augmentations, self.find(position), own._draw(number), own))
        return examples


def augment(
    augmentations: Sequence[Augmentation | Combination],
    example: Example,
    uniforms: NDArray[np.float64],
    partners: PartnerSampler | None = None,
) -> Example:
    """Apply augmentations in order, each with its own random numbers.

    Args:
        augmentations: the loader's augmentations.
        example: the example as it is stored.
        uniforms: float64 [augmentation, 8].
        partners: sampler of the examples that may be combined with it.
    """
    for number, (one, uniform) in enumerate(zip(augmentations, uniforms, strict=True)):
        # `isinstance` with a protocol takes longer than most augmentations.
        if (apply := getattr(one, "apply", None)) is not None:
            example = apply(example, uniform)
            continue
        combination = cast(Combination, one)
        examples, count = [example], combination.partners(uniform)
        if count:
            if partners is None:  # called without a loader, which finds the other records
                raise UsageError(f"{one!r} combines several examples, but only one is available")
            examples += partners.sample(augmentations[:number], count)
        example = combination.combine(examples, uniform)
    return example


@dataclass(kw_only=True, eq=False)
class Windows:
    """Views without transposed axes, for all rows at once; see `View`.

    Args:
        start, shape: int64 [row, axis], along the stored axes.
        backwards: bool [row, axis].
        low, high: int64 [row, axis], the part that shows the source, along the stored axes.
        objects: objects of all rows, one row after the other, each normalized to its row's view.
        of_row: int64, the row of each object before any was dropped.
    """

    start: Integers
    shape: Integers
    backwards: NDArray[np.bool_]
    low: Integers
    high: Integers
    objects: Objects = NO_OBJECTS
    of_row: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def whole(cls, shape: Integers, low: Integers, high: Integers) -> Windows:
        """Return the windows of complete images of these shapes, int64 [row, axis]."""
        return cls(
            start=np.zeros_like(shape),
            shape=shape.copy(),
            backwards=np.zeros(shape.shape, np.bool_),
            low=low,
            high=high,
        )

    @property
    def object_rows(self) -> Integers:
        """Row of each remaining object, int64 [object]."""
        return self.of_row[self.objects.kept]

    def crop(
        self, sides: ImageShape, uniforms: NDArray[np.float64], minimum_visible: float, step: int = 1
    ) -> None:
        """Crop each row to a random window of the given size, as `RandomCrop` describes.

        Args:
            sides: size of the window per axis; a smaller image is shown completely.
            uniforms: float64 [row, axis].
            minimum_visible: as in `Objects.crop`.
            step: windows begin at multiples of it, where there is one.
        """
        shape = np.minimum(np.array(sides), self.shape)
        end = self.start + self.shape
        low = np.where(self.backwards, end - self.high, self.low - self.start).clip(0, self.shape)
        high = np.where(self.backwards, end - self.low, self.high - self.start).clip(0, self.shape)
        first, last = window_starts(low, high, shape, self.shape)
        if step > 1:
            lowest, highest = -(-first // step) * step, last // step * step
            last = np.where(lowest <= highest, highest, first)
            first = np.where(lowest <= highest, lowest, first)
        at = first + (uniforms * ((last - first) // step + 1)).astype(np.int64) * step
        shown = np.concatenate([at, shape], axis=1) / np.concatenate([self.shape, self.shape], axis=1)
        if len(self.of_row):
            self.objects = self.objects.crop(shown[self.object_rows], minimum_visible)
        self.start = self.start + np.where(self.backwards, self.shape - at - shape, at)
        self.shape = shape

    def views(self, rows: Integers) -> list[View]:
        """Return the views of rows."""
        order = tuple(range(self.start.shape[1]))
        columns = (self.start[rows].tolist(), self.shape[rows].tolist(), self.backwards[rows].tolist())
        return [
            View(start=tuple(start), shape=tuple(shape), order=order, backwards=tuple(backwards))
            for start, shape, backwards in zip(*columns, strict=True)
        ]


def window_starts(
    low: Integers, high: Integers, shape: Integers, size: Integers
) -> tuple[Integers, Integers]:
    """Return the first and last valid starts of windows of a shape in views of a size.

    Windows are inside low .. high, or around it if it is smaller; if it is empty, they are anywhere.
    """
    is_empty = low >= high
    low, high = np.where(is_empty, 0, low), np.where(is_empty, size, high)
    fits = high - low >= shape
    first = np.where(fits, low, np.maximum(0, high - shape))
    return first, np.where(fits, high - shape, np.minimum(low, size - shape))


class Planned(Protocol):
    """An augmentation whose only random choice is a window."""

    def plan(self, windows: Windows, uniforms: NDArray[np.float64]) -> None:
        """Apply the augmentation to all rows at once, with random numbers float64 [row, 8]."""


def draw_windows_alone(augmentations: Sequence[Any]) -> TypeGuard[Sequence[Planned]]:
    """Return whether all augmentations have a `plan` and none searches foreground."""
    return all(hasattr(one, "plan") and not getattr(one, "foreground", 0) for one in augmentations)
