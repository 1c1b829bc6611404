"""Geometry of slices and frames: the regular grid that their positions form, and the flaws of those positions.

`plan_slices` plans the grid of a series, with interpolated slices where the gaps are not equal. `place_frames` puts the
frames of a segmentation on the grid of its scan, and `own_grid` makes a grid for frames that do not fit there.
`split_mosaic` computes the positions of the slices of a Siemens mosaic, which stores them side by side in one image.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.header_fields import DicomFrame, HeaderFields, PixelFormat
from halofeed.prep.formats.dicom.headers import Elements
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.geometry.scan import Finding, Grid, affine_matrix
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError

Floats = NDArray[np.float64]

WIDE_GAP_MM = 50.0
"""Under every policy, a series with unequal gaps is refused if a gap is wider than this."""
WIDE_GAPS = 10.0
"""A series is also refused if a gap is wider than this many typical gaps, unless missing slices fill it."""
TILT_DEGREES = 0.1
ORIENTATION_TOLERANCE = 1e-3
SPACING_TOLERANCE = 1e-3
MAX_FILLED, MAX_GROWTH = 16, 4
"""Largest ratio between the slices of the volume and the stored slices: with missing slices, and with unequal gaps."""
TOLERANCE = 0.05
"""Default distance, in voxels, between the corner of a frame and a voxel of the grid up to which the frame fits."""
LPS_TO_RAS_SIGNS = np.array([-1.0, -1.0, 1.0])
CSA_MAGIC, MAX_CSA_TAGS, CSA_TAG_BYTES, CSA_ITEM_BYTES = b"SV10", 1000, 84, 16
CSA_NUMBER = re.compile(rb"\s*([+-]?\d+\.?\d*(?:[eE][+-]?\d+)?)\s*\0*.*", re.DOTALL)
NORMAL_TOLERANCE = 1e-3
_SEPARATE_ADVICE = (
    "; if they are several scans, put each into a folder of its own and use --series-identity folder"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SlicePlan:
    """Plan for the slices of a volume, made from stored slices.

    Args:
        order: indices of the stored slices, from first to last along the normal.
        lower: for each slice of the volume, the index in `order` of the stored slice at or before it.
        weight: weight of the next stored slice in the interpolation, from 0 to below 1.
        origin_mm: center of the first voxel, in DICOM's directions left, posterior, superior.
        step_mm: vector from one slice of the volume to the next, in the same directions.
        findings: flaws of the positions.
    """

    order: tuple[int, ...]
    lower: tuple[int, ...]
    weight: tuple[float, ...]
    origin_mm: Floats
    step_mm: Floats
    findings: tuple[Finding, ...]

    @property
    def interpolates(self) -> bool:
        """True if any slice of the volume is interpolated."""
        return any(self.weight)


def series_error(reason: str, detail: str = "") -> SourceError:
    """Return the error for a series that is not a volume."""
    return SourceError("read", reason, detail)


def axes_of(orientation: tuple[float, ...]) -> tuple[Floats, Floats, Floats]:
    """Return the unit vectors along a row, along a column, and normal to both.

    Raises:
        SourceError: the six numbers are not two perpendicular unit vectors.
    """
    # PS3.3 C.7.6.2.1.1: the cosines of a row and of a column, which shall be orthogonal and normal, up to rounding.
    along_row, along_column = np.asarray(orientation[:3], np.float64), np.asarray(orientation[3:], np.float64)
    lengths = float(np.linalg.norm(along_row)), float(np.linalg.norm(along_column))
    if max(abs(length - 1) for length in lengths) > 0.01 or abs(float(along_row @ along_column)) > 0.01:
        detail = f"of lengths {lengths[0]:g}, {lengths[1]:g}"
        raise series_error("orientation is not two perpendicular unit vectors", detail)
    along_row, along_column = along_row / lengths[0], along_column / lengths[1]
    normal = np.cross(along_row, along_column)
    return along_row, along_column, normal / np.linalg.norm(normal)


def is_same_orientation(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether the vectors along rows and columns of two slices are equal except for rounding."""
    return all(abs(one - other) <= ORIENTATION_TOLERANCE for one, other in zip(first, second, strict=True))


