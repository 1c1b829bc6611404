"""Pool of processes that compile requests in parallel, within the memory of this machine.

Each request has its own process: one process cannot compile for two machines, an abort would end all requests, and a
compiler's memory is freed only at the end of its process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from halofeed.errors import HalofeedError, UsageError
from halofeed.system.memory import available_memory
from halofeed.system.signals import CleanupOnExit
from halofeed.trainer.plan.compile_cache import CompileCache, compile_request
from halofeed.trainer.plan.requests import Request
from halofeed.trainer.plan.topologies import Topology, topology_named
from halofeed.trainer.platform import TPU_COMPILER, platform_environment

COMPILER_BYTES = 10 << 30
"""Memory reserved per compiler: a RetinaNet of 2,560 x 2,560 pixels over 8 cores takes 9.7 GB."""
REFUSED = 3
"""Exit status of a compiler's process for an impossible request; the last line of its output says why."""
UNKNOWN = "not compiled yet"
_POLL_SECONDS = 0.05
_STATUS_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class CompileResult:
    """Output of the compiler for a request, or the reason why there is none."""

    compiled: dict[str, Any] | None
    refused: str = ""


class _Process:
    """Process that compiles one request."""

    def __init__(self, request: Request, name: str, folder: Path) -> None:
        self.name, self.began = name, time.monotonic()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed where the process ends)
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
        if status in (0, REFUSED):
            return str(json.loads(lines[-1])) if status else ""
        ended = f"signal {-status}" if status < 0 else f"status {status}"
        return f"the compiler's process ended with {ended}: {lines[-1][:300]}"


def compile_all(
    requests: Sequence[Request],
    cache: CompileCache,
    *,
    names: Sequence[str],
    tell: Callable[[str], None] = lambda line: None,
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
    folder = cache.folder
    if folder is None:
        raise UsageError("plans are compiled by other processes, whose results need a cache folder")
    keys = [request.key() for request in requests]
    results = {
        key: CompileResult(compiled=compiled) for key in keys if (compiled := cache.lookup(key)) is not None
    }
    named = zip(keys, requests, names, strict=True)
    waiting = {key: (request, name) for key, request, name in named if key not in results}
    if known_only:
        results |= dict.fromkeys(waiting, CompileResult(compiled=None, refused=UNKNOWN))
        waiting = {}
    total, max_running = len(waiting), jobs or jobs_at_once()
    running: dict[str, _Process] = {}
    began = last_status = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < max_running:
                key = next(iter(waiting))
                running[key] = _Process(*waiting.pop(key), folder)
                tell(f"compiling {running[key].name}")
            time.sleep(_POLL_SECONDS)
            for key in [key for key, process in running.items() if process.has_ended()]:
                process = running.pop(key)
                refused = process.refusal()
                results[key] = CompileResult(compiled=None if refused else cache.lookup(key), refused=refused)
                done = total - len(waiting) - len(running)
                left = (time.monotonic() - began) / done * (total - done)
                more = f", about {_minutes(left)} left" if done < total else ""
                tell(f"{process.name}: {_minutes(time.monotonic() - process.began)}; {done} of {total}{more}")
                last_status = time.monotonic()
            if running and time.monotonic() - last_status > _STATUS_SECONDS:
                last_status = time.monotonic()
                still = (
                    f"{process.name} ({_minutes(last_status - process.began)})"
                    for process in running.values()
                )
                tell(f"still compiling {', '.join(still)}")
    finally:
        for process in running.values():
            process.stop()
    return [results[key] for key in keys]


def _environment(topology: Topology) -> dict[str, str]:
    """Return the variables that a process needs, before it imports JAX, to compile for a machine."""
    if topology.platform == "tpu":
        return {**platform_environment(os.environ, 1), **TPU_COMPILER}
    return platform_environment(os.environ, topology.devices) if topology.platform == "cpu" else {}


def jobs_at_once() -> int:
    """Return the number of compilers that fit the cores and the free memory of this machine, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, available_memory() // COMPILER_BYTES))


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
