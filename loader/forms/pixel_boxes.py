"""Objects of a batch as lists without padding: boxes in pixels, and classes by the numbers of a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import COUNT, SIZE, Batch
from halofeed.loader.dataset import Loader
from halofeed.loader.reading import AREA, BOXES, IMAGE
from halofeed.loader.stream import Stream
from halofeed.system.errors import UsageError

CLASSES, CROWD, MASKS, SOURCE, TRANSFORM = "classes", "is_crowd", "masks", "source", "transform"
SOURCE_SIZE = ("source_height", "source_width")
Crowds = Literal["drop", "keep", "with-regions"]
CROWDS = {
    "drop": "boxes of crowds are left out, as COCO's own training code does",
    "keep": "they are objects like others, with `iscrowd` 1",
    "with-regions": "as keep, and each ignored region is a crowd of every class, for evaluation by pycocotools",
}


@dataclass(frozen=True, kw_only=True)
class PixelObjects:
    """Objects of all rows of a batch, those of the first row first.

    Args:
        row: number of each object's row, int64 [object].
        place: its place in the batch's padded arrays, int64 [object].
        boxes: its xmin, ymin, xmax, ymax in pixels of its picture, float32 [object, 4].
        classes: its class, int64 [object].
        areas: its area in pixels, float32 [object]: of its mask where the source has one, else of its box.
        crowd: whether it marks a crowd, bool [object].
        counts: objects of each row.
        sizes: height and width of each row's picture, without padding, int64 [row, 2].
    """

    row: NDArray[np.int64]
    place: NDArray[np.int64]
    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    areas: NDArray[np.float32]
    crowd: NDArray[np.bool_]
    counts: list[int]
    sizes: NDArray[np.int64]


def pixel_objects(batch: Batch, numbers: NDArray[np.int64], crowds: Crowds) -> PixelObjects:
    """Return the objects of a batch that can be learned: those with a positive width and height.

    Args:
        batch: with `size`.
        numbers: the trainer's number of each class by our label, as `class_numbers` or `labels_from_one` returns.
        crowds: a key of `CROWDS`.

    >>> box = np.array([[[0.25, 0.5, 0.75, 1.0], [0.5, 0.5, 0.5, 0.5]]], np.float32)
    >>> batch = {"image": np.zeros((1, 8, 4, 3), np.uint8), "boxes": box, "num_boxes": np.array([2])}
    >>> batch |= {"classes": np.array([[3, 3]]), "is_crowd": np.zeros((1, 2), bool), "area": np.zeros((1, 2))}
    >>> found = pixel_objects({**batch, "size": np.array([[8, 4]])}, np.arange(5), "drop")
    >>> found.boxes.tolist(), found.classes.tolist(), found.counts
    ([[2.0, 2.0, 4.0, 6.0]], [3], [1])
    """
    boxes = batch[BOXES]
    height, width = batch[IMAGE].shape[1:3]
    scaled = boxes[..., [1, 0, 3, 2]] * np.array([width, height, width, height], np.float32)
    used = np.arange(boxes.shape[1]) < batch[COUNT][:, None]
    # torchvision raises for boxes without an area, and Ultralytics drops them.
    used &= (scaled[..., 2] > scaled[..., 0]) & (scaled[..., 3] > scaled[..., 1])
    if crowds == "drop":
        used &= ~batch[CROWD]
    row, place = np.nonzero(used)
    return PixelObjects(
        row=row,
        place=place,
        boxes=scaled[used],
        classes=numbers[batch[CLASSES][used]],
        areas=batch[AREA][used].astype(np.float32),
        crowd=batch[CROWD][used],
        counts=used.sum(1).tolist(),
        sizes=batch[SIZE].astype(np.int64),
    )


def labels_of(stream: Stream) -> Mapping[int, str]:
    """Return the names of the classes of a stream's objects, by label."""
    if isinstance(stream, Loader):
        return stream.manifest.labels
    return {label: name for label, name in enumerate(stream.class_names) if label or name != "background"}


def class_numbers(names: Mapping[int, str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the numbers 0, 1, ... of the labels of objects, by label, and the names in this order.

    >>> class_numbers({1: "cat", 5: "dog"})
    (array([-1,  0, -1, -1, -1,  1]), ('cat', 'dog'))
    """
    table = np.full(max(names, default=0) + 1, -1, np.int64)
    labels = sorted(names)
    table[labels] = np.arange(len(labels))
    return table, tuple(names[label] for label in labels)


def labels_from_one(names: Mapping[int, str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return labels that begin at 1, by our label, and the names by label, of which 0 is the background.

    Labels that begin at 1 stay as they are, as COCO's 1 to 90.

    >>> labels_from_one({0: "cat", 1: "dog"})
    (array([1, 2]), ('background', 'cat', 'dog'))
    """
    shift = 1 if 0 in names else 0
    last = max(names, default=0)
    named = (names.get(label - shift, f"class {label}") for label in range(1, last + shift + 1))
    return np.arange(last + 1, dtype=np.int64) + shift, ("background", *named)


def check_crowds(crowds: object) -> Crowds:
    """Return the choice; raise UsageError where there is no such choice."""
    if crowds == "drop" or crowds == "keep" or crowds == "with-regions":
        return crowds
    raise UsageError(f"crowds: expected one of {', '.join(CROWDS)}, got {crowds!r}")


def masks_of(batch: Batch, objects: PixelObjects) -> NDArray[Any] | None:
    """Return the mask of each object, [object, height, width], or None where the batch has no masks."""
    if MASKS not in batch:
        return None
    masks: NDArray[Any] = batch[MASKS][objects.row, objects.place]
    return masks
