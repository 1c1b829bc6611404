"""Reader of DICOM series: sorts slices by position, checks them, corrects or refuses flaws, and reads the voxels.

DICOM coordinates grow to the left, posterior and superior; those of grids grow to the right, anterior and superior.
The depth of a scan grows along the normal of its slices, its height with the row, its width with the column.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom.grouping import (
    FoundScan,
    Images,
    OtherFile,
    find_image_series,
    find_scans,
    group_series,
    scan_problem,
    too_few_slices,
)
from halofeed.prep.formats.dicom.header_fields import HeaderFields
from halofeed.prep.formats.dicom.headers import (
    DEFLATED,
    MAX_INFLATED_BYTES,
    max_unpacked_bytes,
    read_dicom_body,
)
from halofeed.prep.formats.dicom.pixels import FrameReader, check_pixels, extract_values, read_frames
from halofeed.prep.formats.dicom.real_world_values import choose_rescale
from halofeed.prep.formats.dicom.series_listing import ListingRecords
from halofeed.prep.formats.dicom.series_splitting import (
    Slice,
    overlapping,
    passes_alternate,
    positions_of,
    thickness_of,
)
from halofeed.prep.formats.dicom.slice_geometry import (
    LPS_TO_RAS_SIGNS,
    SPACING_TOLERANCE,
    SlicePlan,
    as_stored_image,
    axes_of,
    duplicate_sets,
    is_same_orientation,
    plan_slices,
    series_error,
    tile_at,
)
from halofeed.prep.formats.dicom.values import (
    EXACT_DTYPES,
    ValuePlan,
    apply_values,
    plan_series_values,
)
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.formats.volume.streams import MAX_DEFLATE_RATIO
from halofeed.prep.geometry.scan import Finding, Grid, Scan, ScanIdentity, affine_matrix
from halofeed.prep.geometry.volume_plan import grids_agree
from halofeed.prep.sources.file_names import folder_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError

__all__ = ["group_series", "open_series"]

ALTERNATION, MIN_ALTERNATING_SLICES = 0.5, 5
"""A volume of at least 5 slices alternates if slices two apart differ by less than half as much as neighbors do."""
_LABEL_POLICY: dict[str, Any] = {
    **dict.fromkeys(("unequal_gaps", "missing_slice", "split"), "refuse"),
    "alternating": "keep",
    "min_slices": 1,
    "secondary_captures": "take",
}
"""Rules for slices that are labels: nothing is interpolated, and empty neighbors are no flaw."""
FRAME_BYTES = 64
"""Memory per pixel while a frame is decoded and converted from stored words to values."""


def open_series(
    files: SourceFiles,
    members: Iterable[str] | ListingRecords,
    policy: SeriesPolicy | None = None,
    volume: tuple[int, int, str] | None = None,
    *,
    labels: bool = False,
) -> Scan:
    """Open the DICOM series among some files.

    Args:
        files: the source that holds the files.
        members: paths of the files of one series, or their records in a listing. Other files among them (localizers,
            reports, a license) are ignored with a finding.
        policy: flaws that are corrected or refused.
        volume: the scan of the series, see `Series.volume`. `members` are its files, or all files of the series.
        labels: whether the slices are labels: values as stored, and no slice is interpolated.

    Returns:
        The scan. Its findings are in this order: other files, volumes of the series, duplicates, gaps, tilt, overlap,
        rescale, padding. `read` holds the volume, two slices and the bytes of one file in memory.

    Raises:
        SourceError: there is no series or more than one, or the series is damaged, not a volume, or refused by policy.
    """
    policy = policy or SeriesPolicy()
    policy = replace(policy, **_LABEL_POLICY) if labels else policy
    # A listing has read the headers already; `read_dicom_body` compares the checksum of each with its file.
    if isinstance(members, ListingRecords):
        series, apart = [members.images], list[OtherFile]()
    else:
        series, apart = find_image_series(files, members, policy)
    findings = list(_check_other_files(apart))
    chosen = _choose_scan(series, apart, policy, volume)
    if volume is not None:
        detail = f"{volume[0]} of {volume[1]}, distinguished by {volume[2]}"
        findings.append(Finding.noted(FindingName.ONE_OF_SEVERAL_VOLUMES, detail))
    if problem := scan_problem(chosen, policy):
        raise SourceError(*problem)
    opened = [_open_volume(files, part, policy, labels) for part in chosen.parts]
    if len(opened) == 1:
        return replace(opened[0], findings=(*findings, *opened[0].findings))
    detail = f"{len(opened)}, distinguished by {chosen.by}"
    findings.append(Finding.noted(FindingName.VOLUMES_AS_CHANNELS, detail))
    return _as_channels(opened, findings)


def _choose_scan(
    series: Sequence[Images],
    apart: Sequence[OtherFile],
    policy: SeriesPolicy,
    volume: tuple[int, int, str] | None,
) -> FoundScan:
    """Return the only scan of some series, or the one that `volume` selects.

    Raises:
        SourceError: there is no scan, or there are several and `volume` selects none of them.
    """
    scans = [scan for images in series for scan in find_scans(images, policy)]
    if not scans:
        raise series_error("no DICOM series", _count_kinds(apart))
    if len(scans) == 1:
        return scans[0]
    # The listing numbered all scans of the series. Another count means that files were added or removed since.
    if volume is not None and volume[1] == len(scans):
        return scans[volume[0] - 1]
    joined = [find_scans(images, replace(policy, split="channels")) for images in series]
    raise _several_scans(scans, joins=policy.split != "channels" and sum(map(len, joined)) == 1)


def _several_scans(scans: Sequence[FoundScan], *, joins: bool) -> SourceError:
    """Return the error for several scans; `joins` tells whether --series-split channels makes one scan of them."""
    sizes = []
    for scan in scans[:8]:
        rows, columns = scan.parts[0][0].fields.stored.size
        sizes.append(f"{len(scan.slices)} of {rows} x {columns}")
    cure = "name one as FOLDER#MARK, as --layout dicom lists them"
    cure += ", or use --series-split channels" if joins else ""
    detail = f"{len(scans)}: slices {', '.join(sizes)}; {cure}"
    return series_error("several series, or several stacks in one", detail)


def _as_channels(scans: Sequence[Scan], findings: Sequence[Finding]) -> Scan:
    """Combine volumes on one grid into the channels of one scan."""
    first = scans[0]
    for scan in scans[1:]:
        if not grids_agree(first.grid, scan.grid):
            detail = f"{first.grid.shape} and {scan.grid.shape}; --series-split volumes takes each as a scan"
            raise SourceError("geometry", "volumes of the series lie on different grids", detail)
    dtype = _common_dtype(scans)
    more = dict.fromkeys(chain.from_iterable(scan.findings for scan in scans))
    origins = [scan.origin for scan in scans if scan.origin is not None]
    # Each volume is held in its own dtype and in the common one until they are concatenated.
    joining_bytes = 2 * len(scans) * math.prod(first.grid.shape) * dtype.itemsize
    return replace(
        first,
        channels=len(scans),
        dtype=dtype.name,
        unit=first.unit if len({scan.unit for scan in scans}) == 1 else "",
        findings=(*findings, *more),
        files=tuple(sorted(set(chain.from_iterable(scan.files for scan in scans)))),
        read=lambda: np.concatenate([scan.read().astype(dtype, copy=False) for scan in scans], axis=3),
        origin=reduce(or_, origins),
        read_bytes=sum(scan.read_bytes for scan in scans) + joining_bytes,
    )


def _common_dtype(scans: Sequence[Scan]) -> np.dtype[Any]:
    """Return the smallest dtype for the values of all scans; float32 where NumPy's is no dtype of a scan."""
    dtype = np.result_type(*(np.dtype(scan.dtype) for scan in scans))
    return dtype if dtype.name in EXACT_DTYPES else np.dtype(np.float32)


