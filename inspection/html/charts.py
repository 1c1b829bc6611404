"""Charts as inline SVG: pure functions from numbers to markup, colored by report.css."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

WIDTH, HEIGHT = 360, 208
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 14, 38
FLOOR = HEIGHT - BOTTOM
_MAX_BARS = 45
_WIDEST_BAR = 44.0
_MAX_BUBBLES = 3000
_RATIOS = {
    1 / 16: "1:16", 1 / 8: "1:8", 1 / 4: "1:4", 1 / 2: "1:2", 3 / 4: "3:4", 1: "1:1", 4 / 3: "4:3", 2: "2:1", 4: "4:1",
    8: "8:1", 16: "16:1",
}  # fmt: skip
MAX_SERIES = 6
"""Number of line colors in report.css."""
_CHART_COLUMNS = 320
_MAX_DOTS = 40
"""Most points of a line that are also drawn as dots."""
_MIN_SMOOTHED_POINTS = 20
_LOG_RATIO = 30.0
"""Ratio of the highest to the lowest value from which an axis is logarithmic."""
_DOT = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="2.4"></circle>')
_PATH = Markup('<path class="{}" d="{}"></path>')
_RECT = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"></rect>')
_TEXT = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>{}</text>')
_GROUP = Markup("<g><title>{}</title>{}</g>")
_CIRCLE = Markup('<circle class="bubble" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"><title>{}</title></circle>')
_CHART = Markup('<svg viewBox="0 0 {} {}" class="chart" role="img" aria-label="{}">{}</svg>')
_TILING = Markup(
    '<svg class="tiling" width="{:.1f}" height="{:.1f}" aria-hidden="true">{}<path d="{}"{}></path></svg>'
)
_SHEET = Markup('<rect x="{:.2f}" y="{:.2f}" width="{:.1f}" height="{:.1f}" rx="2"></rect>')

Axis = tuple[float, float]
"""The values at the two ends of an axis."""
SeriesCounts = Sequence[int]
"""One count for each of the stacked series."""
Floats = NDArray[np.float64]
ChartPoints = list[tuple[float, float]]


def nice_ticks(highest: float, wanted: int = 4) -> list[float]:
    """Return round numbers from 0 to `highest`.

    >>> nice_ticks(87), nice_ticks(3)
    ([0.0, 20.0, 40.0, 60.0, 80.0], [0.0, 1.0, 2.0, 3.0])
    """
    if highest <= 0:
        return [0.0]
    power = 10 ** math.floor(math.log10(highest / wanted))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * (wanted + 1) >= highest)
    return [float(step * number) for number in range(math.floor(highest / step + 1e-9) + 1)]


def short_number(value: float) -> str:
    """Format a number for an axis.

    >>> short_number(0), short_number(2500), short_number(3e6), short_number(0.5)
    ('0', '2.5k', '3M', '0.5')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def histogram(
    values: Mapping[int, SeriesCounts], *, unit: str, marker: tuple[float, str] | None = None
) -> Markup:
    """Draw a histogram of integers as vertical bars, stacked by series.

    Args:
        values: counts per series, by value; wide ranges are grouped into bins of equal width.
        unit: name of the horizontal axis.
        marker: value and label of a dashed line, drawn if the value is in range.
    """
    if not values:
        return Markup("")
    lowest, highest = min(values), max(values)
    width = max(1, math.ceil((highest - lowest + 1) / _MAX_BARS))
    bins = (highest - lowest) // width + 1
    step = min((WIDTH - LEFT - RIGHT) / bins, _WIDEST_BAR)

    def title(number: int, count: int) -> str:
        first = lowest + number * width
        return f"{first}{'' if width == 1 else f' to {first + width - 1}'} {unit}: {count:,}"

    drawn = _stacked(values, lambda value: (value - lowest) // width, step, 0.08 * step, title)
    if marker and lowest <= marker[0] <= highest:
        at = LEFT + ((marker[0] - lowest) // width + 1) * step
        anchor, shift = ("end", -4) if at > WIDTH / 2 else ("start", 4)
        drawn.append(path(f"M{at:.1f} {TOP - 8}V{FLOOR}", "marker"))
        drawn.append(text_at(at + shift, TOP - 1, marker[1], anchor, "strong"))
    ticks = [
        (LEFT + (number + 0.5) * step, str(lowest + number * width))
        for number in range(0, bins, max(1, math.ceil(bins / 8)))
    ]
    return chart(f"histogram of {unit}", drawn, ticks, unit)


def spread(values: Mapping[float, SeriesCounts], *, unit: str) -> Markup:
    """Draw a histogram of scans by a fractional value, in up to 24 bins, stacked by series."""
    if not values:
        return Markup("")
    lowest, highest = min(values), max(values)
    ticks = nice_ticks(max(highest - lowest, 0.2 * abs(highest), 1e-6), 20)
    width = ticks[1] if len(ticks) > 1 else 1.0
    first = math.floor(lowest / width + 1e-6)
    # 1e-6: a value on the edge of a bin must not fall below it by rounding.
    bins = math.floor(highest / width + 1e-6) - first + 1
    step = min((WIDTH - LEFT - RIGHT) / bins, _WIDEST_BAR)

    def title(number: int, count: int) -> str:
        low = (first + number) * width
        return f"{low:.4g} to {low + width:.4g} {unit}: {count:,} scans"

    drawn = _stacked(values, lambda value: math.floor(value / width + 1e-6) - first, step, 0.08 * step, title)
    start, end = first * width, (first + bins) * width
    named = [(LEFT + (mark - start) / width * step, f"{mark:.4g}") for mark in _round_between(start, end, 4)]
    # One or two bars have no room for round numbers.
    if bins < 3:
        ends = dict.fromkeys((f"{lowest:.4g}", f"{highest:.4g}"))
        named = [(LEFT + bins * step / 2, " to ".join(ends))]
    return chart(f"histogram of {unit}", drawn, named, unit)


def ratios(counts: Mapping[float, SeriesCounts]) -> Markup:
    """Draw a histogram of width / height on a logarithmic axis, stacked by series."""
    if not counts:
        return Markup("")
    logs = {ratio: math.log2(max(ratio, 0.05)) for ratio in counts}
    reach = max(1.0, max(map(abs, logs.values())) + 0.15)
    bins = 36
    drawn = _stacked(
        counts,
        lambda ratio: min(bins - 1, int((logs[ratio] + reach) / (2 * reach) * bins)),
        (WIDTH - LEFT - RIGHT) / bins,
        0.5,
    )
    axis_x = (-reach, reach)
    named = [
        (x_at(math.log2(ratio), axis_x), name)
        for ratio, name in _RATIOS.items()
        if abs(math.log2(ratio)) <= reach and (reach < 2 or name not in ("3:4", "4:3"))
    ]
    middle = path(f"M{x_at(0, axis_x):.1f} {TOP}V{FLOOR}", "guide")
    grid, *bars = drawn
    return chart("aspect ratios", [grid, middle, *bars], named, "width : height")


def densities(
    series: Sequence[tuple[str, Sequence[float], Sequence[int]]],
    window: Axis | None,
    ends: Axis,
    *,
    unit: str,
    step: float,
    origin: float,
) -> Markup:
    """Draw the distribution of values, one curve per series, each scaled to its own height; spikes are cut off.

    Args:
        series: (CSS class of the color, values, count of each value).
        window: range to draw as a band.
        ends: range of the horizontal axis; values outside are not drawn.
        unit: name of the horizontal axis.
        step: distance of neighboring possible values, so that each bin holds equally many; 0 for fractional values.
        origin: one of the possible values.
    """
    low, high = ends
    width = (high - low) / 120
    # A bin that holds one possible value more than its neighbor would draw a false comb.
    if step:
        low = origin + (math.floor((low - origin) / step) - 0.5) * step
        width = step * max(1, math.ceil(width / step))
    bins = max(1, math.ceil((high - low) / width))
    axis_x = (low, low + bins * width)
    xs = [x_at(low + (at + 0.5) * width, axis_x) for at in range(bins)]
    band, markers = _band(window, axis_x) if window else ([], [])
    curves = []
    for kind, values, counts in series:
        heights = _binned(values, counts, low, width, bins)
        # The end bins hold clipped values, whose spikes would set the scale.
        usual = 1.6 * _percentile_97(filter(None, heights[1:-1]), max(heights))
        top = max(1.0, min(1.06 * max(heights), usual))
        curves.append(_curve(xs, [max(TOP, y_at(count, (0.0, top))) for count in heights], kind))
    axis = path(f"M{LEFT:.1f} {FLOOR:.1f}L{WIDTH - RIGHT:.1f} {FLOOR:.1f}", "axis")
    ticks = [(x_at(mark, axis_x), f"{mark:,.4g}") for mark in _round_between(*axis_x, 5)]
    return chart("values", [axis, *band, *curves, *markers], ticks, unit)


def _binned(values: Sequence[float], counts: Sequence[int], low: float, width: float, bins: int) -> list[int]:
    """Return the count of values in each bin; values outside of all bins are ignored."""
    heights = [0] * bins
    for value, count in zip(values, counts, strict=True):
        at = math.floor((value - low) / width)
        if 0 <= at < bins:
            heights[at] += count
    return heights


def _band(window: Axis, axis_x: Axis) -> tuple[list[Markup], list[Markup]]:
    """Draw a range of the horizontal axis as a band, which goes below curves, and its ends, which go above them."""
    edges = [min(max(x_at(value, axis_x), LEFT), WIDTH - RIGHT) for value in window]
    band = _rect(edges[0], TOP, max(1.0, edges[1] - edges[0]), FLOOR - TOP, "band")
    markers = []
    for at, (value, x) in enumerate(zip(window, edges, strict=True)):
        markers.append(path(f"M{x:.1f} {TOP - 2}V{FLOOR}", "marker"))
        # Numbers are outside of the band, except where they would leave the chart.
        is_left = WIDTH - RIGHT - x < 60 or (at == 0 and x - LEFT >= 60)
        anchor, shift = ("end", -4) if is_left else ("start", 4)
        markers.append(text_at(x + shift, TOP - 4, f"{value:g}", anchor, "strong"))
    return [band], markers


def bubbles(sizes: Mapping[tuple[int, int], int], stored: tuple[int, int]) -> Markup:
    """Draw sizes (height, width) as circles whose area is their count, and the `stored` size as a frame."""
    if not sizes:
        return Markup("")
    shown = [*sizes, stored]
    # One scale for both axes, so that squares are square.
    unit = max(
        1.08 * max(w for _, w in shown) / (WIDTH - LEFT - RIGHT),
        1.08 * max(h for h, _ in shown) / (FLOOR - TOP),
    )
    axis_x, axis_y = (0.0, unit * (WIDTH - LEFT - RIGHT)), (0.0, unit * (FLOOR - TOP))
    guide = min(axis_x[1], axis_y[1])
    drawn = [
        grid_y(axis_y),
        path(f"M{LEFT:.1f} {FLOOR:.1f}L{x_at(guide, axis_x):.1f} {y_at(guide, axis_y):.1f}", "guide"),
    ]
    top = y_at(stored[0], axis_y)
    drawn.append(_rect(LEFT, top, x_at(stored[1], axis_x) - LEFT, FLOOR - top, "frame"))
    most = max(sizes.values())
    for (height, width), count in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:_MAX_BUBBLES]:
        radius = max(2.2, 12 * math.sqrt(count / most))
        title = f"about {height} x {width}: {count:,}"
        drawn.append(_CIRCLE.format(x_at(width, axis_x), y_at(height, axis_y), radius, title))
    ticks = [(x_at(value, axis_x), short_number(value)) for value in nice_ticks(axis_x[1])]
    return chart("sizes of the sources", drawn, ticks, "width in pixels")


def channel_curves(
    histograms: Sequence[Sequence[int]], means: Sequence[float], names: Sequence[str], peak: int
) -> Markup:
    """Draw histograms of 256 bins over 0 to `peak`, one per channel, with a line at each mean.

    Spikes from saturated pixels and computer drawings are cut off, so that they do not set the scale.
    """
    inner = [count for bins in histograms for count in bins[1:-1]]
    highest = max(inner, default=0)
    axis_x = (0.0, 256.0)
    axis_y = (0.0, max(1.0, min(1.06 * highest, 1.6 * _percentile_97(inner, 0) or 1e18)))
    drawn = [grid_y(axis_y, numbers=False)]
    for bins, mean, name in zip(histograms, means, names, strict=True):
        xs = [x_at(at + 0.5, axis_x) for at in range(len(bins))]
        drawn.append(_curve(xs, [max(TOP - 6.0, y_at(count, axis_y)) for count in bins], name))
        x = x_at((mean + 0.5) * 256 / (peak + 1), axis_x)
        drawn.append(path(f"M{x:.1f} {TOP}V{FLOOR}", f"mean {name}"))
    ticks = [(x_at(256 * share, axis_x), f"{round(peak * share):,}") for share in (0, 0.25, 0.5, 0.75, 1)]
    return chart("pixel values", drawn, ticks, "stored value")


def tiling(shape: tuple[int, ...], parts: tuple[int, ...]) -> Markup:
    """Draw an image of (height, width) split into (rows, columns); parts along depth are sheets behind each other."""
    *depth_parts, rows, columns = parts
    sheets = math.prod(depth_parts)
    scale = 44 / max(shape[-2:])
    height, width = (max(6.0, side * scale) for side in shape[-2:])
    lines = [f"M0.75 {0.75 + height * row / rows:.1f}h{width:.1f}" for row in range(1, rows)]
    lines += [f"M{0.75 + width * column / columns:.1f} 0.75v{height:.1f}" for column in range(1, columns)]
    gap = min(4.0, 16 / max(1, sheets - 1))
    room = gap * (sheets - 1)
    frames = [
        _SHEET.format(0.75 + gap * sheet, 0.75 + room - gap * sheet, width, height)
        for sheet in reversed(range(sheets))
    ]
    moved = Markup(' transform="translate(0 {:.2f})"').format(room) if room else ""
    return _TILING.format(
        width + room + 1.5, height + room + 1.5, Markup().join(frames), "".join(lines), moved
    )


def x_at(value: float, axis: Axis) -> float:
    """Return the x coordinate of a value."""
    return LEFT + (value - axis[0]) / (axis[1] - axis[0]) * (WIDTH - LEFT - RIGHT)


def y_at(value: float, axis: Axis) -> float:
    """Return the y coordinate of a value."""
    return FLOOR - (value - axis[0]) / (axis[1] - axis[0]) * (FLOOR - TOP)


def path(commands: str, kind: str) -> Markup:
    """Return an SVG path of the CSS class `kind`."""
    return _PATH.format(kind, commands)


def text_at(x: float, y: float, words: str, anchor: str = "middle", kind: str | None = None) -> Markup:
    """Return text at a position of a chart."""
    return _TEXT.format(x, y, anchor, Markup(' class="{}"').format(kind) if kind else "", words)


def grid_y(axis: Axis, *, numbers: bool = True) -> Markup:
    """Draw horizontal grid lines at integers."""
    drawn = []
    for value in filter(float.is_integer, nice_ticks(axis[1])):
        y = y_at(value, axis)
        drawn.append(path(f"M{LEFT:.1f} {y:.1f}L{WIDTH - RIGHT:.1f} {y:.1f}", "grid" if value else "axis"))
        if numbers:
            drawn.append(text_at(LEFT - 6, y + 3.5, short_number(value), "end"))
    return Markup().join(drawn)


def chart(title: str, drawn: Sequence[Markup], ticks: Sequence[tuple[float, str]], name: str) -> Markup:
    """Return an SVG with ticks (x, text) and the name of the horizontal axis; screen readers read the title."""
    below = [text_at(at, FLOOR + 17, words) for at, words in ticks]
    below.append(text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, name, "middle", "axis-name"))
    return _CHART.format(WIDTH, HEIGHT, title, Markup().join([*drawn, *below]))


