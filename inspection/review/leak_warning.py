"""Warning at the end of a conversion: copies in several splits, and copies with other labels.

It searches the indexes as `halofeed review` does, but spends less: see `MOST_RECORDS`, `_MOST_COMPARED` and
`_MOST_LABELED`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from halofeed.inspection.review.copies import copy_groups, likeness_of, without_unlabeled
from halofeed.inspection.review.copy_labels import Likeness, differing_labels
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.prep.voxels.copy_groups import CopyGroup
from halofeed.system.wording import plural

MOST_RECORDS = 200_000
"""Records up to which a conversion searches: 14 s of processor time and 350 MiB for so many pictures."""
_MOST_COMPARED = 200
"""Pairs in several splits whose pixels are compared: 2 s."""
_MOST_LABELED = 200
"""Groups whose labels are compared."""
_NAMED = 2
"""Files that a warning names."""


def copy_warnings(folder: str) -> list[str]:
    """Return sentences about copies in several splits and copies with other labels in a data set.

    Args:
        folder: folder or address of the data set's version.

    Raises:
        HalofeedError, OSError: the data set cannot be read.
    """
    reviewed = ReviewedSet(folder, most_compared=_MOST_COMPARED)
    if len(reviewed) < 2:
        return []
    lists = f"`halofeed review {folder}` lists them"
    if len(reviewed) > MOST_RECORDS:
        return [
            f"copies in several splits were not searched, because there are more than {MOST_RECORDS:,} records; "
            f"{lists}"
        ]
    groups = [
        part
        for group in copy_groups(reviewed, within_splits=False)
        for part in without_unlabeled(reviewed, group)
    ]
    found = _with_other_labels(reviewed, groups[:_MOST_LABELED])
    least = "at least " if len(groups) > _MOST_LABELED else ""
    differing = [group for group, _ in found]
    return [
        *_leaks(reviewed, groups, differing, lists),
        *(_other_labels(reviewed, found, least, lists) if found else ()),
    ]


def _leaks(
    reviewed: ReviewedSet, groups: Sequence[CopyGroup], differing: Sequence[CopyGroup], lists: str
) -> Iterator[str]:
    numbers = reviewed.split_numbers
    leaks = [group for group in groups if len(np.unique(numbers[list(group.records)])) > 1]
    if not leaks:
        return
    first = leaks[0].records
    other = next(record for record in first if numbers[record] != numbers[first[0]])
    named = " and ".join(str(reviewed.place(record)) for record in (first[0], other))
    repair = _repair(reviewed, has_other_labels=any(group in differing for group in leaks))
    yield (
        f"{plural(len(leaks), 'group')} of copies {'is' if len(leaks) == 1 else 'are'} in several splits, such as "
        f"{named}, so a test measures memory; {lists}{repair}"
    )


def _with_other_labels(reviewed: ReviewedSet, groups: Sequence[CopyGroup]) -> list[tuple[CopyGroup, str]]:
    """Return the groups whose labels differ, and how they do."""
    found: list[tuple[CopyGroup, str]] = []
    for group in groups:
        likeness = likeness_of(reviewed, group)
        # Whether copies have their boxes at other places is left to the review, which may read more.
        likeness = Likeness.OBJECTS if likeness is Likeness.PIXELS else likeness
        if words := differing_labels(reviewed, group.records, likeness):
            found.append((group, words))
    return found


def _other_labels(
    reviewed: ReviewedSet, found: Sequence[tuple[CopyGroup, str]], least: str, lists: str
) -> Iterator[str]:
    group, words = found[0]
    named = " and ".join(str(reviewed.place(record)) for record in group.records[:_NAMED])
    has = "has" if len(found) == 1 else "have"
    yield f"{least}{plural(len(found), 'group')} of copies {has} labels that differ, such as {named}: {words}; {lists}"


def _repair(reviewed: ReviewedSet, *, has_other_labels: bool) -> str:
    """Return the options that repair leaks; "" where the conversion already had one of them.

    Args:
        has_other_labels: whether labels of copies differ, which `drop` keeps.
    """
    recipe = reviewed.manifest.recipe
    if recipe.get("duplicates", "report") != "report":
        return ""
    if recipe.get("split_shares") or recipe.get("folds"):
        return "; the same command with --duplicates group --overwrite keeps copies in one split"
    if has_other_labels:
        return (
            "; the same command with --duplicates drop-conflicts --overwrite converts one of each, and none where "
            "labels differ"
        )
    return "; the same command with --duplicates drop --overwrite converts one of each, the one in test before others"
