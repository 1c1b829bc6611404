"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from halofeed.system.errors import UsageError
from halofeed.system.wording import plural
from halofeed.trainer.config import SETTINGS_OF_SCHEDULES, TrainConfig

POLYNOMIAL_POWER = 0.9
Schedule = Callable[[jax.Array | int], jax.Array]
"""Function from the number of updates to the learning rate of the next one, a scalar."""


def cosine_with_warmup(
    *, base: float, total_steps: int, warmup_rate: float, warmup_steps: int, hold_steps: int = 0
) -> Schedule:
    """Return a schedule that rises linearly, stays constant, and falls to 0 as half a cosine.

        base        _______
                   /       \\__
        warmup    /           \\__
                                 0
                0  warmup  hold   total

    Args:
        base: highest rate.
        total_steps: step from which the rate is 0.
        warmup_rate: rate at step 0.
        warmup_steps: step at which the rate reaches `base`.
        hold_steps: number of steps at `base` after the warm-up.

    Raises:
        UsageError: `base` is below `warmup_rate`, or `total_steps` below `warmup_steps`.

    Source: `cosine_decay_with_warmup` of the TF Object Detection API. The parts are Optax's, joined here because
    `optax.warmup_cosine_decay_schedule` has no constant part.

    >>> rate = cosine_with_warmup(base=0.04, total_steps=25000, warmup_rate=0.013333, warmup_steps=2000)
    >>> [round(float(rate(step)), 7) for step in (0, 1000, 2000, 13500, 25000)]
    [0.013333, 0.0266665, 0.04, 0.02, 0.0]
    """
    _check_warmup(warmup_steps, total_steps)
    held_until = min(warmup_steps + hold_steps, total_steps)
    falling = total_steps - held_until
    # Optax refuses a decay over 0 steps.
    parts = [optax.cosine_decay_schedule(base, falling) if falling else optax.constant_schedule(0.0)]
    if held_until == warmup_steps:
        return _warmed_up(base, warmup_rate, warmup_steps, parts, [])
    return _warmed_up(base, warmup_rate, warmup_steps, [optax.constant_schedule(base), *parts], [held_until])


def polynomial_with_warmup(
    *, base: float, total_steps: int, power: float = POLYNOMIAL_POWER, warmup_rate: float, warmup_steps: int
) -> Schedule:
    """Return a schedule that rises linearly to `base` and then falls as base * (1 - step / total) ** power.

    Steps count from the end of the warm-up, and so does the total. From `total_steps` on the rate is 0.

    Raises:
        UsageError: `base` is below `warmup_rate`, or `total_steps` below `warmup_steps`.

    Source: Chen et al., "DeepLab", 2016 (arXiv 1606.00915), section 4.1, the "poly" rate, with power 0.9; nnU-Net's
    PolyLRScheduler, which counts epochs of 250 steps where this one counts steps.

    >>> rate = polynomial_with_warmup(base=0.01, total_steps=1000, warmup_rate=0, warmup_steps=0)
    >>> [round(float(rate(step)), 6) for step in (0, 500, 999, 1000, 2000)]
    [0.01, 0.005359, 2e-05, 0.0, 0.0]
    """
    _check_warmup(warmup_steps, total_steps)
    falling = total_steps - warmup_steps
    # Optax treats a polynomial over 0 steps as a constant.
    part = optax.polynomial_schedule(base, 0.0, power, falling) if falling else optax.constant_schedule(0.0)
    return _warmed_up(base, warmup_rate, warmup_steps, [part], [])


def manual_step(*, boundaries: Sequence[int], rates: Sequence[float], warmup: bool = False) -> Schedule:
    """Return a schedule that is constant between boundaries: `rates[i]` from step `boundaries[i - 1]` on.

    Args:
        boundaries: increasing steps, each above 0.
        rates: learning rates, one more than boundaries.
        warmup: rise linearly from `rates[0]` to `rates[1]` at the first boundary.

    Raises:
        UsageError: boundaries or rates break these rules, or there is a warm-up without a boundary.

    Source: `manual_stepping` of the TF Object Detection API. `optax.piecewise_constant_schedule` is not used because
    it multiplies by factors, which rounds and cannot leave a rate of 0.

    >>> rate = manual_step(boundaries=[2, 5], rates=[1.0, 0.5, 0.25])
    >>> [float(rate(step)) for step in (0, 1, 2, 4, 5, 100)]
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """
    if not all(isinstance(step, int) and not isinstance(step, bool) and step > 0 for step in boundaries):
        raise UsageError(f"boundaries: expected whole numbers above 0, got {list(boundaries)}")
    if any(after <= before for before, after in pairwise(boundaries)):
        raise UsageError(f"boundaries: expected each above the one before, got {list(boundaries)}")
    if len(rates) != len(boundaries) + 1:
        raise UsageError(
            f"rates: expected {len(boundaries) + 1}, one more than boundaries, got {len(rates)}: {list(rates)}"
        )
    parts = [optax.constant_schedule(rate) for rate in rates]
    if warmup:
        if not boundaries:
            raise UsageError("boundaries: expected one at least, where the warm-up ends, got none")
        parts[0] = optax.linear_schedule(rates[0], rates[1], boundaries[0])
    return _joined(parts, boundaries)


