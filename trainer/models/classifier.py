"""A small convolutional classifier for pictures of any size, split over cores or not.

image -> 5 x (3x3 convolution, stride 2 -> batch norm -> relu) -> mean over height and width -> dense
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from halofeed.schemas.partition import Dims
from halofeed.trainer.mesh import constrain
from halofeed.trainer.models.norm import BatchNorm

FEATURES = (16, 32, 64, 128, 128)


class Classifier(nnx.Module):
    """Logits per class; parameters and norm statistics are whole on every core, only activations are split.

    Args:
        classes: how many logits.
        channels: of the image.
        features: the channels of each block.
        dtype: of the activations.
        param_dtype: of the parameters.
        rngs: draws the initial parameters.
    """

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        features: Sequence[int] = FEATURES,
        dtype: DTypeLike = jnp.bfloat16,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.convolutions = nnx.List(
            nnx.Conv(
                before,
                after,
                (3, 3),
                strides=2,
                padding="SAME",
                use_bias=False,
                dtype=dtype,
                param_dtype=param_dtype,
                kernel_init=nnx.initializers.he_normal(),
                rngs=rngs,
            )
            for before, after in zip((channels, *features), features, strict=False)
        )
        self.norms = nnx.List(BatchNorm(after, param_dtype=param_dtype) for after in features)
        self.param_dtype = param_dtype
        self.head = nnx.Linear(features[-1], classes, param_dtype=param_dtype, rngs=rngs)

    def __call__(
        self,
        image: jax.Array,
        *,
        valid: jax.Array | None = None,
        training: bool = True,
        mesh: Mesh | None = None,
        dims: Dims = None,
    ) -> jax.Array:
        """Logits of a batch.

        Args:
            image: normalised, [batch, height, width, channel].
            valid: bool [batch]; other rows do not enter the norm's statistics. All by default.
            training: norm over this batch (all of it, and the whole image, however it is split), and update
                the running statistics; else norm by those.
            mesh: where the activations lie; None for one device.
            dims: how the image is split over a replica's cores; None is whole.

        Returns:
            [batch, classes], in the parameters' precision.
        """
        image = constrain(image, mesh, dims)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            image = constrain(convolution(image), mesh, dims)
            image = nnx.relu(norm(image, valid=valid, training=training))
        pooled = jnp.mean(image.astype(self.param_dtype), axis=(1, 2))
        return self.head(pooled)
