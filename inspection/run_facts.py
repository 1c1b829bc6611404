"""What do the metrics of an evaluation hold: single values, values per class, a confusion matrix?

What did a training run leave in its folder? Read and checked without JAX; what is not there yet is left empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError
from halofeed.inspection.dataset_files import read_lines
from halofeed.inspection.record_words import TASK_WORDS, TaskWords
from halofeed.schemas.bounded_json import check_json_checksum, parse_json
from halofeed.schemas.files import CHECKPOINTS, EXAMPLES, RUN_FILE, read_run
from halofeed.schemas.kinds import EARLY_KINDS, KINDS
from halofeed.schemas.limits import RUN_BYTES, RUN_LINES, RUN_VALUES
from halofeed.schemas.tasks import task_named
from halofeed.system.atomic_files import read_regular


@dataclass(frozen=True, kw_only=True)
class PerClass:
    """Numbers by class: one row per name, one column per metric."""

    columns: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def most(self, column: str) -> tuple[float, bool]:
        """What a bar of the column reaches to, and whether that is 1 since all of them are shares."""
        values = [finite_number(cells.get(column)) or 0.0 for cells in self.rows.values()]
        are_shares = all(0 <= value <= 1 for value in values)
        return (1.0 if are_shares else max(values, default=0.0) or 1.0), are_shares

    def from_worst(self) -> list[str]:
        """The names of the rows, by the first column."""
        first = self.columns[0]
        # A distance is the worse the greater it is.
        direction = 1 if self.most(first)[1] else -1

        def key(name: str) -> tuple[bool, float]:
            value = finite_number(self.rows[name].get(first))
            return value is None, direction * (value or 0.0)

        return sorted(self.rows, key=key)


def scalar_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that are single values.

    >>> scalar_metrics({"dice": 0.5, "dice_per_class": {"liver": 0.5}, "confusion": [[1]], "hausdorff95_mm": None})
    {'dice': 0.5, 'hausdorff95_mm': None}
    """
    return {name: value for name, value in metrics.items() if not isinstance(value, Mapping | list | tuple)}


def metric_tables(metrics: Mapping[str, Any], known: set[str]) -> list[tuple[str, PerClass]]:
    """The nested metrics as tables: those whose names are classes in one, any other in one of its own.

    >>> metric_tables({"recall": {"a": 1.0}, "ap": {"a": {"AP": 0.5}}, "size": {"small": 2}}, {"a"})[0][1].rows
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


def confusion_matrix(evaluation: Evaluation) -> NDArray[np.int64] | None:
    """int64 [true class, predicted class], or None where the evaluation has none."""
    found = evaluation.metrics.get("confusion")
    try:
        counts = np.array(found, np.float64)
    except (ValueError, TypeError):
        return None
    square = counts.ndim == 2 and counts.shape[0] == counts.shape[1] and counts.size
    return counts.astype(np.int64) if square and np.isfinite(counts).all() and (counts >= 0).all() else None


def format_metric(value: Any) -> str:
    """A value of a metric for reading.

    >>> format_metric(0.91234), format_metric(12), show(None), show(7.25), show("x"), show(1e-5), show(float("nan"))
    ('0.912', '12', '–', '7.25', 'x', '1e-05', '–')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if value is None or (isinstance(value, float) and finite_number(value) is None):
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}" if 0.001 <= abs(value) < 1 or value in (0, 1) else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_metric, value[:8])) + (", …" if len(value) > 8 else "")
    return NOT_FINITE.get(str(value), str(value))