def _stacked(
    values: Mapping[Any, SeriesCounts],
    bin_of: Callable[[Any], int],
    step: float,
    margin: float,
    title: Callable[[int, int], str] | None = None,
) -> list[Markup]:
    """Draw the grid, then the stacked bars of each bin."""
    binned: dict[int, list[int]] = {}
    for value, counts in values.items():
        known = binned.setdefault(bin_of(value), [0] * len(counts))
        known[:] = map(sum, zip(known, counts, strict=True))
    axis_y = (0.0, float(max(1, *map(sum, binned.values()))))
    drawn = [grid_y(axis_y)]
    for number, counts in sorted(binned.items()):
        base, pieces = 0, []
        for series, count in enumerate(counts):
            if count:
                top, bottom = y_at(base + count, axis_y), y_at(base, axis_y)
                left = LEFT + number * step + margin
                pieces.append(_rect(left, top, step - 2 * margin, bottom - top, f"s{series}"))
                base += count
        bar = Markup().join(pieces)
        drawn.append(_GROUP.format(title(number, base), bar) if title else bar)
    return drawn


def _curve(xs: Sequence[float], ys: Sequence[float], kind: str) -> Markup:
    """Draw a filled curve over the full width of the chart."""
    points = [f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True)]
    return path(f"M{LEFT} {FLOOR}L{'L'.join(points)}L{WIDTH - RIGHT} {FLOOR}Z", f"curve {kind}")


