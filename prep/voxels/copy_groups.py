"""Groups of copies: pairs whose signatures are alike are confirmed by their pixels, and joined.

`halofeed review` groups the records of a data set, and a conversion with --duplicates the pictures of its sources.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.voxels.copy_search import Pairs, is_certain, turn_back, turned
from halofeed.prep.voxels.same_pixels import Gray, Match, match_pictures

MOST_COMPARED = 5_000
"""Pairs with certain signatures, and with doubtful ones, whose pixels are compared, the most alike first: 1 minute."""
_MOSTLY_COPIES = 0.95
"""Share of the compared pairs with certain signatures that must be copies so that those beyond the limit count too."""
_WHOLE = 0.01
"""Largest share of a side that a copy may lack and still show all objects."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyGroup:
    """Records that are copies of each other, directly or by other copies.

    Args:
        records: their numbers, in order.
        similarity: the least correlation of details of a pair that links them, in the pixels where they were compared.
        thumbnails: the same in the thumbnails.
        is_changed: whether a pair is turned, mirrored or a part.
        is_part: whether a record may show less than another one.
    """

    records: tuple[int, ...]
    similarity: float
    thumbnails: float
    is_changed: bool
    is_part: bool


def doubtful_pairs(pairs: Pairs, planes: int, most: int = MOST_COMPARED) -> tuple[NDArray[np.int64], int]:
    """Return the numbers of the pairs whose pixels decide, int64 [pair], and how many doubtful ones are left out.

    Scans and clips have none, because their thumbnails decide. Pictures with certain signatures are compared too: the
    thumbnails of the retinas of two eyes correlate by 0.97, because the rim of the camera is the same.

    Args:
        planes: thumbnails of a signature.
        most: number of pairs with certain signatures, and of pairs with doubtful ones, the most alike first.
    """
    if planes > 1:
        return np.empty(0, np.int64), 0
    certain = is_certain(pairs, planes)
    parts = [
        part[np.argsort(-pairs.scores[part], kind="stable")]
        for part in map(np.flatnonzero, (certain, ~certain))
    ]
    chosen = np.concatenate([part[:most] for part in parts])
    # Pairs in the order of their records read each record once or twice.
    return chosen[np.lexsort((pairs.second[chosen], pairs.first[chosen]))], max(0, len(parts[1]) - most)


def match_pair(pairs: Pairs, at: int, first: Gray, second: Gray) -> Match:
    """Return how far the pictures of a pair agree; pictures of `to_compared`."""
    back = np.ascontiguousarray(turned(second, turn_back(int(pairs.turns[at]))))
    return match_pictures(first, back, pairs.rows[at], pairs.columns[at])


def are_copies(pairs: Pairs, at: int, first: Gray | None, second: Gray | None) -> bool:
    """Return whether the pixels of a pair show the same; pictures of `to_compared`, None for one that is damaged."""
    return first is not None and second is not None and match_pair(pairs, at, first, second).is_same


def without_unlike(
    copies: NDArray[np.bool_], certain: NDArray[np.bool_], compared: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which pairs are copies, without those that were not compared if their signatures prove little.

    In a set of pictures with one strong edge in common, certain signatures are those of other pictures, too. The
    compared pairs show whether the set is of this kind.

    Args:
        copies: pairs that were found to be copies, or were not compared and have certain signatures, bool [pair].
        certain: pairs with certain signatures, bool [pair].
        compared: numbers of the compared pairs, int64 [pair].

    >>> certain = np.array([True, True, True])
    >>> without_unlike(np.array([False, True, True]), certain, np.array([0, 1])).tolist()
    [False, True, False]
    """
    known = np.zeros(len(copies), np.bool_)
    known[compared] = True
    trusted = certain & known
    if not trusted.any() or copies[trusted].mean() >= _MOSTLY_COPIES:
        return copies
    return copies & known


def group_pairs(pairs: Pairs, similarities: NDArray[np.float32] | None = None) -> list[CopyGroup]:
    """Return the connected groups of pairs, ordered by their first records.

    Args:
        similarities: correlation of the details of each pair, float32 [pair]; without it that of the thumbnails.
    """
    similarities = pairs.scores if similarities is None else similarities
    parents: dict[int, int] = {}

    def root(record: int) -> int:
        while (above := parents.setdefault(record, record)) != record:
            parents[record] = parents[above]
            record = above
        return record

    for first, second in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True):
        low, high = sorted((root(first), root(second)))
        parents[high] = low
    members: dict[int, list[int]] = {}
    for record in sorted(parents):
        members.setdefault(root(record), []).append(record)
    cut = np.maximum(pairs.rows[:, 0] + 1 - pairs.rows[:, 1], pairs.columns[:, 0] + 1 - pairs.columns[:, 1])
    parts = cut > _WHOLE
    changed = parts | (pairs.turns > 0)
    links: dict[int, list[int]] = {}
    for number, first in enumerate(pairs.first.tolist()):
        links.setdefault(root(first), []).append(number)
    return [
        CopyGroup(
            records=tuple(records),
            similarity=float(similarities[links[first]].min()),
            thumbnails=float(pairs.scores[links[first]].min()),
            is_changed=bool(changed[links[first]].any()),
            is_part=bool(parts[links[first]].any()),
        )
        for first, records in sorted(members.items())
    ]
