"""Which of a detector's many boxes are its answer? The best of each level, then greedy suppression per class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from halofeed.trainer.detection.anchors import Level, decode
from halofeed.trainer.detection.matcher import overlap

ROW_BLOCKS, COLUMN_BLOCKS = 16, 2
"""Into how many parts, at most, a level is cut for the first selection.

In splits of up to 16 by rows and 2 by columns a core holds whole parts; of more parts, more candidates would remain.
"""


def select(
    levels: Sequence[Level],
    *,
    score_threshold: float = 1e-8,
    iou_threshold: float = 0.6,
    max_detections: int = 100,
    max_candidates_per_level: int = 1000,
) -> dict[str, jax.Array]:
    """The detections of each image, the surest first.

    Args:
        levels: of a detector.
        score_threshold: a score must be above it.
        iou_threshold: a box that overlaps a surer one of its class by more is left out.
        max_detections: how many are given at most.
        max_candidates_per_level: how many pairs of anchor and class of a level enter the suppression.

    Returns:
        `boxes` [batch, max_detections, 4], ymin, xmin, ymax, xmax within 0 and 1; `scores` [batch, max_detections];
        `classes` int32 [batch, max_detections], from 1; `num_detections` int32 [batch]. Zeros from there on.
    """
    chosen = [candidates(level, max_candidates_per_level) for level in levels]
    boxes, scores, classes = (jnp.concatenate(parts, 1) for parts in zip(*chosen, strict=True))
    boxes = jnp.clip(boxes, 0, 1)
    real = jnp.all(boxes[..., 2:] > boxes[..., :2], -1) & (scores > score_threshold)
    kept, found = suppress(
        boxes,
        jnp.where(real, scores, -1),
        classes,
        iou_threshold=iou_threshold,
        max_detections=max_detections,
    )

    def of_kept(values: jax.Array) -> jax.Array:
        picked = _pick(values, kept)
        return jnp.where(found.reshape(*found.shape, *[1] * (picked.ndim - 2)), picked, 0)

    return {
        "boxes": of_kept(boxes),
        "scores": of_kept(scores),
        "classes": of_kept(classes + 1),
        "num_detections": jnp.sum(found, 1, dtype=jnp.int32),
    }


def candidates(level: Level, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The pairs of anchor and class of one level with the highest scores.

    They are among the `count` anchors whose highest score is highest. These are found in each block of the level,
    where a core has its own, and then among those of all blocks: little of a split level leaves its core.

    Args:
        level: of a detector.
        count: how many; fewer where the level has fewer.

    Returns:
        Boxes [batch, count, 4], not clipped, scores [batch, count] from the highest on, and classes int32
        [batch, count] from 0.
    """
    anchors = jnp.broadcast_to(level.anchors.astype(level.box_codes.dtype), level.box_codes.shape)
    of_anchor = _best_anchors(
        [_blocks(values) for values in (level.class_logits, level.box_codes, anchors)], count
    )
    batch = len(of_anchor[0])
    logits, codes, anchors = _best_anchors(
        [values.reshape(batch, -1, values.shape[-1]) for values in of_anchor], count
    )

    classes = logits.shape[-1]
    pairs = logits.reshape(batch, -1)
    best, pair = jax.lax.top_k(pairs, min(count, pairs.shape[1]))
    boxes = _pick(decode(codes, anchors), pair // classes)
    return boxes, jax.nn.sigmoid(best), (pair % classes).astype(jnp.int32)


def suppress(
    boxes: jax.Array, scores: jax.Array, classes: jax.Array, *, iou_threshold: float, max_detections: int
) -> tuple[jax.Array, jax.Array]:
    """Greedy non-maximum suppression within each class.

    The surest box is kept, those of its class that overlap it by more than the threshold fall, and so on; of equal
    scores the first is surer.

    Args:
        boxes: [batch, box, 4].
        scores: [batch, box]; below 0 is not a box.
        classes: int [batch, box].
        iou_threshold: a box falls above it.
        max_detections: how many are kept at most.

    Returns:
        Indices int32 [batch, max_detections], the surest first, and bool [batch, max_detections], False where
        nothing was left to keep.
    """

    def keep_one(scores: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        surest = jnp.argmax(scores, 1).astype(jnp.int32)
        found = jnp.take_along_axis(scores, surest[:, None], 1)[:, 0] >= 0
        box, label = _pick(boxes, surest[:, None]), _pick(classes, surest[:, None])
        overlaps = overlap(box[:, None, None], boxes)[:, 0, 0, 0]
        falls = (overlaps > iou_threshold) & (label == classes)
        falls |= jnp.arange(scores.shape[1]) == surest[:, None]
        return jnp.where(falls, -1, scores), (surest, found)

    _, (kept, found) = jax.lax.scan(keep_one, scores, length=max_detections)
    return kept.T, found.T


def _blocks(values: jax.Array) -> jax.Array:
    """[batch, height, width, anchor, value] as [batch, row block, column block, anchor, value]."""
    batch, height, width, anchors, size = values.shape
    rows, columns = math.gcd(height, ROW_BLOCKS), math.gcd(width, COLUMN_BLOCKS)
    cut = values.reshape(batch, rows, height // rows, columns, width // columns, anchors, size)
    return cut.transpose(0, 1, 3, 2, 4, 5, 6).reshape(batch, rows, columns, -1, size)


def _best_anchors(of_anchor: Sequence[jax.Array], count: int) -> list[jax.Array]:
    """Of arrays [..., anchor, value], those anchors whose largest value in the first array is largest."""
    surest = jnp.max(of_anchor[0], -1)
    # Not top_k, for which XLA gathers what is split along the axes before.
    index = jnp.argsort(surest, axis=-1, descending=True, stable=True)[..., :count]
    return [jnp.take_along_axis(values, index[..., None], -2) for values in of_anchor]


def _pick(values: jax.Array, index: jax.Array) -> jax.Array:
    """Of [batch, box, ...], the boxes [batch, index]."""
    return jnp.take_along_axis(values, index.reshape(*index.shape, *[1] * (values.ndim - 2)), 1)
