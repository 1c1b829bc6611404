"""How do the cores of a machine that is elsewhere become JAX devices to compile for?"""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax

from halofeed.schemas.errors import UsageError
from halofeed.schemas.extras import needing
from halofeed.trainer.plan.topologies import Topology
from halofeed.trainer.platform import TPU_COMPILER


def devices_of(topology: Topology) -> Sequence[jax.Device]:
    """The devices of a machine, in JAX's order; those of a TPU can be compiled for, and hold nothing.

    Raises:
        MissingExtraError: the TPU's compiler is not installed.
        UsageError: there are no such devices, or the compiler refuses the machine's name.
    """
    if topology.platform == "tpu":
        return _described(topology)
    try:
        found = jax.devices(topology.platform)
    except RuntimeError as error:
        raise UsageError(f"topology {topology.name}: there is no such device here: {error}") from error
    if len(found) < topology.devices:
        raise UsageError(
            f"topology {topology.name}: this process has {len(found)} {topology.platform} devices"
        )
    return found[: topology.devices]


def _described(topology: Topology) -> Sequence[jax.Device]:
    with needing("plan", "libtpu"):
        import libtpu  # noqa: F401
    from jax.experimental import topologies

    for name, value in TPU_COMPILER.items():
        os.environ.setdefault(name, value)
    try:
        return topologies.get_topology_desc(
            platform="tpu", topology_name=topology.grid, **dict(topology.settings)
        ).devices
    except (RuntimeError, ValueError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(
            f"topology {topology.name} ({topology.grid}): the compiler refuses it: {first}"
        ) from error
