"""Check that the anchors of a RetinaNet have the sizes of the boxes that it learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.trainer.detection.anchors import retinanet_anchors
from halofeed.trainer.detection.matcher import Matcher

WARNING_SHARE = 0.5
"""Share of the boxes without an anchor of their size from which on a run warns."""
_SCALES = (0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
_RATIOS = (1.0, 2.0, 0.5)


def retinanet_sizes(
    first_level: int, last_level: int, scale: float, aspect_ratios: Sequence[float], scales_per_octave: int
) -> NDArray[np.float64]:
    """Return the heights and widths [anchor, 2] of the anchors of all levels, in pixels.

    >>> retinanet_sizes(3, 4, 2.0, [1.0], 1).tolist()
    [[16.0, 16.0], [32.0, 32.0]]
    """
    sizes = []
    for level in range(first_level, last_level + 1):
        boxes = retinanet_anchors(
            (1, 1),
            (1, 1),
            stride=2**level,
            scale=scale,
            aspect_ratios=aspect_ratios,
            scales_per_octave=scales_per_octave,
        )[0, 0].astype(float)
        sizes.append(boxes[:, 2:] - boxes[:, :2])
    return np.concatenate(sizes)


def best_overlaps(boxes: NDArray[Any], anchors: NDArray[Any]) -> NDArray[np.float64]:
    """Return the highest intersection over union [box] that a box reaches with an anchor about the same center.

    Args:
        boxes: heights and widths [box, 2] above 0.
        anchors: heights and widths [anchor, 2].

    >>> best_overlaps(np.array([[12.0, 12.0], [20.0, 40.0]]), np.array([[20.0, 20.0], [28.0, 28.0]])).round(2).tolist()
    [0.36, 0.55]
    """
    shared = np.minimum(boxes[:, None], anchors).prod(-1)
    overlaps: NDArray[np.float64] = (shared / (boxes.prod(-1)[:, None] + anchors.prod(-1) - shared)).max(1)
    return overlaps


def anchor_warning(
    boxes: NDArray[Any],
    matcher: Matcher,
    *,
    levels: tuple[int, int],
    scale: float,
    aspect_ratios: Sequence[float],
    scales_per_octave: int,
) -> str | None:
    """Return a warning if no anchor has the size of half of the boxes or more; None otherwise.

    Args:
        boxes: heights and widths [box, 2] in pixels of the model's image, all above 0.
        matcher: thresholds of the training.
        levels: first and last level of the pyramid.
        scale, aspect_ratios, scales_per_octave: options of `retinanet_anchors`.
    """
    if matcher.ignore_thresholds or not len(boxes):
        return None

    def unmatched(scale: float, ratios: Sequence[float]) -> NDArray[np.bool_]:
        anchors = retinanet_sizes(*levels, scale, ratios, scales_per_octave)
        return best_overlaps(boxes, anchors) < matcher.matched_threshold

    alone = unmatched(scale, aspect_ratios)
    if alone.mean() < WARNING_SHARE:
        return None
    sides = np.sqrt(boxes[alone].prod(-1))
    anchor_sides = np.sqrt(retinanet_sizes(*levels, scale, aspect_ratios, scales_per_octave).prod(-1))
    effect = (
        "only the nearest anchor learns each" if matcher.force_match_for_each_row else "no anchor learns them"
    )
    text = (
        f"warning: {alone.sum()} of {len(boxes)} boxes of the first batch overlap no anchor by "
        f"{matcher.matched_threshold:g}, so {effect}: these boxes have sides of {_span(sides)} pixels (root of the "
        f"area), the anchors {_span(anchor_sides)}"
    )
    # The choice nearest to the present one, of those that leave out the fewest boxes.
    candidates = [(other, ratios) for ratios in (aspect_ratios, _RATIOS) for other in _SCALES]
    left = [int(unmatched(*candidate).sum()) for candidate in candidates]
    few = min(left)
    if few > alone.sum() / 2:
        return f"{text}; convert the pictures to another size"
    near = [candidate for candidate, count in zip(candidates, left, strict=True) if count == few]
    ratios = near[0][1]
    best = min(
        (other for other, given in near if given is ratios), key=lambda other: abs(np.log(other / scale))
    )
    options = f"--set model.anchor_scale={best:g}"
    if ratios is not aspect_ratios:
        options += f" --set model.aspect_ratios=[{','.join(map(str, ratios))}]"
    return f"{text}; {options} leaves {few or 'none'}"


def _span(sides: NDArray[np.float64]) -> str:
    low, high = f"{sides.min():.0f}", f"{sides.max():.0f}"
    return low if low == high else f"{low} to {high}"
