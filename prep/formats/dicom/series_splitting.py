"""Split of one series into several scans.

`split_contradictions` separates files whose headers contradict each other, for example about the patient.
`folders_disagree` detects folders of one series that hold different scans. `split_volumes` separates several volumes at
one position, such as phases and echoes, and stacks of slices that interleave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom.header_fields import (
    IDENTITY,
    INSTANCE_NUMBER,
    PASSES,
    TIMES,
    VOLUME_ATTRIBUTES,
    DicomFrame,
    HeaderFields,
    VolumeAttribute,
)
from halofeed.prep.formats.dicom.slice_geometry import (
    Floats,
    axes_of,
    duplicate_sets,
    is_same_orientation,
    tolerance_mm,
)
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.file_names import folder_of
from halofeed.system.errors import Problem, SourceError

ImageFiles = Sequence[tuple[str, HeaderFields]]
Values = tuple[bytes, ...]

_CONCLUSIVE = frozenset(("StudyInstanceUID", "Modality"))
"""Two values of one of these prove two scans, because nobody corrects them by hand."""
_NEVER_GENERATED = frozenset(("patient", "study"))
"""Entities whose attributes count even if every file has a different value."""
CONTRADICTION = "files of one series contradict each other"
_CONTRADICTION_ADVICE = (
    "put the files of each scan into a folder of their own and use --series-identity folder; if they are one scan, use "
    "--series-identity uid"
)
_FOLDERS_ADVICE = (
    "--series-identity folder takes each folder's files as a scan, --series-identity uid all files as one"
)
_INDEX_OF = {name: index for index, (name, _, _) in enumerate(IDENTITY)}
_ENTITY_OF = {name: entity for name, entity, _ in IDENTITY}


@dataclass(frozen=True, kw_only=True)
class Group:
    """Files of one series that may be one scan.

    Args:
        images: the files, sorted by path.
        by: attributes that distinguish them from the other files of the series; () if there are no others.
        problem: why the files are refused, or None.
    """

    images: ImageFiles
    by: tuple[str, ...] = ()
    problem: Problem | None = None


def split_contradictions(images: ImageFiles, policy: SeriesPolicy) -> list[Group]:
    """Split the files of a series if their headers prove several scans; refuse them if the split is unclear.

    Args:
        images: files of one series, sorted by path.
        policy: states the number of slices of a scan. Its `identity` "uid" disables the split.
    """
    if policy.identity == "uid" or len({fields.identity for _, fields in images}) < 2:
        return [Group(images=images)]
    names = _contradicting(images)
    if not names:
        return [Group(images=images)]
    parts, unclear = _group_by_identity(images, [_INDEX_OF[name] for name in names])
    if fault := _fault_of_split(parts, unclear, names, policy):
        detail = f"{' and '.join(names)}: {fault}; {_CONTRADICTION_ADVICE}"
        return [Group(images=images, problem=("selection", CONTRADICTION, detail))]
    return [Group(images=part, by=tuple(names)) for part in parts]


def _fault_of_split(
    parts: Sequence[ImageFiles], unclear: str | None, names: Sequence[str], policy: SeriesPolicy
) -> str:
    """Return why the groups are not proven to be separate scans, or ""."""
    if unclear is not None:
        return f"{unclear} has no value and fits several"
    # A single file with another value may be a stray, or a slice whose header somebody changed.
    if not all(_is_complete_scan(part, policy) for part in parts):
        few, rest = min(parts, key=len), max(parts, key=len)
        return f"{_describe_files(few)} against {_describe_files(rest)}"
    if not _are_different_scans(parts, names):
        return f"{parts[0][0][0]} against {parts[1][0][0]}, which lie in one even row"
    return ""


def _describe_files(images: ImageFiles) -> str:
    """Return the path of the first file and the number of the others."""
    return images[0][0] if len(images) == 1 else f"{images[0][0]} and {len(images) - 1} more"


def _contradicting(images: ImageFiles) -> list[str]:
    """Return the attributes that have several values in the files.

    A frame of reference or a number may differ for every slice. Therefore a different value in each file is a
    contradiction only for attributes of the patient and the study.
    """
    single_frames = all(len(fields.frames) == 1 for _, fields in images)
    names = []
    for name, entity, _ in IDENTITY:
        values = {fields.identity[_INDEX_OF[name]] for _, fields in images} - {b""}
        # Two files with two values may be two scans.
        is_generated = single_frames and len(images) > 2 and len(values) == len(images)
        if len(values) > 1 and (entity in _NEVER_GENERATED or not is_generated):
            names.append(name)
    return names


def _group_by_identity(images: ImageFiles, indices: Sequence[int]) -> tuple[list[ImageFiles], str | None]:
    """Group files by some values of their identity.

    Returns:
        The groups, sorted by path; and a file that lacks a value and fits several groups, or None.
    """
    by_values: dict[tuple[Values, str], list[tuple[str, HeaderFields]]] = {}
    for path, fields in images:
        values = tuple(fields.identity[index] for index in indices)
        # Files that lack a value join a group with files of the same folder, if there is one.
        by_values.setdefault((values, folder_of(path) if b"" in values else ""), []).append((path, fields))
    # Complete values come first, so that files that lack a value join the group that they do not contradict.
    groups: dict[Values, list[tuple[str, HeaderFields]]] = {}
    for (values, _), files in sorted(by_values.items(), key=lambda one: (one[0][0].count(b""), one[1][0][0])):
        fits = _fitting_groups(groups, values, files)
        if len(fits) > 1:
            return [images], files[0][0]
        groups.setdefault(fits[0] if fits else values, []).extend(files)
    parts = [sorted(group, key=lambda one: one[0]) for group in groups.values()]
    return sorted(parts, key=lambda part: part[0][0]), None


def _fitting_groups(groups: Mapping[Values, ImageFiles], values: Values, files: ImageFiles) -> list[Values]:
    """Return the groups that some files may join: the only one that they do not contradict, or several if unclear."""
    fits = [one for one in groups if _agree(one, values)]
    if len(fits) < 2:
        return fits
    # Of several, the one in whose folders the files are.
    folders = _folders(files)
    beside = [one for one in fits if folders <= _folders(groups[one])]
    return beside if len(beside) == 1 else fits


def _agree(first: Values, second: Values) -> bool:
    return all(not one or not other or one == other for one, other in zip(first, second, strict=True))


def _folders(images: ImageFiles) -> set[str]:
    return {folder_of(path) for path, _ in images}


def _is_complete_scan(images: ImageFiles, policy: SeriesPolicy) -> bool:
    """Return whether one stack of the files has enough different positions for a scan."""
    return max(len(positions) for positions in _positions(images).values()) >= policy.min_slices


def _are_different_scans(parts: Sequence[ImageFiles], names: Sequence[str]) -> bool:
    """Return whether groups of files are different scans, and not one scan in which somebody corrected a value."""
    entities = {_ENTITY_OF[name] for name in names}
    # A typing error changes one attribute; a second entity that differs too is another scan.
    if len(entities) > 1 or not _CONCLUSIVE.isdisjoint(names):
        return True
    # Nobody sorts the slices of one scan into folders by a value that was corrected in some of them.
    folders = [_folders(part) for part in parts]
    if sum(map(len, folders)) == len(set().union(*folders)):
        return True
    return not is_one_row(parts)


# Positions of files -------------------------------------------------------------------------------------

Stack = tuple[int, int, tuple[float, ...]]
"""Rows, columns and orientation of slices that can be one stack."""


def _positions(images: ImageFiles) -> Mapping[Stack, set[tuple[float, ...]]]:
    """Return the positions of the slices of each stack, rounded to a thousandth of a millimeter."""
    positions: dict[Stack, set[tuple[float, ...]]] = {}
    for _, fields in images:
        for frame in fields.frames:
            stack = _stack_of(fields, frame, positions)
            assert frame.position_mm is not None
            positions.setdefault(stack, set()).add(tuple(round(value, 3) for value in frame.position_mm))
    return positions


def _share_positions(parts: Sequence[ImageFiles], positions: set[tuple[float, ...]]) -> bool:
    """Return whether slices of different groups are at one position; `positions` are those of all groups."""
    return sum(len(own) for part in parts for own in _positions(part).values()) > len(positions)


def _stack_of(fields: HeaderFields, frame: DicomFrame, known: Mapping[Stack, object]) -> Stack:
    assert frame.orientation is not None
    size, orientation = fields.stored.size, frame.orientation
    alike = (stack for stack in known if stack[:2] == size and is_same_orientation(stack[2], orientation))
    return next(alike, (*size, orientation))


def is_one_row(parts: Sequence[ImageFiles]) -> bool:
    """Return whether the slices of all groups have different positions with equal gaps, as those of one scan do."""
    merged = _positions(list(chain(*parts)))
    if len(merged) > 1:
        return False
    ((stack, positions),) = merged.items()
    return not _share_positions(parts, positions) and _equal_gap_span(positions, stack[2]) is not None


def _equal_gap_span(
    positions: set[tuple[float, ...]], orientation: tuple[float, ...]
) -> tuple[float, float] | None:
    """Return the first and the last position along the normal; None if the gaps are not equal or cannot be known."""
    try:
        normal = axes_of(orientation)[2]
    except SourceError:
        return None  # `open_series` raises the error.
    along = np.sort(np.array(sorted(positions), np.float64) @ normal)
    gaps = np.diff(along)
    if not len(gaps) or np.ptp(gaps) > 2 * tolerance_mm(float(np.median(gaps))):
        return None
    return float(along[0]), float(along[-1])


def folders_disagree(images: ImageFiles, policy: SeriesPolicy) -> Problem | None:
    """Return the problem of files whose folders hold different complete scans, or None.

    Args:
        images: files of one volume, whose headers do not contradict each other.
        policy: states the number of slices of a scan. Its `identity` "uid" disables the check.
    """
    folders: dict[str, list[tuple[str, HeaderFields]]] = {}
    for path, fields in images:
        folders.setdefault(folder_of(path), []).append((path, fields))
    parts = list(folders.values())
    if policy.identity == "uid" or len(parts) < 2:
        return None
    if not all(_is_complete_scan(part, policy) for part in parts):
        return None
    # Folders of incomplete scans are the parts into which a program sorted the slices of one scan.
    if _are_interleaved(parts):
        evidence = "hold slices between each other's at uneven distances"
    elif _restart_numbering(parts):
        evidence = "number their slices anew"
    else:
        return None
    first, second = list(folders)[:2]
    detail = f"{first} and {second} {evidence}; {_FOLDERS_ADVICE}"
    return "selection", "folders of one series hold different scans", detail


def _are_interleaved(parts: Sequence[ImageFiles]) -> bool:
    """Return whether stacks with equal gaps interleave, and have unequal gaps together."""
    merged = _positions(list(chain(*parts)))
    if len(merged) > 1 or is_one_row(parts):
        return False
    spans = []
    for part in parts:
        ((stack, positions),) = _positions(part).items()
        span = _equal_gap_span(positions, stack[2])
        if span is None:
            return False
        spans.append(span)
    (positions,) = merged.values()
    if _share_positions(parts, positions):
        return False  # `open_series` compares images at one position.
    spans.sort()
    return any(after[0] < before[1] for before, after in pairwise(spans))


def _restart_numbering(parts: Sequence[ImageFiles]) -> bool:
    """Return whether folders number their slices from the same start, so that numbers repeat at other positions."""
    numbers = []
    for part in parts:
        # Instance Number may be empty (PS3.3 C.7.6.1, type 2), and says nothing if a folder repeats its own numbers.
        stated = [fields.frames[0].attributes.get(INSTANCE_NUMBER) for _, fields in part]
        if None in stated or len(set(stated)) < len(stated):
            return False
        numbers.append(set(stated))
    (*_, positions) = _positions(list(chain(*parts))).values()
    if _share_positions(parts, positions):
        return False
    # Folders of one scan go on counting. Half is enough, because one of two scans may be longer.
    shared = numbers[0].intersection(*numbers[1:])
    return 2 * len(shared) >= min(map(len, numbers))


# Slices -------------------------------------------------------------------------------------------------

MIN_PLACES = 3
"""An attribute with more values than there are images at one place counts if each value has this many places."""
MAX_PASSES = 8
OVERLAP = 1.05
"""Slices overlap if their thickness is more than this many times their distance."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice:
    """One image with a position in the patient: a frame of a file."""

    path: str
    fields: HeaderFields
    index: int
    frame: DicomFrame

    @property
    def position_mm(self) -> tuple[float, ...]:
        """Center of the first pixel."""
        assert self.frame.position_mm is not None
        return self.frame.position_mm

    @property
    def orientation(self) -> tuple[float, ...]:
        """Unit vectors along a row and along a column."""
        assert self.frame.orientation is not None
        return self.frame.orientation


