"""How are initial kernels drawn? By NumPy: XLA takes seconds of a CPU to compile the draws of every shape.

What is each layer called in a compiled program? By its place in the model: `pyramid.smoothing.0.convolution`.

Which layers are models put together from, and what does one pass through a model know?
"""

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

from halofeed.errors import UsageError
from halofeed.schemas.partition import Dims
from halofeed.trainer.mesh import constrain, why_whole
from halofeed.trainer.models.convolutions import (
    VOLUME_CONVOLUTIONS,
    computed_by_planes,
    convolve_depthwise,
    convolve_planes,
    is_depthwise,
)
from halofeed.trainer.models.norm import NORMS, Norm

Initializer = Callable[[jax.Array, Sequence[int], DTypeLike], jax.Array]


def normal(deviation: float) -> Initializer:
    """Kernels of a normal distribution about 0.

    Args:
        deviation: its standard deviation.

    Returns:
        an initializer, as Flax takes it: (key, shape, dtype) to an array that only these decide.
    """
    return partial(_draw, deviation)


def he_normal(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Kernels whose outputs keep the variance of relu's inputs: a deviation of sqrt(2 / inputs of one output).

    Source: He et al., Delving Deep into Rectifiers (arXiv 1502.01852).
    """
    return _draw(math.sqrt(2 / math.prod(shape[:-1])), key, shape, dtype)


def lecun_normal(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Kernels that keep the variance of a linear layer's inputs: a deviation of sqrt(1 / inputs of one output)."""
    return _draw(math.sqrt(1 / math.prod(shape[:-1])), key, shape, dtype)


def _draw(
    deviation: float, key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32
) -> jax.Array:
    if isinstance(key, jax.core.Tracer):
        # Only shapes are asked for, or somebody draws inside a program of their own.
        return jax.random.normal(key, shape, dtype) * jnp.asarray(deviation, dtype)
    words: Any = np.asarray(jax.random.key_data(key))
    values = np.random.default_rng(words).standard_normal(tuple(shape), np.float64)
    return jnp.asarray(values * deviation, dtype)


_NAME = "name_in_program"


def name_layers(model: nnx.Module) -> None:
    """Have every layer of a model, in place, put its name on the operations that it makes; what it computes stays."""
    for path, layer in list(nnx.iter_modules(model)):
        if path and callable(layer):
            setattr(layer, _NAME, ".".join(map(str, path)))
            layer.__class__ = _named(type(layer))


@functools.cache
def _named(kind: type[nnx.Module]) -> type[nnx.Module]:
    # `halofeed.trainer.plan.hlo` skips this function by its name.
    def call_in_named_scope(layer: Any, *given: Any, **options: Any) -> Any:
        with jax.named_scope(getattr(layer, _NAME)):
            return kind.__call__(layer, *given, **options)  # type: ignore[operator]

    return type(kind.__name__, (kind,), {"__call__": call_in_named_scope, "__doc__": kind.__doc__})


Activation = Callable[[jax.Array], jax.Array]
Padding = str | Sequence[tuple[int, int]]
KEPT = "kept"
"""The name of what is not computed again in the backward pass where `TrainingSetup.remat` asks for the rest to be."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass of a batch through a model.

    Args:
        valid: bool [batch]; other rows do not enter a norm's statistics. None is all.
        training: norms use this batch's statistics and update the running ones; else they use those.
        mesh: where the activations lie; None for one device.
        dims: how the image is split over a replica's cores, batch axis first; None is whole.
    """

    valid: jax.Array | None = None
    training: bool = True
    mesh: Mesh | None = None
    dims: Dims = None

    @property
    def parts(self) -> tuple[int, ...]:
        """Into how many parts each axis between batch and channel is split."""
        return () if self.dims is None else tuple(self.dims[1:-1])

    def is_split(self, shape: Sequence[int]) -> bool:
        """Whether an activation of that shape is split."""
        return self.mesh is not None and self.dims is not None and why_whole(shape, self.dims) is None

    def hold(self, activation: jax.Array, *, whole: bool = False) -> jax.Array:
        """The activation, held to its split; call it after every layer that mixes neighbors or changes the size.

        `whole` holds it whole on every core of its replica, whatever its size.
        """
        return constrain(activation, self.mesh, None if whole else self.dims)

    def hold_split(self, activation: jax.Array) -> jax.Array:
        """The activation, split even where a core has a single row; nothing may be convolved with it there."""
        return constrain(activation, self.mesh, self.dims, least_rows=1)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Makes layers of one precision, each with parameters drawn from `rngs`.

    Args:
        dtype: of the activations.
        param_dtype: of the parameters, the norm's statistics and the heads' outputs.
        rngs: draws the initial parameters.
        norm_decay, norm_epsilon: of the norms; only batch norm has a decay.
        norm_kind: of `NORMS`.
        volume_convolution: of `VOLUME_CONVOLUTIONS`, for those that `ConvolutionNorm` holds.

    Raises:
        UsageError: a kind or choice that is not known.
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
        padding: Padding = "SAME",
        bias: bool = False,
        groups: int = 1,
        kernel_init: Any = None,
        bias_init: Any = None,
    ) -> nnx.Conv:
        """A convolution over `len(kernel)` axes, from `before` to `after` channels."""
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
        """A norm of `norm_kind` over the whole image; batch norm's is over the whole batch too."""
        return NORMS[self.norm_kind](
            features,
            decay=self.norm_decay,
            epsilon=self.norm_epsilon if epsilon is None else epsilon,
            param_dtype=self.param_dtype,
        )

    def dense(self, before: int, after: int, **options: Any) -> nnx.Linear:
        """A dense layer in the parameters' precision."""
        options = {"kernel_init": lecun_normal, **options}
        return nnx.Linear(before, after, param_dtype=self.param_dtype, rngs=self.rngs, **options)


