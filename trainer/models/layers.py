"""Layers of the models, the context of a pass through a model, initializers, and names of layers in programs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.typing import DTypeLike

from halofeed.schemas.partition import Dims
from halofeed.system.errors import UsageError
from halofeed.trainer.mesh import constrain, reason_not_split
from halofeed.trainer.models.convolutions import (
    VOLUME_CONVOLUTIONS,
    computed_by_planes,
    convolve_grouped,
    convolve_planes,
    is_grouped,
)
from halofeed.trainer.models.norm import NORMS, Norm

Initializer = Callable[[jax.Array, Sequence[int], DTypeLike], jax.Array]


def normal(deviation: float) -> Initializer:
    """Return an initializer of Flax, (key, shape, dtype) -> array, for a normal distribution with the mean 0.

    Args:
        deviation: standard deviation of the distribution.
    """
    return partial(_sample_normal, deviation)


def truncated_normal(deviation: float) -> Initializer:
    """Return an initializer for a normal distribution without the values beyond two deviations, as in TensorFlow.

    Args:
        deviation: standard deviation of the distribution before values are left out.
    """
    return partial(_sample_normal, deviation, limit=2.0)


KERNEL_INITIALIZERS: dict[str, Callable[[float], Initializer]] = {
    "normal": normal,
    "truncated_normal": truncated_normal,
}
"""Initializers of kernels by their names in a model's options."""


def kernel_initializer(name: str, deviation: float) -> Initializer:
    """Return the initializer of `KERNEL_INITIALIZERS` with a deviation; raise UsageError for an unknown name."""
    if name not in KERNEL_INITIALIZERS:
        known = ", ".join(KERNEL_INITIALIZERS)
        raise UsageError(f"model.kernel_init: expected one of {known}, got {name!r}")
    return KERNEL_INITIALIZERS[name](deviation)


