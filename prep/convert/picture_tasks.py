"""Record features of a picture for each task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.label_image import label_on_grid
from halofeed.prep.convert.loss_measures import (
    add_classes,
    add_instances,
    add_keypoints,
    add_label_levels,
    add_object_levels,
    add_objects,
    add_structure_sizes,
    source_name,
)
from halofeed.prep.convert.object_features import (
    annotated_boxes,
    box_policy,
    boxes_in_pixels,
    boxes_to_place,
    corners_of_boxes,
    count_changes,
    count_unusable,
    describe_box,
    kept_features,
    region_features,
    regions_to_place,
    scale_of,
    select_regions,
)
from halofeed.prep.convert.tallies import PictureFacts, count_labels
from halofeed.prep.formats.picture import DecodedImage, ReadOptions
from halofeed.prep.geometry.boxes import (
    KEYPOINTS_OUTSIDE,
    PlacedBoxes,
    corner_features,
    keypoint_features,
    place_annotated_boxes,
)
from halofeed.prep.geometry.resize import (
    ResizePlan,
    apply_to_boxes,
    displayed_size,
    displayed_to_file,
    invert_affine,
)
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.voxels.encode import LABEL_ENCODERS
from halofeed.prep.voxels.masks import encode_mask_png, stored_mask
from halofeed.schemas import keys
from halofeed.schemas.file_layout import ZERO_AREA
from halofeed.schemas.ledger import LedgerCounter
from halofeed.schemas.tfexample import Value
from halofeed.system.errors import SourceError


@dataclass(frozen=True, kw_only=True)
class AnnotatedPicture:
    """A decoded and resized picture with its annotations.

    Args:
        label: class indices of its label images on the label file's grid, if there are any.
        classes: class ids that occur in its label images.
        image: facts about the picture, without its pixels.
        grid: grid of the annotations, "stored" or "displayed"; None if neither the user nor other pictures show it.
        orientation: EXIF orientation, 1 to 8, from the annotations to the displayed picture.
    """

    recipe: Recipe
    labels: LabelMap
    reference: SourceExample
    label: NDArray[Any] | None
    classes: Collection[int]
    image: DecodedImage
    plan: ResizePlan
    grid: str | None
    orientation: int


BadObjects = tuple[tuple[str, str], ...]
Add = Callable[[AnnotatedPicture, dict[str, Value], PictureFacts], BadObjects]
"""Add a task's features to a record's features, and its labels and counts to the record's facts.

It returns (reason, detail) of each dropped object, and raises SourceError where the picture cannot be used."""


_UNPROVEN = (
    "has an EXIF orientation, and nothing shows whether it was annotated as stored or as displayed: taken as stored; "
    "use --annotation-grid stored or displayed"
)
_CONTRADICTED = "declared size shows another grid than --annotation-grid says"


def annotated_orientation(
    declared: tuple[int, int] | None, image: DecodedImage, grid: str | None
) -> tuple[int, str | None]:
    """Return the orientation from the annotations to the displayed picture, and a warning where it is a guess.

    Annotations mostly refer to the pixels as stored, which the EXIF orientation then turns. Some tools annotate the
    displayed picture; the size that they declare shows it.

    Args:
        declared: (height, width) in the annotations; None without one.
        grid: "stored" or "displayed" if the user or other pictures show it.
    """
    stored = image.stored_size
    displayed = displayed_size(image.orientation, stored)
    if declared is not None and declared not in (stored, displayed):
        detail = f"annotations say {declared[1]}x{declared[0]}, the picture is {stored[1]}x{stored[0]}"
        raise SourceError("annotation", "declared size is not the picture's", detail)
    if image.orientation == 1:
        return 1, None
    proven = _proven_grid(declared, stored, displayed)
    turns = {"stored": image.orientation, "displayed": 1}
    if grid is not None:
        return turns[grid], _CONTRADICTED if proven not in (None, grid) else None
    return turns[proven or "stored"], None if proven else _UNPROVEN


def _proven_grid(
    declared: tuple[int, int] | None, stored: tuple[int, int], displayed: tuple[int, int]
) -> str | None:
    """Return the grid that a declared (height, width) proves, "stored" or "displayed"; None if it proves none."""
    # Squares, half turns and mirrors have one size in both grids.
    if declared is None or stored == displayed:
        return None
    return "stored" if declared == stored else "displayed"


def label_orientation(size: tuple[int, int], image: DecodedImage, grid: str | None) -> tuple[int, str | None]:
    """Return the same for a label image of this (height, width), whose size overrides every option."""
    stored = image.stored_size
    displayed = displayed_size(image.orientation, stored)
    # A label image of one of two different sizes has the grid of that size.
    if size == displayed != stored:
        return 1, None
    if size == stored != displayed or size not in (stored, displayed):
        return image.orientation, None
    return annotated_orientation(size, image, grid)


def add_class_labels(
    picture: AnnotatedPicture, features: dict[str, Value], facts: PictureFacts
) -> BadObjects:
    """Add the ids and names of the picture's classes."""
    added, facts.labels = class_features(picture.reference, picture.labels)
    features |= added
    return ()


