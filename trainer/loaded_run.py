"""Model of a finished run, loaded for evaluation and prediction on a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from halofeed.loader import Loader
from halofeed.schemas.file_layout import RUN_FILE
from halofeed.schemas.manifest import read_manifest
from halofeed.system.errors import UsageError
from halofeed.trainer.data import (
    EvaluationSource,
    OrderedRecords,
    evaluation_loader,
    evaluation_split,
    tiles_in_order,
)
from halofeed.trainer.detection.merge_tiles import MergeRule
from halofeed.trainer.evaluate import Predicted, Predictor, ScanMetrics
from halofeed.trainer.largest_component import COMPONENT_KINDS, ComponentMetrics, ComponentRule, kept_classes
from halofeed.trainer.mask_rule import MaskRule
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.run_folder import Run
from halofeed.trainer.task import Host, check_has_labels, check_no_class_overlap, is_multi_label
from halofeed.trainer.tasks.classification import Classification
from halofeed.trainer.tasks.multi_label import CLASS_THRESHOLD, MultiLabel
from halofeed.trainer.tasks.segmentation import Segmentation
from halofeed.trainer.training_setup import build_training_setup
from halofeed.trainer.whole_pictures import has_picture_tiles, whole_picture_metrics


class LoadedRun:
    """Model of a run with a split of a data set, on all devices, split as the run's partition says.

    Args:
        run: run that trained the model.
        data: version folder of a data set that was converted like the run's own; images may have another size.
        split: name of the split.
        which: checkpoint to load: "best", "last" or a step.
        with_probabilities: add each class's probability to the predictions of a segmentation task.
        rows: images per batch; 0 takes the run's evaluation batch.

    Attributes:
        facts: facts of the run's data set, with the image shape and the ignore label of this data set.
        step: number of steps after which the weights were saved.
        kept: classes of which only the largest component is kept, as the validation split has proved.

    Raises:
        UsageError: the data set does not fit the model, or there is no such checkpoint.
    """

    def __init__(
        self,
        run: Run,
        data: str | Path,
        split: str,
        *,
        which: str = "best",
        with_probabilities: bool = False,
        rows: int = 0,
    ) -> None:
        manifest = read_manifest(data)
        check_no_class_overlap(manifest)
        shape = manifest.field("image").shape
        trained_shape = run.facts.image_shape
        if len(shape) != len(trained_shape) or shape[-1] != trained_shape[-1]:
            raise UsageError(
                f"{data}: holds images {list(shape)}, the model was trained on {list(trained_shape)}; convert the data "
                f"with --recipe {run.folder / RUN_FILE}"
            )
        # A model that was trained on crops predicts complete images, and the data may have another ignore label.
        self.facts = replace(run.facts, image_shape=shape, ignore_label=manifest.ignore_label)
        config = replace(run.config, image_shape=None)
        self._setup = build_training_setup(config, self.facts, make_mesh(config.cores_per_replica))
        self._data, self._split, self._manifest = data, split, manifest
        self._metadata = SplitMetadata(data, split)
        self._has_tiles = self._metadata.has_tiles or has_picture_tiles(self._metadata)
        if (with_probabilities or self._has_tiles) and isinstance(self._setup.task, Segmentation):
            task = replace(self._setup.task, with_probabilities=True)
            self._setup = replace(self._setup, task=task)
        self._parameters, self._statistics, self.step = run.restore(self._setup, which)
        self._predictor = Predictor(self._setup, config.parsed_partition())
        self._rows = rows or config.evaluate_batch_size or config.batch_size
        self.kept = kept_classes(run.document, self.step)

    def predictions(self) -> Iterator[Predicted]:
        """Yield the predictions of every batch in stored order, or scan by scan if scans are stored as tiles."""
        return self._predictor.batches(self._parameters, self._statistics, self._source())

    @property
    def mask_rule(self) -> MaskRule:
        """Rule by which the predictions of windows become masks."""
        task = self._setup.task
        return task.mask_rule if isinstance(task, Segmentation) else MaskRule()

    @property
    def class_threshold(self) -> float:
        """Smallest probability of a class that counts as predicted, where an image may have several classes."""
        task = self._setup.task
        return task.threshold if isinstance(task, MultiLabel) else CLASS_THRESHOLD

    def evaluate(self, rule: MergeRule | None = None, *, with_rules: bool = True) -> dict[str, Any]:
        """Compute the task's metrics over the split; a scan or picture that is stored as tiles counts once, as a whole.

        Args:
            rule: rule by which boxes of different tiles of a picture are merged.
            with_rules: keep the largest components of the classes in `kept` alone, as `predict` does.

        Raises:
            UsageError: the data set has another task or other labels than the model was trained on, or the split has
                no labels.
        """
        self.check_labels()
        return self.measure(self.predictions(), rule, self.kept if with_rules else frozenset())[0]

    @property
    def can_have_rules(self) -> bool:
        """Return whether rules can be found: not for regions, clips, other tasks, and pictures stored as tiles."""
        task = self._setup.task
        return (
            isinstance(task, Segmentation)
            and self.facts.kind in COMPONENT_KINDS
            and not task.regions
            and not has_picture_tiles(self._metadata)
        )

    def find_rules(self) -> tuple[dict[str, Any], list[ComponentRule]]:
        """Return the metrics without any rule, and the effect of each class's largest component alone on this split.

        The list is empty for other tasks than segmentation, for regions, for clips and for pictures that are stored as
        tiles.
        """
        self.check_labels()
        return self.measure(self.predictions(), None, frozenset())

    def measure(
        self, batches: Iterable[Predicted], rule: MergeRule | None, kept: frozenset[int]
    ) -> tuple[dict[str, Any], list[ComponentRule]]:
        """Return the metrics of predictions of this split, and the effects of `find_rules`.

        Args:
            batches: predictions of every batch of the split, in order.
            rule: rule by which boxes of different tiles of a picture are merged.
            kept: classes of which only the largest component counts.
        """
        task = self._setup.task
        metrics = whole_picture_metrics(task, self._metadata, rule)
        components: ComponentMetrics | None = None
        if (
            metrics is None
            and isinstance(task, Segmentation)
            and self.facts.kind in COMPONENT_KINDS
            and not task.regions
        ):
            metrics = components = ComponentMetrics(task.metrics(), kept, task.ignore_label)
            # The Dice of a tile is not the Dice of its scan (docs/decisions.md).
            if self._has_tiles:
                metrics = ScanMetrics(task, self._metadata, components)
        elif (
            metrics is None
            and self._has_tiles
            and self.facts.kind == "volume"
            and isinstance(task, Segmentation)
        ):
            metrics = ScanMetrics(task, self._metadata)
        metrics = metrics or task.metrics()
        for batch in batches:
            metrics.update(batch.predictions, batch.truth)
        return metrics.result(), [] if components is None else components.rules()

    def decide(self, probabilities: NDArray[Any]) -> Host:
        """Return the predictions of a batch for probabilities [batch, ..., class] on the host, such as means.

        Args:
            probabilities: of any float type.
        """
        task = self._setup.task
        assert isinstance(task, Classification | MultiLabel | Segmentation)  # boxes have no mean
        return task.decide(probabilities)

    def check_labels(self) -> None:
        """Raise UsageError if the split has no labels, or others than the model learned."""
        check_has_labels(self._manifest, self._split)
        if self._manifest.task != self.facts.task:
            raise UsageError(
                f"{self._data}: is for {self._manifest.task}, the model learned {self.facts.task}; name a data set "
                "for that, or none to measure on the run's own"
            )
        if is_multi_label(self._manifest) != self.facts.multi_label:
            kinds = ("one class per image", "several classes per image")
            held, learned = kinds[not self.facts.multi_label], kinds[self.facts.multi_label]
            option = "keep" if self.facts.multi_label else "refuse"
            raise UsageError(
                f"{self._data}: has {held}, the model learned {learned}; convert the data with "
                f"--several-classes {option}"
            )
        if dict(self._manifest.labels) != dict(self.facts.labels):
            raise UsageError(
                f"{self._data}: has the labels {dict(self._manifest.labels)}, the model learned "
                f"{dict(self.facts.labels)}; convert the data with the same classes in the same order (--map-classes, "
                "--classes), or train on it with --init"
            )

    def _source(self) -> EvaluationSource:
        # Scan by scan, so that one scan at a time is in memory. The tiles of a picture are stored one after the other.
        if self._has_tiles and self.facts.kind != "picture":
            return OrderedRecords(self._loader(1), tiles_in_order(self._metadata), self._rows)
        return self._loader(self._rows)

    def _loader(self, rows: int) -> Loader:
        return evaluation_loader(self._data, self._split, rows, self._setup.task)


def choose_split(run: Run, data: str | None, split: str) -> tuple[str, str]:
    """Return the given data set and split, else those of the run, else the first split to evaluate on."""
    path = data or str(run.document["data"])
    if data is None and not Path(path).is_dir():
        raise UsageError(
            f"{path}: no such folder, and the run was trained on it; name its data set where it is now, as in "
            f"`halofeed evaluate {run.folder} FOLDER`"
        )
    if split:
        return path, split
    manifest = read_manifest(path)
    # The split by which the best checkpoint was chosen, so that the figures agree.
    if run.document.get("evaluate_split") in manifest.splits:
        return path, str(run.document["evaluate_split"])
    filled = sorted(
        (name for name, stored in manifest.splits.items() if stored.records), key=manifest.is_for_prediction
    )
    found = evaluation_split(manifest, "", "") or next(iter(filled), None)
    if found is None:
        raise UsageError(f"{path}: holds no records")
    return path, found
