"""Training step on one device or on a mesh.

A custom training loop needs only this file and `mesh`: a `TrainingSetup` takes any model and any task.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from halofeed.loader.device import DeviceAugmentation, Normalization, augment_on_device
from halofeed.schemas.partition import Dims
from halofeed.system.errors import UsageError
from halofeed.trainer.mesh import platform_of
from halofeed.trainer.models.layers import SAVED, Layers, Pass, name_layers
from halofeed.trainer.optimizers import Schedule
from halofeed.trainer.task import DeviceBatch, TrainingTask

Variables = nnx.State[Any, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Everything that a step changes.

    Args:
        parameters: parameters of the model.
        statistics: running statistics of the norms.
        optimizer_state: state of the optimizer, such as momentum.
        average: moving average of the parameters; None if there is none.
        step: number of steps taken, int32.
    """

    parameters: Variables
    statistics: Variables
    optimizer_state: optax.OptState
    average: Variables | None
    step: jax.Array

    @property
    def best_parameters(self) -> Variables:
        """Parameters for evaluation and prediction: the average if there is one."""
        return self.parameters if self.average is None else self.average


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """Model, task, precision and mesh of a training: all inputs of compilation except optimizer and batch shapes.

    Args:
        build: function that makes the model, whose `__call__(image, run: Pass)` returns outputs, any pytree.
        task: task that computes the loss of these outputs.
        normalization: normalization of the stored pixels.
        augment: augmentations of a training batch on the device, in order, before the normalization.
        augment_seed: seed of these augmentations.
        compute_dtype: dtype of the activations.
        param_dtype: dtype of the parameters and the loss.
        norm_decay: decay of the norms' running statistics.
        norm_epsilon: value that batch norm adds to the variance, unless the model has its own.
        norm_parts: parts of the image along each axis, batch first, over which batch norm has separate statistics;
            None has one part, the complete batch.
        remat: keep only the convolutions' outputs for the backward pass and compute the rest again.
        mesh: mesh of the devices; None for one device.
        dims: number of parts of `image` along each axis, batch first; None if it is not split.
    """

    build: Callable[[Layers], nnx.Module]
    task: TrainingTask
    normalization: Normalization
    augment: tuple[DeviceAugmentation, ...] = ()
    augment_seed: int = 0
    compute_dtype: str = "bfloat16"
    param_dtype: str = "float32"
    norm_decay: float = 0.997
    norm_epsilon: float = 1e-3
    norm_parts: Dims = None
    remat: bool = False
    mesh: Mesh | None = field(default=None, compare=False)
    dims: Dims = None

    def __post_init__(self) -> None:
        # A norm and a convolution would need every channel of every core.
        if self.dims is not None and self.dims[-1] > 1:
            raise UsageError(
                f"partition {list(self.dims)}: the models do not split channels; split depth, height or width"
            )

    def new_model(self, seed: int) -> nnx.Module:
        """Make the model with initial parameters sampled from `seed`."""
        return self.build(
            Layers(
                dtype=jnp.dtype(self.compute_dtype),
                param_dtype=jnp.dtype(self.param_dtype),
                rngs=nnx.Rngs(seed),
                norm_decay=self.norm_decay,
                norm_epsilon=self.norm_epsilon,
            )
        )

    @cached_property
    def abstract_model(self) -> nnx.Module:
        """Model with shapes and dtypes in place of arrays.

        Making it takes 0.09 s outside of a traced function and 0.25 s inside (`retinanet_small`), so it is made once.
        """
        model: nnx.Module = nnx.eval_shape(lambda: self.new_model(0))
        return model

    def graph(self) -> nnx.GraphDef[Any]:
        """Return the model's structure, without arrays."""
        return nnx.graphdef(self.abstract_model)

    def augmented(self, batch: DeviceBatch) -> DeviceBatch:
        """Return the batch with the augmentations applied."""
        if not self.augment:
            return batch
        values = None if batch["image"].dtype == np.uint8 else self.normalization.values()
        return augment_on_device(batch, self.augment, seed=self.augment_seed, values=values)

    def apply(
        self, parameters: Variables, statistics: Variables, batch: DeviceBatch, *, training: bool
    ) -> tuple[Any, Variables]:
        """Return the model's outputs for a batch, and the updated statistics of the norms."""
        model: Any = nnx.merge(self.graph(), parameters, statistics, copy=True)
        name_layers(model)
        image = self.normalization(batch["image"], self.compute_dtype)
        run = Pass(
            valid=batch.get("valid"),
            training=training,
            mesh=self.mesh,
            dims=self.dims,
            norm_parts=self.norm_parts,
        )
        return model(image, run), nnx.state(model, nnx.Not(nnx.Param))


