"""Which files of one series UID contradict each other, and whether they are several scans.

    one series UID    attributes differ    ──> groups of files    whole stacks, proven apart ──> one scan each
                                                                  anything else              ──> refused

Anonymization and copying give one UID to two patients or studies. All files of a series share their patient, study,
series number, description, frame of reference and equipment, so two values of one of these contradict each other. A
file without a value contradicts nothing. Messages name attributes and files, never values.

Source: DICOM PS3.3, sections A.1.2.3, C.7.1.1, C.7.2.1, C.7.3.1, C.7.4.1 and C.7.5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from halofeed.prep.formats.dicom.facts import IDENTITY, FileFacts, Frame
from halofeed.prep.formats.dicom.marks import INSTANCE_NUMBER
from halofeed.prep.formats.dicom.slices import ORIENTATION_TOLERANCE, Floats, axes_of, tolerance_mm
from halofeed.prep.formats.volume.series_policy import SeriesPolicy
from halofeed.prep.sources.volume_files import folder_of
from halofeed.schemas.errors import Problem, SourceError

Images = Sequence[tuple[str, FileFacts]]
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


def separate(images: Images, policy: SeriesPolicy) -> list[Group]:
    """Split the files of a series where their headers prove several scans, or refuse them.

    Args:
        images: the files of one series, in order of their path.
        policy: how many slices a scan needs; its `identity` "uid" takes them all as one.
    """
    if policy.identity == "uid" or len({facts.identity for _, facts in images}) < 2:
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
    single_frames = all(len(facts.frames) == 1 for _, facts in images)
    found = []
    for name, family, _ in IDENTITY:
        values = [facts.identity[_ORDER[name]] for _, facts in images]
        stated = {value for value in values if value}
        own = single_frames and len(images) > 2 and len(stated) == len(images)
        if len(stated) > 1 and not (own and family not in _CERTAIN):
            found.append(name)
    return found


def _groups(images: Images, places: Sequence[int]) -> tuple[list[Images], str | None]:
    """The files by their values at these places of their identity; and a file without a value that fits several."""
    by_values: dict[tuple[Values, str], list[tuple[str, FileFacts]]] = {}
    for path, facts in images:
        values = tuple(facts.identity[place] for place in places)
        # Files that lack a value belong to those of their folder, if to any.
        by_values.setdefault((values, folder_of(path) if b"" in values else ""), []).append((path, facts))
    # Complete values first, so that files without one join those that they do not contradict.
    taken: dict[Values, list[tuple[str, FileFacts]]] = {}
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
    for _, facts in images:
        for frame in facts.frames:
            stack = _stack_of(facts, frame, found)
            assert frame.position_mm is not None
            found.setdefault(stack, set()).add(tuple(round(value, 3) for value in frame.position_mm))
    return found


def _stack_of(facts: FileFacts, frame: Frame, known: Mapping[Stack, object]) -> Stack:
    assert frame.orientation is not None
    size, orientation = facts.stored.size, frame.orientation
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
    folders: dict[str, list[tuple[str, FileFacts]]] = {}
    for path, facts in images:
        folders.setdefault(folder_of(path), []).append((path, facts))
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
        stated = [facts.frames[0].marks.get(INSTANCE_NUMBER) for _, facts in part]
        if None in stated or len(set(stated)) < len(stated):
            return None
        numbers.append(set(stated))
    (*_, places) = (_places([one for part in parts for one in part])).values()
    if sum(len(own) for part in parts for own in _places(part).values()) > len(places):
        return None
    shared = numbers[0].intersection(*numbers[1:])
    return "number their slices anew" if 2 * len(shared) >= min(map(len, numbers)) else None
