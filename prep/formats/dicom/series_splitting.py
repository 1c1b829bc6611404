"""Split of one series into several scans: files that contradict each other, several volumes at one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from halofeed.errors import Problem, SourceError
from halofeed.prep.formats.dicom.header_fields import (
    IDENTITY,
    INSTANCE_NUMBER,
    VOLUME_ATTRIBUTES,
    PASSES,
    TIMES,
    Frame,
    HeaderFields,
    VolumeAttribute,
)
from halofeed.prep.formats.dicom.slice_geometry import (
    ORIENTATION_TOLERANCE,
    Floats,
    axes_of,
    duplicate_sets,
    tolerance_mm,
)
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.sources.file_names import folder_of

Images = Sequence[tuple[str, HeaderFields]]
Values = tuple[bytes, ...]

PATIENT, STUDY, SERIES, FRAME, EQUIPMENT = "patient", "study", "series", "frame of reference", "equipment"
_ALONE_PROOF = frozenset(("StudyInstanceUID", "Modality"))
"""No scan has two of these, and no person corrects them by hand."""
_CERTAIN = frozenset((PATIENT, STUDY))
"""Attributes of these families count although every file has a value of its own."""
CONTRADICTION = "files of one series contradict each other"
_CURE = (
    "put the files of each scan into a folder of their own and say --series-identity folder; if they are one scan, say "
    "--series-identity uid"
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Files of one series that may be one scan.

    Args:
        images: the files, in order of their path.
        by: the attributes that distinguish them from the other files of the series; () where nothing does.
        problem: why they are refused; None where they are not.
    """

    images: Images
    by: tuple[str, ...] = ()
    problem: Problem | None = None


def split_contradictions(images: Images, policy: SeriesPolicy) -> list[Group]:
    """Split the files of a series where their headers prove several scans, or refuse them.

    Args:
        images: the files of one series, in order of their path.
        policy: how many slices a scan needs; its `identity` "uid" takes them all as one.
    """
    if policy.identity == "uid" or len({fields.identity for _, fields in images}) < 2:
        return [Group(images=images)]
    names = _contradicting(images)
    if not names:
        return [Group(images=images)]
    places = [_ORDER[name] for name in names]
    parts, unclear = _groups(images, places)
    problem: Problem | None = None
    if unclear is not None:
        problem = _problem(names, f"{unclear} has no value and fits several")
    elif not all(_is_whole(part, policy) for part in parts):
        few, rest = min(parts, key=len), max(parts, key=len)
        problem = _problem(names, f"{_listed(few)} against {_listed(rest)}")
    elif not _are_apart(parts, names):
        problem = _problem(names, f"{parts[0][0][0]} against {parts[1][0][0]}, which lie in one even row")
    if problem is not None:
        return [Group(images=images, problem=problem)]
    return [Group(images=part, by=tuple(names)) for part in parts]


_ORDER = {name: place for place, (name, _, _) in enumerate(IDENTITY)}
_FAMILY = {name: family for name, family, _ in IDENTITY}


def _problem(names: Sequence[str], files: str) -> Problem:
    return "selection", CONTRADICTION, f"{' and '.join(names)}: {files}; {_CURE}"


def _listed(images: Images) -> str:
    """The first file, and how many there are."""
    return images[0][0] if len(images) == 1 else f"{images[0][0]} and {len(images) - 1} more"


def _contradicting(images: Images) -> list[str]:
    """The attributes of which the files state several values.

    Some writers make a new frame of reference, or a number, for every slice: a value for each file contradicts only
    where it is of the patient or the study.
    """
    single_frames = all(len(fields.frames) == 1 for _, fields in images)
    found = []
    for name, family, _ in IDENTITY:
        values = [fields.identity[_ORDER[name]] for _, fields in images]
        stated = {value for value in values if value}
        own = single_frames and len(images) > 2 and len(stated) == len(images)
        if len(stated) > 1 and not (own and family not in _CERTAIN):
            found.append(name)
    return found


