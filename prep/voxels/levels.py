"""Measurement of the levels of an image before and after its values are stored with fewer of them.

A level is a distinct value. Few levels alone are no loss: a mask has two. What counts is how far rounding moves the
values, compared with their spread, as in `halofeed.prep.voxels.intensity.IntensityPlan.rounding_loss`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LARGEST_LOSS: Final = 1 / 16
"""Rounding loss above which contrast is lost: 8 bits of a 12-bit scan in a window have 1/200 and less, 8 bits of
Hounsfield units + 32768 have 1/7 and more."""
_ALL_PIXELS, _SHARE, _MAX_PIXELS = 1 << 12, 64, 1 << 16
"""Pixels of a picture that are measured: all of a small one, else this part, at most so many. Sorting 10,000 takes
0.1 ms, and decoding their picture 15 ms."""
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
        inside: share of the values above the background that are within a window; 1 without one.
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


def measure_levels(values: NDArray[Any], stored: NDArray[Any], restored: NDArray[np.float64]) -> Levels:
    """Measure the levels of sorted values.

    Args:
        values: [value], ascending; equal values count as often as they occur.
        stored: [value], the stored number of each value.
        restored: [value], the value that each stored number represents.

    >>> few = np.repeat([0.0, 100.0, 200.0], [9, 5, 4])
    >>> stored = np.rint(few / 257)
    >>> measure_levels(few, stored, stored * 257).is_lost
    True
    """
    before, after = _distinct(values), _distinct(stored)
    # The smallest value is background.
    above = slice(int(np.searchsorted(values, values[0], "right")), None)
    wide, back = values[above].astype(np.float64), restored[above]
    trimmed = slice(int(_TRIMMED * len(wide)), len(wide) - int(_TRIMMED * len(wide)))
    loss = 0.0
    if after < before and len(wide):
        moved = math.sqrt(float(np.mean((wide[trimmed] - back[trimmed]) ** 2)))
        spread = float(wide[trimmed].std())
        loss = moved / spread if spread else float(moved > 0)
    return Levels(before=before, after=after, low=float(values[0]), high=float(values[-1]), loss=loss)


def _distinct(ordered: NDArray[Any]) -> int:
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + 1


def picture_levels(
    pixels: NDArray[Any],
    to_stored: Callable[[NDArray[np.uint16]], NDArray[Any]],
    to_value: Callable[[NDArray[Any]], NDArray[np.float64]],
) -> Levels:
    """Return the levels of a 16-bit picture [height, width, color]: those of the color that loses the least.

    A part of a large picture's pixels is measured, evenly spaced.

    Args:
        to_stored: function from 16-bit values to 8 bits.
        to_value: function from 8 bits back to 16-bit values.
    """
    count = pixels.shape[0] * pixels.shape[1]
    # An odd step does not stay in the columns of a usual width.
    step = max(1, count // max(_ALL_PIXELS, min(count // _SHARE, _MAX_PIXELS))) | 1
    sample = np.sort(pixels.reshape(count, -1)[::step], axis=0)
    found = []
    for values in sample.T:
        stored = to_stored(np.ascontiguousarray(values))
        found.append(measure_levels(values, stored, to_value(stored)))
    return min(found, key=lambda levels: levels.loss)
