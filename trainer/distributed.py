"""Run of several processes: connect them and combine their decisions."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils

from halofeed.system.errors import UsageError

CONNECT_SECONDS = 300
CPU_COLLECTIVES = "gloo"


def start_processes(coordinator: str | None, process_count: int | None, process_id: int | None) -> None:
    """Connect this process to the others of a run, before JAX lists its devices; without arguments do nothing.

    Args:
        coordinator: host:port on which process 0 listens; the same for all processes.
        process_count: number of processes in the run.
        process_id: unique number of this process, from 0.

    Raises:
        UsageError: only some of the three are given, or a value is invalid.
        RuntimeError: the others did not connect within five minutes (raised by JAX).
    """
    settings = {"coordinator": coordinator, "process count": process_count, "process id": process_id}
    missing = [name for name, value in settings.items() if value is None]
    given = [name for name in settings if name not in missing]
    # A run of one process, or JAX finds the others by its environment.
    if not given:
        return
    if coordinator is None or process_count is None or process_id is None:
        raise UsageError(
            f"{', '.join(missing)}: expected together with {', '.join(given)}; "
            "give every process the same coordinator (host:port) and process count, and its own process id"
        )
    if not _is_host_and_port(coordinator):
        raise UsageError(f"coordinator: expected host:port, e.g. 10.0.0.1:8476, got {coordinator!r}")
    if process_count < 1:
        raise UsageError(f"process count: expected 1 or more, got {process_count}")
    if not 0 <= process_id < process_count:
        raise UsageError(f"process id: expected 0 to {process_count - 1}, got {process_id}")
    # JAX's default has no collectives between CPU devices of several processes.
    jax.config.update("jax_cpu_collectives_implementation", CPU_COLLECTIVES)  # type: ignore[no-untyped-call]
    jax.distributed.initialize(coordinator, process_count, process_id, initialization_timeout=CONNECT_SECONDS)


def _is_host_and_port(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon and port.isdecimal() and 0 < int(port) < 65536)


def devices_of_run() -> tuple[str, int]:
    """Return the platform of the devices, such as cpu, and their number over all processes."""
    return jax.default_backend(), jax.device_count()


def process_count() -> int:
    """Return the number of processes of the run."""
    return int(jax.process_count())


def is_chief() -> bool:
    """Return whether this process writes logs and reports."""
    return jax.process_index() == 0


def agree_any(flag: bool) -> bool:
    """Return whether any process of the run passed True; all processes must call it and get the same result.

    It waits for the slowest process, so call it every few steps. A single process is not delayed.
    """
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))
