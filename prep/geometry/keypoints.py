"""Where the keypoints of objects lie on the stored picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from halofeed.prep.geometry.boxes import NOISE_PIXELS
from halofeed.prep.geometry.resize import ResizePlan, apply, invert, stored_to_file
from halofeed.prep.sources.reference import Keypoint
from halofeed.schemas.tasks import KEPT
from halofeed.schemas.tfexample import Value

OUTSIDE = "keypoints that are labeled and lie outside of the picture: kept as they are"


def keypoint_features(
    objects: Sequence[Sequence[Keypoint]], plan: ResizePlan, orientation: int
) -> tuple[dict[str, Value], bool]:
    """The features of the keypoints of the kept objects; and whether labeled ones lie outside of the picture.

    The lists are flat, object by object, with as many points for each: so the Object Detection API reads them. `num`
    counts the labeled points of each object, as COCO's num_keypoints does. Coordinates are shares of the stored
    picture's sides, padding included, as those of boxes. A point that is not labeled and stands at 0, 0 is no place,
    and stays there.

    Args:
        objects: the points of each, in pixels of the grid that the annotations speak of.
        plan: of the displayed picture.
        orientation: the EXIF orientation if they are in the file's grid; 1 if in the displayed one.
    """
    points = [point for one in objects for point in one]
    placed = np.array([(point.y, point.x) for point in points], np.float64).reshape(-1, 2)
    visibility = np.array([point.visibility for point in points], np.int64)
    stored = apply(invert(stored_to_file(plan, orientation)), placed)
    over = (stored < -NOISE_PIXELS) | (stored > np.array(plan.resized_size) + NOISE_PIXELS)
    is_place = (visibility > 0) | (placed != 0).any(axis=1)
    shares = np.where(is_place[:, None], stored / np.array(plan.output_size), 0).astype(np.float32)
    key = KEPT["keypoints"]
    labeled = [sum(point.visibility > 0 for point in one) for one in objects]
    features: dict[str, Value] = {
        f"{key}/num": np.array(labeled, np.int64),
        f"{key}/text": [point.name.encode() for point in points],
        f"{key}/visibility": visibility,
        f"{key}/x": shares[:, 1],
        f"{key}/y": shares[:, 0],
    }
    return features, bool((over.any(axis=1) & (visibility > 0)).any())
