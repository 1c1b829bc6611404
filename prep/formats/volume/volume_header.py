"""Checked values of a volume's header: storage of the voxels, their bytes, and the affine.

Affines here map a voxel (i, j, k) in the file's order to millimeters to the right, anterior and superior. `grid_of`
turns them into a grid [depth, height, width].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.streams import GZIP_MAGIC, DecodedStream, GzipStream, PlainStream
from halofeed.prep.geometry.scan import Finding, Grid, VolumeShape
from halofeed.schemas.findings import FindingName
from halofeed.system.wording import plural

AffineMatrix = NDArray[np.float64]
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
    """

    shape: VolumeShape
    channels: int
    interleaved: bool
    dtype: np.dtype[Any]
    offset: int
    slope: float = 1.0
    inter: float = 0.0
    has_trailer: bool = False

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
    """Return the content of a file, which is gzip if it begins with the magic bytes of gzip."""
    return Content(data=data, unpack=GzipStream if data.startswith(GZIP_MAGIC) else PlainStream)


def damaged_header(detail: str) -> SourceError:
    """Return the error for a header that contradicts itself or the standard."""
    return SourceError("decode", "header is damaged", detail)


def check_voxel_count(lengths: Sequence[int], parts: int, max_voxels: int) -> None:
    """Refuse a header that claims too many values.

    Args:
        lengths: lengths of the axes.
        parts: values per voxel.
        max_voxels: limit on the number of values.

    Raises:
        SourceError: there are more values than the limit.
    """
    count = math.prod(lengths) * parts
    if count > max_voxels:
        claimed = f"{' x '.join(map(str, lengths))} voxels of {plural(parts, 'value')}"
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


def orientation_error(cause: str) -> SourceError:
    """Return the error for a file without orientation in the patient, if the options refuse it."""
    cure = "--unoriented radiological or neurological says whether its first axis runs to the left or right"
    return SourceError("decode", "file does not say how it lies in the patient", f"{cause}; {cure}")


def orientation_finding(detail: str) -> Finding:
    """Return the finding that a file has no orientation in the patient."""
    return Finding.noted(FindingName.NO_ORIENTATION, detail)


def orient_as_itk(
    affine: AffineMatrix, cause: str, options: ScanOptions
) -> tuple[AffineMatrix, tuple[Finding, ...]]:
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
    if options.unoriented == "refuse":
        raise orientation_error(cause)
    if options.unoriented == "neurological":
        affine = np.diag([-1.0, 1.0, 1.0, 1.0]) @ affine
    side = "left" if options.unoriented == "radiological" else "right"
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
    if sides.min() < MIN_SIDE_MM or sides.max() > MAX_SIDE_MM:
        detail = f"sides of {' x '.join(f'{side:.3g}' for side in sides)} mm"
        raise SourceError("decode", "voxel size is impossible", detail)
    if abs(np.linalg.det(affine[:3, :3] / sides)) < MIN_VOLUME_RATIO:
        raise SourceError("decode", "affine is singular", _format_affine(affine))
    if np.abs(affine[:3, 3]).max() > MAX_SIDE_MM:
        raise damaged_header(f"the first voxel lies {np.abs(affine[:3, 3]).max():.3g} mm from the origin")


def _format_affine(affine: AffineMatrix) -> str:
    return "; ".join(" ".join(f"{value:.6g}" for value in row) for row in affine[:3])


def _shear_degrees(affine: AffineMatrix) -> float:
    """Return the largest deviation of two axes from a right angle."""
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    cosines = np.abs(axes.T @ axes)[np.triu_indices(3, 1)]
    return float(np.degrees(np.arcsin(np.clip(cosines.max(), 0, 1))))
