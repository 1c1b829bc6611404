"""Reader of DICOM structure sets: draws contours into a label volume on the grid of their scan.

`read_structures` is the entry point. `_contours` reads the contours, `_assign_slices` finds the slice of each, and
`enclosed` draws the contours of one structure in one slice.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import Elements, MaskFile, damaged_file, integer, items
from halofeed.prep.formats.dicom.mask_codes import structure_codes
from halofeed.prep.formats.dicom.slice_geometry import LPS_TO_RAS_SIGNS
from halofeed.prep.geometry.scan import Finding, Grid, MaskScan, OverlapRule, left_out_findings
from halofeed.prep.voxels.label_volumes import overlap_error
from halofeed.prep.voxels.masks import fill_polygons
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError, UsageError
from halofeed.system.wording import plural

PointArray = NDArray[np.float64]
CROSSING_VOXELS, CROSSING_SHARE = 2, 0.01
"""Voxels, or share of a contour's voxels, by which two contours may cross: rounding of coordinates that touch."""
TRACED_VOXELS = 0.02
"""A contour runs through voxel centers if all its points are this near to one; the file rounded the coordinates."""
ON_CONTOUR_VOXELS = 1e-6
"""Largest distance between a voxel center and a contour that meets it: the precision of 16 characters."""
EDGE_ROWS_PER_BLOCK = 2**22

CLOSED, CLOSED_BY_PARITY = "CLOSED_PLANAR", "CLOSEDPLANAR_XOR"
OTHER_KINDS = frozenset(("POINT", "OPEN_PLANAR", "OPEN_NONPLANAR"))
ON_SLICE, NEAR_SLICE = 0.01, 0.25
"""Largest distance, in slices, between a contour and a slice to be on it, and to be moved to it."""
FLAT, SAME_PLANE = 0.25, 0.1
"""Largest distance, in slices, between the points of a contour, and between the contours of a structure in a slice."""
FAR_VOXELS, EDGE_VOXELS = 1e6, 0.01
CONTOUR_BYTES, POINT_BYTES = 500, 200
"""Memory of a contour without its points, and of each point of the contour that is drawn."""

OTHER, THIN = FindingName.CONTOURS_WITHOUT_AREA, FindingName.CONTOURS_TOO_SHORT
DUPLICATE, MOVED = FindingName.REPEATED_CONTOURS, FindingName.CONTOURS_OFF_SLICE
BEYOND, CUT = FindingName.CONTOURS_BEYOND_SLICES, FindingName.CONTOURS_CUT
SKIPPED, EMPTY = FindingName.STRUCTURES_SKIP_SLICES, FindingName.STRUCTURES_WITHOUT_CONTOURS
UNNAMED, RENUMBERED = FindingName.STRUCTURES_WITHOUT_NAME, FindingName.STRUCTURES_RENUMBERED
TREATMENTS: Mapping[FindingName, tuple[Literal["corrected", "noted"], str]] = {
    OTHER: ("noted", "points and open contours left out: {}"),
    THIN: ("noted", "left out: {}"),
    DUPLICATE: ("corrected", "drawn once: {} left out"),
    MOVED: ("corrected", "moved to the nearest slice: {}"),
    BEYOND: ("noted", "within one slice of the first or the last, left out: {}"),
    CUT: ("noted", "{}"),
    SKIPPED: ("noted", "slices without a contour between two that lie over each other: {}"),
    EMPTY: ("noted", "{}"),
    UNNAMED: ("noted", "called by number: {}"),
    RENUMBERED: ("corrected", "numbers below 1 replaced by unused ones: {}"),
}
"""Treatment and detail of each finding; the detail contains the count."""


