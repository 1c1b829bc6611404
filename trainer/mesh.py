"""On which mesh does a replica's work lie, and which activations stay split on it?"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from halofeed.schemas.partition import REPLICA_AXIS, Dims, Partition, axis_names, core_axes

LEAST_ROWS = 2
"""The fewest rows (or columns) of a split activation on one core."""


def make_mesh(cores_per_replica: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of `replica` and one axis of size 2 per doubling of the cores: core0, core1, ...

    Axes of size 2 let [1, 4, 2, 1] and [1, 8, 1, 1] live on one mesh. They are Auto axes: under Explicit
    ones resize, reshape, sort and top_k raise.

    Args:
        cores_per_replica: 1, 2, 4, ..., 128.
        devices: all of the system's by default, in its order.

    Raises:
        PartitionError: if the cores do not fit the devices or divide them.
    """
    found = list(jax.devices() if devices is None else devices)
    replicas = Partition(cores_per_replica=cores_per_replica).replicas(len(found))
    cores = core_axes(cores_per_replica)
    shape, names = (replicas, *[2] * len(cores)), (REPLICA_AXIS, *cores)
    types = (AxisType.Auto,) * len(names)
    if found[0].platform == "tpu":
        # jax.make_mesh refuses axes of size 2 on grids such as v4:2x4x4, whose axes are longer.
        placed = mesh_utils.create_device_mesh(shape, found, allow_split_physical_axes=True)
    else:
        placed = np.array(found, dtype=object).reshape(shape)
    return Mesh(placed, names, axis_types=types)


def activation_spec(shape: Sequence[int], dims: Dims, least_rows: int = LEAST_ROWS) -> PartitionSpec:
    """How an activation is split when its image is split by `dims`: along every axis, or along none.

    It is split only if each split axis divides and leaves every core at least two rows. Otherwise it is
    whole on every core of its replica, for XLA gives wrong gradients without a word where fewer than all
    of a replica's cores share a convolution, where an axis has fewer rows than parts, and where a core has
    a single row of two split axes (docs/decisions.md has the measurements).

    Args:
        shape: [batch, height, width, channel] of the activation.
        dims: the image's; None is whole.
        least_rows: on a core; 1 is only for what is not convolved.

    >>> tuple(activation_spec((8, 16, 8, 32), (1, 4, 2, 1)))
    ('replica', ('core0', 'core1'), 'core2', None)
    >>> tuple(activation_spec((8, 8, 2, 64), (1, 4, 2, 1)))
    ('replica', None, None, None)
    """
    return PartitionSpec(*(axes or None for axes in activation_axes(shape, dims, least_rows)))  # type: ignore[no-untyped-call]


def activation_axes(
    shape: Sequence[int], dims: Dims, least_rows: int = LEAST_ROWS
) -> tuple[tuple[str, ...], ...]:
    """The axes of the mesh over which `activation_spec` splits each axis of an activation."""
    batch, *others = axis_names(dims if dims is not None else (1,) * len(shape))
    if dims is not None and why_whole(shape, dims, least_rows) is not None:
        others = [()] * len(others)
    return (REPLICA_AXIS, *batch), *others


def why_whole(shape: Sequence[int], dims: Sequence[int], least_rows: int = LEAST_ROWS) -> str | None:
    """Why an activation is not split as its image is; None where it is.

    >>> why_whole((8, 20, 20, 64), (1, 8, 1, 1)), why_whole((8, 8, 8, 64), (1, 8, 1, 1))
    ('20 does not divide by 8', '8 over 8 cores leaves fewer than 2 on each')
    """
    for size, parts in zip(shape[1:], dims[1:], strict=True):
        if parts > 1 and size % parts:
            return f"{size} does not divide by {parts}"
        if parts > 1 and size < least_rows * parts:
            return f"{size} over {parts} cores leaves fewer than {least_rows} on each"
    return None


def constrain(
    activation: jax.Array, mesh: Mesh | None, dims: Dims, least_rows: int = LEAST_ROWS
) -> jax.Array:
    """Hold an activation to `activation_spec` on the mesh; without a mesh nothing is done."""
    if mesh is None:
        return activation
    sharding = NamedSharding(mesh, activation_spec(activation.shape, dims, least_rows))
    held: jax.Array = jax.lax.with_sharding_constraint(activation, sharding)  # type: ignore[no-untyped-call]
    return held


def platform_of(mesh: Mesh | None) -> str:
    """The platform of a mesh's devices, "cpu", "tpu" or "gpu"; JAX's default without a mesh."""
    return jax.default_backend() if mesh is None else str(mesh.devices.flat[0].platform)
