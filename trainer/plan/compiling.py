"""Compilation of plan requests in parallel processes, with a cache of the compilers' output.

Each request has its own process: one process cannot compile for two machines, an abort would end all requests, and a
compiler's memory is freed only at the end of its process.

FOLDER/asked/REQUEST.json          key of the program that a request makes, and facts about the request
FOLDER/programs/PROGRAM.json.gz    output of the compiler for a program
FOLDER/topologies/VERSIONS.json    what a version of the TPU's compiler answered about its topologies
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
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import jax

from halofeed.schemas.bounded_json import check_json_checksum, with_json_checksum
from halofeed.schemas.partition import Dims
from halofeed.storage.atomic_files import atomic_write
from halofeed.storage.paths import find_paths, load_bytes, temporary_stream, user_cache_folder
from halofeed.system.errors import HalofeedError, UsageError
from halofeed.system.memory import available_memory
from halofeed.system.signals import CleanupOnExit
from halofeed.system.threads import available_cores
from halofeed.trainer.mesh import reason_not_split
from halofeed.trainer.plan.requests import Request, build_lowered, trace, versions
from halofeed.trainer.plan.topologies import Topology, devices_of, topology_named
from halofeed.trainer.platform import TPU_COMPILER, platform_environment
from halofeed.trainer.step import TrainState
from halofeed.trainer.training_setup import Program, Spec

CACHE_FORMAT = 2
"""Version of the documents; since 2 they have a checksum and their name. Other versions are compiled again."""
_MAX_PROGRAMS = 500
COMPILER_BYTES = 10 << 30
"""Memory reserved per compiler: a RetinaNet of 2,560 x 2,560 pixels over 8 cores takes 9.7 GB."""
REFUSED = 3
"""Exit status of a compiler's process for an impossible request; the last line of its output says why."""
UNKNOWN = "not compiled yet"
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Ran out of memory")
_POLL_SECONDS = 0.05
_STATUS_SECONDS = 30.0
Tell = Callable[[str], None]
"""Function that prints a progress line."""


