"""Comparison of a model's gradients on a partitioned mesh with those of one device, in float64.

XLA can compute wrong gradients on a partition while the loss is exact (docs/partition.md). In float32, gradients of
deep layers differ by percents for reasons of rounding alone. In float64 a right gradient differs by about 1e-15.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend.core import get_opaque_trace_state
from jax.sharding import Mesh, SingleDeviceSharding
from numpy.typing import NDArray

from halofeed.loader.device import Normalization
from halofeed.loader.mesh_batches import mesh_specs, place_batch
from halofeed.schemas.partition import REPLICA_AXIS, Dims, Partition
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural
from halofeed.trainer.mesh import platform_of
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.platform import DEVICE_COUNT_FLAG
from halofeed.trainer.step import TrainingSetup, Variables, loss_and_gradients, replicated_sharding
from halofeed.trainer.task import DeviceBatch

MAX_DIFFERENCE = 1e-9
"""Limit of a gradient's difference, relative to its own norm and that of all gradients. Right ones stay below 1e-13."""
_ZERO = 1e-14
"""A gradient below this share of all gradients is only rounding, and cannot be compared."""
_MAX_SHOWN = 6
_QUICKLY_COMPILED: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
}
"""Options of the CPU's compiler. They only change how it makes machine code: a quarter of the time."""
Build = Callable[[Layers], nnx.Module]
Loss = Callable[[Any, DeviceBatch], jax.Array]


@dataclass(frozen=True, kw_only=True)
class GradientDifference:
    """Gradient of one parameter that differs from that of one device.

    Args:
        parameter: path of the parameter, "encoder.0.convolution.kernel".
        difference: norm of the difference, divided by the norm of one device's gradient.
        ratio: norm of the gradient, divided by that of one device: about 4 if it is summed four times.
    """

    parameter: str
    difference: float
    ratio: float


@dataclass(frozen=True, kw_only=True)
class GradientCheck:
    """Result of `check_gradients`; as text it says what was compared, and each parameter whose gradient is wrong.

    Args:
        dims: number of parts of the image along each axis, batch first.
        replicas: number of replicas on the mesh.
        parameters: number of parameters whose gradients were compared.
        largest: largest relative difference of a gradient.
        loss_difference: relative difference of the loss.
        wrong: parameters whose gradients differ, the largest difference first.
        layer: path of the layer at which the fault begins; "" if the gradients are right or no layer can be named.
        unused: paths of parameters without a gradient, which were not compared.
        advice: repair of a known fault, with the call that computes it right; "" for other faults.
    """

    dims: tuple[int, ...]
    replicas: int
    parameters: int
    largest: float
    loss_difference: float
    wrong: tuple[GradientDifference, ...] = ()
    layer: str = ""
    unused: tuple[str, ...] = ()
    advice: str = ""

    @property
    def is_right(self) -> bool:
        """True if the loss and every gradient are those of one device."""
        return not self.wrong and self.loss_difference <= MAX_DIFFERENCE

    def __str__(self) -> str:
        where = f"{list(self.dims)} over {plural(math.prod(self.dims), 'core')}, {plural(self.replicas, 'replica')}"
        lines = [f"wrong on {where}"]
        if self.is_right:
            count = plural(self.parameters, "parameter")
            lines = [
                f"right on {where}: the gradients of {count} are those of one device (largest difference "
                f"{self.largest:.1e}, limit {MAX_DIFFERENCE:.0e})"
            ]
        else:
            lines += self._faults()
        if self.unused:
            lines.append(f"not compared, because their gradient is zero: {_shortened(self.unused)}")
        return "\n".join(lines)

    def _faults(self) -> list[str]:
        is_forward = not self.loss_difference <= MAX_DIFFERENCE
        lines = [
            f"loss differs by {self.loss_difference:.1e}"
            if is_forward
            else "loss is right, gradients are not"
        ]
        if self.layer:
            what = "the first layer whose output differs; the fault is in it or directly before it"
            back = "the last layer whose gradient differs; the fault is in it or directly after it"
            lines.append(f"layer {self.layer}: {what if is_forward else back}")
        lines += [
            f"  {one.parameter}: differs by {100 * one.difference:.3g} % of its norm, {one.ratio:.3f} times as long"
            for one in self.wrong[:_MAX_SHOWN]
        ]
        if len(self.wrong) > _MAX_SHOWN:
            lines.append(f"  and {len(self.wrong) - _MAX_SHOWN} more of {self.parameters}")
        return [*lines, self.advice] if self.advice else lines


