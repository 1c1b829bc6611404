"""Reader of MetaImage files (.mha, .mhd).

Source: the documentation of MetaIO, https://itk.org/Wiki/ITK/MetaIO/Documentation. Where it is ambiguous, this reader
does what ITK does.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.streams import (
    COPY_AGAIN,
    GZIP_MAGIC,
    GzipStream,
    PlainStream,
    ZlibStream,
    text_stream,
)
from halofeed.prep.formats.volume.volume_file import VolumeFile, volume_file
from halofeed.prep.formats.volume.volume_header import (
    LPS_TO_RAS,
    MAX_HEADER_AXES,
    AffineMatrix,
    Content,
    Fields,
    PlacedAffine,
    StoredVoxels,
    check_voxel_count,
    check_voxel_sides,
    damaged_header,
    find_voxel_file,
    header_lines,
    orient_as_itk,
    parse_integer,
    parse_integers,
    parse_numbers,
    quote,
    too_many_axes,
    unit_scale,
    unsupported_type,
    wrong_format,
)
from halofeed.prep.geometry.scan import Finding, affine_matrix
from halofeed.prep.sources.example import MAX_HEADER_BYTES
from halofeed.prep.sources.file_names import FORMAT_EXTENSIONS
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError

METAIMAGE_TYPES = {
    **dict.fromkeys(("MET_CHAR", "MET_ASCII_CHAR"), "i1"),
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    **dict.fromkeys(("MET_INT", "MET_LONG"), "i4"),
    **dict.fromkeys(("MET_UINT", "MET_ULONG"), "u4"),
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
MATRIX = ("TransformMatrix", "Rotation", "Orientation")
ORIGIN = ("Offset", "Position", "Origin")
OPPOSITE = {"R": "L", "L": "R", "A": "P", "P": "A", "I": "S", "S": "I"}
"""The direction to which an axis runs, by MetaIO's letter for the direction from which it comes."""
MIN_COSINE = 0.05
"""Smallest cosine between an axis and its named direction."""


def open_metaimage(files: SourceFiles, path: str, options: ScanOptions) -> VolumeFile:
    """Open an .mha file, or an .mhd file with the file of voxels that it names.

    The first axis becomes width, the second height, the third depth. A fourth axis, or the values of each voxel, become
    channels.
    """
    data = files.read(path)
    fields, end = _parse_fields(data)
    lengths, parts = _lengths(fields)
    check_voxel_count(lengths, parts, options.max_voxels)
    dtype, order = _dtype(fields)
    placed = _affine(fields, len(lengths), options)
    _check_no_rescale(fields)
    written, names = fields.needed("ElementDataFile"), FORMAT_EXTENSIONS["metaimage"]
    used, data, start = find_voxel_file(files, path, data, end, written, names)
    content, offset = _content(fields, data, start, dtype, math.prod(lengths) * parts)
    stored = StoredVoxels(
        shape=(lengths[2], lengths[1], lengths[0]),
        channels=math.prod(lengths[3:]) * parts,
        interleaved=parts > 1,
        dtype=dtype,
        offset=offset,
    )
    return volume_file(stored, placed, content, used, findings=order)


def _parse_fields(data: bytes) -> tuple[Fields, int]:
    """Return the fields of a header, and the offset of the first byte after it."""
    fields = Fields()
    for line, end in header_lines(data):
        name, equals, written = (part.strip() for part in line.partition("="))
        if line and not fields and not equals:  # not even the first line is a field
            break
        # ITK also writes the metadata of other formats, in lines of any form.
        if equals and re.fullmatch(r"[A-Za-z]\w*", name) is not None:
            fields.add(name, written)
        # ElementDataFile is the last field; the voxels follow its line.
        if name == "ElementDataFile" and _has_marks(fields):
            return fields, end
    if not _has_marks(fields):
        raise wrong_format("a MetaImage file", data)
    raise damaged_header(f"no ElementDataFile within {min(len(data), MAX_HEADER_BYTES)} bytes")


def _has_marks(fields: Fields) -> bool:
    """Return whether the fields are those of MetaImage, which has no magic bytes."""
    return not fields.keys().isdisjoint(("ObjectType", "NDims"))


def _flag(fields: Fields, *names: str, default: bool | None = False) -> bool | None:
    written = fields.first(*names)
    if written is None:
        return default
    if written.lower() not in ("true", "false", "1", "0"):
        raise damaged_header(f"{names[0]}: expected True or False, got {quote(written)}")
    return written.lower() in ("true", "1")


