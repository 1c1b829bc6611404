"""Reader of DICOM masks: segmentations, label maps, RT structure sets, and series whose slices are labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.header_fields import referenced_images, referenced_series, uid_digest
from halofeed.prep.formats.dicom.headers import (
    HEAD_BYTES,
    MASK_VRS,
    DicomHeader,
    Elements,
    items,
    parse_file_header,
    raw_value,
    read_dicom_start,
    read_mask_file,
)
from halofeed.prep.formats.dicom.mask_codes import segment_codes
from halofeed.prep.formats.dicom.rtstruct import (
    coded_structures,
    read_structures,
    structure_bytes,
    structure_names,
)
from halofeed.prep.formats.dicom.seg import read_segmentation, segment_names
from halofeed.prep.formats.dicom.series import open_series
from halofeed.prep.formats.dicom.slice_geometry import TOLERANCE
from halofeed.prep.formats.dicom.sop_classes import MASK_KINDS, STRUCTURE_SET, sop_class_kind, uid_name
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.formats.volume.voxel_values import LABELS
from halofeed.prep.geometry.scan import Grid, MaskScan, ScanIdentity
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory, no_memory_limit
from halofeed.system.wording import plural

WRONG_SCAN = "label was drawn on another scan"
_WRONG_SCAN_FIX = (
    "pair it with the scan that it was drawn on, which --layout dicom finds, or use --mask-references ignore"
)


def open_dicom_mask(
    files: SourceFiles,
    path: str,
    image_grid: Grid | None = None,
    *,
    tolerance_voxels: float = TOLERANCE,
    keeps: Callable[[str, Sequence[str]], bool] = lambda name, codes: True,
    reserve: ReserveMemory = no_memory_limit,
    scan: ScanIdentity | None = None,
) -> MaskScan:
    """Open a DICOM SEG or RTSTRUCT file; the mask's `read` makes the voxels later.

    Args:
        files: the source that holds the file.
        path: path of the file, relative to the root of `files`.
        image_grid: grid of the scan that the mask was drawn on. Structures are drawn on it. A segmentation whose
            pixels match its voxels, in any orientation, is put on it; another segmentation keeps its own grid.
        tolerance_voxels: largest distance between a pixel of a segmentation and its voxel, in voxels.
        keeps: function that tells by name and codes whether a segment or structure is read. Contours of others are not
            checked.
        reserve: called with the number of bytes that parsing takes.
        scan: identity of the scan to which the mask must refer; None allows any scan.

    Returns:
        The mask; `names` are the segments' labels or the structures' names by number. Its `read` refuses voxels in
        several classes; `read_classes` has an option for them.

    Raises:
        SourceError: the file is damaged or not a mask (stage `read`), or its mask refers to another scan or fits no
            regular grid (stage `annotation`).
        UsageError: `image_grid` is missing for structures.

    References: DICOM PS3.3, A.51 Segmentation (with label maps since Supplement 243) and A.19.3 RT Structure Set.
    """
    mask = read_mask_file(files, path, reserve)
    kind = _mask_kind(mask)
    if scan is not None:
        _check_references(mask.elements, scan)
    if kind == STRUCTURE_SET:
        reserve(structure_bytes(mask))
        return read_structures(path, mask.elements, image_grid, keeps)
    return read_segmentation(path, mask, image_grid, tolerance_voxels, keeps)


def open_label_series(files: SourceFiles, members: Iterable[str], policy: SeriesPolicy) -> MaskScan:
    """Open a DICOM series whose slices are labels: each stored value is a class, and 0 is the background.

    Raises:
        SourceError: the files are not one series of slices, see `open_series`; or they are compressed with loss.
    """
    scan = open_series(files, members, policy, labels=True)

    def read() -> NDArray[Any]:
        voxels = scan.read()[..., 0]
        if voxels.dtype.kind == "f":
            raise SourceError("decode", "label slices hold no integers of up to 31 bits", scan.files[0])
        if voxels.min() < 0:
            raise SourceError("decode", "label has negative values", f"{voxels.min()} in {scan.files[0]}")
        return voxels.astype(next(name for name in LABELS if voxels.max() <= np.iinfo(name).max), copy=False)

    return MaskScan(
        grid=scan.grid,
        names={},
        # Labels keep no rescale (`_label_slice`), so that every series of labels of modality CT has this one.
        findings=tuple(one for one in scan.findings if one.name is not FindingName.NO_RESCALE_SLOPE),
        files=scan.files,
        read=read,
        read_bytes=scan.read_bytes + 4 * math.prod(scan.grid.shape),
    )


def class_names(files: SourceFiles, path: str) -> Mapping[int, str]:
    """Return the names of all segments or structures of a file by number; this reads no pixels of segments.

    Raises:
        SourceError: see `open_dicom_mask`.
    """
    # PS3.5 7.1: elements are in the order of their tags, so that segments come before the pixels.
    start = read_dicom_start(files, path, HEAD_BYTES)
    header, _ = parse_file_header(files, path, start, MASK_VRS)
    names = structure_names if _mask_kind(header) == STRUCTURE_SET else segment_names
    return names(header.elements)


def class_codes(files: SourceFiles, path: str) -> Mapping[int, tuple[str, ...]]:
    """Return the codes of all segments or structures of a file that have some, by number; this reads the whole file.

    Raises:
        SourceError: see `open_dicom_mask`.
    """
    # The codes of structures come after their contours, in the order of tags.
    mask = read_mask_file(files, path)
    codes = coded_structures if _mask_kind(mask) == STRUCTURE_SET else segment_codes
    return codes(mask.elements)


def _mask_kind(header: DicomHeader) -> str:
    """Return the kind of a mask, one of `MASK_KINDS`; raise SourceError for another object."""
    sop_class = headers.text(header.elements, headers.SOP_CLASS)
    kind = sop_class_kind(sop_class)
    if kind not in MASK_KINDS:
        detail = f"it is {uid_name(sop_class, 'an unknown kind of object')}"
        raise SourceError("read", "DICOM file is neither a segmentation nor a structure set", detail)
    # A retired transfer syntax (PS3.5 A.3). No file was found that shows the order of one-bit pixels in its words.
    if header.syntax == headers.EXPLICIT_BIG:
        raise SourceError("read", "mask in big-endian DICOM is not supported", "save it little-endian")
    return kind


def _check_references(elements: Elements, scan: ScanIdentity) -> None:
    """Refuse a mask that refers to another scan.

    The most exact statement counts: images, then series, then frame of reference. Archives that replace UIDs may leave
    out any of them, so that one which the mask or the scan lacks proves nothing.

    Raises:
        SourceError: the mask names images, a series or a frame of reference that the scan does not have.
    """
    series = referenced_series(elements)
    images = _digests(_image_uids(elements, series))
    if images and scan.images:
        if images.isdisjoint(scan.images):
            named = plural(len(images), "image")
            detail = f"none of the {named} that it names (ReferencedSOPInstanceUID) is the scan's"
            raise _wrong_scan(detail)
        return
    named_series = _digests(raw_value(item, headers.SERIES_UID) for item in series)
    if _contradict(named_series, scan.series):
        raise _wrong_scan("the series that it names (SeriesInstanceUID) is not the scan's")
    # Two series of a study share a frame of reference, so that the series decides where the mask names one.
    if not named_series and _contradict(_digests(_frame_uids(elements)), scan.frames):
        raise _wrong_scan("its frame of reference (FrameOfReferenceUID) is not the scan's")


def _digests(uids: Iterable[bytes]) -> set[bytes]:
    """Return the digests of UIDs, without that of an empty one."""
    return set(map(uid_digest, uids)) - {b""}


def _contradict(named: Set[bytes], own: Set[bytes]) -> bool:
    """Return whether both the mask and the scan state UIDs, and none of them is the same."""
    return bool(named and own) and named.isdisjoint(own)


def _wrong_scan(detail: str) -> SourceError:
    return SourceError("annotation", WRONG_SCAN, f"{detail}; {_WRONG_SCAN_FIX}")


def _image_uids(elements: Elements, series: Iterable[Elements]) -> set[bytes]:
    """Return the UIDs of the images that the file names: with the series, else in its frames or contours."""
    uids = set(referenced_images(series))
    if uids:
        return uids
    # Without the series, the images are named at each frame (PS3.3 C.7.6.16.2.6) or contour (C.8.8.6).
    groups = [*items(elements, headers.SHARED_GROUPS), *items(elements, headers.FRAME_GROUPS)]
    derivations = [item for group in (elements, *groups) for item in items(group, headers.DERIVATIONS)]
    uids.update(referenced_images((elements, *derivations), headers.SOURCE_IMAGES))
    for structure in items(elements, headers.STRUCTURE_CONTOURS):
        uids.update(referenced_images(items(structure, headers.CONTOURS), headers.CONTOUR_IMAGES))
    return uids


def _frame_uids(elements: Elements) -> Iterator[bytes]:
    """Yield the UIDs of the frames of reference that the file names."""
    yield raw_value(elements, headers.FRAME_OF_REFERENCE)
    for frame in items(elements, headers.RT_FRAMES):
        yield raw_value(frame, headers.FRAME_OF_REFERENCE)
    for structure in items(elements, headers.STRUCTURES):
        yield raw_value(structure, headers.FRAME_OF_STRUCTURE)
