"""Values of the report sections that only volumes have: findings, grids, values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from halofeed.inspection.dataset_facts import DatasetFacts, source_shapes, source_spacings, volume_sizings
from halofeed.inspection.display import Display, counts_of
from halofeed.inspection.html import charts
from halofeed.inspection.html.page import Report, times
from halofeed.inspection.words import MEANINGS, TREATMENTS, percent, split_finding
from halofeed.prep.convert.tallies import ROW_STEP
from halofeed.prep.voxels.counts import mean_and_deviation, percentile


def findings(report: Report) -> dict[str, Any]:
    """List the findings about the sources: name, treatment, count, and count in each split."""
    counted = report.facts.per_split("findings")
    found = []
    for key, counts in sorted(counted.items(), key=lambda item: (-sum(item[1]), item[0])):
        split_counts = zip(report.facts.splits, counts, strict=True)
        by_split = ", ".join(f"{split} {count:,}" for split, count in split_counts if count)
        found.append((*split_finding(key), sum(counts), by_split))
    return {"found": found, "meanings": MEANINGS, "treatments": TREATMENTS}


def grids(report: Report) -> dict[str, Any]:
    """Show spacing and size of the sources, and the cost of cropping and padding to the static shape."""
    facts = report.facts
    spacings, sizings = source_spacings(facts), volume_sizings(facts)
    planes = Counter[tuple[int, int]]()
    for (_, height, width), count in source_shapes(facts).items():
        planes[height, width] += count
    common = min(spacings, key=lambda spacing: (-sum(spacings[spacing]), spacing), default=None)
    rows = [
        (
            name,
            times(shape),
            percent(padded),
            "–" if cut is None else percent(cut),
            f"{math.prod(shape) / math.prod(facts.size):.2f}×",
        )
        for name, shape, padded, cut in sizings
    ]
    bodies = {int(percent): count for percent, count in (facts.total.body_cut_percents or {}).items()}
    cut_bodies = sum(count for percent, count in bodies.items() if percent > 1)
    return {
        "cut_bodies": (cut_bodies, sum(bodies.values()), max(bodies)) if cut_bodies else None,
        "through": _summed(spacings, lambda spacing: spacing[0]),
        "within": _summed(spacings, lambda spacing: spacing[1]),
        "slices": _summed(facts.per_split("source_shapes"), lambda shape: int(shape.split("x")[0])),
        "planes": planes,
        "common": (common, sum(spacings[common])) if common else None,
        "sizings": sizings,
        "rows": rows,
    }


def values(report: Report) -> dict[str, Any]:
    """Show the distribution of values in the body and in labelled voxels, with the window and figures."""
    facts, display = report.facts, report.display
    body, foreground = counts_of(facts.total, "body"), counts_of(facts.total, "foreground")
    if not body.total:
        return {"display": display, "body": body}
    known = [("gray", body), *([("red", foreground)] if foreground.total else [])]
    low, high = (
        display.value(pick(percentile(counts, at) for _, counts in known))
        for pick, at in ((min, 0.1), (max, 99.9))
    )
    window = display.window
    if window:
        low, high = min(low, window.low), max(high, window.high)
    room = max((high - low) * 0.02, 1e-6)
    series = [
        (kind, [display.value(value) for value in counts.values.tolist()], counts.counts.tolist())
        for kind, counts in known
    ]
    curves = charts.densities(
        series,
        (window.low, window.high) if window else None,
        (low - room, high + room),
        unit="Hounsfield units" if display.unit == "HU" else "stored value",
        step=display.slope if display.dtype in ("uint8", "int16", "uint16") else 0.0,
        origin=display.intercept,
    )
    split = next((name for name in facts.splits if name.startswith("train")), facts.splits[0])
    chosen = counts_of(facts.manifest.splits[split].statistics, "foreground")
    which = f"Stored values of the labelled voxels of {split}"
    if not chosen.total:
        chosen = counts_of(facts.manifest.splits[split].statistics, "body")
        which = f"Stored values of all voxels of {split}, because none are labelled"
    z_scores = "mean = {:.4f}\nstd = {:.4f}".format(*mean_and_deviation(chosen)) if chosen.total else ""
    return {
        "display": display,
        "body": body,
        "foreground": foreground,
        "curves": curves,
        "band": _band(report),
        "figures": _value_figures(facts, display),
        "which": which,
        "z_scores": z_scores,
        "row_step": ROW_STEP,
    }


def _band(report: Report) -> str:
    """Explain the band in the chart of values, or why there is none."""
    window = report.display.window
    if window is None:
        ends: Sequence[float] = report.facts.manifest.recipe.get("window_percentiles") or ()
        if len(ends) != 2:
            return "The recipe has no window, so the chart has no band."
        return (
            f"Each scan has its own window, from its {ends[0]:g}th to its {ends[1]:g}th percentile, so the chart shows "
            "stored values."
        )
    stored = " It is stored as 0 to 255." if report.display.dtype == "uint8" else ""
    band = f"The band is the recipe's window, {window.low:g} to {window.high:g} HU."
    return f"{band}{stored} Values outside are clipped to its ends."


def _value_figures(facts: DatasetFacts, display: Display) -> list[tuple[str, ...]]:
    rows = []
    for name, key in (("all", "body"), ("labelled", "foreground")):
        for split in facts.splits:
            counts = counts_of(facts.manifest.splits[split].statistics, key)
            if counts.total:
                mean, deviation = mean_and_deviation(counts)
                ends = (f"{display.value(percentile(counts, at)):,.5g}" for at in (0.5, 50, 99.5))
                spread = f"{deviation * display.slope:,.2f}"
                rows.append((name, split, f"{display.value(mean):,.2f}", spread, *ends))
    return rows


def _summed(counts: Mapping[Any, list[int]], key: Callable[[Any], Any]) -> dict[Any, list[int]]:
    """Add up the counts of each split by `key` of their names."""
    summed: dict[Any, list[int]] = {}
    for name, per_split in counts.items():
        known = summed.setdefault(key(name), [0] * len(per_split))
        known[:] = map(sum, zip(known, per_split, strict=True))
    return summed