def cache_folder() -> Path | None:
    """Return `$HALOFEED_PLAN_CACHE`, else `halofeed/plans` in the user's cache folder; None if there is neither."""
    folder = os.environ.get("HALOFEED_PLAN_CACHE")
    return Path(folder) if folder else user_cache_folder("plans")


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
            programs = find_paths(self.folder / "programs", f"{'[0-9a-f]' * 32}.json.gz")
            for other in sorted(programs, key=lambda file: file.stat().st_mtime)[:-_MAX_PROGRAMS]:
                other.unlink()

    def store_request(self, request: str, key: str, facts: dict[str, Any]) -> None:
        """Store the key of the program that a request makes, and facts about the request."""
        self._write(f"asked/{request}.json", {"program": key, **facts})

    def lookup_topologies(self, key: str) -> dict[str, Any] | None:
        """Return what the TPU's compiler answered about its topologies; None if it was not asked."""
        return self._read(f"topologies/{key}.json")

    def store_topologies(self, key: str, known: dict[str, Any]) -> None:
        """Store what the TPU's compiler answered about its topologies."""
        self._write(f"topologies/{key}.json", known)

    def _read(self, name: str) -> dict[str, Any] | None:
        """Read a document and mark its file as recently used; None if it is missing or was changed."""
        if self.folder is None:
            return None
        file = self.folder / name
        try:
            data = load_bytes(file)
            text = gzip.decompress(data) if file.suffix == ".gz" else data
            document = check_json_checksum(json.loads(text), required=True)
        except (OSError, EOFError, ValueError, RecursionError, zlib.error):
            return None
        if not isinstance(document, dict):
            return None
        # A file that was renamed or written by another version counts as missing.
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
        # A program that does not fit is a result of a plan; other errors are not.
        if not any(mark in str(error) for mark in _OUT_OF_MEMORY):
            raise
        compiled["out_of_memory"] = str(error)
    else:
        compiled |= {
            "memory": memory_sizes(program.memory_analysis()),
            "cost": _costs(program.cost_analysis()),
            "hlo": _remove_backend_configs(program.as_text() or ""),
        }
    compiled["seconds"] = time.monotonic() - began
    compiled["compiler_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return compiled


def memory_sizes(memory: Any) -> dict[str, int]:
    """Return the bytes of a device by purpose, from a compiled program's `memory_analysis`."""
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


def whole_levels(traced: jax.stages.Traced, dims: Dims) -> list[dict[str, Any]]:
    """Return the sizes of activations that are not split, finest first, with the reason and the number of activations.

    They are the sharding constraints of the program: every layer constrains its activation (`Pass.hold`).
    """
    if dims is None:
        return []
    counts: dict[tuple[tuple[int, ...], str], int] = {}
    for shape in _constrained_shapes(traced.jaxpr.jaxpr):
        # Other ranks are weights and lists of boxes.
        if len(shape) == len(dims) and (reason := reason_not_split(shape, dims)) is not None:
            key = shape[1:-1], reason
            counts[key] = counts.get(key, 0) + 1
    ordered = sorted(counts.items(), key=lambda entry: -math.prod(entry[0][0]))
    return [
        {"sizes": list(sizes), "reason": reason, "activations": count} for (sizes, reason), count in ordered
    ]


def _constrained_shapes(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "sharding_constraint":
            yield tuple(equation.outvars[0].aval.shape)
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else (value,):
                if hasattr(inner, "eqns"):
                    yield from _constrained_shapes(inner)
                # Programs within a program are closed or open (jax.core.ClosedJaxpr, Jaxpr).
                elif hasattr(inner, "jaxpr") and hasattr(inner.jaxpr, "eqns"):
                    yield from _constrained_shapes(inner.jaxpr)


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


@dataclass(frozen=True, kw_only=True)
class CompileResult:
    """Output of the compiler for a request, or the reason why there is none."""

    compiled: dict[str, Any] | None
    refused: str = ""


class _Process:
    """Process that compiles one request."""

    def __init__(self, request: Request, name: str, folder: Path) -> None:
        self.name, self.began = name, time.monotonic()
        self._output: IO[bytes] = temporary_stream()
        self._process = subprocess.Popen(  # noqa: S603 (`main` below)
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_environment(topology_named(request.topology))},
        )
        self._kill_on_exit = CleanupOnExit(self._process.kill)
        self._kill_on_exit.__enter__()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"request": request.to_json(), "cache": str(folder)}).encode())
        self._process.stdin.close()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """Kill the process."""
        self._kill_on_exit.__exit__()
        self._process.wait()
        self._output.close()

    def refusal(self) -> str:
        """Return the reason why an ended process has no result; "" if it has one."""
        self._kill_on_exit.keep()
        self._output.seek(0)
        lines = self._output.read().decode("utf-8", "replace").strip().splitlines() or ["no output"]
        self._output.close()
        status = self._process.returncode
        # `main` ended the process; any other status is a crash of the compiler.
        if status in (0, REFUSED):
            return str(json.loads(lines[-1])) if status else ""
        ended = f"signal {-status}" if status < 0 else f"status {status}"
        return f"the compiler's process ended with {ended}: {lines[-1][:300]}"


