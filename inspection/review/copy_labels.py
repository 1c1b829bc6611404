"""Comparison of the labels of copies, as far as the copies are alike.

the same scene              classes of the records
all of the same objects     and numbers of boxes by class, areas of classes
the same stored pixels      and corners of boxes, pixels of masks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.box_outliers import intersection_over_union
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.stored_records import (
    array_of,
    class_channels,
    class_counts,
    integer_of,
    label_map,
)
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded

_OTHER_SHARE: Final = 0.02
"""Share of a picture that another class covers, from which two label images differ."""
_SAME_PLACE: Final = 0.7
"""Intersection over union below which two boxes, or the pixels of a class, are in other places. Two annotators of one
object share more than 0.7, but not every pixel at its edge."""


class Likeness(IntEnum):
    """Degree to which copies are alike, which decides how far their labels must be."""

    SCENE = 0
    OBJECTS = 1
    PIXELS = 2


def differing_labels(reviewed: ReviewedSet, records: Sequence[int], likeness: Likeness) -> str:
    """Return how the labels of copies differ, in words; "" where they do not.

    Args:
        records: numbers of the copies; those without a label are not compared.
        likeness: how far all of them are alike.
    """
    kinds = {record: _kind_of(reviewed, record) for record in records}
    labeled = [record for record, kind in kinds.items() if kind]
    found = {kinds[record] for record in labeled}
    if len(labeled) < 2 or len(found) != 1:
        return ""
    kind = found.pop()
    if kind == "class":
        return _other_counts(reviewed, labeled, keys.CLASS_TEXT, keys.CLASS_LABEL)
    # Two pictures of one scene, a step apart, show other objects at their edges.
    if likeness is Likeness.SCENE:
        return ""
    if kind == "objects":
        words = _other_counts(reviewed, labeled, keys.OBJECT_CLASS_TEXT, keys.OBJECT_CLASS_LABEL)
        return words or (_other_corners(reviewed, labeled) if likeness is Likeness.PIXELS else "")
    return (
        _other_pixels(reviewed, labeled) if likeness is Likeness.PIXELS else _other_areas(reviewed, labeled)
    )


_KINDS: Final = {
    keys.CLASS_LABEL: "class",
    keys.CLASS_TEXT: "class",
    keys.OBJECT_CLASS_LABEL: "objects",
    keys.OBJECT_CLASS_TEXT: "objects",
}


def _kind_of(reviewed: ReviewedSet, record: int) -> str:
    """Return the kind of a record's label; "" without one."""
    features = reviewed.small_features(record, frozenset({*_KINDS, keys.LABELLED}))
    return next(
        (kind for key, kind in _KINDS.items() if key in features),
        "area" if integer_of(features, keys.LABELLED) else "",
    )


def _name(manifest: Manifest, identity: int) -> str:
    return manifest.labels.get(identity, str(identity))


# Classes and boxes -----------------------------------------------------------------------------------------------


def _other_counts(reviewed: ReviewedSet, records: Sequence[int], text: str, number: str) -> str:
    """Return the counted classes of the records or of their objects, if they differ."""
    counted = Counter(
        _in_words(
            Counter(
                _names(reviewed.small_features(record, frozenset({text, number})), text, number, reviewed)
            ),
            "no class" if number == keys.CLASS_LABEL else "no object",
        )
        for record in records
    )
    if len(counted) == 1:
        return ""
    return " and ".join(f"{words} in {count:,}" for words, count in counted.most_common(4))


def _names(features: Decoded, text: str, number: str, reviewed: ReviewedSet) -> list[str]:
    """Return the class name of each object."""
    if names := features.get(text, ()):
        return [str(name, "utf-8", "replace") for name in names]
    return [_name(reviewed.manifest, int(identity)) for identity in features.get(number, ())]


def _in_words(content: Mapping[str, int], nothing: str) -> str:
    listed = [name if count == 1 else f"{count:,} {name}" for name, count in sorted(content.items())]
    return " + ".join(listed) or nothing


