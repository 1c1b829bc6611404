"""In which order are the tiles of scans predicted? Scan by scan, so that one scan at a time is gathered.

Records are stored in the order of their ids, which mixes the tiles of all scans.

Which batches does a run train and evaluate on?
"""

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

from halofeed.errors import UsageError
from halofeed.loader import Loader
from halofeed.loader.augment import build_augmentations
from halofeed.loader.device import check_device_augmentations, device_keys
from halofeed.loader.mesh import mesh_specs, place_batch
from halofeed.schemas.manifest import Manifest, read_manifest
from halofeed.schemas.partition import Partition
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.problem import device_augmentations
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.task import DataFacts, Host, Task, check_no_class_overlap, data_facts


def tiles_in_order(metadata: SplitMetadata) -> list[int]:
    """The records' numbers, sorted by scan and tile."""
    places = [(origin.key, int(origin.numbers["tile"]), number) for number, origin in enumerate(metadata)]
    return [number for _, _, number in sorted(places)]


class OrderedRecords:
    """The records of a split once each in an order of one's own, in batches, the last one padded.

    It stands for a `Loader` in `halofeed.trainer.evaluate.Predictor`.

    Args:
        loader: of the split, with training=False and batch_size=1.
        order: the records' numbers.
        batch_size: rows of a batch.
    """

    def __init__(self, loader: Loader, order: Sequence[int], batch_size: int) -> None:
        if loader.batch_size != 1 or loader.steps != loader.num_records:
            raise UsageError("loader: expected one with training=False and batch_size=1")
        self._loader, self._order = loader, list(order)
        self.num_records, self.batch_size = len(self._order), batch_size

    @property
    def steps(self) -> int:
        """How many batches there are."""
        return -(-self.num_records // self.batch_size)

    def batch(self, step: int) -> Host:
        """One batch [row, ...]; rows past the last record repeat it, with `valid` False and id -1."""
        return self._rows(step, 0, self.batch_size)

    def on_mesh(
        self, mesh: Mesh, partition: Partition, start_step: int = 0
    ) -> Iterator[Mapping[str, jax.Array]]:
        """The batches as global arrays, as `Loader.on_mesh` gives them."""
        shapes = {
            name: (self.batch_size, *spec.shape[1:])
            for name, spec in self._loader.spec.items()
            if not spec.dtype.hasobject
        }
        specs = mesh_specs(mesh, partition, shapes)
        for step in range(start_step, self.steps):
            yield place_batch(mesh, specs, shapes, partial(self._rows, step))

    def _rows(self, step: int, start: int, stop: int) -> dict[str, NDArray[Any]]:
        places = range(step * self.batch_size + start, step * self.batch_size + stop)
        rows = [self._loader.batch(self._order[min(place, self.num_records - 1)]) for place in places]
        batch = {name: np.concatenate([row[name] for row in rows]) for name in self._loader.spec}
        past_last = np.array([place >= self.num_records for place in places])
        batch["valid"] = batch["valid"] & ~past_last
        batch["id"] = np.where(past_last, -1, batch["id"])
        return batch


_EVALUATED = ("validation", "val", "test")


class BatchSource(Protocol):
    """What training needs of `halofeed.loader.Loader`."""

    def on_mesh(
        self, mesh: Mesh, partition: Partition, start_step: int = 0
    ) -> Iterable[Mapping[str, jax.Array]]:
        """Global batches from `start_step` on, each core's slab already apart."""

    def state(self, step: int) -> dict[str, Any]:
        """What to save so as to go on with batch `step`; JSON values."""

    def restore(self, state: Mapping[str, Any]) -> int:
        """The step to go on with; UsageError if the state is of another stream."""


class EvaluationSource(Protocol):
    """What an evaluation needs of `halofeed.loader.Loader(training=False)`."""

    @property
    def num_records(self) -> int:
        """How many there are."""

    def on_mesh(
        self, mesh: Mesh, partition: Partition, start_step: int = 0
    ) -> Iterable[Mapping[str, jax.Array]]:
        """Every record once, in order, the last batch padded."""

    def batch(self, step: int) -> Host:
        """One of these batches on the host."""


@dataclass(frozen=True, kw_only=True)
class TrainData:
    """What a run reads.

    Args:
        facts: of the data set.
        batches: to train on.
        evaluation: to evaluate on; None where there is no other split.
        description: goes into run.json: where the data lies, which splits, its recipe.
    """

    facts: DataFacts
    batches: BatchSource
    evaluation: EvaluationSource | None = None
    description: Mapping[str, Any]


def open_data(
    config: TrainConfig, path: str | Path, split: str, task_of: Callable[[DataFacts], Task]
) -> TrainData:
    """The batches of a converted data set, as a config wants them.

    Args:
        config: batch sizes, seed, augmentation and the split to evaluate on.
        path: the version's folder.
        split: to train on.
        task_of: gives the `Task` of `DataFacts`; it names the optional fields that evaluation needs.

    Raises:
        UsageError: a split, an augmentation or a combination that cannot be, or classes that overlap.
    """
    manifest = read_manifest(path)
    check_no_class_overlap(manifest)
    loader = Loader(
        path,
        split=split,
        batch_size=config.batch_size,
        seed=config.seed,
        augment=build_augmentations(config.augment),
        include=device_keys(manifest) if config.device_augment else (),
    )
    image = loader.row_spec["image"]
    check_device_augmentations(device_augmentations(config), image.shape[-1], str(image.dtype))
    if config.batch_size > loader.num_records:
        raise UsageError(
            f"batch_size {config.batch_size}: split {split!r} has {loader.num_records} records, so that a batch would "
            f"hold each of them several times; take --set batch_size={loader.num_records} or less"
        )
    facts = data_facts(manifest, split, loader.spec["image"].shape[1:])
    evaluated = evaluation_split(manifest, config.evaluate_split, split)
    rows, evaluation = config.evaluate_batch_size or config.batch_size, None
    if evaluated is not None:
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
    return TrainData(facts=facts, batches=loader, evaluation=evaluation, description=description)


def evaluation_loader(path: str | Path, split: str, batch_size: int, task: Task) -> Loader:
    """Every record of a split once, in order, with the fields that the task's metrics need."""
    loader = Loader(path, split=split, batch_size=batch_size, training=False)
    known = {field.name for field in loader.manifest.fields} | {"size"}
    include = [name for name in task.include if name in known]
    return Loader(path, split=split, batch_size=batch_size, training=False, include=include)


def evaluation_split(manifest: Manifest, asked: str, trained: str) -> str | None:
    """The split to evaluate on: the one asked for, or the first of validation, val and test with records."""
    if asked:
        if not manifest.split(asked).records:
            raise UsageError(f"evaluate split {asked!r}: holds no records")
        return asked
    for name in _EVALUATED:
        if name != trained and name in manifest.splits and manifest.splits[name].records:
            return name
    return None
