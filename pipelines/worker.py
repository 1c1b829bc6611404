"""The fork server of a local run, and what each of its workers does: calls for the driver, one after another.

    driver ── fork or exec ──> fork server ── fork ──> worker
      └──────────── a pair of sockets each ───────────┘

The driver sends Beam's options, then functions with their argument; the worker says that it is ready, then what each
gives. Where the driver has ended, its workers end at once, whatever they do.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from halofeed.pipelines.memory import importing, keep_freed_memory
from halofeed.pipelines.scratch import delete_dead_folders
from halofeed.schemas.errors import HalofeedError
from halofeed.schemas.system_errors import in_words

KEPT = "What is finished is kept: run the same command again"
DONE, FAILED = "done", "failed"
"""What a worker says: with its process id at first, then with what a function gave; or with a message."""


def run_fork_server(driver: int, descriptors: Sequence[int]) -> NoReturn:
    """Fork a worker for each of these sockets, and wait for them; clear up where the driver was killed.

    Args:
        driver: its process id.
        descriptors: of the sockets; a single one is served by this process itself.
    """
    channels = [socket.socket(fileno=number) for number in descriptors]
    try:
        with importing():
            import halofeed.pipelines.series
            import halofeed.pipelines.shard_writer  # noqa: F401 - once for all workers
    except BaseException as error:
        for channel in channels:
            _say_failed(channel.makefile("wb"), error)
        os._exit(1)
    for channel in channels:
        try:
            process = os.fork() if len(channels) > 1 else 0
        except OSError as error:
            _say_failed(channel.makefile("wb"), error)
            continue
        if process == 0:
            for other in channels:
                if other is not channel:
                    other.close()
            with contextlib.suppress(OSError):  # not Linux
                Path("/proc/self/comm").write_text(f"hfw-{driver}")
            _serve(channel.makefile("rb"), channel.makefile("wb"))
    for channel in channels:
        channel.close()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    while os.getppid() == driver:  # where a worker failed, and the driver will end this process
        time.sleep(0.01)
    delete_dead_folders()
    os._exit(0)


def _serve(reading: BinaryIO, writing: BinaryIO) -> NoReturn:
    """Serve the driver at the other end of these streams."""
    keep_freed_memory()
    logging.disable(logging.CRITICAL)
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(BaseException):
            while True:
                requests.put(pickle.load(reading))  # noqa: S301 (from the driver, which started this process)
        os._exit(0)

    try:
        threading.Thread(target=read, name="read-requests", daemon=True).start()
        _call(requests, writing)
    except BaseException as error:
        _say_failed(writing, error)
    os._exit(1)


def _call(requests: queue.SimpleQueue[Any], writing: BinaryIO) -> None:
    from apache_beam.options.pipeline_options import PipelineOptions

    from halofeed.pipelines.objects.choose import use_options

    tempfile.tempdir, beam_arguments = requests.get()
    use_options(PipelineOptions(beam_arguments))
    _say(writing, DONE, os.getpid())
    while True:
        function, argument = requests.get()
        _say(writing, DONE, function(argument))
        del argument


def _say_failed(writing: BinaryIO, error: BaseException) -> None:
    """Tell the driver why this worker goes no further."""
    told = str(error)
    if not isinstance(error, HalofeedError):
        told = f"a worker process could not go on: {in_words(error)}. {KEPT}"
    with contextlib.suppress(OSError):
        _say(writing, FAILED, told)


def _say(writing: BinaryIO, kind: str, value: object) -> None:
    pickle.dump((kind, value), writing)
    writing.flush()
