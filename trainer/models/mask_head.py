"""Mask head of a detector: foreground and the box of the object at every pixel or every few pixels.

finest level of the pyramid -> convolutions -> repeat rows and columns, convolution (until the stride) -> 5 numbers
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
from flax import nnx

from halofeed.trainer.detection.pixel_boxes import PixelBoxes
from halofeed.trainer.models.layers import ConvolutionNorm, Layers, Pass, normal
from halofeed.trainer.models.pyramid import KERNEL_DEVIATION, doubled

_OUTPUTS = 5
"""The foreground, and the distances to four sides."""


class MaskHead(nnx.Module):
    """Convolutions from the finest level of a pyramid to `PixelBoxes`.

    Args:
        layers: factory of the layers.
        before: channels of the level.
        features: channels of the head.
        depth: number of convolutions at the level's stride.
        level_stride: stride of the level, a power of two.
        stride: stride of the output, a power of two of at most `level_stride`.
    """

    def __init__(
        self, layers: Layers, before: int, *, features: int, depth: int, level_stride: int, stride: int
    ) -> None:
        doublings = int(math.log2(level_stride // stride))
        channels = [before, *[features] * (depth + doublings)]
        self.convolutions = nnx.List(
            ConvolutionNorm(layers, one, other) for one, other in itertools.pairwise(channels)
        )
        self.output = layers.convolution(
            channels[-1], _OUTPUTS, (1, 1), bias=True, kernel_init=normal(KERNEL_DEVIATION)
        )
        self.depth, self.level_stride, self.stride = depth, level_stride, stride
        self.dtype = layers.param_dtype

    def __call__(self, x: jax.Array, image_size: Sequence[int], run: Pass) -> PixelBoxes:
        """Return the outputs in the parameters' precision.

        Args:
            x: the level, [batch, height, width, before].
            image_size: height and width of the image.
            run: context of the pass.
        """
        stride = self.level_stride
        for number, convolution in enumerate(self.convolutions):
            if number >= self.depth:
                stride //= 2
                x = doubled(x, (0, *(-(-size // stride) for size in image_size)), run)
            x = convolution(x, run)
        outputs = run.hold(self.output(x)).astype(self.dtype)
        return PixelBoxes(foreground=outputs[..., 0], log_distances=outputs[..., 1:], stride=self.stride)
