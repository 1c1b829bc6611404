"""What does the trainer ask of a task? One object: the keys it needs, its loss, its predictions, its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Batch = Mapping[str, jax.Array]
Host = Mapping[str, NDArray[Any]]


class Metrics(Protocol):
    """Counts over an evaluation, on the host. Every row that is valid counts once."""

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Count one batch.

        Args:
            predictions: of `Task.predict`, [batch, ...] each.
            truth: the batch's `Task.truth` and `Task.include` keys and `valid`, [batch, ...] each; `id` is int64
                [batch].

        Returns:
            How good each row is, float64 [batch], 0 to 1, by which the worst examples are found; NaN where a row
            is not valid or nothing can be said.
        """

    def result(self) -> dict[str, Any]:
        """Numbers by name; nested dictionaries hold those per class."""


class Task(Protocol):
    """What is learned: how outputs of a model become a loss, predictions and metrics.

    Attributes:
        keys: what of a batch the loss needs beside `image`.
        on_grid: those of `keys` that lie on the image's grid and are split as it is.
        truth: what of a batch the metrics need beside `valid` and `id`.
        include: optional fields of the data set that the loader must add for evaluation and prediction.
        best: the metric by which the best checkpoint is kept; higher is better.
    """

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def on_grid(self) -> tuple[str, ...]: ...

    @property
    def truth(self) -> tuple[str, ...]: ...

    @property
    def include(self) -> tuple[str, ...]: ...

    @property
    def best(self) -> str: ...

    def loss(self, outputs: Any, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The scalar to minimize, and its parts by name.

        Args:
            outputs: of the model, in the parameters' precision.
            batch: global arrays. Rows whose `valid` is False must not count.
        """

    def predict(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        """What a user asked for, in static shapes [batch, ...]."""

    def metrics(self) -> Metrics:
        """Empty counts for one evaluation."""


def valid_rows(batch: Batch) -> jax.Array:
    """Which rows are real, bool [batch]; all of them where the batch does not say."""
    valid = batch.get("valid")
    return valid if valid is not None else jnp.ones(batch["image"].shape[:1], bool)


def mean_over_valid(losses: jax.Array, valid: jax.Array) -> jax.Array:
    """The mean of losses [batch] over valid rows [batch]; 0 if there is none."""
    total = jnp.sum(jnp.where(valid, losses, 0))
    return total / jnp.maximum(jnp.sum(valid), 1).astype(losses.dtype)


def valid_host(truth: Host) -> NDArray[np.bool_]:
    """`valid_rows` for a batch on the host."""
    valid = truth.get("valid")
    return np.ones(len(next(iter(truth.values()))), bool) if valid is None else np.asarray(valid, bool)
