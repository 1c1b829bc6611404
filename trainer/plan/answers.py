"""Answers to plan requests: traced, looked up in the cache, or compiled."""

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
from halofeed.trainer.plan.requests import Request, build, trace, versions
from halofeed.trainer.plan.topologies import Topology, devices_of, topology_named
from halofeed.trainer.plan.verdict import whole_levels
from halofeed.trainer.problem import Program, Spec
from halofeed.trainer.step import TrainState

FORMAT = 2
"""Since 2 each document states its checksum and its name; what earlier versions remembered is compiled again."""
_MOST_PROGRAMS = 500


def cache_folder() -> Path:
    """`$HALOFEED_PLAN_CACHE`, else `halofeed/plans` in the user's folder of caches."""
    own = os.environ.get("HALOFEED_PLAN_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(own) if own else Path(home) / "halofeed" / "plans"


class Cache:
    """What compilers said; `folder` None remembers nothing.

    >>> Cache(None).recall("a") is None
    True
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def recall(self, request: str) -> dict[str, Any] | None:
        """What was said of a request's program, and of the request; None where nothing is known."""
        asked = self._read(f"asked/{request}.json") or {}
        said = self.program(asked.pop("program", ""))
        return None if said is None else {**said, **asked}

    def program(self, key: str) -> dict[str, Any] | None:
        """What was said of a program; None where nothing is known or the file cannot be read."""
        return self._read(f"programs/{key}.json.gz")

    def keep(self, key: str, said: dict[str, Any]) -> None:
        """Remember what was said of a program."""
        if self.folder is None:
            return
        self._write(f"programs/{key}.json.gz", said)
        with contextlib.suppress(OSError):
            programs = (self.folder / "programs").glob(f"{'[0-9a-f]' * 32}.json.gz")
            for other in sorted(programs, key=lambda file: file.stat().st_mtime)[:-_MOST_PROGRAMS]:
                other.unlink()

    def remember(self, request: str, key: str, asked: dict[str, Any]) -> None:
        """Remember which program a request makes, and what is known of the request itself."""
        self._write(f"asked/{request}.json", {"program": key, **asked})

    def _read(self, name: str) -> dict[str, Any] | None:
        """A document, whose file is the last to go from now on; None where there is none as it was written."""
        if self.folder is None:
            return None
        file = self.folder / name
        try:
            data = file.read_bytes()
            text = gzip.decompress(data) if file.suffix == ".gz" else data
            document = check_json_checksum(json.loads(text), required=True)
        except (OSError, EOFError, ValueError, RecursionError, zlib.error):
            return None
        if not isinstance(document, dict) or (document.pop("format", 0), document.pop("name", "")) != (
            FORMAT,
            name,
        ):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return document

    def _write(self, name: str, document: dict[str, Any]) -> None:
        if self.folder is not None:
            document = with_json_checksum({**document, "format": FORMAT, "name": name})
            file, data = self.folder / name, json.dumps(document).encode()
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, gzip.compress(data, 6) if file.suffix == ".gz" else data)


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
        "whole_levels": whole_levels(traced, program.setup.dims),
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
    read = {"image", "valid", *program.setup.task.keys}
    return sum(
        math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        for name, array in program.abstract_batch(spec).items()
        if name in read
    )
