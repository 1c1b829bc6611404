"""Which DICOM files hold a mask, and who reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom.elements import Parsed, check_drawn_on, read_dataset, text, transfer_syntax
from halofeed.prep.formats.dicom.headers import EXPLICIT_BIG, SOP_CLASS
from halofeed.prep.formats.dicom.kinds import MASK_KINDS, STRUCTURE_SET, kind_of_class, name_of
from halofeed.prep.formats.dicom.rtstruct import read_structures, structure_bytes, structure_names
from halofeed.prep.formats.dicom.seg import read_segmentation, segment_names
from halofeed.prep.formats.dicom.slice_geometry import TOLERANCE
from halofeed.prep.geometry.scan import Grid, Mask, Origin
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.memory import Need, unlimited, with_margin


def open_dicom_mask(
    files: SourceFiles,
    path: str,
    image_grid: Grid | None = None,
    *,
    tolerance_voxels: float = TOLERANCE,
    keeps: Callable[[str], bool] = lambda name: True,
    need: Need = unlimited,
    scan: Origin | None = None,
) -> Mask:
    """Reads what a DICOM SEG or RTSTRUCT file says of its mask; its voxels are made by the mask's `read`.

    Args:
        path: of the file, below the root of `files`.
        image_grid: of the scan that the mask was drawn on. A segmentation whose pixels are voxels of this grid is
            put on it, whichever way either is turned; another keeps a grid of its own. Structures are always
            drawn on it.
        tolerance_voxels: how far a pixel of a segmentation may lie from the voxel that it is taken for.
        keeps: whether a segment or structure of this name is read; contours of others may lie anywhere.
        need: told how many bytes it takes to tell the file's elements apart.
        scan: that it must have been drawn on, as far as the file says; None: on any.

    Returns:
        The mask; `names` are the segments' labels or the structures' names by their numbers. Its `read` refuses voxels
        in several of them; `read_classes` does as it is told.

    Raises:
        SourceError: of stage `read` where the file is damaged or is no mask, of stage `annotation` where its mask
            cannot be put on a regular grid.
        UsageError: for structures without `image_grid`.

    References: DICOM PS3.3, A.51 Segmentation, A.86 Label Map Segmentation and A.19.3 RT Structure Set.
    """
    parsed, kind = _opened(files, path, need)
    if scan is not None:
        check_drawn_on(parsed.dataset, scan)
    if kind == STRUCTURE_SET:
        need(with_margin(structure_bytes(parsed)))
        return read_structures(path, parsed, image_grid, keeps)
    return read_segmentation(files, path, parsed, image_grid, tolerance_voxels, keeps)


def class_names(files: SourceFiles, path: str) -> Mapping[int, str]:
    """The names of all segments or structures of a file by their numbers.

    Raises:
        SourceError: as `open_dicom_mask`.
    """
    parsed, kind = _opened(files, path, unlimited)
    return (structure_names if kind == STRUCTURE_SET else segment_names)(parsed.dataset)


def _opened(files: SourceFiles, path: str, need: Need) -> tuple[Parsed, str]:
    """The file of a mask, and of which of `MASK_KINDS` it is."""
    parsed = read_dataset(files, path, need)
    sop_class = text(parsed.dataset, SOP_CLASS)
    kind = kind_of_class(sop_class)
    if kind not in MASK_KINDS:
        detail = f"it is {name_of(sop_class, 'an unknown kind of object')}"
        raise SourceError("read", "DICOM file is neither a segmentation nor a structure set", detail)
    if transfer_syntax(parsed.dataset) == EXPLICIT_BIG:
        raise SourceError("read", "mask in big-endian DICOM is not supported", "save it little-endian")
    return parsed, kind
