"""Every optimizer follows its paper, with clipping, decay and accumulation, and every schedule its formula."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.trainer.config import OPTIMIZER_NAMES, TrainConfig, configure, load_config
from halofeed.trainer.optimizers import (
    build_optimizer,
    build_schedule,
    constant_with_warmup,
    cosine_with_warmup,
    manual_step,
    polynomial_with_warmup,
)

Arrays = dict[str, np.ndarray[Any, Any]]
STEPS, DECAY, RATES = 3, 0.02, (0.5, 0.1, 0.05)


def tree(seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    return {"kernel": generator.normal(size=(3, 4)), "scale": generator.normal(size=5)}


def config(optimizer: str, **changes: Any) -> TrainConfig:
    """Each of the three updates has a rate of its own."""
    schedule = {"schedule": "manual_step", "boundaries": (1, 2), "rates": RATES}
    given = {"steps": STEPS, "momentum": 0.8, "weight_decay": DECAY, **schedule, **changes}
    return TrainConfig(optimizer=optimizer, **given)


def clipped(gradients: Arrays, norm: float) -> Arrays:
    total = np.sqrt(sum(float((leaf**2).sum()) for leaf in gradients.values()))
    return {name: leaf * min(1, norm / total) for name, leaf in gradients.items()}


def by_hand(optimizer: str, parameters: Arrays, gradients: list[Arrays]) -> Arrays:
    """Update after update, leaf after leaf, as the papers write it."""
    after = {}
    for name, start in parameters.items():
        weight, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
        shrinks = name == "kernel"
        for update, all_gradients in enumerate(gradients):
            gradient, rate = all_gradients[name], RATES[update]
            penalty = DECAY * weight * shrinks
            if optimizer == "sgd":
                first = 0.8 * first + gradient + penalty
                weight = weight - rate * first
                continue
            if optimizer == "lars":
                gradient = gradient + penalty
                if shrinks:
                    gradient = gradient * 0.001 * np.linalg.norm(weight) / np.linalg.norm(gradient)
                first = 0.8 * first + rate * gradient
                weight = weight - first
                continue
            if optimizer == "adam":
                gradient = gradient + penalty
            first = 0.8 * first + 0.2 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            unbiased = first / (1 - 0.8 ** (update + 1)), second / (1 - 0.999 ** (update + 1))
            step = unbiased[0] / (np.sqrt(unbiased[1]) + (1e-6 if optimizer == "lamb" else 1e-8))
            if optimizer in ("adamw", "lamb"):
                step = step + penalty
            if optimizer == "lamb":
                step = step * np.linalg.norm(weight) / np.linalg.norm(step)
            weight = weight - rate * step
        after[name] = weight
    return after


def run(chosen: TrainConfig, parameters: Arrays, gradients: list[Arrays]) -> tuple[Arrays, Any]:
    optimizer, _ = build_optimizer(chosen)
    weights: Any = jax.tree.map(jnp.asarray, parameters)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights: Any, state: Any, gradient: Any) -> Any:
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state

    for gradient in gradients:
        weights, state = step(weights, state, gradient)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    return {name: np.asarray(leaf) for name, leaf in weights.items()}, state


def assert_same(found: Arrays, expected: Arrays, rtol: float = 1e-9) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZER_NAMES)
def test_three_updates_equal_the_loop_by_hand(optimizer: str) -> None:
    gradients = [tree(seed) for seed in (1, 2, 3)]
    with jax.enable_x64(True):
        found, _ = run(config(optimizer), tree(0), gradients)
    assert found["kernel"].dtype == np.float64
    # Optax keeps the powers of Adam's decays in float32.
    rtol = 1e-9 if optimizer in ("sgd", "lars") else 1e-6
    assert_same(found, by_hand(optimizer, tree(0), gradients), rtol)


@pytest.mark.parametrize("optimizer", OPTIMIZER_NAMES)
def test_gradients_are_clipped_before_anything_else(optimizer: str) -> None:
    gradients = [tree(seed) for seed in (1, 2, 3)]
    with jax.enable_x64(True):
        found, _ = run(config(optimizer, clip_norm=1.5), tree(0), gradients)
        expected, _ = run(config(optimizer), tree(0), [clipped(gradient, 1.5) for gradient in gradients])
    assert_same(found, expected, rtol=1e-7)


@pytest.mark.parametrize("optimizer", OPTIMIZER_NAMES)
def test_accumulated_steps_equal_updates_of_the_mean_gradient(optimizer: str) -> None:
    gradients = [tree(seed) for seed in range(1, 7)]
    pairs = list(zip(gradients[::2], gradients[1::2], strict=True))
    means = [{name: (one[name] + two[name]) / 2 for name in one} for one, two in pairs]
    with jax.enable_x64(True):
        found, state = run(config(optimizer, steps=6, accumulate_steps=2, clip_norm=1.5), tree(0), gradients)
        expected, _ = run(config(optimizer, clip_norm=1.5), tree(0), means)
    assert_same(found, expected, rtol=1e-7)
    assert state.acc_grads["kernel"].dtype == np.float64


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("optimizer", OPTIMIZER_NAMES)
def test_parameters_and_state_keep_their_dtypes(optimizer: str, dtype: Any) -> None:
    chosen = config(optimizer, steps=6, accumulate_steps=2, clip_norm=1.0)
    built, _ = build_optimizer(chosen)
    parameters: Any = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree(0))
    before = jax.eval_shape(built.init, parameters)
    updates, after = jax.eval_shape(built.update, parameters, before, parameters)
    moved = jax.eval_shape(optax.apply_updates, parameters, updates)
    assert {leaf.dtype for leaf in jax.tree.leaves(moved)} == {jnp.dtype(dtype)}
    assert jax.tree.structure(before) == jax.tree.structure(after)
    kinds = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)] for state in (before, after)]
    assert kinds[0] == kinds[1]


def test_the_schedule_that_comes_back_is_the_one_that_is_followed() -> None:
    _, schedule = build_optimizer(config("sgd"))
    assert [float(schedule(update)) for update in range(3)] == pytest.approx(RATES)


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
def test_polynomial_equals_the_formula_at_every_step(data):
    total = data.draw(st.integers(1, 40))
    warm = data.draw(st.integers(0, total))
    base, power = data.draw(st.floats(0.01, 10)), data.draw(st.floats(0.5, 2))
    low = base * data.draw(st.floats(0, 1))
    schedule = polynomial_with_warmup(
        base=base, total_steps=total, power=power, warmup_rate=low, warmup_steps=warm
    )
    expected = [
        low + step * (base - low) / warm
        if step < warm
        else base * (1 - (step - warm) / (total - warm)) ** power
        if step < total
        else 0.0
        for step in range(50)
    ]
    np.testing.assert_allclose(schedule(jnp.arange(50)), expected, rtol=1e-4, atol=1e-6 * base)


def test_a_polynomial_has_the_exponent_0_9_and_the_length_of_the_run_unless_told_otherwise():
    config = TrainConfig(steps=40, accumulate_steps=2, learning_rate=0.01, schedule="polynomial")
    rates = [float(build_schedule(config)(update)) for update in (0, 10, 20)]
    assert rates == pytest.approx([0.01, 0.01 * 0.5**0.9, 0.0])
    longer = build_schedule(config.changed(schedule_steps=80, schedule_power=1.0))
    assert [float(longer(update)) for update in (0, 10, 20)] == pytest.approx([0.01, 0.0075, 0.005])


def test_nesterov_momentum_is_that_of_torch_and_needs_sgd() -> None:
    gradients = [tree(seed) for seed in (1, 2, 3)]
    weight, velocity = tree(0)["scale"], np.zeros(5)
    # torch.optim.SGD(nesterov=True): the velocity is applied once more to the update (Sutskever et al., 2013).
    for rate, gradient in zip(RATES, gradients, strict=True):
        velocity = 0.99 * velocity + gradient["scale"]
        weight = weight - rate * (gradient["scale"] + 0.99 * velocity)
    with jax.enable_x64(True):
        found, _ = run(config("sgd", nesterov=True, momentum=0.99), tree(0), gradients)
    np.testing.assert_allclose(found["scale"], weight, rtol=1e-9)
    for changes in ({"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.0}):
        with pytest.raises(UsageError, match=r"take --set optimizer=sgd --set momentum=0\.99"):
            build_optimizer(TrainConfig(nesterov=True, **changes))


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


def test_manual_step_refuses_wrong_boundaries_and_rates():
    for boundaries, rates, warmup, message in (
        ([0, 5], [1, 1, 1], False, "boundaries: expected whole numbers above 0"),
        ([2.5, 5], [1, 1, 1], False, "boundaries: expected whole numbers above 0"),
        ([5, 5], [1, 1, 1], False, "each above the one before"),
        ([5], [1, 1, 1], False, "rates: expected 2, one more than boundaries, got 3"),
        ([], [1], True, "expected one at least, where the warm-up ends"),
    ):
        with pytest.raises(UsageError, match=message):
            manual_step(boundaries=boundaries, rates=rates, warmup=warmup)


def test_a_warm_up_above_the_rate_or_beyond_the_run_is_refused():
    with pytest.raises(UsageError, match=r"warm-up learning rate: expected at most .* rate 0.1, got 0.2"):
        cosine_with_warmup(base=0.1, total_steps=10, warmup_rate=0.2, warmup_steps=5)
    with pytest.raises(UsageError, match="warm-up learning rate"):
        constant_with_warmup(base=0.1, warmup_rate=0.2, warmup_steps=5)
    with pytest.raises(UsageError, match="warm-up steps: expected at most the 10 updates of the run, got 11"):
        cosine_with_warmup(base=0.1, total_steps=10, warmup_rate=0.0, warmup_steps=11)


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


def test_another_schedule_leaves_out_what_a_recipe_sets_for_its_own(capsys):
    recipe, cosine = "classifier_resnet20_cifar", "schedule=cosine"
    changed = configure(recipe, [cosine])
    said = "boundaries and rates of the schedule manual_step: left out for cosine; learning_rate = 0.1"
    assert said in capsys.readouterr().err
    assert changed == load_config(recipe).changed([cosine], boundaries=(), rates=())
    build_schedule(changed)
    # What the user sets without effect is refused as before.
    with pytest.raises(UsageError, match="rates: belongs to the schedule manual_step"):
        build_schedule(configure(recipe, [cosine, "rates=[0.1, 0.2]"]))
    # A recipe that states rates alone gives the highest of them.
    published = load_config("retinanet_resnet50_fpn_1280")
    assert configure(published, [cosine]).learning_rate == max(published.rates) == 0.08
    assert configure(published, [cosine, "learning_rate=0.02"]).learning_rate == 0.02
    # Without another schedule nothing is left out.
    capsys.readouterr()
    configure(TrainConfig(hold_steps=10), ["hold_steps=0"])
    assert "left out" not in capsys.readouterr().err
    # A setting that both schedules use stays.
    polynomial = TrainConfig(schedule="polynomial", schedule_steps=150, schedule_power=2.0)
    assert configure(polynomial, [cosine]) == polynomial.changed([cosine], schedule_power=0.0)


def test_settings_that_contradict_each_other_are_refused():
    for changes, message in (
        ({"boundaries": (5,)}, "boundaries: belongs to the schedule manual_step, not cosine"),
        ({"rates": (5.0,)}, "rates: belongs to the schedule manual_step"),
        ({"schedule": "constant", "hold_steps": 3}, "hold steps: belongs to the schedule cosine"),
        ({"schedule": "constant", "schedule_steps": 3}, "belongs to the schedule cosine or polynomial"),
        ({"schedule_power": 2.0}, "schedule power: belongs to the schedule polynomial, not cosine"),
        ({"schedule": "exponential"}, "decay steps: expected 1 or more, got 0"),
        (
            {"schedule": "exponential", "decay_steps": 9, "decay_rate": 1.0},
            "decay rate: expected more than 0",
        ),
        ({"schedule": "manual_step"}, "rates: expected those of the manual_step schedule, got none"),
        ({**MANUAL, "warmup_steps": 4}, r"warm-up steps: expected 0 or the first of the boundaries \[5\]"),
        (
            {**MANUAL, "boundaries": (), "rates": (0.1,), "warmup_steps": 4},
            r"the first of the boundaries \[\]",
        ),
        ({**MANUAL, "warmup_learning_rate": 0.05}, "manual_step begins at the first of its rates"),
        ({"steps": 3, "accumulate_steps": 4}, "accumulate steps: expected at most the 3 steps"),
    ):
        with pytest.raises(UsageError, match=message):
            build_schedule(TrainConfig().changed(**changes))


def test_a_rate_is_a_scalar_of_the_default_precision_inside_and_outside_jit():
    for options in ({}, {"schedule": "constant"}, {"schedule": "manual_step", "rates": (0.1,)}):
        schedule = build_schedule(TrainConfig(**options))
        assert schedule(3).dtype == jax.jit(schedule)(jnp.int32(3)).dtype == jnp.float32
        assert schedule(3).shape == ()
