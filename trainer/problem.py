"""How do a config and a data set become the setup that is compiled?

Which program does a config train with? `train` runs it, and `plan` compiles it for devices that are elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np
import optax  # type: ignore[import-untyped]
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from halofeed.errors import UsageError
from halofeed.loader.augment import build_augmentations
from halofeed.loader.device import AUGMENTATIONS, DeviceAugmentation, Normalization
from halofeed.loader.mesh import mesh_specs
from halofeed.schemas.partition import Dims, Partition
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.models import MODELS, check_model_options, model_named
from halofeed.trainer.optimizers import Schedule, build_optimizer
from halofeed.trainer.step import TrainingSetup, TrainState, abstract_state, compile_step, new_state
from halofeed.trainer.task import DataFacts, Task
from halofeed.trainer.tasks import build_task

_CAFFE_MEAN = (123.68, 116.779, 103.939)
"""Of ImageNet's red, green and blue, as keras.applications subtracts it."""


def build_problem(config: TrainConfig, facts: DataFacts, mesh: Mesh | None = None) -> TrainingSetup:
    """What is trained on what, as the config says.

    Args:
        config: model, task options, precision and partition.
        facts: of the data set.
        mesh: where the batch lies; None for one device.

    Raises:
        UsageError: a model that does not learn the data's task, options that it does not take, or a partition that
            does not fit the image.
    """
    model = model_named(config.model)
    check_model_options(config.model, config.model_options)
    if model.task != facts.task:
        fitting = [name for name, other in MODELS.items() if other.task == facts.task] or ["none"]
        raise UsageError(
            f"model {config.model}: learns {model.task}, the data set is for {facts.task}; take one of "
            f"{', '.join(fitting)}"
        )
    if config.image_shape is not None and config.image_shape != facts.image_shape:
        raise UsageError(
            f"image: the config is made for {list(config.image_shape)}, the data set gives {list(facts.image_shape)}; "
            f"convert it to that size, or say --set image_shape=[{','.join(map(str, facts.image_shape))}]"
        )
    partition = config.parsed_partition()
    if "image" in partition.dims:
        shape = (config.batch_size, *facts.image_shape)
        replace(partition, dims={"image": partition.dims["image"]}).resolve({"image": shape})
    return TrainingSetup(
        build=partial(
            model.build, classes=facts.classes, image_shape=facts.image_shape, **config.model_options
        ),
        task=build_task(facts, config.task_options),
        normalization=normalization_of(config, facts),
        augment=tuple(device_augmentations(config)),
        augment_seed=config.seed,
        compute_dtype=config.compute_dtype,
        norm_decay=config.norm_decay,
        remat=config.remat,
        mesh=mesh,
        dims=image_dims(partition),
    )


def image_dims(partition: Partition) -> Dims:
    """How a partition splits `image`; None where it is whole."""
    dims = partition.dims.get("image")
    return tuple(dims) if dims is not None and math.prod(dims) > 1 else None


def batch_partition(partition: Partition, task: Task) -> Partition:
    """The partition with what lies on the image's grid split as the image is, where it says nothing of it.

    >>> from halofeed.trainer.tasks.classification import Classification
    >>> batch_partition(Partition(cores_per_replica=2, dims={"image": [1, 2, 1, 1]}), Classification(labels=())).dims
    {'image': (1, 2, 1, 1)}
    """
    dims = image_dims(partition)
    on_grid = dict.fromkeys(task.on_grid, dims[:-1]) if dims is not None else {}
    return replace(partition, dims={**on_grid, **partition.dims})


def device_augmentations(config: TrainConfig) -> list[DeviceAugmentation]:
    """Those of a config; UsageError where there is none of that name, or it takes other arguments."""
    return build_augmentations(config.device_augment, AUGMENTATIONS, "device_augment")


def normalization_of(config: TrainConfig, facts: DataFacts) -> Normalization:
    """What a config makes of stored pixels; UsageError where the data set does not have what that needs."""
    channels = len(facts.mean)
    if config.normalization == "dataset":
        return Normalization(mean=facts.mean, std=facts.std)
    if config.normalization == "foreground":
        if facts.foreground is None:
            raise UsageError(
                "normalization foreground: the data set has no labeled voxels whose values were counted; take "
                "--set normalization=dataset"
            )
        low, high, mean, std = facts.foreground
        return Normalization(mean=(mean,) * channels, std=(std,) * channels, limits=(low, high))
    if channels != 3:
        raise UsageError(
            f"normalization {config.normalization}: expected 3 channels, the data set has {channels}; "
            "take --set normalization=dataset"
        )
    if config.normalization == "caffe":
        return Normalization(mean=_CAFFE_MEAN, std=(1.0,) * 3, reverse_channels=True)
    return Normalization(mean=(127.5,) * 3, std=(127.5,) * 3)


Spec = Mapping[str, tuple[tuple[int, ...], np.dtype]]  # type: ignore[type-arg]
"""Shape (the whole batch first) and dtype of every array of a batch."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is compiled.

    Args:
        config: of the run.
        mesh: where the batch lies.
        setup: what is trained on what.
        partition: of every array of the batch.
        optimizer, schedule: of the config.
    """

    config: TrainConfig
    mesh: Mesh
    setup: TrainingSetup
    partition: Partition
    optimizer: optax.GradientTransformation
    schedule: Schedule

    def step(self) -> jax.stages.Wrapped:
        """The jitted (state, batch) -> (state, values) of `compile_step`."""
        return compile_step(
            self.setup,
            self.optimizer,
            schedule=self.schedule,
            average_decay=self.config.average_decay,
            average_every=self.config.accumulate_steps,
        )

    def new_state(self, pretrain: Callable[[nnx.Module], object] | None = None) -> TrainState:
        """The state before step 0."""
        return new_state(
            self.setup, self.optimizer, self.config.seed, average=self._averages, pretrain=pretrain
        )

    def abstract_state(self) -> TrainState:
        """The state as shapes, dtypes and shardings."""
        return abstract_state(self.setup, self.optimizer, average=self._averages)

    def abstract_batch(self, spec: Spec) -> dict[str, jax.ShapeDtypeStruct]:
        """The batch that the loader puts onto the mesh, as shapes, dtypes and shardings.

        Raises:
            PartitionError: a shape that does not divide by its parts.
        """
        specs = mesh_specs(self.mesh, self.partition, {name: shape for name, (shape, _) in spec.items()})
        batch = {}
        for name, (shape, dtype) in spec.items():
            if name == "id":
                shape, dtype = (shape[0], 2), np.dtype(np.uint32)
            sharding = NamedSharding(self.mesh, specs[name])  # type: ignore[no-untyped-call]
            batch[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]
        return batch

    @property
    def _averages(self) -> bool:
        return self.config.average_decay > 0


def build_program(
    config: TrainConfig, facts: DataFacts, devices: Sequence[jax.Device] | None = None
) -> Program:
    """The program of a config.

    Args:
        config: of the run.
        facts: of the data set.
        devices: all of the system's by default; those of a topology that is not there will do for compiling.

    Raises:
        UsageError: options that do not go together with each other, the devices or the data.
    """
    mesh = make_mesh(config.cores_per_replica, devices)
    setup = build_problem(config, facts, mesh)
    partition = batch_partition(config.parsed_partition(), setup.task)
    optimizer, schedule = build_optimizer(config)
    return Program(
        config=config,
        mesh=mesh,
        setup=setup,
        partition=partition,
        optimizer=optimizer,
        schedule=schedule,
    )
