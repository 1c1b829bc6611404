"""Which voxel of the foreground does a draw choose, found in one pass over the label where it is mapped?"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.view import Ranges, Shape


def draw_foreground(label: NDArray[np.uint8 | np.uint16], box: Ranges, uniform: float) -> Shape | None:
    """A pixel or voxel of label > 0 in a box, each with the same probability; None if there is none.

    OpenCV counts 25 to 40 GB/s of labels on one core: 0.3 ms for uint8 [32, 512, 512], once a draw.

    Args:
        label: [height, width] or [depth, height, width], as stored, class indices or sets of classes.
        box: where to look, along the label's axes.
        uniform: 0 (inclusive) to 1 (exclusive).

    >>> draw_foreground(np.array([[0, 0, 7], [0, 9, 0]], np.uint8), ((0, 2), (0, 3)), 0.6)
    (1, 1)
    """
    window = label[tuple(slice(low, high) for low, high in box)]
    if not window.size:
        return None
    slices = window[None] if window.ndim == 2 else window
    counts = np.cumsum([cv2.countNonZero(plane) for plane in slices])
    rank = int(uniform * counts[-1])
    if not counts[-1]:
        return None
    depth = int(np.searchsorted(counts, rank, side="right"))
    rank -= int(counts[depth - 1]) if depth else 0
    rows = np.cumsum(np.count_nonzero(slices[depth], axis=1))
    height = int(np.searchsorted(rows, rank, side="right"))
    rank -= int(rows[height - 1]) if height else 0
    width = int(np.flatnonzero(slices[depth, height])[rank])
    point = (depth, height, width)[-label.ndim :]
    return tuple(low + at for (low, _), at in zip(box, point, strict=True))
