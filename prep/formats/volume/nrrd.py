"""Reader of NRRD files (.nrrd, .nhdr).

Source: the definition of the format, https://teem.sourceforge.net/nrrd/format.html. Where it is ambiguous, this reader
does what ITK does.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.streams import (
    GzipStream,
    PlainStream,
    bzip2_stream,
    hex_stream,
    text_stream,
)
from halofeed.prep.formats.volume.volume_file import VolumeFile, nrrd_segments, volume_file
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
from halofeed.prep.geometry.scan import Finding, VolumeShape, affine_matrix
from halofeed.prep.sources.example import MAX_HEADER_BYTES
from halofeed.prep.sources.file_names import FORMAT_EXTENSIONS
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

NRRD_TYPES = {
    "i1": ("signed char", "int8", "int8_t"),
    "u1": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "i2": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "u2": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "i4": ("int", "signed int", "int32", "int32_t"),
    "u4": ("uint", "unsigned int", "uint32", "uint32_t"),
    "i8": (
        *("longlong", "long long", "long long int", "signed long long", "signed long long int"),
        *("int64", "int64_t"),
    ),
    "u8": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "f4": ("float",),
    "f8": ("double",),
}
UNPACKERS: dict[str, Any] = {
    "raw": PlainStream,
    **dict.fromkeys(("gz", "gzip"), GzipStream),
    **dict.fromkeys(("bz2", "bzip2"), bzip2_stream),
    "hex": hex_stream,
    **dict.fromkeys(("txt", "text", "ascii"), text_stream),
}
PATIENT_SPACES = {
    **dict.fromkeys(("right-anterior-superior", "ras"), (1.0, 1.0, 1.0)),
    **dict.fromkeys(("left-anterior-superior", "las"), (-1.0, 1.0, 1.0)),
    **dict.fromkeys(("left-posterior-superior", "lps"), (-1.0, -1.0, 1.0)),
}
OTHER_SPACES = ("scanner-xyz", "3d-right-handed", "3d-left-handed")
SPACE_KINDS = ("domain", "space")
COLORS = {"rgb-color": "red, green and blue", "rgba-color": "red, green, blue and alpha"}


@dataclass(frozen=True, kw_only=True)
class _Axes:
    """Roles of the axes.

    Args:
        sizes: lengths of all axes, the fastest first.
        space: indices of the three axes of space.
        channel: index of the axis of channels, or None.
    """

    sizes: list[int]
    space: list[int]
    channel: int | None

    @property
    def shape(self) -> VolumeShape:
        width, height, depth = (self.sizes[axis] for axis in self.space)
        return depth, height, width


def open_nrrd(files: SourceFiles, path: str, options: ScanOptions) -> VolumeFile:
    """Open a .nrrd file, or a .nhdr file with the file of voxels that it names.

    The first axis of space becomes width, the second height, the third depth. An axis of time, vectors or colors
    becomes channels.
    """
    data = header = files.read(path)
    fields, end = _parse_fields(data)
    axes, colors = _parse_axes(fields)
    check_voxel_count(axes.sizes, 1, options.max_voxels)
    dtype, encoding = _dtype(fields), fields.get("encoding", "").lower()
    placed = _affine(fields, axes, options)
    used, data, start = find_voxel_file(
        files, path, data, end, fields.first("datafile"), FORMAT_EXTENSIONS["nrrd"]
    )
    start, offset = _skip_lines_and_bytes(
        fields, data, start, encoding, math.prod(axes.sizes) * dtype.itemsize
    )
    unpack = UNPACKERS[encoding]
    stored = StoredVoxels(
        shape=axes.shape,
        channels=1 if axes.channel is None else axes.sizes[axes.channel],
        interleaved=axes.channel is not None and axes.channel < axes.space[0],
        dtype=dtype,
        offset=offset,
    )
    # Text has no size per value, so the type must be known to unpack it.
    if unpack is text_stream:
        unpack = partial(unpack, dtype=dtype)
    return volume_file(
        stored,
        placed,
        Content(data=data, start=start, unpack=unpack),
        used,
        findings=(*colors, *_unused_range(fields)),
        segments=nrrd_segments(header),
    )


def _parse_fields(data: bytes) -> tuple[Fields, int]:
    """Return the fields of a header, and the offset of the first byte after it."""
    lines = header_lines(data)
    magic, _ = next(lines, ("", 0))
    if not magic.startswith("NRRD"):
        raise wrong_format("an NRRD file", data)
    if re.fullmatch("NRRD000[1-5]", magic) is None:
        detail = f"{quote(magic)}; supported: NRRD0001 to NRRD0005"
        raise SourceError("decode", "version of NRRD is not read", detail)
    fields = Fields()
    for number, (line, end) in enumerate(lines, 2):
        if not line:
            return fields, end
        # Comments, and key/value pairs (:=), which programs may define as they like.
        if line.startswith("#") or ":=" in line.partition(": ")[0]:
            continue
        name, colon, written = line.partition(":")
        if not colon:
            raise damaged_header(f"line {number} has no colon")  # without the text, which may name a patient
        fields.add(re.sub(r"\s", "", name).lower(), written.strip())
        # Names of files follow in place of an empty line; `find_voxel_file` refuses several files.
        if fields.get("datafile", "").startswith("LIST"):
            return fields, end
    if len(data) > MAX_HEADER_BYTES:
        raise damaged_header(f"no empty line ends it within {MAX_HEADER_BYTES} bytes")
    return fields, len(data)


def _parse_axes(fields: Fields) -> tuple[_Axes, tuple[Finding, ...]]:
    """Return the roles of the axes, and a finding if colors become channels.

    Raises:
        SourceError: there are not three axes of space, or there is more than one other axis or one between them.
    """
    count = parse_integer("dimension", fields.needed("dimension"), 1, MAX_HEADER_AXES)
    sizes = parse_integers("sizes", fields.needed("sizes"), count, 1, 2**62)
    kinds = _kinds(fields, sizes)
    space = _space_axes(fields, kinds, sizes)
    if len(space) != 3:
        detail = f"{len(space)} of the axes of {' x '.join(map(str, sizes))} voxels; write space directions or kinds"
        raise SourceError("decode", "not three axes of space", detail)
    axes = _Axes(sizes=sizes, space=space, channel=_channel_axis(sizes, space))
    if axes.channel is None or kinds[axes.channel] not in COLORS:
        return axes, ()
    detail = f"{COLORS[kinds[axes.channel]]} become {plural(sizes[axes.channel], 'channel')}"
    return axes, (Finding.noted(FindingName.COLOR_VOXELS, detail),)


def _kinds(fields: Fields, sizes: list[int]) -> list[str]:
    """Return the kind of each axis; "???" is the format's word for unknown."""
    kinds = fields.get("kinds", "").lower().split() or ["???"] * len(sizes)
    if len(kinds) != len(sizes):
        raise damaged_header(f"kinds: expected {len(sizes)}, got {quote(fields['kinds'])}")
    # The real part of complex values is not an image of a patient.
    if any(kind == "complex" and size > 1 for kind, size in zip(kinds, sizes, strict=True)):
        detail = "complex numbers; store the magnitude"
        raise unsupported_type(detail)
    return kinds


