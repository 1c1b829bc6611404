"""RetinaNet: a backbone, a feature pyramid of levels 3 to 7, and heads shared by all levels.

image -> backbone -> C3..C5 -> pyramid P3..P7 -> box tower   -> box codes      per level, as a list of `Level`,
                                              -> class tower -> class logits   the finest first
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from flax import nnx
from numpy.typing import NDArray

from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean
from halofeed.trainer.detection.anchor_fit import anchor_warning
from halofeed.trainer.detection.anchors import Level, retinanet_anchors
from halofeed.trainer.detection.matcher import Matcher
from halofeed.trainer.models.layers import Activation, Layers, Pass, kernel_initializer
from halofeed.trainer.models.mobilenet import MobileNet
from halofeed.trainer.models.model_options import takes_options
from halofeed.trainer.models.pyramid import (
    CLASS_BIAS,
    KERNEL_DEVIATION,
    BoxOutputs,
    FeaturePyramid,
    NormLastPyramid,
    SharedTower,
)
from halofeed.trainer.models.resnet import ResNet

BACKBONES: dict[str, type[ResNet] | type[MobileNet]] = {"resnet50": ResNet, "mobilenet_v1": MobileNet}
FIRST_LEVEL, BACKBONE_LEVELS = 3, 3


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Details in which published RetinaNets differ, besides the style of their ResNet.

    Args:
        pyramid: class of the pyramid with its options.
        activation: activation of the towers.
        kernel_deviation: standard deviation of the initial kernels of the outputs.
        class_bias: initial bias of the class logits.
    """

    pyramid: Callable[..., FeaturePyramid | NormLastPyramid] = FeaturePyramid
    activation: Activation = nnx.relu6
    kernel_deviation: float = KERNEL_DEVIATION
    class_bias: float = CLASS_BIAS


VARIANTS = {
    "keras": Variant(),
    "slim": Variant(pyramid=partial(FeaturePyramid, carry_smoothed=False)),
    "tpu": Variant(
        pyramid=NormLastPyramid, activation=nnx.relu, kernel_deviation=1e-5, class_bias=-math.log(99)
    ),
}
"""keras and slim: the TensorFlow Object Detection API with Keras' layers and, in TensorFlow 1, with slim's.
tpu: models/official/detection of tensorflow/tpu. Each takes the style of `RESNET_STYLES` with its name.
"""


@dataclass(frozen=True, kw_only=True)
class BackboneOptions:
    """Backbone of a RetinaNet.

    Args:
        backbone: "resnet50" or "mobilenet_v1".
        width: channels of the backbone's first convolution; None for the published 64 or 32.
        blocks: number of blocks in each stage of resnet50; None for the published (3, 4, 6, 3).
    """

    backbone: str = "resnet50"
    width: int | None = None
    blocks: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class PyramidOptions:
    """Pyramid and towers of a RetinaNet.

    Args:
        features: channels of the pyramid and of the towers.
        last_level: coarsest level; its stride is 2 ** last_level.
        tower_depth: number of convolutions in each tower.
    """

    features: int = 256
    last_level: int = 7
    tower_depth: int = 4

    @property
    def levels(self) -> int:
        """Number of levels, from `FIRST_LEVEL`."""
        return self.last_level - FIRST_LEVEL + 1


@dataclass(frozen=True, kw_only=True)
class AnchorOptions:
    """Anchors of a RetinaNet.

    Args:
        anchor_scale: scale of `retinanet_anchors`.
        aspect_ratios: aspect ratios of `retinanet_anchors`.
        scales_per_octave: scales per octave of `retinanet_anchors`.
    """

    anchor_scale: float = 4.0
    aspect_ratios: Sequence[float] = (1.0, 2.0, 0.5)
    scales_per_octave: int = 2


@dataclass(frozen=True, kw_only=True)
class VariantOptions:
    """Published RetinaNet to follow.

    Args:
        variant: key of `VARIANTS`.
        kernel_init: key of `KERNEL_INITIALIZERS`, for the pyramid of the variants keras and slim.
        kernel_deviation: standard deviation of these kernels.
    """

    variant: str = "keras"
    kernel_init: str = "normal"
    kernel_deviation: float = KERNEL_DEVIATION


