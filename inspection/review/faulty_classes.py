"""Likely wrong classes of records, by confident learning: probabilities beside those usual for each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.evidence import evidence
from halofeed.inspection.review.suspects import SuspectKind

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class ClassFault(SuspectKind):
    """Kinds of likely faults of classes."""

    # fmt: off
    WRONG_CLASS = ("likely wrong class", "The run sees another class with confidence.",
        "Correct the class of the source.")
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class FaultyClass:
    """A record whose class may be wrong.

    Args:
        row: row of the labels.
        score: evidence from 0 to 1.
        label: class as labeled.
        seen: class that the run sees.
        label_share, seen_share: their probabilities.
    """

    row: int
    score: float
    label: int
    seen: int
    label_share: float
    seen_share: float


def class_faults(labels: Integers, probabilities: Floats, random: np.random.Generator) -> list[FaultyClass]:
    """Return each record with the class that the run sees instead, best first.

    The measure is the normalized margin: probabilities less the mean probability of each class among the records that
    have it as their label; the largest of another class less that of the label.

    Args:
        labels: class of each record, [record].
        probabilities: of each class, [record, class].
        random: generator of the planted faults: a random other class.

    Source: Northcutt et al. 2021, Confident Learning, section 3.1, and cleanlab's `adjust_pred_probs`.
    """
    known = np.unique(labels)
    if len(known) < 2:
        return []
    thresholds = np.zeros(probabilities.shape[1])
    for label in known.tolist():
        thresholds[label] = probabilities[labels == label, label].mean()
    # A class that no record has is no other class.
    usable = np.full_like(thresholds, -np.inf)
    usable[known] = 0
    relative = probabilities - thresholds + usable
    steps = random.integers(1, len(known), len(labels))
    drawn = known[(np.searchsorted(known, labels) + steps) % len(known)]
    margins, seen = _margins(relative, labels)
    scores = evidence(margins, _margins(relative, drawn)[0], len(labels))
    return [
        FaultyClass(
            row=row,
            score=float(scores[row]),
            label=int(labels[row]),
            seen=int(seen[row]),
            label_share=float(probabilities[row, labels[row]]),
            seen_share=float(probabilities[row, seen[row]]),
        )
        for row in np.argsort(-scores, kind="stable").tolist()
    ]


def _margins(relative: Floats, labels: Integers) -> tuple[Floats, Integers]:
    rows, others = np.arange(len(labels)), relative.copy()
    others[rows, labels] = -np.inf
    seen = others.argmax(1)
    return np.asarray(others[rows, seen] - relative[rows, labels]), seen
