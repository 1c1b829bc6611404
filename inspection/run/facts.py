"""What did a training run leave in its folder? Read and checked without JAX; what is not there yet is left empty."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.facts.kinds import TASKS, TaskWords
from halofeed.inspection.stored.place import lines_of
from halofeed.schemas.errors import CorruptFileError
from halofeed.schemas.files import read_regular
from halofeed.schemas.kinds import EARLY_KINDS, KINDS
from halofeed.schemas.limits import RUN_BYTES, RUN_LINES, RUN_VALUES
from halofeed.schemas.plain_json import parse_json
from halofeed.schemas.run import CHECKPOINTS, EXAMPLES, RUN_FILE, read_run
from halofeed.schemas.sealed import unsealed
from halofeed.schemas.tasks import task_named

LOG_FILE, EVALUATIONS_FILE = "log.jsonl", "evaluations.jsonl"
EXAMPLES_FILE = f"{EXAMPLES}/examples.json"
NOT_FINITE = {"NaN": "–", "Infinity": "∞", "-Infinity": "−∞"}
"""How the log writes numbers that JSON has no form for, and how they are shown."""
_MOST_LINE_VALUES = 1_000_000
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
        has_background = TASKS.get(self.task, TaskWords()).has_background
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
            if (value := number_of(evaluation.metrics.get(name))) is not None
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


def number_of(value: Any) -> float | None:
    """A finite number, or None.

    >>> number_of(3), number_of(None), number_of(float("nan")), number_of("3"), number_of(True)
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
        for number, line in enumerate(lines_of(file), 1):
            if number > RUN_LINES:
                raise CorruptFileError(f"{file}: more than {RUN_LINES:,} lines; {_line_cure(file)}")
            if not line.strip():
                continue
            expected = "a JSON object with a step"
            try:
                entry = unsealed(parse_json(line, _MOST_LINE_VALUES, finite=False))
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
            [math.nan if (value := number_of(entry.get(name))) is None else value for entry in ordered],
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
        document = unsealed(parse_json(read_regular(file, RUN_BYTES), RUN_VALUES))
        entries = tuple(
            ExampleEntry(
                file=file.parent / str(entry["file"]),
                id=int(entry.get("id", -1)),
                score=number_of(entry.get("score")),
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
