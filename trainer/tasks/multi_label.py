"""Multi-label classification, any number of classes per image: sigmoid cross-entropy, average precision and AUROC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from numpy.typing import NDArray

from halofeed.system.errors import UsageError
from halofeed.trainer.task import (
    DeviceBatch,
    Host,
    Metrics,
    mean_over_valid,
    mixed_targets,
    valid_host,
    valid_rows,
)

CLASS_THRESHOLD = 0.5
"""Smallest probability of a class that counts as predicted, by default."""


@dataclass(frozen=True, kw_only=True)
class MultiLabel:
    """Multi-label classification by logits [batch, class], with the ground truth `labels`, 0 or 1 [batch, class].

    Args:
        labels: names of the classes, in order.
        label_smoothing: share of each target that moves to 0.5: 1 becomes 1 - share / 2, and 0 becomes share / 2.
        threshold: smallest probability of a class that counts as predicted.

    Raises:
        UsageError: a value is not between 0 and 1.
    """

    labels: tuple[str, ...]
    label_smoothing: float = 0.0
    threshold: float = CLASS_THRESHOLD
    keys = ("labels",)
    on_grid = ()
    truth = ("labels",)
    include = ()
    best = "mAP"
    mixes_classes = True

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(
                f"label_smoothing: expected 0 or more and less than 1, got {self.label_smoothing}"
            )
        if not 0 < self.threshold < 1:
            raise UsageError(f"threshold: expected a value between 0 and 1, got {self.threshold}")

    def loss(self, outputs: jax.Array, batch: DeviceBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return sigmoid cross-entropy, averaged over the classes and the valid rows."""
        targets = mixed_targets(batch, "labels", lambda labels: labels.astype(outputs.dtype))
        # As Keras' BinaryCrossentropy(label_smoothing=).
        targets = targets * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses = jnp.mean(optax.losses.sigmoid_binary_cross_entropy(outputs, targets), axis=-1)
        loss = mean_over_valid(losses, valid_rows(batch))
        return loss, {"cross_entropy": loss}

    def predict(self, outputs: jax.Array, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return `probabilities` [batch, class] and `labels`, uint8 [batch, class]: 1 from `threshold` on."""
        probabilities = jax.nn.sigmoid(outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32)))
        return {"probabilities": probabilities, "labels": (probabilities >= self.threshold).astype(jnp.uint8)}

    def decide(self, probabilities: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the predictions for probabilities [batch, class] on the host, such as means over tiles.

        >>> MultiLabel(labels=("hat", "coat")).decide(np.array([[0.9, 0.2]]))["labels"].tolist()
        [[1, 0]]
        """
        return {"probabilities": probabilities, "labels": (probabilities >= self.threshold).astype(np.uint8)}

    def metrics(self) -> Metrics:
        """Return empty metrics."""
        return MultiLabelMetrics(self.labels)


class MultiLabelMetrics:
    """Average precision, AUROC and F1 of each class.

    Memory: 5 bytes for each example and class.

    Args:
        labels: names of the classes.
    """

    def __init__(self, labels: tuple[str, ...]) -> None:
        self.labels = labels
        self._scores: list[NDArray[np.float32]] = []
        self._truth: list[NDArray[np.bool_]] = []
        self._counts = np.zeros((3, len(labels)), np.int64)
        """True positives, predicted and true examples of each class."""

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add the valid rows of a batch.

        Args:
            predictions: `probabilities` and `labels` [batch, class].
            truth: `labels` [batch, class], 0 or 1, and `valid`.

        Returns:
            float64 [batch]: the probability of the right answer, yes or no, for the class where it is lowest.
        """
        valid, true = valid_host(truth), truth["labels"].astype(bool)
        self._scores.append(predictions["probabilities"][valid].astype(np.float32))
        self._truth.append(true[valid])
        found = predictions["labels"].astype(bool)
        self._counts += np.stack([(one & valid[:, None]).sum(0) for one in (true & found, found, true)])
        right = np.where(true, predictions["probabilities"], 1 - predictions["probabilities"]).min(axis=1)
        return np.where(valid, right, np.nan).astype(np.float64)

    def result(self) -> dict[str, Any]:
        """Return `mAP` and `mean AUROC` over the classes, `examples`, and `AP`, `AUROC` and `F1` by class.

        A class without true examples has no AP, one that all or no examples have no AUROC, and one that is neither
        true nor predicted no F1: they are None and do not enter the means. Without any AP, `mAP` is 0.
        """
        empty = np.zeros((0, len(self.labels)))
        scores = np.concatenate([empty.astype(np.float32), *self._scores])
        truth = np.concatenate([empty.astype(bool), *self._truth])
        columns = list(zip(scores.T, truth.T, strict=True))
        precision = [average_precision(*column) for column in columns]
        area = [area_under_roc(*column) for column in columns]
        both, found, true = self._counts.tolist()
        f1 = [2 * a / (b + c) if b + c else None for a, b, c in zip(both, found, true, strict=True)]
        return {
            "mAP": _mean(precision) or 0.0,
            "mean AUROC": _mean(area),
            "examples": len(truth),
            **{
                name: dict(zip(self.labels, values, strict=True))
                for name, values in (("AP", precision), ("AUROC", area), ("F1", f1))
            },
        }


def average_precision(scores: NDArray[Any], truth: NDArray[np.bool_]) -> float | None:
    """Return the mean over the true examples of the precision among all examples with at least their score.

    Equal to scikit-learn's `average_precision_score`: nothing is interpolated, and equal scores are one threshold.

    Args:
        scores: score of each example.
        truth: whether each example is true.

    Returns:
        The average precision; None without true examples.

    >>> average_precision(np.array([0.9, 0.8, 0.7]), np.array([True, False, True])).__round__(4)
    0.8333
    """
    if not truth.any():
        return None
    positives, counts = _at_each_threshold(scores, truth)
    gained = np.diff(positives, prepend=0)
    return float((gained * positives / counts).sum() / positives[-1])


def area_under_roc(scores: NDArray[Any], truth: NDArray[np.bool_]) -> float | None:
    """Return the probability that a true example has a higher score than another one; equal scores count half.

    This is the area under the ROC curve, equal to scikit-learn's `roc_auc_score`.
    Source: Hanley and McNeil, "The meaning and use of the area under a ROC curve", 1982.

    Args:
        scores: score of each example.
        truth: whether each example is true.

    Returns:
        The area; None if all or no examples are true.

    >>> area_under_roc(np.array([0.9, 0.8, 0.7]), np.array([True, False, True]))
    0.5
    """
    if truth.all() or not truth.any():
        return None
    positives, counts = _at_each_threshold(scores, truth)
    negatives = counts - positives
    # Each negative has all positives of higher scores above it, and half of those with its own score.
    above = positives - np.diff(positives, prepend=0) / 2
    return float((np.diff(negatives, prepend=0) * above).sum() / (positives[-1] * negatives[-1]))


def _at_each_threshold(
    scores: NDArray[Any], truth: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the number of true examples and of all examples from each distinct score up, falling."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    # The last example of each score.
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    return np.cumsum(truth[order])[last].astype(np.float64), last + 1.0


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