def _channel_axis(sizes: list[int], space: list[int]) -> int | None:
    """Return the axis of more than one value beside those of space, or None."""
    others = [axis for axis in range(len(sizes)) if axis not in space and sizes[axis] > 1]
    if len(others) > 1:
        raise too_many_axes(sizes, 1)
    if not others:
        return None
    # Channels that are neither the fastest nor the slowest values would need another copy of the volume.
    if space[0] < others[0] < space[2]:
        detail = "make it the first or the last of the axes"
        raise SourceError("decode", "axis of channels lies between those of space", detail)
    return others[0]


def _space_axes(fields: Fields, kinds: list[str], sizes: list[int]) -> list[int]:
    """Return the axes of space: those with a direction, else those that `kinds` and `spacings` mark."""
    # A direction proves an axis of space; "none", or one of time alone, proves the opposite.
    if "spacedirections" in fields:
        directions = _directions(fields, len(sizes))
        return [axis for axis, vector in enumerate(directions) if vector is not None and any(vector[:3])]
    # Kinds mark axes in files without directions (NRRD0003 and later).
    if any(kind in SPACE_KINDS for kind in kinds):
        return [axis for axis, kind in enumerate(kinds) if kind in SPACE_KINDS]
    # An axis that is no axis of space has the spacing NaN.
    spacings = _spacings(fields, sizes)
    return [
        axis
        for axis, kind in enumerate(kinds)
        if kind in ("???", "none") and (not spacings or math.isfinite(spacings[axis]))
    ]


