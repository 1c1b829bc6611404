"""Are the loss and every gradient on a partition those of one device?

Compared in float64: in float32 deep gradients differ by percents for reasons of rounding alone.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from halofeed.loader.mesh import mesh_specs, place_batch
from halofeed.schemas.partition import Partition
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.models import classifier
from halofeed.trainer.step import Problem, loss_and_gradients

BATCH, CLASSES = 8, 5
SPLITS = [
    (2, (1, 2, 1, 1)),
    (2, (1, 1, 2, 1)),
    (4, (1, 4, 1, 1)),
    (4, (1, 2, 2, 1)),
    (8, (1, 8, 1, 1)),
    (8, (1, 4, 2, 1)),
    (8, (1, 1, 8, 1)),
]
TOLERANCE = 1e-9


def batch_of(height: int, width: int) -> dict[str, np.ndarray[Any, Any]]:
    """Pictures whose gradients depend on every row, with two padded rows and padded boxes."""
    generator = np.random.default_rng(3)
    return {
        "image": generator.integers(0, 256, (BATCH, height, width, 3)).astype(np.uint8),
        "label": generator.integers(0, CLASSES, BATCH).astype(np.int32),
        "classes": generator.integers(0, CLASSES + 1, (BATCH, 6)).astype(np.int32),
        "num_boxes": generator.integers(0, 7, BATCH).astype(np.int32),
        "valid": np.array([True] * 5 + [False] + [True] + [False]),
    }


def problem_of(task: str, dtype: str) -> Problem:
    return Problem(
        task=task,
        classes=CLASSES,
        mean=(120.0, 110.0, 100.0),
        std=(60.0, 65.0, 70.0),
        compute_dtype=dtype,
        param_dtype=dtype,
    )


@functools.cache
def one_device(task: str, dtype: str, height: int, width: int) -> tuple[Any, float, dict[str, Any]]:
    """The initial variables, the loss, and the gradients by name, without a mesh."""
    problem = problem_of(task, dtype)

    @jax.jit
    def variables() -> tuple[Any, Any]:
        model = problem.new_model(0)
        return nnx.state(model, nnx.Param), nnx.state(model, nnx.Not(nnx.Param))

    start = jax.device_get(variables())
    loss, gradients, _ = jax.jit(functools.partial(loss_and_gradients, problem))(
        *start, batch_of(height, width)
    )
    return start, float(loss), by_name(gradients)


def partitioned(
    task: str, dtype: str, height: int, width: int, cores: int, dims: tuple[int, ...]
) -> tuple[float, dict[str, Any]]:
    """The loss and the gradients by name on all eight devices, in 8 / cores replicas."""
    start, _, _ = one_device(task, dtype, height, width)
    mesh, batch = make_mesh(cores), batch_of(height, width)
    shapes = {key: value.shape for key, value in batch.items()}
    partition = Partition(cores_per_replica=cores, dims={"image": dims})
    placed = place_batch(
        mesh,
        mesh_specs(mesh, partition, shapes),
        shapes,
        lambda first, last: {key: value[first:last] for key, value in batch.items()},
    )
    problem = dataclasses.replace(problem_of(task, dtype), mesh=mesh, dims=dims)
    loss, gradients, _ = jax.jit(functools.partial(loss_and_gradients, problem))(*start, placed)
    return float(loss), by_name(gradients)


def by_name(gradients: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def wrong_leaves(ours: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """Every gradient that is further off than rounding in float64 explains, with its distance."""
    assert ours.keys() == expected.keys()
    everything = np.sqrt(sum(np.sum(leaf**2) for leaf in expected.values()))
    assert everything > 0
    distances = {
        name: float(np.linalg.norm(ours[name] - leaf) / (np.linalg.norm(leaf) + everything))
        for name, leaf in expected.items()
    }
    return {name: distance for name, distance in distances.items() if not distance <= TOLERANCE}


@pytest.mark.parametrize(
    ("task", "height", "width", "cores", "dims"),
    [("classification", 64, 16, *split) for split in SPLITS]
    + [("detection", 16, 64, *split) for split in (SPLITS[0], SPLITS[3], SPLITS[5])],
)
def test_loss_and_every_gradient_are_those_of_one_device(
    task: str, height: int, width: int, cores: int, dims: tuple[int, ...]
) -> None:
    with jax.enable_x64(True):
        _, expected_loss, expected = one_device(task, "float64", height, width)
        loss, gradients = partitioned(task, "float64", height, width, cores, dims)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert wrong_leaves(gradients, expected) == {}


@pytest.mark.parametrize(("cores", "dims"), [(8, (2, 2, 2, 1)), (4, (1, 1, 1, 1))])
def test_a_split_batch_axis_and_a_whole_image_are_right_too(cores: int, dims: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        _, _, expected = one_device("classification", "float64", 64, 16)
        _, gradients = partitioned("classification", "float64", 64, 16, cores, dims)
    assert wrong_leaves(gradients, expected) == {}


@pytest.mark.parametrize(("cores", "dims"), [(8, (1, 4, 2, 1))])
def test_the_float32_loss_agrees_to_four_digits(cores: int, dims: tuple[int, ...]) -> None:
    _, expected, _ = one_device("classification", "float32", 64, 16)
    loss, _ = partitioned("classification", "float32", 64, 16, cores, dims)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_without_the_guard_a_level_of_fewer_rows_than_shards_has_wrong_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `constrain` is for: the comparison must see the fault that it prevents.

    If XLA mends the fault, this test fails; the guard may then be loosened.
    """
    monkeypatch.setattr(classifier, "constrain", lambda activation, mesh, dims: activation)
    with jax.enable_x64(True):
        _, expected_loss, expected = one_device("classification", "float64", 32, 32)
        loss, gradients = partitioned("classification", "float64", 32, 32, 8, (1, 8, 1, 1))
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert any("kernel" in name for name in wrong_leaves(gradients, expected))


def test_a_lost_halo_is_seen_in_the_loss_and_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each half of the rows convolved on its own, as if the cores did not exchange their edge rows."""
    exact = nnx.Conv.__call__

    def without_halo(self: nnx.Conv, image: jax.Array) -> jax.Array:
        if image.shape[1] < 4:
            return exact(self, image)
        return jax.numpy.concatenate(
            [exact(self, half) for half in jax.numpy.split(image, 2, axis=1)], axis=1
        )

    with jax.enable_x64(True):
        _, expected_loss, expected = one_device("classification", "float64", 32, 32)
        monkeypatch.setattr(nnx.Conv, "__call__", without_halo)
        loss, gradients = partitioned("classification", "float64", 32, 32, 2, (1, 2, 1, 1))
    assert abs(loss - expected_loss) > 1e-4
    assert wrong_leaves(gradients, expected)
