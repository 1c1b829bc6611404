"""What does the header of a NIfTI-1, NIfTI-2 or Analyze 7.5 file say, and can it be true?

Nothing here allocates by what a header says. The affine has a file of its own, nifti_affine.py.

Sources: nifti1.h and nifti2.h of the NIfTI Data Format Working Group; the Analyze 7.5 file format, with the
fields that SPM added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from nibabel.nifti1 import Nifti1Header
from nibabel.nifti2 import Nifti2Header
from nibabel.spm2analyze import Spm2AnalyzeHeader
from nibabel.spm99analyze import Spm99AnalyzeHeader

from halofeed.prep.formats.volume.stored import StoredVoxels, check_voxel_count, damaged
from halofeed.prep.geometry.scan import Finding
from halofeed.schemas.errors import SourceError

LONGEST_HEADER = 540
Fields = Any
"""One of nibabel's headers, which are not typed."""
Kind = Literal["single", "pair", "analyze"]
SIZES = (348, 540)
# (where it stands, what stands there): which header it is, and whether the voxels follow in the same file.
MAGICS: dict[tuple[int, bytes], tuple[Fields, Kind]] = {
    (344, b"n+1\0"): (Nifti1Header, "single"),
    (344, b"ni1\0"): (Nifti1Header, "pair"),
    (4, b"n+2\0\r\n\x1a\n"): (Nifti2Header, "single"),
    (4, b"ni2\0\r\n\x1a\n"): (Nifti2Header, "pair"),
}
# NIfTI's code: the type of a stored voxel's parts, and how many they are. Codes that are missing are refused.
DATA_TYPES = {
    2: ("u1", 1),
    4: ("i2", 1),
    8: ("i4", 1),
    16: ("f4", 1),
    64: ("f8", 1),
    128: ("u1", 3),
    256: ("i1", 1),
    512: ("u2", 1),
    768: ("u4", 1),
    1024: ("i8", 1),
    1280: ("u8", 1),
    2304: ("u1", 4),
}
REFUSED_TYPES = {
    1: "single bits",
    32: "complex numbers of 64 bits",
    1536: "floats of 128 bits",
    1792: "complex numbers of 128 bits",
    2048: "complex numbers of 256 bits",
}


@dataclass(frozen=True, kw_only=True)
class NiftiHeader(StoredVoxels):
    """What a header says, once it is known that it can be true.

    Args:
        fields: nibabel's view of the header, in its own byte order.
        kind: "single": the voxels follow in the same file; "pair", "analyze": they are in an .img file.
        findings: what is odd about the values.
    """

    fields: Fields
    kind: Kind
    findings: tuple[Finding, ...]


def parse_header(start: bytes, max_voxels: int, *, may_be_analyze: bool) -> NiftiHeader:
    """Read the header from the first bytes of a file, decompressed.

    Args:
        start: the first `LONGEST_HEADER` bytes, or the whole file where it is shorter.
        max_voxels: the most values that are allowed.
        may_be_analyze: an Analyze header is known by its size alone, so that the name must allow it.

    Raises:
        SourceError: not such a header, cut off, self-contradicting, too large, or of a kind that is not read.
    """
    header, kind = _fields(start, may_be_analyze)
    dtype, parts = _data_type(header)
    lengths = _lengths(header)
    i, j, k, times, vector, *more = (lengths + [1] * 7)[:7]
    if max(more) > 1 or (times > 1 and vector > 1) or (parts > 1 and times * vector > 1):
        detail = f"axes of {' x '.join(map(str, lengths))} voxels of {parts} values; store one volume a file"
        raise SourceError("decode", "more axes than an image with channels has", detail)
    channels = times * vector * parts
    check_voxel_count(lengths, parts, max_voxels)
    slope, inter, findings = _rescale(header, kind, parts)
    if parts > 1:
        detail = f"red, green, blue{' and alpha' if parts == 4 else ''} become {parts} channels"
        findings += (Finding.noted("color voxels", detail),)
    return NiftiHeader(
        fields=header,
        kind=kind,
        shape=(k, j, i),
        channels=channels,
        interleaved=parts > 1,
        dtype=dtype,
        offset=_offset(header, kind),
        slope=slope,
        inter=inter,
        findings=findings,
    )


