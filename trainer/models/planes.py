"""How is a 3-D convolution computed quickly on a CPU? As one 2-D convolution of all planes.

XLA for CPUs has no fast 3-D convolution: one of 3 along each axis runs at about 5 GFLOP/s with its gradients on two
cores, this form of it at more than 20 (docs/decisions.md has the table). TPUs and GPUs compute it directly.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from halofeed.schemas.partition import Dims
from halofeed.trainer.mesh import activation_axes, platform_of

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
