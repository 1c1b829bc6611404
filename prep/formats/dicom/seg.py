"""Reader of DICOM segmentations and label maps: combines the frames into one label volume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.header_fields import PixelFormat
from halofeed.prep.formats.dicom.headers import (
    Elements,
    MaskFile,
    PixelLocation,
    damaged_file,
    finite_number,
    integer,
    items,
    numbers,
)
from halofeed.prep.formats.dicom.mask_codes import segment_codes
from halofeed.prep.formats.dicom.pixels import PLUGINS, UNCOMPRESSED, FrameReader, compressed_frames
from halofeed.prep.formats.dicom.slice_geometry import (
    LPS_TO_RAS_SIGNS,
    FrameGeometry,
    Placement,
    own_grid,
    place_frames,
)
from halofeed.prep.formats.dicom.sop_classes import uid_name
from halofeed.prep.geometry.scan import Finding, Grid, MaskScan, OverlapRule, left_out_findings
from halofeed.prep.voxels.label_volumes import overlap_error
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

BITS = {"BINARY": (1, 8), "FRACTIONAL": (8,), "LABELMAP": (8, 16)}
"""Allowed bits per stored pixel by segmentation type; binary segments may also have one byte per pixel."""
CODECS = ("RLE", "JPEG-LS", "JPEG 2000")
"""Codecs of the frames that are read."""
MIN_SPACING_MM, MAX_SPACING_MM = 1e-6, 1e6
"""Outside this range, the square of a step or the volume of a voxel underflows or overflows."""
ALWAYS_ALLOWED_VOXELS, VOXELS_PER_BYTE, VOXELS_PER_IMAGE_VOXEL = 2**27, 64, 4
"""Limits on the voxels of a segmentation; the largest of the three counts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Segmentation:
    """Checked header of a segmentation.

    Args:
        kind: "BINARY", "FRACTIONAL" or "LABELMAP".
        stored: storage format of the pixels.
        threshold: smallest stored value that belongs to a segment; 1 except for fractions.
        background: stored value of a label map's background.
        names: label of each segment by its number; "" if the file gives none.
        segments: number of each frame's segment; () for a label map.
        frames: geometry of the frames.
        slice_spacing_mm: distance between slices, or None.
    """

    kind: str
    stored: PixelFormat
    threshold: int
    background: int
    names: Mapping[int, str]
    segments: tuple[int, ...]
    frames: FrameGeometry
    slice_spacing_mm: float | None

    @property
    def dtype(self) -> type[np.uint8 | np.uint16]:
        return np.uint8 if max(self.names) < 256 else np.uint16


def read_segmentation(
    path: str,
    mask: MaskFile,
    image_grid: Grid | None,
    tolerance_voxels: float,
    keeps: Callable[[str, Sequence[str]], bool],
) -> MaskScan:
    """Return a DICOM SEG or label map as a mask; see `halofeed.prep.formats.dicom.mask_files.open_dicom_mask`."""
    header = _parse_header(mask.elements)
    pixels = _check_pixel_data(mask, header)
    placement = _place(header, image_grid, tolerance_voxels, len(mask.body) - pixels.offset)
    _check_unique(header, placement)
    names = _complete_names(header.names)
    codes = segment_codes(mask.elements)
    kept = {number: name for number, name in names.items() if keeps(name, codes.get(number, ()))}
    # The file is held until the mask is freed, so that it is read once; its parsed elements are not.
    body, syntax = mask.body, mask.syntax

    def read_classes(ids: Mapping[int, int], overlap: OverlapRule) -> tuple[NDArray[Any], int]:
        frame_count = len(header.frames.origins)
        reader = FrameReader(body, pixels, syntax, header.stored, frame_count)
        frames = (reader.words(index)[0] for index in range(frame_count))
        return _labels(frames, header, placement, ids, overlap)

    return MaskScan(
        grid=placement.grid,
        names=kept,
        findings=(*_findings(mask.elements, header), *left_out_findings(names, kept)),
        files=(path,),
        read=lambda: read_classes({number: number for number in kept}, "refuse")[0],
        read_classes=read_classes,
        held_bytes=len(body),
        # The arrays of segment numbers, overlaps and ids.
        read_bytes=math.prod(placement.grid.shape) * (2 * header.dtype().itemsize + 2),
        value_bytes=2,
        codes=codes,
    )


