"""Headers of volume files: checked values, their errors, and text headers.

`StoredVoxels` and `Content` say how and where voxels are stored. `Fields`, and the parsers below it, read the text
headers of NRRD and MetaImage. Affines map a voxel (i, j, k) in the file's order to millimeters to the right, anterior
and superior; `grid_of` turns them into a grid [depth, height, width].
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.streams import (
    COPY_AGAIN,
    DecodedStream,
    PlainStream,
    unpacker_of,
)
from halofeed.prep.geometry.scan import Finding, Grid, VolumeShape
from halofeed.prep.sources.example import MAX_HEADER_BYTES, parse_data_file, resolve_data_path
from halofeed.prep.sources.file_names import FormatExtensions
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

AffineMatrix = NDArray[np.float64]
PlacedAffine = tuple[AffineMatrix, tuple[Finding, ...]]
"""An affine, and the findings about it."""
SHEAR_DEGREES = 0.1
MIN_SIDE_MM, MAX_SIDE_MM = 1e-6, 1e6
"""Limits on the side of a voxel. `MAX_SIDE_MM` also limits the distance of the volume from the origin."""
MIN_VOLUME_RATIO = 1e-4
"""Smallest ratio between the volume of a voxel and that of a box with the same sides; below it, axes are coplanar."""
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


@dataclass(frozen=True, kw_only=True)
class StoredVoxels:
    """Storage format of the voxels of a file.

    Args:
        shape: (depth, height, width), the lengths of the axes k, j, i.
        channels: length of the axis of time, of vectors or of colors.
        interleaved: whether the channels of a voxel are adjacent; otherwise the file stores one volume per channel.
        dtype: dtype of a stored value, in the file's byte order.
        offset: offset of the first value in the content, in bytes.
        slope, inter: rescaling: value = `stored * slope + inter`.
        has_trailer: whether data of any length may follow the voxels.
        step: largest step of values that the content has rescaled slice by slice; 0 if it holds them as stored.
    """

    shape: VolumeShape
    channels: int
    interleaved: bool
    dtype: np.dtype[Any]
    offset: int
    slope: float = 1.0
    inter: float = 0.0
    has_trailer: bool = False
    step: float = 0.0

    @property
    def rescales(self) -> bool:
        """True if values differ from the stored ones."""
        return (self.slope, self.inter) != (1.0, 0.0)

    @property
    def value_count(self) -> int:
        """Number of voxels times channels."""
        return math.prod(self.shape) * self.channels

    @property
    def voxel_bytes(self) -> int:
        """Size of all values in bytes."""
        return self.value_count * self.dtype.itemsize

    @property
    def slice_bytes(self) -> int:
        """Size of one slice; so many bytes left over show that the header is wrong."""
        parts = self.channels if self.interleaved else 1
        return self.shape[1] * self.shape[2] * parts * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Content:
    """Bytes of a file; those from `start` on unpack to voxels, which takes `working_bytes` of memory besides."""

    data: bytes
    start: int = 0
    unpack: Callable[[bytes, int], DecodedStream] = PlainStream
    working_bytes: int = 0

    def open(self) -> DecodedStream:
        """Return a stream of the unpacked bytes."""
        return self.unpack(self.data, self.start)

    @property
    def is_plain(self) -> bool:
        """True if the bytes are not compressed."""
        return self.unpack is PlainStream

    @property
    def held_bytes(self) -> int:
        """Number of bytes in memory until the voxels are read."""
        return len(self.data) + self.working_bytes

    @property
    def packed_bytes(self) -> int:
        """Number of bytes that hold the voxels."""
        return len(self.data) - self.start


def content_of(data: bytes) -> Content:
    """Return the content of a file, which is gzip or zstd if it begins with their magic bytes."""
    return Content(data=data, unpack=unpacker_of(data))


def damaged_header(detail: str) -> SourceError:
    """Return the error for a header that contradicts itself or the standard."""
    return SourceError("decode", "header is damaged", detail)


def wrong_format(expected: str, data: bytes) -> SourceError:
    """Return the error for a file that does not begin as its format requires, such as "an NRRD file"."""
    detail = f"begins with {data[:8].hex(' ') or 'nothing'}; {COPY_AGAIN}"
    return SourceError("decode", f"not {expected}", detail)


def truncated_header(start: bytes, byte_count: int) -> SourceError:
    """Return the error for a file that ends within its header of `byte_count` bytes."""
    detail = f"{plural(len(start), 'byte')} of a header of {byte_count}"
    return SourceError("decode", "file is truncated", detail)


def unsupported_type(detail: str) -> SourceError:
    """Return the error for voxels of a type that no reader supports."""
    return SourceError("decode", "voxels of this type are not supported", detail)


def too_many_axes(lengths: Sequence[int], parts: int) -> SourceError:
    """Return the error for a file with axes besides those of space and of channels."""
    detail = f"{_format_voxels(lengths, parts)}; store one volume per file"
    return SourceError("decode", "more axes than an image with channels has", detail)


def _format_voxels(lengths: Sequence[int], parts: int) -> str:
    return f"axes of {' x '.join(map(str, lengths))} voxels of {plural(parts, 'value')}"


def check_voxel_count(lengths: Sequence[int], parts: int, max_voxels: int) -> None:
    """Refuse a header that claims no values, or too many.

    Args:
        lengths: lengths of the axes.
        parts: values per voxel.
        max_voxels: limit on the number of values.

    Raises:
        SourceError: an axis is empty, or there are more values than the limit.
    """
    if min(*lengths, parts) < 1:
        raise damaged_header(f"{_format_voxels(lengths, parts)}; expected at least 1 along each")
    count = math.prod(lengths) * parts
    if count > max_voxels:
        claimed = _format_voxels(lengths, parts)
        detail = f"{claimed}; allowed are {max_voxels} in all; --max-voxels {count} allows it"
        raise SourceError("decode", "more voxels than allowed", detail)


def grid_of(shape: VolumeShape, affine: AffineMatrix) -> tuple[Grid, tuple[Finding, ...]]:
    """Return the grid [depth, height, width] of a volume, and a finding if its axes are sheared.

    Raises:
        SourceError: the affine is impossible.
    """
    check_affine(affine)
    shear = _shear_degrees(affine)
    sheared = Finding.noted(FindingName.SHEARED_AXES, f"the axes meet at {90 - shear:.2f} degrees, not at 90")
    grid = Grid(shape=shape, affine=np.ascontiguousarray(affine[:, [2, 1, 0, 3]]))
    return grid, (sheared,) * (shear > SHEAR_DEGREES)


def converted_unit_finding(name: str) -> Finding:
    """Return the finding that lengths were converted into millimeters."""
    return Finding.corrected(FindingName.LENGTH_UNIT_NOT_MM, f"lengths in {name} are turned into millimeters")


def first_axis_side(cause: str, options: ScanOptions) -> tuple[str, float]:
    """Return the side to which the first axis of a file without orientation runs by the options, and its sign.

    Args:
        cause: what the file lacks, for messages.
        options: options with the choice `unoriented`.

    Raises:
        SourceError: the options refuse such files.
    """
    # Left and right of such a file are a guess, which the user may forbid.
    if options.unoriented == "refuse":
        cure = (
            "--unoriented radiological or neurological says whether its first axis runs to the left or right"
        )
        raise SourceError("decode", "file does not say how it lies in the patient", f"{cause}; {cure}")
    return ("left", -1.0) if options.unoriented == "radiological" else ("right", 1.0)


def orientation_finding(detail: str) -> Finding:
    """Return the finding that a file has no orientation in the patient."""
    return Finding.noted(FindingName.NO_ORIENTATION, detail)


def orient_as_itk(affine: AffineMatrix, cause: str, options: ScanOptions) -> PlacedAffine:
    """Orient a file whose space has no stated relation to the patient, as ITK does or as the options require.

    ITK, SimpleITK and 3D Slicer assume that the axes of such a space run to the left, posterior and superior.

    Args:
        affine: affine to millimeters to the right, anterior and superior, under the assumption of ITK.
        cause: what the file lacks, for messages.
        options: options with the choice `unoriented`.

    Returns:
        The affine and the finding.

    Raises:
        SourceError: the options refuse such files.
    """
    side, sign = first_axis_side(cause, options)
    if sign > 0:  # neurological: the first axis runs to the right
        affine = np.diag([-1.0, 1.0, 1.0, 1.0]) @ affine
    taken = f"taken to be {options.unoriented}: space runs to the {side}, to posterior and to superior"
    return affine, (orientation_finding(f"{cause}; {taken}"),)


def check_affine(affine: AffineMatrix) -> None:
    """Refuse an impossible affine.

    Raises:
        SourceError: the affine, in millimeters, is not finite, is singular, or has impossible voxel sizes.
    """
    if not np.isfinite(affine).all():
        raise SourceError("decode", "affine is not finite", _format_affine(affine))
    with np.errstate(over="ignore"):  # an infinite side is refused below
        sides = np.linalg.norm(affine[:3, :3], axis=0)
    if not sides.all():
        cure = "write the sizes into the header, such as by nibabel's set_sform"
        raise SourceError("decode", "voxel size is zero", f"{_format_affine(affine)}; {cure}")
    # Units that were mixed up, or damaged numbers: no scanner has such voxels.
    if sides.min() < MIN_SIDE_MM or sides.max() > MAX_SIDE_MM:
        detail = f"sides of {' x '.join(f'{side:.3g}' for side in sides)} mm"
        raise SourceError("decode", "voxel size is impossible", detail)
    # Axes in one plane: no position belongs to one voxel.
    if abs(np.linalg.det(affine[:3, :3] / sides)) < MIN_VOLUME_RATIO:
        raise SourceError("decode", "affine is singular", _format_affine(affine))
    # A kilometer away: damaged numbers.
    if np.abs(affine[:3, 3]).max() > MAX_SIDE_MM:
        raise damaged_header(f"the first voxel lies {np.abs(affine[:3, 3]).max():.3g} mm from the origin")


def _format_affine(affine: AffineMatrix) -> str:
    return "; ".join(" ".join(f"{value:.6g}" for value in row) for row in affine[:3])


def _shear_degrees(affine: AffineMatrix) -> float:
    """Return the largest deviation of two axes from a right angle."""
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    cosines = np.abs(axes.T @ axes)[np.triu_indices(3, 1)]
    return float(np.degrees(np.arcsin(np.clip(cosines.max(), 0, 1))))


MAX_HEADER_AXES = 16
TEXT_UNITS_MM = {
    **dict.fromkeys(("mm", "millimeter", "millimeters", "millimetre"), 1.0),
    **dict.fromkeys(("cm", "centimeter", "centimeters"), 10.0),
    **dict.fromkeys(("m", "meter", "meters"), 1000.0),
    **dict.fromkeys(("um", "µm", "μm", "micron", "microns", "micrometer", "micrometers"), 0.001),
}


def header_lines(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield each line of the first `MAX_HEADER_BYTES` bytes of a file, and the offset of the next line.

    The last line may be cut off, and it may be binary data.
    """
    start, limit = 0, min(len(data), MAX_HEADER_BYTES)
    while start < limit:
        end = data.find(b"\n", start, limit) + 1 or limit
        yield data[start:end].decode("utf-8", "surrogateescape").rstrip(), end
        start = end


