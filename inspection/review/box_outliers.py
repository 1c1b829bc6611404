"""Faults among boxes: rare sizes, shapes and places for their class, and boxes that coincide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.robust import LARGEST_SHARE, Limits, unusual
from halofeed.inspection.review.suspects import Suspect, SuspectKind
from halofeed.inspection.stored_records import array_of, extent_of, integer_of
from halofeed.schemas import keys
from halofeed.schemas.tasks import task_named
from halofeed.schemas.tfexample import Decoded

_COINCIDE: Final = 0.9
"""Intersection over union from which two boxes are of one object; annotators of one object differ by more."""
_LEAST_SIDE: Final = 4
"""Stored pixels of the shorter side below which rounding to pixels changes the intersection over union by 0.1."""
_WHOLE: Final = 0.95
"""Share of the picture along each side from which a box is the whole picture."""
_WHOLE_PICTURES: Final = 0.05
"""Share of the pictures with such a box above which it is usual."""
_EDGE: Final = 0.004
"""Distance from the picture's edge, as a fraction of a side, within which a box is cut by it: 2 of 512 pixels."""
_USUAL_SHARE: Final = 0.1
"""Share of the boxes of a class above which coincidence is usual, as where classes are a tree."""
_FEW: Final = 5
_PAIRS: Final = 1 << 22
"""Pairs of boxes that are compared at once."""


class BoxKind(SuspectKind):
    """Kinds of faulty boxes."""

    # fmt: off
    TWO_CLASSES = ("box of two classes", "Boxes of different classes coincide, so one of the classes is likely wrong.",
        "Remove the box with the wrong class.")
    TWICE = ("duplicate box", "Two boxes of one class coincide, so the object counts twice.",
        "Remove one of the boxes.")
    WHOLE_PICTURE = ("box of the whole picture", "It covers nearly the whole picture, which is rare for its class.",
        "Look whether the box was drawn or is a default of a program.")
    SIZE = ("rare size of a box", "It is far smaller or larger than the other boxes of its class.",
        "Look whether its class and its corners are right.")
    SHAPE = ("rare shape of a box", "It is far longer or narrower than the other boxes of its class.",
        "Look whether its class and its corners are right.")
    PLACE = ("rare place of a box", "The other boxes of its class are in another part of the picture.",
        "Look whether its class is right, and whether the picture is turned or mirrored.")
    # fmt: on