def tolerance_mm(gap_mm: float) -> float:
    """Return the largest deviation of a slice from its position in equal gaps.

    It is a fiftieth of the gap, but at least the effect of rounding positions to tenths of a millimeter, and at most a
    fifth of the gap.

    >>> tolerance_mm(10.0), tolerance_mm(1.0), tolerance_mm(0.1)
    (0.2, 0.101, 0.02)
    """
    return round(min(max(gap_mm / 50, 0.101), gap_mm / 5), 9)


def duplicate_sets(positions_mm: Floats, orientation: tuple[float, ...]) -> list[list[int]]:
    """Group slices by position; return lists of indices in order along the normal.

    Args:
        positions_mm: centers of the first pixels, [slice, 3].
        orientation: unit vectors along a row and along a column.
    """
    along = positions_mm @ axes_of(orientation)[2]
    order = np.argsort(along, kind="stable")
    gaps = np.diff(along[order])
    real = gaps[gaps > 1e-4]
    # Positions of copies may differ by rounding. The limit is relative to the widest gap, because most gaps may be
    # those between copies of a slice.
    tolerance = max(1e-4, float(real.max()) / 200) if real.size else 1e-4
    sets = [[int(order[0])]]
    for gap, index in zip(gaps, order[1:], strict=True):
        if gap <= tolerance:
            sets[-1].append(int(index))
        else:
            sets.append([int(index)])
    return sets


def _equals(gaps: Floats, gap: float) -> NDArray[np.bool_]:
    return np.abs(gaps - gap) <= 2 * tolerance_mm(gap)


def _equal_runs(gaps: Floats) -> list[tuple[int, int]]:
    """Return the (start, stop) of each run of three or more equal neighboring gaps."""
    runs, start = [], 0
    for index in range(1, len(gaps) + 1):
        # Two equal gaps may be chance; three show the distance that was chosen for this part of the scan.
        if index == len(gaps) or not _equals(gaps[start : start + 1], float(gaps[index]))[0]:
            if index - start >= 3:
                runs.append((start, index))
            start = index
    return runs


def find_missing_slices(gaps: Floats, thickness_mm: float | None = None) -> dict[int, int]:
    """Return the number of missing slices by the index of the gap that lacks them.

    A gap lacks slices if it is a multiple of the regular gap near it, of the gap that most slices have, or of the
    smallest gap if that equals the thickness. Gaps within a run of equal gaps lack none.

    Args:
        gaps: gaps between neighboring slices.
        thickness_mm: thickness of the slices, if known.

    >>> find_missing_slices(np.array([3.0, 3.0, 3.0, 6.0, 3.0]))
    {3: 1}
    >>> find_missing_slices(np.array([4.0, 4.0, 4.0, 8.0, 8.0, 8.0]))
    {}
    >>> find_missing_slices(np.array([6.0, 3.0, 9.0, 3.0, 6.0]))
    {}
    >>> find_missing_slices(np.array([6.0, 3.0, 9.0, 3.0, 6.0]), 3.0)
    {0: 1, 2: 2, 4: 1}
    """
    runs = _equal_runs(gaps)
    shared = _shared_gaps(gaps, thickness_mm)
    missing = {}
    for index in range(len(gaps)):
        # A scan may change its distance on the way, such as a head CT above the base: a run of wide gaps is whole.
        if any(start <= index < stop for start, stop in runs):
            continue
        # The regular gap of the run before and of the run after, as the distance may change between these.
        before = [float(np.median(gaps[start:stop])) for start, stop in runs if stop <= index][-1:]
        after = [float(np.median(gaps[start:stop])) for start, stop in runs if start > index][:1]
        times = (_whole_multiple(float(gaps[index]), base) for base in before + after + shared)
        if multiple := next(filter(None, times), 0):
            missing[index] = multiple - 1
    return missing


def _shared_gaps(gaps: Floats, thickness_mm: float | None) -> list[float]:
    """Return the gap of most slices, and the smallest gap if it is the thickness; each only if there is such a gap."""
    shared = [float(gap) for gap in gaps if _equals(gaps, float(gap)).sum() * 2 > len(gaps)][:1]
    # With slices missing at random, no gap is regular; slices as thick as the smallest gap touch each other there.
    if thickness_mm is not None and _equals(gaps.min(keepdims=True), thickness_mm)[0]:
        shared.append(float(gaps.min()))
    return shared


