"""How is one request answered: traced, looked up, and compiled where it is not known?"""

from __future__ import annotations

import math
from typing import Any

import jax

from halofeed.trainer.plan.cache import Cache
from halofeed.trainer.plan.compiled import compile_for, program_key
from halofeed.trainer.plan.devices import devices_of
from halofeed.trainer.plan.lowered import build, trace
from halofeed.trainer.plan.request import Request
from halofeed.trainer.plan.topologies import topology_named
from halofeed.trainer.plan.whole_levels import whole_levels
from halofeed.trainer.program import Program, Spec
from halofeed.trainer.step import TrainState


def answer(request: Request, cache: Cache) -> None:
    """Remember in the cache what the compiler says of a request.

    Raises:
        UsageError: what cannot be built, or a compiler or machine that is not there.
    """
    topology = topology_named(request.topology)
    devices = devices_of(topology)
    program, spec = build(request, devices)
    traced = trace(program, spec)
    lowered = traced.lower()
    key = program_key(lowered, topology)
    if cache.program(key) is None:
        cache.keep(key, compile_for(lowered))
    asked: dict[str, Any] = {
        "state": _state_bytes(program.abstract_state()),
        "batch_bytes": _batch_bytes(program, spec),
        "whole_levels": whole_levels(traced, program.problem.dims),
        "device_bytes": None if topology.platform == "tpu" else _device_bytes(devices[0]),
    }
    cache.remember(request.key(), key, asked)


def _state_bytes(state: TrainState) -> dict[str, int]:
    """By part, before any padding; `parameters` holds the norms' statistics too. Every core has a whole copy."""
    parts = {
        "parameters": (state.parameters, state.statistics),
        "optimizer": (state.optimizer_state, state.step),
        "average": state.average,
    }
    return {
        name: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part))
        for name, part in parts.items()
    }


def _device_bytes(device: jax.Device) -> int | None:
    """What programs may take of a device that is there; None where it does not say, as CPUs do not.

    A TPU's compiler refuses what does not fit; a GPU's makes the program, and the run fails.
    """
    return (device.memory_stats() or {}).get("bytes_limit")


def _batch_bytes(program: Program, spec: Spec) -> int:
    """Of a core's part of what the step reads of a batch; jit drops the rest."""
    read = {"image", "valid", *program.problem.task.keys}
    return sum(
        math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        for name, array in program.abstract_batch(spec).items()
        if name in read
    )
