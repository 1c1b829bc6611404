"""Counts of the values in volumes, which add up exactly, and the statistics that follow from them.

The bin of a value is its first 12 significant bits as a float32. Integers from -4096 to 4096 are exact, which includes
all usual Hounsfield units. Other values have a relative error below 1/8192. CT, MR, integers and fractions use the same
bins, so any two counts can be added in any order with the same result.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.voxels.intensity import IntensityWindow, Standardization, not_finite
from halofeed.system.errors import SourceError, UsageError

_DROPPED_BITS: Final = 12
_SLAB_VOXELS: Final = 1 << 20
_MAX_EXACT_COUNT: Final = 1 << 24
"""OpenCV counts in float32, which is exact up to this number."""
_KEYS: Final = 1 << (32 - _DROPPED_BITS)


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueCounts:
    """Number of occurrences of each value.

    Args:
        values: float64 [bin], ascending: the value of each bin.
        counts: int64 [bin], each above 0.
    """

    values: NDArray[np.float64]
    counts: NDArray[np.int64]

    @property
    def total(self) -> int:
        """Number of counted voxels."""
        return int(self.counts.sum())

    def to_json(self) -> dict[str, int]:
        """Return value to count as plain JSON; documents merge by summing the counts of each key."""
        return {
            _text(value): count
            for value, count in zip(self.values.tolist(), self.counts.tolist(), strict=True)
        }

    @classmethod
    def from_json(cls, document: Mapping[str, int]) -> ValueCounts:
        """Read the document that `to_json` returned."""
        pairs = sorted((float(value), count) for value, count in document.items())
        values, counts = zip(*pairs, strict=True) if pairs else ((), ())
        return cls(values=np.array(values, np.float64), counts=np.array(counts, np.int64))


def _text(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def count_intensities(
    array: NDArray[Any], mask: NDArray[Any] | None = None, above: float | None = None
) -> ValueCounts:
    """Count the values of an array, some slices at a time.

    Args:
        array: [depth, height, width]; integers, float32 or float64.
        mask: [depth, height, width]; only voxels where it is not 0 are counted.
        above: only values above this are counted.

    Raises:
        SourceError: a counted value is not finite.
    """
    if mask is not None and mask.shape != array.shape:
        raise UsageError(f"mask: expected {array.shape}, got {mask.shape}")
    # Values of 8 and 16 bits have a counter each; others share one if their float32 keys are equal.
    if array.dtype.kind in "iu" and array.dtype.itemsize <= 2:
        used, numbers = _count_small(array, mask, above)
    else:
        used, numbers = _count_wide(array, mask, above)
    values = (used.astype(np.uint32) << np.uint32(_DROPPED_BITS)).view(np.float32).astype(np.float64)
    return _counts_of(values, numbers)


def _slabs(array: NDArray[Any]) -> Iterator[slice]:
    """Yield ranges of slices of a limited number of voxels."""
    slices = max(1, _SLAB_VOXELS // max(1, array[0].size)) if len(array) else 1
    return (slice(start, start + slices) for start in range(0, len(array), slices))


def _count_small(
    array: NDArray[Any], mask: NDArray[Any] | None, above: float | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys of the values of 8 or 16 bits, and their counts."""
    totals = np.zeros(1 << 8 * array.itemsize, np.int64)
    for part in _slabs(array):
        _count_bits(array[part], None if mask is None else mask[part], totals)
    used = np.flatnonzero(totals)
    values = used.astype(f"u{array.itemsize}").view(array.dtype)
    counted = np.ones(len(values), bool) if above is None else values > above
    return _keys_of(values[counted]), totals[used][counted]


