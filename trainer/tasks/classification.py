"""Classification task, one class per image: softmax cross-entropy, accuracy and confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from numpy.typing import NDArray

from halofeed.trainer.metrics import confused_pairs
from halofeed.trainer.task import (
    DeviceBatch,
    Host,
    Metrics,
    mean_over_valid,
    mixed_targets,
    valid_host,
    valid_rows,
)


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Classification by logits [batch, class], with the ground truth `label`, int [batch] from 0.

    Args:
        labels: names of the classes, in order.
        label_smoothing: share of the target that is distributed over all classes.
    """

    labels: tuple[str, ...]
    label_smoothing: float = 0.0
    keys = ("label",)
    on_grid = ()
    truth = ("label",)
    include = ()
    best = "accuracy"
    mixes_classes = True

    def loss(self, outputs: jax.Array, batch: DeviceBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return softmax cross-entropy, averaged over valid rows."""
        targets = mixed_targets(
            batch, "label", lambda label: jax.nn.one_hot(label, outputs.shape[-1], dtype=outputs.dtype)
        )
        targets = (
            optax.losses.smooth_labels(targets, self.label_smoothing) if self.label_smoothing else targets
        )
        losses = optax.losses.softmax_cross_entropy(outputs, targets)
        loss = mean_over_valid(losses, valid_rows(batch))
        return loss, {"cross_entropy": loss}

    def predict(self, outputs: jax.Array, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return `probabilities` [batch, class] and `label`, the most probable class, int32 [batch]."""
        probabilities = jax.nn.softmax(outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32)))
        return {"probabilities": probabilities, "label": jnp.argmax(outputs, -1).astype(jnp.int32)}

    def decide(self, probabilities: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the predictions for probabilities [batch, class] on the host, such as means over tiles.

        >>> Classification(labels=("hat", "coat")).decide(np.array([[0.2, 0.8]]))["label"].tolist()
        [1]
        """
        return {"probabilities": probabilities, "label": probabilities.argmax(1)}

    def metrics(self) -> Metrics:
        """Return empty metrics."""
        return ClassificationMetrics(self.labels)


class ClassificationMetrics:
    """Accuracy, recall and precision per class, and the confusion matrix."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self.labels = labels
        self.confusion = np.zeros((len(labels), len(labels)), np.int64)

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add the valid rows of a batch and return the probability of each row's true class."""
        valid = valid_host(truth)
        np.add.at(self.confusion, (truth["label"][valid], predictions["label"][valid]), 1)
        true_class = np.where(valid, truth["label"], 0)[:, None]
        probability = np.take_along_axis(predictions["probabilities"], true_class, axis=1)[:, 0]
        return np.where(valid, probability, np.nan).astype(np.float64)

    def result(self) -> dict[str, Any]:
        """Return `accuracy`, `examples`, `recall` and `precision` by class (None without examples), and the confusion.

        `confusion` has a row for each true class, `confused` the pairs of `confused_pairs`.
        """
        right = np.diag(self.confusion)
        true, predicted = self.confusion.sum(1), self.confusion.sum(0)
        return {
            "accuracy": float(right.sum() / max(1, true.sum())),
            "examples": int(true.sum()),
            "recall": dict(zip(self.labels, map(_share, right, true), strict=True)),
            "precision": dict(zip(self.labels, map(_share, right, predicted), strict=True)),
            "confusion": self.confusion.tolist(),
            "confused": confused_pairs(self.confusion, self.labels),
        }


def _share(part: np.int64, total: np.int64) -> float | None:
    return float(part / total) if total else None
