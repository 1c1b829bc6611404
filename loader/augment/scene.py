"""What augmentations are made of: the frame known before any example, the scene that they move, how each is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.source import Source
from halofeed.loader.augment.view import Ranges, Shape, View
from halofeed.schemas.errors import UsageError
from halofeed.schemas.kinds import Kind

Uniform = NDArray[np.float64]
"""float64 [8], each in 0 (inclusive) to 1 (exclusive)."""

DEPTH, HEIGHT, WIDTH = -3, -2, -1
"""Axes, counted from the end, so that those of a picture and of a volume are the same."""
_SIDES = {"frame": "frames long", "depth": "deep", "height": "high", "width": "wide"}
_WORD = (1 << 64) - 1
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
    label: Source | NDArray[Any] | None = None

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


def check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise UsageError(f"{name}: expected 0 to 1, got {share}")


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