def _groups(images: Images, places: Sequence[int]) -> tuple[list[Images], str | None]:
    """The files by their values at these places of their identity; and a file without a value that fits several."""
    by_values: dict[tuple[Values, str], list[tuple[str, HeaderFields]]] = {}
    for path, fields in images:
        values = tuple(fields.identity[place] for place in places)
        # Files that lack a value belong to those of their folder, if to any.
        by_values.setdefault((values, folder_of(path) if b"" in values else ""), []).append((path, fields))
    # Complete values first, so that files without one join those that they do not contradict.
    taken: dict[Values, list[tuple[str, HeaderFields]]] = {}
    for (values, _), some in sorted(by_values.items(), key=lambda one: (one[0][0].count(b""), one[1][0][0])):
        fits = [one for one in taken if _agree(one, values)]
        if len(fits) > 1:
            folders = _folders(some)
            fits = [one for one in fits if folders <= _folders(taken[one])]
            if len(fits) != 1:
                return [images], some[0][0]
        taken.setdefault(fits[0] if fits else values, []).extend(some)
    parts = [sorted(part, key=lambda one: one[0]) for part in taken.values()]
    return sorted(parts, key=lambda part: part[0][0]), None


def _agree(first: Values, second: Values) -> bool:
    return all(not one or not other or one == other for one, other in zip(first, second, strict=True))


def _folders(images: Images) -> set[str]:
    return {folder_of(path) for path, _ in images}


def _is_whole(images: Images, policy: SeriesPolicy) -> bool:
    """Whether files are a scan by themselves: one of their stacks has enough places."""
    return max(len(places) for places in _places(images).values()) >= policy.min_slices


def _are_apart(parts: Sequence[Images], names: Sequence[str]) -> bool:
    """Whether groups of files, each a whole stack, are several scans and not one of which a value was corrected."""
    families = {_FAMILY[name] for name in names}
    if len(families) > 1 or not _ALONE_PROOF.isdisjoint(names):
        return True
    folders = [_folders(part) for part in parts]
    if sum(map(len, folders)) == len(set().union(*folders)):
        return True
    return not is_one_row(parts)


# Where files lie ----------------------------------------------------------------------------------------

Stack = tuple[int, int, tuple[float, ...]]
"""Rows, columns and orientation of slices that can be one stack."""


def _places(images: Images) -> Mapping[Stack, set[tuple[float, ...]]]:
    """The places of each stack, to a thousandth of a millimeter."""
    found: dict[Stack, set[tuple[float, ...]]] = {}
    for _, fields in images:
        for frame in fields.frames:
            stack = _stack_of(fields, frame, found)
            assert frame.position_mm is not None
            found.setdefault(stack, set()).add(tuple(round(value, 3) for value in frame.position_mm))
    return found


def _stack_of(fields: HeaderFields, frame: Frame, known: Mapping[Stack, object]) -> Stack:
    assert frame.orientation is not None
    size, orientation = fields.stored.size, frame.orientation
    for stack in known:
        pairs = zip(stack[2], orientation, strict=True)
        if stack[:2] == size and all(abs(one - other) <= ORIENTATION_TOLERANCE for one, other in pairs):
            return stack
    return (*size, orientation)


def is_one_row(parts: Sequence[Images]) -> bool:
    """Whether the slices of all groups lie in one even row, each at a place of its own: they may be one scan."""
    merged = _places([one for part in parts for one in part])
    if len(merged) > 1:
        return False
    ((stack, places),) = merged.items()
    if sum(len(places) for part in parts for places in _places(part).values()) > len(places):
        return False
    gaps = _gaps(np.array(sorted(places), np.float64), stack[2])
    return gaps is not None and bool(np.ptp(gaps) <= 2 * tolerance_mm(float(np.median(gaps))))


def _gaps(positions_mm: Floats, orientation: tuple[float, ...]) -> Floats | None:
    """The gaps along the normal; None where there is no normal, or fewer than two places."""
    try:
        normal = axes_of(orientation)[2]
    except SourceError:
        return None  # Opening the series says why it is refused.
    gaps = np.diff(np.sort(positions_mm @ normal))
    return gaps if len(gaps) else None


