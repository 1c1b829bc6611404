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

    def normalize_images(self, x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        """Normalize x [batch, ..., channel] by the moments [batch, channel] that `combine` returned."""
        space = (1,) * (x.ndim - 2)
        mean, variance = (moment.reshape(len(x), *space, -1) for moment in (mean, variance))
        return self._normalize(x.astype(self.scale[...].dtype), mean, variance).astype(x.dtype)

    def image_moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance of each channel of each image, [batch, channel]."""
        wide, space = x.astype(self.scale[...].dtype), tuple(range(1, x.ndim - 1))
        return jnp.mean(wide, space), jnp.var(wide, space)

    @abc.abstractmethod
    def combine(
        self, mean: jax.Array, variance: jax.Array, *, valid: jax.Array | None, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Return the moments that normalize each image, [batch, channel], from `image_moments` of the whole batch.

        They equal those of `__call__`, which has all images at once; so does the update of the running statistics.
        """

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
        self._update(mean, variance)
        return mean, variance

    def combine(
        self, mean: jax.Array, variance: jax.Array, *, valid: jax.Array | None, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Return the moments of the batch for each image; rows without `valid` do not enter."""
        shape = mean.shape
        if not training:
            return jnp.broadcast_to(self.mean[...], shape), jnp.broadcast_to(self.variance[...], shape)
        rows = jnp.ones(len(mean), bool) if valid is None else valid
        share = (rows / jnp.maximum(jnp.sum(rows), 1)).astype(mean.dtype)[:, None]
        center = jnp.sum(share * mean, 0)
        spread = jnp.sum(share * (variance + jnp.square(mean - center)), 0)
        self._update(center, spread)
        return jnp.broadcast_to(center, shape), jnp.broadcast_to(spread, shape)

    def _update(self, mean: jax.Array, variance: jax.Array) -> None:
        for running, now in ((self.mean, mean), (self.variance, variance)):
            running[...] = self.decay * running[...] + (1 - self.decay) * jax.lax.stop_gradient(now)


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
        mean = self._over_space(wide)
        return mean, self._over_space(jnp.square(wide - mean))

    def combine(
        self, mean: jax.Array, variance: jax.Array, *, valid: jax.Array | None, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Return the moments of each image's groups, repeated for every channel."""
        center = self._over_groups(mean)
        return center, self._over_groups(variance + jnp.square(mean - center))

    def _over_space(self, x: jax.Array) -> jax.Array:
        """Return the mean of each example's groups over space: [batch, 1, ..., 1, channel]."""
        means = self._over_groups(jnp.mean(x, tuple(range(1, x.ndim - 1))))
        return means.reshape(len(x), *[1] * (x.ndim - 2), x.shape[-1])

    def _over_groups(self, channels: jax.Array) -> jax.Array:
        """Return the mean of each example's groups of channels, repeated for every channel: [batch, channel]."""
        grouped = channels.reshape(len(channels), self.groups, -1)
        return jnp.broadcast_to(jnp.mean(grouped, -1, keepdims=True), grouped.shape).reshape(channels.shape)


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
