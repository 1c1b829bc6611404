"""Search of a data set for copies: leaks between splits, copies with other labels, exact and near copies in a split.

Signatures in the indexes show which records are alike (`copy_search`). Where they leave a doubt, the pixels decide
(`same_pixels`). `copy_labels` compares their labels. Copies of copies form a group, and each group is one suspect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.copy_labels import Likeness, differing_labels
from halofeed.inspection.review.copy_search import (
    Pairs,
    find_pairs,
    is_certain,
    turn_back,
    turned,
)
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.same_pixels import Gray, show_the_same, to_compared
from halofeed.inspection.review.suspects import Suspect, SuspectKind
from halofeed.inspection.stored_records import integer_of, stored_image
from halofeed.prep.annotations.unlabeled import UNLABELED_SPLIT
from halofeed.prep.voxels.signatures import Signatures, unpack_signatures
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.system.wording import plural

MOST_COMPARED = 5_000
"""Pairs whose pixels are compared, the most alike first: 1 minute."""
_KEPT_PICTURES = 2_000
"""Decoded pictures of 36 KiB that are kept for further pairs."""
_SAME_OBJECTS = 0.98
"""Correlation of details from which two pictures show the same objects."""
_WHOLE = 0.01
"""Largest share of a side that a copy may lack and still show all objects."""


class CopyKind(SuspectKind):
    """Kinds of copies."""

    LEAK = (
        "copies in several splits",
        "A test on records that training has seen measures memory.",
        "Delete all but one of each group in the source, or give them one group with --group-column.",
    )
    OTHER_LABELS = (
        "copies with other labels",
        "Records that show the same have other labels, of which at most one is right.",
        "Correct the labels in the source.",
    )
    EXACT = (
        "exact copies in a split",
        "Records with the same stored pixels count several times.",
        "Delete all but one of each group in the source.",
    )
    NEAR = (
        "near copies in a split",
        "Records show the same in another size, brightness or turn, or a part of it, and count several times.",
        "Delete all but one of each group in the source, unless they are wanted.",
    )


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


def find_copies(reviewed: ReviewedSet) -> Iterator[Suspect]:
    """Yield a suspect for each group of copies, and another one if their labels differ.

    Records of one source, such as the tiles of a picture and the frames of a video, are no copies of each other, and
    neither are records of one patient or scene in one split. Records for prediction, in the split "unlabeled", are
    copies of each other only.
    """
    for group in copy_groups(reviewed):
        for part in _without_unlabeled(reviewed.manifest, reviewed.split_numbers, group):
            yield from _suspects_of(reviewed, part)


def copy_groups(reviewed: ReviewedSet) -> list[CopyGroup]:
    """Return the groups of copies, ordered by their first records."""
    words = reviewed.signatures
    signatures = unpack_signatures(words)
    pairs = find_pairs(signatures)
    pairs = pairs.take(~_belong_together(pairs, signatures, reviewed.split_numbers))
    planes = signatures.thumbnails.shape[1]
    return _grouped(_confirmed(reviewed, pairs, planes))


def _belong_together(
    pairs: Pairs, signatures: Signatures, split_numbers: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which pairs are of one patient or scene, and in one split."""
    groups = signatures.groups
    one_group = (groups[pairs.first] == groups[pairs.second]) & (groups[pairs.first] > 0)
    return np.asarray(one_group & (split_numbers[pairs.first] == split_numbers[pairs.second]))


def _confirmed(reviewed: ReviewedSet, pairs: Pairs, planes: int) -> Pairs:
    """Return the pairs that are certain, and those of which the pixels show it; scans and clips have no others."""
    certain = is_certain(pairs, planes)
    if planes > 1:
        return pairs.take(certain)
    doubtful = np.flatnonzero(~certain)
    if (left := len(doubtful) - MOST_COMPARED) > 0:
        reviewed.not_searched.append(
            f"{plural(left, 'pair')} of records whose signatures are less alike, because the pixels of "
            f"{MOST_COMPARED:,} pairs were compared"
        )
    doubtful = doubtful[np.argsort(-pairs.scores[doubtful], kind="stable")][:MOST_COMPARED]
    # Pairs in the order of their records read each record once or twice.
    doubtful = doubtful[np.lexsort((pairs.second[doubtful], pairs.first[doubtful]))]

    @lru_cache(maxsize=_KEPT_PICTURES)
    def picture(record: int) -> Gray | None:
        return _picture(reviewed, record)

    for at in doubtful.tolist():
        first, second = picture(int(pairs.first[at])), picture(int(pairs.second[at]))
        if first is None or second is None:
            continue
        back = np.ascontiguousarray(turned(second, turn_back(int(pairs.turns[at]))))
        certain[at] = show_the_same(first, back, pairs.rows[at], pairs.columns[at])
    return pairs.take(certain)


def _picture(reviewed: ReviewedSet, record: int) -> Gray | None:
    """Return the shown part of a stored picture for a comparison; None if it cannot be decoded."""
    features = reviewed.features(record)
    image = stored_image(features, reviewed.manifest)
    if image is None or image.ndim != 3:
        return None
    height, width = (
        integer_of(features, key) or side
        for key, side in zip((keys.UNPADDED_HEIGHT, keys.UNPADDED_WIDTH), image.shape[:2], strict=True)
    )
    return to_compared(image[:height, :width])


def _grouped(pairs: Pairs) -> list[CopyGroup]:
    """Return the connected groups of pairs."""
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


def _without_unlabeled(
    manifest: Manifest, split_numbers: NDArray[np.int64], group: CopyGroup
) -> Iterator[CopyGroup]:
    """Yield the records of a group without those that only a prediction uses, and then these by split."""
    names = list(manifest.splits)
    parts: dict[str, list[int]] = {"": []}
    for record in group.records:
        split = names[split_numbers[record]]
        is_apart = split.startswith(UNLABELED_SPLIT) and manifest.is_for_prediction(split)
        parts.setdefault(split if is_apart else "", []).append(record)
    return (replace(group, records=tuple(records)) for records in parts.values() if len(records) > 1)


def _suspects_of(reviewed: ReviewedSet, group: CopyGroup) -> Iterator[Suspect]:
    contents = {reviewed.content(record) for record in group.records}
    is_exact = len(contents) == 1 and b"" not in contents
    names = list(reviewed.manifest.splits)
    splits = Counter(names[reviewed.split_numbers[record]] for record in group.records)
    kind = CopyKind.LEAK if len(splits) > 1 else CopyKind.EXACT if is_exact else CopyKind.NEAR
    counted = ", ".join(f"{count:,} in {split}" for split, count in splits.items())
    how = "equal pixels" if is_exact else f"details correlate by {group.similarity:.2f} or more"
    how += ", a part" if group.is_part else ", turned or mirrored" if group.is_changed else ""
    places = tuple(map(reviewed.place, group.records))
    yield Suspect(kind=kind, places=places, score=float(len(places)), words=f"{counted}; {how}")
    likeness = _likeness(group, is_exact=is_exact)
    if words := differing_labels(reviewed, group.records, likeness):
        yield Suspect(
            kind=CopyKind.OTHER_LABELS, places=places, score=float(len(places)), words=f"{words}; {how}"
        )


def _likeness(group: CopyGroup, *, is_exact: bool) -> Likeness:
    """Return how far all records of a group are alike."""
    if group.is_part or group.similarity < _SAME_OBJECTS:
        return Likeness.SCENE
    return Likeness.PIXELS if is_exact and not group.is_changed else Likeness.OBJECTS
