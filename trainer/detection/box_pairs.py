"""Pairs of boxes that intersect, found by cells of a grid, and their overlaps.

┌──────┬──────┬──────┐
│   ┌──┼──┐   │      │     Each box is listed in all cells that it touches, and pairs are formed in each cell.
│   │ ┌┼──┼─┐ │      │     Of the cells that both boxes touch, the one with the first corner of their
├───┼─┼┼──┼─┼─┼──────┤     intersection gives the pair, so each pair occurs once.
│   └─┼┼──┘ │ │      │
└─────┴┴────┴─┴──────┘
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

PAIRS_AT_ONCE = 1 << 21
"""Maximum number of pairs in memory that may not intersect, unless one box alone has more."""

Boxes = NDArray[np.float64]
RowNumbers = NDArray[np.int64]


def intersecting_pairs(boxes: ArrayLike, others: ArrayLike) -> tuple[RowNumbers, RowNumbers]:
    """Return all pairs of boxes whose intersection has an area.

    Time and memory grow with the number of boxes and of pairs that share a cell.

    Args:
        boxes: float64 [n, 4], ymin, xmin, ymax, xmax.
        others: float64 [m, 4].

    Returns:
        Two int64 [pair]: rows of `boxes`, ascending, and of `others`, ascending for each box.

    >>> intersecting_pairs([[0, 0, 2, 2]], [[1, 1, 3, 3], [2, 2, 3, 3]])
    (array([0]), array([0]))
    """
    one, two = (np.asarray(side, np.float64).reshape(-1, 4) for side in (boxes, others))
    first, second = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if len(one) and len(two):
        parts = [*_pairs_by_cells(one, two)]
        first, second = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    order = np.lexsort((second, first))
    return first[order], second[order]


def _pairs_by_cells(one: Boxes, two: Boxes) -> Iterator[tuple[RowNumbers, RowNumbers]]:
    """Yield the pairs of all cells, in parts."""
    low = np.minimum(one[:, :2].min(0), two[:, :2].min(0))
    one, two = (side - np.tile(low, 2) for side in (one, two))
    areas = np.concatenate([(side[:, 2:] - side[:, :2]).prod(1) for side in (one, two)])
    # With cells of the mean area, all boxes together touch few cells, and a cell few boxes.
    side = max(float(np.sqrt(areas.mean())), 1e-6 * max(1.0, one.max(), two.max()))
    columns = int(max(one[:, 3].max(), two[:, 3].max()) // side) + 1
    rows, cells = _touched_cells(one, side, columns)
    other_rows, other_cells = _touched_cells(two, side, columns)
    order = np.argsort(other_cells, kind="stable")
    other_rows, other_cells = other_rows[order], other_cells[order]
    starts = np.searchsorted(other_cells, cells, "left")
    counts = np.searchsorted(other_cells, cells, "right") - starts
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(rows):
        already = ends[begin - 1] if begin else 0
        stop = max(begin + 1, int(np.searchsorted(ends, already + PAIRS_AT_ONCE, "right")))
        part = slice(begin, stop)
        first = np.repeat(rows[part], counts[part])
        second = other_rows[_ranges(starts[part], counts[part])]
        cell = np.repeat(cells[part], counts[part])
        corner = np.maximum(one[first, :2], two[second, :2])
        end = np.minimum(one[first, 2:], two[second, 2:])
        at = (corner // side).astype(np.int64)
        kept = np.all(end > corner, axis=1) & (at[:, 0] * columns + at[:, 1] == cell)
        yield first[kept], second[kept]
        begin = stop


def _touched_cells(boxes: Boxes, side: float, columns: int) -> tuple[RowNumbers, RowNumbers]:
    """Return the row of a box and the number of a cell for each cell that each box touches."""
    cells = (boxes // side).astype(np.int64)
    sizes = cells[:, 2:] - cells[:, :2] + 1
    counts = sizes.prod(1)
    rows = np.repeat(np.arange(len(boxes)), counts)
    place = _ranges(np.zeros(len(boxes), np.int64), counts)
    down, right = np.divmod(place, sizes[rows, 1])
    return rows, (cells[rows, 0] + down) * columns + cells[rows, 1] + right


def _ranges(starts: RowNumbers, counts: RowNumbers) -> RowNumbers:
    """Return the ranges of `counts` numbers from `starts` on, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(starts - (ends - counts), counts))


def intersections(one: Boxes, two: Boxes) -> NDArray[np.float64]:
    """Return the areas that pairs of boxes [..., 4] have in common, float64 [...]."""
    sides = np.minimum(one[..., 2:], two[..., 2:]) - np.maximum(one[..., :2], two[..., :2])
    return np.asarray(np.maximum(sides, 0).prod(-1))


def areas(boxes: Boxes) -> NDArray[np.float64]:
    """Return the areas of boxes [..., 4], float64 [...]."""
    return np.asarray((boxes[..., 2:] - boxes[..., :2]).prod(-1))


def iou(one: Boxes, two: Boxes) -> NDArray[np.float64]:
    """Return the intersections over unions of pairs of boxes [..., 4], float64 [...]; 0 without an area.

    >>> iou(np.array([[0.0, 0, 2, 2]]), np.array([[0.0, 1, 2, 3]])).round(3).tolist()
    [0.333]
    """
    common = intersections(one, two)
    return _share(common, areas(one) + areas(two) - common)


def over_smaller(one: Boxes, two: Boxes) -> NDArray[np.float64]:
    """Return the intersections over the smaller area of pairs of boxes [..., 4], float64 [...].

    >>> over_smaller(np.array([[0.0, 0, 2, 2]]), np.array([[0.0, 1, 2, 9]])).tolist()
    [0.5]
    """
    return _share(intersections(one, two), np.minimum(areas(one), areas(two)))


def _share(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0))
