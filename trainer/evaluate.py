"""Evaluation of a model on a split; every record counts once."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from halofeed.loader.batch import PADDING_ID, join_id
from halofeed.schemas.bounded_json import with_json_checksum
from halofeed.schemas.partition import Partition
from halofeed.system.atomic_files import temporary_folder
from halofeed.system.console import status_with_time
from halofeed.trainer.ahead import Ahead
from halofeed.trainer.data import EvaluationSource
from halofeed.trainer.distributed import is_chief
from halofeed.trainer.progress import COMPILING
from halofeed.trainer.run_folder import write_json
from halofeed.trainer.step import TrainingSetup, Variables, compile_prediction, to_host
from halofeed.trainer.task import Host
from halofeed.trainer.training_setup import batch_partition

EXAMPLE_COUNT = 6
"""Number of worst examples that are saved, and of examples spread evenly over the split."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One batch of predictions on the host.

    Args:
        step: number of the batch in the evaluation.
        predictions: output of `Task.predict`.
        truth: the task's `truth` and `include` keys, `valid` and `id`.
    """

    step: int
    predictions: Host
    truth: Host


class Predictor:
    """Prediction program of a model, compiled once for one mesh.

    Args:
        setup: model, task and mesh.
        partition: partition of the config.
    """

    def __init__(self, setup: TrainingSetup, partition: Partition) -> None:
        self.setup = setup
        self._partition = batch_partition(partition, setup.task)
        self._predict = compile_prediction(setup)

    def batches(
        self, parameters: Variables, statistics: Variables, source: EvaluationSource
    ) -> Iterator[Predicted]:
        """Yield the predictions of every batch of a split, in order."""
        assert self.setup.mesh is not None
        with Ahead(iter(source.on_mesh(self.setup.mesh, self._partition))) as batches:
            for step, batch in enumerate(batches):
                with nullcontext() if step else status_with_time(COMPILING, show=is_chief()):
                    predicted = self._predict(parameters, statistics, batch)
                predictions, truth = map(to_host, predicted)
                yield Predicted(step=step, predictions=predictions, truth=truth)

    def evaluate(
        self,
        parameters: Variables,
        statistics: Variables,
        source: EvaluationSource,
        examples: ExampleCollector | None = None,
    ) -> dict[str, Any]:
        """Compute the task's metrics over a split; `examples` collects some of its rows."""
        metrics = self.setup.task.metrics()
        for batch in self.batches(parameters, statistics, source):
            scores = metrics.update(batch.predictions, batch.truth)
            if examples is not None:
                examples.add(batch, scores)
        return metrics.result()


@dataclass(order=True)
class _Example:
    order: tuple[float, int]
    step: int = field(compare=False)
    row: int = field(compare=False)
    score: float = field(compare=False)
    arrays: dict[str, Any] = field(compare=False, repr=False)


class ExampleCollector:
    """Collector of the `EXAMPLE_COUNT` worst rows of an evaluation, and as many spread evenly over the split.

    Args:
        records: number of rows of the evaluation.
    """

    def __init__(self, records: int) -> None:
        self._typical_numbers = {number * records // EXAMPLE_COUNT for number in range(EXAMPLE_COUNT)}
        self._worst: list[_Example] = []
        self._typical: list[_Example] = []
        self._row_count = 0

    def add(self, batch: Predicted, scores: np.ndarray[Any, Any]) -> None:
        """Keep the worst and the typical rows of a batch, with their predictions and ground truth."""
        valid = batch.truth.get("valid", np.ones(len(scores), bool))
        for row in np.flatnonzero(valid).tolist():
            number, score = self._row_count, float(scores[row])
            self._row_count += 1
            entry = _Example(order=(-score, -number), step=batch.step, row=row, score=score, arrays={})
            is_typical = number in self._typical_numbers
            is_bad = not np.isnan(score) and (len(self._worst) < EXAMPLE_COUNT or entry > self._worst[0])
            if not (is_typical or is_bad):
                continue
            entry.arrays = _row_arrays(batch, row)
            if is_typical:
                self._typical.append(entry)
            if is_bad:
                heapq.heappush(self._worst, entry)
                if len(self._worst) > EXAMPLE_COUNT:
                    heapq.heappop(self._worst)

    def write(self, folder: Path, source: EvaluationSource, step: int, split: str) -> None:
        """Replace the content of `folder` by the examples, worst first; images are read from the source again."""
        worst = sorted(self._worst, reverse=True)
        worst_rows = {(entry.step, entry.row) for entry in worst}
        typical = [entry for entry in self._typical if (entry.step, entry.row) not in worst_rows]
        listed = []
        with temporary_folder(folder) as temporary:
            for number, entry in enumerate([*worst, *typical]):
                name = f"{number:02d}.npz"
                image = source.batch(entry.step)["image"][entry.row]
                image = image.astype(np.float32) if image.dtype.kind not in "uif" else image
                np.savez_compressed(temporary / name, image=image, **entry.arrays)
                listed.append(
                    {
                        "file": name,
                        "id": int(join_id(entry.arrays["truth_id"]))
                        if "truth_id" in entry.arrays
                        else PADDING_ID,
                        "score": None if np.isnan(entry.score) else round(entry.score, 6),
                        "reason": "worst" if number < len(worst) else "typical",
                    }
                )
            document = {"step": step, "split": split, "examples": listed}
            write_json(temporary / "examples.json", with_json_checksum(document))


def _row_arrays(batch: Predicted, row: int) -> dict[str, Any]:
    predicted = {f"predicted_{key}": np.array(value[row]) for key, value in batch.predictions.items()}
    truth = {f"truth_{key}": np.array(value[row]) for key, value in batch.truth.items() if key != "valid"}
    spacing = truth.pop("truth_spacing_mm", None)
    return predicted | truth | ({} if spacing is None else {"spacing_mm": spacing})


def summary_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Format metrics as lines of text, with those per class last.

    >>> summary_lines({"dice": 0.91234, "dice_per_class": {"liver": 0.95, "spleen": None}})
    ['dice 0.9123', 'dice_per_class: liver 0.9500, spleen –']
    """
    lines = [
        f"{name} {_number(value)}" for name, value in metrics.items() if not isinstance(value, Mapping | list)
    ]
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            entries = ", ".join(
                f"{key} {'/'.join(map(_number, entry.values())) if isinstance(entry, Mapping) else _number(entry)}"
                for key, entry in value.items()
            )
            lines.append(f"{name}: {entries}")
    return lines


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