def _findings(elements: Elements, header: _Segmentation) -> Iterator[Finding]:
    """Yield the findings about fractions that become classes, and about segments without a label."""
    if header.kind == "FRACTIONAL":
        # PS3.3 C.8.20.2.3: the fraction is a probability, or the occupied part of the voxel.
        kind = headers.text(elements, headers.FRACTION_TYPE).lower()
        meaning = f"{kind} " if kind in ("probability", "occupancy") else ""
        detail = f"{meaning}fractions of one half and more, stored as {header.threshold} and more, are inside"
        yield Finding.corrected(FindingName.FRACTIONAL_SEGMENTATION, detail)
    if unnamed := sum(not name for name in header.names.values()):
        yield Finding.noted(FindingName.SEGMENTS_WITHOUT_LABEL, f"{unnamed} called by number")


def _place(
    header: _Segmentation, image_grid: Grid | None, tolerance_voxels: float, held_bytes: int
) -> Placement:
    """Return the position of the frames on the grid of their scan, or else on a separate grid.

    Args:
        header: header of the segmentation.
        image_grid: grid of the scan; None if unknown.
        tolerance_voxels: largest distance between a pixel and its voxel on this grid.
        held_bytes: bytes of the pixels in the file.
    """
    if image_grid is not None and (on_image := place_frames(header.frames, image_grid, tolerance_voxels)):
        return on_image
    # A resampled scan may have been segmented: --mask-grid decides later whether the grid may differ.
    grid = own_grid(header.frames, header.slice_spacing_mm)
    _check_voxels(grid, image_grid, held_bytes)
    placement = place_frames(header.frames, grid)
    if placement is None:
        raise SourceError("annotation", "segmentation frames lie on no regular grid")
    return placement


def segment_names(elements: Elements) -> Mapping[int, str]:
    """Return the names of all segments by number."""
    return _complete_names(_parse_header(elements).names)


def _complete_names(names: Mapping[int, str]) -> dict[int, str]:
    """Return the names without the background, and with a default for segments without a label."""
    return {number: name or f"segment {number}" for number, name in names.items() if number}


def _parse_header(elements: Elements) -> _Segmentation:
    kind = headers.text(elements, headers.SEGMENTATION_TYPE)
    stored, frame_count = _parse_pixel_format(elements, kind)
    groups = items(elements, headers.FRAME_GROUPS)
    if len(groups) != frame_count:
        raise damaged_file(f"{plural(frame_count, 'frame')}, but {len(groups)} are described")
    names = _parse_names(elements, kind)
    shared = items(elements, headers.SHARED_GROUPS)[:1]
    frames, spacing = _frames(stored.size, groups, shared)
    segments = () if kind == "LABELMAP" else _parse_segments(groups, shared, names)
    most = integer(elements, headers.MAXIMUM_FRACTION) if kind == "FRACTIONAL" else 1
    # PS3.3 C.8.20.2: fractions have one byte, so that 255 is the largest one that a pixel can hold.
    if not 1 <= most <= 255:
        raise damaged_file(f"its largest fraction is stored as {most}")
    return _Segmentation(
        kind=kind,
        stored=stored,
        threshold=(most + 1) // 2,
        background=(headers.unsigned_bits(elements, headers.PADDING_VALUE) or 0) if kind == "LABELMAP" else 0,
        names=names,
        segments=segments,
        frames=frames,
        slice_spacing_mm=spacing,
    )


def _parse_pixel_format(elements: Elements, kind: str) -> tuple[PixelFormat, int]:
    """Return the storage format of the pixels, and the number of frames."""
    if kind not in BITS:
        raise damaged_file("its segmentation type is none of " + ", ".join(BITS))
    bits = integer(elements, headers.BITS_ALLOCATED)
    if bits not in BITS[kind] or integer(elements, headers.SAMPLES, 1) != 1:
        raise damaged_file(f"{kind} segmentation with {bits} bits per pixel")
    photometric = headers.text(elements, headers.PHOTOMETRIC)
    # PS3.3 C.8.20.2: a label map may have a palette, which is for display; its indices are the segment numbers.
    if photometric not in ("MONOCHROME2", "PALETTE COLOR"):
        raise damaged_file("its pixels are neither MONOCHROME2 nor PALETTE COLOR")
    rows, columns = integer(elements, headers.ROWS), integer(elements, headers.COLUMNS)
    frame_count = integer(elements, headers.FRAMES, 1)
    if min(rows, columns, frame_count) < 1:
        detail = f"{plural(frame_count, 'frame')} of {rows} x {columns}"
        raise SourceError("annotation", "segmentation has no pixels", detail)
    stored = PixelFormat(
        size=(rows, columns),
        samples=1,
        photometric=photometric,
        bits_allocated=bits,
        bits_stored=bits,
        high_bit=bits - 1,
        signed=False,
        padding=None,
    )
    return stored, frame_count


