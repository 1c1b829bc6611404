"""Batches as torchvision's detection models take them: a list of images and a list of targets.

The form is that of torchvision's references/detection, whose `coco_utils.py` makes these targets: boxes xmin, ymin,
xmax, ymax in pixels of the image, labels from 1, of which 0 is the background, and no crowds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import ID, SIZE, Batch, BufferPool, join_id
from halofeed.loader.forms.epoch_batches import EpochBatches, with_fields
from halofeed.loader.forms.ignored_regions import (
    pixel_regions,
    regions_as_crowds,
    tell_of_regions,
)
from halofeed.loader.forms.pixel_boxes import (
    MASKS,
    TRANSFORM,
    Crowds,
    check_crowds,
    labels_from_one,
    labels_of,
    masks_of,
    pixel_objects,
)
from halofeed.loader.reading import BOXES, IMAGE, REGIONS
from halofeed.loader.stream import Stream
from halofeed.system.errors import UsageError

if TYPE_CHECKING:
    import torch

ImageValues = Literal["float32", "uint8"]
IMAGE_VALUES = {
    "float32": "values from 0 to 1, as torchvision's models take them",
    "uint8": "values from 0 to 255, a quarter of the bytes, for a step that scales them on its device",
}
Target = dict[str, "torch.Tensor"]
DetectionBatch = tuple[list["torch.Tensor"], list[Target]]


def detection(
    loader: Stream,
    *,
    images: ImageValues = "float32",
    crowds: Crowds = "drop",
    start_step: int = 0,
) -> EpochBatches[DetectionBatch]:
    """Return epochs of (images, targets) for torchvision's detection models and its `train_one_epoch`.

    Images are [channel, height, width] of the picture without padding. They are views of one array whose channels are
    last in memory. A target has:

    - `boxes` float32 [object, 4], xmin, ymin, xmax, ymax in pixels of the image. Objects without a width or height are
      left out, for which the models raise an error.
    - `labels` int64 [object], from 1; `area` float32 and `iscrowd` int64 [object].
    - `image_id` int64, the record's id, which for COCO is the image's.
    - `masks` uint8 [object, height, width], if the data set has masks (`--masks`).
    - `ignored_boxes` float32 [region, 4], xmin, ymin, xmax, ymax in pixels of the image, if the data set has ignored
      regions. torchvision's models do not use it.
    - `transform` float32 [2, 3], unless an augmentation combines pictures. It leads back to the source:
      [y_source, x_source] = transform @ [y, x, 1]. `source_boxes` applies it.

    Args:
        loader: of a detection data set, with its augmentations.
        images: "float32", from 0 to 1, or "uint8", from 0 to 255.
        crowds: "drop" leaves boxes of crowds out, as references/detection does; "keep" does not. "with-regions" is for
            evaluation by pycocotools: it keeps them, and makes each ignored region a crowd of every class.
        start_step: number of batches that an earlier process took.

    Raises:
        UsageError: the data set has no boxes, or an argument is invalid.
        MissingExtraError: PyTorch is not installed.

    >>> data = halofeed.open("data/cards/1.0.0")  # doctest: +SKIP
    >>> for images, targets in halofeed.torch.detection(data.loader(batch_size=2)):  # doctest: +SKIP
    ...     losses = model(images, targets)
    """
    if images not in IMAGE_VALUES:
        raise UsageError(f"images: expected one of {', '.join(IMAGE_VALUES)}, got {images!r}")
    stream = with_fields(loader, "torch.detection", [IMAGE, BOXES, SIZE], [MASKS, TRANSFORM])
    numbers, names = labels_from_one(labels_of(stream))
    form = _Form(
        numbers=numbers,
        is_float=images == "float32",
        crowds=check_crowds(crowds),
        labels=tuple(labels_of(stream)),
        pool=BufferPool(),
    )
    if crowds != "with-regions":
        tell_of_regions(
            stream,
            "torch.detection",
            "`ignored_boxes` of a target has them for a loss of your own; for evaluation pass crowds='with-regions'",
        )
    return EpochBatches(stream, form, start_step=start_step, class_names=names)


@dataclass(frozen=True, kw_only=True)
class _Form:
    """Function from a batch to (images, targets)."""

    numbers: NDArray[np.int64]
    is_float: bool
    crowds: Crowds
    labels: tuple[int, ...]
    pool: BufferPool

    def __call__(self, batch: Batch) -> DetectionBatch:
        import torch

        regions = pixel_regions(batch) if REGIONS in batch else None
        if self.crowds == "with-regions":
            batch = regions_as_crowds(batch, self.labels)
        objects = pixel_objects(batch, self.numbers, self.crowds)
        pictures = image_tensor(batch[IMAGE], self.pool if self.is_float else None)
        sizes = objects.sizes.tolist()
        images = [
            picture[:, :height, :width] for picture, (height, width) in zip(pictures, sizes, strict=True)
        ]
        columns: dict[str, Any] = {
            "boxes": torch.from_numpy(objects.boxes),
            "labels": torch.from_numpy(objects.classes),
            "area": torch.from_numpy(objects.areas),
            "iscrowd": torch.from_numpy(objects.crowd.astype(np.int64)),
        }
        masks = masks_of(batch, objects)
        if masks is not None:
            columns["masks"] = torch.from_numpy(masks)
        split = {name: column.split(objects.counts) for name, column in columns.items()}
        ids = torch.from_numpy(join_id(batch[ID]))
        targets: list[Target] = []
        for row, (height, width) in enumerate(sizes):
            target = {name: parts[row] for name, parts in split.items()}
            target["image_id"] = ids[row]
            if masks is not None:
                target["masks"] = target["masks"][:, :height, :width]
            if regions is not None:
                target[REGIONS] = torch.from_numpy(regions[row])
            if TRANSFORM in batch:
                target[TRANSFORM] = torch.from_numpy(batch[TRANSFORM][row])
            targets.append(target)
        return images, targets


def image_tensor(images: NDArray[Any], pool: BufferPool | None) -> torch.Tensor:
    """Return images as a tensor [row, channel, height, width], whose channels are last in memory.

    Args:
        images: uint8 [row, height, width, channel]; or floats, which stay as they are.
        pool: memory for float32 values from 0 to 1; None keeps uint8.
    """
    import torch

    stored = torch.from_numpy(images)
    if pool is not None and images.dtype == np.uint8:
        scaled = torch.from_numpy(pool.empty(images.shape, np.float32))
        # Equal to torchvision.transforms.v2.ToDtype(scale=True). torch.mul with both types makes a second array of the
        # batch: 2.7 ms for a picture of 640 x 640 on one core, against 0.34 ms for these two calls.
        for source, target in zip(stored, scaled, strict=True):
            target.copy_(source).mul_(1.0 / 255)
        stored = scaled
    return stored.permute(0, 3, 1, 2)


def source_boxes(boxes: Any, transform: Any) -> NDArray[np.float64]:
    """Return boxes of an image, such as predictions, in pixels of the source picture.

    Args:
        boxes: [object, 4], xmin, ymin, xmax, ymax in pixels of the image.
        transform: [2, 3], as a target has it.

    Returns:
        float64 [object, 4], xmin, ymin, xmax, ymax.

    >>> source_boxes([[1, 2, 3, 4]], [[0, 2, 0], [2, 0, 0]])
    array([[4., 2., 8., 6.]])
    """
    given, matrix = np.asarray(boxes, np.float64).reshape(-1, 4), np.asarray(transform, np.float64)
    points = given.reshape(-1, 2, 2)[..., ::-1]  # y and x of two corners
    moved = points @ matrix[:, :2].T + matrix[:, 2]
    low, high = moved.min(1), moved.max(1)
    return np.concatenate([low[:, ::-1], high[:, ::-1]], axis=1)
