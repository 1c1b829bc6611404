"""Connected regions of a label: of all classes and the background at once, in pictures and in volumes.

Rows are cut into runs of equal values. Runs of neighboring rows that overlap and have one value are of one region:

    row 0    1 1 1 0 0 2 2        runs: 1 from 0 to 3, 0 from 3 to 5, 2 from 5 to 7
    row 1    1 0 0 0 2 2 2        runs: 1 from 0 to 1, 0 from 1 to 4, 2 from 4 to 7

Regions of classes have diagonal neighbors along the rows, and those of the background have none, so that a line of one
pixel encloses what is inside. OpenCV finds the regions of one value in one plane only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Regions:
    """Regions of a label.

    Args:
        values: label of each region, int64 [region].
        sizes: pixels or voxels of each region, int64 [region].
        faces: whether each region touches each face of the label: the first and the last plane, row and column, bool
            [region, 6]; a picture has no faces of planes.
        places: depth, row and column of a pixel of each region, int64 [region, 3].
        around: value that all neighbors of a region of the background have; -1 for other regions, int64 [region].
    """

    values: NDArray[np.int64]
    sizes: NDArray[np.int64]
    faces: NDArray[np.bool_]
    places: NDArray[np.int64]
    around: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Runs:
    """Runs of equal values in the order of the array; `ends` are exclusive, and positions are those of a flat array."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    values: NDArray[np.int64]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, label: NDArray[Any]) -> _Runs:
        changed = np.ones(label.shape, bool)
        np.not_equal(label[..., 1:], label[..., :-1], out=changed[..., 1:])
        starts = np.flatnonzero(changed)
        ends = np.append(starts[1:], label.size)
        return cls(
            starts=starts, ends=ends, values=label.reshape(-1)[starts].astype(np.int64), shape=label.shape
        )

    def neighbors(self, planes: int, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs of runs that touch, also diagonally, of each row and the one that is so many further."""
        _, height, width = self.shape
        row = self.starts // width
        first = row * width
        has_next = row % height < height - rows
        has_next &= row // height < self.shape[0] - planes
        offset = (planes * height + rows) * width
        low = np.maximum(self.starts - 1, first) + offset
        high = np.minimum(self.ends + 1, first + width) + offset
        begin = np.searchsorted(self.ends, low, side="right")
        counts = np.where(has_next, np.searchsorted(self.starts, high, side="left") - begin, 0)
        one = np.repeat(np.arange(len(self.starts)), counts)
        other = np.arange(len(one)) - np.repeat(np.cumsum(counts) - counts - begin, counts)
        return one, other

    def all_neighbors(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs of runs that touch in neighboring rows or planes."""
        depth, height, _ = self.shape
        steps = [step for step, has in (((0, 1), height > 1), ((1, 0), depth > 1)) if has]
        pairs = [self.neighbors(*step) for step in steps]
        one, other = (np.concatenate([np.empty(0, np.int64), *(pair[at] for pair in pairs)]) for at in (0, 1))
        return one, other

    def overlap(self, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the runs of each pair share a column."""
        width = self.shape[2]
        columns = [(self.starts[run] % width, (self.ends[run] - 1) % width) for run in (one, other)]
        (first, last), (begin, end) = columns
        return np.asarray((first <= end) & (begin <= last))


def find_regions(label: NDArray[Any]) -> Regions:
    """Return the connected regions of a label.

    Args:
        label: class indices, integers [depth, height, width]; a picture has a depth of 1.

    >>> found = find_regions(np.array([[[0, 1, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1], [2, 0, 0, 0]]]))
    >>> found.values.tolist(), found.sizes.tolist(), found.around.tolist()
    ([0, 1, 0, 2, 0], [3, 8, 1, 1, 3], [-1, -1, 1, -1, -1])
    """
    runs = _Runs.of(label)
    one, other = runs.all_neighbors()
    firsts, numbers = _numbered(runs, one, other)
    values = runs.values[firsts]
    faces = _faces(runs, numbers, len(firsts))
    touching = _touching(runs, one, other)
    return Regions(
        values=values,
        sizes=np.bincount(numbers, runs.ends - runs.starts, len(firsts)).astype(np.int64),
        faces=faces,
        places=np.stack(np.unravel_index(runs.starts[firsts], label.shape), 1),
        around=_around(values, numbers[touching[0]], numbers[touching[1]], faces),
    )


def region_numbers(label: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of each pixel's region in the order of `find_regions`, int64 of the label's shape.

    >>> region_numbers(np.array([[[0, 1, 1], [0, 0, 1], [1, 0, 0]]])).tolist()
    [[[0, 1, 1], [0, 0, 1], [2, 0, 0]]]
    """
    runs = _Runs.of(label)
    _, numbers = _numbered(runs, *runs.all_neighbors())
    return np.repeat(numbers, runs.ends - runs.starts).reshape(label.shape)


def _numbered(
    runs: _Runs, one: NDArray[np.int64], other: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first run of each region, and the number of each run's region, from pairs of runs that touch."""
    joined = (runs.values[one] == runs.values[other]) & ((runs.values[one] != 0) | runs.overlap(one, other))
    return np.unique(_join(len(runs.starts), one[joined], other[joined]), return_inverse=True)


def _join(count: int, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the smallest member of the group of each of `count` numbers, where pairs are of one group."""
    roots = np.arange(count)
    while True:
        low, high = np.minimum(roots[one], roots[other]), np.maximum(roots[one], roots[other])
        apart = low != high
        if not apart.any():
            return roots
        one, other = one[apart], other[apart]
        # Each root is hung below the smallest one that it meets; the number of rounds is logarithmic in practice.
        np.minimum.at(roots, high[apart], low[apart])
        while True:
            above = roots[roots]
            if np.array_equal(above, roots):
                break
            roots = above


def _faces(runs: _Runs, numbers: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Return which faces each region touches, see `Regions.faces`."""
    depth, height, width = runs.shape
    row = runs.starts // width
    touches = (
        *((depth > 1) & (row // height == 0), (depth > 1) & (row // height == depth - 1)),
        *(row % height == 0, row % height == height - 1),
        *(runs.starts % width == 0, runs.ends % width == 0),
    )
    found = np.zeros((count, 6), bool)
    for face, touched in enumerate(touches):
        found[numbers[touched], face] = True
    return found


def _touching(
    runs: _Runs, one: NDArray[np.int64], other: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs of runs of different values that share a side."""
    differ = (runs.values[one] != runs.values[other]) & runs.overlap(one, other)
    in_row = np.flatnonzero(runs.ends[:-1] % runs.shape[2] != 0)
    return np.concatenate([one[differ], in_row]), np.concatenate([other[differ], in_row + 1])


def _around(
    values: NDArray[np.int64], one: NDArray[np.int64], other: NDArray[np.int64], faces: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the value around each region of the background that no face opens, see `Regions.around`."""
    least = np.full(len(values), np.iinfo(np.int64).max)
    most = np.full(len(values), -1)
    for region, neighbor in ((one, other), (other, one)):
        np.minimum.at(least, region, values[neighbor])
        np.maximum.at(most, region, values[neighbor])
    enclosed = (values == 0) & (least == most) & ~faces.any(1)
    return np.where(enclosed, most, -1)