def class_features(reference: SourceExample, labels: LabelMap) -> tuple[dict[str, Value], list[int]]:
    """Return the features of an image's classes and their ids; raise SourceError without a class."""
    if reference.label is None and reference.labels is None:
        raise SourceError("annotation", "no class", "a classification example needs one")
    ids = sorted({labels.id_of(label) for label in reference.classes})
    names = [labels.names[label].encode() for label in ids]
    return {keys.CLASS_LABEL: np.array(ids, np.int64), keys.CLASS_TEXT: names}, ids


def add_label_image(picture: AnnotatedPicture, features: dict[str, Value], facts: PictureFacts) -> BadObjects:
    """Add the class of every stored pixel; a picture without a label has zeros."""
    label, plan, dtype = picture.label, picture.plan, picture.labels.dtype
    if label is None:
        indices = np.zeros(plan.output_size, dtype)
    else:
        size = (label.shape[0], label.shape[1])
        orientation, warning = label_orientation(size, picture.image, picture.grid)
        facts.warnings += (warning,) if warning else ()
        ignored = picture.labels.stored_ignore
        turned = label_on_grid(label.astype(dtype), orientation, picture.image, plan, ignored or 0)
        indices = turned.astype(dtype)
        facts.label_voxels = {
            value: count for value, count in count_labels(indices).items() if value != ignored
        }
        facts.labels.extend(facts.label_voxels)
        source, known = picture.reference.source, [value for value in picture.classes if value != ignored]
        add_classes(facts.ledger, known, facts.label_voxels, source)
        add_structure_sizes(
            facts.ledger, "after", (count for value, count in facts.label_voxels.items() if value)
        )
        if picture.labels.is_open:
            add_instances(facts.ledger, indices, facts.label_voxels, source, known)
    facts.labelled = label is not None
    features[keys.LABEL] = LABEL_ENCODERS[picture.recipe.encoding](indices[..., None], 0)
    features[keys.LABELLED] = np.array([int(label is not None)])
    return ()


def add_boxes(picture: AnnotatedPicture, features: dict[str, Value], facts: PictureFacts) -> BadObjects:
    """Add the features of the objects that the recipe's rules for boxes keep."""
    recipe, reference, labels = picture.recipe, picture.reference, picture.labels
    boxes = boxes_to_place(recipe, reference, picture.orientation, picture.plan.source_size)
    placed = _place(boxes, picture)
    bad_objects = list(reference.bad_objects)
    if recipe.masks:
        placed, masks, undrawn = _draw_masks(picture, boxes, placed, facts)
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
    features.update(kept_features(kept, recipe.keep))
    if "corners" in recipe.keep:
        features.update(corner_features(kept, picture.plan, picture.orientation))
    if "keypoints" in recipe.keep:
        _add_keypoint_features(picture, kept, features, facts)
    regions = regions_to_place(reference, picture.orientation, picture.plan.source_size)
    shown = select_regions(regions, picture.plan.source_size, picture.orientation)
    features.update(region_features(shown * np.array(picture.plan.scale * 2), picture.plan.output_size))
    facts.ignored_regions = len(shown)
    facts.labels.extend(ids)
    sides = np.array(picture.plan.output_size * 2)
    add_objects(facts.ledger, kept, placed.boxes * sides, scale_of(picture.plan, 1), reference.source)
    facts.boxes = len(kept)
    unusable = count_unusable(bad_objects, placed.counts, recipe)
    facts.ledger.count("emptied_object_records", unusable > 0 and not kept, source_name(reference.source))
    facts.box_counts = {**placed.counts, **count_changes(bad_objects, kept)}
    empty = [(ZERO_AREA, describe_box(index, boxes[index])) for index in placed.zero_area]
    return (*bad_objects, *empty)


