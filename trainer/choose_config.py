"""Choice of a configuration for a data set, where the user names none.

This file does not import JAX: the caller passes what it found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tasks import MASKS
from halofeed.system.wording import plural
from halofeed.trainer.config import default_config, load_config

IMAGES_PER_DEVICE = {
    "retinanet_resnet50_fpn_640": 8.0,
    "retinanet_resnet50_fpn_1280": 8.0,
    "retinanet_resnet50_fpn_2560_8way": 1.0,
    "unet3d_128": 4.0,
    "unet3d_256_16way": 0.5,
}
"""Images that each device holds in the published run of a recipe: its batch on a v3-8 or v3-64, as its file says."""


@dataclass(frozen=True, kw_only=True)
class ConfigChoice:
    """Configuration that was chosen for a data set.

    Args:
        name: name of the configuration.
        reason: why it was chosen, as the end of a sentence.
        changes: fields that differ from the configuration's own, by name.
    """

    name: str
    reason: str
    changes: Mapping[str, Any] = field(default_factory=dict)


def choose_config(manifest: Manifest, *, platform: str, devices: int, records: int) -> ConfigChoice:
    """Choose the configuration of a data set by its task, its size and the devices.

    A small one is for every machine. One of full size is chosen on accelerators if it was made for images of exactly
    this shape: its batch is that of its published run per device, so that it fits their memory.

    Args:
        manifest: manifest of the data set.
        platform: platform of the devices, "cpu", "gpu" or "tpu".
        devices: number of devices.
        records: number of records to train on.
    """
    shape = manifest.field("image").shape
    sides = " x ".join(map(str, shape[:-1]))
    data = f"{manifest.task} in {manifest.kind.name}s of {sides}"
    machine = plural(devices, f"{platform} device")
    small = default_config(manifest)
    fitting = [name for name in IMAGES_PER_DEVICE if _is_made_for(name, small, shape)]
    if platform == "cpu" or not fitting:
        why = (
            "recipes of full size need accelerators"
            if platform == "cpu"
            else "none of full size has this shape"
        )
        return ConfigChoice(name=small, reason=f"{data} on {machine}; {why}")
    name = fitting[0]
    config = load_config(name)
    batch = min(config.batch_size, int(devices * IMAGES_PER_DEVICE[name]))
    if devices % config.cores_per_replica or batch < 1:
        why = f"{name} needs a multiple of {config.cores_per_replica} devices"
        return ConfigChoice(name=small, reason=f"{data} on {machine}; {why}")
    if records < batch:
        why = f"{name} needs {batch} images per step, and the split has {records}"
        return ConfigChoice(name=small, reason=f"{data} on {machine}; {why}")
    changes = {}
    if batch != config.batch_size:
        changes["batch_size"] = batch
        # The evaluation has the memory of one device for as many images as in the published run.
        if config.evaluate_batch_size:
            changes["evaluate_batch_size"] = max(1, config.evaluate_batch_size * batch // config.batch_size)
    return ConfigChoice(
        name=name, reason=f"{data} on {machine}, with {batch} images per step", changes=changes
    )


def mask_hint(manifest: Manifest) -> str:
    """Return what to type for a model that learns the stored masks of objects too; "" for data without them.

    Masks cost time and memory, and many data sets are stored with masks and used for their boxes.
    """
    if not any(field.name == MASKS for field in manifest.fields):
        return ""
    return "the data set has masks of its objects, which --config retinanet_masks_small learns too"


def _is_made_for(name: str, small: str, shape: tuple[int, ...]) -> bool:
    """Return whether a configuration is for images of this shape, and for the same task as the small one."""
    config = load_config(name)
    return config.image_shape == tuple(shape) and config.model == load_config(small).model
