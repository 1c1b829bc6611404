"""Depthwise and 3-D convolutions with what XLA lacks for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from halofeed.schemas.partition import Dims
from halofeed.trainer.mesh import activation_axes, platform_of

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


VOLUME_CONVOLUTIONS = ("auto", "direct", "planes")
"""How convolutions over depth, height and width are computed; "auto" takes planes where the platform is a CPU."""

_AXES = 3


def computed_by_planes(convolution: nnx.Conv, choice: str, mesh: Mesh | None) -> bool:
    """Whether `convolve_planes` computes this layer: if that is chosen, and it is a volume's of stride 1.

    Args:
        convolution: the layer.
        choice: of `VOLUME_CONVOLUTIONS`.
        mesh: whose devices' platform decides "auto"; None asks JAX for its default.
    """
    kernel, strides = tuple(convolution.kernel_size), convolution.strides
    if len(kernel) != _AXES or kernel[0] % 2 == 0 or strides not in (1, (1,) * _AXES):
        return False
    if convolution.padding != "SAME" or convolution.feature_group_count != 1:
        return False
    return choice == "planes" or (choice == "auto" and platform_of(mesh) == "cpu")


def convolve_planes(convolution: nnx.Conv, x: jax.Array, mesh: Mesh | None, dims: Dims) -> jax.Array:
    """What `convolution(x)` gives, by one 2-D convolution whose batch holds every plane of every volume.

    ```
    depth  d0 d1 d2 d3  ->  planes  (-- d0 d1) (d0 d1 d2) (d1 d2 d3) (d2 d3 --), the three side by side in channels
    ```

    The planes are put in an order in which those of a core lie together, so that only what lies at the edges of
    its slab is sent. Left to itself, XLA gathers the depth, and where the height is split too its weight gradient
    is then wrong by the number of the depth's parts.

    Args:
        convolution: for which `computed_by_planes` holds.
        x: [batch, depth, height, width, channel], held to its split.
        mesh, dims: how x lies.

    Returns:
        [batch, depth, height, width, features].
    """
    of_batch, of_depth, *of_plane = activation_axes(x.shape, dims)
    replicas, parts = (
        math.prod(mesh.shape[axis] for axis in axes) if mesh else 1 for axes in (of_batch, of_depth)
    )
    dtype = convolution.dtype or x.dtype
    kernel, x = jnp.asarray(convolution.kernel[...]).astype(dtype), x.astype(dtype)
    reach = kernel.shape[0] // 2
    x = jnp.concatenate([_shifted(x, by) for by in range(-reach, reach + 1)], -1)
    batch, depth, *plane = x.shape
    slabs = x.reshape(replicas, batch // replicas, parts, depth // parts, *plane).swapaxes(1, 2)

    def hold(planes: jax.Array) -> jax.Array:
        if mesh is None:
            return planes
        split = PartitionSpec((*of_batch, *of_depth), *of_plane)  # type: ignore[no-untyped-call]
        held: jax.Array = jax.lax.with_sharding_constraint(planes, NamedSharding(mesh, split))  # type: ignore[no-untyped-call]
        return held

    planes = jax.lax.conv_general_dilated(
        hold(slabs.reshape(batch * depth, *plane)),
        jnp.moveaxis(kernel, 0, 2).reshape(*kernel.shape[1:3], -1, kernel.shape[-1]),
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    slabs = hold(planes).reshape(*slabs.shape[:4], *planes.shape[1:]).swapaxes(1, 2)
    volume: jax.Array = slabs.reshape(batch, depth, *planes.shape[1:])
    return volume if convolution.bias is None else volume + jnp.asarray(convolution.bias[...]).astype(dtype)


def _shifted(x: jax.Array, by: int) -> jax.Array:
    """Along depth, x[i + by] at i, and 0 beyond the ends."""
    if by == 0:
        return x
    still = (0, 0, 0)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [still, (-by, by, 0), *[still] * (x.ndim - 2)])