def _parse_names(elements: Elements, kind: str) -> dict[int, str]:
    """Return the label of each segment by its number; "" if the file gives none."""
    character_sets = headers.declared_character_sets(elements)
    described = items(elements, headers.SEGMENTS)
    names = {
        integer(item, headers.SEGMENT_NUMBER): headers.name_text(item, headers.SEGMENT_LABEL, character_sets)
        for item in described
    }
    # PS3.3 C.8.20.2.4: segment numbers are unique and begin at 1; those of a label map may be any, also 0.
    if not names or len(names) != len(described) or (kind != "LABELMAP" and 0 in names):
        raise damaged_file("its segments do not have one description each")
    return names


def _parse_segments(
    groups: Sequence[Elements], shared: Sequence[Elements], names: Mapping[int, str]
) -> tuple[int, ...]:
    """Return the number of each frame's segment; a file of one segment may state it once for all frames."""
    segments = tuple(
        integer(_group(headers.SEGMENT_GROUP, "a segment", group, *shared), headers.SEGMENT_REFERENCE)
        for group in groups
    )
    if not set(segments) <= names.keys():
        raise damaged_file("a frame belongs to a segment that is not described")
    return segments


def _group(tag: int, what: str, *groups: Elements) -> Elements:
    """Return a functional group from the first of `groups` that has it: the frame's own, then the shared ones."""
    for group in groups:
        if found := items(group, tag):
            return found[0]
    raise SourceError("annotation", f"segmentation frame lacks {what}")


def _frames(
    size: tuple[int, int], groups: Sequence[Elements], shared: Sequence[Elements]
) -> tuple[FrameGeometry, float | None]:
    """Return the geometry of all frames, and the distance between slices if the file states it."""
    origins, directions, spacings, between = _read_places(groups, shared)
    # One volume has one direction and one spacing, because its voxels are the pixels of all frames.
    if np.ptp(directions, axis=0).max() > 1e-4 or np.ptp(spacings, axis=0).max() > 1e-4 * spacings.max():
        raise SourceError("annotation", "segmentation frames lie in several directions or spacings")
    across, down = directions[0].reshape(2, 3)
    products = np.array([across @ across, down @ down, across @ down])
    is_sound = MIN_SPACING_MM <= spacings.min() <= spacings.max() <= MAX_SPACING_MM
    if not is_sound or np.abs(products - (1, 1, 0)).max() > 1e-3:
        raise damaged_file("its pixel spacing or orientation is impossible")
    # Beyond that, the precision of the steps between voxels would be lost.
    if np.abs(origins).max() > 1e6:
        raise damaged_file("its frames are more than a kilometer away")
    frames = FrameGeometry(
        size=size,
        row_step=down * LPS_TO_RAS_SIGNS * spacings[0, 0],
        column_step=across * LPS_TO_RAS_SIGNS * spacings[0, 1],
        origins=origins * LPS_TO_RAS_SIGNS,
    )
    return frames, between


def _read_places(
    groups: Sequence[Elements], shared: Sequence[Elements]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float | None]:
    """Return positions [frame, 3], directions [frame, 6], pixel spacings [frame, 2], and the spacing of slices.

    Raises:
        SourceError: a frame lacks one of the first three.
    """
    positions, directions, spacings, between = [], [], [], None
    for group in groups:
        measures = _group(headers.PIXEL_MEASURES, "a pixel spacing", group, *shared)
        orientation = _group(headers.PLANE_ORIENTATION, "an orientation in the patient", group, *shared)
        position = _group(headers.PLANE_POSITION, "a position in the patient", group, *shared)
        positions.append(numbers(position, headers.POSITION, 3))
        directions.append(numbers(orientation, headers.ORIENTATION, 6))
        spacings.append(numbers(measures, headers.PIXEL_SPACING, 2))
        between = between or _slice_spacing(measures)
    for what, values in (("position", positions), ("orientation", directions), ("pixel spacing", spacings)):
        if any(value is None for value in values):
            raise SourceError("annotation", "segmentation frame lacks its place", f"no {what} in the patient")
    origins, direction, spacing = (
        np.array(values, np.float64) for values in (positions, directions, spacings)
    )
    return origins, direction, spacing, between


