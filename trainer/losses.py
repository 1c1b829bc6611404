"""Losses: box regression, focal, cross entropy and overlap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp


def huber(difference: jax.Array, delta: float = 1.0) -> jax.Array:
    """difference ** 2 / 2 up to delta, beyond it delta * (|difference| - delta / 2).

    Args:
        difference: predicted minus true, of any shape.
        delta: above 0, where the square ends.

    Returns:
        The loss of each, in their shape and dtype.

    Source: Huber, Robust Estimation of a Location Parameter (1964). The TensorFlow Object Detection API calls it
    smooth L1 at any delta.

    >>> huber(jnp.array([0.5, -2.0]), 0.5).tolist()
    [0.125, 0.875]
    """
    size = jnp.abs(difference)
    near = jnp.minimum(size, delta)
    return near * (size - near / 2)


def smooth_l1(difference: jax.Array, delta: float = 1.0) -> jax.Array:
    """`huber`, which has the same arguments, over delta: its straight part has slope 1 at any delta.

    Source: Girshick, Fast R-CNN (arXiv 1504.08083), equation 3, at delta 1; PyTorch calls delta beta.

    >>> smooth_l1(jnp.array([0.5, -2.0]), 0.5).tolist()
    [0.25, 1.75]
    """
    return huber(difference, delta) / delta


BOX_LOSSES: dict[str, Callable[[jax.Array, float], jax.Array]] = {"smooth_l1": smooth_l1, "huber": huber}


def sigmoid_focal(
    logits: jax.Array, targets: jax.Array, *, alpha: float | None = 0.25, gamma: float = 2.0
) -> jax.Array:
    """Sigmoid cross-entropy, times (1 - p) ** gamma where p is the probability of the truth, times alpha.

    The power is taken as exp(-gamma * target * logit - gamma * softplus(-logit)), so that values and gradients stay
    finite for logits of any size.

    Args:
        logits: of any shape.
        targets: 0 or 1, of the logits' shape.
        alpha: the weight where the target is 1; 1 - alpha is the weight where it is 0. None weighs both with 1.
        gamma: how far what is already right is set aside; 0 is plain cross-entropy.

    Returns:
        The loss of every logit, in their shape and dtype.

    Source: Lin et al., Focal Loss for Dense Object Detection (arXiv 1708.02002), equation 5.

    >>> sigmoid_focal(jnp.zeros(2), jnp.array([1.0, 0.0])).round(5).tolist()
    [0.04332000017166138, 0.1299699991941452]
    """
    positive = targets.astype(bool)
    # Of s, the logit of being wrong: cross-entropy softplus(s), 1 - p = exp(s - softplus(s)). Unlike
    # x - target * x + softplus(-x), nothing cancels where the loss is small, which is almost everywhere.
    wrong = jnp.where(positive, -logits, logits)
    loss = jax.nn.softplus(wrong)
    if gamma:
        loss = loss * jnp.exp(gamma * (wrong - loss))
    return loss if alpha is None else loss * jnp.where(positive, alpha, 1 - alpha)


SMOOTHING = 1e-5
"""Voxels added to numerator and denominator, so that a class that is neither there nor predicted loses nothing."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How much of each class was predicted, was there, and both; in voxels, soft, [batch, class] each.

    Args:
        both: the sum of probabilities where the class is.
        predicted: the sum of its probabilities.
        true: how many voxels the class has.
    """

    both: jax.Array
    predicted: jax.Array
    true: jax.Array

    @property
    def dice(self) -> jax.Array:
        """Twice the overlap over the sum of the sizes, [batch, class]."""
        return (2 * self.both + SMOOTHING) / (self.predicted + self.true + SMOOTHING)


def one_hot(label: jax.Array, classes: int, dtype: jnp.dtype) -> jax.Array:
    """Class indices [...] as [..., classes] of 0 and 1."""
    return (label[..., None] == jnp.arange(classes, dtype=label.dtype)).astype(dtype)


def overlap(
    logits: jax.Array, label: jax.Array, *, background: bool = False, ignore_label: int | None = None
) -> Overlap:
    """The soft overlap of each example.

    Args:
        logits: [batch, ..., class], the background's first.
        label: class indices [batch, ...].
        background: count it as a class.
        ignore_label: the value of voxels that do not count; None: all do.
    """
    probabilities = jax.nn.softmax(logits)
    target = one_hot(label, logits.shape[-1], logits.dtype)
    if not background:
        probabilities, target = probabilities[..., 1:], target[..., 1:]
    if ignore_label is not None:
        known = (label != ignore_label)[..., None]
        probabilities, target = jnp.where(known, probabilities, 0), jnp.where(known, target, 0)
    space = tuple(range(1, label.ndim))
    return Overlap(
        both=jnp.sum(probabilities * target, space),
        predicted=jnp.sum(probabilities, space),
        true=jnp.sum(target, space),
    )


def sum_over_rows(overlap: Overlap, counts: jax.Array) -> Overlap:
    """The overlap of all examples that count [batch] as if they were one, [1, class] each."""

    def total(voxels: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(counts[:, None], voxels, 0), 0, keepdims=True)

    return Overlap(both=total(overlap.both), predicted=total(overlap.predicted), true=total(overlap.true))


def cross_entropy(logits: jax.Array, label: jax.Array, *, ignore_label: int | None = None) -> jax.Array:
    """Soft-max cross entropy, averaged over the space of each example: [batch, ..., class], [batch, ...] to [batch].

    Voxels of `ignore_label` do not count; an example of nothing else loses nothing.
    """
    target = one_hot(label, logits.shape[-1], logits.dtype)
    losses = jax.nn.logsumexp(logits, -1) - jnp.sum(logits * target, -1)
    space = tuple(range(1, losses.ndim))
    if ignore_label is None:
        return jnp.mean(losses, space)
    known = label != ignore_label
    voxels = jnp.sum(known, space).astype(losses.dtype)
    return jnp.sum(jnp.where(known, losses, 0), space) / jnp.maximum(voxels, 1)


def dice(overlap: Overlap) -> jax.Array:
    """1 - the mean Dice of the classes. Source: Milletari et al., "V-Net", 2016, with plain instead of squared sums."""
    return 1 - jnp.mean(overlap.dice, -1)


def generalized_dice(overlap: Overlap) -> jax.Array:
    """1 - one Dice over all classes, each weighted by 1 / (its size squared).

    A class that an example does not have gets the greatest weight of those that it has. Source: Sudre et al.,
    "Generalised Dice overlap as a deep learning loss function", 2017 (arXiv 1707.03237).
    """
    present = overlap.true > 0
    smallest = jnp.min(jnp.where(present, overlap.true, jnp.inf), -1, keepdims=True)
    # The weights are relative to the smallest class's, so that the smoothing stays a share of a voxel of it.
    weights = jnp.where(present, jnp.square(smallest / jnp.where(present, overlap.true, 1)), 1)
    both = jnp.sum(weights * overlap.both, -1)
    sizes = jnp.sum(weights * (overlap.predicted + overlap.true), -1)
    return 1 - (2 * both + SMOOTHING) / (sizes + SMOOTHING)


def adaptive_dice(overlap: Overlap) -> jax.Array:
    """1 - the mean of Dice * exp(-Dice) / exp(-1): classes that overlap least change it most.

    Source: the adaptive loss of TensorFlow Model Garden's volumetric models, taken per example.
    """
    scores = overlap.dice
    return 1 - jnp.mean(scores * jnp.exp(1 - scores), -1)


def tversky(overlap: Overlap, *, false_positives: float = 0.3, false_negatives: float = 0.7) -> jax.Array:
    """1 - the mean over classes of overlap / (overlap + weighted false positives + weighted false negatives).

    With 0.5 and 0.5 it is `dice`. Source: Salehi et al., "Tversky loss function for image segmentation", 2017
    (arXiv 1706.05721).
    """
    extra = false_positives * (overlap.predicted - overlap.both)
    wrong = extra + false_negatives * (overlap.true - overlap.both)
    # Half the smoothing, for these are halves of Dice's numerator and denominator.
    return 1 - jnp.mean((overlap.both + SMOOTHING / 2) / (overlap.both + wrong + SMOOTHING / 2), -1)


OVERLAP_LOSSES: dict[str, Callable[[Overlap], jax.Array]] = {
    loss.__name__: loss for loss in (dice, generalized_dice, adaptive_dice, tversky)
}
"""By the names that the segmentation task's `losses` take, beside "cross_entropy"."""
