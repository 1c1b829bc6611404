"""Likely faults of boxes: what a run predicts with confidence, beside what is labeled.

Measures of a labeled box, where `support` of a class is the largest confidence times IoU of its predictions there:

    wrong class     support of the other class with most, less that of its class
    extra box       lack of support by any class, among boxes of its class
    misplaced box   confidence of a prediction of its class whose IoU with it is 0.1 to 0.5, less its support

and of a prediction: confidence of one that has an IoU below 0.5 with all labeled boxes (a missing box). Confidences are
relative to the usual score of the class, as a class that is hard to find has low scores.

The kinds are those of ObjectLab (Tkachenko et al. 2023: swapped, overlooked, badly located), and the extra box.
ObjectLab adds its scores with fixed weights; here `evidence` makes them comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.evidence import CLEAR, MOVED, evidence
from halofeed.inspection.review.suspects import SuspectKind

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]
MATCHED: Final = 0.5
"""Smallest IoU of two boxes of one object, as in Pascal VOC's metric."""
_TOUCHING: Final = 0.1
"""Smallest IoU at which a prediction may be of the object whose box is misplaced."""
_PRIOR: Final = 5
"""Boxes of the usual score of all classes that each class gets: with one box, its own score says little."""
_OWN_BOXES: Final = 50
"""Fewest boxes of a class that are compared among themselves, as evidence above 0.95 needs 20 of one measure."""
LEAST_SCORE: Final = 0.01
"""Smallest score of a prediction that is kept: most of a detector's 100 boxes of a picture are near 0."""


class BoxFault(SuspectKind):
    """Kinds of likely faults of boxes."""

    # fmt: off
    WRONG_CLASS = ("likely wrong class of a box", "The run sees another class where the box is.",
        "Correct the class in the annotation.")
    MISSING = ("likely missing box", "The run sees an object with confidence where no box is.",
        "Add the box to the annotation.")
    EXTRA = ("likely extra box", "The run sees no object where the box is.",
        "Remove the box from the annotation, or correct it.")
    MISPLACED = ("likely misplaced box", "The run sees the object with confidence beside the box.",
        "Correct the box in the annotation.")
    # fmt: on


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxRecord:
    """Labeled and predicted boxes of a record; boxes are ymin, xmin, ymax, xmax as shares of the picture.

    Args:
        number: number of the record.
        boxes: labeled boxes, float64 [label, 4].
        classes: their classes, int64 [label].
        predicted: predicted boxes, float64 [prediction, 4].
        predicted_classes: their classes, int64 [prediction].
        scores: their scores or confidences, float64 [prediction].
        unlabeled: areas of crowds and ignored regions, where nothing is missing, float64 [area, 4].
    """

    number: int
    boxes: Float64Array
    classes: Int64Array
    predicted: Float64Array
    predicted_classes: Int64Array
    scores: Float64Array
    unlabeled: Float64Array


@dataclass(frozen=True, kw_only=True)
class FaultyBox:
    """A likely fault of a box.

    Args:
        record: number of the record.
        kind: kind of the fault.
        score: evidence from 0 to 1, comparable between kinds.
        box: the labeled box, or the predicted one that is missing.
        label: its class as labeled; None if it is missing.
        seen: class that the run sees; None if it sees none.
        seen_score: score of that prediction, 0 if there is none.
    """

    record: int
    kind: BoxFault
    score: float
    box: tuple[float, float, float, float]
    label: int | None
    seen: int | None
    seen_score: float


def ious(one: Float64Array, other: Float64Array) -> Float64Array:
    """Return the intersection over union of boxes [n, 4] and [m, 4], [n, m]; 0 for boxes without an area."""
    shared = _shared_areas(one, other)
    union = _areas(one)[:, None] + _areas(other)[None] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


def _areas(boxes: Float64Array) -> Float64Array:
    return np.asarray(np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), 1))


def _shared_areas(one: Float64Array, other: Float64Array) -> Float64Array:
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    return np.asarray(np.prod(np.maximum(high - low, 0), -1))


