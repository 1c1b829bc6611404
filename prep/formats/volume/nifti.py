"""Reader of NIfTI-1, NIfTI-2 and Analyze files, and writer of NIfTI-1.

`open_nifti` is the entry point, `parse_header` checks the header, and `read_affine` chooses between sform and qform.
"""

from __future__ import annotations

import gzip
import io
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from nibabel.nifti1 import Nifti1Header, Nifti1Image
from nibabel.nifti2 import Nifti2Header
from nibabel.spatialimages import HeaderDataError
from nibabel.spm2analyze import Spm2AnalyzeHeader
from nibabel.spm99analyze import Spm99AnalyzeHeader
from numpy.typing import ArrayLike, NDArray

from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.streams import read_start
from halofeed.prep.formats.volume.volume_file import (
    MAX_EXTENSION_BYTES,
    VolumeFile,
    nifti_segments,
    volume_file,
)
from halofeed.prep.formats.volume.volume_header import (
    AffineMatrix,
    PlacedAffine,
    StoredVoxels,
    check_affine,
    check_voxel_count,
    content_of,
    converted_unit_finding,
    damaged_header,
    first_axis_side,
    orientation_finding,
    too_many_axes,
    truncated_header,
    unsupported_type,
    wrong_format,
)
from halofeed.prep.geometry.scan import Finding, affine_matrix
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.findings import FindingName
from halofeed.storage.atomic_files import create_replacing
from halofeed.storage.paths import open_path
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

NIFTI_HEADER_BYTES = 540
_AXES_OF_FILE = [2, 1, 0, 3]
"""Order of an affine's columns for NIfTI's (i, j, k, 1), from those for (depth, height, width, 1)."""
NibabelHeader = Any
"""A header class of nibabel, which has no types."""
FileKind = Literal["single", "pair", "analyze"]
HEADER_SIZES = (348, 540)
# (offset, magic bytes): class of the header, and whether the voxels follow in the same file.
MAGICS: dict[tuple[int, bytes], tuple[NibabelHeader, FileKind]] = {
    (344, b"n+1\0"): (Nifti1Header, "single"),
    (344, b"ni1\0"): (Nifti1Header, "pair"),
    (4, b"n+2\0\r\n\x1a\n"): (Nifti2Header, "single"),
    (4, b"ni2\0\r\n\x1a\n"): (Nifti2Header, "pair"),
}
# NIfTI's code: type of the parts of a stored voxel, and their number. Other codes are refused.
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
NIFTI_UNITS_MM = {1: ("meters", 1000.0), 3: ("micrometers", 0.001)}
UNIT_UNKNOWN, UNIT_MM = 0, 2
DISAGREEMENT = 0.1
"""Largest distance between sform and qform at any corner, as a multiple of the smallest voxel side."""


@dataclass(frozen=True, kw_only=True)
class NiftiHeader(StoredVoxels):
    """Checked header of a NIfTI or Analyze file.

    Args:
        fields: nibabel's header, in the file's byte order.
        kind: "single" if the voxels follow in the same file; "pair" or "analyze" if they are in an .img file.
        findings: flaws and other observations about the values.
    """

    fields: NibabelHeader
    kind: FileKind
    findings: tuple[Finding, ...]


def parse_header(start: bytes, max_voxels: int, *, may_be_analyze: bool) -> NiftiHeader:
    """Parse and check a header.

    Args:
        start: the first `NIFTI_HEADER_BYTES` decompressed bytes, or the complete file if it is shorter.
        max_voxels: limit on the number of values.
        may_be_analyze: whether the file's name allows Analyze, whose header has no magic bytes.

    Raises:
        SourceError: this is no such header; or it is truncated, contradictory, too large or of an unsupported type.
    """
    header, kind = _detect_header(start, may_be_analyze)
    dtype, parts = _data_type(header)
    lengths = _lengths(header)
    i, j, k, times, vector, *more = (lengths + [1] * 7)[:7]
    # The axes are i, j, k, time and vector; one axis of channels is read, of times, vectors or colors.
    if max(more) > 1 or (times > 1 and vector > 1) or (parts > 1 and times * vector > 1):
        raise too_many_axes(lengths, parts)
    channels = times * vector * parts
    check_voxel_count(lengths, parts, max_voxels)
    slope, inter, findings = _rescale(header, kind, parts)
    # Colors are stored as voxels of three or four bytes, and the user should know that they become channels.
    if parts > 1:
        detail = f"red, green, blue{' and alpha' if parts == 4 else ''} become {plural(parts, 'channel')}"
        findings += (Finding.noted(FindingName.COLOR_VOXELS, detail),)
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


