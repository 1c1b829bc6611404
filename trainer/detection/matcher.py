"""Which ground-truth box does each anchor stand for? The argmax matcher, level by level.

Anchors stay [height, width, anchor, 4] per level and are never put into one list, so that a level that is split over
cores stays split: only each ground truth's best anchor is compared across cores and levels. Nothing here gathers or
scatters, and the overlaps [batch, height, width, anchor, box] exist only inside the reductions over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from halofeed.errors import UsageError

UNMATCHED, IGNORED = -1, -2
CROWD_SHARE = 0.5
"""From which share of its area on in a crowd an anchor is ignored."""


@dataclass(frozen=True, kw_only=True)
class Matcher:
    """The thresholds of the argmax matcher.

    Args:
        matched_threshold: from which overlap on an anchor stands for its best ground truth.
        unmatched_threshold: below which it is background; between the two it is ignored.
        negatives_lower_than_unmatched: False swaps the two: background between the thresholds, ignored below.
        force_match: each ground truth takes its best anchor, whatever the thresholds say. Of equal anchors the first
            is taken, of two ground truths that share one the first gets it.

    Raises:
        UsageError: the thresholds are out of order, or equal where background lies between them.
    """

    matched_threshold: float = 0.5
    unmatched_threshold: float = 0.5
    negatives_lower_than_unmatched: bool = True
    force_match: bool = True

    def __post_init__(self) -> None:
        between = (
            "" if self.negatives_lower_than_unmatched else ", and apart where background lies between them"
        )
        if self.unmatched_threshold > self.matched_threshold or (
            between and self.unmatched_threshold == self.matched_threshold
        ):
            raise UsageError(
                f"unmatched_threshold: expected at most matched_threshold{between}, "
                f"got {self.unmatched_threshold} and {self.matched_threshold}"
            )

    def match(self, similarities: Sequence[Callable[[], jax.Array]], is_object: jax.Array) -> list[jax.Array]:
        """Match the anchors of all levels to the ground truth of their images.

        Args:
            similarities: per level, makes [batch, height, width, anchor, box]; higher is nearer. It is called once
                for each reduction, so that no reduction waits for the whole array.
            is_object: bool [batch, box]; others never match.

        Returns:
            Per level int32 [batch, height, width, anchor]: the index of a box, -1 background, -2 ignored; what
            matching one list of all levels' anchors would give. All are -1 where an image has no object.
        """
        matches = [self._by_threshold(similarity(), is_object) for similarity in similarities]
        if not self.force_match:
            return matches
        best = [_best_anchor(similarity()) for similarity in similarities]
        best_level = jnp.argmax(jnp.stack([value for value, _ in best]), 0)
        return [
            _force(matched, jnp.where(is_object & (best_level == level), index, -1))
            for level, (matched, (_, index)) in enumerate(zip(matches, best, strict=True))
        ]

    def _by_threshold(self, similarity: jax.Array, is_object: jax.Array) -> jax.Array:
        among = jnp.where(_per_anchor(is_object), similarity, -jnp.inf)
        value, box = _first_largest(among, jax.lax.broadcasted_iota(jnp.int32, among.shape, 4), (4,))
        below, between = (UNMATCHED, IGNORED) if self.negatives_lower_than_unmatched else (IGNORED, UNMATCHED)
        matched = jnp.where(value >= self.matched_threshold, box, between)
        matched = jnp.where(value < self.unmatched_threshold, below, matched)
        return jnp.where(jnp.any(is_object, -1)[:, None, None, None], matched, UNMATCHED)


def match_boxes(
    matcher: Matcher, anchors: Sequence[jax.Array], boxes: jax.Array, is_box: jax.Array, is_crowd: jax.Array
) -> list[jax.Array]:
    """Match anchors to boxes by intersection over union.

    A crowd is no object: no anchor stands for it, but an anchor with half of its area or more in one crowd is
    ignored unless it stands for an object, for what it sees may be one of the crowd. Boxes without area never match.

    Args:
        matcher: the thresholds.
        anchors: per level [batch or 1, height, width, anchor, 4]; the work on a level is split as these are.
        boxes: [batch, box, 4], ymin, xmin, ymax, xmax in the anchors' units.
        is_box: bool [batch, box], False for padding.
        is_crowd: bool [batch, box].

    Returns:
        Per level int32 [batch, height, width, anchor]: the index of a box, -1 background, -2 ignored.
    """
    is_box = is_box & jnp.all(boxes[..., 2:] > boxes[..., :2], -1)
    is_object, is_crowd = is_box & ~is_crowd, is_box & is_crowd

    def overlap_with(level: jax.Array) -> Callable[[], jax.Array]:
        # The barrier keeps XLA from sharing one array among the reductions: it would not fit on a core.
        return lambda: overlap(*jax.lax.optimization_barrier((level, boxes)))  # type: ignore[no-untyped-call]

    matches = matcher.match([overlap_with(level) for level in anchors], is_object)
    return [
        jnp.where((matched < 0) & _in_crowd(level, boxes, is_crowd), IGNORED, matched)
        for level, matched in zip(anchors, matches, strict=True)
    ]


def split_alike(anchors: jax.Array, codes: jax.Array) -> jax.Array:
    """Anchors for a whole batch, split over cores as the box codes of their level are.

    Of a constant XLA gives every core the whole, and with it the matching of the whole level.

    Args:
        anchors: [height, width, anchor, 4].
        codes: [batch, height, width, anchor, 4].

    Returns:
        The anchors in the codes' shape and dtype.
    """
    of_batch = jnp.broadcast_to(anchors.astype(codes.dtype), codes.shape)
    return _shard_alike(*jax.lax.stop_gradient((of_batch, codes)))  # type: ignore[no-untyped-call]


def _shard_alike(array: jax.Array, other: jax.Array) -> jax.Array:
    """The array, split as another is."""
    try:
        from jax.experimental.shard_alike import shard_alike
    except ImportError:
        # jax 0.11 has none. The sum is split as its parts are, and XLA does not see that one of them is zero.
        return array + jnp.minimum(jnp.abs(other), 0)
    alike: jax.Array
    alike, _ = shard_alike(array, other)  # type: ignore[no-untyped-call]
    return alike


def take(values: jax.Array, matches: jax.Array) -> jax.Array:
    """Each anchor's row of a table per image, as a one-hot product: a gather would not stay split over cores.

    Args:
        values: floating point, all finite, [batch, box, value].
        matches: int [batch, height, width, anchor]; below 0 gives zeros.

    Returns:
        [batch, height, width, anchor, value], exactly those given.
    """
    chosen = jax.nn.one_hot(matches, values.shape[1], dtype=values.dtype)
    # At a lower precision a TPU would round the values to bfloat16.
    return jnp.einsum("bhwan,bnv->bhwav", chosen, values, precision=jax.lax.Precision.HIGHEST)


def overlap(anchors: jax.Array, boxes: jax.Array) -> jax.Array:
    """Intersection over union of all anchors and boxes.

    Args:
        anchors: [batch or 1, height, width, anchor, 4], ymin, xmin, ymax, xmax.
        boxes: [batch, box, 4].

    Returns:
        [batch, height, width, anchor, box]; 0 where both have no area.
    """
    common = _intersection(anchors, boxes)
    union = _area(anchors)[..., None] + _per_anchor(_area(boxes)) - common
    return jnp.where(common > 0, common / jnp.where(common > 0, union, 1), 0)


def _in_crowd(anchors: jax.Array, boxes: jax.Array, is_crowd: jax.Array) -> jax.Array:
    """bool [batch, height, width, anchor]."""
    anchors, boxes = jax.lax.optimization_barrier((anchors, boxes))  # type: ignore[no-untyped-call]
    inside = _intersection(anchors, boxes) >= CROWD_SHARE * _area(anchors)[..., None]
    return jnp.any(inside & _per_anchor(is_crowd), -1)


def _intersection(anchors: jax.Array, boxes: jax.Array) -> jax.Array:
    """Areas [batch, height, width, anchor, box]."""

    def along(low: int, high: int) -> jax.Array:
        first = jnp.maximum(anchors[..., None, low], _per_anchor(boxes[..., low]))
        last = jnp.minimum(anchors[..., None, high], _per_anchor(boxes[..., high]))
        return jnp.maximum(last - first, 0)

    return along(0, 2) * along(1, 3)


def _area(boxes: jax.Array) -> jax.Array:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def _per_anchor(by_box: jax.Array) -> jax.Array:
    """[batch, box] as [batch, 1, 1, 1, box]."""
    return by_box[:, None, None, None, :]


def _best_anchor(similarity: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Per box of [batch, height, width, anchor, box], the largest similarity and the first anchor that has it.

    Returns:
        [batch, box], and int32 [batch, box], the anchor's index in the order height, width, anchor.
    """
    return _first_largest(similarity, _anchor_index(similarity.shape), (1, 2, 3))


def _anchor_index(shape: Sequence[int]) -> jax.Array:
    """Per entry of [batch, height, width, anchor, ...], the anchor's index in the order height, width, anchor."""
    row, column, anchor = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (1, 2, 3))
    return (row * shape[2] + column) * shape[3] + anchor


def _first_largest(values: jax.Array, index: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The largest value along the axes and its index, the least among equals.

    One reduction of pairs: a second pass that looked for the largest value again might find it rounded otherwise.
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
    """Give the anchors [batch, height, width, anchor] at forced_index [batch, box] (-1 is none) to these boxes."""
    count = forced_index.shape[1]
    shape = (*matched.shape, count)
    is_forced = _anchor_index(shape) == _per_anchor(forced_index)
    box = jnp.min(jnp.where(is_forced, jax.lax.broadcasted_iota(jnp.int32, shape, 4), count), 4)
    return jnp.where(box < count, box, matched)
