"""How are initial kernels drawn? By NumPy: XLA takes seconds of a CPU to compile the draws of every shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

Initializer = Callable[[jax.Array, Sequence[int], DTypeLike], jax.Array]


def normal(deviation: float) -> Initializer:
    """Kernels of a normal distribution about 0.

    Args:
        deviation: its standard deviation.

    Returns:
        an initializer, as Flax takes it: (key, shape, dtype) to an array that only these decide.
    """
    return partial(_draw, deviation)


def he_normal(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Kernels whose outputs keep the variance of relu's inputs: a deviation of sqrt(2 / inputs of one output).

    Source: He et al., Delving Deep into Rectifiers (arXiv 1502.01852).
    """
    return _draw(math.sqrt(2 / math.prod(shape[:-1])), key, shape, dtype)


def lecun_normal(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Kernels that keep the variance of a linear layer's inputs: a deviation of sqrt(1 / inputs of one output)."""
    return _draw(math.sqrt(1 / math.prod(shape[:-1])), key, shape, dtype)


def _draw(
    deviation: float, key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32
) -> jax.Array:
    if isinstance(key, jax.core.Tracer):
        # Only shapes are asked for, or somebody draws inside a program of their own.
        return jax.random.normal(key, shape, dtype) * jnp.asarray(deviation, dtype)
    words: Any = np.asarray(jax.random.key_data(key))
    values = np.random.default_rng(words).standard_normal(tuple(shape), np.float64)
    return jnp.asarray(values * deviation, dtype)
