"""What an augmentation may know of an image's or a label's array before anything of it is read, or made."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import Ranges, Shape, View


class Source(Protocol):
    """An array, [height, width] or [depth, height, width] first, of which no more is made than what is looked at."""

    @property
    def shape(self) -> Shape:
        """Of all of it, channels included."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its numbers."""

    @property
    def place(self) -> str:
        """Of its record, for messages."""

    def copy(self, view: View, out: NDArray[Any]) -> None:
        """Copy what the view shows into `out`, of the view's shape and this array's channels."""


class LabelSource(Source, Protocol):
    """A label, in which foreground can be looked for."""

    def pieces(self, box: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """All of a box, piece by piece in order; each array holds until the next is asked for."""

    def remembered(self, box: Ranges, count: Callable[[Any, Ranges], NDArray[np.int64]]) -> NDArray[np.int64]:
        """What was counted in a box of this array, perhaps once for all."""


Array = Source | NDArray[Any]
Label = LabelSource | NDArray[Any]


def copy_view(view: View, source: Array, out: NDArray[Any]) -> None:
    """Copy what the view shows of an array into `out`, of the view's shape and the array's channels."""
    if isinstance(source, np.ndarray):
        view.copy(source, out)
    else:
        source.copy(view, out)


class Made(abc.ABC):
    """An array that is made when it is looked at, and of no more than that: `LabelSource` but for how a box is made.

    Args:
        shape: of the grid.
        like: what it is made of: says channels, dtype and place.
    """

    def __init__(self, shape: Shape, like: Array) -> None:
        self._grid, self._like = shape, like
        self._channels = tuple(like.shape[len(shape) :])
        self.shape: Shape = (*shape, *self._channels)
        self.dtype = like.dtype.newbyteorder("=")
        self._whole: NDArray[Any] | None = None

    @abc.abstractmethod
    def make(self, box: Ranges, out: NDArray[Any]) -> None:
        """Write a box of the grid to `out`, [..., channel] of the box's shape and this array's dtype."""

    @property
    def place(self) -> str:
        """Of its record, for messages."""
        return "a picture" if isinstance(self._like, np.ndarray) else self._like.place

    def copy(self, view: View, out: NDArray[Any]) -> None:
        """As of `Source`."""
        if self._whole is not None:
            view.copy(self._whole, out)
            return
        box = view.box
        if view.is_as_stored and out.dtype == self.dtype:
            self.make(box, out)
            return
        part = self.part(box)
        view.part(box)[0].copy(part, out)

    def part(self, box: Ranges) -> NDArray[Any]:
        """A box of the grid."""
        part = np.empty((*(high - low for low, high in box), *self._channels), self.dtype)
        self.make(box, part)
        return part

    def pieces(self, box: Ranges) -> Iterator[tuple[Ranges, NDArray[Any]]]:
        """As of `LabelSource`: all at once, and what is made of the whole for that is kept."""
        if self._whole is None:
            self._whole = self.part(tuple((0, size) for size in self._grid))
        yield box, self._whole[tuple(slice(low, high) for low, high in box)]

    def remembered(self, box: Ranges, count: Callable[[Any, Ranges], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Counted each time: no other example has this array."""
        return count(self, box)