def folders_disagree(images: Images, policy: SeriesPolicy) -> Problem | None:
    """What is wrong with files of several folders, where each folder holds a whole stack and these are no one scan.

    Args:
        images: of one volume, with headers that contradict each other nowhere.
    """
    folders: dict[str, list[tuple[str, HeaderFields]]] = {}
    for path, fields in images:
        folders.setdefault(folder_of(path), []).append((path, fields))
    parts = list(folders.values())
    if policy.identity == "uid" or len(parts) < 2 or not all(_is_whole(part, policy) for part in parts):
        return None
    evidence = _interleave(parts) or _number_again(parts)
    if evidence is None:
        return None
    first, second = list(folders)[:2]
    return (
        "selection",
        "folders of one series hold different scans",
        f"{first} and {second} {evidence}; {_FOLDERS}",
    )


_FOLDERS = (
    "--series-identity folder takes each folder's files as a scan, --series-identity uid all files as one"
)


def _interleave(parts: Sequence[Images]) -> str | None:
    """That stacks which are even by themselves lie between each other's slices without being even together."""
    together = _places([one for part in parts for one in part])
    if len(together) > 1 or is_one_row(parts):
        return None
    spans = []
    for part in parts:
        ((stack, places),) = _places(part).items()
        positions = np.array(sorted(places), np.float64)
        gaps = _gaps(positions, stack[2])
        if gaps is None or np.ptp(gaps) > 2 * tolerance_mm(float(np.median(gaps))):
            return None
        along = positions @ axes_of(stack[2])[2]
        spans.append((float(along.min()), float(along.max())))
    (places,) = together.values()
    if sum(len(own) for part in parts for own in _places(part).values()) > len(places):
        return None  # Several images at one place are the same ones, or refused when they are read.
    spans.sort()
    crossing = any(after[0] < before[1] for before, after in pairwise(spans))
    return "hold slices between each other's at uneven distances" if crossing else None


def _number_again(parts: Sequence[Images]) -> str | None:
    """That each folder counts its slices from the same number on, so that numbers come twice at different places."""
    numbers = []
    for part in parts:
        stated = [fields.frames[0].attributes.get(INSTANCE_NUMBER) for _, fields in part]
        if None in stated or len(set(stated)) < len(stated):
            return None
        numbers.append(set(stated))
    (*_, places) = (_places([one for part in parts for one in part])).values()
    if sum(len(own) for part in parts for own in _places(part).values()) > len(places):
        return None
    shared = numbers[0].intersection(*numbers[1:])
    return "number their slices anew" if 2 * len(shared) >= min(map(len, numbers)) else None


LEAST_PLACES = 3
"""A mark with more values than images lie at one place counts where each of them has this many places."""
MOST_PASSES = 8
OVERLAP = 1.05
"""Slices overlap where they are this many times as thick as they lie apart."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice:
    """One image with a place in the patient: a frame of a file."""

    path: str
    fields: HeaderFields
    index: int
    frame: Frame

    @property
    def position_mm(self) -> tuple[float, ...]:
        """Of its first pixel's center."""
        assert self.frame.position_mm is not None
        return self.frame.position_mm

    @property
    def orientation(self) -> tuple[float, ...]:
        """The directions along a row and along a column."""
        assert self.frame.orientation is not None
        return self.frame.orientation


def positions_of(slices: Sequence[Slice]) -> Floats:
    """Where slices lie, in millimeters: [slice, 3]."""
    return np.array([part.position_mm for part in slices], np.float64)


def thickness_of(slices: Sequence[Slice]) -> float | None:
    """The thickness of the thickest slice, in millimeters; None where none says it."""
    return max((part.frame.thickness_mm or 0.0 for part in slices), default=0.0) or None


@dataclass(frozen=True, kw_only=True, eq=False)
class VolumeSplit:
    """The volumes of a stack, in the order of their attributes, and the names of the attributes that tell them apart."""

    parts: tuple[tuple[Slice, ...], ...]
    by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Image:
    """The copies of one image, and the number of its place along the normal."""

    place: int
    copies: tuple[Slice, ...]

    def mark(self, name: str) -> VolumeAttribute | None:
        return self.copies[0].frame.attributes.get(name)


def split_volumes(slices: Sequence[Slice]) -> VolumeSplit:
    """The volumes among slices of one size and orientation.

    Splitting a part again gives that part alone, so that its files can be opened by themselves.
    """
    images = _images(slices)
    if images is None:
        return VolumeSplit(parts=(tuple(slices),))
    most = max(Counter(image.place for image in images).values())
    found = _separate(images, most) if most > 1 else _untangle(images)
    if found is None or len(found[0]) < 2:
        return VolumeSplit(parts=(tuple(slices),))
    groups, by = found
    again = [split_volumes([part for image in group for part in image.copies]) for group in groups]
    names = dict.fromkeys([*by, *(name for volumes in again for name in volumes.by)])
    return VolumeSplit(parts=tuple(part for volumes in again for part in volumes.parts), by=tuple(names))