class ConvolutionNorm(nnx.Module):
    """Convolution, held to the split, then norm, then the activation (None for none).

    With `extends_again` the backward pass extends a split input by its neighbors' rows again, in place of keeping it
    extended: of three channels tiles of a TPU would make twenty times as much.
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
        extends_again: bool = False,
        **options: Any,
    ) -> None:
        self.extends_again = extends_again
        self.convolution = layers.convolution(before, after, kernel, **options)
        self.norm = layers.norm(after, epsilon=epsilon)
        self.activation = activation
        self.volume_convolution = layers.volume_convolution

    def __call__(self, x: jax.Array, run: Pass, then: Activation | None = None) -> jax.Array:
        """[batch, ..., before] to [batch, ..., after].

        What `then` makes of it is given in its place, and the backward pass computes all after the convolution again.
        """
        if computed_by_planes(self.convolution, self.volume_convolution, run.mesh):
            x = run.hold(convolve_planes(self.convolution, x, run.mesh, run.dims))
        elif is_depthwise(self.convolution):
            x = run.hold(convolve_depthwise(self.convolution, x, run.mesh, run.dims))
        elif self.extends_again and run.dims is not None:
            x = run.hold(jax.checkpoint(self.convolution)(x))
        else:
            x = run.hold(self.convolution(x))
        x = kept(x)
        if then is None:
            return self._activated(self.norm(x, valid=run.valid, training=run.training))
        normalize = self.norm.fitted(x, valid=run.valid, training=run.training)
        finished: jax.Array = jax.checkpoint(lambda x: then(self._activated(normalize(x))))(x)
        return finished

    def _activated(self, x: jax.Array) -> jax.Array:
        return x if self.activation is None else self.activation(x)


def kept(x: jax.Array) -> jax.Array:
    """The same array, named `KEPT`."""
    named: jax.Array = checkpoint_name(x, KEPT)  # type: ignore[no-untyped-call]
    return named


def max_pool(
    x: jax.Array, window: Sequence[int], strides: Sequence[int], padding: Padding = "VALID"
) -> jax.Array:
    """The greatest of each window, as `nnx.max_pool` gives it."""
    greatest: jax.Array = nnx.max_pool(x, window, strides=strides, padding=padding)  # type: ignore[no-untyped-call]
    return greatest


def mean_over_space(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    """The mean over all axes between batch and channel: [batch, ..., channel] to [batch, channel]."""
    return jnp.mean(x.astype(dtype), axis=tuple(range(1, x.ndim - 1)))
