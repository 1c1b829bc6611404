"""What does a run's report say of its metrics: per class from worst to best, and which class is taken for which?"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.layout import card, colour_of, section
from halofeed.inspection.lines import percent, plural
from halofeed.inspection.markup import Markup, element, table
from halofeed.inspection.run_facts import NOT_FINITE, Evaluation, RunFacts, number_of
from halofeed.inspection.run_frames import figure
from halofeed.prep.encode import encode_png

_FIRST_CLASSES, _MOST_CLASSES = 30, 500
_MOST_CELLS = 16
"""Confusion of so many classes is a table of numbers; of more, a picture."""
_NARROW = 6
"""The table of so many classes leaves room for another beside it."""
_MOST_PIXELS = 1000
_CONFUSIONS = 8
_MEANINGS = {
    "mAP": "mean over classes and overlaps 0.5 to 0.95 of the area under precision over recall",
    "accuracy": "share of the examples whose class is predicted",
    "dice": "twice what truth and prediction share, over the sum of both; mean over classes",
    "hausdorff95_mm": "95th percentile of the distance between the two surfaces; less is better",
    "hausdorff95_pixels": "95th percentile of the distance between the two outlines; less is better",
}


@dataclass(frozen=True, kw_only=True)
class PerClass:
    """Numbers by class: one row per name, one column per metric."""

    columns: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)


def metrics(facts: RunFacts) -> Markup:
    """The last evaluation's numbers, the best beside them, and those per class."""
    if not facts.evaluations:
        words = "The run has not been evaluated yet."
        if not facts.document.get("evaluate_split"):
            words = "The run was not evaluated: it names no split to evaluate on (--evaluate-split)."
        return section("metrics", "How good it is", element("p", "notice", words))
    last, best = facts.evaluations[-1], facts.best()
    other = best[2] if best is not None and best[2] is not last else None
    rows = [
        [
            element("code", None, name),
            show(value),
            *([show(other.metrics.get(name))] if other is not None else []),
            element("span", "meaning", _MEANINGS.get(name, "")),
        ]
        for name, value in flat(last.metrics).items()
    ]
    heads = ["metric", f"step {last.step:,}", *([f"best, step {other.step:,}"] if other else []), ""]
    known = set(facts.class_names)
    tables = [_class_card(facts, *item) for item in grouped(last.metrics, known)]
    count = last.metrics.get("examples")
    of = f"{plural(count, 'example')} of " if isinstance(count, int) else ""
    return section(
        "metrics",
        "How good it is",
        card(
            "All together",
            table(heads, rows, numbers=range(1, len(heads) - 1)),
            note="“–” is a number that nothing counts towards, such as the recall of a class that no example has.",
        ),
        tables,
        lead=f"Evaluated on {of}split {last.split!r} at step {last.step:,}"
        + (f"; at step {other.step:,} it was better." if other is not None else "."),
    )


