"""Evidence that a label is faulty: how much more often its measure occurs among planted faults than among labels.

Each kind of fault has a measure of its own, such as the score of a box that no label has, and measures of two kinds are
not comparable. A search therefore also plants a fault of the kind at each label, in memory, and measures it against the
same predictions. A value that planted faults have often and labels rarely is evidence, of whichever kind:

    labels    ..........:.:.::::::::::::       measure -->
    planted                 .  : .:::::::::::::::::::::
                                         ^ evidence near 1

Where a run has learned nothing, both have the same values, and nothing is evidence.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

CLEAR: Final = 0.5
"""Evidence above which a label looks more like a planted fault than like other labels."""
LISTED: Final = 0.75
"""Smallest evidence of a suspect that a review lists: labels of its measure are planted faults three times as often. If
1 % of the labels of a set are faulty, about 3 % of those at this limit are, and a third of those at 0.98."""
MOVED: Final = (0.25, 0.5)
"""By what shares of its height and width a planted fault moves a box or an object: an IoU of 0.39 to 0.14."""
_TIE: Final = 1e-4
"""Part of the evidence by which equal evidence of one kind is ordered by the measure itself."""


def evidence(measured: NDArray[np.float64], planted: NDArray[np.float64], labels: int) -> NDArray[np.float64]:
    """Return the evidence of each measure, from 0 to 1, by isotonic regression.

    It is the share of planted faults among labels of about this measure, if one fault is planted for each label. It
    rises with the measure. Each step of the regression counts one label more than it has, since a single label with
    the largest measure of a small set proves nothing.

    Args:
        measured: measure of each label or prediction as given, [count]; larger is more suspicious.
        planted: measure of each planted fault, [count].
        labels: number of labels that one fault each was planted for, and that `measured` is of or beside.

    Returns:
        float64 [count of `measured`].

    Source: Zadrozny and Elkan 2002, Transforming classifier scores into accurate multiclass probability estimates.

    >>> evidence(np.array([0.0, 0.0, 0.1, 0.9]), np.array([0.8, 0.9, 0.9, 0.9]), 4).round(2)
    array([0.  , 0.  , 0.  , 0.67])
    """
    if not len(measured) or not len(planted):
        return np.zeros(len(measured))
    values, places = np.unique(np.concatenate([measured, planted]), return_inverse=True)
    # Whole numbers, as if there were as many planted faults as labels, so that equal shares compare as equal.
    of_labels = np.bincount(places[: len(measured)], minlength=len(values)) * len(planted)
    of_planted = np.bincount(places[len(measured) :], minlength=len(values)) * labels
    starts, faulty, usual = _rising_blocks(of_planted, of_labels)
    shares = faulty / (faulty + usual + len(planted))
    # The added label can lower a small block below the one before it.
    shares = np.maximum.accumulate(shares)
    blocks = np.searchsorted(starts, places[: len(measured)], side="right") - 1
    ranks = np.argsort(np.argsort(measured, kind="stable"), kind="stable") / len(measured)
    return np.asarray(shares[blocks] * (1 - _TIE * (1 - ranks)))


def _rising_blocks(
    faulty: NDArray[np.int64], usual: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Join neighbors until the share of `faulty` rises from block to block; return their starts and sums."""
    starts: list[int] = []
    sums: list[tuple[int, int]] = []
    for at, (bad, good) in enumerate(zip(faulty.tolist(), usual.tolist(), strict=True)):
        start = at
        # Pool adjacent violators: a block joins the one before while its share is not larger.
        while sums and sums[-1][0] * good >= bad * sums[-1][1]:
            before = sums.pop()
            bad, good, start = bad + before[0], good + before[1], starts.pop()
        starts.append(start)
        sums.append((bad, good))
    bads, goods = np.array(sums, np.float64).T
    return np.array(starts, np.int64), bads, goods
