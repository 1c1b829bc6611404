"""Outlines of the regions of a class in a label picture: polygons with holes along the edges of pixels.

A region is a set of pixels that share sides. Its outline runs along pixel edges, so that filling the outlines gives the
label picture again, pixel by pixel:

    1 1 1          outline (0, 0) (0, 3) (3, 3) (3, 0)
    1 0 1          hole    (1, 1) (2, 1) (2, 2) (1, 2)
    1 1 1

OpenCV's `findContours` joins the centers of border pixels instead, which loses half a pixel on each side, and all of a
line of one pixel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

_BAND_PIXELS = 1 << 24
"""Pixels of which corners are found at a time, with about 12 bytes of memory each."""


@dataclass(frozen=True, kw_only=True)
class Outline:
    """One region of a class.

    Args:
        rings: float64 [corner, 2] each, x and y in pixels, not closed: the outer ring, counterclockwise on a picture
            whose y axis points down, then the holes, clockwise.
        pixels: number of pixels of the region.
    """

    rings: tuple[NDArray[np.float64], ...]
    pixels: int


@dataclass(frozen=True, kw_only=True)
class _Corners:
    """Corners of the outlines of a class; a point where two pixels touch is there twice.

    Args:
        x, y: int64 [corner], in the order of y, then x.
        below: int64 [corner], 1 for the lower one of the two corners at a point; it orders them along y.
        is_twin: bool [corner], whether there are two corners at its point.
        begins_region: bool [corner], whether the pixel to the lower right has the class.
    """

    x: NDArray[np.int64]
    y: NDArray[np.int64]
    below: NDArray[np.int64]
    is_twin: NDArray[np.bool_]
    begins_region: NDArray[np.bool_]


def outlines_of(labels: NDArray[np.integer], value: int) -> Iterator[Outline]:
    """Yield the regions of a value, from the first row to the last.

    Rings may touch in points, as the Simple Features of OGC 06-103r4 (6.1.11) allow; no ring touches itself.
    Memory besides `labels`: about 300 bytes for each corner of an outline.

    Args:
        labels: integers [height, width]; an array on disk is read by bands of rows.
        value: value of the pixels.

    >>> ring = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]])
    >>> [[points.tolist() for points in one.rings] for one in outlines_of(ring, 1)]
    [[[[0.0, 0.0], [0.0, 3.0], [3.0, 3.0], [3.0, 0.0]], [[1.0, 1.0], [2.0, 1.0], [2.0, 2.0], [1.0, 2.0]]]]
    """
    corners = _corners_of(labels, value)
    sides = _Sides.of(corners)
    rings = _trace(corners, sides)
    holes: dict[int, list[int]] = {}
    for hole, parent in _parents(labels, value, sides, rings).items():
        holes.setdefault(parent, []).append(hole)
    for number, area in enumerate(rings.doubled):
        if area < 0:
            own = [number, *holes.get(number, ())]
            pixels = -sum(rings.doubled[one] for one in own) // 2
            yield Outline(rings=tuple(map(rings.ring_points, own)), pixels=pixels)


def _corners_of(labels: NDArray[np.integer], value: int) -> _Corners:
    """Return the corners of all pixels of a value where an outline turns."""
    height, width = labels.shape
    rows = max(1, _BAND_PIXELS // max(1, width))
    found = []
    above = np.zeros(width + 2, np.bool_)
    for top in range(0, height + 1, rows):
        # The last row is an empty one below the picture.
        count = min(rows, height + 1 - top)
        inside = np.zeros((count + 1, width + 2), np.bool_)
        inside[0] = above
        part = np.asarray(labels[top : min(top + count, height)]) == value
        inside[1 : 1 + len(part), 1:-1] = part
        above = inside[-1]
        # The four pixels around each point of the grid.
        upper_left, upper_right = inside[:-1, :-1], inside[:-1, 1:]
        lower_left, lower_right = inside[1:, :-1], inside[1:, 1:]
        left, right = upper_left ^ lower_left, upper_right ^ lower_right
        turns = (left ^ right) | (left & right & (upper_left ^ upper_right))
        y, x = np.nonzero(turns)
        # Two pixels that share only this point are two corners.
        touching = left[y, x] & right[y, x]
        # The corner with the side to the left comes first along x. It is the upper one where the upper left pixel is
        # inside, since that pixel has the sides to the left and above.
        first_is_lower = touching & ~upper_left[y, x]
        order = np.repeat(np.arange(len(x)), 1 + touching)
        is_second = np.zeros(len(order), np.int64)
        is_second[1:] = order[1:] == order[:-1]
        below = is_second ^ first_is_lower[order]
        found.append((x[order], y[order] + top, below, touching[order], lower_right[y, x][order]))
    x, y, below, is_twin, begins_region = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return _Corners(x=x, y=y, below=below, is_twin=is_twin, begins_region=begins_region)


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """Sides of all outlines: along a line of the grid, outlines begin and end by turns, so that corners are pairs.

    Args:
        across: int64 [corner], the corner at the other end of the side along x.
        down: int64 [corner], the corner at the other end of the side along y.
        number: int64 [corner], the number of the side along y; sides are sorted by x, then by y.
        x, top: int64 [side along y], its x and the y where it begins.
    """

    across: NDArray[np.int64]
    down: NDArray[np.int64]
    number: NDArray[np.int64]
    x: NDArray[np.int64]
    top: NDArray[np.int64]

    @classmethod
    def of(cls, corners: _Corners) -> _Sides:
        """Join the corners of all outlines of a class to sides."""
        ranks = np.arange(len(corners.x))
        order = np.lexsort((corners.below, corners.y, corners.x))
        down, number = np.empty_like(ranks), np.empty_like(ranks)
        down[order] = order[ranks ^ 1]
        number[order] = ranks >> 1
        upper = order[::2]
        return cls(across=ranks ^ 1, down=down, number=number, x=corners.x[upper], top=corners.y[upper])


@dataclass(frozen=True, kw_only=True)
class _Rings:
    """Closed lines of the outlines.

    Args:
        points: int64 [corner, 2], x and y of each corner.
        rings: corners of each ring in their order, with the region on the left hand.
        of_side: int64 [side along y], the ring of each side.
        doubled: twice the area of each ring: negative for outer rings, positive for holes.
        first: for each ring, its upper left corner.
    """

    points: NDArray[np.int64]
    rings: list[list[int]]
    of_side: NDArray[np.int64]
    doubled: list[int]
    first: list[int]

    @classmethod
    def of(cls, corners: _Corners, rings: list[list[int]], of_side: list[int]) -> _Rings:
        """Compute the areas of rings."""
        points = np.stack([corners.x, corners.y], axis=1)
        sides = np.asarray(of_side, np.int64)
        if not rings:
            return cls(points=points, rings=rings, of_side=sides, doubled=[], first=[])
        flat = np.fromiter(chain.from_iterable(rings), np.int64)
        starts = np.cumsum([0, *map(len, rings)])[:-1]
        following = np.roll(flat, -1)
        following[np.append(starts[1:], len(flat)) - 1] = flat[starts]
        x, y = points[:, 0], points[:, 1]
        crossed = x[flat] * y[following] - x[following] * y[flat]
        doubled = np.add.reduceat(crossed, starts).tolist()
        # Corners are in the order of rows and columns.
        first = np.minimum.reduceat(flat, starts).tolist()
        return cls(points=points, rings=rings, of_side=sides, doubled=doubled, first=first)

    def ring_points(self, number: int) -> NDArray[np.float64]:
        """Return the points of a ring, float64 [corner, 2], from its upper left one."""
        ring = self.rings[number]
        at = ring.index(self.first[number])
        return self.points[ring[at:] + ring[:at]].astype(np.float64)


def _trace(corners: _Corners, sides: _Sides) -> _Rings:
    """Follow the sides of all outlines."""
    down, across, number = sides.down.tolist(), sides.across.tolist(), sides.number.tolist()
    begins_region, is_twin = corners.begins_region.tolist(), corners.is_twin.tolist()
    of_side = [-1] * len(sides.x)
    rings: list[list[int]] = []
    for start in range(len(down)):
        if of_side[number[start]] >= 0:
            continue
        # The first corner of a ring is its upper left one. Down from there, the region is on the left hand if its pixel
        # is inside; it is outside for a hole.
        corner = start if begins_region[start] else down[start]
        walk: list[int] = []
        while of_side[number[corner]] < 0:
            of_side[number[corner]] = len(rings)
            walk += [corner, down[corner]]
            corner = across[down[corner]]
        if not any(map(is_twin.__getitem__, walk)):
            rings.append(walk)
            continue
        for ring in _without_touching(walk, corners):
            for one, other in zip(ring, [*ring[1:], ring[0]], strict=True):
                if corners.x[one] == corners.x[other]:
                    of_side[number[one]] = len(rings)
            rings.append(ring)
    return _Rings.of(corners, rings, of_side)


def _without_touching(walk: list[int], corners: _Corners) -> Iterator[list[int]]:
    """Yield the parts of a ring that touches itself, each a ring that does not."""
    open_ring: list[int] = []
    at_point: dict[tuple[int, int], int] = {}
    for corner in walk:
        point = int(corners.x[corner]), int(corners.y[corner])
        if corners.is_twin[corner] and point in at_point:
            first = at_point[point]
            yield open_ring[first:]
            for one in open_ring[first:]:
                at_point.pop((int(corners.x[one]), int(corners.y[one])), None)
            del open_ring[first:]
        at_point[point] = len(open_ring)
        open_ring.append(corner)
    yield open_ring


def _parents(labels: NDArray[np.integer], value: int, sides: _Sides, rings: _Rings) -> dict[int, int]:
    """Return the outer ring around each hole.

    Left of the upper left corner of a hole is a pixel of its region. The first side to the left of that pixel belongs
    to the outer ring, or to another hole of the region, whose own corner comes earlier by rows and columns.
    """
    holes = [number for number, area in enumerate(rings.doubled) if area > 0]
    parents: dict[int, int] = {}
    row, starts = -1, np.zeros(0, np.int64)
    for number in sorted(holes, key=rings.first.__getitem__):
        x, y = rings.points[rings.first[number]].tolist()
        if y != row:
            row = y
            inside = np.asarray(labels[y]) == value
            starts = np.flatnonzero(inside & ~np.concatenate([[False], inside[:-1]]))
        left = starts[np.searchsorted(starts, x) - 1]
        first, last = np.searchsorted(sides.x, (left, left + 1))
        side = first + np.searchsorted(sides.top[first:last], y, "right") - 1
        found = int(rings.of_side[side])
        parents[number] = parents.get(found, found)
    return parents