def box_faults(records: Sequence[BoxRecord], random: np.random.Generator) -> list[FaultyBox]:
    """Return the most likely fault of each labeled box, and each prediction that may be a missing box, best first.

    Args:
        records: all records that are compared with each other, with the scores of the run.
        random: generator of the planted faults.
    """
    labels = sum(len(one.boxes) for one in records)
    if not labels:
        return []
    usual = _usual_scores(records)
    views = [_View.of(_with_confidences(one, usual)) for one in records]
    classes = np.unique(np.concatenate([one.classes for one in records]))
    found = {
        kind: evidence(np.concatenate(given), np.concatenate(planted), labels)
        for kind, (given, planted) in _label_measures(views, classes, random).items()
        # A set of one class has no wrong ones.
        if kind is not BoxFault.WRONG_CLASS or len(classes) > 1
    }
    found[BoxFault.EXTRA] = _extra_evidence(views, classes)
    missing = [view.missing() for view in views]
    of_missing = evidence(
        np.concatenate([view.record.scores[rows] for view, rows in zip(views, missing, strict=True)]),
        np.concatenate([view.found() for view in views]),
        labels,
    )
    faults = _label_faults(records, views, found) + _missing_faults(records, missing, of_missing)
    return sorted(_without_partners(faults), key=lambda fault: -fault.score)


def _label_measures(
    views: Sequence[_View], classes: Int64Array, random: np.random.Generator
) -> dict[BoxFault, tuple[list[Float64Array], list[Float64Array]]]:
    """Return each measure of labeled boxes as given, and of boxes with a planted fault of the kind, by record."""
    return {
        BoxFault.WRONG_CLASS: (
            [view.class_margins(view.record.classes) for view in views],
            [view.class_margins(_other_classes(view.record.classes, classes, random)) for view in views],
        ),
        BoxFault.MISPLACED: (
            [view.displacements(view.record.boxes) for view in views],
            [view.displacements(_moved(view.record.boxes, random)) for view in views],
        ),
    }


def _extra_evidence(views: Sequence[_View], classes: Int64Array) -> Float64Array:
    """Return the evidence that each labeled box is an extra one, among boxes of its class.

    A run may have learned one class and not another, of which it then supports no box. Compared with the boxes of all
    classes, each box of such a class would look like a planted one. Classes of few boxes are compared together.
    """
    owners = np.concatenate([view.record.classes for view in views])
    measured = np.concatenate([-view.support() for view in views])
    by_record, classes_by_record = _planted_extras([view.record for view in views])
    planted, planted_classes = np.concatenate(by_record), np.concatenate(classes_by_record)
    counts = {int(label): int((owners == label).sum()) for label in classes}
    few = [label for label, count in counts.items() if count < _OWN_BOXES]
    groups = [*([label] for label in counts if label not in few), *([few] if few else [])]
    found = np.zeros(len(owners))
    for group in groups:
        rows = np.isin(owners, group)
        found[rows] = evidence(measured[rows], planted[np.isin(planted_classes, group)], int(rows.sum()))
    return found


# Confidence ----------------------------------------------------------------------------------------------


def _usual_scores(records: Sequence[BoxRecord]) -> dict[int, float]:
    """Return the mean score with which labeled boxes of each class are found, as confident learning's thresholds.

    Source: Northcutt et al. 2021, Confident Learning, section 3.1.
    """
    found: dict[int, list[float]] = {}
    for one in records:
        fits = (ious(one.boxes, one.predicted) >= MATCHED) & _same_class(one, one.classes)
        best = np.max(np.where(fits, one.scores[None], 0), axis=1, initial=0)
        for label, score in zip(one.classes.tolist(), best.tolist(), strict=True):
            found.setdefault(label, []).append(score)
    overall = float(np.mean([score for scores in found.values() for score in scores]))
    usual = {
        label: (sum(scores) + _PRIOR * overall) / (len(scores) + _PRIOR) for label, scores in found.items()
    }
    # Of a class that is not labeled here, nothing else is known.
    usual[-1] = overall
    return usual


