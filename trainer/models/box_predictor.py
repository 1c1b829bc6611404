"""How does a detector read class logits and box codes off its feature maps?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from numpy.typing import NDArray

from halofeed.trainer.detection.level import Level
from halofeed.trainer.models.initial import normal
from halofeed.trainer.models.layers import Layers, Pass, kept

KERNEL_DEVIATION = 0.01
CLASS_BIAS = -4.6
"""Before any training each class has the probability 0.01, so that the many negatives do not drown the focal loss."""


class BoxOutputs(nnx.Module):
    """Two convolutions: one to the class logits, one to the box codes of every anchor.

    Args:
        layers: makes the layers.
        before: channels of the maps.
        classes: without the background.
        anchors: per position.
        kernel: of both convolutions.
    """

    def __init__(
        self, layers: Layers, before: int, *, classes: int, anchors: int, kernel: Sequence[int]
    ) -> None:
        kernel_init = normal(KERNEL_DEVIATION)
        self.logits = layers.convolution(
            before,
            anchors * classes,
            kernel,
            bias=True,
            kernel_init=kernel_init,
            bias_init=nnx.initializers.constant(CLASS_BIAS),
        )
        self.codes = layers.convolution(before, anchors * 4, kernel, bias=True, kernel_init=kernel_init)
        self.dtype = layers.param_dtype

    def __call__(
        self, class_features: jax.Array, box_features: jax.Array, anchors: NDArray[Any], run: Pass
    ) -> Level:
        """The outputs at one level, in the parameters' precision.

        Args:
            class_features, box_features: [batch, height, width, before]; may be the same.
            anchors: float32 [height, width, anchor, 4].
            run: this pass.
        """
        logits = run.hold(self.logits(class_features))
        codes = run.hold(self.codes(box_features))
        return Level(
            class_logits=_per_anchor(logits, anchors.shape[2], self.dtype),
            box_codes=_per_anchor(codes, anchors.shape[2], self.dtype),
            anchors=jnp.asarray(anchors),
        )


class SharedTower(nnx.Module):
    """Convolutions that all levels share, each followed by a norm of the level's own and relu6.

    The levels' activations differ in their statistics, their meaning does not.

    Args:
        layers: makes the layers.
        before, features: channels of input and output.
        depth: how many convolutions.
        levels: how many sets of norms.
        kernel: of each convolution.

    Source: the TensorFlow Object Detection API's weight-shared convolutional box predictor.
    """

    def __init__(
        self,
        layers: Layers,
        before: int,
        features: int,
        *,
        depth: int,
        levels: int,
        kernel: Sequence[int],
    ) -> None:
        kernel_init = normal(KERNEL_DEVIATION)
        channels = (before, *[features] * depth)
        self.convolutions = nnx.List(
            layers.convolution(channels[index], features, kernel, kernel_init=kernel_init)
            for index in range(depth)
        )
        self.norms = nnx.List(nnx.List(layers.norm(features) for _ in range(depth)) for _ in range(levels))
        self.channels = channels[-1]

    def __call__(self, x: jax.Array, level: int, run: Pass) -> jax.Array:
        """[batch, height, width, before] of the level of that index to [batch, height, width, features]."""
        for convolution, norm in zip(self.convolutions, self.norms[level], strict=True):
            x = kept(run.hold(convolution(x)))
            x = nnx.relu6(norm(x, valid=run.valid, training=run.training))
        return x


def _per_anchor(x: jax.Array, anchors: int, dtype: DTypeLike) -> jax.Array:
    return x.reshape(*x.shape[:3], anchors, -1).astype(dtype)