def enclosed(
    contours: Sequence[PointArray], size: tuple[int, int], what: str, *, may_cross: bool
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the voxels of a slice inside an odd number of contours, and the voxels on a contour.

    Both results are [row, column]. A voxel on the border between two regions is inside exactly one of them.

    Args:
        contours: float64 [point, 2], row and column in voxels; fewer than three points enclose nothing.
        size: (rows, columns) of the slice.
        what: the structure, for messages.
        may_cross: whether the file declares that its contours may cross.

    Raises:
        SourceError: contours cross (stage `annotation`).
    """
    depth, on_contour = np.zeros(size, np.int32), np.zeros(size, np.bool_)
    for points in sorted(map(_snapped, contours), key=_area, reverse=True):
        on_contour[_centers_on(points, size)] = True
        # PS3.3 C.8.8.6.3 (XOR): voxels in an odd number of contours are inside. Holes that were written as plain
        # CLOSED_PLANAR contours within others are drawn by the same rule.
        for window, covered in _covered(points, size):
            part = depth[window]
            # In descending order of size, contours that do not cross cover all voxels of the next one equally often.
            _, voxels = np.unique(part[covered], return_counts=True)
            crossing = int(voxels.sum() - voxels.max(initial=0))
            if not may_cross and crossing > max(CROSSING_VOXELS, CROSSING_SHARE * voxels.sum()):
                detail = (
                    f"{what}, {plural(crossing, 'voxel')} of one slice lie in one of two contours or in both"
                )
                raise SourceError("annotation", "contours of one structure cross", detail)
            part += covered
    return (depth & 1).astype(np.bool_), on_contour


def is_traced(points: PointArray) -> bool:
    """Return whether a contour runs through voxel centers."""
    return bool((np.abs(points - np.rint(points)) <= TRACED_VOXELS).all())


def _snapped(points: PointArray) -> PointArray:
    return np.rint(points) if is_traced(points) else points


def _area(points: PointArray) -> float:
    centered = points - points[0]
    following = np.roll(centered, -1, axis=0)
    return float(abs(np.sum(centered[:, 0] * following[:, 1] - centered[:, 1] * following[:, 0])))


def _centers_on(points: PointArray, size: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and the columns of the voxels whose centers are on an edge."""
    found = [np.empty((0, 2), np.int64)]
    ends = np.roll(points, -1, axis=0)
    steps = ends - points
    for along in (0, 1):  # edges that run more along the rows' axis, then the others
        chosen = np.abs(steps[:, along]) >= np.abs(steps[:, 1 - along])
        # A diagonal edge was found by its rows already.
        if along:
            chosen &= np.abs(steps[:, 1]) != np.abs(steps[:, 0])
        begin, step, end = points[chosen], steps[chosen], ends[chosen]
        low, high = np.minimum(begin, end)[:, along], np.maximum(begin, end)[:, along]
        first = np.clip(np.ceil(low - ON_CONTOUR_VOXELS), 0, size[along]).astype(np.int64)
        last = np.clip(np.floor(high + ON_CONTOUR_VOXELS), -1, size[along] - 1).astype(np.int64)
        counts = np.maximum(last - first + 1, 0)
        blocks = (np.cumsum(counts) / EDGE_ROWS_PER_BLOCK).astype(np.int64)
        cuts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(counts)]
        for start, stop in pairwise(cuts):
            number = counts[start:stop]
            edge = np.repeat(np.arange(start, stop), number)
            place = np.arange(len(edge)) - np.repeat(np.cumsum(number) - number, number) + first[edge]
            length = step[edge, along]
            share = np.clip((place - begin[edge, along]) / np.where(length == 0, 1, length), 0, 1)
            across = begin[edge, 1 - along] + share * step[edge, 1 - along]
            nearest = np.rint(across).astype(np.int64)
            meets = (
                (np.abs(across - nearest) <= ON_CONTOUR_VOXELS) & (nearest >= 0) & (nearest < size[1 - along])
            )
            voxels = np.stack([place[meets], nearest[meets]], axis=1)
            found.append(voxels[:, ::-1] if along else voxels)
    rows, columns = np.concatenate(found).T
    return rows, columns


