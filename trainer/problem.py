"""How do a config and a data set become the problem that is compiled?"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from jax.sharding import Mesh

from halofeed.loader.augment import build_augmentations
from halofeed.loader.device import AUGMENTATIONS, DeviceAugmentation, Normalization
from halofeed.schemas.errors import UsageError
from halofeed.schemas.partition import Dims, Partition
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.models import MODELS, check_model_options, model_named
from halofeed.trainer.shared.facts import DataFacts
from halofeed.trainer.shared.task import Task
from halofeed.trainer.step import Problem
from halofeed.trainer.tasks import build_task

_CAFFE_MEAN = (123.68, 116.779, 103.939)
"""Of ImageNet's red, green and blue, as keras.applications subtracts it."""


def build_problem(config: TrainConfig, facts: DataFacts, mesh: Mesh | None = None) -> Problem:
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
    return Problem(
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
