"""Which DICOM files hold a mask, and who reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from halofeed.prep.formats.dicom.elements import SOP_CLASS, Parsed, read_dataset, text, transfer_syntax
from halofeed.prep.formats.dicom.frames import TOLERANCE
from halofeed.prep.formats.dicom.kinds import name_of
from halofeed.prep.formats.dicom.rtstruct import read_structures, structure_bytes, structure_names
from halofeed.prep.formats.dicom.seg import read_segmentation, segment_names
from halofeed.prep.geometry.scan import Grid, Mask
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.memory import Need, unlimited, with_margin
from halofeed.schemas.errors import SourceError, UsageError

READERS = {
    "1.2.840.10008.5.1.4.1.1.66.4": read_segmentation,
    "1.2.840.10008.5.1.4.1.1.66.7": read_segmentation,  # label map segmentation
    "1.2.840.10008.5.1.4.1.1.481.3": read_structures,
}
"""By SOP class."""
BIG_ENDIAN = "1.2.840.10008.1.2.2"


def open_dicom_mask(
    files: SourceFiles,
    path: str,
    image_grid: Grid | None = None,
    *,
    overlap: Literal["refuse", "last"] = "refuse",
    tolerance_voxels: float = TOLERANCE,
    keeps: Callable[[str], bool] = lambda name: True,
    need: Need = unlimited,
) -> Mask:
    """Reads what a DICOM SEG or RTSTRUCT file says of its mask; its voxels are made by the mask's `read`.

    Args:
        path: of the file, below the root of `files`.
        image_grid: of the scan that the mask was drawn on. A segmentation whose pixels are voxels of this grid is
            put on it, whichever way either is turned; another keeps a grid of its own. Structures are always
            drawn on it.
        overlap: what becomes of voxels in several segments or structures: "refuse": `read` raises; "last": the
            highest number wins. The mask's `read_classes` is determined again.
        tolerance_voxels: how far a pixel of a segmentation may lie from the voxel that it is taken for.
        keeps: whether a segment or structure of this name is read; contours of others may lie anywhere.
        need: told how many bytes it takes to tell the file's elements apart.

    Returns:
        The mask; `names` are the segments' labels or the structures' names by their numbers.

    Raises:
        SourceError: of stage `read` where the file is damaged or is no mask, of stage `annotation` where its mask
            cannot be put on a regular grid.
        UsageError: for structures without `image_grid`.

    References: DICOM PS3.3, A.51 Segmentation, A.86 Label Map Segmentation and A.19.3 RT Structure Set.
    """
    if overlap not in ("refuse", "last"):
        raise UsageError(f"overlap={overlap!r}: expected 'refuse' or 'last'")
    parsed, reader = _opened(files, path, need)
    return reader(files, path, parsed, image_grid, overlap, tolerance_voxels, keeps)


def class_names(files: SourceFiles, path: str) -> Mapping[int, str]:
    """The names of all segments or structures of a file by their numbers.

    Raises:
        SourceError: as `open_dicom_mask`.
    """
    parsed, reader = _opened(files, path)
    names = structure_names if reader is read_structures else segment_names
    return names(parsed.dataset)


def _opened(files: SourceFiles, path: str, need: Need = unlimited) -> tuple[Parsed, Callable[..., Mask]]:
    parsed = read_dataset(files, path, need)
    sop_class = text(parsed.dataset, SOP_CLASS)
    if sop_class not in READERS:
        known = name_of(sop_class, "an unknown kind of object")
        raise SourceError(
            "read", "DICOM file is neither a segmentation nor a structure set", f"it is {known}"
        )
    if transfer_syntax(parsed.dataset) == BIG_ENDIAN:
        raise SourceError("read", "mask in big-endian DICOM is not supported", "save it little-endian")
    reader = READERS[sop_class]
    if reader is read_structures:
        need(with_margin(structure_bytes(parsed)))
    return parsed, reader