def _whole_multiple(gap: float, base: float) -> int:
    """Return how many times `base` is contained in a gap; 0 unless it is a whole number from 2 on."""
    times = round(gap / base)
    return times if times >= 2 and abs(gap - times * base) <= max(tolerance_mm(base), 0.05 * base) else 0


def count_missing_slices(
    positions_mm: Floats, orientation: tuple[float, ...], thickness_mm: float | None
) -> int:
    """Return the number of slices that are missing between the first and the last; duplicates count once.

    >>> count_missing_slices(np.array([[0, 0, height] for height in (0.0, 3, 6, 6, 12, 15)]), (1, 0, 0, 0, 1, 0), None)
    1
    """
    along = positions_mm @ axes_of(orientation)[2]
    gaps = np.diff([along[same[0]] for same in duplicate_sets(positions_mm, orientation)])
    return sum(find_missing_slices(gaps, thickness_mm).values()) if len(gaps) > 1 else 0


def regular_gap(gaps: Floats) -> float:
    """Return the gap of the regular grid that replaces unequal gaps.

    It is the smallest gap that occurs twice or more, or else the median. A lower limit keeps the number of slices
    within `MAX_GROWTH` times the stored slices.
    """
    shared = [float(gap) for gap in np.sort(gaps) if (np.abs(gaps - gap) <= 0.01 * gap).sum() >= 2]
    return max(shared[0] if shared else float(np.median(gaps)), float(gaps.sum()) / (MAX_GROWTH * len(gaps)))


def _lateral_deviations(positions_mm: Floats, normal: Floats) -> Floats:
    """Return the distance [slice] of each slice from the line through the first and the last, across the normal."""
    along = positions_mm @ normal
    length = float(along[-1] - along[0])
    drift = positions_mm[-1] - positions_mm[0] - length * normal
    offsets = positions_mm - positions_mm[0] - np.outer(along - along[0], normal)
    offsets -= np.outer((along - along[0]) / length, drift)
    return np.asarray(np.linalg.norm(offsets, axis=1))


def _find_outlier(positions_mm: Floats, normal: Floats, limit_mm: float) -> int | None:
    """Return the index of the slice without which all others are on one line; None if there is no such slice."""
    # Any two of three slices are on a line, so three slices show no outlier.
    if len(positions_mm) < 4:
        return None
    # A stray first or last slice turns the line itself, so that another slice is farthest from it.
    farthest = int(_lateral_deviations(positions_mm, normal).argmax())
    for index in dict.fromkeys((farthest, 0, len(positions_mm) - 1)):
        if _lateral_deviations(np.delete(positions_mm, index, axis=0), normal).max() <= limit_mm:
            return index
    return None


def _wide_gap_advice(index: int, paths: Sequence[str]) -> str:
    """Return the advice for a wide gap after slice `index`: remove a single slice, or separate two stacks."""
    before, after = paths[: index + 1], paths[index + 1 :]
    if min(len(before), len(after)) > 1:
        return f" and lies between {before[-1]} and {after[0]}{_SEPARATE_ADVICE}"
    alone = before[0] if len(before) == 1 else after[-1]
    return f", and {alone} lies alone beyond it: take it out of the folder"


def _plan_gap(
    gaps: Floats, thickness_mm: float | None, policy: SeriesPolicy, paths: Sequence[str]
) -> tuple[float, list[Finding]]:
    """Return the gap of the grid that replaces unequal gaps, and the findings.

    Args:
        gaps: gaps between neighboring slices.
        thickness_mm: thickness of the slices, if known.
        policy: flaws that are corrected or refused.
        paths: paths of the slices in order, for messages; () if unknown.

    Raises:
        SourceError: a gap is too wide, or the policy refuses missing slices or unequal gaps.
    """
    missing = find_missing_slices(gaps, thickness_mm)
    complete = np.delete(gaps, list(missing))
    typical = float(np.median(complete if complete.size else gaps))
    _refuse_wide_gaps(gaps, complete, typical, paths)
    found = f"at gaps of {', '.join(f'{gaps[index]:.1f}' for index in list(missing)[:8])} mm"
    if missing and policy.missing_slice == "refuse":
        detail = f"{sum(missing.values())} of them, {found}; {typical:.2f} mm is typical"
        raise series_error("slices are missing", f"{detail}; --fill-missing-slices interpolates them")
    # A single complete gap is no sample of which a regular gap could be chosen.
    grid_gap = regular_gap(complete) if complete.size > 1 else typical
    slices = round(float(gaps.sum()) / grid_gap)
    if missing and slices > MAX_FILLED * len(gaps):
        raise series_error("slices are missing", f"{slices - len(gaps)} of {slices + 1}")
    gap = float(gaps.sum()) / slices
    findings = []
    if missing:
        detail = f"{sum(missing.values())} interpolated, {found}"
        findings.append(Finding.corrected(FindingName.MISSING_SLICES, detail))
    return gap, findings + _describe_unequal_gaps(gaps, complete, typical, gap, policy)


