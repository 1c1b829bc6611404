"""Metrics of predictions over a whole evaluation: COCO's twelve numbers, Dice and surface distances."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from halofeed.errors import UsageError

if TYPE_CHECKING:
    from halofeed.trainer.task import Host


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


Mask = NDArray[np.bool_]
PERCENTILE = 95.0


class SegmentationMetrics:
    """Dice and the 95th percentile of surface distances, per class and example.

    The background is no class here. A class that an example neither has nor is predicted to have does not count
    for it. Where only one of both is empty, Dice is 0 and the distance the diagonal of the image. Of an image only
    what shows its source is seen: within `extent` of a volume or a clip, `size` of a picture, all of it where there is
    neither.

    Numbers are averaged over the examples of each class, then over classes.

    Args:
        labels: the classes' names, the background's first.
        kind: of the images. Distances in volumes are in millimeters, by `spacing_mm`, in pictures in pixels; clips,
            whose frames and pixels have no unit in common, have none.
        hausdorff: measure distances.
        ignore_label: the value of the truth where nothing is known: what is predicted there does not count.
    """

    def __init__(
        self, labels: tuple[str, ...], *, kind: str, hausdorff: bool = True, ignore_label: int | None = None
    ) -> None:
        self._ignored = ignore_label
        self.labels, self._distance = labels, _DISTANCES[kind] if hausdorff else None
        self.examples = 0
        self._dice: list[NDArray[np.float64]] = []
        self._distances: list[NDArray[np.float64]] = []

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Count the valid, labelled rows of a batch; a row is as good as its mean Dice.

        Args:
            predictions: `label`, class indices [batch, (depth,) height, width].
            truth: `label` on the same grid; `labelled` and `valid`, bool [batch]; of volumes `spacing_mm`
                [batch, 3], of these and clips `extent` [batch, 2, 3], of pictures `size` [batch, 2].
        """
        counts = np.ones(len(truth["label"]), bool)
        for key in ("valid", "labelled"):
            counts &= np.asarray(truth.get(key, True), bool)
        scores = np.full(len(counts), np.nan)
        for row in np.flatnonzero(counts).tolist():
            shown = self._shown(truth, row)
            predicted, true = predictions["label"][row][shown], truth["label"][row][shown]
            if self._ignored is not None:
                unknown = true == self._ignored
                predicted, true = np.where(unknown, 0, predicted), np.where(unknown, 0, true)
            dice = dice_per_class(predicted, true, len(self.labels))
            self.examples += 1
            self._dice.append(dice)
            if self._distance is not None:
                spacing = self._distance.spacing(truth, row)
                self._distances.append(hausdorff_per_class(predicted, true, len(self.labels), spacing))
            if not np.isnan(dice).all():
                scores[row] = np.nanmean(dice)
        return scores

    def result(self) -> dict[str, Any]:
        """`dice`, `hausdorff95_mm` (of pictures `hausdorff95_pixels`), each also `..._per_class`, and `examples`.

        A class that no example counts is None and enters no mean; where there is none at all, `dice` is 0.
        """
        per_class = self._per_class(self._dice)
        means: dict[str, Any] = {
            "dice": _mean_of_known(per_class.values()) or 0.0,
            "dice_per_class": per_class,
        }
        if self._distance is not None:
            name = self._distance.name
            per_class = self._per_class(self._distances)
            means |= {name: _mean_of_known(per_class.values()), f"{name}_per_class": per_class}
        return {**means, "examples": self.examples}

    def _per_class(self, rows: Sequence[NDArray[np.float64]]) -> dict[str, float | None]:
        columns = np.array(rows).reshape(-1, len(self.labels) - 1).T
        means = (
            _mean_of_known(None if np.isnan(value) else float(value) for value in column)
            for column in columns
        )
        return dict(zip(self.labels[1:], means, strict=True))

    def _shown(self, truth: Host, row: int) -> tuple[slice, ...]:
        if "extent" in truth:
            return tuple(slice(max(0, start), stop) for start, stop in truth["extent"][row].T.tolist())
        if "size" in truth:
            return tuple(slice(stop) for stop in truth["size"][row].tolist())
        return (slice(None),) * (truth["label"].ndim - 1)