def _detect_header(start: bytes, may_be_analyze: bool) -> tuple[NibabelHeader, FileKind]:
    """Return the header's fields and kind, detected by its size in either byte order and its magic bytes."""
    for order in ("<", ">"):
        size = int.from_bytes(start[:4], "little" if order == "<" else "big")
        if size not in HEADER_SIZES:
            continue
        if len(start) < size:
            raise truncated_header(start, size)
        for (place, magic), (header_class, kind) in MAGICS.items():
            if header_class.sizeof_hdr == size and start.startswith(magic, place):
                return header_class(start[:size], endianness=order, check=False), kind
        # Analyze has no magic bytes; a damaged magic of NIfTI must not become Analyze, which has no orientation.
        if size == 348 and may_be_analyze and start[344:347] not in (b"n+1", b"ni1"):
            analyze: Any = Spm2AnalyzeHeader
            return analyze(start[:348], endianness=order, check=False), "analyze"
        raise _wrong_magic(start, size)
    raise wrong_format("a NIfTI or Analyze file", start)


def _wrong_magic(start: bytes, size: int) -> SourceError:
    place, length = (344, 4) if size == 348 else (4, 8)
    expected = " or ".join(str(magic) for (at, magic) in MAGICS if at == place)
    detail = f"expected {expected} at byte {place}, got {start[place : place + length]!r}"
    return SourceError("decode", "header has a wrong magic", detail)


def _lengths(header: NibabelHeader) -> list[int]:
    """Return the lengths of the header's axes: i, j, k, time, vector ..."""
    count = int(header["dim"][0])
    if not 1 <= count <= 7:
        raise damaged_header(f"{count} axes; expected 1 to 7")
    lengths = [int(length) for length in header["dim"][1 : count + 1]]
    if count < 2:
        raise SourceError(
            "decode", "fewer than two axes", f"{plural(lengths[0], 'value')} in a row are not an image"
        )
    return lengths


def _data_type(header: NibabelHeader) -> tuple[np.dtype[Any], int]:
    code = int(header["datatype"])
    if code not in DATA_TYPES:
        kind = REFUSED_TYPES.get(code, "an unknown kind")
        advice = "; store the magnitude" if "complex" in kind else ""
        raise unsupported_type(f"code {code}: {kind}{advice}")
    name, parts = DATA_TYPES[code]
    return np.dtype(f"{header.endianness}{name}"), parts


def _offset(header: NibabelHeader, kind: FileKind) -> int:
    # NIfTI-1 stores the offset as a float. Four bytes after the header say whether extensions follow.
    value = float(header["vox_offset"])
    least = header.sizeof_hdr + 4 if kind == "single" else 0
    if not value >= least or not value.is_integer():
        raise damaged_header(
            f"the voxels begin at byte {value:g}; expected a whole number of at least {least}"
        )
    return int(value)


