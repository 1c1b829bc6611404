"""HTML report of a training run: `write_run_report`, and the values for the template of each section."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from halofeed.inspection.html.charts import MAX_SERIES, LineSeries, line_chart, smoothing_width, tiling
from halofeed.inspection.html.page import check_output, rendered, setting_text, swatched, write_page
from halofeed.inspection.html.run_gallery import examples
from halofeed.inspection.run_facts import (
    PerClass,
    RunFacts,
    confusion_matrix,
    finite_or_none,
    finite_values,
    format_metric,
    metric_tables,
    read_run_facts,
    scalar_metrics,
)
from halofeed.inspection.thumbnails import png_uri
from halofeed.inspection.words import percent
from halofeed.schemas.kinds import KINDS
from halofeed.schemas.partition import REPLICA_AXIS, Partition
from halofeed.system.errors import PartitionError
from halofeed.system.wording import plural

_COUNTS = frozenset({"examples"})
_MAX_WAITING_SHARE = 0.05
_FIRST_CLASSES, _MAX_CLASSES = 30, 500
_MAX_CELLS = 16
"""Most classes of a confusion matrix shown as a table of numbers; larger ones are shown as a picture."""
_NARROW = 6
"""Most classes of a confusion matrix that leaves room for another table beside it."""
_MAX_PIXELS = 1000
_SHOWN_MISTAKES = 8
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_METRIC_MEANINGS = {
    "mAP": "area under the precision-recall curve, mean over classes and over IoU thresholds 0.5 to 0.95",
    "mask mAP": "the same of masks: the IoU is that of their pixels",
    "accuracy": "share of examples with the right class",
    "dice": "2 × overlap of truth and prediction, divided by the sum of both; mean over classes",
    "hausdorff95_mm": "95th percentile of the distance between the surfaces; lower is better",
    "hausdorff95_pixels": "95th percentile of the distance between the outlines; lower is better",
    "mean AUROC": "probability that an image with a class scores higher for it than one without; mean over classes",
}
_MEANINGS_OF_TASKS = {("classification", "mAP"): "mean over classes of the average precision"}
"""Meanings by task and name, where a metric of that name differs between tasks."""
REPORT = "report.html"


def write_run_report(run_folder: str | Path, output: str | Path | None = None) -> Path:
    """Write one self-contained HTML file about a training run; equal runs give equal bytes.

    The report of an unfinished run says what is missing.

    Args:
        run_folder: folder that `halofeed train --out` wrote.
        output: file to write; default: report.html in that folder.

    Returns:
        the path of the file.

    Raises:
        UsageError: the folder holds no run, or the file cannot be written.
        CorruptFileError: a file of the run is not what training writes.
    """
    file = Path(run_folder) / REPORT if output is None else Path(output)
    check_output(file, REPORT)
    facts = read_run_facts(run_folder)
    parts = [
        rendered(f"run/{name}.html", facts=facts, **values)
        for name, section in VALUES.items()
        if (values := section(facts)) is not None
    ]
    model, path = facts.config.get("model", "run"), shlex.quote(facts.path)
    styles = ("report.css", "run_report.css")
    return write_page(file, "run.html", *styles, model=model, data=facts.data, sections=parts, path=path)


def header(facts: RunFacts) -> dict[str, Any]:
    """Show model, data, progress and the most important figures."""
    document, steps, wanted = facts.document, facts.steps, facts.planned_steps
    done = plural(steps, "step") if steps >= wanted else f"{steps:,} of {wanted:,} steps"
    best, loss = facts.best(), facts.column("loss")
    rate, taken = facts.column("images_per_second"), facts.seconds()
    known = np.isfinite(taken)
    tiles = [
        (done.removesuffix(" steps"), "steps"),
        (format_metric(float(loss[-1])) if len(loss) else "–", "last loss"),
        (format_metric(best[1]), f"best {best[0]}, step {best[2].step:,}") if best else None,
        (format_duration(float(taken[known].sum())), "total time of steps, about") if known.any() else None,
        (format_metric(float(np.median(rate[known]))), "images per second, median") if known.any() else None,
        (_short(parameters), "parameters") if (parameters := document.get("parameters")) else None,
        (str(_devices(facts)), f"{document.get('platform', 'unknown')} devices")
        if document.get("mesh")
        else None,
    ]
    return {
        "name": str(facts.config.get("model", "a model")),
        "data": str(document.get("data_name") or document.get("data", "unknown data")),
        "version": str(document.get("data_version") or ""),
        "done": done,
        "split": document.get("split", "train"),
        "batch": int(facts.config.get("batch_size", 1)),
        "tiles": list(filter(None, tiles)),
        "unfinished": _unfinished(facts),
        **_split_over_cores(facts),
    }


def _split_over_cores(facts: RunFacts) -> dict[str, Any]:
    """Draw how an image was split over cores and replicas; "cores" is None if that is unknown."""
    mesh, shape = facts.document.get("mesh"), facts.image_shape
    if not isinstance(mesh, Mapping):
        return {"cores": None}
    replicas = int(mesh.get(REPLICA_AXIS, 1))
    cores = _devices(facts) // max(1, replicas)
    parts: Sequence[int] = (1,) * (len(shape) - 1)
    try:
        # A training loop of the user may write any text.
        partition = Partition.parse(str(facts.config.get("partition", "")), cores_per_replica=cores)
    except PartitionError:
        return {"cores": None}
    dims = partition.dims.get("image")
    if dims is not None and len(dims) == len(shape) + 1:
        parts = tuple(dims[1:-1])
    axes = KINDS[facts.kind].axes
    return {
        "cores": cores,
        "replicas": replicas,
        "drawing": tiling(shape[:-1], tuple(parts)),
        "cuts": [f"{count} along {axis}" for count, axis in zip(parts, axes, strict=True) if count > 1],
        "each": [math.ceil(side / count) for side, count in zip(shape, parts, strict=False)],
        "mesh": ", ".join(f"{name} {size}" for name, size in mesh.items()),
    }


def curves(facts: RunFacts) -> dict[str, Any]:
    """Plot the loss, its parts, the learning rate, the gradient norm and the metrics over steps."""
    finite = (loss := facts.column("loss"))[np.isfinite(loss)]
    parts = [facts.parts[first : first + MAX_SERIES] for first in range(0, len(facts.parts), MAX_SERIES)]
    rate = _logged(facts, "learning_rate", smooth=False)
    return {
        "loss": line_chart([_logged(facts, "loss")], "Loss"),
        "width": smoothing_width(len(loss)),
        "first_and_last": [format_metric(float(finite[at])) for at in (0, -1)] if len(finite) else None,
        "missing": len(loss) - len(finite),
        "lines": len(loss),
        "parts": [
            (
                line_chart([_logged(facts, name, name) for name in names], "Parts of the loss"),
                [name.replace("_", " ") for name in names],
            )
            for names in parts
        ],
        "rate": _if_known(rate, "Learning rate", top=0.0),
        "norm": _if_known(_logged(facts, "gradient_norm", "gradient norm"), "Gradient norm"),
        **_metric_curves(facts),
    }


def _logged(facts: RunFacts, column: str, name: str | None = None, *, smooth: bool = True) -> LineSeries:
    """Return a column of the log as a line."""
    name = column.replace("_", " ") if name is None else name
    return LineSeries(name=name, steps=facts.log["step"], values=facts.column(column), smooth=smooth)


def _if_known(series: LineSeries, title: str, *, top: float | None = None) -> Markup | None:
    """Plot a single line; None without values."""
    return line_chart([series], title, top=top) if np.isfinite(series.values).any() else None


def _metric_curves(facts: RunFacts) -> dict[str, Any]:
    """Plot metrics over steps: all shares in one chart, the metric of the best step first; other metrics one by one."""
    splits = list(dict.fromkeys(evaluation.split for evaluation in facts.evaluations))
    lines = [
        _metric_line(facts, name, split, name if len(splits) == 1 else f"{name} ({split})")
        for name, split in itertools.product(_metric_names(facts), splits)
    ]
    shares = [one for one in lines if _spans(one.values, 0, 1)][:MAX_SERIES]
    others = [one for one in lines if np.isfinite(one.values).any() and not _spans(one.values, 0, 1)]
    return {
        "metrics": line_chart(shares, "Metrics over steps", top=1.0) if shares else None,
        "metric_names": [one.name for one in shares],
        "others": [(one.name, line_chart([one], one.name, top=0.0)) for one in others],
    }


def _metric_names(facts: RunFacts) -> list[str]:
    """Return the metrics that are single numbers in any evaluation, that of the best step first."""
    names = dict.fromkeys(
        name
        for evaluation in facts.evaluations
        for name, value in evaluation.metrics.items()
        if name not in _COUNTS and finite_or_none(value) is not None
    )
    best = facts.best()
    return sorted(names, key=lambda name: best is None or name != best[0])


def _metric_line(facts: RunFacts, metric: str, split: str, name: str) -> LineSeries:
    """Return a metric over the steps of a split's evaluations."""
    of_split = [evaluation for evaluation in facts.evaluations if evaluation.split == split]
    return LineSeries(
        name=name,
        steps=np.array([evaluation.step for evaluation in of_split], np.float64),
        values=finite_values(evaluation.metrics.get(metric) for evaluation in of_split),
    )