def _label_slice(one: Slice) -> Slice:
    """Return the slice without rescale and padding value, so that its values are those stored."""
    # Lossy compression makes class 2 of neighbors 1 and 3.
    if one.fields.lossy:
        raise series_error("label slices are compressed with loss", one.path)
    stored = replace(one.fields, format=replace(one.fields.stored, padding=None))
    return replace(one, fields=stored, frame=replace(one.frame, rescale=None))


def _with_rescale(one: Slice, policy: SeriesPolicy) -> Slice:
    """Return the slice with the conversion of its values: its rescale, or a real world value mapping."""
    try:
        frame, modality = one.frame, one.fields.modality
        rescale = choose_rescale(frame.rescale, frame.mappings, modality, policy.real_world_values)
    except SourceError as error:
        raise error.at(one.path) from None
    return one if rescale is frame.rescale else replace(one, frame=replace(frame, rescale=rescale))


def _check_background(voxels: NDArray[Any], part: Sequence[Slice]) -> None:
    """Refuse label slices with a rescale whose stored values do not contain the background."""
    rescales = {(one.frame.rescale.slope, one.frame.rescale.intercept) for one in part if one.frame.rescale}
    # Converters copy the header of the CT into its masks, so that a rescale of -1024 may mean nothing. Stored values
    # are the classes only if the background is stored as 0.
    if rescales <= {(1.0, 0.0)} or not voxels.min():
        return
    detail = f"{part[0].path}: the smallest stored value is {voxels.min()}; store the mask as NIfTI, with 0 outside"
    raise series_error("label slices have a rescale and no stored 0", detail)


