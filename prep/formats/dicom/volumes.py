"""Into which volumes the images of one stack fall: several at each place, or stacks that interleave.

    several images at a place                    two stacks, half a slice apart
    position   0   2   4   6                     position   0   1   2   3   4   5
    echo 1     o   o   o   o                     pass 1     o       o       o
    echo 2     x   x   x   x                     pass 2         x       x       x

Marks (`dicom_marks`) tell them apart, or nothing does and the stack stays one, which is refused when it is opened. A
mark counts only where it differs among the images of one place, or alternates along the normal; a mark that is of
every image its own (a time) counts by its order. Passes that alternate without overlapping are one volume, of which
every other slice was taken first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from halofeed.prep.formats.dicom.facts import FileFacts, Frame
from halofeed.prep.formats.dicom.marks import INSTANCE_NUMBER, KINDS, PASSES, TIMES, Mark
from halofeed.prep.formats.dicom.slices import Floats, duplicate_sets
from halofeed.schemas.errors import SourceError

LEAST_PLACES = 3
"""A mark with more values than images lie at one place counts where each of them has this many places."""
MOST_PASSES = 8
OVERLAP = 1.05
"""Slices overlap where they are this many times as thick as they lie apart."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice:
    """One image with a place in the patient: a frame of a file."""

    path: str
    facts: FileFacts
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
class Volumes:
    """The volumes of a stack, in the order of their marks, and the names of the marks that tell them apart."""

    parts: tuple[tuple[Slice, ...], ...]
    by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Image:
    """The copies of one image, and the number of its place along the normal."""

    place: int
    copies: tuple[Slice, ...]

    def mark(self, name: str) -> Mark | None:
        return self.copies[0].frame.marks.get(name)


def split_volumes(slices: Sequence[Slice]) -> Volumes:
    """The volumes among slices of one size and orientation.

    Splitting a part again gives that part alone, so that its files can be opened by themselves.
    """
    images = _images(slices)
    if images is None:
        return Volumes(parts=(tuple(slices),))
    most = max(Counter(image.place for image in images).values())
    found = _separate(images, most) if most > 1 else _untangle(images)
    if found is None or len(found[0]) < 2:
        return Volumes(parts=(tuple(slices),))
    groups, by = found
    again = [split_volumes([part for image in group for part in image.copies]) for group in groups]
    names = dict.fromkeys([*by, *(name for volumes in again for name in volumes.by)])
    return Volumes(parts=tuple(part for volumes in again for part in volumes.parts), by=tuple(names))


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
            key = tuple(sorted(slices[index].frame.marks.items()))
            copies.setdefault(key, []).append(slices[index])
        found += [_Image(place=place, copies=tuple(same)) for same in copies.values()]
    return found


def _names(images: Sequence[_Image]) -> list[str]:
    """The marks whose values may be those of whole volumes."""
    known = {name for image in images for name in image.copies[0].frame.marks}
    return [
        *(name for name in KINDS if name in known),
        *sorted(n for n in known if n.startswith("dimension")),
    ]


def _values(images: Sequence[_Image], name: str) -> dict[Mark | None, set[int]]:
    """The places of each value of a mark."""
    found: dict[Mark | None, set[int]] = {}
    for image in images:
        found.setdefault(image.mark(name), set()).add(image.place)
    return found


def _order(value: Mark | None) -> tuple[Any, ...]:
    """Sorts values of one mark, none first, numbers before tuples."""
    if value is None:
        return (0,)
    return (2, value) if isinstance(value, tuple) else (1, value)


def _grouped(images: Sequence[_Image], key: Callable[[_Image], Any]) -> list[list[_Image]]:
    ordered = sorted(images, key=key)
    return [list(group) for _, group in groupby(ordered, key=key)]


def _by_marks(images: Sequence[_Image], names: Sequence[str]) -> list[list[_Image]]:
    return _grouped(images, lambda image: tuple(_order(image.mark(name)) for name in names))


def _places(images: Sequence[_Image]) -> list[list[_Image]]:
    return _grouped(images, lambda image: image.place)


# Several images at one place ----------------------------------------------------------------------------


def _separate(images: Sequence[_Image], most: int) -> tuple[list[list[_Image]], tuple[str, ...]] | None:
    """One group for each of up to `most` images at a place; None where nothing tells them apart."""
    crowded = [place for place in _places(images) if len(place) > 1]
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
    if all(len(place) == 1 for group in groups for place in _places(group)):
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
    places = _places(group)
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
    names = {name for part in slices for name in part.frame.marks if _is_of_passes(name)}
    return any(alternates([part.frame.marks.get(name) for part in slices]) for name in names)


def _is_of_passes(name: str) -> bool:
    return name in PASSES or name.startswith("dimension")


def _is_even(images: Sequence[_Image]) -> bool:
    gaps = _distances([image.copies[0] for image in images])
    return len(images) >= LEAST_PLACES and bool(gaps.max() <= 1.5 * gaps.min())


def _distances(slices: Sequence[Slice]) -> Floats:
    """From each slice to the next."""
    return np.asarray(np.linalg.norm(np.diff(positions_of(slices), axis=0), axis=1))


def alternates(values: Sequence[Mark | None]) -> bool:
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