def constant_with_warmup(*, base: float, warmup_rate: float, warmup_steps: int) -> Schedule:
    """Return a schedule that rises linearly from `warmup_rate` to `base` at `warmup_steps` and stays there.

    Raises:
        UsageError: `base` is below `warmup_rate`.

    >>> rate = constant_with_warmup(base=1.0, warmup_rate=0.5, warmup_steps=2)
    >>> [float(rate(step)) for step in (0, 1, 2, 9)]
    [0.5, 0.75, 1.0, 1.0]
    """
    return _warmed_up(base, warmup_rate, warmup_steps, [optax.constant_schedule(base)], [])


def exponential(
    *, base: float, decay_steps: int, decay_rate: float, warmup_rate: float, warmup_steps: int
) -> Schedule:
    """Return a schedule that rises linearly to `base` and then falls as base * decay_rate ** (step / decay_steps).

    Steps count from the end of the warm-up.

    Raises:
        UsageError: `base` is below `warmup_rate`, `decay_steps` is 0, or `decay_rate` is not between 0 and 1.

    Source: `tf.train.exponential_decay`; the values are those of tensorflow/tpu's unet3d.

    >>> rate = exponential(base=1e-4, decay_steps=100000, decay_rate=0.5, warmup_rate=0, warmup_steps=0)
    >>> [round(float(rate(step)), 7) for step in (0, 50000, 100000)]
    [0.0001, 7.07e-05, 5e-05]
    """
    if decay_steps < 1:
        raise UsageError(f"decay steps: expected 1 or more, got {decay_steps}; pass --set decay_steps=100000")
    if not 0 < decay_rate < 1:
        raise UsageError(
            f"decay rate: expected more than 0 and less than 1, got {decay_rate}; pass --set decay_rate=0.5"
        )
    parts = [optax.exponential_decay(base, decay_steps, decay_rate)]
    return _warmed_up(base, warmup_rate, warmup_steps, parts, [])


def linear_scaling(config: TrainConfig) -> float:
    """Return the images per update divided by the config's `base_batch_size`; 1 if the config has none.

    Source: Goyal et al., Accurate, Large Minibatch SGD (2017), the linear scaling rule.

    >>> linear_scaling(TrainConfig(batch_size=8, accumulate_steps=4, base_batch_size=64))
    0.5
    """
    if not config.base_batch_size:
        return 1.0
    return config.batch_size * config.accumulate_steps / config.base_batch_size


def _warm_up(config: TrainConfig) -> dict[str, Any]:
    scale = linear_scaling(config)
    rates = {"base": config.learning_rate * scale, "warmup_rate": config.warmup_learning_rate * scale}
    return {**rates, "warmup_steps": config.warmup_steps}


def _manual_step(config: TrainConfig, updates: int) -> Schedule:
    if not config.rates:
        raise UsageError("rates: expected those of the manual_step schedule, got none")
    # `manual_stepping` of the API ends its warm-up at the first boundary.
    if config.warmup_steps and config.boundaries[:1] != (config.warmup_steps,):
        raise UsageError(
            f"warm-up steps: expected 0 or the first of the boundaries {list(config.boundaries)}, where the warm-up "
            f"of manual_step ends, got {config.warmup_steps}"
        )
    if config.warmup_learning_rate not in (0.0, config.rates[0]):
        raise UsageError(
            f"warm-up learning rate: manual_step begins at the first of its rates {list(config.rates)}, got "
            f"{config.warmup_learning_rate}; leave it out"
        )
    scale = linear_scaling(config)
    return manual_step(
        boundaries=config.boundaries,
        rates=[rate * scale for rate in config.rates],
        warmup=config.warmup_steps > 0,
    )


SCHEDULES: dict[str, Callable[[TrainConfig, int], Schedule]] = {
    "cosine": lambda config, updates: cosine_with_warmup(
        total_steps=updates, hold_steps=config.hold_steps, **_warm_up(config)
    ),
    "polynomial": lambda config, updates: polynomial_with_warmup(
        total_steps=updates, power=config.schedule_power or POLYNOMIAL_POWER, **_warm_up(config)
    ),
    "manual_step": _manual_step,
    "exponential": lambda config, updates: exponential(
        decay_steps=config.decay_steps, decay_rate=config.decay_rate, **_warm_up(config)
    ),
    "constant": lambda config, updates: constant_with_warmup(**_warm_up(config)),
}
"""Functions that make a schedule from a config and its number of updates."""


