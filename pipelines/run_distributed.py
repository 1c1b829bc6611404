"""Functions run by the workers of a job, with their answers in files."""

from __future__ import annotations

import functools
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import apache_beam as beam

from halofeed import __version__
from halofeed.errors import UsageError
from halofeed.pipelines.beam_pipeline import Numbers
from halofeed.pipelines.job import check_software
from halofeed.pipelines.objects.choose import use_settings
from halofeed.pipelines.options import RunnerChoice, new_pipeline
from halofeed.pipelines.remote import Heartbeat, restarted, run_remote, start_heartbeat
from halofeed.pipelines.storage import OutputFolder, RemoteFiles, source_files
from halofeed.prep.formats.dicom.grouping import Apart, Series, in_order_of_files, read_headers
from halofeed.prep.formats.dicom.series_listing import (
    Listed,
    SeriesListing,
    join_series,
    list_bundles,
    listing_from_bytes,
    listing_to_bytes,
)
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.files import TEMPORARY_FOLDER
from halofeed.system.pickles import from_bytes, to_bytes

RunDistributed = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
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


def run_on_beam(
    choice: RunnerChoice, folder: str, believed: Iterable[Any], store_settings: Mapping[str, Any]
) -> RunDistributed:
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
            wanted = start_heartbeat(output)
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
        self._signs = Heartbeat(self._calls.wanted)
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


Key = tuple[str, str]
"""The folder below which a series was looked for, and its own key."""


@dataclass(frozen=True, kw_only=True)
class SeriesSearch:
    """What the workers need to know: below which source folder, by which rules, and where they write.

    Args:
        source: the folder.
        policy: what makes a scan; its salt goes into every hash.
        below: the folders below which each series is looked for, as tables name them, whose references keep their
            members; (): the whole source, whose members nobody but the workers needs.
        folder: where slices and what is on its way to them are written, and all workers can.
    """

    source: str
    policy: SeriesPolicy
    below: tuple[str, ...]
    folder: str


def find_series(
    files: LocalFiles | RemoteFiles, search: SeriesSearch, spread: RunDistributed
) -> dict[str, SeriesListing]:
    """What lies below each folder of a source that this process has not listed and need not list.

    Args:
        spread: has calls made by workers.

    Raises:
        UsageError: the source cannot be listed.
    """
    ((listed, bundles),) = spread(functools.partial(_list, search), [search.below])
    if listed.refusal:
        raise UsageError(listed.refusal)
    places: list[tuple[Key, Place]] = []
    apart: dict[str, list[Apart]] = defaultdict(list)
    for folder, keys, others in spread(functools.partial(_read, search), bundles):
        places += keys
        apart[folder] += others
    grouped = groupby(sorted(places), key=lambda one: one[0])
    parts = [(key, [place for _, place in some]) for key, some in grouped]
    scans: dict[str, list[Series]] = defaultdict(list)
    for folder, series in spread(functools.partial(_join, search), parts):
        scans[folder] += series
    found = {}
    for folder, named in listed.named.items():
        others = sorted(apart[folder], key=lambda other: other.path)
        sizes = {one.path: one.file_bytes for one in others if one.file_bytes is not None}
        files.adopt(sizes | named, listed.faults)
        found[folder] = SeriesListing(
            series=in_order_of_files(scans[folder]), apart=tuple(others), named=tuple(named)
        )
    return found


def _list(search: SeriesSearch, below: Sequence[str]) -> tuple[Listed, list[Place]]:
    """What was listed below these folders, and where bundles of the files lie whose headers are to be read."""
    files = source_files(search.source)
    try:
        named, bundles = list_bundles(files, below)
    except UsageError as error:
        return Listed(named={}, faults={}, refusal=str(error)), []
    listed = Listed(named=named, faults=dict(files.faults()))
    return listed, write_pieces(OutputFolder(search.folder), "bundles", map(listing_to_bytes, bundles))


def _read(search: SeriesSearch, place: Place) -> tuple[str, list[tuple[Key, Place]], list[Apart]]:
    """Of a bundle its folder, where lies what its files say of each series, and those that are no slices."""
    output = OutputFolder(search.folder)
    folder, sizes = listing_from_bytes(output.read(*place))
    files = source_files(search.source)
    files.adopt(sizes, {})
    by_series, apart = read_headers(files, sizes, search.policy)
    places = write_pieces(output, "headers", map(listing_to_bytes, by_series.values()))
    return folder, [((folder, key), one) for key, one in zip(by_series, places, strict=True)], apart


def _join(search: SeriesSearch, part: tuple[Key, Sequence[Place]]) -> tuple[str, list[Series]]:
    """The folder and the scans of a series, of which each has its slices written."""
    (folder, key), places = part
    output = OutputFolder(search.folder)
    found = [one for place in places for one in listing_from_bytes(output.read(*place))]
    scans = []
    written = set()
    for series, images in join_series(folder, key, found, search.policy):
        assert series.stored is not None
        if series.stored[0] not in written:
            output.write(series.stored[0], listing_to_bytes(images))
            written.add(series.stored[0])
        scans.append(series if search.below else replace(series, members=()))
    return folder, scans