def _rescale(header: NibabelHeader, kind: FileKind, parts: int) -> tuple[float, float, tuple[Finding, ...]]:
    """Return the slope, the intercept, and a finding if the header's intercept has no effect."""
    slope, inter = float(header["scl_slope"]), float(header["scl_inter"])
    if parts > 1:
        return 1.0, 0.0, ()  # the standard does not rescale colors
    if slope == 0 or math.isnan(slope):  # both mean that there is no rescaling
        ignored = math.isfinite(inter) and inter != 0
        detail = f"slope {slope:g} means no rescaling, so the intercept {inter:g} is not applied"
        return 1.0, 0.0, (Finding.noted(FindingName.RESCALE_IGNORED, detail),) * ignored
    # Analyze has no intercept, so NaN in its place means none.
    if kind == "analyze" and math.isnan(inter):
        inter = 0.0
    if not (math.isfinite(slope) and math.isfinite(inter)):
        raise damaged_header(f"rescale slope {slope:g} and intercept {inter:g}; expected numbers")
    return slope, inter, ()


def spm_origin(header: NibabelHeader) -> tuple[float, float, float] | None:
    """Return the voxel (i, j, k) at the origin from SPM's field of an Analyze header; None if it is not set."""
    # Only SPM's variant of Analyze has an origin.
    if not isinstance(header, Spm99AnalyzeHeader):
        return None
    origin, lengths = header["origin"][:3].astype(float), header["dim"][1:4].astype(float)
    # nibabel takes an origin far outside of the volume for unset too: other programs use the field's bytes otherwise.
    if not origin.any() or (origin <= -lengths).any() or (origin >= 2 * lengths).any():
        return None
    i, j, k = (origin - 1).tolist()
    return i, j, k


def read_affine(header: NiftiHeader, options: ScanOptions) -> PlacedAffine:
    """Return the affine in millimeters that the options select, and the findings about it.

    Raises:
        SourceError: no affine of the file is possible, or the options refuse it.
    """
    lengths = np.asarray(header.shape[::-1])
    fields, negative = _with_positive_sizes(header.fields)
    is_nifti = isinstance(fields, Nifti1Header)
    unit, scale = _unit(int(fields["xyzt_units"])) if is_nifti else ((), 1.0)
    has_sform, has_qform = (is_nifti and fields[code] > 0 for code in ("sform_code", "qform_code"))
    # Both codes above 0: the standard allows both and does not rank them (NIfTI-1.1, "orientation").
    if has_sform and has_qform:
        affine, findings = _choose_affine(fields, lengths, options, scale)
        findings = (*negative * (options.sform_qform == "qform"), *findings)
    elif has_sform:
        affine, findings = _sform(fields), ()
    elif has_qform:
        affine, findings = _qform(fields), negative
    else:
        affine, findings = _unoriented(fields, lengths, options)
        findings = (*negative, *findings)
    return _in_mm(affine, scale), (*findings, *unit)


def _in_mm(affine: AffineMatrix, scale: float) -> AffineMatrix:
    scaled = affine.copy()
    scaled[:3] *= scale
    return scaled


def _with_positive_sizes(fields: NibabelHeader) -> tuple[NibabelHeader, tuple[Finding, ...]]:
    """Return a copy with positive voxel sizes, as the standard requires, and with a qfac that is not 0."""
    fields = fields.copy()
    sizes = fields["pixdim"][1:4]
    negative = bool((sizes < 0).any())
    detail = f"{' x '.join(f'{size:g}' for size in sizes)}; the sign is dropped"
    dropped = Finding.corrected(FindingName.NEGATIVE_VOXEL_SIZE, detail)
    fields["pixdim"][1:4] = np.abs(sizes)
    if fields["pixdim"][0] == 0:
        fields["pixdim"][0] = 1  # the standard interprets 0 as 1
    return fields, (dropped,) * negative


def _unit(code: int) -> tuple[tuple[Finding, ...], float]:
    """Return the finding about the unit of length, if any, and its size in millimeters."""
    code &= 7  # the other bits are the unit of time
    if code in NIFTI_UNITS_MM:
        name, scale = NIFTI_UNITS_MM[code]
        return (converted_unit_finding(name),), scale
    if code not in (UNIT_UNKNOWN, UNIT_MM):
        detail = f"code {code} is not in the standard; millimeters are assumed"
        return (Finding.noted(FindingName.LENGTH_UNIT_UNKNOWN, detail),), 1.0
    return (), 1.0