@dataclass(frozen=True, kw_only=True, eq=False)
class AllBoxes:
    """Boxes of all records, without crowds.

    Args:
        records: record of each box, int64 [box].
        classes: class id of each box, int64 [box].
        boxes: the low corners and then the high ones, float64 [box, 2 * axis], as fractions of the stored image.
        shown: part of each box's stored image without padding, float64 [box, 2 * axis], in the same unit.
        least_sides: fractions of the stored image that are `_LEAST_SIDE` pixels, float64 [box, axis].
    """

    records: NDArray[np.int64]
    classes: NDArray[np.int64]
    boxes: NDArray[np.float64]
    shown: NDArray[np.float64]
    least_sides: NDArray[np.float64]

    @classmethod
    def read(cls, reviewed: ReviewedSet) -> AllBoxes:
        """Read the boxes of all records."""
        is_solid = "depth" in reviewed.manifest.kind.axes
        corner_keys = keys.SOLID_CORNERS if is_solid else keys.BOX_CORNERS
        names = frozenset((*corner_keys, *_SIZES, keys.OBJECT_CLASS_LABEL, keys.OBJECT_IS_CROWD))
        axes = len(corner_keys) // 2
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in cls.__dataclass_fields__}
        for record in range(len(reviewed)):
            features = reviewed.small_features(record, names)
            boxes, classes = _boxes_of(features, corner_keys)
            if not len(boxes):
                continue
            shown, least = _shown(features, is_solid=is_solid)
            parts["records"].append(np.full(len(boxes), record))
            parts["classes"].append(classes)
            parts["boxes"].append(boxes)
            parts["shown"].append(np.broadcast_to(shown, boxes.shape))
            parts["least_sides"].append(np.broadcast_to(least, (len(boxes), axes)))
        widths = {"boxes": 2 * axes, "shown": 2 * axes, "least_sides": axes}
        empty = {name: np.empty((0, widths[name]) if name in widths else 0) for name in parts}
        joined = {name: np.concatenate([empty[name], *found]) for name, found in parts.items()}
        for name in ("records", "classes"):
            joined[name] = joined[name].astype(np.int64)
        return cls(**joined)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def axes(self) -> int:
        """Number of axes: 2, or 3 in volumes."""
        return int(self.boxes.shape[1]) // 2

    @cached_property
    def placed(self) -> NDArray[np.float64]:
        """Return the corners as fractions of the part without padding, float64 [box, 2 * axis]."""
        low = np.tile(self.shown[:, : self.axes], 2)
        sides = np.tile(self.shown[:, self.axes :], 2) - low
        return np.asarray((self.boxes - low) / sides)

    @cached_property
    def sides(self) -> NDArray[np.float64]:
        """Return the sides as fractions of the part without padding, float64 [box, axis]."""
        return np.asarray(self.placed[:, self.axes :] - self.placed[:, : self.axes])

    @cached_property
    def is_cut(self) -> NDArray[np.bool_]:
        """Return whether each box touches the edge, where the object may go on; bool [box]."""
        return np.asarray(((self.placed < _EDGE) | (self.placed > 1 - _EDGE)).any(1))

    @cached_property
    def is_whole(self) -> NDArray[np.bool_]:
        """Return whether each box is nearly the whole picture, bool [box]."""
        return np.asarray((self.sides >= _WHOLE).all(1))

    @cached_property
    def of_class(self) -> dict[int, NDArray[np.int64]]:
        """Return the rows of the boxes of each class."""
        return {int(one): np.flatnonzero(self.classes == one) for one in np.unique(self.classes)}


_SIZES: Final = (
    *(keys.DEPTH, keys.HEIGHT, keys.WIDTH, keys.UNPADDED_HEIGHT, keys.UNPADDED_WIDTH, keys.EXTENT),
)


