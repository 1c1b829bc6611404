"""What does a call take at most, beside what its process holds already? Told by a process that has done nothing else.

    python -m tests.support.memory_probe        serves calls from its standard input

Each call is made in a fork of its own, under the allocator's settings of a worker, after a small call of the same kind
that brings in modules and the pages of libraries.
"""

import atexit
import functools
import gc
import importlib
import os
import pickle
import re
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a call took, in bytes and seconds, and what it returned: a text that begins with the error's type if it
    raised."""

    peak_bytes: int
    seconds: float
    result: Any


def measure(function: Callable[..., Any], *arguments: Any, warm=(), max_bytes=None) -> Measured:
    """Make a call of a function that a module names, and measure it.

    Args:
        warm: arguments of a smaller call before.
        max_bytes: of address space that the process may have besides what it has, as `ulimit -v` does.
    """
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    _send(server.stdin, (function.__module__, function.__qualname__, arguments, warm, max_bytes))
    peak_bytes, seconds, result = _receive(server.stdout)
    return Measured(peak_bytes=peak_bytes, seconds=seconds, result=result)


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-m", "tests.support.memory_probe"]
    server = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
    atexit.register(server.kill)
    return server


def _send(stream: BinaryIO | Any, value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> Any:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError("the measuring process has ended")
    return pickle.loads(stream.read(struct.unpack("<Q", head)[0]))


def _held(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:500]


def _measured(function: Callable[..., Any], arguments, warm, max_bytes) -> tuple[int, float, Any]:
    if warm:
        _call(function, warm)
    gc.collect()
    if max_bytes is not None:
        limit = _held("VmSize") + max_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before, start = _held("VmRSS"), time.perf_counter()
    result = _call(function, arguments)
    return _held("VmHWM") - before, time.perf_counter() - start, result


def _serve() -> None:
    from halofeed.system.memory import heavy_imports, keep_freed_memory

    with heavy_imports():
        import halofeed.prep.convert.picture_records  # noqa: F401

    keep_freed_memory()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            module, name, arguments, warm, max_bytes = _receive(sys.stdin.buffer)
        except EOFError:
            return
        function = getattr(importlib.import_module(module), name)
        process = os.fork()
        if not process:
            _send(output, _measured(function, arguments, warm, max_bytes))
            os._exit(0)
        _, status = os.waitpid(process, 0)
        if status:
            _send(output, (-1, 0.0, f"died of signal {status}"))


if __name__ == "__main__":
    _serve()
