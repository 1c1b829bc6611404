"""How do gradients become updates? A new optimizer is one line in `OPTIMIZERS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from halofeed.trainer.config import TrainConfig
from halofeed.trainer.schedules import Schedule, build_schedule


def decayed(parameters: Any) -> Any:
    """Which leaves weight decay shrinks: kernels, of two axes or more; it spares the norms' and the biases."""
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, parameters)


def _with_l2(config: TrainConfig, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """L2 regularization: weight_decay x kernel is added to the gradient before the optimizer sees it."""
    if not config.weight_decay:
        return optimizer
    return optax.chain(optax.add_decayed_weights(config.weight_decay, decayed), optimizer)


OPTIMIZERS: dict[str, Callable[[TrainConfig, Schedule], optax.GradientTransformation]] = {
    "sgd": lambda config, rate: _with_l2(config, optax.sgd(rate, momentum=config.momentum or None)),
    "adam": lambda config, rate: _with_l2(config, optax.adam(rate, b1=config.momentum)),
    "adamw": lambda config, rate: optax.adamw(
        rate, b1=config.momentum, weight_decay=config.weight_decay, mask=decayed
    ),
    "lamb": lambda config, rate: optax.lamb(
        rate, b1=config.momentum, weight_decay=config.weight_decay, mask=decayed
    ),
    "lars": lambda config, rate: optax.lars(
        rate,
        weight_decay=config.weight_decay,
        weight_decay_mask=decayed,
        trust_ratio_mask=decayed,
        momentum=config.momentum,
    ),
}
"""By name, from a config and its schedule.

`momentum` is the decay of the first moment in all of them. Weight decay is L2 in sgd and adam; adamw and lamb
apply it apart from the moments, lars within its trust ratio. Norms and biases are spared the decay, and lars's
trust ratio.
"""


def build_optimizer(config: TrainConfig) -> tuple[optax.GradientTransformation, Schedule]:
    """The config's optimizer and the schedule that it follows, which counts updates.

    Gradients are averaged over `accumulate_steps` steps, clipped to the global norm `clip_norm`, and given to
    `OPTIMIZERS[config.optimizer]`; the steps between updates change no parameter.

    Raises:
        UsageError: what `build_schedule` refuses.
    """
    schedule = build_schedule(config)
    optimizer = OPTIMIZERS[config.optimizer](config, schedule)
    if config.clip_norm:
        optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
    if config.accumulate_steps > 1:
        # Optax would sum in float32 whatever the gradients are.
        sums = jnp.result_type(float)
        steps = optax.MultiSteps(optimizer, config.accumulate_steps, accumulator_dtype=sums)
        optimizer = steps.gradient_transformation()
    return optimizer, schedule