def check_gradients(
    model: Build | nnx.Module,
    mesh: Mesh,
    *,
    dims: Dims = None,
    image_shape: tuple[int, ...] = (64, 64, 3),
    batch: Mapping[str, NDArray[Any]] | None = None,
    loss: Loss | None = None,
) -> GradientCheck:
    """Compare the gradients of a model on a partitioned mesh with those of one device, in float64.

    The parameters are noise, so that no gradient is zero because a layer begins with zeros. A level of few rows is
    where faults are: compare with the image size and the split that you train with.

    Args:
        model: class or function that makes the model from `Layers`, as `TrainingSetup.build`, or a model whose layers
            compute in the precision of their parameters. It is called with an image and a `Pass`, whose mesh and
            dims it must use, because one device has no mesh.
        mesh: mesh of `make_mesh`, of virtual CPU devices or of GPUs.
        dims: number of parts of the image along each axis, batch first; None splits the rows over all cores.
        image_shape: shape of an image, channel last; depth first for a volume.
        batch: arrays by name that the loss needs, with `image` (float, normalized) and without an image shape; None
            draws images, two for each replica.
        loss: function of the model's outputs and the batch that returns a scalar; None takes a weighted sum of all
            outputs, on which every output has an influence of its own.

    Returns:
        The result; `is_right` is True if the loss and all gradients agree, and `str` names each that does not.

    Raises:
        UsageError: the mesh has one device or is one of TPUs, which have no float64; or the model cannot be made from
            `Layers`, cannot be called with an image and a `Pass`, uses other devices, or has layers of another
            precision.
        PartitionError: the mesh is not one of `make_mesh`, or the image does not divide.

    Source: docs/partition.md, "Silently wrong gradients".

    >>> from halofeed.trainer.mesh import make_mesh
    >>> class Blur(nnx.Module):
    ...     def __init__(self, layers):
    ...         self.convolution = nnx.Conv(3, 2, (3, 3), rngs=layers.rngs)
    ...     def __call__(self, image, run):
    ...         return run.hold(self.convolution(image)).mean((1, 2))
    >>> devices = jax.devices()
    >>> mesh = make_mesh(min(2, len(devices)), devices[:2])
    >>> mesh.size < 2 or check_gradients(Blur, mesh, image_shape=(8, 8, 3)).is_right
    True
    """
    _check_mesh(mesh)
    cores = mesh.size // mesh.shape[REPLICA_AXIS]
    shape = image_shape if batch is None else batch["image"].shape[1:]
    parts = tuple(dims) if dims is not None else (1, cores, *[1] * (len(shape) - 1))
    with jax.enable_x64(True):
        setup = TrainingSetup(
            build=_in_float64(model),
            task=_Loss(_weighted_sum if loss is None else loss),  # type: ignore[arg-type]
            normalization=Normalization(mean=(0.0,) * shape[-1], std=(1.0,) * shape[-1]),
            compute_dtype="float64",
            param_dtype="float64",
        )
        _check_model(setup)
        drawn = _drawn_batch(shape, 2 * mesh.shape[REPLICA_AXIS]) if batch is None else dict(batch)
        state = _drawn_state(setup)
        partition = Partition(cores_per_replica=cores, dims={"image": parts})
        one = _Run(setup, state, jax.device_put(drawn, mesh.devices.flat[0]))
        many = _Run(replace(setup, mesh=mesh, dims=parts), state, _placed(mesh, partition, drawn))
        return _compare(one, many)


