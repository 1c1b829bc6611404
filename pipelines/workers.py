"""The fork server of a local run, and what each of its workers does: calls for the driver, one after another.

    driver ── fork or exec ──> fork server ── fork ──> worker
      └──────────── a pair of sockets each ───────────┘

The driver sends Beam's options, then functions with their argument; the worker says that it is ready, then what each
gives. Where the driver has ended, its workers end at once, whatever they do.

The worker processes of a local run, as the driver sees them: whichever is idle makes the next call.

Beam's own runner would reach worker processes by way of ports that are open to the network, and give each its share
of the shards beforehand. So Beam runs in the driver alone, and its transform that writes shards asks these workers, by
pairs of sockets that nobody else can open. They find DICOM series before that.
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

from halofeed.errors import HalofeedError, JobError
from halofeed.pipelines.job import JobOptions, ShardJob
from halofeed.prep.options.recipe import Recipe
from halofeed.system.memory import MEBIBYTE, importing, keep_freed_memory, machine_memory
from halofeed.system.resource_errors import in_words, likely_limits
from halofeed.system.scratch import delete_dead_folders
from halofeed.system.signals import CleanupOnExit, block_signals

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
            import halofeed.pipelines.run_distributed
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


SHARE_OF_MEMORY = 0.8
"""Of the machine's, for what is decoded; interpreters, libraries and what is being written take the rest."""

_SECONDS_TO_END = 2.0

