"""Memory and time of a step on other machines, from their compilers: `halofeed plan`, and `plan` for a custom step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def plan(
    step: Callable[..., Any], shapes: Sequence[Any], topologies: Sequence[str], *, remember: bool = True
) -> list[dict[str, Any]]:
    """Compile a custom step for machines that need not be present, and return what each of their cores would hold.

    Args:
        step: function of arrays, jitted or not. It is traced under the mesh of each machine, so constraints name axes
            of the mesh by PartitionSpec.
        shapes: arguments of the step: trees of jax.ShapeDtypeStruct (or arrays). A NamedSharding, also on a
            jax.sharding.AbstractMesh, splits an argument over a mesh of the same axes on the machine's first cores.
            Other arguments are replicated.
        topologies: names such as "v3-8", "v5e-16", "cpu:8".
        remember: use the cache of compiled programs, and add to it.

    Returns:
        For each machine a dictionary: `topology`, `fits`, `memory` (bytes of a core by name; `batch` holds all
        arguments), `flops`, `bytes_accessed`, `sent_bytes`, `bound`, `whole_gathers`, `largest`.

    Raises:
        MissingExtraError: the TPU's compiler is not installed.
        UsageError: a machine is unknown or has fewer cores than the mesh.

    >>> import jax
    >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
    >>> mesh = AbstractMesh((1,), ("rows",))
    >>> image = jax.ShapeDtypeStruct((8, 64), "float32", sharding=NamedSharding(mesh, PartitionSpec("rows")))
    >>> plan(lambda image: image.sum(), [image], ["cpu:1"], remember=False)[0]["memory"]["batch"]
    2048
    """
    from halofeed.trainer.plan.document import plan_own_step

    return [plan_own_step(step, shapes, name, remember=remember) for name in topologies]
