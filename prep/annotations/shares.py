"""Division of groups by shares: in the order of stable hashes, with limits at the quantiles of the classes.

Every group has a point between 0 and 1: its rank by hash among the groups of its class, in images. All groups in the
order of their points, which mixes the classes evenly, are cut where the shares end:

    class a    .1 .3 .5 .7 .9
    class b      .2   .6                  cut at 0.7 of all images
    together   .1 .2 .3 .5 .6 | .7 .9

So counts are within one group of the shares. A new group shifts the ranks of its own class by at most one and the cut
by at most its size; it moves at most about one group of its own class and two others at each cut, not all.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.class_names import classes_in
from halofeed.prep.sources.example import SourceExample
from halofeed.system.wording import plural

_POINTS = float(2**64)


def hash_of(group: str, seed: int) -> int:
    """Return a number below 2**64 that depends on a group's name and the seed alone.

    >>> hash_of("patient 1", 0) == hash_of("patient 1", 0) != hash_of("patient 1", 1)
    True
    """
    digest = hashlib.sha256(f"{seed}\0{group}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big")


def group_name(example: SourceExample) -> str:
    """Return the group of an example; an example without one is a separate group, named by its key.

    Groups that copies join are one.
    """
    if example.joint is not None:
        return example.joint
    return str(example.key) if example.group is None else example.group


@dataclass(kw_only=True)
class GroupCounts:
    """Hash of the group and class of each image, 12 bytes per image; parts can be added in any order.

    Args:
        seed: seed of the hashes.
        source_splits: splits that the images have in the source.
    """

    seed: int
    hashes: array[int] = field(default_factory=lambda: array("Q"))
    numbers: array[int] = field(default_factory=lambda: array("I"))
    classes: dict[str, int] = field(default_factory=dict)
    source_splits: set[str] = field(default_factory=set)

    def add(self, example: SourceExample) -> None:
        """Count an example that can be converted."""
        name = stratum_of(example)
        self.source_splits.add(example.split)
        self.hashes.append(hash_of(group_name(example), self.seed))
        self.numbers.append(self.classes.setdefault(name, len(self.classes)))

    def merge(self, other: GroupCounts) -> None:
        """Add the counts of another part of a source."""
        places = [self.classes.setdefault(name, len(self.classes)) for name in other.classes]
        self.source_splits |= other.source_splits
        self.hashes.extend(other.hashes)
        self.numbers.extend(places[number] for number in other.numbers)

    def divide(self, shares: Mapping[str, float]) -> Division:
        """Return the split of every group."""
        hashes, inverse = np.unique(np.frombuffer(self.hashes, np.uint64), return_inverse=True)
        # All images are rejected, which another message says.
        if not len(hashes):
            none = dict.fromkeys(shares, 0)
            return Division(names=tuple(shares), seed=self.seed, limits={}, mixed={}, counts=none, groups=0)
        names = sorted(self.classes)
        ranks = np.empty(len(names), np.int64)
        ranks[[self.classes[name] for name in names]] = np.arange(len(names))
        classes = ranks[np.frombuffer(self.numbers, np.uint32)]
        sizes = np.bincount(inverse, minlength=len(hashes))
        strata = _most_frequent(inverse, classes, len(hashes))
        order = _order(hashes, sizes, strata, names, self.seed)
        ends = _ends(sizes[order], tuple(shares.values()))
        splits = np.empty(len(hashes), np.int64)
        splits[order] = np.searchsorted(ends, np.arange(len(hashes)), side="right")
        counts = np.bincount(splits, weights=sizes, minlength=len(shares))
        mixed = np.unique(inverse[classes != strata[inverse]])
        return Division(
            names=tuple(shares),
            seed=self.seed,
            limits={
                name: _limits(hashes[strata == rank], splits[strata == rank], len(shares))
                for rank, name in enumerate(names)
            },
            mixed={int(hashes[group]): names[strata[group]] for group in mixed},
            counts={name: int(count) for name, count in zip(shares, counts, strict=True)},
            groups=len(hashes),
        )

    def __getstate__(self) -> dict[str, object]:
        """Return the state for another process."""
        return {**vars(self), "hashes": self.hashes.tobytes(), "numbers": self.numbers.tobytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        hashes, numbers = array("Q", state["hashes"]), array("I", state["numbers"])
        vars(self).update(state, hashes=hashes, numbers=numbers)


@dataclass(frozen=True, kw_only=True)
class Division:
    """Split of every group, by its class and its hash.

    Args:
        names: names of the splits.
        seed: seed of the hashes.
        limits: for each class the hash at which each split but the last ends.
        mixed: class by hash of the groups that have several; it is that of most of their images.
        counts: number of images of each split.
        groups: number of groups.
    """

    names: tuple[str, ...]
    seed: int
    limits: Mapping[str, tuple[int, ...]]
    mixed: Mapping[int, str]
    counts: Mapping[str, int]
    groups: int

    def split_of(self, example: SourceExample) -> str:
        """Return the split of an example; one with a problem is listed about where it would be without it."""
        key = hash_of(group_name(example), self.seed)
        limits = self.limits.get(self.mixed.get(key, stratum_of(example)), self._usual_limits)
        return self.names[bisect_right(limits, key)]

    @cached_property
    def _usual_limits(self) -> tuple[int, ...]:
        """Return the limits of hashes for images whose class is not known: the shares of the images that there are."""
        total = max(1, sum(self.counts.values()))
        return tuple(int(end * _POINTS / total) for end in accumulate(self.counts.values()))[:-1]

    def lacking(self) -> str:
        """Return a sentence about splits without an image; "" if each has some."""
        empty = [name for name in self.names if not self.counts[name]]
        # Another message covers a source without any group.
        if not empty or not self.groups:
            return ""
        return (
            f"split {', '.join(empty)} is empty: there {'is' if self.groups == 1 else 'are'} "
            f"{plural(self.groups, 'group')} for {plural(len(self.names), 'split')}, and a group is not divided; "
            "name fewer splits, or add sources"
        )


def stratum_of(example: SourceExample) -> str:
    """Return the class by which an image is divided: the first by name of several; "" without one.

    No count of the whole source chooses it, because one more image could then move many.
    """
    return min(classes_in(example), default="")


def _limits(hashes: NDArray[np.uint64], splits: NDArray[np.int64], count: int) -> tuple[int, ...]:
    """Return the first hash after each split but the last, of groups of one class sorted by hash."""
    # The points of a class rise with the hashes, so its splits do, too.
    ends = np.searchsorted(splits, np.arange(count - 1), side="right")
    return tuple(int(hashes[end]) if end < len(hashes) else 1 << 64 for end in ends)


def _most_frequent(groups: NDArray[np.int64], classes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the class that most images of each group have, the first of several by name; shape [groups]."""
    if not count:
        return np.empty(0, np.int64)
    width = int(classes.max()) + 1
    pairs, numbers = np.unique(groups.astype(np.int64) * width + classes, return_counts=True)
    # The last entry of each group wins: the most frequent, then the first by name.
    best = np.lexsort((-(pairs % width), numbers, pairs // width))
    found = np.empty(count, np.int64)
    found[pairs[best] // width] = pairs[best] % width
    return found


def _order(
    hashes: NDArray[np.uint64],
    sizes: NDArray[np.int64],
    strata: NDArray[np.int64],
    names: Sequence[str],
    seed: int,
) -> NDArray[np.int64]:
    """Return the groups in the order of their points.

    The rank in a class is shifted by a hash of the class, so that classes of one group each do not all come at the
    same point.
    """
    by_class = np.lexsort((hashes, strata))
    ordered, weights = strata[by_class], sizes[by_class]
    totals = np.bincount(ordered, weights=weights, minlength=len(names))
    before = np.cumsum(weights) - weights - (np.cumsum(totals) - totals)[ordered]
    phases = np.array([hash_of(f"class\0{name}", seed) / _POINTS for name in names])
    points = (before + phases[ordered] * weights) / np.maximum(totals[ordered], 1)
    return by_class[np.lexsort((hashes[by_class], points))]


def _ends(sizes: NDArray[np.int64], shares: Sequence[float]) -> list[int]:
    """Return the place in the order at which each split but the last ends.

    A group belongs to the split that contains its middle. If there are as many groups as splits, each split has one.
    """
    middles = np.cumsum(sizes) - sizes / 2
    total, groups = float(sizes.sum()), len(sizes)
    limits = np.cumsum(shares)[:-1] * total
    # Sums of shares such as 0.7 + 0.1 differ from 0.8 in the last digit.
    ends = [int(one) for one in np.searchsorted(middles, limits - 1e-9 * total, side="left")]
    if groups >= len(shares):
        for number in range(len(ends)):
            ends[number] = max(ends[number], (ends[number - 1] if number else 0) + 1)
        for number in reversed(range(len(ends))):
            ends[number] = min(ends[number], groups - (len(ends) - number))
    return ends


def fold_shares(folds: int) -> dict[str, float]:
    """Return equal shares for splits with the names of folds.

    >>> fold_shares(2)
    {'fold0': 0.5, 'fold1': 0.5}
    """
    return {f"fold{number}": 1 / folds for number in range(folds)}
