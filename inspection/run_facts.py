"""Reader of a training run's folder: configuration, log, evaluations and examples, without JAX."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_files import read_lines
from halofeed.inspection.record_words import TASK_WORDS, TaskWords
from halofeed.schemas.bounded_json import check_json_checksum, parse_json
from halofeed.schemas.file_layout import CHECKPOINTS, EXAMPLES, RUN_FILE, read_run
from halofeed.schemas.kinds import KIND_BY_RANK, KINDS
from halofeed.schemas.limits import RUN_BYTES, RUN_LINES, RUN_VALUES
from halofeed.schemas.tasks import task_named
from halofeed.storage.atomic_files import read_regular
from halofeed.storage.paths import find_paths
from halofeed.system.errors import CorruptFileError

LOG_FILE, EVALUATIONS_FILE = "log.jsonl", "evaluations.jsonl"
EXAMPLES_FILE = f"{EXAMPLES}/examples.json"
NOT_FINITE = {"NaN": "–", "Infinity": "∞", "-Infinity": "−∞"}
"""Numbers that JSON cannot express: text in the log, and text in the report."""
_LINE = "a JSON object with a step"
_MAX_LINE_VALUES = 1_000_000
_LONGEST_NAME = 4096
_NOT_LOSS_PARTS = frozenset(
    {"step", "loss", "learning_rate", "gradient_norm", "images_per_second", "waiting_share"}
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The metrics of one evaluation: numbers by name, nested if they are per class."""

    step: int
    split: str
    metrics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ExampleEntry:
    """One entry of examples.json: the file of its arrays, its score, and the reason why it was kept.

    `source` is the name of the source file; "" in runs of early versions.
    """

    file: Path
    id: int
    score: float | None
    reason: str
    source: str = ""

    @property
    def name(self) -> str:
        """Return the name of the source file, or the id if it is not known."""
        return self.source or str(self.id)


class LabelFacts(ABC):
    """Names and colors of the classes of a task, for its reports."""

    @property
    @abstractmethod
    def task(self) -> str:
        """Return the task of the data set."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Return the kind of the images, a key of `halofeed.schemas.kinds.KINDS`."""

    @property
    @abstractmethod
    def labels(self) -> dict[int, str]:
        """Return the class names by id."""

    @property
    def task_words(self) -> TaskWords:
        """Return the words for the task; plain ones for a task of the user's own."""
        return TASK_WORDS.get(self.task, TaskWords())

    @property
    def ranks(self) -> dict[int, int]:
        """Return the color number of each class; the background has none."""
        shown = sorted(label for label in self.labels if label or not self.task_words.has_background)
        return {label: rank for rank, label in enumerate(shown)}

    def rank(self, label: int) -> int:
        """Return the color number of a class; 0 if it is unknown."""
        return self.ranks.get(label, 0)

    @property
    def class_names(self) -> list[str]:
        """Return the name of each class in order of ids; `class 2` for an id without a name."""
        first = task_named(self.task).first_label_id
        return [self.label_name(label) for label in range(first, max(self.labels, default=first - 1) + 1)]

    def label_name(self, label: int) -> str:
        """Return the name of a class."""
        return self.labels.get(label, f"class {label}")


