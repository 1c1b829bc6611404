"""Several runs as one model: the mean of their probabilities, such as those of the folds of a cross-validation.

Source: Isensee et al., "nnU-Net", 2021, whose predictions are the mean of the softmax outputs of five folds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from halofeed.system.errors import UsageError
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.detection.merge_tiles import MergeRule
from halofeed.trainer.evaluate import Predicted
from halofeed.trainer.loaded_run import LoadedRun
from halofeed.trainer.mask_rule import MaskRule
from halofeed.trainer.run_folder import Run
from halofeed.trainer.task import DataFacts, Host


def _common_rows(configs: Sequence[TrainConfig], devices: int) -> int:
    """Return the images per batch of all models: the least of the runs, and a row for each replica of any of them.

    Runs that split images over fewer cores have more replicas. Cores are powers of two, so that the most replicas are a
    multiple of every other number of replicas.

    >>> _common_rows([TrainConfig(evaluate_batch_size=3), TrainConfig(evaluate_batch_size=8)], 4)
    4
    """
    replicas = max(config.parsed_partition().replicas(devices) for config in configs)
    rows = min(config.evaluate_batch_size or config.batch_size for config in configs)
    return -(-rows // replicas) * replicas


class Ensemble:
    """Models of several runs on one split; it predicts the mean of their probabilities.

    Memory: the parameters of all models, and their predictions of one batch.

    Args:
        runs: two runs or more for one task and with one list of classes.
        data: version folder of a data set.
        split: name of the split.
        which: checkpoint to load from each: "best", "last" or a step.

    Attributes:
        facts: facts of the first run's data set, with the image shape and the ignore label of this data set.
        steps: number of steps after which the weights of each run were saved.
        kept: classes of which only the largest component is kept: those for which every run has proved it.

    Raises:
        UsageError: the runs differ in task, classes or regions, or predict boxes, which have no mean.
    """

    def __init__(self, runs: Sequence[Run], data: str | Path, split: str, *, which: str = "best") -> None:
        check_can_average(runs)
        rows = _common_rows([run.config for run in runs], jax.device_count())
        self._members = [
            LoadedRun(run, data, split, which=which, with_probabilities=True, rows=rows) for run in runs
        ]
        self.facts: DataFacts = self._members[0].facts
        self.steps = [member.step for member in self._members]
        self.kept = frozenset.intersection(*(member.kept for member in self._members))

    @property
    def can_have_rules(self) -> bool:
        """Return whether the largest component alone may be kept, as `LoadedRun.can_have_rules`."""
        return self._members[0].can_have_rules

    @property
    def mask_rule(self) -> MaskRule:
        """Rule by which the predictions of windows become masks: that of the first run."""
        return self._members[0].mask_rule

    @property
    def class_threshold(self) -> float:
        """Smallest mean probability of a class that counts as predicted: that of the first run."""
        return self._members[0].class_threshold

    def predictions(self) -> Iterator[Predicted]:
        """Yield the mean predictions of every batch, in the order of `LoadedRun.predictions`."""
        for batches in zip(*(member.predictions() for member in self._members), strict=True):
            yield Predicted(
                step=batches[0].step,
                predictions=self._mean([batch.predictions for batch in batches]),
                truth=batches[0].truth,
            )

    def evaluate(self, rule: MergeRule | None = None, *, with_rules: bool = True) -> dict[str, Any]:
        """Compute the task's metrics of the mean predictions, as `LoadedRun.evaluate`.

        Args:
            rule: rule by which boxes of different tiles are merged; there are none.
            with_rules: keep the largest components of the classes in `kept` alone.
        """
        first = self._members[0]
        first.check_labels()
        return first.measure(self.predictions(), rule, self.kept if with_rules else frozenset())[0]

    def _mean(self, predictions: Sequence[Host]) -> Host:
        # The classes that regions paint follow from the mean of the regions, which are independent of each other.
        name = "regions" if "regions" in predictions[0] else "probabilities"
        mean = np.zeros(predictions[0][name].shape, np.float32)
        for one in predictions:
            mean += one[name]
        mean /= len(predictions)
        return self._members[0].decide(mean)


def check_can_average(runs: Sequence[Run]) -> None:
    """Raise UsageError for runs whose predictions have no mean."""
    first = runs[0]
    for run in runs:
        if run.facts.task == "detection":
            raise UsageError(
                f"{run.folder}: its boxes cannot be averaged with those of other runs; name one run of a detector"
            )
        if (run.facts.task, run.facts.multi_label) != (first.facts.task, first.facts.multi_label) or dict(
            run.facts.labels
        ) != dict(first.facts.labels):
            raise UsageError(
                f"{run.folder}: learned {run.facts.task} of {dict(run.facts.labels)}, and {first.folder} "
                f"{first.facts.task} of {dict(first.facts.labels)}; name runs of one data set"
            )
        # The mean of a region and another one of the same number is the probability of neither.
        if _regions_of(run) != _regions_of(first):
            raise UsageError(
                f"{run.folder}: learned the regions {_regions_of(run) or 'none'}, and {first.folder} "
                f"{_regions_of(first) or 'none'}; name runs with the same task.regions"
            )


def _regions_of(run: Run) -> list[tuple[str, list[str]]]:
    """Return the regions of a run in their order, each with its classes."""
    regions = run.config.task_options.get("regions") or {}
    return [(name, sorted(classes)) for name, classes in regions.items()]


def load_runs(
    runs: Sequence[Run],
    data: str | Path,
    split: str,
    *,
    which: str = "best",
    with_probabilities: bool = False,
) -> LoadedRun | Ensemble:
    """Load one run, or several as an ensemble, for a split.

    Args:
        runs: at least one run.
        data: version folder of a data set.
        split: name of the split.
        which: checkpoint: "best", "last" or a step.
        with_probabilities: add the probabilities of each class to the predictions of masks; an ensemble always does.
    """
    if len(runs) > 1:
        return Ensemble(runs, data, split, which=which)
    return LoadedRun(runs[0], data, split, which=which, with_probabilities=with_probabilities)
