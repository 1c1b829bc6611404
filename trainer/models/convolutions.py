"""Depthwise and 3-D convolutions with correct gradients on a mesh and fast volumes on CPUs."""

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
    """Return whether the layer computes each channel from the same channel only."""
    return convolution.in_features == convolution.out_features == convolution.feature_group_count > 1


def convolve_depthwise(convolution: nnx.Conv, x: jax.Array, mesh: Mesh | None, dims: Dims) -> jax.Array:
    """Return `convolution(x)` with correct gradients on every mesh.

    Args:
        convolution: layer for which `is_depthwise` is True.
        x: [batch, ..., channel], constrained to its split.
        mesh: mesh of x; None for one device.
        dims: split of the image, as for `activation_spec`.
    """
    dtype = convolution.dtype or x.dtype
    kernel, x = jnp.asarray(convolution.kernel[...]).astype(dtype), x.astype(dtype)
    spatial, size = x.ndim - 2, kernel.shape[:-2]
    stride, padding = convolution.strides, convolution.padding
    strides = (stride,) * spatial if isinstance(stride, int) else tuple(stride or (1,) * spatial)
    pads: Any = padding
    if isinstance(padding, str):
        pads = jax.lax.padtype_to_pads(x.shape[1:-1], size, strides, padding)
    pads = tuple((low, high) for low, high in pads)
    convolve = partial(_convolve, strides, pads)
    output_shape = jax.eval_shape(convolve, x, kernel).shape
    is_split = all(_uses_every_device(shape, mesh, dims) for shape in (x.shape, output_shape))
    y = convolve(x, kernel) if is_split else _convolve_with_own_gradient(strides, pads, x, kernel)
    return y if convolution.bias is None else y + jnp.asarray(convolution.bias[...]).astype(dtype)


def _uses_every_device(shape: Sequence[int], mesh: Mesh | None, dims: Dims) -> bool:
    """Return whether an activation of that shape is split over all devices of the mesh."""
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


_convolve_with_own_gradient = jax.custom_vjp(_convolve, nondiff_argnums=(0, 1))
"""`_convolve` whose weight gradient is a sum for each kernel position."""


def _forward(
    strides: tuple[int, ...], pads: Pads, x: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(strides, pads, x, kernel), (x, kernel)


def _backward(
    strides: tuple[int, ...], pads: Pads, saved: tuple[jax.Array, jax.Array], y_gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    (x_gradient,) = jax.vjp(lambda x: _convolve(strides, pads, x, kernel), x)[1](y_gradient)
    sum_dtype = jnp.promote_types(x.dtype, jnp.float32)
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0))).astype(sum_dtype)
    sums = []
    for start in itertools.product(*(range(size) for size in kernel.shape[:-2])):
        window = [
            slice(first, first + (count - 1) * stride + 1, stride)
            for first, count, stride in zip(start, y_gradient.shape[1:-1], strides, strict=True)
        ]
        inputs = padded[(slice(None), *window)]
        sums.append(jnp.sum(inputs * y_gradient.astype(sum_dtype), tuple(range(x.ndim - 1))))
    return x_gradient, jnp.stack(sums).reshape(kernel.shape).astype(kernel.dtype)


_convolve_with_own_gradient.defvjp(_forward, _backward)


VOLUME_CONVOLUTIONS = ("auto", "direct", "planes")
"""Algorithms of convolutions over depth, height and width; "auto" is "planes" on CPUs, else "direct"."""

_AXES = 3


def computed_by_planes(convolution: nnx.Conv, choice: str, mesh: Mesh | None) -> bool:
    """Return whether `convolve_planes` computes this layer: it needs a 3-D kernel and stride 1.

    Args:
        convolution: layer to compute.
        choice: one of `VOLUME_CONVOLUTIONS`.
        mesh: mesh whose platform decides "auto"; None takes JAX's default platform.
    """
    kernel, strides = tuple(convolution.kernel_size), convolution.strides
    if len(kernel) != _AXES or kernel[0] % 2 == 0 or strides not in (1, (1,) * _AXES):
        return False
    if convolution.padding != "SAME" or convolution.feature_group_count != 1:
        return False
    return choice == "planes" or (choice == "auto" and platform_of(mesh) == "cpu")


def convolve_planes(convolution: nnx.Conv, x: jax.Array, mesh: Mesh | None, dims: Dims) -> jax.Array:
    """Return `convolution(x)` by one 2-D convolution whose batch holds every plane of every volume.

    ```
    depth  d0 d1 d2 d3  ->  planes  (-- d0 d1) (d0 d1 d2) (d1 d2 d3) (d2 d3 --), the three side by side in channels
    ```

    The planes are ordered by core, so that cores exchange only the edges of their slabs. By default XLA gathers the
    depth, and if the height is split too, its weight gradient is wrong by the number of parts of the depth.

    Args:
        convolution: layer for which `computed_by_planes` is True.
        x: [batch, depth, height, width, channel], constrained to its split.
        mesh: mesh of x; None for one device.
        dims: split of the image, as for `activation_spec`.

    Returns:
        [batch, depth, height, width, features].
    """
    batch_axes, depth_axes, *plane_axes = activation_axes(x.shape, dims)
    replicas, parts = (
        math.prod(mesh.shape[axis] for axis in axes) if mesh else 1 for axes in (batch_axes, depth_axes)
    )
    dtype = convolution.dtype or x.dtype
    kernel, x = jnp.asarray(convolution.kernel[...]).astype(dtype), x.astype(dtype)
    reach = kernel.shape[0] // 2
    x = jnp.concatenate([_shifted(x, by) for by in range(-reach, reach + 1)], -1)
    batch, depth, *plane = x.shape
    slabs = x.reshape(replicas, batch // replicas, parts, depth // parts, *plane).swapaxes(1, 2)

    def constrain_planes(planes: jax.Array) -> jax.Array:
        if mesh is None:
            return planes
        spec = PartitionSpec((*batch_axes, *depth_axes), *plane_axes)  # type: ignore[no-untyped-call]
        constrained: jax.Array = jax.lax.with_sharding_constraint(planes, NamedSharding(mesh, spec))  # type: ignore[no-untyped-call]
        return constrained

    planes = jax.lax.conv_general_dilated(
        constrain_planes(slabs.reshape(batch * depth, *plane)),
        jnp.moveaxis(kernel, 0, 2).reshape(*kernel.shape[1:3], -1, kernel.shape[-1]),
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    slabs = constrain_planes(planes).reshape(*slabs.shape[:4], *planes.shape[1:]).swapaxes(1, 2)
    volume: jax.Array = slabs.reshape(batch, depth, *planes.shape[1:])
    return volume if convolution.bias is None else volume + jnp.asarray(convolution.bias[...]).astype(dtype)


def _shifted(x: jax.Array, by: int) -> jax.Array:
    """Return x[i + by] at i along depth, and 0 beyond the ends."""
    if by == 0:
        return x
    unchanged = (0, 0, 0)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [unchanged, (-by, by, 0), *[unchanged] * (x.ndim - 2)])
