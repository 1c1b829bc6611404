"""How worker processes start at once: as copies of a process that has everything imported already.

    driver ── fork ──> nursery ── fork ──> worker      (imported: Beam, NumPy, OpenCV, halofeed)
      └─ Beam's shell command ──> connector ── socket ──┘

Beam starts a worker by a shell command. A fresh interpreter takes a second to import Beam, on every core at once;
the connector (pipelines/connector.py) only asks the nursery for a copy and lives as long as that. The nursery is
forked before the driver has threads, and ends with it: it holds the other end of a pipe that the driver never closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

from halofeed.pipelines import connector

_CREDENTIALS = struct.Struct("3i")

_address: str | None = None
"""Where the nursery of this process listens; there is one or none, as there is one process."""


def start_nursery() -> None:
    """Have copies of this process, as it is now, as workers; where that cannot be, they will be fresh interpreters.

    To be called where no thread runs yet and what the workers need is imported: the command line alone can know.
    """
    global _address
    if not sys.platform.startswith("linux") or _address is not None or threading.active_count() > 1:
        return
    listening = socket.socket(socket.AF_UNIX)
    address = f"halofeed-{os.getpid()}-{secrets.token_hex(8)}"
    listening.bind("\0" + address)  # an abstract name: no file, gone with the nursery
    listening.listen(64)
    driver, reading, writing = os.getpid(), *os.pipe()
    with warnings.catch_warnings():
        # Python warns of threads; NumPy's BLAS has some, and renews them in a copy.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        with contextlib.suppress(BaseException):
            os.close(writing)
            _nurse(listening, reading, driver)
        os._exit(1)
    listening.close()
    os.close(reading)
    _address = address


def has_nursery() -> bool:
    """Whether workers start at once, and share what they have imported."""
    return _address is not None


def worker_command(arguments: Sequence[str]) -> list[str]:
    """The command of a worker process with these of Beam's options."""
    if _address is None:
        return [sys.executable, "-m", "halofeed.pipelines.worker", str(os.getpid()), *arguments]
    return [sys.executable, "-I", "-S", connector.__file__, _address, *arguments]


def _nurse(listening: socket.socket, driver_lives: int, driver: int) -> None:
    """Fork a worker for each connector until the driver has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    Path("/proc/self/comm").write_text(f"hfn-{driver}")
    while True:
        ready = select.select([listening.fileno(), driver_lives], [], [])[0]
        if driver_lives in ready:
            os._exit(0)
        connection = listening.accept()[0]
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            with contextlib.suppress(BaseException):
                _work(connection, driver)
            os._exit(1)
        connection.close()


def _work(connection: socket.socket, driver: int) -> None:
    """Be the worker that a connector asks for."""
    _, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if user != os.getuid():
        return
    Path("/proc/self/comm").write_text(f"hfw-{driver}")
    with connection.makefile("rb") as lines:
        request = json.loads(lines.readline())
    os.environ.update(request["environment"])

    def end_with_connector() -> None:
        connection.recv(1)
        os._exit(1)

    threading.Thread(target=end_with_connector, name="watch-connector", daemon=True).start()
    from halofeed.pipelines.worker import work

    work(driver, request["arguments"])
    connection.send(b"\0")
    os._exit(0)