def positions_of(slices: Sequence[Slice]) -> Floats:
    """Return the positions of slices in millimeters, [slice, 3]."""
    return np.array([part.position_mm for part in slices], np.float64)


def thickness_of(slices: Sequence[Slice]) -> float | None:
    """Return the largest thickness of the slices in millimeters; None if no file states it."""
    return max((part.frame.thickness_mm or 0.0 for part in slices), default=0.0) or None


@dataclass(frozen=True, kw_only=True, eq=False)
class VolumeSplit:
    """Volumes of a stack.

    Args:
        parts: slices of each volume, sorted by the attributes of the volumes.
        by: names of the attributes that distinguish the volumes.
    """

    parts: tuple[tuple[Slice, ...], ...]
    by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Image:
    """One image, its copies, and the index of its place along the normal."""

    place: int
    copies: tuple[Slice, ...]

    def attribute(self, name: str) -> VolumeAttribute | None:
        return self.copies[0].frame.attributes.get(name)


_Split = tuple[list[list[_Image]], tuple[str, ...]]
"""Images of each volume, and the names of the attributes that distinguish the volumes."""


def split_volumes(slices: Sequence[Slice]) -> VolumeSplit:
    """Split slices of one size and orientation into volumes.

    The split is stable: a volume that is split again stays one volume, so its files can be opened alone.
    """
    images = _images(slices)
    split = None if images is None else _split_once(images)
    if split is None or len(split[0]) < 2:
        return VolumeSplit(parts=(tuple(slices),))
    groups, by = split
    # Each volume may hold several again: echoes within phases.
    again = [split_volumes([part for image in group for part in image.copies]) for group in groups]
    names = dict.fromkeys(chain(by, *(volumes.by for volumes in again)))
    return VolumeSplit(parts=tuple(chain.from_iterable(volumes.parts for volumes in again)), by=tuple(names))


