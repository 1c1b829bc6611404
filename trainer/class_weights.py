"""Weights of classes in the cross-entropy of segmentation: given by name, or balanced by the data set's counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean

BALANCED = "balanced"
ClassWeights = str | Mapping[str, float] | Sequence[float]
"""Type of the option `class_weights` of the segmentation task."""


def balanced_weights(voxels: Sequence[int]) -> tuple[float, ...]:
    """Return weights with which every class has the same total weight: voxels / (classes * voxels of the class).

    Classes without voxels do not count, and have the weight 0.

    Args:
        voxels: number of voxels of each class.

    Source: King and Zeng, "Logistic Regression in Rare Events Data", 2001; `compute_class_weight("balanced")` of
    scikit-learn has the same formula.

    >>> balanced_weights([80, 15, 5, 0])
    (0.4166666666666667, 2.2222222222222223, 6.666666666666667, 0.0)
    """
    classes = sum(count > 0 for count in voxels)
    return tuple(sum(voxels) / (classes * count) if count else 0.0 for count in voxels)


def class_weights(
    given: ClassWeights, labels: Sequence[str], voxels: Sequence[int] | None
) -> tuple[float, ...]:
    """Return the weight of each class.

    Args:
        given: "balanced"; weights by class name, where a class without an entry has the weight 1; or a weight for each
            class in order; empty for none.
        labels: names of the classes.
        voxels: number of voxels of each class in the split to train on; None if the data set does not have them.

    Raises:
        UsageError: a name is unknown, a weight is negative or no number, their number is wrong, all are 0, or the data
            set has no counts.

    >>> class_weights({"tumor": 5}, ("background", "liver", "tumor"), None)
    (1.0, 1.0, 5.0)
    """
    if isinstance(given, str):
        return _balanced(given, labels, voxels)
    listed = _of_names(given, labels) if isinstance(given, Mapping) else list(given)
    if len(listed) not in (0, len(labels)):
        raise UsageError(
            f"class_weights: expected {len(labels)}, for {', '.join(labels)}, got {len(listed)}: {listed}"
        )
    if wrong := [label for label, weight in zip(labels, listed, strict=False) if not _is_weight(weight)]:
        got = listed[labels.index(wrong[0])]
        raise UsageError(f"class_weights.{wrong[0]}: expected a number of 0 or more, got {got!r}")
    if listed and not any(listed):
        raise UsageError("class_weights: expected a weight above 0 for a class, got 0 for each")
    return tuple(map(float, listed))


def _balanced(given: str, labels: Sequence[str], voxels: Sequence[int] | None) -> tuple[float, ...]:
    if given != BALANCED:
        raise UsageError(
            f'class_weights: expected "{BALANCED}", or a weight for each of {", ".join(labels)}, got {given!r}'
        )
    if voxels is None or not any(voxels):
        raise UsageError(
            f'class_weights = "{BALANCED}": the data set has no counts of voxels per class; give the weights by '
            f"name, such as --set 'task.class_weights={{\"{labels[-1]}\"=2.0}}'"
        )
    return balanced_weights(voxels)


def _of_names(given: Mapping[str, Any], labels: Sequence[str]) -> list[Any]:
    """Return a weight for each class; 1 for those that are not named."""
    if unknown := [name for name in given if name not in labels]:
        near = did_you_mean(unknown[0], labels)
        raise UsageError(f"class_weights.{unknown[0]}: no such class; {near}known: {', '.join(labels)}")
    return [given.get(label, 1.0) for label in labels]


def _is_weight(value: Any) -> bool:
    # In Python a bool is an int, and in TOML it is not.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0