def _same_class(one: BoxRecord, classes: Int64Array) -> NDArray[np.bool_]:
    return np.asarray(classes[:, None] == one.predicted_classes[None])


def _with_confidences(one: BoxRecord, usual: dict[int, float]) -> BoxRecord:
    """Replace scores by confidences from 0 to 1: 0.5 is the usual score of the class."""
    thresholds = np.array([usual.get(label, usual[-1]) for label in one.predicted_classes.tolist()])
    total = one.scores + thresholds
    confidences = np.divide(one.scores, total, out=np.zeros(len(one.scores)), where=total > 0)
    return replace(one, scores=confidences)


# Measures ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _View:
    """A record with confidences, and the overlaps of labeled and predicted boxes, [label, prediction]."""

    record: BoxRecord
    overlaps: Float64Array

    @staticmethod
    def of(record: BoxRecord) -> _View:
        return _View(record=record, overlaps=ious(record.boxes, record.predicted))

    def support(self) -> Float64Array:
        """Return the support of each box by any class."""
        return np.asarray(np.max(self.record.scores * self.overlaps, axis=1, initial=0))

    def class_margins(self, classes: Int64Array) -> Float64Array:
        """Return the support of other classes less that of the given ones, by box."""
        support, same = self.record.scores * self.overlaps, _same_class(self.record, classes)
        others = np.max(np.where(same, 0, support), axis=1, initial=0)
        return np.asarray(others - np.max(np.where(same, support, 0), axis=1, initial=0))

    def displacements(self, boxes: Float64Array) -> Float64Array:
        """Return the confidence of a prediction beside each box, less its support, if it stood at the given place."""
        one = self.record
        own = ious(boxes, one.predicted) * _same_class(one, one.classes)
        at_others = _largest_of_others(self.overlaps)
        beside = (own >= _TOUCHING) & (own < MATCHED) & (own > at_others)
        best = np.max(np.where(beside, one.scores, 0), axis=1, initial=0)
        return np.asarray(best - np.max(own * one.scores, axis=1, initial=0))

    def found(self) -> Float64Array:
        """Return the confidence of the prediction that fits each box best: a missing box, if the label lacked it."""
        fits = np.where(self.overlaps >= MATCHED, self.record.scores, 0)
        return np.asarray(np.max(fits, axis=1, initial=0))

    def missing(self) -> Int64Array:
        """Return the rows of predictions of objects without a box: those that no better prediction covers."""
        one = self.record
        is_free = np.max(self.overlaps, axis=0, initial=0) < MATCHED
        covered = _shared_areas(one.predicted, one.unlabeled).max(1, initial=0)
        is_free &= covered <= MATCHED * _areas(one.predicted)
        kept: list[int] = []
        between = ious(one.predicted, one.predicted)
        for row in np.argsort(-one.scores, kind="stable").tolist():
            if is_free[row] and all(between[row, other] < MATCHED for other in kept):
                kept.append(row)
        return np.array(kept, np.int64)


def _largest_of_others(overlaps: Float64Array) -> Float64Array:
    """Return for each label and prediction the largest overlap of the prediction with another label."""
    if len(overlaps) < 2:
        return np.zeros_like(overlaps)
    first, second = -np.sort(-overlaps, axis=0)[:2]
    return np.asarray(np.where(overlaps == first, second, first))


def _other_classes(classes: Int64Array, known: Int64Array, random: np.random.Generator) -> Int64Array:
    """Draw another class for each label; the same if there is one only."""
    if len(known) < 2:
        return classes
    places = np.searchsorted(known, classes)
    return np.asarray(known[(places + random.integers(1, len(known), len(classes))) % len(known)])


def _moved(boxes: Float64Array, random: np.random.Generator) -> Float64Array:
    """Move boxes by `MOVED` of their height and width."""
    shares = random.uniform(*MOVED, (len(boxes), 2)) * random.choice([-1, 1], (len(boxes), 2))
    steps = (boxes[:, 2:] - boxes[:, :2]) * shares
    return np.asarray(boxes + np.tile(steps, 2))


