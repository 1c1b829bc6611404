"""How does a convolution of each channel apart get the right weight gradient where cores of a replica do the same work?

Where the batch is split over the replicas, XLA's partitioner adds that gradient up over all devices. If the activation
is whole on k cores of its replica, as small late levels are, it is k times too large, without a word. Summed one kernel
position at a time it is right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from halofeed.schemas.partition import Dims
from halofeed.trainer.mesh import activation_axes

Pads = tuple[tuple[int, int], ...]


def is_depthwise(convolution: nnx.Conv) -> bool:
    """Whether the layer computes each channel from that channel alone."""
    return convolution.in_features == convolution.out_features == convolution.feature_group_count > 1


def convolve_depthwise(convolution: nnx.Conv, x: jax.Array, mesh: Mesh | None, dims: Dims) -> jax.Array:
    """What `convolution(x)` gives, with the right gradients on every mesh.

    Args:
        convolution: for which `is_depthwise` holds.
        x: [batch, ..., channel], held to its split.
        mesh, dims: how x lies.
    """
    dtype = convolution.dtype or x.dtype
    kernel, x = jnp.asarray(convolution.kernel[...]).astype(dtype), x.astype(dtype)
    spatial, size = x.ndim - 2, kernel.shape[:-2]
    given, padding = convolution.strides, convolution.padding
    strides = (given,) * spatial if isinstance(given, int) else tuple(given or (1,) * spatial)
    pads: Any = padding
    if isinstance(padding, str):
        pads = jax.lax.padtype_to_pads(x.shape[1:-1], size, strides, padding)
    pads = tuple((low, high) for low, high in pads)
    convolve = partial(_convolve, strides, pads)
    shape = jax.eval_shape(convolve, x, kernel).shape
    shared = all(_on_every_device(held, mesh, dims) for held in (x.shape, shape))
    y = convolve(x, kernel) if shared else _summed(strides, pads, x, kernel)
    return y if convolution.bias is None else y + jnp.asarray(convolution.bias[...]).astype(dtype)


def _on_every_device(shape: Sequence[int], mesh: Mesh | None, dims: Dims) -> bool:
    """Whether an activation of that shape is split over all devices of the mesh."""
    if mesh is None:
        return True
    axes = itertools.chain(*activation_axes(shape, dims))
    return math.prod(int(mesh.shape[axis]) for axis in axes) == int(mesh.size)


def _convolve(strides: tuple[int, ...], pads: Pads, x: jax.Array, kernel: jax.Array) -> jax.Array:
    axes = "".join("DHW"[3 - len(strides) :])
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        strides,
        pads,
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
        feature_group_count=x.shape[-1],
    )


_summed = jax.custom_vjp(_convolve, nondiff_argnums=(0, 1))
"""Its weight gradient is a sum for each kernel position."""


def _forward(
    strides: tuple[int, ...], pads: Pads, x: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(strides, pads, x, kernel), (x, kernel)


def _backward(
    strides: tuple[int, ...], pads: Pads, kept: tuple[jax.Array, jax.Array], of_y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = kept
    (of_x,) = jax.vjp(lambda x: _convolve(strides, pads, x, kernel), x)[1](of_y)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0))).astype(wide)
    sums = []
    for start in itertools.product(*(range(size) for size in kernel.shape[:-2])):
        reach = [
            slice(first, first + (count - 1) * stride + 1, stride)
            for first, count, stride in zip(start, of_y.shape[1:-1], strides, strict=True)
        ]
        seen = padded[(slice(None), *reach)]
        sums.append(jnp.sum(seen * of_y.astype(wide), tuple(range(x.ndim - 1))))
    return of_x, jnp.stack(sums).reshape(kernel.shape).astype(kernel.dtype)


_summed.defvjp(_forward, _backward)
