"""What does a box code that is off by `difference` cost? Square close by, straight farther off."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def huber(difference: jax.Array, delta: float = 1.0) -> jax.Array:
    """difference ** 2 / 2 up to delta, beyond it delta * (|difference| - delta / 2).

    Args:
        difference: predicted minus true, of any shape.
        delta: above 0, where the square ends.

    Returns:
        The loss of each, in their shape and dtype.

    Source: Huber, Robust Estimation of a Location Parameter (1964). The TensorFlow Object Detection API calls it
    smooth L1 at any delta.

    >>> huber(jnp.array([0.5, -2.0]), 0.5).tolist()
    [0.125, 0.875]
    """
    size = jnp.abs(difference)
    near = jnp.minimum(size, delta)
    return near * (size - near / 2)


def smooth_l1(difference: jax.Array, delta: float = 1.0) -> jax.Array:
    """`huber`, which has the same arguments, over delta: its straight part has slope 1 at any delta.

    Source: Girshick, Fast R-CNN (arXiv 1504.08083), equation 3, at delta 1; PyTorch calls delta beta.

    >>> smooth_l1(jnp.array([0.5, -2.0]), 0.5).tolist()
    [0.25, 1.75]
    """
    return huber(difference, delta) / delta


BOX_LOSSES: dict[str, Callable[[jax.Array, float], jax.Array]] = {"smooth_l1": smooth_l1, "huber": huber}
