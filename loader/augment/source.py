"""What an augmentation may know of an image's or a label's array before anything of it is read."""

from __future__ import annotations

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
