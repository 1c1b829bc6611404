"""Control of a job on another runner: submission, watch, cancellation, and a short error message."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import DebugOptions, GoogleCloudOptions

from halofeed import __version__
from halofeed.pipelines.beam_options import RunnerChoice
from halofeed.pipelines.heartbeat import split_heartbeat_path
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.workers import SHARD_KEPT
from halofeed.system import signals
from halofeed.system.console import print_status
from halofeed.system.errors import HalofeedError, JobError, LostJobError, NotRunError
from halofeed.system.threads import run_in_thread, wait_until_done

T = TypeVar("T")
_POLL_SECONDS = 5.0
_MAX_POLL_SECONDS = 60.0
_POLL_FACTOR = 10.0
"""Pause between polls as a multiple of a poll's duration, because listing many shards takes a while."""
_SECONDS_TO_CANCEL = 10.0
_SECONDS_TO_WARN = 120.0
_SECONDS_TO_GIVE_UP = 3600.0
_MAX_MESSAGE_CHARACTERS = 400
_STEP_NOTE = re.compile(r" \[while running.*", re.DOTALL)
_OWN_ERROR = re.compile(r"halofeed\.errors\.\w+: (.*(?:\n  .*)*)")
_MISSING_SOFTWARE = "a worker's environment lacks what the job needs"
_STORE_EXTRAS = {"boto": "aws", "google": "gcp"}
"""Extra of halofeed by the beginning of the name of a module that only stores need."""
_MISSING_SOFTWARE_ERROR = re.compile(
    r"(ModuleNotFoundError|ImportError)\b|AttributeError: .*\bhalofeed\b|.*Process died with exit code (1|126|127)\b"
)
_ERROR = re.compile(r"^(?:Caused by: )?((?:[\w$]+\.)*\w*(?:Error|Exception)(?:: .*)?)$", re.MULTILINE)


class _SilenceWatch:
    """Detector of a job without progress.

    Args:
        before: sizes of the output's files before the job was submitted.
        max_silence_seconds: time without a change after which the job is given up; None: an hour after the first
            change, and no limit before it.
    """

    def __init__(self, before: object, max_silence_seconds: float | None = None) -> None:
        self._before = self._last = before
        self._max_silence_seconds = max_silence_seconds
        self._since, self._has_warned = time.monotonic(), False

    def update(self, sizes: object) -> None:
        """Compare the current sizes with the previous ones, and warn after two minutes without a change.

        Raises:
            LostJobError: nothing has changed for too long.
        """
        if sizes != self._last:
            self._last, self._since, self._has_warned = sizes, time.monotonic(), False
            return
        quiet = time.monotonic() - self._since
        has_begun = self._last != self._before  # otherwise the job may be queued
        max_seconds = self._max_silence_seconds or (_SECONDS_TO_GIVE_UP if has_begun else math.inf)
        if quiet > max_seconds:
            raise LostJobError(
                f"no worker has sent a heartbeat for {max_seconds / 60:g} min, so this command cancels the job; a "
                "runner may wait forever for a worker that was killed while it started"
                + ("" if has_begun else ", or has no free slots, or cannot start workers, as its log says")
                + f". Check whether the job still holds the cluster's slots, and cancel it there. {SHARD_KEPT}"
            )
        if quiet > _SECONDS_TO_WARN and not self._has_warned:
            self._has_warned = True
            limit = f"this command gives the job up after {max_seconds / 60:g} min"
            if max_seconds == math.inf:
                limit = (
                    "this command keeps waiting (--max-silence-minutes sets a limit); Ctrl-C cancels the job"
                )
            advice = (
                ""
                if has_begun
                else "; check the cluster's free slots, and its log for workers that cannot start"
            )
            print_status(
                "halofeed convert: the job's workers have sent no heartbeat for "
                f"{_SECONDS_TO_WARN / 60:g} minutes{advice}; {limit}"
            )


