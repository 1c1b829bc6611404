"""Segmentation task, one class per pixel or voxel, or regions: cross-entropy, overlap losses, Dice, IoU, distances."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.kinds import KINDS
from halofeed.system.errors import UsageError
from halofeed.trainer.class_weights import ClassWeights, class_weights
from halofeed.trainer.losses import (
    OVERLAP_LOSSES,
    binary_cross_entropy,
    class_overlap,
    cross_entropy,
    region_overlap,
    sum_over_rows,
    weighted_cross_entropy,
)
from halofeed.trainer.mask_rule import GAUSSIAN, WINDOW_WEIGHTS, ClassRegions, MaskRule
from halofeed.trainer.metrics import SegmentationMetrics
from halofeed.trainer.task import DeviceBatch, mean_over_valid, valid_rows

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
        regions: classes of each region by its name, larger regions first (`ClassRegions.of`). The model then has a
            sigmoid per region in place of a softmax over classes, "cross_entropy" is binary, and overlaps are those of
            regions.
        window_weights: weights of overlapping windows of a scan or picture, "gaussian" or "uniform".
        mirror_at_test: axes ("depth", "height", "width") along which images are mirrored in evaluation and prediction;
            probabilities are averaged over all combinations, so that 3 axes take 8 times as long.

    Raises:
        UsageError: there are fewer than two classes, a loss is unknown, a weight is not above 0, or an option
            is invalid or contradicts another one.
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
    regions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    window_weights: str = GAUSSIAN
    mirror_at_test: tuple[str, ...] = ()
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
        self._check_class_weights()
        self._check_regions()
        self._check_windows()

    def _check_class_weights(self) -> None:
        """Replace `class_weights` by numbers; raise UsageError if they are invalid."""
        weights = class_weights(self.class_weights, self.labels, self.label_voxels)
        if weights and CROSS_ENTROPY not in self.losses:
            raise UsageError(
                f"class_weights: weigh the cross-entropy, and the losses are {', '.join(self.losses)}; leave them out, "
                "or add it: --set 'task.losses={cross_entropy=1.0,dice=1.0}'"
            )
        object.__setattr__(self, "class_weights", weights)

    def _check_regions(self) -> None:
        if not isinstance(self.regions, Mapping):
            raise UsageError(
                f"regions: expected a table of lists of classes, got {self.regions!r}; take "
                f"--set 'task.regions={{whole=[\"{self.labels[-1]}\"]}}'"
            )
        regions = self._regions()  # raises for invalid ones
        if regions is not None and self.class_weights:
            raise UsageError(
                "class_weights: weigh classes that exclude each other, and regions do not; leave either out"
            )
        if regions is not None and self.background:
            raise UsageError("background: regions have no background; leave it out, or leave regions out")

    def _check_windows(self) -> None:
        if self.window_weights not in WINDOW_WEIGHTS:
            raise UsageError(
                f"window_weights: expected one of {', '.join(WINDOW_WEIGHTS)}, got {self.window_weights!r}"
            )
        known = KINDS[self.kind].axes
        axes = tuple(self.mirror_at_test) if not isinstance(self.mirror_at_test, str) else ()
        if set(axes) - set(known) or len(set(axes)) < len(axes) or isinstance(self.mirror_at_test, str):
            raise UsageError(
                f"mirror_at_test: expected a list of {', '.join(known)}, each once, got {self.mirror_at_test!r}"
            )
        object.__setattr__(self, "mirror_at_test", axes)

    def _regions(self) -> ClassRegions | None:
        return ClassRegions.of(self.regions, self.labels) if self.regions else None

    @property
    def outputs(self) -> int:
        """Number of logits that the model gives for each voxel: classes with the background, or regions."""
        return len(self.regions) or len(self.labels)

    @property
    def mask_rule(self) -> MaskRule:
        """Rule by which the outputs of windows become a mask."""
        return MaskRule(window_weights=self.window_weights, regions=self._regions())

    @property
    def mirror_axes(self) -> tuple[int, ...]:
        """Axes of a batch of images along which they are mirrored at test time."""
        known = KINDS[self.kind].axes
        return tuple(1 + known.index(axis) for axis in self.mirror_at_test)

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
        """Return the output of `masks` for logits."""
        # The largest logit is that of the largest probability, without the rounding of a softmax.
        if not self.with_probabilities and not self.regions:
            return {"label": jnp.argmax(outputs["logits"], -1).astype(self._label_dtype)}
        return self.masks(self.probabilities(outputs))

    def probabilities(self, outputs: Mapping[str, Any]) -> jax.Array:
        """Return the probability of each class, or of each region, [batch, (depth,) height, width, output]."""
        logits = outputs["logits"]
        return jax.nn.sigmoid(logits) if self.regions else jax.nn.softmax(logits)

    def masks(self, probabilities: jax.Array) -> dict[str, jax.Array]:
        """Return predictions from probabilities, which may be means over mirrored images.

        Returns:
            `label`, the most probable class, or the class that regions paint, uint8 [batch, (depth,) height, width]
            (uint16 above 256 classes). `with_probabilities` adds `probabilities`, float16 [batch, (depth,) height,
            width, class], and `regions`, the same of each region.
        """
        regions = self._regions()
        label = jnp.argmax(probabilities, -1) if regions is None else regions.paint(probabilities)
        predictions = {"label": label.astype(self._label_dtype)}
        # Probabilities take 2 bytes for each class of a voxel, labels 1 or 2 bytes in all.
        if self.with_probabilities and regions is None:
            predictions["probabilities"] = probabilities.astype(jnp.float16)
        elif self.with_probabilities and regions is not None:
            of_classes = _probabilities_of_classes(probabilities, regions)
            predictions["probabilities"] = of_classes.astype(jnp.float16)
            predictions["regions"] = probabilities.astype(jnp.float16)
        return predictions

    @property
    def _label_dtype(self) -> Any:
        return jnp.uint8 if len(self.labels) <= _MAX_UINT8_CLASSES else jnp.uint16

    def decide(self, probabilities: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the output of `masks` on the host.

        Args:
            probabilities: of classes, or of regions where there are some, such as means over several models.

        >>> Segmentation(labels=("background", "liver")).decide(np.array([[[[0.2, 0.8]]]]))["label"].tolist()
        [[[1]]]
        """
        return {name: np.asarray(value) for name, value in self.masks(jnp.asarray(probabilities)).items()}

    def metrics(self) -> SegmentationMetrics:
        """Return empty metrics of Dice, IoU and Hausdorff distances."""
        return SegmentationMetrics(
            self.labels,
            kind=self.kind,
            hausdorff=self.hausdorff,
            ignore_label=self.ignore_label,
            regions=self._regions(),
        )

    def _losses(self, logits: jax.Array, label: jax.Array, counts: jax.Array) -> dict[str, jax.Array]:
        """Return each part by name, [batch]; [1] where it is of the complete batch."""
        known = None if self.ignore_label is None else label != self.ignore_label
        target = self._region_target(label, logits.dtype)
        soft_overlap = (
            class_overlap(logits, label, background=self.background, ignore_label=self.ignore_label)
            if target is None
            else region_overlap(logits, target, known)
        )
        # A crop without a small class has no overlap to learn from (Dice of the bladder 0.15 instead of 0,
        # docs/decisions.md).
        if self.overlap_over_batch:
            soft_overlap = sum_over_rows(soft_overlap, counts)

        def loss(name: str) -> jax.Array:
            if name != CROSS_ENTROPY:
                return OVERLAP_LOSSES[name](soft_overlap)
            if target is not None:
                return binary_cross_entropy(logits, target, known)
            return self._cross_entropy(logits, label, counts)

        return {name: loss(name) for name in self.losses}

    def _region_target(self, label: jax.Array, dtype: Any) -> jax.Array | None:
        """Return 0 or 1 for each region, [batch, ..., region]; None without regions."""
        regions = self._regions()
        if regions is None:
            return None
        inside = [
            functools.reduce(jnp.logical_or, [label == one for one in held]) for held in regions.members
        ]
        return jnp.stack(inside, -1).astype(dtype)

    def _cross_entropy(self, logits: jax.Array, label: jax.Array, counts: jax.Array) -> jax.Array:
        """Return the cross-entropy, [batch], or [1] with class weights."""
        if not self.class_weights:
            return cross_entropy(logits, label, ignore_label=self.ignore_label)
        weights = cast("tuple[float, ...]", self.class_weights)  # `__post_init__` made numbers of them
        return weighted_cross_entropy(logits, label, weights, counts, ignore_label=self.ignore_label)


def _probabilities_of_classes(probabilities: jax.Array, regions: ClassRegions) -> jax.Array:
    """Return the probability of each class [..., class], as if regions were independent: the last one to paint wins."""
    remaining = jnp.ones_like(probabilities[..., 0])
    of_class = {}
    for number in reversed(range(len(regions.names))):
        of_class[regions.painted[number]] = remaining * probabilities[..., number]
        remaining = remaining * (1 - probabilities[..., number])
    return jnp.stack([remaining, *(of_class[label] for label in range(1, len(of_class) + 1))], -1)


def _subsample(label: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """Return every n-th label along each axis, so that the result has `sizes`."""
    steps = (size // coarse for size, coarse in zip(label.shape[1:], sizes, strict=True))
    return label[(slice(None), *(slice(None, None, step) for step in steps))]
