"""Several readings of one scan: the class of most readers, and STAPLE, which weighs readers by their agreement.

reader 1   0 1 1 2        majority  0 1 1 0     the last voxel has three answers: a tie, which is background
reader 2   0 1 1 1
reader 3   0 0 1 0

Most voxels are the same for all readers. All others are described by the combination of their answers, of which there
are few, so that both rules look at combinations and not at voxels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

Labels = NDArray[Any]
_UNDECIDED: Final = -1
_LARGEST_UPDATE: Final = 1e-5
"""Largest change of a reader's performance at which STAPLE ends: the default of ITK's MultiLabelSTAPLEImageFilter."""
_MOST_STEPS: Final = 1000
"""Most steps of STAPLE. ITK has no limit."""
_SAME: Final = 1e-9
"""Relative difference within which two classes are equally likely, because sums are rounded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Answers:
    """Combinations of the answers that readers give to a voxel.

    Args:
        classes: int64 [class], in ascending order.
        codes: int64 [combination], in ascending order: the answers as digits, see `_encode_differing`.
        answers: int64 [combination, reader], indices of classes.
        voxels: int64 [combination], number of voxels with it.
    """

    classes: NDArray[np.int64]
    codes: NDArray[np.int64]
    answers: NDArray[np.int64]
    voxels: NDArray[np.int64]


def combine_readings(readings: Sequence[Labels], rule: str) -> tuple[Labels, int]:
    """Return one label of several readings, and the number of voxels that the rule leaves undecided.

    Undecided voxels are background. ITK gives them a number above the classes.

    Args:
        readings: class ids [depth, height, width] of each reader, of one type and shape.
        rule: key of `RULES`.

    Raises:
        SourceError: the readings differ in shape, or there are too many of too many classes.

    >>> readings = [np.array([[row]]) for row in ([0, 1, 1, 2], [0, 1, 1, 1], [0, 0, 1, 0])]
    >>> combine_readings(readings, "majority")
    (array([[[0, 1, 1, 0]]]), 1)
    """
    if len({reading.shape for reading in readings}) > 1:
        shapes = ", ".join("×".join(map(str, reading.shape)) for reading in readings)
        raise SourceError("annotation", "masks of one scan differ in shape", f"{shapes} voxels")
    found = _count_answers(readings)
    chosen = RULES[rule](found)
    values = np.where(chosen == _UNDECIDED, 0, found.classes[chosen]).astype(readings[0].dtype)
    # A class on which all readers agree may still be unlikely for STAPLE.
    agreed = np.arange(found.classes[-1] + 1, dtype=values.dtype)
    for at, one in enumerate(found.classes.tolist()):
        alike = np.flatnonzero((found.answers == at).all(axis=1))
        agreed[one] = values[alike[0]] if len(alike) else one
    combined = np.empty_like(readings[0])
    for at, planes in enumerate(zip(*readings, strict=True)):
        np.take(agreed, planes[0], out=combined[at])
        differ, codes = _encode_differing(planes, found.classes)
        combined[at][differ] = values[np.searchsorted(found.codes, codes)]
    return combined, int(found.voxels[chosen == _UNDECIDED].sum())


