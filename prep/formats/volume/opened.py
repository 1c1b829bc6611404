"""How a header that is sound, and the bytes that hold its voxels, become a scan or a mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.volume.options import ScanOptions
from halofeed.prep.formats.volume.stored import Content, StoredVoxels
from halofeed.prep.formats.volume.stored_voxels import (
    Conversion,
    label_bytes,
    plan_conversion,
    read_labels,
    read_values,
    reads_in_place,
    value_bytes,
)
from halofeed.prep.geometry.scan import Finding, Grid, Mask, Scan
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.memory import with_margin
from halofeed.schemas.errors import SourceError

OpenScan = Callable[[SourceFiles, str, ScanOptions], Scan]
OpenMask = Callable[[SourceFiles, str, ScanOptions], Mask]
_DEFAULTS = ScanOptions()


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A header that is sound, and the bytes that hold its voxels.

    Args:
        findings: what is odd about the file, in a fixed order.
        files: that were read, relative paths in sorted order.
    """

    stored: StoredVoxels
    grid: Grid
    findings: tuple[Finding, ...]
    content: Content
    files: tuple[str, ...]


def scan_of(opened: Opened, options: ScanOptions) -> Scan:
    """The scan of an opened file, whose unit is not known.

    Raises:
        SourceError: of floats, where voxels that are no number are to be set, since they are then read at once.
    """
    stored = opened.stored
    replacing = stored.dtype.kind == "f" and options.non_finite_value is not None
    conversion = plan_conversion(stored, options.non_finite_value if replacing else None)
    if replacing:
        options.need(with_margin(len(opened.content.data) + value_bytes(stored, conversion)))
        # A correction is part of the findings, and only the voxels show whether there is one.
        values, replaced = read_values(stored, opened.content, conversion)
        detail = f"{replaced} voxels set to {options.non_finite_value:g}"
        found = (Finding(name="voxels that are no number", treatment="corrected", detail=detail),)
        findings = opened.findings + found * (replaced > 0)
        volume = _arrange(stored, values)
        return _scan(opened, conversion, findings, lambda: volume)
    return _scan(
        opened,
        conversion,
        opened.findings,
        lambda: _arrange(stored, read_values(stored, opened.content, conversion)[0]),
    )


def mask_of(opened: Opened, options: ScanOptions) -> Mask:
    """The label volume of an opened file.

    Raises:
        SourceError: it has several channels; or as `scan_of`, where such voxels are to be the background.
    """
    stored, data = opened.stored, opened.content
    if stored.channels > 1:
        detail = f"{stored.channels} channels; a mask has one value a voxel"
        raise SourceError("decode", "mask has several channels", detail)
    findings, read = opened.findings, lambda: read_labels(stored, data)[0].reshape(stored.shape)
    read_bytes, item_bytes = label_bytes(stored)
    if options.non_finite_labels == "background" and stored.dtype.kind == "f":
        options.need(with_margin(len(data.data) + read_bytes))
        # A correction is part of the findings, and only the voxels show whether there is one.
        labels, replaced = read_labels(stored, data, non_finite_is_background=True)
        detail = f"{replaced} voxels taken for the background"
        found = (Finding(name="mask voxels that are no number", treatment="corrected", detail=detail),)
        findings += found * (replaced > 0)
        read = lambda: labels.reshape(stored.shape)  # noqa: E731
    return Mask(
        grid=opened.grid,
        names={},
        findings=findings,
        files=opened.files,
        read=read,
        held_bytes=len(data.data),
        read_bytes=read_bytes,
        value_bytes=item_bytes,
    )


def readers(
    open_file: Callable[[SourceFiles, str, ScanOptions], Opened],
) -> tuple[OpenScan, OpenMask]:
    """How a format's files are opened as a scan, and as a label volume.

    Both are called with where the files are, a path relative to that, and what is allowed. A mask may hold integers, or
    floats that are whole numbers; it is rescaled where the header says so. They raise a SourceError of stage `read`:
    a file is missing; of stage `decode`: it is no such file, damaged, cut off, too large, of a kind that is not read,
    its header cannot be true, or a mask has several channels. As far as the header shows it at once, otherwise when
    the voxels are read, as labels that are negative or not whole.

    Args:
        open_file: reads a format's header; no file of the formats says that its values are Hounsfield units, so that
            the unit of scans is "".
    """

    def open_scan(files: SourceFiles, path: str, options: ScanOptions = _DEFAULTS) -> Scan:
        return scan_of(open_file(files, path, options), options)

    def open_mask(files: SourceFiles, path: str, options: ScanOptions = _DEFAULTS) -> Mask:
        return mask_of(open_file(files, path, options), options)

    return open_scan, open_mask


def _scan(
    opened: Opened, conversion: Conversion, findings: tuple[Finding, ...], read: Callable[[], NDArray[Any]]
) -> Scan:
    in_place = reads_in_place(opened.stored, opened.content, conversion)
    return Scan(
        grid=opened.grid,
        channels=opened.stored.channels,
        dtype=conversion.dtype,
        unit="",
        modality="",
        findings=findings,
        files=opened.files,
        read=read,
        held_bytes=len(opened.content.data),
        read_bytes=0 if in_place else value_bytes(opened.stored, conversion),
    )


def _arrange(stored: StoredVoxels, values: NDArray[Any]) -> NDArray[Any]:
    """The flat values as a view [depth, height, width, channel]."""
    if stored.interleaved or stored.channels == 1:
        return values.reshape(*stored.shape, stored.channels)
    return np.moveaxis(values.reshape(stored.channels, *stored.shape), 0, -1)
