"""Statistics of a shard or a split: each figure, its validation, and the merge of two.

`halofeed.prep.convert.tallies` counts them. The index of each shard and the manifest hold them as JSON.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, get_type_hints

from halofeed.schemas.ledger import Ledger, ledger_problems
from halofeed.schemas.limits import LABELS, NAMES

Problems = Iterator[tuple[str, str]]
NameCounts = Mapping[str, int]
"""Counts by name; a number's name is its digits."""
Validator = Callable[[Any, str], Problems]
"""Function of a JSON value and its path that yields (path, problem) for each problem."""

_HISTOGRAM_BINS = 256
_MAX_VALUES = 1 << 20
"""Largest number of distinct values of volumes, see `halofeed.prep.voxels.counts`."""
_LARGEST_VALUE = 3.5e38
_COUNT_BITS, _SUM_BITS = 63, 127
_PIXEL_SUMS = ("sum", "sum_squares", "histogram")


def _is_count(value: Any, bits: int = _COUNT_BITS) -> bool:
    return type(value) is int and 0 <= value < 1 << bits


def _validator(is_valid: Callable[[Any], bool], expected: str) -> Validator:
    def validate(value: Any, path: str) -> Problems:
        if not is_valid(value):
            yield path, f"expected {expected}, got {value!r:.60}"

    return validate


_count = _validator(_is_count, "a count")


def _counts(names: str, words: str, most: int = NAMES) -> Validator:
    """Return a validator of counts by at most `most` names of one form, whose sum is a valid count too."""
    pattern = re.compile(names, re.DOTALL)

    def validate(value: Any, path: str) -> Problems:
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

    return validate


def _members(*names: str) -> Validator:
    def is_valid(value: Any) -> bool:
        return (
            isinstance(value, dict) and sorted(value) == sorted(names) and all(map(_is_count, value.values()))
        )

    return _validator(is_valid, f"the counts {' and '.join(names)}")


def _padding(value: Any, path: str) -> Problems:
    yield from (problems := list(_members("stored_pixels", "padded_pixels")(value, path)))
    if not problems and value["padded_pixels"] > value["stored_pixels"]:
        yield path, f"expected at most the stored pixels to be padding, got {value!r:.100}"


def _sides(count: int) -> Validator:
    def is_valid(value: Any) -> bool:
        return isinstance(value, list) and len(value) == count and all(_is_count(side, 31) for side in value)

    return _validator(is_valid, f"{count} sides")


def _pixels(value: Any, path: str) -> Problems:
    """Validate the JSON form of `PixelSums`, which has no channel if nothing is counted."""
    if not isinstance(value, dict) or sorted(value) != sorted(("count", *_PIXEL_SUMS)):
        yield path, f"expected count, {', '.join(_PIXEL_SUMS)}, got {value!r:.60}"
        return
    yield from _count(value["count"], f"{path}.count")
    lists = [value[name] for name in _PIXEL_SUMS]
    if not _are_lists_of_one_length(lists):
        yield path, f"expected {', '.join(_PIXEL_SUMS)} of every channel"
        return
    if value["count"] and not lists[0]:
        yield path, "expected the sums of at least one channel, got none"
    # A sum of squares of 2**63 pixels of 16 bits needs more than 64 bits.
    elif not all(_is_count(number, _SUM_BITS) for number in (*lists[0], *lists[1])):
        yield path, f"expected sums of whole numbers below 2**{_SUM_BITS}"
    elif not all(map(_is_histogram, lists[2])):
        yield f"{path}.histogram", f"expected {_HISTOGRAM_BINS} counts of every channel"


def _are_lists_of_one_length(values: list[Any]) -> bool:
    return all(isinstance(one, list) for one in values) and len(set(map(len, values))) == 1


def _is_histogram(value: Any) -> bool:
    return isinstance(value, list) and len(value) == _HISTOGRAM_BINS and all(map(_is_count, value))


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
_HUNDREDTHS = r"[0-9]{1,9}\.[0-9]{2}"
_NUMBERED = _counts("0|[1-9][0-9]{0,17}", "whole numbers", LABELS)
_NAMED = _counts(".{0,10000}", "names")
_VALUES = _counts(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e[+-][0-9]{1,3})?", "numbers", _MAX_VALUES)
_SIZES = _counts(f"{_SIDE}x{_SIDE}", "sizes such as 480x640")
_RATIOS = _counts(_HUNDREDTHS, "ratios such as 1.35")
_SPACINGS = _counts("x".join([_HUNDREDTHS] * 3), "spacings such as 2.00x1.50x1.50", LABELS)
_SHAPES = _counts("x".join([_SIDE] * 3), "shapes such as 90x512x512", LABELS)