def _count_answers(readings: Sequence[Labels]) -> _Answers:
    bins = 1 + max(int(reading.max()) for reading in readings)
    counts = [_histogram(reading, bins) for reading in readings]
    classes = np.flatnonzero(sum(counts))
    count, readers = len(classes), len(readings)
    if count**readers >= 1 << 62:
        detail = f"{plural(readers, 'mask')} of {count:,} classes; choose fewer classes with --classes"
        raise SourceError("annotation", "too many classes for the vote of several masks", detail)
    differing: Counter[int] = Counter()
    voxels = counts[0][classes]
    for planes in zip(*readings, strict=True):
        differ, codes = _encode_differing(planes, classes)
        found, numbers = np.unique(codes, return_counts=True)
        differing.update(dict(zip(found.tolist(), numbers.tolist(), strict=True)))
        voxels -= np.bincount(np.searchsorted(classes, planes[0][differ]), minlength=count)
    # All other voxels have one answer of all readers.
    alike = sum(count**place for place in range(readers))
    for at, number in enumerate(voxels.tolist()):
        if number:
            differing[at * alike] += number
    codes = np.array(sorted(differing), np.int64)
    return _Answers(
        classes=classes,
        codes=codes,
        answers=np.stack([codes // count**place % count for place in range(readers)], axis=1),
        voxels=np.array([differing[code] for code in codes.tolist()], np.int64),
    )


def _histogram(reading: Labels, bins: int) -> NDArray[np.int64]:
    """Return the number of voxels of each class, by planes because NumPy counts in 8 bytes a voxel."""
    counts: NDArray[np.int64] = np.sum(
        [np.bincount(plane.ravel(), minlength=bins) for plane in reading], axis=0
    )
    return counts


def _encode_differing(
    planes: Sequence[Labels], classes: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return the voxels of a plane on which readers differ, and their answers: numbers with classes as digits."""
    differ = np.zeros(planes[0].shape, np.bool_)
    for plane in planes[1:]:
        differ |= plane != planes[0]
    digits = (np.searchsorted(classes, plane[differ]) * len(classes) ** at for at, plane in enumerate(planes))
    return differ, np.add.reduce([*digits])


def _majority(found: _Answers) -> NDArray[np.int64]:
    """Return the index of the class with most answers for each combination, or `_UNDECIDED`.

    Source: LabelVotingImageFilter of ITK.
    """
    votes = np.stack([(found.answers == at).sum(axis=1) for at in range(len(found.classes))], axis=1)
    return _largest(votes.astype(np.float64))


def _largest(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the largest weight in each row [row, class], or `_UNDECIDED` if several are the largest."""
    most = weights.max(axis=1, keepdims=True)
    # A weight of 0 for all classes proves none of them.
    is_tied = (np.isclose(weights, most, rtol=_SAME, atol=0).sum(axis=1) > 1) | (most[:, 0] <= 0)
    return np.where(is_tied, _UNDECIDED, weights.argmax(axis=1))


def _staple(found: _Answers) -> NDArray[np.int64]:
    """Return the most likely class of each combination, if readers err independently and each in its own way.

    Expectation maximization finds for each reader the probability of each answer to each true class. It starts from the
    majority; the prior of a class is its share of all answers.

    Source: S. K. Warfield, K. H. Zou, W. M. Wells, "Simultaneous truth and performance level estimation (STAPLE)", IEEE
    Transactions on Medical Imaging 23 (2004); for several classes as in MultiLabelSTAPLEImageFilter of ITK.
    """
    count = len(found.classes)
    voxels = found.voxels.astype(np.float64)
    prior = np.sum([np.bincount(answers, voxels, count) for answers in found.answers.T], axis=0)
    prior = prior / prior.sum()
    voted = _majority(found)
    decided = voted != _UNDECIDED
    truth = np.zeros((len(voxels), count))
    truth[decided, voted[decided]] = 1
    # Rows are answers and columns true classes. The first estimate is normalized by rows, as ITK does it.
    performance = _joint(found, truth, voxels)
    performance /= np.maximum(performance.sum(axis=2, keepdims=True), 1)
    for _ in range(_MOST_STEPS):
        weights = _weights(found, performance, prior)
        sums = weights.sum(axis=1, keepdims=True)
        updated = _joint(found, weights / np.where(sums > 0, sums, 1), voxels)
        totals = updated.sum(axis=1, keepdims=True)
        updated /= np.where(totals > 0, totals, 1)
        change = float(np.abs(updated - performance).max())
        performance = updated
        if change < _LARGEST_UPDATE:
            break
    return _largest(_weights(found, performance, prior))


def _weights(
    found: _Answers, performance: NDArray[np.float64], prior: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the prior times the probability of all answers, float64 [combination, class]."""
    weights = np.repeat(prior[None], len(found.answers), axis=0)
    for reader, answers in enumerate(found.answers.T):
        weights *= performance[reader, answers]
    return weights


def _joint(found: _Answers, truth: NDArray[np.float64], voxels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many voxels of each true class have each answer of each reader, float64 [reader, answer, class]."""
    count = len(found.classes)
    joint = np.zeros((found.answers.shape[1], count, count))
    for reader, answers in enumerate(found.answers.T):
        np.add.at(joint[reader], answers, truth * voxels[:, None])
    return joint


RULES: Final[Mapping[str, Callable[[_Answers], NDArray[np.int64]]]] = {
    "majority": _majority,
    "staple": _staple,
}