def predict(
    setup: TrainingSetup, parameters: Variables, statistics: Variables, batch: DeviceBatch
) -> dict[str, jax.Array]:
    """Return the task's predictions for one batch; a task with `mirror_axes` averages over mirrored images.

    The mean is over all combinations of the axes, as in nnU-Net's `_internal_maybe_mirror_and_predict`, but of
    probabilities, as windows are blended.
    """
    axes: tuple[int, ...] = getattr(setup.task, "mirror_axes", ())
    if not axes:
        outputs, _ = setup.apply(parameters, statistics, batch, training=False)
        return setup.task.predict(outputs, batch)
    task: Any = setup.task  # only Segmentation has `mirror_axes`

    def mirrored(values: jax.Array, flips: jax.Array) -> jax.Array:
        for axis, flip in zip(axes, flips, strict=True):
            values = jnp.where(flip, jnp.flip(values, axis), values)
        return values

    def probabilities(flips: jax.Array) -> jax.Array:
        given = {**batch, "image": mirrored(batch["image"], flips)}
        outputs, _ = setup.apply(parameters, statistics, given, training=False)
        return mirrored(task.probabilities(outputs), flips)

    # A loop over one program: eight copies of the model would take eight times as long to compile.
    all_flips = jnp.asarray(list(itertools.product((False, True), repeat=len(axes))))
    first = probabilities(all_flips[0])
    total, _ = jax.lax.scan(lambda total, flips: (total + probabilities(flips), None), first, all_flips[1:])
    predictions: dict[str, jax.Array] = task.masks(total / len(all_flips))
    return predictions


def loss_and_gradients(
    setup: TrainingSetup, parameters: Variables, statistics: Variables, batch: DeviceBatch
) -> tuple[jax.Array, dict[str, jax.Array], Variables, Variables]:
    """Compute the loss of one batch, its parts, the gradients and the updated statistics of the norms.

    Args:
        setup: model, task, precision, mesh and dims.
        parameters: parameters of a model of `TrainingSetup.new_model`.
        statistics: norm statistics of the same model.
        batch: global arrays: `image` [batch, ..., channel] of any dtype, the task's keys, and optionally `valid`,
            bool [batch], False for rows that do not count.

    Returns:
        The loss (a scalar), its parts by name, the gradients (like `parameters`), the statistics (like `statistics`).
    """
    batch = setup.augmented(batch)

    def apply(parameters: Variables) -> tuple[Any, Variables]:
        return setup.apply(parameters, statistics, batch, training=True)

    # The outputs of convolutions are kept, because they cost most; norms and activations are cheap to repeat.
    if setup.remat:
        apply = jax.checkpoint(apply, policy=jax.checkpoint_policies.save_only_these_names(SAVED))

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
    """Make the state before step 0, replicated on every device; a seed gives the same state on every mesh.

    Args:
        setup: setup that makes the model.
        optimizer: optimizer whose state is initialized.
        seed: seed of the initial parameters.
        average: keep a moving average of the parameters.
        pretrain: function that loads pretrained weights into the model, in place.
    """
    model = setup.new_model(seed)
    if pretrain is not None:
        pretrain(model)
    initial = nnx.state(model, nnx.Param), nnx.state(model, nnx.Not(nnx.Param))
    # JAX cannot copy an array that `pretrain` put on a device to another host. It checks that arrays in the memory of
    # the hosts are the same on all of them.
    if jax.process_count() > 1:
        initial = jax.device_get(initial)
    if setup.mesh is not None:
        initial = jax.device_put(initial, replicated_sharding(setup.mesh))
    complete = partial(_complete_state, optimizer=optimizer, average=average)
    state: TrainState = jax.jit(complete, out_shardings=replicated_sharding(setup.mesh))(*initial)
    return state