class Fields(dict[str, str]):
    """Fields of a header by name, with their text."""

    def add(self, name: str, written: str) -> None:
        """Add a field; raise SourceError if the header has it already."""
        if name in self:
            raise damaged_header(f"{quote(name)} occurs twice")
        self[name] = written

    def first(self, *names: str) -> str | None:
        """Return the value of a field with several names, None if absent; raise SourceError if two names differ."""
        values = {self[name] for name in names if name in self}
        if len(values) > 1:
            raise damaged_header(
                f"{' and '.join(name for name in names if name in self)} have different values"
            )
        return next(iter(values), None)

    def needed(self, name: str) -> str:
        """Return the value of a required field; raise SourceError if it is absent."""
        if name not in self:
            raise damaged_header(f"{name} is missing")
        return self[name]


def quote(written: str) -> str:
    """Return the text of a header in quotation marks, shortened for a message."""
    return repr(written if len(written) <= 60 else written[:57] + "...")


def parse_integer(name: str, written: str, least: int, most: int) -> int:
    """Parse an integer within bounds; raise SourceError for any other text."""
    (value,) = parse_integers(name, written, 1, least, most)
    return value


def parse_integers(name: str, written: str, count: int, least: int, most: int) -> list[int]:
    """Parse `count` integers within bounds; raise SourceError for any other text."""
    words = written.split()
    if len(words) != count or not all(re.fullmatch(r"[-+]?[0-9]{1,19}", word) for word in words):
        raise damaged_header(
            f"{name}: expected {count} whole number{'s' * (count > 1)}, got {quote(written)}"
        )
    values = [int(word) for word in words]
    if min(values) < least or max(values) > most:
        raise damaged_header(f"{name}: expected numbers from {least}, got {quote(written)}")
    return values