@dataclass(frozen=True, kw_only=True)
class RunFacts(LabelFacts):
    """Facts about a training run, for its report.

    Args:
        path: folder as the caller wrote it.
        document: content of run.json.
        log: columns of the log, float64 [lines], by name, in the order of steps, each step once; NaN if missing.
        evaluations: evaluations in the order of steps.
        examples: entries of examples.json.
        examples_of: step and split of the examples.
        saved_step: step of the last checkpoint.
    """

    path: str
    document: Mapping[str, Any]
    log: Mapping[str, NDArray[np.float64]]
    evaluations: tuple[Evaluation, ...]
    examples: tuple[ExampleEntry, ...]
    examples_of: tuple[int, str] | None
    saved_step: int | None

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the training configuration."""
        config: Mapping[str, Any] = self.document["config"]
        return config

    @property
    def task(self) -> str:
        """Return the task of the data set."""
        return str(self.document["facts"]["task"])

    @property
    def labels(self) -> dict[int, str]:
        """Return the class names by id."""
        return {int(label): str(name) for label, name in self.document["facts"]["labels"].items()}

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Return the shape of one image of a batch, channel last."""
        return tuple(self.document["facts"]["image_shape"])

    @property
    def kind(self) -> str:
        """Return the kind of the images, a key of `halofeed.schemas.kinds.KINDS`."""
        return _kind_of(self.document["facts"])

    @property
    def data(self) -> str:
        """Return the name and version of the data set, as far as they are known."""
        return f"{self.document.get('data_name') or ''} {self.document.get('data_version') or ''}".strip()

    @property
    def steps(self) -> int:
        """Return the last logged step."""
        return int(self.log["step"][-1]) if len(self.log["step"]) else 0

    @property
    def planned_steps(self) -> int:
        """Return the number of steps in the configuration."""
        return int(self.config.get("steps", 0))

    @property
    def parts(self) -> list[str]:
        """Return the columns of the loss' parts; a single column equal to the loss is not a part."""
        names = [name for name in self.log if name not in _NOT_LOSS_PARTS]
        loss = self.column("loss")
        return [
            name
            for name in names
            if len(names) > 1 or not np.allclose(self.log[name], loss, rtol=1e-6, equal_nan=True)
        ]

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a column of the log, float64 [lines]; all NaN if it is missing."""
        return self.log.get(name, np.full(len(self.log["step"]), np.nan))

    def seconds(self) -> NDArray[np.float64]:
        """Return the seconds that the steps of each log line took, float64 [lines]; NaN if the rate is unknown."""
        rate = self.column("images_per_second")
        taken = np.diff(self.log["step"], prepend=0.0) * float(self.config.get("batch_size", 1))
        return np.where(rate > 0, taken / np.where(rate > 0, rate, 1.0), np.nan)

    def best(self) -> tuple[str, float, Evaluation] | None:
        """Return the metric that selects the best step, its highest value and that evaluation; None without one."""
        name = self.document.get("best_metric", "")
        found = [
            (value, evaluation)
            for evaluation in self.evaluations
            if (value := finite_or_none(evaluation.metrics.get(name))) is not None
        ]
        if not found:
            return None
        value, evaluation = max(found, key=lambda pair: (pair[0], -pair[1].step))
        return name, value, evaluation


def read_run_facts(folder: str | Path) -> RunFacts:
    """Read a run folder.

    Raises:
        UsageError: the folder holds no run.
        CorruptFileError: a file is not what training writes; the message names the file and the fix.
    """
    path = Path(folder)
    document = _document(path)
    found, examples_of = _examples(path)
    return RunFacts(
        path=str(folder),
        document=document,
        log=_log(path / LOG_FILE),
        evaluations=_evaluations(path / EVALUATIONS_FILE),
        examples=found,
        examples_of=examples_of,
        saved_step=_saved_step(path / CHECKPOINTS),
    )


def _saved_step(folder: Path) -> int | None:
    """Return the last step with a folder of that name; a checkpoint being written has another name."""
    return max((int(path.name) for path in find_paths(folder, "*") if path.name.isdecimal()), default=None)


def finite_or_none(value: Any) -> float | None:
    """Return a finite number as float, or None for any other value.

    >>> finite_or_none(3), finite_or_none(None), finite_or_none(float("nan")), finite_or_none("3"), finite_or_none(True)
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def finite_values(values: Iterable[Any]) -> NDArray[np.float64]:
    """Return float64 [values]: finite numbers, and NaN for any other value.

    >>> finite_values([1, None, "NaN"])
    array([ 1., nan, nan])
    """
    found = [finite_or_none(value) for value in values]
    return np.array([math.nan if value is None else value for value in found], np.float64)


def _document(folder: Path) -> dict[str, Any]:
    file, document = folder / RUN_FILE, read_run(folder)
    if not isinstance(document.get("config"), dict) or not _are_facts(document.get("facts")):
        raise CorruptFileError(
            f"{file}: expected a config, and facts with task, labels, a known kind and an image_shape of its axes; "
            f"move {file.parent} away and train again"
        )
    return document


def _are_facts(facts: Any) -> bool:
    """Return whether a run's facts hold all that a report needs."""
    if not isinstance(facts, dict):
        return False
    task, labels, shape = facts.get("task"), facts.get("labels"), facts.get("image_shape")
    if not isinstance(task, str) or not isinstance(labels, dict) or not isinstance(shape, list):
        return False
    kind = KINDS.get(_kind_of(facts))
    return (
        all(str(label).lstrip("-").isdigit() for label in labels)
        and all(isinstance(side, int) for side in shape)
        and kind is not None
        and len(kind.axes) == len(shape) - 1
    )


