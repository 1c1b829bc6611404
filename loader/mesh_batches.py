"""Placement of batches on a mesh: NumPy rows become global jax.Arrays, each core with its own slab.

JAX is an optional dependency, so functions import it. `Loader.on_mesh` calls `place_batch` once per step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from halofeed.schemas.partition import REPLICA_AXIS, Partition, axis_names, core_axes
from halofeed.system.errors import PartitionError, require_extra
from halofeed.system.wording import plural

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

_NONE: Mapping[str, tuple[int, ...]] = {}
RowsFunction = Callable[[int, int], Mapping[str, np.ndarray[Any, Any]]]


def put_on_device(array: np.ndarray[Any, Any]) -> None:
    """Copy an array to the first device, and wait until it is there."""
    with require_extra("train", "jax"):
        import jax

    jax.device_put(array).block_until_ready()


def compile_on_device(
    act: Callable[[Mapping[str, Any]], Any], batch: Mapping[str, np.ndarray[Any, Any]]
) -> Callable[[], None]:
    """Compile `act`, put a batch on the first device, and return a function that runs `act` on it and waits."""
    with require_extra("train", "jax"):
        import jax

    placed, compiled = jax.device_put(batch), jax.jit(act)

    def run() -> None:
        jax.block_until_ready(compiled(placed))  # type: ignore[no-untyped-call]

    return run


def check_mesh(mesh: object) -> None:
    """Raise PartitionError if this is no mesh."""
    with require_extra("train", "jax"):
        from jax.sharding import Mesh
    if not isinstance(mesh, Mesh):
        raise PartitionError(f"mesh: expected one as halofeed.make_mesh() returns, got {mesh!r:.80}")


def mesh_specs(
    mesh: Mesh, partition: Partition, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, PartitionSpec]:
    """Return the PartitionSpec of every key of a batch on a mesh of `replica`, `core0`, `core1`, ... axes.

    Args:
        mesh: the target mesh.
        partition: the keys to split over a replica's cores, and how.
        shapes: the global batch's shapes by key, batch axis first.

    Returns:
        The batch axis over `replica` for every key; the other axes over the core axes that `dims` name.

    Raises:
        PartitionError: the mesh has other axes, and as `Partition.resolve`.
    """
    with require_extra("train", "jax"):
        from jax.sharding import PartitionSpec

    cores = core_axes(partition.cores_per_replica)
    if set(mesh.shape) != {REPLICA_AXIS, *cores} or any(mesh.shape[axis] != 2 for axis in cores):
        raise PartitionError(
            f"mesh: expected the axes {REPLICA_AXIS}{''.join(f', {axis}=2' for axis in cores)} for "
            f"{partition.cores_per_replica} cores per replica, got {dict(mesh.shape)}; build it with "
            f"halofeed.trainer.mesh.make_mesh({partition.cores_per_replica}), or pass a PartitionSpec per key"
        )
    specs = {}
    for key, dims in partition.resolve(shapes, replicas=mesh.shape[REPLICA_AXIS]).items():
        # An array without dims is split over replicas only.
        batch, *others = axis_names(dims) if dims is not None else ((),)
        specs[key] = PartitionSpec(*map(_axis_spec, ((REPLICA_AXIS, *batch), *others)))  # type: ignore[no-untyped-call]
    return specs


def needed_rows(
    mesh: Mesh, specs: Mapping[str, PartitionSpec], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, int]:
    """Return the rows [start, stop) of the global batch that this process's devices hold in part or completely.

    Args:
        mesh, specs, shapes: as in `place_batch`.

    Raises:
        PartitionError: as `place_batch`.
    """
    return _bounds(_shardings(mesh, specs, shapes), shapes)


def _bounds(shardings: Mapping[str, NamedSharding], shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    bounds = [slab[0] for key, sharding in shardings.items() for slab in _held(sharding, shapes[key])]
    return min((start for start, _ in bounds), default=0), max((stop for _, stop in bounds), default=0)


def _held(sharding: NamedSharding, shape: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    """Return (start, stop) along each axis of the part that each device of this process holds."""
    slabs = sharding.addressable_devices_indices_map(shape).values()
    return [
        [side.indices(size)[:2] for side, size in zip(slab, shape, strict=False)]
        for slab in slabs
        if slab is not None
    ]


def needed_slab(
    mesh: Mesh,
    specs: Mapping[str, PartitionSpec],
    shapes: Mapping[str, tuple[int, ...]],
    on_grid: Mapping[str, int],
    axes: int,
) -> tuple[tuple[int, int], ...]:
    """Return the part of each image, and of each label on its grid, that this process's devices hold.

    Args:
        mesh, specs, shapes: as in `place_batch`.
        on_grid: the keys of image and label, each with the pixels along an axis that have one number.
        axes: number of the grid's axes.

    Returns:
        (start, stop) along each axis of the grid, over all devices and arrays.

    Raises:
        PartitionError: as `place_batch`.
    """
    shardings = _shardings(mesh, specs, shapes)
    held = [
        [(low * pixels, high * pixels) for low, high in slab[1 : 1 + axes]]
        for key, pixels in on_grid.items()
        for slab in _held(shardings[key], shapes[key])
    ]
    if not held:  # no device of this process holds a part of an image
        key, pixels = next(iter(on_grid.items()))
        return tuple((0, size * pixels) for size in shapes[key][1 : 1 + axes])
    return tuple(
        (min(low for low, _ in side), max(high for _, high in side)) for side in zip(*held, strict=True)
    )


def place_batch(
    mesh: Mesh,
    specs: Mapping[str, PartitionSpec],
    shapes: Mapping[str, tuple[int, ...]],
    rows: RowsFunction,
    *,
    offsets: Mapping[str, tuple[int, ...]] = _NONE,
) -> dict[str, jax.Array]:
    """Put one global batch onto a mesh: every device gets exactly its slab, directly from the rows.

    Args:
        mesh: any mesh whose axes `specs` name.
        specs: a PartitionSpec per key; a missing key is replicated on all devices.
        shapes: the global batch's shapes by key, batch axis first.
        rows: called once with the [start, stop) of the global batch that this process's devices need; returns at
            least the keys of `shapes`. JAX may adopt its arrays without a copy: do not write to them.
        offsets: by key, where the arrays of `rows` begin along the axes after the batch; other arrays are complete.

    Returns:
        Global arrays by key.

    Raises:
        PartitionError: a spec does not fit the mesh or the shape, rows have another shape, or JAX would silently cut
            64-bit integers to 32 bits.
    """
    with require_extra("train", "jax"):
        import jax

    shardings = _shardings(mesh, specs, shapes)
    start, stop = _bounds(shardings, shapes)
    local = rows(start, stop)

    placed: dict[str, jax.Array] = {}
    for key, shape in shapes.items():
        array, sharding = local[key], shardings[key]
        offset = offsets.get(key, ())
        if array.shape[0] != stop - start or (not offset and array.shape[1:] != shape[1:]):
            raise PartitionError(
                f"{key}: expected rows {start} to {stop} as {(stop - start, *shape[1:])}, got {array.shape}"
            )
        # JAX without x64 cuts int64 silently (https://docs.jax.dev/en/latest/default_dtypes.html).
        if array.dtype.kind in "iu" and jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
            raise PartitionError(
                f"{key}: {array.dtype} would be cut to 32 bits on the mesh; convert it to int32, or set "
                "JAX_ENABLE_X64=1"
            )
        begin = (start, *offset)
        placed[key] = jax.make_array_from_callback(shape, sharding, _slab_of(array, begin, shape))
    return placed


def _shardings(
    mesh: Mesh, specs: Mapping[str, PartitionSpec], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NamedSharding]:
    with require_extra("train", "jax"):
        from jax.sharding import NamedSharding, PartitionSpec

    unknown = [key for key in specs if key not in shapes]
    if unknown:
        raise PartitionError(
            f"spec of {unknown[0]!r}: the batch has no such key; it has {', '.join(sorted(shapes))}"
        )
    for key, spec in specs.items():
        _check_axes(key, spec, mesh)
    replicated = PartitionSpec()  # type: ignore[no-untyped-call]
    shardings = {key: NamedSharding(mesh, specs.get(key, replicated)) for key in shapes}
    for key, sharding in shardings.items():
        _check_divides(key, shapes[key], sharding)
    return shardings


def _slab_of(
    array: np.ndarray[Any, Any], begin: Sequence[int], shape: tuple[int, ...]
) -> Callable[[Any], np.ndarray[Any, Any]]:
    """Return a function from a device's index to its part of the global array; `array` holds the part at `begin`."""

    def slab(index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        held = []
        for side, size, at in zip(index, shape, begin, strict=False):
            first, last, _ = side.indices(size)
            held.append(slice(first - at, last - at))
        return array[(*held, *index[len(held) :])]

    return slab


def _check_axes(key: str, spec: PartitionSpec, mesh: Mesh) -> None:
    for names in spec:
        for name in names if isinstance(names, tuple) else (names,):
            if name is not None and name not in mesh.shape:
                raise PartitionError(
                    f"{key}: the mesh has no axis {name!r}; it has {', '.join(map(str, mesh.shape))}"
                )


def _check_divides(key: str, shape: tuple[int, ...], sharding: NamedSharding) -> None:
    if len(sharding.spec) > len(shape):
        raise PartitionError(f"{key}: expected a spec of at most {len(shape)} axes, got {sharding.spec}")
    for axis, (size, names) in enumerate(zip(shape, sharding.spec, strict=False)):
        axes = () if names is None else names if isinstance(names, tuple) else (names,)
        parts = int(np.prod([sharding.mesh.shape[name] for name in axes], dtype=int))
        if size % parts:
            raise PartitionError(
                f"{key}: axis {axis} of size {size} does not divide by the {plural(parts, 'part')} of {names}; pad or "
                "resize it, or choose another split"
            )


def _axis_spec(names: tuple[str, ...]) -> str | tuple[str, ...] | None:
    if not names:
        return None
    return names[0] if len(names) == 1 else names