@dataclass(frozen=True, kw_only=True)
class PixelSums:
    """Sum, sum of squares and histogram of pixels per channel; 16-bit values are in the bin of their high byte."""

    count: int = 0
    sum: tuple[int, ...] = ()
    sum_squares: tuple[int, ...] = ()
    histogram: tuple[tuple[int, ...], ...] = ()

    def merge(self, other: PixelSums) -> PixelSums:
        """Add two; empty sums fit any number of channels."""
        if not self.sum or not other.sum:  # a shard without records does not know its number of channels
            return other if other.sum else self
        return PixelSums(
            count=self.count + other.count,
            sum=_add_each(self.sum, other.sum),
            sum_squares=_add_each(self.sum_squares, other.sum_squares),
            histogram=tuple(map(_add_each, self.histogram, other.histogram)),
        )

    def mean_and_deviation(self) -> tuple[list[float], list[float]]:
        """Return the means and the standard deviations per channel."""
        means = [total / self.count for total in self.sum]
        variances = [
            square / self.count - mean**2 for square, mean in zip(self.sum_squares, means, strict=True)
        ]
        return means, [max(0.0, variance) ** 0.5 for variance in variances]


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Number of stored pixels or voxels, and how many of them are padding."""

    stored_pixels: int = 0
    padded_pixels: int = 0

    @property
    def share(self) -> float:
        """Fraction of the stored pixels that is padding; 0 if there are none."""
        return self.padded_pixels / self.stored_pixels if self.stored_pixels else 0.0


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Number of images with more boxes than the loader returns, and of boxes beyond that number."""

    images: int = 0
    boxes: int = 0


