"""MobileNet, version 1: the backbone as in keras.applications, and a classifier on it.

image -> 3x3 stride 2 -> 13 blocks of (depthwise 3x3 -> 1x1 over channels); norm and relu6 after each
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
from flax import nnx

from halofeed.trainer.models.layers import ConvolutionNorm, ConvolutionPadding, Layers, Pass, mean_over_space

MOBILENET_WIDTH = 32
MOBILENET_EPSILON = 1e-3
MOBILENET_BLOCKS = (
    *((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2)),
    *((16, 1), (16, 1), (16, 1), (16, 1), (16, 1), (32, 2), (32, 1)),
)
"""Channels of each block as multiples of the first convolution's, and its stride."""
KERAS_PADDING = ((0, 1), (0, 1))
"""Padding of keras.applications in blocks of stride 2: an odd size is rounded down, while SAME rounds up."""
_unit = partial(ConvolutionNorm, activation=nnx.relu6, epsilon=MOBILENET_EPSILON)


class SeparableBlock(nnx.Module):
    """Depthwise 3x3 convolution, then 1x1 over channels.

    Args:
        layers: factory of the layers.
        before: channels of the input.
        after: channels of the output.
        stride: stride of the first convolution.
        padding: padding of the first convolution.
    """

    def __init__(
        self, layers: Layers, before: int, after: int, *, stride: int, padding: ConvolutionPadding
    ) -> None:
        self.depthwise = _unit(layers, before, before, groups=before, stride=stride, padding=padding)
        self.pointwise = _unit(layers, before, after, (1, 1))

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        """Map [batch, height, width, before] to [batch, height / stride, width / stride, after]."""
        return self.pointwise(self.depthwise(x, run), run)


class MobileNet(nnx.Module):
    """Backbone with feature maps of strides 8, 16 and 32, from blocks 5, 11 and 13.

    Args:
        layers: factory of the layers.
        channels: channels of the image.
        width: channels of the first convolution; the others are multiples of it. Keras calls width / 32 alpha.
        blocks: number of blocks, at most 13; 11 omits stride 32.
        padding: padding of blocks with stride 2: SAME (as the Object Detection API) or `KERAS_PADDING`.

    Attributes:
        channels: channels of each feature map.

    Source: Howard et al., MobileNets (arXiv 1704.04861).
    """

    def __init__(
        self,
        layers: Layers,
        *,
        channels: int = 3,
        width: int = MOBILENET_WIDTH,
        blocks: int = len(MOBILENET_BLOCKS),
        padding: ConvolutionPadding = "SAME",
    ) -> None:
        widths = [width, *(multiple * width for multiple, _ in MOBILENET_BLOCKS[:blocks])]
        strides = [stride for _, stride in MOBILENET_BLOCKS[:blocks]]
        self.stem = _unit(layers, channels, width, stride=2)
        self.blocks = nnx.List(
            SeparableBlock(layers, before, after, stride=stride, padding=padding if stride > 1 else "SAME")
            for before, after, stride in zip(widths, widths[1:], strides, strict=False)
        )
        last_of_stride = [index for index, following in enumerate((*strides[1:], 2)) if following > 1]
        self.last_of_stride = tuple(last_of_stride[2:])
        self.channels = tuple(widths[index + 1] for index in self.last_of_stride)

    def __call__(self, image: jax.Array, run: Pass) -> list[jax.Array]:
        """Return C3 to C5, [batch, height, width, channel], of normalized images [batch, height, width, channel]."""
        x = self.stem(run.hold(image), run)
        maps = []
        for index, block in enumerate(self.blocks):
            x = block(x, run)
            if index in self.last_of_stride:
                maps.append(x)
        return maps


class MobileNetClassifier(nnx.Module):
    """Classifier on MobileNet of any width, with logits per class.

    Args:
        layers: factory of the layers.
        classes: number of logits.
        image_shape: shape of one image, [height, width, channel].
        width: width of `MobileNet`.
    """

    def __init__(
        self, layers: Layers, *, classes: int, image_shape: Sequence[int], width: int = MOBILENET_WIDTH
    ) -> None:
        self.backbone = MobileNet(layers, channels=image_shape[-1], width=width, padding=KERAS_PADDING)
        self.head = layers.dense(self.backbone.channels[-1], classes)

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> jax.Array:  # noqa: B008
        """Return logits [batch, class], in the parameters' precision, of normalized images [batch, ..., channel]."""
        return self.head(mean_over_space(self.backbone(image, run)[-1], self.head.param_dtype))