def _open_volume(files: SourceFiles, part: Sequence[Slice], policy: SeriesPolicy, labels: bool) -> Scan:
    """Plan the scan of one volume from its slices, and check them."""
    slices = list(map(_label_slice, part)) if labels else [_with_rescale(one, policy) for one in part]
    orientation, spacing_mm = _check_alike(slices)
    _check_stored(slices)
    slices, duplicates = _drop_duplicates(files, slices, orientation, policy)
    if problem := too_few_slices(len(slices), policy):
        raise SourceError(*problem)
    paths = [one.path for one in slices]
    plan = plan_slices(positions_of(slices), orientation, thickness_of(slices), policy, paths)
    slices = [slices[index] for index in plan.order]
    first = slices[0].fields
    values = _plan_values(files, slices, plan, policy)
    check_alternation = _may_alternate(slices, policy)

    def read() -> NDArray[Any]:
        voxels = _read_volume(files, slices, plan, values)
        if check_alternation:
            _check_alternation(voxels)
        if labels:
            _check_background(voxels, part)
        return voxels

    return Scan(
        grid=_grid_of(plan, first.stored.size, orientation, spacing_mm),
        channels=1,
        dtype=values.dtype,
        unit=values.unit,
        modality=first.modality,
        findings=(*duplicates, *plan.findings, *values.findings),
        files=tuple(sorted(set(paths))),
        read=read,
        origin=_scan_identity({one.path: one.fields for one in part}.values()),
        read_bytes=_read_bytes(slices, len(plan.lower), values.dtype),
        slices=_slice_files(slices, plan),
    )


def _check_stored(slices: Sequence[Slice]) -> None:
    """Check by their headers that the pixels of all files can be decoded; a SourceError names the file."""
    for path, fields in {one.path: one.fields for one in slices}.items():
        # PS3.3 C.11.1: a table in place of slope and intercept, which maps to output of any unit.
        if fields.lookup_table:
            raise series_error("modality look-up tables are not supported", path)
        try:
            # The size of a packed file does not limit the bytes of its pixels.
            is_packed = fields.packed or fields.syntax == DEFLATED
            check_pixels(as_stored_image(fields), None if is_packed else fields.file_bytes)
        except SourceError as error:
            raise error.at(path) from None