def _refuse_wide_gaps(gaps: Floats, complete: Floats, typical: float, paths: Sequence[str]) -> None:
    """Refuse gaps that no interpolation can fill: over 50 mm, or ten typical gaps without missing slices."""
    widest = float(gaps.max())
    if widest > WIDE_GAP_MM or (complete.size and float(complete.max()) > WIDE_GAPS * typical):
        advice = _wide_gap_advice(int(gaps.argmax()), paths) if paths else ""
        detail = f"a gap of {widest:.1f} mm; {typical:.2f} mm is typical{advice}"
        raise series_error("slices are missing", detail)


def _describe_unequal_gaps(
    gaps: Floats, complete: Floats, typical: float, gap: float, policy: SeriesPolicy
) -> list[Finding]:
    """Return the findings about gaps that are unequal apart from those that lack slices.

    Args:
        gaps: gaps between neighboring slices.
        complete: those that lack no slice.
        typical: median of the complete gaps.
        gap: gap of the grid that replaces them.
        policy: flaws that are corrected or refused.

    Raises:
        SourceError: the policy refuses unequal gaps.
    """
    is_unequal = bool(complete.size) and float(complete.max() - complete.min()) > 2 * tolerance_mm(typical)
    # Gaps that are equal one by one may still add up to positions that are not (`plan_slices` compares these).
    is_drift = not is_unequal and len(complete) == len(gaps)
    if not is_unequal and not is_drift:
        return []
    if policy.unequal_gaps == "refuse":
        digits = 2 if is_drift else 1
        span = f"{complete.min():.{digits}f} to {complete.max():.{digits}f} mm"
        raise series_error("gaps between slices are unequal", span)
    if is_drift:
        detail = f"by up to {np.abs(gaps - typical).max():.2f} mm; resampled every {gap:.2f} mm"
        return [Finding.corrected(FindingName.UNEQUAL_GAPS, detail)]
    detail = f"{complete.min():.1f} to {complete.max():.1f} mm; resampled every {gap:.2f} mm"
    findings = [Finding.corrected(FindingName.UNEQUAL_GAPS, detail)]
    # In a gap of several slices, interpolation shows what no slice has seen.
    if wide := [f"{one:.1f}" for one in complete if one > 3 * typical]:
        detail = (
            f"{', '.join(wide[:8])} mm, where {typical:.1f} mm is typical; interpolated, no slice lies there"
        )
        findings.append(Finding.noted(FindingName.WIDE_GAPS, detail))
    return findings


def plan_slices(
    positions_mm: Floats,
    orientation: tuple[float, ...],
    thickness_mm: float | None,
    policy: SeriesPolicy,
    paths: Sequence[str] = (),
) -> SlicePlan:
    """Plan a volume from the positions of its slices.

         normal ^         x  slice 3          The depth axis is `drift + length * normal`: it leads from the first
                |        x   slice 2          to the last slice, and is oblique to the slices if a gantry was tilted.
                |       x    slice 1
                +----------> in the plane     Positions decide, never Spacing Between Slices or Slice Thickness.

    Args:
        positions_mm: centers of the first pixels, [slice, 3], all different.
        orientation: unit vectors along a row and along a column, for all slices.
        thickness_mm: thickness of a slice, if known. It is the spacing of a single slice.
        policy: flaws that are corrected or refused.
        paths: paths of the slices, for messages.

    Returns:
        The plan; its findings are about gaps, tilt and overlap, in this order.

    Raises:
        SourceError: the slices are not a volume, or the policy refuses a flaw.
    """
    normal = axes_of(orientation)[2]
    order = np.argsort(positions_mm @ normal, kind="stable")
    positions = positions_mm[order]
    ordered_paths = [paths[index] for index in order] if paths else []
    if len(order) == 1:
        return _plan_single_slice(positions[0], normal, thickness_mm)
    along = positions @ normal
    gaps = np.diff(along)
    _check_on_line(positions, normal, ordered_paths)
    slices, findings = _plan_count(along, thickness_mm, policy, ordered_paths)
    lower, weight = np.arange(len(order)), np.zeros(len(order))
    if findings:
        lower, weight = _interpolation(along, slices)
    findings += _describe_tilt(positions, normal, policy)
    findings += _describe_overlap(float(gaps.min()), thickness_mm, policy)
    return SlicePlan(
        order=tuple(order.tolist()),
        lower=tuple(lower.tolist()),
        weight=tuple(weight.tolist()),
        origin_mm=positions[0],
        step_mm=(positions[-1] - positions[0]) / (slices - 1),
        findings=tuple(findings),
    )