def _sform(fields: NibabelHeader) -> AffineMatrix:
    return np.asarray(fields.get_sform(), np.float64)


def _qform(fields: NibabelHeader) -> AffineMatrix:
    try:
        with np.errstate(all="ignore"):
            return np.asarray(fields.get_qform(), np.float64)
    except (HeaderDataError, ValueError) as error:
        quaternion = ", ".join(f"{float(fields[name]):g}" for name in ("quatern_b", "quatern_c", "quatern_d"))
        detail = f"quaternion {quaternion} with qfac {float(fields['pixdim'][0]):g}"
        raise SourceError("decode", "qform is no rotation", detail) from error


def _choose_affine(
    fields: NibabelHeader, lengths: NDArray[Any], options: ScanOptions, scale: float
) -> PlacedAffine:
    """Choose between the sform and the qform; return a finding if they disagree.

    Raises:
        SourceError: neither is possible; or they disagree, and the options refuse that.
    """
    used, other_name = ("qform", "sform") if options.sform_qform == "qform" else ("sform", "qform")
    affine, fault = _checked(used, fields, scale)
    other, other_fault = _checked(other_name, fields, scale)
    if affine is None:  # the other one is used, whatever the options prefer
        if other is None:
            raise fault or AssertionError("an affine exists or has a fault")
        affine, other, fault, other_fault = other, affine, other_fault, fault
        used, other_name = other_name, used
    if other is None:
        detail = f"the {other_name} is invalid ({other_fault and other_fault.reason})"
        cure = f"--sform-qform {used} takes the {used}"
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            distance = _max_corner_distance(affine, other, lengths)
            allowed = DISAGREEMENT * float(np.linalg.norm(affine[:3, :3], axis=0).min())
        # Rounding in float32 moves corners by less; a program that forgot one of the two moves them by more.
        if distance <= allowed:
            return affine, ()
        detail = f"they differ by {distance:.3g} at a corner"
        cure = "--sform-qform sform or qform says which counts"
    if options.sform_qform == "refuse":
        raise SourceError("decode", "sform and qform disagree", f"{detail}; {cure}")
    return affine, (Finding.noted(FindingName.SFORM_AND_QFORM_DISAGREE, f"{detail}; the {used} is used"),)


def _checked(
    name: str, fields: NibabelHeader, scale: float
) -> tuple[AffineMatrix | None, SourceError | None]:
    """Return an affine of a header, or the error that makes it impossible; `scale` is its unit in millimeters."""
    try:
        affine = _sform(fields) if name == "sform" else _qform(fields)
        check_affine(_in_mm(affine, scale))
    except SourceError as error:
        return None, error
    return affine, None


def _max_corner_distance(one: AffineMatrix, other: AffineMatrix, lengths: NDArray[Any]) -> float:
    """Return the largest distance between the positions of a corner of the volume under two affines."""
    corners = np.array([(*corner, 1) for corner in itertools.product(*((0, side - 1) for side in lengths))])
    return float(np.linalg.norm((corners @ (one - other).T)[:, :3], axis=1).max())


def _unoriented(fields: NibabelHeader, lengths: NDArray[Any], options: ScanOptions) -> PlacedAffine:
    """Return the affine of a file without orientation: the center of the volume, or SPM's origin, is at 0."""
    side, sign = first_axis_side("sform and qform code are 0", options)
    sizes = fields["pixdim"][1:4].astype(np.float64) * (sign, 1, 1)
    origin = spm_origin(fields) or (lengths - 1) / 2
    affine = affine_matrix(np.diag(sizes), -np.asarray(origin) * sizes)
    axes = f"the axes run to the {side}, to anterior and to superior"
    return affine, (orientation_finding(f"taken to be {options.unoriented}: {axes}"),)


