"""Which voxels of a slice the closed contours of one structure enclose.

A voxel belongs to a structure if its center lies inside an odd number of contours, so that a contour within another one
is a hole, or on a contour: software that traces the voxels of a mask (rt-utils, OpenCV) draws through the centers of
its outermost voxels, and around a hole through those that surround it.

    o   o   o   o   o
    o   x---x---x   o       the nine voxels marked x belong to the structure,
    o   x   x   x   o       and so do voxels that a contour encloses
    o   x---x---x   o       without meeting any center
    o   o   o   o   o
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.voxels.masks import fill_polygons
from halofeed.schemas.errors import SourceError

Points = NDArray[np.float64]
CROSSING_VOXELS, CROSSING_SHARE = 2, 0.01
"""Up to how many voxels, or which share of a contour's, two contours may cross: noise of coordinates that touch."""
TRACED_VOXELS = 0.02
"""A contour all of whose points lie this near to voxel centers runs through them; its file has rounded them."""
ON_CONTOUR_VOXELS = 1e-6
"""How far a center may lie from another contour that meets it: what is left of a coordinate in 16 characters."""
EDGE_ROWS_AT_ONCE = 2**22


def enclosed(
    contours: Sequence[Points], size: tuple[int, int], what: str, *, may_cross: bool
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The voxels of a slice of (rows, columns) inside an odd number of contours, and those on a contour.

    Voxels on a contour may be in the first, too: each that lies on a border between two regions is in one of them.

    Args:
        contours: float64 [point, 2], row and column in voxels; fewer than three points enclose nothing.
        what: the structure, for messages.
        may_cross: where the file says that its contours cross on purpose.

    Raises:
        SourceError: of stage `annotation`, where contours cross.
    """
    depth, on_contour = np.zeros(size, np.int32), np.zeros(size, np.bool_)
    for points in sorted(map(_snapped, contours), key=_area, reverse=True):
        on_contour[_centers_on(points, size)] = True
        for window, covered in _covered(points, size):
            part = depth[window]
            # From the largest on, contours that nest or lie apart meet every voxel of the next one equally often.
            _, voxels = np.unique(part[covered], return_counts=True)
            crossing = int(voxels.sum() - voxels.max(initial=0))
            if not may_cross and crossing > max(CROSSING_VOXELS, CROSSING_SHARE * voxels.sum()):
                detail = f"{what}, {crossing} voxels of one slice lie in one of two contours or in both"
                raise SourceError("annotation", "contours of one structure cross", detail)
            part += covered
    return (depth & 1).astype(np.bool_), on_contour


def is_traced(points: Points) -> bool:
    """Whether a contour runs through voxel centers."""
    return bool((np.abs(points - np.rint(points)) <= TRACED_VOXELS).all())


def _snapped(points: Points) -> Points:
    return np.rint(points) if is_traced(points) else points


def _area(points: Points) -> float:
    centered = points - points[0]
    following = np.roll(centered, -1, axis=0)
    return float(abs(np.sum(centered[:, 0] * following[:, 1] - centered[:, 1] * following[:, 0])))


def _centers_on(points: Points, size: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows and columns of the voxels whose centers an edge meets."""
    found = [np.empty((0, 2), np.int64)]
    ends = np.roll(points, -1, axis=0)
    steps = ends - points
    for along in (0, 1):  # edges that run more along the rows' axis, then the others
        chosen = np.abs(steps[:, along]) >= np.abs(steps[:, 1 - along])
        if along:
            chosen &= np.abs(steps[:, 1]) != np.abs(steps[:, 0])
        begin, step, end = points[chosen], steps[chosen], ends[chosen]
        low, high = np.minimum(begin, end)[:, along], np.maximum(begin, end)[:, along]
        first = np.clip(np.ceil(low - ON_CONTOUR_VOXELS), 0, size[along]).astype(np.int64)
        last = np.clip(np.floor(high + ON_CONTOUR_VOXELS), -1, size[along] - 1).astype(np.int64)
        counts = np.maximum(last - first + 1, 0)
        parts = (np.cumsum(counts) / EDGE_ROWS_AT_ONCE).astype(np.int64)
        cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(counts)]
        for start, stop in itertools.pairwise(cuts):
            number = counts[start:stop]
            edge = np.repeat(np.arange(start, stop), number)
            place = np.arange(len(edge)) - np.repeat(np.cumsum(number) - number, number) + first[edge]
            length = step[edge, along]
            share = np.clip((place - begin[edge, along]) / np.where(length == 0, 1, length), 0, 1)
            across = begin[edge, 1 - along] + share * step[edge, 1 - along]
            nearest = np.rint(across).astype(np.int64)
            meets = (
                (np.abs(across - nearest) <= ON_CONTOUR_VOXELS) & (nearest >= 0) & (nearest < size[1 - along])
            )
            voxels = np.stack([place[meets], nearest[meets]], axis=1)
            found.append(voxels[:, ::-1] if along else voxels)
    rows, columns = np.concatenate(found).T
    return rows, columns


def _covered(
    points: Points, size: tuple[int, int]
) -> Iterator[tuple[tuple[slice, slice], NDArray[np.bool_]]]:
    """The window of a slice around a contour, and which of its voxels' centers lie inside; none if it misses it.

    Of the centers on the contour, those at the top and on the left are inside: regions that share a border share no
    voxel.
    """
    if len(points) < 3:
        return
    low = np.maximum(np.floor(points.min(axis=0)), 0).astype(np.int64)
    high = np.minimum(np.ceil(points.max(axis=0)) + 1, size).astype(np.int64)
    if (low >= high).any():
        return
    rows, columns = (high - low).tolist()
    y, x = (points - low + 0.5).T  # `fill_polygons` has a pixel's center at its half
    inside = fill_polygons([np.stack([x, y], axis=1).ravel()], (rows, columns))
    yield (slice(low[0], high[0]), slice(low[1], high[1])), inside.astype(np.bool_)
