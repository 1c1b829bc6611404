"""Batches of a run: for training, for evaluation, and in the order of scans for prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from halofeed.loader import Loader
from halofeed.loader.augment import build_augmentations
from halofeed.loader.batch import OBJECT_MAP, PADDING_ID, split_id
from halofeed.loader.device import check_device_augmentations, device_keys
from halofeed.loader.mesh_batches import mesh_specs, place_batch
from halofeed.loader.sampler import RepeatFactor
from halofeed.schemas.manifest import Manifest, read_manifest
from halofeed.schemas.partition import Partition
from halofeed.schemas.tasks import MASKS
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural
from halofeed.trainer.config import REPEAT_FACTOR, TrainConfig
from halofeed.trainer.planes_on_device import colored_on_device
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.task import (
    DataFacts,
    Host,
    TrainingTask,
    check_has_labels,
    check_no_class_overlap,
    data_facts,
)
from halofeed.trainer.training_setup import device_augmentations


def tiles_in_order(metadata: SplitMetadata) -> list[int]:
    """Return the numbers of the records sorted by scan and tile, so that prediction blends one scan at a time.

    The stored order is by id, which mixes the tiles of all scans.
    """
    sort_keys = [(record.key, int(record.numbers["tile"]), number) for number, record in enumerate(metadata)]
    return [number for _, _, number in sorted(sort_keys)]


class OrderedRecords:
    """Source of every record of a split once, in a given order, in batches; the last batch is padded.

    It is an `EvaluationSource`, like a `Loader` with training=False.

    Args:
        loader: loader of the split, with training=False and batch_size=1.
        order: numbers of the records.
        batch_size: rows of a batch.
    """

    def __init__(self, loader: Loader, order: Sequence[int], batch_size: int) -> None:
        if loader.batch_size != 1 or loader.steps != loader.num_records:
            raise UsageError("loader: expected one with training=False and batch_size=1")
        self._loader, self._order = loader, list(order)
        self.num_records, self.batch_size = len(self._order), batch_size

    @property
    def steps(self) -> int:
        """Number of batches."""
        return -(-self.num_records // self.batch_size)

    def batch(self, step: int) -> Host:
        """Return one batch [row, ...]; rows past the last record repeat it, with `valid` False and id -1."""
        return self._rows(step, 0, self.batch_size)

    def on_mesh(
        self, mesh: Mesh, partition: Partition, start_step: int = 0
    ) -> Iterator[Mapping[str, jax.Array]]:
        """Yield the batches as global arrays, like `Loader.on_mesh`."""
        shapes = {
            name: (self.batch_size, *spec.shape[1:])
            for name, spec in self._loader.spec.items()
            if not spec.dtype.hasobject
        }
        specs = mesh_specs(mesh, partition, shapes)
        for step in range(start_step, self.steps):
            yield place_batch(mesh, specs, shapes, partial(self._rows, step))

    def _rows(self, step: int, start: int, stop: int) -> dict[str, NDArray[Any]]:
        positions = range(step * self.batch_size + start, step * self.batch_size + stop)
        rows = [
            self._loader.batch(self._order[min(position, self.num_records - 1)]) for position in positions
        ]
        batch = {name: np.concatenate([row[name] for row in rows]) for name in self._loader.spec}
        past_last = np.array([position >= self.num_records for position in positions])
        batch["valid"] = batch["valid"] & ~past_last
        batch["id"][past_last] = split_id(PADDING_ID)
        return batch


_EVALUATION_SPLITS = ("validation", "val", "test")


class BatchSource(Protocol):
    """Interface of `halofeed.loader.Loader` for training."""

    def on_mesh(
        self, mesh: Mesh, partition: Partition, start_step: int = 0
    ) -> Iterable[Mapping[str, jax.Array]]:
        """Yield global batches from `start_step` on, split over the cores."""

    def state(self, step: int) -> dict[str, Any]:
        """Return the state to save for resuming with batch `step`, as JSON values."""

    def restore(self, state: Mapping[str, Any]) -> int:
        """Return the step to resume with; raise UsageError if the state is of another stream."""


class EvaluationSource(Protocol):
    """Interface of `halofeed.loader.Loader(training=False)` for evaluation."""

    @property
    def num_records(self) -> int:
        """Number of records."""

    def on_mesh(
        self, mesh: Mesh, partition: Partition, start_step: int = 0
    ) -> Iterable[Mapping[str, jax.Array]]:
        """Yield every record once, in order, the last batch padded."""

    def batch(self, step: int) -> Host:
        """Return one of these batches on the host."""


@dataclass(frozen=True, kw_only=True)
class TrainData:
    """Data of a run.

    Args:
        facts: facts of the data set.
        batches: source of batches to train on.
        evaluation: source of batches to evaluate on; None without an evaluation split.
        description: members of run.json: path, splits and recipe of the data set.
    """

    facts: DataFacts
    batches: BatchSource
    evaluation: EvaluationSource | None = None
    description: Mapping[str, Any]


def open_data(
    config: TrainConfig, path: str | Path, split: str, task_of: Callable[[DataFacts], TrainingTask]
) -> TrainData:
    """Open a converted data set for a training run.

    Args:
        config: batch sizes, seed, augmentation and the split to evaluate on.
        path: version folder of the data set.
        split: split to train on.
        task_of: function that builds the `Task`, which names the optional fields for evaluation.

    Raises:
        UsageError: a split, an augmentation or the batch size is invalid, an option would change nothing, classes
            overlap, or a mask head has no masks to learn from.
    """
    config.check_effects()
    manifest = read_manifest(path)
    check_no_class_overlap(manifest)
    maps_objects = config.has_mask_head
    if maps_objects:
        check_masks(manifest)
    options: dict[str, Any] = {
        "path": path,
        "split": split,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "augment": build_augmentations(config.loader_augment()),
        "draw_by": draws_of(config),
        "include": (
            *(device_keys(manifest) if config.device_augment else ()),
            *([OBJECT_MAP] if maps_objects else []),
        ),
    }
    loader = Loader(**options)
    image = loader.row_spec["image"]
    check_device_augmentations(device_augmentations(config), image.shape[-1], str(image.dtype))
    if config.batch_size > loader.num_records:
        raise UsageError(
            f"batch_size {config.batch_size}: split {split!r} has {plural(loader.num_records, 'record')}, "
            "so a batch would "
            f"repeat records; take --set batch_size={loader.num_records}"
            f"{' or less' if loader.num_records > 1 else ''}"
        )
    facts = data_facts(manifest, split, loader.spec["image"].shape[1:])
    evaluated = evaluation_split(manifest, config.evaluate_split, split)
    evaluation = None
    if evaluated is not None:
        rows = config.evaluate_batch_size or config.batch_size
        evaluation = evaluation_loader(path, evaluated, rows, task_of(facts))
    description = {
        "data": str(path),
        "data_name": manifest.name,
        "data_version": manifest.version,
        "split": split,
        "evaluate_split": evaluated,
        "recipe": dict(manifest.recipe),
        "image_dtype": str(loader.spec["image"].dtype),
    }
    batches = colored_on_device(loader, options, config.parsed_partition())
    return TrainData(facts=facts, batches=batches, evaluation=evaluation, description=description)


def draws_of(config: TrainConfig) -> str | RepeatFactor | None:
    """Return `Loader(draw_by=)` of a config.

    >>> draws_of(TrainConfig(draw_by="repeat-factor", repeat_threshold=0.01))
    RepeatFactor(threshold=0.01)
    """
    if config.draw_by == REPEAT_FACTOR:
        return RepeatFactor(threshold=config.repeat_threshold)
    return config.draw_by or None


def check_masks(manifest: Manifest) -> None:
    """Raise UsageError for a data set that a model with a mask head cannot learn: without masks."""
    known = {field.name for field in manifest.fields}
    if MASKS not in known:
        raise UsageError(
            f"{manifest.name}: model.mask_head needs the objects' masks, which the data set lacks; convert it with "
            "--masks, or pass --set model.mask_head=false"
        )


def evaluation_loader(path: str | Path, split: str, batch_size: int, task: TrainingTask) -> Loader:
    """Return a loader of every record of a split once, in order, with the fields that the task's metrics need."""
    # The loader refuses a field that the data set lacks, so the manifest is read first.
    loader = Loader(path, split=split, batch_size=batch_size, training=False)
    known = {field.name for field in loader.manifest.fields} | {"size"}
    include = [name for name in task.include if name in known]
    return Loader(path, split=split, batch_size=batch_size, training=False, include=include)


def evaluation_split(manifest: Manifest, requested: str, trained: str) -> str | None:
    """Return the requested split, or the first of validation, val and test that has records, with labels."""
    if requested:
        if not manifest.split(requested).records:
            raise UsageError(f"evaluate split {requested!r}: holds no records")
        check_has_labels(manifest, requested, "--set evaluate_split=")
        return requested
    for name in _EVALUATION_SPLITS:
        is_other = name != trained and name in manifest.splits
        # The split that was trained on would measure what the model remembers.
        if is_other and manifest.splits[name].records and not manifest.is_for_prediction(name):
            return name
    return None