def _percentile_97(counts: Iterable[int], otherwise: int) -> int:
    """Return the 97th percentile of counts, which ignores spikes; `otherwise` without counts."""
    ordered = sorted(counts)
    return ordered[int(0.97 * (len(ordered) - 1))] if ordered else otherwise


def _round_between(low: float, high: float, wanted: int) -> list[float]:
    """Return round numbers from `low` to `high`."""
    apart = nice_ticks(high - low, wanted)[1]
    first, last = math.ceil(low / apart - 1e-6), math.floor(high / apart + 1e-6)
    return [number * apart for number in range(first, last + 1)]


def _rect(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    return _RECT.format(kind, x, y, width, height)


@dataclass(frozen=True, kw_only=True)
class LineSeries:
    """One line of a chart.

    Args:
        name: name in the legend.
        steps: ascending float64 [points].
        values: float64 [points]; NaN is a gap.
        smooth: whether to draw the mean over neighboring steps, with the values behind it.
    """

    name: str
    steps: Floats
    values: Floats
    smooth: bool = False


@dataclass(frozen=True, kw_only=True)
class _LineAxes:
    """Axes of a line chart; `y` are logarithms if it is logarithmic upwards."""

    x: Axis
    y: Axis
    logarithmic: bool

    def placed(self, steps: Floats, values: Floats) -> ChartPoints:
        """Return the coordinates of a line; NaN in y is a gap."""
        # A logarithmic axis has no place for 0, which is drawn at its lower end.
        heights = np.log10(np.maximum(values, 10 ** self.y[0])) if self.logarithmic else values
        steps, heights = thin_points(steps, heights)
        points = zip(steps.tolist(), heights.tolist(), strict=True)
        return [(x_at(step, self.x), y_at(height, self.y)) for step, height in points]


def line_chart(
    series: Sequence[LineSeries], title: str, *, unit: str = "", top: float | None = None
) -> Markup:
    """Draw lines over training steps.

    The vertical axis begins at 0, or is logarithmic if positive values span decades.

    Args:
        series: up to `MAX_SERIES` lines.
        title: title for screen readers; the main figures are added.
        unit: suffix of the numbers at the axis, such as "%".
        top: least upper end of the axis, which is then never logarithmic.
    """
    everything = np.concatenate([one.values for one in series]) if series else np.zeros(0)
    finite = everything[np.isfinite(everything)]
    if not len(finite):
        return Markup('<p class="none">No values are logged.</p>')
    logarithmic = top is None and spans_decades(finite)
    axis_x = (0.0, max(1.0, *(float(one.steps[-1]) for one in series if len(one.steps))))
    axis_y, ticks = _vertical(finite, logarithmic, top)
    axes = _LineAxes(x=axis_x, y=axis_y, logarithmic=logarithmic)
    drawn = []
    for value, words in ticks:
        y = y_at(value, axis_y)
        drawn += [
            path(f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", "grid"),
            text_at(LEFT - 6, y + 3.5, words + unit, "end"),
        ]
    drawn.append(path(f"M{LEFT} {FLOOR}H{WIDTH - RIGHT}", "axis"))
    for at, one in enumerate(series):
        drawn += _drawn_line(one, axes, at)
    places = [
        (x_at(value, axis_x), short_number(value))
        for value in nice_ticks(axis_x[1], 5)
        if value == int(value)
    ]
    name = "step, logarithmic scale upwards" if logarithmic else "step"
    return chart(f"{title}: {'; '.join(map(_summary_of, series))}", drawn, places, name)


def _drawn_line(one: LineSeries, axes: _LineAxes, color: int) -> list[Markup]:
    """Draw a line; a smooth one is the mean over neighbors, above the values."""
    values, raw = one.values, []
    if one.smooth and np.isfinite(values).sum() >= _MIN_SMOOTHED_POINTS:
        raw = [_path(axes.placed(one.steps, values), f"raw s{color}")]
        # The values are averaged, not their logarithms, even on a logarithmic axis.
        values = running_mean(values)
    line = axes.placed(one.steps, values)
    return [*raw, _path(line, f"line s{color}"), *_dots(line, f"dot s{color}")]


def spans_decades(values: Floats) -> bool:
    """Return whether 99 % of the values are positive, none is negative, and the range needs a logarithmic axis.

    >>> spans_decades(np.array([4.0, 0.1])), spans_decades(np.array([4.0, 1.0])), spans_decades(np.array([4.0, 0.0]))
    (True, False, False)
    """
    positive = values[values > 0]
    if not len(positive) or (values < 0).any() or len(positive) < 0.99 * len(values):
        return False
    return bool(positive.max() > _LOG_RATIO * positive.min())


def running_mean(values: Floats) -> Floats:
    """Return the mean over neighbors, about 1/30 of all points, fewer at the ends; NaN stays and is ignored."""
    reach = smoothing_width(len(values)) // 2
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    places = np.arange(len(values))
    # Symmetric windows keep a straight line straight up to its ends.
    near = np.minimum(np.minimum(places, places[::-1]), reach)
    first, beyond = places - near, places + near + 1
    counted = np.maximum(counts[beyond] - counts[first], 1)
    return np.asarray(np.where(known, (sums[beyond] - sums[first]) / counted, np.nan))


def smoothing_width(points: int) -> int:
    """Return the number of points that `running_mean` averages, an odd number.

    >>> smoothing_width(300), smoothing_width(20)
    (11, 3)
    """
    return 2 * max(1, points // 60) + 1


def thin_points(steps: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Keep the lowest and highest point of each pixel column of the chart; one point of a column with gaps only."""
    # Few points need no thinning: a column of the chart keeps up to two.
    if len(steps) <= 2 * _CHART_COLUMNS:
        return steps, values
    span = max(float(steps[-1] - steps[0]), 1e-12)
    column = np.minimum(((steps - steps[0]) / span * _CHART_COLUMNS).astype(np.int64), _CHART_COLUMNS - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    kept: list[int] = []
    for first, beyond in zip(starts.tolist(), [*starts[1:].tolist(), len(steps)], strict=True):
        part = values[first:beyond]
        # A gap of the line stays a gap.
        if np.isnan(part).all():
            kept.append(first)
        else:
            kept += sorted({first + int(np.nanargmin(part)), first + int(np.nanargmax(part))})
    return steps[kept], values[kept]


def _vertical(values: Floats, logarithmic: bool, top: float | None) -> tuple[Axis, list[tuple[float, str]]]:
    """Return the ends of the vertical axis (as logarithms if it is logarithmic), and its ticks."""
    if logarithmic:
        return _logarithmic(float(values[values > 0].min()), float(values.max()))
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()), top or 0.0)
    if high <= low:
        high = low + 1.0
    step = nice_ticks(high - low, 4)[1]
    # A margin, because a line at the edge would be cut in half; a `top` of 1 or 100 % stays the end.
    high = high if high == top else high + 0.03 * (high - low)
    marks = [
        number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]
    return (low, high), [(mark, short_number(round(mark, 12))) for mark in marks]


def _logarithmic(lowest: float, highest: float) -> tuple[Axis, list[tuple[float, str]]]:
    """Return the logarithms at the ends of a logarithmic axis, and its ticks: powers of ten, 2 and 5 times them."""
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
    return axis, [(mark, short_number(10**mark)) for mark in marks if axis[0] <= mark <= axis[1]]


def _path(points: ChartPoints, kind: str) -> Markup:
    pieces, move = [], "M"
    for x, y in points:
        if is_known := math.isfinite(y):
            pieces.append(f"{move}{x:.1f} {y:.1f}")
        move = "L" if is_known else "M"
    return path("".join(pieces), kind)


def _dots(points: ChartPoints, kind: str) -> list[Markup]:
    """Draw dots for all points if there are few, else for isolated points."""
    known = np.isfinite([y for _, y in points])
    joined = known & (np.append(known[1:], False) | np.append(False, known[:-1]))
    shown = known if known.sum() <= _MAX_DOTS else known & ~joined
    return [_DOT.format(kind, *points[at]) for at in np.flatnonzero(shown)]


def _summary_of(one: LineSeries) -> str:
    """Describe a line in words for screen readers."""
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
