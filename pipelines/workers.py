"""Worker processes of a local run, and the fork server that starts them.

    driver ── fork or exec ──> fork server ── fork ──> worker
      └───────────── one socket pair each ─────────────┘

Beam's own runner would reach worker processes through ports open to the network, and give each its shards in advance.
So a local run has no Beam: `run_local` calls functions in idle workers through socket pairs, and so does the search for
DICOM series. When the driver ends, its workers end at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

from halofeed.pipelines.job import JobOptions
from halofeed.prep.options.recipe import Recipe
from halofeed.storage.scratch import delete_dead_folders
from halofeed.system.errors import HalofeedError, JobError
from halofeed.system.memory import MEBIBYTE, heavy_imports, keep_freed_memory, machine_memory
from halofeed.system.resource_errors import describe_error, describe_limits
from halofeed.system.signals import CleanupOnExit, block_signals
from halofeed.system.threads import available_cores

SHARD_KEPT = "What is finished is kept: run the same command again"
DONE, FAILED = "done", "failed"
"""Answers of a worker: with its process id at the start, then with a function's result; or with an error message."""
_SERVER_PROGRAM = """
import sys
sys.path[:] = {path!r}
from halofeed.pipelines.workers import run_fork_server
def preload():
    import halofeed.pipelines.run_distributed, halofeed.pipelines.shard_writer
run_fork_server({driver}, {descriptors}, preload)
"""
"""Program of a fork server in a new interpreter, which imports the workers' modules once for all of them."""


def run_fork_server(
    driver: int, descriptors: Sequence[int], preload: Callable[[], object] = lambda: None
) -> NoReturn:
    """Fork a worker for each socket and wait for the workers; clean up where the driver was killed.

    Args:
        driver: process id of the driver.
        descriptors: file descriptors of the sockets; this process itself serves a single one.
        preload: imports the workers' modules before the fork.
    """
    channels = [socket.socket(fileno=number) for number in descriptors]
    try:
        with heavy_imports():
            preload()
    except BaseException as error:
        for channel in channels:
            _send_failure(channel.makefile("wb"), error)
        os._exit(1)
    _fork_workers(driver, channels)
    for channel in channels:
        channel.close()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    while os.getppid() == driver:  # after a worker's failure; the driver will kill this process
        time.sleep(0.01)
    delete_dead_folders()
    os._exit(0)


def _fork_workers(driver: int, channels: Sequence[socket.socket]) -> None:
    """Fork a worker for each socket; it returns only in this process, which has no worker's task with several."""
    for channel in channels:
        try:
            # A single worker needs no server beside it: Workers starts one such process for each where it cannot fork.
            process = os.fork() if len(channels) > 1 else 0
        except OSError as error:
            _send_failure(channel.makefile("wb"), error)
            continue
        if process == 0:
            # Otherwise a worker's death would not close its socket, because its siblings hold it open.
            for other in channels:
                if other is not channel:
                    other.close()
            with contextlib.suppress(OSError):  # not Linux
                Path("/proc/self/comm").write_text(f"hfw-{driver}")
            _serve(channel.makefile("rb"), channel.makefile("wb"))


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
        _answer_requests(requests, writing)
    except BaseException as error:
        _send_failure(writing, error)
    os._exit(1)


def _answer_requests(requests: queue.SimpleQueue[Any], writing: BinaryIO) -> None:
    tempfile.tempdir, beam_arguments = requests.get()
    if beam_arguments:  # options of Beam's file systems
        from apache_beam.options.pipeline_options import PipelineOptions

        from halofeed.storage.choose import use_options

        use_options(PipelineOptions(beam_arguments))
    _send(writing, DONE, os.getpid())
    while True:
        function, argument = requests.get()
        _send(writing, DONE, function(argument))
        del argument


def _send_failure(writing: BinaryIO, error: BaseException) -> None:
    """Send the driver the error that ends this worker."""
    message = str(error)
    if not isinstance(error, HalofeedError):
        message = f"a worker process failed: {describe_error(error)}. {SHARD_KEPT}"
    with contextlib.suppress(OSError):
        _send(writing, FAILED, message)


def _send(writing: BinaryIO, kind: str, value: object) -> None:
    pickle.dump((kind, value), writing)
    writing.flush()


SHARE_OF_MEMORY = 0.8
"""Share of the machine's memory for decoded inputs; interpreters, libraries and output buffers take the rest."""

_SECONDS_TO_END = 2.0

_started: list[Workers] = []
"""Workers that were started for the next job."""