def _plan_single_slice(position_mm: Floats, normal: Floats, thickness_mm: float | None) -> SlicePlan:
    """Return the plan of one slice, whose thickness is the only statement about its extent along the normal."""
    if not thickness_mm:
        raise series_error("slice spacing is unknown", "one slice, which does not say how thick it is")
    return SlicePlan(
        order=(0,),
        lower=(0,),
        weight=(0.0,),
        origin_mm=position_mm,
        step_mm=normal * thickness_mm,
        findings=(Finding.noted(FindingName.SINGLE_SLICE, f"{thickness_mm:g} mm thick"),),
    )


def _check_on_line(positions: Floats, normal: Floats, paths: Sequence[str]) -> None:
    """Refuse slices, in order, that are shifted against the line from the first to the last.

    A shift across the normal that grows in proportion to the position along the normal is a tilt of the gantry.
    """
    deviations = _lateral_deviations(positions, normal)
    length = float((positions[-1] - positions[0]) @ normal)
    limit_mm = max(0.1, tolerance_mm(length / (len(positions) - 1)))
    if deviations.max() <= limit_mm:
        return
    outlier = _find_outlier(positions, normal, limit_mm) if paths else None
    alone = "" if outlier is None else f"; {paths[outlier]} alone: take it out of the folder"
    detail = f"by up to {deviations.max():.1f} mm across their normal"
    raise series_error("slices are shifted against each other", f"{detail}{alone or _SEPARATE_ADVICE}")


def _plan_count(
    along: Floats, thickness_mm: float | None, policy: SeriesPolicy, paths: Sequence[str]
) -> tuple[int, list[Finding]]:
    """Return the number of slices of the volume, and the findings about gaps; [] if every slice is stored.

    Args:
        along: positions along the normal, in order.
        thickness_mm: thickness of a slice, if known.
        policy: flaws that are corrected or refused.
        paths: paths of the slices, for messages.
    """
    count, length = len(along), float(along[-1] - along[0])
    # Positions are compared with equal gaps, and not gaps with each other: rounding in the file moves each by itself.
    even = along[0] + np.arange(count) * length / (count - 1)
    if np.abs(along - even).max() <= tolerance_mm(length / (count - 1)):
        return count, []
    gap, findings = _plan_gap(np.diff(along), thickness_mm, policy, paths)
    return round(length / gap) + 1, findings


def _interpolation(along: Floats, slices: int) -> tuple[NDArray[np.int64], Floats]:
    """Return, for each of `slices` equal positions, the stored slice at or before it, and the weight of the next one.

    Args:
        along: positions of the stored slices along the normal, in order.
        slices: number of slices of the volume.
    """
    count, gaps = len(along), np.diff(along)
    targets = along[0] + np.arange(slices) * ((along[-1] - along[0]) / (slices - 1))
    lower = np.clip(np.searchsorted(along, targets, side="right") - 1, 0, count - 1)
    weight = np.clip((targets - along[lower]) / np.append(gaps, 1.0)[lower], 0, 1)
    # A stored slice within a ten-thousandth of a gap is used without interpolation.
    is_next = weight > 1 - 1e-4
    lower, weight = np.where(is_next, lower + 1, lower), np.where(is_next, 0.0, weight)
    return lower, np.where((weight < 1e-4) | (lower >= count - 1), 0.0, weight)


