"""Which kinds of volumes are read, and how one path becomes a scan or a mask.

A new format is one file in volume/, one line in FORMATS and one in `halofeed.prep.sources.file_names`. The readers,
and with them nibabel and pydicom, are loaded when the first file of their kind is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from halofeed.errors import SourceError
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.geometry.scan import Grid, Mask, Scan
from halofeed.prep.sources.file_names import DICOM_EXTENSIONS, NAMES
from halofeed.prep.sources.files import SourceFiles

if TYPE_CHECKING:
    from halofeed.prep.formats.dicom.series_listing import ListingRecords
    from halofeed.prep.formats.volume.volume_file import VolumeReader

__all__ = ["FORMATS", "VOLUME_EXTENSIONS", "ScanOptions", "VolumeFormat", "open_mask", "open_scan"]

T = TypeVar("T")
Members: TypeAlias = "tuple[str, ...] | ListingRecords"
Volume = tuple[int, int, str] | None


@dataclass(frozen=True, kw_only=True)
class VolumeFormat:
    """How one format is known and opened.

    Args:
        extensions: in lower case.
        begins: whether the first `SIGN_BYTES` bytes of a file are those of this format.
        open_scan: from (files, path, members, options, which volume of the members).
        open_mask: from (files, path, the image's grid, options).
    """

    extensions: tuple[str, ...]
    begins: Callable[[bytes], bool]
    open_scan: Callable[[SourceFiles, str, Members, ScanOptions, Volume], Scan]
    open_mask: Callable[[SourceFiles, str, Grid, ScanOptions], Mask]


def _in_files(name: str, load: Callable[[], VolumeReader], begins: Callable[[bytes], bool]) -> VolumeFormat:
    """A format of volumes in files of their own."""
    return VolumeFormat(
        extensions=NAMES[name].extensions,
        begins=begins,
        open_scan=lambda files, path, members, options, volume: load()(files, path, options).scan(options),
        open_mask=lambda files, path, image_grid, options: load()(files, path, options).mask(options),
    )


def _nifti() -> VolumeReader:
    from halofeed.prep.formats.volume.nifti import open_nifti

    return open_nifti


def _nrrd() -> VolumeReader:
    from halofeed.prep.formats.volume.nrrd import open_nrrd

    return open_nrrd


def _metaimage() -> VolumeReader:
    from halofeed.prep.formats.volume.metaimage import open_metaimage

    return open_metaimage


def _mgh() -> VolumeReader:
    from halofeed.prep.formats.volume.mgh import open_mgh

    return open_mgh


def _dicom_scan(
    files: SourceFiles, path: str, members: Members, options: ScanOptions, volume: Volume
) -> Scan:
    from halofeed.prep.formats.dicom.series import open_series

    return open_series(files, members or (path,), options.series, volume)


def _dicom_mask(files: SourceFiles, path: str, image_grid: Grid, options: ScanOptions) -> Mask:
    from halofeed.prep.formats.dicom.masks import open_dicom_mask

    return open_dicom_mask(
        files,
        path,
        image_grid,
        tolerance_voxels=options.mask_grid_tolerance,
        keeps=options.classes.takes,
        need=options.need,
        scan=options.origin if options.mask_references == "check" else None,
    )


FORMATS: dict[str, VolumeFormat] = {
    "nifti": _in_files("nifti", _nifti, lambda start: start[344:348] == b"n+1\0" or start[4:8] == b"n+2\0"),
    "nrrd": _in_files("nrrd", _nrrd, lambda start: start.startswith(b"NRRD000")),
    "metaimage": _in_files(
        "metaimage", _metaimage, lambda start: re.match(rb"(ObjectType|NDims)[ \t]*=", start) is not None
    ),
    "mgh": _in_files("mgh", _mgh, lambda start: start.startswith(b"\0\0\0\1") and start[20:23] == b"\0\0\0"),
    "dicom": VolumeFormat(
        extensions=DICOM_EXTENSIONS,
        begins=lambda start: start[128:132] == b"DICM",
        open_scan=_dicom_scan,
        open_mask=_dicom_mask,
    ),
}
SIGN_BYTES = 352

VOLUME_EXTENSIONS = tuple(extension for entry in FORMATS.values() for extension in entry.extensions)
"""What the names of volumes end with. A pair may be named by either of its files; DICOM files may have any name."""

# What people have beside volumes that is not read, so that the reject can say what it is.
RECOGNIZED = {
    ".mnc": "a MINC volume",
    ".npy": "a NumPy array, which has no affine",
    ".npz": "NumPy arrays, which have no affine",
}
_ARRAY_CURE = (
    "nibabel.save(nibabel.Nifti1Image(array, affine), 'scan.nii.gz') stores it as NIfTI, with its own affine"
)
_CURES = {".mnc": "`mnc2nii scan.mnc scan.nii` stores it as NIfTI", ".npy": _ARRAY_CURE, ".npz": _ARRAY_CURE}


def open_scan(
    files: SourceFiles,
    path: str,
    members: Members = (),
    options: ScanOptions | None = None,
    volume: Volume = None,
) -> Scan:
    """Open a scan by its header; its voxels are read by the scan's `read`.

    Args:
        files: where the files are.
        path: a volume's file, or the folder of a DICOM series.
        members: the files of a DICOM series, or what listing has read of them; left out, those anywhere below the
            folder `path`.
        options: what is allowed, and what is done about flaws.
        volume: which scan of a DICOM series that holds several; see `Reference.volume`.

    Raises:
        SourceError: of no format that is read; else as the format's own reader raises.
    """
    options = options or ScanOptions()
    if members:
        return FORMATS["dicom"].open_scan(files, path, members, options, volume)
    below = _files_below(files, path) if not _by_name(path) else ()
    if below:
        return FORMATS["dicom"].open_scan(files, path, below, options, volume)
    return _open(files, path, lambda entry: entry.open_scan(files, path, (), options, None))


def open_mask(files: SourceFiles, path: str, image_grid: Grid, options: ScanOptions | None = None) -> Mask:
    """Open a mask by its header: a label volume, a DICOM SEG or an RTSTRUCT.

    Args:
        files: where the files are.
        path: the mask's file, or the folder that holds nothing else.
        image_grid: that of the scan it belongs to; only an RTSTRUCT, whose contours have no grid, needs it.
        options: as of `open_scan`.

    Raises:
        SourceError: of no format that is read; else as the format's own reader raises.
    """
    options = options or ScanOptions()
    below = _files_below(files, path) if not _by_name(path) else ()
    if len(below) > 1:
        raise SourceError("read", "a mask is one file", f"{len(below)} files in the folder")
    (path,) = below or (path,)
    return _open(files, path, lambda entry: entry.open_mask(files, path, image_grid, options))


def _open(files: SourceFiles, path: str, opener: Callable[[VolumeFormat], T]) -> T:
    """Open a file by the format of its name, or where that fails by the one that its first bytes show."""
    name = _format_of(files, path)
    try:
        return opener(FORMATS[name])
    except SourceError as error:
        if error.stage == "read":
            raise
        shown = _by_content(files.head(path, SIGN_BYTES))
        if shown in (None, name):
            raise
        return opener(FORMATS[shown])


def _by_content(start: bytes) -> str | None:
    return next((name for name, entry in FORMATS.items() if entry.begins(start)), None)


def _files_below(files: SourceFiles, path: str) -> tuple[str, ...]:
    folder = path.strip("/") + "/" if path.strip("./") else ""
    return tuple(name for name in files.sizes() if name.startswith(folder))


def _by_name(path: str) -> str | None:
    """The format that a file's name shows, or None.

    >>> _by_name("scan.nii.gz"), _by_name("IM00001")
    ('nifti', None)
    """
    return next((name for name, entry in FORMATS.items() if path.lower().endswith(entry.extensions)), None)


def _format_of(files: SourceFiles, path: str) -> str:
    """The format of a file, by its name, else by its content."""
    name = _by_name(path)
    if name is not None:
        return name
    for extension, kind in RECOGNIZED.items():
        if path.lower().endswith(extension):
            detail = f"{kind}; read are {', '.join(VOLUME_EXTENSIONS)}; {_CURES[extension]}"
            raise SourceError("read", "not a volume format that is read", detail)
    start = files.head(path, SIGN_BYTES)
    shown = _by_content(start)
    if shown is not None:
        return shown
    detail = f"begins with {start[:8].hex(' ') or 'nothing'}; read are {', '.join(VOLUME_EXTENSIONS)}"
    raise SourceError("read", "not a volume format that is read", detail)
