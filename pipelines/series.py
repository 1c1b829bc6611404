"""How the DICOM series of a source are found by the job's workers, so that this process sees scans and no slices.

    one worker            each bundle of 256 files      each series
    lists the names  ──>  reads the headers, once  ──>  sorts its slices into scans, and writes them
    and sizes             each file                     below a folder, for whoever converts them

On this machine, workers hand on what they found in files of that folder, and this process hands on names and offsets.
On another runner it is a Beam job of its own, whose shuffle hands it on.
"""

from __future__ import annotations

import abc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import apache_beam as beam

from halofeed import __version__
from halofeed.pipelines.job import check_software
from halofeed.pipelines.objects.choose import use_settings
from halofeed.pipelines.remote import SignsOfLife
from halofeed.pipelines.spread import Spread
from halofeed.pipelines.storage import OutputFolder, RemoteFiles, source_files
from halofeed.prep.formats.dicom.found import Listed, from_bytes, to_bytes
from halofeed.prep.formats.dicom.grouping import Apart, Series, in_order_of_files, read_headers
from halofeed.prep.formats.dicom.listing import Bundle, SeriesListing, join_series, list_bundles
from halofeed.prep.formats.volume.series_policy import SeriesPolicy
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import UsageError

Key = tuple[str, str]
"""The folder below which a series was looked for, and its own key."""
Place = tuple[str, int, int]
"""A file of the folder, and the bytes of it that begin and end something."""


@dataclass(frozen=True, kw_only=True)
class SeriesSearch:
    """What the workers need to know: below which source folder, by which rules, and where they write.

    Args:
        source: the folder.
        policy: what makes a scan; its salt goes into every hash.
        below: the folders below which each series is looked for, as tables name them, whose references keep their
            members; (): the whole source, whose members nobody but the workers needs.
        folder: where slices and what is on its way to them are written.
        store_settings, wanted: as of a `ShardJob`.
    """

    source: str
    policy: SeriesPolicy
    below: tuple[str, ...]
    folder: str
    store_settings: Mapping[str, Any] = field(default_factory=dict)
    wanted: str | None = None


def adopted(
    files: LocalFiles | RemoteFiles,
    listed: Listed,
    series: Iterable[tuple[str, Series]],
    apart: Iterable[tuple[str, Apart]],
) -> dict[str, SeriesListing]:
    """What was found by others below each folder, of a source that this process has not listed and need not list.

    Raises:
        UsageError: it cannot be listed.
    """
    if listed.refusal:
        raise UsageError(listed.refusal)
    scans: dict[str, list[Series]] = defaultdict(list)
    others: dict[str, list[Apart]] = defaultdict(list)
    for folder, one in series:
        scans[folder].append(one)
    for folder, other in sorted(apart, key=lambda found: found[1].path):
        others[folder].append(other)
    found = {}
    for folder, named in listed.named.items():
        sizes = {one.path: one.file_bytes for one in others[folder] if one.file_bytes is not None}
        files.adopt(sizes | named, listed.faults)
        found[folder] = SeriesListing(
            series=in_order_of_files(scans[folder]), apart=tuple(others[folder]), named=tuple(named)
        )
    return found


def _list(search: SeriesSearch) -> tuple[Listed, Iterator[Bundle]]:
    use_settings(search.store_settings)
    files = source_files(search.source)
    try:
        named, bundles = list_bundles(files, search.below)
    except UsageError as error:
        return Listed(named={}, faults={}, refusal=str(error)), iter(())
    return Listed(named=named, faults=dict(files.faults())), bundles


def _read(search: SeriesSearch, bundle: Bundle) -> tuple[dict[Key, bytes], list[tuple[str, Apart]]]:
    """What the files say, by series, and those that are no slices."""
    use_settings(search.store_settings)
    folder, sizes = bundle
    files = source_files(search.source)
    files.adopt(sizes, {})
    by_series, apart = read_headers(files, sizes, search.policy)
    found = {(folder, key): to_bytes(some) for key, some in by_series.items()}
    return found, [(folder, one) for one in apart]


def _join(search: SeriesSearch, key: Key, parts: Iterable[bytes]) -> list[tuple[str, Series]]:
    """The scans of a series, of which each has its slices written."""
    use_settings(search.store_settings)
    found = [one for part in parts for one in from_bytes(part)]
    scans = []
    written = set()
    for series, images in join_series(*key, found, search.policy):
        assert series.stored is not None
        if series.stored[0] not in written:
            OutputFolder(search.folder).write(series.stored[0], to_bytes(images))
            written.add(series.stored[0])
        scans.append((key[0], series if search.below else replace(series, members=())))
    return scans


# By the workers of this machine ---------------------------------------------------------------------------