def _images(slices: Sequence[Slice]) -> list[_Image] | None:
    """The images, copies taken together, in order along the normal; None where there is no normal."""
    try:
        places = duplicate_sets(positions_of(slices), slices[0].orientation)
    except SourceError:
        return None  # Opening the series says why it is refused.
    found = []
    for place, alike in enumerate(places):
        copies: dict[Hashable, list[Slice]] = {}
        for index in alike:
            key = tuple(sorted(slices[index].frame.attributes.items()))
            copies.setdefault(key, []).append(slices[index])
        found += [_Image(place=place, copies=tuple(same)) for same in copies.values()]
    return found


def _names(images: Sequence[_Image]) -> list[str]:
    """The attributes whose values may be those of whole volumes."""
    known = {name for image in images for name in image.copies[0].frame.attributes}
    return [
        *(name for name in VOLUME_ATTRIBUTES if name in known),
        *sorted(n for n in known if n.startswith("dimension")),
    ]


def _values(images: Sequence[_Image], name: str) -> dict[VolumeAttribute | None, set[int]]:
    """The places of each value of a mark."""
    found: dict[VolumeAttribute | None, set[int]] = {}
    for image in images:
        found.setdefault(image.mark(name), set()).add(image.place)
    return found


def _order(value: VolumeAttribute | None) -> tuple[Any, ...]:
    """Sorts values of one mark, none first, numbers before tuples."""
    if value is None:
        return (0,)
    return (2, value) if isinstance(value, tuple) else (1, value)


def _grouped(images: Sequence[_Image], key: Callable[[_Image], Any]) -> list[list[_Image]]:
    ordered = sorted(images, key=key)
    return [list(group) for _, group in groupby(ordered, key=key)]


def _by_marks(images: Sequence[_Image], names: Sequence[str]) -> list[list[_Image]]:
    return _grouped(images, lambda image: tuple(_order(image.mark(name)) for name in names))


def _shared_places(images: Sequence[_Image]) -> list[list[_Image]]:
    return _grouped(images, lambda image: image.place)


# Several images at one place ----------------------------------------------------------------------------


def _separate(images: Sequence[_Image], most: int) -> tuple[list[list[_Image]], tuple[str, ...]] | None:
    """One group for each of up to `most` images at a place; None where nothing tells them apart."""
    crowded = [place for place in _shared_places(images) if len(place) > 1]
    active = [name for name in _names(images) if any(len(_values(place, name)) > 1 for place in crowded)]
    few, many = [], []
    for name in active:
        values = _values(images, name)
        if len(values) <= most:
            few.append(name)
        if len(values) <= most or min(map(len, values.values())) >= LEAST_PLACES:
            many.append(name)
    # What passes of one volume have too counts only where nothing else tells the images apart.
    lasting = tuple(name for name in few if not _is_of_passes(name))
    groups = _by_marks(images, lasting)
    if all(len(place) == 1 for group in groups for place in _shared_places(group)):
        return groups, lasting
    for names in dict.fromkeys((tuple(few), tuple(many))):
        groups, by = [], [*names]
        for group in _by_marks(images, names):
            parts = _by_time(group)
            if parts is None:
                break
            groups += parts[0]
            by += parts[1]
        else:
            return groups, tuple(dict.fromkeys(by))
    return None


def _by_time(group: Sequence[_Image]) -> tuple[list[list[_Image]], tuple[str, ...]] | None:
    """Images of which equally many lie at each place, by the order in time at their place."""
    places = _shared_places(group)
    count = len(places[0])
    if max(map(len, places)) == 1:
        return [list(group)], ()
    if any(len(place) != count for place in places):
        return None
    for name in (*TIMES, INSTANCE_NUMBER):
        values = [[image.mark(name) for image in place] for place in places]
        if any(None in row or len(set(row)) < count for row in values):
            continue
        rows = [sorted(place, key=lambda image: _order(image.mark(name))) for place in places]
        if name != INSTANCE_NUMBER or _is_counted(rows):
            return [list(column) for column in zip(*rows, strict=True)], (name,)
    return None


