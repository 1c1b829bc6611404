"""On which runner a job runs, with which of Beam's options."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
    TestOptions,
)
from apache_beam.runners.runner import create_runner

from halofeed.errors import UsageError
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.workers import SHARE_OF_MEMORY, available_cores, count_workers
from halofeed.system.addresses import keep_secret
from halofeed.system.memory import machine_memory

_LOCAL_RUNNERS = ("directrunner", "fnapirunner")


@dataclass(frozen=True, kw_only=True)
class RunnerChoice:
    """A runner and how a job is spread over it.

    `local` says that the workers share this machine's process table and temporary folder; `room_bytes` is the memory
    that it has for what one of them decodes at a time; `max_silence_seconds` after which a job is given up of whose
    workers nothing is heard, `job_restarts` how often a lost one is run again; `dry_run` and `template` that the job is
    not run but described, and where.
    """

    local: bool
    runner: Any
    options: PipelineOptions
    beam_arguments: tuple[str, ...]
    threads: int
    workers: int = 0
    room_bytes: int | None = None
    max_silence_seconds: float | None = None
    job_restarts: int = 0
    dry_run: bool = False
    template: str | None = None

    @property
    def is_described(self) -> bool:
        """Whether the job is described in place of being run."""
        return self.dry_run or self.template is not None


def choose_runner(
    job: JobOptions, shards: int, beam_arguments: Sequence[str], worker_bytes: int
) -> RunnerChoice:
    """The runner that the user names after `--`, or this machine's cores; UsageError where Beam knows it not.

    The local runner is Beam's FnApiRunner by name: its DirectRunner first tries to fetch a Prism binary from
    the network. It runs in this process. One worker does too; several are processes of their own
    (halofeed.pipelines.workers.count_workers).
    """
    options = _parse(beam_arguments)
    more: dict[str, Any] = {"options": options, "beam_arguments": tuple(beam_arguments)}
    named = options.view_as(StandardOptions).runner
    if named and named.lower() not in _LOCAL_RUNNERS:
        return RunnerChoice(
            local=False,
            runner=_find_runner(named),
            threads=job.threads or 2,
            max_silence_seconds=None if job.max_silence_minutes is None else 60 * job.max_silence_minutes,
            job_restarts=job.job_restarts,
            dry_run=bool(options.view_as(TestOptions).dry_run),
            template=options.view_as(GoogleCloudOptions).template_location,
            **more,
        )
    if job.max_silence_minutes is not None or job.job_restarts:
        named = "--job-restarts" if job.max_silence_minutes is None else "--max-silence-minutes"
        raise UsageError(
            f"{named} has no effect on this machine's own workers; leave it out, or name another runner "
            "after --"
        )
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    workers = count_workers(job, shards, worker_bytes)
    return RunnerChoice(
        local=True,
        runner=FnApiRunner(),
        threads=job.threads or max(1, -(-available_cores() // workers)),
        workers=workers,
        room_bytes=int(SHARE_OF_MEMORY * machine_memory()) // workers,
        **more,
    )


def new_pipeline(choice: RunnerChoice) -> beam.Pipeline:
    """An empty pipeline; UsageError where the runner lacks an option that it needs."""
    try:
        pipeline = beam.Pipeline(runner=choice.runner, options=choice.options)
    except ValueError as error:
        raise UsageError(f"after --, {error}") from error
    # Beam makes a folder for transforms in other languages, and deletes it only if the pipeline is run.
    shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
    return pipeline


_SECRET = re.compile(r"^--.*(secret|token|password|key)", re.IGNORECASE)
"""Options of Beam whose values no message repeats."""


def _parse(beam_arguments: Sequence[str]) -> PipelineOptions:
    """Beam's options; UsageError in place of its parser's way of printing and leaving, and of ignoring.

    What Beam's Python side does not know is refused, but for portable runners: their job servers have options
    that only they know.
    """
    given = list(beam_arguments)
    for argument, following in pairwise([*given, ""]):
        name, equals, value = argument.partition("=")
        if _SECRET.search(name):
            keep_secret(value if equals else following)
    for name in ("--direct_num_workers", "--direct_running_mode"):
        # With either, Beam would start workers that it reaches through ports open to the network.
        if any(argument.startswith(name) for argument in given):
            raise UsageError(f"{name}: say --workers, before the --")
    parsers: list[argparse.ArgumentParser] = []
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
            unknown = parsers[0].parse_known_args(given)[1]
            options = PipelineOptions(given)
    except SystemExit as stop:
        lines = printed.getvalue().strip().splitlines()
        reason = lines[-1].partition("error: ")[2] if lines else ""
        raise UsageError(f"after --, Beam's options: {reason or 'not understood'}") from stop
    named = (options.view_as(StandardOptions).runner or "").lower()
    if unknown and named in ("", *_LOCAL_RUNNERS, "dataflowrunner"):
        written = re.sub(r" (?=-)", ", ", " ".join(unknown))
        raise UsageError(
            f"after --, Beam knows no {written}; halofeed's own options stand before the --, and Beam's are listed "
            "at https://beam.apache.org/documentation/runners/"
        )
    return options


def _find_runner(name: str) -> Any:
    try:
        return create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise UsageError(f"--runner={name}: {error}") from error
