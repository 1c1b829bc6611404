"""Mesh of replicas and cores, and the split of activations over it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from halofeed.schemas.partition import REPLICA_AXIS, Dims, Partition, axis_names, core_axes
from halofeed.system.arguments import explains_calls
from halofeed.system.errors import UsageError, require_extra
from halofeed.system.wording import plural

with require_extra("train", "jax", "jaxlib"):
    import jax
    from jax.experimental import mesh_utils
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

LEAST_ROWS = 2
"""Minimum of rows (or columns) of a split activation on one core."""


@explains_calls
def make_mesh(cores_per_replica: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make a mesh of `replica` and one axis of size 2 per doubling of the cores: core0, core1, ...

    With axes of size 2, [1, 4, 2, 1] and [1, 8, 1, 1] fit on the same mesh. They are Auto axes: with Explicit
    axes resize, reshape, sort and top_k raise.

    Args:
        cores_per_replica: number of cores that share an image: 1, 2, 4, ..., 128.
        devices: devices of the mesh in order; all devices of the system by default.

    Raises:
        PartitionError: the number of devices is not a multiple of the cores.
        UsageError: JAX has no devices of the platform that the environment asks for.

    >>> make_mesh(cores_per_replica=4, devices=jax.devices()[:1] * 8).shape_tuple
    (('replica', 2), ('core0', 2), ('core1', 2))
    """
    found = list(_all_devices() if devices is None else devices)
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


def _all_devices() -> list[jax.Device]:
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # AssertionError: a platform that is not installed
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise UsageError(
            f"JAX_PLATFORMS={asked}: JAX finds no such device here{f': {error}' if str(error) else ''}; unset it, or "
            "set JAX_PLATFORMS=cpu"
        ) from error


def activation_spec(shape: Sequence[int], dims: Dims, least_rows: int = LEAST_ROWS) -> PartitionSpec:
    """Return the split of an activation whose image is split by `dims`: along every axis of `dims`, or along none.

    An activation is split only if each split axis divides evenly and leaves every core at least two rows. Otherwise
    every core of the replica holds all of it, because XLA silently gives wrong gradients in these cases: only some
    cores of a replica share a convolution, an axis has fewer rows than parts, or a core has a single row of two split
    axes (measurements: docs/decisions.md).

    Args:
        shape: [batch, height, width, channel] of the activation.
        dims: number of parts of the image along each axis; None if it is not split.
        least_rows: minimum of rows on a core; use 1 only for activations that are not convolved.

    >>> tuple(activation_spec((8, 16, 8, 32), (1, 4, 2, 1)))
    ('replica', ('core0', 'core1'), 'core2', None)
    >>> tuple(activation_spec((8, 8, 2, 64), (1, 4, 2, 1)))
    ('replica', None, None, None)
    """
    return PartitionSpec(*(axes or None for axes in activation_axes(shape, dims, least_rows)))  # type: ignore[no-untyped-call]


def activation_axes(
    shape: Sequence[int], dims: Dims, least_rows: int = LEAST_ROWS
) -> tuple[tuple[str, ...], ...]:
    """Return the axes of the mesh over which `activation_spec` splits each axis of an activation."""
    batch, *others = axis_names(dims if dims is not None else (1,) * len(shape))
    # All axes or none: partly split levels gave wrong gradients in 98 of 336 convolutions (jax 0.10.2).
    if dims is not None and reason_not_split(shape, dims, least_rows) is not None:
        others = [()] * len(others)
    return (REPLICA_AXIS, *batch), *others


def reason_not_split(shape: Sequence[int], dims: Sequence[int], least_rows: int = LEAST_ROWS) -> str | None:
    """Return the reason why an activation is not split like its image; None if it is split.

    >>> reason_not_split((8, 20, 20, 64), (1, 8, 1, 1)), reason_not_split((8, 8, 8, 64), (1, 8, 1, 1))
    ('20 does not divide by 8', '8 over 8 cores leaves fewer than 2 on each')
    """
    for size, parts in zip(shape[1:], dims[1:], strict=True):
        # In both cases XLA's gradients may be wrong, see `activation_spec`.
        if parts > 1 and size % parts:
            return f"{size} does not divide by {parts}"
        if parts > 1 and size < least_rows * parts:
            return f"{size} over {plural(parts, 'core')} leaves fewer than {least_rows} on each"
    return None


def constrain(
    activation: jax.Array, mesh: Mesh | None, dims: Dims, least_rows: int = LEAST_ROWS
) -> jax.Array:
    """Constrain an activation to `activation_spec` on the mesh; without a mesh return it unchanged.

    >>> image = jax.numpy.zeros((1, 8, 8, 3))
    >>> constrain(image, make_mesh(devices=jax.devices()[:1]), (1, 1, 1, 1)).sharding.mesh.axis_names
    ('replica',)
    """
    if mesh is None:
        return activation
    sharding = NamedSharding(mesh, activation_spec(activation.shape, dims, least_rows))
    constrained: jax.Array = jax.lax.with_sharding_constraint(activation, sharding)  # type: ignore[no-untyped-call]
    return constrained


def platform_of(mesh: Mesh | None) -> str:
    """Return the platform of a mesh's devices, "cpu", "tpu" or "gpu"; JAX's default without a mesh."""
    return jax.default_backend() if mesh is None else str(mesh.devices.flat[0].platform)
