"""Training setup and program of a config: `train` runs the program, `plan` compiles it for other machines."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax  # type: ignore[import-untyped]
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from halofeed.loader.augment import build_augmentations
from halofeed.loader.device import (
    AUGMENTATIONS,
    BATCH_AUGMENTATIONS,
    BatchAugmentation,
    DeviceAugmentation,
    Normalization,
)
from halofeed.loader.mesh_batches import mesh_specs
from halofeed.schemas.partition import REPLICA_AXIS, Dims, Partition
from halofeed.system.errors import UsageError
from halofeed.trainer.config import TrainConfig, import_named
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.models import MODELS, Model, check_model_options, model_named
from halofeed.trainer.models.layers import Layers
from halofeed.trainer.optimizers import Schedule, build_optimizer
from halofeed.trainer.step import TrainingSetup, TrainState, abstract_state, compile_step, new_state
from halofeed.trainer.task import DataFacts, TrainingTask
from halofeed.trainer.tasks import build_task
from halofeed.trainer.tasks.segmentation import Segmentation

_CAFFE_MEAN = (123.68, 116.779, 103.939)
"""Mean of ImageNet's red, green and blue, as keras.applications subtracts it."""


def build_training_setup(config: TrainConfig, facts: DataFacts, mesh: Mesh | None = None) -> TrainingSetup:
    """Build the training setup of a config for a data set.

    Args:
        config: model, task options, precision and partition.
        facts: facts of the data set.
        mesh: mesh of the devices; None for one device.

    Raises:
        UsageError: the model is for another task, it does not have an option, or the partition does not fit the image.
    """
    model = _model_of(config, facts)
    if model.task != facts.task:
        fitting = [name for name, other in MODELS.items() if other.task == facts.task] or ["none"]
        raise UsageError(
            f"model {config.model}: is for {model.task}, the data set is for {facts.task}; take one of "
            f"{', '.join(fitting)}"
        )
    if config.image_shape is not None and config.image_shape != facts.image_shape:
        raise UsageError(
            f"image: the config is made for {list(config.image_shape)}, the data set gives {list(facts.image_shape)}; "
            f"convert it to that size, or pass --set image_shape=[{','.join(map(str, facts.image_shape))}]"
        )
    partition = config.parsed_partition()
    # Raises for an image that does not divide, before the model is built.
    if "image" in partition.dims:
        shape = (config.batch_size, *facts.image_shape)
        replace(partition, dims={"image": partition.dims["image"]}).resolve({"image": shape})
    task, augment = (
        build_task(facts, config.options_of_task, config.task),
        tuple(device_augmentations(config)),
    )
    check_mixing(augment, task, config.task or facts.task)
    return TrainingSetup(
        build=builder(model, task, facts, config.model_options),
        task=task,
        normalization=normalization_of(config, facts),
        augment=augment,
        augment_seed=config.seed,
        compute_dtype=config.compute_dtype,
        norm_decay=config.norm_decay,
        norm_epsilon=config.norm_epsilon,
        norm_parts=norm_parts(config.norm_scope, mesh, image_dims(partition), 1 + len(facts.image_shape)),
        remat=config.remat,
        mesh=mesh,
        dims=image_dims(partition),
    )


def builder(
    model: Model, task: TrainingTask, facts: DataFacts, options: Mapping[str, Any]
) -> Callable[[Layers], nnx.Module]:
    """Return the function that builds a model with the outputs of a task."""
    given: dict[str, Any] = {"classes": facts.classes, "image_shape": facts.image_shape, **options}
    # Regions have a sigmoid each; a model of the user only learns their number.
    if isinstance(task, Segmentation) and task.regions:
        given["classes"] = task.outputs
        if "independent_outputs" in model.options():
            given["independent_outputs"] = True
    elif facts.label_voxels and "class_shares" in model.options():
        total = sum(facts.label_voxels)
        given.setdefault("class_shares", [count / total for count in facts.label_voxels])
    return partial(model.build, **given)


def _model_of(config: TrainConfig, facts: DataFacts) -> Model:
    """Return the entry of `MODELS`, or one for the class or function of the user, which is for any task."""
    if ":" not in config.model:
        check_model_options(config.model, config.model_options)
        return model_named(config.model)
    model = Model(build=import_named("model", config.model), task=facts.task, summary=config.model)
    build: Any = getattr(model.build, "__init__") if isinstance(model.build, type) else model.build  # noqa: B009
    layers = (None,) * (1 + isinstance(model.build, type))
    try:
        inspect.signature(build).bind(*layers, classes=1, image_shape=(), **config.model_options)
    except TypeError as error:
        known = ", ".join(model.options()) or "none"
        raise UsageError(
            f"model {config.model}: cannot be called with layers, classes=, image_shape= and its options ({error}); "
            f"its options: {known}"
        ) from error
    return model


def image_dims(partition: Partition) -> Dims:
    """Return the parts of `image` along each axis, batch first; None if the partition does not split it."""
    dims = partition.dims.get("image")
    return tuple(dims) if dims is not None and math.prod(dims) > 1 else None


def norm_parts(scope: str, mesh: Mesh | None, dims: Dims, axes: int) -> Dims:
    """Return the parts of an image in which batch norm has separate statistics; None for the scope "global".

    >>> norm_parts("core", make_mesh(1, jax.devices()[:1]), (1, 4, 1, 1), 4)
    (1, 4, 1, 1)
    """
    # The statistics of the complete batch do not depend on the number of devices (docs/decisions.md).
    if scope == "global":
        return None
    replicas = 1 if mesh is None else int(mesh.shape[REPLICA_AXIS])
    batch, *space = dims if dims is not None and scope == "core" else (1,) * axes
    return (replicas * batch, *space)


