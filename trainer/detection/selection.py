"""Selection of detections: the best candidates of each level, then greedy non-maximum suppression per class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from halofeed.trainer.detection.anchors import SCALES, Level, decode
from halofeed.trainer.detection.matcher import box_overlap

ROW_BLOCKS, COLUMN_BLOCKS = 16, 2
"""Maximum number of blocks of a level in the first selection.

With up to 16 parts of rows and 2 of columns a core holds complete blocks. More blocks would keep more candidates.
"""


def select(
    levels: Sequence[Level],
    *,
    score_threshold: float = 1e-8,
    iou_threshold: float = 0.6,
    max_detections: int = 100,
    max_candidates_per_level: int = 1000,
    scales: Sequence[float] = SCALES,
) -> dict[str, jax.Array]:
    """Return the detections of each image, by decreasing score.

    Args:
        levels: outputs of a detector.
        score_threshold: score that a detection must exceed.
        iou_threshold: maximum overlap of a box with a detection of its class and a higher score.
        max_detections: maximum number of detections per image.
        max_candidates_per_level: number of pairs of anchor and class of a level that enter the suppression.
        scales: factors of the box codes, as for `encode`.

    Returns:
        `boxes` [batch, max_detections, 4], ymin, xmin, ymax, xmax within 0 and 1; `scores` [batch, max_detections];
        `classes` int32 [batch, max_detections], from 1; `num_detections` int32 [batch]. The rest is zeros.
    """
    by_level = [candidates(level, max_candidates_per_level, scales) for level in levels]
    boxes, scores, classes = (jnp.concatenate(parts, 1) for parts in zip(*by_level, strict=True))
    boxes = jnp.clip(boxes, 0, 1)
    is_valid = jnp.all(boxes[..., 2:] > boxes[..., :2], -1) & (scores > score_threshold)
    kept, is_detection = suppress(
        boxes,
        jnp.where(is_valid, scores, -1),
        classes,
        iou_threshold=iou_threshold,
        max_detections=max_detections,
    )

    def take_kept(values: jax.Array) -> jax.Array:
        taken = _take_boxes(values, kept)
        return jnp.where(is_detection.reshape(*is_detection.shape, *[1] * (taken.ndim - 2)), taken, 0)

    return {
        "boxes": take_kept(boxes),
        "scores": take_kept(scores),
        "classes": take_kept(classes + 1),
        "num_detections": jnp.sum(is_detection, 1, dtype=jnp.int32),
    }


def candidates(
    level: Level, count: int, scales: Sequence[float] = SCALES
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the pairs of anchor and class of one level with the highest scores.

    These pairs are among the `count` anchors with the highest maximum score. Each block of the level selects its own
    best anchors, then the best of all blocks are selected, so that cores of a split level exchange little.

    Args:
        level: outputs of a detector at one level.
        count: maximum number of pairs.
        scales: factors of the box codes, as for `encode`.

    Returns:
        Boxes [batch, count, 4], not clipped, scores [batch, count] from the highest on, and classes int32
        [batch, count] from 0.
    """
    anchors = jnp.broadcast_to(level.anchors.astype(level.box_codes.dtype), level.box_codes.shape)
    by_block = _best_anchors(
        [_blocks(values) for values in (level.class_logits, level.box_codes, anchors)], count
    )
    batch = len(by_block[0])
    logits, codes, anchors = _best_anchors(
        [values.reshape(batch, -1, values.shape[-1]) for values in by_block], count
    )

    classes = logits.shape[-1]
    pairs = logits.reshape(batch, -1)
    best, pair = jax.lax.top_k(pairs, min(count, pairs.shape[1]))
    boxes = _take_boxes(decode(codes, anchors, scales), pair // classes)
    return boxes, jax.nn.sigmoid(best), (pair % classes).astype(jnp.int32)


def suppress(
    boxes: jax.Array, scores: jax.Array, classes: jax.Array, *, iou_threshold: float, max_detections: int
) -> tuple[jax.Array, jax.Array]:
    """Apply greedy non-maximum suppression within each class.

    Each step keeps the box with the highest score, the first of equal ones, and removes boxes of its class that
    overlap it by more than the threshold.

    Args:
        boxes: [batch, box, 4].
        scores: [batch, box]; negative for entries that are not a box.
        classes: int [batch, box].
        iou_threshold: overlap above which a box is removed.
        max_detections: maximum number of boxes to keep.

    Returns:
        Indices int32 [batch, max_detections] by decreasing score, and bool [batch, max_detections], False for entries
        after the last box.
    """

    def keep_one(scores: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        best = jnp.argmax(scores, 1).astype(jnp.int32)
        is_box = jnp.take_along_axis(scores, best[:, None], 1)[:, 0] >= 0
        box, label = _take_boxes(boxes, best[:, None]), _take_boxes(classes, best[:, None])
        overlaps = box_overlap(box[:, None, None], boxes)[:, 0, 0, 0]
        is_removed = (overlaps > iou_threshold) & (label == classes)
        is_removed |= jnp.arange(scores.shape[1]) == best[:, None]
        return jnp.where(is_removed, -1, scores), (best, is_box)

    _, (kept, is_box) = jax.lax.scan(keep_one, scores, length=max_detections)
    return kept.T, is_box.T


def _blocks(values: jax.Array) -> jax.Array:
    """Reshape [batch, height, width, anchor, value] to [batch, row block, column block, anchor, value]."""
    batch, height, width, anchors, size = values.shape
    rows, columns = math.gcd(height, ROW_BLOCKS), math.gcd(width, COLUMN_BLOCKS)
    blocks = values.reshape(batch, rows, height // rows, columns, width // columns, anchors, size)
    return blocks.transpose(0, 1, 3, 2, 4, 5, 6).reshape(batch, rows, columns, -1, size)


def _best_anchors(arrays: Sequence[jax.Array], count: int) -> list[jax.Array]:
    """Select from arrays [..., anchor, value] the anchors with the largest maximum in the first array."""
    best_value = jnp.max(arrays[0], -1)
    # For top_k XLA would gather arrays that are split along the other axes.
    index = jnp.argsort(best_value, axis=-1, descending=True, stable=True)[..., :count]
    return [jnp.take_along_axis(values, index[..., None], -2) for values in arrays]


def _take_boxes(values: jax.Array, index: jax.Array) -> jax.Array:
    """Select from [batch, box, ...] the boxes of an index [batch, number]."""
    return jnp.take_along_axis(values, index.reshape(*index.shape, *[1] * (values.ndim - 2)), 1)