def run_remote(
    pipeline: beam.Pipeline,
    heartbeat_path: str,
    max_silence_seconds: float | None,
    on_poll: Callable[[Mapping[str, int]], object] = lambda sizes: None,
) -> None:
    """Run a pipeline on its runner and wait for its end.

    Args:
        heartbeat_path: path of the command's file. A stopped command deletes it before it asks the runner to cancel.
        max_silence_seconds: maximum time without a heartbeat; None: an hour after the first one, and no limit before.
        on_poll: called at each poll with the sizes of the output's files.

    Raises:
        LostJobError: the job failed without a reason from its workers, or they sent no heartbeat.
        JobError: a worker failed.
    """
    signals.set_stop_message(
        outlook="the job is being canceled, and ends with the shards that it is writing; the same command resumes it"
    )
    output, name = split_heartbeat_path(heartbeat_path)

    def poll() -> None:
        sizes = output.sizes(unfinished=True)
        on_poll(sizes)
        watch.update(sizes)

    try:
        with _ending_job_servers(pipeline.runner), quiet_logging(None, "apache_beam"), _quiet_threads():
            watch = _SilenceWatch(output.sizes(unfinished=True), max_silence_seconds)
            result = _submit(pipeline)
            with signals.CleanupOnExit(lambda: _cancel(result, lambda: output.delete([name]))) as job:
                _wait(result, poll)
                job.keep()
    except LostJobError:
        raise
    except HalofeedError as error:  # from a worker in this process
        raise JobError(_STEP_NOTE.sub("", str(error))) from error
    except Exception as error:
        message = _in_brief(error, pipeline)
        # An error of halofeed's, or missing software, repeats with each run; anything else may be a lost worker.
        is_named = _OWN_ERROR.search(str(error)) or message.startswith(_MISSING_SOFTWARE)
        raise (JobError if is_named else LostJobError)(message) from error


def restarted(times: int, run: Callable[[], T]) -> T:
    """Return what a run of a job returns, and run it again when it is lost.

    Args:
        times: maximum number of further runs.

    Raises:
        LostJobError: every run was lost.
    """
    for left in range(times, 0, -1):
        try:
            return run()
        except LostJobError as error:
            print_status(
                f"halofeed convert: {error}\nThe job is started again (--job-restarts leaves {left - 1} more)."
            )
            time.sleep(_POLL_SECONDS)
    return run()


def describe_job_error(pipeline: beam.Pipeline, choice: RunnerChoice, output: OutputFolder) -> NoReturn:
    """Let the runner describe the job instead of running it.

    Args:
        output: folder of the job. A template reads its files when it runs; a dry run leaves nothing in it.

    Raises:
        NotRunError: always; the message says what the runner wrote.
    """
    try:
        with _ending_job_servers(pipeline.runner), quiet_logging(None, "apache_beam"):
            result = pipeline.run()
    except Exception as error:
        output.withdraw()
        raise JobError(_in_brief(error, pipeline)) from error
    if choice.dry_run:  # unlike a template, which reads the folder when it runs
        output.withdraw()
        assert choice.options is not None  # --dry_run is one of them
        file = choice.options.view_as(DebugOptions).dataflow_job_file
        if file:  # Beam writes it only for a job that it submits
            with FileSystems.create(file) as stream:
                stream.write(_dataflow_job_json(result.job).encode())
        raise NotRunError(
            "--dry_run: the job was built and not submitted" + (f"; it is in {file}" if file else "")
        )
    raise NotRunError(
        f"{choice.template}: the job's template was written, and nothing was run. When it has run, leave "
        "--template_location out and run the same command again: it checks the data set and deletes temporary files"
    )


def _dataflow_job_json(job: Any) -> str:
    """Return Dataflow's job as it would be submitted, and as `pipeline` the steps that it would read from staging.

    A dry run of Beam 2.77 returns before it fills in the environment, the staged files and the place of the steps.
    """
    from apache_beam.runners.dataflow.internal import apiclient

    class Describer(apiclient.DataflowApplicationClient):  # type: ignore[misc]
        """Client that uploads nothing."""

        def stage_file(self, *args: Any, **kwargs: Any) -> None:
            pass

        _gcs_file_copy = stage_file

    cloud = job.options.view_as(GoogleCloudOptions)
    uses_no_auth, cloud.no_auth = cloud.no_auth, True  # a description needs no credentials
    try:
        describer = Describer(job.options, job.root_staging_location)
    finally:
        cloud.no_auth = uses_no_auth
    describer.create_job_description(job)
    pipeline = apiclient.json_format.MessageToDict(job.proto_pipeline)
    return json.dumps(json.loads(job.json()) | {"pipeline": pipeline})


