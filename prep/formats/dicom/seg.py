"""Reader of DICOM segmentations and label maps: combines the frames into one label volume."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.encaps import generate_frames
from pydicom.pixels.decoders.base import get_decoder

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.elements import (
    ParsedFile,
    code_text,
    decimal_integer,
    decimals,
    declared_character_sets,
    element_bytes,
    left_out_findings,
    overlap_error,
    read_dataset,
    segment_name,
    sequence_items,
    silence_pydicom,
    transfer_syntax,
    unsigned_short,
)
from halofeed.prep.formats.dicom.headers import damaged_file
from halofeed.prep.formats.dicom.kinds import uid_name
from halofeed.prep.formats.dicom.pixels import (
    PLUGINS,
    RUN_LENGTHS,
    START_OF_FRAME,
    UNCOMPRESSED,
    decode_rle,
)
from halofeed.prep.formats.dicom.slice_geometry import (
    LPS_TO_RAS_SIGNS,
    FrameGeometry,
    Placement,
    own_grid,
    place_frames,
)
from halofeed.prep.geometry.scan import Finding, Grid, MaskScan, OverlapRule
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.findings import FindingName
from halofeed.system.wording import plural

TYPE, MAXIMUM_FRACTION, FRACTION_TYPE, PIXEL_DATA = 0x00620001, 0x0062000E, 0x00620010, 0x7FE00010
SEGMENTS, SEGMENT_NUMBER, SEGMENT_LABEL = 0x00620002, 0x00620004, 0x00620005
SEGMENT_GROUP, SEGMENT_REFERENCE = 0x0062000A, 0x0062000B
BITS = {"BINARY": (1, 8), "FRACTIONAL": (8,), "LABELMAP": (8, 16)}
"""Allowed bits per stored pixel by segmentation type; some writers store binary segments with one byte per pixel."""
DECODERS = {
    syntax: plugin for syntax, (codec, plugin) in PLUGINS.items() if codec in ("RLE", "JPEG-LS", "JPEG 2000")
}
"""pydicom's plug-in by transfer syntax. Without a choice, pydicom tries GDCM, which may abort on damaged frames."""
MIN_SPACING_MM, MAX_SPACING_MM = 1e-6, 1e6
"""Outside this range, the square of a step or the volume of a voxel underflows or overflows."""
ALWAYS_ALLOWED_VOXELS, VOXELS_PER_BYTE, VOXELS_PER_IMAGE_VOXEL = 2**27, 64, 4
"""Limits on the voxels of a segmentation; the largest of the three counts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Segmentation:
    """Checked header of a segmentation.

    Args:
        kind: "BINARY", "FRACTIONAL" or "LABELMAP".
        bits: bits per stored pixel.
        threshold: smallest stored value that belongs to a segment; 1 except for fractions.
        background: stored value of a label map's background.
        names: label of each segment by its number; "" if the file gives none.
        segments: number of each frame's segment; () for a label map.
        frames: geometry of the frames.
        slice_spacing_mm: distance between slices, or None.
    """

    kind: str
    bits: int
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
    files: SourceFiles,
    path: str,
    parsed: ParsedFile,
    image_grid: Grid | None,
    tolerance_voxels: float,
    keeps: Callable[[str], bool],
) -> MaskScan:
    """Return a DICOM SEG or label map as a mask; see `halofeed.prep.formats.dicom.masks.open_dicom_mask`."""
    dataset = parsed.dataset
    header = _parse_header(dataset)
    _check_pixel_data(dataset, header)
    findings = []
    if header.kind == "FRACTIONAL":
        kind = code_text(dataset, FRACTION_TYPE).lower()
        meaning = f"{kind} " if kind in ("probability", "occupancy") else ""
        detail = f"{meaning}fractions of one half and more, stored as {header.threshold} and more, are inside"
        findings.append(Finding.corrected(FindingName.FRACTIONAL_SEGMENTATION, detail))
    if unnamed := sum(not name for name in header.names.values()):
        findings.append(Finding.noted(FindingName.SEGMENTS_WITHOUT_LABEL, f"{unnamed} called by number"))
    placement = None if image_grid is None else place_frames(header.frames, image_grid, tolerance_voxels)
    if placement is None:
        grid = own_grid(header.frames, header.slice_spacing_mm)
        _check_voxels(grid, image_grid, len(element_bytes(dataset, PIXEL_DATA)))
        placement = place_frames(header.frames, grid)
    if placement is None:
        raise SourceError("annotation", "segmentation frames lie on no regular grid")
    _check_unique(header, placement)
    names = _complete_names(header.names)
    kept = {number: name for number, name in names.items() if keeps(name)}
    findings += left_out_findings(names, kept)

    def read_classes(ids: Mapping[int, int], overlap: OverlapRule) -> tuple[NDArray[Any], int]:
        return _labels(read_dataset(files, path).dataset, header, placement, ids, overlap)

    return MaskScan(
        grid=placement.grid,
        names=kept,
        findings=tuple(findings),
        files=(path,),
        read=lambda: read_classes({number: number for number in kept}, "refuse")[0],
        read_classes=read_classes,
        # The parsed file; and the arrays of segment numbers, overlaps and ids.
        read_bytes=parsed.parsed_bytes + math.prod(placement.grid.shape) * (2 * header.dtype().itemsize + 2),
        value_bytes=2,
    )


def segment_names(dataset: Dataset) -> Mapping[int, str]:
    """Return the names of all segments by number."""
    return _complete_names(_parse_header(dataset).names)


def _complete_names(names: Mapping[int, str]) -> dict[int, str]:
    """Return the names without the background, and with a default for segments without a label."""
    return {number: name or f"segment {number}" for number, name in names.items() if number}


def _parse_header(dataset: Dataset) -> _Segmentation:
    kind = code_text(dataset, TYPE)
    if kind not in BITS:
        raise damaged_file("its segmentation type is none of " + ", ".join(BITS))
    bits = unsigned_short(dataset, headers.BITS_ALLOCATED)
    if bits not in BITS[kind] or unsigned_short(dataset, headers.SAMPLES, 1) != 1:
        raise damaged_file(f"{kind} segmentation with {bits} bits per pixel")
    if code_text(dataset, headers.PHOTOMETRIC) not in ("MONOCHROME2", "PALETTE COLOR"):
        raise damaged_file("its pixels are neither MONOCHROME2 nor PALETTE COLOR")
    rows, columns = unsigned_short(dataset, headers.ROWS), unsigned_short(dataset, headers.COLUMNS)
    frame_count = decimal_integer(dataset, headers.FRAMES, 1)
    groups = sequence_items(dataset, headers.FRAME_GROUPS)
    if rows < 1 or columns < 1 or frame_count < 1:
        detail = f"{plural(frame_count, 'frame')} of {rows} x {columns}"
        raise SourceError("annotation", "segmentation has no pixels", detail)
    if len(groups) != frame_count:
        raise damaged_file(f"{plural(frame_count, 'frame')}, but {len(groups)} are described")
    character_set = declared_character_sets(dataset)
    described = sequence_items(dataset, SEGMENTS)
    names = {
        unsigned_short(item, SEGMENT_NUMBER): segment_name(item, SEGMENT_LABEL, character_set)
        for item in described
    }
    if not names or len(names) != len(described) or (kind != "LABELMAP" and 0 in names):
        raise damaged_file("its segments do not have one description each")
    shared = sequence_items(dataset, headers.SHARED_GROUPS)
    frames, spacing = _frames((rows, columns), groups, shared[0] if shared else Dataset())
    segments: tuple[int, ...] = ()
    if kind != "LABELMAP":
        segments = tuple(
            unsigned_short(_group(SEGMENT_GROUP, "a segment", group, *shared[:1]), SEGMENT_REFERENCE)
            for group in groups
        )
        if not set(segments) <= names.keys():
            raise damaged_file("a frame belongs to a segment that is not described")
    most = unsigned_short(dataset, MAXIMUM_FRACTION) if kind == "FRACTIONAL" else 1
    if not 1 <= most <= 255:
        raise damaged_file(f"its largest fraction is stored as {most}")
    return _Segmentation(
        kind=kind,
        bits=bits,
        threshold=(most + 1) // 2,
        background=unsigned_short(dataset, headers.PADDING_VALUE, 0) if kind == "LABELMAP" else 0,
        names=names,
        segments=segments,
        frames=frames,
        slice_spacing_mm=spacing,
    )


def _group(tag: int, what: str, *groups: Dataset) -> Dataset:
    """Return a functional group from the first of `groups` that has it: the frame's own, then the shared ones."""
    for group in groups:
        if found := sequence_items(group, tag):
            return found[0]
    raise SourceError("annotation", f"segmentation frame lacks {what}")


