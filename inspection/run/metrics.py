"""What do the metrics of an evaluation hold: single values, values per class, a confusion matrix?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.run.facts import NOT_FINITE, Evaluation, number_of


@dataclass(frozen=True, kw_only=True)
class PerClass:
    """Numbers by class: one row per name, one column per metric."""

    columns: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def most(self, column: str) -> tuple[float, bool]:
        """What a bar of the column reaches to, and whether that is 1 since all of them are shares."""
        values = [number_of(cells.get(column)) or 0.0 for cells in self.rows.values()]
        are_shares = all(0 <= value <= 1 for value in values)
        return (1.0 if are_shares else max(values, default=0.0) or 1.0), are_shares

    def from_worst(self) -> list[str]:
        """The names of the rows, by the first column."""
        first = self.columns[0]
        # A distance is the worse the greater it is.
        direction = 1 if self.most(first)[1] else -1

        def key(name: str) -> tuple[bool, float]:
            value = number_of(self.rows[name].get(first))
            return value is None, direction * (value or 0.0)

        return sorted(self.rows, key=key)


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