def _describe_tilt(positions: Floats, normal: Floats, policy: SeriesPolicy) -> list[Finding]:
    """Return the finding about a tilted gantry; [] if the slices follow their normal.

    CT scanners tilt the gantry for the head (Gantry/Detector Tilt, PS3.3 C.8.2.1). The affine holds the shear.
    """
    length = float((positions[-1] - positions[0]) @ normal)
    drift = positions[-1] - positions[0] - length * normal
    tilt = float(np.degrees(np.arctan2(np.linalg.norm(drift), length)))
    if tilt <= TILT_DEGREES:
        return []
    if policy.tilt == "refuse":
        raise series_error("gantry is tilted", f"{tilt:.1f} degrees")
    return [Finding.corrected(FindingName.GANTRY_TILT, f"{tilt:.1f} degrees; sheared back by resampling")]


def _describe_overlap(
    smallest_gap_mm: float, thickness_mm: float | None, policy: SeriesPolicy
) -> list[Finding]:
    """Return the finding about slices that are thicker than their distance; [] if they do not overlap."""
    # Overlapping reconstruction is usual in CT: the voxels are right where they are, so that this is a note.
    if not thickness_mm or thickness_mm <= 1.05 * smallest_gap_mm:
        return []
    detail = f"slices {thickness_mm:g} mm thick lie {smallest_gap_mm:.2f} mm apart"
    if policy.overlapping == "refuse":
        raise series_error("slices overlap", detail)
    return [Finding.noted(FindingName.OVERLAPPING_SLICES, detail)]


@dataclass(frozen=True, kw_only=True, eq=False)
class FrameGeometry:
    """Geometry of frames of one size and orientation, in millimeters to the right, anterior, superior.

    Args:
        size: (rows, columns).
        row_step: vector from one row to the next, float64 [3].
        column_step: vector from one column to the next, float64 [3].
        origins: center of the first pixel of each frame, float64 [frame, 3].
    """

    size: tuple[int, int]
    row_step: NDArray[np.float64]
    column_step: NDArray[np.float64]
    origins: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """Position of frames whose pixels are voxels of a grid.

    Args:
        grid: the grid.
        size: (rows, columns) of the frames.
        axes: axes of the grid: across the frames, from row to row, and from column to column.
        signs: 1 if the index of rows (or columns) grows with the index of their axis, -1 if it falls.
        starts: voxel of the first pixel of each frame, int64 [frame, 3].
    """

    grid: Grid
    size: tuple[int, int]
    axes: tuple[int, int, int]
    signs: tuple[int, int]
    starts: NDArray[np.int64]

    def slice_of(self, frame: int) -> int:
        """Return the index of a frame along the axis across the frames."""
        return int(self.starts[frame, self.axes[0]])

    def view(self, volume: NDArray[Any], frame: int) -> NDArray[Any]:
        """Return the view [row, column] of a volume on `grid` that a frame covers, in the frame's orientation."""
        part: NDArray[Any] = np.moveaxis(volume, self.axes, (0, 1, 2))[self.slice_of(frame)]
        for axis, (count, sign) in enumerate(zip(self.size, self.signs, strict=True)):
            start = int(self.starts[frame, self.axes[axis + 1]])
            low = start if sign > 0 else start - count + 1
            part = np.moveaxis(np.moveaxis(part, axis, 0)[low : low + count][::sign], 0, axis)
        return part


def place_frames(frames: FrameGeometry, grid: Grid, tolerance_voxels: float = TOLERANCE) -> Placement | None:
    """Find the voxels of the frames; return None if some pixels are not voxels of the grid."""
    # A frame is a plane of voxels if each of its steps is one voxel along one axis. The error of a step adds up along
    # the frame, so that the corner farthest from the origin decides.
    to_voxels = np.linalg.inv(grid.affine[:3, :3])
    steps = np.stack([to_voxels @ frames.row_step, to_voxels @ frames.column_step])
    unit_steps = np.rint(steps)
    origins = (frames.origins - grid.affine[:3, 3]) @ to_voxels.T
    starts = np.rint(origins)
    drift = np.abs(steps - unit_steps).max(axis=1) @ (np.array(frames.size) - 1)
    distance = np.abs(origins - starts).max() + drift
    if not (np.abs(unit_steps).sum(axis=1) == 1).all() or distance > tolerance_voxels:
        return None
    row_axis, column_axis = (int(axis) for axis in np.abs(unit_steps).argmax(axis=1))
    if row_axis == column_axis:
        return None
    ends = starts + unit_steps.T @ (np.array(frames.size) - 1)
    if min(starts.min(), ends.min()) < 0 or (np.maximum(starts, ends) >= grid.shape).any():
        return None
    return Placement(
        grid=grid,
        size=frames.size,
        axes=(3 - row_axis - column_axis, row_axis, column_axis),
        signs=(int(unit_steps[0, row_axis]), int(unit_steps[1, column_axis])),
        starts=starts.astype(np.int64),
    )


