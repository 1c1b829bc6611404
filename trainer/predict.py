"""What does a trained model say of a split, in terms of the source files?

OUT/predictions.json    which run, data and files
OUT/detections.json     detection: COCO results in pixels of the source, with categories.json
OUT/KEY.nii.gz, .png    segmentation: class indices on the grid of the source scan or picture
OUT/KEY/0/0000.png      the same of each frame of a clip, and of each clip of a source
OUT/classes.csv         classification: the most probable class, and the probability of each
OUT/.halofeed           which of these halofeed wrote (halofeed.system.owned_files)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from halofeed.errors import JobError, UsageError
from halofeed.system import owned_files
from halofeed.system.atomic_files import temporary_folder
from halofeed.system.locks import FolderLock
from halofeed.system.signals import CleanupOnExit
from halofeed.trainer.prediction_files import WRITERS, rows_of, written_labels
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.run_folder import Run, write_json
from halofeed.trainer.task import DataFacts, Host, valid_host
from halofeed.trainer.trained import LoadedRun

PREDICTIONS = "predictions.json"
FORMAT = 1


def predict(
    run: Run,
    data: str | Path,
    split: str,
    folder: str | Path,
    *,
    which: str = "best",
    overwrite: bool = False,
) -> dict[str, Any]:
    """Predict every record of a split, and write what was predicted in terms of the source files.

    The tiles of a scan are blended. With several processes all take part, and the first one writes.

    Args:
        run: whose model it is.
        data: the version's folder of a data set that was converted as the model's own; its labels and height, width
            and depth may be others.
        split: its name.
        folder: where to; made whole or not at all.
        which: of `Trained`.
        overwrite: replace earlier predictions.

    Returns:
        what predictions.json holds; nothing in the processes that do not write.

    Raises:
        UsageError: the data do not fit the model, or the folder holds something else.
    """
    folder = Path(folder).absolute()
    check_folder(folder, overwrite)
    trained = LoadedRun(run, data, split, which=which, with_probabilities=True)
    batches = ((batch.predictions, batch.truth) for batch in trained.predictions())
    if jax.process_index():
        for _ in batches:
            pass
        return {}
    description = {"run": str(run.folder), "checkpoint": trained.step}
    return predict_batches(
        batches, data, split, folder, facts=trained.facts, description=description, overwrite=overwrite
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
    """Write predictions in terms of the source files, whoever has made them.

    Args:
        batches: per batch the predictions and the truth, of which only `id` int64 [batch] and `valid` bool [batch]
            are used. Predictions of detection: `boxes` [batch, n, 4] as shares of the image (ymin, xmin, ymax, xmax),
            `classes` int [batch, n] from 1, `scores` [batch, n] and `num_detections` [batch]; of classification:
            `probabilities` [batch, class] and `label` [batch]; of segmentation: `probabilities`
            [batch, ..., class] or `label` [batch, ...] on the image's grid. Every record of the split comes once, in
            any order; of scans in tiles best one scan after the other.
        data, split: which records they are of.
        folder: where to; made whole or not at all.
        facts: the model's task and labels.
        description: goes into predictions.json.
        overwrite: replace earlier predictions.

    Returns:
        what predictions.json holds.

    Raises:
        UsageError: the folder holds something else, or a record is none of the split.
        JobError: records of the split were not predicted, or twice.
    """
    metadata = SplitMetadata(data, split)
    with (
        whole_folder(Path(folder), overwrite) as made,
        WRITERS[facts.task](made, metadata, facts.labels) as writer,
    ):
        seen: set[int] = set()
        for predictions, truth in batches:
            for row, arrays in rows_of(predictions, valid_host(truth)):
                identity = int(truth["id"][row])
                if identity in seen:
                    raise JobError(f"id {identity}: was predicted twice")
                seen.add(identity)
                writer.add(metadata.of_id(identity), arrays)
        if len(seen) != len(metadata):
            raise JobError(f"split {split!r}: {len(seen)} of {len(metadata)} records were predicted")
        document = {
            "format": FORMAT,
            **(description or {}),
            "data": str(data),
            "data_name": metadata.manifest.name,
            "data_version": metadata.manifest.version,
            "split": split,
            "task": facts.task,
            "labels": written_labels(facts.labels),
            "records": len(seen),
            **writer.finish(),
        }
        write_json(made / PREDICTIONS, document)
    return document


@contextmanager
def whole_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write into that takes the place of `folder` at the end, and is gone if anything is raised.

    Raises:
        UsageError: there is a file, another folder, or one of earlier predictions and `overwrite` is False, or what is
            in it is not as halofeed wrote it.
        JobError: another process is writing there.
    """
    folder = owned_files.real_folder(folder.absolute())
    check_folder(folder, overwrite)
    lock = FolderLock("is writing predictions into", "take another --out")
    with CleanupOnExit(lock.release):
        lock.make(folder)
        check_folder(folder, overwrite)
        with temporary_folder(folder) as made:
            yield made


def check_folder(folder: Path, overwrite: bool) -> None:
    """UsageError as `whole_folder` raises it."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder}: is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / PREDICTIONS).is_file():
            raise UsageError(f"--out {folder}: is not empty and holds no predictions; name another folder")
        if not overwrite:
            raise UsageError(
                f"--out {folder}: holds predictions; name another folder, or pass --overwrite to replace them"
            )
        owned_files.check_own(folder, "--out")
