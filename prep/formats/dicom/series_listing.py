"""Listing of the DICOM series below folders, in one process or in steps that run in several processes.

`list_series` does it in this process. In several processes, `list_bundles` splits the files into bundles,
`grouping.read_headers` reads the headers of each bundle, and `join_series` describes the scans of each series.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from halofeed.prep.formats.dicom.grouping import (
    DicomSeries,
    Images,
    OtherFile,
    group_series,
    scans_of_series,
    select_images,
    sort_by_first_path,
)
from halofeed.prep.formats.dicom.header_fields import DicomFrame, HeaderFields, PixelFormat
from halofeed.prep.formats.dicom.headers import PixelLocation
from halofeed.prep.formats.dicom.real_world_values import Rescale
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.example import data_files
from halofeed.prep.sources.file_names import FolderIndex, is_scan_name, volume_files
from halofeed.prep.sources.files import SourceFiles
from halofeed.system import pickles
from halofeed.system.errors import Problem, SourceError
from halofeed.system.pickles import to_bytes as listing_to_bytes

__all__ = [
    "LISTING_CLASSES",
    "FolderListing",
    "ListingRecords",
    "SeriesListing",
    "join_series",
    "list_bundles",
    "list_series",
    "listing_from_bytes",
    "listing_to_bytes",
]
FILES_PER_BUNDLE = 256

ROOT = "."
Bundle = tuple[str, dict[str, int]]
"""A folder, and some of the files below it with their sizes."""


@dataclass(frozen=True, kw_only=True)
class FolderListing:
    """Result of the first step of a listing: the files whose names show their format, and errors.

    Args:
        named: for each folder the files with names of volumes or pictures, and their sizes.
        faults: folders that could not be listed, with the reason.
        refusal: reason why nothing could be listed, or "".
    """

    named: dict[str, dict[str, int]]
    faults: dict[str, Problem]
    refusal: str = ""


LISTING_CLASSES = (
    OtherFile,
    HeaderFields,
    DicomFrame,
    FolderListing,
    PixelFormat,
    PixelLocation,
    Rescale,
    DicomSeries,
    SourceError,
)
"""The only classes that may be unpickled from the results of a listing."""


@dataclass(frozen=True, kw_only=True)
class ListingRecords:
    """Files of a scan sorted by path, each with its header fields."""

    images: Images

    @property
    def members(self) -> tuple[str, ...]:
        """Paths of the files."""
        return tuple(path for path, _ in self.images)

    @property
    def digest(self) -> str:
        """Digest of the paths and sizes of the files."""
        listed = "\n".join(f"{fields.file_bytes} {path}" for path, fields in self.images)
        return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    @property
    def stamp(self) -> str:
        """Digest of the stamps of the files; "" if a file has none."""
        stamps = [fields.stamp for _, fields in self.images]
        return "" if None in stamps else hashlib.sha256(repr(stamps).encode()).hexdigest()[:32]


def listing_from_bytes(data: bytes) -> Any:
    """Return the value that `listing_to_bytes` wrote; raise UnpicklingError for other bytes."""
    return pickles.from_bytes(data, LISTING_CLASSES)


@dataclass(frozen=True, kw_only=True)
class SeriesListing:
    """Files below a folder, except documents.

    Args:
        series: scans sorted by their first path.
        apart: files that are not slices and whose names are not those of volumes or pictures, sorted by path.
        named: paths of the files with names of volumes or pictures, sorted.
    """

    series: tuple[DicomSeries, ...]
    apart: tuple[OtherFile, ...]
    named: tuple[str, ...]

    @classmethod
    def of(
        cls, series: Iterable[DicomSeries], apart: Iterable[OtherFile], named: Iterable[str]
    ) -> SeriesListing:
        """Return the listing of scans and other files in any order, and of sorted names."""
        others = sorted(apart, key=lambda other: other.path)
        return cls(series=sort_by_first_path(series), apart=tuple(others), named=tuple(named))


def list_series(
    files: SourceFiles, policy: SeriesPolicy, folders: Sequence[str] = ()
) -> dict[str, SeriesListing]:
    """List the series below each of some folders in this process; () means the root, which is called "."."""
    listings = {}
    for folder, (named, others) in _split_by_name(files, folders).items():
        series, apart = group_series(files, others, policy)
        listings[folder] = SeriesListing.of(series, apart, named)
    return listings


def list_bundles(
    files: SourceFiles, folders: Sequence[str]
) -> tuple[dict[str, dict[str, int]], Iterator[Bundle]]:
    """Return the files with names of volumes or pictures by folder, with their sizes; and bundles of the others."""
    names, sizes = _split_by_name(files, folders), files.sizes()

    def bundles() -> Iterator[Bundle]:
        for folder, (_, others) in names.items():
            rest = iter(others)
            while bundle := {path: sizes[path] for path in islice(rest, FILES_PER_BUNDLE)}:
                yield folder, bundle

    return {folder: {path: sizes[path] for path in named} for folder, (named, _) in names.items()}, bundles()


def join_series(
    folder: str, key: str, found: Iterable[tuple[str, HeaderFields]], policy: SeriesPolicy
) -> Iterator[tuple[DicomSeries, Images]]:
    """Yield the scans of one series, each with the files to store under the name in `Series.stored`.

    Args:
        folder: folder below which the files were listed.
        key: key of the series.
        found: images and masks from all bundles, in any order, as `read_headers` returns them.
        policy: rules that define a scan.
    """
    ordered = sorted(found, key=lambda one: one[0])
    count = len(select_images(ordered))
    below = hashlib.sha256(folder.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    for series, images in scans_of_series(key, ordered, policy):
        # Scans with all files of the series share one stored listing of these.
        name = key if len(images) == count else series.key
        records = ListingRecords(images=images)
        stored = (f"{below}-{name}", records.digest, records.stamp)
        yield replace(series, stored=stored), images


def _split_by_name(
    files: SourceFiles, folders: Sequence[str]
) -> dict[str, tuple[tuple[str, ...], list[str]]]:
    """Return for each folder the files with names of volumes or pictures, and the others."""
    index, found = FolderIndex(files), {}
    for folder in folders or (ROOT,):
        paths = index.below(folder)
        named = tuple(path for path in paths if is_scan_name(path) and not _is_dicom(files, path))
        accounted = {*named, *data_files(files, named)}
        found[folder] = named, [path for path in paths if path not in accounted]
    return found


def _is_dicom(files: SourceFiles, path: str) -> bool:
    """Return whether a file is DICOM although its name is that of the voxels of a missing header file."""
    # Analyze and NIfTI pairs keep voxels in .img; DICOM files may have this extension too.
    header = volume_files(path)[0]
    if header == path or files.size(header) is not None:
        return False
    try:
        return files.head(path, 132)[128:] == b"DICM"
    except SourceError:
        return False
