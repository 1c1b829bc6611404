"""What is known of a volume before its voxels are read: its grid in the patient, and what was found odd about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, int, int]
Triple = tuple[float, float, float]
SAME_GRID_VOXELS = 0.05
"""How far, as a share of a voxel, two files of one scan may lie apart: their writers round affines differently."""
LARGEST_TOLERANCE = 0.5
Overlap = Literal["refuse", "last", "first", "channels"]
"""What becomes of voxels in several classes: refused, or of the last or the first one, or of all: then each class is
given as the set that holds it alone (`halofeed.schemas.fields`), and a voxel is the union of its sets."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Where the voxels of a volume lie.

    Args:
        shape: (depth, height, width).
        affine: float64 [4, 4], voxel (depth, height, width, 1) at its center to millimeters (right, anterior,
            superior, 1).
    """

    shape: Shape
    affine: NDArray[np.float64]

    @property
    def spacing_mm(self) -> Triple:
        """The distance between neighbors along depth, height and width."""
        depth, height, width = np.linalg.norm(self.affine[:3, :3], axis=0).tolist()
        return depth, height, width

    def to_mm(self, voxels: NDArray[Any]) -> NDArray[np.float64]:
        """Points [..., 3] in voxels as points in millimeters."""
        return np.asarray(voxels, np.float64) @ self.affine[:3, :3].T + self.affine[:3, 3]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing about a scan that users need to know; the manifest counts findings by name.

    Args:
        name: the same words for the same thing, e.g. "gantry tilt".
        treatment: "corrected": the voxels or the grid were changed for it; "noted": nothing was changed.
        detail: the figures, and what was done; nothing that identifies the patient.
    """

    name: str
    treatment: Literal["corrected", "noted"]
    detail: str = ""

    @classmethod
    def corrected(cls, name: str, detail: str) -> Finding:
        """One for which the voxels or the grid were changed."""
        return cls(name=name, treatment="corrected", detail=detail)

    @classmethod
    def noted(cls, name: str, detail: str) -> Finding:
        """One for which nothing was changed."""
        return cls(name=name, treatment="noted", detail=detail)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What distinguishes a DICOM scan from others, as hashes; a mask refers to it.

    Args:
        series, frames, images: of the UIDs of its series, its frames of reference and its images.
    """

    series: frozenset[bytes]
    frames: frozenset[bytes]
    images: frozenset[bytes]

    def __or__(self, other: Origin) -> Origin:
        """That of a scan whose channels are of both."""
        return Origin(
            series=self.series | other.series,
            frames=self.frames | other.frames,
            images=self.images | other.images,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Scan:
    """A volume whose header was read and found sound.

    Args:
        grid: as stored, in any orientation.
        channels: 1, or the number of the fourth axis.
        dtype: of the array that `read` gives: the smallest that holds every rescaled value exactly.
        unit: "HU" where the values are Hounsfield units for certain, else "".
        modality: "CT", "MR" ..., or "" where the file does not say.
        findings: what was corrected or is worth knowing, in a fixed order.
        files: the source files read, relative paths in sorted order.
        read: the voxels [depth, height, width, channel]; SourceError where the pixel data is damaged.
        held_bytes: of files, until the scan is dropped.
        read_bytes: the most that `read` takes besides, the voxels among it; 0 where they are a view of the file.
        origin: of a DICOM series; None of other files.
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
    origin: Origin | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Mask:
    """A label volume whose header was read and found sound.

    Args:
        grid: as stored, in any orientation.
        names: the class names by number, where the file itself gives them (DICOM SEG, RTSTRUCT, Slicer's NRRD, label
            tables of NIfTI); else empty.
        values: of each number that has a name the voxels' value, where others may know these values as well.
        findings: as of a `Scan`.
        files: the source files read, relative paths in sorted order.
        read_classes: where the file names its classes: from the id of each of its values, and what becomes of voxels in
            several classes, to the ids [depth, height, width] and the number of those voxels. Values of one id do not
            overlap. Of "channels", which takes and gives sets, that number is 0. The id
            of 0 is that of the ignore label.
        read: the class values [depth, height, width], uint8, uint16 or int32, whichever is the smallest that holds
            them; 0 is the background. SourceError where a value is not a whole number.
        held_bytes, read_bytes: as of a `Scan`.
        value_bytes: the most that a value of it takes.
    """

    grid: Grid
    names: Mapping[int, str]
    findings: tuple[Finding, ...]
    files: tuple[str, ...]
    read: Callable[[], NDArray[Any]]
    read_classes: Callable[[Mapping[int, int], Overlap], tuple[NDArray[Any], int]] | None = None
    held_bytes: int = 0
    read_bytes: int = 0
    value_bytes: int = 4
    values: Mapping[int, int] = field(default_factory=dict)