def _slice_spacing(measures: Elements) -> float | None:
    """Return the distance between slices, or else their thickness; None if neither is positive.

    PS3.3 C.7.6.16.2.1: the thickness is required of a segmentation in the patient, and it may differ from the
    distance. `own_grid` tries it against the positions.
    """
    stated = (
        finite_number(measures, tag) for tag in (headers.SPACING_BETWEEN_SLICES, headers.SLICE_THICKNESS)
    )
    return next((found for found in stated if found is not None and found > 0), None)


def _check_pixel_data(mask: MaskFile, header: _Segmentation) -> PixelLocation:
    """Return the location of the pixels.

    Raises:
        SourceError: there are fewer than the header says, or they are compressed in an unknown way.
    """
    pixels, frame_count = mask.pixels, len(header.frames.origins)
    held = 0 if pixels is None else len(mask.body) - pixels.offset
    if pixels is None or pixels.kind != "integer" or held < 1:
        raise SourceError("read", "file is truncated", "it holds no pixels")
    if mask.syntax in UNCOMPRESSED:
        # PS3.5 8.1.1: frames of one bit follow each other without padding; only the last byte may have unused bits.
        rows, columns = header.frames.size
        needed = (frame_count * rows * columns * header.stored.bits_allocated + 7) // 8
        held = min(held, pixels.length or 0)
        if held < needed:
            detail = f"{plural(held, 'byte')} of pixels, expected {needed}"
            raise SourceError("read", "file is truncated", detail)
    elif mask.syntax not in PLUGINS or PLUGINS[mask.syntax][0] not in CODECS:
        known = uid_name(mask.syntax, "an unknown one")
        raise SourceError("decode", "DICOM compression is not supported for masks", known)
    else:
        compressed_frames(mask.body, pixels.offset, frame_count)
    return pixels


def _check_voxels(grid: Grid, image_grid: Grid | None, held_bytes: int) -> None:
    """Refuse a grid with far more voxels than the file or the scan holds."""
    voxels = math.prod(grid.shape)
    of_image = 0 if image_grid is None else math.prod(image_grid.shape)
    allowed = max(ALWAYS_ALLOWED_VOXELS, VOXELS_PER_BYTE * held_bytes, VOXELS_PER_IMAGE_VOXEL * of_image)
    if voxels > allowed:
        shape = " x ".join(map(str, grid.shape))
        detail = f"{shape} voxels for {plural(held_bytes, 'byte')} of pixels, at most {allowed}"
        raise SourceError("annotation", "segmentation spans too many voxels", detail)


def _check_unique(header: _Segmentation, placement: Placement) -> None:
    # Two frames of a segment at one place would be merged or lost, depending on their order.
    segments = header.segments or (0,) * len(placement.starts)
    places = {
        (segment, placement.slice_of(frame))
        if header.kind == "LABELMAP"
        else (segment, *placement.starts[frame])
        for frame, segment in enumerate(segments)
    }
    if len(places) != len(segments):
        detail = f"{len(segments) - len(places)} of {plural(len(segments), 'frame')}"
        raise SourceError("annotation", "segmentation has several frames of one segment at one place", detail)


