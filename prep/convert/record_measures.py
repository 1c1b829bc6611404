"""Measures of records for `halofeed review`, from pixels and counts that a conversion has at hand.

They are in the index and must be the same bytes on every machine. So they are made of sums of whole numbers, which are
exact in any order, by operations that IEEE 754 rounds, and logarithms are rounded to fewer digits.
`benchmarks/planted_faults.py` shows what they find.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.tallies import ROW_STEP, ImageSums
from halofeed.prep.voxels.intensity import sampling
from halofeed.schemas import measures
from halofeed.schemas.native.measuring import measure

_FAR: Final = 4
"""Pixels between the compared ones of the longer distance. Blur of more than 2 pixels changes it little."""
_ROWS: Final = 24
"""Evenly spaced rows whose neighbors are compared. Differences between sampled rows would miss edges between them: a
picture looked blurred if its edges lie between the rows that are 1 apart and those that are 4 apart."""
_ENTROPY_DIGITS: Final = 6
"""Decimals of an entropy: logarithms differ in the last bits between C libraries."""
_FEWEST_VOXELS: Final = 16
"""Sampled voxels of a class below which their mean says little."""


def picture_measures(
    pixels: NDArray[Any], sums: ImageSums, source_size: tuple[int, int] | None = None
) -> dict[str, float]:
    """Return the measures of a picture.

    Args:
        pixels: uint8 or uint16 [height, width, channel], without padding.
        sums: sums of the same pixels.
        source_size: displayed (height, width) of the source; None for a record that shows a part of it.

    >>> from halofeed.prep.convert.tallies import sum_pixels
    >>> ramp = np.tile(np.arange(0, 128, 2, dtype=np.uint8)[None, :, None], (64, 1, 1))
    >>> {name: round(value, 3) for name, value in picture_measures(ramp, sum_pixels(ramp)).items()}
    {'brightness': 0.247, 'contrast': 0.145, 'entropy_bits': 6.0, 'sharpness': 0.062, 'roughness': 0.001}
    """
    histogram, count, totals, squares = sums
    found: dict[str, float] = {}
    if source_size is not None:
        found = dict(zip(measures.SOURCE_SIDES, map(float, source_size), strict=True))
    if not count:
        return found
    # Python's integers take 1 µs where NumPy's calls take 20.
    sum_each, squares_each, largest = totals.tolist(), squares.tolist(), _LARGEST[pixels.dtype.itemsize]
    channels = len(sum_each)
    found[measures.BRIGHTNESS] = sum(sum_each) / (count * channels * largest)
    # Whole numbers: the difference of two quotients would lose the digits of a small variance.
    spread = sum(count * square - total**2 for total, square in zip(sum_each, squares_each, strict=True))
    variance = spread / (channels * count**2)
    found[measures.CONTRAST] = math.sqrt(variance) / largest
    height, width = pixels.shape[:2]
    rows = pixels[:: max(1, height // _ROWS)]
    near, far, information = _sums(rows, histogram)
    # Not below 0: the logarithms are rounded.
    entropy_bits = max(0.0, math.log2(count) - information / (channels * count))
    found[measures.ENTROPY_BITS] = round(entropy_bits, _ENTROPY_DIGITS)
    if not variance or width <= 2 * _FAR:
        return found
    near, far = near / (rows.size // width * (width - 1)), far / (rows.size // width * (width - _FAR))
    if far:
        found[measures.SHARPNESS] = near / far
    found[measures.ROUGHNESS] = near / (2 * variance)
    return found


_LARGEST: Final = {1: 255, 2: 65535}
_EXACT: Final = 1 << 20
"""Squares of differences of 16 bits, whose sum has at most 52 bits."""


def _sums(rows: NDArray[Any], histogram: NDArray[np.int64]) -> tuple[float, float, float]:
    """Return the sums of the squared differences of pixels 1 and `_FAR` apart, and of n log2 n of the counts n."""
    if found := measure(rows, 1, _FAR, histogram):
        return found
    flat = histogram.reshape(-1).astype(np.float64)
    # Empty bins add 0, and their logarithm is that of 1.
    information = float(flat @ np.log2(np.maximum(flat, 1)))
    return _sum_of_squares(rows, 1), _sum_of_squares(rows, _FAR), information


def _sum_of_squares(rows: NDArray[Any], apart: int) -> int:
    """Return the sum of the squared differences of pixels `apart` columns apart, 0 for too few columns."""
    # The sum is a whole number, and that of a part has fewer bits than a double. On x86, OpenCV calls Intel's IPP, with
    # sums that are off by up to 0.02 in 10**14 for 1, 3 and 5 channels (OpenCV 5.0). Other machines have other code.
    step = max(1, _EXACT // max(1, rows[0].size))
    first, second = rows[:, apart:], rows[:, :-apart]
    starts = range(0, len(rows), step) if first.size else ()
    return sum(
        round(cv2.norm(first[at : at + step], second[at : at + step], cv2.NORM_L2SQR)) for at in starts
    )


def scan_measures(
    image: NDArray[Any],
    spacing_mm: Sequence[float],
    labels: NDArray[Any] | None = None,
    class_mm3: Mapping[int, float] | None = None,
    channels: Sequence[int] = (),
) -> dict[str, float]:
    """Return the measures of a scan and of the classes of its label.

    Args:
        image: values of the source, [depth, height, width, channel]; the first channel is measured.
        spacing_mm: millimeters between its voxels, along depth, height and width.
        labels: class ids [depth, height, width] on the same grid; None without a label.
        class_mm3: volume of each class in the label, of any size.
        channels: class id of each bit, for labels that are sets of classes.

    >>> image = np.arange(4096, dtype=np.int16).reshape(4, 32, 32, 1)
    >>> found = scan_measures(image, (2, 1, 1), (image[..., 0] > 2047).astype(np.uint8), {1: 4096})
    >>> found["class_mm3/1"], found["class_mean/1"], found["middle_value"]
    (4096.0, 2959.5, 2047.0)
    """
    sample = np.sort(image[..., 0][sampling(image.shape[:3])], axis=None)
    found = {
        name: float(sample[(len(sample) - 1) * percent // 100])
        for name, percent in ((measures.LOW_VALUE, 1), (measures.MIDDLE_VALUE, 50), (measures.HIGH_VALUE, 99))
    }
    # Affines are float32 in some files and float64 in others. Voxels of electron microscopes have sides of nanometers,
    # so digits are kept and not decimals.
    found |= {
        name: float(f"{float(side):.5g}") for name, side in zip(measures.SPACINGS_MM, spacing_mm, strict=True)
    }
    for identity, volume in (class_mm3 or {}).items():
        found[measures.of_class(measures.CLASS_MM3, identity)] = float(volume)
    if labels is not None:
        means = _class_means(image[:, ::ROW_STEP, :, 0], labels[:, ::ROW_STEP], channels)
        found |= {measures.of_class(measures.CLASS_MEAN, identity): mean for identity, mean in means.items()}
    return found


def _class_means(values: NDArray[Any], labels: NDArray[Any], channels: Sequence[int]) -> dict[int, float]:
    """Return the mean value of each class with enough voxels, of [depth, height, width]."""
    inside = labels != 0
    # Organs are few percent of a scan, so the values are gathered first.
    chosen, weights = labels[inside], values[inside].astype(np.float64)
    found: dict[int, float] = {}
    for part, identities in _parts(chosen, channels):
        counts = np.bincount(part)
        # NumPy adds the weights in their order, so fractions give one sum on all machines too.
        sums = np.bincount(part, weights)
        for value in np.flatnonzero(counts >= _FEWEST_VOXELS).tolist():
            if value in identities:
                found[identities[value]] = float(sums[value] / counts[value])
    return found


def _parts(chosen: NDArray[Any], channels: Sequence[int]) -> list[tuple[NDArray[Any], Mapping[int, int]]]:
    """Return arrays of small whole numbers, each with the class ids of those numbers that are classes."""
    if channels:
        return [(chosen >> bit & 1, {1: identity}) for bit, identity in enumerate(channels)]
    return [(chosen, {int(value): int(value) for value in np.flatnonzero(np.bincount(chosen))})]