def count_workers(job: JobOptions, shards: int, worker_bytes: int) -> int:
    """Return the number of workers of a local run: the user's number, or one per core.

    Args:
        shards: shards of a split, an upper limit.
        worker_bytes: memory for the inputs of each worker, which the machine must have.
    """
    if not hasattr(os, "fork"):  # Windows
        return 1
    return job.workers or max(
        1, min(available_cores(), shards, int(SHARE_OF_MEMORY * machine_memory()) // worker_bytes)
    )


def is_interpreter_busy() -> bool:
    """Return whether another thread of this process computes in Python.

    A thread that gives the interpreter's lock away, as for each read, decoding and checksum, then waits for
    `sys.getswitchinterval()`, 5 ms by default, to get it back. A conversion in this process would take 4 to 5 times as
    long (1,290 photographs: 4.6 → 17.3 s; in worker processes 7.3 s, on two cores of which the thread keeps one busy).
    """
    # Three of nine, because on a loaded machine single waits mislead: the busy thread may wake too late to take the
    # lock, and this thread may lose the processor to another process. Beside four busy processes on two cores, 189 of
    # 200 checks found the busy thread, and none of 200 found one where there was none.
    waits = sorted(_seconds_to_regain_lock() for _ in range(9))
    return waits[-3] > sys.getswitchinterval() / 2


def _seconds_to_regain_lock() -> float:
    """Return how long this thread waits for the lock after it has left others a millisecond to take it."""
    began = time.perf_counter()
    time.sleep(0.001)
    return time.perf_counter() - began - 0.001


@contextlib.contextmanager
def fork_workers(job: JobOptions, recipe: Recipe, beam_arguments: Sequence[str]) -> Iterator[None]:
    """Start copies of this process as the workers of one job, unless the job may be another runner's.

    Call it after importing what workers need, which takes a new interpreter a second, and before any other work.
    """
    count = count_workers(job, recipe.shards, recipe.max_memory * MEBIBYTE)
    if count > 1 and not any(argument.startswith("--runner") for argument in beam_arguments):
        with Workers(count, copies=True) as workers:
            _started.append(workers)
            yield
            _started.clear()
    else:
        yield


@contextlib.contextmanager
def workers_in(folder: str, count: int, beam_arguments: Sequence[str]) -> Iterator[Workers]:
    """Provide workers for the job with this progress folder.

    Args:
        count: number of workers.
        beam_arguments: options of Beam, whose file-system options the workers need.
    """
    with contextlib.ExitStack() as stack:
        workers = _started.pop() if _started else stack.enter_context(Workers(count))
        workers.begin((folder, list(beam_arguments)))
        # Stop the workers before the progress folder is deleted, because they write into it.
        stack.enter_context(CleanupOnExit(workers.kill))
        yield workers


def _count_threads() -> int:
    """Return the number of threads of this process, including those of libraries; 0 if unknown."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


class Workers:
    """Worker processes of a job, started on entry and stopped on exit.

    Args:
        count: number of workers.
        copies: whether they may be forks of this process, which also needs to have only one thread. Otherwise the fork
            server is a new interpreter.
    """

    def __init__(self, count: int, *, copies: bool = False) -> None:
        self.failure: str | None = None
        """Error that ends the job, after a worker ended or failed."""
        self.count = count
        self._copies = copies
        self._servers: dict[int, Callable[[], object]] = {}
        self._workers: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, "worker")
        self._calls: list[tuple[str, Future[Any]]] = []
        self._killed = CleanupOnExit(self.kill)

    def __enter__(self) -> Self:
        self._killed.__enter__()
        theirs = []
        try:
            for _ in range(self.count):
                ours, other = socket.socketpair()
                theirs.append(other)
                self._workers.append(_Worker(ours))
                self._idle.put(self._workers[-1])
            with block_signals():  # only the driver handles signals, and it stops its workers
                self._start([one.fileno() for one in theirs])
        except BaseException:
            self.__exit__()
            raise
        finally:
            for other in theirs:
                other.close()
        return self

    def _start(self, descriptors: list[int]) -> None:
        # A fork copies locks that other threads hold, and not the threads that would release them.
        if self._copies and _count_threads() == 1:
            self._fork(descriptors)
        elif sys.platform == "linux":
            self._execute(descriptors)
        else:  # other systems' libraries do not support a fork after their import
            for descriptor in descriptors:
                self._execute([descriptor])

    def _fork(self, descriptors: list[int]) -> None:
        driver = os.getpid()
        process = os.fork()
        if process == 0:
            with contextlib.suppress(BaseException):
                os.setpgid(0, 0)
                for worker in self._workers:
                    worker.close()
                nothing = os.open(os.devnull, os.O_RDWR)
                for standard in range(3):
                    os.dup2(nothing, standard)
                run_fork_server(driver, descriptors)
            os._exit(1)
        # Both set the group, as shells do: whichever runs first, it is set before a signal is sent to it.
        with contextlib.suppress(OSError):  # the child has done it
            os.setpgid(process, process)
        self._servers[process] = lambda: os.waitpid(process, 0)

    def _execute(self, descriptors: list[int]) -> None:
        # With this process's path instead of the working folder, where a module may shadow a library.
        program = _SERVER_PROGRAM.format(path=sys.path, driver=os.getpid(), descriptors=descriptors)
        child = subprocess.Popen(  # noqa: S603
            [sys.executable, f"-Xutf8={sys.flags.utf8_mode}", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            process_group=0,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        self._servers[child.pid] = child.wait

    def __exit__(self, *_: object) -> None:
        self._killed.__exit__()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def begin(self, first: object) -> None:
        """Set the first message to each worker: the folder for temporary files, and Beam's options."""
        for worker in self._workers:
            worker.start = first

    def submit(self, function: Callable[[Any], object], argument: object, what: str, key: str = "") -> None:
        """Call a function in the next idle worker, after waiting for one.

        Args:
            function: function of a module, because workers find it by name.
            what: description of the call in the past tense, for messages.
            key: key of the result in `results`.

        Raises:
            JobError: a worker has ended or failed.
        """
        worker = self._idle.get()
        if self.failure is not None:
            self._idle.put(worker)
            raise JobError(self.failure)
        self._calls.append((key, self._threads.submit(self._call_in, worker, (function, argument), what)))

    def results(self) -> Iterator[tuple[str, Any]]:
        """Yield the key and the result of each call since the last use, in the order of the calls.

        Raises:
            JobError: a worker has ended or failed.
        """
        calls, self._calls = self._calls, []
        for key, call in calls:
            yield key, call.result()

    def map(self, function: Callable[[Any], Any], arguments: Iterable[object], what: str) -> Iterator[Any]:
        """Yield a function's result for each argument, in order; raise as `submit` and `results`."""
        for argument in arguments:
            self.submit(function, argument, what)
        for _, result in self.results():
            yield result

    def kill(self) -> None:
        """Kill the workers and wait until they have ended."""
        for server in self._servers:
            with contextlib.suppress(OSError):
                os.killpg(server, signal.SIGKILL)
        for worker in self._workers:
            worker.wait_for_end()
        while self._servers:
            with contextlib.suppress(ChildProcessError):  # there is no status where SIGCHLD is ignored
                self._servers.popitem()[1]()

    def _call_in(self, worker: _Worker, call: tuple[Callable[[Any], object], object], what: str) -> Any:
        try:
            return worker.call(call, what)
        except JobError as error:
            self.failure = self.failure or str(error)
            raise
        finally:
            self._idle.put(worker)


class _Worker:
    """The driver's end of the socket pair of a worker."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._reading, self._writing = channel.makefile("rb"), channel.makefile("wb")
        self._process: int | None = None
        self.start: object = None

    def wait_for_end(self) -> None:
        """Wait until the worker's end is closed, for 2 s at most; a pending call then fails."""
        poll = select.poll()
        poll.register(self._channel, 0)
        poll.poll(_SECONDS_TO_END * 1000)
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the sockets."""
        for stream in (self._reading, self._writing, self._channel):
            with contextlib.suppress(OSError):  # unsent data
                stream.close()

    def call(self, call: tuple[Callable[[Any], object], object], what: str) -> Any:
        """Call a function in the worker and return its result.

        Raises:
            JobError: the process has ended, or the call failed.
        """
        try:
            if self._process is None:
                self._process = int(self._ask(self.start))
            return self._ask(call)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            if self._process is None:
                raise JobError(
                    "a worker process ended before it began; the usual cause is too little memory"
                    f"{describe_limits()}; --workers 1 works in this process. {SHARD_KEPT}"
                ) from error
            raise JobError(
                f"a worker was killed, process {self._process} while it {what}; the usual cause is too "
                f"little memory: take fewer --threads or --workers. {SHARD_KEPT}"
            ) from error

    def _ask(self, request: object) -> Any:
        pickle.dump(request, self._writing)
        self._writing.flush()
        kind, value = pickle.load(self._reading)  # noqa: S301 (from a process that this one started)
        if kind == FAILED:
            raise JobError(value)
        return value
