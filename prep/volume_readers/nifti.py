"""How a NIfTI-1, NIfTI-2 or Analyze volume becomes a scan or a mask.

A scan keeps the bytes of its file until it is dropped, so that it is fetched once: hold few of them at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.sources import SourceFiles
from halofeed.prep.volume.scan import Finding, Grid, Mask, Scan
from halofeed.prep.volume_readers.gzip_stream import read_start
from halofeed.prep.volume_readers.nifti_affine import read_grid
from halofeed.prep.volume_readers.nifti_header import LONGEST_HEADER, NiftiHeader, parse_header
from halofeed.prep.volume_readers.nifti_voxels import (
    Conversion,
    check_byte_count,
    plan_conversion,
    read_labels,
    read_values,
)
from halofeed.prep.volume_readers.options import ScanOptions
from halofeed.schemas.errors import SourceError

DEFAULTS = ScanOptions()


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """A header that is sound, and the bytes that hold its voxels."""

    header: NiftiHeader
    grid: Grid
    findings: tuple[Finding, ...]
    data: bytes
    files: tuple[str, ...]


def open_nifti(files: SourceFiles, path: str, options: ScanOptions = DEFAULTS) -> Scan:
    """Open a scan: .nii, .nii.gz, or either file of a pair (.hdr and .img, compressed or not).

    Whether a file is compressed, and of which kind it is, its content says, not its name. Axis i becomes width,
    j height, k depth; time, vector components and colours become channels. A NIfTI file cannot say that its
    values are Hounsfield units, so the unit is "".

    Args:
        files: where the files are.
        path: relative to them.
        options: what is allowed.

    Raises:
        SourceError: stage `read`: a file is missing; stage `decode`: it is no such file, damaged, cut off, too
            large, of a kind that is not read, or its header cannot be true. As far as the header shows it here,
            otherwise when the scan is read.
    """
    opened = _open(files, path, options)
    header = opened.header
    replacing = header.dtype.kind == "f" and options.non_finite_value is not None
    conversion = plan_conversion(header, options.non_finite_value if replacing else None)
    if replacing:
        # A correction is part of the findings, and only the voxels show whether there is one.
        values, replaced = read_values(header, opened.data, conversion)
        detail = f"{replaced} voxels set to {options.non_finite_value:g}"
        found = (Finding(name="voxels that are no number", treatment="corrected", detail=detail),)
        findings = opened.findings + found * (replaced > 0)
        volume = _arrange(header, values)
        return _scan(opened, conversion, findings, lambda: volume)
    return _scan(
        opened,
        conversion,
        opened.findings,
        lambda: _arrange(header, read_values(header, opened.data, conversion)[0]),
    )


def open_nifti_mask(files: SourceFiles, path: str, options: ScanOptions = DEFAULTS) -> Mask:
    """Open a label volume, of the same files as `open_nifti`.

    Integers and floats that hold whole numbers are accepted, rescaled where the header says so.

    Raises:
        SourceError: as `open_nifti`; or it has several channels; when read, values that are negative or not whole.
    """
    opened = _open(files, path, options)
    header = opened.header
    if header.channels > 1:
        detail = f"{header.channels} channels; a mask has one value a voxel"
        raise SourceError("decode", "mask has several channels", detail)
    findings, read = opened.findings, lambda: read_labels(header, opened.data)[0].reshape(header.shape)
    if options.non_finite_labels == "background" and header.dtype.kind == "f":
        # A correction is part of the findings, and only the voxels show whether there is one.
        labels, replaced = read_labels(header, opened.data, non_finite_is_background=True)
        detail = f"{replaced} voxels taken for the background"
        found = (Finding(name="mask voxels that are no number", treatment="corrected", detail=detail),)
        findings += found * (replaced > 0)
        read = lambda: labels.reshape(header.shape)  # noqa: E731
    return Mask(grid=opened.grid, names={}, findings=findings, files=opened.files, read=read)


def _scan(opened: _Opened, conversion: Conversion, findings: tuple[Finding, ...], read: Any) -> Scan:
    return Scan(
        grid=opened.grid,
        channels=opened.header.channels,
        dtype=conversion.dtype,
        unit="",
        modality="",
        findings=findings,
        files=opened.files,
        read=read,
    )


def _arrange(header: NiftiHeader, values: NDArray[Any]) -> NDArray[Any]:
    """The flat values as a view [depth, height, width, channel]."""
    if header.interleaved or header.channels == 1:
        return values.reshape(*header.shape, header.channels)
    return np.moveaxis(values.reshape(header.channels, *header.shape), 0, -1)


def _open(files: SourceFiles, path: str, options: ScanOptions) -> _Opened:
    stem, extension, suffix = split_name(path)
    if extension.lower() == ".img":
        header_path, header_data = _partner(files, path, stem, ".hdr", extension, suffix)
    else:
        header_path, header_data = path, files.read(path)
    header = parse_header(
        read_start(header_data, LONGEST_HEADER),
        options.max_voxels,
        may_be_analyze=extension.lower() in (".hdr", ".img"),
    )
    grid, findings = read_grid(header, options)
    image_path, data = header_path, header_data
    if header.kind != "single":
        if extension.lower() == ".img":
            image_path, data = path, files.read(path)
        else:
            image_path, data = _partner(files, path, stem, ".img", extension, suffix)
    check_byte_count(header, data)
    return _Opened(
        header=header,
        grid=grid,
        findings=findings + header.findings,
        data=data,
        files=tuple(sorted({header_path, image_path})),
    )


def split_name(path: str) -> tuple[str, str, str]:
    """A path without its extension, the extension, and ".gz" or nothing.

    >>> split_name("a/b.v2.nii.gz")
    ('a/b.v2', '.nii', '.gz')
    """
    suffix = path[-3:] if path.lower().endswith(".gz") else ""
    rest = path.removesuffix(suffix)
    folder, slash, name = rest.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    return (folder + slash + stem, dot + extension, suffix) if dot else (rest, "", suffix)


def _partner(
    files: SourceFiles, path: str, stem: str, wanted: str, extension: str, suffix: str
) -> tuple[str, bytes]:
    """The other file of a pair: its path and bytes; in capitals and compressed as the first, or not compressed so.

    Raises:
        SourceError: stage `read`: it is missing or cannot be read.
    """
    wanted = wanted.upper() if extension.isupper() else wanted
    candidates = [stem + wanted + end for end in (suffix, "" if suffix else ".gz")]
    failure: SourceError | None = None
    for candidate in candidates:
        try:
            return candidate, files.read(candidate)
        except SourceError as error:
            failure = failure or error
    kind = "voxels" if wanted.lower() == ".img" else "header"
    detail = (
        f"{' and '.join(name.rpartition('/')[2] for name in candidates)}: {failure.detail if failure else ''}"
    )
    raise SourceError("read", f"the {wanted.lower()} file with the {kind} is missing", detail) from failure