def _is_counted(rows: Sequence[Sequence[_Image]]) -> bool:
    """Whether images are numbered volume by volume, or place by place."""
    for lines in (list(zip(*rows, strict=True)), rows):
        ends = sorted(
            (min(numbers), max(numbers))
            for numbers in ([_order(image.mark(INSTANCE_NUMBER)) for image in line] for line in lines)
        )
        if all(before[1] < after[0] for before, after in pairwise(ends)):
            return True
    return False


# Stacks that interleave ---------------------------------------------------------------------------------


def _untangle(images: Sequence[_Image]) -> tuple[list[list[_Image]], tuple[str, ...]] | None:
    """One group for each of the stacks that interleave; None where there is one stack."""
    alternating = [
        name
        for name in dict.fromkeys((*_names(images), *TIMES))
        if alternates([image.mark(name) for image in images])
    ]
    names = tuple(name for name in alternating if not _is_of_passes(name))
    if names:
        return _by_marks(images, names), names
    if not overlapping([image.copies[0] for image in images], anywhere=True):
        return None
    # Times of a second may jump to and fro in one scan as well: only stacks that are even by themselves are believed.
    for name in alternating:
        groups = _by_marks(images, (name,))
        if all(map(_is_even, groups)):
            return groups, (name,)
    for name in TIMES:
        if passes := _passes(images, name):
            return passes, (name,)
    return None


def passes_alternate(slices: Sequence[Slice]) -> bool:
    """Whether slices, in order along the normal, were taken in passes that alternate."""
    names = {name for part in slices for name in part.frame.attributes if _is_of_passes(name)}
    return any(alternates([part.frame.attributes.get(name) for part in slices]) for name in names)


def _is_of_passes(name: str) -> bool:
    return name in PASSES or name.startswith("dimension")


def _is_even(images: Sequence[_Image]) -> bool:
    gaps = _distances([image.copies[0] for image in images])
    return len(images) >= LEAST_PLACES and bool(gaps.max() <= 1.5 * gaps.min())


def _distances(slices: Sequence[Slice]) -> Floats:
    """From each slice to the next."""
    return np.asarray(np.linalg.norm(np.diff(positions_of(slices), axis=0), axis=1))


def alternates(values: Sequence[VolumeAttribute | None]) -> bool:
    """Whether a mark returns to an earlier value, and then to the other, along the normal; all values more than once.

    >>> alternates([1, 2, 1, 2]), alternates([1, 1, 2, 2]), alternates([1, 2, 1]), alternates([1, 1, 2, 1, 2, 2])
    (True, False, False, True)
    """
    runs = Counter(value for value, _ in groupby(values))
    return min(Counter(values).values()) > 1 and sum(count > 1 for count in runs.values()) > 1


def overlapping(slices: Sequence[Slice], anywhere: bool = False) -> bool:
    """Whether slices, in order along the normal, are known to be thicker than they lie apart, or than some do."""
    if len(slices) < 2:
        return False
    gaps, thickness = _distances(slices), thickness_of(slices) or 0.0
    return thickness > OVERLAP * float(gaps.min() if anywhere else np.median(gaps))


def _passes(images: Sequence[_Image], name: str) -> list[list[_Image]] | None:
    """Every second, third ... image, where these were taken one after the other."""
    times = [image.mark(name) for image in images]
    if None in times or len(set(times)) < len(times):
        return None
    order = np.argsort(np.array(times, np.float64))
    for count in range(2, min(MOST_PASSES, len(images) // LEAST_PLACES) + 1):
        # Pass k holds the places k, k + count, k + 2 * count ... of some first place.
        sizes = [len(range(first, len(images), count)) for first in range(count)]
        for shift in range(count):
            firsts = [(first + shift) % count for first in range(count)]
            cuts = np.cumsum([sizes[first] for first in firsts])[:-1]
            chunks = np.split(order, cuts)
            if all(set(chunk % count) == {first} for chunk, first in zip(chunks, firsts, strict=True)):
                return [[images[index] for index in sorted(chunk)] for chunk in chunks]
    return None
