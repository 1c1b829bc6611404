"""What is shown of an image, drawn for each example and epoch: flips, turns, crops, which labels and boxes follow.

An augmentation is planned on shapes; the pixels, and the label with them, are then copied once, straight from where
they are stored (`halofeed.loader.view`). A new one is one class here and one line in `AUGMENTATIONS`.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.foreground import draw_foreground
from halofeed.loader.pieces import StoredArray
from halofeed.loader.view import Ranges, Shape, View
from halofeed.prep.geometry.boxes import crop_boxes, flip_left_right, flip_up_down
from halofeed.schemas.errors import UsageError
from halofeed.schemas.kinds import Kind

Uniform = NDArray[np.float64]
"""float64 [8], each in 0 (inclusive) to 1 (exclusive)."""

DEPTH, HEIGHT, WIDTH = -3, -2, -1
"""Axes, counted from the end, so that those of a picture and of a volume are the same."""
_DRAWN = {WIDTH: 1, HEIGHT: 0, DEPTH: 2}
"""Which of an augmentation's numbers places a window along each axis."""
_CHOICE, _VOXEL = 3, 4
_SIDES = {"frame": "frames long", "depth": "deep", "height": "high", "width": "wide"}
_WORD = (1 << 64) - 1
_NOISE_SHARE = 1e-9
_FLOAT32_NOISE = 2.0**-23


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What is known before any example: the static shape, the kind, and whether a label is on the image's grid."""

    shape: Shape
    kind: Kind
    has_label: bool = False

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
        kept: int64 [n], ascending: which of the record's objects these are.
    """

    boxes: NDArray[np.float64]
    areas: NDArray[np.float64]
    kept: NDArray[np.int64]


NO_OBJECTS = Objects(boxes=np.zeros((0, 4)), areas=np.zeros(0), kept=np.zeros(0, np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """One example as far as augmentations have come.

    Args:
        view: what is shown.
        extent: along the stored axes, what shows the source; the rest is padding.
        objects: in the view.
        label: class indices on the image's grid as stored, where there are any.
    """

    view: View
    extent: Ranges
    objects: Objects = NO_OBJECTS
    label: StoredArray | NDArray[Any] | None = None

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Scene:
        """All of an image without padding, objects or label."""
        return cls(view=View.whole(shape), extent=tuple((0, size) for size in shape))


def to_view(boxes: NDArray[np.float32], stored: Shape, picture: Shape) -> NDArray[np.float64]:
    """Boxes normalized to the stored image as float64 [n, 4] normalized to the picture, without its padding.

    A side that lies within float32's rounding of a whole pixel is put onto it: windows have whole pixels for
    sides, and whether a box lies inside of one must not depend on the rounding.
    """
    pixels = boxes.astype(np.float64) * np.array(stored * 2)
    whole = np.rint(pixels)
    noise = np.array(stored * 2) * _FLOAT32_NOISE
    return np.asarray(np.where(np.abs(pixels - whole) <= noise, whole, pixels) / np.array(picture * 2))


class Augmentation(Protocol):
    """What every augmentation is: a frozen value whose repr says all of it."""

    def frame(self, frame: Frame) -> Frame:
        """The frame that it makes of another; UsageError where that cannot be."""

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """The new scene, from the numbers drawn for this example and epoch."""


def check_augmentations(given: object) -> tuple[Augmentation, ...]:
    """The augmentations as a tuple; UsageError where one is none.

    >>> check_augmentations([FlipLeftRight()])
    (FlipLeftRight(probability=0.5),)
    """
    example = "FlipLeftRight()"
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise UsageError(f"augment: expected a list such as [{example}], got {given!r}")
    found = []
    for one in given:
        if isinstance(one, type):
            raise UsageError(f"augment: expected augmentations, got {one!r} itself; write {one.__name__}()")
        if not all(callable(getattr(one, name, None)) for name in ("frame", "apply")):
            raise UsageError(
                f"augment: expected augmentations such as {example}, got {one!r}; they are in halofeed.loader"
            )
        found.append(one)
    return tuple(found)


def _check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise UsageError(f"{name}: expected 0 to 1, got {share}")


@dataclass(frozen=True)
class FlipLeftRight:
    """Mirrors the image along its width with the given probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        _check_share("probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Unchanged."""
        return frame

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """Mirrored, or unchanged."""
        if uniform[0] >= self.probability:
            return scene
        objects = replace(scene.objects, boxes=flip_left_right(scene.objects.boxes))
        return replace(scene, view=scene.view.flip(WIDTH), objects=objects)


@dataclass(frozen=True)
class FlipUpDown:
    """Mirrors the image along its height (a picture as in water) with the given probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        _check_share("probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Unchanged."""
        return frame

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """Flipped, or unchanged."""
        if uniform[0] >= self.probability:
            return scene
        objects = replace(scene.objects, boxes=flip_up_down(scene.objects.boxes))
        return replace(scene, view=scene.view.flip(HEIGHT), objects=objects)


@dataclass(frozen=True)
class FlipDepth:
    """Mirrors a volume along its depth with the given probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        _check_share("probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Unchanged; only volumes have a depth."""
        if "depth" not in frame.kind.axes:
            raise UsageError(f"FlipDepth: {frame.kind.name}s have no depth; use FlipUpDown or FlipLeftRight")
        return frame

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """Flipped, or unchanged."""
        if uniform[0] >= self.probability:
            return scene
        return replace(scene, view=scene.view.flip(DEPTH))


@dataclass(frozen=True)
class Rotate90:
    """Turns the image by 90, 180 or 270° in the plane of height and width with the given probability.

    The three are equally frequent, so that by default all four orientations are.
    """

    probability: float = 0.75

    def __post_init__(self) -> None:
        _check_share("probability", self.probability)

    def frame(self, frame: Frame) -> Frame:
        """Unchanged; it must be as high as wide."""
        height, width = frame.shape[-2:]
        if height != width:
            raise UsageError(
                f"Rotate90: the images are {frame}, and a quarter turn needs them as high as wide; "
                f"crop them first, such as RandomCrop({', '.join(map(str, _square(frame.shape)))})"
            )
        return frame

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """Turned, or unchanged."""
        if uniform[0] >= self.probability:
            return scene
        for _ in range(1 + int(uniform[1] * 3)):
            # Counter-clockwise: y and x change places, then up and down.
            boxes = flip_up_down(scene.objects.boxes[:, [1, 0, 3, 2]])
            scene = replace(scene, view=scene.view.turn(), objects=replace(scene.objects, boxes=boxes))
        return scene


@dataclass(frozen=True, init=False)
class RandomCrop:
    """Shows a window of the given size, anywhere with the same probability, or about the foreground.

    RandomCrop(512, 512) is a height and a width, RandomCrop(32, 512, 512) a depth, a height and a width.

    Windows lie within what shows the source, not in the padding. Along an axis where that is smaller than the window
    all of it is shown, and padding: a picture's follows at the bottom and right, a volume keeps its own.

    With the probability `foreground` (segmentation) a voxel of label > 0, each equally likely, is drawn first, and then
    a window that holds it, each equally likely; where the label is empty, any window.

    Boxes are clipped to the window; those of which less than `minimum_visible` (a share of their area, 0 to 1) is
    left are dropped, and the rest move to the front. An area shrinks by the box's visible share.
    """

    sides: Shape
    minimum_visible: float
    foreground: float

    def __init__(self, *sides: int, minimum_visible: float = 0.3, foreground: float = 0.0) -> None:
        whole = all(hasattr(side, "__index__") and side >= 1 for side in sides)
        if len(sides) not in (2, 3) or not whole:
            raise UsageError(
                "RandomCrop: expected a height and a width, or a depth, a height and a width, each at least 1, such as "
                f"RandomCrop(512, 512), got {', '.join(map(repr, sides))}"
            )
        _check_share("RandomCrop: minimum_visible", minimum_visible)
        _check_share("RandomCrop: foreground", foreground)
        object.__setattr__(self, "sides", tuple(map(operator.index, sides)))
        object.__setattr__(self, "minimum_visible", minimum_visible)
        object.__setattr__(self, "foreground", foreground)

    def __repr__(self) -> str:
        sides = ", ".join(map(str, self.sides))
        return f"RandomCrop({sides}, minimum_visible={self.minimum_visible}, foreground={self.foreground})"

    def frame(self, frame: Frame) -> Frame:
        """The window's shape."""
        name = f"RandomCrop({', '.join(map(str, self.sides))})"
        if len(self.sides) != len(frame.shape):
            likely = ", ".join(map(str, (*frame.shape[: -len(self.sides)], *self.sides)[-len(frame.shape) :]))
            raise UsageError(
                f"{name}: the images are {frame}; name a side for each, such as RandomCrop({likely})"
            )
        if any(side > size for side, size in zip(self.sides, frame.shape, strict=True)):
            raise UsageError(
                f"{name}: the images are {frame}; crop at most that, or convert the data to a larger size"
            )
        if self.foreground and not frame.has_label:
            raise UsageError(
                f"{name}: foreground={self.foreground} needs a label on the image's grid, which only segmentation has; "
                "leave it out"
            )
        return replace(frame, shape=self.sides)

    def apply(self, scene: Scene, uniform: Uniform) -> Scene:
        """The scene of one window."""
        view = scene.view
        shape = tuple(min(side, size) for side, size in zip(self.sides, view.shape, strict=True))
        inside = view.seen(scene.extent)
        starts = [_starts(*sizes) for sizes in zip(inside, shape, view.shape, strict=True)]
        if uniform[_CHOICE] < self.foreground and scene.label is not None:
            shown = zip(scene.extent, view.box, strict=True)
            both = tuple((max(low, first), min(high, last)) for (low, high), (first, last) in shown)
            voxel = draw_foreground(scene.label, both, float(uniform[_VOXEL]))
            if voxel is not None:
                at = [low for low, _ in view.seen(tuple((place, place + 1) for place in voxel))]
                starts = [
                    (max(low, place - side + 1), min(high, place))
                    for (low, high), place, side in zip(starts, at, shape, strict=True)
                ]
        start = [
            low + int(uniform[_DRAWN[axis - len(shape)]] * (high - low + 1))
            for axis, (low, high) in enumerate(starts)
        ]
        return replace(scene, view=view.crop(start, shape), objects=self._crop_objects(scene, start, shape))

    def _crop_objects(self, scene: Scene, start: Sequence[int], shape: Shape) -> Objects:
        objects = scene.objects
        if not len(objects.kept):
            return objects
        window = np.array([*start, *shape]) / np.array(scene.view.shape * 2)
        # A box that only touches the window, or lies in it whole, must not hang on the last bit of a division.
        minimum = min(max(self.minimum_visible - _NOISE_SHARE, _NOISE_SHARE), 1.0)
        boxes, kept, areas = crop_boxes(objects.boxes, objects.areas, window, minimum)
        return Objects(boxes=boxes[kept], areas=areas[kept], kept=objects.kept[kept])


def _starts(inside: tuple[int, int], window: int, size: int) -> tuple[int, int]:
    """The first and last start of a window of a view of `size`, in `inside` or, if it is larger, around that."""
    low, high = inside if inside[0] < inside[1] else (0, size)
    if high - low >= window:
        return low, high - window
    return max(0, high - window), min(low, size - window)


def _square(shape: Shape) -> Shape:
    side = min(shape[-2:])
    return (*shape[:-2], side, side)


def draw_uniform(seed: int, epoch: int, identity: int, number: int) -> Uniform:
    """Eight numbers for one augmentation of one example in one epoch, whatever was drawn before.

    Philox is a generator whose state is a counter: key (seed, epoch), counter (example, augmentation).
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.

    Args:
        seed, epoch: 0 and more.
        identity: the example's id.
        number: the augmentation's place in the list.
    """
    key = np.array([seed & _WORD, epoch & _WORD], np.uint64)
    counter = np.array([0, 0, identity & _WORD, number], np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(8)
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53, np.float64)


def augment(
    augmentations: Sequence[Augmentation], scene: Scene, seed: int, epoch: int, identity: int
) -> Scene:
    """Apply augmentations in order, each with its own draw."""
    for number, augmentation in enumerate(augmentations):
        scene = augmentation.apply(scene, draw_uniform(seed, epoch, identity, number))
    return scene


AUGMENTATIONS: dict[str, Callable[..., Augmentation]] = {
    kind.__name__: kind
    for kind in (
        FlipLeftRight,
        FlipUpDown,
        FlipDepth,
        Rotate90,
        RandomCrop,
    )
}
"""By the names that configurations have."""


def build_augmentations(tables: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The loader's augmentations of a config's tables.

    >>> build_augmentations([{"name": "FlipLeftRight", "probability": 0.5}])
    [FlipLeftRight(probability=0.5)]
    """
    built = []
    for table in tables:
        name = table.get("name")
        if name not in AUGMENTATIONS:
            raise UsageError(f"augment {name!r}: not known; known: {', '.join(AUGMENTATIONS)}")
        # RandomCrop takes its sides one by one.
        arguments = {key: value for key, value in table.items() if key not in ("name", "sides")}
        try:
            built.append(AUGMENTATIONS[name](*table.get("sides", ()), **arguments))
        except TypeError as error:
            takes = ", ".join(inspect.signature(AUGMENTATIONS[name]).parameters)
            raise UsageError(f"augment {name}: {error}; it takes {takes}") from error
    return built
