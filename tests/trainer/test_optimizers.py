"""Every optimizer follows its paper, with clipping, decay, accumulation and the schedule."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from halofeed.trainer.config import OPTIMIZER_NAMES, TrainConfig
from halofeed.trainer.optimizers import OPTIMIZERS, build_optimizer

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
    for name, given in parameters.items():
        weight, first, second = given.copy(), np.zeros_like(given), np.zeros_like(given)
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


def test_the_table_holds_every_name_that_a_config_may_say() -> None:
    assert tuple(OPTIMIZERS) == OPTIMIZER_NAMES


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


def test_a_step_between_updates_changes_no_parameter() -> None:
    found, _ = run(config("adamw", steps=6, accumulate_steps=2), tree(0), [tree(1)])
    assert_same(found, {name: leaf.astype(np.float32) for name, leaf in tree(0).items()}, rtol=0)


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


@pytest.mark.parametrize("optimizer", OPTIMIZER_NAMES)
def test_weight_decay_spares_norms_and_biases(optimizer: str) -> None:
    still = [{name: np.zeros_like(leaf) for name, leaf in tree(0).items()}] * STEPS
    with jax.enable_x64(True):
        found, _ = run(config(optimizer), tree(0), still)
    np.testing.assert_array_equal(found["scale"], tree(0)["scale"])
    assert np.linalg.norm(found["kernel"]) < np.linalg.norm(tree(0)["kernel"])


def test_the_schedule_that_comes_back_is_the_one_that_is_followed() -> None:
    _, schedule = build_optimizer(config("sgd"))
    assert [float(schedule(update)) for update in range(3)] == pytest.approx(RATES)
