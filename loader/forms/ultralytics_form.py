"""Batches as Ultralytics' trainers take them: what `YOLODataset.collate_fn` of ultralytics/data/dataset.py returns."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import ID, SIZE, Batch, join_id
from halofeed.loader.dataset import Loader
from halofeed.loader.forms.epoch_batches import EpochBatches, with_fields
from halofeed.loader.forms.ignored_regions import tell_of_regions
from halofeed.loader.forms.pixel_boxes import (
    MASKS,
    SOURCE_SIZE,
    TRANSFORM,
    Crowds,
    PixelObjects,
    check_crowds,
    class_numbers,
    labels_of,
    pixel_objects,
)
from halofeed.loader.forms.record_facts import SourceNames, stored_objects
from halofeed.loader.forms.torchvision_form import image_tensor
from halofeed.loader.reading import BOXES, IMAGE
from halofeed.system.errors import UsageError

UltralyticsTask = Literal["detect", "segment"]
ULTRALYTICS_TASKS = {"detect": "boxes", "segment": "boxes and masks of objects"}
_MASK_RATIO = 4
"""Ultralytics' default of `mask_ratio`: masks have a quarter of the image's height and width."""


def ultralytics(
    loader: Loader, *, task: UltralyticsTask = "detect", crowds: Crowds = "drop", start_step: int = 0
) -> UltralyticsBatches:
    """Return epochs of batches for `get_dataloader` of Ultralytics' DetectionTrainer or SegmentationTrainer.

    A batch has `img` uint8 [row, 3, height, width], RGB, a view whose channels are last in memory; `cls` float32
    [object, 1] from 0; `bboxes` float32 [object, 4], x and y of the center, width and height, as shares of the image;
    and `batch_idx` float32 [object]. `im_file`, `ori_shape`, `resized_shape` and `ratio_pad` are tuples with an item
    for each row. `ratio_pad` records the letterboxing, by which Ultralytics' validator returns to the source: pixels of
    the image for one of the source, (y, x), and the picture's top left in the image, (x, y). `ori_shape` is that of
    the upright picture, also where the camera had stored it turned.

    For task "segment", `masks` uint8 [row, height / 4, width / 4] has numbers of objects from 1, smaller ones over
    larger ones, and `sem_masks` their classes, as with Ultralytics' `overlap_mask` and `mask_ratio` 4.

    Convert with `pad_value=114` for the gray that Ultralytics pads with. The picture is at the top left of the image,
    not in its middle.

    Args:
        loader: of a detection data set, with its augmentations.
        task: "detect" or "segment", which needs a data set with masks (`--masks`).
        crowds: "drop" leaves boxes of crowds out, as Ultralytics' converter of COCO does; "keep" makes them objects
            like others, because its batches have no flag for them.
        start_step: number of batches that an earlier process took.

    Raises:
        UsageError: the data set has no boxes, or an argument is invalid.

    >>> class Trainer(DetectionTrainer):  # doctest: +SKIP
    ...     def get_dataloader(self, dataset_path, batch_size=16, rank=0, mode="train"):
    ...         training = mode == "train"
    ...         return halofeed.torch.ultralytics(data.loader(mode, batch_size=batch_size, training=training))
    """
    if task not in ULTRALYTICS_TASKS:
        raise UsageError(f"task: expected one of {', '.join(ULTRALYTICS_TASKS)}, got {task!r}")
    needed = [IMAGE, BOXES, SIZE, *([MASKS] if task == "segment" else [])]
    stream = with_fields(loader, "torch.ultralytics", needed, [*SOURCE_SIZE, TRANSFORM])
    assert isinstance(stream, Loader)
    if check_crowds(crowds) == "with-regions":
        raise UsageError(
            "crowds: Ultralytics has no flag for crowds and ignored regions, so that each would be an object of every "
            "class; expected drop or keep, got 'with-regions'"
        )
    tell_of_regions(
        stream,
        "torch.ultralytics",
        "`halofeed export --to coco` writes a file for pycocotools, in which regions are crowds",
    )
    numbers, names = class_numbers(labels_of(stream))
    form = _Form(numbers=numbers, crowds=crowds, names=SourceNames(stream))
    return UltralyticsBatches(stream, form, start_step=start_step, class_names=names)


class UltralyticsBatches(EpochBatches[dict[str, Any]]):
    """Epochs of batches with the attributes that Ultralytics' trainer and validator use of their data loader.

    Attributes:
        dataset: the records' labels, and `close_mosaic`.
    """

    @functools.cached_property
    def dataset(self) -> LabelledRecords:
        """Return the facts of all records; `labels` is read when it is used first."""
        return LabelledRecords(self)

    def reset(self) -> None:
        """Do nothing: the next iteration begins with new threads."""

    def close(self) -> None:
        """Do nothing: threads end with their iteration."""

    def without_combinations(self) -> None:
        """Show single pictures from now on, each fitted into the frame of the mosaic."""
        assert isinstance(self.loader, Loader)
        self.loader = self.loader.without_combinations().by_epoch()


class LabelledRecords:
    """Facts that Ultralytics asks of `dataset`: its length, labels, files, and `close_mosaic`."""

    def __init__(self, batches: UltralyticsBatches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return self._loader.num_records

    @property
    def _loader(self) -> Loader:
        assert isinstance(self._batches.loader, Loader)
        return self._batches.loader

    @functools.cached_property
    def labels(self) -> list[dict[str, Any]]:
        """The classes `cls` [object, 1] and boxes `bboxes` [object, 4] of each record in stored order."""
        table, _ = class_numbers(labels_of(self._loader))
        return [
            {"cls": table[labels][:, None].astype(np.float32), "bboxes": center_boxes(boxes[:, [1, 0, 3, 2]])}
            | {"im_file": name, "segments": [], "normalized": True, "bbox_format": "xywh"}
            for (labels, boxes), name in zip(stored_objects(self._loader), self.im_files, strict=True)
        ]

    @functools.cached_property
    def im_files(self) -> list[str]:
        """The source of each record in stored order, relative to the source folder."""
        names = SourceNames(self._loader)
        return names.of(self._loader.stored(number).id for number in range(len(self)))

    def close_mosaic(self, hyp: object = None) -> None:
        """End mosaics and mixes, as Ultralytics does for the last epochs (`close_mosaic`)."""
        self._batches.without_combinations()


@dataclass(frozen=True, kw_only=True)
class _Form:
    """Function from a batch to Ultralytics' batch."""

    numbers: NDArray[np.int64]
    crowds: Crowds
    names: SourceNames

    def __call__(self, batch: Batch) -> dict[str, Any]:
        import torch

        objects = pixel_objects(batch, self.numbers, self.crowds)
        shape = batch[IMAGE].shape[1:3]
        found: dict[str, Any] = {"img": image_tensor(batch[IMAGE], None)}
        if MASKS in batch:
            objects, masks, semantic = overlapping_masks(batch[MASKS], objects, len(batch[IMAGE]))
            found |= {"masks": torch.from_numpy(masks), "sem_masks": torch.from_numpy(semantic)}
        sides: NDArray[np.float32] = np.array([*shape[::-1], *shape[::-1]], np.float32)
        shares: NDArray[np.float32] = np.divide(objects.boxes, sides, dtype=np.float32)
        boxes = center_boxes(shares)
        found["cls"] = torch.from_numpy(objects.classes[:, None].astype(np.float32))
        found["bboxes"] = torch.from_numpy(boxes)
        found["batch_idx"] = torch.from_numpy(objects.row.astype(np.float32))
        found["im_file"] = tuple(self.names.of(join_id(batch[ID]).tolist()))
        found["resized_shape"] = (tuple(shape),) * len(batch[IMAGE])
        found["ori_shape"], found["ratio_pad"] = letterboxes(batch)
        return found