def _labels(
    frames: Iterable[NDArray[Any]],
    header: _Segmentation,
    placement: Placement,
    ids: Mapping[int, int],
    overlap: OverlapRule,
) -> tuple[NDArray[Any], int]:
    """Return the label volume, and the number of voxels in segments with different ids.

    Args:
        frames: stored values [row, column] of each frame.
        header: its header.
        placement: position of the frames on the grid.
        ids: id of each segment by its number; other segments are ignored.
        overlap: treatment of voxels in several segments.
    """
    table = np.zeros(np.iinfo(header.dtype).max + 1, np.min_scalar_type(max(ids.values(), default=0)))
    for number, identity in ids.items():
        table[number] = identity
    # A pixel of a label map is in one segment, so that its segments cannot overlap.
    if header.kind == "LABELMAP":
        numbers = np.zeros(placement.grid.shape, header.dtype)
        for frame, pixels in enumerate(frames):
            placement.view(numbers, frame)[...] = _known_labels(pixels, header)
        return _ids_of_numbers(numbers, header, table, ids), 0
    inside = _inside_segments(frames, header, ids)
    if overlap == "channels":
        sets = np.zeros(placement.grid.shape, table.dtype)
        for frame, within in inside:
            placement.view(sets, frame)[within] |= table[header.segments[frame]]
        return sets, 0
    numbers, shared = _number_voxels(inside, header, placement, table, overlap)
    return _ids_of_numbers(numbers, header, table, ids), shared


def _inside_segments(
    frames: Iterable[NDArray[Any]], header: _Segmentation, ids: Mapping[int, int]
) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield the number of each frame of a segment with an id, and the pixels [row, column] inside the segment."""
    for frame, pixels in enumerate(frames):
        # A byte of 255 instead of 1 may be a fraction under another name, so that no value is guessed.
        if header.kind == "BINARY" and header.stored.bits_allocated == 8 and pixels.max(initial=0) > 1:
            raise SourceError("decode", "binary segmentation holds other values than 0 and 1")
        if header.segments[frame] in ids:
            yield frame, pixels >= header.threshold


def _number_voxels(
    frames: Iterable[tuple[int, NDArray[np.bool_]]],
    header: _Segmentation,
    placement: Placement,
    table: NDArray[Any],
    overlap: OverlapRule,
) -> tuple[NDArray[Any], int]:
    """Return the number of the segment of each voxel, and the number of voxels in segments with different ids.

    Args:
        frames: number of each frame, and the pixels inside its segment.
        header: header of the segmentation.
        placement: position of the frames on the grid.
        table: id of each segment by its number.
        overlap: segment that gets a voxel of several; "refuse" raises SourceError if there are such voxels.
    """
    numbers = np.zeros(placement.grid.shape, header.dtype)
    shared_voxels: NDArray[np.bool_] | None = None
    overlapping: set[int] = set()
    for frame, inside in frames:
        view, segment = placement.view(numbers, frame), header.segments[frame]
        occupied = inside & (view != 0)
        if occupied.any():
            # Segments of one class may share voxels, so that numbers decide who gets these, and ids who conflicts.
            inside &= (view == 0) | (view > segment) if overlap == "first" else view < segment
            occupied &= table[view] != table[segment]
        if occupied.any():
            if shared_voxels is None:
                shared_voxels = np.zeros(numbers.shape, np.bool_)
            placement.view(shared_voxels, frame)[occupied] = True
            overlapping |= {segment, *np.unique(view[occupied]).tolist()}
        np.copyto(view, segment, where=inside)
    shared = 0 if shared_voxels is None else int(np.count_nonzero(shared_voxels))
    if shared and overlap == "refuse":
        raise overlap_error("segments", overlapping, shared)
    return numbers, shared


def _ids_of_numbers(
    numbers: NDArray[Any], header: _Segmentation, table: NDArray[Any], ids: Mapping[int, int]
) -> NDArray[Any]:
    """Return the id of each voxel's segment; `numbers` itself if all ids are the segments' numbers."""
    if table.dtype == numbers.dtype and all(ids.get(number) == number for number in header.names):
        return numbers
    # Slice by slice, because indexing makes an array of 8-byte indices first.
    labels = np.empty(numbers.shape, table.dtype)
    for target, plane in zip(labels, numbers, strict=True):
        target[...] = table[plane]
    return labels


def _known_labels(pixels: NDArray[Any], header: _Segmentation) -> NDArray[Any]:
    values = np.unique(pixels)
    # PS3.3 C.8.20.2.4: the Pixel Padding Value of a label map marks its background. Without one, 0 is taken for it.
    unknown = set(values.tolist()) - header.names.keys() - {0, header.background}
    if unknown:
        listed = ", ".join(map(str, sorted(unknown)[:10]))
        raise SourceError("annotation", "label map holds values that are no segments", f"values {listed}")
    if header.background:
        return np.where(pixels == header.background, 0, pixels)
    return pixels
