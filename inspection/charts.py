"""How counts become charts: pure functions from numbers to HTML bars and inline SVG, coloured by report.css."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from halofeed.inspection.markup import Markup, element

WIDTH, HEIGHT = 360, 208
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 14, 38
_MOST_BARS = 45

Axis = tuple[float, float]
"""The values at the two ends of an axis."""


def nice_ticks(highest: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to `highest`.

    >>> nice_ticks(87), nice_ticks(3)
    ([0.0, 20.0, 40.0, 60.0, 80.0], [0.0, 1.0, 2.0, 3.0])
    """
    if highest <= 0:
        return [0.0]
    power = 10 ** math.floor(math.log10(highest / wanted))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * (wanted + 1) >= highest)
    return [float(step * number) for number in range(math.floor(highest / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number for an axis.

    >>> short(0), short(2500), short(3e6), short(0.5)
    ('0', '2.5k', '3M', '0.5')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def bars(rows: Sequence[tuple[Markup | str, Mapping[int, int]]], kind: str = "bars") -> Markup:
    """Horizontal bars, one row each: a name and counts by series (0, 1, ...), which are stacked."""
    most = max((sum(counts.values()) for _, counts in rows), default=0) or 1
    lines = []
    for name, counts in rows:
        parts = [
            element("i", {"class": f"s{series}", "style": f"width:{100 * count / most:.2f}%"})
            for series, count in counts.items()
            if count
        ]
        each = [element("span", f"ink{series}", f"{count:,}") for series, count in counts.items()]
        total = sum(counts.values())
        lines.append(
            element(
                "div",
                "row",
                element("span", "name", name),
                element("span", "bar", parts),
                element("b", None, f"{total:,}"),
                element("span", "each", each) if len(counts) > 1 else element("span"),
            )
        )
    return element("div", kind, lines)


def shares(parts: Sequence[tuple[str, int]]) -> Markup:
    """One bar that is divided; each part has its colour's class and its count."""
    total = sum(count for _, count in parts) or 1
    return element(
        "div",
        "shares",
        [
            element("i", {"class": colour, "style": f"width:{100 * count / total:.3f}%"})
            for colour, count in parts
            if count
        ],
    )


def histogram(
    values: Mapping[int, Sequence[int]], *, unit: str, marker: tuple[float, str] | None = None
) -> Markup:
    """Upright bars of whole numbers: how many images (stacked by series) have each value.

    Args:
        values: counts per series, by value; wide ranges are put together in bins of equal width.
        marker: a value where a dashed line stands, if it lies within the range, and what it is called.
    """
    if not values:
        return Markup("")
    lowest, highest = min(values), max(values)
    width = max(1, math.ceil((highest - lowest + 1) / _MOST_BARS))
    binned: dict[int, list[int]] = {}
    for value, counts in values.items():
        into = binned.setdefault((value - lowest) // width, [0] * len(counts))
        for series, count in enumerate(counts):
            into[series] += count
    bins = (highest - lowest) // width + 1
    axis_y = (0.0, float(max(1, *map(sum, binned.values()))))
    step = min((WIDTH - LEFT - RIGHT) / bins, 44.0)
    drawn = []
    for number, counts in sorted(binned.items()):
        base = 0
        first = lowest + number * width
        title = f"{first}" if width == 1 else f"{first} to {first + width - 1}"
        pieces = []
        for series, count in enumerate(counts):
            if count:
                top, bottom = _y(base + count, axis_y), _y(base, axis_y)
                pieces.append(
                    _rect(LEFT + number * step + step * 0.08, top, step * 0.84, bottom - top, f"s{series}")
                )
                base += count
        drawn.append(element("g", None, element("title", None, f"{title} {unit}: {base:,}"), pieces))
    labelled = max(1, math.ceil(bins / 8))
    ticks = [
        (LEFT + (number + 0.5) * step, str(lowest + number * width)) for number in range(0, bins, labelled)
    ]
    if marker and lowest <= marker[0] <= highest:
        at = LEFT + ((marker[0] - lowest) // width + 1) * step
        anchor, shift = ("end", -4) if at > WIDTH / 2 else ("start", 4)
        drawn.append(element("path", {"class": "marker", "d": f"M{at:.1f} {TOP - 8}V{HEIGHT - BOTTOM}"}))
        drawn.append(_label(at + shift, TOP - 1, marker[1], anchor, "strong"))
    return _svg(f"histogram of {unit}", _grid_y(axis_y), drawn, _ticks_x(ticks), _name_x(unit))


def spread(values: Mapping[float, Sequence[int]], *, unit: str, what: str = "scans") -> Markup:
    """Upright bars of fractional values: how many scans (stacked by series) lie in each of up to 24 bins."""
    if not values:
        return Markup("")
    lowest, highest = min(values), max(values)
    ticks = nice_ticks(max(highest - lowest, 0.2 * abs(highest), 1e-6), 20)
    width = ticks[1] if len(ticks) > 1 else 1.0
    first = math.floor(lowest / width + 1e-6)
    bins = math.floor(highest / width + 1e-6) - first + 1
    binned: dict[int, list[int]] = {}
    for value, counts in values.items():
        into = binned.setdefault(math.floor(value / width + 1e-6) - first, [0] * len(counts))
        for series, count in enumerate(counts):
            into[series] += count
    axis_y = (0.0, float(max(1, *map(sum, binned.values()))))
    step = min((WIDTH - LEFT - RIGHT) / bins, 44.0)
    drawn = []
    for number, counts in sorted(binned.items()):
        base = 0
        pieces = []
        for series, count in enumerate(counts):
            if count:
                top, bottom = _y(base + count, axis_y), _y(base, axis_y)
                pieces.append(
                    _rect(LEFT + number * step + step * 0.08, top, step * 0.84, bottom - top, f"s{series}")
                )
                base += count
        low = (first + number) * width
        title = f"{low:.4g} to {low + width:.4g} {unit}: {base:,} {what}"
        drawn.append(element("g", None, element("title", None, title), pieces))
    start, end = first * width, (first + bins) * width
    apart = nice_ticks(end - start, 4)[1]
    marks = [
        number * apart
        for number in range(math.ceil(start / apart - 1e-6), math.floor(end / apart + 1e-6) + 1)
    ]
    ticks_x = [(LEFT + (mark - start) / width * step, f"{mark:.4g}") for mark in marks]
    if bins < 3:
        alike = f"{lowest:.4g}" == f"{highest:.4g}"
        ticks_x = [(LEFT + bins * step / 2, f"{lowest:.4g}" if alike else f"{lowest:.4g} to {highest:.4g}")]
    return _svg(f"histogram of {unit}", _grid_y(axis_y), drawn, _ticks_x(ticks_x), _name_x(unit))


def densities(
    series: Sequence[tuple[str, Sequence[float], Sequence[int]]],
    window: Axis | None,
    ends: Axis,
    *,
    unit: str,
    step: float,
    origin: float,
) -> Markup:
    """How values are spread, one curve per series, each to a height of its own; spikes are cut off.

    Args:
        series: (class of its colour, values, how often each occurs).
        window: drawn as a band with its two ends.
        ends: of the axis; what lies beyond is not drawn.
        step: between neighbouring values that begin at `origin`, so that every bin holds equally many of them; 0
            where values are fractional.
    """
    low, high = ends
    width = (high - low) / 120
    if step:
        low = origin + (math.floor((low - origin) / step) - 0.5) * step
        width = step * max(1, math.ceil(width / step))
    bins = max(1, math.ceil((high - low) / width))
    axis_x = (low, low + bins * width)
    floor = HEIGHT - BOTTOM
    drawn = []
    if window:
        left, right = (min(max(_x(value, axis_x), LEFT), WIDTH - RIGHT) for value in window)
        drawn.append(_rect(left, TOP, max(1.0, right - left), floor - TOP, "band"))
    for kind, values, counts in series:
        heights = [0] * bins
        for value, count in zip(values, counts, strict=True):
            at = math.floor((value - low) / width)
            if 0 <= at < bins:
                heights[at] += count
        inner = sorted(count for count in heights[1:-1] if count)
        usual = inner[int(0.97 * (len(inner) - 1))] if inner else max(heights)
        top = max(1.0, min(1.06 * max(heights), 1.6 * usual))
        points = [
            f"{_x(low + (at + 0.5) * width, axis_x):.1f} {max(TOP, _y(count, (0.0, top))):.1f}"
            for at, count in enumerate(heights)
        ]
        path = f"M{LEFT} {floor}L{'L'.join(points)}L{WIDTH - RIGHT} {floor}Z"
        drawn.append(element("path", {"class": f"curve {kind}", "d": path}))
    for at, value in enumerate(window or ()):
        x = min(max(_x(value, axis_x), LEFT), WIDTH - RIGHT)
        drawn.append(element("path", {"class": "marker", "d": f"M{x:.1f} {TOP - 2}V{floor}"}))
        anchor, shift = (("end", -4), ("start", 4))[at]
        if x - LEFT < 60:
            anchor, shift = "start", 4
        if WIDTH - RIGHT - x < 60:
            anchor, shift = "end", -4
        drawn.append(_label(x + shift, TOP - 4, f"{value:g}", anchor, "strong"))
    apart = nice_ticks(axis_x[1] - axis_x[0], 5)[1]
    first = math.ceil(axis_x[0] / apart)
    ticks = [
        (_x(number * apart, axis_x), f"{number * apart:,.4g}")
        for number in range(first, math.floor(axis_x[1] / apart) + 1)
    ]
    return _svg(
        "values", [_line(LEFT, floor, WIDTH - RIGHT, floor, "axis")], drawn, _ticks_x(ticks), _name_x(unit)
    )


def ratios(counts: Mapping[float, Sequence[int]]) -> Markup:
    """How many images (stacked by series) have each width / height, on a logarithmic axis."""
    if not counts:
        return Markup("")
    logs = [math.log2(max(ratio, 0.05)) for ratio in counts]
    reach = max(1.0, max(map(abs, logs)) + 0.15)
    bins = 36
    binned: dict[int, list[int]] = {}
    for (_, per_series), log in zip(counts.items(), logs, strict=True):
        into = binned.setdefault(
            min(bins - 1, int((log + reach) / (2 * reach) * bins)), [0] * len(per_series)
        )
        for series, count in enumerate(per_series):
            into[series] += count
    axis_x, axis_y = (-reach, reach), (0.0, float(max(1, *map(sum, binned.values()))))
    step = (WIDTH - LEFT - RIGHT) / bins
    drawn = []
    for number, per_series in sorted(binned.items()):
        base = 0
        for series, count in enumerate(per_series):
            if count:
                top, bottom = _y(base + count, axis_y), _y(base, axis_y)
                drawn.append(_rect(LEFT + number * step + 0.5, top, step - 1, bottom - top, f"s{series}"))
                base += count
    named = [(1 / 16, "1:16"), (1 / 8, "1:8"), (1 / 4, "1:4"), (1 / 2, "1:2"), (3 / 4, "3:4"), (1, "1:1")]
    named += [(4 / 3, "4:3"), (2, "2:1"), (4, "4:1"), (8, "8:1"), (16, "16:1")]
    places = [(_x(math.log2(ratio), axis_x), name) for ratio, name in named if abs(math.log2(ratio)) <= reach]
    middle = _x(0, axis_x)
    drawn.insert(0, element("path", {"class": "guide", "d": f"M{middle:.1f} {TOP}V{HEIGHT - BOTTOM}"}))
    spaced = [(at, name) for at, name in places if name not in ("3:4", "4:3") or reach < 2]
    return _svg("aspect ratios", _grid_y(axis_y), drawn, _ticks_x(spaced), _name_x("width : height"))


def bubbles(sizes: Mapping[tuple[int, int], int], stored: tuple[int, int] | None) -> Markup:
    """Sizes (height, width) as circles whose area is their count; `stored` is drawn as a frame."""
    if not sizes:
        return Markup("")
    shown = [*sizes, *([stored] if stored else [])]
    # One scale for both axes, so that squares are square.
    unit = max(
        1.08 * max(w for _, w in shown) / (WIDTH - LEFT - RIGHT),
        1.08 * max(h for h, _ in shown) / (HEIGHT - BOTTOM - TOP),
    )
    axis_x, axis_y = (0.0, unit * (WIDTH - LEFT - RIGHT)), (0.0, unit * (HEIGHT - BOTTOM - TOP))
    most = max(sizes.values())
    guide = min(axis_x[1], axis_y[1])
    drawn = [_line(_x(0, axis_x), _y(0, axis_y), _x(guide, axis_x), _y(guide, axis_y), "guide")]
    if stored:
        left, top = _x(0, axis_x), _y(stored[0], axis_y)
        drawn.append(_rect(left, top, _x(stored[1], axis_x) - left, _y(0, axis_y) - top, "frame"))
    for (height, width), count in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        circle = {
            "class": "bubble",
            "cx": f"{_x(width, axis_x):.1f}",
            "cy": f"{_y(height, axis_y):.1f}",
            "r": f"{max(2.2, 12 * math.sqrt(count / most)):.1f}",
        }
        title = element("title", None, f"about {height} x {width}: {count:,}")
        drawn.append(element("circle", circle, title))
    ticks = [(_x(value, axis_x), short(value)) for value in nice_ticks(axis_x[1])]
    return _svg("sizes of the sources", _grid_y(axis_y), drawn, _ticks_x(ticks), _name_x("width in pixels"))


def curves(
    histograms: Sequence[Sequence[int]], means: Sequence[float], names: Sequence[str], peak: int
) -> Markup:
    """Histograms of 256 bins over 0 to `peak`, one per channel, with a line at each mean.

    Spikes, which saturated pixels and computer drawings make, are cut off rather than set the scale.
    """
    inner = sorted(count for bins in histograms for count in bins[1:-1])
    usual = inner[int(0.97 * (len(inner) - 1))] if inner else 0
    axis_x, axis_y = (0.0, 256.0), (0.0, max(1.0, min(1.06 * max(inner, default=0), 1.6 * usual or 1e18)))
    floor = HEIGHT - BOTTOM
    drawn = []
    for bins, mean, name in zip(histograms, means, names, strict=True):
        points = [
            f"{_x(at + 0.5, axis_x):.1f} {max(TOP - 6.0, _y(count, axis_y)):.1f}"
            for at, count in enumerate(bins)
        ]
        path = f"M{LEFT} {floor}L{'L'.join(points)}L{WIDTH - RIGHT} {floor}Z"
        drawn.append(element("path", {"class": f"curve {name}", "d": path}))
        at = _x((mean + 0.5) * 256 / (peak + 1), axis_x)
        drawn.append(element("path", {"class": f"mean {name}", "d": f"M{at:.1f} {TOP}V{floor}"}))
    ticks = [(_x(256 * share, axis_x), f"{round(peak * share):,}") for share in (0, 0.25, 0.5, 0.75, 1)]
    return _svg(
        "pixel values", _grid_y(axis_y, numbers=False), drawn, _ticks_x(ticks), _name_x("stored value")
    )


def tiling(shape: tuple[int, ...], parts: tuple[int, ...]) -> Markup:
    """A small picture of (height, width) that is cut into (rows, columns); cuts in depth are sheets behind it."""
    *depth_parts, rows, columns = parts
    shape, parts = shape[-2:], (rows, columns)
    sheets = math.prod(depth_parts)
    scale = 44 / max(shape)
    height, width = max(6.0, shape[0] * scale), max(6.0, shape[1] * scale)
    lines = [f"M0.75 {0.75 + height * row / parts[0]:.1f}h{width:.1f}" for row in range(1, parts[0])] + [
        f"M{0.75 + width * column / parts[1]:.1f} 0.75v{height:.1f}" for column in range(1, parts[1])
    ]
    gap = min(4.0, 16 / max(1, sheets - 1))
    room = gap * (sheets - 1)
    box = {
        "class": "tiling",
        "width": f"{width + room + 1.5:.1f}",
        "height": f"{height + room + 1.5:.1f}",
        "aria-hidden": "true",
    }
    frames = [
        element(
            "rect",
            {
                "x": f"{0.75 + gap * sheet:.2f}",
                "y": f"{0.75 + room - gap * sheet:.2f}",
                "width": f"{width:.1f}",
                "height": f"{height:.1f}",
                "rx": 2,
            },
        )
        for sheet in reversed(range(sheets))
    ]
    return element(
        "svg",
        box,
        frames,
        element("path", {"d": "".join(lines), "transform": f"translate(0 {room:.2f})" if room else None}),
    )


def _x(value: float, axis: Axis) -> float:
    return LEFT + (value - axis[0]) / (axis[1] - axis[0]) * (WIDTH - LEFT - RIGHT)


def _y(value: float, axis: Axis) -> float:
    return HEIGHT - BOTTOM - (value - axis[0]) / (axis[1] - axis[0]) * (HEIGHT - BOTTOM - TOP)


def _rect(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    sides = {"x": x, "y": y, "width": width, "height": height}
    return element("rect", {"class": kind, **{name: f"{value:.1f}" for name, value in sides.items()}})


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return element("path", {"class": kind, "d": f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"})


def _label(x: float, y: float, words: str, anchor: str = "middle", kind: str | None = None) -> Markup:
    return element("text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "class": kind}, words)


def _grid_y(axis: Axis, *, numbers: bool = True) -> list[Markup]:
    drawn = []
    for value in nice_ticks(axis[1]):
        if value != int(value):
            continue
        y = _y(value, axis)
        drawn.append(_line(LEFT, y, WIDTH - RIGHT, y, "grid" if value else "axis"))
        if numbers:
            drawn.append(_label(LEFT - 6, y + 3.5, short(value), "end"))
    return drawn


def _ticks_x(ticks: Sequence[tuple[float, str]]) -> list[Markup]:
    return [_label(at, HEIGHT - BOTTOM + 17, words) for at, words in ticks]


def _name_x(words: str) -> Markup:
    return _label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, words, "middle", "axis-name")


def _svg(title: str, *children: Sequence[Markup] | Markup) -> Markup:
    box = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "class": "chart", "role": "img", "aria-label": title}
    return element("svg", box, *children)
