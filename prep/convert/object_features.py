"""Objects of a picture: annotated values on one grid, counts, and features that do not depend on where an object is."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.resolve_boxes import scale_to_pixels
from halofeed.prep.annotations.written_boxes import BOX_IS_ORIENTED
from halofeed.prep.geometry.boxes import AnnotatedBoxes, BoxPolicy, select_boxes
from halofeed.prep.geometry.resize import ResizePlan, Size, displayed_size
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.voxels.masks import mask_area
from halofeed.schemas import keys
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES
from halofeed.schemas.tfexample import Value
from halofeed.system.errors import SourceError


def boxes_to_place(
    recipe: Recipe, reference: SourceExample, orientation: int, source_size: Size
) -> tuple[Box, ...]:
    """Return the boxes of a picture in pixels of the annotated grid, without the flags that the recipe ignores.

    Open Images' boxes around groups are crowds: its evaluation ignores detections of their class that are inside of
    them ("group-of" in the rules of its challenge).

    Args:
        orientation: EXIF orientation from the annotated grid to the displayed picture.
        source_size: displayed (height, width).
    """
    policies = {"is_crowd": recipe.boxes_crowd, "difficult": recipe.boxes_difficult}
    unflagged: dict[str, Any] = {flag: False for flag, policy in policies.items() if policy == "objects"}
    boxes = tuple(
        dataclasses.replace(box, is_crowd=True) if box.group_of else box for box in reference.boxes or ()
    )
    if unflagged:
        boxes = tuple(dataclasses.replace(box, **unflagged) for box in boxes)
    return boxes_in_pixels(boxes, reference, orientation, source_size)


def annotated_boxes(boxes: Sequence[Box]) -> AnnotatedBoxes:
    """Return the corners, areas and flags of boxes as arrays."""
    areas = map(_area_of, boxes)
    return AnnotatedBoxes(
        boxes=corners_of_boxes(boxes),
        areas=np.array([np.nan if area is None else area for area in areas], np.float64),
        is_crowd=np.array([box.is_crowd for box in boxes], bool),
        difficult=np.array([box.difficult for box in boxes], bool),
    )


def box_policy(recipe: Recipe) -> BoxPolicy:
    """Return the recipe's rules for unwanted boxes."""
    return BoxPolicy(
        outside=recipe.boxes_outside,
        zero_area=recipe.boxes_zero_area,
        crowd=recipe.boxes_crowd,
        difficult=recipe.boxes_difficult,
    )


def count_changes(bad_objects: Sequence[tuple[str, str]], boxes: Sequence[Box]) -> dict[str, int]:
    """Return the numbers of objects that were dropped by reason, and of kept ones that were changed; none is 0."""
    counts = Counter(f"dropped as {reason}" for reason, _ in bad_objects)
    counts["oriented, made upright"] += sum(box.turned_share is not None for box in boxes)
    counts["with parts left out"] += sum(box.lost_parts > 0 for box in boxes)
    return {what: count for what, count in counts.items() if count}


def count_unusable(bad_objects: Sequence[tuple[str, str]], counts: Mapping[str, int], recipe: Recipe) -> int:
    """Return the number of objects that were dropped because of their faults, and not because the user chose so."""
    faulty = sum(reason != BOX_IS_ORIENTED or recipe.oriented_boxes != "drop" for reason, _ in bad_objects)
    # With another policy, boxes beyond the picture are dropped because the user chose so.
    outside = counts["dropped outside"] if recipe.boxes_outside == "clip" else 0
    return faulty + outside + counts["dropped zero area"]


def boxes_in_pixels(
    boxes: tuple[Box, ...], reference: SourceExample, orientation: int, size: tuple[int, int]
) -> tuple[Box, ...]:
    """Return boxes in pixels of the annotated grid; `size` is that of the displayed picture."""
    if not reference.normalized:
        return boxes
    frame_size = displayed_size(orientation, size)
    return tuple(scale_to_pixels(box, frame_size) for box in boxes)


