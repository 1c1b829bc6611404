"""ResNet-50 and -101, version 1: the backbone as in keras.applications or two detectors of TensorFlow, and classifiers.

image -> 7x7 stride 2 -> max pool 3x3 stride 2 -> C2 -> C3 -> C4 -> C5 (strides 4, 8, 16, 32) [-> mean -> dense]

Unlike Keras' convolutions, these have no biases, because a norm follows each of them.
`halofeed.trainer.models.keras_weights` adds Keras' biases to the norms' running means.

For pictures of 32 x 32 there is the smaller family of He et al., section 4.2, whose depth is 6 n + 2:

image -> 3x3 -> n blocks of width 16 -> n of 32, stride 2 -> n of 64, stride 2 -> mean -> dense
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from halofeed.trainer.models.layers import (
    Activation,
    ConvolutionNorm,
    ConvolutionPadding,
    Layers,
    Pass,
    max_pool,
    mean_over_space,
)

RESNET_BLOCKS = (3, 4, 6, 3)
RESNET101_BLOCKS = (3, 4, 23, 3)
RESNET_WIDTH = 64
CIFAR_BLOCKS, CIFAR_WIDTH, CIFAR_STAGES = 3, 16, 3
CIFAR_EPSILON = 1e-5
EXPANSION = 4
RESNET_EPSILON = 1.001e-5
STEM_ROWS = 3
"""Minimum of rows of a split image on one core: the halo of the first convolution, 7x7 with stride 2."""


@dataclass(frozen=True, kw_only=True)
class ResNetStyle:
    """Details in which published ResNets differ.

    Args:
        activation: activation after all norms but a block's last, which is followed by the sum and relu.
        epsilon: epsilon of the norms; None takes that of `Layers`.
        pool_padding: padding of the pool after the first convolution.
        stride_in_middle: stride in the 3x3 convolution of a block, not in the first 1x1.
        zero_last_scale: let the last norm of a block begin with the scale 0, so that the block begins as its shortcut.
    """

    activation: Activation = nnx.relu
    epsilon: float | None = None
    pool_padding: ConvolutionPadding = "SAME"
    stride_in_middle: bool = False
    zero_last_scale: bool = False


RESNET_STYLES = {
    "keras": ResNetStyle(epsilon=RESNET_EPSILON, pool_padding=((1, 1), (1, 1))),
    "slim": ResNetStyle(activation=nnx.relu6),
    "tpu": ResNetStyle(stride_in_middle=True, zero_last_scale=True),
}
"""keras: keras.applications. slim: `resnet_v1` under the hyperparameters of the Object Detection API's configurations,
which override its activation. tpu: models/official/detection of tensorflow/tpu.
"""


class Bottleneck(nnx.Module):
    """Bottleneck block: 1x1, 3x3, 1x1 to four times the features, plus a shortcut; the 1x1 or the 3x3 has the stride.

    Args:
        layers: factory of the layers.
        before: channels of the input.
        features: channels of the inner convolutions.
        stride: stride of the block.
        project: use a convolution as the shortcut; False uses the input.
        style: details of the block.
    """

    def __init__(
        self,
        layers: Layers,
        before: int,
        features: int,
        *,
        stride: int,
        project: bool,
        style: ResNetStyle = RESNET_STYLES["keras"],
    ) -> None:
        after = EXPANSION * features
        unit = partial(ConvolutionNorm, layers, epsilon=style.epsilon, activation=style.activation)
        self.shortcut = unit(before, after, (1, 1), stride=stride, activation=None) if project else None
        strides = (1, stride) if style.stride_in_middle else (stride, 1)
        self.reduce = unit(before, features, (1, 1), stride=strides[0])
        # The sources pad strided convolutions evenly (conv2d_fixed_padding, conv2d_same); SAME pads more at the end.
        padding = "SAME" if strides[1] == 1 else ((1, 1), (1, 1))
        self.middle = unit(features, features, stride=strides[1], padding=padding)
        self.expand = unit(features, after, (1, 1), activation=None)
        # Goyal et al. (arXiv 1706.02677), section 5.1: a block that begins as its shortcut is easier to train.
        if style.zero_last_scale:
            self.expand.norm.scale[...] = jnp.zeros_like(self.expand.norm.scale[...])

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        """Map [batch, height, width, before] to [batch, height / stride, width / stride, 4 * features]."""
        shortcut = x if self.shortcut is None else self.shortcut(x, run)
        return nnx.relu(shortcut + self.expand(self.middle(self.reduce(x, run), run), run))


class ResNet(nnx.Module):
    """Backbone with feature maps of strides 4, 8, 16 and 32; odd sizes are rounded up at every stride.

    Args:
        layers: factory of the layers.
        channels: channels of the image.
        blocks: number of blocks in each of the four stages; ResNet-50 has (3, 4, 6, 3).
        width: channels of the first convolution and of the first stage's inner ones; the others are multiples.
        style: key of `RESNET_STYLES`.

    Attributes:
        channels: channels of each feature map.

    Source: He et al., Deep Residual Learning for Image Recognition (arXiv 1512.03385).
    """

    def __init__(
        self,
        layers: Layers,
        *,
        channels: int = 3,
        blocks: Sequence[int] = RESNET_BLOCKS,
        width: int = RESNET_WIDTH,
        style: str = "keras",
    ) -> None:
        details = RESNET_STYLES[style]
        self.pool_padding = details.pool_padding
        self.stem = ConvolutionNorm(
            layers,
            channels,
            width,
            (7, 7),
            activation=details.activation,
            epsilon=details.epsilon,
            recompute_halo=True,
            stride=2,
            padding=((3, 3), (3, 3)),
        )
        self.stages: nnx.List[nnx.List[Bottleneck]] = nnx.List()
        before = width
        for stage, count in enumerate(blocks):
            features = width * 2**stage
            units: nnx.List[Bottleneck] = nnx.List()
            for block in range(count):
                # The pool before C2 has halved the image already (He et al., table 1).
                stride = 2 if stage > 0 and block == 0 else 1
                units.append(
                    Bottleneck(layers, before, features, stride=stride, project=block == 0, style=details)
                )
                before = EXPANSION * features
            self.stages.append(units)
        self.channels = tuple(EXPANSION * width * 2**stage for stage in range(len(blocks)))

    def __call__(self, image: jax.Array, run: Pass) -> list[jax.Array]:
        """Return C2 to C5, [batch, height, width, channel], of normalized images [batch, height, width, channel]."""
        first = stem_pass(image.shape, run)
        pooled = partial(max_pool, window=(3, 3), strides=(2, 2), padding=self.pool_padding)
        x = self.stem(first.hold(image), first, then=lambda x: run.hold(pooled(x)))
        maps = []
        for stage in self.stages:
            for block in stage:
                x = block(x, run)
            maps.append(x)
        return maps


def stem_pass(shape: Sequence[int], run: Pass) -> Pass:
    """Return the pass for the first convolution, which does not split images with too few rows (or columns) per core.

    XLA's partitioner aborts the process if a halo is wider than the neighbor's rows.
    """
    dims = run.dims or (1,) * len(shape)
    wide = all(
        size >= STEM_ROWS * parts for size, parts in zip(shape[1:], dims[1:], strict=True) if parts > 1
    )
    return run if wide else dataclasses.replace(run, dims=None)


class ResNetClassifier(nnx.Module):
    """Classifier on ResNet-50 or a smaller ResNet, with logits per class.

    Args:
        layers: factory of the layers.
        classes: number of logits.
        image_shape: shape of one image, [height, width, channel].
        blocks: blocks of `ResNet`.
        width: width of `ResNet`.
    """

    def __init__(
        self,
        layers: Layers,
        *,
        classes: int,
        image_shape: Sequence[int],
        blocks: Sequence[int] = RESNET_BLOCKS,
        width: int = RESNET_WIDTH,
    ) -> None:
        self.backbone = ResNet(layers, channels=image_shape[-1], blocks=blocks, width=width)
        self.head = layers.dense(self.backbone.channels[-1], classes)

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> jax.Array:  # noqa: B008
        """Return logits [batch, class], in the parameters' precision, of normalized images [batch, ..., channel]."""
        return self.head(mean_over_space(self.backbone(image, run)[-1], self.head.param_dtype))