def _check_mesh(mesh: Mesh) -> None:
    if REPLICA_AXIS not in mesh.shape:
        raise UsageError(
            f"check_gradients: expected a mesh with an axis {REPLICA_AXIS}, got {dict(mesh.shape)}; make it with "
            "halofeed.make_mesh(cores_per_replica=4)"
        )
    if mesh.size < 2:
        raise UsageError(
            "check_gradients: the mesh has one device, so nothing is split; set "
            f"XLA_FLAGS={DEVICE_COUNT_FLAG}=8 before JAX starts, and make it with "
            "halofeed.make_mesh(cores_per_replica=4)"
        )
    if platform_of(mesh) == "tpu":
        raise UsageError(
            "check_gradients: TPUs have no float64; run it with JAX_PLATFORMS=cpu and "
            f"XLA_FLAGS={DEVICE_COUNT_FLAG}=8 set before JAX starts"
        )


def _check_model(setup: TrainingSetup) -> None:
    try:
        model: Any = nnx.eval_shape(lambda: setup.new_model(0))
    except AttributeError as error:
        if not isinstance(error.obj, Layers):
            raise
        raise UsageError(
            f"check_gradients: the model is made from Layers, which has no {error.name}; the random numbers are "
            "layers.rngs: pass a function, lambda layers: Model(rngs=layers.rngs)"
        ) from error
    try:
        inspect.signature(model).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"check_gradients: {type(model).__name__} is called with an image and a Pass ({error}); "
            "define __call__(self, image, run)"
        ) from error
    narrow = [
        f"{'.'.join(map(str, path)) or type(layer).__name__} in {jnp.dtype(dtype).name}"
        for path, layer in nnx.iter_modules(model)
        if (dtype := getattr(layer, "dtype", None)) is not None
        and jnp.issubdtype(dtype, jnp.floating)
        and jnp.dtype(dtype) != jnp.float64
    ]
    if narrow:
        raise UsageError(
            "check_gradients: expected layers that compute in float64, because others differ by rounding alone; got "
            f"{_shortened(tuple(narrow))}; make them with dtype=layers.dtype, or without dtype"
        )


@dataclass(frozen=True)
class _Loss:
    """Part of a `TrainingTask` that a step's gradients need."""

    function: Loss

    def loss(self, outputs: Any, batch: DeviceBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        return self.function(outputs, batch), {}


def _weighted_sum(outputs: Any, batch: DeviceBatch) -> jax.Array:
    """Return the mean of all outputs times fixed weights, plus half their mean square."""
    del batch
    total = jnp.zeros((), jnp.float64)
    for leaf in _float_leaves(outputs):
        # Weights without a period that a split could share: a gradient of one row must not stand for another's.
        weights = jnp.cos(0.7 * jnp.arange(leaf.size) ** 1.1).reshape(leaf.shape)
        total += (leaf * weights).mean() + 0.5 * jnp.square(leaf).mean()
    return total


def _float_leaves(tree: Any) -> list[jax.Array]:
    leaves = map(jnp.asarray, jax.tree.leaves(tree))
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size]


def _in_float64(model: Build | nnx.Module) -> Build:
    """Return a function that makes the model; a finished one is copied with parameters in float64."""
    if not isinstance(model, nnx.Module):
        return model
    graph, state = nnx.split(model)

    def cast(leaf: jax.Array) -> jax.Array:
        return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def copied(layers: Layers) -> nnx.Module:
        del layers
        return nnx.merge(graph, jax.tree.map(cast, state), copy=True)

    return copied


def _drawn_batch(shape: tuple[int, ...], rows: int) -> dict[str, NDArray[Any]]:
    """Draw images of noise, so that every gradient depends on every row, of which the last image is not valid."""
    image = np.random.default_rng(3).standard_normal((rows, *shape))
    return {"image": image, "valid": np.arange(rows) < max(1, rows - 1)}


def _drawn_state(setup: TrainingSetup) -> tuple[Variables, Variables]:
    """Draw parameters and statistics by NumPy: XLA takes many times longer to compile the draws than a step."""
    generator = np.random.default_rng(4)

    def draw(path: Any, leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        noise = generator.standard_normal(leaf.shape)
        if leaf.ndim >= 2:
            return noise * np.sqrt(2 / np.prod(leaf.shape[:-1]))
        return 0.05 * noise + ("scale" in jax.tree_util.keystr(path))

    model = nnx.eval_shape(lambda: setup.new_model(0))
    others = nnx.state(model, nnx.Not(nnx.Param))
    # Keys of random numbers, such as a dropout's, have no value that NumPy could draw.
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(others)):
        model = setup.new_model(0)
        others = nnx.state(model, nnx.Not(nnx.Param))
    else:
        others = jax.tree_util.tree_map_with_path(_first_statistic, others)
    return jax.tree_util.tree_map_with_path(draw, nnx.state(model, nnx.Param)), others


