"""Batches as RF-DETR's training module takes them: a NestedTensor of normalized images, and a tuple of targets.

The form is that of rfdetr/datasets/coco.py (`ConvertCoco` and `Normalize`) and rfdetr/utilities/tensors.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import ID, SIZE, Batch, BufferPool, join_id
from halofeed.loader.forms.epoch_batches import EpochBatches, with_fields
from halofeed.loader.forms.ignored_regions import regions_as_crowds, tell_of_regions
from halofeed.loader.forms.pixel_boxes import (
    MASKS,
    SOURCE_SIZE,
    TRANSFORM,
    Crowds,
    PixelObjects,
    check_crowds,
    class_numbers,
    labels_of,
    masks_of,
    pixel_objects,
)
from halofeed.loader.forms.ultralytics_form import center_boxes, letterboxes
from halofeed.loader.reading import BOXES, IMAGE
from halofeed.loader.stream import Stream
from halofeed.system.errors import UsageError

if TYPE_CHECKING:
    import torch

MEAN, STANDARD_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's colors, from 0 to 1, by which RF-DETR normalizes."""


def rf_detr(
    loader: Stream, *, crowds: Crowds = "drop", start_step: int = 0
) -> EpochBatches[tuple[Any, tuple[dict[str, torch.Tensor], ...]]]:
    """Return epochs of (NestedTensor, targets) for RF-DETR's RFDETRModelModule and Lightning's `Trainer.fit`.

    The images are float32 [row, 3, height, width], normalized by ImageNet's mean and standard deviation; the mask is
    True for padding. A target has `boxes` float32 [object, 4], x and y of the center, width and height, as shares of
    the picture; `labels` int64 [object] from 0, in the order of the label map's ids; `area` and `iscrowd` [object];
    `masks` bool [object, height, width] if the data set has masks; `image_id` int64 [1], the record's id, which for
    COCO is the image's; and `size` and `orig_size` int64 [2], height and width of the picture and of its source.

    Convert with a height and a width that are the model's resolution, or a multiple of its patches. With RF-DETR's
    default of several scales per batch, that is the largest scale: 544 for RFDETRNano.

    Args:
        loader: of a detection data set of 8-bit colors, with its augmentations.
        crowds: "drop" leaves boxes of crowds out, as RF-DETR does in training; "keep" does not. "with-regions" is for
            validation, whose mAP leaves out detections in `iscrowd`: it keeps them, and makes each ignored region a
            crowd of every class.
        start_step: number of batches that an earlier process took.

    Raises:
        UsageError: the data set has no boxes or no 8-bit colors.

    >>> batches = halofeed.torch.rf_detr(data.loader(batch_size=4))  # doctest: +SKIP
    >>> trainer.fit(module, train_dataloaders=batches)  # doctest: +SKIP
    """
    stream = with_fields(loader, "torch.rf_detr", [IMAGE, BOXES, SIZE], [*SOURCE_SIZE, TRANSFORM, MASKS])
    image = stream.row_spec[IMAGE]
    if image.dtype != np.uint8 or image.shape[-1] != 3:
        raise UsageError(
            f"torch.rf_detr: expected 8-bit colors, got {image.dtype} with {image.shape[-1]} channels; convert with "
            "--channels 3 --dtype uint8"
        )
    numbers, names = class_numbers(labels_of(stream))
    form = _Form(
        numbers=numbers, crowds=check_crowds(crowds), labels=tuple(labels_of(stream)), pool=BufferPool()
    )
    if crowds != "with-regions":
        tell_of_regions(stream, "torch.rf_detr", "For validation pass crowds='with-regions'")
    return EpochBatches(stream, form, start_step=start_step, class_names=names)


@dataclass(frozen=True, kw_only=True)
class _Form:
    """Function from a batch to (NestedTensor, targets)."""

    numbers: NDArray[np.int64]
    crowds: Crowds
    labels: tuple[int, ...]
    pool: BufferPool

    def __call__(self, batch: Batch) -> tuple[Any, tuple[dict[str, torch.Tensor], ...]]:
        import torch
        from rfdetr.utilities.tensors import NestedTensor

        if self.crowds == "with-regions":
            batch = regions_as_crowds(batch, self.labels)
        objects = pixel_objects(batch, self.numbers, self.crowds)
        images, outside = normalized_images(batch[IMAGE], objects.sizes, self.pool)
        nested = NestedTensor(
            torch.from_numpy(images).permute(0, 3, 1, 2),
            torch.from_numpy(outside),
            no_padding=not outside.any(),
        )
        return nested, detr_targets(batch, objects)


def normalized_images(
    images: NDArray[np.uint8], sizes: NDArray[np.int64], pool: BufferPool
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return normalized images [row, height, width, 3], 0 in their padding, and which pixels are padding.

    Args:
        images: [row, height, width, 3].
        sizes: height and width of each picture at the top left, [row, 2].
        pool: memory for the result.
    """
    levels = np.arange(256, dtype=np.float32)[:, None] * np.float32(1.0 / 255)
    table: NDArray[np.float32] = levels - np.array(MEAN, np.float32)
    table /= np.array(STANDARD_DEVIATION, np.float32)
    normalized = pool.empty(images.shape, np.float32)
    outside = np.zeros(images.shape[:3], np.bool_)
    rows = zip(images, normalized, outside, sizes.tolist(), strict=True)
    for image, target, mask, (height, width) in rows:
        # One look-up of each value is as fast as one multiplication, and equal to torchvision's four steps.
        cv2.LUT(image, table[None], target)
        if (height, width) != image.shape[:2]:
            for part, value in ((target, 0), (mask, True)):
                part[height:] = value
                part[:height, width:] = value
    return normalized, outside


def detr_targets(batch: Batch, objects: PixelObjects) -> tuple[dict[str, torch.Tensor], ...]:
    """Return RF-DETR's target of each row."""
    import torch

    sides = objects.sizes[objects.row][:, [1, 0, 1, 0]].astype(np.float32)
    columns = {
        "boxes": torch.from_numpy(center_boxes(objects.boxes / sides)),
        "labels": torch.from_numpy(objects.classes),
        "area": torch.from_numpy(objects.areas),
        "iscrowd": torch.from_numpy(objects.crowd.astype(np.int64)),
    }
    if (masks := masks_of(batch, objects)) is not None:
        columns[MASKS] = torch.from_numpy(masks.astype(np.bool_))
    split = {name: column.split(objects.counts) for name, column in columns.items()}
    ids, sizes = torch.from_numpy(join_id(batch[ID])), torch.from_numpy(objects.sizes)
    sources = torch.tensor(letterboxes(batch)[0], dtype=torch.int64)
    return tuple(
        {
            **{name: parts[row] for name, parts in split.items()},
            "image_id": ids[row : row + 1],
            "size": sizes[row],
            "orig_size": sources[row],
        }
        for row in range(len(ids))
    )
