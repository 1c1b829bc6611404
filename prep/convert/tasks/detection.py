"""The objects of a picture: boxes, classes, masks, keypoints."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from halofeed.prep.annotations.units import in_pixels
from halofeed.prep.convert.tasks.annotated import AnnotatedPicture, BadObjects
from halofeed.prep.geometry.boxes import BoxPolicy, PlacedBoxes, place_boxes
from halofeed.prep.geometry.keypoints import OUTSIDE, keypoint_features
from halofeed.prep.geometry.resize import displayed_size
from halofeed.prep.sources.reference import Box
from halofeed.prep.statistics.pictures import Facts
from halofeed.prep.voxels.masks import encode_mask_png, stored_mask
from halofeed.schemas import keys
from halofeed.schemas.errors import SourceError
from halofeed.schemas.layout import ZERO_AREA
from halofeed.schemas.tasks import KEPT
from halofeed.schemas.tfexample import Value


def add_boxes(picture: AnnotatedPicture, features: dict[str, Value], facts: Facts) -> BadObjects:
    """Add the features of the objects that the recipe's rules for boxes leave."""
    recipe, reference, labels = picture.recipe, picture.reference, picture.labels
    plan, orientation = picture.plan, picture.orientation
    boxes = reference.boxes or ()
    if reference.normalized:
        frame_size = displayed_size(orientation, plan.source_size)
        boxes = tuple(in_pixels(box, frame_size) for box in boxes)
    placed = place_boxes(
        np.array([(box.ymin, box.xmin, box.ymax, box.xmax) for box in boxes], np.float64).reshape(-1, 4),
        np.array([np.nan if box.area is None else box.area for box in boxes], np.float64),
        np.array([box.is_crowd for box in boxes], bool),
        np.array([box.difficult for box in boxes], bool),
        plan,
        orientation,
        BoxPolicy(
            outside=recipe.boxes_outside,
            zero_area=recipe.boxes_zero_area,
            crowd=recipe.boxes_crowd,
            difficult=recipe.boxes_difficult,
        ),
    )
    bad_objects = list(reference.bad_objects)
    if recipe.masks:
        placed, masks, undrawn = _draw_masks(picture, boxes, placed)
        bad_objects += undrawn
        features[keys.OBJECT_MASK] = masks
    kept = [boxes[index] for index in placed.kept]
    ids = [labels.id_of(box.label) for box in kept]
    features.update(zip(keys.BOX_CORNERS, placed.boxes.T, strict=True))
    features[keys.OBJECT_AREA] = placed.area
    features[keys.OBJECT_CLASS_LABEL] = np.array(ids, np.int64)
    features[keys.OBJECT_CLASS_TEXT] = [labels.names[identity].encode() for identity in ids]
    for name, key in keys.OBJECT_FLAGS.items():
        features[key] = np.array([getattr(box, name) for box in kept], np.int64)
    features.update(_kept_features(kept, recipe.keep))
    if "keypoints" in recipe.keep:
        points, leave = keypoint_features([box.keypoints for box in kept], plan, orientation)
        features.update(points)
        facts.warnings += (OUTSIDE,) if leave else ()
    facts.labels.extend(ids)
    facts.boxes = len(kept)
    reasons = Counter(f"dropped as {reason}" for reason, _ in bad_objects)
    facts.box_counts = {**placed.counts, **reasons}
    empty = [(ZERO_AREA, _described(index, boxes[index])) for index in placed.zero_area]
    return (*bad_objects, *empty)


def _described(index: int, box: Box) -> str:
    corners = f"x from {box.xmin:g} to {box.xmax:g}, y from {box.ymin:g} to {box.ymax:g}"
    return f"box {index + 1} ({box.label!r}): {corners}; correct it, or say --boxes-zero-area keep"


def _draw_masks(
    picture: AnnotatedPicture, boxes: Sequence[Box], placed: PlacedBoxes
) -> tuple[PlacedBoxes, list[bytes], list[tuple[str, str]]]:
    """The boxes whose masks can be drawn, these masks, and (reason, detail) of the other objects."""
    drawn: list[bytes] = []
    sound: list[int] = []
    bad: list[tuple[str, str]] = []
    for row, index in enumerate(placed.kept):
        try:
            mask = stored_mask(boxes[index].mask, picture.plan, picture.orientation)
            drawn.append(encode_mask_png(mask))
            sound.append(row)
        except SourceError as error:
            if picture.recipe.on_bad_object == "reject":
                raise
            bad.append((error.reason, f"box {index + 1}: {error.detail}"))
    rows = dataclasses.replace(
        placed, boxes=placed.boxes[sound], area=placed.area[sound], kept=placed.kept[sound]
    )
    return rows, drawn, bad


def _kept_features(boxes: Sequence[Box], keep: Collection[str]) -> dict[str, Value]:
    """What the recipe keeps of each object beside what every record has, but for its keypoints."""
    features: dict[str, Value] = {}
    for name in keep:
        if name == "keypoints":
            continue
        values = [getattr(box, name) for box in boxes]
        if name == "view":
            features[KEPT[name]] = [(value or "").encode() for value in values]
        else:
            features[KEPT[name]] = np.array(values, np.int64)
    return features
