"""A step counts, normalizes and learns what it says."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from halofeed.errors import UsageError
from halofeed.loader.device import Normalization
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.models.classifier import Classifier
from halofeed.trainer.models.layers import Layers
from halofeed.trainer.models.norm import BatchNorm
from halofeed.trainer.step import (
    TrainingSetup,
    TrainState,
    compile_prediction,
    compile_step,
    loss_and_gradients,
    new_state,
    to_host,
)
from halofeed.trainer.tasks.classification import Classification

Arrays = dict[str, np.ndarray[Any, Any]]


def build(layers: Layers) -> nnx.Module:
    return Classifier(layers, classes=3, image_shape=(16, 16, 2), features=(4, 8, 8))


PROBLEM = TrainingSetup(
    build=build,
    task=Classification(labels=("a", "b", "c")),
    normalization=Normalization(mean=(100.0, 120.0), std=(50.0, 60.0)),
    compute_dtype="float32",
)


def pictures(rows: int, seed: int = 0) -> Arrays:
    generator = np.random.default_rng(seed)
    return {
        "image": generator.integers(0, 256, (rows, 16, 16, 2)).astype(np.uint8),
        "label": generator.integers(0, 3, rows).astype(np.int32),
    }


def copied(state: TrainState) -> TrainState:
    """For a step takes its state's memory over."""
    return jax.tree.map(jnp.copy, state)


def assert_close(found: Any, expected: Any, *, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def gradients_of(state: TrainState, batch: Arrays, problem: TrainingSetup = PROBLEM) -> Any:
    return jax.jit(lambda: loss_and_gradients(problem, state.parameters, state.statistics, batch))()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_pixels_are_normalized_on_the_device_at_any_stored_depth(dtype: type) -> None:
    least, top = np.iinfo(dtype).min, np.iinfo(dtype).max
    pixels = np.array([least, least + 1, top - 1, top], dtype).reshape(1, 2, 2, 1)
    normalization = Normalization(mean=(top / 3,), std=(top / 5,))
    expected = (pixels.astype(np.float64) - top / 3) / (top / 5)
    np.testing.assert_allclose(normalization(jnp.asarray(pixels), "float32"), expected, rtol=1e-5)
    assert normalization(jnp.asarray(pixels), "bfloat16").dtype == jnp.bfloat16


def test_values_are_clipped_before_they_are_normalized_and_a_deviation_of_0_is_refused() -> None:
    normalization = Normalization(mean=(40.0,), std=(50.0,), limits=(-160.0, 240.0))
    values = jnp.asarray([-1000, 40, 3000], jnp.int16)[:, None]
    assert normalization(values, "float32").ravel().tolist() == [-4.0, 0.0, 4.0]
    for mean, std in (((1.0,), (1.0, 2.0)), ((1.0,), (0.0,))):
        with pytest.raises(UsageError, match="std above 0"):
            Normalization(mean=mean, std=std)


def test_normalization_is_per_channel_and_reverses_the_channels_afterwards() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3)).astype(np.uint8)
    mean, std = (120.0, 110.0, 100.0), (1.0, 2.0, 4.0)
    expected = np.empty(pixels.shape)
    for channel in range(3):
        expected[..., 2 - channel] = (pixels[..., channel] - mean[channel]) / std[channel]
    found = Normalization(mean=mean, std=std, reverse_channels=True)(jnp.asarray(pixels), "float32")
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_rows_that_are_not_valid_change_neither_loss_nor_gradients_nor_statistics() -> None:
    state = new_state(PROBLEM, optax.identity(), 0)
    real, other = pictures(4), pictures(2, seed=9)
    padded = {key: np.concatenate([real[key], other[key]]) for key in real}
    padded["valid"] = np.array([True] * 4 + [False] * 2)
    assert_close(gradients_of(state, padded), gradients_of(state, real), atol=1e-6)


