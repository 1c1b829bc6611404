"""What does one training step do to the state, on one device or on a mesh?

A trainer of your own may import this file and `mesh` alone: a `TrainingSetup` takes any model and any task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from halofeed.errors import UsageError
from halofeed.loader.device import DeviceAugmentation, Normalization, augment_on_device
from halofeed.schemas.partition import Dims
from halofeed.trainer.mesh import platform_of
from halofeed.trainer.models.layers import KEPT, Layers, Pass, name_layers
from halofeed.trainer.task import Batch, Task

if TYPE_CHECKING:
    from halofeed.trainer.optimizers import Schedule

Variables = nnx.State[Any, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that a step changes.

    Args:
        parameters: of the model.
        statistics: the norms' running ones.
        optimizer_state: momentum and the like.
        average: the moving average of the parameters; None where none is kept.
        step: how many steps were taken, int32.
    """

    parameters: Variables
    statistics: Variables
    optimizer_state: optax.OptState
    average: Variables | None
    step: jax.Array

    @property
    def best_parameters(self) -> Variables:
        """Those to evaluate and predict with: the average where there is one."""
        return self.parameters if self.average is None else self.average


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """What is trained on what: all that shapes the compiled step but the batch's shapes.

    Args:
        build: makes the model; its `__call__(image, run: Pass)` gives outputs, any pytree.
        task: makes the loss of these outputs.
        normalization: of the stored pixels.
        augment: what is done to the pixels of a training batch before, in order.
        augment_seed: from which it is drawn.
        compute_dtype: of the activations.
        param_dtype: of the parameters and the loss.
        norm_decay: of the norms' running statistics.
        remat: whether the backward pass keeps the convolutions' outputs alone and computes the rest again.
        mesh: where the batch lies; None for one device.
        dims: how `image` is split over a replica's cores; None is whole.
    """

    build: Callable[[Layers], nnx.Module]
    task: Task
    normalization: Normalization
    augment: tuple[DeviceAugmentation, ...] = ()
    augment_seed: int = 0
    compute_dtype: str = "bfloat16"
    param_dtype: str = "float32"
    norm_decay: float = 0.997
    remat: bool = False
    mesh: Mesh | None = field(default=None, compare=False)
    dims: Dims = None

    def __post_init__(self) -> None:
        if self.dims is not None and self.dims[-1] > 1:
            raise UsageError(
                f"partition {list(self.dims)}: the models keep channels whole; split depth, height or width"
            )

    def new_model(self, seed: int) -> nnx.Module:
        """The model with parameters drawn from `seed`."""
        return self.build(
            Layers(
                dtype=jnp.dtype(self.compute_dtype),
                param_dtype=jnp.dtype(self.param_dtype),
                rngs=nnx.Rngs(seed),
                norm_decay=self.norm_decay,
            )
        )

    def graph(self) -> nnx.GraphDef[Any]:
        """The model's structure, without arrays."""
        return nnx.graphdef(nnx.eval_shape(lambda: self.new_model(0)))

    def augmented(self, batch: Batch) -> Batch:
        """The batch as it is trained on."""
        if not self.augment:
            return batch
        values = None if batch["image"].dtype == np.uint8 else self.normalization.values()
        return augment_on_device(batch, self.augment, seed=self.augment_seed, values=values)

    def apply(
        self, parameters: Variables, statistics: Variables, batch: Batch, *, training: bool
    ) -> tuple[Any, Variables]:
        """The model's outputs for a batch, and the norms' statistics after it."""
        model: Any = nnx.merge(self.graph(), parameters, statistics, copy=True)
        name_layers(model)
        image = self.normalization(batch["image"], self.compute_dtype)
        run = Pass(valid=batch.get("valid"), training=training, mesh=self.mesh, dims=self.dims)
        return model(image, run), nnx.state(model, nnx.Not(nnx.Param))


def loss_and_gradients(
    setup: TrainingSetup, parameters: Variables, statistics: Variables, batch: Batch
) -> tuple[jax.Array, dict[str, jax.Array], Variables, Variables]:
    """The loss of one batch with its parts, its gradients, and the norms' new running statistics.

    Args:
        setup: model, task, precision, mesh and dims.
        parameters, statistics: of `TrainingSetup.new_model`.
        batch: global arrays: `image` [batch, ..., channel] of any dtype, the task's keys, and `valid` bool
            [batch] where some rows do not count.

    Returns:
        The loss (a scalar), its parts by name, the gradients (as `parameters`), the statistics (as `statistics`).
    """
    batch = setup.augmented(batch)

    def apply(parameters: Variables) -> tuple[Any, Variables]:
        return setup.apply(parameters, statistics, batch, training=True)

    if setup.remat:
        apply = jax.checkpoint(apply, policy=jax.checkpoint_policies.save_only_these_names(KEPT))

    def loss_of(parameters: Variables) -> tuple[jax.Array, tuple[dict[str, jax.Array], Variables]]:
        outputs, updated = apply(parameters)
        loss, parts = setup.task.loss(outputs, batch)
        return loss, (parts, updated)

    (loss, (parts, updated)), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
    return loss, parts, gradients, updated