def _count_wide(
    array: NDArray[Any], mask: NDArray[Any] | None, above: float | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys of the values of 32 or 64 bits, and their counts."""
    totals = np.zeros(_KEYS, np.int64)
    for part in _slabs(array):
        slab = array[part] if mask is None else array[part][mask[part] != 0]
        if above is not None:
            slab = slab[slab > above]
        if slab.size:
            found = np.bincount(_keys_of(slab.ravel()))
            totals[: len(found)] += found
    used = np.flatnonzero(totals)
    return used, totals[used]


def _count_bits(slab: NDArray[Any], mask: NDArray[Any] | None, totals: NDArray[np.int64]) -> None:
    """Add the count of each 8-bit or 16-bit value, indexed by its bits, where the mask is not 0."""
    # Bytes as channels: OpenCV counts pairs of bytes in 5.6 ms of a CT, and 16-bit values in 8.2 ms.
    size = slab.itemsize
    parts = np.ascontiguousarray(slab).view(np.uint8).reshape(-1, 1, size)
    channels = list(range(size))[:: -1 if sys.byteorder == "little" else 1]
    inside = None
    if mask is not None:
        inside = np.ascontiguousarray(mask) if mask.dtype == np.uint8 else (mask != 0).view(np.uint8)
        inside = inside.reshape(-1, 1)
    for start in range(0, len(parts), _MAX_EXACT_COUNT):
        piece = slice(start, start + _MAX_EXACT_COUNT)
        where = None if inside is None else inside[piece]
        found = cv2.calcHist([parts[piece]], channels, where, [256] * size, [0, 256] * size)
        totals += found.ravel().astype(np.int64)


def _keys_of(values: NDArray[Any]) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        # Adding 0 makes a negative zero positive.
        single = values.astype(np.float32) + np.float32(0)
    if not np.isfinite(single).all():
        raise not_finite()
    half = np.uint32(1 << (_DROPPED_BITS - 1))
    return np.asarray(((single.view(np.uint32) + half) >> np.uint32(_DROPPED_BITS)).astype(np.int64))


def merge_counts(parts: Iterable[ValueCounts]) -> ValueCounts:
    """Return the sum of counts."""
    parts = [ValueCounts(values=np.empty(0), counts=np.empty(0, np.int64)), *parts]
    values = np.concatenate([part.values for part in parts])
    return _counts_of(values, np.concatenate([part.counts for part in parts]))


def _counts_of(values: NDArray[np.float64], counts: NDArray[np.int64]) -> ValueCounts:
    """Sum the counts of values, which may be in any order and occur several times."""
    distinct, indices = np.unique(values, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, indices, counts)
    return ValueCounts(values=distinct, counts=sums)


def percentile(counts: ValueCounts, percent: float) -> float:
    """Return the smallest value that at least `percent` of all counted values do not exceed.

    >>> percentile(ValueCounts(values=np.array([1.0, 5.0]), counts=np.array([9, 1])), 90)
    1.0
    """
    _check_any(counts)
    if not 0 <= percent <= 100:
        raise UsageError(f"percentile: expected 0 to 100, got {percent}")
    rank = max(1, math.ceil(round(counts.total * percent / 100, 6)))
    return float(counts.values[np.searchsorted(np.cumsum(counts.counts), rank)])


def mean_and_deviation(counts: ValueCounts) -> tuple[float, float]:
    """Return mean and population standard deviation for z-scores; the result does not depend on the merge order."""
    _check_any(counts)
    total = counts.total
    pairs = list(zip(counts.values.tolist(), counts.counts.tolist(), strict=True))
    mean = math.fsum(value * count for value, count in pairs) / total
    variance = math.fsum((value - mean) ** 2 * count for value, count in pairs) / total
    return mean, math.sqrt(variance)


def percentile_window(
    array: NDArray[Any], low: float, high: float, above: float | None = None
) -> IntensityWindow:
    """Return the window between two percentiles of the values of one scan, for MR, which has no fixed unit.

    Args:
        array: [depth, height, width].
        low: lower percentage, e.g. 0.5.
        high: upper percentage, e.g. 99.5.
        above: only values above this count: `label_volumes.mean_intensity`, or 0 if that is the background.

    Raises:
        SourceError: there is no value above, or both percentiles are the same value.
    """
    counts = count_intensities(array, above=above)
    ends = percentile(counts, low), percentile(counts, high)
    if ends[0] >= ends[1]:
        detail = f"percentiles {low:g} and {high:g} are {ends[0]:g}"
        raise SourceError("intensity", "values do not differ", detail)
    return IntensityWindow(low=ends[0], high=ends[1])


def measure_standardization(array: NDArray[Any]) -> Standardization:
    """Return mean and deviation of the values of one scan above its minimum, for z-scores.

    Raises:
        SourceError: all values are the same.
    """
    counts = count_intensities(array, above=float(array.min()))
    mean, deviation = mean_and_deviation(counts)
    if not deviation:
        raise SourceError("intensity", "values do not differ", f"all above the least are {mean:g}")
    return Standardization(mean=mean, deviation=deviation)


def _check_any(counts: ValueCounts) -> None:
    if not len(counts.counts):
        raise SourceError(
            "intensity",
            "no foreground found",
            "no voxel lies above the scan's least value; leave --window-percentiles and --normalize scan out, or the "
            "scan",
        )
