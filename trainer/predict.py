"""Prediction of a split by a trained model, written on the grid of the source files.

OUT/predictions.json    run, data set and list of files
OUT/detections.json     detection: COCO results in pixels of the source, with categories.json
OUT/KEY.nii.gz, .png    segmentation: class indices on the grid of the source scan or picture
OUT/KEY/0/0000.png      segmentation of clips: a picture per clip and frame of a source
OUT/classes.csv         classification: the most probable class, and the probability of each
OUT/.halofeed           list of the files that halofeed wrote (halofeed.system.owned_files)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np

from halofeed.errors import JobError
from halofeed.loader.batch import join_id
from halofeed.system.console import StatusLine
from halofeed.system.result_folder import ResultFolder
from halofeed.system.wording import plural
from halofeed.trainer.loaded_run import LoadedRun
from halofeed.trainer.prediction_files import WRITERS, label_entries
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.run_folder import Run, write_json
from halofeed.trainer.task import DataFacts, Host, valid_host

PREDICTIONS = "predictions.json"
PREDICTIONS_FORMAT = 1
SOURCE_NOUNS = {"picture": "picture", "volume": "scan", "clip": "clip"}
"""What is predicted, by the kind of image; a scan may be several records, its tiles."""


def predict(
    run: Run,
    data: str | Path,
    split: str,
    folder: str | Path,
    *,
    which: str = "best",
    overwrite: bool = False,
) -> dict[str, Any]:
    """Predict every record of a split and write the predictions on the grid of the source files.

    The tiles of a scan are blended. In a run of several processes all of them predict and the first one writes.

    Args:
        run: run that trained the model.
        data: version folder of a data set that was converted like the run's own; labels and image size may differ.
        split: name of the split.
        folder: output folder, written atomically.
        which: checkpoint: "best", "last" or a step.
        overwrite: replace earlier predictions.

    Returns:
        The content of predictions.json; empty in processes that do not write.

    Raises:
        UsageError: the data set does not fit the model, or the folder holds other files.
    """
    folder = Path(folder).absolute()
    _result_folder(folder, overwrite).check()
    loaded = LoadedRun(run, data, split, which=which, with_probabilities=True)
    batches = ((batch.predictions, batch.truth) for batch in loaded.predictions())
    if jax.process_index():
        for _ in batches:
            pass
        return {}
    description = {"run": str(run.folder), "checkpoint": loaded.step}
    return predict_batches(
        batches, data, split, folder, facts=loaded.facts, description=description, overwrite=overwrite
    )


def predict_batches(
    batches: Iterable[tuple[Host, Host]],
    data: str | Path,
    split: str,
    folder: str | Path,
    *,
    facts: DataFacts,
    description: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write predictions of any model on the grid of the source files.

    Args:
        batches: predictions and ground truth of each batch; of the ground truth only `id`, uint32 [batch, 2], and
            `valid`, bool [batch], are used. Every record of the split must occur once, in any order. Predictions are

            - detection: `boxes` [batch, n, 4] as shares of the image (ymin, xmin, ymax, xmax), `classes` int [batch, n]
              from 1, `scores` [batch, n] and `num_detections` [batch];
            - classification: `probabilities` [batch, class] and `label` [batch];
            - segmentation: `probabilities` [batch, ..., class] or `label` [batch, ...] on the image's grid. Tiles in
              the order of their scans need the least memory.
        data: version folder of the data set.
        split: name of the split.
        folder: output folder, written atomically.
        facts: task and labels of the model.
        description: further members of predictions.json.
        overwrite: replace earlier predictions.

    Returns:
        The content of predictions.json.

    Raises:
        UsageError: the folder holds other files, or a record is not in the split.
        JobError: a record of the split was not predicted, or predicted twice.
    """
    metadata = SplitMetadata(data, split)
    with (
        _result_folder(Path(folder), overwrite).replaced() as temporary,
        WRITERS[facts.task](temporary, metadata, facts.labels) as writer,
        closing(StatusLine()) as line,
    ):
        predicted_ids: set[int] = set()
        finished, total = 0, plural(writer.total, SOURCE_NOUNS[metadata.manifest.kind.name])
        for predictions, truth in batches:
            for row in np.flatnonzero(valid_host(truth)).tolist():
                record_id = int(join_id(truth["id"][row]))
                if record_id in predicted_ids:
                    raise JobError(f"id {record_id}: was predicted twice")
                predicted_ids.add(record_id)
                rows = {key: value[row] for key, value in predictions.items()}
                finished += writer.add(metadata.of_id(record_id), rows)
                line.update(f"{finished:,} of {total} predicted".format)
        if len(predicted_ids) != len(metadata):
            raise JobError(f"split {split!r}: {len(predicted_ids)} of {len(metadata)} records were predicted")
        document = {
            "format": PREDICTIONS_FORMAT,
            **(description or {}),
            "data": str(data),
            "data_name": metadata.manifest.name,
            "data_version": metadata.manifest.version,
            "split": split,
            "task": facts.task,
            "labels": label_entries(facts.labels),
            "records": len(predicted_ids),
            "kind": metadata.manifest.kind.name,
            "sources": finished,
            **writer.finish(),
        }
        write_json(temporary / PREDICTIONS, document)
    return document


def _result_folder(folder: Path, overwrite: bool) -> ResultFolder:
    return ResultFolder(path=folder, marker=PREDICTIONS, holds="predictions", overwrite=overwrite)
