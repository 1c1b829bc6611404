"""Every schedule gives the reference's values and refuses contradictory settings."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.schemas.errors import UsageError
from halofeed.trainer.config import SCHEDULE_NAMES, TrainConfig
from halofeed.trainer.schedules import (
    SCHEDULES,
    build_schedule,
    constant_with_warmup,
    cosine_with_warmup,
    manual_step,
)


def cosine_by_hand(step: int, base: float, total: int, low: float, warm: int, hold: int) -> float:
    """The formula of the TF Object Detection API, branch by branch."""
    if step < warm:
        return low + step * (base - low) / warm
    if step >= total:
        return 0.0
    if step <= warm + hold:
        return base
    return 0.5 * base * (1 + math.cos(math.pi * (step - warm - hold) / (total - warm - hold)))


def manual_by_hand(step: int, boundaries: list[int], rates: list[float], warmup: bool) -> float:
    if warmup and step < boundaries[0]:
        return rates[0] + (rates[1] - rates[0]) * step / boundaries[0]
    return rates[sum(step >= boundary for boundary in boundaries)]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_cosine_equals_the_formula_at_every_step(data):
    total = data.draw(st.integers(1, 40))
    warm, hold = data.draw(st.integers(0, total)), data.draw(st.integers(0, 45))
    base = data.draw(st.floats(0.01, 10))
    low = base * data.draw(st.floats(0, 1))
    warmup = {"warmup_rate": low, "warmup_steps": warm}
    schedule = cosine_with_warmup(base=base, total_steps=total, hold_steps=hold, **warmup)
    expected = [cosine_by_hand(step, base, total, low, warm, hold) for step in range(50)]
    np.testing.assert_allclose(schedule(jnp.arange(50)), expected, rtol=2e-6, atol=1e-6 * base)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_manual_step_equals_the_formula_at_every_step(data):
    boundaries = sorted(data.draw(st.sets(st.integers(1, 30), max_size=5)))
    rate = st.one_of(st.just(0.0), st.floats(1e-3, 1))
    rates = data.draw(st.lists(rate, min_size=len(boundaries) + 1, max_size=len(boundaries) + 1))
    warmup = bool(boundaries) and data.draw(st.booleans())
    schedule = manual_step(boundaries=boundaries, rates=rates, warmup=warmup)
    expected = [manual_by_hand(step, boundaries, rates, warmup) for step in range(35)]
    np.testing.assert_allclose(schedule(jnp.arange(35)), expected, rtol=1e-5, atol=1e-7)
    if not warmup:
        np.testing.assert_array_equal(schedule(jnp.arange(35)), np.float32(expected))


@pytest.mark.parametrize(
    ("boundaries", "rates", "warmup", "message"),
    [
        ([-1, 5], [1, 1, 1], False, "boundaries: expected whole numbers above 0"),
        ([0, 5], [1, 1, 1], False, "boundaries: expected whole numbers above 0"),
        ([2.5, 5], [1, 1, 1], False, "boundaries: expected whole numbers above 0"),
        ([5, 5], [1, 1, 1], False, "each above the one before"),
        ([5, 2], [1, 1, 1], False, "each above the one before"),
        ([5], [1, 1, 1], False, "rates: expected 2, one more than boundaries, got 3"),
        ([], [1], True, "expected one at least, where the warm-up ends"),
    ],
)
def test_manual_step_refuses_wrong_boundaries_and_rates(boundaries, rates, warmup, message):
    with pytest.raises(UsageError, match=message):
        manual_step(boundaries=boundaries, rates=rates, warmup=warmup)


def test_a_warm_up_above_the_rate_or_beyond_the_run_is_refused():
    with pytest.raises(UsageError, match=r"warm-up learning rate: expected at most .* rate 0.1, got 0.2"):
        cosine_with_warmup(base=0.1, total_steps=10, warmup_rate=0.2, warmup_steps=5)
    with pytest.raises(UsageError, match="warm-up learning rate"):
        constant_with_warmup(base=0.1, warmup_rate=0.2, warmup_steps=5)
    with pytest.raises(UsageError, match="warm-up steps: expected at most the 10 updates of the run, got 11"):
        cosine_with_warmup(base=0.1, total_steps=10, warmup_rate=0.0, warmup_steps=11)


def test_the_table_holds_every_name_that_a_config_may_say():
    assert tuple(SCHEDULES) == SCHEDULE_NAMES


def test_a_config_counts_updates_and_scales_every_rate_with_the_batch():
    batches = {"steps": 100, "accumulate_steps": 4, "batch_size": 8, "base_batch_size": 64}
    rates = {"learning_rate": 0.4, "warmup_learning_rate": 0.1, "warmup_steps": 5, "hold_steps": 5}
    config = TrainConfig(**batches, **rates)
    schedule = build_schedule(config)
    assert [float(schedule(update)) for update in (0, 5, 10, 25)] == pytest.approx([0.05, 0.2, 0.2, 0.0])
    manual = {"schedule": "manual_step", "boundaries": (5, 9), "rates": (0.1, 0.4, 0.2)}
    schedule = build_schedule(config.changed(**manual, hold_steps=0, warmup_learning_rate=0.0))
    assert [float(schedule(update)) for update in (0, 5, 8, 9)] == pytest.approx([0.05, 0.2, 0.2, 0.1])
    schedule = build_schedule(config.changed(schedule="constant", hold_steps=0))
    assert [float(schedule(update)) for update in (0, 5, 10, 25)] == pytest.approx([0.05, 0.2, 0.2, 0.2])


MANUAL = {"schedule": "manual_step", "boundaries": (5,), "rates": (0.1, 0.2)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"boundaries": (5,)}, "boundaries: belongs to the schedule manual_step, not cosine"),
        ({"rates": (5.0,)}, "rates: belongs to the schedule manual_step"),
        ({"schedule": "constant", "hold_steps": 3}, "hold steps: belongs to the schedule cosine"),
        ({"schedule": "manual_step"}, "rates: expected those of the manual_step schedule, got none"),
        ({**MANUAL, "warmup_steps": 4}, r"warm-up steps: expected 0 or the first of the boundaries \[5\]"),
        (
            {**MANUAL, "boundaries": (), "rates": (0.1,), "warmup_steps": 4},
            r"the first of the boundaries \[\]",
        ),
        ({**MANUAL, "warmup_learning_rate": 0.05}, "manual_step begins at the first of its rates"),
        ({"steps": 3, "accumulate_steps": 4}, "accumulate steps: expected at most the 3 steps"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        build_schedule(TrainConfig().changed(**changes))


def test_a_rate_is_a_scalar_of_the_default_precision_inside_and_outside_jit():
    for options in ({}, {"schedule": "constant"}, {"schedule": "manual_step", "rates": (0.1,)}):
        schedule = build_schedule(TrainConfig(**options))
        assert schedule(3).dtype == jax.jit(schedule)(jnp.int32(3)).dtype == jnp.float32
        assert schedule(3).shape == ()
