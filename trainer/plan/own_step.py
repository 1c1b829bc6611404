"""How is a step of the user's own compiled for a machine, in this process?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from halofeed.schemas.errors import UsageError
from halofeed.trainer.plan.cache import Cache, cache_folder
from halofeed.trainer.plan.compiled import compile_for, program_key
from halofeed.trainer.plan.devices import devices_of
from halofeed.trainer.plan.topologies import topology_named
from halofeed.trainer.plan.verdict import verdict_of


def plan_step(
    step: Callable[..., Any], shapes: Sequence[Any], topology: str, *, remember: bool = True
) -> dict[str, Any]:
    """The verdict on a step for one machine; see `halofeed.trainer.plan.plan`."""
    machine = topology_named(topology)
    mesh = _mesh_over(devices_of(machine), shapes, topology)
    arguments = jax.tree.map(lambda leaf: _on(mesh, leaf), tuple(shapes))
    jitted = step if isinstance(step, jax.stages.Wrapped) else jax.jit(step)
    with jax.set_mesh(mesh):
        lowered = jitted.lower(*arguments)
    cache = Cache(cache_folder() if remember else None)
    key = program_key(lowered, machine)
    said = cache.program(key)
    if said is None:
        said = compile_for(lowered)
        cache.keep(key, said)
    held = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(arguments)
    )
    known = {"state": dict.fromkeys(("parameters", "optimizer", "average"), 0), "batch_bytes": held}
    verdict = verdict_of({**said, **known, "whole_levels": []}, machine, ())
    return {"topology": machine.name, **verdict}


def _mesh_over(devices: Sequence[jax.Device], shapes: Sequence[Any], topology: str) -> Mesh:
    """A mesh of the axes that the shapes name; of one axis of one core where they name none."""
    meshes = [
        leaf.sharding.mesh
        for leaf in jax.tree.leaves(tuple(shapes))
        if isinstance(getattr(leaf, "sharding", None), NamedSharding)
    ]
    sizes = dict(meshes[0].shape) if meshes else {"core": 1}
    if any(dict(mesh.shape) != sizes for mesh in meshes):
        raise UsageError("shapes: expected one mesh for all, got meshes of different axes")
    count = math.prod(sizes.values())
    if count > len(devices):
        raise UsageError(f"topology {topology}: has {len(devices)} cores, the mesh of the shapes {count}")
    placed = np.array(devices[:count], dtype=object).reshape(tuple(sizes.values()))
    return Mesh(placed, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def _on(mesh: Mesh, leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()  # type: ignore[no-untyped-call]
    placed = NamedSharding(mesh, spec)  # type: ignore[no-untyped-call]
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed)  # type: ignore[no-untyped-call]
