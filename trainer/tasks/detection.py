"""Detection task: boxes of objects of several classes, by anchors, focal loss, box codes and COCO's metrics.

A model with a mask head (`MaskedLevels`) also learns and predicts a mask of each object (`pixel_boxes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from halofeed.loader.batch import OBJECT_MAP
from halofeed.schemas.tasks import IGNORED_BOXES
from halofeed.system.errors import UsageError
from halofeed.trainer.detection.anchors import SCALES, Level, MaskedLevels, encode
from halofeed.trainer.detection.matcher import IGNORED, Matcher, match_boxes, split_alike, take
from halofeed.trainer.detection.pixel_boxes import detection_masks, mask_losses
from halofeed.trainer.detection.selection import select
from halofeed.trainer.losses import BOX_LOSSES, sigmoid_focal
from halofeed.trainer.mask_metrics import MASK_METRICS, MaskMetrics
from halofeed.trainer.metrics import REGION_RULES, CocoMetrics
from halofeed.trainer.task import DeviceBatch, Metrics, valid_rows

NORMALIZERS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "matches": lambda matched: jnp.maximum(matched, 1),
    "matches_plus_one": lambda matched: matched + 1,
}
"""Divisors of both losses by name, from the number of matched anchors of the batch."""


@dataclass(frozen=True, kw_only=True)
class Detection(Matcher):
    """Detection by levels of class logits and box codes.

    The ground truth is `boxes`, `classes` (from 1), `num_boxes` and `is_crowd`, and `ignored_boxes` where the data set
    has ignored regions. Both losses are sums over all anchors
    of the batch's valid images, divided by `normalizer`.

    Args:
        labels: names of the classes, without the background.
        alpha: alpha of the focal loss (`sigmoid_focal`).
        gamma: gamma of the focal loss.
        box_loss: key of `BOX_LOSSES`; all are equal at delta 1.
        delta: value of scaled codes at which the box loss changes from quadratic to linear.
        class_loss_weight: weight of the class loss.
        box_loss_weight: weight of the box loss, the localization_weight of the TensorFlow Object Detection API.
        normalize_loc_loss_by_codesize: divide the box loss by 4, so that it is the mean of the four codes of a box, not
            their sum.
        normalizer: "matches" divides both losses by max(matched anchors, 1), "matches_plus_one" by matched anchors + 1.
        box_code_scales: factors of the box codes, as for `encode`; (1, 1, 1, 1) leaves them unscaled.
        matched_threshold, unmatched_threshold, negatives_lower_than_unmatched, force_match_for_each_row,
        ignore_thresholds, use_matmul_gather: as for `Matcher`.
        score_threshold, max_detections, max_candidates_per_level: as for `select`, which predicts.
        nms_iou: `iou_threshold` of `select`.
        masks: whether the model has a mask head. The batch then has `object_map`, and for metrics `masks`.
        mask_loss_weight: weight of the mask loss, the sum of those of `mask_losses`.
        region_rule: what metrics leave out because of ignored regions: "coco", detections that match no object and lie
            in a region, as in pycocotools' crowds; "visdrone", detections and objects that are half inside.

    Raises:
        UsageError: the box loss, the normalizer or the region rule is unknown, delta or a scale is not above 0, or the
            thresholds are invalid.
    """

    labels: tuple[str, ...]
    alpha: float | None = 0.25
    gamma: float = 2.0
    box_loss: str = "smooth_l1"
    delta: float = 1.0
    class_loss_weight: float = 1.0
    box_loss_weight: float = 1.0
    normalize_loc_loss_by_codesize: bool = False
    normalizer: str = "matches"
    box_code_scales: tuple[float, ...] = SCALES
    score_threshold: float = 1e-8
    nms_iou: float = 0.6
    max_detections: int = 100
    max_candidates_per_level: int = 1000
    region_rule: str = "coco"
    masks: bool = False
    mask_loss_weight: float = 1.0

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of a batch that the loss needs besides `image`."""
        return ("boxes", "classes", "num_boxes", "is_crowd", *self.on_grid)

    @property
    def on_grid(self) -> tuple[str, ...]:
        """Keys of a batch that are on the image's grid."""
        return (OBJECT_MAP,) if self.masks else ()

    @property
    def truth(self) -> tuple[str, ...]:
        """Keys of a batch that the metrics need."""
        return ("boxes", "classes", "num_boxes", "is_crowd", "area", IGNORED_BOXES)

    @property
    def include(self) -> tuple[str, ...]:
        """Optional fields that evaluation and prediction need."""
        return ("transform", "source_height", "source_width", *(("masks",) if self.masks else ()))

    @property
    def best(self) -> str:
        """Metric that selects the best checkpoint."""
        return MASK_METRICS[0] if self.masks else "mAP"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.box_loss not in BOX_LOSSES:
            raise UsageError(f"box_loss: expected one of {', '.join(BOX_LOSSES)}, got {self.box_loss!r}")
        if self.normalizer not in NORMALIZERS:
            raise UsageError(f"normalizer: expected one of {', '.join(NORMALIZERS)}, got {self.normalizer!r}")
        if self.region_rule not in REGION_RULES:
            raise UsageError(
                f"region_rule: expected one of {', '.join(REGION_RULES)}, got {self.region_rule!r}"
            )
        if not self.delta > 0:
            raise UsageError(f"delta: expected a value above 0, got {self.delta}")
        object.__setattr__(self, "box_code_scales", tuple(self.box_code_scales))
        if len(self.box_code_scales) != 4 or not min(self.box_code_scales) > 0:
            raise UsageError(
                f"box_code_scales: expected four values above 0, got {list(self.box_code_scales)}"
            )

    def loss(
        self, outputs: Sequence[Level] | MaskedLevels, batch: DeviceBatch
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the weighted sum of all losses, and its parts unweighted.

        The parts are `class_loss` and `box_loss`, and with a mask head `foreground_loss` and `pixel_box_loss`.
        """
        if not isinstance(outputs, MaskedLevels):
            return self._detection_loss(outputs, batch)
        loss, parts = self._detection_loss(outputs.levels, batch)
        valid, boxes = valid_rows(batch), batch["boxes"]
        is_object = (jnp.arange(boxes.shape[1]) < batch["num_boxes"][:, None]) & ~batch["is_crowd"].astype(
            bool
        )
        foreground, pixel_boxes = mask_losses(
            outputs.pixels, batch[OBJECT_MAP], boxes, is_object, valid, batch.get(IGNORED_BOXES)
        )
        loss += self.mask_loss_weight * (foreground + pixel_boxes)
        return loss, {**parts, "foreground_loss": foreground, "pixel_box_loss": pixel_boxes}

    def _detection_loss(
        self, outputs: Sequence[Level], batch: DeviceBatch
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        dtype, valid = outputs[0].box_codes.dtype, valid_rows(batch)
        boxes = batch["boxes"].astype(dtype)
        is_box = (jnp.arange(boxes.shape[1]) < batch["num_boxes"][:, None]) & valid[:, None]
        anchors = [split_alike(level.anchors, level.box_codes) for level in outputs]
        regions = batch.get(IGNORED_BOXES)
        matches = match_boxes(self, anchors, boxes, is_box, batch["is_crowd"].astype(bool), regions)
        # Padding may hold any fill value, but zero times it must be zero.
        table = jnp.concatenate([boxes, batch["classes"][..., None].astype(dtype)], -1)
        table = jnp.where(is_box[..., None], table, 0)

        class_loss = box_loss = jnp.zeros((), dtype)
        matched_count = jnp.zeros((), jnp.int32)
        for level, level_anchors, matched in zip(outputs, anchors, matches, strict=True):
            targets = take(table, matched)
            is_matched = matched >= 0
            # Ignored anchors and rows of padding enter no loss.
            counts = (matched != IGNORED) & valid[:, None, None, None]
            class_loss += self._class_loss(level.class_logits, jnp.where(counts, targets[..., 4], -1))
            difference = level.box_codes - encode(targets[..., :4], level_anchors, self.box_code_scales)
            code_losses = BOX_LOSSES[self.box_loss](difference, self.delta)
            box_loss += jnp.sum(jnp.where(is_matched[..., None], code_losses, 0))
            matched_count += jnp.sum(is_matched, dtype=jnp.int32)
        divisor = NORMALIZERS[self.normalizer](matched_count).astype(dtype)
        class_loss, box_loss = class_loss / divisor, box_loss / divisor
        # As SSDMetaArch of the Object Detection API: the mean over the four codes in place of their sum.
        if self.normalize_loc_loss_by_codesize:
            box_loss = box_loss / len(self.box_code_scales)
        loss = self.class_loss_weight * class_loss + self.box_loss_weight * box_loss
        return loss, {"class_loss": class_loss, "box_loss": box_loss}

    def _class_loss(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Sum the focal loss of anchors with labels [batch, height, width, anchor] of 0 (background) or above.

        Anchor and class stay one axis, as in the convolution's output: two axes would make a TPU copy several arrays
        of the logits' size.
        """
        anchors, classes = logits.shape[3:]
        channel = jnp.arange(anchors * classes)
        channel_labels = jnp.full((), -1, labels.dtype)
        for anchor in range(anchors):
            anchor_labels = labels[..., anchor : anchor + 1]
            channel_labels = jnp.where(channel // classes == anchor, anchor_labels, channel_labels)
        is_class = channel_labels == channel % classes + 1
        focal = sigmoid_focal(
            logits.reshape(*logits.shape[:3], -1), is_class, alpha=self.alpha, gamma=self.gamma
        )
        return jnp.sum(jnp.where(channel_labels >= 0, focal, 0))

    def predict(self, outputs: Sequence[Level] | MaskedLevels, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return the detections of `select`, and `image_size`, int32 [batch, 2]: height and width in pixels.

        With a mask head also `masks`, uint8 [batch, max_detections, rows, columns], of `detection_masks`, and
        `mask_stride`, int32 [batch]: pixels of the image between two of their rows.
        """
        levels, pixels = (
            (outputs.levels, outputs.pixels) if isinstance(outputs, MaskedLevels) else (outputs, None)
        )
        detections = select(
            levels,
            score_threshold=self.score_threshold,
            iou_threshold=self.nms_iou,
            max_detections=self.max_detections,
            max_candidates_per_level=self.max_candidates_per_level,
            scales=self.box_code_scales,
        )
        batch_size, *size = batch["image"].shape[:3]
        if pixels is not None:
            detections["masks"] = detection_masks(pixels, detections["boxes"], (size[0], size[1]))
            stride = jnp.array(pixels.stride, jnp.int32)
            detections["mask_stride"] = jnp.broadcast_to(stride, (batch_size,))
        return {**detections, "image_size": jnp.broadcast_to(jnp.array(size, jnp.int32), (batch_size, 2))}

    def metrics(self) -> Metrics:
        """Return empty COCO metrics."""
        return (MaskMetrics if self.masks else CocoMetrics)(self.labels, self.region_rule)