def _first_statistic(path: Any, leaf: Any) -> Any:
    name = jax.tree_util.keystr(path)
    return np.full(leaf.shape, float("var" in name), np.float64)


def _placed(mesh: Mesh, partition: Partition, batch: Mapping[str, NDArray[Any]]) -> dict[str, jax.Array]:
    shapes = {key: value.shape for key, value in batch.items()}
    specs = mesh_specs(mesh, partition, shapes)
    return place_batch(mesh, specs, shapes, lambda a, b: {key: value[a:b] for key, value in batch.items()})


@dataclass(frozen=True)
class _Run:
    """Model, its state and a batch, on one device or on a mesh."""

    setup: TrainingSetup
    state: tuple[Variables, Variables]
    batch: dict[str, jax.Array]

    def gradients(self) -> tuple[float, dict[str, NDArray[Any]]]:
        """Return the loss, and the gradients by the paths of their parameters."""
        loss, _, gradients, _ = self._call(partial(loss_and_gradients, self.setup))
        return float(loss), _by_path(gradients)

    def outputs(self) -> dict[tuple[str, int], list[NDArray[Any]]]:
        """Return the outputs of each call of a layer, by path and number of the call, in the order of the calls."""
        names: list[str] = []
        found = self._call(partial(_outputs_of_layers, self.setup, names))
        calls = [(name, names[:place].count(name)) for place, name in enumerate(names)]
        return {
            call: [np.asarray(leaf) for leaf in leaves] for call, leaves in zip(calls, found, strict=True)
        }

    def _call(self, function: Callable[..., Any]) -> Any:
        (device, *_) = self.batch["image"].devices()
        where = replicated_sharding(self.setup.mesh) or SingleDeviceSharding(device)
        arguments = (*jax.device_put(self.state, where), self.batch)
        options = _QUICKLY_COMPILED if device.platform == "cpu" else None
        return jax.jit(function).lower(*arguments).compile(options)(*arguments)


def _outputs_of_layers(
    setup: TrainingSetup,
    names: list[str],
    parameters: Variables,
    statistics: Variables,
    batch: DeviceBatch,
) -> list[list[jax.Array]]:
    """Return the outputs of every call of a layer outside inner loops, and append the layers' paths to `names`."""
    model: Any = nnx.merge(setup.graph(), parameters, statistics, copy=True)
    kept: list[list[jax.Array]] = []
    outside = get_opaque_trace_state(convention="halofeed")  # type: ignore[no-untyped-call]

    def keep(path: str, outputs: Any) -> None:
        # Within jax.lax.map (`images_at_once`) and jax.checkpoint, values only exist while these are traced.
        inside = get_opaque_trace_state(convention="halofeed")  # type: ignore[no-untyped-call]
        if inside != outside:
            return
        names.append(path)
        kept.append(_float_leaves(outputs))

    for path, layer in list(nnx.iter_modules(model)):
        if path and callable(layer):
            layer.__class__ = _recording(type(layer), ".".join(map(str, path)), keep)
    run = Pass(valid=batch.get("valid"), training=True, mesh=setup.mesh, dims=setup.dims)
    model(batch["image"], run)
    return kept


def _recording(layer_class: type[Any], path: str, keep: Callable[[str, Any], None]) -> type[Any]:
    """Return a subclass that hands the outputs of each call to `keep`; an instance can take it as its class."""

    def call(layer: Any, *given: Any, **options: Any) -> Any:
        outputs = layer_class.__call__(layer, *given, **options)
        keep(path, outputs)
        return outputs

    return type(layer_class.__name__, (layer_class,), {"__call__": call, "__doc__": layer_class.__doc__})