@dataclass(frozen=True, kw_only=True)
class Intensities:
    """Counts of stored values: those above each scan's smallest value, and those where the label is not 0."""

    body: NameCounts = dataclasses.field(default_factory=dict)
    foreground: NameCounts = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Figures of the records of a shard, a split or a data set; None for a figure that is not counted.

    Pixels and intensities are from every eighth row without padding; all other figures are exact.

    Args:
        color_errors: number of color values by the difference of the loaded from the converted picture, in levels, of
            pictures that are stored as color planes, without padding; older manifests lack them.
        labels: number of records by the class ids that they show; of boxes by their class id.
        boxes_per_image: number of images by their number of boxes.
        boxes: number of boxes by what the conversion did to them.
        ignored_per_image: number of images by their number of ignored regions; only of images with some.
        stated: number of records by the field of `kinds.STATED_FIELDS` that they have; only of fields that some have.
        largest: sides of the largest image.
        largest_scan: sides of the largest scan before it was cropped.
        labelled: number of records with a label image.
        label_voxels: number of voxels by class.
        foreground_voxels: number of voxels of any class, each counted once.
        scan_mm3, label_mm3: volume of the scans, and of each class.
        scan_cut_mm3, label_cut_mm3: the part of these volumes that is in no record.
        scan_cut_percents, body_cut_percents: number of scans by the percentage, rounded up, of their field of view
            and of their body that is in no record; older manifests lack them.
        ledger: what the conversion did to the information of the records; older manifests lack it.
        box_sizes_mm: number of objects in the scans by their longest side in whole millimeters, rounded up; each object
            of a scan counts once, whatever its records show.
    """

    records: Annotated[int | None, _count] = None
    pixels: Annotated[PixelSums | None, _pixels] = None
    padding: Annotated[Padding | None, _padding] = None
    color_errors: Annotated[NameCounts | None, _NUMBERED] = None
    labels: Annotated[NameCounts | None, _NUMBERED] = None
    boxes_per_image: Annotated[NameCounts | None, _NUMBERED] = None
    boxes: Annotated[NameCounts | None, _NAMED] = None
    ignored_per_image: Annotated[NameCounts | None, _NUMBERED] = None
    cut: Annotated[Cut | None, _members("images", "boxes")] = None
    notes: Annotated[NameCounts | None, _NAMED] = None
    warnings: Annotated[NameCounts | None, _NAMED] = None
    stated: Annotated[NameCounts | None, _NAMED] = None
    source_sizes: Annotated[NameCounts | None, _SIZES] = None
    aspect_ratios: Annotated[NameCounts | None, _RATIOS] = None
    largest: Annotated[tuple[int, ...] | None, _sides(2)] = None
    labelled: Annotated[int | None, _count] = None
    label_voxels: Annotated[NameCounts | None, _NUMBERED] = None
    foreground_voxels: Annotated[int | None, _count] = None
    intensities: Annotated[Intensities | None, _intensities] = None
    findings: Annotated[NameCounts | None, _NAMED] = None
    modalities: Annotated[NameCounts | None, _NAMED] = None
    spacings_mm: Annotated[NameCounts | None, _SPACINGS] = None
    source_shapes: Annotated[NameCounts | None, _SHAPES] = None
    tiles: Annotated[int | None, _count] = None
    scan_mm3: Annotated[int | None, _count] = None
    scan_cut_mm3: Annotated[int | None, _count] = None
    label_mm3: Annotated[NameCounts | None, _NUMBERED] = None
    label_cut_mm3: Annotated[NameCounts | None, _NUMBERED] = None
    scan_cut_percents: Annotated[NameCounts | None, _NUMBERED] = None
    body_cut_percents: Annotated[NameCounts | None, _NUMBERED] = None
    largest_scan: Annotated[tuple[int, ...] | None, _sides(3)] = None
    ledger: Annotated[Ledger | None, ledger_problems] = None
    box_sizes_mm: Annotated[NameCounts | None, _NUMBERED] = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Statistics:
        """Read a JSON form that `statistics_problems` has accepted."""
        return cls(**{name: _read(name, value) for name, value in document.items()})

    def to_json(self) -> dict[str, Any]:
        """Return the counted figures as plain JSON values."""
        held = {name: value for name, value in vars(self).items() if value is not None}
        return {name: vars(value) if name in _PARTS else value for name, value in held.items()}

    def merge(self, other: Statistics) -> Statistics:
        """Add two; the result is the same in any grouping and order.

        >>> Statistics(records=1, labels={"9": 1}).merge(Statistics(records=2, labels={"9": 1, "10": 4}))
        ... # doctest: +ELLIPSIS
        Statistics(records=3, ... labels={'9': 2, '10': 4}, ...)
        """
        return Statistics(**_merged(self, other))

    @classmethod
    def total(cls, parts: Iterable[Statistics]) -> Statistics:
        """Add all parts."""
        return reduce(cls.merge, parts, cls())

    def names(self) -> int:
        """Return the number of counted names."""
        counted = [*vars(self).values(), *(vars(self.intensities).values() if self.intensities else ())]
        counted += [self.ledger.counts, *self.ledger.histograms.values()] if self.ledger else []
        return sum(len(value) for value in counted if isinstance(value, Mapping))


_PARTS: Mapping[str, Callable[..., Any]] = {
    "pixels": PixelSums,
    "padding": Padding,
    "cut": Cut,
    "intensities": Intensities,
    "ledger": Ledger,
}
_VALIDATORS: Mapping[str, Validator] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Statistics, include_extras=True).items()
}


def statistics_problems(document: Mapping[str, Any], path: str) -> Problems:
    """Yield (path, problem) for each problem in the JSON form of a shard's or a split's statistics."""
    for name, value in document.items():
        if name not in _VALIDATORS:
            yield f"{path}.{name}"[:200], "unknown; a newer halofeed may know it"
        else:
            yield from _VALIDATORS[name](value, f"{path}.{name}")


def _read(name: str, value: Any) -> Any:
    """Return a figure from its JSON form."""
    if name in _PARTS:
        return _PARTS[name](**{member: _as_tuples(held) for member, held in value.items()})
    return _as_tuples(value)


def _as_tuples(value: Any) -> Any:
    """Convert lists, and lists of lists, to tuples."""
    if not isinstance(value, list):
        return value
    return tuple(map(tuple, value)) if value and isinstance(value[0], list) else tuple(value)


def _merged(one: Any, other: Any) -> dict[str, Any]:
    """Merge two dataclasses figure by figure."""
    return {name: _merge_values(value, vars(other)[name]) for name, value in vars(one).items()}


def _merge_values(one: Any, other: Any) -> Any:
    """Add two values of one figure; of sides keep the larger ones."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, int):
        return one + other
    if isinstance(one, tuple):
        return tuple(map(max, one, other))  # sides of the largest image
    if isinstance(one, Mapping):
        total = {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
        return {name: total[name] for name in sorted(total, key=_natural_order)}
    return one.merge(other) if isinstance(one, PixelSums | Ledger) else type(one)(**_merged(one, other))


def _add_each(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _natural_order(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)