def _covered(
    points: PointArray, size: tuple[int, int]
) -> Iterator[tuple[tuple[slice, slice], NDArray[np.bool_]]]:
    """Yield the window of a slice around a contour, and the mask of the voxel centers inside, if there are any.

    Voxel centers on the top and left border are inside, so that regions with a common border share no voxel.
    """
    if len(points) < 3:
        return  # `_centers_on` finds the voxels of points and lines
    low = np.maximum(np.floor(points.min(axis=0)), 0).astype(np.int64)
    high = np.minimum(np.ceil(points.max(axis=0)) + 1, size).astype(np.int64)
    if (low >= high).any():
        return
    rows, columns = (high - low).tolist()
    y, x = (points - low + 0.5).T  # in `fill_polygons`, the center of a pixel is at 0.5
    inside = fill_polygons([np.stack([x, y], axis=1).ravel()], (rows, columns))
    yield (slice(low[0], high[0]), slice(low[1], high[1])), inside.astype(np.bool_)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Contour:
    """A contour that encloses an area, in voxels of the scan's grid.

    Args:
        number: number of its structure, from 1.
        by_parity: whether the file declares that contours of this structure may cross.
        points: float64 [point, 3].
    """

    number: int
    by_parity: bool
    points: PointArray


@dataclass(frozen=True, kw_only=True, eq=False)
class _ContourSlices:
    """Contours by slice and structure.

    Args:
        axis: axis of the grid across the slices.
        slices: for each slice and structure the contours in it.
    """

    axis: int
    slices: Mapping[int, Mapping[int, Sequence[_Contour]]]


def read_structures(
    path: str, elements: Elements, grid: Grid | None, keeps: Callable[[str, Sequence[str]], bool]
) -> MaskScan:
    """Return an RTSTRUCT as a mask; see `halofeed.prep.formats.dicom.mask_files.open_dicom_mask`."""
    if grid is None:
        message = "structures are contours without a grid; give image_grid, that of their scan"
        raise UsageError(f"{path}: {message}")
    counts: Counter[str] = Counter()
    numbers, names = _structures(elements, counts)
    codes = structure_codes(elements, numbers)
    kept = {number: name for number, name in names.items() if keeps(name, codes.get(number, ()))}
    chosen = left_out_findings(names, kept)
    contours = _contours(elements, numbers, kept, grid, counts)
    drawing = _assign_slices(contours, grid, kept, counts)
    counts[SKIPPED] = _count_skipped_slices(drawing)

    def read_classes(ids: Mapping[int, int], overlap: OverlapRule) -> tuple[NDArray[Any], int]:
        return _labels(drawing, grid, ids, overlap)

    findings = tuple(
        Finding(name=name, treatment=treatment, detail=detail.format(counts[name]))
        for name, (treatment, detail) in TREATMENTS.items()
        if counts[name]
    )
    return MaskScan(
        grid=grid,
        names=kept,
        findings=(*findings, *chosen),
        files=(path,),
        read=lambda: read_classes({number: number for number in kept}, "refuse")[0],
        read_classes=read_classes,
        held_bytes=sum(CONTOUR_BYTES + contour.points.nbytes for contour in contours),
        read_bytes=4 * math.prod(grid.shape)
        + POINT_BYTES * max((len(contour.points) for contour in contours), default=0),
        codes=codes,
    )


def structure_bytes(mask: MaskFile) -> int:
    """Return the memory that the contours of a file take while their coordinates are parsed."""
    return mask.parsed_bytes + 3 * len(mask.body)


def structure_names(elements: Elements) -> Mapping[int, str]:
    """Return the names of all structures by number."""
    return _structures(elements, Counter())[1]


def coded_structures(elements: Elements) -> Mapping[int, tuple[str, ...]]:
    """Return the codes of all structures that have some, by number."""
    return structure_codes(elements, _structures(elements, Counter())[0])