def _spacings(fields: Fields, sizes: list[int]) -> list[float]:
    """Return the distance of samples along each axis, NaN where none is known; [] if nothing states any.

    Source: NRRD, "axis mins" and "axis maxs": the positions of the first and last sample of a node-centered axis, and
    of the borders of the first and last cell of a cell-centered one.
    """
    count = len(sizes)
    if "spacings" in fields:
        return parse_numbers("spacings", fields["spacings"], count, finite=False)
    low, high = fields.first("axismins"), fields.first("axismaxs")
    if low is None or high is None:
        return []
    lows = parse_numbers("axis mins", low, count, finite=False)
    highs = parse_numbers("axis maxs", high, count, finite=False)
    steps = [
        size - (center == "node") for size, center in zip(sizes, _centerings(fields, count), strict=True)
    ]
    return [
        (last - first) / step if step else math.nan
        for first, last, step in zip(lows, highs, steps, strict=True)
    ]


def _centerings(fields: Fields, count: int) -> list[str]:
    """Return "cell" or "node" for each axis; cells are the default of the format's library, teem."""
    centerings = fields.get("centerings", fields.get("centers", "")).lower().split() or ["cell"] * count
    if len(centerings) != count:
        raise damaged_header(f"centerings: expected {count}, got {len(centerings)}")
    return centerings


def _space(fields: Fields) -> tuple[str, int]:
    """Return the name of the space without "-time", and the number of components of a vector in it."""
    name = fields.get("space", "").lower()
    # Either the name of the space or its number of dimensions is given.
    if not name:
        return "", parse_integer("space dimension", fields.get("spacedimension", "3"), 1, MAX_HEADER_AXES)
    # A fourth axis of time may be part of the space: rast, right-anterior-superior-time.
    plain = name[:-1] if name in ("rast", "last", "lpst") else name.removesuffix("-time")
    if plain not in PATIENT_SPACES and plain not in OTHER_SPACES:
        known = ", ".join((*PATIENT_SPACES, *OTHER_SPACES))
        raise SourceError("decode", "space is not known", f"{quote(name)}; known: {known}")
    return plain, 3 + (plain != name)


def _vector(name: str, written: str, count: int) -> list[float]:
    if not (written.startswith("(") and written.endswith(")")):
        raise damaged_header(f"{name}: expected vectors such as (1,0,0), got {quote(written)}")
    return parse_numbers(name, written[1:-1].replace(",", " "), count)


def _directions(fields: Fields, count: int) -> list[list[float] | None]:
    """Return the direction of each axis; None for the axes without one."""
    written, (_, dimension) = fields["spacedirections"], _space(fields)
    # Three directions of space and perhaps one of time.
    if dimension not in (3, 4):
        raise SourceError("decode", "not three axes of space", f"space dimension {dimension}")
    words = re.findall(r"none|\([^()]*\)", written)
    if len(words) != count or re.sub(r"none|\([^()]*\)|\s", "", written):
        raise damaged_header(f"space directions: expected {count}, got {quote(written)}")
    vectors = [None if word == "none" else _vector("space directions", word, dimension) for word in words]
    for vector in vectors:
        # Such an axis would move the grid over time.
        if vector is not None and any(vector[:3]) and any(vector[3:]):
            raise damaged_header("space directions: an axis of space and time")
    return vectors


@np.errstate(all="ignore")
def _affine(fields: Fields, axes: _Axes, options: ScanOptions) -> PlacedAffine:
    """Return the affine from voxel (i, j, k) to millimeters (right, anterior, superior), and the findings about it."""
    count = len(axes.sizes)
    # Files of versions before NRRD0004 have voxel sizes only.
    if "spacedirections" not in fields:
        scale, unit = unit_scale(_quoted(fields, "units", count, axes.space))
        affine = LPS_TO_RAS @ _affine_from_spacings(fields, axes)
        affine, findings = orient_as_itk(affine, "no space directions", options)
        affine[:3] *= scale
        return affine, (*findings, *unit)
    name, dimension = _space(fields)
    directions = _directions(fields, count)
    affine = affine_matrix([(directions[axis] or [])[:3] for axis in axes.space])
    scale, findings = unit_scale(_quoted(fields, "space units", dimension, [0, 1, 2]))
    if "spaceorigin" in fields:
        affine[:3, 3] = _vector("space origin", fields["spaceorigin"], dimension)[:3]
    else:
        findings += (Finding.noted(FindingName.NO_ORIGIN, "the first voxel is taken to lie at 0"),)
    affine[:3] *= scale
    # The other spaces, such as scanner-xyz, have no stated relation to the patient.
    if name in PATIENT_SPACES:
        return np.diag([*PATIENT_SPACES[name], 1.0]) @ affine, findings
    cause = f"space {name} is not the patient's" if name else "no space is named"
    affine, noted = orient_as_itk(LPS_TO_RAS @ affine, cause, options)
    return affine, (*noted, *findings)


