"""Cross-validation: each run on the split that it was evaluated on, and the mean and deviation over the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from halofeed.system.errors import UsageError
from halofeed.trainer.detection.merge_tiles import MergeRule
from halofeed.trainer.loaded_run import LoadedRun, choose_split
from halofeed.trainer.run_folder import Run


@dataclass(frozen=True, kw_only=True)
class FoldResult:
    """Metrics of one run on its own split."""

    run: str
    split: str
    step: int
    metrics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class CrossValidation:
    """Metrics of all folds.

    Args:
        folds: one result for each run.
        best: name of the metric that selects checkpoints.
    """

    folds: Sequence[FoldResult]
    best: str

    def columns(self) -> dict[str, list[float]]:
        """Return the numbers of each column by its name, one for each fold; NaN where a fold has none.

        Columns are the metrics that are one number, and the classes of the metric that selects checkpoints.
        """
        first = self.folds[0].metrics
        names = [name for name, value in first.items() if isinstance(value, float) or value is None]
        columns = {name: [_number(fold.metrics.get(name)) for fold in self.folds] for name in names}
        classes = first.get(f"{self.best}_per_class", {})
        for label in classes:
            columns[f"{self.best} {label}"] = [
                _number(fold.metrics[f"{self.best}_per_class"].get(label)) for fold in self.folds
            ]
        return columns

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of a table: each fold, the mean and the standard deviation."""
        columns = self.columns()
        head = ["run", "split", "step", "examples", *columns]
        rows = [
            [
                fold.run,
                fold.split,
                str(fold.step),
                str(fold.metrics.get("examples", "")),
                *(_text(values[number]) for values in columns.values()),
            ]
            for number, fold in enumerate(self.folds)
        ]
        for name, figure in (("mean", mean_of), ("deviation", deviation_of)):
            rows.append([name, "", "", "", *(_text(figure(values)) for values in columns.values())])
        return head, rows

    def to_json(self) -> dict[str, Any]:
        """Return the folds, and `mean` and `deviation` by column, as plain JSON values."""
        columns = self.columns()
        return {
            "folds": [dict(vars(fold)) for fold in self.folds],
            "mean": {name: _or_none(mean_of(values)) for name, values in columns.items()},
            "deviation": {name: _or_none(deviation_of(values)) for name, values in columns.items()},
        }


def cross_validate(
    runs: Sequence[Run],
    data: str | None,
    *,
    which: str = "best",
    rule: MergeRule | None = None,
    with_rules: bool = True,
) -> CrossValidation:
    """Evaluate each run on the split by which its best checkpoint was chosen.

    Args:
        runs: two runs or more, each of its own fold.
        data: version folder of the data set; None takes that of each run.
        which: checkpoint: "best", "last" or a step.
        rule: rule by which boxes of different tiles are merged.
        with_rules: keep the largest components of the classes for which each run has proved it.

    Raises:
        UsageError: there is one run, or two have one split.
    """
    if len(runs) < 2:
        raise UsageError(
            "--cross-validate: needs the runs of several folds, such as runs/cards-fold0,runs/cards-fold1"
        )
    chosen = [choose_split(run, data, "") for run in runs]
    for number, (run, one) in enumerate(zip(runs, chosen, strict=True)):
        if one in chosen[:number]:
            other = runs[chosen.index(one)]
            raise UsageError(
                f"--cross-validate: {other.folder} and {run.folder} were both evaluated on {one[1]}; train each with a "
                "--fold of its own"
            )
    folds = []
    for run, (path, split) in zip(runs, chosen, strict=True):
        loaded = LoadedRun(run, path, split, which=which)
        metrics = loaded.evaluate(rule, with_rules=with_rules)
        folds.append(FoldResult(run=str(run.folder), split=split, step=loaded.step, metrics=metrics))
    return CrossValidation(folds=folds, best=str(runs[0].document.get("best_metric", "")))


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of the numbers that are known; NaN if none is.

    >>> mean_of([1.0, 3.0, float("nan")])
    2.0
    """
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def deviation_of(values: Sequence[float]) -> float:
    """Return the sample standard deviation of the numbers that are known; NaN for fewer than two.

    >>> round(deviation_of([1.0, 3.0]), 4)
    1.4142
    """
    known = [value for value in values if not math.isnan(value)]
    return float(np.std(known, ddof=1)) if len(known) > 1 else math.nan


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _text(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"
