"""Windows of all rows of a batch as arrays: without other random changes, no row needs an `Example` of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.example import NO_OBJECTS, Objects
from halofeed.loader.augment.view import ImageShape, View

Integers = NDArray[np.int64]


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

    def crop(self, sides: ImageShape, uniforms: NDArray[np.float64], minimum_visible: float) -> None:
        """Crop each row to a random window of the given size, as `RandomCrop` describes.

        Args:
            sides: size of the window per axis; a smaller image is shown completely.
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
