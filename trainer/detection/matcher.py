"""Argmax matching of anchors to ground-truth boxes, level by level.

Anchors keep the shape [height, width, anchor, 4] of their level, so that a level that is split over cores stays split.
Only the best anchor of each ground truth is compared across cores and levels. No operation gathers or scatters, and
the overlaps [batch, height, width, anchor, box] exist only inside reductions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from halofeed.system.errors import UsageError

UNMATCHED, IGNORED = -1, -2
CROWD_SHARE = 0.5
"""Minimum share of an anchor's area inside a crowd or an ignored region at which the anchor is ignored."""


@dataclass(frozen=True, kw_only=True)
class Matcher:
    """Thresholds of the argmax matcher.

    Args:
        matched_threshold: minimum overlap at which an anchor matches its best ground truth.
        unmatched_threshold: overlap below which an anchor is background; between the two thresholds it is ignored.
        negatives_lower_than_unmatched: False swaps the two: background between the thresholds, ignored below.
        force_match_for_each_row: match each ground truth to its best anchor regardless of the thresholds. The first
            of equal anchors is used, and the first of two ground truths with the same anchor gets it.
        ignore_thresholds: match every anchor to its best ground truth, whatever their overlap.
        use_matmul_gather: accepted because configurations name it. Both values give the same result: targets are always
            taken by a matrix product (`take`).

    Raises:
        UsageError: the thresholds are out of order, or equal although background is between them.

    Source: `ArgMaxMatcher` of the TensorFlow Object Detection API, whose configurations have these names.
    """

    matched_threshold: float = 0.5
    unmatched_threshold: float = 0.5
    negatives_lower_than_unmatched: bool = True
    force_match_for_each_row: bool = True
    ignore_thresholds: bool = False
    use_matmul_gather: bool = True

    def __post_init__(self) -> None:
        low, high = self.unmatched_threshold, self.matched_threshold
        if self.ignore_thresholds:
            return
        if low > high or (low == high and not self.negatives_lower_than_unmatched):
            expected = "at most" if self.negatives_lower_than_unmatched else "less than"
            raise UsageError(
                f"unmatched_threshold: expected {expected} matched_threshold, got {low} and {high}"
            )

    def match(self, similarities: Sequence[Callable[[], jax.Array]], is_object: jax.Array) -> list[jax.Array]:
        """Match the anchors of all levels to the ground truth of their images.

        Args:
            similarities: function per level that computes [batch, height, width, anchor, box]; higher is nearer. Each
                reduction calls it again, so that the full array is never stored.
            is_object: bool [batch, box]; False for boxes that never match.

        Returns:
            Per level int32 [batch, height, width, anchor]: the index of a box, -1 background, -2 ignored. The result
            equals that of one list of all levels' anchors. All are -1 for an image without objects.
        """
        matches = [self._by_threshold(similarity(), is_object) for similarity in similarities]
        # Else a small object, whose best overlap is below the threshold, would be background.
        if not self.force_match_for_each_row:
            return matches
        # Largest similarity of each box, and its first anchor in the order height, width, anchor: [batch, box] each.
        best = [
            _first_largest(values, _anchor_index(values.shape), (1, 2, 3))
            for values in (similarity() for similarity in similarities)
        ]
        best_level = jnp.argmax(jnp.stack([value for value, _ in best]), 0)
        return [
            _force(matched, jnp.where(is_object & (best_level == level), index, -1))
            for level, (matched, (_, index)) in enumerate(zip(matches, best, strict=True))
        ]

    def _by_threshold(self, similarity: jax.Array, is_object: jax.Array) -> jax.Array:
        similarity = jnp.where(_per_anchor(is_object), similarity, -jnp.inf)
        value, box = _first_largest(
            similarity, jax.lax.broadcasted_iota(jnp.int32, similarity.shape, 4), (4,)
        )
        below, between = (UNMATCHED, IGNORED) if self.negatives_lower_than_unmatched else (IGNORED, UNMATCHED)
        matched = jnp.where(value >= self.matched_threshold, box, between)
        matched = jnp.where(value < self.unmatched_threshold, below, matched)
        matched = box if self.ignore_thresholds else matched
        # Without objects all similarities are equal, and no anchor may match the first of them.
        return jnp.where(jnp.any(is_object, -1)[:, None, None, None], matched, UNMATCHED)


def match_boxes(
    matcher: Matcher,
    anchors: Sequence[jax.Array],
    boxes: jax.Array,
    is_box: jax.Array,
    is_crowd: jax.Array,
    regions: jax.Array | None = None,
) -> list[jax.Array]:
    """Match anchors to boxes by intersection over union.

    No anchor matches a crowd or an ignored region. An unmatched anchor with half of its area or more in one of them is
    ignored, because it may show a member of the crowd, or an object that nobody annotated. Boxes without area never
    match.

    Args:
        matcher: thresholds of the matcher.
        anchors: per level [batch or 1, height, width, anchor, 4]; their sharding splits the work on a level.
        boxes: [batch, box, 4], ymin, xmin, ymax, xmax in the anchors' units.
        is_box: bool [batch, box], False for padding.
        is_crowd: bool [batch, box].
        regions: [batch, region, 4], ignored regions; those without area are padding. None without any.

    Returns:
        Per level int32 [batch, height, width, anchor]: the index of a box, -1 background, -2 ignored.
    """
    # A box without area overlaps no anchor, but forced matching would give it one.
    is_box = is_box & jnp.all(boxes[..., 2:] > boxes[..., :2], -1)
    is_object, is_crowd = is_box & ~is_crowd, is_box & is_crowd

    def overlap_with(level: jax.Array) -> Callable[[], jax.Array]:
        # The barrier prevents XLA from storing one array for all reductions: it would not fit on a core.
        return lambda: box_overlap(*jax.lax.optimization_barrier((level, boxes)))  # type: ignore[no-untyped-call]

    matches = matcher.match([overlap_with(level) for level in anchors], is_object)
    ignoring, is_ignoring = boxes, is_crowd
    if regions is not None:
        is_region = jnp.all(regions[..., 2:] > regions[..., :2], -1)
        ignoring = jnp.concatenate([boxes, regions.astype(boxes.dtype)], 1)
        is_ignoring = jnp.concatenate([is_crowd, is_region], 1)
    return [
        jnp.where((matched < 0) & _in_crowd(level, ignoring, is_ignoring), IGNORED, matched)
        for level, matched in zip(anchors, matches, strict=True)
    ]


