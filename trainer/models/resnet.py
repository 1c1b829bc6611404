"""ResNet-50, version 1: the backbone as keras.applications has it, and a classifier on it.

image -> 7x7 stride 2 -> max pool 3x3 stride 2 -> C2 -> C3 -> C4 -> C5 (strides 4, 8, 16, 32) [-> mean -> dense]

Keras gives its convolutions biases, though a norm follows each and takes them away again; here there are none, and
`halofeed.trainer.models.keras_weights` puts theirs into the norms' running means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
from flax import nnx

from halofeed.trainer.models.layers import ConvolutionNorm, Layers, Pass, max_pool, mean_over_space

BLOCKS = (3, 4, 6, 3)
WIDTH = 64
EXPANSION = 4
EPSILON = 1.001e-5
STEM_ROWS = 3
"""The fewest rows on one core of an image that is split: the halo of the first convolution, 7x7 with stride 2."""
_unit = partial(ConvolutionNorm, epsilon=EPSILON)


class Bottleneck(nnx.Module):
    """1x1 (with the stride), 3x3, 1x1 to four times the features, plus a shortcut.

    Args:
        layers: makes the layers.
        before: the input's channels.
        features: of the inner convolutions.
        stride: of the block.
        project: the shortcut is a convolution; else it is the input.
    """

    def __init__(self, layers: Layers, before: int, features: int, *, stride: int, project: bool) -> None:
        after = EXPANSION * features
        self.shortcut = (
            _unit(layers, before, after, (1, 1), stride=stride, activation=None) if project else None
        )
        self.reduce = _unit(layers, before, features, (1, 1), stride=stride)
        self.middle = _unit(layers, features, features)
        self.expand = _unit(layers, features, after, (1, 1), activation=None)

    def __call__(self, x: jax.Array, run: Pass) -> jax.Array:
        """[batch, height, width, before] to [batch, height / stride, width / stride, 4 * features]."""
        shortcut = x if self.shortcut is None else self.shortcut(x, run)
        return nnx.relu(shortcut + self.expand(self.middle(self.reduce(x, run), run), run))


class ResNet(nnx.Module):
    """The feature maps of strides 4, 8, 16 and 32; uneven sizes are rounded up at every stride.

    Args:
        layers: makes the layers.
        channels: of the image.
        blocks: how many in each of the four stages; ResNet-50 has (3, 4, 6, 3).
        width: channels of the first convolution and of the first stage's inner ones; the others grow with it.

    Attributes:
        channels: of each feature map.

    Source: He et al., Deep Residual Learning for Image Recognition (arXiv 1512.03385).
    """

    def __init__(
        self, layers: Layers, *, channels: int = 3, blocks: Sequence[int] = BLOCKS, width: int = WIDTH
    ) -> None:
        padding = ((3, 3), (3, 3))
        self.stem = _unit(layers, channels, width, (7, 7), stride=2, padding=padding, extends_again=True)
        self.stages: nnx.List[nnx.List[Bottleneck]] = nnx.List()
        before = width
        for stage, count in enumerate(blocks):
            features = width * 2**stage
            units: nnx.List[Bottleneck] = nnx.List()
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                units.append(Bottleneck(layers, before, features, stride=stride, project=block == 0))
                before = EXPANSION * features
            self.stages.append(units)
        self.channels = tuple(EXPANSION * width * 2**stage for stage in range(len(blocks)))

    def __call__(self, image: jax.Array, run: Pass) -> list[jax.Array]:
        """C2 to C5, [batch, height, width, channel] each, of normalized images [batch, height, width, channel]."""
        first = stem_pass(image.shape, run)
        pooled = partial(max_pool, window=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        x = self.stem(first.hold(image), first, then=lambda x: run.hold(pooled(x)))
        maps = []
        for stage in self.stages:
            for block in stage:
                x = block(x, run)
            maps.append(x)
        return maps


def stem_pass(shape: Sequence[int], run: Pass) -> Pass:
    """The pass for the first convolution: on images of too few rows (or columns) a core it leaves them whole.

    XLA's partitioner aborts the process where its halo is wider than the neighbor's rows.
    """
    dims = run.dims or (1,) * len(shape)
    wide = all(
        size >= STEM_ROWS * parts for size, parts in zip(shape[1:], dims[1:], strict=True) if parts > 1
    )
    return run if wide else dataclasses.replace(run, dims=None)


class ResNetClassifier(nnx.Module):
    """Logits per class on ResNet-50, or on a smaller one.

    Args:
        layers: makes the layers.
        classes: how many logits.
        image_shape: of one image, [height, width, channel].
        blocks, width: of `ResNet`.
    """

    def __init__(
        self,
        layers: Layers,
        *,
        classes: int,
        image_shape: Sequence[int],
        blocks: Sequence[int] = BLOCKS,
        width: int = WIDTH,
    ) -> None:
        self.backbone = ResNet(layers, channels=image_shape[-1], blocks=blocks, width=width)
        self.head = layers.dense(self.backbone.channels[-1], classes)

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> jax.Array:  # noqa: B008
        """Logits [batch, classes], in the parameters' precision, of normalized images [batch, ..., channel]."""
        return self.head(mean_over_space(self.backbone(image, run)[-1], self.head.param_dtype))