def batch_partition(partition: Partition, task: TrainingTask) -> Partition:
    """Return the partition with fields on the image's grid split like the image, unless it names their own split.

    >>> from halofeed.trainer.tasks.classification import Classification
    >>> batch_partition(Partition(cores_per_replica=2, dims={"image": [1, 2, 1, 1]}), Classification(labels=())).dims
    {'image': (1, 2, 1, 1)}
    """
    dims = image_dims(partition)
    on_grid = dict.fromkeys(task.on_grid, dims[:-1]) if dims is not None else {}
    return replace(partition, dims={**on_grid, **partition.dims})


def device_augmentations(config: TrainConfig) -> list[DeviceAugmentation]:
    """Return the device augmentations of a config; raise UsageError for an unknown name or argument."""
    return build_augmentations(
        config.device_augment, {**AUGMENTATIONS, **BATCH_AUGMENTATIONS}, "device_augment"
    )


def check_mixing(augmentations: Sequence[DeviceAugmentation], task: TrainingTask, name: str) -> None:
    """Raise UsageError for an augmentation that mixes classes if the loss of a task has no mixed targets.

    Args:
        augmentations: augmentations on the device.
        task: task that computes the loss.
        name: name of the task, for messages.
    """
    for one in augmentations:
        # Without them the loss would take each mixed image for its own class alone.
        if isinstance(one, BatchAugmentation) and not getattr(task, "mixes_classes", False):
            raise UsageError(
                f"device_augment {type(one).__name__}: mixes the classes of images, and the loss of {name} takes no "
                "mixed classes; leave it out"
            )


def normalization_of(config: TrainConfig, facts: DataFacts) -> Normalization:
    """Return the normalization of a config; raise UsageError if the data set lacks what it needs."""
    channels = len(facts.mean)
    if config.normalization == "dataset":
        return Normalization(mean=facts.mean, std=facts.std)
    # nnU-Net's scheme for CT: clip to the percentiles, then z-scores of labeled voxels.
    if config.normalization == "foreground":
        if facts.foreground is None:
            raise UsageError(
                "normalization foreground: the data set has no statistics of labeled voxels; take "
                "--set normalization=dataset"
            )
        low, high, mean, std = facts.foreground
        return Normalization(mean=(mean,) * channels, std=(std,) * channels, limits=(low, high))
    if channels != 3:
        raise UsageError(
            f"normalization {config.normalization}: expected 3 channels, the data set has {channels}; "
            "take --set normalization=dataset"
        )
    # keras.applications' "caffe" mode: BGR minus ImageNet's means, undivided.
    if config.normalization == "caffe":
        return Normalization(mean=_CAFFE_MEAN, std=(1.0,) * 3, reverse_channels=True)
    return Normalization(mean=(127.5,) * 3, std=(127.5,) * 3)


Spec = Mapping[str, tuple[tuple[int, ...], np.dtype]]  # type: ignore[type-arg]
"""Shape (batch first, over all devices) and dtype of every array of a batch."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """Program of a training run, before compilation.

    Args:
        config: options of the run.
        mesh: mesh of the devices.
        setup: model, task, precision and mesh.
        partition: partition of every array of the batch.
        optimizer: optimizer of the config.
        schedule: learning-rate schedule of the config.
    """

    config: TrainConfig
    mesh: Mesh
    setup: TrainingSetup
    partition: Partition
    optimizer: optax.GradientTransformation
    schedule: Schedule

    def step(self) -> jax.stages.Wrapped:
        """Return the jitted (state, batch) -> (state, values) of `compile_step`."""
        return compile_step(
            self.setup,
            self.optimizer,
            schedule=self.schedule,
            average_decay=self.config.average_decay,
            average_every=self.config.accumulate_steps,
        )

    def new_state(self, pretrain: Callable[[nnx.Module], object] | None = None) -> TrainState:
        """Make the state before step 0."""
        return new_state(
            self.setup, self.optimizer, self.config.seed, average=self._averages, pretrain=pretrain
        )

    def abstract_state(self) -> TrainState:
        """Return the state as shapes, dtypes and shardings."""
        return abstract_state(self.setup, self.optimizer, average=self._averages)

    def abstract_batch(self, spec: Spec) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the batch that the loader puts onto the mesh, as shapes, dtypes and shardings.

        Raises:
            PartitionError: a shape does not divide by its parts.
        """
        specs = mesh_specs(self.mesh, self.partition, {name: shape for name, (shape, _) in spec.items()})
        batch = {}
        for name, (shape, dtype) in spec.items():
            sharding = NamedSharding(self.mesh, specs[name])  # type: ignore[no-untyped-call]
            batch[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]
        return batch

    @property
    def _averages(self) -> bool:
        return self.config.average_decay > 0


def build_program(
    config: TrainConfig, facts: DataFacts, devices: Sequence[jax.Device] | None = None
) -> Program:
    """Build the program of a config.

    Args:
        config: options of the run.
        facts: facts of the data set.
        devices: devices of the mesh, all devices of the system by default; described devices suffice for compiling.

    Raises:
        UsageError: the options contradict each other, the devices or the data.
    """
    mesh = make_mesh(config.cores_per_replica, devices)
    setup = build_training_setup(config, facts, mesh)
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
