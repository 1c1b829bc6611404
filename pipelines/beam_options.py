"""Choice of the runner of a job, and check of Beam's options.

Beam is imported inside functions, because a local run without Beam's options does not need it. The import takes a
second, which is most of the time of a small conversion.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from halofeed import __version__
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.workers import SHARE_OF_MEMORY, count_workers
from halofeed.system.addresses import is_remote, keep_secret
from halofeed.system.errors import UsageError
from halofeed.system.memory import machine_memory
from halofeed.system.threads import available_cores

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

_LOCAL_RUNNERS = ("directrunner", "fnapirunner")


@dataclass(frozen=True, kw_only=True)
class RunnerChoice:
    """A runner and how a job is distributed over it.

    Args:
        local: whether the workers are processes of this machine and share its temporary folder; Beam then runs nothing.
        runner: Beam's runner; None for a local run.
        options: Beam's options; None where the user gave none.
        beam_arguments: the arguments from which `options` were parsed.
        threads: threads of each worker.
        workers: number of local worker processes, where 1 may mean this process; 0 for other runners.
        memory_bytes: memory for the inputs that one local worker decodes at a time.
        max_silence_seconds: time without a heartbeat after which the command cancels the job.
        job_restarts: how often the command restarts a lost job.
        dry_run: whether the runner only describes the job.
        template: path of the job's template, which the runner writes instead of running the job.
    """

    local: bool
    runner: Any = None
    options: PipelineOptions | None = None
    beam_arguments: tuple[str, ...] = ()
    threads: int
    workers: int = 0
    memory_bytes: int | None = None
    max_silence_seconds: float | None = None
    job_restarts: int = 0
    dry_run: bool = False
    template: str | None = None

    @property
    def is_described(self) -> bool:
        """Return whether the runner describes the job instead of running it."""
        return self.dry_run or self.template is not None


def choose_runner(
    job: JobOptions, shards: int, beam_arguments: Sequence[str], worker_bytes: int
) -> RunnerChoice:
    """Return the runner that the user names after `--`, or a local one; raise UsageError where Beam does not know it.

    Beam's local runners by name, FnApiRunner and DirectRunner, mean a local run too. A local run uses this process, or
    several worker processes (see `count_workers`).
    """
    options = _parse(beam_arguments) if beam_arguments else None
    if options is not None and (named := _runner_name(options)).lower() not in ("", *_LOCAL_RUNNERS):
        return _choose_beam_runner(named, options, beam_arguments, job)
    # Both options are for jobs that a runner may lose; local workers end with this command.
    if job.max_silence_minutes is not None or job.job_restarts:
        named = "--job-restarts" if job.max_silence_minutes is None else "--max-silence-minutes"
        raise UsageError(
            f"{named} has no effect on this machine's own workers; leave it out, or name another runner "
            "after --"
        )
    workers = count_workers(job, shards, worker_bytes)
    return RunnerChoice(
        local=True,
        options=options,
        beam_arguments=tuple(beam_arguments),
        threads=job.threads or max(1, -(-available_cores() // workers)),
        workers=workers,
        memory_bytes=int(SHARE_OF_MEMORY * machine_memory()) // workers,
    )


def _choose_beam_runner(
    named: str, options: PipelineOptions, beam_arguments: Sequence[str], job: JobOptions
) -> RunnerChoice:
    """Return a runner of Beam by its name."""
    from apache_beam.options.pipeline_options import GoogleCloudOptions, TestOptions

    choice = RunnerChoice(
        local=False,
        runner=_find_runner(named),
        options=options,
        beam_arguments=tuple(beam_arguments),
        threads=job.threads or 2,  # the runner decides how many workers share a machine
        max_silence_seconds=None if job.max_silence_minutes is None else 60 * job.max_silence_minutes,
        job_restarts=job.job_restarts,
        dry_run=bool(options.view_as(TestOptions).dry_run),
        template=options.view_as(GoogleCloudOptions).template_location,
    )
    if named.lower() == "dataflowrunner":
        _check_dataflow(choice, options, job)
    return choice


def _runner_name(options: PipelineOptions) -> str:
    from apache_beam.options.pipeline_options import StandardOptions

    return str(options.view_as(StandardOptions).runner or "")


def _check_dataflow(choice: RunnerChoice, options: PipelineOptions, job: JobOptions) -> None:
    """Refuse a job that lacks what Dataflow needs; Beam would look for it in Google's network first, for minutes.

    Raises:
        UsageError: lists everything that is missing or malformed, with what to type.
    """
    from apache_beam.options.pipeline_options import GoogleCloudOptions
    from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator

    validator = PipelineOptionsValidator(options, choice.runner)
    if not validator.is_service_runner():  # an endpoint that the user chose for tests
        return
    cloud = options.view_as(GoogleCloudOptions)
    problems = [*validator.validate_cloud_options(cloud), *_bucket_problems(validator, cloud)]
    if not choice.is_described:  # a description runs nothing, so its workers need neither files nor software
        problems += _local_folders(job)
        if not _has_software(options):
            problems.append("Missing software: workers lack halofeed; `halofeed package` writes the wheel")
    if problems:
        raise UsageError("\n".join(["after --, Dataflow needs `" + _DATAFLOW + "`; here:", *problems]))


def _bucket_problems(validator: Any, cloud: Any) -> list[str]:
    """Return what is wrong with the folders for temporary and staged files; Beam uses one for both if need be."""
    locations = [name for name in ("temp_location", "staging_location") if getattr(cloud, name) is not None]
    faults = [fault for name in locations for fault in validator.validate_gcs_path(cloud, name)]
    if len(faults) < len(locations):  # each location has at most one fault, so one is valid
        return []
    return faults or ["Missing option: temp_location, a folder in a bucket"]


def _local_folders(job: JobOptions) -> list[str]:
    """Return a message for each folder of this machine that Dataflow's workers would have to reach."""
    images = ("--source", job.source) if job.images is None else ("--images", job.images)
    return [
        f"{flag} {path}: Dataflow's workers see no folder of this machine; copy it to a bucket, and name it there: "
        f"{flag} gs://BUCKET/FOLDER"
        for flag, path in (images, ("--out", job.out))
        if not is_remote(path)
    ]


