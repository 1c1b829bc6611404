"""Segmentation task, one class per pixel or voxel: cross-entropy and overlap losses, Dice, surface distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp

from halofeed.system.errors import UsageError
from halofeed.trainer.class_weights import ClassWeights, class_weights
from halofeed.trainer.losses import (
    OVERLAP_LOSSES,
    class_overlap,
    cross_entropy,
    sum_over_rows,
    weighted_cross_entropy,
)
from halofeed.trainer.metrics import SegmentationMetrics
from halofeed.trainer.task import DeviceBatch, Metrics, mean_over_valid, valid_rows

CROSS_ENTROPY = "cross_entropy"
INCLUDE = {
    "picture": ("transform", "size"),
    "volume": ("affine", "source_affine", "source_shape", "spacing_mm", "extent"),
    "clip": ("transform", "times_s", "extent"),
}
"""Fields that map predictions to their source, by kind of image."""
_MAX_UINT8_CLASSES = 256


@dataclass(frozen=True, kw_only=True)
class Segmentation:
    """Segmentation by logits [batch, (depth,) height, width, class], with class indices `label` on the same grid.

    Rows that are not `valid`, not `labelled` or completely ignored do not count. In the loss padding counts by its
    label, background or the ignore label. The metrics exclude padding.

    Args:
        labels: names of the classes, background first.
        kind: kind of image.
        losses: weight of each part: "cross_entropy", "dice", "generalized_dice", "adaptive_dice", "tversky".
        background: include the background as a class in the overlap losses.
        overlap_over_batch: sum the overlap over the rows of a batch before computing the loss. Most crops lack some
            class, and a loss per crop rewards a model that never predicts this class.
        with_probabilities: add the probabilities to the predictions, for blending overlapping windows.
        hausdorff: measure surface distances, which takes up to seconds per large volume on the host.
        ignore_label: `label` of voxels that count in no loss and no metric; None if there is none.
        class_weights: weight of each class in the cross-entropy: "balanced", by name, or in order; empty for none. With
            weights the cross-entropy is the weighted mean over the batch (`weighted_cross_entropy`).
        label_voxels: number of voxels of each class in the split to train on, for "balanced"; None if unknown.

    Raises:
        UsageError: there are fewer than two classes, a loss is unknown, a weight is not above 0, or class weights are
            invalid or without a cross-entropy.
    """

    labels: tuple[str, ...]
    kind: str = "volume"
    losses: Mapping[str, float] = field(default_factory=lambda: {CROSS_ENTROPY: 1.0, "dice": 1.0})
    background: bool = False
    overlap_over_batch: bool = False
    with_probabilities: bool = False
    hausdorff: bool = True
    ignore_label: int | None = None
    class_weights: ClassWeights = ()
    label_voxels: tuple[int, ...] | None = None
    keys = ("label", "labelled")
    on_grid = ("label",)
    truth = ("label", "labelled")
    best = "dice"

    def __post_init__(self) -> None:
        if len(self.labels) < 2:
            raise UsageError(f"labels: expected the background and a class or more, got {self.labels}")
        known = (CROSS_ENTROPY, *OVERLAP_LOSSES)
        if not self.losses or (unknown := [name for name in self.losses if name not in known]):
            raise UsageError(
                f"losses: expected weights of {', '.join(known)}, got {unknown[0] if self.losses else 'none'!r}"
            )
        for name, weight in self.losses.items():
            if not weight > 0:
                raise UsageError(
                    f"losses.{name}: expected a weight above 0, got {weight}; leave it out for none"
                )
        weights = class_weights(self.class_weights, self.labels, self.label_voxels)
        if weights and CROSS_ENTROPY not in self.losses:
            raise UsageError(
                f"class_weights: weigh the cross-entropy, and the losses are {', '.join(self.losses)}; leave them out, "
                "or add it: --set 'task.losses={cross_entropy=1.0,dice=1.0}'"
            )
        object.__setattr__(self, "class_weights", weights)

    @property
    def include(self) -> tuple[str, ...]:
        """Fields that map predictions to their source."""
        return INCLUDE[self.kind]

    def loss(self, outputs: Mapping[str, Any], batch: DeviceBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the weighted sum of `losses`; each part is the mean over the rows that count, and over all sizes.

        Args:
            outputs: `logits`, and `coarse`, a list of logits at coarser sizes (deep supervision). Each size has half
                the weight of the one before and uses every second, fourth, ... value of `label`. Weights sum to 1.
            batch: batch with `label`, and `labelled` if some rows have no label.
        """
        levels = [outputs["logits"], *outputs.get("coarse", ())]
        counts = valid_rows(batch)
        # The zeros of a record without a label would be background.
        if "labelled" in batch:
            counts = counts & batch["labelled"]
        # A row without any known voxel has the loss 0, which would lower the mean of the others.
        if self.ignore_label is not None:
            label = batch["label"]
            counts = counts & jnp.any(label != self.ignore_label, tuple(range(1, label.ndim)))
        # Half for each coarser size, sum 1, as in nnU-Net, which however gives its coarsest output no weight.
        shares = [0.5**level for level in range(len(levels))]
        parts = dict.fromkeys(self.losses, jnp.zeros((), levels[0].dtype))
        for logits, share in zip(levels, shares, strict=True):
            label = _subsample(batch["label"], logits.shape[1:-1])
            for name, losses in self._losses(logits, label, counts).items():
                parts[name] += share / sum(shares) * mean_over_valid(losses, counts)
        loss = sum((self.losses[name] * part for name, part in parts.items()), jnp.zeros((), levels[0].dtype))
        return loss, parts

    def predict(self, outputs: Mapping[str, Any], batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return `label`, the most probable class, uint8 [batch, (depth,) height, width] (uint16 above 256 classes).

        `with_probabilities` adds `probabilities`, float16 [batch, (depth,) height, width, class].
        """
        logits = outputs["logits"]
        dtype = jnp.uint8 if len(self.labels) <= _MAX_UINT8_CLASSES else jnp.uint16
        label = {"label": jnp.argmax(logits, -1).astype(dtype)}
        # Probabilities take 2 bytes for each class of a voxel, labels 1 or 2 bytes in all.
        if not self.with_probabilities:
            return label
        return {**label, "probabilities": jax.nn.softmax(logits).astype(jnp.float16)}

    def metrics(self) -> Metrics:
        """Return empty metrics of Dice and Hausdorff distances."""
        return SegmentationMetrics(
            self.labels, kind=self.kind, hausdorff=self.hausdorff, ignore_label=self.ignore_label
        )

    def _losses(self, logits: jax.Array, label: jax.Array, counts: jax.Array) -> dict[str, jax.Array]:
        """Return each part by name, [batch]; [1] where it is of the complete batch."""
        soft_overlap = class_overlap(
            logits, label, background=self.background, ignore_label=self.ignore_label
        )
        # A crop without a small class has no overlap to learn from (Dice of the bladder 0.15 instead of 0,
        # docs/decisions.md).
        if self.overlap_over_batch:
            soft_overlap = sum_over_rows(soft_overlap, counts)
        return {
            name: self._cross_entropy(logits, label, counts)
            if name == CROSS_ENTROPY
            else OVERLAP_LOSSES[name](soft_overlap)
            for name in self.losses
        }

    def _cross_entropy(self, logits: jax.Array, label: jax.Array, counts: jax.Array) -> jax.Array:
        """Return the cross-entropy, [batch], or [1] with class weights."""
        if not self.class_weights:
            return cross_entropy(logits, label, ignore_label=self.ignore_label)
        weights = cast("tuple[float, ...]", self.class_weights)  # `__post_init__` made numbers of them
        return weighted_cross_entropy(logits, label, weights, counts, ignore_label=self.ignore_label)


def _subsample(label: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """Return every n-th label along each axis, so that the result has `sizes`."""
    steps = (size // coarse for size, coarse in zip(label.shape[1:], sizes, strict=True))
    return label[(slice(None), *(slice(None, None, step) for step in steps))]
