"""Evaluation of a model on a split; every record counts once."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader import Loader
from halofeed.loader.batch import PADDING_ID, join_id
from halofeed.loader.decode import read_text
from halofeed.loader.prefetcher import Prefetcher
from halofeed.schemas.bounded_json import with_json_checksum
from halofeed.schemas.partition import Partition
from halofeed.storage.atomic_files import temporary_folder
from halofeed.system.console import StatusLine, status_with_time
from halofeed.system.garbage_collection import paused_collector
from halofeed.system.wording import plural, printable
from halofeed.trainer.data import EvaluationSource
from halofeed.trainer.detection.pixel_boxes import HALF_LEVEL
from halofeed.trainer.distributed import is_chief
from halofeed.trainer.object_masks import object_numbers
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.run_folder import write_json
from halofeed.trainer.run_progress import COMPILING, time_text
from halofeed.trainer.source_grid import most_probable
from halofeed.trainer.step import TrainingSetup, Variables, compile_prediction, to_host
from halofeed.trainer.task import Host, Metrics, valid_host
from halofeed.trainer.tasks.segmentation import Segmentation
from halofeed.trainer.training_setup import batch_partition
from halofeed.trainer.windows import ScanBlender

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
        with (
            Prefetcher.of(source.on_mesh(self.setup.mesh, self._partition)) as batches,
            contextlib.closing(_Progress(source.num_records)) as progress,
        ):
            for step, batch in enumerate(batches):
                with nullcontext() if step else self._compiling():
                    predicted = self._predict(parameters, statistics, batch)
                predictions, truth = map(to_host, predicted)
                yield Predicted(step=step, predictions=predictions, truth=truth)
                # After the consumer has used the batch: joining and drawing may take longer than predicting.
                progress.add(truth)

    @staticmethod
    @contextmanager
    def _compiling() -> Iterator[None]:
        with status_with_time(COMPILING, show=is_chief()), paused_collector():
            yield

    def evaluate(
        self,
        parameters: Variables,
        statistics: Variables,
        source: EvaluationSource,
        examples: ExampleCollector | None = None,
        metrics: Metrics | None = None,
        ends: Callable[[int], bool] = lambda _: False,
    ) -> dict[str, Any] | None:
        """Compute the task's metrics over a split.

        Args:
            examples: collector of some of its rows.
            metrics: metrics to compute instead of the task's.
            ends: returns, for the number of a batch, whether to end before it.

        Returns:
            The metrics; None if `ends` ended the evaluation.
        """
        metrics = metrics or self.setup.task.metrics()
        for batch in self.batches(parameters, statistics, source):
            if ends(batch.step):
                return None
            scores = metrics.update(batch.predictions, batch.truth)
            if examples is not None:
                examples.add(batch, scores)
        return metrics.result()


class _Progress:
    """Line with the number of records predicted so far and the time that is left."""

    def __init__(self, records: int) -> None:
        self._records, self._done = records, 0
        self._line = StatusLine(show=is_chief())

    def add(self, truth: Host) -> None:
        """Count the valid rows of a batch."""
        self._done += int(valid_host(truth).sum())
        if self._done:
            self._line.update(self._text)

    def _text(self, elapsed: float) -> str:
        left = elapsed * (self._records - self._done) / self._done
        return f"predicted {self._done:,} of {plural(self._records, 'record')}, {time_text(left)} left"

    def close(self) -> None:
        self._line.close()


class ScanMetrics:
    """Metrics of complete scans, whose tiles are blended as `predict` does.

    Args:
        task: task whose predictions have `probabilities`.
        metadata: metadata of the split of volumes.
        metrics: empty metrics to compute of complete scans; None for the task's.
    """

    def __init__(self, task: Segmentation, metadata: SplitMetadata, metrics: Metrics | None = None) -> None:
        self._metrics, self._metadata = metrics or task.metrics(), metadata
        # In the ground truth the ignore label is one more class.
        self._classes, self._ignore = len(task.labels), task.ignore_label
        tiles = metadata.tiles()
        self._rule = task.mask_rule
        outputs = self._rule.outputs(self._classes)
        self._predicted = ScanBlender(tiles, outputs, self._rule.window_weights)
        # One-hot tiles agree where they overlap, so that their weights do not matter.
        self._true = ScanBlender(tiles, self._classes + 1)

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add the valid rows of a batch; the score of a scan is that of its last tile, NaN the others'."""
        scores = np.full(len(truth["id"]), np.nan)
        for row in np.flatnonzero(valid_host(truth)).tolist():
            record = self._metadata.of_id(int(join_id(truth["id"][row])))
            number, label = int(record.numbers["tile"]), truth["label"][row].astype(np.uint32)
            if self._ignore is not None:
                label[label == self._ignore] = self._classes
            scores_of_row = self._rule.of_row({name: values[row] for name, values in predictions.items()})
            predicted = self._predicted.add(record.key, number, scores_of_row)
            true = self._true.add(record.key, number, label)
            # Tiles of this scan are missing.
            if predicted is None or true is None:
                continue
            scan = {name: values[row : row + 1] for name, values in truth.items() if name != "extent"}
            # The extent of a blended scan is all of it.
            if true[2] is not None:
                scan["extent"] = true[2][None]
            scan["label"] = most_probable(true[0], np.uint32)[None]
            if self._ignore is not None:
                scan["label"][scan["label"] == self._classes] = self._ignore
            found = {"label": most_probable(self._rule.labels(predicted[0]), np.uint32)[None]}
            scores[row] = self._metrics.update(found, scan)[0]
        return scores

    def result(self) -> dict[str, Any]:
        """Return the task's metrics; `examples` is the number of scans."""
        return self._metrics.result()


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
                # The least entry of the heap is the best of the worst examples.
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
                        **_source_name(source, entry.arrays),
                        "id": int(join_id(entry.arrays["truth_id"]))
                        if "truth_id" in entry.arrays
                        else PADDING_ID,
                        "score": None if np.isnan(entry.score) else round(entry.score, 6),
                        "reason": "worst" if number < len(worst) else "typical",
                    }
                )
            document = {"step": step, "split": split, "examples": listed}
            write_json(temporary / "examples.json", with_json_checksum(document))