def _plan_values(
    files: SourceFiles, slices: Sequence[Slice], plan: SlicePlan, policy: SeriesPolicy
) -> ValuePlan:
    """Plan the values of the slices of a volume, in order."""
    values = plan_series_values(slices, (), policy)
    # Undeclared padding is known in Hounsfield units only, so that a slice is decoded for its corners in a CT only.
    if values.unit and not slices[0].fields.stored.is_float:
        values = plan_series_values(slices, _corners(files, slices), policy)
    # The dtype decides the rounding of later steps, so it stays what it was when the first data sets were converted.
    if plan.interpolates and values.dtype == "uint8":
        return replace(values, dtype="int16")
    return values


def _grid_of(
    plan: SlicePlan, size: tuple[int, int], orientation: tuple[float, ...], spacing_mm: tuple[float, ...]
) -> Grid:
    """Return the grid of a volume: from slice to slice, from row to row, and from column to column.

    Pixel Spacing is the distance between rows, then between columns (PS3.3 10.7.1.3). A column runs from row to row.
    """
    along_row, along_column, _ = axes_of(orientation)
    axes_mm = np.stack([plan.step_mm, along_column * spacing_mm[0], along_row * spacing_mm[1]])
    affine = affine_matrix(axes_mm * LPS_TO_RAS_SIGNS, plan.origin_mm * LPS_TO_RAS_SIGNS)
    return Grid(
        shape=(len(plan.lower), *size), affine=affine + 0.0
    )  # no -0.0, so that equal grids are equal bytes


def _may_alternate(slices: Sequence[Slice], policy: SeriesPolicy) -> bool:
    """Return whether the voxels must show that the slices, in order, are not two scans that interleave.

    Only overlapping slices, and passes that alternate, make a stack that two scans could make too.
    """
    return policy.alternating == "refuse" and (overlapping(slices) or passes_alternate(slices))


def _slice_files(slices: Sequence[Slice], plan: SlicePlan) -> tuple[str, ...]:
    """Return the file of each slice of the volume, in order; () unless each slice is one file."""
    paths = tuple(one.path for one in slices)
    return paths if len(set(paths)) == len(paths) and not plan.interpolates else ()


def _scan_identity(images: Collection[HeaderFields]) -> ScanIdentity:
    """Return the identity of the scan of some images, for the comparison with the references of a mask."""
    return ScanIdentity(
        series=frozenset(fields.series_digest for fields in images) - {b""},
        frames=frozenset(fields.frame_digest for fields in images) - {b""},
        images=frozenset(fields.instance_digest for fields in images) - {b""},
    )


def _read_bytes(slices: Sequence[Slice], depth: int, dtype: str) -> int:
    """Return the most memory that `_read_volume` takes: the volume, one file, and the decoding of one frame."""
    most = 0
    # The largest file counts, because `_SliceReader` holds one file at a time: packed, unpacked and inflated.
    for fields in {one.path: one.fields for one in slices}.values():
        size = fields.file_bytes or 0
        if fields.packed:
            size += max_unpacked_bytes(size)
        if fields.syntax == DEFLATED:
            size += min(MAX_DEFLATE_RATIO * size, MAX_INFLATED_BYTES)
        most = max(most, 2 * size + FRAME_BYTES * math.prod(as_stored_image(fields).stored.size))
    return depth * math.prod(slices[0].fields.stored.size) * np.dtype(dtype).itemsize + most


