"""A job on another runner, as the command sees it: submitted, watched, told to stop with it, its failure in brief.

A runner may not stop a job that it says it cancelled (Beam's job server leaves Flink's running), and a command may be
killed before it can ask. So a job is wanted only as long as a file of its own lies in its folder: its workers look
for that before they write a shard and before they give one its name, and before each step of listing DICOM series.
Whoever stops the command deletes the file, and the next command, which sweeps the folder, does too.

A runner may also wait without end, for a worker that was killed while it started. So workers let a file beside that one
grow while they are at work, and a command that sees nothing change for long says so, and then gives the job up.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import DebugOptions

from halofeed import __version__
from halofeed.errors import HalofeedError, JobError, LostJobError, NotRunError
from halofeed.pipelines.options import RunnerChoice
from halofeed.pipelines.storage import OutputFolder
from halofeed.pipelines.workers import KEPT
from halofeed.schemas.files import TEMPORARY_FOLDER
from halofeed.system import signals
from halofeed.system.console import print_status
from halofeed.system.threads import in_thread, is_done

T = TypeVar("T")
_SECONDS_BETWEEN_LOOKS = 5.0
_MOST_SECONDS_BETWEEN_LOOKS = 60.0
_LOOKS_BETWEEN_LOOKS = 10.0
"""What a look took, so many times, goes by before the next: a folder of many shards is listed for a while."""
_SECONDS_TO_CANCEL = 10.0
_SECONDS_BETWEEN_SIGNS = 30.0
_SECONDS_TO_WONDER = 120.0
_SECONDS_TO_GIVE_UP = 3600.0
_MOST_CHARACTERS = 400
_WHERE = re.compile(r" \[while running.*", re.DOTALL)
_OWN_ERROR = re.compile(r"halofeed\.schemas\.errors\.\w+: (.*(?:\n  .*)*)")
_LACKING = "a worker's environment lacks what the job needs"
_LACKS = re.compile(
    r"(ModuleNotFoundError|ImportError)\b|AttributeError: .*\bhalofeed\b|.*Process died with exit code (1|126|127)\b"
)
_ERROR = re.compile(r"^(?:Caused by: )?((?:[\w$]+\.)*\w*(?:Error|Exception)(?:: .*)?)$", re.MULTILINE)


def start_heartbeat(output: OutputFolder) -> str:
    """Write the file that says that a job is wanted; its path, which says as well where the job's files lie."""
    name = f"{TEMPORARY_FOLDER}/wanted-{uuid.uuid4().hex}"
    output.write(name, b"wanted\n")
    return output.path(name)


def _place(wanted: str) -> tuple[OutputFolder, str]:
    folder, _, name = wanted.rpartition(f"/{TEMPORARY_FOLDER}/")
    return OutputFolder(folder), f"{TEMPORARY_FOLDER}/{name}"


def check_alive(wanted: str | None) -> None:
    """Go on only where the command that submitted a job wants it still.

    Args:
        wanted: the job's file; None: of this machine alone, which ends with its command.

    Raises:
        JobError: that command was stopped, or another one has taken over.
    """
    if wanted is None:
        return
    output, name = _place(wanted)
    if not output.exists(name):
        raise JobError(
            f"{output.root}: the command that submitted this job was stopped, or another one goes on in its place"
        )


