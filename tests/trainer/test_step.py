"""Does a step count, normalise and learn what it says?"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from halofeed.schemas.errors import UsageError
from halofeed.trainer.models.norm import BatchNorm
from halofeed.trainer.optimizers import OPTIMIZERS, warmup_cosine
from halofeed.trainer.step import Problem, compile_step, loss_and_gradients, new_state, normalise

PROBLEM = Problem(
    task="classification", classes=3, mean=(100.0, 120.0), std=(50.0, 60.0), compute_dtype="float32"
)


def pictures(rows: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(seed)
    return {
        "image": generator.integers(0, 256, (rows, 16, 16, 2)).astype(np.uint8),
        "label": generator.integers(0, 3, rows).astype(np.int32),
    }


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_pixels_are_normalised_on_the_device_at_any_stored_depth(dtype: type) -> None:
    top = np.iinfo(dtype).max
    pixels = np.array([0, 1, top - 1, top], dtype).reshape(1, 2, 2, 1)
    expected = (pixels.astype(np.float64) - top / 3) / (top / 5)
    found = normalise(jnp.asarray(pixels), (top / 3,), (top / 5,), "float32")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert normalise(jnp.asarray(pixels), (0.0,), (1.0,), "bfloat16").dtype == jnp.bfloat16


def test_rows_that_are_not_valid_change_neither_loss_nor_gradients_nor_statistics() -> None:
    state = new_state(PROBLEM, optax.identity(), 0)
    real, other = pictures(4), pictures(2, seed=9)
    padded = {key: np.concatenate([real[key], other[key]]) for key in real}
    padded["valid"] = np.array([True] * 4 + [False] * 2)
    step = jax.jit(lambda batch: loss_and_gradients(PROBLEM, state.parameters, state.statistics, batch))
    for found, expected in zip(jax.tree.leaves(step(padded)), jax.tree.leaves(step(real)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_batch_norm_spans_batch_and_image_and_keeps_running_statistics() -> None:
    x = np.random.default_rng(0).normal(3, 2, (4, 5, 6, 2)).astype(np.float32)
    norm = BatchNorm(2, decay=0.75)
    mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    np.testing.assert_allclose(
        norm(jnp.asarray(x)), (x - mean) / np.sqrt(variance + 1e-3), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(norm.mean[...], 0.25 * mean, rtol=1e-5)
    np.testing.assert_allclose(norm.variance[...], 0.75 + 0.25 * variance, rtol=1e-5)
    evaluated = norm(jnp.asarray(x), training=False)
    np.testing.assert_allclose(
        evaluated, (x - norm.mean[...]) / np.sqrt(norm.variance[...] + 1e-3), rtol=1e-4, atol=1e-5
    )


def test_a_step_is_plain_gradient_descent_and_takes_the_state_over() -> None:
    optimizer, batch = optax.sgd(0.5), pictures(4)
    state = new_state(PROBLEM, optimizer, 0)
    loss, gradients, statistics = jax.jit(
        lambda state: loss_and_gradients(PROBLEM, state.parameters, state.statistics, batch)
    )(state)
    expected = jax.tree.map(lambda value, slope: value - 0.5 * slope, state.parameters, gradients)
    after, found_loss = compile_step(PROBLEM, optimizer)(state, batch)
    assert found_loss == pytest.approx(float(loss), rel=1e-5)
    assert int(after.step) == 1
    for found, value in zip(jax.tree.leaves(after.parameters), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
    for found, value in zip(jax.tree.leaves(after.statistics), jax.tree.leaves(statistics), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.parameters))


def test_parameters_stay_float32_under_bfloat16_compute() -> None:
    problem = dataclasses.replace(PROBLEM, compute_dtype="bfloat16")
    optimizer = OPTIMIZERS["sgd"](warmup_cosine(0.01, 10))
    state, loss = compile_step(problem, optimizer)(new_state(problem, optimizer, 0), pictures(4))
    assert {leaf.dtype for leaf in jax.tree.leaves((state.parameters, state.statistics))} == {
        np.dtype("float32")
    }
    assert loss.dtype == jnp.float32 and jnp.isfinite(loss)


def test_the_same_seed_gives_the_same_parameters_and_another_seed_others() -> None:
    def kernels(seed: int) -> list[np.ndarray[Any, Any]]:
        return [
            np.asarray(leaf)
            for leaf in jax.tree.leaves(new_state(PROBLEM, optax.identity(), seed).parameters)
        ]

    assert all((a == b).all() for a, b in zip(kernels(1), kernels(1), strict=True))
    assert any((a != b).any() for a, b in zip(kernels(1), kernels(2), strict=True))


def test_a_model_and_its_graph_fit_together() -> None:
    state = new_state(PROBLEM, optax.identity(), 0)
    model = nnx.merge(PROBLEM.graph(), state.parameters, state.statistics)
    assert model(jnp.zeros((2, 16, 16, 2)), training=False).shape == (2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "segmentation"}, "unknown task 'segmentation'; known: classification, detection"),
        ({"model": "vgg"}, "unknown model 'vgg'; known: classifier"),
        ({"classes": 0}, "expected at least 1"),
        ({"std": (0.0, 1.0)}, "std above 0"),
        ({"dims": (1, 2, 1, 2)}, "the models keep channels whole"),
    ],
)
def test_a_problem_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(PROBLEM, **change)
