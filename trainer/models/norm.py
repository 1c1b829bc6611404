"""Batch norm whose statistics span the whole batch and the whole image, however both are split."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


class BatchNorm(nnx.Module):
    """Per channel, (x - mean) / sqrt(variance + epsilon) * scale + bias.

    Unlike flax's own, the running statistics have the parameters' precision (float64 for the parity
    test), and rows that are only padding do not enter them.

    Args:
        features: how many channels.
        decay: of the running statistics.
        epsilon: added to the variance.
        param_dtype: of scale, bias and running statistics, and at least float32 of the arithmetic.
    """

    def __init__(
        self,
        features: int,
        *,
        decay: float = 0.9,
        epsilon: float = 1e-3,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        self.scale = nnx.Param(jnp.ones(features, param_dtype))
        self.bias = nnx.Param(jnp.zeros(features, param_dtype))
        self.mean = nnx.BatchStat(jnp.zeros(features, param_dtype))
        self.variance = nnx.BatchStat(jnp.ones(features, param_dtype))
        self.decay, self.epsilon = decay, epsilon

    def __call__(self, x: jax.Array, *, valid: jax.Array | None = None, training: bool = True) -> jax.Array:
        """Normalise x [batch, ..., channel]; `valid`, bool [batch], says which rows the statistics span."""
        wide = x.astype(self.scale[...].dtype)
        if training:
            mean, variance = _moments(wide, valid)
            self.mean[...] = self.decay * self.mean[...] + (1 - self.decay) * jax.lax.stop_gradient(mean)
            self.variance[...] = self.decay * self.variance[...] + (1 - self.decay) * jax.lax.stop_gradient(
                variance
            )
        else:
            mean, variance = self.mean[...], self.variance[...]
        scale = self.scale[...] * jax.lax.rsqrt(variance + self.epsilon)
        return ((wide - mean) * scale + self.bias[...]).astype(x.dtype)


def _moments(x: jax.Array, valid: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    axes = tuple(range(x.ndim - 1))
    if valid is None:
        return jnp.mean(x, axes), jnp.var(x, axes)
    rows = valid.reshape(-1, *[1] * (x.ndim - 1))
    pixels = x[0, ..., 0].size
    count = jnp.maximum(jnp.sum(valid), 1).astype(x.dtype) * pixels
    mean = jnp.sum(jnp.where(rows, x, 0), axes) / count
    variance = jnp.sum(jnp.where(rows, jnp.square(x - mean), 0), axes) / count
    return mean, variance