def _frames(size: tuple[int, int], groups: Any, shared: Dataset) -> tuple[FrameGeometry, float | None]:
    """Return the geometry of all frames, and the distance between slices if the file states it."""
    positions, directions, spacings, between = [], [], [], None
    for group in groups:
        measures = _group(headers.PIXEL_MEASURES, "a pixel spacing", group, shared)
        orientation = _group(headers.PLANE_ORIENTATION, "an orientation in the patient", group, shared)
        position = _group(headers.PLANE_POSITION, "a position in the patient", group, shared)
        positions.append(decimals(position, headers.POSITION, 3))
        directions.append(decimals(orientation, headers.ORIENTATION, 6))
        spacings.append(decimals(measures, headers.PIXEL_SPACING, 2))
        for tag in (headers.SPACING_BETWEEN_SLICES, headers.SLICE_THICKNESS):
            if between is None and (found := decimals(measures, tag, 1)) is not None and found[0] > 0:
                between = float(found[0])
    for what, values in (("position", positions), ("orientation", directions), ("pixel spacing", spacings)):
        if any(value is None for value in values):
            raise SourceError("annotation", "segmentation frame lacks its place", f"no {what} in the patient")
    origins, direction, spacing = (
        np.array(values, np.float64) for values in (positions, directions, spacings)
    )
    if np.ptp(direction, axis=0).max() > 1e-4 or np.ptp(spacing, axis=0).max() > 1e-4 * spacing.max():
        raise SourceError("annotation", "segmentation frames lie in several directions or spacings")
    across, down = direction[0].reshape(2, 3)
    if (
        spacing.min() < MIN_SPACING_MM
        or spacing.max() > MAX_SPACING_MM
        or np.abs(np.array([across @ across, down @ down, across @ down]) - (1, 1, 0)).max() > 1e-3
    ):
        raise damaged_file("its pixel spacing or orientation is impossible")
    if np.abs(origins).max() > 1e6:
        raise damaged_file("its frames are more than a kilometer away")
    frames = FrameGeometry(
        size=size,
        row_step=down * LPS_TO_RAS_SIGNS * spacing[0, 0],
        column_step=across * LPS_TO_RAS_SIGNS * spacing[0, 1],
        origins=origins * LPS_TO_RAS_SIGNS,
    )
    return frames, between


