"""Anchors of a RetinaNet that have the sizes of the boxes that it learns: a check, and the choice of better ones."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.trainer.detection.anchors import retinanet_anchors
from halofeed.trainer.detection.matcher import Matcher

WARNING_SHARE = 0.5
"""Share of the boxes without an anchor of their size from which on a run warns."""
_SCALES = (0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
_RATIOS = (1.0, 2.0, 0.5)
_COST_OF_TWICE = 0.05
"""Share of the boxes that twice the anchors must match besides. With it the choices are those that were made by hand:
level 2 with squares for the nuclei of DSB 2018, level 3 with three ratios for kangaroos, and none for blood cells."""
_OFFSETS = {0.0: 0.25, 0.25: 0.5, 0.5: 0.25}
"""Distances of a box's center from the nearest anchor along an axis, in strides, and how often each occurs."""


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


@dataclass(frozen=True, kw_only=True)
class Anchors:
    """Sizes of the anchors of a RetinaNet.

    Args:
        levels: first and last level of the pyramid.
        scale, aspect_ratios, scales_per_octave: options of `retinanet_anchors`.
    """

    levels: tuple[int, int]
    scale: float
    aspect_ratios: tuple[float, ...]
    scales_per_octave: int

    def sizes(self) -> NDArray[np.float64]:
        """Return the heights and widths [anchor, 2] of the anchors of all levels, in pixels."""
        return retinanet_sizes(*self.levels, self.scale, self.aspect_ratios, self.scales_per_octave)

    def unmatched(self, boxes: NDArray[Any], threshold: float) -> NDArray[np.bool_]:
        """Return which boxes, heights and widths [box, 2] in pixels, overlap no anchor by the threshold."""
        return best_overlaps(boxes, self.sizes()) < threshold

    def matched_share(self, boxes: NDArray[Any], threshold: float) -> float:
        """Return the share of boxes, heights and widths [box, 2], that overlap an anchor by the threshold, 0 to 1.

        Boxes lie anywhere between the anchors, which are a stride apart. So anchors that have the size of their boxes,
        and not of their stride, leave out some of them.
        """
        anchors = self.sizes()
        first, last = self.levels
        levels = last - first + 1
        strides = np.repeat(2.0 ** np.arange(first, last + 1), len(anchors) // levels)[:, None]
        half, anchor_half = boxes[:, None] / 2, anchors / 2
        sides = {
            offset: np.clip(
                np.minimum(half, offset * strides + anchor_half)
                - np.maximum(-half, offset * strides - anchor_half),
                0,
                None,
            )
            for offset in _OFFSETS
        }
        areas = boxes.prod(-1)[:, None] + anchors.prod(-1)
        share = 0.0
        for (down, often_down), (across, often_across) in itertools.product(_OFFSETS.items(), repeat=2):
            common = sides[down][..., 0] * sides[across][..., 1]
            best = (common / (areas - common)).max(1)
            share += often_down * often_across * float((best >= threshold).mean())
        return share

    @property
    def per_pixel(self) -> float:
        """Number of anchors per pixel of the image."""
        first, last = self.levels
        positions: float = sum(0.25**level for level in range(first, last + 1))
        return positions * len(self.aspect_ratios) * self.scales_per_octave

    def options(self, other: Anchors) -> dict[str, Any]:
        """Return the options of a model, by name, in which these anchors differ from others."""
        own: dict[str, Any] = {
            "first_level": self.levels[0],
            "anchor_scale": self.scale,
            "aspect_ratios": list(self.aspect_ratios),
        }
        others = (other.levels[0], other.scale, list(other.aspect_ratios))
        return {name: value for (name, value), old in zip(own.items(), others, strict=True) if value != old}


def best_anchors(
    boxes: NDArray[Any],
    present: Anchors,
    threshold: float,
    first_levels: Sequence[int] = (),
    fixed: Collection[str] = (),
) -> Anchors:
    """Return the anchors that match most boxes at their cost, and of equal ones the nearest to the present scale.

    Args:
        boxes: heights and widths [box, 2] in pixels of the model's image, all above 0; one at least.
        present: anchors to improve.
        threshold: overlap of a box with its anchor.
        first_levels: first levels of the pyramid to try, besides the present one.
        fixed: names of `Anchors.options` that keep their value.

    >>> cells = np.full((9, 2), 8.0)
    >>> present = Anchors(levels=(3, 5), scale=2.5, aspect_ratios=(1.0,), scales_per_octave=2)
    >>> best_anchors(cells, present, 0.5, [2]).options(present)
    {'first_level': 2}
    """
    candidates = [present] + [
        replace(present, levels=(first, present.levels[1]), scale=scale, aspect_ratios=ratios)
        for first in dict.fromkeys((present.levels[0], *first_levels))
        for ratios in (present.aspect_ratios, _RATIOS)
        for scale in _SCALES
    ]
    return max(
        (one for one in candidates if not set(one.options(present)) & set(fixed)),
        key=lambda one: (
            round(one.matched_share(boxes, threshold) - _COST_OF_TWICE * np.log2(one.per_pixel), 6),
            -abs(np.log(one.scale / present.scale)),
        ),
    )


def anchor_warning(
    boxes: NDArray[Any],
    matcher: Matcher,
    *,
    levels: tuple[int, int],
    scale: float,
    aspect_ratios: Sequence[float],
    scales_per_octave: int,
    first_levels: Sequence[int] = (),
) -> str | None:
    """Return a warning if no anchor has the size of half of the boxes or more; None otherwise.

    Args:
        boxes: heights and widths [box, 2] in pixels of the model's image, all above 0.
        matcher: thresholds of the training.
        levels: first and last level of the pyramid.
        scale, aspect_ratios, scales_per_octave: options of `retinanet_anchors`.
        first_levels: first levels that the model can have.
    """
    if matcher.ignore_thresholds or not len(boxes):
        return None
    present = Anchors(
        levels=levels,
        scale=scale,
        aspect_ratios=tuple(aspect_ratios),
        scales_per_octave=scales_per_octave,
    )
    alone = present.unmatched(boxes, matcher.matched_threshold)
    if alone.mean() < WARNING_SHARE:
        return None
    sides, anchor_sides = (np.sqrt(sizes.prod(-1)) for sizes in (boxes[alone], present.sizes()))
    effect = (
        "only the nearest anchor learns each" if matcher.force_match_for_each_row else "no anchor learns them"
    )
    text = (
        f"warning: {alone.sum()} of {len(boxes)} boxes of the first batch overlap no anchor by "
        f"{matcher.matched_threshold:g}, so {effect}: these boxes have sides of {_span(sides)} pixels (root of the "
        f"area), the anchors {_span(anchor_sides)}"
    )
    best = best_anchors(boxes, present, matcher.matched_threshold, first_levels)
    few = int(best.unmatched(boxes, matcher.matched_threshold).sum())
    if few > alone.sum() / 2:
        return f"{text}; convert the pictures to another size"
    words = [f"--set model.{name}={_toml(value)}" for name, value in best.options(present).items()]
    return f"{text}; {' '.join(words)} leaves {few or 'none'}"


def _toml(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else f"{value:g}"


def _span(sides: NDArray[np.float64]) -> str:
    low, high = f"{sides.min():.0f}", f"{sides.max():.0f}"
    return low if low == high else f"{low} to {high}"
