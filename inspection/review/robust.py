"""Robust distances from what is usual, for measures with heavy tails and for small sets.

A value is unusual if it is further from the median than a limit. The limit is a multiple of the spread on its side, at
least a stated distance that matters in practice. Each side has its own spread, which a few faults cannot change:

    median           90 % of the values        limit
      |--- spread x 1.28 ---|                     |
      |------ factor(n) x spread, or `least` -----|      a score is a distance divided by the limit
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FEWEST: Final = 20
"""Values below which none is unusual: the 90 % quantile of fewer is one of the two largest values."""
LARGEST_SHARE: Final = 0.08
"""Share of the values beyond a limit above which they are a group of the set and not faults."""
_NORMAL: Final = {0.9: 1.2816, 0.75: 0.6745}
"""Standard deviations of a normal distribution from its median to a quantile."""
_LEAST_FACTOR: Final = 5.0
_TAIL: Final = 1.5
_FEW: Final = 10


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Rule for unusual values.

    Args:
        least: smallest distance from the median that matters.
        below, above: whether values below and above the median may be unusual.
        fewest: number of values below which none is unusual.
        quantile: 0.9, or 0.75 for measures of which a fifth may be faults.
        largest_share: share of the values beyond a limit above which none is unusual.
    """

    least: float
    below: bool = True
    above: bool = True
    fewest: int = FEWEST
    quantile: float = 0.9
    largest_share: float = LARGEST_SHARE


def unusual(values: NDArray[Any], limits: Limits) -> NDArray[np.float64]:
    """Return the distance of each value from the median, divided by the limit on its side.

    Args:
        values: float64 [value]; others than finite ones are not counted.

    Returns:
        float64 [value], negative below the median; those from -1 to 1 are usual. Sides where none may be unusual, and
        values that are not finite, have 0.

    >>> values = np.r_[np.linspace(-1, 1, 99), 30, np.nan]
    >>> [round(score, 1) for score in unusual(values, Limits(least=2))[[0, 98, 99, 100]].tolist()]
    [0.0, 0.3, 8.6, 0.0]
    """
    scores = np.zeros(len(values))
    known = np.isfinite(values)
    count = int(known.sum())
    if count < limits.fewest:
        return scores
    distances = values[known] - np.median(values[known])
    found = np.zeros(count)
    for sign, counts in ((-1, limits.below), (1, limits.above)):
        if not counts:
            continue
        away = distances * sign
        # The other half of the values are 0 or below.
        spread = float(np.quantile(away, limits.quantile)) / _NORMAL[limits.quantile]
        one_side = away / max(limits.least, factor_of(count) * spread)
        if 0 < np.count_nonzero(one_side > 1) <= limits.largest_share * count:
            found = np.where(away > 0, sign * one_side, found)
    scores[known] = found
    return scores


def factor_of(count: int) -> float:
    """Return the multiple of a spread beyond which a value is unusual.

    On average, 0.1 of `count` values with an exponential tail are beyond it. Normal ones are never: it is at least 5.

    >>> round(factor_of(100), 1), round(factor_of(5000), 1)
    (5.5, 8.0)
    """
    # An exponential tail exp(-x) / 2 has its 90 % quantile at log 5, which makes a spread of log(5) / 1.28.
    factor = max(_LEAST_FACTOR, (math.log(count) + _TAIL) * _NORMAL[0.9] / math.log(5))
    # Quantiles of few values vary: without this, 0.6 % of 20 values with such a tail were unusual, with it 0.14 %.
    return factor * (1 + _FEW / count)


def distance_between(first: NDArray[Any], second: NDArray[Any], tolerance: float = 0.0) -> float:
    """Return the largest difference of the cumulative shares of two samples, 0 to 1 (Kolmogorov and Smirnov).

    Args:
        tolerance: difference of two values that does not matter. Sides of 533 and of 534 pixels are 1 apart without it.

    >>> distance_between(np.array([1, 2, 3, 4]), np.array([3, 4, 5, 6]))
    0.5
    >>> distance_between(np.full(9, 533), np.full(9, 534)), distance_between(np.full(9, 533), np.full(9, 534), 1)
    (1.0, 0.0)
    """
    one, other = np.sort(first), np.sort(second)

    def exceeds(smaller: NDArray[Any], larger: NDArray[Any]) -> float:
        shares = np.arange(1, len(smaller) + 1) / len(smaller)
        return float((shares - np.searchsorted(larger, smaller + tolerance, "right") / len(larger)).max())

    return max(0.0, exceeds(one, other), exceeds(other, one))


def is_drift(distance: float, first: int, second: int, least: float) -> bool:
    """Return whether a distance of two samples is both large and no chance.

    Args:
        distance: see `distance_between`.
        first, second: sizes of the samples.
        least: distance from which it is large.

    >>> is_drift(0.4, 100, 40, 0.25), is_drift(0.4, 100, 10, 0.25), is_drift(0.1, 10**6, 10**6, 0.25)
    (True, False, False)
    """
    # Equal distributions have less than 1.95 in 999 of 1,000 cases (Smirnov 1948, table of the limit distribution).
    return distance >= least and distance * math.sqrt(first * second / (first + second)) > _SMIRNOV


_SMIRNOV: Final = 1.95