def _structures(elements: Elements, counts: Counter[str]) -> tuple[dict[int, int], dict[int, str]]:
    """Return the structure numbers by stored number, and the names by structure number.

    Stored numbers below 1 get unused numbers. `counts` receives the renumbered and the unnamed structures.
    """
    stored = _stored_names(elements)
    # Structures may be counted from 0, which is the background of a label volume.
    below_1 = [number for number in stored if number < 1]
    first_unused = max(0, *stored) + 1
    if first_unused + len(below_1) > 2**31:
        raise damaged_file("its structure numbers are out of range")
    replaced = {number: first_unused + at for at, number in enumerate(below_1)}
    numbers = {number: replaced.get(number, number) for number in stored}
    counts[RENUMBERED] = len(below_1)
    counts[UNNAMED] = sum(not name for name in stored.values())
    return numbers, {numbers[number]: name or f"structure {number}" for number, name in stored.items()}


def _stored_names(elements: Elements) -> dict[int, str]:
    """Return the name of each structure by its stored number; "" if the file gives none."""
    stored: dict[int, str] = {}
    character_sets = headers.declared_character_sets(elements)
    for item in items(elements, headers.STRUCTURES):
        number = integer(item, headers.STRUCTURE_NUMBER)
        # PS3.3 C.8.8.5: the number is unique, because contours refer to it.
        if number in stored:
            raise damaged_file("two structures have one number")
        stored[number] = headers.name_text(item, headers.STRUCTURE_NAME, character_sets)
    if not stored:
        raise SourceError("annotation", "structure set has no structures")
    return stored


def _contours(
    elements: Elements, numbers: Mapping[int, int], names: dict[int, str], grid: Grid, counts: Counter[str]
) -> list[_Contour]:
    """Return all contours that enclose an area, in voxels of the grid.

    Structures with only points and open contours are not classes and are removed from `names`.
    """
    to_voxels = np.linalg.inv(grid.affine[:3, :3])
    contours: list[_Contour] = []
    thin: list[_Contour] = []
    drawn: set[int] = set()
    only_other: set[int] = set()
    for number, item in _items_of_structures(elements, numbers, names):
        kind = headers.text(item, headers.CONTOUR_KIND)
        # PS3.3 C.8.8.6.1: these enclose no area: points of interest, applicators.
        if kind in OTHER_KINDS:
            counts[OTHER] += 1
            only_other.add(number)
            continue
        if kind not in (CLOSED, CLOSED_BY_PARITY):
            raise damaged_file("a contour is of an unknown kind")
        drawn.add(number)
        points = _points_of(item)
        # The grid and the file may have any numbers, whose products may be infinite.
        with np.errstate(over="ignore", invalid="ignore"):
            voxels = (points * LPS_TO_RAS_SIGNS - grid.affine[:3, 3]) @ to_voxels.T
        contour = _Contour(number=number, by_parity=kind == CLOSED_BY_PARITY, points=voxels)
        is_far = not (np.abs(voxels) < FAR_VOXELS).all()
        if len(points) < 3:
            _keep_thin(contour, is_far, thin, counts)
        elif is_far:
            raise SourceError("annotation", "contours lie outside of the image", "a million voxels away")
        else:
            contours.append(contour)
    # In a structure traced through voxel centers, one point is a voxel, and two points are a line of voxels.
    not_traced = {contour.number for contour in contours if not is_traced(contour.points)}
    counts[THIN] += sum(contour.number in not_traced for contour in thin)
    contours += [contour for contour in thin if contour.number not in not_traced]
    for number in only_other - drawn:
        del names[number]
    counts[EMPTY] = len(names.keys() - drawn)
    return contours


def _items_of_structures(
    elements: Elements, numbers: Mapping[int, int], names: Mapping[int, str]
) -> Iterator[tuple[int, Elements]]:
    """Yield the number of the structure, and the item, of each contour of the structures in `names`."""
    for structure in items(elements, headers.STRUCTURE_CONTOURS):
        stored_number = integer(structure, headers.CONTOURS_OF)
        if stored_number not in numbers:
            raise damaged_file("contours belong to a structure that is not described")
        if numbers[stored_number] in names:
            for item in items(structure, headers.CONTOURS):
                yield numbers[stored_number], item


