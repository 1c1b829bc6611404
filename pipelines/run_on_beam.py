"""Remote calls of functions on the workers of a Beam job, with arguments and answers in files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam

from halofeed import __version__
from halofeed.pipelines.beam_options import RunnerChoice, new_pipeline
from halofeed.pipelines.beam_pipeline import Numbers
from halofeed.pipelines.heartbeat import Heartbeat, start_heartbeat
from halofeed.pipelines.job import check_software
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.remote_job import restarted, run_remote
from halofeed.pipelines.run_distributed import RunDistributed
from halofeed.schemas.file_layout import TEMPORARY_FOLDER
from halofeed.storage.choose import use_settings
from halofeed.system.pickles import from_bytes, to_bytes

_CALLS_PER_GROUP = 256


@dataclass(frozen=True, kw_only=True)
class _Calls:
    """A set of calls as each worker receives it.

    Args:
        folder: folder of the data set's version.
        name: name of the file of arguments, and prefix of the files of answers.
        heartbeat_path: path of the command's heartbeat file.
        allowed_classes: classes that arguments and answers may contain.
        store_settings: arguments of the S3 client.
        software: version of halofeed of the calling command.
    """

    folder: str
    name: str
    heartbeat_path: str
    allowed_classes: tuple[Any, ...]
    store_settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    software: str = __version__


def run_on_beam(
    choice: RunnerChoice, folder: str, allowed_classes: Iterable[Any], store_settings: Mapping[str, Any]
) -> RunDistributed:
    """Return a `RunDistributed` that submits a Beam job for each use.

    Args:
        choice: runner of the jobs.
        folder: folder that all workers can read and write; the calls use `.incomplete` in it.
        allowed_classes: classes that arguments and answers may contain.
        store_settings: arguments of the S3 client.
    """
    output, classes = OutputFolder(folder), tuple(allowed_classes)

    def run_distributed(function: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[Any]:
        given = list(arguments)
        if not given:
            return
        name = f"{TEMPORARY_FOLDER}/calls-{uuid.uuid4().hex}"
        output.write(name, to_bytes(given))

        def run() -> None:
            heartbeat_path = start_heartbeat(output)
            calls = _Calls(
                folder=folder,
                name=name,
                heartbeat_path=heartbeat_path,
                allowed_classes=classes,
                store_settings=store_settings,
            )
            pipeline = new_pipeline(choice)
            (
                pipeline
                | "calls" >> Numbers(len(given), 1)
                | "call"
                >> beam.ParDo(_Call(function, calls)).with_output_types(tuple[int, tuple[int, bytes]])
                | "group answers" >> beam.GroupByKey()
                | "write answers" >> beam.ParDo(_WriteAnswers(calls))
            )
            run_remote(pipeline, heartbeat_path, choice.max_silence_seconds)

        restarted(choice.job_restarts, run)
        for group in range(-(-len(given) // _CALLS_PER_GROUP)):
            for answer in from_bytes(output.read(f"{name}-{group}"), ()):
                yield from_bytes(answer, classes)

    return run_distributed


class _Call(beam.DoFn):  # type: ignore[misc]
    """Make the call of a number; yield (number of its group, (number of the call, answer))."""

    def __init__(self, function: Callable[[Any], Any], calls: _Calls) -> None:
        self._function, self._calls = function, calls

    def setup(self) -> None:
        check_software(self._calls.software)
        use_settings(self._calls.store_settings)
        self._heartbeat = Heartbeat(self._calls.heartbeat_path)
        self._arguments = from_bytes(
            OutputFolder(self._calls.folder).read(self._calls.name), self._calls.allowed_classes
        )

    def process(self, number: int) -> Iterator[tuple[int, tuple[int, bytes]]]:
        with self._heartbeat.beat_during():
            answer = self._function(self._arguments[number])
        yield number // _CALLS_PER_GROUP, (number, to_bytes(answer))


class _WriteAnswers(beam.DoFn):  # type: ignore[misc]
    """Write the answers of a group of calls into a file."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls

    def process(self, element: tuple[int, Iterable[tuple[int, bytes]]]) -> None:
        use_settings(self._calls.store_settings)
        group, answers = element
        found = [answer for _, answer in sorted(dict(answers).items())]
        OutputFolder(self._calls.folder).write(f"{self._calls.name}-{group}", to_bytes(found))
