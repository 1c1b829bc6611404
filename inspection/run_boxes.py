"""Which predicted boxes meet an annotated one, and how do boxes and their names lie over a picture?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.layout import colour_of
from halofeed.inspection.markup import Markup, element
from halofeed.inspection.run_examples import Boxes

LEAST_SCORE = 0.3
"""Predictions below are left out of the pictures, unless there is none above."""
LEAST_OVERLAP = 0.5
_STRONGEST = 3
_TAG_WIDTH, _TAG_LETTER, _TAG_HEIGHT = 0.05, 0.024, 0.06
"""A box's tag on a picture of width 1: its least width, what each letter adds, and its height."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Which boxes are shown and how they meet.

    Args:
        shown: how many predictions are shown, the surest; of so many.
        weak: none of them reaches `LEAST_SCORE`.
        found: bool [truth]; whether a shown prediction of the same class meets it.
        right: bool [shown]; whether the prediction meets an annotated box.
    """

    shown: int
    weak: bool
    found: NDArray[np.bool_]
    right: NDArray[np.bool_]


def meet(truth: Boxes, predicted: Boxes) -> Meeting:
    """Pair shown predictions, the surest first, each with the free box of its class that it overlaps most.

    A prediction on a crowd is right, and leaves the crowd free for others. A pair overlaps by half of its union or
    more.
    """
    sure = int((predicted.scores >= LEAST_SCORE).sum())
    weak = sure == 0
    shown = min(_STRONGEST, len(predicted.scores)) if weak else sure
    found, right = np.zeros(len(truth.classes), bool), np.zeros(shown, bool)
    for at in range(shown):
        overlaps = np.where(
            truth.classes == predicted.classes[at], _overlaps(predicted.corners[at], truth), 0
        )
        for open_to_all in (False, True):
            free = np.where(truth.crowd if open_to_all else ~truth.crowd & ~found, overlaps, 0)
            if len(free) and free.max() >= LEAST_OVERLAP:
                found[int(np.argmax(free))] = right[at] = True
                break
    return Meeting(shown=shown, weak=weak, found=found, right=right)


def draw_boxes(
    boxes: Boxes,
    names: Sequence[str],
    dashed: Sequence[bool],
    ranks: Mapping[int, int],
    size: tuple[int, int],
) -> list[Markup]:
    """Boxes over a picture of (height, width), in the colors of their classes, with names where there is room.

    Args:
        names: one per box, written into its tag.
        dashed: one per box; whether its outline is.
    """
    height, width = size
    drawn, tags = [], []
    taken: list[tuple[float, float, float, float]] = []
    for corners, label, name, broken in zip(
        boxes.corners.tolist(), boxes.classes.tolist(), names, dashed, strict=True
    ):
        top, left, bottom, right = corners
        style = colour_of(ranks.get(label, 0))
        sides = {
            "x": left * width,
            "y": top * height,
            "width": max(0.0, right - left) * width,
            "height": max(0.0, bottom - top) * height,
        }
        placed = {side: f"{value:.2f}" for side, value in sides.items()}
        drawn.append(element("rect", {"style": style, "class": "dashed" if broken else None, **placed}))
        length = min(0.6, _TAG_WIDTH + _TAG_LETTER * len(name))
        start = max(0.0, min(left, 1 - length))
        # Above the box where there is room, so that a small object is not covered.
        high = _TAG_HEIGHT * width / height
        foot = top if high <= top <= 1 else min(max(top, 0.0), max(0.0, 1 - high)) + high
        room = (start, foot - high, start + length, foot)
        if not any(_clash(room, other) for other in taken):
            taken.append(room)
            side = f"left:{100 * start:.2f}%" if start == left else f"right:{100 * (1 - start - length):.2f}%"
            place = f"{style};{side};bottom:{100 * (1 - foot):.2f}%"
            tags.append(element("span", {"class": "tag", "style": place}, name))
    if not drawn:
        return []
    overlay = element(
        "svg",
        {"viewBox": f"0 0 {width} {height}", "preserveAspectRatio": "none", "aria-hidden": "true"},
        element("g", "halo", drawn),
        element("g", "boxes", drawn),
    )
    return [overlay, *tags]


def _overlaps(box: NDArray[np.float64], truth: Boxes) -> NDArray[np.float64]:
    """Intersection over union with each annotated box; over the prediction's own area where that is a crowd."""
    others = truth.corners
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.clip(sides, 0, None), axis=1)
    own = float(np.prod(np.clip(box[2:] - box[:2], 0, None)))
    areas = np.prod(np.clip(others[:, 2:] - others[:, :2], 0, None), axis=1)
    whole = np.where(truth.crowd, own, own + areas - shared)
    return np.asarray(np.where(whole > 0, shared / np.where(whole > 0, whole, 1), 0))


def _clash(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