def _other_corners(reviewed: ReviewedSet, records: Sequence[int]) -> str:
    """Return which box of a record has no box of its class at its place in the next record."""
    is_solid = "depth" in reviewed.manifest.kind.axes
    corner_keys = keys.SOLID_CORNERS if is_solid else keys.BOX_CORNERS
    boxes = (_boxes_by_class(reviewed, record, corner_keys) for record in records)
    for first, second in pairwise(boxes):
        for identity in first.keys() & second.keys():
            one, other = first[identity], second[identity]
            with np.errstate(invalid="ignore"):  # boxes without an area
                overlaps = np.nan_to_num(intersection_over_union(one, other))
            overlaps[(one[:, None] == other[None]).all(2)] = 1
            least = min(overlaps.max(1).min(), overlaps.max(0).min())
            if least < _SAME_PLACE:
                named = _name(reviewed.manifest, identity)
                return f"a box of {named!r} overlaps those of another one by {least:.0%} at most"
    return ""


def _boxes_by_class(
    reviewed: ReviewedSet, record: int, corner_keys: Sequence[str]
) -> dict[int, NDArray[np.float64]]:
    """Return the corners of the boxes of each class, float64 [box, 2 * axis]."""
    features = reviewed.small_features(record, frozenset({*corner_keys, keys.OBJECT_CLASS_LABEL}))
    classes = array_of(features, keys.OBJECT_CLASS_LABEL, "i")
    columns = [one for key in corner_keys if (one := array_of(features, key)) is not None]
    # `halofeed verify` reports lists of different lengths.
    if classes is None or [len(one) for one in columns] != [len(classes)] * len(corner_keys):
        return {}
    corners = np.stack(columns, 1).astype(np.float64)
    return {int(identity): corners[classes == identity] for identity in np.unique(classes)}


# Label images ----------------------------------------------------------------------------------------------------


def _labels(reviewed: ReviewedSet, records: Sequence[int]) -> Iterator[NDArray[Any]]:
    # Label maps of equal bytes are equal, and reading those of a scan of 512 x 512 x 200 takes half a second.
    contents = {reviewed.label_content(record) or record: record for record in records}
    for record in sorted(contents.values()):
        if (label := label_map(reviewed.features(record), reviewed.manifest)) is not None:
            yield label


def _other_areas(reviewed: ReviewedSet, records: Sequence[int]) -> str:
    """Return the class whose share of the picture differs most, if it does."""
    manifest = reviewed.manifest
    shares: list[dict[int, float]] = []
    for label in _labels(reviewed, records):
        counts = class_counts(label, manifest).voxels
        shares.append({identity: count / label.size for identity, count in counts.items() if identity})
    classes = sorted({identity for one in shares for identity in one})
    spread = {identity: np.ptp([one.get(identity, 0.0) for one in shares]) for identity in classes}
    worst = max(spread, key=lambda one: spread[one], default=0)
    if not worst or spread[worst] <= _OTHER_SHARE:
        return ""
    return f"class {_name(manifest, worst)!r} covers {spread[worst]:.0%} more in one of them"


def _other_pixels(reviewed: ReviewedSet, records: Sequence[int]) -> str:
    """Return a class whose pixels are elsewhere in the next record."""
    for first, second in pairwise(_labels(reviewed, records)):
        # Only a damaged or foreign data set has labels of several shapes.
        if first.shape != second.shape or np.array_equal(first, second):
            continue
        if words := _other_place(first, second, reviewed.manifest):
            return words
    return ""


def _other_place(first: NDArray[Any], second: NDArray[Any], manifest: Manifest) -> str:
    channels, ignore = class_channels(manifest), manifest.ignore_label
    known = np.ones(first.shape, bool) if ignore is None else (first != ignore) & (second != ignore)
    for identity in channels or manifest.labels:
        if not identity:  # the background
            continue
        one, other = (_pixels_of(label, identity, channels) & known for label in (first, second))
        either = np.count_nonzero(one | other)
        differ = np.count_nonzero(one ^ other)
        if differ > min(_OTHER_SHARE * first.size, (1 - _SAME_PLACE) * either):
            named = f"class {_name(manifest, identity)!r}"
            return f"{differ / either:.0%} of the pixels of {named} have it in one of them only"
    return ""


def _pixels_of(label: NDArray[Any], identity: int, channels: Sequence[int]) -> NDArray[np.bool_]:
    if channels:
        return np.asarray((label >> channels.index(identity) & 1).astype(bool))
    return np.asarray(label == identity)