def _split_once(images: Sequence[_Image]) -> _Split | None:
    """Split images by what distinguishes those at one place, or stacks that interleave; None if they are one volume."""
    most = max(Counter(image.place for image in images).values())
    return _split_crowded(images, most) if most > 1 else _split_interleaved(images)


def _images(slices: Sequence[Slice]) -> list[_Image] | None:
    """Return the images in order along the normal; None if there is no normal. Equal attributes make copies."""
    try:
        places = duplicate_sets(positions_of(slices), slices[0].orientation)
    except SourceError:
        return None  # `open_series` raises the error.
    images = []
    for place, indices in enumerate(places):
        copies: dict[Hashable, list[Slice]] = {}
        for index in indices:
            key = tuple(sorted(slices[index].frame.attributes.items()))
            copies.setdefault(key, []).append(slices[index])
        images += [_Image(place=place, copies=tuple(same)) for same in copies.values()]
    return images


def _volume_attribute_names(images: Sequence[_Image]) -> list[str]:
    """Return the attributes of the images that may distinguish volumes."""
    known = {name for image in images for name in image.copies[0].frame.attributes}
    return [
        *(name for name in VOLUME_ATTRIBUTES if name in known),
        *sorted(n for n in known if n.startswith("dimension")),
    ]


def _places_by_value(images: Sequence[_Image], name: str) -> dict[VolumeAttribute | None, set[int]]:
    """Return the places of the images by the value of an attribute."""
    places: dict[VolumeAttribute | None, set[int]] = {}
    for image in images:
        places.setdefault(image.attribute(name), set()).add(image.place)
    return places


