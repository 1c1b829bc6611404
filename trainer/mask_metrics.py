"""COCO's metrics of instance masks, beside those of their boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.trainer.metrics import COCO_METRICS, CocoMetrics, coco_numbers, placement_of
from halofeed.trainer.object_masks import (
    MaskPlacement,
    RunLengths,
    box_mask,
    predicted_masks,
    true_masks,
)
from halofeed.trainer.task import Host, valid_host

MASK_METRICS = tuple(f"mask {name}" for name in COCO_METRICS)
"""Names of the numbers of masks, in the order of pycocotools' summary."""


class MaskMetrics(CocoMetrics):
    """COCO metrics of detections with masks, in pixels of the source pictures: those of boxes, and of masks.

    Masks are those that `predict` writes, so pycocotools gives the same numbers for detections.json with
    `COCOeval(..., iouType="segm")`. As `loadRes` sets it, the area of a detection is that of its box. True masks are
    those of the records, which the nearest pixel brings to the source.

    Memory: besides that of `CocoMetrics`, the run lengths: about 100 bytes for an object of 20 pixels, 3 KB for one of
    600.
    """

    def __init__(self, labels: tuple[str, ...], region_rule: str = "coco") -> None:
        super().__init__(labels, region_rule)
        self._found_masks: list[RunLengths] = []
        self._true_masks: list[RunLengths] = []
        self._sizes: list[tuple[int, int]] = []

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add the valid rows of a batch.

        Args:
            predictions: as for `CocoMetrics`, with `masks` and `mask_stride` of `Detection.predict`.
            truth: as for `CocoMetrics`, with `masks`, uint8 [batch, box, height, width] of 0 and 1. Without them only
                boxes are measured.

        Returns:
            The score of each row by its boxes.
        """
        before = len(self._ids)
        scores = super().update(predictions, truth)
        if "masks" not in truth:
            return scores
        for number, row in enumerate(np.flatnonzero(valid_host(truth)).tolist(), before):
            transform, image_size, source_size = placement_of(predictions["image_size"][row], truth, row)
            placement = MaskPlacement(
                transform=transform,
                image_size=(image_size[0], image_size[1]),
                source_size=(source_size[0], source_size[1]),
            )
            self._sizes.append(placement.source_size)
            kept = self.kept[number]
            stride = int(predictions["mask_stride"][row])
            self._found_masks += predicted_masks(predictions["masks"][row][kept], stride, placement)
            objects = truth["masks"][row][self.kept_objects[number]]
            self._true_masks += true_masks(objects, placement)
            # Ignored regions are crowds after the objects.
            self._true_masks += [
                box_mask(box, placement.source_size) for box in self._truth[number][len(objects) :, 2:6]
            ]
        return scores

    def result(self) -> dict[str, Any]:
        """Return the numbers of `CocoMetrics`, and `MASK_METRICS` with `mask AP` and `mask AP@0.5` by class."""
        boxes = super().result()
        if not self._sizes:
            return boxes
        masks = {
            f"mask {name}": value
            for name, value in coco_numbers(*self._evaluate("segm"), self.labels).items()
        }
        return {**masks, **boxes}

    def _sides(self) -> list[Any]:
        sides = super()._sides()
        if not self._sizes:
            return sides
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        for image, number in zip(sides[0].dataset["images"], order, strict=True):
            image["height"], image["width"] = self._sizes[number]
        for side, masks in zip(sides, (self._true_masks, self._found_masks), strict=True):
            for entry, mask in zip(side.dataset["annotations"], masks, strict=True):
                entry["segmentation"] = mask
        return sides
