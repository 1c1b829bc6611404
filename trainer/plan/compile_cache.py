"""Compilation of plan requests, with a cache of the compilers' output.

FOLDER/asked/REQUEST.json          key of the program that a request makes, and facts about the request
FOLDER/programs/PROGRAM.json.gz    output of the compiler for a program
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import math
import os
import re
import resource
import time
import zlib
from pathlib import Path
from typing import Any

import jax

from halofeed.schemas.bounded_json import check_json_checksum, with_json_checksum
from halofeed.system.atomic_files import atomic_write
from halofeed.trainer.plan.requests import Request, build_lowered, trace, versions
from halofeed.trainer.plan.topologies import Topology, devices_of, topology_named
from halofeed.trainer.plan.verdict import whole_levels
from halofeed.trainer.step import TrainState
from halofeed.trainer.training_setup import Program, Spec

CACHE_FORMAT = 2
"""Version of the documents; since 2 they have a checksum and their name. Other versions are compiled again."""
_MAX_PROGRAMS = 500


def cache_folder() -> Path:
    """Return `$HALOFEED_PLAN_CACHE`, else `halofeed/plans` in the user's cache folder."""
    folder = os.environ.get("HALOFEED_PLAN_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(folder) if folder else Path(home) / "halofeed" / "plans"


class CompileCache:
    """Cache of compilers' output; with `folder` None it stores nothing.

    >>> CompileCache(None).lookup("a") is None
    True
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def lookup(self, request: str) -> dict[str, Any] | None:
        """Return the compiler's output for a request's program, with the request's facts; None if it is not cached."""
        facts = self._read(f"asked/{request}.json") or {}
        compiled = self.lookup_program(facts.pop("program", ""))
        return None if compiled is None else {**compiled, **facts}

    def lookup_program(self, key: str) -> dict[str, Any] | None:
        """Return the compiler's output for a program; None if it is not cached or its file is damaged."""
        return self._read(f"programs/{key}.json.gz")

    def store_program(self, key: str, compiled: dict[str, Any]) -> None:
        """Store the compiler's output for a program, and delete the least recently used above `_MAX_PROGRAMS`."""
        if self.folder is None:
            return
        self._write(f"programs/{key}.json.gz", compiled)
        with contextlib.suppress(OSError):
            programs = (self.folder / "programs").glob(f"{'[0-9a-f]' * 32}.json.gz")
            for other in sorted(programs, key=lambda file: file.stat().st_mtime)[:-_MAX_PROGRAMS]:
                other.unlink()

    def store_request(self, request: str, key: str, facts: dict[str, Any]) -> None:
        """Store the key of the program that a request makes, and facts about the request."""
        self._write(f"asked/{request}.json", {"program": key, **facts})

    def _read(self, name: str) -> dict[str, Any] | None:
        """Read a document and mark its file as recently used; None if it is missing or was changed."""
        if self.folder is None:
            return None
        file = self.folder / name
        try:
            data = file.read_bytes()
            text = gzip.decompress(data) if file.suffix == ".gz" else data
            document = check_json_checksum(json.loads(text), required=True)
        except (OSError, EOFError, ValueError, RecursionError, zlib.error):
            return None
        if not isinstance(document, dict):
            return None
        if (document.pop("format", 0), document.pop("name", "")) != (CACHE_FORMAT, name):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return document

    def _write(self, name: str, document: dict[str, Any]) -> None:
        if self.folder is not None:
            document = with_json_checksum({**document, "format": CACHE_FORMAT, "name": name})
            file, data = self.folder / name, json.dumps(document).encode()
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, gzip.compress(data, 6) if file.suffix == ".gz" else data)


_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Ran out of memory")


def program_key(lowered: jax.stages.Lowered, topology: Topology) -> str:
    """Return a hash of program, machine and versions of the libraries."""
    machine = [topology.platform, topology.grid, topology.devices, topology.settings]
    parts = [lowered.as_text(), *machine, versions()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def compile_for(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """Compile a program and return the compiler's output, as plain JSON values.

    Returns:
        `seconds`, `compiler_bytes` (peak memory of the process), and either `out_of_memory`, the compiler's message, or
        `memory` (bytes of a core by name), `cost` (by name) and `hlo`, the text of the compiled program.

    Raises:
        jax.errors.JaxRuntimeError: the compiler failed for another reason.
    """
    began = time.monotonic()
    compiled: dict[str, Any] = {}
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if not any(mark in str(error) for mark in _OUT_OF_MEMORY):
            raise
        compiled["out_of_memory"] = str(error)
    else:
        compiled |= {
            "memory": _memory_sizes(program.memory_analysis()),
            "cost": _costs(program.cost_analysis()),
            "hlo": _remove_backend_configs(program.as_text() or ""),
        }
    compiled["seconds"] = time.monotonic() - began
    compiled["compiler_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return compiled


def _memory_sizes(memory: Any) -> dict[str, int]:
    names = [name for name in dir(memory) if name.endswith("_in_bytes")]
    return {
        name.removesuffix("_in_bytes").removesuffix("_size"): int(getattr(memory, name)) for name in names
    }


def _costs(cost: Any) -> dict[str, float]:
    costs = cost[0] if isinstance(cost, list) else cost or {}
    return {name: float(costs[name]) for name in ("flops", "bytes accessed") if name in costs}


def _remove_backend_configs(hlo: str) -> str:
    """Remove the compiler's notes on each instruction, which are most of the text, but keep trip counts."""
    hlo = re.sub(r'backend_config=(\{.*?"known_trip_count":\{"n":"(\d+)"\}.*)$', r"trips=\2", hlo, flags=re.M)
    return re.sub(r", backend_config=.*$", "", hlo, flags=re.M)


def compile_request(request: Request, cache: CompileCache) -> None:
    """Compile a request, unless its program is cached, and store the output in the cache.

    Raises:
        UsageError: the request is invalid, or the compiler or machine is missing.
    """
    topology = topology_named(request.topology)
    devices = devices_of(topology)
    program, spec = build_lowered(request, devices)
    traced = trace(program, spec)
    lowered = traced.lower()
    key = program_key(lowered, topology)
    if cache.lookup_program(key) is None:
        cache.store_program(key, compile_for(lowered))
    facts: dict[str, Any] = {
        "state": _state_bytes(program.abstract_state()),
        "batch_bytes": _batch_bytes(program, spec),
        "whole_levels": whole_levels(traced, program.setup.dims),
        "device_bytes": None if topology.platform == "tpu" else _device_bytes(devices[0]),
    }
    cache.store_request(request.key(), key, facts)


def _state_bytes(state: TrainState) -> dict[str, int]:
    """Return bytes by part without padding, per core (the state is replicated); `parameters` includes statistics."""
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
    """Return the memory of a present device that programs may use; None if it is unknown, as for CPUs.

    A TPU's compiler rejects a program that does not fit. A GPU's compiler does not, and the run fails.
    """
    return (device.memory_stats() or {}).get("bytes_limit")


def _batch_bytes(program: Program, spec: Spec) -> int:
    """Return the bytes on a core of the arrays of a batch that the step reads; jit drops the others."""
    keys = {"image", "valid", *program.setup.task.keys}
    return sum(
        math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        for name, array in program.abstract_batch(spec).items()
        if name in keys
    )
