"""Comparison of the pixels of two pictures that may be copies: alignment, then correlation of their details."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

Gray = NDArray[np.float32]

COMPARED_SIDE = 96
"""Rows and columns of the compared pictures: the least at which copies and other pictures of one catalog differ."""
SAME = 0.8
"""Correlation of details from which two aligned pictures show the same.

Of 364 parts, turned and changed copies, 99 % had 0.88 or more; of 639 pairs that the thumbnails left in doubt, those
above 0.75 were found to be copies when they were looked at."""
_STEPS, _ENOUGH = 40, 1e-4
_ALIGNED_BLUR = 5
_DETAIL = 2.5
"""Standard deviation in pixels of the blur that is subtracted, so that details are left."""


def to_compared(pixels: NDArray[np.generic]) -> Gray:
    """Return pixels [height, width, channel] as gray values, float32 [96, 96].

    >>> to_compared(np.zeros((5, 9, 3), np.uint8)).shape
    (96, 96)
    """
    gray = np.ascontiguousarray(pixels.astype(np.float32).mean(axis=2))
    return np.asarray(
        cv2.resize(gray, (COMPARED_SIDE, COMPARED_SIDE), interpolation=cv2.INTER_AREA), np.float32
    )


def correlate_details(
    first: Gray, second: Gray, rows: NDArray[np.float32], columns: NDArray[np.float32]
) -> float:
    """Return the correlation of the details of two pictures once they are aligned; -1 where they cannot be.

    Args:
        first, second: float32 [96, 96]; `second` shows a part of `first`.
        rows, columns: about this part, as fractions: first and last.
    """
    (top, bottom), (left, right) = rows.tolist(), columns.tolist()
    down, across, half = bottom - top, right - left, 0.5 * (COMPARED_SIDE - 1)
    place = np.array(
        [
            [across, 0, (left + right - 1) / 2 * COMPARED_SIDE + half * (1 - across)],
            [0, down, (top + bottom - 1) / 2 * COMPARED_SIDE + half * (1 - down)],
        ],
        np.float32,
    )
    ends = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, _STEPS, _ENOUGH)
    try:
        _, place = cv2.findTransformECC(second, first, place, cv2.MOTION_AFFINE, ends, None, _ALIGNED_BLUR)
    except cv2.error:  # pictures without anything in common, or without any contrast
        return -1.0
    size, how = (COMPARED_SIDE, COMPARED_SIDE), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    shown = cv2.warpAffine(np.ones_like(first), place, size, flags=how) > 0.99
    # Most of a copy is in the picture of which it is a part.
    if shown.mean() < 0.8:
        return -1.0
    aligned = cv2.warpAffine(first, place, size, flags=how, borderMode=cv2.BORDER_REPLICATE)
    one, other = (_details(picture)[shown] for picture in (aligned, second))
    one, other = one - one.mean(), other - other.mean()
    sizes = float((one**2).sum() * (other**2).sum())
    return float((one * other).sum()) / sizes**0.5 if sizes > 0 else -1.0


def _details(picture: Gray) -> Gray:
    return np.asarray(picture - cv2.GaussianBlur(picture, (0, 0), _DETAIL), np.float32)