def _boxes_of(
    features: Decoded, corner_keys: tuple[str, ...]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the boxes of a record and their classes, without crowds and boxes of no area."""
    columns = [array_of(features, key) for key in corner_keys]
    classes = array_of(features, keys.OBJECT_CLASS_LABEL, "i")
    crowd = array_of(features, keys.OBJECT_IS_CROWD, "i")
    lists = (*columns, classes, crowd)
    # A record without boxes lacks the lists; `halofeed verify` reports lists of different lengths.
    if any(one is None for one in lists) or len({len(one) for one in lists if one is not None}) != 1:
        return np.empty((0, len(corner_keys))), np.empty(0, np.int64)
    assert classes is not None and crowd is not None
    boxes = np.stack([one for one in columns if one is not None], 1).astype(np.float64)
    axes = len(corner_keys) // 2
    kept = (crowd == 0) & (boxes[:, axes:] > boxes[:, :axes]).all(1)
    return boxes[kept], classes[kept]


def _shown(features: Decoded, *, is_solid: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the part of a record without padding, [2 * axis], and `_LEAST_SIDE` pixels, [axis], as fractions."""
    names = (keys.DEPTH, *keys.SIDES) if is_solid else keys.SIDES
    stored = np.array([integer_of(features, name) or 1 for name in names], np.float64)
    if is_solid:
        extent = extent_of(features)
        ends = np.stack([np.zeros(3), stored]) if extent is None else extent
    else:
        shown = [
            integer_of(features, name) or side for name, side in zip(keys.UNPADDED_SIDES, stored, strict=True)
        ]
        ends = np.array([[0, 0], shown])
    return np.concatenate(ends / stored), _LEAST_SIDE / stored


def box_outliers(reviewed: ReviewedSet) -> Iterator[Suspect]:
    """Yield boxes that coincide, and boxes that are rare for their class."""
    if not task_named(reviewed.manifest.task).has_boxes:
        return
    found = AllBoxes.read(reviewed)
    yield from _coincident(reviewed, found)
    yield from _whole(reviewed, found)
    yield from _rare(reviewed, found)


def _suspect(
    reviewed: ReviewedSet, found: AllBoxes, kind: BoxKind, box: int, score: float, words: str
) -> Suspect:
    corners = found.boxes[box]
    if found.axes == 2:
        where: dict[str, Any] = {"box": tuple(corners.tolist())}
    else:
        record = int(found.records[box])
        depth = integer_of(reviewed.small_features(record, frozenset({keys.DEPTH})), keys.DEPTH) or 1
        where = {
            "box": tuple(corners[[1, 2, 4, 5]].tolist()),
            "depth": min(depth - 1, int((corners[0] + corners[3]) / 2 * depth)),
        }
    place = reviewed.place(int(found.records[box]))
    return Suspect(kind=kind, places=(place,), score=score, words=words, **where)


def _name(reviewed: ReviewedSet, identity: int) -> str:
    return repr(reviewed.manifest.labels.get(identity, str(identity)))


# Coincident boxes ------------------------------------------------------------------------------------------------


def _coincident(reviewed: ReviewedSet, found: AllBoxes) -> Iterator[Suspect]:
    """Yield boxes that are nearly the same as another one of their record, unless that is usual for their classes."""
    pairs = list(_pairs(found))
    classes = [tuple(sorted((int(found.classes[one]), int(found.classes[other])))) for one, other, _ in pairs]
    counts = Counter(classes)
    for (one, other, overlap), both in zip(pairs, classes, strict=True):
        fewest = min(len(found.of_class[identity]) for identity in both)
        if counts[both] > max(_FEW, _USUAL_SHARE * fewest):
            continue
        first, second = (_name(reviewed, int(found.classes[box])) for box in (one, other))
        kind = BoxKind.TWICE if first == second else BoxKind.TWO_CLASSES
        named = f"two boxes of {first}" if first == second else f"boxes of {first} and {second}"
        yield _suspect(reviewed, found, kind, one, overlap, f"{named} overlap by {overlap:.0%}")


def _pairs(found: AllBoxes) -> Iterator[tuple[int, int, float]]:
    """Yield the rows of two boxes of one record that coincide, and their intersection over union."""
    starts = np.flatnonzero(np.diff(found.records, prepend=-1))
    for start, stop in pairwise([*starts.tolist(), len(found)]):
        step = max(1, _PAIRS // (stop - start))
        for first in range(start, stop - 1, step):
            rows = slice(first, min(first + step, stop))
            overlaps = intersection_over_union(found.boxes[rows], found.boxes[start:stop])
            sides = found.boxes[rows, found.axes :] - found.boxes[rows, : found.axes]
            large = np.asarray((sides >= found.least_sides[rows]).all(1))
            for one, other in np.argwhere((overlaps >= _COINCIDE) & large[:, None]).tolist():
                if first + one < start + other:
                    yield first + one, start + other, float(overlaps[one, other])


def intersection_over_union(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the intersection over union of each box with each other one, float64 [first, second].

    Args:
        first, second: [box, 2 * axis], the low corners and then the high ones.

    >>> intersection_over_union(np.array([[0, 0, 2, 2.0]]), np.array([[0, 0, 2, 2.0], [0, 0, 1, 2], [3, 3, 4, 4]]))
    array([[1. , 0.5, 0. ]])
    """
    axes = first.shape[1] // 2
    low = np.maximum(first[:, None, :axes], second[None, :, :axes])
    high = np.minimum(first[:, None, axes:], second[None, :, axes:])
    both = np.clip(high - low, 0, None).prod(2)
    areas = [(boxes[:, axes:] - boxes[:, :axes]).prod(1) for boxes in (first, second)]
    return np.asarray(both / (areas[0][:, None] + areas[1][None] - both))


# Rare boxes ------------------------------------------------------------------------------------------------------


def _whole(reviewed: ReviewedSet, found: AllBoxes) -> Iterator[Suspect]:
    """Yield boxes of nearly the whole picture, where these are rare for their class."""
    whole = found.is_whole
    # Close-ups are usual in some sets: 3 of 53 pictures of COCO.
    pictures, having = (len(np.unique(found.records[rows])) for rows in (slice(None), whole))
    if having > max(1, _WHOLE_PICTURES * pictures):
        return
    for identity, rows in found.of_class.items():
        # A class of few boxes says nothing.
        if len(rows) >= _FEWEST and np.count_nonzero(whole[rows]) > LARGEST_SHARE * len(rows):
            continue
        for box in rows[whole[rows]].tolist():
            share = float(found.sides[box].prod())
            words = f"a box of {_name(reviewed, identity)} covers {share:.0%} of the picture"
            yield _suspect(reviewed, found, BoxKind.WHOLE_PICTURE, box, share, words)


def _rare(reviewed: ReviewedSet, found: AllBoxes) -> Iterator[Suspect]:
    """Yield boxes whose size, shape or place is unusual among those of their class."""
    whole = found.is_whole
    with np.errstate(divide="ignore"):
        sizes = np.log(found.sides).mean(1)
    for identity, rows in found.of_class.items():
        named, rows = f"a box of {_name(reviewed, identity)}", rows[~whole[rows]]
        if not len(rows):
            continue
        usual = np.exp(np.median(sizes[rows]))
        scores = unusual(sizes[rows], _SIZE_LIMITS)
        # What the edge cuts looks small.
        for at in np.flatnonzero((scores > 1) | ((scores < -1) & ~found.is_cut[rows])).tolist():
            words = (
                f"{named} with a mean side of {np.exp(sizes[rows[at]]):.1%} of the picture, usual {usual:.1%}"
            )
            yield _suspect(reviewed, found, BoxKind.SIZE, int(rows[at]), abs(float(scores[at])), words)
        yield from _rare_shapes(reviewed, found, named, rows[~found.is_cut[rows]])
        yield from _rare_places(reviewed, found, named, rows)


_FEWEST: Final = 30
"""Boxes of a class below which none is rare; 53 COCO pictures with 20 to 29 boxes of a class had two false alarms."""
_SIZE_LIMITS: Final = Limits(least=np.log(2), fewest=_FEWEST)
_SHAPE_LIMITS: Final = Limits(least=np.log(2), fewest=_FEWEST)
_PLACE_LIMITS: Final = Limits(least=0.2, fewest=_FEWEST)


def _rare_shapes(
    reviewed: ReviewedSet, found: AllBoxes, named: str, rows: NDArray[np.int64]
) -> Iterator[Suspect]:
    if not len(rows):
        return
    # In pixels of the record: the height along the last axis but one, the width along the last.
    pixels = (found.boxes[rows, found.axes :] - found.boxes[rows, : found.axes]) / found.least_sides[rows]
    ratios = np.log(pixels[:, -2]) - np.log(pixels[:, -1])
    scores = unusual(ratios, _SHAPE_LIMITS)
    usual = np.exp(np.median(ratios))
    for at in np.flatnonzero(np.abs(scores) > 1).tolist():
        words = f"{named} that is {np.exp(ratios[at]):.2f} times as high as wide, usual {usual:.2f} times"
        yield _suspect(reviewed, found, BoxKind.SHAPE, int(rows[at]), abs(float(scores[at])), words)


def _rare_places(
    reviewed: ReviewedSet, found: AllBoxes, named: str, rows: NDArray[np.int64]
) -> Iterator[Suspect]:
    centers = (found.placed[rows, : found.axes] + found.placed[rows, found.axes :]) / 2
    scores = np.stack([unusual(centers[:, axis], _PLACE_LIMITS) for axis in range(found.axes)], 1)
    usual = np.median(centers, 0)
    for at in np.flatnonzero((np.abs(scores) > 1).any(1)).tolist():
        where, often = (" x ".join(f"{side:.0%}" for side in point) for point in (centers[at], usual))
        words = f"{named} at {where} of the picture from its first row and column, usual {often}"
        score = float(np.abs(scores[at]).max())
        yield _suspect(reviewed, found, BoxKind.PLACE, int(rows[at]), score, words)
