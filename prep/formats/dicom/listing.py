"""Which DICOM series lie below a folder, found in steps that may each run elsewhere:

    list_bundles ──> read_headers of each bundle ──> by series ──> join_series ──> a `Series` for each scan, no slices
     names, sizes         each file once             FileFacts                     and its slices under a name

`list_series` takes them all at once. What they say together does not depend on how files are bundled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from halofeed.prep.formats.dicom.facts import FileFacts
from halofeed.prep.formats.dicom.found import FoundFiles
from halofeed.prep.formats.dicom.grouping import (
    Apart,
    Images,
    Series,
    group_series,
    images_of,
    scans_of_series,
)
from halofeed.prep.formats.volume.series_policy import SeriesPolicy
from halofeed.prep.sources.data_files import data_files
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.volume_files import FolderIndex, is_scan_name

FILES_AT_ONCE = 256

Bundle = dict[str, int]
"""Some files with their sizes."""


@dataclass(frozen=True, kw_only=True)
class SeriesListing:
    """What lies below a folder, beside documents.

    Args:
        series: the scans in order of their first path.
        apart: the files that are no slices and have no name of a volume or a picture, in order of their path.
        named: those that have such a name, likewise.
    """

    series: tuple[Series, ...]
    apart: tuple[Apart, ...]
    named: tuple[str, ...]


def list_series(files: SourceFiles, policy: SeriesPolicy) -> SeriesListing:
    """Find the series in this process."""
    named, others = _names(files)
    series, apart = group_series(files, others, policy)
    return SeriesListing(series=series, apart=apart, named=named)


def list_bundles(files: SourceFiles) -> tuple[tuple[str, ...], Iterator[Bundle]]:
    """The files with names of volumes or pictures, and the others, some at a time."""
    named, others = _names(files)
    sizes, rest = files.sizes(), iter(others)
    bundles = iter(lambda: {path: sizes[path] for path in islice(rest, FILES_AT_ONCE)}, {})
    return named, bundles


def join_series(
    key: str, found: Iterable[tuple[str, FileFacts]], policy: SeriesPolicy
) -> Iterator[tuple[Series, Images]]:
    """The scans of one series, without their members, each with the files to be stored under the name that it says.

    Args:
        key: of the series.
        found: its files and masks of all bundles, in any order, as `read_headers` gives them.
        policy: what makes a scan.
    """
    ordered = sorted(found, key=lambda one: one[0])
    count = len(images_of(ordered))
    for series, images in scans_of_series(key, ordered, policy):
        name = key if len(images) == count else series.key
        stored = (name, FoundFiles(images=images).digest)
        yield replace(series, members=(), stored=stored), images


def _names(files: SourceFiles) -> tuple[tuple[str, ...], list[str]]:
    paths = FolderIndex(files).below(".")
    named = tuple(filter(is_scan_name, paths))
    voxels = data_files(files, named)
    return named, [path for path in paths if not is_scan_name(path) and path not in voxels]