def _sort_key(value: VolumeAttribute | None) -> tuple[Any, ...]:
    """Return a key that sorts values of one attribute: None first, tuples last."""
    # Python compares neither None nor tuples with numbers.
    if value is None:
        return (0,)
    return (2, value) if isinstance(value, tuple) else (1, value)


def _group(images: Sequence[_Image], key: Callable[[_Image], Any]) -> list[list[_Image]]:
    ordered = sorted(images, key=key)
    return [list(group) for _, group in groupby(ordered, key=key)]


def _group_by_attributes(images: Sequence[_Image], names: Sequence[str]) -> list[list[_Image]]:
    return _group(images, lambda image: tuple(_sort_key(image.attribute(name)) for name in names))


def _group_by_place(images: Sequence[_Image]) -> list[list[_Image]]:
    return _group(images, lambda image: image.place)


# Several images at one place ----------------------------------------------------------------------------


def _split_crowded(images: Sequence[_Image], most: int) -> _Split | None:
    """Split images of which up to `most` share a place; return None if no attribute distinguishes them."""
    few, many = _attributes_of_volumes(images, most)
    # Attributes that also differ between the passes of one volume count only if no others distinguish the images.
    lasting = tuple(name for name in few if not _may_be_pass(name))
    groups = _group_by_attributes(images, lasting)
    if not any(map(_shares_a_place, groups)):
        return groups, lasting
    for names in dict.fromkeys((tuple(few), tuple(many))):
        # Phases without a number differ in time alone.
        if split := _split_all_by_time(_group_by_attributes(images, names)):
            return split[0], tuple(dict.fromkeys((*names, *split[1])))
    return None


