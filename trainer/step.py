"""What does one training step do to the state, on one device or on a mesh?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from halofeed.schemas.errors import UsageError
from halofeed.schemas.partition import Dims
from halofeed.trainer.losses import LOSSES
from halofeed.trainer.models import model_named

Batch = Mapping[str, jax.Array]
Variables = nnx.State[Any, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that a step changes: parameters, the norm's running statistics, the optimizer's state, the step."""

    parameters: Variables
    statistics: Variables
    optimizer_state: optax.OptState
    step: jax.Array


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is trained on what: all that shapes the compiled step but the batch's shapes.

    Args:
        task: a key of `halofeed.trainer.losses.LOSSES`.
        classes: how many logits; a detection set's without the background.
        mean, std: per channel, in the stored image's units.
        model: a key of `halofeed.trainer.models.MODELS`.
        compute_dtype: of the activations.
        param_dtype: of the parameters and the loss.
        mesh: where the batch lies; None for one device.
        dims: how `image` is split over a replica's cores; None is whole.
    """

    task: str
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    model: str = "classifier"
    compute_dtype: str = "bfloat16"
    param_dtype: str = "float32"
    mesh: Mesh | None = None
    dims: Dims = None

    def __post_init__(self) -> None:
        model_named(self.model)
        if self.task not in LOSSES:
            raise UsageError(f"unknown task {self.task!r}; known: {', '.join(LOSSES)}")
        if self.classes < 1:
            raise UsageError(f"classes: expected at least 1, got {self.classes}; the labels are empty")
        if self.dims is not None and self.dims[-1] > 1:
            raise UsageError(
                f"partition {list(self.dims)}: the models keep channels whole; split height or width"
            )
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise UsageError(
                f"mean and std: expected one of each per channel, std above 0, got {self.mean} and {self.std}"
            )

    def new_model(self, seed: int) -> nnx.Module:
        """The model with parameters drawn from `seed`."""
        return model_named(self.model)(
            classes=self.classes,
            channels=len(self.mean),
            dtype=jnp.dtype(self.compute_dtype),
            param_dtype=jnp.dtype(self.param_dtype),
            rngs=nnx.Rngs(seed),
        )

    def graph(self) -> nnx.GraphDef[Any]:
        """The model's structure, without arrays."""
        return nnx.graphdef(nnx.eval_shape(lambda: self.new_model(0)))


def normalise(image: jax.Array, mean: tuple[float, ...], std: tuple[float, ...], dtype: str) -> jax.Array:
    """(image - mean) / std per channel, for pixels of any dtype [..., channel], on the device.

    >>> normalise(jnp.full((1, 1, 1, 2), 30, jnp.uint8), (10.0, 30.0), (10.0, 5.0), "float32").tolist()
    [[[[2.0, 0.0]]]]
    """
    wide = jnp.promote_types(dtype, jnp.float32)
    shifted = image.astype(wide) - jnp.asarray(np.asarray(mean), wide)
    return (shifted * jnp.asarray(1 / np.asarray(std), wide)).astype(dtype)


def loss_and_gradients(
    problem: Problem, parameters: Variables, statistics: Variables, batch: Batch
) -> tuple[jax.Array, Variables, Variables]:
    """The loss of one batch, its gradients, and the norm's new running statistics.

    Args:
        problem: mesh, dims, model, task and precision.
        parameters, statistics: of `Problem.new_model`.
        batch: global arrays: `image` [batch, height, width, channel] of any dtype, what the task's loss
            needs, and `valid` bool [batch] where some rows do not count.

    Returns:
        The loss (a scalar), the gradients (as `parameters`), the statistics (as `statistics`).
    """
    graph = problem.graph()

    def loss_of(parameters: Variables) -> tuple[jax.Array, Variables]:
        model = nnx.merge(graph, parameters, statistics, copy=True)
        image = normalise(batch["image"], problem.mean, problem.std, problem.compute_dtype)
        logits = model(image, valid=batch.get("valid"), mesh=problem.mesh, dims=problem.dims)
        updated = nnx.state(model, nnx.Not(nnx.Param))
        return LOSSES[problem.task](logits, batch), updated

    (loss, updated), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
    return loss, gradients, updated


def new_state(problem: Problem, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """The state before step 0, the same for the same seed on every mesh, whole on each device."""

    def build() -> TrainState:
        model = problem.new_model(seed)
        parameters = nnx.state(model, nnx.Param)
        return TrainState(
            parameters=parameters,
            statistics=nnx.state(model, nnx.Not(nnx.Param)),
            optimizer_state=optimizer.init(parameters),
            step=jnp.zeros((), jnp.int32),
        )

    state: TrainState = jax.jit(build, out_shardings=_whole(problem.mesh))()
    return state


def compile_step(problem: Problem, optimizer: optax.GradientTransformation) -> jax.stages.Wrapped:
    """The jitted step (state, batch) -> (state, loss); the given state's memory is taken over (donated)."""

    @partial(jax.jit, donate_argnums=0, out_shardings=_whole(problem.mesh))
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        loss, gradients, statistics = loss_and_gradients(problem, state.parameters, state.statistics, batch)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer_state, state.parameters)
        return (
            TrainState(
                parameters=optax.apply_updates(state.parameters, updates),
                statistics=statistics,
                optimizer_state=optimizer_state,
                step=state.step + 1,
            ),
            loss,
        )

    return step


def _whole(mesh: Mesh | None) -> NamedSharding | None:
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
