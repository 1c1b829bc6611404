"""What an image, a label or a mask looks like on another grid, made of no more than what is looked at.

    source, as a view shows it           the warp's grid
    ┌──────────────────┐                 ┌────────────┐
    │   ┌────────┐     │    resample     │  ┌──────┐  │ copy   row of the
    │   │ needed │ <───┼──── once ───────┼──┤ box  │  │ ─────>   batch
    │   └────────┘     │                 │  └──────┘  │
    └──────────────────┘                 └────────────┘

Memory: what is needed of the source, and of what is turned on the way to the batch the box.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.source import Array, Made, copy_view
from halofeed.loader.augment.view import Ranges, Shape, View


class Warp(Protocol):
    """Where the points of a grid come from, and what lies there."""

    @property
    def shape(self) -> Shape:
        """Of the grid."""

    @property
    def matrix(self) -> NDArray[np.float64] | None:
        """From points of the grid to points of the source, whole numbers the edges; None where that is no affine."""

    def needed(self, box: Ranges) -> Ranges:
        """What of the source a box of the grid is made of, at least one voxel of it."""

    def image(
        self, source: NDArray[Any], start: Shape, box: Ranges, out: NDArray[Any]
    ) -> NDArray[np.bool_] | None:
        """Writes a box of the grid.

        Args:
            source: what is needed, [..., channel], contiguous.
            start: where that begins.
            box: of the grid.
            out: [..., channel], of the box's shape and the source's dtype.

        Returns:
            bool of the box's shape, what lies outside of the source and is to be filled; None where nothing does.
        """

    def label(
        self, source: NDArray[Any], start: Shape, box: Ranges, out: NDArray[Any]
    ) -> NDArray[np.bool_] | None:
        """As `image`, without channels, and of values that nothing may lie between."""


class Resampled(Made):
    """An array on a warp's grid; see `LabelSource`.

    Args:
        source: where it comes from.
        view: what is seen of that, which the warp moves.
        warp: to the new grid.
        image: whether values may be mixed, and have a channel; else it is a label or a mask.
        fill: what lies outside; of labels 0, or the ignore label.
    """

    def __init__(
        self,
        source: Array,
        view: View,
        warp: Warp,
        *,
        image: bool = False,
        fill: Sequence[float] | None = (0,),
    ) -> None:
        super().__init__(warp.shape, source)
        self._source, self._view, self._warp, self._image, self._fill = source, view, warp, image, fill

    def make(self, box: Ranges, out: NDArray[Any]) -> None:
        """As of `Made`."""
        needed = self._warp.needed(box)
        start, shape = tuple(low for low, _ in needed), tuple(high - low for low, high in needed)
        source = np.empty((*shape, *self._channels), self.dtype)
        copy_view(self._view.crop(start, shape), self._source, source)
        outside = (self._warp.image if self._image else self._warp.label)(source, start, box, out)
        if outside is not None:
            out[outside] = source.min() if self._fill is None else self._fill