def _split_all_by_time(groups: Sequence[Sequence[_Image]]) -> _Split | None:
    """Split each group by time; return None unless all can be split."""
    parts: list[list[_Image]] = []
    names: list[str] = []
    for group in groups:
        split = _split_by_time(group)
        if split is None:
            return None
        parts += split[0]
        names += split[1]
    return parts, tuple(names)


def _attributes_of_volumes(images: Sequence[_Image], most: int) -> tuple[list[str], list[str]]:
    """Return the attributes with at most `most` values, and those that may distinguish volumes with more values.

    With one value for each volume, an attribute has as many values as images share a place. More values, such as the
    times of a dynamic series that was cut off, count if each of them has several places: no slice has its own.
    Both leave out attributes that are the same for all images at each place, such as the number of a slice.
    """
    crowded = [place for place in _group_by_place(images) if len(place) > 1]
    few, many = [], []
    for name in _volume_attribute_names(images):
        if all(len(_places_by_value(place, name)) == 1 for place in crowded):
            continue
        places = _places_by_value(images, name)
        if len(places) <= most:
            few.append(name)
        if len(places) <= most or min(map(len, places.values())) >= MIN_PLACES:
            many.append(name)
    return few, many


def _shares_a_place(images: Sequence[_Image]) -> bool:
    """Return whether several images are at one place."""
    return len({image.place for image in images}) < len(images)


def _split_by_time(images: Sequence[_Image]) -> _Split | None:
    """Split images by their order in time at each place; return None unless all places have equally many."""
    places = _group_by_place(images)
    count = len(places[0])
    if max(map(len, places)) == 1:
        return [list(images)], ()
    # An order in time needs the same number of images at each place.
    if any(len(place) != count for place in places):
        return None
    for name in (*TIMES, INSTANCE_NUMBER):
        rows = _rows_in_order(places, name)
        # Numbers follow the order of files, which is not that of time unless they run in volumes or places.
        if rows is not None and (name != INSTANCE_NUMBER or _are_numbered_in_order(rows)):
            return [list(column) for column in zip(*rows, strict=True)], (name,)
    return None


def _rows_in_order(places: Sequence[Sequence[_Image]], name: str) -> list[list[_Image]] | None:
    """Return the images of each place in the order of an attribute; None if values are missing or equal at a place."""
    for place in places:
        values = {image.attribute(name) for image in place}
        if None in values or len(values) < len(place):
            return None
    return [sorted(place, key=lambda image: _sort_key(image.attribute(name))) for place in places]


def _are_numbered_in_order(rows: Sequence[Sequence[_Image]]) -> bool:
    """Return whether images are numbered volume by volume, or place by place."""
    for lines in (list(zip(*rows, strict=True)), rows):
        ends = sorted(
            (min(numbers), max(numbers))
            for numbers in ([_sort_key(image.attribute(INSTANCE_NUMBER)) for image in line] for line in lines)
        )
        if all(before[1] < after[0] for before, after in pairwise(ends)):
            return True
    return False


# Stacks that interleave ---------------------------------------------------------------------------------