def _points_of(item: Elements) -> PointArray:
    """Return the points [point, 3] of a closed contour in DICOM's millimeters, none of them repeated at the end."""
    flat = headers.number_array(item, headers.CONTOUR_DATA)
    point_count = integer(item, headers.POINT_COUNT, flat.size // 3)
    if flat.size != 3 * point_count:
        detail = f"a contour has {plural(flat.size, 'coordinate')} for {plural(point_count, 'point')}"
        raise damaged_file(detail)
    points = flat.reshape(-1, 3)
    # PS3.3 C.8.8.6.1: the first point is not repeated. A repeated one is dropped.
    return points[:-1] if len(points) > 1 and (points[0] == points[-1]).all() else points


def _keep_thin(contour: _Contour, is_far: bool, thin: list[_Contour], counts: Counter[str]) -> None:
    """Keep a contour of one or two points if it can be that of voxels, else count it."""
    if not len(contour.points) or is_far or not is_traced(contour.points):
        counts[THIN] += 1
    else:
        # It encloses nothing, so that the order in which it is drawn does not matter.
        thin.append(replace(contour, by_parity=False))


def _assign_slices(
    contours: Sequence[_Contour], grid: Grid, names: Mapping[int, str], counts: Counter[str]
) -> _ContourSlices:
    """Find the slice of every contour.

    Raises:
        SourceError: a contour is not in a slice of the grid.
    """
    if not contours:
        return _ContourSlices(axis=0, slices={})
    lowest = np.array([contour.points.min(axis=0) for contour in contours])
    highest = np.array([contour.points.max(axis=0) for contour in contours])
    # Contours are planar (PS3.3 C.8.8.6.1): no contour extends along the axis of the slices.
    axis = int((highest - lowest).max(axis=0).argmin())
    spread = highest[:, axis] - lowest[:, axis]
    if spread.max() > FLAT:
        _refuse_planes("contours do not lie in the image's slices", contours, spread, FLAT, names)
    planes = (lowest[:, axis] + highest[:, axis]) / 2
    nearest, on_grid, offsets = _nearest_slices(planes, grid.shape[axis] - 1, contours, names)
    sides = np.delete(np.array(grid.shape), axis) - 0.5
    low, high = np.delete(lowest, axis, axis=1), np.delete(highest, axis, axis=1)
    cut = ((low < -0.5 - EDGE_VOXELS) | (high > sides + EDGE_VOXELS)).any(axis=1)
    outside = ((high < -0.5) | (low > sides)).any(axis=1) | ~on_grid
    if outside.all():
        raise SourceError("annotation", "contours lie outside of the image", f"all {len(contours)} of them")
    counts[BEYOND] = int(np.count_nonzero(~on_grid))
    counts[CUT] = int(np.count_nonzero(cut & on_grid))
    counts[MOVED] = int(np.count_nonzero(offsets > ON_SLICE))
    slices: dict[int, dict[int, list[_Contour]]] = defaultdict(lambda: defaultdict(list))
    in_group: dict[tuple[int, int], list[float]] = defaultdict(list)
    for index in np.flatnonzero(on_grid).tolist():
        slices[nearest[index]][contours[index].number].append(contours[index])
        in_group[nearest[index], contours[index].number].append(planes[index])
    _refuse_crowded(in_group.values())
    for structures in slices.values():
        for number, group in structures.items():
            # A contour may be repeated, also in the other direction.
            unique = {_shape_key(contour.points, axis): contour for contour in group}
            counts[DUPLICATE] += len(group) - len(unique)
            structures[number] = list(unique.values())
    return _ContourSlices(axis=axis, slices=slices)


def _nearest_slices(
    planes: NDArray[np.float64], last: int, contours: Sequence[_Contour], names: Mapping[int, str]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """Return the nearest slice of each contour, whether that is near enough, and the distance, 0 where it is not.

    Args:
        planes: position of each contour along the axis of the slices, in voxels.
        last: index of the last slice.
        contours: the contours, for messages.
        names: names of their structures.

    Raises:
        SourceError: a contour is more than a slice away from the image, or between two slices.
    """
    beyond = np.maximum(-planes, planes - last)
    # Planning programs interpolate a contour one slice beyond the image; farther ones are those of another image.
    if beyond.max() > 1 + NEAR_SLICE:
        _refuse_planes("contours lie outside of the image", contours, beyond, 1 + NEAR_SLICE, names)
    on_grid = beyond <= NEAR_SLICE
    nearest = np.clip(np.rint(planes), 0, last).astype(np.int64)
    offsets = np.where(on_grid, np.abs(planes - nearest), 0)
    if offsets.max() > NEAR_SLICE:
        _refuse_planes("contours lie between the image's slices", contours, offsets, NEAR_SLICE, names)
    return nearest, on_grid, offsets


def _refuse_crowded(planes: Iterable[Sequence[float]]) -> None:
    """Refuse contours of one structure and slice that are in several planes, given as voxels along the slices' axis."""
    # They were drawn on thinner slices: their union would be thicker in the plane than the structure.
    crowded = sum(max(group) - min(group) > SAME_PLANE for group in planes)
    if crowded:
        planes_of = f"{plural(crowded, 'slice')} of a structure have contours of several planes"
        detail = f"{planes_of}; the image's are further apart"
        raise SourceError("annotation", "contours lie closer than the image's slices", detail)


def _refuse_planes(
    reason: str,
    contours: Sequence[_Contour],
    slices: NDArray[np.float64],
    limit: float,
    names: Mapping[int, str],
) -> NoReturn:
    """Raise the error for contours whose distance in slices exceeds a limit; it names their structures."""
    off = np.flatnonzero(slices > limit)
    owners = list(dict.fromkeys(names[contours[index].number] for index in off.tolist()))
    listed = ", ".join(map(repr, owners[:8])) + (" ..." if len(owners) > 8 else "")
    count = f"{len(off)} of {len(slices)} contours, by up to {slices.max():.3g} slices"
    cure = f"--map-classes '{owners[0]}=background' leaves a structure out"
    raise SourceError("annotation", reason, f"{count}, of {listed}; {cure}")


def _count_skipped_slices(drawing: _ContourSlices) -> int:
    """Return the number of slices without a contour between two contours of a structure that overlap in the plane."""
    places: dict[int, list[int]] = defaultdict(list)
    for index in sorted(drawing.slices):
        for number in drawing.slices[index]:
            places[number].append(index)
    count = 0
    for number, indices in places.items():
        for low, high in pairwise(indices):
            first, second = drawing.slices[low][number], drawing.slices[high][number]
            # Contours that do not overlap are two parts of the structure; between those, slices may be without one.
            if high - low > 1 and _overlap_in_plane(first, second, drawing.axis):
                count += high - low - 1
    return count


def _overlap_in_plane(first: Sequence[_Contour], second: Sequence[_Contour], axis: int) -> bool:
    """Return whether the bounding box of one contour contains the center of that of another."""

    def box(contour: _Contour) -> PointArray:
        flat = np.delete(contour.points, axis, axis=1)
        return np.stack([flat.min(axis=0), flat.max(axis=0)])

    def holds(outer: PointArray, inner: PointArray) -> bool:
        middle = inner.mean(axis=0)
        return bool(((outer[0] <= middle) & (middle <= outer[1])).all())

    pairs = product(map(box, first), list(map(box, second)))
    return any(holds(one, other) or holds(other, one) for one, other in pairs)


def _shape_key(points: PointArray, axis: int) -> bytes:
    """Return a key that is the same for contours which differ only in their first point or direction.

    Contours through voxel centers differ by direction, because a ring of one voxel has an inner and an outer contour
    with the same points.
    """
    flat = np.delete(points, axis, axis=1)
    if len(flat) < 3:
        return flat[np.lexsort(flat.T[::-1])].tobytes()
    # Two contours of the same voxels may differ in the rounding of coordinates.
    traced = is_traced(flat)
    if traced:
        flat = np.rint(flat)
    flat = np.roll(flat, -int(np.lexsort(flat.T[::-1])[0]), axis=0)
    if not traced and tuple(flat[-1]) < tuple(flat[1]):
        flat = np.roll(flat[::-1], 1, axis=0)
    return flat.tobytes()


def _labels(
    drawing: _ContourSlices, grid: Grid, ids: Mapping[int, int], overlap: OverlapRule
) -> tuple[NDArray[Any], int]:
    """Return the label volume, and the number of voxels in structures with different ids."""
    largest = max(ids.values(), default=0)
    labels = np.zeros(grid.shape, np.uint8 if largest < 256 else np.uint16 if largest < 65536 else np.int32)
    overlapping: set[int] = set()
    voxels = 0
    for index in sorted(drawing.slices):
        plane = np.moveaxis(labels, drawing.axis, 0)[index]
        regions = _regions(drawing.slices[index], drawing.axis, plane.shape)
        if overlap == "channels":
            for number, inside, on_contour in regions:
                plane[inside | on_contour] |= labels.dtype.type(ids[number])
            continue
        shared, owners = _draw_slice(plane, regions, ids, overlap)
        overlapping |= owners
        voxels += shared
    if voxels and overlap == "refuse":
        raise overlap_error("structures", overlapping, voxels)
    return labels, voxels


def _regions(
    structures: Mapping[int, Sequence[_Contour]], axis: int, size: tuple[int, int]
) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.bool_]]]:
    """Yield the number of each structure in a slice, its voxels inside, and its voxels on a contour."""
    for number, contours in sorted(structures.items()):
        points = [np.delete(contour.points, axis, axis=1) for contour in contours]
        may_cross = all(contour.by_parity for contour in contours)
        yield number, *enclosed(points, size, f"structure {number}", may_cross=may_cross)