def _check_pixel_data(dataset: Dataset, header: _Segmentation) -> None:
    held = len(element_bytes(dataset, PIXEL_DATA))
    rows, columns = header.frames.size
    frame_count = len(header.frames.origins)
    if not held:
        raise SourceError("read", "file is truncated", "it holds no pixels")
    if transfer_syntax(dataset) in UNCOMPRESSED:
        needed = (frame_count * rows * columns * header.bits + 7) // 8
        if held < needed:
            raise SourceError(
                "read", "file is truncated", f"{plural(held, 'byte')} of pixels, expected {needed}"
            )


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
    dataset: Dataset,
    header: _Segmentation,
    placement: Placement,
    ids: Mapping[int, int],
    overlap: OverlapRule,
) -> tuple[NDArray[Any], int]:
    """Return the label volume, and the number of voxels in segments with different ids.

    Args:
        dataset: the file.
        header: its header.
        placement: position of the frames on the grid.
        ids: id of each segment by its number; other segments are ignored.
        overlap: treatment of voxels in several segments.
    """
    numbers = np.zeros(placement.grid.shape, header.dtype)
    table = np.zeros(np.iinfo(header.dtype).max + 1, np.min_scalar_type(max(ids.values(), default=0)))
    for number, identity in ids.items():
        table[number] = identity
    sets = np.zeros(numbers.shape, table.dtype) if overlap == "channels" else None
    shared_voxels: NDArray[np.bool_] | None = None
    overlapping: set[int] = set()
    for frame, pixels in enumerate(_stored_frames(dataset, header)):
        view = placement.view(numbers, frame)
        if header.kind == "LABELMAP":
            view[...] = _known_labels(pixels, header)
            continue
        if header.kind == "BINARY" and header.bits == 8 and pixels.max(initial=0) > 1:
            raise SourceError("decode", "binary segmentation holds other values than 0 and 1")
        segment = header.segments[frame]
        if segment not in ids:
            continue
        inside = pixels >= header.threshold
        if sets is not None:
            placement.view(sets, frame)[inside] |= table[segment]
            continue
        occupied = inside & (view != 0)
        if occupied.any():
            inside &= (view == 0) | (view > segment) if overlap == "first" else view < segment
            occupied &= table[view] != table[segment]
        if occupied.any():
            if shared_voxels is None:
                shared_voxels = np.zeros(numbers.shape, np.bool_)
            placement.view(shared_voxels, frame)[occupied] = True
            overlapping |= {segment, *np.unique(view[occupied]).tolist()}
        np.copyto(view, segment, where=inside)
    if sets is not None and header.kind != "LABELMAP":
        return sets, 0
    shared = 0 if shared_voxels is None else int(np.count_nonzero(shared_voxels))
    if shared and overlap == "refuse":
        raise overlap_error("segments", overlapping, shared)
    if table.dtype == numbers.dtype and all(ids.get(number) == number for number in header.names):
        return numbers, shared
    labels = np.empty(numbers.shape, table.dtype)
    for target, plane in zip(labels, numbers, strict=True):
        target[...] = table[plane]
    return labels, shared