def parse_numbers(name: str, written: str, count: int, *, finite: bool = True) -> list[float]:
    """Parse `count` numbers; raise SourceError for any other text."""
    words = written.split()
    try:
        # Python allows underscores in numbers, the formats do not.
        values = [float(word) for word in words[: count + 1] if "_" not in word]
    except ValueError:
        values = []
    if len(values) != count or (finite and not all(map(math.isfinite, values))):
        raise damaged_header(f"{name}: expected {count} numbers, got {quote(written)}")
    return values


def check_voxel_sides(name: str, sides: list[float]) -> list[float]:
    """Return the sides of a voxel; raise SourceError if one is negative, which may be a mistake or a flipped axis."""
    if min(sides) < 0:
        detail = f"{name} {' '.join(f'{side:g}' for side in sides)}; a direction says where an axis runs to"
        raise SourceError("decode", "voxel size is negative", detail)
    return sides


def unit_scale(units: list[str]) -> tuple[float, tuple[Finding, ...]]:
    """Return the size of the common unit in millimeters, and a finding if lengths are converted or it is unknown.

    Raises:
        SourceError: the axes of space have different units.
    """
    named = sorted({unit for unit in units if unit not in ("", "?", "??", "???")})
    # Without a unit, lengths are millimeters: all these formats come from medicine.
    if not named:
        return 1.0, ()
    scales = {TEXT_UNITS_MM.get(unit.lower()) for unit in named}
    # An oblique axis is a mixture of two units then.
    if len(scales) > 1:
        raise SourceError("decode", "axes have several units", f"{' and '.join(map(quote, named))}")
    scale = scales.pop()
    if scale is None:
        detail = f"{quote(named[0])} is not a known unit; millimeters are assumed"
        return 1.0, (Finding.noted(FindingName.LENGTH_UNIT_UNKNOWN, detail),)
    return scale, (converted_unit_finding(named[0]),) * (scale != 1.0)


def find_voxel_file(
    files: SourceFiles, path: str, header: bytes, end: int, written: str | None, names: FormatExtensions
) -> tuple[tuple[str, ...], bytes, int]:
    """Find the file with the voxels: the file of the header or another one that the header names.

    Args:
        files: the source that holds the files.
        path: path of the file with the header.
        header: bytes of the file with the header.
        end: offset of the first byte after the header.
        written: name of the file with the voxels in the header; None if the header names none.
        names: file extensions of the format.

    Returns:
        The paths of all files of the volume, the bytes of the file with the voxels, and the offset of the data in it.

    Raises:
        SourceError: there is no such file; or the header names one although its own extension does not announce that,
            so the conversion did not list the file.
    """
    found = None if written is None else resolve_data_path(written, path)
    # The listing of a source finds pairs of files by their names alone, before any header is read.
    if written is not None and found != parse_data_file(header, path):
        cure = f"name it {' or '.join(names.headers)}, or save it with its voxels in one file"
        raise SourceError("read", "voxels lie in another file than the name says", cure)
    return ((path,), header, end) if found is None else ((path, found), files.read(found), 0)
