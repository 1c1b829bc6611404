"""Polygons of a track between two key frames, by the rule of CVAT.

The rule is that of `interpolate_position` of CVAT (cvat/apps/dataset_manager/annotation.py). Points of two polygons
belong together where they are at about the same share of the way around, counted from the first point. So two polygons
may have different numbers of points, and points that come close to each other are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]


def polygon_between(first: Sequence[float], second: Sequence[float], share: float) -> list[float] | None:
    """Return a polygon x, y, x, y, ... on the way from one polygon to another, `share` of it from 0 to 1.

    None if the points of one polygon are all the same, for which CVAT has no rule.

    >>> polygon_between([0, 0, 8, 0, 8, 8, 0, 8], [4, 0, 12, 0, 12, 8, 4, 8], 0.5)
    [2.0, 0.0, 10.0, 0.0, 10.0, 8.0, 2.0, 8.0]
    """
    left, right = _closed(first), _closed(second)
    if not (_length(left) and _length(right)):
        return None
    partners = _partners(_shares_of_way(left), _shares_of_way(right))
    points = np.array(
        [left[i] + (right[j] - left[i]) * share for i, found in enumerate(partners) for j in found]
    )
    # The last point closes the polygon.
    return np.array(_reduced(points, partners, left, right)[:-1]).reshape(-1).tolist()


def _closed(numbers: Sequence[float]) -> Points:
    points = np.array(numbers, np.float64).reshape(-1, 2)
    return np.concatenate([points, points[:1]])


def _length(points: Points) -> float:
    return float(np.hypot(*np.diff(points, axis=0).T).sum())


def _shares_of_way(points: Points) -> Points:
    """Return how far each point is along the way, from 0 for the first to 1 for the last."""
    steps = np.hypot(*np.diff(points, axis=0).T)
    shares: Points = np.concatenate([[0.0], np.cumsum(steps)]) / steps.sum()
    return shares


def _partners(left: Points, right: Points) -> list[list[int]]:
    """Return the points of the right polygon that belong to each point of the left one; every point has a partner."""
    found = [[int(np.abs(right - share).argmin())] for share in left]
    alone = set(range(len(right))).difference(*found)
    for number in sorted(alone):
        found[int(np.abs(left - right[number]).argmin())].append(number)
    return [sorted(numbers) for numbers in found]


def _reduced(points: Points, partners: Sequence[Sequence[int]], left: Points, right: Points) -> list[Points]:
    """Return the points between, without those that are too close to the one before.

    Points of the left polygon with one common partner are one part, and the partners of one point are another.
    """
    ends = np.cumsum([len(found) for found in partners])
    starts = ends - [len(found) for found in partners]
    kept: list[Points] = []
    at = 0
    while at < len(partners):
        if len(partners[at]) > 1:
            own = right[partners[at][0] : partners[at][-1] + 1]
            kept += _thinned(points[starts[at] : ends[at]], own)
            at += 1
            continue
        stop = at
        while stop + 1 < len(partners) and partners[stop + 1] == partners[at]:
            stop += 1
        if stop == at:
            kept.append(points[starts[at]])
        else:
            kept += _thinned(points[starts[at] : ends[stop]], left[at : stop + 1])
        at = stop + 1
    return kept


def _thinned(points: Points, of_polygon: Points) -> list[Points]:
    """Return the first and last point, and those in between that are far enough from the one before them."""
    least = _length(of_polygon) / (2 * len(of_polygon))
    kept = [points[0]]
    for point in points[1:-1]:
        if np.hypot(*(point - kept[-1])) >= least:
            kept.append(point)
    kept.append(points[-1])
    if len(kept) == 2 and np.hypot(*(points[-1] - points[0])) < least:
        return [(points[0] + points[-1]) / 2]
    return kept
