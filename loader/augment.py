"""Which part of a picture a batch shows, and which way round: flips and crops in which boxes follow.

An augmentation is planned on sizes; the pixels are then copied once, straight from where they are stored:

    stored                          row of the batch
    ┌──────────────┬───┐            ┌────────┬─┐
    │   ┌──────┐   │pad│   crop,    │  view  │ │
    │   │ view │   │   │ ─────────> ├────────┘ │
    ├───┴──────┴───┘   │   flip     │   pad    │
    └──────────────────┘            └──────────┘

Only the picture is flipped and cropped, not its padding, so that the picture always begins at the top left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.boxes import crop_boxes, flip_left_right, flip_up_down
from halofeed.schemas.errors import UsageError

Size = tuple[int, int]
Uniform = NDArray[np.float64]
"""float64 [4], each in 0 (inclusive) to 1 (exclusive)."""

_WORD = (1 << 64) - 1
_NOISE_SHARE = 1e-9
_FLOAT32_NOISE = 2.0**-23
_FLIP_CODES = {(True, False): 0, (False, True): 1, (True, True): -1}


@dataclass(frozen=True, kw_only=True)
class View:
    """A window of the stored picture and how it is turned; all sizes in pixels."""

    top: int
    left: int
    height: int
    width: int
    upside_down: bool = False
    mirrored: bool = False

    @property
    def size(self) -> Size:
        """(height, width)."""
        return self.height, self.width

    def crop(self, top: int, left: int, height: int, width: int) -> View:
        """A window of this view, in its own pixels as seen.

        >>> View(top=0, left=0, height=4, width=10, mirrored=True).crop(0, 1, 4, 3).left
        6
        """
        return replace(
            self,
            top=self.top + (self.height - top - height if self.upside_down else top),
            left=self.left + (self.width - left - width if self.mirrored else left),
            height=height,
            width=width,
        )

    def to_stored(self) -> NDArray[np.float64]:
        """The affine float64 [6] from points of the view to points of the stored image, as `prep.resize` has it."""
        vertical = (-1, self.top + self.height) if self.upside_down else (1, self.top)
        horizontal = (-1, self.left + self.width) if self.mirrored else (1, self.left)
        return np.array([vertical[0], 0, vertical[1], 0, horizontal[0], horizontal[1]], np.float64)

    def copy(self, source: NDArray[Any], out: NDArray[Any]) -> None:
        """Copy what the view shows of `source` [height, width, ...] into `out` [view height, view width, ...]."""
        window = source[self.top : self.top + self.height, self.left : self.left + self.width]
        code = _FLIP_CODES.get((self.upside_down, self.mirrored))
        if code is None:
            out[...] = window
        elif window.dtype.itemsize <= 4 and window.dtype != np.bool_:
            # 17 GB/s, where NumPy's strides give 0.6. OpenCV writes into `out` unless the layouts disagree.
            flipped = cv2.flip(window, code, dst=out)
            if not np.shares_memory(flipped, out):
                out[...] = flipped.reshape(out.shape)
        else:
            out[...] = window[:: -1 if self.upside_down else 1, :: -1 if self.mirrored else 1]


@dataclass(frozen=True, kw_only=True)
class Objects:
    """The objects that a view shows.

    Args:
        boxes: float64 [n, 4], ymin, xmin, ymax, xmax, normalised to the view.
        areas: float64 [n], in stored pixels².
        kept: int64 [n], ascending: which of the record's objects these are.
    """

    boxes: NDArray[np.float64]
    areas: NDArray[np.float64]
    kept: NDArray[np.int64]


def to_view(boxes: NDArray[np.float32], stored: Size, picture: Size) -> NDArray[np.float64]:
    """Boxes normalised to the stored image as float64 [n, 4] normalised to the picture, without its padding.

    A side that lies within float32's rounding of a whole pixel is put onto it: windows have whole pixels for
    sides, and whether a box lies inside of one must not depend on the rounding.
    """
    pixels = boxes.astype(np.float64) * np.array(stored * 2)
    whole = np.rint(pixels)
    noise = np.array(stored * 2) * _FLOAT32_NOISE
    return np.asarray(np.where(np.abs(pixels - whole) <= noise, whole, pixels) / np.array(picture * 2))


class Augmentation(Protocol):
    """What every augmentation is: a frozen value whose repr says all of it."""

    def frame(self, frame: Size) -> Size:
        """The static (height, width) that it makes of another; UsageError where that cannot be."""

    def apply(self, view: View, objects: Objects, uniform: Uniform) -> tuple[View, Objects]:
        """The new view and its objects, from four numbers drawn for this example and epoch."""


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


def _check_probability(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise UsageError(f"probability: expected 0 to 1, got {probability}")


@dataclass(frozen=True)
class FlipLeftRight:
    """Mirrors the picture with the given probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self.probability)

    def frame(self, frame: Size) -> Size:
        """Unchanged."""
        return frame

    def apply(self, view: View, objects: Objects, uniform: Uniform) -> tuple[View, Objects]:
        """Mirrored, or unchanged."""
        if uniform[0] >= self.probability:
            return view, objects
        return replace(view, mirrored=not view.mirrored), replace(
            objects, boxes=flip_left_right(objects.boxes)
        )