def _check_alternation(voxels: NDArray[Any]) -> None:
    """Refuse a volume that consists of two interleaved scans.

    In one scan, a slice resembles its neighbor more than the slice after that. In interleaved scans it is the opposite.

    Args:
        voxels: [depth, height, width, channel].

    Raises:
        SourceError: slices two apart resemble each other much more than neighbors do.
    """
    # A sixteenth of the pixels shows the same medians in slices that are large enough.
    sampled = voxels[:, ::4, ::4] if min(voxels.shape[1:3]) >= 64 else voxels
    # The median of fewer pairs may be that of one pair at the border of an organ.
    if len(sampled) < MIN_ALTERNATING_SLICES:
        return

    def difference(step: int) -> float:
        pairs = zip(sampled, sampled[step:], strict=False)
        return float(np.median([np.abs(one.astype(np.float64) - other).mean() for one, other in pairs]))

    near, far = difference(1), difference(2)
    if far < near * ALTERNATION:
        detail = f"neighbors differ by {near:.4g} on average, every other slice by {far:.4g}"
        cure = "give each its own series UID, or use --alternating-slices keep"
        reason = "every other slice shows something else, as if two scans were mixed"
        raise series_error(reason, f"{detail}; {cure}")


def _check_other_files(apart: Sequence[OtherFile]) -> Iterable[Finding]:
    """Yield the finding about files that are not slices.

    Raises:
        SourceError: a file is damaged and may be a slice.
    """
    # Without the damaged file, the scan would have a gap that positions do not show at its ends.
    for item in apart:
        if item.error is not None and item.may_be_slice:
            raise item.error.at(item.path)
    if apart:
        yield Finding.noted(FindingName.OTHER_FILES, _count_kinds(apart))


def _count_kinds(apart: Sequence[OtherFile]) -> str:
    kinds = Counter(item.kind for item in apart)
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))


