"""Which predicted boxes meet an annotated one?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.run.examples import Boxes

LEAST_SCORE = 0.3
"""Predictions below are left out of the pictures, unless there is none above."""
LEAST_OVERLAP = 0.5
_STRONGEST = 3


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Which boxes are shown and how they meet.

    Args:
        shown: how many predictions are shown, the surest; of so many.
        weak: none of them reaches `LEAST_SCORE`.
        found: bool [truth]; whether a shown prediction of the same class meets it.
        right: bool [shown]; whether the prediction meets an annotated box.
    """

    shown: int
    weak: bool
    found: NDArray[np.bool_]
    right: NDArray[np.bool_]


def meet(truth: Boxes, predicted: Boxes) -> Meeting:
    """Pair shown predictions, the surest first, each with the free box of its class that it overlaps most.

    A prediction on a crowd is right, and leaves the crowd free for others. A pair overlaps by half of its union or
    more.
    """
    sure = int((predicted.scores >= LEAST_SCORE).sum())
    weak = sure == 0
    shown = min(_STRONGEST, len(predicted.scores)) if weak else sure
    found, right = np.zeros(len(truth.classes), bool), np.zeros(shown, bool)
    for at in range(shown):
        overlaps = np.where(
            truth.classes == predicted.classes[at], _overlaps(predicted.corners[at], truth), 0
        )
        for open_to_all in (False, True):
            free = np.where(truth.crowd if open_to_all else ~truth.crowd & ~found, overlaps, 0)
            if len(free) and free.max() >= LEAST_OVERLAP:
                found[int(np.argmax(free))] = right[at] = True
                break
    return Meeting(shown=shown, weak=weak, found=found, right=right)


def _overlaps(box: NDArray[np.float64], truth: Boxes) -> NDArray[np.float64]:
    """Intersection over union with each annotated box; over the prediction's own area where that is a crowd."""
    others = truth.corners
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.clip(sides, 0, None), axis=1)
    own = float(np.prod(np.clip(box[2:] - box[:2], 0, None)))
    areas = np.prod(np.clip(others[:, 2:] - others[:, :2], 0, None), axis=1)
    whole = np.where(truth.crowd, own, own + areas - shared)
    return np.asarray(np.where(whole > 0, shared / np.where(whole > 0, whole, 1), 0))