def _by_path(tree: Variables) -> dict[str, NDArray[Any]]:
    return {
        ".".join(map(str, path)): np.asarray(jax.tree.leaves(leaf)[0])
        for path, leaf in nnx.to_flat_state(tree)
    }


def _compare(one: _Run, many: _Run) -> GradientCheck:
    expected_loss, expected = _gradients_on_one_device(one)
    loss, found = many.gradients()
    norms = {name: float(np.linalg.norm(leaf)) for name, leaf in expected.items()}
    everything = math.hypot(*norms.values())
    unused = tuple(name for name, norm in norms.items() if not norm > _ZERO * everything)
    far = {name: float(np.linalg.norm(found[name] - leaf)) for name, leaf in expected.items()}
    shares = {name: far[name] / (norms[name] + everything) if everything else far[name] for name in far}
    # `not <=` also finds differences that are no number.
    wrong = [name for name, share in shares.items() if not share <= MAX_DIFFERENCE]
    wrong.sort(key=lambda name: -np.nan_to_num(far[name] / (norms[name] or everything), nan=np.inf))
    loss_difference = abs(loss - expected_loss) / max(abs(expected_loss), 1e-6)
    is_wrong = bool(wrong) or not loss_difference <= MAX_DIFFERENCE
    layer = _first_fault(one, many, wrong) if is_wrong else ""
    assert many.setup.dims is not None and many.setup.mesh is not None
    return GradientCheck(
        dims=tuple(many.setup.dims),
        replicas=many.setup.mesh.shape[REPLICA_AXIS],
        parameters=len(expected) - len(unused),
        largest=max(shares.values(), default=0.0),
        loss_difference=loss_difference,
        wrong=tuple(
            GradientDifference(
                parameter=name,
                difference=far[name] / (norms[name] or everything),
                ratio=float(np.linalg.norm(found[name])) / (norms[name] or everything),
            )
            for name in wrong
        ),
        layer=layer,
        unused=tuple(name for name in unused if name not in wrong),
        advice=_advice(one.setup, layer) if loss_difference <= MAX_DIFFERENCE else "",
    )


def _gradients_on_one_device(one: _Run) -> tuple[float, dict[str, NDArray[Any]]]:
    """Return `gradients` of the run that is compared with; refuse a model that brings its own devices."""
    try:
        return one.gradients()
    except ValueError as error:
        # JAX has no error class of its own for arrays on other devices than the program's.
        if "incompatible devices" not in str(error):
            raise
        raise UsageError(
            "check_gradients: the model uses a mesh of its own, also where it is called on one device; use run.mesh "
            "and run.dims, or run.hold(activation)"
        ) from error


def _first_fault(one: _Run, many: _Run, wrong: list[str]) -> str:
    """Return the first layer whose output differs; if none does, the last one whose gradient does."""
    expected, found = one.outputs(), many.outputs()
    for call, leaves in expected.items():
        for leaf, other in zip(leaves, found.get(call, ()), strict=False):
            # A layer may compute something else where it is split; then the next layer is compared.
            is_comparable = leaf.shape == other.shape
            if is_comparable and not np.linalg.norm(other - leaf) <= MAX_DIFFERENCE * np.linalg.norm(leaf):
                return call[0]
    # Gradients pass through the layers from the last to the first, so those after the fault are right.
    layers = {parameter.rpartition(".")[0] for parameter in wrong}
    last = next((name for name, _ in reversed(expected) if name in layers), "")
    return last or (layers.pop() if len(layers) == 1 else "")


def _advice(setup: TrainingSetup, path: str) -> str:
    """Return the repair of a grouped convolution, whose gradient XLA multiplies on a level that is kept whole."""
    layers: dict[str, Any] = {
        ".".join(map(str, name)): layer
        for name, layer in nnx.iter_modules(nnx.eval_shape(lambda: setup.new_model(0)))
    }
    if getattr(layers.get(path), "feature_group_count", 1) == 1:
        return ""
    return (
        f"{path} is a grouped convolution: call it by halofeed.trainer.models.convolutions."
        "convolve_grouped(layer, image, run.mesh, run.dims)"
    )


def _shortened(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return f"{', '.join(names[:_MAX_SHOWN])}{more}"
