"""Which windows all rows of a batch show, as arrays: where nothing else is drawn, no row needs a scene of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.scene import NO_OBJECTS, Objects
from halofeed.loader.augment.view import Shape, View

Integers = NDArray[np.int64]


@dataclass(kw_only=True, eq=False)
class Windows:
    """Views that are not turned, all at once; see `View`.

    Args:
        start, shape: int64 [row, axis], along the stored axes.
        backwards: bool [row, axis].
        low, high: int64 [row, axis], along the stored axes, what shows the source.
        objects: of all rows, one row after the other, each normalized to its row's view.
        of_row: int64, of each object that there was in the beginning the row.
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
        """All of images of those shapes, int64 [row, axis]."""
        return cls(
            start=np.zeros_like(shape),
            shape=shape.copy(),
            backwards=np.zeros(shape.shape, np.bool_),
            low=low,
            high=high,
        )

    @property
    def object_rows(self) -> Integers:
        """Of each of the objects the row, int64 [object]."""
        return self.of_row[self.objects.kept]

    def crop(self, sides: Shape, uniforms: NDArray[np.float64], minimum_visible: float) -> None:
        """Windows of those sides, or of what is smaller, anywhere within the source; `RandomCrop` says where.

        Args:
            sides: per axis.
            uniforms: float64 [row, axis].
            minimum_visible: as of `Objects.crop`.
        """
        shape = np.minimum(np.array(sides), self.shape)
        end = self.start + self.shape
        low = np.where(self.backwards, end - self.high, self.low - self.start).clip(0, self.shape)
        high = np.where(self.backwards, end - self.low, self.high - self.start).clip(0, self.shape)
        first, last = window_starts(low, high, shape, self.shape)
        at = first + (uniforms * (last - first + 1)).astype(np.int64)
        shown = np.concatenate([at, shape], axis=1) / np.concatenate([self.shape, self.shape], axis=1)
        if len(self.of_row):
            self.objects = self.objects.crop(shown[self.object_rows], minimum_visible)
        self.start = self.start + np.where(self.backwards, self.shape - at - shape, at)
        self.shape = shape

    def views(self, rows: Integers) -> list[View]:
        """One for each of those rows."""
        order = tuple(range(self.start.shape[1]))
        columns = (self.start[rows].tolist(), self.shape[rows].tolist(), self.backwards[rows].tolist())
        return [
            View(start=tuple(start), shape=tuple(shape), order=order, backwards=tuple(backwards))
            for start, shape, backwards in zip(*columns, strict=True)
        ]


def window_starts(
    low: Integers, high: Integers, shape: Integers, size: Integers
) -> tuple[Integers, Integers]:
    """The first and last starts of windows of a shape in views of a size.

    They lie between low and high or, where that is smaller, around it; anywhere where there is nothing between.
    """
    is_empty = low >= high
    low, high = np.where(is_empty, 0, low), np.where(is_empty, size, high)
    fits = high - low >= shape
    first = np.where(fits, low, np.maximum(0, high - shape))
    return first, np.where(fits, high - shape, np.minimum(low, size - shape))


class Planned(Protocol):
    """An augmentation that draws nothing but a window."""

    def plan(self, windows: Windows, uniforms: NDArray[np.float64]) -> None:
        """What `apply` does to one scene, of all rows at once, from float64 [row, 8]."""


def draw_windows_alone(augmentations: Sequence[Any]) -> TypeGuard[Sequence[Planned]]:
    """Whether windows are all that augmentations draw: those have a `plan`, and look for no foreground."""
    return all(hasattr(one, "plan") and not getattr(one, "foreground", 0) for one in augmentations)
