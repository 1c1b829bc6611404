"""On which runner a job runs, with which of Beam's options."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import create_runner

from halofeed.pipelines.forked import has_nursery, worker_command
from halofeed.pipelines.job import JobOptions
from halofeed.schemas.errors import UsageError

CORES_PER_WORKER = 4
"""Where each worker is an interpreter that imports Beam anew. Decoding releases Python's lock most of the time, so that
one process keeps several cores busy; see docs/decisions.md."""

_LOCAL_RUNNERS = ("directrunner", "fnapirunner")


@dataclass(frozen=True, kw_only=True)
class RunnerChoice:
    """A runner and how a job is spread over it.

    `local` says that the workers share this machine's process table and temporary folder.
    """

    local: bool
    runner: Any
    options: PipelineOptions
    threads: int
    workers: int


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_runner(job: JobOptions, shards: int, beam_arguments: Sequence[str]) -> RunnerChoice:
    """The runner that the user names after `--`, or this machine's cores; UsageError where Beam knows it not.

    The local runner is Beam's FnApiRunner by name: its DirectRunner first tries to fetch a Prism binary from
    the network. One worker runs in this process; several are processes of their own, no more than `shards` (of a
    split) unless the user says so.
    """
    options = _parse(beam_arguments)
    named = options.view_as(StandardOptions).runner
    cores = available_cores()
    if named and named.lower() not in _LOCAL_RUNNERS:
        runner = _find_runner(named)
        return RunnerChoice(local=False, runner=runner, options=options, threads=job.threads or 2, workers=0)
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    most = cores if has_nursery() else max(1, cores // CORES_PER_WORKER)
    workers = job.workers or min(most, shards)
    threads = job.threads or max(1, -(-cores // workers))
    command = f"exec {shlex.join(worker_command(beam_arguments))}"
    processes = SubprocessSDKEnvironment.from_command_string(command) if workers > 1 else None
    local = PipelineOptions([*beam_arguments, f"--direct_num_workers={workers}"])
    return RunnerChoice(
        local=True,
        runner=FnApiRunner(default_environment=processes),
        options=local,
        threads=threads,
        workers=workers,
    )


def new_pipeline(choice: RunnerChoice) -> beam.Pipeline:
    """An empty pipeline; UsageError where the runner lacks an option that it needs."""
    try:
        return beam.Pipeline(runner=choice.runner, options=choice.options)
    except ValueError as error:
        raise UsageError(f"after --, {error}") from error


def _parse(beam_arguments: Sequence[str]) -> PipelineOptions:
    """Beam's options; UsageError in place of its parser's way of printing and leaving, and of ignoring.

    What Beam's Python side does not know is refused, but for portable runners: their job servers have options
    that only they know.
    """
    given = list(beam_arguments)
    if any(argument.startswith("--direct_num_workers") for argument in given):
        raise UsageError("--direct_num_workers: say --workers, before the --")
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
