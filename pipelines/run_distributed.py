"""Search for DICOM series by calls of functions on the workers of a job."""

from __future__ import annotations

import functools
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from halofeed.pipelines.output_folder import OutputFolder
from halofeed.prep.formats.dicom.grouping import DicomSeries, OtherFile, read_headers
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
from halofeed.system.errors import UsageError

RunDistributed = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Call a function with each argument on some worker; yield the answers in any order."""
Place = tuple[str, int, int]
"""Name of a file below the output folder, and the start and end of a range of bytes in it."""


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
        found[folder] = SeriesListing.of(scans[folder], apart[folder], named)
        sizes = {one.path: one.file_bytes for one in found[folder].apart if one.file_bytes is not None}
        files.adopt(sizes | named, listed.faults)
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
        if series.stored[0] not in written:  # several scans of one series share a list
            output.write(series.stored[0], listing_to_bytes(images))
            written.add(series.stored[0])
        scans.append(series if search.below else replace(series, members=()))
    return folder, scans
