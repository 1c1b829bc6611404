"""Placement of boxes and keypoints on the stored image, and selection of the boxes that are kept.

Boxes are rows of ymin, xmin, ymax, xmax. `place_annotated_boxes` converts them from source pixels to coordinates of the
stored image, 0 to 1 over its padded size. Flips and crops change these coordinates.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from halofeed.prep.geometry.resize import (
    ResizePlan,
    Size,
    apply_affine,
    apply_to_boxes,
    area_factor,
    displayed_size,
    displayed_to_file,
    invert_affine,
    stored_to_file,
)
from halofeed.schemas import keys
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES
from halofeed.schemas.tfexample import Value
from halofeed.system.errors import SourceError, UsageError
from halofeed.system.wording import plural

if TYPE_CHECKING:
    # The loader crops boxes, and needs nothing that finds source files.
    from halofeed.prep.sources.example import Box, Keypoint

_Boxes = npt.NDArray[np.float64]
_Flags = npt.NDArray[np.bool_]

NOISE_PIXELS: Final = 1e-6
"""Tolerance in pixels: overhang that still counts as inside, and width that counts as empty."""
ROUNDED_SHARE: Final = 1e-6
"""Overhang as a share of a side that rounding causes: six decimals of a center and of half a size."""

_CHOICES: Final = {
    "outside": ("clip", "drop", "fail"),
    "zero_area": ("drop", "keep", "fail"),
    "crowd": ("keep", "drop", "objects"),
    "difficult": ("keep", "drop", "objects"),
}


@dataclass(frozen=True, kw_only=True)
class BoxPolicy:
    """Handling of boxes that a training may not want.

    Args:
        outside: "clip", "drop" or "fail" for a box that extends beyond the picture by more than a rounding error of
            six decimals. A box completely outside is dropped under "clip" too.
        zero_area: handling of a box annotated without height or width.
        crowd: handling of a crowd box; "objects" keeps it, and the caller clears its flag.
        difficult: handling of a difficult box; likewise.
    """

    outside: Literal["clip", "drop", "fail"] = "clip"
    zero_area: Literal["drop", "keep", "fail"] = "drop"
    crowd: Literal["keep", "drop", "objects"] = "keep"
    difficult: Literal["keep", "drop", "objects"] = "keep"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name}: expected one of {', '.join(choices)}, got {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True)
class PlacedBoxes:
    """Boxes of one image on its stored grid.

    Args:
        boxes: float32 [m, 4], normalized to the padded size, within 0 to 1.
        area: float32 [m], in stored pixels²: the scaled annotated area, or the area of the clipped box.
        kept: int64 [m], ascending indices of these boxes among the given ones.
        counts: numbers of boxes that are "clipped", "dropped outside", "dropped zero area", "dropped crowd" and
            "dropped difficult". A box with several reasons counts under the first of crowd, difficult, zero
            area, outside.
        zero_area: int64 [z], ascending indices of the given boxes that were dropped for zero area.
    """

    boxes: npt.NDArray[np.float32]
    area: npt.NDArray[np.float32]
    kept: npt.NDArray[np.int64]
    counts: dict[str, int]
    zero_area: npt.NDArray[np.int64]


def place_annotated_boxes(
    boxes: npt.ArrayLike,
    areas: npt.ArrayLike,
    is_crowd: npt.ArrayLike,
    difficult: npt.ArrayLike,
    plan: ResizePlan,
    orientation: int,
    policy: BoxPolicy,
) -> PlacedBoxes:
    """Place the boxes of one image on its stored grid, and clip or drop them.

    Args:
        boxes: [n, 4] in pixels of the annotated grid.
        areas: [n] in the same pixels², NaN without an annotated area.
        is_crowd: bool [n].
        difficult: bool [n].
        plan: sizes of the displayed picture.
        orientation: EXIF orientation if `boxes` are in the grid of the file; 1 if they are in the displayed grid.
        policy: handling of unwanted boxes.

    Raises:
        SourceError: stage `annotation`: a box is inverted or not finite, or an area is negative, even if the policy
            would drop the box. Stage `boxes`: the policy is "fail".

    >>> from halofeed.prep.geometry.resize import plan_keep_aspect
    >>> plan = plan_keep_aspect((100, 200), 50, 100, pad=True)
    >>> placed = place_annotated_boxes([[20, 40, 60, 240]], [np.nan], [False], [False], plan, 1, BoxPolicy())
    >>> placed.boxes.tolist(), placed.area.tolist(), placed.counts["clipped"]
    ([[0.10000000149011612, 0.20000000298023224, 0.30000001192092896, 1.0]], [1600.0], 1)
    """
    selected = select_boxes(
        AnnotatedBoxes(boxes=boxes, areas=areas, is_crowd=is_crowd, difficult=difficult),
        plan.source_size,
        orientation,
        policy,
    )
    scale = np.array(plan.resized_size * 2, np.float64) / np.array(plan.source_size * 2, np.float64)
    stored = selected.boxes * scale
    normalized = np.clip(stored / np.array(plan.output_size * 2, np.float64), 0, 1)
    annotated = selected.areas / area_factor(stored_to_file(plan, orientation))
    box_area = (stored[:, 2] - stored[:, 0]) * (stored[:, 3] - stored[:, 1])
    return PlacedBoxes(
        boxes=normalized.astype(np.float32),
        area=np.where(np.isnan(annotated), box_area, annotated).astype(np.float32),
        kept=selected.kept,
        counts=selected.counts,
        zero_area=selected.zero_area,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class AnnotatedBoxes:
    """Boxes of one picture as annotated, converted to arrays.

    Args:
        boxes: float64 [n, 4] in pixels of the annotated grid.
        areas: float64 [n] in the same pixels², NaN without an annotated area.
        is_crowd: bool [n].
        difficult: bool [n].
    """

    boxes: Any
    areas: Any
    is_crowd: Any
    difficult: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "boxes", np.asarray(self.boxes, np.float64).reshape(-1, 4))
        for name, dtype in (("areas", np.float64), ("is_crowd", np.bool_), ("difficult", np.bool_)):
            column = np.asarray(getattr(self, name), dtype).reshape(-1)
            if len(column) != len(self.boxes):
                count = plural(len(self.boxes), "box", "boxes")
                raise UsageError(f"{name}: expected one for each of {count}, got {len(column)}")
            object.__setattr__(self, name, column)


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectedBoxes:
    """Boxes of one picture that its policy keeps.

    Args:
        boxes: float64 [m, 4], in pixels of the displayed picture, and within it.
        areas: float64 [m], annotated areas in source pixels², NaN without one.
        kept, counts, zero_area: as in `PlacedBoxes`.
    """

    boxes: _Boxes
    areas: npt.NDArray[np.float64]
    kept: npt.NDArray[np.int64]
    counts: dict[str, int]
    zero_area: npt.NDArray[np.int64]


def select_boxes(
    annotated: AnnotatedBoxes, source_size: Size, orientation: int, policy: BoxPolicy
) -> SelectedBoxes:
    """Clip the boxes of one picture to it, or drop them.

    Args:
        source_size: displayed (height, width).
        orientation: EXIF orientation from the grid of the boxes to the displayed picture.
        policy: handling of unwanted boxes.

    Raises:
        SourceError: as `place_annotated_boxes`.
    """
    source_boxes = annotated.boxes
    _check_annotation(source_boxes, annotated.areas)
    file_size = displayed_size(orientation, source_size)
    displayed = apply_to_boxes(invert_affine(displayed_to_file(orientation, file_size)), source_boxes)
    limits = np.array(source_size * 2, np.float64)
    clipped = np.clip(displayed, 0, limits)

    empty = _shortest_side(displayed) <= NOISE_PIXELS
    overhang = np.abs(displayed - clipped)
    is_cut = (overhang > NOISE_PIXELS + ROUNDED_SHARE * limits).any(axis=1)
    invisible = (overhang > NOISE_PIXELS).any(axis=1) & (
        np.where(empty, _gap(displayed, limits) > NOISE_PIXELS, _shortest_side(clipped) <= NOISE_PIXELS)
    )
    reasons = {
        "dropped crowd": annotated.is_crowd & (policy.crowd == "drop"),
        "dropped difficult": annotated.difficult & (policy.difficult == "drop"),
        "dropped zero area": empty & (policy.zero_area != "keep"),
        "dropped outside": invisible if policy.outside == "clip" else invisible | is_cut,
    }
    remaining = np.ones(len(source_boxes), np.bool_)
    counts = {}
    dropped = {}
    for reason, applies in reasons.items():
        removed = remaining & applies
        # "fail" concerns boxes that no earlier reason has dropped.
        if removed.any() and policy.zero_area == "fail" and reason == "dropped zero area":
            _fail("box has zero area", source_boxes, removed, file_size)
        if removed.any() and policy.outside == "fail" and reason == "dropped outside":
            _fail("box reaches outside the picture", source_boxes, removed, file_size)
        counts[reason] = int(removed.sum())
        dropped[reason] = np.flatnonzero(removed).astype(np.int64)
        remaining &= ~applies
    kept = np.flatnonzero(remaining)
    return SelectedBoxes(
        boxes=clipped[kept],
        areas=annotated.areas[kept],
        kept=kept.astype(np.int64),
        counts={"clipped": int((is_cut & remaining).sum()), **counts},
        zero_area=dropped["dropped zero area"],
    )


def _shortest_side(boxes: _Boxes) -> npt.NDArray[np.float64]:
    return np.asarray(np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]))


def _gap(boxes: _Boxes, limits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the largest distance per axis between each box and the picture; negative if they overlap."""
    return np.asarray(np.maximum(boxes[:, :2] - limits[:2], -boxes[:, 2:]).max(axis=1))