def _has_software(options: PipelineOptions) -> bool:
    """Return whether an option installs packages on the workers, whose default image lacks halofeed."""
    from apache_beam.options.pipeline_options import SetupOptions, WorkerOptions

    setup, worker = options.view_as(SetupOptions), options.view_as(WorkerOptions)
    return bool(
        worker.sdk_container_image or setup.extra_packages or setup.setup_file or setup.requirements_file
    )


_DATAFLOW = (
    "--project=PROJECT --region=REGION --temp_location=gs://BUCKET/FOLDER "
    f"--extra_package=halofeed-{__version__}-py3-none-any.whl"
)
"""Beam's options that a job on Dataflow needs; an image takes the place of the package."""


def new_pipeline(choice: RunnerChoice) -> beam.Pipeline:
    """Return an empty pipeline; raise UsageError where the runner lacks a required option."""
    import apache_beam as beam

    try:
        pipeline = beam.Pipeline(runner=choice.runner, options=choice.options)
    except ValueError as error:
        raise UsageError(
            f"after --, {str(error).rstrip()}\nGive each there as --NAME=VALUE; docs/engines.md has examples"
        ) from error
    # Beam makes a folder for transforms in other languages, and deletes it only when the pipeline runs.
    shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
    return pipeline


_SECRET = re.compile(r"^--.*(secret|token|password|key)", re.IGNORECASE)
"""Beam options whose values no message repeats."""


def _parse(beam_arguments: Sequence[str]) -> PipelineOptions:
    """Return Beam's options; raise UsageError where Beam's parser would print and exit, or ignore an option."""
    given = list(beam_arguments)
    _keep_secrets(given)
    for name in ("--direct_num_workers", "--direct_running_mode"):
        # With either option, Beam would talk to its workers through ports that are open to the network.
        if any(argument.startswith(name) for argument in given):
            raise UsageError(f"{name}: use --workers, before the --")
    options, unknown = _parse_with_beam(given)
    # Portable runners accept options that Beam's Python side does not know, because their job servers know them.
    if unknown and _runner_name(options).lower() in ("", *_LOCAL_RUNNERS, "dataflowrunner"):
        written = re.sub(r" (?=-)", ", ", " ".join(unknown))
        raise UsageError(
            f"after --, Beam knows no {written}; halofeed's own options stand before the --, and Beam's are listed "
            "at https://beam.apache.org/documentation/runners/"
        )
    _check_process_environment(options)
    return options


def _keep_secrets(given: Sequence[str]) -> None:
    """Keep the values of passwords and keys, written as --NAME=VALUE or --NAME VALUE, out of every message."""
    for argument, following in pairwise([*given, ""]):
        name, equals, value = argument.partition("=")
        if _SECRET.search(name):
            keep_secret(value if equals else following)


def _parse_with_beam(given: list[str]) -> tuple[PipelineOptions, list[str]]:
    """Return Beam's options and the arguments that it does not know; raise UsageError where its parser would exit."""
    from apache_beam.options.pipeline_options import PipelineOptions

    parsers: list[argparse.ArgumentParser] = []
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            # PipelineOptions only logs unknown arguments; its parser returns them.
            PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
            unknown = parsers[0].parse_known_args(given)[1]
            return PipelineOptions(given), unknown
    except SystemExit as stop:
        lines = printed.getvalue().strip().splitlines()
        reason = lines[-1].partition("error: ")[2] if lines else ""
        raise UsageError(f"after --, Beam's options: {reason or 'not understood'}") from stop


def _check_process_environment(options: PipelineOptions) -> None:
    """Refuse --environment_type=PROCESS without a worker's command, which Beam would miss only when the job runs."""
    from apache_beam.options.pipeline_options import PortableOptions

    worker = options.view_as(PortableOptions)
    config = worker.environment_config
    if worker.environment_type != "PROCESS" or config is None:
        return
    try:
        has_command = "command" in json.loads(config)
    except (ValueError, TypeError):  # no JSON, or JSON of a number
        has_command = False
    if not has_command:
        raise UsageError(
            f"after --, --environment_config={config}: expected JSON with a worker's command, such "
            """as '{"command":"/opt/worker"}'"""
        )


def _find_runner(name: str) -> Any:
    from apache_beam.runners.runner import create_runner

    try:
        return create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise UsageError(f"after --, --runner={name}: {error}") from error
