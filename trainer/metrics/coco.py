"""How good are detections? COCO's twelve numbers and the average precision of each class, by pycocotools."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # the tasks import the metrics
    from halofeed.trainer.shared.task import Host

NAMES = (
    *("mAP", "mAP@0.5", "mAP@0.75", "mAP small", "mAP medium", "mAP large"),
    *("AR@1", "AR@10", "AR@100", "AR small", "AR medium", "AR large"),
)
"""In the order of pycocotools' summary."""
SURE_SCORE = 0.3
"""From which score on a detection counts in the score of its row."""
SAME_OBJECT_IOU = 0.5
_ALL_AREAS, _MOST_DETECTIONS = 0, -1
_CLASS, _SCORE, _IS_CROWD = 1, 6, 7


class CocoMetrics:
    """Detections and truth of an evaluation, in pixels of the stored images.

    Memory: 56 bytes a detection and 64 a box; ten times that while `result` works.

    Args:
        labels: the classes' names, from class 1 on.
    """

    def __init__(self, labels: tuple[str, ...]) -> None:
        self.labels = labels
        self.images = 0
        self._detections: list[NDArray[np.float64]] = []
        self._truth: list[NDArray[np.float64]] = []

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Count the valid rows of a batch.

        Args:
            predictions: `boxes` [batch, detection, 4] (ymin, xmin, ymax, xmax, shares of the image's sides), `scores`,
                `classes`, `num_detections` and `image_size`, of the detection task.
            truth: `boxes` [batch, box, 4], `classes`, `is_crowd`, `area` (in pixels²) and `num_boxes`.

        Returns:
            float64 [batch]: the F1 score of the detections of score 0.3 or more, each of which finds one box of its
            class at IoU 0.5 or more; 1 where there is nothing and nothing was found. Crowds, and what lies in them,
            do not count. NaN where a row is not valid.
        """
        valid = np.asarray(truth.get("valid", np.ones(len(truth["boxes"]))), bool)
        scores = np.full(len(valid), np.nan)
        for row in np.flatnonzero(valid).tolist():
            self.images += 1
            sides = np.tile(predictions["image_size"][row].astype(np.float64), 2)
            detections, boxes = (
                _columns(self.images, arrays, row, int(arrays[count][row]), sides, extra)
                for arrays, count, extra in (
                    (predictions, "num_detections", ("scores",)),
                    (truth, "num_boxes", ("area", "is_crowd")),
                )
            )
            self._detections.append(detections)
            self._truth.append(boxes)
            scores[row] = _f1(detections, boxes)
        return scores

    def result(self) -> dict[str, Any]:
        """The names of `NAMES` (None where there is nothing to count), `examples`, and by class `AP` and `AP@0.5`."""
        stats, precision = self._evaluate()
        return {
            **{name: _number(value) for name, value in zip(NAMES, stats, strict=True)},
            "examples": self.images,
            "AP": {label: _mean(precision[:, :, index]) for index, label in enumerate(self.labels)},
            "AP@0.5": {label: _mean(precision[0, :, index]) for index, label in enumerate(self.labels)},
        }

    def _evaluate(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The twelve numbers, and the precisions [IoU threshold, recall, class]; -1 where nothing counts."""
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        shared = {
            "info": {},
            "images": [{"id": image} for image in range(1, self.images + 1)],
            "categories": [{"id": index, "name": label} for index, label in enumerate(self.labels, 1)],
        }
        sides = []
        # It prints its progress and its tables.
        with contextlib.redirect_stdout(io.StringIO()):
            for entries in (self._truth_entries(), self._detection_entries()):
                side = COCO()
                side.dataset = {**shared, "annotations": entries}
                side.createIndex()
                sides.append(side)
            evaluation = COCOeval(*sides, iouType="bbox")
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        stats: NDArray[np.float64] = evaluation.stats
        return stats, evaluation.eval["precision"][..., _ALL_AREAS, _MOST_DETECTIONS]

    def _truth_entries(self) -> list[dict[str, Any]]:
        return [
            {**_entry(number, *values), "area": area, "iscrowd": int(is_crowd)}
            for number, (*values, area, is_crowd) in _numbered(self._truth)
        ]

    def _detection_entries(self) -> list[dict[str, Any]]:
        entries = []
        for number, (*values, score) in _numbered(self._detections):
            entry = _entry(number, *values)
            _, _, width, height = entry["bbox"]
            entries.append({**entry, "area": width * height, "iscrowd": 0, "score": score})
        return entries


def _columns(
    image: int, arrays: Host, row: int, count: int, sides: NDArray[np.float64], extra: tuple[str, ...]
) -> NDArray[np.float64]:
    """Of one row, [count, 6 + len(extra)]: image, class, ymin, xmin, ymax, xmax in pixels, and the others."""
    of_row = {name: arrays[name][row, :count].astype(np.float64) for name in ("classes", "boxes", *extra)}
    others = [of_row[name] for name in extra]
    return np.column_stack([np.full(count, image), of_row["classes"], of_row["boxes"] * sides, *others])


def _numbered(parts: list[NDArray[np.float64]]) -> Iterator[tuple[int, list[float]]]:
    """Rows with their ids, from 1: to pycocotools an id of 0 means that nothing was matched."""
    return enumerate(itertools.chain.from_iterable(part.tolist() for part in parts), 1)


def _entry(
    number: int, image: float, label: float, ymin: float, xmin: float, ymax: float, xmax: float
) -> dict[str, Any]:
    return {
        "id": number,
        "image_id": int(image),
        "category_id": int(label),
        "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
    }


def _f1(detections: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Of one image's rows of `_columns`; each detection, the surest first, takes the free box that it overlaps most."""
    is_crowd = truth[:, _IS_CROWD] > 0
    crowds, objects = truth[is_crowd], truth[~is_crowd]
    sure = detections[detections[:, _SCORE] >= SURE_SCORE]
    sure = sure[np.argsort(-sure[:, _SCORE], kind="stable")]
    free = np.ones(len(objects), bool)
    right = wrong = 0
    for detection in sure:
        same = free & (objects[:, _CLASS] == detection[_CLASS])
        common, own, others = _areas(detection, objects)
        overlap = np.where(same, common / np.maximum(own + others - common, np.finfo(float).tiny), 0)
        if len(overlap) and overlap.max() >= SAME_OBJECT_IOU:
            free[overlap.argmax()] = False
            right += 1
            continue
        common, own, _ = _areas(detection, crowds)
        wrong += not np.any((crowds[:, _CLASS] == detection[_CLASS]) & (common >= SAME_OBJECT_IOU * own))
    counted = 2 * right + wrong + int(free.sum())
    return 2 * right / counted if counted else 1.0


def _areas(
    one: NDArray[np.float64], many: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float, NDArray[np.float64]]:
    """What rows of `_columns` have in common with one, its area, and theirs."""
    low, high = slice(2, 4), slice(4, 6)
    common = np.minimum(one[high], many[:, high]) - np.maximum(one[low], many[:, low])
    own, others = one[high] - one[low], many[:, high] - many[:, low]
    return np.prod(np.maximum(common, 0), 1), float(np.prod(own)), np.prod(others, 1)


def _mean(precision: NDArray[np.float64]) -> float | None:
    """Over what counts; None where nothing does."""
    counted = precision[precision > -1]
    return float(counted.mean()) if counted.size else None


def _number(value: np.float64) -> float | None:
    return None if value == -1 else float(value)