def _planted_extras(records: Sequence[BoxRecord]) -> tuple[list[Float64Array], list[Int64Array]]:
    """Measure the boxes of each record against the predictions of the next, where that has no box; with classes."""
    planted, classes = [], []
    for one, following in zip(records, [*records[1:], *records[:1]], strict=True):
        free = ious(one.boxes, following.boxes).max(1, initial=0) < _TOUCHING
        support = (ious(one.boxes, following.predicted) * following.scores).max(1, initial=0)
        planted.append(-support[free])
        classes.append(one.classes[free])
    return planted, classes


# Faults --------------------------------------------------------------------------------------------------


def _label_faults(
    records: Sequence[BoxRecord], views: Sequence[_View], found: dict[BoxFault, Float64Array]
) -> list[FaultyBox]:
    """Return the kind with most evidence of each labeled box."""
    faults = []
    kinds, shares = list(found), np.stack(list(found.values()))
    chosen = shares.argmax(0).tolist()
    at = 0
    for one, view in zip(records, views, strict=True):
        for row in range(len(one.boxes)):
            kind = kinds[chosen[at]]
            seen = _seen(one, view, row, kind)
            faults.append(
                FaultyBox(
                    record=one.number,
                    kind=kind,
                    score=float(shares[chosen[at], at]),
                    box=_box(one.boxes[row]),
                    label=int(one.classes[row]),
                    seen=None if seen is None else int(one.predicted_classes[seen]),
                    seen_score=0.0 if seen is None else float(one.scores[seen]),
                )
            )
            at += 1
    return faults


def _seen(one: BoxRecord, view: _View, row: int, kind: BoxFault) -> int | None:
    """Return the prediction that makes a box suspicious; of an extra box, the one that supports it most."""
    overlaps = view.overlaps[row]
    same = one.predicted_classes == one.classes[row]
    if kind is BoxFault.WRONG_CLASS:
        weights = np.where(same, 0, view.record.scores * overlaps)
    elif kind is BoxFault.MISPLACED:
        weights = np.where(same & (overlaps >= _TOUCHING) & (overlaps < MATCHED), view.record.scores, 0)
    else:
        weights = view.record.scores * overlaps
    return int(weights.argmax()) if weights.max(initial=0) > 0 else None


def _box(box: Float64Array) -> tuple[float, float, float, float]:
    top, left, bottom, right = box.tolist()
    return top, left, bottom, right


def _missing_faults(
    records: Sequence[BoxRecord], missing: Sequence[Int64Array], shares: Float64Array
) -> list[FaultyBox]:
    places = [(one, row) for one, rows in zip(records, missing, strict=True) for row in rows.tolist()]
    return [
        FaultyBox(
            record=one.number,
            kind=BoxFault.MISSING,
            score=share,
            box=_box(one.predicted[row]),
            label=None,
            seen=int(one.predicted_classes[row]),
            seen_score=float(one.scores[row]),
        )
        for (one, row), share in zip(places, shares.tolist(), strict=True)
    ]


def _without_partners(faults: list[FaultyBox]) -> list[FaultyBox]:
    """Remove the missing box that is the right place of a misplaced one: one fault, with the larger score."""
    by_record: dict[int, list[FaultyBox]] = {}
    for fault in faults:
        if fault.kind is BoxFault.MISPLACED and fault.score >= CLEAR:
            by_record.setdefault(fault.record, []).append(fault)
    kept, partners = [], dict[int, float]()
    for fault in faults:
        beside = [
            other
            for other in by_record.get(fault.record, [])
            if fault.kind is BoxFault.MISSING
            and other.label == fault.seen
            and ious(np.array([other.box]), np.array([fault.box]))[0, 0] >= _TOUCHING
        ]
        for other in beside:
            partners[id(other)] = max(partners.get(id(other), 0.0), fault.score)
        if not beside:
            kept.append(fault)
    return [replace(fault, score=max(fault.score, partners.get(id(fault), 0.0))) for fault in kept]
