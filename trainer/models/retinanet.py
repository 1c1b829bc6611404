"""RetinaNet: a backbone, a feature pyramid of levels 3 to 7, and heads shared by all levels.

image -> backbone -> C3..C5 -> pyramid P3..P7 -> box tower   -> box codes      per level, as a list of `Level`,
                                              -> class tower -> class logits   the finest first
                                        P3 [-> mask head     -> `PixelBoxes`]  on request, as `MaskedLevels`
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
from halofeed.trainer.detection.anchors import Level, MaskedLevels, retinanet_anchors
from halofeed.trainer.detection.matcher import Matcher
from halofeed.trainer.models.layers import Activation, Layers, Pass, kernel_initializer
from halofeed.trainer.models.mask_head import MaskHead
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
FIRST_LEVELS, LAST_BACKBONE_LEVEL = (2, 3), 5
MASK_STRIDES = (1, 2, 4, 8)


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
        first_level: finest level; its stride is 2 ** first_level. 2 is for objects of 4 to 16 pixels, with resnet50.
        last_level: coarsest level; its stride is 2 ** last_level.
        tower_depth: number of convolutions in each tower.
    """

    features: int = 256
    first_level: int = 3
    last_level: int = 7
    tower_depth: int = 4

    def __post_init__(self) -> None:
        if self.first_level not in FIRST_LEVELS:
            raise UsageError(f"model.first_level: expected 2 or 3, got {self.first_level}")
        if self.last_level < LAST_BACKBONE_LEVEL:
            raise UsageError(f"model.last_level: expected 5 or more, got {self.last_level}")

    @property
    def levels(self) -> int:
        """Number of levels."""
        return self.last_level - self.first_level + 1

    @property
    def backbone_levels(self) -> int:
        """Number of levels that are maps of the backbone."""
        return LAST_BACKBONE_LEVEL - self.first_level + 1


@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """Mask head of a RetinaNet.

    Args:
        mask_head: whether to predict a mask of each detection.
        mask_stride: pixels of the image between two positions of masks. Masks of objects below 16 pixels need 2.
        mask_features: channels of the mask head; None takes those of the pyramid.
        mask_depth: number of its convolutions at the finest level; each doubling of the size has one more.
    """

    mask_head: bool = False
    mask_stride: int = 4
    mask_features: int | None = None
    mask_depth: int = 2


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
        backbone_options, pyramid_options, anchor_options, variant_options, mask_options: the fields of
            `BackboneOptions`, `PyramidOptions`, `AnchorOptions`, `VariantOptions` and `MaskOptions`, as keywords:
            backbone="resnet50", features=256, ...

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
        mask_options=MaskOptions,
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
        mask_options: MaskOptions,
    ) -> None:
        details = _known("variant", variant_options.variant, VARIANTS)
        self.backbone = _backbone(layers, image_shape[-1], backbone_options, variant_options.variant)
        features, levels = pyramid_options.features, pyramid_options.levels
        from_backbone = pyramid_options.backbone_levels
        if len(self.backbone.channels) < from_backbone:
            raise UsageError(
                f"model.first_level {pyramid_options.first_level}: {backbone_options.backbone} has no map of that "
                "level; take --set model.backbone=resnet50, or leave it out"
            )
        pyramid = details.pyramid
        # The pyramid of tensorflow/tpu keeps Keras' default initializer, which its configuration cannot change.
        if variant_options.variant != "tpu":
            initializer = kernel_initializer(variant_options.kernel_init, variant_options.kernel_deviation)
            pyramid = partial(pyramid, kernel_init=initializer)
        self.pyramid = pyramid(layers, self.backbone.channels[-from_backbone:], features, levels)
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
        self.first_level, self.from_backbone = pyramid_options.first_level, from_backbone
        self.first_levels = tuple(
            level for level in FIRST_LEVELS if LAST_BACKBONE_LEVEL - level < len(self.backbone.channels)
        )
        self.mask_head = _mask_head(layers, features, 2**self.first_level, mask_options)

    def smallest_anchor(self, image_shape: Sequence[int]) -> float:
        """Return the root of the area of the smallest anchor, in pixels of an image."""
        return float(2**self.first_level * self.anchor_scale)

    def anchor_warning(self, boxes: NDArray[Any], matcher: Matcher) -> str | None:
        """Return a warning if no anchor has the size of half of the boxes, heights and widths [box, 2] in pixels."""
        return anchor_warning(
            boxes,
            matcher,
            levels=(self.first_level, self.last_level),
            scale=self.anchor_scale,
            aspect_ratios=self.aspect_ratios,
            scales_per_octave=self.scales_per_octave,
            first_levels=self.first_levels,
        )

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> list[Level] | MaskedLevels:  # noqa: B008
        """Return the levels, finest first, of normalized images [batch, height, width, channel]."""
        maps = self.backbone(image, run)[-self.from_backbone :]
        levels = []
        pyramid = self.pyramid(maps, run)
        for index, features in enumerate(pyramid):
            anchors = retinanet_anchors(
                image.shape[1:3],
                features.shape[1:3],
                stride=2 ** (self.first_level + index),
                scale=self.anchor_scale,
                aspect_ratios=self.aspect_ratios,
                scales_per_octave=self.scales_per_octave,
            )
            class_features = self.class_tower(features, index, run)
            box_features = self.box_tower(features, index, run)
            levels.append(self.outputs(class_features, box_features, anchors, run))
        if self.mask_head is None:
            return levels
        return MaskedLevels(levels=levels, pixels=self.mask_head(pyramid[0], image.shape[1:3], run))


def _known(option: str, name: str, table: Mapping[str, Any]) -> Any:
    if name not in table:
        near = did_you_mean(name, table)
        raise UsageError(f"model.{option} {name!r}: not known; {near}known: {', '.join(table)}")
    return table[name]


def _mask_head(layers: Layers, features: int, level_stride: int, options: MaskOptions) -> MaskHead | None:
    if not options.mask_head:
        return None
    known = [stride for stride in MASK_STRIDES if stride <= level_stride]
    if options.mask_stride not in known:
        raise UsageError(
            f"model.mask_stride: expected one of {', '.join(map(str, known))}, got {options.mask_stride}"
        )
    return MaskHead(
        layers,
        features,
        features=options.mask_features or features,
        depth=options.mask_depth,
        level_stride=level_stride,
        stride=options.mask_stride,
    )


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
