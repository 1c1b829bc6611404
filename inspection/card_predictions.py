"""Predictions over the pictures of records: boxes, classes of pixels, and the most probable classes of a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_facts import DatasetFacts
from halofeed.inspection.html.run_gallery import (
    MIN_SCORE,
    ExampleBoxes,
    match_predictions,
    probable_classes,
)
from halofeed.inspection.review.kept_predictions import RecordPrediction
from halofeed.inspection.stored_records import count_classes
from halofeed.inspection.thumbnails import PlacedBox, lay_out_boxes
from halofeed.inspection.words import percent
from halofeed.schemas import keys
from halofeed.schemas.tfexample import Decoded

_MAX_BOXES = 300
_WEAK_SHOWN = 3
"""Boxes that are drawn with a score below `MIN_SCORE`: at a suspect, or if all scores are low."""
_MAX_CLASSES = 4
"""Classes that the words for a picture name."""

SharesOfSides = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class CardPrediction:
    """Prediction of a record as it is drawn over its picture.

    Args:
        boxes: predicted boxes; those that match no labeled box are dashed.
        mask: address of the predicted classes, to lay over the picture; None without any.
        guesses: most probable classes of the record: name, probability, whether it is the labeled one.
        words: what is predicted, for readers who do not see the picture.
        missed: whether each labeled box is matched by no drawn prediction.
    """

    boxes: Sequence[PlacedBox] = ()
    mask: str | None = None
    guesses: Sequence[tuple[str, float, bool]] = ()
    words: str = ""
    missed: Sequence[bool] = ()

    @property
    def bytes(self) -> int:
        """Return the characters of its address."""
        return len(self.mask or "")


def stored_boxes(
    features: Decoded, corners: NDArray[np.float64], regions: NDArray[np.float64], labels: Sequence[int]
) -> ExampleBoxes:
    """Return the labeled boxes of a record.

    Args:
        features: its values.
        corners: ymin, xmin, ymax, xmax of its boxes, [box, 4].
        regions: ignored regions, [region, 4].
        labels: class of each box.
    """
    count = min(len(corners), len(labels))
    stored = features.get(keys.OBJECT_IS_CROWD)
    crowd = np.zeros(count, bool)
    if isinstance(stored, np.ndarray) and len(stored) >= count:
        crowd = stored[:count] != 0
    return ExampleBoxes(
        corners=corners[:count],
        classes=np.array(labels[:count], np.int64),
        scores=np.ones(count),
        crowd=crowd,
        regions=regions,
    )


def draw_boxes(
    facts: DatasetFacts,
    prediction: RecordPrediction,
    truth: ExampleBoxes,
    size: tuple[int, int],
    near: SharesOfSides | None = None,
    *,
    tags: bool = True,
) -> CardPrediction:
    """Return the predicted boxes of a record beside its labeled ones.

    Of the boxes with low scores those are drawn that agree with `near` most, by score times IoU, because the evidence
    of a suspect may be one of them. Where no other box is, the best are drawn.

    Args:
        facts: facts of the data set.
        prediction: predicted boxes.
        truth: labeled boxes.
        size: (height, width) of the picture.
        near: the place of a suspect, ymin, xmin, ymax, xmax as shares.
        tags: whether to name boxes: those at `near`, or all without it. The names of the others would cover
            most of a picture with many objects, and colors show their classes.
    """
    if prediction.boxes is None or prediction.classes is None or prediction.scores is None:
        return CardPrediction()
    order = np.argsort(-prediction.scores, kind="stable")
    boxes, scores = prediction.boxes[order], prediction.scores[order]
    is_near = np.zeros(len(boxes), bool) if near is None else _evident(boxes, scores, near)
    shown = is_near | (scores >= MIN_SCORE)
    if not shown.any():
        shown[:_WEAK_SHOWN] = True
    kept = np.flatnonzero(shown)[:_MAX_BOXES]
    drawn = ExampleBoxes(
        corners=boxes[kept],
        classes=prediction.classes[order][kept],
        scores=scores[kept],
        crowd=np.zeros(len(kept), bool),
    )
    matches = match_predictions(truth, drawn, min_score=0.0)
    labels = drawn.classes.tolist()
    names = [
        (f"{facts.label_name(label)} {score:.2f}", facts.ranks.get(label, 0))
        for label, score in zip(labels, drawn.scores.tolist(), strict=True)
    ]
    # A tag gives way to those before it, so the boxes at the suspect come first.
    first = np.argsort(~is_near[kept], kind="stable")
    names = [names[at] for at in first.tolist()]
    dashed = (~matches.right)[first].tolist()
    placed = lay_out_boxes(drawn.corners[first], names, size, dashed=dashed, tags=tags)
    if near is not None:
        named = is_near[kept][first].tolist()
        placed = [
            one if is_named else replace(one, tag="") for one, is_named in zip(placed, named, strict=True)
        ]
    counted = Counter(facts.label_name(label) for label in labels)
    words = ", ".join(f"{count} {name}" for name, count in counted.most_common(_MAX_CLASSES))
    return CardPrediction(
        boxes=placed, words=words or "no box", missed=(~matches.found & ~truth.crowd).tolist()
    )


def _evident(
    boxes: NDArray[np.float64], scores: NDArray[np.float64], near: SharesOfSides
) -> NDArray[np.bool_]:
    """Return which boxes [box, 4] may be the evidence of a suspect at `near`: those above it, few of low scores."""
    sides = np.minimum(boxes[:, 2:], near[2:]) - np.maximum(boxes[:, :2], near[:2])
    shared = np.where((sides > 0).all(axis=1), sides.prod(axis=1), 0.0)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) + (near[2] - near[0]) * (near[3] - near[1])
    agreement = scores * shared / np.maximum(areas - shared, np.finfo(float).tiny)
    is_evident = (shared > 0) & (scores >= MIN_SCORE)
    best = np.argsort(-agreement, kind="stable")[:_WEAK_SHOWN]
    is_evident[best[agreement[best] > 0]] = True
    return is_evident


def describe_mask(facts: DatasetFacts, prediction: RecordPrediction, mask: str | None) -> CardPrediction:
    """Return a predicted mask with the classes in it, the largest first."""
    if prediction.label is None:
        return CardPrediction()
    counts = sorted(count_classes(prediction.label).items(), key=lambda one: -one[1])
    names = [facts.label_name(label) for label, _ in counts if label][:_MAX_CLASSES]
    return CardPrediction(mask=mask, words=", ".join(names) or "nothing but background")


def describe_classes(facts: DatasetFacts, prediction: RecordPrediction, label: int | None) -> CardPrediction:
    """Return the most probable classes of a record that is labeled as `label`."""
    if prediction.probabilities is None:
        return CardPrediction()
    guesses = probable_classes(facts.label_name, prediction.probabilities, -1 if label is None else label)
    words = ", ".join(f"{name} {percent(share)}" for name, share, _ in guesses[:1])
    return CardPrediction(guesses=guesses, words=words)


def mark_missed(placed: Sequence[PlacedBox], missed: Sequence[bool]) -> list[PlacedBox]:
    """Return labeled boxes of which those that no prediction matches are dashed; ignored regions stay."""
    marks = iter(missed)
    return [one if one.is_region else replace(one, dashed=next(marks, False)) for one in placed]
