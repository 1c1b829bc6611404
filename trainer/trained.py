"""How is a run's model used again: with which weights, on which data, on which mesh?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from halofeed.errors import UsageError
from halofeed.loader import Loader
from halofeed.schemas.manifest import read_manifest
from halofeed.trainer.data import OrderedRecords, evaluation_loader, evaluation_split, tiles_in_order
from halofeed.trainer.evaluate import Predicted, Predictor
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.problem import build_problem
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.run_folder import Run
from halofeed.trainer.task import check_no_class_overlap, check_single_label
from halofeed.trainer.tasks.segmentation import Segmentation


class LoadedRun:
    """A run's model on a split of a data set, on all devices, as the run's partition splits them.

    Args:
        run: whose model it is.
        data: the version's folder of a data set that was converted as the run's own; images may have another size.
        split: its name.
        which: "best", "last" or a step.
        with_probabilities: let a task of segmentation predict each class's probability too.

    Attributes:
        facts: the run's, with the image shape of this data.
        step: after how many steps the weights were saved.

    Raises:
        UsageError: the data do not fit the model, or there is no such checkpoint.
    """

    def __init__(
        self,
        run: Run,
        data: str | Path,
        split: str,
        *,
        which: str = "best",
        with_probabilities: bool = False,
    ) -> None:
        manifest = read_manifest(data)
        check_no_class_overlap(manifest)
        shape = manifest.field("image").shape
        learned = run.facts.image_shape
        if len(shape) != len(learned) or shape[-1] != learned[-1]:
            raise UsageError(
                f"{data}: holds images {list(shape)}, the model was trained on {list(learned)}; convert the data by "
                "the recipe of the run's"
            )
        # The data's own image shape: a model that was trained on crops predicts whole images.
        # What is not known is the data's own matter: a run may be evaluated on data with another ignore label, or none.
        self.facts = replace(run.facts, image_shape=shape, ignore_label=manifest.ignore_label)
        config = replace(run.config, image_shape=None)
        self._setup = build_problem(config, self.facts, make_mesh(config.cores_per_replica))
        if with_probabilities and isinstance(self._setup.task, Segmentation):
            task = replace(self._setup.task, with_probabilities=True)
            self._setup = replace(self._setup, task=task)
        self._parameters, self._statistics, self.step = run.restore(self._setup, which)
        self._predictor = Predictor(self._setup, config.parsed_partition())
        self._data, self._split, self._manifest = data, split, manifest
        self._rows = config.evaluate_batch_size or config.batch_size

    def predictions(self) -> Iterator[Predicted]:
        """Of every batch of the split, in stored order; where scans lie in tiles, one scan after the other."""
        metadata = SplitMetadata(self._data, self._split)
        source: Any = self._loader(self._rows)
        if metadata.has_tiles:
            source = OrderedRecords(self._loader(1), tiles_in_order(metadata), self._rows)
        return self._predictor.batches(self._parameters, self._statistics, source)

    def evaluate(self) -> dict[str, Any]:
        """The task's metrics over the split.

        Raises:
            UsageError: the data set's task or labels are not those that the model learned.
        """
        check_single_label(self._manifest)
        if self._manifest.task != self.facts.task:
            raise UsageError(
                f"{self._data}: is for {self._manifest.task}, the model learned {self.facts.task}"
            )
        if dict(self._manifest.labels) != dict(self.facts.labels):
            raise UsageError(
                f"{self._data}: has the labels {dict(self._manifest.labels)}, the model learned "
                f"{dict(self.facts.labels)}"
            )
        return self._predictor.evaluate(self._parameters, self._statistics, self._loader(self._rows))

    def _loader(self, rows: int) -> Loader:
        return evaluation_loader(self._data, self._split, rows, self._setup.task)


def choose_split(run: Run, data: str | None, split: str) -> tuple[str, str]:
    """The data set and split that are meant: those named, else the run's own, else the first to evaluate on."""
    path = data or str(run.document["data"])
    if split:
        return path, split
    manifest = read_manifest(path)
    if run.document.get("evaluate_split") in manifest.splits:
        return path, str(run.document["evaluate_split"])
    filled = [name for name, stored in manifest.splits.items() if stored.records]
    found = evaluation_split(manifest, "", "") or next(iter(filled), None)
    if found is None:
        raise UsageError(f"{path}: holds no records")
    return path, found