def _spacing_mm(truth: Host, row: int) -> tuple[float, ...]:
    spacing = tuple(np.asarray(truth.get("spacing_mm", np.zeros((row + 1, 3)))[row], np.float64).tolist())
    if not min(spacing) > 0:
        name = f"example {truth['id'][row]}" if "id" in truth else f"row {row} of a batch"
        raise UsageError(
            f"{name}: expected a spacing_mm above 0 along each axis, got {spacing}; without it there are no "
            "distances: set task.hausdorff=false"
        )
    return spacing


class _Distance(NamedTuple):
    name: str
    spacing: Callable[[Host, int], tuple[float, ...]]


_DISTANCES = {
    "picture": _Distance("hausdorff95_pixels", lambda truth, row: (1.0, 1.0)),
    "volume": _Distance("hausdorff95_mm", _spacing_mm),
    "clip": None,
}
"""Per kind of image."""


def dice_per_class(predicted: NDArray[Any], true: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Twice the overlap over the sum of the sizes, of every class but the background; NaN where both are empty.

    Args:
        predicted, true: class indices of one shape.
        classes: with the background.

    Returns:
        float64 [classes - 1].

    >>> dice_per_class(np.array([1, 1, 0, 2]), np.array([1, 0, 0, 0]), 4).round(3).tolist()
    [0.667, 0.0, nan]
    """
    pairs = np.bincount(true.ravel().astype(np.int64) * classes + predicted.ravel(), minlength=classes**2)
    table = pairs.reshape(classes, classes)
    both, sizes = np.diag(table)[1:], (table.sum(0) + table.sum(1))[1:]
    dice = np.full(classes - 1, np.nan)
    np.divide(2.0 * both, sizes, out=dice, where=sizes > 0)
    return dice


def hausdorff_per_class(
    predicted: NDArray[Any], true: NDArray[Any], classes: int, spacing: Sequence[float]
) -> NDArray[np.float64]:
    """`hausdorff95` of every class but the background, float64 [classes - 1]; NaN where both are empty."""
    distances = np.full(classes - 1, np.nan)
    boxes_of = (ndimage.find_objects(labels.astype(np.int32), classes - 1) for labels in (predicted, true))
    for index, boxes in enumerate(zip(*boxes_of, strict=True)):
        found = [box for box in boxes if box is not None]
        if len(found) == 1:
            distances[index] = _diagonal(true.shape, spacing)
        elif found:
            # Surfaces lie within the box of both masks, whose outside is background: nothing beyond it matters.
            box = tuple(
                slice(min(one.start, other.start), max(one.stop, other.stop))
                for one, other in zip(*found, strict=True)
            )
            distances[index] = hausdorff95(predicted[box] == index + 1, true[box] == index + 1, spacing)
    return distances


def hausdorff95(one: Mask, other: Mask, spacing: Sequence[float]) -> float:
    """The 95th percentile of the distances from each surface to the other, the greater of both directions.

    A mask's surface is its voxels with a face towards the outside or the image's edge; a distance is that of centers,
    and percentiles are linear between the two nearest, as in MONAI.

    Args:
        one, other: masks of one shape.
        spacing: of the voxels along each axis; the distance has its unit.

    Returns:
        NaN if both masks are empty, the image's diagonal if one is.

    >>> hausdorff95(np.array([[1, 0, 0, 0]], bool), np.array([[0, 0, 0, 1]], bool), (1.0, 2.5))
    7.5
    """
    if not (one.any() and other.any()):
        return _diagonal(one.shape, spacing) if one.any() or other.any() else float("nan")
    surfaces = [mask & ~ndimage.binary_erosion(mask) for mask in (one, other)]
    return max(
        float(np.percentile(ndimage.distance_transform_edt(~there, sampling=spacing)[here], PERCENTILE))
        for here, there in (surfaces, surfaces[::-1])
    )


def _diagonal(shape: Sequence[int], spacing: Sequence[float]) -> float:
    return float(np.linalg.norm(np.multiply(shape, spacing)))


def _mean_of_known(values: Any) -> float | None:
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None
