"""SSD on MobileNet-v1, with six maps made by convolutions, or by pooling in the pooling pyramid network.

image -> C4 -> C5 -> four times (1x1, 3x3 stride 2)      separate outputs per map      `Ssd`
image -> C4 -> five times (max pool 2x2 stride 2)        outputs shared by all maps    `SsdPooling`

For 300 x 300 pixels the maps have 19, 10, 5, 3, 2 and 1 positions per side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from halofeed.trainer.detection.anchors import LOWEST_LAYER_SCALE, Level, ssd_anchors
from halofeed.trainer.models.layers import (
    ConvolutionNorm,
    Initializer,
    Layers,
    Pass,
    kernel_initializer,
    max_pool,
)
from halofeed.trainer.models.mobilenet import MOBILENET_WIDTH, MobileNet
from halofeed.trainer.models.model_options import takes_options
from halofeed.trainer.models.pyramid import BoxOutputs, SharedTower

LEVELS = 6
EXTRA_FEATURES = (512, 256, 256, 128)
EXTRA_KERNEL_DEVIATION = 0.03
BLOCKS_TO_STRIDE_16 = 11
ASPECT_RATIOS = (1.0, 2.0, 0.5, 3.0, 1 / 3)
FINEST_ANCHORS = 3
"""Number of anchors of the finest map; every other map has one per aspect ratio and one more."""


@dataclass(frozen=True, kw_only=True)
class SsdAnchorOptions:
    """Anchors of an SSD; `min_scale`, `max_scale` and `aspect_ratios` are those of `ssd_anchors`."""

    min_scale: float = 0.2
    max_scale: float = 0.95
    aspect_ratios: Sequence[float] = ASPECT_RATIOS


@dataclass(frozen=True, kw_only=True)
class PoolingAnchorOptions(SsdAnchorOptions):
    """Anchors of a pooling pyramid network, whose configuration has a smaller least scale."""

    min_scale: float = 0.15


@dataclass(frozen=True, kw_only=True)
class ExtraMapOptions:
    """Extra maps of an SSD.

    Args:
        kernel_init: key of `KERNEL_INITIALIZERS`.
        kernel_deviation: standard deviation of these kernels.
    """

    kernel_init: str = "normal"
    kernel_deviation: float = EXTRA_KERNEL_DEVIATION


class Ssd(nnx.Module):
    """SSD that returns six `Level`; for 300 x 300 pixels they have 1917 anchors.

    Args:
        layers: factory of the layers.
        classes: number of classes, without the background.
        image_shape: shape of one image, [height, width, channel].
        width: channels of the backbone's first convolution; those of the extra maps are proportional.
        anchors, extra: the fields of `SsdAnchorOptions` and `ExtraMapOptions`, as keywords: min_scale=0.2, ...

    Raises:
        UsageError: `kernel_init` is unknown.

    Source: Liu et al., SSD (arXiv 1512.02325), as in the TensorFlow Object Detection API's configuration
    `ssd_mobilenet_v1_300x300_coco14_sync`.
    """

    @takes_options(anchors=SsdAnchorOptions, extra=ExtraMapOptions)
    def __init__(
        self,
        layers: Layers,
        *,
        classes: int,
        image_shape: Sequence[int],
        width: int = MOBILENET_WIDTH,
        anchors: SsdAnchorOptions,
        extra: ExtraMapOptions,
    ) -> None:
        self.backbone = MobileNet(layers, channels=image_shape[-1], width=width)
        channels = list(self.backbone.channels[-2:])
        self.extra: nnx.List[ShrinkingBlock] = nnx.List()
        initializer = kernel_initializer(extra.kernel_init, extra.kernel_deviation)
        for features in EXTRA_FEATURES:
            after = max(2, features * width // MOBILENET_WIDTH)
            self.extra.append(ShrinkingBlock(layers, channels[-1], after, initializer))
            channels.append(self.extra[-1].channels)
        counts = (FINEST_ANCHORS, *[len(anchors.aspect_ratios) + 1] * (LEVELS - 1))
        self.outputs = nnx.List(
            BoxOutputs(layers, before, classes=classes, anchors=count, kernel=(1, 1))
            for before, count in zip(channels, counts, strict=True)
        )
        self.scales = (anchors.min_scale, anchors.max_scale)
        self.aspect_ratios = tuple(anchors.aspect_ratios)

    def smallest_anchor(self, image_shape: Sequence[int]) -> float:
        """Return the root of the area of the smallest anchor, in pixels of an image."""
        return min(LOWEST_LAYER_SCALE, self.scales[0]) * min(image_shape[:2])

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> list[Level]:  # noqa: B008
        """Return the levels, finest first, of normalized images [batch, height, width, channel]."""
        maps = self.backbone(image, run)[-2:]
        for block in self.extra:
            maps.append(block(maps[-1], run))
        levels = []
        for index, (features, outputs) in enumerate(zip(maps, self.outputs, strict=True)):
            anchors = _anchors(self, image, features, index, few_finest=True)
            levels.append(outputs(features, features, anchors, run))
        return levels


class SsdPooling(nnx.Module):
    """SSD that returns six `Level` from one map and its poolings, by shared convolutions with norms per level.

    Every level has the same number of anchors per position, because the convolutions are shared.

    Args:
        layers: factory of the layers.
        classes: number of classes, without the background.
        image_shape: shape of one image, [height, width, channel].
        width: channels of the backbone's first convolution.
        tower_features: channels of the shared 1x1 convolutions; None takes the map's channels.
        tower_depth: number of the shared 1x1 convolutions.
        anchors: the fields of `PoolingAnchorOptions`, as keywords: min_scale=0.15, ...

    Source: Jin et al., Pooling Pyramid Network for Object Detection (arXiv 1807.03284), as in the TensorFlow Object
    Detection API's configuration `ssd_mobilenet_v1_ppn_shared_box_predictor_300x300`.
    """

    @takes_options(anchors=PoolingAnchorOptions)
    def __init__(
        self,
        layers: Layers,
        *,
        classes: int,
        image_shape: Sequence[int],
        width: int = MOBILENET_WIDTH,
        tower_features: int | None = None,
        tower_depth: int = 1,
        anchors: PoolingAnchorOptions,
    ) -> None:
        self.backbone = MobileNet(layers, channels=image_shape[-1], width=width, blocks=BLOCKS_TO_STRIDE_16)
        channels = self.backbone.channels[-1]
        self.tower = SharedTower(
            layers, channels, tower_features or channels, depth=tower_depth, levels=LEVELS, kernel=(1, 1)
        )
        self.outputs = BoxOutputs(
            layers,
            self.tower.channels,
            classes=classes,
            anchors=len(anchors.aspect_ratios) + 1,
            kernel=(1, 1),
        )
        self.scales = (anchors.min_scale, anchors.max_scale)
        self.aspect_ratios = tuple(anchors.aspect_ratios)

    def smallest_anchor(self, image_shape: Sequence[int]) -> float:
        """Return the root of the area of the smallest anchor, in pixels of an image."""
        return self.scales[0] * min(image_shape[:2])

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> list[Level]:  # noqa: B008
        """Return the levels, finest first, of normalized images [batch, height, width, channel]."""
        features, levels = self.backbone(image, run)[-1], []
        for index in range(LEVELS):
            # The first level is the map of the backbone itself.
            if index:
                features = run.hold(max_pool(features, (2, 2), (2, 2), "SAME"))
            anchors = _anchors(self, image, features, index, few_finest=False)
            tower = self.tower(features, index, run)
            levels.append(self.outputs(tower, tower, anchors, run))
        return levels


def _anchors(
    model: Ssd | SsdPooling, image: jax.Array, features: jax.Array, level: int, *, few_finest: bool
) -> NDArray[np.float32]:
    return ssd_anchors(
        image.shape[1:3],
        features.shape[1:3],
        level=level,
        levels=LEVELS,
        min_scale=model.scales[0],
        max_scale=model.scales[1],
        aspect_ratios=model.aspect_ratios,
        reduce_boxes_in_lowest_layer=few_finest,
    )


class ShrinkingBlock(nnx.Module):
    """1x1 convolution to half of `features`, then 3x3 of stride 2 to `features`; norm and relu6 after each."""

    def __init__(self, layers: Layers, before: int, features: int, kernel_init: Initializer) -> None:
        unit = partial(ConvolutionNorm, activation=nnx.relu6, kernel_init=kernel_init)
        half = features // 2
        self.reduce = unit(layers, before, half, (1, 1))
        self.shrink = unit(layers, half, features, stride=2)
        self.channels = features

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        """Map [batch, height, width, before] to [batch, height / 2, width / 2, features], rounded up."""
        return self.shrink(self.reduce(x, run), run)
