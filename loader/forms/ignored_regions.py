"""Ignored regions in the forms of trainers, none of which has a word for a region of no class.

What they can take, by their sources:

- torchvision's references/detection leaves crowds out of training, and evaluates by pycocotools, which takes `iscrowd`
  of the targets (`convert_to_coco_api` of coco_utils.py). Its models ignore further keys of a target.
- RF-DETR 1.11 does the same: `ConvertCoco` leaves crowds out, and its `COCOEvalCallback` uses `iscrowd` of the targets.
- Ultralytics 8.4 has neither crowds nor ignored boxes in its losses and its validator.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import COUNT, Batch
from halofeed.loader.dataset import Loader
from halofeed.loader.forms.pixel_boxes import CLASSES, CROWD, MASKS
from halofeed.loader.reading import AREA, BOXES, IMAGE, REGIONS
from halofeed.loader.stream import Stream
from halofeed.system.console import print_status


def regions_as_crowds(batch: Batch, labels: Sequence[int]) -> Batch:
    """Return a batch whose ignored regions are crowds, one of each class, after the objects of their rows.

    pycocotools leaves out a detection only in crowds of its class, so a region needs one of each.

    Args:
        batch: with `size`; without `ignored_boxes` it is returned as it is.
        labels: our labels of all classes.

    >>> empty = {"boxes": np.zeros((1, 0, 4), np.float32), "num_boxes": np.array([0], np.int32)}
    >>> empty |= {"classes": np.zeros((1, 0), np.int32), "is_crowd": np.zeros((1, 0), bool)}
    >>> empty |= {"area": np.zeros((1, 0), np.float32), "image": np.zeros((1, 8, 4, 3), np.uint8)}
    >>> regions = np.array([[[0, 0, 0.5, 1], [0, 0, 0, 0]]], np.float32)
    >>> found = regions_as_crowds({**empty, "ignored_boxes": regions}, [3, 7])
    >>> found["num_boxes"].tolist(), found["classes"].tolist(), found["area"].tolist()
    ([2], [[3, 7]], [[16.0, 16.0]])
    """
    if REGIONS not in batch:
        return batch
    height, width = batch[IMAGE].shape[1:3]
    shown = [_shown(regions) for regions in batch[REGIONS]]
    counts = batch[COUNT] + np.array([len(regions) * len(labels) for regions in shown], batch[COUNT].dtype)
    names = [BOXES, CLASSES, CROWD, AREA, *([MASKS] if MASKS in batch else [])]
    places = max(int(counts.max(initial=0)), batch[BOXES].shape[1])
    changed = {name: _with_places(batch[name], places) for name in names}
    for row, regions in enumerate(shown):
        own = slice(int(batch[COUNT][row]), int(counts[row]))
        of_each = np.tile(regions, (len(labels), 1))
        changed[BOXES][row, own] = of_each
        changed[CLASSES][row, own] = np.repeat(labels, len(regions))
        changed[CROWD][row, own] = True
        changed[AREA][row, own] = np.prod(of_each[:, 2:] - of_each[:, :2], axis=1) * (height * width)
        if MASKS in batch:
            masks = [_rectangle(box, height, width) for box in regions]
            changed[MASKS][row, own] = np.tile(np.reshape(masks, (-1, height, width)), (len(labels), 1, 1))
    return {**batch, **changed, COUNT: counts}


def pixel_regions(batch: Batch) -> list[NDArray[np.float32]]:
    """Return the ignored regions of each row, [region, 4]: xmin, ymin, xmax, ymax in pixels of the image."""
    height, width = batch[IMAGE].shape[1:3]
    sides = np.array([width, height, width, height], np.float32)
    return [_shown(regions)[:, [1, 0, 3, 2]].astype(np.float32) * sides for regions in batch[REGIONS]]


def tell_of_regions(stream: Stream, trainer: str, advice: str) -> None:
    """Print once for each data set what a trainer makes of ignored regions, if the stream has some."""
    if isinstance(stream, Loader) and REGIONS in stream.row_spec:
        _tell(trainer, advice, str(stream.manifest.name))


@functools.cache
def _tell(trainer: str, advice: str, name: str) -> None:
    print_status(
        f"{trainer}: {name} has ignored regions, which this trainer does not leave out: objects in them that are not "
        f"annotated are learned as background, and detections in them count as wrong. {advice}"
    )


def _shown(regions: NDArray[Any]) -> NDArray[Any]:
    """Return the regions of a row without its padding and without those of no area."""
    shown: NDArray[Any] = regions[np.all(regions[:, :2] < regions[:, 2:], axis=1)]
    return shown


def _with_places(array: NDArray[Any], places: int) -> NDArray[Any]:
    """Return a copy of [row, place, ...] with as many places."""
    return np.pad(array, [(0, 0), (0, places - array.shape[1]), *[(0, 0)] * (array.ndim - 2)])


def _rectangle(box: NDArray[Any], height: int, width: int) -> NDArray[np.uint8]:
    """Return a mask of the pixels whose centers a box contains."""
    ymin, xmin, ymax, xmax = box.tolist()
    y, x = (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width
    rows, columns = (y >= ymin) & (y < ymax), (x >= xmin) & (x < xmax)
    mask: NDArray[np.uint8] = np.outer(rows, columns).astype(np.uint8)
    return mask
