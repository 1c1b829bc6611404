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
from halofeed.trainer.models.layers import (
    Activation,
    ConvolutionNorm,
    Initializer,
    Layers,
    Pass,
    glorot_uniform,
    normal,
    save_for_backward,
)

KERNEL_DEVIATION = 0.01


class FeaturePyramid(nnx.Module):
    """Feature pyramid: maps with equal channels, finest first, one per input map and coarser ones.

    The coarsest input map is not smoothed, and each coarser level is a convolution of stride 2. Norm and relu6 follow
    the smoothing and the coarser convolutions.

    Args:
        layers: factory of the layers.
        channels: channels of the input maps, finest first.
        features: channels of every level.
        levels: number of levels, `len(channels)` or more.
        carry_smoothed: each finer level adds the smoothed level above it, as `KerasFpnTopDownFeatureMaps` does. False
            adds the sum before its smoothing, as `fpn_top_down_feature_maps` does and the paper describes.
        kernel_init: initializer of the kernels.

    Source: Lin et al., Feature Pyramid Networks (arXiv 1612.03144); both functions are in
    models/feature_map_generators.py of the TensorFlow Object Detection API. Its feature extractors add the coarser
    levels.
    """

    def __init__(
        self,
        layers: Layers,
        channels: Sequence[int],
        features: int,
        levels: int,
        *,
        carry_smoothed: bool = True,
        kernel_init: Initializer = normal(KERNEL_DEVIATION),  # noqa: B008
    ) -> None:
        unit = partial(
            ConvolutionNorm, layers, features, features, activation=nnx.relu6, kernel_init=kernel_init
        )
        self.laterals = _laterals(layers, channels, features, kernel_init)
        self.smoothing = nnx.List(unit() for _ in channels[1:])
        self.coarser = nnx.List(unit(stride=2) for _ in range(levels - len(channels)))
        self.carry_smoothed = carry_smoothed

    def __call__(self, maps: Sequence[jax.Array], run: Pass) -> list[jax.Array]:
        """Return maps [batch, height, width, channel], each half the size of the one before, rounded up."""
        laterals = [run.hold(lateral(x)) for lateral, x in zip(self.laterals, maps, strict=True)]
        carried = laterals[-1]
        pyramid = [carried]
        for lateral, smooth in zip(laterals[-2::-1], self.smoothing[::-1], strict=True):
            total = lateral + doubled(carried, lateral.shape, run)
            pyramid.insert(0, smooth(total, run))
            carried = pyramid[0] if self.carry_smoothed else total
        for convolution in self.coarser:
            pyramid.append(convolution(pyramid[-1], run))
        return pyramid


class NormLastPyramid(nnx.Module):
    """Feature pyramid of unsmoothed sums, all of them smoothed, whose only norms follow the complete pyramid.

    The first coarser level is a convolution of stride 2 of the level before it, the others of its relu. Every level
    ends with its own norm and without an activation.

    Args:
        layers: factory of the layers.
        channels: channels of the input maps, finest first.
        features: channels of every level.
        levels: number of levels, `len(channels)` or more.
        kernel_init: initializer of the kernels.

    Source: models/official/detection/modeling/architecture/fpn.py of tensorflow/tpu.
    """

    def __init__(
        self,
        layers: Layers,
        channels: Sequence[int],
        features: int,
        levels: int,
        *,
        kernel_init: Initializer = glorot_uniform,
    ) -> None:
        convolution = partial(layers.convolution, features, features, bias=True, kernel_init=kernel_init)
        self.laterals = _laterals(layers, channels, features, kernel_init)
        self.smoothing = nnx.List(convolution() for _ in channels)
        self.coarser = nnx.List(convolution(stride=2) for _ in range(levels - len(channels)))
        self.norms = nnx.List(layers.norm(features) for _ in range(levels))

    def __call__(self, maps: Sequence[jax.Array], run: Pass) -> list[jax.Array]:
        """Return maps [batch, height, width, channel], each half the size of the one before, rounded up."""
        sums = [run.hold(lateral(x)) for lateral, x in zip(self.laterals, maps, strict=True)]
        for index in reversed(range(len(sums) - 1)):
            sums[index] = sums[index] + doubled(sums[index + 1], sums[index].shape, run)
        pyramid = [run.hold(smooth(x)) for smooth, x in zip(self.smoothing, sums, strict=True)]
        for index, convolution in enumerate(self.coarser):
            # fpn.py of tensorflow/tpu applies relu before each coarser level but the first.
            before = nnx.relu(pyramid[-1]) if index else pyramid[-1]
            pyramid.append(run.hold(convolution(before)))
        saved = map(save_for_backward, pyramid)
        return [norm(x, **run.norm_options(x.shape)) for norm, x in zip(self.norms, saved, strict=True)]


def _laterals(
    layers: Layers, channels: Sequence[int], features: int, kernel_init: Initializer
) -> nnx.List[nnx.Conv]:
    return nnx.List(
        layers.convolution(before, features, (1, 1), bias=True, kernel_init=kernel_init)
        for before in channels
    )


def doubled(x: jax.Array, shape: Sequence[int], run: Pass) -> jax.Array:
    """Repeat every row and column, cropped to the height and width of `shape`, which may be odd.

    >>> doubled(jnp.array([1, 2]).reshape(1, 2, 1, 1), (1, 3, 1, 1), Pass()).ravel().tolist()
    [1, 1, 2]
    """
    twice = run.hold(jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2))
    # Strides round odd sizes up, so a finer level may have one row less than twice the coarser one.
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
        kernel_deviation: standard deviation of the initial kernels.
        class_bias: initial bias of the class logits.
    """

    def __init__(
        self,
        layers: Layers,
        before: int,
        *,
        classes: int,
        anchors: int,
        kernel: Sequence[int],
        kernel_deviation: float = KERNEL_DEVIATION,
        class_bias: float = CLASS_BIAS,
    ) -> None:
        kernel_init = normal(kernel_deviation)
        self.logits = layers.convolution(
            before,
            anchors * classes,
            kernel,
            bias=True,
            kernel_init=kernel_init,
            bias_init=nnx.initializers.constant(class_bias),
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
    """Convolutions shared by all levels, each followed by the level's own norm and an activation.

    Each level has its own norms because the statistics of activations differ between levels.

    Args:
        layers: factory of the layers.
        before: channels of the input.
        features: channels of the output.
        depth: number of convolutions.
        levels: number of levels, each with its own norms.
        kernel: kernel size of each convolution.
        activation: activation after each norm.

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
        activation: Activation = nnx.relu6,
    ) -> None:
        kernel_init = normal(KERNEL_DEVIATION)
        channels = (before, *[features] * depth)
        self.convolutions = nnx.List(
            layers.convolution(channels[index], features, kernel, kernel_init=kernel_init)
            for index in range(depth)
        )
        self.norms = nnx.List(nnx.List(layers.norm(features) for _ in range(depth)) for _ in range(levels))
        self.channels, self.activation = channels[-1], activation

    def __call__(self, x: jax.Array, level: int, run: Pass) -> jax.Array:
        """Map [batch, height, width, before] of a level, by its index, to [batch, height, width, features]."""
        for convolution, norm in zip(self.convolutions, self.norms[level], strict=True):
            x = save_for_backward(run.hold(convolution(x)))
            x = self.activation(norm(x, **run.norm_options(x.shape)))
        return x


def _per_anchor(x: jax.Array, anchors: int, dtype: DTypeLike) -> jax.Array:
    return x.reshape(*x.shape[:3], anchors, -1).astype(dtype)