def _kind_of(facts: Mapping[str, Any]) -> str:
    """Return the kind of the images; runs of early versions do not name it."""
    return str(facts.get("kind") or KIND_BY_RANK.get(len(facts["image_shape"])))


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and document of each line; an incomplete last line is skipped."""
    try:
        for number, line in enumerate(read_lines(file), 1):
            if number > RUN_LINES:
                raise CorruptFileError(f"{file}: more than {RUN_LINES:,} lines; {_line_fix(file)}")
            if not line.strip():
                continue
            try:
                entry = check_json_checksum(parse_json(line, _MAX_LINE_VALUES, finite=False))
                expected = "" if _has_step(entry) else _LINE
            except ValueError as error:
                # A run that is training, or was killed, may have written a part of its last line.
                if not line.endswith(b"\n"):
                    return
                expected = f"{_LINE} ({error})"
            if expected:
                shown = line.strip()[:60].decode("utf-8", "replace")
                raise CorruptFileError(
                    f"{file}: line {number}: expected {expected}, got {shown!r}; {_line_fix(file)}"
                )
            yield number, entry
    except FileNotFoundError:
        return
    except OSError as error:
        raise CorruptFileError(f"{file}: cannot be read: {error}; {_line_fix(file)}") from error


def _has_step(entry: Any) -> bool:
    """Return whether a document is an object with a step, which float64 columns hold exactly up to 2**53."""
    step = entry.get("step") if isinstance(entry, dict) else None
    return type(step) is int and 0 <= step < 1 << 53


def _line_fix(file: Path) -> str:
    return f"remove the line, or the file to do without its content ({file.name})"


def _log(file: Path) -> dict[str, NDArray[np.float64]]:
    """Read the columns of the log; a resumed run logs some steps again, and the last line of a step counts."""
    lines = {entry["step"]: entry for _, entry in _lines(file)}
    ordered = [lines[step] for step in sorted(lines)]
    names = dict.fromkeys(name for entry in ordered for name, value in entry.items() if _is_logged(value))
    columns = {name: finite_values(entry.get(name) for entry in ordered) for name in names}
    return {"step": np.zeros(0)} | columns


def _is_logged(value: Any) -> bool:
    """Return whether a value of the log is a number, or a text for a number that JSON cannot express."""
    if isinstance(value, str):
        return value in NOT_FINITE
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _evaluations(file: Path) -> tuple[Evaluation, ...]:
    found: dict[tuple[int, str], Evaluation] = {}
    for number, entry in _lines(file):
        metrics = entry.get("metrics")
        if not isinstance(metrics, dict):
            raise CorruptFileError(
                f"{file}: line {number}: expected metrics by name, got {metrics!r}; {_line_fix(file)}"
            )
        split = str(entry.get("split") or "")
        found[entry["step"], split] = Evaluation(step=entry["step"], split=split, metrics=metrics)
    return tuple(found[key] for key in sorted(found))


def _examples(folder: Path) -> tuple[tuple[ExampleEntry, ...], tuple[int, str] | None]:
    file = folder / EXAMPLES_FILE
    fix = f"evaluate again, or remove {file.parent} to do without examples"
    try:
        document = check_json_checksum(parse_json(read_regular(file, RUN_BYTES), RUN_VALUES))
        entries = tuple(
            ExampleEntry(
                file=file.parent / str(entry["file"]),
                id=int(entry.get("id", -1)),
                score=finite_or_none(entry.get("score")),
                reason=str(entry.get("reason", "")),
                source=str(entry.get("source", ""))[:_LONGEST_NAME],
            )
            for entry in document["examples"]
        )
        of = (int(document["step"]), str(document.get("split") or ""))
    except FileNotFoundError:
        return (), None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFileError(
            f"{file}: expected a step and a list of examples ({error!r}); {fix}"
        ) from error
    for entry in entries:
        # A run may come from a stranger, and must not select other files of this machine.
        if entry.file.parent != file.parent or entry.file.suffix != ".npz":
            raise CorruptFileError(
                f"{file}: {str(entry.file)!r} is not a .npz file in the same folder; {fix}"
            )
    return entries, of


@dataclass(frozen=True, kw_only=True)
class PerClass:
    """Table of metrics with a row per class and a column per metric."""

    columns: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, title: str, entries: Mapping[Any, Any], *, prefixed: bool) -> None:
        """Add the values of a metric, by row: a column of its title, or a column for each of its nested values.

        Args:
            prefixed: whether the columns of nested values begin with the title.
        """
        for row, entry in entries.items():
            cells = {title: entry}
            if isinstance(entry, Mapping):
                cells = {f"{title} {path}" if prefixed else path: cell for path, cell in _leaves(entry)}
            self.rows.setdefault(str(row), {}).update(cells)
            self.columns.extend(column for column in cells if column not in self.columns)

    def bar_scale(self, column: str) -> tuple[float, bool]:
        """Return the value of a full bar of a column, and whether all its values are shares between 0 and 1."""
        values = [finite_or_none(cells.get(column)) or 0.0 for cells in self.rows.values()]
        are_shares = all(0 <= value <= 1 for value in values)
        return (1.0 if are_shares else max(values, default=0.0) or 1.0), are_shares

    def from_worst(self) -> list[str]:
        """Return the names of the rows, from worst to best by the first column."""
        first = self.columns[0]
        # A greater distance is worse.
        direction = 1 if self.bar_scale(first)[1] else -1

        def key(name: str) -> tuple[bool, float]:
            value = finite_or_none(self.rows[name].get(first))
            return value is None, direction * (value or 0.0)

        return sorted(self.rows, key=key)


def scalar_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that are single values.

    >>> scalar_metrics({"dice": 0.5, "dice_per_class": {"liver": 0.5}, "confusion": [[1]], "hausdorff95_mm": None})
    {'dice': 0.5, 'hausdorff95_mm': None}
    """
    return {name: value for name, value in metrics.items() if not isinstance(value, Mapping | list | tuple)}


