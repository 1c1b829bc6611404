"""Feature pyramid and heads of detectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from numpy.typing import NDArray

from halofeed.trainer.detection.anchors import Level
from halofeed.trainer.models.layers import ConvolutionNorm, Layers, Pass, normal, save_for_backward

KERNEL_DEVIATION = 0.01


class FeaturePyramid(nnx.Module):
    """Feature pyramid: maps with equal channels, finest first, one per input map and coarser ones.

    As in the Object Detection API, the coarsest input map is not smoothed, each finer level adds the smoothed level
    above it, and each coarser level is a convolution of stride 2. Norm and relu6 follow the smoothing and the
    coarser convolutions.

    Args:
        layers: factory of the layers.
        channels: channels of the input maps, finest first.
        features: channels of every level.
        levels: number of levels, `len(channels)` or more.

    Source: Lin et al., Feature Pyramid Networks (arXiv 1612.03144); in the TensorFlow Object Detection API it is
    `fpn_top_down_feature_maps` with the feature extractors' bottom-up convolutions.
    """

    def __init__(self, layers: Layers, channels: Sequence[int], features: int, levels: int) -> None:
        kernel_init = normal(KERNEL_DEVIATION)
        unit = partial(
            ConvolutionNorm, layers, features, features, activation=nnx.relu6, kernel_init=kernel_init
        )
        self.laterals = nnx.List(
            layers.convolution(before, features, (1, 1), bias=True, kernel_init=kernel_init)
            for before in channels
        )
        self.smoothing = nnx.List(unit() for _ in channels[1:])
        self.coarser = nnx.List(unit(stride=2) for _ in range(levels - len(channels)))

    def __call__(self, maps: Sequence[jax.Array], run: Pass) -> list[jax.Array]:
        """Return maps [batch, height, width, channel], each half the size of the one before, rounded up."""
        laterals = [run.hold(lateral(x)) for lateral, x in zip(self.laterals, maps, strict=True)]
        pyramid = [laterals[-1]]
        for lateral, smooth in zip(laterals[-2::-1], self.smoothing[::-1], strict=True):
            pyramid.insert(0, smooth(lateral + doubled(pyramid[0], lateral.shape, run), run))
        for convolution in self.coarser:
            pyramid.append(convolution(pyramid[-1], run))
        return pyramid


def doubled(x: jax.Array, shape: Sequence[int], run: Pass) -> jax.Array:
    """Repeat every row and column, cropped to the height and width of `shape`, which may be odd.

    >>> doubled(jnp.array([1, 2]).reshape(1, 2, 1, 1), (1, 3, 1, 1), Pass()).ravel().tolist()
    [1, 1, 2]
    """
    twice = run.hold(jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2))
    if twice.shape[1:3] == tuple(shape[1:3]):
        return twice
    return run.hold(twice[:, : shape[1], : shape[2]])


CLASS_BIAS = -4.6
"""Initial bias: each class has the probability 0.01, so that the many negatives do not dominate the focal loss."""


class BoxOutputs(nnx.Module):
    """Two convolutions, to the class logits and to the box codes of every anchor.

    Args:
        layers: factory of the layers.
        before: channels of the input maps.
        classes: number of classes, without the background.
        anchors: number of anchors per position.
        kernel: kernel size of both convolutions.
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
        """Return the outputs at one level, in the parameters' precision.

        Args:
            class_features: input of the class logits, [batch, height, width, before].
            box_features: input of the box codes, in the same shape; may be the same array.
            anchors: float32 [height, width, anchor, 4].
            run: context of the pass.
        """
        logits = run.hold(self.logits(class_features))
        codes = run.hold(self.codes(box_features))
        return Level(
            class_logits=_per_anchor(logits, anchors.shape[2], self.dtype),
            box_codes=_per_anchor(codes, anchors.shape[2], self.dtype),
            anchors=jnp.asarray(anchors),
        )


class SharedTower(nnx.Module):
    """Convolutions shared by all levels, each followed by the level's own norm and relu6.

    Each level has its own norms because the statistics of activations differ between levels.

    Args:
        layers: factory of the layers.
        before: channels of the input.
        features: channels of the output.
        depth: number of convolutions.
        levels: number of levels, each with its own norms.
        kernel: kernel size of each convolution.

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
        """Map [batch, height, width, before] of a level, by its index, to [batch, height, width, features]."""
        for convolution, norm in zip(self.convolutions, self.norms[level], strict=True):
            x = save_for_backward(run.hold(convolution(x)))
            x = nnx.relu6(norm(x, valid=run.valid, training=run.training))
        return x


def _per_anchor(x: jax.Array, anchors: int, dtype: DTypeLike) -> jax.Array:
    return x.reshape(*x.shape[:3], anchors, -1).astype(dtype)