def _submit(pipeline: beam.Pipeline) -> Any:
    before = signal.getsignal(signal.SIGINT)
    result = pipeline.run()
    if before is not None and signal.getsignal(signal.SIGINT) is not before:
        signal.signal(signal.SIGINT, before)  # Beam's job server replaced it
    return result


def _wait(result: Any, poll: Callable[[], object]) -> None:
    """Wait in a thread, so that this thread handles signals and polls the job."""
    ended = run_in_thread(result.wait_until_finish, "wait-for-job")
    pause = _POLL_SECONDS
    while not wait_until_done(ended, pause):
        before = time.monotonic()
        poll()
        pause = _pause_after(time.monotonic() - before)
    ended.result()


def _pause_after(poll_seconds: float) -> float:
    """Return the pause in seconds after a poll of this duration."""
    return min(max(_POLL_SECONDS, _POLL_FACTOR * poll_seconds), _MAX_POLL_SECONDS)


def _cancel(result: Any, withdraw: Callable[[], object]) -> None:
    def cancel() -> None:
        for ask in (withdraw, result.cancel):
            with contextlib.suppress(Exception):
                ask()

    # In a thread, because the main one may hold a lock of the runner's or the store's client.
    wait_until_done(run_in_thread(cancel, "cancel-job"), _SECONDS_TO_CANCEL)


@contextlib.contextmanager
def _ending_job_servers(runner: Any) -> Iterator[None]:
    """Stop the job servers that a runner starts; Beam stops them at interpreter exit, which the command line skips."""
    make = getattr(runner, "default_job_server", None)
    if make is None:
        yield
        return
    started: list[Any] = []

    def record_server(options: Any) -> Any:
        started.append(make(options))
        return started[-1]

    def stop() -> None:
        while started:
            with contextlib.suppress(Exception):
                started.pop().stop()

    runner.default_job_server = record_server
    try:
        with signals.CleanupOnExit(stop):
            yield
    finally:
        del runner.default_job_server


@contextlib.contextmanager
def quiet_logging(*names: str | None) -> Iterator[None]:
    """Silence loggers: Beam logs a worker's error at length before it raises it, and the command prints one line."""
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
    """Silence the threads of workers in this process, which end with errors even after a successful job."""
    before, threading.excepthook = threading.excepthook, lambda _: None
    try:
        yield
    finally:
        threading.excepthook = before


def _in_brief(error: Exception, pipeline: beam.Pipeline) -> str:
    """Return why a job failed: the error of a worker, or the last cause that the runner names."""
    text = str(error)
    # Runners quote a worker's traceback; its last line of ours is the message for the user.
    if own := _OWN_ERROR.findall(text):
        return str(_STEP_NOTE.sub("", own[-1]))
    # grpc.FutureTimeoutError, compared by name: Beam's runner waits for the channel to a job server.
    if type(error).__name__ == "FutureTimeoutError":
        endpoint = pipeline.options.get_all_options().get("job_endpoint")
        return (
            f"after --, --job_endpoint={endpoint}: no job server answers there; start one, or name "
            f"the HOST:PORT of one that runs (docs/engines.md). {SHARD_KEPT}"
        )
    # Runners on the JVM list causes from the outermost to the innermost, so the last one says most.
    lines = [line for line in text.splitlines() if any(map(str.isalnum, line))]
    causes = _ERROR.findall(_STEP_NOTE.sub("", text)) or lines or [""]
    cause = causes[-1].strip()[:_MAX_MESSAGE_CHARACTERS] or type(error).__name__
    if _MISSING_SOFTWARE_ERROR.match(cause):
        extra = next((extra for module, extra in _STORE_EXTRAS.items() if f"'{module}" in cause), None)
        needed = f"its extras convert and {extra}" if extra else "all its dependencies"
        return (
            f"{_MISSING_SOFTWARE}: {cause}. Install halofeed {__version__} with {needed} where workers run (`halofeed "
            "package` writes a wheel), then run the same command again; the engine's log says more"
        )
    return f"the job failed: {cause}. {SHARD_KEPT}; --debug shows all output of the runner"
