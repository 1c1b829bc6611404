"""A small convolutional classifier for pictures and volumes of any size, split over cores or not.

image -> blocks of (convolution of 3 along each axis, stride 2 -> batch norm -> relu) -> mean over space -> dense
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from flax import nnx

from halofeed.trainer.models.layers import ConvolutionNorm, Layers, Pass, mean_over_space

CLASSIFIER_FEATURES = (16, 32, 64, 128, 128)


class Classifier(nnx.Module):
    """Classifier with logits per class; parameters are replicated on every core, activations are split.

    Args:
        layers: factory of the layers.
        classes: number of logits.
        image_shape: shape of one image, [height, width, channel] or [depth, height, width, channel].
        features: channels of each block.
    """

    def __init__(
        self,
        layers: Layers,
        *,
        classes: int,
        image_shape: Sequence[int],
        features: Sequence[int] = CLASSIFIER_FEATURES,
    ) -> None:
        kernel = (3,) * (len(image_shape) - 1)
        self.blocks = nnx.List(
            ConvolutionNorm(layers, before, after, kernel, stride=2)
            for before, after in zip((image_shape[-1], *features), features, strict=False)
        )
        self.head = layers.dense(features[-1], classes)

    def __call__(self, image: jax.Array, run: Pass = Pass()) -> jax.Array:  # noqa: B008
        """Return logits [batch, class], in the parameters' precision, of normalized images [batch, ..., channel]."""
        image = run.hold(image)
        for block in self.blocks:
            image = block(image, run)
        return self.head(mean_over_space(image, self.head.param_dtype))
