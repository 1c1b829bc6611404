"""Where is a predicted box in the picture that it was found in?

record, normalized                     source file, pixels

0,0 ┌──────────────┬───┐               ┌────────────────────┐
    │  ┌────┐      │pad│   transform   │        ┌──────┐    │
    │  └────┘      │   │  ──────────>  │        │      │    │   a quarter turn (EXIF) swaps the axes
    └──────────────┴───┘ 1,1           │        └──────┘    │   and may swap the corners too
                                       └────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halofeed.prep.geometry.resize import apply_to_boxes

BOX_DECIMALS = 3
"""Of a pixel; float32 coordinates of a picture of 8,000 pixels are no finer."""
SCORE_DECIMALS = 6


def boxes_in_source(
    boxes: ArrayLike, transform: ArrayLike, image_size: Sequence[int], source_size: Sequence[int]
) -> NDArray[np.float64]:
    """Normalized boxes of a record as boxes in pixels of its source, cut to the source.

    Args:
        boxes: [box, 4], ymin, xmin, ymax, xmax as shares of `image_size`.
        transform: [2, 3], the record's: [y_source, x_source] = transform @ [y, x, 1], in pixels from the corner of
            the first one.
        image_size: (height, width) of the image that the boxes are shares of, padding included.
        source_size: (height, width) of the source file's own pixels, before any EXIF turn.

    Returns:
        float64 [box, 4]: ymin, xmin, ymax, xmax in pixels of the source.

    >>> boxes_in_source([[0.0, 0.5, 0.5, 1.0]], [[2, 0, 0], [0, 2, 0]], (10, 20), (20, 30)).tolist()
    [[0.0, 20.0, 10.0, 30.0]]
    """
    height, width = image_size
    corners = np.asarray(boxes, np.float64).reshape(-1, 4) * [height, width, height, width]
    mapped = apply_to_boxes(np.asarray(transform, np.float64).reshape(6), corners)
    return np.clip(mapped, 0, [*source_size, *source_size])


def coco_results(
    image_id: int, boxes: NDArray[np.float64], classes: ArrayLike, scores: ArrayLike
) -> list[dict[str, Any]]:
    """One picture's detections as entries of a COCO results file.

    Boxes without height or width are left out: they lay in the padding.

    Args:
        image_id: the record's id.
        boxes: float64 [box, 4] in pixels of the source, ymin, xmin, ymax, xmax.
        classes: [box], the labels' ids, from 1.
        scores: [box], 0 to 1.

    Returns:
        `image_id`, `category_id`, `bbox` as [x, y, width, height], and `score`; as pycocotools' loadRes reads it
        (https://cocodataset.org/#format-results).

    >>> coco_results(7, np.array([[10.0, 20.0, 30.0, 50.0]]), [2], [0.5])
    [{'image_id': 7, 'category_id': 2, 'bbox': [20.0, 10.0, 30.0, 20.0], 'score': 0.5}]
    """
    entries = []
    rounded, sure = np.round(boxes, BOX_DECIMALS), np.asarray(scores, np.float64)
    for box, label, score in zip(rounded.tolist(), np.asarray(classes).tolist(), sure.tolist(), strict=True):
        ymin, xmin, ymax, xmax = box
        if ymin < ymax and xmin < xmax:
            sides = [round(side, BOX_DECIMALS) for side in (xmax - xmin, ymax - ymin)]
            entry = {"image_id": image_id, "category_id": int(label), "bbox": [xmin, ymin, *sides]}
            entries.append({**entry, "score": round(score, SCORE_DECIMALS)})
    return entries
