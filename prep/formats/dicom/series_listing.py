"""List of the DICOM series below folders, found in steps that may run in other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from halofeed.errors import Problem, SourceError
from halofeed.prep.formats.dicom.grouping import (
    Apart,
    Images,
    Series,
    group_series,
    scans_of_series,
    select_images,
)
from halofeed.prep.formats.dicom.header_fields import Frame, HeaderFields, PixelFormat, Rescale
from halofeed.prep.formats.dicom.headers import PixelLocation
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.file_names import FolderIndex, files_of, is_scan_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.reference import data_files
from halofeed.system import pickles
from halofeed.system.pickles import to_bytes as listing_to_bytes

__all__ = [
    "CLASSES",
    "Listed",
    "ListingRecords",
    "SeriesListing",
    "join_series",
    "list_bundles",
    "list_series",
    "listing_from_bytes",
    "listing_to_bytes",
]


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What listing found beside the files whose headers are to be read.

    Args:
        named: by folder, the files with names of volumes and pictures, and their sizes.
        faults: the folders that were left out.
        refusal: why nothing could be listed, or "".
    """

    named: dict[str, dict[str, int]]
    faults: dict[str, Problem]
    refusal: str = ""


CLASSES = (Apart, HeaderFields, Frame, Listed, PixelFormat, PixelLocation, Rescale, Series, SourceError)
"""What alone is believed of what was found."""


@dataclass(frozen=True, kw_only=True)
class ListingRecords:
    """The files of a scan in order of their path, each with what it says."""

    images: Images

    @property
    def members(self) -> tuple[str, ...]:
        """Their paths."""
        return tuple(path for path, _ in self.images)

    @property
    def digest(self) -> str:
        """Of their paths and sizes."""
        listed = "\n".join(f"{fields.file_bytes} {path}" for path, fields in self.images)
        return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    @property
    def stamp(self) -> str:
        """Of all of them; "" where one of them has none."""
        stamps = [fields.stamp for _, fields in self.images]
        return "" if None in stamps else hashlib.sha256(repr(stamps).encode()).hexdigest()[:32]


def listing_from_bytes(data: bytes) -> Any:
    """What `listing_to_bytes` was given; UnpicklingError where it is anything else."""
    return pickles.from_bytes(data, CLASSES)


FILES_AT_ONCE = 256

ROOT = "."
Bundle = tuple[str, dict[str, int]]
"""A folder, and some of the files below it with their sizes."""


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


def list_series(
    files: SourceFiles, policy: SeriesPolicy, folders: Sequence[str] = ()
) -> dict[str, SeriesListing]:
    """Find the series below each of some folders in this process; () is the root, which is called "."."""
    found = {}
    for folder, (named, others) in _names(files, folders).items():
        series, apart = group_series(files, others, policy)
        found[folder] = SeriesListing(series=series, apart=apart, named=named)
    return found


def list_bundles(
    files: SourceFiles, folders: Sequence[str]
) -> tuple[dict[str, dict[str, int]], Iterator[Bundle]]:
    """By folder the files with names of volumes or pictures and their sizes; and the others, some at a time."""
    names, sizes = _names(files, folders), files.sizes()

    def bundles() -> Iterator[Bundle]:
        for folder, (_, others) in names.items():
            rest = iter(others)
            while some := {path: sizes[path] for path in islice(rest, FILES_AT_ONCE)}:
                yield folder, some

    return {folder: {path: sizes[path] for path in named} for folder, (named, _) in names.items()}, bundles()


def join_series(
    folder: str, key: str, found: Iterable[tuple[str, HeaderFields]], policy: SeriesPolicy
) -> Iterator[tuple[Series, Images]]:
    """The scans of one series, each with the files to be stored under the name that it says.

    Args:
        folder: below which its files were looked for.
        key: of the series.
        found: its files and masks of all bundles, in any order, as `read_headers` gives them.
        policy: what makes a scan.
    """
    ordered = sorted(found, key=lambda one: one[0])
    count = len(select_images(ordered))
    below = hashlib.sha256(folder.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    for series, images in scans_of_series(key, ordered, policy):
        name = key if len(images) == count else series.key
        files = ListingRecords(images=images)
        stored = (f"{below}-{name}", files.digest, files.stamp)
        yield replace(series, stored=stored), images


def _names(files: SourceFiles, folders: Sequence[str]) -> dict[str, tuple[tuple[str, ...], list[str]]]:
    index, found = FolderIndex(files), {}
    for folder in folders or (ROOT,):
        paths = index.below(folder)
        named = tuple(path for path in paths if is_scan_name(path) and not _is_dicom(files, path))
        apart = {*named, *data_files(files, named)}
        found[folder] = named, [path for path in paths if path not in apart]
    return found


def _is_dicom(files: SourceFiles, path: str) -> bool:
    """Whether a file is DICOM although its name is that of voxels beside a header, where no header lies beside it."""
    header = files_of(path)[0]
    if header == path or files.size(header) is not None:
        return False
    try:
        return files.head(path, 132)[128:] == b"DICM"
    except SourceError:
        return False
