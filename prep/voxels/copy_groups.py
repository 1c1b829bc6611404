"""Groups of copies: alike pairs are confirmed by their pixels where signatures leave a doubt, and joined.

`halofeed review` groups the records of a data set, and a conversion with --duplicates the pictures of its sources.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.voxels.copy_search import Pairs, is_certain, turn_back, turned
from halofeed.prep.voxels.same_pixels import Gray, show_the_same

MOST_COMPARED = 5_000
"""Pairs whose pixels are compared, the most alike first: 1 minute."""
_WHOLE = 0.01
"""Largest share of a side that a copy may lack and still show all objects."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyGroup:
    """Records that are copies of each other, directly or by other copies.

    Args:
        records: their numbers, in order.
        similarity: the least correlation of details of a pair that links them.
        is_changed: whether a pair is turned, mirrored or a part.
        is_part: whether a record may show less than another one.
    """

    records: tuple[int, ...]
    similarity: float
    is_changed: bool
    is_part: bool


def doubtful_pairs(pairs: Pairs, planes: int, most: int = MOST_COMPARED) -> tuple[NDArray[np.int64], int]:
    """Return the numbers of the pairs whose pixels decide, int64 [pair], and how many are left out beyond `most`.

    Scans and clips have none, because their thumbnails decide.

    Args:
        planes: thumbnails of a signature.
        most: number of pairs, the most alike first.
    """
    if planes > 1:
        return np.empty(0, np.int64), 0
    doubtful = np.flatnonzero(~is_certain(pairs, planes))
    left = max(0, len(doubtful) - most)
    doubtful = doubtful[np.argsort(-pairs.scores[doubtful], kind="stable")][:most]
    # Pairs in the order of their records read each record once or twice.
    return doubtful[np.lexsort((pairs.second[doubtful], pairs.first[doubtful]))], left


def are_copies(pairs: Pairs, at: int, first: Gray | None, second: Gray | None) -> bool:
    """Return whether the pixels of a pair show the same; pictures of `to_compared`, None for one that is damaged."""
    if first is None or second is None:
        return False
    back = np.ascontiguousarray(turned(second, turn_back(int(pairs.turns[at]))))
    return show_the_same(first, back, pairs.rows[at], pairs.columns[at])


def group_pairs(pairs: Pairs) -> list[CopyGroup]:
    """Return the connected groups of pairs, ordered by their first records."""
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
    parts, scores = cut > _WHOLE, pairs.scores
    changed = parts | (pairs.turns > 0)
    links: dict[int, list[int]] = {}
    for number, first in enumerate(pairs.first.tolist()):
        links.setdefault(root(first), []).append(number)
    return [
        CopyGroup(
            records=tuple(records),
            similarity=float(scores[links[first]].min()),
            is_changed=bool(changed[links[first]].any()),
            is_part=bool(parts[links[first]].any()),
        )
        for first, records in sorted(members.items())
    ]