def _fields(start: bytes, may_be_analyze: bool) -> tuple[Fields, Kind]:
    """The header's fields and kind, by its size in either byte order and its magic."""
    for order in ("<", ">"):
        size = int.from_bytes(start[:4], "little" if order == "<" else "big")
        if size not in SIZES:
            continue
        if len(start) < size:
            raise SourceError("decode", "file is truncated", f"{len(start)} bytes of a header of {size}")
        for (place, magic), (header_class, kind) in MAGICS.items():
            if header_class.sizeof_hdr == size and start.startswith(magic, place):
                return header_class(start[:size], endianness=order, check=False), kind
        if size == 348 and may_be_analyze and start[344:347] not in (b"n+1", b"ni1"):
            analyze: Any = Spm2AnalyzeHeader
            return analyze(start[:348], endianness=order, check=False), "analyze"
        raise SourceError("decode", "header has a wrong magic", _magics_of(start, size))
    detail = f"begins with {start[:8].hex(' ') or 'nothing'}"
    raise SourceError("decode", "not a NIfTI or Analyze file", detail)


def _magics_of(start: bytes, size: int) -> str:
    place, length = (344, 4) if size == 348 else (4, 8)
    expected = " or ".join(str(magic) for (at, magic) in MAGICS if at == place)
    return f"expected {expected} at byte {place}, got {start[place : place + length]!r}"


def _lengths(header: Fields) -> list[int]:
    """The lengths of the axes i, j, k, time, vector ..., as many as the header has."""
    count = int(header["dim"][0])
    if not 1 <= count <= 7:
        raise damaged(f"{count} axes; expected 1 to 7")
    lengths = [int(length) for length in header["dim"][1 : count + 1]]
    if min(lengths) < 1:
        raise damaged(f"axes of {' x '.join(map(str, lengths))} voxels; expected at least 1 along each")
    if count < 2:
        raise SourceError("decode", "fewer than two axes", f"{lengths[0]} values in a row are no image")
    return lengths


def _data_type(header: Fields) -> tuple[np.dtype[Any], int]:
    code = int(header["datatype"])
    if code not in DATA_TYPES:
        kind = REFUSED_TYPES.get(code, "an unknown kind")
        advice = "; store the magnitude" if "complex" in kind else ""
        raise SourceError("decode", "voxels of this type are not supported", f"code {code}: {kind}{advice}")
    name, parts = DATA_TYPES[code]
    return np.dtype(f"{header.endianness}{name}"), parts


def _offset(header: Fields, kind: Kind) -> int:
    value = float(header["vox_offset"])
    least = header.sizeof_hdr + 4 if kind == "single" else 0
    if not value >= least or not value.is_integer():
        raise damaged(f"the voxels begin at byte {value:g}; expected a whole number of at least {least}")
    return int(value)


def _rescale(header: Fields, kind: Kind, parts: int) -> tuple[float, float, tuple[Finding, ...]]:
    """The slope and intercept that count, and what is odd about them."""
    slope, inter = float(header["scl_slope"]), float(header["scl_inter"])
    if parts > 1:
        return 1.0, 0.0, ()  # the standard leaves colors alone
    if slope == 0 or math.isnan(slope):  # both mean that there is none
        ignored = math.isfinite(inter) and inter != 0
        detail = f"slope {slope:g} means no rescaling, so the intercept {inter:g} is not applied"
        return 1.0, 0.0, (Finding.noted("rescale ignored", detail),) * ignored
    if kind == "analyze" and math.isnan(inter):
        inter = 0.0
    if not (math.isfinite(slope) and math.isfinite(inter)):
        raise damaged(f"rescale slope {slope:g} and intercept {inter:g}; expected numbers")
    return slope, inter, ()


def spm_origin(header: Fields) -> tuple[float, float, float] | None:
    """The voxel (i, j, k) that SPM's field of an Analyze header puts at the origin; None where it is not set."""
    if not isinstance(header, Spm99AnalyzeHeader):
        return None
    origin, lengths = header["origin"][:3].astype(float), header["dim"][1:4].astype(float)
    if not origin.any() or (origin <= -lengths).any() or (origin >= 2 * lengths).any():
        return None
    i, j, k = (origin - 1).tolist()
    return i, j, k