def _affine_from_spacings(fields: Fields, axes: _Axes) -> AffineMatrix:
    """Return the affine of axes without directions; `axis mins` states the position of the first voxel."""
    count = len(axes.sizes)
    spacings = _spacings(fields, axes.sizes)
    sides = [spacings[axis] if spacings else math.nan for axis in axes.space]
    # The format has no default size, and a guess of 1 mm would be wrong for nearly all scans.
    if not all(map(math.isfinite, sides)):
        detail = (
            "neither space directions, nor spacings, nor axis mins and axis maxs; write one of them, such as the line "
            "spacings: 0.8 0.8 2.5"
        )
        raise SourceError("decode", "voxel size is not given", detail)
    affine = np.diag([*check_voxel_sides("spacings", sides), 1.0])
    written = fields.first("axismins")
    if written is not None:
        lowest = parse_numbers("axis mins", written, count, finite=False)
        centerings = _centerings(fields, count)
        for row, axis in enumerate(axes.space):
            # `axis mins` is the position of the first sample, or of the border of its cell.
            if math.isfinite(lowest[axis]):
                affine[row, 3] = lowest[axis] + (0 if centerings[axis] == "node" else sides[row] / 2)
    return affine


def _quoted(fields: Fields, name: str, count: int, chosen: list[int]) -> list[str]:
    """Return the chosen items of a list of quoted texts; [] if the field is absent."""
    written = fields.get(name.replace(" ", ""))
    if written is None:
        return []
    found = re.findall(r'"([^"]*)"', written)
    if len(found) != count:
        raise damaged_header(
            f"{name}: expected {plural(count, 'text')} in quotation marks, got {quote(written)}"
        )
    return [found[place].strip() for place in chosen]


def _dtype(fields: Fields) -> np.dtype[Any]:
    written = " ".join(fields.needed("type").lower().split())
    name = next((name for name, spellings in NRRD_TYPES.items() if written in spellings), None)
    if name is None:
        raise unsupported_type(f"type {quote(written)}")
    encoding = fields.needed("encoding").lower()
    if encoding not in UNPACKERS:
        known = ", ".join(UNPACKERS)
        raise SourceError("decode", "encoding is not read", f"{quote(encoding)}; supported: {known}")
    endian = fields.get("endian", "").lower()
    # Single bytes and text have no byte order, so the field may be absent.
    if name[1] == "1" or UNPACKERS[encoding] is text_stream:
        return np.dtype(f"<{name}")
    if endian not in ("little", "big"):
        raise damaged_header(f"endian: expected little or big, got {quote(endian)}")
    return np.dtype(f"{'<' if endian == 'little' else '>'}{name}")


def _skip_lines_and_bytes(
    fields: Fields, data: bytes, start: int, encoding: str, voxel_bytes: int
) -> tuple[int, int]:
    """Return the offset of the packed voxels in their file, and of the first value in the unpacked bytes."""
    line_skip = parse_integer("line skip", fields.get("lineskip", "0"), 0, 2**62)
    for _ in range(min(line_skip, len(data) + 1)):
        start = data.find(b"\n", start) + 1
        if not start:
            detail = f"line skip {line_skip}: the file has fewer lines"
            raise SourceError("decode", "voxels are missing", detail)
    skip = parse_integer("byte skip", fields.get("byteskip", "0"), -1, 2**62)
    # -1 skips all bytes before the voxels at the end of the file, which is possible for raw voxels only.
    if skip == -1:
        if encoding != "raw":
            raise damaged_header(f"byte skip -1 is for raw voxels; encoding is {encoding}")
        return start, max(0, len(data) - start - voxel_bytes)
    # Bytes are skipped after unpacking, in text before it.
    if UNPACKERS[encoding] in (text_stream, hex_stream):
        return min(start + skip, len(data)), 0
    return start, skip


def _unused_range(fields: Fields) -> tuple[Finding, ...]:
    if not {"oldmin", "oldmax"} & fields.keys():
        return ()
    detail = "the range of values before they were quantized; voxels are taken as stored"
    return (Finding.noted(FindingName.OLD_RANGE_NOT_APPLIED, detail),)