def build_schedule(config: TrainConfig) -> Schedule:
    """Return the config's schedule, over `TrainConfig.schedule_updates` updates.

    `warmup_steps`, `hold_steps` and `boundaries` count updates too. `base_batch_size` scales every rate
    (`linear_scaling`). The warm-up of manual_step rises from the first rate to the second, so `warmup_steps` must be
    0 or the first boundary.

    Raises:
        UsageError: settings that contradict each other or belong to another schedule.
    """
    for name, schedules in SETTINGS_OF_SCHEDULES.items():
        # A setting without effect is a mistake of the user.
        if getattr(config, name) and config.schedule not in schedules:
            raise UsageError(
                f"{name.replace('_', ' ')}: belongs to the schedule {' or '.join(schedules)}, not {config.schedule}; "
                "leave it out"
            )
    shortest = min(config.steps, config.schedule_steps or config.steps)
    if shortest < config.accumulate_steps:
        raise UsageError(
            f"accumulate steps: expected at most the {plural(shortest, 'step')} of the run, got "
            f"{config.accumulate_steps}"
        )
    return SCHEDULES[config.schedule](config, config.schedule_updates)


def _check_warmup(warmup_steps: int, total_steps: int) -> None:
    if total_steps < warmup_steps:
        raise UsageError(
            f"warm-up steps: expected at most the {total_steps} updates of the run, got {warmup_steps}; "
            f"take more steps, or shorten the warm-up: --set warmup_steps={total_steps // 5}"
        )


def _warmed_up(
    base: float, warmup_rate: float, warmup_steps: int, parts: list[Schedule], boundaries: list[int]
) -> Schedule:
    """Join parts to a warm-up before them."""
    if base < warmup_rate:
        raise UsageError(
            f"warm-up learning rate: expected at most the learning rate {base:g}, got {warmup_rate:g}"
        )
    if not warmup_steps:
        return _joined(parts, boundaries)
    rising = optax.linear_schedule(warmup_rate, base, warmup_steps)
    return _joined([rising, *parts], [warmup_steps, *boundaries])


def _joined(parts: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    joined = optax.join_schedules(parts, boundaries)

    def rate(step: jax.Array | int) -> jax.Array:
        return jnp.asarray(joined(step), jnp.result_type(float))

    return rate


def decayed(parameters: Any) -> Any:
    """Return the leaves that weight decay applies to: kernels (two axes or more), not norms and biases."""
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, parameters)


def _with_l2(config: TrainConfig, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Add L2 regularization: weight_decay * kernel is added to the gradient before the optimizer."""
    if not config.weight_decay:
        return optimizer
    return optax.chain(optax.add_decayed_weights(config.weight_decay, decayed), optimizer)


OPTIMIZERS: dict[str, Callable[[TrainConfig, Schedule], optax.GradientTransformation]] = {
    # Optax keeps a state of zeros for a momentum of 0, and none for None.
    "sgd": lambda config, rate: _with_l2(
        config, optax.sgd(rate, momentum=config.momentum or None, nesterov=config.nesterov)
    ),
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
"""Optimizers by name, made from a config and its schedule.

`momentum` is the decay of the first moment. Weight decay is L2 in sgd and adam, decoupled in adamw and lamb, and part
of the trust ratio in lars. Norms and biases have neither weight decay nor lars's trust ratio.
"""


def build_optimizer(config: TrainConfig) -> tuple[optax.GradientTransformation, Schedule]:
    """Return the config's optimizer and its schedule, which counts updates.

    Gradients are averaged over `accumulate_steps` steps, clipped to the global norm `clip_norm`, and passed to
    `OPTIMIZERS[config.optimizer]`. Parameters change only at updates.

    Raises:
        UsageError: the schedule's settings are invalid (`build_schedule`), or the optimizer has no Nesterov momentum.
    """
    schedule = build_schedule(config)
    if config.nesterov and (config.optimizer != "sgd" or not config.momentum):
        raise UsageError(
            f"nesterov: needs the optimizer sgd with a momentum above 0, got {config.optimizer} with "
            f"{config.momentum:g}; take --set optimizer=sgd --set momentum=0.99, or leave it out"
        )
    optimizer = OPTIMIZERS[config.optimizer](config, schedule)
    if config.clip_norm:
        optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
    # `MultiSteps` is the outermost, so that the norm of the average is clipped.
    if config.accumulate_steps > 1:
        # By default Optax sums in float32, whatever the dtype of the gradients.
        sums = jnp.result_type(float)
        steps = optax.MultiSteps(optimizer, config.accumulate_steps, accumulator_dtype=sums)
        optimizer = steps.gradient_transformation()
    return optimizer, schedule
