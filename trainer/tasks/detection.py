"""Boxes around objects of several classes: anchors matched to the truth, focal loss, box codes, COCO's metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from halofeed.errors import UsageError
from halofeed.trainer.detection.anchors import Level, encode
from halofeed.trainer.detection.matcher import IGNORED, Matcher, match_boxes, split_alike, take
from halofeed.trainer.detection.selection import select
from halofeed.trainer.losses import BOX_LOSSES, sigmoid_focal
from halofeed.trainer.metrics import CocoMetrics
from halofeed.trainer.task import Batch, Metrics, valid_rows


@dataclass(frozen=True, kw_only=True)
class Detection(Matcher):
    """Levels of class logits and box codes against `boxes`, `classes` (from 1), `num_boxes` and `is_crowd`.

    Both losses are sums over all anchors of the batch's valid images, over max(matched anchors, 1) of them all.

    Args:
        labels: the classes' names, without the background.
        alpha, gamma: of the focal loss.
        box_loss: "smooth_l1" or "huber"; at delta 1 they are the same.
        delta: where the box loss turns from square to straight, in scaled codes.
        class_loss_weight, box_loss_weight: of the two in the sum. A code counts the sum over its four numbers; a weight
            of 0.25 makes it their mean.
        matched_threshold, unmatched_threshold, negatives_lower_than_unmatched, force_match: of `Matcher`.
        score_threshold, nms_iou, max_detections, max_candidates_per_level: which predictions are given; of `select`.

    Raises:
        UsageError: a box loss that is not known, a delta that is not above 0, or thresholds that cannot be.
    """

    labels: tuple[str, ...]
    alpha: float | None = 0.25
    gamma: float = 2.0
    box_loss: str = "smooth_l1"
    delta: float = 1.0
    class_loss_weight: float = 1.0
    box_loss_weight: float = 1.0
    score_threshold: float = 1e-8
    nms_iou: float = 0.6
    max_detections: int = 100
    max_candidates_per_level: int = 1000
    keys = ("boxes", "classes", "num_boxes", "is_crowd")
    on_grid = ()
    truth = ("boxes", "classes", "num_boxes", "is_crowd", "area")
    include = ("transform",)
    best = "mAP"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.box_loss not in BOX_LOSSES:
            raise UsageError(f"box_loss: expected one of {', '.join(BOX_LOSSES)}, got {self.box_loss!r}")
        if not self.delta > 0:
            raise UsageError(f"delta: expected a value above 0, got {self.delta}")

    def loss(self, outputs: Sequence[Level], batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Focal loss plus box loss; parts `class_loss` and `box_loss`, not weighted."""
        dtype, valid = outputs[0].box_codes.dtype, valid_rows(batch)
        boxes = batch["boxes"].astype(dtype)
        is_box = (jnp.arange(boxes.shape[1]) < batch["num_boxes"][:, None]) & valid[:, None]
        anchors = [split_alike(level.anchors, level.box_codes) for level in outputs]
        matches = match_boxes(self, anchors, boxes, is_box, batch["is_crowd"].astype(bool))
        # Rows of padding hold fill values, which may be anything; zero times them must be zero.
        table = jnp.concatenate([boxes, batch["classes"][..., None].astype(dtype)], -1)
        table = jnp.where(is_box[..., None], table, 0)

        class_loss = box_loss = jnp.zeros((), dtype)
        matched_count = jnp.zeros((), jnp.int32)
        for level, level_anchors, matched in zip(outputs, anchors, matches, strict=True):
            targets = take(table, matched)
            is_matched = matched >= 0
            counts = (matched != IGNORED) & valid[:, None, None, None]
            class_loss += self._class_loss(level.class_logits, jnp.where(counts, targets[..., 4], -1))
            off = level.box_codes - encode(targets[..., :4], level_anchors)
            of_codes = BOX_LOSSES[self.box_loss](off, self.delta)
            box_loss += jnp.sum(jnp.where(is_matched[..., None], of_codes, 0))
            matched_count += jnp.sum(is_matched, dtype=jnp.int32)
        matched_anchors = jnp.maximum(matched_count, 1).astype(dtype)
        class_loss, box_loss = class_loss / matched_anchors, box_loss / matched_anchors
        loss = self.class_loss_weight * class_loss + self.box_loss_weight * box_loss
        return loss, {"class_loss": class_loss, "box_loss": box_loss}

    def _class_loss(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """The sum over all anchors whose label [batch, height, width, anchor] is a class, from 1, or 0, background.

        Anchor and class are one axis, as the convolution gives them: a TPU would lay out the two again, in several
        arrays of the logits' size.
        """
        anchors, classes = logits.shape[3:]
        place = jnp.arange(anchors * classes)
        of_place = jnp.full((), -1, labels.dtype)
        for anchor in range(anchors):
            of_place = jnp.where(place // classes == anchor, labels[..., anchor : anchor + 1], of_place)
        is_class = of_place == place % classes + 1
        focal = sigmoid_focal(
            logits.reshape(*logits.shape[:3], -1), is_class, alpha=self.alpha, gamma=self.gamma
        )
        return jnp.sum(jnp.where(of_place >= 0, focal, 0))

    def predict(self, outputs: Sequence[Level], batch: Batch) -> dict[str, jax.Array]:
        """The detections of `select`, and `image_size`, int32 [batch, 2]: height and width that boxes are shares of."""
        detections = select(
            outputs,
            score_threshold=self.score_threshold,
            iou_threshold=self.nms_iou,
            max_detections=self.max_detections,
            max_candidates_per_level=self.max_candidates_per_level,
        )
        batch_size, *size = batch["image"].shape[:3]
        return {**detections, "image_size": jnp.broadcast_to(jnp.array(size, jnp.int32), (batch_size, 2))}

    def metrics(self) -> Metrics:
        """COCO's numbers."""
        return CocoMetrics(self.labels)
