"""Calls of a function that a runner's workers make, whose answers come back to this process by files.

A file of arguments  ──>  (number of a call)  ──>  answers, 256 together  ──>  files of answers
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam

from halofeed import __version__
from halofeed.pipelines.build import Numbers
from halofeed.pipelines.job import check_software
from halofeed.pipelines.objects.choose import use_settings
from halofeed.pipelines.options import RunnerChoice, new_pipeline
from halofeed.pipelines.remote import SignsOfLife, restarted, run_remote, want
from halofeed.pipelines.storage import OutputFolder
from halofeed.schemas.layout import TEMPORARY_FOLDER
from halofeed.schemas.pickles import from_bytes, to_bytes

Spread = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""From a function and its arguments to what it gives for each, in any order."""
Place = tuple[str, int, int]
"""A file that calls leave for later ones, below the output's folder, and where something in it begins and ends."""
_TOGETHER = 256


@dataclass(frozen=True, kw_only=True)
class _Calls:
    """What a worker needs to know of calls: where their arguments lie and their answers go, and of which classes.

    Args:
        folder: of the data set's version.
        name: of the file of arguments, and what those of answers begin with.
        believed: classes of which arguments and answers may be made.
        wanted, store_settings: as of a `ShardJob`.
        software: the version of halofeed that asks.
    """

    folder: str
    name: str
    wanted: str
    believed: tuple[Any, ...]
    store_settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    software: str = __version__


def spread_by_beam(
    choice: RunnerChoice, folder: str, believed: Iterable[Any], store_settings: Mapping[str, Any]
) -> Spread:
    """A `Spread` of which each use is a job of Beam's.

    Args:
        choice: of the runner.
        folder: where all workers can read and write; `.incomplete` below it is what is used.
        believed: classes of which arguments and answers may be made.
        store_settings: how S3 is reached, beyond its usual chain.
    """
    output, classes = OutputFolder(folder), tuple(believed)

    def spread(function: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[Any]:
        given = list(arguments)
        if not given:
            return
        name = f"{TEMPORARY_FOLDER}/calls-{uuid.uuid4().hex}"
        output.write(name, to_bytes(given))

        def run() -> None:
            wanted = want(output)
            calls = _Calls(
                folder=folder, name=name, wanted=wanted, believed=classes, store_settings=store_settings
            )
            pipeline = new_pipeline(choice)
            (
                pipeline
                | "calls" >> Numbers(len(given), 1)
                | "call"
                >> beam.ParDo(_Call(function, calls)).with_output_types(tuple[int, tuple[int, bytes]])
                | "some answers" >> beam.GroupByKey()
                | "write answers" >> beam.ParDo(_WriteAnswers(calls))
            )
            run_remote(pipeline, wanted, choice.max_silence_seconds)

        restarted(choice.job_restarts, run)
        for group in range(-(-len(given) // _TOGETHER)):
            for answer in from_bytes(output.read(f"{name}-{group}"), ()):
                yield from_bytes(answer, classes)

    return spread


def write_pieces(output: OutputFolder, name: str, pieces: Iterable[bytes]) -> list[Place]:
    """Write what later calls need, one piece after the other; where each of them lies.

    Args:
        name: what the file's name begins with. Each has one of its own, as a runner may have a call made twice.
    """
    places = []
    with output.temporary(f"{name}-{uuid.uuid4().hex}") as file:
        for piece in pieces:
            start = file.stream.tell()
            file.stream.write(piece)
            places.append((file.name, start, file.stream.tell()))
        file.keep()
    return places


class _Call(beam.DoFn):  # type: ignore[misc]
    """From the number of a call to (number of its group, (its own, the answer))."""

    def __init__(self, function: Callable[[Any], Any], calls: _Calls) -> None:
        self._function, self._calls = function, calls

    def setup(self) -> None:
        check_software(self._calls.software)
        use_settings(self._calls.store_settings)
        self._signs = SignsOfLife(self._calls.wanted)
        self._arguments = from_bytes(
            OutputFolder(self._calls.folder).read(self._calls.name), self._calls.believed
        )

    def process(self, number: int) -> Iterator[tuple[int, tuple[int, bytes]]]:
        with self._signs.meanwhile():
            answer = self._function(self._arguments[number])
        yield number // _TOGETHER, (number, to_bytes(answer))


class _WriteAnswers(beam.DoFn):  # type: ignore[misc]
    """From the answers of a group of calls to their file."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls

    def process(self, element: tuple[int, Iterable[tuple[int, bytes]]]) -> None:
        use_settings(self._calls.store_settings)
        group, answers = element
        found = [answer for _, answer in sorted(dict(answers).items())]
        OutputFolder(self._calls.folder).write(f"{self._calls.name}-{group}", to_bytes(found))