def open_nifti(files: SourceFiles, path: str, options: ScanOptions) -> VolumeFile:
    """Open a NIfTI or Analyze file by its header. The content, not the name, shows its kind and its compression.

    Axis i becomes width, j height, k depth; time, vector components and colors become channels.
    """
    stem, extension, suffix = split_name(path)
    # A pair may be named by either of its files.
    if extension.lower() == ".img":
        header_path, header_data = _partner(files, stem, ".hdr", extension, suffix)
    else:
        header_path, header_data = path, files.read(path)
    header = parse_header(
        read_start(header_data, NIFTI_HEADER_BYTES),
        options.max_voxels,
        may_be_analyze=extension.lower() in (".hdr", ".img"),
    )
    placed = read_affine(header, options)
    image_path, data = header_path, header_data
    # The voxels of a pair and of Analyze are in the .img file.
    if header.kind != "single":
        if extension.lower() == ".img":
            image_path, data = path, files.read(path)
        else:
            image_path, data = _partner(files, stem, ".img", extension, suffix)
    # Names are in extensions between the header and the voxels.
    has_names = header.kind == "single" and header.offset > header.fields.sizeof_hdr + 4
    start = read_start(data, header.offset) if has_names and header.offset <= MAX_EXTENSION_BYTES else b""
    return volume_file(
        header,
        placed,
        content_of(data),
        (header_path, image_path),
        findings=header.findings,
        segments=nifti_segments(start, header.offset, header.fields.sizeof_hdr),
    )


def split_name(path: str) -> tuple[str, str, str]:
    """Split a path into the path without extension, the extension, and ".gz" or "".

    >>> split_name("a/b.v2.nii.gz")
    ('a/b.v2', '.nii', '.gz')
    """
    suffix = path[-3:] if path.lower().endswith(".gz") else ""
    rest = path.removesuffix(suffix)
    folder, slash, name = rest.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    return (folder + slash + stem, dot + extension, suffix) if dot else (rest, "", suffix)


def _partner(files: SourceFiles, stem: str, wanted: str, extension: str, suffix: str) -> tuple[str, bytes]:
    """Read the other file of a pair; return its path and bytes.

    Its extension is upper case if that of the first file is. A compressed first file gives preference to a compressed
    partner, but the partner may also be the opposite.

    Args:
        files: the source that holds the files.
        stem: path of the first file without extension.
        wanted: extension of the other file in lower case.
        extension: extension of the first file.
        suffix: ".gz" if the first file is compressed, else "".

    Raises:
        SourceError: there is no such file.
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
    names = " and ".join(name.rpartition("/")[2] for name in candidates)
    detail = f"{names}: {failure.detail if failure else ''}"
    raise SourceError("read", f"the {wanted.lower()} file with the {kind} is missing", detail) from failure


def write_nifti(path: Path, voxels: NDArray[Any], affine: ArrayLike) -> None:
    """Save voxels as a gzipped NIfTI-1 file, see `nifti_bytes`.

    Args:
        path: path *.nii.gz; equal voxels give equal bytes.
    """
    with open_path(create_replacing(path), "wb") as file:
        _write_nifti(file, voxels, affine)


def nifti_bytes(voxels: NDArray[Any], affine: ArrayLike) -> bytes:
    """Return voxels as a gzipped NIfTI-1 file.

    Args:
        voxels: [depth, height, width] or [depth, height, width, channel], the slowest axis of the file first.
        affine: [4, 4], from (depth, height, width, 1) to the patient's millimeters in RAS+.
    """
    stream = io.BytesIO()
    _write_nifti(stream, voxels, affine)
    return stream.getvalue()


def _write_nifti(file: IO[bytes], voxels: NDArray[Any], affine: ArrayLike) -> None:
    order = (2, 1, 0) if voxels.ndim == 3 else (2, 1, 0, 3)
    image = Nifti1Image(
        voxels.transpose(order), np.asarray(affine, np.float64).reshape(4, 4)[:, _AXES_OF_FILE]
    )
    image.header.set_xyzt_units("mm")
    with gzip.GzipFile("", "wb", 6, file, mtime=0) as stream:
        image.to_stream(stream)