def own_grid(frames: FrameGeometry, spacing_mm: float | None) -> Grid:
    """Return the regular grid that the frames span, including slices without a frame.

    Args:
        frames: the frames.
        spacing_mm: distance between slices that the file states, or None. The smallest gap is used if it does not fit.

    Raises:
        SourceError: the frames are not on a regular grid (stage `annotation`).
    """
    normal = np.cross(frames.column_step, frames.row_step)
    normal /= np.linalg.norm(normal)
    heights = frames.origins @ normal
    order = np.argsort(heights, kind="stable")
    gaps = np.diff(heights[order])
    same_plane_mm = 0.01 * min(np.linalg.norm(frames.row_step), np.linalg.norm(frames.column_step))
    gaps = gaps[gaps > same_plane_mm]  # frames of several segments share a plane
    first, last = frames.origins[order[0]], frames.origins[order[-1]]
    if not len(gaps):
        if spacing_mm is None:
            raise SourceError("annotation", "segmentation of one slice does not say how thick it is")
        return _grid(frames, first, spacing_mm * normal, 1)
    # The stated distance comes first: slices without a segment have no frame, so that the smallest gap may be two
    # steps.
    for spacing in filter(None, (spacing_mm, float(gaps.min()))):
        slices = int(min(np.rint((heights[order[-1]] - heights[order[0]]) / spacing), 2**40))
        if slices < 1:
            continue
        grid = _grid(frames, first, (last - first) / slices, slices + 1)
        if place_frames(frames, grid):
            return grid
    planes = f"{len(gaps) + 1} planes with gaps from {gaps.min():.4g} to {gaps.max():.4g} mm"
    detail = f"{planes} that are neither equal nor multiples of one, or shifted in their plane"
    raise SourceError("annotation", "segmentation frames lie on no regular grid", detail)


def _grid(frames: FrameGeometry, first: NDArray[np.float64], step: NDArray[np.float64], depth: int) -> Grid:
    affine = affine_matrix(np.stack([step, frames.row_step, frames.column_step]), first)
    return Grid(shape=(depth, *frames.size), affine=affine)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Mosaic:
    """Slices of a mosaic, as Siemens' CSA header describes them.

    Args:
        count: number of slices.
        side: slices per row and per column of the image, of which the last ones may be empty.
        step_mm: vector from one slice to the next.
    """

    count: int
    side: int
    step_mm: Floats


def split_mosaic(elements: Elements, fields: HeaderFields) -> HeaderFields | None:
    """Return the header fields of a mosaic with one frame per slice; None if the positions are not stated.

    +----+----+----+     Siemens writes all slices of an EPI volume into one image, row by row. Image Position is
    | 0  | 1  | 2  |     the corner of a single slice of the whole image's size around the same center, so that
    +----+----+----+     slice 0 begins half of what the image is wider and higher than a slice from there.
    | 3  | 4  |    |     dcm2niix and nibabel (`csareader`) compute the same.
    +----+----+----+
    """
    if fields.format is None or len(fields.frames) != 1:
        return None
    frame = fields.frames[0]
    mosaic = _read_mosaic(elements, frame, fields.format.size)
    if mosaic is None:
        return None
    assert frame.position_mm is not None and frame.orientation is not None and frame.spacing_mm is not None
    rows, columns = fields.format.size
    size = rows // mosaic.side, columns // mosaic.side
    along_row, along_column, _ = axes_of(frame.orientation)
    origin = np.array(frame.position_mm)
    origin = origin + along_row * frame.spacing_mm[1] * (columns - size[1]) / 2
    origin = origin + along_column * frame.spacing_mm[0] * (rows - size[0]) / 2
    frames = tuple(
        replace(frame, position_mm=tuple((origin + index * mosaic.step_mm).tolist()))
        for index in range(mosaic.count)
    )
    return replace(fields, format=replace(fields.format, size=size), frames=frames, tiles=mosaic.side)