def _check_annotation(boxes: _Boxes, areas: npt.NDArray[np.float64]) -> None:
    faults = (
        ("box coordinate is not finite", ~np.isfinite(boxes).all(axis=1)),
        ("box is inverted", (boxes[:, :2] > boxes[:, 2:]).any(axis=1)),
        ("box area is not a number of at least 0", np.isinf(areas) | (areas < 0)),
    )
    for reason, faulty in faults:
        if faulty.any():
            index = int(np.argmax(faulty))
            area = "" if np.isnan(areas[index]) else f", area {areas[index]:g}"
            raise SourceError("annotation", reason, _describe(index, boxes) + area)


def _describe(index: int, boxes: _Boxes) -> str:
    names = ("ymin", "xmin", "ymax", "xmax")
    values = ", ".join(f"{name} {value:g}" for name, value in zip(names, boxes[index], strict=True))
    return f"box {index}: {values}"


def _fail(reason: str, boxes: _Boxes, faulty: _Flags, size: tuple[int, int]) -> None:
    detail = _describe(int(np.argmax(faulty)), boxes)
    raise SourceError("boxes", reason, f"{detail}; the picture is {size[0]} high and {size[1]} wide")


# Stored boxes during augmentation: [..., n, 4] normalized, of one or several images


def flip_left_right(boxes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Mirror boxes [..., 4] left to right.

    >>> flip_left_right(np.array([[0, 0.25, 1, 0.5]])).tolist()
    [[0.0, 0.5, 1.0, 0.75]]
    """
    return flip_boxes(boxes, -1)


def flip_up_down(boxes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Mirror boxes [..., 4] top to bottom."""
    return flip_boxes(boxes, -2)


def flip_boxes(boxes: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """Mirror boxes along an axis of the image, counted from its last one.

    Args:
        boxes: [..., 4] of pictures or [..., 6] of volumes, normalized.
        axis: -1 for the width, -2 for the height, -3 for the depth.

    >>> flip_boxes(np.array([[0, 0.25, 0.5, 0.25, 1, 1]]), -3).tolist()
    [[0.75, 0.25, 0.5, 1.0, 1.0, 1.0]]
    """
    low, high = boxes.shape[-1] // 2 + axis, boxes.shape[-1] + axis
    flipped = boxes.copy()
    flipped[..., low], flipped[..., high] = 1 - boxes[..., high], 1 - boxes[..., low]
    return flipped


def turn_boxes(boxes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Turn boxes [..., 4] or [..., 6] counter-clockwise by a quarter in the plane of height and width, as np.rot90."""
    axes = boxes.shape[-1] // 2
    order = list(range(2 * axes))
    for last in (axes - 1, 2 * axes - 1):
        order[last - 1], order[last] = order[last], order[last - 1]
    return flip_boxes(boxes[..., order], -2)


def crop_boxes(
    boxes: npt.NDArray[Any],
    areas: npt.NDArray[Any],
    window: npt.ArrayLike,
    minimum_visible: float | npt.NDArray[np.float64] = 0.0,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Move boxes into a window of their image, and mark the boxes that are still visible.

    Args:
        boxes: floating [..., n, 4], or [..., n, 6] of volumes, normalized to the image.
        areas: floating [..., n], in pixels²; a crop does not change the size of a pixel.
        window: [..., 4], (top, left, height, width) normalized to the image, or [..., 6] with the first slice and the
            depth of a volume before them; one for all images, or one per image.
        minimum_visible: fraction of a box, 0 to 1, that must be inside the window to keep the box; one, or one per
            box, [..., n].

    Returns:
        Boxes normalized to the window, within 0 to 1; kept, bool [..., n]; areas times the visible fraction.
        Rows that are not kept hold zeros; the caller removes them. A box without area is kept if it is inside the
        window or on its edge; any other box must overlap the window.
    """
    if not np.all((np.asarray(minimum_visible) >= 0) & (np.asarray(minimum_visible) <= 1)):
        raise UsageError(f"minimum_visible: expected a share from 0 to 1, got {minimum_visible}")
    frame, axes = np.asarray(window, np.float64), boxes.shape[-1] // 2
    # A window without area would divide by 0.
    if not (frame[..., axes:] > 0).all():
        raise UsageError(f"window: expected a height and width above 0, got {frame.tolist()}")
    wide = boxes.astype(np.float64)
    corner, extent = (frame[..., None, [*range(first, first + axes)] * 2] for first in (0, axes))
    moved = (wide - corner) / extent
    cut = np.clip(moved, 0, 1)
    before, after = _areas(moved), _areas(cut)
    has_area = before > 0
    touches = ((moved[..., :axes] <= 1) & (moved[..., axes:] >= 0)).all(axis=-1)
    visible_fraction = np.where(has_area, after / np.where(has_area, before, 1), touches)
    kept = np.asarray((visible_fraction > 0) & (visible_fraction >= minimum_visible))
    new_boxes = np.where(kept[..., None], cut, 0).astype(boxes.dtype)
    return new_boxes, kept, np.where(kept, areas * visible_fraction, 0).astype(areas.dtype)


def _areas(boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the areas of boxes of pictures, and the volumes of those of volumes."""
    axes = boxes.shape[-1] // 2
    sides = [boxes[..., axis + axes] - boxes[..., axis] for axis in range(axes)]
    # Products of whole columns take half the time of `prod` along the last axis.
    return np.asarray(functools.reduce(operator.mul, sides))


def box_corners(boxes: Sequence[Box]) -> npt.NDArray[np.float64]:
    """Return the four corners of each object, float64 [object, 4, 2], (y, x) in the pixels of its box.

    An object without annotated corners has those of its box: top left, top right, bottom right, bottom left.

    >>> from halofeed.prep.sources.example import Box
    >>> box_corners([Box(ymin=1, xmin=2, ymax=3, xmax=5, label="hat")]).tolist()
    [[[1.0, 2.0], [1.0, 5.0], [3.0, 5.0], [3.0, 2.0]]]
    """
    written = [
        box.corners or (box.xmin, box.ymin, box.xmax, box.ymin, box.xmax, box.ymax, box.xmin, box.ymax)
        for box in boxes
    ]
    return np.array(written, np.float64).reshape(-1, 4, 2)[..., ::-1]


def corner_features(boxes: Sequence[Box], plan: ResizePlan, orientation: int) -> dict[str, Value]:
    """Return the features of the four corners of the kept objects, in the order of the annotation.

    They are normalized to the stored picture with its padding, like boxes, and not clipped: an object that exceeds its
    picture has corners below 0 or above 1.

    Args:
        boxes: objects in pixels of the annotated grid.
        plan: sizes of the displayed picture.
        orientation: EXIF orientation if the objects are in the grid of the file; 1 if they are in the displayed grid.
    """
    stored = apply_affine(invert_affine(stored_to_file(plan, orientation)), box_corners(boxes))
    shares = (stored / np.array(plan.output_size)).astype(np.float32).reshape(-1, 8)
    return dict(zip(keys.CORNER_POINTS, shares.T, strict=True))


KEYPOINTS_OUTSIDE = "keypoints that are labeled and lie outside of the picture: kept as they are"


def keypoint_features(
    objects: Sequence[Sequence[Keypoint]], plan: ResizePlan, orientation: int
) -> tuple[dict[str, Value], bool]:
    """Return the features of the keypoints of the kept objects, and whether labeled ones are outside the picture.

    The lists are flat, object by object, with the same number of points per object, as the Object Detection API
    expects. `num` is the number of labeled points of each object, like COCO's num_keypoints. Coordinates are normalized
    to the stored picture with its padding, like boxes. A point at 0, 0 that is not labeled has no position, and stays
    at 0, 0.

    Args:
        objects: keypoints of each object, in pixels of the annotated grid.
        plan: sizes of the displayed picture.
        orientation: EXIF orientation if the points are in the grid of the file; 1 if they are in the displayed grid.
    """
    points = [point for one in objects for point in one]
    placed = np.array([(point.y, point.x) for point in points], np.float64).reshape(-1, 2)
    visibility = np.array([point.visibility for point in points], np.int64)
    stored = apply_affine(invert_affine(stored_to_file(plan, orientation)), placed)
    sides = np.array(plan.resized_size)
    noise = NOISE_PIXELS + ROUNDED_SHARE * sides
    is_outside = (stored < -noise) | (stored > sides + noise)
    has_position = (visibility > 0) | (placed != 0).any(axis=1)
    normalized = np.where(has_position[:, None], stored / np.array(plan.output_size), 0).astype(np.float32)
    key = OPTIONAL_ATTRIBUTES["keypoints"]
    labeled = [sum(point.visibility > 0 for point in one) for one in objects]
    features: dict[str, Value] = {
        f"{key}/num": np.array(labeled, np.int64),
        f"{key}/text": [point.name.encode() for point in points],
        f"{key}/visibility": visibility,
        f"{key}/x": normalized[:, 1],
        f"{key}/y": normalized[:, 0],
    }
    return features, bool((is_outside.any(axis=1) & (visibility > 0)).any())