class _Compilers:
    """Processes that compile the waiting requests, `max_running` at once."""

    def __init__(
        self, waiting: dict[str, tuple[Request, str]], folder: Path, max_running: int, tell: Tell
    ) -> None:
        self._waiting, self._folder, self._max_running, self._tell = waiting, folder, max_running, tell
        self._running: dict[str, _Process] = {}
        self._total = len(waiting)
        self._began = self._last_status = time.monotonic()

    def ended(self) -> Generator[tuple[str, str]]:
        """Yield the key of each request when its process ends, and why it has no result, or ""."""
        try:
            while self._waiting or self._running:
                self._start()
                time.sleep(_POLL_SECONDS)
                for key in [key for key, process in self._running.items() if process.has_ended()]:
                    process = self._running.pop(key)
                    yield key, process.refusal()
                    self._tell_ended(process)
                self._tell_running()
        finally:
            for process in self._running.values():
                process.stop()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            key = next(iter(self._waiting))
            self._running[key] = _Process(*self._waiting.pop(key), self._folder)
            self._tell(f"compiling {self._running[key].name}")

    def _tell_ended(self, process: _Process) -> None:
        """Print the time that a process took, and an estimate of the time that the others need."""
        now, done = time.monotonic(), self._total - len(self._waiting) - len(self._running)
        left = (now - self._began) / done * (self._total - done)
        more = f", about {_minutes(left)} left" if done < self._total else ""
        self._tell(f"{process.name}: {_minutes(now - process.began)}; {done} of {self._total}{more}")
        self._last_status = now

    def _tell_running(self) -> None:
        """Print which processes run if nothing was printed for a while: a compilation may take minutes."""
        now = time.monotonic()
        if self._running and now - self._last_status > _STATUS_SECONDS:
            self._last_status = now
            still = [f"{one.name} ({_minutes(now - one.began)})" for one in self._running.values()]
            self._tell(f"still compiling {', '.join(still)}")


def compile_all(
    requests: Sequence[Request],
    cache: CompileCache,
    *,
    names: Sequence[str],
    tell: Tell = lambda line: None,
    jobs: int | None = None,
    known_only: bool = False,
) -> list[CompileResult]:
    """Return cached results, and compile the other requests in parallel.

    Args:
        requests: requests in any order.
        cache: cache of results, with a folder.
        names: name of each request in progress lines.
        tell: function that prints a progress line.
        jobs: number of compilers at once; None is one per core, within the free memory.
        known_only: compile nothing and refuse requests that are not cached.

    Returns:
        A result for each request.

    Raises:
        UsageError: the cache has no folder.
    """
    if cache.folder is None:
        raise UsageError("plans are compiled by other processes, whose results need a cache folder")
    keys = [request.key() for request in requests]
    results = {
        key: CompileResult(compiled=compiled) for key in keys if (compiled := cache.lookup(key)) is not None
    }
    named = zip(keys, requests, names, strict=True)
    # Equal requests have one key, so they are compiled once.
    waiting = {key: (request, name) for key, request, name in named if key not in results}
    if known_only:
        results |= dict.fromkeys(waiting, CompileResult(compiled=None, refused=UNKNOWN))
    else:
        compilers = _Compilers(waiting, cache.folder, jobs or jobs_at_once(), tell)
        with contextlib.closing(compilers.ended()) as ended:
            for key, refused in ended:
                compiled = None if refused else cache.lookup(key)
                results[key] = CompileResult(compiled=compiled, refused=refused)
    return [results[key] for key in keys]


def _environment(topology: Topology) -> dict[str, str]:
    """Return the variables that a process needs, before it imports JAX, to compile for a machine."""
    if topology.platform == "tpu":
        return {**platform_environment(os.environ, 1), **TPU_COMPILER}
    return platform_environment(os.environ, topology.devices) if topology.platform == "cpu" else {}


def jobs_at_once() -> int:
    """Return the number of compilers that fit the cores and the free memory of this machine, at least one."""
    return max(1, min(available_cores(), available_memory() // COMPILER_BYTES))


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"


def main() -> int:
    """Compile one request, read from standard input, and store the result in the cache.

    The parent process sets the environment that JAX needs for the machine.
    """
    document = json.loads(sys.stdin.read())
    try:
        compile_request(Request.from_json(document["request"]), CompileCache(Path(document["cache"])))
    except HalofeedError as error:
        print(json.dumps(str(error)), flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
