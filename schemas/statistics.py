"""What do the statistics of a shard or a split say? Each figure, what it may hold, and how two are put together.

`halofeed.prep.statistics` counts them, each shard's index and the manifest hold them as JSON.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from halofeed.schemas.limits import LABELS, NAMES

Problems = Iterator[tuple[str, str]]
Names = Mapping[str, int]
"""Counts by name; numbers are named by their digits."""
Form = Callable[[Any, str], Problems]
"""Takes a JSON value and its path; gives every (path, what is wrong)."""

_HISTOGRAM_BINS = 256
_BINS = 1 << 20
"""Of values of volumes, see `halofeed.prep.statistics.counts`."""
_LARGEST_VALUE = 3.5e38
_COUNT_BITS, _SUM_BITS = 63, 127
_PIXEL_SUMS = ("sum", "sum_squares", "histogram")


def _is_count(value: Any, bits: int = _COUNT_BITS) -> bool:
    return type(value) is int and 0 <= value < 1 << bits


def _count(value: Any, path: str) -> Problems:
    if not _is_count(value):
        yield path, f"expected a count, got {value!r:.60}"


def _counts(names: str, words: str, most: int = NAMES) -> Form:
    """Counts by at most so many names of one form, whose sum is a count too."""
    pattern = re.compile(names, re.DOTALL)

    def form(value: Any, path: str) -> Problems:
        if not isinstance(value, dict):
            yield path, f"expected counts by {words}, got {value!r:.60}"
            return
        if len(value) > most:
            yield path, f"expected at most {most:,} {words}, got {len(value):,}"
            return
        for name, count in value.items():
            if not _is_count(count):
                yield f"{path}.{name}"[:200], f"expected a count, got {count!r:.60}"
                return
            if not pattern.fullmatch(name):
                yield path, f"expected {words}, got {name!r:.60}"
                return
        if not _is_count(sum(value.values())):
            yield path, f"expected a sum below 2**{_COUNT_BITS}, got {sum(value.values())}"

    return form


def _members(*names: str) -> Form:
    def form(value: Any, path: str) -> Problems:
        if (
            not isinstance(value, dict)
            or sorted(value) != sorted(names)
            or not all(map(_is_count, value.values()))
        ):
            yield path, f"expected the counts {' and '.join(names)}, got {value!r:.60}"

    return form


def _padding(value: Any, path: str) -> Problems:
    yield from (problems := list(_members("stored_pixels", "padded_pixels")(value, path)))
    if not problems and value["padded_pixels"] > value["stored_pixels"]:
        yield path, f"expected at most the stored pixels to be padding, got {value!r:.100}"


def _sides(count: int) -> Form:
    def form(value: Any, path: str) -> Problems:
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(_is_count(side, 31) for side in value)
        ):
            yield path, f"expected {count} sides, got {value!r:.60}"

    return form


def _pixels(value: Any, path: str) -> Problems:
    """The count, and of each channel the sums and the histogram; no channel where nothing is counted."""
    if not isinstance(value, dict) or sorted(value) != sorted(("count", *_PIXEL_SUMS)):
        yield path, f"expected count, {', '.join(_PIXEL_SUMS)}, got {value!r:.60}"
        return
    yield from _count(value["count"], f"{path}.count")
    lists = [value[name] for name in _PIXEL_SUMS]
    if not all(isinstance(one, list) for one in lists) or len(set(map(len, lists))) != 1:
        yield path, f"expected {', '.join(_PIXEL_SUMS)} of every channel"
        return
    if value["count"] and not lists[0]:
        yield path, "expected the sums of at least one channel, got none"
    elif not all(_is_count(number, _SUM_BITS) for one in lists[:2] for number in one):
        yield path, f"expected sums of whole numbers below 2**{_SUM_BITS}"
    elif not all(
        isinstance(bins, list) and len(bins) == _HISTOGRAM_BINS and all(map(_is_count, bins))
        for bins in lists[2]
    ):
        yield f"{path}.histogram", f"expected {_HISTOGRAM_BINS} counts of every channel"


def _intensities(value: Any, path: str) -> Problems:
    if not isinstance(value, dict) or not set(value) <= {"body", "foreground"}:
        yield path, f"expected body and foreground, got {value!r:.60}"
        return
    for name, counts in value.items():
        problems = list(_VALUES(counts, f"{path}.{name}"))
        yield from problems
        if not problems and not all(abs(float(number)) < _LARGEST_VALUE for number in counts):
            yield f"{path}.{name}", "expected numbers that float32 holds"


_SIDE = "[1-9][0-9]{0,8}"
_MILLIMETERS = r"[0-9]{1,9}\.[0-9]{2}"
_NUMBERED = _counts("0|[1-9][0-9]{0,17}", "whole numbers", LABELS)
_NAMED = _counts(".{0,10000}", "names")
_VALUES = _counts(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e[+-][0-9]{1,3})?", "numbers", _BINS)


@dataclass(frozen=True, kw_only=True)
class PixelSums:
    """Of pixels: per channel sum, sum of squares, and a histogram of 256 bins (16-bit values by their high byte)."""

    count: int = 0
    sum: tuple[int, ...] = ()
    sum_squares: tuple[int, ...] = ()
    histogram: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PixelSums:
        """What the JSON form says."""
        return cls(
            count=document["count"],
            sum=tuple(document["sum"]),
            sum_squares=tuple(document["sum_squares"]),
            histogram=tuple(map(tuple, document["histogram"])),
        )

    def merge(self, other: PixelSums) -> PixelSums:
        """Those of both; one that counted nothing may be of any number of channels."""
        if not self.sum or not other.sum:
            return other if other.sum else self
        return PixelSums(
            count=self.count + other.count,
            sum=_each(self.sum, other.sum),
            sum_squares=_each(self.sum_squares, other.sum_squares),
            histogram=tuple(map(_each, self.histogram, other.histogram)),
        )

    def mean_and_deviation(self) -> tuple[list[float], list[float]]:
        """Per channel the mean and standard deviation."""
        means = [total / self.count for total in self.sum]
        variances = [
            square / self.count - mean**2 for square, mean in zip(self.sum_squares, means, strict=True)
        ]
        return means, [max(0.0, variance) ** 0.5 for variance in variances]


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Pixels or voxels as stored, and how many of them are padding."""

    stored_pixels: int = 0
    padded_pixels: int = 0

    @property
    def share(self) -> float:
        """Of the stored ones; 0 where there are none."""
        return self.padded_pixels / self.stored_pixels if self.stored_pixels else 0.0

    def merge(self, other: Padding) -> Padding:
        """Those of both."""
        return Padding(**_added(vars(self), vars(other)))


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Images that have more boxes than the loader gives, and boxes over that."""

    images: int = 0
    boxes: int = 0

    def merge(self, other: Cut) -> Cut:
        """Those of both."""
        return Cut(**_added(vars(self), vars(other)))


@dataclass(frozen=True, kw_only=True)
class Intensities:
    """How often stored values occur: above each scan's least one, and where the label is not 0."""

    body: Names = dataclasses.field(default_factory=dict)
    foreground: Names = dataclasses.field(default_factory=dict)

    def merge(self, other: Intensities) -> Intensities:
        """Those of both."""
        return Intensities(
            body=_added(self.body, other.body), foreground=_added(self.foreground, other.foreground)
        )


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What is counted of the records of a shard, a split or a data set; None where something is not counted.

    Pixels and intensities are of every eighth row, padding left out; all others are of everything.

    Args:
        labels: records by the ids of the classes that they show, boxes by theirs.
        boxes_per_image: images by their number of boxes.
        boxes: boxes by what was done to them.
        largest, largest_scan: the sides of the largest image, and of the largest scan before it was cut.
        labelled: records with a label image.
        label_voxels: by class; `foreground_voxels` counts those of any class once.
        scan_mm3, scan_cut_mm3, label_mm3, label_cut_mm3: of scans and of each class; `cut` is in no record.
    """

    records: int | None = None
    pixels: PixelSums | None = None
    padding: Padding | None = None
    labels: Names | None = None
    boxes_per_image: Names | None = None
    boxes: Names | None = None
    cut: Cut | None = None
    notes: Names | None = None
    warnings: Names | None = None
    source_sizes: Names | None = None
    aspect_ratios: Names | None = None
    largest: tuple[int, ...] | None = None
    labelled: int | None = None
    label_voxels: Names | None = None
    foreground_voxels: int | None = None
    intensities: Intensities | None = None
    findings: Names | None = None
    modalities: Names | None = None
    spacings_mm: Names | None = None
    source_shapes: Names | None = None
    tiles: int | None = None
    scan_mm3: int | None = None
    scan_cut_mm3: int | None = None
    label_mm3: Names | None = None
    label_cut_mm3: Names | None = None
    largest_scan: tuple[int, ...] | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Statistics:
        """What a JSON form without problems says."""
        read: dict[str, Any] = {
            name: _PARTS[name](value)
            if name in _PARTS
            else tuple(value)
            if isinstance(value, list)
            else value
            for name, value in document.items()
        }
        return cls(**read)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, of what is counted."""
        held = {name: value for name, value in vars(self).items() if value is not None}
        return {name: vars(value) if name in _PARTS else value for name, value in held.items()}

    def merge(self, other: Statistics) -> Statistics:
        """Those of both; in any grouping and order the same.

        >>> Statistics(records=1, labels={"9": 1}).merge(Statistics(records=2, labels={"9": 1, "10": 4}))
        ... # doctest: +ELLIPSIS
        Statistics(records=3, ... labels={'9': 2, '10': 4}, ...)
        """
        return Statistics(**{name: _together(value, vars(other)[name]) for name, value in vars(self).items()})

    @classmethod
    def total(cls, parts: Iterable[Statistics]) -> Statistics:
        """Those of all parts."""
        return reduce(cls.merge, parts, cls())

    def names(self) -> int:
        """How many names are counted."""
        counted = [*vars(self).values(), *(vars(self.intensities).values() if self.intensities else ())]
        return sum(len(value) for value in counted if isinstance(value, Mapping))