def split_alike(anchors: jax.Array, codes: jax.Array) -> jax.Array:
    """Return the anchors of a batch, split over cores like the box codes of their level.

    XLA replicates a constant on every core, and would then match the complete level on every core.

    Args:
        anchors: [height, width, anchor, 4].
        codes: [batch, height, width, anchor, 4].

    Returns:
        The anchors in the shape and dtype of the codes.
    """
    batched = jnp.broadcast_to(anchors.astype(codes.dtype), codes.shape)
    return _shard_alike(*jax.lax.stop_gradient((batched, codes)))  # type: ignore[no-untyped-call]


def _shard_alike(array: jax.Array, other: jax.Array) -> jax.Array:
    """Return the array with the sharding of another."""
    try:
        from jax.experimental.shard_alike import shard_alike
    except ImportError:
        # jax 0.11 lacks it. A sum is split like its parts, and XLA does not detect that one of them is zero.
        return array + jnp.minimum(jnp.abs(other), 0)
    alike: jax.Array
    alike, _ = shard_alike(array, other)  # type: ignore[no-untyped-call]
    return alike


def take(values: jax.Array, matches: jax.Array) -> jax.Array:
    """Return the values of each anchor's box, by a one-hot product: a gather would not stay split over cores.

    Args:
        values: finite floating-point numbers [batch, box, value].
        matches: int [batch, height, width, anchor]; a negative index gives zeros.

    Returns:
        [batch, height, width, anchor, value], without rounding.
    """
    is_matched = jax.nn.one_hot(matches, values.shape[1], dtype=values.dtype)
    # At a lower precision a TPU would round the values to bfloat16.
    return jnp.einsum("bhwan,bnv->bhwav", is_matched, values, precision=jax.lax.Precision.HIGHEST)


def box_overlap(anchors: jax.Array, boxes: jax.Array) -> jax.Array:
    """Return the intersection over union of all anchors and boxes.

    Args:
        anchors: [batch or 1, height, width, anchor, 4], ymin, xmin, ymax, xmax.
        boxes: [batch, box, 4].

    Returns:
        [batch, height, width, anchor, box]; 0 if both have no area.
    """
    common = _intersection(anchors, boxes)
    union = _area(anchors)[..., None] + _per_anchor(_area(boxes)) - common
    return jnp.where(common > 0, common / jnp.where(common > 0, union, 1), 0)


def _in_crowd(anchors: jax.Array, boxes: jax.Array, is_crowd: jax.Array) -> jax.Array:
    """Return whether enough of an anchor is inside one crowd, bool [batch, height, width, anchor]."""
    anchors, boxes = jax.lax.optimization_barrier((anchors, boxes))  # type: ignore[no-untyped-call]
    inside = _intersection(anchors, boxes) >= CROWD_SHARE * _area(anchors)[..., None]
    return jnp.any(inside & _per_anchor(is_crowd), -1)


def _intersection(anchors: jax.Array, boxes: jax.Array) -> jax.Array:
    """Return the common areas, [batch, height, width, anchor, box]."""

    def along(low: int, high: int) -> jax.Array:
        first = jnp.maximum(anchors[..., None, low], _per_anchor(boxes[..., low]))
        last = jnp.minimum(anchors[..., None, high], _per_anchor(boxes[..., high]))
        return jnp.maximum(last - first, 0)

    return along(0, 2) * along(1, 3)


def _area(boxes: jax.Array) -> jax.Array:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def _per_anchor(by_box: jax.Array) -> jax.Array:
    """Reshape [batch, box] to [batch, 1, 1, 1, box]."""
    return by_box[:, None, None, None, :]


def _anchor_index(shape: Sequence[int]) -> jax.Array:
    """Return for [batch, height, width, anchor, ...] each anchor's index in the order height, width, anchor."""
    row, column, anchor = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (1, 2, 3))
    return (row * shape[2] + column) * shape[3] + anchor


def _first_largest(values: jax.Array, index: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Return the largest value along the axes and its index, the smallest of equal values.

    It is one reduction of pairs, because a second pass may round differently and not find the largest value again.
    """

    def better(
        left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        wins = (left[0] > right[0]) | ((left[0] == right[0]) & (left[1] < right[1]))
        return jnp.where(wins, left[0], right[0]), jnp.where(wins, left[1], right[1])

    last = np.iinfo(np.int32).max
    start = (np.asarray(-np.inf, values.dtype), np.int32(last))
    value, first = jax.lax.reduce((values, index), start, better, axes)
    return value, first


def _force(matched: jax.Array, forced_index: jax.Array) -> jax.Array:
    """Match the anchors at forced_index [batch, box] (-1 for none) to these boxes."""
    count = forced_index.shape[1]
    shape = (*matched.shape, count)
    is_forced = _anchor_index(shape) == _per_anchor(forced_index)
    box = jnp.min(jnp.where(is_forced, jax.lax.broadcasted_iota(jnp.int32, shape, 4), count), 4)
    return jnp.where(box < count, box, matched)
