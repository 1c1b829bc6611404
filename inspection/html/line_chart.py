"""How do numbers over training steps become a line chart: few points or 100,000, with gaps, on either scale?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from halofeed.inspection.html.charts import (
    FLOOR,
    LEFT,
    RIGHT,
    WIDTH,
    Axis,
    chart,
    label,
    nice_ticks,
    path,
    short,
    x_at,
    y_at,
)

MOST_SERIES = 6
"""As many lines as report.css has colors."""
_COLUMNS = 320
_DOTTED = 40
"""Up to so many points are drawn as dots too."""
_LEAST_SMOOTHED = 20
_LOG_FROM = 30.0
"""A highest value that is so many times the lowest gets a logarithmic axis."""
_DOT = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="2.4"></circle>')

Numbers = NDArray[np.float64]
Points = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line.

    Args:
        name: in the legend.
        steps, values: float64 [points], steps rising; NaN is a gap.
        smooth: draw the mean over neighboring steps, over the values themselves.
    """

    name: str
    steps: Numbers
    values: Numbers
    smooth: bool = False


def line_chart(series: Sequence[Series], title: str, *, unit: str = "", top: float | None = None) -> Markup:
    """Lines over training steps.

    The vertical axis begins at 0, and is logarithmic where positive values span decades.

    Args:
        series: up to `MOST_SERIES`.
        title: what is drawn, for those who do not see it; figures are added.
        unit: written after the axis' numbers, such as "%".
        top: the axis reaches so far at least, and is never logarithmic.
    """
    everything = np.concatenate([one.values for one in series]) if series else np.zeros(0)
    finite = everything[np.isfinite(everything)]
    if not len(finite):
        return Markup('<p class="none">No values are logged.</p>')
    logarithmic = top is None and spans_decades(finite)
    axis_x = (0.0, max(1.0, *(float(one.steps[-1]) for one in series if len(one.steps))))
    axis_y, ticks = _vertical(finite, logarithmic, top)

    def height(values: Numbers) -> Numbers:
        return np.log10(np.maximum(values, 10 ** axis_y[0])) if logarithmic else values

    drawn = []
    for value, words in ticks:
        y = y_at(value, axis_y)
        drawn += [
            path(f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", "grid"),
            label(LEFT - 6, y + 3.5, words + unit, "end"),
        ]
    drawn.append(path(f"M{LEFT} {FLOOR}H{WIDTH - RIGHT}", "axis"))

    def placed(steps: Numbers, values: Numbers) -> Points:
        """Where the points of a line lie; NaN upwards is a gap."""
        steps, heights = thinned(steps, height(values))
        points = zip(steps.tolist(), heights.tolist(), strict=True)
        return [(x_at(step, axis_x), y_at(height, axis_y)) for step, height in points]

    for at, one in enumerate(series):
        values = one.values
        if one.smooth and np.isfinite(values).sum() >= _LEAST_SMOOTHED:
            drawn.append(_path(placed(one.steps, values), f"raw s{at}"))
            # The mean is of the values, also where the axis is logarithmic.
            values = running_mean(values)
        line = placed(one.steps, values)
        drawn += [_path(line, f"line s{at}"), *_dots(line, f"dot s{at}")]
    places = [
        (x_at(value, axis_x), short(value)) for value in nice_ticks(axis_x[1], 5) if value == int(value)
    ]
    name = "step, logarithmic scale upwards" if logarithmic else "step"
    return chart(f"{title}: {'; '.join(map(_in_words, series))}", drawn, places, name)


def spans_decades(values: Numbers) -> bool:
    """Whether values are positive, but for one in a hundred that is 0, and the highest is many times the lowest.

    >>> spans_decades(np.array([4.0, 0.1])), spans_decades(np.array([4.0, 1.0])), spans_decades(np.array([4.0, 0.0]))
    (True, False, False)
    """
    positive = values[values > 0]
    if not len(positive) or (values < 0).any() or len(positive) < 0.99 * len(values):
        return False
    return bool(positive.max() > _LOG_FROM * positive.min())


def running_mean(values: Numbers) -> Numbers:
    """The mean over neighbors, about a thirtieth of all points; fewer at the ends; NaN stays and counts nowhere."""
    reach = smoothing_width(len(values)) // 2
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    places = np.arange(len(values))
    # As far to the left as to the right, so that a straight line stays one up to its ends.
    near = np.minimum(np.minimum(places, places[::-1]), reach)
    first, beyond = places - near, places + near + 1
    counted = np.maximum(counts[beyond] - counts[first], 1)
    return np.asarray(np.where(known, (sums[beyond] - sums[first]) / counted, np.nan))


def smoothing_width(points: int) -> int:
    """Over how many points `running_mean` goes, an odd number.

    >>> smoothing_width(300), smoothing_width(20)
    (11, 3)
    """
    return 2 * max(1, points // 60) + 1


def thinned(steps: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """At most two points for each column of the chart, its lowest and highest, in order; of gaps alone, one."""
    if len(steps) <= 2 * _COLUMNS:
        return steps, values
    span = max(float(steps[-1] - steps[0]), 1e-12)
    column = np.minimum(((steps - steps[0]) / span * _COLUMNS).astype(np.int64), _COLUMNS - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    kept: list[int] = []
    for first, beyond in zip(starts.tolist(), [*starts[1:].tolist(), len(steps)], strict=True):
        part = values[first:beyond]
        if np.isnan(part).all():
            kept.append(first)
        else:
            kept += sorted({first + int(np.nanargmin(part)), first + int(np.nanargmax(part))})
    return steps[kept], values[kept]


def _vertical(values: Numbers, logarithmic: bool, top: float | None) -> tuple[Axis, list[tuple[float, str]]]:
    """The two ends of the vertical axis, as drawn, and its ticks."""
    lowest, highest = float(values.min()), float(values.max())
    if logarithmic:
        lowest = float(values[values > 0].min())
        low, high = math.log10(lowest), math.log10(highest)
        room = 0.04 * (high - low)
        axis = (low - room, high + room)
        factors = (1, 2, 5) if high - low < 2 else (1,)
        apart = max(1, math.ceil((high - low) / 6))
        marks = [
            power + math.log10(factor)
            for power in range(math.floor(low), math.ceil(high) + 1)
            for factor in factors
            if power % apart == 0
        ]
        return axis, [(mark, short(10**mark)) for mark in marks if axis[0] <= mark <= axis[1]]
    low, high = min(0.0, lowest), max(0.0, highest, top or 0.0)
    if high <= low:
        high = low + 1.0
    step = nice_ticks(high - low, 4)[1]
    # A line at the very edge is cut in half; the metrics' 1 and the shares' 100 stay the top.
    high = high if high == top else high + 0.03 * (high - low)
    marks = [
        number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]
    return (low, high), [(mark, short(round(mark, 12))) for mark in marks]


def _path(points: Points, kind: str) -> Markup:
    pieces, move = [], "M"
    for x, y in points:
        if is_known := math.isfinite(y):
            pieces.append(f"{move}{x:.1f} {y:.1f}")
        move = "L" if is_known else "M"
    return path("".join(pieces), kind)


def _dots(points: Points, kind: str) -> list[Markup]:
    """Every point where there are few; else those that no line joins."""
    known = np.isfinite([y for _, y in points])
    joined = known & (np.append(known[1:], False) | np.append(False, known[:-1]))
    shown = known if known.sum() <= _DOTTED else known & ~joined
    return [_DOT.format(kind, *points[at]) for at in np.flatnonzero(shown)]


def _in_words(one: Series) -> str:
    known = np.flatnonzero(np.isfinite(one.values))
    if not len(known):
        return f"{one.name} has no values"
    first, last = int(known[0]), int(known[-1])
    low, high = (int(known[pick(one.values[known])]) for pick in (np.argmin, np.argmax))

    def at(point: int) -> str:
        return f"{one.values[point]:.4g} at step {one.steps[point]:.0f}"

    if first == last:
        return f"{one.name} {at(first)}"
    return f"{one.name} from {at(first)} to {at(last)}, lowest {at(low)}, highest {at(high)}"
