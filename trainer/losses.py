"""Loss functions: box regression, focal, cross-entropy and overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp


def huber(difference: jax.Array, delta: float = 1.0) -> jax.Array:
    """Return difference ** 2 / 2 up to delta, and delta * (|difference| - delta / 2) beyond it.

    Args:
        difference: predicted minus true value, of any shape.
        delta: value above 0 at which the square ends.

    Returns:
        The loss of each value, in the same shape and dtype.

    Source: Huber, Robust Estimation of a Location Parameter (1964). The TensorFlow Object Detection API calls it
    weighted_smooth_l1.

    >>> huber(jnp.array([0.5, -2.0]), 0.5).tolist()
    [0.125, 0.875]
    """
    size = jnp.abs(difference)
    near = jnp.minimum(size, delta)
    return near * (size - near / 2)


def smooth_l1(difference: jax.Array, delta: float = 1.0) -> jax.Array:
    """Return `huber` divided by delta: the linear part has slope 1 at any delta.

    Source: Girshick, Fast R-CNN (arXiv 1504.08083), equation 3, at delta 1; PyTorch calls delta beta.

    >>> smooth_l1(jnp.array([0.5, -2.0]), 0.5).tolist()
    [0.25, 1.75]
    """
    return huber(difference, delta) / delta


BOX_LOSSES: dict[str, Callable[[jax.Array, float], jax.Array]] = {
    "smooth_l1": smooth_l1,
    "huber": huber,
    "weighted_smooth_l1": huber,
}
"""Box losses by name; weighted_smooth_l1 is the name of huber in the TensorFlow Object Detection API."""


def sigmoid_focal(
    logits: jax.Array, targets: jax.Array, *, alpha: float | None = 0.25, gamma: float = 2.0
) -> jax.Array:
    """Return sigmoid cross-entropy times alpha * (1 - p) ** gamma, where p is the probability of the true class.

    Exponents of softplus keep values and gradients finite for logits of any size.

    Args:
        logits: array of any shape.
        targets: 0 or 1, in the shape of the logits.
        alpha: weight of targets 1; targets 0 have the weight 1 - alpha. None gives both the weight 1.
        gamma: exponent that reduces the loss of well classified values; 0 is plain cross-entropy.

    Returns:
        The loss of every logit, in the same shape and dtype.

    Source: Lin et al., Focal Loss for Dense Object Detection (arXiv 1708.02002), equation 5.

    >>> sigmoid_focal(jnp.zeros(2), jnp.array([1.0, 0.0])).round(5).tolist()
    [0.04332000017166138, 0.1299699991941452]
    """
    positive = targets.astype(bool)
    # For s, the logit of the wrong class, cross-entropy is softplus(s) and 1 - p is exp(s - softplus(s)). Unlike
    # x - target * x + softplus(-x), nothing cancels if the loss is small, as it is for almost all anchors.
    wrong_logits = jnp.where(positive, -logits, logits)
    loss = jax.nn.softplus(wrong_logits)
    # Without the exponent it is plain cross-entropy, which needs no exponential.
    if gamma:
        loss = loss * jnp.exp(gamma * (wrong_logits - loss))
    return loss if alpha is None else loss * jnp.where(positive, alpha, 1 - alpha)


SMOOTHING = 1e-5
"""Voxels added to numerator and denominator, so that a class that is neither true nor predicted has no loss."""


@dataclass(frozen=True, kw_only=True)
class OverlapLoss:
    """Soft sizes of prediction, ground truth and their intersection in voxels, [batch, class] each.

    Args:
        both: sum of a class's probabilities over the voxels of that class.
        predicted: sum of its probabilities over all voxels.
        true: number of its voxels.
    """

    both: jax.Array
    predicted: jax.Array
    true: jax.Array

    @property
    def dice(self) -> jax.Array:
        """Dice, [batch, class]: twice the intersection divided by the sum of the sizes."""
        return (2 * self.both + SMOOTHING) / (self.predicted + self.true + SMOOTHING)


def one_hot(label: jax.Array, classes: int, dtype: jnp.dtype) -> jax.Array:
    """Return class indices [...] as [..., classes] of 0 and 1."""
    return (label[..., None] == jnp.arange(classes, dtype=label.dtype)).astype(dtype)


def class_overlap(
    logits: jax.Array, label: jax.Array, *, background: bool = False, ignore_label: int | None = None
) -> OverlapLoss:
    """Return the soft overlap of each example.

    Args:
        logits: [batch, ..., class], background first.
        label: class indices [batch, ...].
        background: include the background as a class.
        ignore_label: label of voxels that do not count; None counts all.
    """
    probabilities = jax.nn.softmax(logits)
    target = one_hot(label, logits.shape[-1], logits.dtype)
    # As nnU-Net (do_bg=False): the background would hide small classes in a mean over classes.
    if not background:
        probabilities, target = probabilities[..., 1:], target[..., 1:]
    # An ignored voxel enters neither the intersection nor the sizes.
    if ignore_label is not None:
        known = (label != ignore_label)[..., None]
        probabilities, target = jnp.where(known, probabilities, 0), jnp.where(known, target, 0)
    return _overlap(probabilities, target)


def region_overlap(logits: jax.Array, target: jax.Array, known: jax.Array | None = None) -> OverlapLoss:
    """Return the soft overlap of each example with regions that do not exclude each other, [batch, region].

    Args:
        logits: [batch, ..., region].
        target: 0 or 1, in the shape and dtype of the logits.
        known: bool [batch, ...], False for voxels that do not count; None counts all.
    """
    probabilities = jax.nn.sigmoid(logits)
    if known is not None:
        probabilities, target = (jnp.where(known[..., None], one, 0) for one in (probabilities, target))
    return _overlap(probabilities, target)


def _overlap(probabilities: jax.Array, target: jax.Array) -> OverlapLoss:
    space = tuple(range(1, target.ndim - 1))
    return OverlapLoss(
        both=jnp.sum(probabilities * target, space),
        predicted=jnp.sum(probabilities, space),
        true=jnp.sum(target, space),
    )


def sum_over_rows(overlap: OverlapLoss, counts: jax.Array) -> OverlapLoss:
    """Return the overlap of all rows with `counts` (bool [batch]) as if they were one example, [1, class] each."""

    def total(voxels: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(counts[:, None], voxels, 0), 0, keepdims=True)

    return OverlapLoss(both=total(overlap.both), predicted=total(overlap.predicted), true=total(overlap.true))


def cross_entropy(logits: jax.Array, label: jax.Array, *, ignore_label: int | None = None) -> jax.Array:
    """Return softmax cross-entropy, averaged over each example: [batch, ..., class], [batch, ...] to [batch].

    Voxels of `ignore_label` do not count; an example without others has the loss 0.
    """
    target = one_hot(label, logits.shape[-1], logits.dtype)
    losses = jax.nn.logsumexp(logits, -1) - jnp.sum(logits * target, -1)
    space = tuple(range(1, losses.ndim))
    if ignore_label is None:
        return jnp.mean(losses, space)
    known = label != ignore_label
    voxels = jnp.sum(known, space).astype(losses.dtype)
    return jnp.sum(jnp.where(known, losses, 0), space) / jnp.maximum(voxels, 1)


def binary_cross_entropy(logits: jax.Array, target: jax.Array, known: jax.Array | None = None) -> jax.Array:
    """Return sigmoid cross-entropy, averaged over the voxels and regions of each example, [batch].

    Args:
        logits: [batch, ..., region].
        target: 0 or 1, in the shape and dtype of the logits.
        known: bool [batch, ...], False for voxels that do not count; None counts all.

    >>> logits = jnp.array([[[0.0, jnp.log(3.0)]]])
    >>> print(f"{binary_cross_entropy(logits, jnp.array([[[1.0, 1.0]]])).item():.4f}")
    0.4904
    """
    # Equal to softplus(x) - x * target, in which nothing cancels; see `sigmoid_focal`.
    losses = jnp.mean(jax.nn.softplus(jnp.where(target > 0, -logits, logits)), -1)
    space = tuple(range(1, losses.ndim))
    if known is None:
        return jnp.mean(losses, space)
    voxels = jnp.sum(known, space).astype(losses.dtype)
    return jnp.sum(jnp.where(known, losses, 0), space) / jnp.maximum(voxels, 1)


def weighted_cross_entropy(
    logits: jax.Array,
    label: jax.Array,
    weights: Sequence[float],
    counts: jax.Array,
    *,
    ignore_label: int | None = None,
) -> jax.Array:
    """Return softmax cross-entropy averaged over a batch, in which each voxel has the weight of its true class.

    The sum is divided by the sum of the weights in the complete batch. A mean per example would give a crop of
    background alone as much weight as a crop with a rare class, which is what the weights are to change.

    Args:
        logits: [batch, ..., class].
        label: class indices [batch, ...].
        weights: weight of each class, 0 or more.
        counts: bool [batch], rows that count.
        ignore_label: label of voxels that do not count; None counts all.

    Returns:
        The loss, [1]; 0 if no voxel with a weight counts.

    Source: torch.nn.CrossEntropyLoss with `weight` and reduction "mean".

    >>> logits, label = jnp.zeros((1, 3, 2)).at[0, 0, 1].set(jnp.log(3.0)), jnp.array([[1, 0, 0]])
    >>> round(float(weighted_cross_entropy(logits, label, (1.0, 2.0), jnp.ones(1, bool))[0]), 4)
    0.4904
    """
    target = one_hot(label, logits.shape[-1], logits.dtype)
    losses = jax.nn.logsumexp(logits, -1) - jnp.sum(logits * target, -1)
    # An ignored label is no class, or a class whose voxels are unknown.
    known = counts.reshape(-1, *(1,) * (label.ndim - 1))
    known = known if ignore_label is None else known & (label != ignore_label)
    weight = jnp.where(known, jnp.sum(target * jnp.asarray(weights, logits.dtype), -1), 0)
    total = jnp.sum(weight)
    return (jnp.sum(weight * losses) / jnp.where(total > 0, total, 1))[None]


def dice(overlap: OverlapLoss) -> jax.Array:
    """Return 1 - the mean Dice of the classes.

    Source: Milletari et al., "V-Net", 2016, with plain instead of squared sums.
    """
    return 1 - jnp.mean(overlap.dice, -1)


def generalized_dice(overlap: OverlapLoss) -> jax.Array:
    """Return 1 - one Dice over all classes, each weighted by 1 / size ** 2.

    A class without voxels in an example gets the largest weight of the other classes. Source: Sudre et al.,
    "Generalised Dice overlap as a deep learning loss function", 2017 (arXiv 1707.03237).
    """
    present = overlap.true > 0
    smallest = jnp.min(jnp.where(present, overlap.true, jnp.inf), -1, keepdims=True)
    # Weights are relative to the smallest class's weight, so that the smoothing remains below one voxel of it.
    weights = jnp.where(present, jnp.square(smallest / jnp.where(present, overlap.true, 1)), 1)
    both = jnp.sum(weights * overlap.both, -1)
    sizes = jnp.sum(weights * (overlap.predicted + overlap.true), -1)
    return 1 - (2 * both + SMOOTHING) / (sizes + SMOOTHING)


def adaptive_dice(overlap: OverlapLoss) -> jax.Array:
    """Return 1 - the mean of Dice * exp(-Dice) / exp(-1): classes with the least overlap have the largest gradient.

    Source: the adaptive loss of TensorFlow Model Garden's volumetric models, taken per example.
    """
    scores = overlap.dice
    return 1 - jnp.mean(scores * jnp.exp(1 - scores), -1)


def tversky(overlap: OverlapLoss, *, false_positives: float = 0.3, false_negatives: float = 0.7) -> jax.Array:
    """Return 1 - the mean over classes of overlap / (overlap + weighted false positives + weighted false negatives).

    With 0.5 and 0.5 it is `dice`. Source: Salehi et al., "Tversky loss function for image segmentation", 2017
    (arXiv 1706.05721).
    """
    excess = false_positives * (overlap.predicted - overlap.both)
    missed = false_negatives * (overlap.true - overlap.both)
    # Numerator and denominator are half of Dice's, so the smoothing is halved too.
    return 1 - jnp.mean(
        (overlap.both + SMOOTHING / 2) / (overlap.both + (excess + missed) + SMOOTHING / 2), -1
    )


OVERLAP_LOSSES: dict[str, Callable[[OverlapLoss], jax.Array]] = {
    loss.__name__: loss for loss in (dice, generalized_dice, adaptive_dice, tversky)
}
"""Overlap losses by their name in the segmentation task's `losses`, which also has "cross_entropy"."""
