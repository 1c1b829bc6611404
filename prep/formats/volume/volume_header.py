"""What a header says of the voxels of a file, and the bytes that hold them.

Which affines can be those of a volume, and what is said of files that give none?

Everything here is in the file's order, voxel (i, j, k) to millimeters to right, anterior and superior, until a grid
is made.
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
from halofeed.prep.formats.volume.streams import MAGIC, ByteStream, GzipStream, PlainStream
from halofeed.prep.geometry.scan import Finding, Grid, Shape


@dataclass(frozen=True, kw_only=True)
class StoredVoxels:
    """How the voxels of a file are stored.

    Args:
        shape: (depth, height, width): the lengths of the axes k, j, i.
        channels: the length of the axis of time, of vectors or of colors.
        interleaved: the channels of a voxel lie side by side; otherwise one volume after the other.
        dtype: of one stored value, in the file's byte order.
        offset: where the first value stands in the content, in bytes.
        slope, inter: a value is `stored * slope + inter`.
    """

    shape: Shape
    channels: int
    interleaved: bool
    dtype: np.dtype[Any]
    offset: int
    slope: float = 1.0
    inter: float = 0.0

    @property
    def rescales(self) -> bool:
        """Whether any value is another than the stored one."""
        return (self.slope, self.inter) != (1.0, 0.0)

    @property
    def value_count(self) -> int:
        """Voxels times channels."""
        return math.prod(self.shape) * self.channels

    @property
    def voxel_bytes(self) -> int:
        """The bytes of all values."""
        return self.value_count * self.dtype.itemsize

    @property
    def slice_bytes(self) -> int:
        """The bytes of one slice of one channel: the least that is a sign of a wrong header if it is left over."""
        parts = self.channels if self.interleaved else 1
        return self.shape[1] * self.shape[2] * parts * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Content:
    """The bytes of a file, of which those from `start` on are voxels once they are unpacked."""

    data: bytes
    start: int = 0
    unpack: Callable[[bytes, int], ByteStream] = PlainStream

    def open(self) -> ByteStream:
        """The unpacked bytes from the first on."""
        return self.unpack(self.data, self.start)

    @property
    def is_plain(self) -> bool:
        """Whether the bytes are stored as they are."""
        return self.unpack is PlainStream

    @property
    def packed_bytes(self) -> int:
        """How many bytes hold the voxels."""
        return len(self.data) - self.start


def content_of(data: bytes) -> Content:
    """The content of a file, compressed if it begins as gzip does."""
    return Content(data=data, unpack=GzipStream if data.startswith(MAGIC) else PlainStream)


def damaged_header(detail: str) -> SourceError:
    """The error of a header that contradicts itself or the standard."""
    return SourceError("decode", "header is damaged", detail)


def check_voxel_count(lengths: Sequence[int], parts: int, max_voxels: int) -> None:
    """Refuse a header that claims too many values.

    Raises:
        SourceError: voxels of so many parts are more values than are allowed.
    """
    count = math.prod(lengths) * parts
    if count > max_voxels:
        claimed = f"{' x '.join(map(str, lengths))} voxels of {parts} values"
        detail = f"{claimed}; allowed are {max_voxels} in all; --max-voxels {count} allows it"
        raise SourceError("decode", "more voxels than allowed", detail)


Affine = NDArray[np.float64]
SHEAR_DEGREES = 0.1
SMALLEST_MM, LARGEST_MM = 1e-6, 1e6
"""Of a voxel's side; the farthest that a volume may lie from the origin is `LARGEST_MM` too."""
FLATTEST = 1e-4
"""The volume of a voxel, divided by that of a brick with the same sides; less is a plane."""
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


def grid_of(shape: Shape, affine: Affine) -> tuple[Grid, tuple[Finding, ...]]:
    """The grid [depth, height, width] of a volume, and what is odd about it.

    Raises:
        SourceError: no volume can have this affine.
    """
    check_affine(affine)
    shear = _shear_degrees(affine)
    sheared = Finding.noted("sheared axes", f"the axes meet at {90 - shear:.2f} degrees, not at 90")
    grid = Grid(shape=shape, affine=np.ascontiguousarray(affine[:, [2, 1, 0, 3]]))
    return grid, (sheared,) * (shear > SHEAR_DEGREES)


def converted_unit_finding(name: str) -> Finding:
    """Lengths are turned into millimeters."""
    return Finding.corrected("unit of length is not mm", f"lengths in {name} are turned into millimeters")


def orientation_error(cause: str) -> SourceError:
    """The error of a file that does not say how it lies in the patient, where that is to be refused."""
    cure = "--unoriented radiological or neurological says whether its first axis runs to the left or right"
    return SourceError("decode", "file does not say how it lies in the patient", f"{cause}; {cure}")


def orientation_finding(detail: str) -> Finding:
    """A file does not say how it lies in the patient."""
    return Finding.noted("no orientation given", detail)


def orient_as_itk(affine: Affine, cause: str, options: ScanOptions) -> tuple[Affine, tuple[Finding, ...]]:
    """The affine of a file whose numbers say how it lies in a space that nothing ties to the patient.

    ITK, and with it SimpleITK and 3D Slicer, takes that space's axes to run to the left, to posterior and to superior.

    Args:
        affine: to right, anterior, superior, if ITK is right.
        cause: what the file lacks.

    Raises:
        SourceError: this is to be refused.
    """
    if options.unoriented == "refuse":
        raise orientation_error(cause)
    if options.unoriented == "neurological":
        affine = np.diag([-1.0, 1.0, 1.0, 1.0]) @ affine
    side = "left" if options.unoriented == "radiological" else "right"
    taken = f"taken to be {options.unoriented}: space runs to the {side}, to posterior and to superior"
    return affine, (orientation_finding(f"{cause}; {taken}"),)


def check_affine(affine: Affine) -> None:
    """Refuse an affine, in millimeters, that no volume can have.

    Raises:
        SourceError: it is not finite, singular, or of impossible sizes.
    """
    if not np.isfinite(affine).all():
        raise SourceError("decode", "affine is not finite", _figures(affine))
    with np.errstate(over="ignore"):  # a side beyond all bounds is refused below
        sides = np.linalg.norm(affine[:3, :3], axis=0)
    if not sides.all():
        raise SourceError("decode", "voxel size is zero", _figures(affine))
    if sides.min() < SMALLEST_MM or sides.max() > LARGEST_MM:
        detail = f"sides of {' x '.join(f'{side:.3g}' for side in sides)} mm"
        raise SourceError("decode", "voxel size is impossible", detail)
    if abs(np.linalg.det(affine[:3, :3] / sides)) < FLATTEST:
        raise SourceError("decode", "affine is singular", _figures(affine))
    if np.abs(affine[:3, 3]).max() > LARGEST_MM:
        raise damaged_header(f"the first voxel lies {np.abs(affine[:3, 3]).max():.3g} mm from the origin")


def _figures(affine: Affine) -> str:
    return "; ".join(" ".join(f"{value:.6g}" for value in row) for row in affine[:3])


def _shear_degrees(affine: Affine) -> float:
    """How far two of the axes are from a right angle, at most."""
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    cosines = np.abs(axes.T @ axes)[np.triu_indices(3, 1)]
    return float(np.degrees(np.arcsin(np.clip(cosines.max(), 0, 1))))
