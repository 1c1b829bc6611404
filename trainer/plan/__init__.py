"""What fits on which machine, said by that machine's compiler: `halofeed plan`, and `plan` for a step of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def plan(
    step: Callable[..., Any], shapes: Sequence[Any], topologies: Sequence[str], *, remember: bool = True
) -> list[dict[str, Any]]:
    """Compile a step of one's own for machines that need not be there, and say what each of their cores would hold.

    Args:
        step: a function of arrays, jitted or not. Constraints within it name axes of the mesh by PartitionSpec, since
            the mesh of each machine is in force while it is traced.
        shapes: its arguments: trees of jax.ShapeDtypeStruct (or arrays). Those whose sharding is a NamedSharding on a
            mesh, which may be a jax.sharding.AbstractMesh, are split so on a mesh of the same axes over the machine's
            first cores; the others are whole on every core of it.
        topologies: names such as "v3-8", "v5e-16", "cpu:8".
        remember: look up what was compiled before, and remember what is.

    Returns:
        For each machine a dictionary: `topology`, `fits`, `memory` (bytes of a core by name; `batch` holds all
        arguments), `flops`, `bytes_accessed`, `sent_bytes`, `bound`, `whole_gathers`, `largest`.

    Raises:
        MissingExtraError: the TPU's compiler is not installed.
        UsageError: an unknown machine, or one with fewer cores than the mesh.

    >>> import jax
    >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
    >>> mesh = AbstractMesh((1,), ("rows",))
    >>> image = jax.ShapeDtypeStruct((8, 64), "float32", sharding=NamedSharding(mesh, PartitionSpec("rows")))
    >>> plan(lambda image: image.sum(), [image], ["cpu:1"], remember=False)[0]["memory"]["batch"]
    2048
    """
    from halofeed.trainer.plan.document import plan_step

    return [plan_step(step, shapes, name, remember=remember) for name in topologies]