def new_state(
    setup: TrainingSetup,
    optimizer: optax.GradientTransformation,
    seed: int,
    *,
    average: bool = False,
    pretrain: Callable[[nnx.Module], object] | None = None,
) -> TrainState:
    """The state before step 0, the same for the same seed on every mesh, whole on each device.

    Args:
        setup: whose model it is.
        optimizer: whose state it begins.
        seed: draws the parameters.
        average: whether to keep a moving average of the parameters.
        pretrain: puts weights from elsewhere into the model, in place.
    """
    model = setup.new_model(seed)
    if pretrain is not None:
        pretrain(model)
    drawn = nnx.state(model, nnx.Param), nnx.state(model, nnx.Not(nnx.Param))
    if setup.mesh is not None:
        drawn = jax.device_put(drawn, whole(setup.mesh))
    complete = partial(_complete_state, optimizer=optimizer, average=average)
    state: TrainState = jax.jit(complete, out_shardings=whole(setup.mesh))(*drawn)
    return state


def abstract_state(
    setup: TrainingSetup, optimizer: optax.GradientTransformation, *, average: bool = False
) -> TrainState:
    """`new_state` as shapes, dtypes and shardings, without arrays: what a checkpoint is read into."""
    model = nnx.eval_shape(lambda: setup.new_model(0))
    drawn = nnx.state(model, nnx.Param), nnx.state(model, nnx.Not(nnx.Param))
    shapes = jax.eval_shape(partial(_complete_state, optimizer=optimizer, average=average), *drawn)
    sharding = whole(setup.mesh) or jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def abstract(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]

    state: TrainState = jax.tree.map(abstract, shapes)
    return state


def _complete_state(
    parameters: Variables, statistics: Variables, *, optimizer: optax.GradientTransformation, average: bool
) -> TrainState:
    return TrainState(
        parameters=parameters,
        statistics=statistics,
        optimizer_state=optimizer.init(parameters),
        average=jax.tree.map(jnp.copy, parameters) if average else None,
        step=jnp.zeros((), jnp.int32),
    )


def compile_step(
    setup: TrainingSetup,
    optimizer: optax.GradientTransformation,
    *,
    schedule: Schedule | None = None,
    average_decay: float = 0.0,
    average_every: int = 1,
) -> jax.stages.Wrapped:
    """The jitted step (state, batch) -> (state, {"loss", its parts, "gradient_norm", "learning_rate"}).

    The given state's memory is taken over (donated).

    Args:
        setup: what is trained on what.
        optimizer: of gradients to updates.
        schedule: gives "learning_rate"; without one there is none among the values.
        average_decay: of the parameters' moving average, where the state holds one; it is less after the first
            updates, (1 + update) / (10 + update).
        average_every: steps to an update of the parameters, and so of the average and the rate.
    """

    @partial(
        jax.jit,
        donate_argnums=0,
        out_shardings=whole(setup.mesh),
        compiler_options=_compiler_options(setup.mesh),
    )
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        loss, parts, gradients, statistics = loss_and_gradients(
            setup, state.parameters, state.statistics, batch
        )
        updates, optimizer_state = optimizer.update(gradients, state.optimizer_state, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        average = state.average
        if average is not None:
            update, rest = jnp.divmod(state.step + 1, average_every)
            decay = jnp.minimum(average_decay, update / (9 + update))
            share = jnp.where(rest == 0, 1 - decay, 0)
            average = optax.incremental_update(parameters, average, share)
        after = TrainState(
            parameters=parameters,
            statistics=statistics,
            optimizer_state=optimizer_state,
            average=average,
            step=state.step + 1,
        )
        values = {**parts, "loss": loss, "gradient_norm": optax.tree.norm(gradients)}
        if schedule is not None:
            values["learning_rate"] = schedule(state.step // average_every)
        return after, values

    return step


def compile_prediction(setup: TrainingSetup) -> jax.stages.Wrapped:
    """The jitted (parameters, statistics, batch) -> (predictions, truth), each whole on every device.

    `truth` holds the task's `truth` keys, `id` and `valid`, as far as the batch has them.
    """

    @partial(jax.jit, out_shardings=whole(setup.mesh), compiler_options=_compiler_options(setup.mesh))
    def predict(
        parameters: Variables, statistics: Variables, batch: Batch
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        outputs, _ = setup.apply(parameters, statistics, batch, training=False)
        wanted = (*setup.task.truth, *setup.task.include, "id", "valid")
        truth = {key: batch[key] for key in wanted if key in batch}
        return setup.task.predict(outputs, batch), truth

    return predict


def _compiler_options(mesh: Mesh | None) -> dict[str, int] | None:
    """On CPUs LLVM's first level: a third less to compile, the same time a step (a small RetinaNet: 22 s, not 31)."""
    return {"xla_backend_optimization_level": 1} if platform_of(mesh) == "cpu" else None


def whole(mesh: Mesh | None) -> NamedSharding | None:
    """The sharding of what every device holds a copy of."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]


def to_host(tree: Mapping[str, jax.Array]) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays that are whole on every device, as NumPy's, on every process."""
    return {key: np.asarray(value.addressable_data(0)) for key, value in tree.items()}