def corners_of_boxes(boxes: Sequence[Box]) -> NDArray[np.float64]:
    """Return [object, 4]: ymin, xmin, ymax, xmax."""
    return np.array([(box.ymin, box.xmin, box.ymax, box.xmax) for box in boxes], np.float64).reshape(-1, 4)


def scale_of(plan: ResizePlan, orientation: int) -> tuple[float, float]:
    """Return the stored pixels of a source pixel along the height and the width of the annotated grid."""
    height, width = plan.scale
    # EXIF orientations from 5 on exchange the sides (CIPA DC-008, Orientation).
    return (width, height) if orientation >= 5 else (height, width)


def _area_of(box: Box) -> float | None:
    """Return the annotated area of an object in source pixels²; that of its mask if the annotations have none."""
    if box.area is not None or box.mask is None:
        return box.area
    try:
        return mask_area(box.mask)
    except SourceError:  # drawing it reports a damaged mask
        return None


def describe_box(index: int, box: Box, fix: str = "; correct it, or use --boxes-zero-area keep") -> str:
    """Return the number, class and corners of a box as text."""
    corners = f"x from {box.xmin:g} to {box.xmax:g}, y from {box.ymin:g} to {box.ymax:g}"
    return f"box {index + 1} ({box.label!r}): {corners}{fix}"


def regions_to_place(reference: SourceExample, orientation: int, source_size: Size) -> NDArray[np.float64]:
    """Return the ignored regions of a picture in pixels of the annotated grid, [region, 4], in the order of boxes.

    Args:
        orientation, source_size: as in `boxes_to_place`.
    """
    regions = np.array(reference.ignored_regions, np.float64).reshape(-1, 4)
    if reference.normalized:
        regions *= np.array(displayed_size(orientation, source_size) * 2)
    return regions


def region_features(
    regions: NDArray[Any], output_size: Size, complete: NDArray[Any] | None = None
) -> dict[str, Value]:
    """Return the features of ignored regions; none without regions, so that such records keep their bytes.

    Args:
        regions: [region, 4] in pixels of the stored picture, within it.
        output_size: stored (height, width) with padding.
        complete: tiles: [region, 4], the same regions as the source file has them, in its pixels.
    """
    if not len(regions):
        return {}
    normalized = np.clip(regions / np.array(output_size * 2), 0, 1).astype(np.float32)
    features: dict[str, Value] = dict(zip(keys.IGNORED_CORNERS, normalized.T, strict=True))
    if complete is not None:
        features.update(zip(keys.IGNORED_SOURCE_CORNERS, complete.astype(np.float32).T, strict=True))
    return features


def select_regions(regions: NDArray[np.float64], source_size: Size, orientation: int) -> NDArray[np.float64]:
    """Return ignored regions in pixels of the displayed picture, clipped to it, without those of no area.

    Raises:
        SourceError: a region is inverted or not finite.
    """
    flags = np.zeros(len(regions), np.bool_)
    annotated = AnnotatedBoxes(
        boxes=regions, areas=np.full(len(regions), np.nan), is_crowd=flags, difficult=flags
    )
    try:
        return select_boxes(annotated, source_size, orientation, BoxPolicy()).boxes
    except SourceError as error:
        raise SourceError(error.stage, error.reason, f"ignored region: {error.detail}") from error


def kept_features(boxes: Sequence[Box], keep: Collection[str]) -> dict[str, Value]:
    """Return the optional features of objects that the recipe keeps, without keypoints and corners."""
    features: dict[str, Value] = {}
    for name in keep:
        if name in ("corners", "keypoints"):
            continue
        values = [getattr(box, name) for box in boxes]
        if name == "view":
            features[OPTIONAL_ATTRIBUTES[name]] = [(value or "").encode() for value in values]
        else:
            features[OPTIONAL_ATTRIBUTES[name]] = np.array(values, np.int64)
    return features