def _source_name(source: EvaluationSource, arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of an example's file as a member of examples.json; nothing for other sources than a loader."""
    if not isinstance(source, Loader) or "truth_id" not in arrays:
        return {}
    record = source.stored(source.find(int(join_id(arrays["truth_id"]))))
    field = source.manifest.field("source")
    return {"source": printable(read_text(field, record.features(frozenset(field.keys)), record))}


def _row_arrays(batch: Predicted, row: int) -> dict[str, Any]:
    predicted = {f"predicted_{key}": np.array(value[row]) for key, value in batch.predictions.items()}
    truth = {f"truth_{key}": np.array(value[row]) for key, value in batch.truth.items() if key != "valid"}
    # A number a pixel is drawn the same, in a hundredth of the memory of a mask per object.
    for arrays, side in ((predicted, "predicted"), (truth, "truth")):
        if (masks := arrays.pop(f"{side}_masks", None)) is not None:
            arrays[f"{side}_objects"] = object_numbers(masks, HALF_LEVEL if side == "predicted" else 0)
    spacing = truth.pop("truth_spacing_mm", None)
    return predicted | truth | ({} if spacing is None else {"spacing_mm": spacing})


_CONFUSED_SHOWN = 5
"""Pairs of confused classes that are printed."""


def summary_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Format metrics as lines of text, with those per class last, and the classes that are confused most often.

    >>> summary_lines({"dice": 0.91234, "dice_per_class": {"liver": 0.95, "spleen": None}})
    ['dice 0.9123', 'dice_per_class: liver 0.9500, spleen –']
    >>> summary_lines({"confused": [{"true": "cat", "predicted": "dog", "count": 3}]})
    ['confused: cat as dog 3']
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
    if pairs := metrics.get("confused"):
        words = [f"{pair['true']} as {pair['predicted']} {pair['count']}" for pair in pairs[:_CONFUSED_SHOWN]]
        lines.append(f"confused: {', '.join(words)}")
    return lines


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
