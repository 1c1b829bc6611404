"""Batch, group and instance norm, with statistics over the complete image (and batch) even if it is split.

Batch norm may instead compute separate statistics for parts of the batch, as frameworks do that have a norm per core.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from halofeed.system.errors import UsageError

Parts = Sequence[int]
"""Number of equal parts of each axis but the channels, batch first."""
Moments = tuple[jax.Array, jax.Array]


class Norm(nnx.Module):
    """Base class: (x - mean) / sqrt(variance + epsilon) * scale + bias, in the precision of scale and bias."""

    def __init__(self, features: int, epsilon: float, param_dtype: DTypeLike) -> None:
        self.scale = nnx.Param(jnp.ones(features, param_dtype))
        self.bias = nnx.Param(jnp.zeros(features, param_dtype))
        self.epsilon = epsilon

    def __call__(
        self,
        x: jax.Array,
        *,
        valid: jax.Array | None = None,
        training: bool = True,
        parts: Parts | None = None,
    ) -> jax.Array:
        """Normalize x [batch, ..., channel].

        Args:
            x: activations.
            valid: bool [batch], False for rows that do not enter the moments of a batch; None is all True.
            training: use the moments of x; False uses the running ones.
            parts: number of parts of each axis but the channels; batch norm has separate moments in each. None has
                one part.
        """
        wide = x.astype(self.scale[...].dtype)
        return self._normalize(wide, *self._moments(wide, valid, training, parts)).astype(x.dtype)

    def bind_moments(
        self,
        x: jax.Array,
        *,
        valid: jax.Array | None = None,
        training: bool = True,
        parts: Parts | None = None,
    ) -> Callable[[jax.Array], jax.Array]:
        """Return a function that normalizes x by its moments, so that a backward pass does not compute them again."""
        moments = self._moments(x.astype(self.scale[...].dtype), valid, training, parts)
        return lambda x: self._normalize(x.astype(self.scale[...].dtype), *moments).astype(x.dtype)

    def normalize_images(self, x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        """Normalize x [batch, ..., channel] by the moments [batch, channel] that `combine` returned."""
        space = (1,) * (x.ndim - 2)
        mean, variance = (moment.reshape(len(x), *space, -1) for moment in (mean, variance))
        return self._normalize(x.astype(self.scale[...].dtype), mean, variance).astype(x.dtype)

    def image_moments(self, x: jax.Array) -> Moments:
        """Return mean and variance of each channel of each image, [batch, channel]."""
        wide, space = x.astype(self.scale[...].dtype), tuple(range(1, x.ndim - 1))
        return jnp.mean(wide, space), jnp.var(wide, space)

    @abc.abstractmethod
    def combine(
        self,
        mean: jax.Array,
        variance: jax.Array,
        *,
        valid: jax.Array | None,
        training: bool,
        parts: Parts | None,
    ) -> Moments:
        """Return the moments that normalize each image, [batch, channel], from `image_moments` of the whole batch.

        They equal those of `__call__`, which has all images at once; so does the update of the running statistics.

        Raises:
            UsageError: a batch norm has `parts` of an image.
        """

    def _normalize(self, wide: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        scale = self.scale[...] * jax.lax.rsqrt(variance + self.epsilon)
        # Moments of parts have two axes for each axis of the image, see `_by_part`.
        if mean.ndim <= wide.ndim:
            return (wide - mean) * scale + self.bias[...]
        by_part = _by_part(wide, mean.shape[:-1:2])
        return ((by_part - mean) * scale + self.bias[...]).reshape(wide.shape)

    @abc.abstractmethod
    def _moments(
        self, wide: jax.Array, valid: jax.Array | None, training: bool, parts: Parts | None
    ) -> Moments:
        """Return mean and variance, in a shape that broadcasts with x, or with `_by_part` of x."""


class BatchNorm(Norm):
    """Batch norm: moments of each channel over the batch.

    Unlike Flax's batch norm, the running statistics have the parameters' precision (float64 in the parity test) and
    exclude rows of padding. With `parts` they move by the means of the parts' moments, as TensorFlow aggregates those
    of its replicas.

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
        self, wide: jax.Array, valid: jax.Array | None, training: bool, parts: Parts | None
    ) -> Moments:
        if not training:
            return self.mean[...], self.variance[...]
        if parts is None:
            moments = average = _over_batch(wide, valid)
        else:
            moments, average = _over_parts(wide, valid, parts)
        self._update(average)
        return moments

    def combine(
        self,
        mean: jax.Array,
        variance: jax.Array,
        *,
        valid: jax.Array | None,
        training: bool,
        parts: Parts | None,
    ) -> Moments:
        """Return the moments of the batch, or of a part of its rows, for each image; only `valid` rows enter."""
        shape = mean.shape
        if not training:
            return jnp.broadcast_to(self.mean[...], shape), jnp.broadcast_to(self.variance[...], shape)
        groups, *space = (1,) if parts is None else parts
        # Chunks hold moments of complete images, and not those of their parts.
        if max(space, default=1) > 1:
            raise UsageError(
                "norm_scope core: needs all images at once; take --set norm_scope=replica, or "
                "--set model.images_at_once=0"
            )
        mean, variance = (moment.reshape(groups, -1, shape[-1]) for moment in (mean, variance))
        rows = (jnp.ones(shape[0], bool) if valid is None else valid).reshape(groups, -1, 1)
        counted = jnp.sum(rows, 1, keepdims=True)
        share = (rows / jnp.maximum(counted, 1)).astype(mean.dtype)
        center = jnp.sum(share * mean, 1, keepdims=True)
        spread = jnp.sum(share * (variance + jnp.square(mean - center)), 1, keepdims=True)
        # A part of padding alone has no moments that could enter the running statistics.
        with_rows = (counted > 0).astype(mean.dtype)
        total = jnp.maximum(jnp.sum(with_rows), 1)
        self._update(
            (jnp.sum(center * with_rows, (0, 1)) / total, jnp.sum(spread * with_rows, (0, 1)) / total)
        )
        center, spread = (jnp.broadcast_to(moment, mean.shape).reshape(shape) for moment in (center, spread))
        return center, spread

    def _update(self, moments: Moments) -> None:
        for running, now in zip((self.mean, self.variance), moments, strict=True):
            running[...] = self.decay * running[...] + (1 - self.decay) * jax.lax.stop_gradient(now)


