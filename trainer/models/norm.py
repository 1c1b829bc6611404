"""Batch, group and instance norm, with statistics over the complete image (and batch) even if it is split."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


class Norm(nnx.Module):
    """Base class: (x - mean) / sqrt(variance + epsilon) * scale + bias, in the precision of scale and bias."""

    def __init__(self, features: int, epsilon: float, param_dtype: DTypeLike) -> None:
        self.scale = nnx.Param(jnp.ones(features, param_dtype))
        self.bias = nnx.Param(jnp.zeros(features, param_dtype))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array, *, valid: jax.Array | None = None, training: bool = True) -> jax.Array:
        """Normalize x [batch, ..., channel]; moments of a batch only use rows with `valid`, bool [batch]."""
        wide = x.astype(self.scale[...].dtype)
        return self._normalize(wide, *self._moments(wide, valid, training)).astype(x.dtype)

    def bind_moments(
        self, x: jax.Array, *, valid: jax.Array | None = None, training: bool = True
    ) -> Callable[[jax.Array], jax.Array]:
        """Return a function that normalizes x by its moments, so that a backward pass does not compute them again."""
        moments = self._moments(x.astype(self.scale[...].dtype), valid, training)
        return lambda x: self._normalize(x.astype(self.scale[...].dtype), *moments).astype(x.dtype)

    def _normalize(self, wide: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        scale = self.scale[...] * jax.lax.rsqrt(variance + self.epsilon)
        return (wide - mean) * scale + self.bias[...]

    @abc.abstractmethod
    def _moments(
        self, wide: jax.Array, valid: jax.Array | None, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance, in a shape that broadcasts with x."""


class BatchNorm(Norm):
    """Batch norm: moments of each channel over the batch.

    Unlike Flax's batch norm, the running statistics have the parameters' precision (float64 in the parity test) and
    exclude rows of padding.

    Args:
        features: number of channels.
        decay: decay of the running statistics.
        epsilon: value added to the variance.
        param_dtype: dtype of scale, bias, running statistics and arithmetic.
    """

    def __init__(
        self,
        features: int,
        *,
        decay: float = 0.9,
        epsilon: float = 1e-3,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        super().__init__(features, epsilon, param_dtype)
        self.mean = nnx.BatchStat(jnp.zeros(features, param_dtype))
        self.variance = nnx.BatchStat(jnp.ones(features, param_dtype))
        self.decay = decay

    def _moments(
        self, wide: jax.Array, valid: jax.Array | None, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        if not training:
            return self.mean[...], self.variance[...]
        mean, variance = _over_batch(wide, valid)
        for running, now in ((self.mean, mean), (self.variance, variance)):
            running[...] = self.decay * running[...] + (1 - self.decay) * jax.lax.stop_gradient(now)
        return mean, variance


def _over_batch(x: jax.Array, valid: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    axes = tuple(range(x.ndim - 1))
    if valid is None:
        return jnp.mean(x, axes), jnp.var(x, axes)
    rows = valid.reshape(-1, *[1] * (x.ndim - 1))
    pixels = x[0, ..., 0].size
    count = jnp.maximum(jnp.sum(valid), 1).astype(x.dtype) * pixels
    mean = jnp.sum(jnp.where(rows, x, 0), axes) / count
    variance = jnp.sum(jnp.where(rows, jnp.square(x - mean), 0), axes) / count
    return mean, variance


class GroupNorm(Norm):
    """Group norm: moments of each example and group of channels, the same in training and evaluation.

    One group per channel is instance norm. Source: Wu and He, "Group Normalization", 2018 (arXiv 1803.08494).

    Args:
        features: number of channels.
        groups: number of groups, a divisor of `features`; None is one per channel.
        epsilon: value added to the variance.
        param_dtype: dtype of scale, bias and arithmetic.
    """

    def __init__(
        self,
        features: int,
        *,
        groups: int | None = None,
        epsilon: float = 1e-5,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        super().__init__(features, epsilon, param_dtype)
        self.groups = features if groups is None else groups

    def _moments(
        self, wide: jax.Array, valid: jax.Array | None, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        mean = self._over_groups(wide)
        return mean, self._over_groups(jnp.square(wide - mean))

    def _over_groups(self, x: jax.Array) -> jax.Array:
        """Return the mean of each example's groups, repeated for every channel: [batch, 1, ..., 1, channel]."""
        channels = jnp.mean(x, tuple(range(1, x.ndim - 1)))
        grouped = channels.reshape(len(channels), self.groups, -1)
        means = jnp.broadcast_to(jnp.mean(grouped, -1, keepdims=True), grouped.shape)
        return means.reshape(len(channels), *[1] * (x.ndim - 2), x.shape[-1])


MAX_GROUPS = 8
"""Number of groups of "group" norm; fewer if it does not divide the channels."""

NORMS: dict[str, Callable[..., Norm]] = {
    "batch": BatchNorm,
    "instance": lambda features, *, decay, **options: GroupNorm(features, **options),
    "group": lambda features, *, decay, **options: GroupNorm(
        features, groups=math.gcd(features, MAX_GROUPS), **options
    ),
}
"""Norms by name, called with (features, decay=, epsilon=, param_dtype=)."""
