"""What is the loss of each task? A new task is one function and one line in `LOSSES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

Batch = Mapping[str, jax.Array]
Loss = Callable[[jax.Array, Batch], jax.Array]


def valid_rows(batch: Batch) -> jax.Array:
    """Which rows are real, bool [batch]; all of them where the batch does not say."""
    valid = batch.get("valid")
    return valid if valid is not None else jnp.ones(batch["image"].shape[:1], bool)


def mean_over_valid(losses: jax.Array, valid: jax.Array) -> jax.Array:
    """The mean of losses [batch] over valid rows [batch]; 0 if there is none."""
    total = jnp.sum(jnp.where(valid, losses, 0))
    return total / jnp.maximum(jnp.sum(valid), 1).astype(losses.dtype)


def classification_loss(logits: jax.Array, batch: Batch) -> jax.Array:
    """Softmax cross-entropy of logits [batch, classes] against `label`, int [batch] from 0."""
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return mean_over_valid(losses, valid_rows(batch))


def presence_loss(logits: jax.Array, batch: Batch) -> jax.Array:
    """Sigmoid cross-entropy, averaged over classes, of logits [batch, classes] against which are present."""
    present = classes_present(batch["classes"], batch["num_boxes"], logits.shape[-1]).astype(logits.dtype)
    losses = jnp.mean(optax.losses.sigmoid_binary_cross_entropy(logits, present), axis=-1)
    return mean_over_valid(losses, valid_rows(batch))


def classes_present(classes: jax.Array, num_boxes: jax.Array, class_count: int) -> jax.Array:
    """Which classes have a box in each image.

    Args:
        classes: int [batch, boxes], from 1; what lies past `num_boxes` is padding, whatever its value.
        num_boxes: int [batch].
        class_count: without the background.

    Returns:
        bool [batch, class_count]; column 0 is class 1.

    >>> classes_present(jnp.array([[2, 2, 0], [1, 3, 3]]), jnp.array([2, 1]), 3).tolist()
    [[False, True, False], [True, False, False]]
    """
    real = jnp.arange(classes.shape[1]) < num_boxes[:, None]
    matches = classes[:, :, None] == jnp.arange(1, class_count + 1)
    return jnp.any(matches & real[:, :, None], axis=1)


LOSSES: dict[str, Loss] = {"classification": classification_loss, "detection": presence_loss}
"""The loss of each task of `halofeed.schemas.tasks`. A detection set trains on which classes are present."""
