"""VisDrone's rule for ignored regions: what is half inside of them is removed before objects are matched.

The rule is that of `dropObjectsInIgr.m` of the VisDrone2018-DET-toolkit, to the pixel. pycocotools' rule for crowds
differs: it looks at one crowd at a time, compares with each IoU threshold, and keeps all objects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LARGEST_SHARE = 0.5


def outside_regions(boxes: NDArray[np.float64], regions: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which boxes have less than half of their area in the union of regions, bool [box].

    Pixels are numbered from 1. A region from x with width w has the pixels x to x + w, and a box x + 1 to x + w, where
    what begins before pixel 1 begins at 1. The toolkit also cuts both at the picture's right and bottom edge, which
    differs by one pixel where a box or a region spans the whole picture.

    Args:
        boxes: [box, 4], ymin, xmin, ymax, xmax in pixels of the picture.
        regions: [region, 4], likewise.

    >>> regions = np.array([[0, 0, 20, 20]])
    >>> outside_regions(np.array([[4, 4, 14, 14], [15, 15, 29, 29]]), regions).tolist()
    [False, True]
    """
    if not len(regions) or not len(boxes):
        return np.ones(len(boxes), bool)
    start, sides = _pixels(regions)
    last = start + sides
    # Entry [y, x] counts the pixels of regions up to y and x; nothing is beyond the last pixel of a region.
    counts = np.zeros(tuple(last.max(0) + 1), np.int32)
    for (top, left), (bottom, right) in zip(start.tolist(), last.tolist(), strict=True):
        counts[top : bottom + 1, left : right + 1] = 1
    counts = counts.cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32)
    low, sides = _pixels(boxes)
    end = np.minimum(low + sides, last.max(0))
    low = np.minimum(low, last.max(0))
    inside = (
        counts[end[:, 0], end[:, 1]]
        - counts[low[:, 0], end[:, 1]]
        - counts[end[:, 0], low[:, 1]]
        + counts[low[:, 0], low[:, 1]]
    )
    kept: NDArray[np.bool_] = inside < _LARGEST_SHARE * np.prod(sides, axis=1)
    return kept


def _pixels(boxes: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first pixel, and height and width of each box as whole numbers of at least 1, [box, 2] of y and x."""
    low, sides = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
    # Halves are rounded away from zero, as MATLAB does.
    first, lengths = (np.maximum(np.floor(values + 0.5), 1).astype(np.int64) for values in (low, sides))
    return first, lengths