_ready: list[Workers] = []
"""Those that were started for a job that is about to begin."""
_of_folder: dict[str, Workers] = {}
"""The workers of the jobs that this process drives, by their progress folder."""


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_workers(job: JobOptions, shards: int, worker_bytes: int) -> int:
    """How many workers a local run has: as the user says, else one per core.

    Args:
        shards: of a split: there are no more workers.
        worker_bytes: what each may take for what it decodes: there are no more than the machine has memory for.
    """
    if not hasattr(os, "fork"):
        return 1
    return job.workers or max(
        1, min(available_cores(), shards, int(SHARE_OF_MEMORY * machine_memory()) // worker_bytes)
    )


@contextlib.contextmanager
def copies_as_workers(job: JobOptions, recipe: Recipe, beam_arguments: Sequence[str]) -> Iterator[None]:
    """Have copies of this process as workers of the one job within, unless it may be another runner's.

    To be called where what workers need is imported, which takes a fresh interpreter a second, and nothing was begun.
    """
    count = count_workers(job, recipe.shards, recipe.max_memory * MEBIBYTE)
    if count > 1 and not any(argument.startswith("--runner") for argument in beam_arguments):
        with Workers(count, copies=True) as workers:
            _ready.append(workers)
            yield
            _ready.clear()
    else:
        yield


@contextlib.contextmanager
def workers_in(folder: str, count: int, beam_arguments: Sequence[str]) -> Iterator[Workers]:
    """So many workers for a job with this progress folder.

    Args:
        beam_arguments: Beam's options, of which those of file systems matter.
    """
    with contextlib.ExitStack() as stack:
        workers = _ready.pop() if _ready else stack.enter_context(Workers(count))
        workers.begin((folder, list(beam_arguments)))
        # Here too, as they write below the progress folder, which is deleted next.
        stack.enter_context(CleanupOnExit(workers.kill))
        _of_folder[folder] = workers
        stack.callback(_of_folder.pop, folder)
        yield workers


def workers_for(job: ShardJob) -> Workers | None:
    """The workers of a job that this process drives; None where it writes the shards itself, as on a cluster."""
    return _of_folder.get(job.progress_folder or "")


def _count_threads() -> int:
    """How many threads this process has, those of libraries too; 0 where nobody can tell."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


class Workers:
    """The worker processes of a job: they start as this is entered, and end as it is left.

    Args:
        count: how many.
        copies: whether they may be copies of this process, which is done where it has one thread alone; else their
            fork server is an interpreter of its own.
    """

    def __init__(self, count: int, *, copies: bool = False) -> None:
        self.failure: str | None = None
        """Why the job cannot go on, once a worker has ended or failed."""
        self.count = count
        self._copies = copies
        self._servers: dict[int, Callable[[], object]] = {}
        self._workers: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, "worker")
        self._asked: list[tuple[str, Future[Any]]] = []
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
            with block_signals():  # signals reach the driver alone, which stops its workers
                self._start([one.fileno() for one in theirs])
        except BaseException:
            self.__exit__()
            raise
        finally:
            for other in theirs:
                other.close()
        return self

    def _start(self, descriptors: list[int]) -> None:
        if self._copies and _count_threads() == 1:
            self._fork(descriptors)
        elif sys.platform == "linux":
            self._execute(descriptors)
        else:  # where libraries do not bear to be copied once they are imported
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
        with contextlib.suppress(OSError):  # done by the process itself
            os.setpgid(process, process)
        self._servers[process] = lambda: os.waitpid(process, 0)

    def _execute(self, descriptors: list[int]) -> None:
        # With this process's path in place of the working folder, where a module may have any library's name.
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from halofeed.pipelines.workers import run_fork_server; "
            f"run_fork_server({os.getpid()}, {descriptors})"
        )
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
        """Say what each of them is told before all else: the folder for its temporary files, and Beam's options."""
        for worker in self._workers:
            worker.start = first

    def ask(self, function: Callable[[Any], object], argument: object, what: str, key: str = "") -> None:
        """Have a call made by the next worker that is idle; wait for that one.

        Args:
            function: of a module, so that it is found by its name.
            what: the worker does then, in the past tense, for messages.
            key: what `answers` calls the result.

        Raises:
            JobError: a worker has ended or failed.
        """
        worker = self._idle.get()
        if self.failure is not None:
            self._idle.put(worker)
            raise JobError(self.failure)
        asked = self._threads.submit(self._have_called, worker, (function, argument), what)
        self._asked.append((key, asked))

    def answers(self) -> Iterator[tuple[str, Any]]:
        """The key of everything that was asked for, once it is done, and what it gave.

        Raises:
            JobError: a worker has ended or failed.
        """
        asked, self._asked = self._asked, []
        for key, given in asked:
            yield key, given.result()

    def map(self, function: Callable[[Any], Any], arguments: Iterable[object], what: str) -> Iterator[Any]:
        """What a function gives of each argument, in their order; as `ask` and `answers`."""
        for argument in arguments:
            self.ask(function, argument, what)
        for _, given in self.answers():
            yield given

    def kill(self) -> None:
        """End the workers now, whatever they do, and wait until they have ended."""
        for server in self._servers:
            with contextlib.suppress(OSError):
                os.killpg(server, signal.SIGKILL)
        for worker in self._workers:
            worker.wait_for_its_end()
        while self._servers:
            with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored, nobody is told
                self._servers.popitem()[1]()

    def _have_called(self, worker: _Worker, call: tuple[Callable[[Any], object], object], what: str) -> Any:
        try:
            return worker.call(call, what)
        except JobError as error:
            self.failure = self.failure or str(error)
            raise
        finally:
            self._idle.put(worker)


class _Worker:
    """The driver's end of the pair of sockets to one worker."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._reading, self._writing = channel.makefile("rb"), channel.makefile("wb")
        self._process: int | None = None
        self.start: object = None

    def wait_for_its_end(self) -> None:
        """Return once its end is closed, or after a while; who waits for its answer is told that there is none."""
        poll = select.poll()
        poll.register(self._channel, 0)
        poll.poll(_SECONDS_TO_END * 1000)
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the sockets."""
        for stream in (self._reading, self._writing, self._channel):
            with contextlib.suppress(OSError):  # what was not sent yet
                stream.close()

    def call(self, call: tuple[Callable[[Any], object], object], what: str) -> Any:
        """Have it make a call; what that gave.

        Raises:
            JobError: the process has ended, or could not do it.
        """
        try:
            if self._process is None:
                self._process = int(self._ask(self.start))
            return self._ask(call)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            if self._process is None:
                raise JobError(
                    "a worker process ended before it began; the usual cause is too little memory"
                    f"{likely_limits()}; --workers 1 works in this process. {KEPT}"
                ) from error
            raise JobError(
                f"a worker was killed, process {self._process} while it {what}; the usual cause is too "
                f"little memory: take fewer --threads or --workers. {KEPT}"
            ) from error

    def _ask(self, request: object) -> Any:
        pickle.dump(request, self._writing)
        self._writing.flush()
        kind, value = pickle.load(self._reading)  # noqa: S301 (from a process that this one started)
        if kind == FAILED:
            raise JobError(value)
        return value