def _place(boxes: Sequence[Box], picture: AnnotatedPicture) -> PlacedBoxes:
    """Return the boxes on the stored grid, after the recipe's rules for unwanted ones."""
    annotated = annotated_boxes(boxes)
    return place_annotated_boxes(
        annotated.boxes,
        annotated.areas,
        annotated.is_crowd,
        annotated.difficult,
        picture.plan,
        picture.orientation,
        box_policy(picture.recipe),
    )


def _add_keypoint_features(
    picture: AnnotatedPicture, boxes: Sequence[Box], features: dict[str, Value], facts: PictureFacts
) -> None:
    """Add the keypoints of the kept objects."""
    plan, orientation = picture.plan, picture.orientation
    points, leave = keypoint_features([box.keypoints for box in boxes], plan, orientation)
    add_keypoints(facts.ledger, boxes, scale_of(plan, orientation), picture.reference.source)
    features.update(points)
    facts.warnings += (KEYPOINTS_OUTSIDE,) if leave else ()


def add_samples(
    ledger: LedgerCounter,
    image: DecodedImage,
    reference: SourceExample,
    label: NDArray[Any] | None,
    grid: str | None,
    options: ReadOptions,
) -> None:
    """Add what 8 bits do to the 16-bit samples within objects and labeled regions.

    Args:
        image: picture with its 16-bit samples, as displayed.
        label: class indices of its label images; None without any.
        grid: as in `AnnotatedPicture`.
        options: conversion of the samples.
    """
    # Turned pictures are left out of this statistic, which compares pixel by pixel.
    if label is not None and image.orientation == 1 and label.shape == image.pixels.shape[:2]:
        add_label_levels(ledger, image.pixels, label, options, reference.source)
    if not reference.boxes:
        return
    orientation, _ = annotated_orientation(reference.declared_size, image, grid)
    size = displayed_size(image.orientation, image.stored_size)
    boxes = boxes_in_pixels(reference.boxes, reference, orientation, size)
    to_displayed = invert_affine(displayed_to_file(orientation, displayed_size(orientation, size)))
    corners = apply_to_boxes(to_displayed, corners_of_boxes(boxes))
    names = [str(box.label) for box in boxes]
    add_object_levels(ledger, image.pixels, corners, names, options, reference.source)


def _draw_masks(
    picture: AnnotatedPicture, boxes: Sequence[Box], placed: PlacedBoxes, facts: PictureFacts
) -> tuple[PlacedBoxes, list[bytes], list[tuple[str, str]]]:
    """Return the boxes whose masks can be drawn, their masks, and (reason, detail) of the other objects."""
    drawn: list[bytes] = []
    sound: list[int] = []
    bad: list[tuple[str, str]] = []
    for row, index in enumerate(placed.kept):
        try:
            mask = stored_mask(boxes[index].mask, picture.plan, picture.orientation)
            if not mask.any():
                facts.ledger.count("empty_masks", 1, source_name(picture.reference.source))
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


ADDERS: dict[str, Add] = {
    "classification": add_class_labels,
    "detection": add_boxes,
    "segmentation": add_label_image,
}
"""Functions by the names of `halofeed.schemas.tasks.TASKS`."""
