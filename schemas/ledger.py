"""Ledger of losses: what a conversion did to the information of its records, as counts that add up in any order.

`halofeed.prep.convert.loss_measures` fills it, record by record. The index of each shard and the manifest hold it in
`halofeed.schemas.statistics.Statistics`. `halofeed.prep.convert.loss_findings` lists what is found in it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,60}")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_MAX_NAMES: Final = 200
_MAX_EXAMPLE: Final = 10_000
_COUNT_BITS: Final = 63

Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Losses of the records of a shard, a split or a data set.

    Args:
        counts: number of records, objects or structures by what was measured, e.g. {"one_value_records": 3}.
        histograms: by what was measured, the number of records or objects by a number such as a size in pixels, rounded
            down to a power of 2 if `bin_size` requires it.
        ranges: smallest and largest value by what was measured.
        examples: by the name of a count, a source and its figures: the first one in alphabetical order.

    >>> one = Ledger(counts={"records": 1}, ranges={"values": (0, 5)}, examples={"records": "b.png"})
    >>> two = Ledger(counts={"records": 2}, ranges={"values": (-3, 4)}, examples={"records": "a.png"})
    >>> one.merge(two)
    Ledger(counts={'records': 3}, histograms={}, ranges={'values': (-3.0, 5.0)}, examples={'records': 'a.png'})
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    histograms: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # JSON has lists in place of tuples.
        object.__setattr__(self, "ranges", {name: (low, high) for name, (low, high) in self.ranges.items()})

    def merge(self, other: Ledger) -> Ledger:
        """Add two; the result is the same in any grouping and order."""
        total = LedgerCounter()
        total.add(self)
        total.add(other)
        return total.ledger()

    def count(self, name: str) -> int:
        """Return a count; 0 if nothing was counted."""
        return self.counts.get(name, 0)

    def below(self, histogram: str, limit: int) -> int:
        """Return how many numbers of a histogram are below a limit.

        >>> Ledger(histograms={"sides": {"1": 3, "2": 4, "8": 1}}).below("sides", 4)
        7
        """
        return sum(
            count for number, count in self.histograms.get(histogram, {}).items() if int(number) < limit
        )

    def total(self, histogram: str) -> int:
        """Return the sum of the counts of a histogram."""
        return sum(self.histograms.get(histogram, {}).values())

    def median(self, histogram: str) -> int:
        """Return the lower median of the numbers of a histogram; 0 if it is empty."""
        half, seen = (self.total(histogram) + 1) // 2, 0
        for number, count in sorted(
            (int(number), count) for number, count in self.histograms.get(histogram, {}).items()
        ):
            seen += count
            if seen >= half:
                return number
        return 0


@dataclass(kw_only=True)
class LedgerCounter:
    """Counter of the losses of one record or of many, which becomes a `Ledger`."""

    counts: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, Counter[int]] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def count(self, name: str, number: int = 1, example: str = "") -> None:
        """Add to a count; `example` names the source and its figures."""
        if not number:
            return
        self.counts[name] += number
        if example:
            self._example(name, example[:_MAX_EXAMPLE])

    def bin(self, histogram: str, number: int, count: int = 1) -> None:
        """Add to the count of a number in a histogram."""
        self.sizes(histogram)[number] += count

    def sizes(self, histogram: str) -> Counter[int]:
        """Return the counter of a histogram."""
        return self.histograms.setdefault(histogram, Counter())

    def extend(self, name: str, low: float, high: float) -> None:
        """Extend a range."""
        before = self.ranges.get(name, (low, high))
        self.ranges[name] = float(min(before[0], low)), float(max(before[1], high))

    def add(self, other: Ledger | LedgerCounter) -> None:
        """Add all losses of another one."""
        for name, number in other.counts.items():
            self.counts[name] += number
        for histogram, counted in other.histograms.items():
            own = self.sizes(histogram)
            for size, number in counted.items():
                own[int(size)] += number
        for name, (low, high) in other.ranges.items():
            self.extend(name, low, high)
        for name, example in other.examples.items():
            self._example(name, example)

    def ledger(self) -> Ledger:
        """Return the losses, each part in order, as JSON holds them."""
        return Ledger(
            counts={name: self.counts[name] for name in sorted(self.counts)},
            histograms={
                name: {str(number): counted[number] for number in sorted(counted)}
                for name, counted in sorted(self.histograms.items())
            },
            ranges={name: self.ranges[name] for name in sorted(self.ranges)},
            examples={name: self.examples[name] for name in sorted(self.examples)},
        )

    def _example(self, name: str, example: str) -> None:
        # The first in order, so that shards may be added in any order.
        known = self.examples.get(name)
        if known is None or example < known:
            self.examples[name] = example


def bin_size(size: float) -> int:
    """Round a size down to a power of 2, which keeps histograms of sizes short; below 1 it is 0.

    >>> bin_size(0.7), bin_size(3.9), bin_size(300)
    (0, 2, 256)
    """
    return 1 << (int(size).bit_length() - 1) if size >= 1 else 0


def ledger_problems(value: Any, path: str) -> Problems:
    """Yield (path, problem) for each problem of the JSON form of a ledger."""
    parts = ("counts", "examples", "histograms", "ranges")
    if not isinstance(value, dict) or sorted(value) != list(parts):
        yield path, f"expected {', '.join(parts)}, got {value!r:.60}"
        return
    checks = {"counts": _is_count, "examples": _is_text, "histograms": _is_histogram, "ranges": _is_range}
    for part, is_valid in checks.items():
        held = value[part]
        if not isinstance(held, dict) or len(held) > _MAX_NAMES:
            yield f"{path}.{part}", f"expected at most {_MAX_NAMES} names, got {held!r:.60}"
            continue
        for name, one in held.items():
            if not _NAME.fullmatch(name):
                yield f"{path}.{part}", f"expected names such as one_value_records, got {name!r:.60}"
            elif not is_valid(one):
                yield f"{path}.{part}.{name}", f"not a valid value: {one!r:.60}"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << _COUNT_BITS


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_EXAMPLE


def _is_histogram(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _NUMBER.fullmatch(number) and _is_count(count) for number, count in value.items()
    )


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(end) in (int, float) and math.isfinite(end) for end in value)
        and value[0] <= value[1]
    )
