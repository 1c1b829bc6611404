"""Which kinds of volumes are read, and how one path becomes a scan or a mask.

A new format is one file beside this one and one line in FORMATS. The readers, and with them nibabel and pydicom,
are loaded when the first file of their kind is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from halofeed.prep.sources import SourceFiles
from halofeed.prep.volume.scan import Grid, Mask, Scan
from halofeed.prep.volume_readers.options import ScanOptions
from halofeed.schemas.errors import SourceError

__all__ = ["FORMATS", "VOLUME_EXTENSIONS", "ScanOptions", "VolumeFormat", "open_mask", "open_scan"]

Members = tuple[str, ...]
Volume = tuple[int, int, str] | None


@dataclass(frozen=True, kw_only=True)
class VolumeFormat:
    """How one format is known and opened.

    Args:
        extensions: in lower case; the longest that fits a name decides.
        open_scan: from (files, path, members, options, which volume of the members).
        open_mask: from (files, path, the image's grid, options).
    """

    extensions: tuple[str, ...]
    open_scan: Callable[[SourceFiles, str, Members, ScanOptions, Volume], Scan]
    open_mask: Callable[[SourceFiles, str, Grid, ScanOptions], Mask]


def _nifti_scan(
    files: SourceFiles, path: str, members: Members, options: ScanOptions, volume: Volume
) -> Scan:
    from halofeed.prep.volume_readers.nifti import open_nifti

    return open_nifti(files, path, options)


def _nifti_mask(files: SourceFiles, path: str, image_grid: Grid, options: ScanOptions) -> Mask:
    from halofeed.prep.volume_readers.nifti import open_nifti_mask

    return open_nifti_mask(files, path, options)


def _dicom_scan(
    files: SourceFiles, path: str, members: Members, options: ScanOptions, volume: Volume
) -> Scan:
    from halofeed.prep.volume_readers.dicom_series import open_series

    return open_series(files, members or (path,), options.series, volume)


def _dicom_mask(files: SourceFiles, path: str, image_grid: Grid, options: ScanOptions) -> Mask:
    from halofeed.prep.volume_readers.dicom_masks import open_dicom_mask

    return open_dicom_mask(
        files,
        path,
        image_grid,
        tolerance_voxels=options.mask_grid_tolerance,
        keeps=options.classes.takes,
    )


FORMATS: dict[str, VolumeFormat] = {
    "nifti": VolumeFormat(
        extensions=(".nii", ".nii.gz", ".hdr", ".hdr.gz", ".img", ".img.gz"),
        open_scan=_nifti_scan,
        open_mask=_nifti_mask,
    ),
    "dicom": VolumeFormat(
        extensions=(".dcm", ".dicom", ".ima", ".dcm.gz", ".dicom.gz", ".ima.gz"),
        open_scan=_dicom_scan,
        open_mask=_dicom_mask,
    ),
}

VOLUME_EXTENSIONS = tuple(extension for entry in FORMATS.values() for extension in entry.extensions)
"""What the names of volumes end with. A pair may be named by either of its files; DICOM files may have any name."""

# What people have beside volumes that is not read, so that the reject can say what it is.
RECOGNISED = {
    ".nrrd": "an NRRD volume",
    ".nhdr": "an NRRD header",
    ".mha": "a MetaImage volume",
    ".mhd": "a MetaImage header",
    ".mgh": "a FreeSurfer volume",
    ".mgz": "a FreeSurfer volume",
    ".mnc": "a MINC volume",
    ".npy": "a NumPy array, which has no affine",
    ".npz": "NumPy arrays, which have no affine",
}


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
        members: the files of a DICOM series; left out, those anywhere below the folder `path`.
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
    return FORMATS[_format_of(files, path)].open_scan(files, path, (), options, None)


def open_mask(files: SourceFiles, path: str, image_grid: Grid, options: ScanOptions | None = None) -> Mask:
    """Open a mask by its header: a NIfTI label volume, a DICOM SEG or an RTSTRUCT.

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
    return FORMATS[_format_of(files, path)].open_mask(files, path, image_grid, options)


def _files_below(files: SourceFiles, path: str) -> Members:
    folder = path.strip("/") + "/" if path.strip("./") else ""
    return tuple(name for name in files.sizes() if name.startswith(folder))


def _by_name(path: str) -> str | None:
    """The format that a file's name shows, or None.

    >>> _by_name("scan.nii.gz"), _by_name("IM00001")
    ('nifti', None)
    """
    for name, entry in FORMATS.items():
        if path.lower().endswith(entry.extensions):
            return name
    return None


def _format_of(files: SourceFiles, path: str) -> str:
    """The format of a file, by its name, else by its content."""
    name = _by_name(path)
    if name is not None:
        return name
    for extension, kind in RECOGNISED.items():
        if path.lower().endswith(extension):
            detail = f"{kind}; read are {', '.join(VOLUME_EXTENSIONS)}"
            raise SourceError("read", "not a volume format that is read", detail)
    start = files.read(path)[:352]
    if start[128:132] == b"DICM":
        return "dicom"
    if start[344:348] == b"n+1\0" or start[4:8] == b"n+2\0":
        return "nifti"
    detail = f"begins with {start[:8].hex(' ') or 'nothing'}; read are {', '.join(VOLUME_EXTENSIONS)}"
    raise SourceError("read", "not a volume format that is read", detail)