def _spans(values: NDArray[np.float64], low: float, high: float) -> bool:
    """Return whether there are finite values, and all of them are from `low` to `high`."""
    known = values[np.isfinite(values)]
    return bool(len(known) and known.min() >= low and known.max() <= high)


def metrics(facts: RunFacts) -> dict[str, Any]:
    """Show the last evaluation beside the best one, and the metrics per class."""
    if not facts.evaluations:
        return {"last": None}
    last, best = facts.evaluations[-1], facts.best()
    other = best[2] if best is not None and best[2] is not last else None
    rows = [
        (
            name,
            format_metric(value),
            format_metric(other.metrics.get(name)) if other else None,
            _MEANINGS_OF_TASKS.get((facts.task, name), _METRIC_MEANINGS.get(name, "")),
        )
        for name, value in scalar_metrics(last.metrics).items()
    ]
    return {
        "last": last,
        "other": other,
        "rows": rows,
        "count": count if isinstance(count := last.metrics.get("examples"), int) else None,
        "tables": [
            _per_class(facts, title, found)
            for title, found in metric_tables(last.metrics, set(facts.class_names))
        ],
    }


def _per_class(facts: RunFacts, title: str, found: PerClass) -> dict[str, Any]:
    """Return a table with a bar in each cell, from worst to best by the first column."""
    most = {column: found.bar_scale(column) for column in found.columns}
    order = found.from_worst()

    def cell(name: str, column: str) -> tuple[str, str | None, str]:
        value = found.rows[name].get(column)
        reach, is_share = most[column]
        width = None
        if (number := finite_or_none(value)) is not None:
            width = f"{100 * min(1.0, max(0.0, number / reach)):.1f}"
        return format_metric(value), width, "s0" if is_share else "s5"

    rows = [
        (_class_name(facts, name), [cell(name, column) for column in found.columns])
        for name in order[:_MAX_CLASSES]
    ]
    return {
        "title": title,
        "head": ("class" if title == "Per class" else "", *found.columns),
        "rows": rows[:_FIRST_CLASSES],
        "rest": rows[_FIRST_CLASSES:],
        "more": len(order) - _FIRST_CLASSES,
        "cut": len(order) - _MAX_CLASSES,
        "distances": [column for column in found.columns if not most[column][1]],
    }


