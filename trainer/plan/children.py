"""How are many requests answered at once, each in a process of its own, within the machine's memory?

Compilers of two machines do not live in one process, an abort of one would end all, and a compiler's memory is free
again only once its process has ended.
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

from halofeed.errors import UsageError
from halofeed.system.memory import available_memory
from halofeed.system.signals import CleanupOnExit
from halofeed.trainer.plan.answers import Cache
from halofeed.trainer.plan.child import REFUSED
from halofeed.trainer.plan.requests import Request
from halofeed.trainer.plan.topologies import Topology, topology_named
from halofeed.trainer.platform import TPU_COMPILER, platform_environment

COMPILER_BYTES = 10 << 30
"""What one compiler may take: 9.7 GB for a RetinaNet of 2,560 x 2,560 pixels over 8 cores."""
UNKNOWN = "not compiled yet"
_POLL_SECONDS = 0.05
_TELL_EVERY_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a request: what the compiler said, or why it was not asked."""

    said: dict[str, Any] | None
    refused: str = ""


class _Running:
    """A request that is being answered."""

    def __init__(self, request: Request, name: str, folder: Path) -> None:
        self.name, self.began = name, time.monotonic()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed where the process ends)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "halofeed.trainer.plan.child"],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_environment(topology_named(request.topology))},
        )
        self._undone = CleanupOnExit(self._process.kill)
        self._undone.__enter__()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"request": request.to_json(), "cache": str(folder)}).encode())
        self._process.stdin.close()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """End it without an answer."""
        self._undone.__exit__()
        self._process.wait()
        self._output.close()

    def refusal(self) -> str:
        """Why there is no answer; "" where there is one."""
        self._undone.keep()
        self._output.seek(0)
        lines = self._output.read().decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        self._output.close()
        status = self._process.returncode
        if status in (0, REFUSED):
            return str(json.loads(lines[-1])) if status else ""
        ended = f"signal {-status}" if status < 0 else f"status {status}"
        return f"the compiler's process ended with {ended}: {lines[-1][:300]}"


def answers(
    requests: Sequence[Request],
    cache: Cache,
    *,
    names: Sequence[str],
    tell: Callable[[str], None] = lambda line: None,
    jobs: int | None = None,
    known_only: bool = False,
) -> list[Answer]:
    """Answer requests, those that are known at once and the others side by side.

    Args:
        requests: in any order.
        cache: where answers come from and go to.
        names: what each request is called in lines of progress.
        tell: is given such a line now and then.
        jobs: how many compilers run at once; None is one for each core, within the memory that is free.
        known_only: compile nothing; what is not known is refused.

    Returns:
        An answer for each request.

    Raises:
        UsageError: the cache has no folder.
    """
    folder = cache.folder
    if folder is None:
        raise UsageError("plans are compiled by other processes, and their answers need a folder to lie in")
    keys = [request.key() for request in requests]
    found = {key: Answer(said=said) for key in keys if (said := cache.recall(key)) is not None}
    asking = zip(keys, requests, names, strict=True)
    waiting = {key: (request, name) for key, request, name in asking if key not in found}
    if known_only:
        found |= dict.fromkeys(waiting, Answer(said=None, refused=UNKNOWN))
        waiting = {}
    asked, most = len(waiting), jobs or jobs_at_once()
    running: dict[str, _Running] = {}
    began = last = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < most:
                key = next(iter(waiting))
                running[key] = _Running(*waiting.pop(key), folder)
                tell(f"compiling {running[key].name}")
            time.sleep(_POLL_SECONDS)
            for key in [key for key, one in running.items() if one.has_ended()]:
                one = running.pop(key)
                refused = one.refusal()
                found[key] = Answer(said=None if refused else cache.recall(key), refused=refused)
                done = asked - len(waiting) - len(running)
                left = (time.monotonic() - began) / done * (asked - done)
                more = f", about {_minutes(left)} left" if done < asked else ""
                tell(f"{one.name}: {_minutes(time.monotonic() - one.began)}; {done} of {asked}{more}")
                last = time.monotonic()
            if running and time.monotonic() - last > _TELL_EVERY_SECONDS:
                last = time.monotonic()
                still = (f"{one.name} ({_minutes(last - one.began)})" for one in running.values())
                tell(f"still compiling {', '.join(still)}")
    finally:
        for one in running.values():
            one.stop()
    return [found[key] for key in keys]


def _environment(topology: Topology) -> dict[str, str]:
    """What a process must have set, before it imports JAX, to compile for a machine."""
    if topology.platform == "tpu":
        return {**platform_environment(os.environ, 1), **TPU_COMPILER}
    return platform_environment(os.environ, topology.devices) if topology.platform == "cpu" else {}


def jobs_at_once() -> int:
    """How many compilers the machine has cores and free memory for, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, available_memory() // COMPILER_BYTES))


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"
