"""What does a compiler say of a program? The figures of the one that it made, or why it made none."""

from __future__ import annotations

import hashlib
import re
import resource
import time
from typing import Any

import jax

from halofeed.trainer.plan.request import versions
from halofeed.trainer.plan.topologies import Topology

_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Ran out of memory")


def program_key(lowered: jax.stages.Lowered, topology: Topology) -> str:
    """The same for one program, machine and compiler."""
    machine = [topology.platform, topology.grid, topology.devices, topology.settings]
    words = [lowered.as_text(), *machine, versions()]
    return hashlib.sha256(repr(words).encode()).hexdigest()[:32]


def compile_for(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """Compile, and keep what the compiler said, as plain JSON values.

    Returns:
        `seconds`, `compiler_bytes` (the process's peak), and either `out_of_memory`, the compiler's words, or `memory`
        (bytes of a core by name), `cost` (by name) and `hlo`, the text of the program that it made.

    Raises:
        jax.errors.JaxRuntimeError: the compiler failed in another way.
    """
    began = time.monotonic()
    said: dict[str, Any] = {}
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if not any(mark in str(error) for mark in _OUT_OF_MEMORY):
            raise
        said["out_of_memory"] = str(error)
    else:
        said |= {
            "memory": _numbers(program.memory_analysis()),
            "cost": _shortened(program.cost_analysis()),
            "hlo": _without_noise(program.as_text() or ""),
        }
    said["seconds"] = time.monotonic() - began
    said["compiler_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return said


def _numbers(memory: Any) -> dict[str, int]:
    names = [name for name in dir(memory) if name.endswith("_in_bytes")]
    return {
        name.removesuffix("_in_bytes").removesuffix("_size"): int(getattr(memory, name)) for name in names
    }


def _shortened(cost: Any) -> dict[str, float]:
    found = cost[0] if isinstance(cost, list) else cost or {}
    return {name: float(found[name]) for name in ("flops", "bytes accessed") if name in found}


def _without_noise(hlo: str) -> str:
    """Without the compiler's own notes on each instruction, which are most of the text; trip counts stay."""
    hlo = re.sub(r'backend_config=(\{.*?"known_trip_count":\{"n":"(\d+)"\}.*)$', r"trips=\2", hlo, flags=re.M)
    return re.sub(r", backend_config=.*$", "", hlo, flags=re.M)