@dataclass(frozen=True)
class FlipUpDown:
    """Turns the picture upside down (as in water) with the given probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self.probability)

    def frame(self, frame: Size) -> Size:
        """Unchanged."""
        return frame

    def apply(self, view: View, objects: Objects, uniform: Uniform) -> tuple[View, Objects]:
        """Flipped, or unchanged."""
        if uniform[0] >= self.probability:
            return view, objects
        flipped = replace(objects, boxes=flip_up_down(objects.boxes))
        return replace(view, upside_down=not view.upside_down), flipped


@dataclass(frozen=True)
class RandomCrop:
    """Shows a window of the given size, anywhere in the picture with the same probability.

    Along an axis where the picture is smaller than the window it is shown whole, and padded. Boxes are clipped
    to the window; those of which less than `minimum_visible` (a share of their area, 0 to 1) is left are
    dropped, and the rest move to the front. An area shrinks by the box's visible share.
    """

    height: int
    width: int
    minimum_visible: float = 0.3

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise UsageError(
                f"RandomCrop: expected sides of at least 1 pixel, got {self.height}, {self.width}"
            )
        if not 0 <= self.minimum_visible <= 1:
            raise UsageError(f"RandomCrop: minimum_visible: expected 0 to 1, got {self.minimum_visible}")

    def frame(self, frame: Size) -> Size:
        """The window's size."""
        if self.height > frame[0] or self.width > frame[1]:
            raise UsageError(
                f"RandomCrop({self.height}, {self.width}): the images are {frame[0]} high and {frame[1]} wide; "
                "crop at most that, or convert the data to a larger size"
            )
        return self.height, self.width

    def apply(self, view: View, objects: Objects, uniform: Uniform) -> tuple[View, Objects]:
        """The view of one window."""
        height, width = min(self.height, view.height), min(self.width, view.width)
        top = int(uniform[0] * (view.height - height + 1))
        left = int(uniform[1] * (view.width - width + 1))
        window = np.array([top, left, height, width]) / np.array(view.size * 2)
        # A box that only touches the window, or lies in it whole, must not hang on the last bit of a division.
        minimum = min(max(self.minimum_visible - _NOISE_SHARE, _NOISE_SHARE), 1.0)
        boxes, kept, areas = crop_boxes(objects.boxes, objects.areas, window, minimum)
        seen = Objects(boxes=boxes[kept], areas=areas[kept], kept=objects.kept[kept])
        return view.crop(top, left, height, width), seen


def draw_uniform(seed: int, epoch: int, identity: int, number: int) -> Uniform:
    """Four numbers for one augmentation of one example in one epoch, whatever was drawn before.

    Philox is a generator whose state is a counter: key (seed, epoch), counter (example, augmentation).
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.

    Args:
        seed, epoch: 0 and more.
        identity: the example's id.
        number: the augmentation's place in the list.
    """
    key = np.array([seed & _WORD, epoch & _WORD], np.uint64)
    counter = np.array([0, 0, identity & _WORD, number], np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(4)
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53, np.float64)


def augment(
    augmentations: Sequence[Augmentation], view: View, objects: Objects, seed: int, epoch: int, identity: int
) -> tuple[View, Objects]:
    """Apply augmentations in order, each with its own draw."""
    for number, augmentation in enumerate(augmentations):
        view, objects = augmentation.apply(view, objects, draw_uniform(seed, epoch, identity, number))
    return view, objects