def _over_batch(x: jax.Array, valid: jax.Array | None) -> Moments:
    axes = tuple(range(x.ndim - 1))
    if valid is None:
        return jnp.mean(x, axes), jnp.var(x, axes)
    # Rows of padding must not change the moments; Flax's norm cannot leave rows out (docs/decisions.md).
    rows = valid.reshape(-1, *[1] * (x.ndim - 1))
    pixels = x[0, ..., 0].size
    count = jnp.maximum(jnp.sum(valid), 1).astype(x.dtype) * pixels
    mean = jnp.sum(jnp.where(rows, x, 0), axes) / count
    variance = jnp.sum(jnp.where(rows, jnp.square(x - mean), 0), axes) / count
    return mean, variance


def _by_part(x: jax.Array, parts: Parts) -> jax.Array:
    """Reshape [batch, ..., channel] to [parts, batch / parts, ..., channel], two axes for each but the channels."""
    sides = ((count, size // count) for count, size in zip(parts, x.shape, strict=False))
    return x.reshape(*itertools.chain(*sides), x.shape[-1])


def _over_parts(x: jax.Array, valid: jax.Array | None, parts: Parts) -> tuple[Moments, Moments]:
    """Return the moments of each part, with the axes of `_by_part`, and their means over the parts with valid rows."""
    by_part = _by_part(x, parts)
    axes = tuple(range(1, by_part.ndim - 1, 2))
    rows = jnp.ones(len(x), bool) if valid is None else valid
    rows = rows.reshape(*by_part.shape[:2], *[1] * (by_part.ndim - 2))
    counted = jnp.sum(rows, axes, keepdims=True)
    pixels = math.prod(by_part.shape[axis] for axis in axes[1:])
    count = jnp.maximum(counted, 1).astype(x.dtype) * pixels
    mean = jnp.sum(jnp.where(rows, by_part, 0), axes, keepdims=True) / count
    squares = jnp.where(rows, jnp.square(by_part - mean), 0)
    variance = jnp.sum(squares, axes, keepdims=True) / count
    share = jnp.broadcast_to(counted > 0, mean.shape).astype(x.dtype)
    others = tuple(range(mean.ndim - 1))
    total = jnp.maximum(jnp.sum(share, others), 1)
    average = jnp.sum(mean * share, others) / total, jnp.sum(variance * share, others) / total
    return (mean, variance), average


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
        self, wide: jax.Array, valid: jax.Array | None, training: bool, parts: Parts | None
    ) -> Moments:
        mean = self._over_space(wide)
        return mean, self._over_space(jnp.square(wide - mean))

    def combine(
        self,
        mean: jax.Array,
        variance: jax.Array,
        *,
        valid: jax.Array | None,
        training: bool,
        parts: Parts | None,
    ) -> Moments:
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