@pytest.mark.parametrize("cores", [None, pytest.param(4, marks=pytest.mark.long)])
def test_computing_again_in_place_of_keeping_changes_no_value_and_keeps_less(cores: int | None) -> None:
    mesh, dims = (None, None) if cores is None else (make_mesh(cores), (1, cores, 1, 1))
    keeps = dataclasses.replace(PROBLEM, mesh=mesh, dims=dims)
    again = dataclasses.replace(keeps, remat=True)
    state, batch = new_state(keeps, optax.identity(), 0), pictures(8)
    assert_close(gradients_of(state, batch, again), gradients_of(state, batch, keeps), atol=1e-6)

    def norms(problem: TrainingSetup) -> int:
        steps = jax.make_jaxpr(lambda: loss_and_gradients(problem, state.parameters, state.statistics, batch))
        return str(steps()).count(" rsqrt ")

    assert norms(again) > norms(keeps), "norms are computed a second time"


def test_batch_norm_spans_image_and_valid_rows_of_the_batch_and_keeps_running_statistics() -> None:
    x = np.random.default_rng(0).normal(3, 2, (4, 5, 6, 2)).astype(np.float32)
    norm = BatchNorm(2, decay=0.75)
    mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    assert_close(norm(jnp.asarray(x)), (x - mean) / np.sqrt(variance + 1e-3))
    assert_close(norm.mean[...], 0.25 * mean)
    assert_close(norm.variance[...], 0.75 + 0.25 * variance)
    evaluated = norm(jnp.asarray(x), training=False)
    assert_close(evaluated, (x - norm.mean[...]) / np.sqrt(norm.variance[...] + 1e-3))
    valid, norm = np.array([True, False, True, False]), BatchNorm(2, decay=0.0)
    norm(jnp.asarray(x), valid=jnp.asarray(valid))
    assert_close(norm.mean[...], x[valid].mean(axis=(0, 1, 2)))
    assert_close(norm.variance[...], x[valid].var(axis=(0, 1, 2)))


def test_batch_norm_of_parts_is_that_of_each_part_alone_and_runs_by_their_means() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(3, 2, (6, 4, 3, 2)).astype(np.float32))
    valid = jnp.asarray([True, False, True, True, False, False])
    whole = BatchNorm(2, decay=0.0)
    found, alone = whole(x, valid=valid, parts=(3, 2, 1)), []
    for rows in (slice(0, 2), slice(2, 4), slice(4, 6)):
        for band in (slice(0, 2), slice(2, 4)):
            alone.append(BatchNorm(2, decay=0.0))
            assert_close(found[rows, band], alone[-1](x[rows, band], valid=valid[rows]))
    for name in ("mean", "variance"):  # The last two parts have no valid row.
        assert_close(getattr(whole, name)[...], np.mean([getattr(norm, name)[...] for norm in alone[:4]], 0))


def test_a_step_is_plain_gradient_descent_and_takes_the_state_over() -> None:
    optimizer, batch = optax.sgd(0.5), pictures(4)
    state = new_state(PROBLEM, optimizer, 0)
    loss, parts, gradients, statistics = gradients_of(state, batch)
    expected = jax.tree.map(lambda value, slope: value - 0.5 * slope, state.parameters, gradients)
    after, values = compile_step(PROBLEM, optimizer)(state, batch)
    assert values.keys() == {"loss", "gradient_norm", *parts}
    assert values["loss"] == pytest.approx(float(loss), rel=1e-5)
    squares = sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(gradients))
    assert values["gradient_norm"] == pytest.approx(np.sqrt(squares), rel=1e-4)
    assert int(after.step) == 1 and after.average is None
    assert_close(after.parameters, expected)
    assert_close(after.statistics, statistics)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.parameters))


