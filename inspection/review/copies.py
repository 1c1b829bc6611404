"""Search of a data set for copies: leaks between splits, copies with other labels, exact and near copies in a split.

Signatures in the indexes show which records may be copies (`copy_search`), and the pixels decide (`copy_groups`).
`copy_labels` compares their labels. Copies of copies form a group, and each group is one suspect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.copy_labels import Likeness, differing_labels
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.suspects import Suspect, SuspectKind
from halofeed.inspection.stored_records import integer_of, stored_image
from halofeed.prep.annotations.unlabeled import UNLABELED_SPLIT
from halofeed.prep.voxels.copy_groups import (
    CopyGroup,
    doubtful_pairs,
    group_pairs,
    match_pair,
    without_unlike,
)
from halofeed.prep.voxels.copy_search import Pairs, find_pairs, is_certain
from halofeed.prep.voxels.same_pixels import Gray, to_compared
from halofeed.prep.voxels.signatures import unpack_signatures
from halofeed.schemas import keys
from halofeed.system.wording import plural

_KEPT_PICTURES = 256
"""Decoded pictures of 36 KiB that are kept for further pairs, which are in the order of their records."""
_KEPT_CONTENTS = 20_000
"""Checksums that are kept for further pairs."""
_SAME_OBJECTS = 0.98
"""Correlation of details of the thumbnails from which two pictures show the same objects."""


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


def find_copies(reviewed: ReviewedSet) -> Iterator[Suspect]:
    """Yield a suspect for each group of copies, and another one if their labels differ.

    Records of one source, such as the tiles of a picture and the frames of a video, are no copies of each other, and
    neither are records of one patient or scene in one split. Records for prediction, in the split "unlabeled", are
    copies of each other only.
    """
    for group in copy_groups(reviewed):
        for part in without_unlabeled(reviewed, group):
            yield from _suspects_of(reviewed, part)


def copy_groups(reviewed: ReviewedSet, *, within_splits: bool = True) -> list[CopyGroup]:
    """Return the groups of copies, ordered by their first records.

    Args:
        within_splits: whether the pixels of doubtful pairs in one split are compared, too.
    """
    signatures = unpack_signatures(reviewed.signatures)
    planes, splits = signatures.thumbnails.shape[1], reviewed.split_numbers
    # Indexes have no groups, which may name patients; copies of one patient in one split are listed like others.
    # The warning at the end of a conversion must not delay it: 0.2 instead of 0.5 s for 2,000 pictures.
    pairs = find_pairs(signatures, quick=not within_splits)
    if not within_splits:
        pairs = pairs.take(is_certain(pairs, planes) | (splits[pairs.first] != splits[pairs.second]))
    return group_pairs(*_confirmed(reviewed, pairs, planes))


def _confirmed(reviewed: ReviewedSet, pairs: Pairs, planes: int) -> tuple[Pairs, NDArray[np.float32]]:
    """Return the pairs that are copies, and the correlation of the details of each, float32 [pair].

    Pictures are copies if their stored images are equal or their pixels agree. A record whose image cannot be decoded
    has only its thumbnail, and so have scans and clips.
    """
    certain = is_certain(pairs, planes)
    copies, similarities = certain.copy(), pairs.scores.copy()
    compared, left = doubtful_pairs(pairs, planes, reviewed.most_compared)
    picture = lru_cache(maxsize=_KEPT_PICTURES)(lambda record: _picture(reviewed, record))
    content = lru_cache(maxsize=_KEPT_CONTENTS)(reviewed.content)
    for at in compared.tolist():
        one, other = int(pairs.first[at]), int(pairs.second[at])
        if content(one) == content(other) != b"":
            copies[at], similarities[at] = True, 1
        elif (first := picture(one)) is not None and (second := picture(other)) is not None:
            match = match_pair(pairs, at, first, second)
            copies[at], similarities[at] = match.is_same, match.details
    trusted = without_unlike(copies, certain, compared)
    left += int(np.count_nonzero(copies & ~trusted))
    if left:
        reviewed.not_searched.append(
            f"{plural(left, 'pair')} of records whose signatures are less alike, because the pixels of "
            f"{reviewed.most_compared:,} doubtful pairs were compared"
        )
    return pairs.take(trusted), similarities[trusted]


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


def without_unlabeled(reviewed: ReviewedSet, group: CopyGroup) -> Iterator[CopyGroup]:
    """Yield the records of a group without those that only a prediction uses, and then these by split."""
    manifest, split_numbers = reviewed.manifest, reviewed.split_numbers
    names = list(manifest.splits)
    parts: dict[str, list[int]] = {"": []}
    for record in group.records:
        split = names[split_numbers[record]]
        is_apart = split.startswith(UNLABELED_SPLIT) and manifest.is_for_prediction(split)
        parts.setdefault(split if is_apart else "", []).append(record)
    return (replace(group, records=tuple(records)) for records in parts.values() if len(records) > 1)


def _suspects_of(reviewed: ReviewedSet, group: CopyGroup) -> Iterator[Suspect]:
    is_exact = _is_exact(reviewed, group)
    names = list(reviewed.manifest.splits)
    splits = Counter(names[reviewed.split_numbers[record]] for record in group.records)
    kind = CopyKind.LEAK if len(splits) > 1 else CopyKind.EXACT if is_exact else CopyKind.NEAR
    counted = ", ".join(f"{count:,} in {split}" for split, count in splits.items())
    how = "equal pixels" if is_exact else f"details correlate by {group.similarity:.2f} or more"
    how += ", a part" if group.is_part else ", turned or mirrored" if group.is_changed else ""
    places = tuple(map(reviewed.place, group.records))
    yield Suspect(kind=kind, places=places, score=float(len(places)), words=f"{counted}; {how}")
    if words := differing_labels(reviewed, group.records, likeness_of(reviewed, group)):
        yield Suspect(
            kind=CopyKind.OTHER_LABELS, places=places, score=float(len(places)), words=f"{words}; {how}"
        )


def _is_exact(reviewed: ReviewedSet, group: CopyGroup) -> bool:
    """Return whether all records of a group have the same stored pixels."""
    contents = {reviewed.content(record) for record in group.records}
    return len(contents) == 1 and b"" not in contents


def likeness_of(reviewed: ReviewedSet, group: CopyGroup) -> Likeness:
    """Return how far all records of a group are alike."""
    if group.is_part or group.thumbnails < _SAME_OBJECTS:
        return Likeness.SCENE
    return Likeness.PIXELS if _is_exact(reviewed, group) and not group.is_changed else Likeness.OBJECTS