def _lengths(fields: Fields) -> tuple[list[int], int]:
    """Return the lengths of the axes, the fastest first, and the number of values per voxel."""
    if fields.get("ObjectType", "Image").lower() != "image":
        raise SourceError("decode", "not a MetaImage file", f"ObjectType {quote(fields['ObjectType'])}")
    count = parse_integer("NDims", fields.needed("NDims"), 1, MAX_HEADER_AXES)
    lengths = parse_integers("DimSize", fields.needed("DimSize"), count, 1, 2**62)
    parts = parse_integer("ElementNumberOfChannels", fields.get("ElementNumberOfChannels", "1"), 1, 2**62)
    written = " x ".join(map(str, lengths))
    # A slice of a series has no place among the others here; a volume needs a third axis.
    if count < 3:
        raise SourceError("decode", "not three axes of space", f"axes of {written} voxels")
    # One axis of channels: a fourth axis or several values per voxel, and not both.
    if math.prod(lengths[4:]) > 1 or (math.prod(lengths[3:]) > 1 and parts > 1):
        raise too_many_axes(lengths, parts)
    return lengths, parts


def _dtype(fields: Fields) -> tuple[np.dtype[Any], tuple[Finding, ...]]:
    written = fields.needed("ElementType")
    if written not in METAIMAGE_TYPES:
        detail = f"ElementType {quote(written)}; supported: {', '.join(METAIMAGE_TYPES)}"
        raise unsupported_type(detail)
    dtype = np.dtype(f"<{METAIMAGE_TYPES[written]}")
    big = _flag(fields, "ElementByteOrderMSB", "BinaryDataByteOrderMSB", default=None)
    # Single bytes and text have no byte order.
    if dtype.itemsize == 1 or not _flag(fields, "BinaryData", default=True):
        return dtype, ()
    # MetaIO takes the byte order of the machine that reads, which usually is little-endian.
    if big is None:
        return dtype, (Finding.noted(FindingName.NO_BYTE_ORDER, "taken to be little-endian"),)
    return dtype.newbyteorder(">" if big else "<"), ()


@np.errstate(all="ignore")
def _affine(fields: Fields, count: int, options: ScanOptions) -> PlacedAffine:
    """Return the affine from voxel (i, j, k) to millimeters (right, anterior, superior), and the findings about it."""
    scale, findings = unit_scale([fields.get("DistanceUnits", "")])
    rows = _matrix(fields, count)
    sizes = fields.get("ElementSpacing", fields.get("ElementSize"))
    if sizes is None:
        detail = "neither ElementSpacing nor ElementSize: 1 mm, the default of the format"
        findings += (Finding.noted(FindingName.NO_VOXEL_SIZE, detail),)
    sides = parse_numbers("ElementSpacing", sizes or "1 " * count, count)
    origin = parse_numbers(ORIGIN[0], fields.first(*ORIGIN) or "0 " * count, count)
    center = parse_numbers("CenterOfRotation", fields.get("CenterOfRotation", "0 " * count), count)
    steps = rows[:3, :3] * np.reshape(check_voxel_sides("ElementSpacing", sides[:3]), (3, 1))
    affine = LPS_TO_RAS @ affine_matrix(steps, origin[:3])
    affine[:3] *= scale
    # Without a turn, the center changes nothing.
    if any(center[:3]) and not np.array_equal(rows, np.eye(count)):
        detail = "the matrix turns the axes about the first voxel, as ITK reads it"
        findings += (Finding.noted(FindingName.CENTER_OF_ROTATION, detail),)
    affine, noted, more = _with_named_orientation(affine, fields, count, options)
    return affine, (*noted, *findings, *more)


def _matrix(fields: Fields, count: int) -> NDArray[np.float64]:
    """Return the directions of the axes, one per row; by default those of the space."""
    written = fields.first(*MATRIX)
    if written is None:
        return np.eye(count)
    rows = np.reshape(parse_numbers(MATRIX[0], written, count * count), (count, count))
    if rows[:3, 3:].any() or rows[3:, :3].any():
        raise damaged_header(f"{MATRIX[0]}: an axis of space and another")
    return rows