_PARTS: Mapping[str, Callable[[Any], Any]] = {
    "pixels": PixelSums.from_json,
    "padding": lambda document: Padding(**document),
    "cut": lambda document: Cut(**document),
    "intensities": lambda document: Intensities(**document),
}
_FORMS: Mapping[str, Form] = {
    "records": _count,
    "pixels": _pixels,
    "padding": _padding,
    "labels": _NUMBERED,
    "boxes_per_image": _NUMBERED,
    "boxes": _NAMED,
    "cut": _members("images", "boxes"),
    "notes": _NAMED,
    "warnings": _NAMED,
    "source_sizes": _counts(f"{_SIDE}x{_SIDE}", "sizes such as 480x640"),
    "aspect_ratios": _counts(r"[0-9]{1,9}\.[0-9]{2}", "ratios such as 1.35"),
    "largest": _sides(2),
    "labelled": _count,
    "label_voxels": _NUMBERED,
    "foreground_voxels": _count,
    "intensities": _intensities,
    "findings": _NAMED,
    "modalities": _NAMED,
    "spacings_mm": _counts("x".join([_MILLIMETERS] * 3), "spacings such as 2.00x1.50x1.50", LABELS),
    "source_shapes": _counts("x".join([_SIDE] * 3), "shapes such as 90x512x512", LABELS),
    "tiles": _count,
    "scan_mm3": _count,
    "scan_cut_mm3": _count,
    "label_mm3": _NUMBERED,
    "label_cut_mm3": _NUMBERED,
    "largest_scan": _sides(3),
}
"""What each figure may hold as JSON; none of them must be there."""


def statistics_problems(document: Mapping[str, Any], path: str) -> Problems:
    """Every (path, what is wrong) of the JSON form of a shard's or a split's statistics."""
    for name, value in document.items():
        if name not in _FORMS:
            yield f"{path}.{name}"[:200], "unknown; a newer halofeed may know it"
        else:
            yield from _FORMS[name](value, f"{path}.{name}")


def _together(one: Any, other: Any) -> Any:
    """Two values of one figure: counts are added, of sides the larger ones are kept."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, int):
        return one + other
    if isinstance(one, tuple):
        return tuple(map(max, one, other))
    return _added(one, other) if isinstance(one, Mapping) else one.merge(other)


def _added(one: Names, other: Names) -> dict[str, int]:
    total = {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
    return dict(sorted(total.items(), key=_natural))


def _each(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _natural(item: tuple[str, Any]) -> tuple[int, int, str]:
    name = item[0]
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)