def _split_interleaved(images: Sequence[_Image]) -> _Split | None:
    """Split stacks that interleave; return None if there is one stack.

    one stack     0   1   2   3   4   5        two stacks    A   A   A   A      of the same organ, half a gap
                                                               B   B   B   B    apart: values alternate A B A B ...
    """
    names_in_order = dict.fromkeys((*_volume_attribute_names(images), *TIMES))
    alternating = [name for name in names_in_order if alternates([image.attribute(name) for image in images])]
    lasting = tuple(name for name in alternating if not _may_be_pass(name))
    if lasting:
        return _group_by_attributes(images, lasting), lasting
    # Scanners acquire all odd and then all even slices of one stack, so that passes alternate there too. Two stacks
    # have slices that overlap, as each of them is complete.
    if not overlapping([image.copies[0] for image in images], anywhere=True):
        return None
    # Times in seconds may alternate in one scan as well, so each stack must have nearly equal gaps.
    for name in alternating:
        groups = _group_by_attributes(images, (name,))
        if all(map(_has_equal_gaps, groups)):
            return groups, (name,)
    passes = ((name, _split_passes(images, name)) for name in TIMES)
    return next(((groups, (name,)) for name, groups in passes if groups), None)


def passes_alternate(slices: Sequence[Slice]) -> bool:
    """Return whether slices, in order along the normal, were acquired in passes that alternate."""
    names = {name for part in slices for name in part.frame.attributes if _may_be_pass(name)}
    return any(alternates([part.frame.attributes.get(name) for part in slices]) for name in names)


def _may_be_pass(name: str) -> bool:
    return name in PASSES or name.startswith("dimension")


def _has_equal_gaps(images: Sequence[_Image]) -> bool:
    gaps = _distances([image.copies[0] for image in images])
    return len(images) >= MIN_PLACES and bool(gaps.max() <= 1.5 * gaps.min())


def _distances(slices: Sequence[Slice]) -> Floats:
    """Return the distance from each slice to the next."""
    return np.asarray(np.linalg.norm(np.diff(positions_of(slices), axis=0), axis=1))


def alternates(values: Sequence[VolumeAttribute | None]) -> bool:
    """Return whether two or more values occur in several separate runs, and every value occurs more than once.

    >>> alternates([1, 2, 1, 2]), alternates([1, 1, 2, 2]), alternates([1, 2, 1]), alternates([1, 1, 2, 1, 2, 2])
    (True, False, False, True)
    """
    runs = Counter(value for value, _ in groupby(values))
    return min(Counter(values).values()) > 1 and sum(count > 1 for count in runs.values()) > 1


def overlapping(slices: Sequence[Slice], anywhere: bool = False) -> bool:
    """Return whether slices, in order along the normal, are thicker than their typical distance.

    With `anywhere`, they are compared with their smallest distance. Unknown thickness gives False.
    """
    if len(slices) < 2:
        return False
    gaps, thickness = _distances(slices), thickness_of(slices) or 0.0
    return thickness > OVERLAP * float(gaps.min() if anywhere else np.median(gaps))


def _split_passes(images: Sequence[_Image], name: str) -> list[list[_Image]] | None:
    """Split images into passes over every second, third ... place; return None if the times show no passes."""
    times = [image.attribute(name) for image in images]
    if None in times or len(set(times)) < len(times):
        return None
    order = np.argsort(np.array(times, np.float64))
    most = min(MAX_PASSES, len(images) // MIN_PLACES)
    # Any pass may be the first in time; the others follow it.
    starts = ((count, shift) for count in range(2, most + 1) for shift in range(count))
    chunks = next(filter(None, (_cut_into_passes(order, count, shift) for count, shift in starts)), None)
    if chunks is None:
        return None
    return [[images[index] for index in sorted(chunk)] for chunk in chunks]


def _cut_into_passes(order: NDArray[np.int64], count: int, shift: int) -> list[NDArray[np.int64]] | None:
    """Return the places of each of `count` passes; None if the order in time is not that of these passes.

    A pass that starts at place k holds the places k, k + count, k + 2 * count ...

    Args:
        order: places in the order of time.
        count: number of passes.
        shift: first place of the first pass.
    """
    firsts = [(first + shift) % count for first in range(count)]
    cuts = np.cumsum([len(range(first, len(order), count)) for first in firsts])[:-1]
    chunks = np.split(order, cuts)
    is_pass = (set(chunk % count) == {first} for chunk, first in zip(chunks, firsts, strict=True))
    return chunks if all(is_pass) else None