class Heartbeat:
    """By which a job's command sees that this process works for it: a file that grows now and then.

    Args:
        wanted: the job's file; a job of this machine alone has none, and needs no signs.
    """

    def __init__(self, wanted: str | None) -> None:
        self._wanted = wanted
        self._name = f"{TEMPORARY_FOLDER}/alive-{uuid.uuid4().hex}"
        self._given, self._next = 0, 0.0

    def give(self) -> None:
        """Give one, if the last was long ago.

        Raises:
            JobError: the job is not wanted any more.
        """
        if self._wanted is None or time.monotonic() < self._next:
            return
        check_alive(self._wanted)
        self._given += 1
        _place(self._wanted)[0].write(self._name, b"." * self._given)
        self._next = time.monotonic() + _SECONDS_BETWEEN_SIGNS

    @contextlib.contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Give them in a block that may take long and has no place of its own for it.

        Raises:
            JobError: the job is not wanted as the block begins.
        """
        check_alive(self._wanted)
        ended = threading.Event()

        def go_on() -> None:
            while True:
                with contextlib.suppress(Exception):  # one sign less; the block meets the same fault
                    self.give()
                if ended.wait(min(_SECONDS_BETWEEN_SIGNS, _SECONDS_BETWEEN_LOOKS)):
                    return

        if self._wanted is not None:
            threading.Thread(target=go_on, name="signs-of-life", daemon=True).start()
        try:
            yield
        finally:
            ended.set()


class _Watch:
    """Notices that nothing has come of a job for long.

    Args:
        before: what was there before it was submitted.
        most_seconds: of silence, after which the job is given up; None: an hour, but no limit before it has begun.
    """

    def __init__(self, before: object, most_seconds: float | None = None) -> None:
        self._before = self._seen = before
        self._most_seconds = most_seconds
        self._since, self._told = time.monotonic(), False

    def see(self, now: object) -> None:
        """Take what there is now.

        Raises:
            LostJobError: it has been the same for so long that nobody can be at work any more.
        """
        if now != self._seen:
            self._seen, self._since, self._told = now, time.monotonic(), False
            return
        quiet = time.monotonic() - self._since
        has_begun = self._seen != self._before  # else it may wait for its turn
        most_seconds = self._most_seconds or (_SECONDS_TO_GIVE_UP if has_begun else math.inf)
        if quiet > most_seconds:
            raise LostJobError(
                f"no worker has given a sign of life for {most_seconds / 60:g} min, and the job is told to stop; "
                "a runner may wait without end for a worker that was killed while it started"
                + ("" if has_begun else ", or has no free slots, or cannot start workers, as its log says")
                + f". See whether the job still holds the cluster's slots, and cancel it there. {KEPT}"
            )
        if quiet > _SECONDS_TO_WONDER and not self._told:
            self._told = True
            limit = f"it is given up after {most_seconds / 60:g} min"
            if most_seconds == math.inf:
                limit = "this waits on (--max-silence-minutes sets a limit); Ctrl-C ends the job"
            asked = ": has the cluster free slots, and does its log say that it cannot start workers?"
            print_status(
                f"halofeed convert: nothing was heard of the job's workers for {_SECONDS_TO_WONDER / 60:g} "
                f"minutes{'' if has_begun else asked}; {limit}"
            )


def run_remote(
    pipeline: beam.Pipeline,
    wanted: str,
    max_silence_seconds: float | None,
    see: Callable[[Mapping[str, int]], object] = lambda sizes: None,
) -> None:
    """Run a pipeline on its runner, to its end.

    Args:
        wanted: the job's file, which is deleted where this process is stopped, before the runner is asked to cancel.
        max_silence_seconds: how long nothing may be heard of its workers; None: an hour, but no limit before they are
            heard of at all.
        see: is called now and then with the files that are there and their bytes.

    Raises:
        LostJobError: the job failed, and its workers have not said why, or nothing was heard of them.
        JobError: one of them did.
    """
    signals.say_at_stop(
        outlook="its job is told to stop, and ends with the shards that it writes just now; "
        "the same command goes on from there"
    )
    output, name = _place(wanted)

    def look() -> None:
        sizes = output.sizes(begun=True)
        see(sizes)
        watch.see(sizes)

    try:
        with _ending_job_servers(pipeline.runner), quiet_logging(None, "apache_beam"), _quiet_threads():
            watch = _Watch(output.sizes(begun=True), max_silence_seconds)
            result = _submit(pipeline)
            with signals.CleanupOnExit(lambda: _cancel(result, lambda: output.delete([name]))) as job:
                _wait(result, look)
                job.keep()
    except LostJobError:
        raise
    except HalofeedError as error:  # of a worker in this process
        raise JobError(_WHERE.sub("", str(error))) from error
    except Exception as error:
        told = _in_brief(error, pipeline)
        is_named = _OWN_ERROR.search(str(error)) or told.startswith(_LACKING)
        raise (JobError if is_named else LostJobError)(told) from error


def restarted(times: int, run: Callable[[], T]) -> T:
    """What a run of a job gives, which is run again where it is lost.

    Args:
        times: how often at most.

    Raises:
        LostJobError: it was lost each time.
    """
    for left in range(times, 0, -1):
        try:
            return run()
        except LostJobError as error:
            print_status(
                f"halofeed convert: {error}\nThe job is started again (--job-restarts leaves {left - 1} more)."
            )
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    return run()


def describe(pipeline: beam.Pipeline, choice: RunnerChoice, output: OutputFolder) -> NoReturn:
    """Have the runner describe the job in place of running it.

    Args:
        output: its folder. A template reads there when it is run; of a dry run nothing stays.

    Raises:
        NotRunError: it says what there is now.
    """
    try:
        with quiet_logging(None, "apache_beam"):
            result = pipeline.run()
    except Exception as error:
        output.withdraw()
        raise JobError(_in_brief(error, pipeline)) from error
    if choice.dry_run:
        output.withdraw()
        file = choice.options.view_as(DebugOptions).dataflow_job_file
        if file:  # which Beam writes only with a job that it submits
            with FileSystems.create(file) as stream:
                stream.write(result.job.json().encode())
        raise NotRunError(
            "--dry_run: the job was built and not submitted" + (f"; it is in {file}" if file else "")
        )
    raise NotRunError(
        f"{choice.template}: the job's template was written, and nothing run. When it has run, leave "
        "--template_location out and give the same command again: it checks what is there and clears up"
    )


def _submit(pipeline: beam.Pipeline) -> Any:
    before = signal.getsignal(signal.SIGINT)
    result = pipeline.run()
    if before is not None and signal.getsignal(signal.SIGINT) is not before:
        signal.signal(signal.SIGINT, before)  # which a job server that Beam started has taken
    return result


def _wait(result: Any, look: Callable[[], object]) -> None:
    """Wait in a thread of its own, so that this one hears signals and looks how far the job is."""
    ended = in_thread(result.wait_until_finish, "wait-for-job")
    pause = _SECONDS_BETWEEN_LOOKS
    while not is_done(ended, pause):
        before = time.monotonic()
        look()
        pause = _pause_after(time.monotonic() - before)
    ended.result()


def _pause_after(look_seconds: float) -> float:
    """How long to wait after a look that took so long."""
    return min(max(_SECONDS_BETWEEN_LOOKS, _LOOKS_BETWEEN_LOOKS * look_seconds), _MOST_SECONDS_BETWEEN_LOOKS)


def _cancel(result: Any, withdraw: Callable[[], object]) -> None:
    def cancel() -> None:
        for ask in (withdraw, result.cancel):
            with contextlib.suppress(Exception):
                ask()

    # In a thread, as the main one may hold what a client of the runner or the store needs.
    is_done(in_thread(cancel, "cancel-job"), _SECONDS_TO_CANCEL)


@contextlib.contextmanager
def _ending_job_servers(runner: Any) -> Iterator[None]:
    """End the job servers that a runner starts: Beam leaves that to the end of Python, which a command does without."""
    make = getattr(runner, "default_job_server", None)
    if make is None:
        yield
        return
    started: list[Any] = []

    def note(options: Any) -> Any:
        started.append(make(options))
        return started[-1]

    def stop() -> None:
        while started:
            with contextlib.suppress(Exception):
                started.pop().stop()

    runner.default_job_server = note
    try:
        with signals.CleanupOnExit(stop):
            yield
    finally:
        del runner.default_job_server


@contextlib.contextmanager
def quiet_logging(*names: str | None) -> Iterator[None]:
    """Beam tells of a worker's error at length before it raises it; the command line says it in one line."""
    before = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in before:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """Workers in this process end with an error in each of their threads, also where the job went well."""
    before, threading.excepthook = threading.excepthook, lambda _: None
    try:
        yield
    finally:
        threading.excepthook = before


def _in_brief(error: Exception, pipeline: beam.Pipeline) -> str:
    """Why a job failed: what a worker raised, or the last cause that the runner names."""
    text = str(error)
    if own := _OWN_ERROR.findall(text):
        return str(_WHERE.sub("", own[-1]))
    if type(error).__name__ == "FutureTimeoutError":
        endpoint = pipeline.options.get_all_options().get("job_endpoint")
        return f"after --, --job_endpoint={endpoint}: no job server answers there. {KEPT}"
    lines = [line for line in text.splitlines() if any(map(str.isalnum, line))]
    causes = _ERROR.findall(_WHERE.sub("", text)) or lines or [""]
    cause = causes[-1].strip()[:_MOST_CHARACTERS] or type(error).__name__
    if _LACKS.match(cause):
        return (
            f"{_LACKING}: {cause}. Install halofeed {__version__} with all that "
            "it depends on where workers run (`halofeed package` writes a wheel), then run the same command again; "
            "the engine's log says more"
        )
    return f"the job failed: {cause}. {KEPT}; --debug shows all that the runner said"
