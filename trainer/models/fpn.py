"""How do a backbone's maps become a pyramid of maps that are equally rich in meaning?

C5 -1x1-> T5 ------------------> P5 -3x3/2-> P6 -3x3/2-> P7 ...
           | doubled
C4 -1x1->  + -> T4 -3x3-------> P4
           | doubled
C3 -1x1->  + ------3x3-------> P3
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from halofeed.trainer.models.initial import normal
from halofeed.trainer.models.layers import ConvolutionNorm, Layers, Pass

KERNEL_DEVIATION = 0.01


class FeaturePyramid(nnx.Module):
    """Maps of equal depth, the finest first: one for each map given, and coarser ones.

    As in the Object Detection API, the coarsest map given goes on without smoothing, the sum below takes the
    smoothed map above it, and each coarser level is a convolution of stride 2 of the one before. Norm and relu6 follow
    the smoothing and the coarser convolutions.

    Args:
        layers: makes the layers.
        channels: of the maps given, the finest first.
        features: of every level.
        levels: how many, `len(channels)` or more.

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
        """The pyramid of maps [batch, height, width, channel], each half as fine as the one before, rounded up."""
        laterals = [run.hold(lateral(x)) for lateral, x in zip(self.laterals, maps, strict=True)]
        pyramid = [laterals[-1]]
        for lateral, smooth in zip(laterals[-2::-1], self.smoothing[::-1], strict=True):
            pyramid.insert(0, smooth(lateral + doubled(pyramid[0], lateral.shape, run), run))
        for convolution in self.coarser:
            pyramid.append(convolution(pyramid[-1], run))
        return pyramid


def doubled(x: jax.Array, shape: Sequence[int], run: Pass) -> jax.Array:
    """Every row and column twice, cut to the height and width of `shape`, which may be uneven.

    >>> doubled(jnp.array([1, 2]).reshape(1, 2, 1, 1), (1, 3, 1, 1), Pass()).ravel().tolist()
    [1, 1, 2]
    """
    twice = run.hold(jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2))
    if twice.shape[1:3] == tuple(shape[1:3]):
        return twice
    return run.hold(twice[:, : shape[1], : shape[2]])
