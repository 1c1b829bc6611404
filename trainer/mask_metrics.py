"""COCO's metrics of instance masks, beside those of their boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.trainer.metrics import COCO_METRICS, CocoMetrics, WholeCocoMetrics, coco_numbers, placement_of
from halofeed.trainer.object_masks import (
    MaskPlacement,
    PlacedMask,
    RunLengths,
    box_mask,
    encode_at,
    predicted_masks,
    true_masks,
)
from halofeed.trainer.task import Host, valid_host

MASK_METRICS = tuple(f"mask {name}" for name in COCO_METRICS)
"""Names of the numbers of masks, in the order of pycocotools' summary."""


class _WithMasks(CocoMetrics):
    """COCO metrics of boxes that have masks too, which a subclass adds in the order of the rows of each picture.

    Memory: besides that of `CocoMetrics`, the run lengths: about 100 bytes for an object of 20 pixels, 3 KB for one of
    600.
    """

    def __init__(self, labels: tuple[str, ...], region_rule: str = "coco") -> None:
        super().__init__(labels, region_rule)
        self._found_masks: list[RunLengths] = []
        self._true_masks: list[RunLengths] = []
        self._sizes: list[tuple[int, int]] = []

    def _add_masks(
        self, number: int, found: Iterable[RunLengths], true: Sequence[RunLengths], size: tuple[int, int]
    ) -> None:
        """Add the masks of the next picture, the one of this number: of its detections and objects that count."""
        self._sizes.append(size)
        self._found_masks += found
        self._true_masks += true
        # Ignored regions are crowds after the objects.
        self._true_masks += [box_mask(box, size) for box in self._truth[number][len(true) :, 2:6]]

    def result(self) -> dict[str, Any]:
        """Return the numbers of boxes, and `MASK_METRICS` with `mask AP` and `mask AP@0.5` by class."""
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


class MaskMetrics(_WithMasks):
    """COCO metrics of detections with masks, in pixels of the source pictures: those of boxes, and of masks.

    Masks are those that `predict` writes, so pycocotools gives the same numbers for detections.json with
    `COCOeval(..., iouType="segm")`. As `loadRes` sets it, the area of a detection is that of its box. True masks are
    those of the records, which the nearest pixel brings to the source.
    """

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
            found = predictions["masks"][row][self.kept[number]]
            objects = truth["masks"][row][self.kept_objects[number]]
            self._add_masks(
                number,
                predicted_masks(found, int(predictions["mask_stride"][row]), placement),
                true_masks(objects, placement),
                placement.source_size,
            )
        return scores


class WholeMaskMetrics(WholeCocoMetrics, _WithMasks):
    """COCO metrics of pictures with any number of objects, with masks: all detections count.

    The true mask of an object is what the tiles show of it.
    """

    def add_masked_picture(
        self,
        picture_id: int,
        detections: NDArray[np.float64],
        truth: NDArray[np.float64],
        regions: NDArray[np.float64],
        *,
        masks: Sequence[PlacedMask],
        true: Sequence[PlacedMask],
        size: tuple[int, int],
    ) -> None:
        """Add one picture.

        Args:
            picture_id, detections, truth, regions: as for `add_picture`.
            masks: mask of each detection.
            true: mask of each object.
            size: (height, width) of the picture.
        """
        self.add_picture(picture_id, detections, truth, regions)
        kept: list[int] = self.kept[-1].tolist()
        kept_objects: list[int] = self.kept_objects[-1].tolist()
        found = [encode_at(*masks[number], size) for number in kept]
        objects = [encode_at(*true[number], size) for number in kept_objects]
        self._add_masks(len(self._ids) - 1, found, objects, size)
