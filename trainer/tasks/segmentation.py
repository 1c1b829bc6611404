"""One class per pixel or voxel: cross entropy and overlap, Dice, surface distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from halofeed.errors import UsageError
from halofeed.trainer.losses import OVERLAP_LOSSES, cross_entropy, overlap, sum_over_rows
from halofeed.trainer.metrics import SegmentationMetrics
from halofeed.trainer.task import Batch, Metrics, mean_over_valid, valid_rows

CROSS_ENTROPY = "cross_entropy"
INCLUDE = {
    "picture": ("transform", "size"),
    "volume": ("affine", "source_affine", "source_shape", "spacing_mm", "extent"),
    "clip": ("transform", "times_s", "extent"),
}
"""Per kind of image, what maps predictions back to their source."""
_MOST_BYTE_CLASSES = 256


@dataclass(frozen=True, kw_only=True)
class Segmentation:
    """Logits [batch, (depth,) height, width, class] against `label`, class indices on the same grid.

    Rows that are not `valid` or not `labelled` do not count, nor do those of which nothing is known. In the loss
    padding counts as what its label says: background, where a model is to find no class, or the ignore label. The
    metrics see only what shows the source.

    Args:
        labels: the classes' names, the background's first.
        kind: of the images.
        losses: the weight of each part: "cross_entropy", "dice", "generalized_dice", "adaptive_dice", "tversky".
        background: the overlap losses count the background as a class.
        overlap_over_batch: the overlap is summed over the rows that count before a loss is taken of it. With crops,
            most of which lack some class, a loss per crop rewards a model that never predicts that class.
        with_probabilities: predictions hold the probabilities too, for whoever blends overlapping windows.
        hausdorff: measure surface distances, which takes the host up to seconds per large volume.
        ignore_label: the value of `label` where nothing is known: it counts in no loss and no metric. None: there is
            none.

    Raises:
        UsageError: fewer than two classes; a loss that is not known; a weight that is not above 0.
    """

    labels: tuple[str, ...]
    kind: str = "volume"
    losses: Mapping[str, float] = field(default_factory=lambda: {CROSS_ENTROPY: 1.0, "dice": 1.0})
    background: bool = False
    overlap_over_batch: bool = False
    with_probabilities: bool = False
    hausdorff: bool = True
    ignore_label: int | None = None
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

    @property
    def include(self) -> tuple[str, ...]:
        """What maps predictions back to their source."""
        return INCLUDE[self.kind]

    def loss(self, outputs: Mapping[str, Any], batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The weighted sum of `losses`; each part is the mean over the rows that count, and over all sizes.

        Args:
            outputs: `logits`, and `coarse`, a list of logits at coarser sizes (deep supervision): each counts half
                of the one before, against every second, fourth, ... value of `label`, and all weights sum to 1.
            batch: with `label`, and `labelled` where some rows have no label.
        """
        levels = [outputs["logits"], *outputs.get("coarse", ())]
        counts = valid_rows(batch)
        if "labelled" in batch:
            counts = counts & batch["labelled"]
        if self.ignore_label is not None:
            label = batch["label"]
            counts = counts & jnp.any(label != self.ignore_label, tuple(range(1, label.ndim)))
        shares = [0.5**level for level in range(len(levels))]
        parts = dict.fromkeys(self.losses, jnp.zeros((), levels[0].dtype))
        for logits, share in zip(levels, shares, strict=True):
            label = _every(batch["label"], logits.shape[1:-1])
            for name, losses in self._losses(logits, label, counts).items():
                parts[name] += share / sum(shares) * mean_over_valid(losses, counts)
        loss = sum((self.losses[name] * part for name, part in parts.items()), jnp.zeros((), levels[0].dtype))
        return loss, parts

    def predict(self, outputs: Mapping[str, Any], batch: Batch) -> dict[str, jax.Array]:
        """`label`, the most probable class, uint8 [batch, (depth,) height, width] (uint16 if there are over 256).

        With `with_probabilities` also `probabilities`, float16 [batch, (depth,) height, width, class].
        """
        logits = outputs["logits"]
        dtype = jnp.uint8 if len(self.labels) <= _MOST_BYTE_CLASSES else jnp.uint16
        label = {"label": jnp.argmax(logits, -1).astype(dtype)}
        if not self.with_probabilities:
            return label
        return {**label, "probabilities": jax.nn.softmax(logits).astype(jnp.float16)}

    def metrics(self) -> Metrics:
        """Dice and Hausdorff distances of each example."""
        return SegmentationMetrics(
            self.labels, kind=self.kind, hausdorff=self.hausdorff, ignore_label=self.ignore_label
        )

    def _losses(self, logits: jax.Array, label: jax.Array, counts: jax.Array) -> dict[str, jax.Array]:
        """Of each row, [batch]; of all that count together, [1]."""
        ignored = self.ignore_label
        shared = overlap(logits, label, background=self.background, ignore_label=ignored)
        if self.overlap_over_batch:
            shared = sum_over_rows(shared, counts)
        return {
            name: cross_entropy(logits, label, ignore_label=ignored)
            if name == CROSS_ENTROPY
            else OVERLAP_LOSSES[name](shared)
            for name in self.losses
        }


def _every(label: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """The label at every n-th place along each axis, so that it has `sizes`."""
    steps = (size // coarse for size, coarse in zip(label.shape[1:], sizes, strict=True))
    return label[(slice(None), *(slice(None, None, step) for step in steps))]