class RetinaNet(nnx.Module):
    """RetinaNet for images of any size, which returns a `Level` per level of the pyramid.

    Args:
        layers: factory of the layers.
        classes: number of classes, without the background.
        image_shape: shape of one image, [height, width, channel].
        backbone_options, pyramid_options, anchor_options, variant_options: the fields of `BackboneOptions`,
            `PyramidOptions`, `AnchorOptions` and `VariantOptions`, as keywords: backbone="resnet50", features=256, ...

    Raises:
        UsageError: the backbone or the variant is unknown or does not have an option.

    Source: Lin et al., Focal Loss for Dense Object Detection (arXiv 1708.02002), with the norms of the TensorFlow
    Object Detection API's configurations `ssd_resnet50_v1_fpn` and `ssd_mobilenet_v1_fpn`, or of tensorflow/tpu.
    """

    @takes_options(
        backbone_options=BackboneOptions,
        pyramid_options=PyramidOptions,
        anchor_options=AnchorOptions,
        variant_options=VariantOptions,
    )
    def __init__(
        self,
        layers: Layers,
        *,
        classes: int,
        image_shape: Sequence[int],
        backbone_options: BackboneOptions,
        pyramid_options: PyramidOptions,
        anchor_options: AnchorOptions,
        variant_options: VariantOptions,
    ) -> None:
        details = _known("variant", variant_options.variant, VARIANTS)
        self.backbone = _backbone(layers, image_shape[-1], backbone_options, variant_options.variant)
        features, levels = pyramid_options.features, pyramid_options.levels
        if levels < BACKBONE_LEVELS:
            raise UsageError(f"model.last_level: expected 5 or more, got {pyramid_options.last_level}")
        pyramid = details.pyramid
        # The pyramid of tensorflow/tpu keeps Keras' default initializer, which its configuration cannot change.
        if variant_options.variant != "tpu":
            initializer = kernel_initializer(variant_options.kernel_init, variant_options.kernel_deviation)
            pyramid = partial(pyramid, kernel_init=initializer)
        self.pyramid = pyramid(layers, self.backbone.channels[-BACKBONE_LEVELS:], features, levels)
        tower: dict[str, Any] = {"depth": pyramid_options.tower_depth, "levels": levels, "kernel": (3, 3)}
        tower["activation"] = details.activation
        self.class_tower = SharedTower(layers, features, features, **tower)
        self.box_tower = SharedTower(layers, features, features, **tower)
        ratios, scales = tuple(anchor_options.aspect_ratios), anchor_options.scales_per_octave
        self.outputs = BoxOutputs(
            layers,
            features,
            classes=classes,
            anchors=len(ratios) * scales,
            kernel=(3, 3),
            kernel_deviation=details.kernel_deviation,
            class_bias=details.class_bias,
        )
        self.anchor_scale, self.aspect_ratios = anchor_options.anchor_scale, ratios
        self.scales_per_octave, self.last_level = scales, pyramid_options.last_level

    def smallest_anchor(self, image_shape: Sequence[int]) -> float:
        """Return the root of the area of the smallest anchor, in pixels of an image."""
        return float(2**FIRST_LEVEL * self.anchor_scale)

    def anchor_warning(self, boxes: NDArray[Any], matcher: Matcher) -> str | None:
        """Return a warning if no anchor has the size of half of the boxes, heights and widths [box, 2] in pixels."""
        return anchor_warning(
            boxes,
            matcher,
            levels=(FIRST_LEVEL, self.last_level),
            scale=self.anchor_scale,
            aspect_ratios=self.aspect_ratios,
            scales_per_octave=self.scales_per_octave,
        )

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> list[Level]:  # noqa: B008
        """Return the levels, finest first, of normalized images [batch, height, width, channel]."""
        maps = self.backbone(image, run)[-BACKBONE_LEVELS:]
        levels = []
        for index, features in enumerate(self.pyramid(maps, run)):
            anchors = retinanet_anchors(
                image.shape[1:3],
                features.shape[1:3],
                stride=2 ** (FIRST_LEVEL + index),
                scale=self.anchor_scale,
                aspect_ratios=self.aspect_ratios,
                scales_per_octave=self.scales_per_octave,
            )
            class_features = self.class_tower(features, index, run)
            box_features = self.box_tower(features, index, run)
            levels.append(self.outputs(class_features, box_features, anchors, run))
        return levels


def _known(option: str, name: str, table: Mapping[str, Any]) -> Any:
    if name not in table:
        near = did_you_mean(name, table)
        raise UsageError(f"model.{option} {name!r}: not known; {near}known: {', '.join(table)}")
    return table[name]


def _backbone(layers: Layers, channels: int, options: BackboneOptions, variant: str) -> ResNet | MobileNet:
    name = options.backbone
    build = _known("backbone", name, BACKBONES)
    if options.blocks is not None and name != "resnet50":
        raise UsageError(f"model.blocks: only resnet50 has them; set model.width to make {name} smaller")
    if variant == "tpu" and name != "resnet50":
        raise UsageError(
            f"model.variant tpu: expected the backbone resnet50, got {name}; take model.variant=slim"
        )
    # MobileNet is the same in all variants; ResNets differ in where a block has its stride (`RESNET_STYLES`).
    style = variant if name == "resnet50" else None
    options_of_class = {"width": options.width, "blocks": options.blocks, "style": style}
    given: dict[str, Any] = {key: value for key, value in options_of_class.items() if value is not None}
    backbone: ResNet | MobileNet = build(layers, channels=channels, **given)
    return backbone