def find_series(
    files: LocalFiles | RemoteFiles, search: SeriesSearch, spread: Spread
) -> dict[str, SeriesListing]:
    """Find the series by calls that `spread` makes, wherever it does; `SeriesSearch.folder` is a local one.

    Raises:
        UsageError: the source cannot be listed.
    """
    ((listed, bundles),) = spread(_list_to_file, [search])
    places: list[tuple[Key, Place]] = []
    apart: list[tuple[str, Apart]] = []
    for keys, others in spread(_read_to_file, [(search, place) for place in bundles]):
        places += keys
        apart += others
    grouped = groupby(sorted(places), key=lambda one: one[0])
    parts = [(search, key, [place for _, place in some]) for key, some in grouped]
    series = [one for scans in spread(_join_from_files, parts) for one in scans]
    return adopted(files, listed, series, apart)


def _write_pieces(search: SeriesSearch, name: str, pieces: Iterable[bytes]) -> list[Place]:
    places, offset = [], 0
    with OutputFolder(search.folder).temporary(name) as file:
        for piece in pieces:
            file.stream.write(piece)
            places.append((name, offset, offset + len(piece)))
            offset += len(piece)
        file.keep()
    return places


def _list_to_file(search: SeriesSearch) -> tuple[Listed, list[Place]]:
    listed, bundles = _list(search)
    return listed, _write_pieces(search, "bundles", map(to_bytes, bundles))


def _read_to_file(
    task: tuple[SeriesSearch, Place],
) -> tuple[list[tuple[Key, Place]], list[tuple[str, Apart]]]:
    search, place = task
    found, apart = _read(search, from_bytes(OutputFolder(search.folder).read(*place)))
    places = _write_pieces(search, f"headers-{place[1]}", found.values())
    return list(zip(found, places, strict=True)), apart


def _join_from_files(task: tuple[SeriesSearch, Key, Sequence[Place]]) -> list[tuple[str, Series]]:
    search, key, places = task
    return _join(search, key, (OutputFolder(search.folder).read(*place) for place in places))


# On another runner ----------------------------------------------------------------------------------------

_FOUND = "found"


class _Step(beam.DoFn):  # type: ignore[misc]
    """Takes elements as long as the search is wanted, and gives signs of life meanwhile."""

    def __init__(self, search: SeriesSearch) -> None:
        self._search, self._software = search, __version__

    def setup(self) -> None:
        check_software(self._software)
        use_settings(self._search.store_settings)
        self._signs = SignsOfLife(self._search.wanted)

    def process(self, element: Any) -> Iterator[Any]:
        with self._signs.meanwhile():
            yield from self._take(element)

    @abc.abstractmethod
    def _take(self, element: Any) -> Iterator[Any]:
        """What comes of one element."""


class _List(_Step):
    """From anything to the bundles of the search's files; what else was listed goes to the side."""

    def _take(self, element: object) -> Iterator[Any]:
        listed, bundles = _list(self._search)
        yield beam.pvalue.TaggedOutput(_FOUND, ("", listed))
        yield from bundles


class _Read(_Step):
    """From a bundle to (series, what its files say of it); files that are no slices go to the side."""

    def _take(self, element: Bundle) -> Iterator[Any]:
        found, apart = _read(self._search, element)
        for one in apart:
            yield beam.pvalue.TaggedOutput(_FOUND, one)
        yield from found.items()


class _Join(_Step):
    """From (series, what files say of it) to its scans."""

    def _take(self, element: tuple[Key, Iterable[bytes]]) -> Iterator[Any]:
        yield from _join(self._search, *element)


class _Write(_Step):
    """From everything that was found to one file."""

    def _take(self, element: tuple[int, Iterable[Any]]) -> Iterator[Any]:
        OutputFolder(self._search.folder).write(_FOUND, to_bytes(list(element[1])))
        yield from ()


def find_series_by_beam(
    files: LocalFiles | RemoteFiles, search: SeriesSearch, pipeline: Any, run: Callable[[], object]
) -> dict[str, SeriesListing]:
    """Find the series by a job of Beam's; `SeriesSearch.folder` lies where all workers can write.

    Args:
        pipeline: an empty one.
        run: runs it to its end.

    Raises:
        JobError: the job failed.
        UsageError: the source cannot be listed.
    """
    listed = (
        pipeline
        | "begin" >> beam.Impulse()
        | "list files" >> beam.ParDo(_List(search)).with_outputs(_FOUND, main="bundles")
    )
    read = (
        listed.bundles
        | "spread" >> beam.Reshuffle()
        | "read headers" >> beam.ParDo(_Read(search)).with_outputs(_FOUND, main="parts")
    )
    series = read.parts | "group by series" >> beam.GroupByKey() | "sort slices" >> beam.ParDo(_Join(search))
    (
        (listed[_FOUND], read[_FOUND], series)
        | "gather" >> beam.Flatten()
        | "to one" >> beam.Map(lambda found: (0, found))
        | "all that was found" >> beam.GroupByKey()
        | "write" >> beam.ParDo(_Write(search))
    )
    run()
    found = from_bytes(OutputFolder(search.folder).read(_FOUND))
    return adopted(
        files,
        next(one for _, one in found if isinstance(one, Listed)),
        [(folder, one) for folder, one in found if isinstance(one, Series)],
        [(folder, one) for folder, one in found if isinstance(one, Apart)],
    )
