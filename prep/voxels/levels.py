"""Measurement of the levels of an image before and after its values are stored with fewer of them.

A level is a distinct value. Few levels alone are no loss: a mask has two. What counts is how far rounding moves the
values, compared with their spread, as in `halofeed.prep.voxels.intensity.IntensityPlan.rounding_loss`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

LARGEST_LOSS: Final = 1 / 16
"""Rounding loss above which contrast is lost: 8 bits of a 12-bit scan in a window have 1/200 and less, 8 bits of
Hounsfield units + 32768 have 1/7 and more."""
_SAMPLED_PIXELS: Final = 1 << 18
_TRIMMED: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Levels of an image before and after a conversion of its values.

    Args:
        before: number of distinct values before.
        after: number of distinct values after.
        low: smallest value before.
        high: largest value before.
        loss: how far rounding moves the values, as a fraction of their spread without the lowest and the highest
            percent and without the smallest value, which is background; 0 if values that differ stay different.
        inside: share of the values that a window keeps apart, strictly between its ends; 1 without a window.
    """

    before: int
    after: int
    low: float
    high: float
    loss: float
    inside: float = 1.0

    @property
    def is_flat(self) -> bool:
        """Return whether several values became one."""
        return self.after == 1 < self.before

    @property
    def is_lost(self) -> bool:
        """Return whether values that differ became equal, and rounding moves them by a large part of their spread."""
        return self.loss > LARGEST_LOSS

    def text(self) -> str:
        """Return the figures in words."""
        became = "1 level" if self.after == 1 else f"{self.after:,} levels"
        return f"{self.before:,} levels from {self.low:g} to {self.high:g} become {became}"


def measure_levels(
    values: NDArray[Any], counts: NDArray[Any], stored: NDArray[Any], restored: NDArray[np.float64]
) -> Levels:
    """Measure the levels of counted values.

    Args:
        values: [level], ascending distinct values.
        counts: [level], how often each occurs.
        stored: [level], the stored number of each value.
        restored: [level], the value that each stored number stands for.

    >>> few = np.array([0.0, 100.0, 200.0])
    >>> measure_levels(few, np.array([9, 5, 4]), np.array([0, 0, 1]), np.array([0.0, 0.0, 257.0])).is_lost
    True
    """
    wide = values.astype(np.float64)
    after = len(np.unique(stored))
    above = slice(1, None)  # the smallest value is background
    weights = counts[above].astype(np.float64)
    total = weights.sum()
    loss = 0.0
    if total and after < len(values):
        order = np.cumsum(weights)
        kept = (order > _TRIMMED * total) & (order - weights < (1 - _TRIMMED) * total)
        weights = weights * kept
        moved = math.sqrt(float(np.average((wide[above] - restored[above]) ** 2, weights=weights)))
        mean = float(np.average(wide[above], weights=weights))
        spread = math.sqrt(float(np.average((wide[above] - mean) ** 2, weights=weights)))
        loss = moved / spread if spread else float(moved > 0)
    return Levels(
        before=len(values),
        after=after,
        low=float(values[0]),
        high=float(values[-1]),
        loss=loss,
    )


def picture_levels(
    pixels: NDArray[Any],
    to_stored: Callable[[NDArray[np.uint16]], NDArray[Any]],
    to_value: Callable[[NDArray[Any]], NDArray[np.float64]],
) -> Levels:
    """Return the levels of a 16-bit picture [height, width, color]: those of the color that loses the least.

    Large pictures are measured in evenly spaced rows.

    Args:
        to_stored: function from 16-bit values to 8 bits.
        to_value: function from 8 bits back to 16-bit values.
    """
    step = max(1, pixels.shape[0] * pixels.shape[1] // _SAMPLED_PIXELS)
    rows = np.ascontiguousarray(pixels[::step])
    found = []
    for channel in range(pixels.shape[2]):
        histogram = cv2.calcHist([rows], [channel], None, [1 << 16], [0, 1 << 16]).ravel()
        values = np.flatnonzero(histogram).astype(np.uint16)
        stored = to_stored(values)
        found.append(measure_levels(values, histogram[values], stored, to_value(stored)))
    return min(found, key=lambda levels: levels.loss)