def _read_mosaic(elements: Elements, frame: DicomFrame, size: tuple[int, int]) -> _Mosaic | None:
    """Return the slices of a mosaic of this (rows, columns); None if the headers do not place them."""
    csa = _csa_values(elements)
    count = int(csa.get("NumberOfImagesInMosaic", (0.0,))[0])
    normal, spacing_mm = csa.get("SliceNormalVector", ()), _spacing(elements)
    # The mosaic is the smallest square that holds all slices.
    side = math.isqrt(count - 1) + 1 if count > 0 else 0
    if not side or size[0] % side or size[1] % side or len(normal) != 3 or spacing_mm is None:
        return None
    if frame.position_mm is None or frame.orientation is None or frame.spacing_mm is None:
        return None
    try:
        across = axes_of(frame.orientation)[2]
    except SourceError:
        return None  # `open_series` raises the error.
    # The normal of the CSA header may run against that of the image, and it is the slices' order. Another direction
    # would be that of another image.
    direction = np.array(normal)
    if min(np.abs(direction - across).max(), np.abs(direction + across).max()) > NORMAL_TOLERANCE:
        return None
    return _Mosaic(count=count, side=side, step_mm=spacing_mm * direction)


def as_stored_image(fields: HeaderFields) -> HeaderFields:
    """Return the header fields of the stored image, in which a mosaic is one frame."""
    if fields.tiles is None:
        return fields
    rows, columns = fields.stored.size
    stored = replace(fields.stored, size=(rows * fields.tiles, columns * fields.tiles))
    return replace(fields, format=stored, frames=fields.frames[:1], tiles=None)


def tile_at(index: int, tiles: int, stored: PixelFormat) -> tuple[slice, slice]:
    """Return the rows and columns of slice `index` in a mosaic of `tiles` x `tiles` slices.

    >>> stored = PixelFormat(size=(4, 5), samples=1, photometric="", bits_allocated=16, bits_stored=16, high_bit=15,
    ...     signed=False, padding=None)
    >>> tile_at(5, 3, stored)
    (slice(4, 8, None), slice(10, 15, None))
    """
    rows, columns = stored.size
    top, left = index // tiles * rows, index % tiles * columns
    return slice(top, top + rows), slice(left, left + columns)


def _spacing(elements: Elements) -> float | None:
    # The image has one position, so that only this element tells where the next slice is.
    try:
        spacing = headers.finite_number(elements, headers.SPACING_BETWEEN_SLICES)
    except SourceError:
        return None
    return spacing if spacing is not None and spacing > 0 else None


def _csa_values(elements: Elements) -> Mapping[str, tuple[float, ...]]:
    """Return the two values of Siemens' CSA header that place the slices; {} if the header has another form."""
    # Siemens does not publish the form of its private element (0029,1010). This follows nibabel's
    # `nibabel.nicom.csareader`: "SV10", a count at byte 8, then tags of 84 bytes, each followed by its items.
    data = headers.raw_value(elements, headers.CSA_IMAGE_HEADER)
    if headers.text(elements, headers.CSA_CREATOR) != "SIEMENS CSA HEADER" or data[:4] != CSA_MAGIC:
        return {}
    values_by_name: dict[str, tuple[float, ...]] = {}
    try:
        (tags,) = struct.unpack_from("<I", data, 8)
        offset = 16
        for _ in range(min(tags, MAX_CSA_TAGS)):
            name = data[offset : offset + 64].split(b"\0")[0].decode("latin-1")
            items = struct.unpack_from("<i", data, offset + 76)[0]
            offset += CSA_TAG_BYTES
            values = []
            for _ in range(items):
                length = struct.unpack_from("<4i", data, offset)[1]
                number = CSA_NUMBER.fullmatch(
                    data[offset + CSA_ITEM_BYTES : offset + CSA_ITEM_BYTES + length]
                )
                if number:
                    values.append(float(number[1]))
                # Items are padded to 4 bytes; empty ones have a length of 0.
                offset += CSA_ITEM_BYTES + (max(length, 0) + 3) // 4 * 4
            if values and name in ("NumberOfImagesInMosaic", "SliceNormalVector"):
                values_by_name[name] = tuple(values)
    except struct.error:
        return {}
    return values_by_name