def test_the_average_follows_its_formula() -> None:
    """average := decay * average + (1 - decay) * parameters, decay the less of 0.15 and (1 + step) / (10 + step)."""
    optimizer = optax.sgd(0.5)
    step = compile_step(PROBLEM, optimizer, average_decay=0.15)
    state = new_state(PROBLEM, optimizer, 0, average=True)
    expected = jax.device_get(state.parameters)
    for number, decay in enumerate([1 / 10, 0.15, 0.15]):
        state, _ = step(state, pictures(4, seed=number))
        parameters = jax.device_get(state.parameters)
        expected = jax.tree.map(lambda a, b, share=decay: share * a + (1 - share) * b, expected, parameters)
        assert_close(state.average, expected)
    assert state.best_parameters is state.average
    apart = jax.tree.map(lambda one, other: np.abs(one - other).max(), expected, parameters)
    assert max(jax.tree.leaves(apart)) > 1e-3


def test_the_rate_is_that_of_the_update() -> None:
    optimizer = optax.sgd(0.1)
    step = compile_step(PROBLEM, optimizer, schedule=lambda update: 0.1 * (update + 1), average_every=2)
    state, rates = new_state(PROBLEM, optimizer, 0), []
    for _ in range(5):
        state, values = step(state, pictures(4))
        rates.append(float(values["learning_rate"]))
    assert rates == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3])


def test_parameters_and_loss_stay_float32_under_bfloat16_compute() -> None:
    problem = dataclasses.replace(PROBLEM, compute_dtype="bfloat16")
    optimizer = optax.sgd(0.01, momentum=0.9)
    state, values = compile_step(problem, optimizer)(new_state(problem, optimizer, 0), pictures(4))
    kept = jax.tree.leaves((state.parameters, state.statistics))
    assert {leaf.dtype for leaf in kept} == {np.dtype("float32")}
    assert values["loss"].dtype == jnp.float32 and jnp.isfinite(values["loss"])


def test_the_same_seed_gives_the_same_parameters_on_every_mesh_and_another_seed_others() -> None:
    on_mesh = dataclasses.replace(PROBLEM, mesh=make_mesh(2))
    one, same, other = (
        jax.tree.leaves(new_state(problem, optax.identity(), seed).parameters)
        for problem, seed in ((PROBLEM, 1), (on_mesh, 1), (PROBLEM, 2))
    )
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(one, same, strict=True))
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(one, other, strict=True))


def test_predictions_and_their_truth_are_whole_on_every_device_of_a_mesh() -> None:
    batch = {**pictures(8), "id": np.ones((8, 2), np.uint32), "valid": np.arange(8) < 6}
    state = new_state(PROBLEM, optax.identity(), 0)
    alone, _ = compile_prediction(PROBLEM)(state.parameters, state.statistics, batch)
    mesh = make_mesh(4)
    rows = NamedSharding(mesh, PartitionSpec("replica"))
    bands = NamedSharding(mesh, PartitionSpec("replica", ("core0", "core1")))
    placed = {key: jax.device_put(value, bands if key == "image" else rows) for key, value in batch.items()}
    problem = dataclasses.replace(PROBLEM, mesh=mesh, dims=(1, 4, 1, 1))
    predicted, truth = compile_prediction(problem)(state.parameters, state.statistics, placed)
    assert truth.keys() == {"label", "id", "valid"}
    for values in (*predicted.values(), *truth.values()):
        assert values.sharding.is_fully_replicated and values.sharding.device_set == set(jax.devices())
    for key, value in to_host(truth).items():
        np.testing.assert_array_equal(value, batch[key])
    assert_close(to_host(predicted), to_host(alone))


def test_a_prediction_uses_the_running_statistics_and_changes_none() -> None:
    state, predict = new_state(PROBLEM, optax.identity(), 0), compile_prediction(PROBLEM)
    batch = pictures(4)
    whole, _ = predict(state.parameters, state.statistics, batch)
    one = {key: np.repeat(value[:1], 4, 0) for key, value in batch.items()}
    alone, _ = predict(state.parameters, state.statistics, one)
    np.testing.assert_allclose(whole["probabilities"][0], alone["probabilities"][0], rtol=1e-5)


def test_a_problem_that_splits_channels_is_refused() -> None:
    with pytest.raises(UsageError, match="the models do not split channels; split depth, height or width"):
        dataclasses.replace(PROBLEM, dims=(1, 2, 1, 2))
