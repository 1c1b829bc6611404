"""Which norms are there? Their statistics span the image, those of batch norm all rows, however both are split."""

from __future__ import annotations

import math
from collections.abc import Callable

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
        """Normalize x [batch, ..., channel]; `valid`, bool [batch], says which rows the statistics span."""
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


class GroupNorm(nnx.Module):
    """Per example and group of channels, (x - mean) / sqrt(variance + epsilon), then * scale + bias per channel.

    Nothing is remembered from step to step: training and evaluation compute the same. With as many groups as
    channels it is instance norm. Source: Wu and He, "Group Normalization", 2018 (arXiv 1803.08494).

    Args:
        features: how many channels.
        groups: divides them; None is one per channel.
        epsilon: added to the variance.
        param_dtype: of scale and bias, and of the arithmetic.
    """

    def __init__(
        self,
        features: int,
        *,
        groups: int | None = None,
        epsilon: float = 1e-5,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        self.scale = nnx.Param(jnp.ones(features, param_dtype))
        self.bias = nnx.Param(jnp.zeros(features, param_dtype))
        self.groups = features if groups is None else groups
        self.epsilon = epsilon

    def __call__(self, x: jax.Array, *, valid: jax.Array | None = None, training: bool = True) -> jax.Array:
        """Normalize x [batch, ..., channel]; rows do not depend on each other, so `valid` changes nothing."""
        wide = x.astype(self.scale[...].dtype)
        mean = self._over_groups(wide)
        variance = self._over_groups(jnp.square(wide - mean))
        scale = self.scale[...] * jax.lax.rsqrt(variance + self.epsilon)
        return ((wide - mean) * scale + self.bias[...]).astype(x.dtype)

    def _over_groups(self, x: jax.Array) -> jax.Array:
        """The mean of each example's groups, for every channel of them: [batch, 1, ..., 1, channel]."""
        channels = jnp.mean(x, tuple(range(1, x.ndim - 1)))
        grouped = channels.reshape(len(channels), self.groups, -1)
        means = jnp.broadcast_to(jnp.mean(grouped, -1, keepdims=True), grouped.shape)
        return means.reshape(len(channels), *[1] * (x.ndim - 2), x.shape[-1])


MOST_GROUPS = 8
"""Of the group norm that `NORMS` makes; it has fewer where the channels do not divide by it."""


def _instance(features: int, *, decay: float, epsilon: float, param_dtype: DTypeLike) -> GroupNorm:
    return GroupNorm(features, epsilon=epsilon, param_dtype=param_dtype)


def _group(features: int, *, decay: float, epsilon: float, param_dtype: DTypeLike) -> GroupNorm:
    groups = math.gcd(features, MOST_GROUPS)
    return GroupNorm(features, groups=groups, epsilon=epsilon, param_dtype=param_dtype)


Norm = BatchNorm | GroupNorm
NORMS: dict[str, Callable[..., Norm]] = {"batch": BatchNorm, "instance": _instance, "group": _group}
"""Called with (features, decay=, epsilon=, param_dtype=)."""