def confusion(facts: RunFacts) -> Markup | None:
    """Which class is taken for which; None where the metrics hold no such matrix."""
    found = [(one, counts) for one in facts.evaluations if (counts := matrix_of(one)) is not None]
    if not found:
        return None
    last, counts = found[-1]
    names = facts.class_names if len(facts.class_names) == len(counts) else list(map(str, range(len(counts))))
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSIONS]
    pairs = [(int(at) // len(counts), int(at) % len(counts)) for at in order]
    pairs = [pair for pair in pairs if wrong[pair]]
    rows = [
        [
            _class_name(facts, names[true]),
            _class_name(facts, names[predicted]),
            f"{wrong[true, predicted]:,}",
            percent(wrong[true, predicted] / max(1, counts[true].sum())),
        ]
        for true, predicted in pairs
    ]
    total, errors = int(counts.sum()), int(wrong.sum())
    drawn = _cells(facts, counts, names) if len(counts) <= _MOST_CELLS else _pixels(counts)
    shown = []
    if drawn:
        caption = (
            "Look for dark cells off the diagonal: the class of the row was taken for the class of the column. A "
            "cell's shade is its share of its row."
        )
        shown.append(figure("Confusion", drawn, caption))
    if rows:
        head = ("it was", "taken for", "times", "of the class")
        shown.append(card("Most frequent mistakes", table(head, rows, numbers=(2, 3))))
    return section(
        "confusion",
        "What is taken for what",
        element("div", "columns" if len(counts) <= _NARROW else "stack", shown),
        lead=f"{errors:,} of {plural(total, 'example')} of split {last.split!r} were taken for another class"
        f" at step {last.step:,}.",
    )


def flat(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that are single values.

    >>> flat({"dice": 0.5, "dice_per_class": {"liver": 0.5}, "confusion": [[1]], "hausdorff95_mm": None})
    {'dice': 0.5, 'hausdorff95_mm': None}
    """
    return {name: value for name, value in metrics.items() if not isinstance(value, Mapping | list | tuple)}


def grouped(metrics: Mapping[str, Any], known: set[str]) -> list[tuple[str, PerClass]]:
    """The nested metrics as tables: those whose names are classes in one, any other in one of its own.

    >>> grouped({"recall": {"a": 1.0}, "ap": {"a": {"AP": 0.5}}, "size": {"small": 2}}, {"a"})[0][1].rows
    {'a': {'recall': 1.0, 'AP': 0.5}}
    """
    classes, others = PerClass(), []
    for name, value in metrics.items():
        if not isinstance(value, Mapping) or not value:
            continue
        title = name.removesuffix("_per_class").replace("_", " ")
        are_classes = set(map(str, value)) <= known
        into = classes if are_classes else PerClass()
        nested = [
            key
            for key, entry in metrics.items()
            if isinstance(entry, Mapping) and any(isinstance(one, Mapping) for one in entry.values())
        ]
        for row, entry in value.items():
            cells = (
                {
                    (path if len(nested) == 1 or not are_classes else f"{title} {path}"): cell
                    for path, cell in _leaves(entry)
                }
                if isinstance(entry, Mapping)
                else {title: entry}
            )
            into.rows.setdefault(str(row), {}).update(cells)
            into.columns.extend(column for column in cells if column not in into.columns)
        if not are_classes:
            others.append((title, into))
    return ([("Per class", classes)] if classes.rows else []) + others


def matrix_of(evaluation: Evaluation) -> NDArray[np.int64] | None:
    """int64 [true class, predicted class], or None where the evaluation has none."""
    found = evaluation.metrics.get("confusion")
    try:
        counts = np.array(found, np.float64)
    except (ValueError, TypeError):
        return None
    square = counts.ndim == 2 and counts.shape[0] == counts.shape[1] and counts.size
    return counts.astype(np.int64) if square and np.isfinite(counts).all() and (counts >= 0).all() else None


def show(value: Any) -> str:
    """A value of a metric for reading.

    >>> show(0.91234), show(12), show(None), show(7.25), show("x"), show(1e-5), show(float("nan"))
    ('0.912', '12', '–', '7.25', 'x', '1e-05', '–')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if value is None or (isinstance(value, float) and number_of(value) is None):
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}" if 0.001 <= abs(value) < 1 or value in (0, 1) else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(show, value[:8])) + (", …" if len(value) > 8 else "")
    return NOT_FINITE.get(str(value), str(value))


def _leaves(nested: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in nested.items():
        found += (
            _leaves(value, f"{above}{name} ") if isinstance(value, Mapping) else [(f"{above}{name}", value)]
        )
    return found


def _class_card(facts: RunFacts, title: str, found: PerClass) -> Markup:
    """A table with a bar in each cell, from worst to best by its first column."""
    values = {
        column: [number_of(cells.get(column)) for cells in found.rows.values()] for column in found.columns
    }
    shares = {
        column: all(value is None or 0 <= value <= 1 for value in numbers)
        for column, numbers in values.items()
    }
    most = {
        column: 1.0 if shares[column] else max((value or 0.0 for value in numbers), default=0.0) or 1.0
        for column, numbers in values.items()
    }
    first = found.columns[0]
    # A distance is the worse the greater it is.
    direction = 1 if shares[first] else -1
    order = sorted(
        found.rows,
        key=lambda name: (
            (value := number_of(found.rows[name].get(first))) is None,
            direction * (value or 0.0),
        ),
    )

    def cell(name: str, column: str) -> Markup:
        value = found.rows[name].get(column)
        number = number_of(value)
        words = element("b", None, show(value))
        if number is None:
            return element("span", "metric", element("span", "no meter"), words)
        width = f"width:{100 * min(1.0, max(0.0, number / most[column])):.1f}%"
        kind = "s0" if shares[column] else "s5"
        bar = element("span", "meter", element("i", {"class": kind, "style": width}))
        return element("span", "metric", bar, words)

    def rows(names: Sequence[str]) -> list[list[Markup]]:
        return [
            [_class_name(facts, name), *(cell(name, column) for column in found.columns)] for name in names
        ]

    head = ("class" if title == "Per class" else "", *found.columns)
    more = None
    if len(order) > _FIRST_CLASSES:
        rest = order[_FIRST_CLASSES:_MOST_CLASSES]
        summary = element("summary", None, f"{plural(len(order) - _FIRST_CLASSES, 'row')} more")
        cut = len(order) - _MOST_CLASSES
        note = element("p", "note", f"{plural(cut, 'better row')} not shown.") if cut > 0 else None
        more = element("details", None, summary, table(head, rows(rest)), note)
    longer = "Bars of shares reach from 0 to 1, longer is better"
    distances = [column for column in found.columns if not shares[column]]
    if distances:
        longer += f"; those of {', '.join(distances)} reach to the greatest, shorter is better"
    return figure(
        title,
        element("div", "per-class", table(head, rows(order[:_FIRST_CLASSES])), more),
        f"From worst to best by {first}: look at the first rows for what to collect or to check. {longer}.",
    )


def _class_name(facts: RunFacts, name: str) -> Markup:
    label = next((label for label, known in facts.labels.items() if known == name), None)
    rank = facts.ranks.get(label, None) if label is not None else None
    swatch = element("i", {"class": "swatch", "style": colour_of(rank)}) if rank is not None else None
    return element("span", None, swatch, name)


def _cells(facts: RunFacts, counts: NDArray[np.int64], names: Sequence[str]) -> Markup:
    """The matrix as a table; a row is a true class, a column what was predicted."""
    head = element(
        "tr",
        None,
        element("th", {"scope": "col"}, "true ↓ predicted →"),
        [element("th", {"scope": "col", "title": name}, element("span", None, name)) for name in names],
    )
    rows = []
    for at, name in enumerate(names):
        total = max(1, int(counts[at].sum()))
        cells = []
        for to in range(len(names)):
            share = counts[at, to] / total
            kind = "right" if at == to else "wrong"
            words = f"{counts[at, to]:,}" if counts[at, to] else "·"
            shade = {"class": kind, "style": f"--share:{100 * share:.0f}%", "title": percent(share)}
            cells.append(element("td", shade, words))
        rows.append(element("tr", None, element("th", {"scope": "row"}, _class_name(facts, name)), cells))
    body = [element("thead", None, head), element("tbody", None, rows)]
    return element("div", "table", element("table", "confusion", body))


def _pixels(counts: NDArray[np.int64]) -> Markup | None:
    """The matrix as a picture; None where it has more classes than a screen has pixels."""
    if len(counts) > _MOST_PIXELS:
        return None
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    pixels = np.zeros((*counts.shape, 4), np.uint8)
    pixels[..., :3] = (180, 71, 47)
    pixels[np.eye(len(counts), dtype=bool), :3] = (47, 111, 106)
    # The root lifts what is rare enough to be overlooked.
    pixels[..., 3] = np.rint(255 * np.sqrt(share))
    uri = f"data:image/png;base64,{base64.b64encode(bytes(encode_png(pixels, 0))).decode()}"
    alt = f"Confusion of {len(counts)} classes: rows are true classes, columns predicted ones, in order of their ids"
    return element("img", {"class": "heat", "src": uri, "alt": alt})