def _with_named_orientation(
    affine: AffineMatrix, fields: Fields, count: int, options: ScanOptions
) -> tuple[AffineMatrix, tuple[Finding, ...], tuple[Finding, ...]]:
    """Compare the affine with AnatomicalOrientation, and orient it by the options if the header has neither.

    Returns:
        The affine; the finding about an orientation by the options; and the finding about a contradiction.

    Raises:
        SourceError: the header names an orientation that is not the default, and has no matrix.
    """
    has_matrix, named = fields.first(*MATRIX) is not None, _named_orientation(fields, count)
    # The header does not say how the volume is placed in the patient.
    if named is None and not has_matrix:
        affine, noted = orient_as_itk(affine, f"no {MATRIX[0]}", options)
        return affine, noted, ()
    if named is None or _runs_to(affine, named):
        return affine, (), ()
    # ITK reads the matrix and ignores the name, whose letters programs understand in opposite ways.
    if not has_matrix:
        detail = f"AnatomicalOrientation means axes to {named}, the lack of a {MATRIX[0]} axes to LPS; write that too"
        raise SourceError("decode", "orientation contradicts itself", detail)
    detail = f"AnatomicalOrientation states that the axes run to {named}; the matrix is used"
    return affine, (), (Finding.noted(FindingName.ORIENTATIONS_DISAGREE, detail),)


def _named_orientation(fields: Fields, count: int) -> str | None:
    """Return the directions of the axes in AnatomicalOrientation, such as "LPS"; None if it is absent."""
    letters = fields.get("AnatomicalOrientation", "").upper()
    if not letters.strip("?"):  # ITK writes ??? where it does not know
        return None
    axes = {frozenset((one, OPPOSITE.get(one))) for one in letters[:3]}
    # One letter per axis, each of another pair; MetaIO writes a fourth for the axis of time.
    if len(letters) not in (3, count) or len(axes) < 3 or not set(letters[:3]) <= OPPOSITE.keys():
        raise damaged_header(
            f"AnatomicalOrientation: expected three letters such as RAI, got {quote(letters)}"
        )
    return "".join(OPPOSITE[one] for one in letters[:3])


def _runs_to(affine: AffineMatrix, letters: str) -> bool:
    """Return whether the axes, which may be oblique, run roughly in the directions of three letters."""
    expected = np.array([[(one == up) - (one == down) for one in letters] for up, down in ("RL", "AP", "SI")])
    cosines = (expected * affine[:3, :3]).sum(axis=0) / np.linalg.norm(affine[:3, :3], axis=0)
    return bool((cosines > MIN_COSINE).all())


def _check_no_rescale(fields: Fields) -> None:
    """Refuse a header that asks for rescaling, which no reader of the format supports."""
    slope = parse_numbers("slope", fields.get("ElementToIntensityFunctionSlope", "1"), 1)
    inter = parse_numbers("offset", fields.get("ElementToIntensityFunctionOffset", "0"), 1)
    if (slope, inter) != ([1.0], [0.0]):
        detail = f"by {slope[0]:g} and {inter[0]:g}; ITK ignores this: save the rescaled values"
        raise SourceError("decode", "values are to be rescaled", detail)


def _content(
    fields: Fields, data: bytes, start: int, dtype: np.dtype[Any], values: int
) -> tuple[Content, int]:
    """Return the bytes with the voxels, and the offset of the first value in the unpacked bytes."""
    skip = parse_integer("HeaderSize", fields.get("HeaderSize", "0"), -1, 2**62)
    packed = _flag(fields, "CompressedData")
    after = min(start + max(skip, 0), len(data))
    # Voxels as text, numbers separated by blanks.
    if not _flag(fields, "BinaryData", default=True):
        if packed:
            raise SourceError("decode", "encoding is not read", "text that is compressed")
        return Content(data=data, start=after, unpack=partial(text_stream, dtype=dtype)), 0
    if packed:
        size = parse_integer("CompressedDataSize", fields.get("CompressedDataSize", "0"), 0, 2**62)
        # 0 and absent mean up to the end of the file.
        if size > len(data) - after:
            detail = f"CompressedDataSize is {size}, the file holds {len(data) - after}; {COPY_AGAIN}"
            raise SourceError("decode", "voxels are missing", detail)
        # MetaIO writes zlib data and reads both.
        unpack = GzipStream if data.startswith(GZIP_MAGIC, after) else ZlibStream
        return Content(data=data, start=after, unpack=unpack), 0
    if skip == -1:  # the voxels are the last bytes of the file
        return Content(data=data, start=start), max(0, len(data) - start - values * dtype.itemsize)
    return Content(data=data, start=start, unpack=PlainStream), skip