def he_normal(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Sample kernels that keep the variance through relu: the deviation is sqrt(2 / inputs of one output).

    Source: He et al., Delving Deep into Rectifiers (arXiv 1502.01852).
    """
    return _sample_normal(math.sqrt(2 / math.prod(shape[:-1])), key, shape, dtype)


def lecun_normal(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Sample kernels that keep the variance through a linear layer: the deviation is sqrt(1 / inputs of one output)."""
    return _sample_normal(math.sqrt(1 / math.prod(shape[:-1])), key, shape, dtype)


def glorot_uniform(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Sample kernels evenly up to sqrt(6 / (inputs + outputs of one position)), the default of Keras' convolutions."""
    limit = math.sqrt(6 / (math.prod(shape[:-2]) * sum(shape[-2:])))
    if isinstance(key, jax.core.Tracer):
        return jax.random.uniform(key, shape, dtype, -limit, limit)
    return jnp.asarray(_generator(key).uniform(-limit, limit, tuple(shape)), dtype)


def _generator(key: jax.Array) -> np.random.Generator:
    words: Any = np.asarray(jax.random.key_data(key))
    return np.random.default_rng(words)


def _sample_normal(
    deviation: float,
    key: jax.Array,
    shape: Sequence[int],
    dtype: DTypeLike = jnp.float32,
    limit: float = math.inf,
) -> jax.Array:
    """Sample with NumPy, because XLA takes seconds on a CPU to compile a program for every shape."""
    if isinstance(key, jax.core.Tracer):
        # The caller wants only shapes, or samples inside its own program.
        draw = partial(jax.random.truncated_normal, lower=-limit, upper=limit)
        traced = (draw if limit < math.inf else jax.random.normal)(key, shape=shape, dtype=dtype)
        return traced * jnp.asarray(deviation, dtype)
    generator = _generator(key)
    values = generator.standard_normal(tuple(shape), np.float64)
    # As TensorFlow's truncated normal: values beyond two deviations are drawn again.
    while limit < math.inf and (beyond := np.abs(values) > limit).any():
        values[beyond] = generator.standard_normal(int(beyond.sum()))
    return jnp.asarray(values * deviation, dtype)


_NAME = "name_in_program"


def name_layers(model: nnx.Module) -> None:
    """Make every layer of a model, in place, mark its operations with its path: `pyramid.smoothing.0.convolution`."""
    for path, layer in list(nnx.iter_modules(model)):
        if path and callable(layer):
            setattr(layer, _NAME, ".".join(map(str, path)))
            layer.__class__ = _named_class(type(layer))


@functools.cache
def _named_class(layer_class: type[nnx.Module]) -> type[nnx.Module]:
    # `halofeed.trainer.plan.hlo` skips this function by its name.
    def call_in_named_scope(layer: Any, *given: Any, **options: Any) -> Any:
        with jax.named_scope(getattr(layer, _NAME)):
            return layer_class.__call__(layer, *given, **options)  # type: ignore[operator]

    members = {"__call__": call_in_named_scope, "__doc__": layer_class.__doc__}
    return type(layer_class.__name__, (layer_class,), members)


Activation = Callable[[jax.Array], jax.Array]
ConvolutionPadding = str | Sequence[tuple[int, int]]
SAVED = "kept"
"""Name of activations that are saved for the backward pass under `TrainingSetup.remat`, not computed again."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Context of one pass of a batch through a model.

    Args:
        valid: bool [batch], False for rows that do not enter the statistics of a norm; None is all True.
        training: norms use this batch's statistics and update the running ones; False uses the running ones.
        mesh: mesh of the activations; None for one device.
        dims: number of parts of the image along each axis, batch first; None if it is not split.
        norm_parts: number of parts of the image along each axis, batch first, in which batch norm has separate
            statistics; None has one part. It does not depend on the mesh.
    """

    valid: jax.Array | None = None
    training: bool = True
    mesh: Mesh | None = None
    dims: Dims = None
    norm_parts: Dims = None

    @property
    def parts(self) -> tuple[int, ...]:
        """Number of parts of each axis between batch and channel."""
        return () if self.dims is None else tuple(self.dims[1:-1])

    def is_split(self, shape: Sequence[int]) -> bool:
        """Return whether an activation of that shape is split."""
        return self.mesh is not None and self.dims is not None and reason_not_split(shape, self.dims) is None

    def norm_options(self, shape: Sequence[int]) -> dict[str, Any]:
        """Return the arguments of a norm for an activation of that shape, which may be too small for parts in space."""
        parts = None if self.norm_parts is None else tuple(self.norm_parts[:-1])
        # A coarse level has too few rows for parts in space, and keeps those of the batch.
        if parts is not None and reason_not_split(shape[:-1], parts) is not None:
            parts = (parts[0], *[1] * (len(parts) - 1))
        return {"valid": self.valid, "training": self.training, "parts": parts}

    def hold(self, activation: jax.Array, *, replicate: bool = False) -> jax.Array:
        """Constrain an activation to its split; call it after every layer that mixes neighbors or changes the size.

        `replicate` replicates the activation on every core of its replica instead.
        """
        return constrain(activation, self.mesh, None if replicate else self.dims)

    def hold_split(self, activation: jax.Array) -> jax.Array:
        """Constrain an activation to its split even with a single row per core; it must not be convolved then."""
        return constrain(activation, self.mesh, self.dims, least_rows=1)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Factory of layers with one precision and common options.

    Args:
        dtype: dtype of the activations.
        param_dtype: dtype of the parameters, the norm statistics and the outputs of heads.
        rngs: random number generators of the initial parameters.
        norm_decay: decay of batch norm's running statistics.
        norm_epsilon: value added to a norm's variance.
        norm_kind: key of `NORMS`.
        volume_convolution: one of `VOLUME_CONVOLUTIONS`, for the convolutions in `ConvolutionNorm`.

    Raises:
        UsageError: `norm_kind` or `volume_convolution` is unknown.
    """

    dtype: DTypeLike = jnp.bfloat16
    param_dtype: DTypeLike = jnp.float32
    rngs: nnx.Rngs
    norm_decay: float = 0.997
    norm_epsilon: float = 1e-3
    norm_kind: str = "batch"
    volume_convolution: str = "auto"

    def __post_init__(self) -> None:
        for name, known in (("norm_kind", tuple(NORMS)), ("volume_convolution", VOLUME_CONVOLUTIONS)):
            if (value := getattr(self, name)) not in known:
                raise UsageError(f"{name}: expected one of {', '.join(known)}, got {value!r}")

    def convolution(
        self,
        before: int,
        after: int,
        kernel: Sequence[int] = (3, 3),
        *,
        stride: int = 1,
        padding: ConvolutionPadding = "SAME",
        bias: bool = False,
        groups: int = 1,
        kernel_init: Any = None,
        bias_init: Any = None,
    ) -> nnx.Conv:
        """Make a convolution over `len(kernel)` axes, from `before` to `after` channels."""
        return nnx.Conv(
            before,
            after,
            tuple(kernel),
            strides=stride,
            padding=padding,
            use_bias=bias,
            feature_group_count=groups,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=kernel_init or he_normal,
            bias_init=bias_init or nnx.initializers.zeros_init(),
            rngs=self.rngs,
        )

    def norm(self, features: int, *, epsilon: float | None = None) -> Norm:
        """Make a norm of `norm_kind` over the image; batch norm includes the batch, unless a pass has `norm_parts`."""
        return NORMS[self.norm_kind](
            features,
            decay=self.norm_decay,
            epsilon=self.norm_epsilon if epsilon is None else epsilon,
            param_dtype=self.param_dtype,
        )

    def dense(self, before: int, after: int, **options: Any) -> nnx.Linear:
        """Make a dense layer in the parameters' precision."""
        options = {"kernel_init": lecun_normal, **options}
        return nnx.Linear(before, after, param_dtype=self.param_dtype, rngs=self.rngs, **options)


class ConvolutionNorm(nnx.Module):
    """Convolution, norm and activation function (None for none), constrained to the split.

    `recompute_halo` makes the backward pass exchange the halo rows of a split input again instead of saving the
    extended input, which on a TPU takes many times the memory for three channels because of padding.
    """

    def __init__(
        self,
        layers: Layers,
        before: int,
        after: int,
        kernel: Sequence[int] = (3, 3),
        *,
        activation: Activation | None = nnx.relu,
        epsilon: float | None = None,
        recompute_halo: bool = False,
        **options: Any,
    ) -> None:
        self.recompute_halo = recompute_halo
        self.convolution = layers.convolution(before, after, kernel, **options)
        self.norm = layers.norm(after, epsilon=epsilon)
        self.activation = activation
        self.volume_convolution = layers.volume_convolution

    def __call__(self, x: jax.Array, run: Pass, then: Activation | None = None) -> jax.Array:
        """Map [batch, ..., before] to [batch, ..., after].

        With `then`, return its result for the output; the backward pass computes all after the convolution again.
        """
        x = save_for_backward(self.convolve(x, run))
        if then is None:
            return self._activated(self.norm(x, **run.norm_options(x.shape)))
        normalize = self.norm.bind_moments(x, **run.norm_options(x.shape))
        finished: jax.Array = jax.checkpoint(lambda x: then(self._activated(normalize(x))))(x)
        return finished

    def convolve(self, x: jax.Array, run: Pass) -> jax.Array:
        """Return the convolution alone, constrained to the split."""
        # On CPUs by planes: 89 instead of 405 ms for a 3-D convolution (docs/decisions.md).
        if computed_by_planes(self.convolution, self.volume_convolution, run.mesh):
            return run.hold(convolve_planes(self.convolution, x, run.mesh, run.dims))
        # XLA's gradient is wrong where several cores hold the same activation (`convolve_grouped`).
        if is_grouped(self.convolution):
            return run.hold(convolve_grouped(self.convolution, x, run.mesh, run.dims))
        if self.recompute_halo and run.dims is not None:
            return run.hold(jax.checkpoint(self.convolution)(x))
        return run.hold(self.convolution(x))

    def finish_images(self, x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        """Normalize and activate the output of `convolve` by moments [batch, channel] of the norm's `combine`."""
        return self._activated(self.norm.normalize_images(x, mean, variance))

    def _activated(self, x: jax.Array) -> jax.Array:
        return x if self.activation is None else self.activation(x)


def save_for_backward(x: jax.Array) -> jax.Array:
    """Return the array marked as `SAVED`."""
    saved: jax.Array = checkpoint_name(x, SAVED)  # type: ignore[no-untyped-call]
    return saved


def max_pool(
    x: jax.Array, window: Sequence[int], strides: Sequence[int], padding: ConvolutionPadding = "VALID"
) -> jax.Array:
    """Return `nnx.max_pool` with a type."""
    pooled: jax.Array = nnx.max_pool(x, window, strides=strides, padding=padding)  # type: ignore[no-untyped-call]
    return pooled


def mean_over_space(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Return the mean over all axes between batch and channel: [batch, ..., channel] to [batch, channel]."""
    return jnp.mean(x.astype(dtype), axis=tuple(range(1, x.ndim - 1)))
