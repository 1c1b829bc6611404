"""Scans and masks whose header was read: their grid in the patient's space, findings and provenance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halofeed.schemas.findings import FindingName

VolumeShape = tuple[int, int, int]
Triple = tuple[float, float, float]
GRID_TOLERANCE_VOXELS = 0.05
"""Default tolerance, as a fraction of a voxel, between the grids of two files: writers round affines differently."""
MAX_GRID_TOLERANCE_VOXELS = 0.5
OverlapRule = Literal["refuse", "last", "first", "channels"]
"""Handling of voxels in several classes. "refuse": reject the file. "last" or "first": keep that class. "channels":
keep all; each class is a set with one member (`halofeed.schemas.fields`), and a voxel is the union of its sets."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Position of the voxels of a volume in the patient's space.

    Args:
        shape: (depth, height, width).
        affine: float64 [4, 4], maps the center of voxel (depth, height, width, 1) to millimeters (right, anterior,
            superior, 1).
    """

    shape: VolumeShape
    affine: NDArray[np.float64]

    @property
    def spacing_mm(self) -> Triple:
        """Distance between neighbors along depth, height and width."""
        depth, height, width = np.linalg.norm(self.affine[:3, :3], axis=0).tolist()
        return depth, height, width

    def to_mm(self, voxels: NDArray[Any]) -> NDArray[np.float64]:
        """Convert points [..., 3] from voxels to millimeters."""
        return np.asarray(voxels, np.float64) @ self.affine[:3, :3].T + self.affine[:3, 3]


def affine_matrix(axes: ArrayLike, origin_mm: ArrayLike = (0.0, 0.0, 0.0)) -> NDArray[np.float64]:
    """Return the affine [4, 4] of a volume.

    Args:
        axes: [3, 3], for each axis of the voxels the step to the next voxel in millimeters.
        origin_mm: position of the first voxel.

    >>> affine_matrix([[0, 0, 2.5], [0, 1, 0], [1, 0, 0]], [7, 8, 9])[:3].tolist()
    [[0.0, 0.0, 1.0, 7.0], [0.0, 1.0, 0.0, 8.0], [2.5, 0.0, 0.0, 9.0]]
    """
    affine = np.eye(4)
    affine[:3, :3] = np.transpose(axes)
    affine[:3, 3] = origin_mm
    return affine


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Fact about a scan that users need to know; the manifest counts findings by name.

    Args:
        name: name of all findings of this kind.
        treatment: "corrected": the voxels or the grid were changed; "noted": nothing was changed.
        detail: figures and action, without anything that identifies the patient.
    """

    name: FindingName
    treatment: Literal["corrected", "noted"]
    detail: str = ""

    @classmethod
    def corrected(cls, name: FindingName, detail: str) -> Finding:
        """Create a finding for which the voxels or the grid were changed."""
        return cls(name=name, treatment="corrected", detail=detail)

    @classmethod
    def noted(cls, name: FindingName, detail: str) -> Finding:
        """Create a finding for which nothing was changed."""
        return cls(name=name, treatment="noted", detail=detail)


@dataclass(frozen=True, kw_only=True)
class ScanIdentity:
    """Hashed identifiers of a DICOM scan, which a mask refers to.

    Args:
        series: hashes of the series UIDs.
        frames: hashes of the frame of reference UIDs.
        images: hashes of the image UIDs.
    """

    series: frozenset[bytes]
    frames: frozenset[bytes]
    images: frozenset[bytes]

    def __or__(self, other: ScanIdentity) -> ScanIdentity:
        """Merge the identifiers of scans that become channels of one example."""
        return ScanIdentity(
            series=self.series | other.series,
            frames=self.frames | other.frames,
            images=self.images | other.images,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Scan:
    """Volume whose header was read and checked.

    Args:
        grid: stored grid, in any orientation.
        channels: 1, or the size of the fourth axis.
        dtype: type of the array that `read` returns: the smallest that holds every rescaled value exactly.
        unit: "HU" if the values are certainly Hounsfield units, else "".
        modality: "CT", "MR" ..., or "" if the file has none.
        findings: corrections and other facts, in a fixed order.
        files: relative paths of the source files, sorted.
        read: function that returns the voxels [depth, height, width, channel]; it raises SourceError if the pixel data
            are damaged.
        held_bytes: bytes of files held until the scan is released.
        read_bytes: additional peak memory of `read`, with the voxels; 0 if these are a view of the file.
        origin: identifiers of a DICOM series; None for other files.
        slices: path of each slice along the depth, if each slice is a separate file; else ().
    """

    grid: Grid
    channels: int
    dtype: str
    unit: str
    modality: str
    findings: tuple[Finding, ...]
    files: tuple[str, ...]
    read: Callable[[], NDArray[Any]]
    held_bytes: int = 0
    read_bytes: int = 0
    origin: ScanIdentity | None = None
    slices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskScan:
    """Label volume whose header was read and checked.

    Args:
        grid: stored grid, in any orientation.
        names: class names by number, if the file has them (DICOM SEG, RTSTRUCT, Slicer's NRRD, label tables of NIfTI);
            else empty.
        values: voxel value of each named number, if other programs know these values too.
        codes: codes of each number, if the file has them, see `halofeed.prep.formats.dicom.mask_codes`.
        findings: see `Scan`.
        files: relative paths of the source files, sorted.
        read_classes: function for files that name their classes. Its arguments are the class id of each value, and the
            handling of voxels in several classes. It returns the ids [depth, height, width] and the number of
            voxels in several classes. Values with the same id do not overlap. With "channels" the ids are sets, and
            the number is 0. The id of value 0 is that of the ignore label.
        read: function that returns the class values [depth, height, width] as the smallest of uint8, uint16 and int32
            that holds them; 0 is the background. It raises SourceError if a value is not an integer.
        held_bytes: see `Scan`.
        read_bytes: see `Scan`.
        value_bytes: maximum bytes per value.
    """

    grid: Grid
    names: Mapping[int, str]
    findings: tuple[Finding, ...]
    files: tuple[str, ...]
    read: Callable[[], NDArray[Any]]
    read_classes: Callable[[Mapping[int, int], OverlapRule], tuple[NDArray[Any], int]] | None = None
    held_bytes: int = 0
    read_bytes: int = 0
    value_bytes: int = 4
    values: Mapping[int, int] = field(default_factory=dict)
    codes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def left_out_findings(names: Mapping[int, str], kept: Collection[int]) -> tuple[Finding, ...]:
    """Return the finding that lists the classes which the user's choice leaves out of a mask, if there are any."""
    others = [name for number, name in names.items() if number not in kept]
    return (Finding.noted(FindingName.CLASSES_LEFT_OUT, ", ".join(others[:20])),) if others else ()
