"""How do gradients become updates, and at which rate? A new optimizer is one line in `OPTIMIZERS`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

Schedule = Callable[[jax.Array | int], jax.Array]

OPTIMIZERS: dict[str, Callable[[Schedule], optax.GradientTransformation]] = {
    "sgd": lambda rate: optax.sgd(rate, momentum=0.9),
    "adamw": lambda rate: optax.adamw(rate),
}


def warmup_cosine(peak: float, steps: int) -> Schedule:
    """A rate that rises linearly over a twentieth of the steps and falls as a cosine to 0.

    >>> [round(float(warmup_cosine(1.0, 40)(step)), 3) for step in (0, 1, 2, 21, 40)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    warmup = steps // 20

    def rate(step: jax.Array | int) -> jax.Array:
        rising = peak * (jnp.asarray(step) + 1) / max(1, warmup)
        done = jnp.clip((jnp.asarray(step) - warmup) / max(1, steps - warmup), 0, 1)
        return jnp.minimum(rising, 0.5 * peak * (1 + jnp.cos(jnp.pi * done)))

    return rate