def abstract_state(
    setup: TrainingSetup, optimizer: optax.GradientTransformation, *, average: bool = False
) -> TrainState:
    """Return `new_state` as shapes, dtypes and shardings, without arrays: the template to restore a checkpoint."""
    model = setup.abstract_model
    initial = nnx.state(model, nnx.Param), nnx.state(model, nnx.Not(nnx.Param))
    shapes = jax.eval_shape(partial(_complete_state, optimizer=optimizer, average=average), *initial)
    sharding = replicated_sharding(setup.mesh) or jax.sharding.SingleDeviceSharding(jax.devices()[0])

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
    """Return the jitted step (state, batch) -> (state, {"loss", its parts, "gradient_norm", "learning_rate"}).

    The step donates the memory of the given state.

    Args:
        setup: model, task, precision and mesh.
        optimizer: optimizer that turns gradients into updates.
        schedule: learning-rate schedule that gives "learning_rate"; None leaves this value out.
        average_decay: decay of the moving average of the parameters, if the state has one. The first updates use
            the smaller (1 + update) / (10 + update).
        average_every: steps per update of the parameters, and so of the average and the rate.
    """
    setup.graph()  # made here, outside of the traced function

    @partial(
        jax.jit,
        donate_argnums=0,
        out_shardings=replicated_sharding(setup.mesh),
        compiler_options=_compiler_options(setup.mesh),
    )
    def step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, dict[str, jax.Array]]:
        loss, parts, gradients, statistics = loss_and_gradients(
            setup, state.parameters, state.statistics, batch
        )
        updates, optimizer_state = optimizer.update(gradients, state.optimizer_state, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        average = state.average
        if average is not None:
            update, rest = jnp.divmod(state.step + 1, average_every)
            # As tf.train.ExponentialMovingAverage with num_updates: early averages forget the initial parameters.
            decay = jnp.minimum(average_decay, update / (9 + update))
            # Between two updates of accumulate_steps the parameters stay the same, and so does their average.
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
        # The step returns the rate: a separate program for it cost 28 to 45 ms on an H100 (docs/decisions.md).
        if schedule is not None:
            values["learning_rate"] = schedule(state.step // average_every)
        return after, values

    return step


def compile_prediction(setup: TrainingSetup) -> jax.stages.Wrapped:
    """Return the jitted (parameters, statistics, batch) -> (predictions, truth), replicated on every device.

    `truth` holds those of the task's `truth` and `include` keys, `id` and `valid` that the batch has.
    """
    setup.graph()  # made here, outside of the traced function

    @partial(
        jax.jit, out_shardings=replicated_sharding(setup.mesh), compiler_options=_compiler_options(setup.mesh)
    )
    def predict_with_truth(
        parameters: Variables, statistics: Variables, batch: DeviceBatch
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        keys = (*setup.task.truth, *setup.task.include, "id", "valid")
        truth = {key: batch[key] for key in keys if key in batch}
        return predict(setup, parameters, statistics, batch), truth

    return predict_with_truth


def _compiler_options(mesh: Mesh | None) -> dict[str, int] | None:
    """Return LLVM's optimization level 1 for CPUs: steps as fast, compilation in 22 s, not 31 (a small RetinaNet)."""
    return {"xla_backend_optimization_level": 1} if platform_of(mesh) == "cpu" else None


def replicated_sharding(mesh: Mesh | None) -> NamedSharding | None:
    """Return the sharding of arrays that are replicated on every device."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]


def to_host(tree: Mapping[str, jax.Array]) -> dict[str, np.ndarray[Any, Any]]:
    """Return replicated arrays as NumPy arrays, on every process."""
    return {key: np.asarray(value.addressable_data(0)) for key, value in tree.items()}
