"""On which runner a job runs, with which of Beam's options."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from halofeed.pipelines.job import JobOptions

CORES_PER_WORKER = 4
"""Decoding releases Python's lock, so that one process keeps several cores busy; see docs/decisions.md."""


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


def choose_runner(job: JobOptions, beam_arguments: Sequence[str]) -> RunnerChoice:
    """The runner that the user names after `--`, or this machine's cores.

    The local runner is Beam's FnApiRunner by name: its DirectRunner first tries to fetch a Prism binary from
    the network. One worker runs in this process; several are processes of their own.
    """
    options = PipelineOptions(list(beam_arguments))
    named = options.view_as(StandardOptions).runner
    cores = available_cores()
    if named and named not in ("DirectRunner", "FnApiRunner"):
        return RunnerChoice(local=False, runner=named, options=options, threads=job.threads or 2, workers=0)
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    workers = job.workers or max(1, cores // CORES_PER_WORKER)
    threads = job.threads or max(1, -(-cores // workers))
    worker = [sys.executable, "-m", "halofeed.pipelines.worker", str(os.getpid()), *beam_arguments]
    command = f"exec {shlex.join(worker)}"
    processes = SubprocessSDKEnvironment.from_command_string(command) if workers > 1 else None
    local = PipelineOptions([*beam_arguments, f"--direct_num_workers={workers}"])
    return RunnerChoice(
        local=True,
        runner=FnApiRunner(default_environment=processes),
        options=local,
        threads=threads,
        workers=workers,
    )
