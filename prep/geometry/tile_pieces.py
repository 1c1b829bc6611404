"""Pieces of objects in the tiles of a picture: which objects a tile shows, and what part of each.

All coordinates are pixels of the whole: the displayed picture after scaling, whose tiles overlap or adjoin.

    ┌───────────────┐
    │ tile 0 ┌──────┼────────┐
    │     ┌──┼───┐  │ tile 1 │     Both tiles get a piece of the box.
    │     │  │   │  │        │     Its `visible` is the share of the box inside the tile.
    │     └──┼───┘  │        │
    └────────┼──────┘        │
             └───────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from halofeed.prep.geometry.boxes import NOISE_PIXELS, ROUNDED_SHARE
from halofeed.prep.geometry.resize import ResizePlan, Size
from halofeed.system.errors import UsageError

VISIBLE_ROUNDING: Final = 1e-6
"""Difference below which a visible share counts as equal to its limit: scaled sides are not exact."""

_Boxes = npt.NDArray[np.float64]
_Shares = npt.NDArray[np.float64]
_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TileWindow:
    """Part of the whole that a tile shows, without its padding.

    Args:
        origin: (top, left).
        size: (height, width).
        whole: (height, width) of the whole.
    """

    origin: Size
    size: Size
    whole: Size

    def __post_init__(self) -> None:
        ends = [start + side for start, side in zip(self.origin, self.size, strict=True)]
        if min(self.origin) < 0 or min(self.size) < 1 or any(map(int.__gt__, ends, self.whole)):
            raise UsageError(f"window {self.origin} of {self.size}: expected a part of {self.whole}")

    @classmethod
    def of(cls, plan: ResizePlan) -> TileWindow:
        """Return the window of a tile's plan."""
        return cls(origin=plan.origin, size=plan.resized_size, whole=plan.scaled_size)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """Parts of objects that one tile shows.

    Args:
        rows: int64 [m], ascending rows of the objects among all.
        boxes: float64 [m, 4], the parts, in pixels of the tile.
        visible: float64 [m], share of each object's box that the tile shows, above 0 to 1.
    """

    rows: _Rows
    boxes: _Boxes
    visible: _Shares


class ObjectGrid:
    """Objects of a picture, of which tiles take pieces.

    Tiles are asked for row by row. The objects that a row of tiles shows are found once, so all tiles together take
    objects · (rows + columns) steps.

    >>> grid = ObjectGrid([[10, 10, 20, 20]], (40, 40))
    >>> pieces = grid.pieces(TileWindow(origin=(0, 0), size=(40, 12), whole=(40, 40)))
    >>> pieces.boxes.tolist(), pieces.visible.tolist()
    ([[10.0, 10.0, 20.0, 12.0]], [0.2])
    """

    def __init__(self, boxes: npt.ArrayLike, whole: Size) -> None:
        """Take the boxes, [n, 4] in pixels of the whole and within it."""
        self.boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
        self.whole = whole
        self._row: tuple[int, int] | None = None
        self._in_row: tuple[_Rows, _Shares] = (np.zeros(0, np.int64), np.zeros(0))

    def pieces(self, window: TileWindow) -> Pieces:
        """Return the pieces of the objects that a tile shows.

        A piece has an area, unless its object has none. An object without height or width is in each tile that holds
        its pixel: on the border of two tiles it is in the later one, and at the end of the whole in the last one.
        """
        (top, left), (height, width) = window.origin, window.size
        if self._row != (top, height):
            self._row, self._in_row = (top, height), self._shown(0, top, height)
        rows, shares = self._in_row
        columns, across = self._shown(1, left, width, rows)
        visible = shares[columns] * across
        rows = rows[columns]
        ends = np.array([height, width, height, width], np.float64)
        boxes = np.clip(self.boxes[rows] - np.array([top, left, top, left]), 0, ends)
        return Pieces(rows=rows, boxes=boxes, visible=visible)

    def _shown(self, axis: int, start: int, side: int, among: _Rows | None = None) -> tuple[_Rows, _Shares]:
        """Return the positions among some objects that a range of an axis shows, and the share of each extent."""
        boxes = self.boxes if among is None else self.boxes[among]
        low, high = boxes[:, axis], boxes[:, 2 + axis]
        share = shown_share(low, high, start, side, self.whole[axis])
        found = np.flatnonzero(share > 0)
        return found, share[found]

    def most_visible(self, starts: tuple[Sequence[int], Sequence[int]], size: Size) -> _Shares:
        """Return the largest shares of each box that any tile shows along the height and the width: float64 [n, 2].

        Tiles are the products of rows and columns, so the product of the two is the largest share of the box.

        Args:
            starts: the tops of the rows of tiles, and the lefts of their columns.
            size: (height, width) that each tile shows.
        """
        most = np.zeros((len(self.boxes), 2))
        for axis in range(2):
            low, high = self.boxes[:, axis], self.boxes[:, 2 + axis]
            for start in starts[axis]:
                shares = shown_share(low, high, start, size[axis], self.whole[axis])
                np.maximum(most[:, axis], shares, out=most[:, axis])
        return most


def shown_share(low: npt.ArrayLike, high: npt.ArrayLike, start: int, side: int, whole: int) -> _Shares:
    """Return the shares of extents along one axis that are within `start` to `start + side`.

    The share of an extent of at most `NOISE_PIXELS` is 1 or 0: that of its first pixel.

    Args:
        low: float64 [n], first ends of the extents.
        high: float64 [n], last ends.
        start: start of the range.
        side: length of the range.
        whole: length of the axis.

    >>> shown_share([0, 4, 8], [4, 12, 8], 0, 8, 16).tolist()
    [1.0, 0.5, 0.0]
    """
    first, last = np.asarray(low, np.float64), np.asarray(high, np.float64)
    end = start + side
    extent = last - first
    overlap = np.minimum(last, end) - np.maximum(first, start)
    has_extent = extent > NOISE_PIXELS
    share = np.clip(overlap / np.where(has_extent, extent, 1), 0, 1)
    # A sliver that rounding cut off is no piece, but the larger part of a thin object is.
    share = np.where((overlap > NOISE_PIXELS) | (share >= 0.5), share, 0)
    at_end = end == whole
    inside = (first >= start) & ((first < end) | at_end)
    return np.where(has_extent, share, inside)


def is_inside(points: npt.ArrayLike, window: TileWindow) -> npt.NDArray[np.bool_]:
    """Return which points float64 [..., 2], each (y, x) in pixels of the whole, are in a tile: bool [...].

    A point on the border of two tiles is in the later one, whose pixel begins there.

    >>> is_inside([[4, 7.5], [4, 8]], TileWindow(origin=(0, 0), size=(8, 8), whole=(8, 16))).tolist()
    [True, False]
    """
    at, start = np.asarray(points, np.float64), np.array(window.origin)
    end, whole = start + window.size, np.array(window.whole)
    noise = NOISE_PIXELS + ROUNDED_SHARE * whole
    from_start = (at >= start) | ((start == 0) & (at >= -noise))
    before_end = (at < end) | ((end == whole) & (at <= end + noise))
    return np.asarray((from_start & before_end).all(axis=-1))