def _draw_slice(
    plane: NDArray[Any],
    regions: Iterable[tuple[int, NDArray[np.bool_], NDArray[np.bool_]]],
    ids: Mapping[int, int],
    overlap: OverlapRule,
) -> tuple[int, set[int]]:
    """Draw the structures of a slice into `plane`, in order of their numbers.

    Points on a contour are part of its structure (PS3.3 C.8.8.6.3). Two structures that touch have voxels on both
    contours: these are no overlap, unless a structure would have no voxel without them.

    Args:
        plane: ids [row, column], which are changed.
        regions: number of each structure, its voxels inside, and its voxels on a contour.
        ids: id of each structure by its number.
        overlap: structure that gets the voxels of several.

    Returns:
        The number of voxels in structures with different ids, and the numbers of these structures.
    """
    owners = np.zeros(plane.shape, np.int32)
    interior, border, shared = (np.zeros(plane.shape, np.bool_) for _ in range(3))
    overlapping: set[int] = set()
    for number, inside, on_contour in regions:
        closed = inside | on_contour
        occupied = closed & (plane != 0) & (plane != ids[number])
        touching = occupied & border & on_contour & ~(inside & interior)
        if (closed & ~occupied).any() or (touching & inside).any():
            both = occupied & ~touching
        else:
            both, touching = occupied, np.zeros_like(occupied)  # the structure would have no voxel left
        if both.any():
            overlapping |= {number, *np.unique(owners[both]).tolist()}
            shared |= both
        if overlap == "refuse":
            closed &= ~touching | inside
        elif overlap == "first":
            closed &= ~occupied
        plane[closed], owners[closed] = ids[number], number
        interior |= inside
        border |= on_contour
    return int(np.count_nonzero(shared)), overlapping