def _leaves(nested: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in nested.items():
        found += (
            _leaves(value, f"{above}{name} ") if isinstance(value, Mapping) else [(f"{above}{name}", value)]
        )
    return found


LOG_FILE, EVALUATIONS_FILE = "log.jsonl", "evaluations.jsonl"
EXAMPLES_FILE = f"{EXAMPLES}/examples.json"
NOT_FINITE = {"NaN": "–", "Infinity": "∞", "-Infinity": "−∞"}
"""How the log writes numbers that JSON has no form for, and how they are shown."""
_MAX_LINE_VALUES = 1_000_000
_NO_PARTS = frozenset(
    {"step", "loss", "learning_rate", "gradient_norm", "images_per_second", "waiting_share"}
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The metrics of one evaluation: numbers by name, nested where they are per class."""

    step: int
    split: str
    metrics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ExampleEntry:
    """One line of examples.json: which file holds the arrays, and why it was kept."""

    file: Path
    id: int
    score: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run as its report tells it.

    Args:
        path: the folder as the caller wrote it.
        document: of run.json.
        log: float64 [lines] per name of the log, in the order of steps, each step once; NaN where it says nothing.
        evaluations: in the order of steps.
        examples: as examples.json lists them.
        examples_of: the step and split that the examples are of.
        saved_step: of the last checkpoint.
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
        """What was trained how."""
        config: Mapping[str, Any] = self.document["config"]
        return config

    @property
    def task(self) -> str:
        """The data set's task."""
        return str(self.document["facts"]["task"])

    @property
    def labels(self) -> dict[int, str]:
        """Class names by id."""
        return {int(label): str(name) for label, name in self.document["facts"]["labels"].items()}

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Of one image of a training batch, channel last."""
        return tuple(self.document["facts"]["image_shape"])

    @property
    def kind(self) -> str:
        """Of the images, a key of `halofeed.schemas.kinds.KINDS`."""
        return _kind_of(self.document["facts"])

    @property
    def data(self) -> str:
        """The name and version of the data set, as far as they are known."""
        return f"{self.document.get('data_name') or ''} {self.document.get('data_version') or ''}".strip()

    @property
    def steps(self) -> int:
        """How many steps are logged."""
        return int(self.log["step"][-1]) if len(self.log["step"]) else 0

    @property
    def wanted_steps(self) -> int:
        """How many steps the config asks for."""
        return int(self.config.get("steps", 0))

    @property
    def parts(self) -> list[str]:
        """What the loss is the sum of, where the log says it; the loss itself under another name left out."""
        names = [name for name in self.log if name not in _NO_PARTS]
        loss = self.column("loss")
        return [
            name
            for name in names
            if len(names) > 1 or not np.allclose(self.log[name], loss, rtol=1e-6, equal_nan=True)
        ]

    @property
    def ranks(self) -> dict[int, int]:
        """Which color each class has; the background has none."""
        has_background = TASK_WORDS.get(self.task, TaskWords()).has_background
        shown = sorted(label for label in self.labels if label or not has_background)
        return {label: rank for rank, label in enumerate(shown)}

    def rank(self, label: int) -> int:
        """Which color a class has, that of the first where nobody knows it."""
        return self.ranks.get(label, 0)

    @property
    def class_names(self) -> list[str]:
        """The name of every class in order, `class 2` where an id has none."""
        first = task_named(self.task).first_label_id
        return [self.label_name(label) for label in range(first, max(self.labels, default=first - 1) + 1)]

    def label_name(self, label: int) -> str:
        """The name of a class."""
        return self.labels.get(label, f"class {label}")

    def column(self, name: str) -> NDArray[np.float64]:
        """float64 [lines] of the log; NaN throughout where it has no such name."""
        return self.log.get(name, np.full(len(self.log["step"]), np.nan))

    def seconds(self) -> NDArray[np.float64]:
        """How long the steps of each line of the log took, float64 [lines]; NaN where no rate is known."""
        rate = self.column("images_per_second")
        taken = np.diff(self.log["step"], prepend=0.0) * float(self.config.get("batch_size", 1))
        return np.where(rate > 0, taken / np.where(rate > 0, rate, 1.0), np.nan)

    def best(self) -> tuple[str, float, Evaluation] | None:
        """The metric by which the best step is told, its highest value and the evaluation that gave it."""
        name = self.document.get("best_metric", "")
        found = [
            (value, evaluation)
            for evaluation in self.evaluations
            if (value := finite_number(evaluation.metrics.get(name))) is not None
        ]
        if not found:
            return None
        value, evaluation = max(found, key=lambda pair: (pair[0], -pair[1].step))
        return name, value, evaluation


def read_run_facts(folder: str | Path) -> RunFacts:
    """Read a run folder.

    Raises:
        UsageError: it holds no run.
        CorruptFileError: a file in it is not what training writes; the message names it, and the cure.
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
    """Of the checkpoints, each in a folder of its step; one that is being written has another name."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=None)


def finite_number(value: Any) -> float | None:
    """A finite number, or None.

    >>> finite_number(3), finite_number(None), number_of(float("nan")), number_of("3"), number_of(True)
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _document(folder: Path) -> dict[str, Any]:
    file, document = folder / RUN_FILE, read_run(folder)
    facts, config = document.get("facts"), document.get("config")
    sound = (
        isinstance(config, dict)
        and isinstance(facts, dict)
        and isinstance(facts.get("task"), str)
        and isinstance(facts.get("labels"), dict)
        and all(str(label).lstrip("-").isdigit() for label in facts["labels"])
        and isinstance(facts.get("image_shape"), list)
        and all(isinstance(side, int) for side in facts["image_shape"])
        and (kind := KINDS.get(_kind_of(facts))) is not None
        and len(kind.axes) == len(facts["image_shape"]) - 1
    )
    if not sound:
        raise CorruptFileError(
            f"{file}: expected a config, and facts with task, labels, a known kind and an image_shape of its axes; "
            f"move {file.parent} away and train again"
        )
    return document


def _kind_of(facts: Mapping[str, Any]) -> str:
    """Which kind of image a run's data has; runs of early versions name none."""
    return str(facts.get("kind") or EARLY_KINDS.get(len(facts["image_shape"])))


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's number and document; a last line that was cut off while it was written is left out."""
    try:
        for number, line in enumerate(read_lines(file), 1):
            if number > RUN_LINES:
                raise CorruptFileError(f"{file}: more than {RUN_LINES:,} lines; {_line_cure(file)}")
            if not line.strip():
                continue
            expected = "a JSON object with a step"
            try:
                entry = check_json_checksum(parse_json(line, _MAX_LINE_VALUES, finite=False))
                whole = (
                    isinstance(entry, dict)
                    and type(entry.get("step")) is int
                    and 0 <= entry["step"] < 1 << 53
                )
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return
                whole, expected = False, f"{expected} ({error})"
            if not whole:
                shown = line.strip()[:60].decode("utf-8", "replace")
                raise CorruptFileError(
                    f"{file}: line {number}: expected {expected}, got {shown!r}; " + _line_cure(file)
                )
            yield number, entry
    except FileNotFoundError:
        return
    except OSError as error:
        raise CorruptFileError(f"{file}: cannot be read: {error}; {_line_cure(file)}") from error


def _line_cure(file: Path) -> str:
    return f"remove the line, or the file to go without what it says ({file.name})"


def _log(file: Path) -> dict[str, NDArray[np.float64]]:
    """Columns of the log. A run that went on from a checkpoint logs some steps again: the last line counts."""
    lines = {entry["step"]: entry for _, entry in _lines(file)}
    ordered = [lines[step] for step in sorted(lines)]
    names = dict.fromkeys(
        name
        for entry in ordered
        for name, value in entry.items()
        if value is None
        or (isinstance(value, str) and value in NOT_FINITE)
        or (isinstance(value, int | float) and not isinstance(value, bool))
    )
    return {"step": np.zeros(0)} | {
        name: np.array(
            [math.nan if (value := finite_number(entry.get(name))) is None else value for entry in ordered],
            np.float64,
        )
        for name in names
    }


def _evaluations(file: Path) -> tuple[Evaluation, ...]:
    found: dict[tuple[int, str], Evaluation] = {}
    for number, entry in _lines(file):
        metrics = entry.get("metrics")
        if not isinstance(metrics, dict):
            raise CorruptFileError(
                f"{file}: line {number}: expected metrics by name, got {metrics!r}; {_line_cure(file)}"
            )
        split = str(entry.get("split") or "")
        found[entry["step"], split] = Evaluation(step=entry["step"], split=split, metrics=metrics)
    return tuple(found[key] for key in sorted(found))


def _examples(folder: Path) -> tuple[tuple[ExampleEntry, ...], tuple[int, str] | None]:
    file = folder / EXAMPLES_FILE
    cure = f"evaluate again, or remove {file.parent} to go without examples"
    try:
        document = check_json_checksum(parse_json(read_regular(file, RUN_BYTES), RUN_VALUES))
        entries = tuple(
            ExampleEntry(
                file=file.parent / str(entry["file"]),
                id=int(entry.get("id", -1)),
                score=finite_number(entry.get("score")),
                reason=str(entry.get("reason", "")),
            )
            for entry in document["examples"]
        )
        of = (int(document["step"]), str(document.get("split") or ""))
    except FileNotFoundError:
        return (), None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFileError(
            f"{file}: expected a step and a list of examples ({error!r}); {cure}"
        ) from error
    for entry in entries:
        if entry.file.parent != file.parent or entry.file.suffix != ".npz":
            raise CorruptFileError(f"{file}: {str(entry.file)!r} is no .npz file in the same folder; {cure}")
    return entries, of
