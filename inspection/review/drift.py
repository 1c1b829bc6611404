"""Drift between splits: classes, sizes, intensities and sources that differ by much, and not by chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.robust import distance_between, is_drift
from halofeed.inspection.review.suspects import RecordPlace, Suspect, SuspectKind
from halofeed.inspection.stored_records import text_of
from halofeed.schemas import keys, measures

_LEAST_DISTANCE: Final = 0.3
"""Difference of the cumulative shares of a measure from which it is a drift. Random splits of 100 and 30 records of one
set stay below 0.4, which the test of chance leaves out."""
_LEAST_MOVED: Final = {"classes": 0.2, "sources": 0.5}
"""Share of the records of a split that would have to change its class, or its source, to have the shares of another."""
_CHANCE: Final = 3.7
"""Standard deviations beyond which a difference is no chance: once in 10,000 cases."""
_FEWEST: Final = 20
_SAMPLED: Final = 2000
_MAX_FOLDERS: Final = 50
"""Folders above which they are not sources, but one for each record or so."""


class DriftKind(SuspectKind):
    """Kinds of differences between splits."""

    # fmt: off
    CLASSES = ("classes differ between splits", "One split has other shares of the classes than the first split.",
        "Split again, stratified by class; figures of one split say little about the other.")
    SIZES = ("sizes differ between splits", "The sources of one split are smaller or larger than those of the first.",
        "Look whether the splits come from different sources; split again by chance.")
    INTENSITIES = ("intensities differ between splits", "One split is darker, sharper or of another range.",
        "Look whether the splits come from different devices; split again by chance.")
    SOURCES = ("sources differ between splits", "One split comes from other folders than the first.",
        "If it is meant to test other sources, keep it; otherwise split again by chance.")
    # fmt: on


_MEASURES: Final[Mapping[str, DriftKind]] = {
    **dict.fromkeys((*measures.SOURCE_SIDES, *measures.SPACINGS_MM), DriftKind.SIZES),
    **dict.fromkeys((measures.BRIGHTNESS, measures.CONTRAST, measures.SHARPNESS), DriftKind.INTENSITIES),
    **dict.fromkeys((measures.LOW_VALUE, measures.MIDDLE_VALUE, measures.HIGH_VALUE), DriftKind.INTENSITIES),
}
_TOLERANCE: Final = 0.05
"""Difference that does not matter, as a share of the median of the first split."""


def drift(reviewed: ReviewedSet) -> Iterator[Suspect]:
    """Yield what differs between the first split and each other one, each with a typical record of both."""
    names = [name for name, split in reviewed.manifest.splits.items() if split.records >= _FEWEST]
    # Training fits the split named train, and the largest one where none has the name.
    if len(names) < 2:
        return
    first = (
        "train" if "train" in names else max(names, key=lambda name: reviewed.manifest.splits[name].records)
    )
    for other in names:
        if other != first:
            yield from _measured(reviewed, first, other)
            yield from _classes(reviewed, first, other)
            yield from _sources(reviewed, first, other)


def _rows(reviewed: ReviewedSet, split: str) -> NDArray[np.int64]:
    return np.flatnonzero(reviewed.split_numbers == list(reviewed.manifest.splits).index(split))


def _measured(reviewed: ReviewedSet, first: str, other: str) -> Iterator[Suspect]:
    """Yield the measure of each kind that differs most."""
    worst: dict[DriftKind, Suspect] = {}
    for name, kind in _MEASURES.items():
        values = reviewed.measure(name)
        rows = [_rows(reviewed, split) for split in (first, other)]
        known = [one[np.isfinite(values[one])] for one in rows]
        if min(map(len, known)) < _FEWEST:
            continue
        samples = [values[one] for one in known]
        tolerance = _TOLERANCE * abs(float(np.median(samples[0])))
        distance = distance_between(samples[0], samples[1], tolerance)
        if not is_drift(distance, len(samples[0]), len(samples[1]), _LEAST_DISTANCE):
            continue
        medians = [float(np.median(sample)) for sample in samples]
        places = tuple(
            reviewed.place(int(one[np.argmin(np.abs(values[one] - median))]))
            for one, median in zip(known, medians, strict=True)
        )
        words = (
            f"{name.replace('_', ' ')}: median {medians[0]:.4g} in {first}, {medians[1]:.4g} in {other}; "
            f"the distributions are {distance:.0%} apart"
        )
        if kind not in worst or distance > worst[kind].score:
            worst[kind] = Suspect(kind=kind, places=places, score=distance, words=words)
    yield from worst.values()


def _classes(reviewed: ReviewedSet, first: str, other: str) -> Iterator[Suspect]:
    """Yield a difference of the shares of the classes; of records, or of boxes for detection."""
    counts = [
        {int(key): count for key, count in (reviewed.manifest.splits[split].statistics.labels or {}).items()}
        for split in (first, other)
    ]
    names = reviewed.manifest.labels
    yield from _shares(reviewed, DriftKind.CLASSES, (first, other), counts, _LEAST_MOVED["classes"], names)


def _sources(reviewed: ReviewedSet, first: str, other: str) -> Iterator[Suspect]:
    """Yield a difference of the folders of the sources, without parts that name a split or a class."""
    left_out = {*reviewed.manifest.splits, *reviewed.manifest.labels.values()}
    counts: list[dict[int, int]] = []
    numbers: dict[str, int] = {}
    for split in (first, other):
        rows = _rows(reviewed, split)
        step = -(-len(rows) // _SAMPLED)
        found = Counter(_folder(reviewed, int(row), left_out) for row in rows[::step])
        counts.append({numbers.setdefault(name, len(numbers)): count for name, count in found.items()})
    if not 1 < len(numbers) <= _MAX_FOLDERS:
        return
    names = {number: name or "the folder itself" for name, number in numbers.items()}
    yield from _shares(reviewed, DriftKind.SOURCES, (first, other), counts, _LEAST_MOVED["sources"], names)


def _folder(reviewed: ReviewedSet, record: int, left_out: set[str]) -> str:
    source = text_of(reviewed.small_features(record, frozenset({keys.FILENAME})), keys.FILENAME) or ""
    parts = PurePosixPath(source).parent.parts
    return "/".join(part for part in parts if part not in left_out)


def _shares(
    reviewed: ReviewedSet,
    kind: DriftKind,
    splits: tuple[str, str],
    counts: list[dict[int, int]],
    least: float,
    names: Mapping[int, str],
) -> Iterator[Suspect]:
    """Yield a suspect if the shares of two splits differ by an effect that is large and no chance."""
    known = sorted({*counts[0], *counts[1]})
    table = np.array([[count.get(one, 0) for one in known] for count in counts], np.float64)
    totals = table.sum(1, keepdims=True)
    if len(known) < 2 or totals.min() < _FEWEST:
        return
    shares = table / totals
    moved = float(np.abs(shares[0] - shares[1]).sum()) / 2
    if moved < least or _deviations(table) < _CHANCE:
        return
    worst = int(np.argmax(np.abs(shares[0] - shares[1])))
    name = names.get(known[worst], str(known[worst]))
    words = (
        f"{name!r}: {shares[0][worst]:.1%} of {splits[0]}, {shares[1][worst]:.1%} of {splits[1]}; "
        f"{moved:.0%} would have to move"
    )
    places = tuple(_first_place(reviewed, split) for split in splits)
    yield Suspect(kind=kind, places=places, score=moved, words=words)


def _first_place(reviewed: ReviewedSet, split: str) -> RecordPlace:
    return reviewed.place(int(_rows(reviewed, split)[0]))


def _deviations(table: NDArray[np.float64]) -> float:
    """Return by how many standard deviations the chi-squared statistic of counts [split, class] is above chance.

    The cube root of a chi-squared value is nearly normal (Wilson and Hilferty 1931).
    """
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    free = table.shape[1] - 1
    usual, deviation = 1 - 2 / (9 * free), math.sqrt(2 / (9 * free))
    return float((np.cbrt(statistic / free) - usual) / deviation)
