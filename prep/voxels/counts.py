"""How often each value occurs in volumes: counts that add up exactly, and what follows from them.

A value is counted in the bin of its first 12 binary digits, as a float32: whole numbers from -4096 to 4096 (all
usual Hounsfield units) are exact, everything else is within 1/8192 of itself. One rule for CT and MR, whole and
fractional values, so that any two counts can be added, in any order, with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError, UsageError
from halofeed.prep.voxels.intensity import Standard, Window, no_number

_DROPPED_BITS: Final = 12
_SLAB_VOXELS: Final = 1 << 20
_MOST_COUNTED: Final = 1 << 24
"""OpenCV counts in float32, which is exact up to here."""
_KEYS: Final = 1 << (32 - _DROPPED_BITS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """How often values occur.

    Args:
        values: float64 [bin], growing: the values that stand for their bins.
        counts: int64 [bin], each above 0.
    """

    values: NDArray[np.float64]
    counts: NDArray[np.int64]

    @property
    def total(self) -> int:
        """Voxels counted."""
        return int(self.counts.sum())

    def to_json(self) -> dict[str, int]:
        """Value to count, as plain JSON; summing such documents key by key merges them."""
        return {
            _text(value): count
            for value, count in zip(self.values.tolist(), self.counts.tolist(), strict=True)
        }

    @classmethod
    def from_json(cls, document: Mapping[str, int]) -> Counts:
        """What `to_json` gave."""
        pairs = sorted((float(value), count) for value, count in document.items())
        values, counts = zip(*pairs, strict=True) if pairs else ((), ())
        return cls(values=np.array(values, np.float64), counts=np.array(counts, np.int64))


def _text(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def count_intensities(
    array: NDArray[Any], mask: NDArray[Any] | None = None, above: float | None = None
) -> Counts:
    """Counts the values of an array, a slab of slices at a time.

    Args:
        array: [depth, height, width]; integers, float32 or float64.
        mask: of that shape: only voxels where it is not 0 are counted.
        above: only values above this are counted.

    Raises:
        SourceError: a counted value is not finite.
    """
    if mask is not None and mask.shape != array.shape:
        raise UsageError(f"mask: expected {array.shape}, got {mask.shape}")
    small = array.dtype.kind in "iu" and array.dtype.itemsize <= 2
    totals = np.zeros(1 << 8 * array.itemsize if small else _KEYS, np.int64)
    slices = max(1, _SLAB_VOXELS // max(1, array[0].size)) if len(array) else 1
    for start in range(0, len(array), slices):
        part = slice(start, start + slices)
        if small:
            _count_bits(array[part], None if mask is None else mask[part], totals)
            continue
        slab = array[part] if mask is None else array[part][mask[part] != 0]
        if above is not None:
            slab = slab[slab > above]
        if slab.size:
            found = np.bincount(_keys_of(slab.ravel()))
            totals[: len(found)] += found
    used = np.flatnonzero(totals)
    numbers = totals[used]
    if small:
        direct = used.astype(f"u{array.itemsize}").view(array.dtype)
        counted = np.ones(len(direct), bool) if above is None else direct > above
        used, numbers = _keys_of(direct[counted]), numbers[counted]
    values = (used.astype(np.uint32) << np.uint32(_DROPPED_BITS)).view(np.float32).astype(np.float64)
    return _counts_of(values, numbers)


def _count_bits(slab: NDArray[Any], mask: NDArray[Any] | None, totals: NDArray[np.int64]) -> None:
    """Add how often each value of 8 or 16 bits occurs, by its bits; where the mask is not 0, if there is one."""
    bits = np.ascontiguousarray(slab).view(f"u{slab.itemsize}").reshape(-1, 1)
    inside = None
    if mask is not None:
        inside = np.ascontiguousarray(mask) if mask.dtype == np.uint8 else (mask != 0).view(np.uint8)
        inside = inside.reshape(-1, 1)
    for start in range(0, len(bits), _MOST_COUNTED):
        piece = slice(start, start + _MOST_COUNTED)
        where = None if inside is None else inside[piece]
        found = cv2.calcHist([bits[piece]], [0], where, [len(totals)], [0, len(totals)])
        totals += found.ravel().astype(np.int64)


def _keys_of(values: NDArray[Any]) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        # Adding 0 makes a negative zero positive.
        single = values.astype(np.float32) + np.float32(0)
    if not np.isfinite(single).all():
        raise no_number()
    half = np.uint32(1 << (_DROPPED_BITS - 1))
    return np.asarray(((single.view(np.uint32) + half) >> np.uint32(_DROPPED_BITS)).astype(np.int64))


def merge_counts(parts: Iterable[Counts]) -> Counts:
    """The counts of all parts together."""
    parts = [Counts(values=np.empty(0), counts=np.empty(0, np.int64)), *parts]
    values = np.concatenate([part.values for part in parts])
    return _counts_of(values, np.concatenate([part.counts for part in parts]))


def _counts_of(values: NDArray[np.float64], counts: NDArray[np.int64]) -> Counts:
    """Counts of values in any order, which may occur several times."""
    distinct, place = np.unique(values, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, place, counts)
    return Counts(values=distinct, counts=sums)


def percentile(counts: Counts, percent: float) -> float:
    """The smallest value that at least `percent` of all counted do not exceed.

    >>> percentile(Counts(values=np.array([1.0, 5.0]), counts=np.array([9, 1])), 90)
    1.0
    """
    _check_any(counts)
    if not 0 <= percent <= 100:
        raise UsageError(f"percentile: expected 0 to 100, got {percent}")
    rank = max(1, math.ceil(round(counts.total * percent / 100, 6)))
    return float(counts.values[np.searchsorted(np.cumsum(counts.counts), rank)])


def mean_and_deviation(counts: Counts) -> tuple[float, float]:
    """Mean and (population) standard deviation, for z-scores; the same however the counts were merged."""
    _check_any(counts)
    total = counts.total
    pairs = list(zip(counts.values.tolist(), counts.counts.tolist(), strict=True))
    mean = math.fsum(value * count for value, count in pairs) / total
    variance = math.fsum((value - mean) ** 2 * count for value, count in pairs) / total
    return mean, math.sqrt(variance)


def percentile_window(array: NDArray[Any], low: float, high: float, above: float | None = None) -> Window:
    """The window between two percentiles of one scan's values, for MR, which has no fixed unit.

    Args:
        low, high: percentages, e.g. 0.5 and 99.5.
        above: only values above this count: `foreground.mean_of`, or 0 where the background is.

    Raises:
        SourceError: no value is above, or the two percentiles are one value.
    """
    counts = count_intensities(array, above=above)
    ends = percentile(counts, low), percentile(counts, high)
    if ends[0] >= ends[1]:
        detail = f"percentiles {low:g} and {high:g} are {ends[0]:g}"
        raise SourceError("intensity", "values do not differ", detail)
    return Window(low=ends[0], high=ends[1])


def standard_of(array: NDArray[Any]) -> Standard:
    """The mean and deviation of one scan's values above its least one, for z-scores.

    Raises:
        SourceError: no two values differ.
    """
    counts = count_intensities(array, above=float(array.min()))
    mean, deviation = mean_and_deviation(counts)
    if not deviation:
        raise SourceError("intensity", "values do not differ", f"all above the least are {mean:g}")
    return Standard(mean=mean, deviation=deviation)


def _check_any(counts: Counts) -> None:
    if not len(counts.counts):
        raise SourceError(
            "intensity",
            "no foreground found",
            "no voxel lies above the scan's least value; leave --window-percentiles and --normalize scan out, or the "
            "scan",
        )
