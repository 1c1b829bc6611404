"""Table of the volume formats, and the functions that open a path as a scan or as a mask.

A new format needs a file in volume/, and a line in each of `FORMATS`, `_open_file` and `FORMAT_EXTENSIONS`
(`prep/sources/file_names.py`). The readers, and with them nibabel and pydicom, are imported when the first file of
their format is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.geometry.scan import Grid, MaskScan, Scan
from halofeed.prep.sources.file_names import (
    ARRAY_EXTENSIONS,
    DICOM_EXTENSIONS,
    FORMAT_EXTENSIONS,
    STACK_EXTENSIONS,
)
from halofeed.prep.sources.files import SourceFiles, pointer_kind
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

if TYPE_CHECKING:
    from halofeed.prep.formats.dicom.series_listing import ListingRecords
    from halofeed.prep.formats.volume.volume_file import VolumeFile

__all__ = ["FORMATS", "READABLE_EXTENSIONS", "ScanOptions", "VolumeFormat", "open_mask", "open_scan"]

T = TypeVar("T")
Members: TypeAlias = "tuple[str, ...] | ListingRecords"
Volume = tuple[int, int, str] | None


@dataclass(frozen=True, kw_only=True)
class VolumeFormat:
    """File extensions, magic bytes and readers of one format.

    Args:
        extensions: file extensions in lower case.
        begins: function that tells whether the first `DETECTION_BYTES` bytes of a file are those of this format.
        open_scan: function of (files, path, members, options, volume of the members).
        open_mask: function of (files, path, grid of the image, options).
    """

    extensions: tuple[str, ...]
    begins: Callable[[bytes], bool]
    open_scan: Callable[[SourceFiles, str, Members, ScanOptions, Volume], Scan]
    open_mask: Callable[[SourceFiles, str, Grid, ScanOptions], MaskScan]


def _file_format(
    name: str, begins: Callable[[bytes], bool], extensions: tuple[str, ...] = ()
) -> VolumeFormat:
    """Return the entry of a format with one volume per file."""
    return VolumeFormat(
        extensions=extensions or FORMAT_EXTENSIONS[name].extensions,
        begins=begins,
        open_scan=lambda files, path, members, options, volume: _open_file(name, files, path, options).scan(
            options
        ),
        open_mask=lambda files, path, grid, options: _open_file(name, files, path, options).mask(options),
    )


def _open_file(name: str, files: SourceFiles, path: str, options: ScanOptions) -> VolumeFile:
    """Import the reader of a format and open a file with it."""
    if name == "nifti":
        from halofeed.prep.formats.volume.nifti import open_nifti as open_file
    elif name == "nrrd":
        from halofeed.prep.formats.volume.nrrd import open_nrrd as open_file
    elif name == "metaimage":
        from halofeed.prep.formats.volume.metaimage import open_metaimage as open_file
    elif name == "minc":
        from halofeed.prep.formats.volume.minc import open_minc as open_file
    elif name == "numpy":
        from halofeed.prep.formats.volume.numpy_array import open_array as open_file
    elif name == "tiff":
        from halofeed.prep.formats.volume.tiff_stack import open_tiff_stack as open_file
    else:
        from halofeed.prep.formats.volume.mgh import open_mgh as open_file
    return open_file(files, path, options)


def _dicom_scan(
    files: SourceFiles, path: str, members: Members, options: ScanOptions, volume: Volume
) -> Scan:
    from halofeed.prep.formats.dicom.series import open_series

    return open_series(files, members or (path,), options.series, volume)


def _dicom_mask(files: SourceFiles, path: str, image_grid: Grid, options: ScanOptions) -> MaskScan:
    from halofeed.prep.formats.dicom.mask_files import open_dicom_mask

    return open_dicom_mask(
        files,
        path,
        image_grid,
        tolerance_voxels=options.mask_grid_tolerance,
        keeps=options.classes.takes,
        reserve=options.reserve,
        scan=options.origin if options.mask_references == "check" else None,
    )


FORMATS: dict[str, VolumeFormat] = {
    "nifti": _file_format("nifti", lambda start: start[344:348] == b"n+1\0" or start[4:8] == b"n+2\0"),
    "nrrd": _file_format("nrrd", lambda start: start.startswith(b"NRRD000")),
    "metaimage": _file_format(
        "metaimage", lambda start: re.match(rb"(ObjectType|NDims)[ \t]*=", start) is not None
    ),
    "mgh": _file_format("mgh", lambda start: start.startswith(b"\0\0\0\1") and start[20:23] == b"\0\0\0"),
    "minc": _file_format("minc", lambda start: start.startswith((b"CDF\1", b"CDF\2", b"\x89HDF\r\n\x1a\n"))),
    "numpy": _file_format("numpy", lambda start: start.startswith(b"\x93NUMPY"), ARRAY_EXTENSIONS),
    "tiff": _file_format(
        "tiff",
        lambda start: start.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
        STACK_EXTENSIONS,
    ),
    "dicom": VolumeFormat(
        extensions=DICOM_EXTENSIONS,
        begins=lambda start: start[128:132] == b"DICM",
        open_scan=_dicom_scan,
        open_mask=_dicom_mask,
    ),
}
DETECTION_BYTES = 352

READABLE_EXTENSIONS = tuple(extension for entry in FORMATS.values() for extension in entry.extensions)
"""Extensions of volume files. A pair may be named by either of its files; DICOM files may have any name."""


def open_scan(
    files: SourceFiles,
    path: str,
    members: Members = (),
    options: ScanOptions | None = None,
    volume: Volume = None,
) -> Scan:
    """Open a scan by its header; the scan's `read` reads the voxels later.

    Args:
        files: the source that holds the files.
        path: path of a volume's file, or of the folder of a DICOM series.
        members: files of a DICOM series, or their records in a listing. By default all files below the folder `path`.
        options: limits, and the treatment of flaws.
        volume: the scan of a DICOM series that holds several, see `halofeed.prep.formats.dicom.grouping.DicomSeries`.

    Raises:
        SourceError: the format is not supported, or its reader refuses the file.
    """
    options = options or ScanOptions()
    if members:
        return FORMATS["dicom"].open_scan(files, path, members, options, volume)
    if below := _files_below(files, path):  # only a DICOM series is a folder
        return FORMATS["dicom"].open_scan(files, path, below, options, volume)
    return _open(files, path, lambda entry: entry.open_scan(files, path, (), options, None))


def open_mask(
    files: SourceFiles,
    path: str,
    image_grid: Grid,
    options: ScanOptions | None = None,
    members: tuple[str, ...] = (),
) -> MaskScan:
    """Open a mask by its header: a label volume, a DICOM SEG or RTSTRUCT, or a DICOM series of label slices.

    Args:
        files: the source that holds the files.
        path: path of the mask's file, or of the folder that contains only this file.
        image_grid: grid of the mask's scan. Only an RTSTRUCT, whose contours have no grid, needs it.
        options: limits, and the treatment of flaws.
        members: files of a DICOM series of label slices; () for a mask in one file.

    Raises:
        SourceError: the format is not supported, or its reader refuses the file.
    """
    options = options or ScanOptions()
    if members:
        from halofeed.prep.formats.dicom.mask_files import open_label_series

        return open_label_series(files, members, options.series)
    below = _files_below(files, path)
    if len(below) > 1:
        raise SourceError("read", "a mask is one file", f"{plural(len(below), 'file')} in the folder")
    (path,) = below or (path,)
    return _open(files, path, lambda entry: entry.open_mask(files, path, image_grid, options))


def _open(files: SourceFiles, path: str, opener: Callable[[VolumeFormat], T]) -> T:
    """Open a file by the format of its name, or if that fails, by the format of its first bytes."""
    name = _format_of(files, path)
    try:
        return opener(FORMATS[name])
    except SourceError as error:
        if error.stage == "read":  # the file is missing, so it has no first bytes
            raise
        start = files.head(path, DETECTION_BYTES)
        # A pointer of Git LFS or DVC has the name of the file that was not fetched.
        if (pointer := pointer_kind(start)) is not None:
            raise SourceError("read", "file was not downloaded", f"it is {pointer}") from None
        detected = _format_by_content(start)
        # Another format under a wrong name is read; a damaged file of the named format keeps its error.
        if detected in (None, name):
            raise
        return opener(FORMATS[detected])


def _format_by_content(start: bytes) -> str | None:
    return next((name for name, entry in FORMATS.items() if entry.begins(start)), None)


def _files_below(files: SourceFiles, path: str) -> tuple[str, ...]:
    """Return the paths of the files below a folder; () if the path has the name of a volume file."""
    if _format_by_name(path):
        return ()
    folder = path.strip("/") + "/" if path.strip("./") else ""
    return tuple(name for name in files.sizes() if name.startswith(folder))


def _format_by_name(path: str) -> str | None:
    """Return the format that a file's name shows, or None.

    >>> _format_by_name("scan.nii.gz"), _format_by_name("IM00001")
    ('nifti', None)
    """
    return next((name for name, entry in FORMATS.items() if path.lower().endswith(entry.extensions)), None)


def _format_of(files: SourceFiles, path: str) -> str:
    """Return the format of a file, by its name or else by its content."""
    name = _format_by_name(path)
    if name is not None:
        return name
    start = files.head(path, DETECTION_BYTES)
    name = _format_by_content(start)
    if name is None:
        detail = f"begins with {start[:8].hex(' ') or 'nothing'}; supported: {', '.join(READABLE_EXTENSIONS)}"
        raise SourceError("read", "not a volume format that is read", detail)
    return name