def metric_tables(metrics: Mapping[str, Any], known: set[str]) -> list[tuple[str, PerClass]]:
    """Return the nested metrics as tables: one for all metrics per class, and one for each other metric.

    >>> metric_tables({"recall": {"a": 1.0}, "ap": {"a": {"AP": 0.5}}, "size": {"small": 2}}, {"a"})[0][1].rows
    {'a': {'recall': 1.0, 'AP': 0.5}}
    """
    nested = {name: value for name, value in metrics.items() if isinstance(value, Mapping) and value}
    of_classes = {name: value for name, value in nested.items() if set(map(str, value)) <= known}
    # In the common table, a metric with several values needs its name before theirs if another one has some too.
    several = sum(any(isinstance(one, Mapping) for one in value.values()) for value in nested.values())
    classes = PerClass()
    for name, value in of_classes.items():
        classes.add(_title_of(name), value, prefixed=several != 1)
    others = []
    for name, value in nested.items():
        if name not in of_classes:
            others.append((_title_of(name), PerClass()))
            others[-1][1].add(_title_of(name), value, prefixed=False)
    return ([("Per class", classes)] if classes.rows else []) + others


def _title_of(name: str) -> str:
    return name.removesuffix("_per_class").replace("_", " ")


def confusion_matrix(evaluation: Evaluation) -> NDArray[np.int64] | None:
    """Return the confusion matrix of an evaluation, int64 [true class, predicted class], or None."""
    found = evaluation.metrics.get("confusion")
    try:
        counts = np.array(found, np.float64)
    except (ValueError, TypeError):
        return None
    square = counts.ndim == 2 and counts.shape[0] == counts.shape[1] and counts.size
    return counts.astype(np.int64) if square and np.isfinite(counts).all() and (counts >= 0).all() else None


def format_metric(value: Any) -> str:
    """Format a value of a metric.

    >>> [format_metric(value) for value in (0.91234, 12, None, 7.25, "x", 1e-5, float("nan"))]
    ['0.912', '12', '–', '7.25', 'x', '1e-05', '–']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _format_fraction(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(format_metric, value[:8])) + (", …" if len(value) > 8 else "")
    return "–" if value is None else NOT_FINITE.get(str(value), str(value))


def _format_fraction(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    # Most metrics are shares; three digits after the point align them in a table.
    return f"{value:.3f}" if 0.001 <= abs(value) < 1 or value in (0, 1) else f"{value:.4g}"


def _leaves(nested: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Return the values of nested mappings, each with its keys joined by spaces."""
    found: list[tuple[str, Any]] = []
    for name, value in nested.items():
        found += (
            _leaves(value, f"{above}{name} ") if isinstance(value, Mapping) else [(f"{above}{name}", value)]
        )
    return found