class ResNet101Classifier(ResNetClassifier):
    """Classifier on ResNet-101, with logits per class.

    Args:
        layers: factory of the layers.
        classes: number of logits.
        image_shape: shape of one image, [height, width, channel].
        blocks: blocks of `ResNet`.
        width: width of `ResNet`.
    """

    def __init__(
        self,
        layers: Layers,
        *,
        classes: int,
        image_shape: Sequence[int],
        blocks: Sequence[int] = RESNET101_BLOCKS,
        width: int = RESNET_WIDTH,
    ) -> None:
        super().__init__(layers, classes=classes, image_shape=image_shape, blocks=blocks, width=width)


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions and a shortcut without parameters: option A of He et al., section 4.2.

    Where the block halves the image, the shortcut takes every second pixel, and new channels are zeros.

    Args:
        layers: factory of the layers.
        before: channels of the input.
        features: channels of the output, at least `before`.
        stride: stride of the first convolution.
    """

    def __init__(self, layers: Layers, before: int, features: int, *, stride: int) -> None:
        unit = partial(ConvolutionNorm, layers, epsilon=CIFAR_EPSILON)
        # SAME would pad a strided convolution more at the end.
        padding = "SAME" if stride == 1 else ((1, 1), (1, 1))
        self.first = unit(before, features, stride=stride, padding=padding)
        self.second = unit(features, features, activation=None)
        self.stride, self.new_channels = stride, features - before

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        """Map [batch, height, width, before] to [batch, height / stride, width / stride, features]."""
        shortcut = x
        if self.stride > 1:
            # A pool of one pixel would take the same pixels: its gradient took 45 ms on two cores, that of a slice 3.
            shortcut = x[:, :: self.stride, :: self.stride]
        if self.new_channels:
            shortcut = jnp.pad(shortcut, ((0, 0), (0, 0), (0, 0), (0, self.new_channels)))
        return nnx.relu(run.hold(shortcut) + self.second(self.first(x, run), run))


class CifarResNet(nnx.Module):
    """Classifier for small pictures, with logits per class: ResNet-20 with 3 blocks per stage, ResNet-56 with 9.

    Args:
        layers: factory of the layers.
        classes: number of logits.
        image_shape: shape of one image, [height, width, channel].
        blocks: number of blocks in each of the three stages; the depth is 6 * blocks + 2.
        width: channels of the first stage; each further one has twice as many.

    Source: He et al., Deep Residual Learning for Image Recognition (arXiv 1512.03385), section 4.2.
    """

    def __init__(
        self,
        layers: Layers,
        *,
        classes: int,
        image_shape: Sequence[int],
        blocks: int = CIFAR_BLOCKS,
        width: int = CIFAR_WIDTH,
    ) -> None:
        self.stem = ConvolutionNorm(layers, image_shape[-1], width, epsilon=CIFAR_EPSILON)
        self.blocks: nnx.List[BasicBlock] = nnx.List()
        before = width
        for stage in range(CIFAR_STAGES):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                self.blocks.append(BasicBlock(layers, before, width * 2**stage, stride=stride))
                before = width * 2**stage
        self.head = layers.dense(before, classes)

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> jax.Array:  # noqa: B008
        """Return logits [batch, class], in the parameters' precision, of normalized images [batch, ..., channel]."""
        x = self.stem(run.hold(image), run)
        for block in self.blocks:
            x = block(x, run)
        return self.head(mean_over_space(x, self.head.param_dtype))