def center_boxes(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return x and y of the center, width and height of boxes xmin, ymin, xmax, ymax, [object, 4].

    >>> center_boxes(np.array([[1, 2, 4, 8]], np.float32)).tolist()
    [[2.5, 5.0, 3.0, 6.0]]
    """
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([(low + high) / 2, high - low], axis=1)


Letterbox = tuple[tuple[float, float], tuple[float, float]]


def letterboxes(batch: Batch) -> tuple[tuple[tuple[int, int], ...], tuple[Letterbox | None, ...]]:
    """Return each row's height and width of its upright source, and its letterbox as ((gain y, x), (pad x, y)).

    Without a transform, as after a mosaic, there is no letterbox, and the shapes are those of the image.
    """
    if TRANSFORM not in batch or not all(name in batch for name in SOURCE_SIZE):
        return tuple(map(tuple, batch[SIZE].tolist())), (None,) * len(batch[SIZE])
    shapes, boxes = [], []
    sizes = np.stack([batch[name] for name in SOURCE_SIZE], axis=-1).tolist()
    for transform, size in zip(batch[TRANSFORM].astype(np.float64).tolist(), sizes, strict=True):
        turned = abs(transform[0][1]) > abs(transform[0][0])
        gains, pads, shape = [], [], []
        for axis in range(2):
            # Rows of the transform are y and x of the source; a turned picture's y is its source's x.
            row = 1 - axis if turned else axis
            scale, origin = transform[row][axis], transform[row][2]
            if scale < 0:  # mirrored: count from the other end
                scale, origin = -scale, size[row] - origin
            shape.append(int(size[row]))
            gains.append(1 / scale)
            pads.append(-origin / scale + 0.0)
        shapes.append((shape[0], shape[1]))
        boxes.append(((gains[0], gains[1]), (pads[1], pads[0])))
    return tuple(shapes), tuple(boxes)


def overlapping_masks(
    masks: NDArray[Any], objects: PixelObjects, rows: int
) -> tuple[PixelObjects, NDArray[np.uint8], NDArray[np.float32]]:
    """Return the objects of each row from large to small, and one small mask of all, as `polygons2masks_overlap` does.

    Args:
        masks: [row, place, height, width], 0 and 1.
        objects: the objects of a batch.
        rows: number of rows.

    Returns:
        The objects in their new order; numbers of objects from 1, [row, height / 4, width / 4]; and their classes.
    """
    height, width = (side // _MASK_RATIO for side in masks.shape[2:])
    order: list[int] = []
    numbers, semantic = np.zeros((rows, height, width), np.uint8), np.zeros((rows, height, width), np.float32)
    for row, these in _by_row(objects.row, rows):
        small = [
            cv2.resize(np.ascontiguousarray(masks[row, objects.place[one]]), (width, height)) for one in these
        ]
        by_area = np.argsort([-int(mask.sum()) for mask in small], kind="stable")
        for number, at in enumerate(by_area.tolist(), start=1):
            numbers[row][small[at] > 0] = min(number, 255)
            semantic[row][small[at] > 0] = objects.classes[these[at]]
        order += [these[at] for at in by_area.tolist()]
    return _reordered(objects, order), numbers, semantic


def _by_row(row: NDArray[np.int64], rows: int) -> Iterator[tuple[int, Sequence[int]]]:
    ends = np.searchsorted(row, np.arange(rows + 1)).tolist()
    for number in range(rows):
        yield number, range(ends[number], ends[number + 1])


def _reordered(objects: PixelObjects, order: list[int]) -> PixelObjects:
    return PixelObjects(
        row=objects.row[order],
        place=objects.place[order],
        boxes=objects.boxes[order],
        classes=objects.classes[order],
        areas=objects.areas[order],
        crowd=objects.crowd[order],
        counts=objects.counts,
        sizes=objects.sizes,
    )
