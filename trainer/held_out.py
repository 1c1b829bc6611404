"""Predictions of all labeled splits of a data set, each by a run that was not trained on it if there is one.

A model repeats the labels that it was trained on, faulty ones too, the more the longer it was trained. Two runs, each
trained on one of two folds, predict all records without having seen them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from halofeed.schemas.manifest import Manifest, read_manifest
from halofeed.system.errors import UsageError
from halofeed.trainer.loaded_run import LoadedRun
from halofeed.trainer.run_folder import Run
from halofeed.trainer.task import Host, is_multi_label


@dataclass(frozen=True, kw_only=True)
class SplitRun:
    """Run that predicts a split.

    Args:
        split: name of the split.
        run: the run.
        is_held_out: whether the run was not trained on the split.
    """

    split: str
    run: Run
    is_held_out: bool


def choose_runs(runs: Sequence[Run], data: str | Path, split: str = "") -> list[SplitRun]:
    """Return for each labeled split the first run that was not trained on it, else the first run.

    Args:
        runs: at least one run.
        data: version folder of a data set.
        split: the only split to predict; "" takes all.

    Raises:
        UsageError: the split is unknown, no split has labels, or an image may have several classes.
    """
    manifest = read_manifest(data)
    if is_multi_label(manifest):
        raise UsageError(
            f"{data}: an image may have several classes, and faults of such labels are not searched for; review the "
            "data without --run, and see the worst images in the page of `halofeed report RUN`"
        )
    names = [split] if split else list(manifest.splits)
    labeled = [
        name for name in names if manifest.split(name).records and not manifest.is_for_prediction(name)
    ]
    if not labeled:
        raise UsageError(f"{data}: no record of {', '.join(names)} has labels to review")
    chosen = []
    for name in labeled:
        held_out = [run for run in runs if not is_trained_on(run, manifest, name)]
        chosen.append(SplitRun(split=name, run=[*held_out, *runs][0], is_held_out=bool(held_out)))
    return chosen


def is_trained_on(run: Run, manifest: Manifest, split: str) -> bool:
    """Return whether a run was trained on a split, of this or of another version of the data set."""
    trained = str(run.document["split"]).split("+")
    return run.document["data_name"] == manifest.name and split in trained


def predict_splits(
    chosen: Iterable[SplitRun], data: str | Path, which: str = "best"
) -> Iterator[tuple[Host, Host]]:
    """Yield predictions and ground truth of each batch of the splits; masks with probabilities.

    Args:
        chosen: splits and the runs that predict them.
        data: version folder of the data set.
        which: checkpoint: "best", "last" or a step.

    Raises:
        UsageError: the data set has another task or other classes than a run learned.
    """
    for one in chosen:
        loaded = LoadedRun(one.run, data, one.split, which=which, with_probabilities=True)
        loaded.check_labels()
        for batch in loaded.predictions():
            yield batch.predictions, batch.truth
