"""Grouped and 3-D convolutions with correct gradients on a mesh and fast volumes on CPUs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from halofeed.schemas.partition import Dims
from halofeed.trainer.mesh import activation_axes, platform_of

Pads = tuple[tuple[int, int], ...]


def is_grouped(convolution: nnx.Conv) -> bool:
    """Return whether the layer computes each group of channels from some of the input's channels only."""
    return int(convolution.feature_group_count) > 1


def convolve_grouped(convolution: nnx.Conv, x: jax.Array, mesh: Mesh | None, dims: Dims) -> jax.Array:
    """Return `convolution(x)` with correct gradients on every mesh.

    JAX computes the weight gradient of a grouped convolution by a convolution whose batch is in groups. Where some
    cores hold the same activation, XLA adds up their results as if each had another part of the batch, so that k such
    cores give k times the gradient (jaxlib 0.10.2; the loss and the input's gradient are right). That depends on what
    the cores hold and not on the layer, so any number of groups and features is concerned, and none where the
    activation is split over all cores. There the gradient is a sum for each position of the kernel instead.

    Args:
        convolution: layer for which `is_grouped` is True, or any other.
        x: [batch, ..., channel], constrained to its split.
        mesh: mesh of x; None for one device.
        dims: split of the image, as for `activation_spec`.

    >>> layer = nnx.Conv(4, 8, (3, 3), feature_group_count=2, rngs=nnx.Rngs(0))
    >>> convolve_grouped(layer, jnp.zeros((1, 8, 8, 4)), None, None).shape
    (1, 8, 8, 8)
    """
    output_shape = jax.eval_shape(lambda x: convolution(x), x).shape
    if all(_uses_every_device(shape, mesh, dims) for shape in (x.shape, output_shape)):
        return convolution(x)
    # The layer pads, masks and casts; only the convolution itself is another function.
    layer: Any = SimpleNamespace(**{**vars(convolution), "conv_general_dilated": _convolve_on_whole_level})
    y: jax.Array = nnx.Conv.__call__(layer, x)
    return y


def _uses_every_device(shape: Sequence[int], mesh: Mesh | None, dims: Dims) -> bool:
    """Return whether an activation of that shape is split over all devices of the mesh."""
    if mesh is None:
        return True
    axes = itertools.chain(*activation_axes(shape, dims))
    return math.prod(int(mesh.shape[axis]) for axis in axes) == int(mesh.size)


@dataclass(frozen=True, kw_only=True)
class _Window:
    """Strides, pads, dilation and groups of a convolution over [batch, ..., channel], and further options of JAX."""

    strides: tuple[int, ...]
    pads: Pads
    input_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    groups: int
    options: tuple[tuple[str, Any], ...]


def _convolve_on_whole_level(
    x: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, ...],
    padding: str | Pads,
    *,
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dimension_numbers: Any,
    feature_group_count: int,
    **options: Any,
) -> jax.Array:
    """Return what `jax.lax.conv_general_dilated` returns for channels last, as `nnx.Conv` calls it."""
    # `nnx.Conv` passes SAME and VALID on as text, and the gradient needs numbers.
    if isinstance(padding, str):
        reach = [(size - 1) * by + 1 for size, by in zip(kernel.shape[:-2], rhs_dilation, strict=True)]
        padding = tuple(jax.lax.padtype_to_pads(x.shape[1:-1], reach, strides, padding))
    window = _Window(
        strides=strides,
        pads=tuple((low, high) for low, high in padding),
        input_dilation=lhs_dilation,
        kernel_dilation=rhs_dilation,
        groups=feature_group_count,
        options=tuple(options.items()),
    )
    y: jax.Array = _convolve_with_own_gradient(window, x, kernel)
    return y


def _convolve(window: _Window, x: jax.Array, kernel: jax.Array) -> jax.Array:
    axes = "".join("XDHW"[4 - len(window.strides) :])
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window.strides,
        window.pads,
        lhs_dilation=window.input_dilation,
        rhs_dilation=window.kernel_dilation,
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
        feature_group_count=window.groups,
        **dict(window.options),
    )


_convolve_with_own_gradient = jax.custom_vjp(_convolve, nondiff_argnums=(0,))
"""`_convolve` whose weight gradient is a sum for each kernel position."""


def _forward(
    window: _Window, x: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(window, x, kernel), (x, kernel)


def _backward(
    window: _Window, saved: tuple[jax.Array, jax.Array], y_gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    (x_gradient,) = jax.vjp(lambda x: _convolve(window, x, kernel), x)[1](y_gradient)
    sum_dtype = jnp.promote_types(x.dtype, jnp.float32)
    of_y = y_gradient.astype(sum_dtype)
    unchanged = (0, 0, 0)
    sides = [(low, high, by - 1) for (low, high), by in zip(window.pads, window.input_dilation, strict=True)]
    padded = jax.lax.pad(x, jnp.zeros((), x.dtype), [unchanged, *sides, unchanged]).astype(sum_dtype)
    sums = []
    for position in itertools.product(*(range(size) for size in kernel.shape[:-2])):
        rows = zip(position, window.kernel_dilation, of_y.shape[1:-1], window.strides, strict=True)
        inputs = padded[
            (
                slice(None),
                *(slice(at * by, at * by + (n - 1) * stride + 1, stride) for at, by, n, stride in rows),
            )
        ]
        sums.append(_sum_of_products(inputs, of_y, window.groups))
    return x_gradient, jnp.stack(sums).reshape(kernel.shape).astype(kernel.dtype)


def _sum_of_products(inputs: jax.Array, of_y: jax.Array, groups: int) -> jax.Array:
    """Return the sum over batch and space of each input channel times each output channel of its group.

    Args:
        inputs: [batch, ..., channel].
        of_y: [batch, ..., feature].
        groups: number of groups of channels, and of features.

    Returns:
        [channel / groups, feature].
    """
    # In a depthwise convolution each channel meets its own feature only.
    if inputs.shape[-1] == of_y.shape[-1] == groups:
        return jnp.sum(inputs * of_y, tuple(range(of_y.ndim - 1)))[None]
    channels, features = (
        array.reshape(*array.shape[:-1], groups, array.shape[-1] // groups) for array in (inputs, of_y)
    )
    products: jax.Array = jnp.einsum("...gi,...go->igo", channels, features, precision="highest")
    return products.reshape(products.shape[0], -1)


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
    # An even kernel along depth has no middle plane, and a stride would skip planes.
    if len(kernel) != _AXES or kernel[0] % 2 == 0 or strides not in (1, (1,) * _AXES):
        return False
    # Planes are shifted with zeros beyond the ends, which is SAME at stride 1.
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
