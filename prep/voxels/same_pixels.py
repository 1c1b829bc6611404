"""Comparison of the pixels of two pictures that may be copies: alignment, then correlation of their details."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Gray = NDArray[np.float32]

COMPARED_SIDE = 96
"""Most rows and columns of the compared pictures: copies and other pictures of one catalog differ at this size."""
_SAME, _SAME_SMALL, _SMALL = 0.8, 0.86, 64
"""Correlation of details from which two aligned pictures show the same, and that of pictures with a side below 64.

Of 364 parts, turned and changed copies, 99 % had 0.88 or more; of 639 pairs that the thumbnails left in doubt, those
above 0.75 were found to be copies when they were looked at. In 32 x 32 pixels, silhouettes of planes reached 0.85."""
_LEAST_SIDE = 24
_STEPS, _ENOUGH = 40, 1e-4
_ALIGNED_BLUR = 5
_DETAIL = 2.5
"""Standard deviation in pixels of the blur that is subtracted, so that details are left."""
_MOST_SHEAR = 0.1
"""Shear and turn of a copy, by which any silhouette could be laid over another one."""
_LEAST_SHOWN = 0.8
"""Share of a copy that must be in the picture of which it is a part."""


def to_compared(pixels: NDArray[Any]) -> Gray:
    """Return pixels [height, width, channel] as gray values, float32 [row, column], of at most 96 x 96.

    >>> to_compared(np.zeros((50, 190, 3), np.uint8)).shape
    (50, 96)
    """
    gray = np.ascontiguousarray(pixels.astype(np.float32).mean(axis=2))
    height, width = gray.shape
    return _resized(gray, (min(height, COMPARED_SIDE), min(width, COMPARED_SIDE)))


def show_the_same(first: Gray, second: Gray, rows: NDArray[np.float32], columns: NDArray[np.float32]) -> bool:
    """Return whether two pictures show the same; arguments as for `correlate_details`."""
    least = _SAME if min(*first.shape, *second.shape) >= _SMALL else _SAME_SMALL
    return correlate_details(first, second, rows, columns) >= least


def correlate_details(
    first: Gray, second: Gray, rows: NDArray[np.float32], columns: NDArray[np.float32]
) -> float:
    """Return the correlation of the details of two pictures once they are aligned; -1 where they cannot be.

    Args:
        first, second: of `to_compared`; `second` shows a part of `first`.
        rows, columns: about this part, as fractions: first and last.
    """
    # Enlarged pictures would have no details.
    side = max(_LEAST_SIDE, min(*first.shape, *second.shape))
    first, second = (_resized(picture, (side, side)) for picture in (first, second))
    (top, bottom), (left, right) = rows.tolist(), columns.tolist()
    down, across, half = bottom - top, right - left, 0.5 * (side - 1)
    place = np.array(
        [
            [across, 0, (left + right - 1) / 2 * side + half * (1 - across)],
            [0, down, (top + bottom - 1) / 2 * side + half * (1 - down)],
        ],
        np.float32,
    )
    everywhere = np.ones((side, side), np.uint8)
    ends = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, _STEPS, _ENOUGH)
    try:
        _, found = cv2.findTransformECC(
            second, first, place, cv2.MOTION_AFFINE, ends, everywhere, _ALIGNED_BLUR
        )
    except cv2.error:  # pictures without anything in common, or without any contrast
        return -1.0
    place = np.asarray(found, np.float32)
    if max(abs(place[0, 1]), abs(place[1, 0])) > _MOST_SHEAR:
        return -1.0
    size, how = (side, side), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    shown = cv2.warpAffine(np.ones_like(first), place, size, flags=how) > 0.99
    if shown.mean() < _LEAST_SHOWN:
        return -1.0
    aligned = cv2.warpAffine(first, place, size, flags=how, borderMode=cv2.BORDER_REPLICATE)
    one, other = (_details(picture)[shown] for picture in (aligned, second))
    one, other = one - one.mean(), other - other.mean()
    sizes = float((one**2).sum() * (other**2).sum())
    return float((one * other).sum()) / sizes**0.5 if sizes > 0 else -1.0


def _resized(gray: Gray, size: tuple[int, int]) -> Gray:
    if gray.shape == size:
        return gray
    is_smaller = size[0] <= gray.shape[0] and size[1] <= gray.shape[1]
    how = cv2.INTER_AREA if is_smaller else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(gray, size[::-1], interpolation=how), np.float32)


def _details(picture: NDArray[Any]) -> Gray:
    return np.asarray(picture - cv2.GaussianBlur(picture, (0, 0), _DETAIL), np.float32)
