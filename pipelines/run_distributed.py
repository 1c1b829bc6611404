"""Remote calls of functions on the workers of a job, with arguments and answers in files."""

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
from halofeed.pipelines.heartbeat import Heartbeat, start_heartbeat
from halofeed.pipelines.job import check_software
from halofeed.pipelines.options import RunnerChoice, new_pipeline
from halofeed.pipelines.remote import restarted, run_remote
from halofeed.prep.formats.dicom.grouping import DicomSeries, OtherFile, read_headers, sort_by_first_path
from halofeed.prep.formats.dicom.series_listing import (
    FolderListing,
    SeriesListing,
    join_series,
    list_bundles,
    listing_from_bytes,
    listing_to_bytes,
)
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.files import LocalFiles, RemoteFiles, source_files
from halofeed.schemas.files import TEMPORARY_FOLDER
from halofeed.storage.choose import use_settings
from halofeed.storage.output_folder import OutputFolder
from halofeed.system.pickles import from_bytes, to_bytes

RunDistributed = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Call a function with each argument on some worker; yield the answers in any order."""
Place = tuple[str, int, int]
"""Name of a file below the output folder, and the start and end of a range of bytes in it."""
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


def write_pieces(output: OutputFolder, name: str, pieces: Iterable[bytes]) -> list[Place]:
    """Write byte strings for later calls into one file; return the place of each.

    Args:
        name: prefix of the file's name. Each file has its own name, because a runner may repeat a call.
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


SeriesKey = tuple[str, str]
"""Folder below which a series was searched, and the key of the series."""


@dataclass(frozen=True, kw_only=True)
class SeriesSearch:
    """Search for DICOM series, as each worker receives it.

    Args:
        source: folder of the source.
        policy: rules for what makes a scan; its salt goes into every hash.
        below: folders of the search, as tables name them, whose references keep their members; () searches the whole
            source, and only workers need the members.
        folder: folder for the lists of slices, which all workers can write.
    """

    source: str
    policy: SeriesPolicy
    below: tuple[str, ...]
    folder: str


def find_series_in_job(
    files: LocalFiles | RemoteFiles, search: SeriesSearch, run_distributed: RunDistributed
) -> dict[str, SeriesListing]:
    """Return the series below each folder of a source, without listing the source in this process.

    Raises:
        UsageError: the source cannot be listed.
    """
    ((listed, bundles),) = run_distributed(functools.partial(_list, search), [search.below])
    if listed.refusal:
        raise UsageError(listed.refusal)
    places: list[tuple[SeriesKey, Place]] = []
    apart: dict[str, list[OtherFile]] = defaultdict(list)
    for folder, keys, others in run_distributed(functools.partial(_read, search), bundles):
        places += keys
        apart[folder] += others
    grouped = groupby(sorted(places), key=lambda one: one[0])
    parts = [(key, [place for _, place in some]) for key, some in grouped]
    scans: dict[str, list[DicomSeries]] = defaultdict(list)
    for folder, series in run_distributed(functools.partial(_join, search), parts):
        scans[folder] += series
    found = {}
    for folder, named in listed.named.items():
        others = sorted(apart[folder], key=lambda other: other.path)
        sizes = {one.path: one.file_bytes for one in others if one.file_bytes is not None}
        files.adopt(sizes | named, listed.faults)
        found[folder] = SeriesListing(
            series=sort_by_first_path(scans[folder]), apart=tuple(others), named=tuple(named)
        )
    return found


def _list(search: SeriesSearch, below: Sequence[str]) -> tuple[FolderListing, list[Place]]:
    """List the files below these folders; return the listing and the places of bundles of files to read."""
    files = source_files(search.source)
    try:
        named, bundles = list_bundles(files, below)
    except UsageError as error:
        return FolderListing(named={}, faults={}, refusal=str(error)), []
    listed = FolderListing(named=named, faults=dict(files.faults()))
    return listed, write_pieces(OutputFolder(search.folder), "bundles", map(listing_to_bytes, bundles))


def _read(search: SeriesSearch, place: Place) -> tuple[str, list[tuple[SeriesKey, Place]], list[OtherFile]]:
    """Read the headers of a bundle; return its folder, the place of each series' headers, and files without slices."""
    output = OutputFolder(search.folder)
    folder, sizes = listing_from_bytes(output.read(*place))
    files = source_files(search.source)
    files.adopt(sizes, {})
    by_series, apart = read_headers(files, sizes, search.policy)
    places = write_pieces(output, "headers", map(listing_to_bytes, by_series.values()))
    return folder, [((folder, key), one) for key, one in zip(by_series, places, strict=True)], apart


def _join(search: SeriesSearch, part: tuple[SeriesKey, Sequence[Place]]) -> tuple[str, list[DicomSeries]]:
    """Join the headers of a series and write its slices; return the folder and the scans."""
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