def confusion(facts: RunFacts) -> dict[str, Any] | None:
    """Show the confusion matrix and the most frequent mistakes; None without a matrix."""
    found = [(one, counts) for one in facts.evaluations if (counts := confusion_matrix(one)) is not None]
    if not found:
        return None
    last, counts = found[-1]
    # A matrix of another size is of other classes than the run's, so their numbers are shown.
    names = facts.class_names if len(facts.class_names) == len(counts) else list(map(str, range(len(counts))))
    named = [_class_name(facts, name) for name in names]
    few = len(counts) <= _MAX_CELLS
    sums = np.maximum(1, counts.sum(axis=1))
    return {
        "last": last,
        "total": int(counts.sum()),
        "errors": int(counts.sum() - np.trace(counts)),
        "mistakes": [
            (named[true], named[to], f"{counts[true, to]:,}", percent(counts[true, to] / sums[true]))
            for true, to in _frequent_mistakes(counts)
        ],
        "names": names,
        "rows": list(zip(named, _with_shares(counts), strict=True)) if few else None,
        "heat": None if few or len(counts) > _MAX_PIXELS else _heat(counts),
        "narrow": len(counts) <= _NARROW,
    }


def _with_shares(counts: NDArray[np.int64]) -> list[list[tuple[int, float]]]:
    """Return each count of a matrix with its share of the row, the examples of one true class."""
    sums = np.maximum(1, counts.sum(axis=1))
    rows = zip(counts.tolist(), sums.tolist(), strict=True)
    return [[(count, count / total) for count in row] for row, total in rows]


