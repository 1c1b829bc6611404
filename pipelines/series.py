"""How the DICOM series of a source are found by the job's workers, so that this process sees scans and no slices.

    one worker            each bundle of 256 files      each series
    lists the names  ──>  reads the headers, once  ──>  sorts its slices into scans, and writes them
    and sizes             each file                     below a folder, for whoever converts them

Workers hand on what they found in files of that folder, and this process hands on names and offsets.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from halofeed.pipelines.spread import Place, Spread, write_pieces
from halofeed.pipelines.storage import OutputFolder, RemoteFiles, source_files
from halofeed.prep.formats.dicom.found import Listed, from_bytes, to_bytes
from halofeed.prep.formats.dicom.grouping import Apart, Series, in_order_of_files, read_headers
from halofeed.prep.formats.dicom.listing import SeriesListing, join_series, list_bundles
from halofeed.prep.formats.volume.series_policy import SeriesPolicy
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import UsageError

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
    files: LocalFiles | RemoteFiles, search: SeriesSearch, spread: Spread
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
    return listed, write_pieces(OutputFolder(search.folder), "bundles", map(to_bytes, bundles))


def _read(search: SeriesSearch, place: Place) -> tuple[str, list[tuple[Key, Place]], list[Apart]]:
    """Of a bundle its folder, where lies what its files say of each series, and those that are no slices."""
    output = OutputFolder(search.folder)
    folder, sizes = from_bytes(output.read(*place))
    files = source_files(search.source)
    files.adopt(sizes, {})
    by_series, apart = read_headers(files, sizes, search.policy)
    places = write_pieces(output, "headers", map(to_bytes, by_series.values()))
    return folder, [((folder, key), one) for key, one in zip(by_series, places, strict=True)], apart


def _join(search: SeriesSearch, part: tuple[Key, Sequence[Place]]) -> tuple[str, list[Series]]:
    """The folder and the scans of a series, of which each has its slices written."""
    (folder, key), places = part
    output = OutputFolder(search.folder)
    found = [one for place in places for one in from_bytes(output.read(*place))]
    scans = []
    written = set()
    for series, images in join_series(folder, key, found, search.policy):
        assert series.stored is not None
        if series.stored[0] not in written:
            output.write(series.stored[0], to_bytes(images))
            written.add(series.stored[0])
        scans.append(series if search.below else replace(series, members=()))
    return folder, scans