def _known_labels(pixels: NDArray[Any], header: _Segmentation) -> NDArray[Any]:
    values = np.unique(pixels)
    unknown = set(values.tolist()) - header.names.keys() - {0, header.background}
    if unknown:
        listed = ", ".join(map(str, sorted(unknown)[:10]))
        raise SourceError("annotation", "label map holds values that are no segments", f"values {listed}")
    if header.background:
        return np.where(pixels == header.background, 0, pixels)
    return pixels


def _stored_frames(dataset: Dataset, header: _Segmentation) -> Iterator[NDArray[Any]]:
    """Yield the stored values [row, column] of each frame, in the file's order."""
    size, frame_count = header.frames.size, len(header.frames.origins)
    if transfer_syntax(dataset) not in UNCOMPRESSED:
        yield from _decoded_frames(dataset, size, frame_count, header.bits)
        return
    data = np.frombuffer(element_bytes(dataset, PIXEL_DATA), np.uint8)
    pixels = size[0] * size[1]
    for start in range(0, frame_count * pixels, pixels):
        if header.bits == 1:  # frames are not padded to bytes, so a frame may begin within a byte
            first, end = start // 8, (start + pixels + 7) // 8
            values = np.unpackbits(data[first:end], bitorder="little")[start % 8 : start % 8 + pixels]
        else:
            width = header.bits // 8
            values = data[start * width : (start + pixels) * width].view(f"<u{width}")
        yield values.reshape(size)


def _decoded_frames(
    dataset: Dataset, size: tuple[int, int], frame_count: int, bits: int
) -> Iterator[NDArray[Any]]:
    syntax = transfer_syntax(dataset)
    if syntax not in DECODERS:
        known = uid_name(syntax, "an unknown one")
        raise SourceError("decode", "DICOM compression is not supported for masks", known)
    found = 0
    try:
        for encoded in _encoded_frames(dataset, frame_count):
            claimed = _claimed_size(encoded)
            if claimed not in (None, (*size, 1)):
                detail = f"{claimed}, expected {(*size, 1)} (rows, columns, components)"
                reason = "compressed frame is of another size than its header says"
                raise SourceError("decode", reason, detail)
        decoded: Iterator[NDArray[Any]]
        if syntax == RUN_LENGTHS and bits >= 8:
            decoded = (
                decode_rle(encoded, bits // 8, size) for encoded in _encoded_frames(dataset, frame_count)
            )
        else:
            plugged = get_decoder(syntax).iter_array(dataset, raw=True, decoding_plugin=DECODERS[syntax])
            decoded = (pixels for pixels, _ in plugged)
        while True:
            with silence_pydicom():
                pixels = next(decoded, None)
            if pixels is None:
                break
            found += 1
            if found > frame_count or pixels.shape != size:
                raise SourceError("decode", "compressed pixels do not fit their header", f"frame {found}")
            yield pixels
    except (SourceError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException:
        # The plug-ins may raise any type for damaged bytes; the panics of Rust are not subclasses of Exception.
        detail = f"frame {found + 1} of {frame_count} cannot be decoded"
        raise SourceError("decode", "compressed pixels are damaged", detail) from None
    if found < frame_count:
        raise SourceError("decode", "compressed pixels are damaged", f"{found} frames of {frame_count}")


def _encoded_frames(dataset: Dataset, frame_count: int) -> Iterator[bytes]:
    offsets = (
        element_bytes(dataset, headers.OFFSET_TABLE),
        element_bytes(dataset, headers.OFFSET_TABLE_LENGTHS),
    )
    yield from generate_frames(
        element_bytes(dataset, PIXEL_DATA),
        number_of_frames=frame_count,
        extended_offsets=offsets if all(offsets) else None,
    )


def _claimed_size(encoded: bytes) -> tuple[int, int, int] | None:
    """Return (rows, columns, components) from a JPEG 2000, JPEG or JPEG-LS header, or None.

    A decoder allocates the memory that the header claims, so the size is checked before decoding.
    """
    at = encoded.find(b"\xff\x4f\xff\x51", 0, 512)
    if at >= 0 and len(encoded) >= at + 42:
        right, bottom, left, top = struct.unpack_from(">4I", encoded, at + 8)
        return bottom - top, right - left, int.from_bytes(encoded[at + 40 : at + 42], "big")
    at = 2 if encoded[:2] == b"\xff\xd8" else len(encoded)
    while at + 10 <= len(encoded) and encoded[at] == 0xFF:
        marker, length = encoded[at + 1], int.from_bytes(encoded[at + 2 : at + 4], "big")
        if marker in START_OF_FRAME:
            rows, columns = struct.unpack_from(">2H", encoded, at + 5)
            return rows, columns, encoded[at + 9]
        at += 2 + length
    return None