def _frequent_mistakes(counts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the (true class, predicted class) of the most frequent mistakes, the most frequent first."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_SHOWN_MISTAKES]
    pairs = [divmod(int(at), len(counts)) for at in order]
    return [pair for pair in pairs if wrong[pair]]


def _heat(counts: NDArray[np.int64]) -> str:
    """Draw a confusion matrix as a picture, a data: URI."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    pixels = np.zeros((*counts.shape, 4), np.uint8)
    pixels[..., :3] = (180, 71, 47)
    pixels[np.eye(len(counts), dtype=bool), :3] = (47, 111, 106)
    # The square root makes small shares visible.
    pixels[..., 3] = np.rint(255 * np.sqrt(share))
    return png_uri(pixels)


def waiting(facts: RunFacts) -> dict[str, Any] | None:
    """Show the share of time that steps waited for input; None before the first step."""
    if not facts.steps:
        return None
    waited, taken = _logged(facts, "waiting_share", "waiting"), facts.seconds()
    known = np.isfinite(share := waited.values)
    if not known.any():
        return {"mean": None}
    # The first steps wait for threads to start and files to open.
    steady = known & (np.arange(len(share)) >= min(2, int(np.flatnonzero(known)[-1])))
    usual = float(np.nanmean(taken)) if np.isfinite(taken).any() else 1.0
    weights = np.where(np.isfinite(taken), taken, usual)
    mean = float(np.sum(share[steady] * weights[steady]) / max(float(np.sum(weights[steady])), 1e-12))
    return {
        "mean": mean,
        "keeps_up": mean <= _MAX_WAITING_SHARE,
        "share": line_chart(
            [replace(waited, values=100 * share)],
            "Share of each step's time spent waiting for input, in percent",
            unit=" %",
            top=100.0,
        ),
        "rate": _if_known(
            _logged(facts, "images_per_second", "images per second"), "Images per second", top=0.0
        ),
    }


def config(facts: RunFacts) -> dict[str, Any]:
    """Show each setting of the run, and its data."""
    document = facts.document
    settings: list[tuple[str, str]] = []
    for name, value in facts.config.items():
        if isinstance(value, Mapping):
            group = name.removesuffix("_options")
            settings += [(f"{group}.{key}", setting_text(entry)) for key, entry in value.items()]
        else:
            settings.append((name, setting_text(value)))
    data = {
        "data": document.get("data"),
        "name and version": facts.data or None,
        "trained on split": document.get("split"),
        "evaluated on split": document.get("evaluate_split"),
        "image shape": list(facts.image_shape),
        "mean": document["facts"].get("mean"),
        "deviation": document["facts"].get("std"),
        "first weights": _origin_text(document.get("origin")),
        "earlier numbers of steps": _earlier_steps(document.get("earlier_lengths")),
        "platform": document.get("platform"),
        "halofeed": document.get("halofeed"),
    }
    return {
        "data": [(name, setting_text(value)) for name, value in data.items() if value is not None],
        "settings": settings,
    }


def _origin_text(origin: Any) -> str | None:
    """Return from which run the first weights came; None if they were drawn from the seed."""
    if not isinstance(origin, Mapping):
        return None
    new = origin.get("new")
    words = f"{origin.get('run')}, step {origin.get('step')}"
    return f"{words}; new {', '.join(map(str, new))}" if isinstance(new, list) and new else words


def _earlier_steps(lengths: Any) -> str | None:
    """Return the numbers of steps that a continued run had before, with the last step for which each counted."""
    if not isinstance(lengths, list):
        return None
    entries = [entry for entry in lengths if isinstance(entry, Mapping)]
    return "; ".join(f"{one.get('steps')} up to step {one.get('until_step')}" for one in entries) or None


def run_commands(facts: RunFacts) -> dict[str, Any]:
    """Show the commands that train again, evaluate and predict."""
    data, split = shlex.quote(str(facts.document.get("data", "DATA"))), facts.document.get("split", "train")
    evaluated = shlex.quote(str(facts.document.get("evaluate_split") or split))
    run = shlex.quote(facts.path)
    return {
        "again": f"halofeed train {data} --split {shlex.quote(str(split))} --config again.toml --out RUN-AGAIN",
        "evaluate": f"halofeed evaluate {run} {data} --split {evaluated}",
        "predict": f"halofeed predict {run} {data} --split {evaluated} --out predictions",
        "toml": config_as_toml(facts.config),
    }


VALUES: Mapping[str, Callable[[RunFacts], dict[str, Any] | None]] = {
    "header": header,
    "curves": curves,
    "metrics": metrics,
    "confusion": confusion,
    "examples": examples,
    "waiting": waiting,
    "config": config,
    "use": run_commands,
}
"""Function that returns the values of each section's template, or None to omit the section."""


def config_as_toml(config: Mapping[str, Any]) -> str:
    """Format a configuration as TOML for `--config`; values of None are omitted.

    >>> print(config_as_toml({"steps": 20, "model_options": {"width": 16}, "image_shape": None}))
    steps = 20
    model_options = { width = 16 }
    """
    # TOML has no null; a missing setting has its default.
    return "\n".join(f"{_key(name)} = {_toml(value)}" for name, value in config.items() if value is not None)


def format_duration(seconds: float) -> str:
    """Format a duration.

    >>> format_duration(7.2), format_duration(200), format_duration(40000)
    ('7 s', '3 min 20 s', '11 h 6 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _unfinished(facts: RunFacts) -> str | None:
    """Return a sentence on missing steps and evaluations; None if the run is complete."""
    missing = []
    if facts.steps < facts.planned_steps:
        missing.append(f"{facts.planned_steps - facts.steps:,} of {facts.planned_steps:,} steps are missing")
    if not facts.evaluations and facts.document.get("evaluate_split"):
        missing.append("there is no evaluation yet")
    if not missing:
        return None
    resume = (
        "No checkpoint was saved: the same command starts from the beginning."
        if facts.saved_step is None
        else f"The same command resumes after step {facts.saved_step:,}."
    )
    return f"This run is not finished: {' and '.join(missing)}. {resume}"


def _class_name(facts: RunFacts, name: str) -> Markup:
    label = next((label for label, known in facts.labels.items() if known == name), None)
    rank = facts.ranks.get(label) if label is not None else None
    return Markup("<span>{}</span>").format(name) if rank is None else swatched(name, rank)


def _devices(facts: RunFacts) -> int:
    mesh = facts.document.get("mesh")
    return math.prod(int(size) for size in mesh.values()) if isinstance(mesh, Mapping) else 1


def _short(count: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,}"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        entries = ", ".join(
            f"{_key(str(key))} = {_toml(entry)}" for key, entry in value.items() if entry is not None
        )
        return f"{{ {entries} }}" if entries else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        # JSON and TOML have the same escapes, except that TOML requires one for the delete character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
