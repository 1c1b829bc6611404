"""Table of the models that can be trained; a new model is one file and one entry in `MODELS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flax import nnx

from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean
from halofeed.trainer.models.classifier import Classifier
from halofeed.trainer.models.mobilenet import MobileNetClassifier
from halofeed.trainer.models.resnet import CifarResNet, ResNet101Classifier, ResNetClassifier
from halofeed.trainer.models.retinanet import RetinaNet
from halofeed.trainer.models.ssd import Ssd, SsdPooling
from halofeed.trainer.models.unet import UNet

_BUILD_ARGUMENTS = ("self", "layers", "classes", "image_shape")


@dataclass(frozen=True, kw_only=True)
class Model:
    """One entry of `MODELS`.

    Args:
        build: function build(layers, classes=, image_shape=, **options) that returns a module, whose
            `__call__(image, run: Pass)` maps normalized images to outputs, any pytree.
        task: key of `halofeed.trainer.tasks.TASKS`, the task that computes the loss of those outputs.
        summary: one line that describes the model.
    """

    build: Callable[..., nnx.Module]
    task: str
    summary: str

    def options(self) -> dict[str, Any]:
        """Return the names of the options of `build`, with their defaults."""
        # `inspect.signature` of a module's class returns the one of its metaclass.
        build = getattr(self.build, "__init__") if isinstance(self.build, type) else self.build  # noqa: B009
        parameters = inspect.signature(build).parameters
        return {
            name: parameter.default for name, parameter in parameters.items() if name not in _BUILD_ARGUMENTS
        }


MODELS: dict[str, Model] = {
    "classifier": Model(
        build=Classifier, task="classification", summary="five convolutions of stride 2; pictures or volumes"
    ),
    "resnet50": Model(
        build=ResNetClassifier, task="classification", summary="ResNet-50, or smaller: blocks, width"
    ),
    "resnet101": Model(build=ResNet101Classifier, task="classification", summary="ResNet-101"),
    "resnet20": Model(
        build=CifarResNet,
        task="classification",
        summary="ResNet-20 for pictures of 32 x 32; blocks=9 makes ResNet-56",
    ),
    "mobilenet_v1": Model(
        build=MobileNetClassifier, task="classification", summary="MobileNet-v1 of any width"
    ),
    "retinanet": Model(
        build=RetinaNet,
        task="detection",
        summary="feature pyramid on ResNet-50 or MobileNet-v1, levels 3 to 7",
    ),
    "ssd_mobilenet_v1": Model(build=Ssd, task="detection", summary="SSD of six maps, for 300 x 300 pixels"),
    "ssd_mobilenet_v1_ppn": Model(
        build=SsdPooling,
        task="detection",
        summary="SSD's pooling pyramid network: six poolings, shared outputs",
    ),
    "unet": Model(
        build=UNet,
        task="segmentation",
        summary="U-Net of any depth and width; volumes or pictures",
    ),
}


def model_named(name: str) -> Model:
    """Return the model of a name; raise UsageError with the known names for an unknown one."""
    if name not in MODELS:
        raise UsageError(f"model {name!r}: not known; {did_you_mean(name, MODELS)}known: {', '.join(MODELS)}")
    return MODELS[name]


def check_model_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that the model does not have, with its options."""
    known = model_named(name).options()
    if unknown := [key for key in options if key not in known]:
        listed = ", ".join(f"{key}={value!r}" for key, value in known.items()) or "none"
        near = did_you_mean(unknown[0], known)
        raise UsageError(f"model.{unknown[0]}: {name} has no such option; {near}it takes {listed}")