def _check_alike(slices: Sequence[Slice]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the orientation and the pixel spacing of all slices.

    Raises:
        SourceError: they differ between slices, or are missing or invalid.
    """
    orientation, spacing_mm = slices[0].orientation, slices[0].frame.spacing_mm
    axes_of(orientation)
    for part in slices:
        if not is_same_orientation(orientation, part.orientation):
            raise series_error("slices differ in orientation", part.path)
        # Pixel Spacing is required of slices (PS3.3 C.7.6.2), so a file without it was changed or is a screenshot.
        if part.frame.spacing_mm is None or spacing_mm is None:
            raise series_error("pixel spacing is missing", f"{part.path}; export the original series")
        if min(part.frame.spacing_mm) <= 0:
            raise series_error("pixel spacing is not positive", part.path)
        pairs = zip(spacing_mm, part.frame.spacing_mm, strict=True)
        if max(abs(a - b) / a for a, b in pairs) > SPACING_TOLERANCE:
            raise series_error("slices differ in pixel spacing", part.path)
    assert spacing_mm is not None
    return orientation, spacing_mm


def _separation_advice(first: str, second: str) -> str:
    """Return the advice that makes two files slices of different scans."""
    # The option separates files by folder, so that files of one folder must be moved first.
    if folder_of(first) != folder_of(second):
        return "--series-identity folder takes the files of each folder as a scan of their own"
    return "put the files of each scan into a folder of their own, and use --series-identity folder"


def _drop_duplicates(
    files: SourceFiles, slices: list[Slice], orientation: tuple[float, ...], policy: SeriesPolicy
) -> tuple[list[Slice], list[Finding]]:
    """Keep one slice at each position.

    Raises:
        SourceError: slices at one position show different images, or the policy refuses duplicates.
    """
    positions = positions_of(slices)
    sets = duplicate_sets(positions, orientation)
    dropped = len(slices) - len(sets)
    if not dropped:
        return slices, []
    reader = _SliceReader(files)
    for alike in sets:
        kept = slices[alike[0]]
        for index in alike[1:]:
            other = slices[index]
            # Equal positions along the normal that differ within the plane are parts of a larger field of view.
            if np.linalg.norm(positions[index] - positions[alike[0]]) > 0.1:
                raise series_error("slices lie side by side", f"{kept.path}, {other.path}")
            if not _is_same_image(reader, kept, other):
                two_files = kept.path != other.path
                where = f"{kept.path} and {other.path}" if two_files else f"frames of {kept.path}"
                advice = _separation_advice(kept.path, other.path)
                detail = f"{dropped} positions more than once; {where}; {advice}"
                raise series_error("different images at one position", detail)
    if policy.duplicates == "refuse":
        raise series_error("slices are duplicated", f"{dropped} of {len(slices)}")
    detail = f"{dropped} of {len(slices)} slices are the same image at the same position; one of each is kept"
    return [slices[alike[0]] for alike in sets], [Finding.corrected(FindingName.DUPLICATES, detail)]


def _is_same_image(reader: _SliceReader, one: Slice, other: Slice) -> bool:
    # Equal stored values with other slopes are other images.
    if one.frame.rescale != other.frame.rescale:
        return False
    return bool(np.array_equal(reader.stored_values(one), reader.stored_values(other)))


def _corners(files: SourceFiles, slices: Sequence[Slice]) -> tuple[int, ...]:
    """Return the stored values at the four corners of the middle slice."""
    values = _SliceReader(files).stored_values(slices[len(slices) // 2])
    return tuple(int(value) for value in (values[0, 0], values[0, -1], values[-1, 0], values[-1, -1]))


class _SliceReader:
    """Reader of single slices that caches the bytes of the last file, and its image if that is a mosaic."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        self._path: str | None = None
        self._reader: FrameReader | None = None
        self._mosaic: tuple[NDArray[Any], int] | None = None

    def words(self, part: Slice) -> tuple[NDArray[Any], int]:
        """Return the stored words of one slice, and their largest error. A SourceError names the file."""
        try:
            if self._path != part.path or self._reader is None:
                self._reader = self._mosaic = None
                self._reader, self._path = self._open(part.path, part.fields), part.path
            if part.fields.tiles is None:
                return self._reader.words(part.index)
            self._mosaic = self._mosaic or self._reader.words(0)  # decoded once for all its slices
            image, near = self._mosaic
            return image[tile_at(part.index, part.fields.tiles, part.fields.stored)], near
        except SourceError as error:
            raise error.at(part.path) from None

    def stored_values(self, part: Slice) -> NDArray[Any]:
        """Return the stored values of one slice."""
        return extract_values(self.words(part)[0], part.fields.stored)

    def _open(self, path: str, fields: HeaderFields) -> FrameReader:
        body = read_dicom_body(self._files, path, fields.syntax, fields.pixels, fields.header_checksum)
        return read_frames(body, as_stored_image(fields))


def _read_volume(
    files: SourceFiles, slices: Sequence[Slice], plan: SlicePlan, values: ValuePlan
) -> NDArray[Any]:
    """Read the slices one by one into a volume [depth, height, width, 1].

    Slices between stored ones are interpolated linearly, and rounded to the nearest integer in an integer dtype.
    """
    reader = _SliceReader(files)
    cache: dict[int, NDArray[Any]] = {}
    volume: NDArray[Any] | None = None

    def read_slice(index: int) -> NDArray[Any]:
        if index not in cache:
            words, near = reader.words(slices[index])
            cache[index] = apply_values(words, slices[index], values, near)
        return cache[index]

    for index, (lower, weight) in enumerate(zip(plan.lower, plan.weight, strict=True)):
        for passed in [number for number in cache if number < lower]:
            del cache[passed]
        array = read_slice(lower)
        if weight:
            upper = read_slice(lower + 1)
            mixed = array * np.float64(1 - weight) + upper * np.float64(weight)
            array = mixed if array.dtype.kind == "f" else np.rint(mixed)
        if volume is None:
            # Allocated only after one slice was decoded, because headers may claim any size.
            volume = np.empty((len(plan.lower), *array.shape, 1), values.dtype)
        volume[index, ..., 0] = array
    assert volume is not None
    return volume
