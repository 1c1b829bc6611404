"""Metrics of an evaluation: COCO's twelve numbers for boxes; Dice, IoU and surface distances for masks."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import join_id
from halofeed.schemas.tasks import IGNORED_BOXES
from halofeed.system.errors import UsageError
from halofeed.trainer.detection.sparse_coco import SparseMatching
from halofeed.trainer.detection.visdrone_regions import outside_regions
from halofeed.trainer.mask_rule import ClassRegions
from halofeed.trainer.source_grid import BOX_DECIMALS, SCORE_DECIMALS, boxes_in_source
from halofeed.trainer.task import Host

COCO_METRICS = (
    *("mAP", "mAP@0.5", "mAP@0.75", "mAP small", "mAP medium", "mAP large"),
    *("AR@1", "AR@10", "AR@100", "AR small", "AR medium", "AR large"),
)
"""Names in the order of pycocotools' summary."""
REGION_RULES = {
    "coco": "a detection that matches no object, and whose share inside of one region reaches the IoU threshold",
    "visdrone": "detections and objects that have half of their area in the union of the regions, as VisDrone's tool",
}
"""What metrics leave out because of ignored regions."""
MIN_SCORE = 0.3
"""Minimum score of a detection that counts for the F1 score of its row."""
SAME_OBJECT_IOU = 0.5
_ALL_AREAS, _MAX_DETECTIONS = 0, -1
_CLASS, _SCORE, _AREA, _IS_CROWD = 1, 6, 6, 7
AREA_DECIMALS = 2
"""Decimals of an area, as in COCO's files: float32 areas of 96² pixels², a limit of COCO's sizes, are little finer."""


MAX_CONFUSED = 100
"""Most pairs of confused classes in the result of an evaluation."""


def confused_pairs(counts: NDArray[np.int64], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return which classes are predicted for which, the most frequent first: `true`, `predicted` and `count`.

    Args:
        counts: number of examples or objects of each true and predicted class, int64 [class, class].
        labels: names of the classes.

    >>> confused_pairs(np.array([[5, 0], [2, 7]]), ("cat", "dog"))
    [{'true': 'dog', 'predicted': 'cat', 'count': 2}]
    """
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSED]
    pairs = [divmod(int(at), len(labels)) for at in order]
    return [
        {"true": labels[true], "predicted": labels[found], "count": int(wrong[true, found])}
        for true, found in pairs
        if wrong[true, found]
    ]


class CocoMetrics:
    """COCO metrics of detections, in pixels of the source pictures.

    Detections are those that `predict` writes: clipped to the picture, without its padding, and rounded. So
    pycocotools gives the same numbers for detections.json and the source's annotations.

    Memory: 56 bytes per detection and 64 per ground-truth box; ten times that during `result`.

    Args:
        labels: names of the classes, from class 1.
        region_rule: key of `REGION_RULES`.
    """

    def __init__(self, labels: tuple[str, ...], region_rule: str = "coco") -> None:
        self.labels, self.region_rule = labels, region_rule
        self._ids: list[int] = []
        self._detections: list[NDArray[np.float64]] = []
        self._truth: list[NDArray[np.float64]] = []
        self._confusion = np.zeros((len(labels), len(labels)), np.int64)
        self.kept: list[NDArray[np.int64]] = []
        """Numbers of the detections of each picture that count, among those of its row."""
        self.kept_objects: list[NDArray[np.int64]] = []
        """Numbers of the objects of each picture that count, among those of its row."""

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add the valid rows of a batch.

        Args:
            predictions: `boxes` [batch, detection, 4] (ymin, xmin, ymax, xmax as shares of the image's sides),
                `scores`, `classes`, `num_detections` and `image_size`, of the detection task.
            truth: `boxes` [batch, box, 4], `classes`, `is_crowd`, `area` (in pixels² of the image) and `num_boxes`;
                `ignored_boxes` [batch, region, 4] where the data set has ignored regions, padded with zeros;
                `id`, which orders pictures; `transform`, `source_height` and `source_width`, as for `boxes_in_source`.
                Without these three the image is the source.

        Returns:
            float64 [batch]: F1 score of the detections with a score of 0.3 or more. A detection is right if it matches
            a box of its class at IoU 0.5 or more. The score is 1 without detections and boxes, and NaN for rows that
            are not valid. Crowds, and detections inside them or inside ignored regions, do not count.
        """
        valid = np.asarray(truth.get("valid", np.ones(len(truth["boxes"]))), bool)
        scores = np.full(len(valid), np.nan)
        for row in np.flatnonzero(valid).tolist():
            self._ids.append(int(join_id(truth["id"][row])) if "id" in truth else len(self._ids))
            placement = placement_of(predictions["image_size"][row], truth, row)
            detections, boxes = (
                _columns(len(self._ids), arrays, row, int(arrays[count][row]), placement, extra)
                for arrays, count, extra in (
                    (predictions, "num_detections", ("scores",)),
                    (truth, "num_boxes", ("area", "is_crowd")),
                )
            )
            # Boxes in the padding have no area on the source, and detections.json leaves them out too.
            has_area = np.all(detections[:, 2:4] < detections[:, 4:6], axis=1)
            detections = detections[has_area]
            detections[:, _SCORE] = np.round(detections[:, _SCORE], SCORE_DECIMALS)
            area = boxes[:, _AREA] * abs(np.linalg.det(placement[0][:, :2]))
            boxes[:, _AREA] = np.round(area, AREA_DECIMALS)
            regions = regions_in_source(truth, row, placement)
            counted, objects = (self._outside(rows, regions) for rows in (detections, boxes))
            self.kept.append(np.flatnonzero(has_area)[counted])
            self.kept_objects.append(np.flatnonzero(objects))
            scores[row] = self._add(detections[counted], boxes[objects], regions)
        return scores

    def _add(
        self, detections: NDArray[np.float64], boxes: NDArray[np.float64], regions: NDArray[np.float64]
    ) -> float:
        """Add the rows of `_columns` of one picture that remain beside its regions, and return its F1 score."""
        if self.region_rule == "coco":
            boxes = np.concatenate([boxes, _crowds_of_regions(regions, detections)])
        self._detections.append(detections)
        self._truth.append(boxes)
        score, unmatched, missed = _f1(detections, boxes)
        for true, found in _confused(unmatched, missed):
            self._confusion[true - 1, found - 1] += 1
        return score

    def _outside(self, rows: NDArray[np.float64], regions: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which rows of `_columns` remain beside ignored regions, bool [row]; "coco" keeps all."""
        if self.region_rule == "coco":
            return np.ones(len(rows), np.bool_)
        return outside_regions(rows[:, 2:6], regions)

    def result(self) -> dict[str, Any]:
        """Return `COCO_METRICS` (None without anything to count), `examples`, and `AP` and `AP@0.5` by class.

        Sizes are in pixels of the source. `confused` lists objects that no detection of their class matches, but one of
        another class (score of 0.3 or more, IoU of 0.5 or more), as `confused_pairs`.
        """
        return {
            **coco_numbers(*self._evaluate(), self.labels),
            "examples": len(self._ids),
            "confused": confused_pairs(self._confusion, self.labels),
        }

    def _evaluate(self, kind: str = "bbox") -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the twelve numbers and the precisions [IoU threshold, recall, class]; -1 without anything to count."""
        sides = self._sides()
        # pycocotools prints its progress and tables.
        with contextlib.redirect_stdout(io.StringIO()):
            from pycocotools.cocoeval import COCOeval

            evaluation = COCOeval(*sides, iouType=kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        stats: NDArray[np.float64] = evaluation.stats
        return stats, evaluation.eval["precision"][..., _ALL_AREAS, _MAX_DETECTIONS]

    def _sides(self) -> list[Any]:
        """Return ground truth and detections as data sets of pycocotools."""
        from pycocotools.coco import COCO

        # Pictures count in the order of their ids, because pycocotools sorts them: it orders equal scores.
        images = [0] * (len(self._ids) + 1)
        for place, number in enumerate(sorted(range(len(self._ids)), key=self._ids.__getitem__), 1):
            images[number + 1] = place
        shared = {
            "info": {},
            "images": [{"id": place} for place in range(1, len(images))],
            "categories": [{"id": index, "name": label} for index, label in enumerate(self.labels, 1)],
        }
        sides = []
        # pycocotools prints its progress and tables.
        with contextlib.redirect_stdout(io.StringIO()):
            for entries in (
                _entries(self._truth, images, ("area", "iscrowd")),
                _entries(self._detections, images, ("score",)),
            ):
                side = COCO()
                side.dataset = {**shared, "annotations": entries}
                side.createIndex()
                sides.append(side)
        return sides


def coco_numbers(
    stats: NDArray[np.float64], precision: NDArray[np.float64], labels: Sequence[str]
) -> dict[str, Any]:
    """Return `COCO_METRICS` by name (None without anything to count), and `AP` and `AP@0.5` by class.

    Args:
        stats: the twelve numbers of pycocotools; -1 without anything to count.
        precision: precisions [IoU threshold, recall, class].
        labels: names of the classes.
    """
    return {
        **{name: _number(value) for name, value in zip(COCO_METRICS, stats, strict=True)},
        "AP": {label: _mean(precision[:, :, index]) for index, label in enumerate(labels)},
        "AP@0.5": {label: _mean(precision[0, :, index]) for index, label in enumerate(labels)},
    }


_Placement = tuple[NDArray[np.float64], Sequence[int], Sequence[int]]
"""Transform, image size and source size of `boxes_in_source`."""


def placement_of(image_size: NDArray[Any], truth: Host, row: int) -> _Placement:
    """Return how one row's image is placed in its source picture."""
    if not {"transform", "source_height", "source_width"} <= set(truth):
        return np.eye(2, 3), image_size.tolist(), image_size.tolist()
    source_size = [int(truth[name][row]) for name in ("source_height", "source_width")]
    return truth["transform"][row].astype(np.float64), image_size.tolist(), source_size


def _columns(
    image: int, arrays: Host, row: int, count: int, placement: _Placement, extra: tuple[str, ...]
) -> NDArray[np.float64]:
    """Return one row's boxes as [count, 6 + len(extra)]: image, class, ymin, xmin, ymax, xmax in pixels, `extra`."""
    boxes = boxes_in_source(arrays["boxes"][row, :count], *placement)
    classes, *others = (arrays[name][row, :count].astype(np.float64) for name in ("classes", *extra))
    return np.column_stack([np.full(count, image), classes, boxes, *others])


def regions_in_source(truth: Host, row: int, placement: _Placement) -> NDArray[np.float64]:
    """Return the ignored regions of one row in pixels of its source, [region, 4], without padding."""
    if IGNORED_BOXES not in truth:
        return np.zeros((0, 4))
    regions = boxes_in_source(truth[IGNORED_BOXES][row], *placement)
    return regions[np.all(regions[:, :2] < regions[:, 2:], axis=1)]


def _crowds_of_regions(regions: NDArray[np.float64], detections: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows of `_columns` for ignored regions: a crowd of each class that is detected in the picture.

    A detection that matches no object and lies in a crowd of its class is neither right nor wrong, at each threshold of
    pycocotools, which compares the share of the detection's area inside the crowd with it. Other classes have no
    detection that a region could concern, and crowds are no objects that could be missed.
    """
    if not len(regions) or not len(detections):
        return np.zeros((0, _IS_CROWD + 1))
    classes = np.unique(detections[:, _CLASS])
    of_each = np.tile(regions, (len(classes), 1))
    count = len(of_each)
    areas = np.prod(of_each[:, 2:] - of_each[:, :2], axis=1)
    images, crowds = np.full(count, detections[0, 0]), np.ones(count)
    return np.column_stack([images, np.repeat(classes, len(regions)), of_each, areas, crowds])


def _entries(
    parts: list[NDArray[np.float64]], images: Sequence[int], extra: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return rows of `_columns` as annotations of COCO.

    Args:
        parts: rows of each picture.
        images: COCO's id of each picture by its number in `_columns`.
        extra: names of the last columns.
    """
    entries = []
    rows = itertools.chain.from_iterable(part.tolist() for part in parts)
    # Ids begin at 1, because 0 means "no match" in pycocotools.
    for number, (image, label, ymin, xmin, ymax, xmax, *values) in enumerate(rows, 1):
        width, height = (round(side, BOX_DECIMALS) for side in (xmax - xmin, ymax - ymin))
        entry = {"area": width * height, "iscrowd": 0, **dict(zip(extra, values, strict=True))}
        entry |= {"id": number, "image_id": images[int(image)], "category_id": int(label)}
        entries.append({**entry, "iscrowd": int(entry["iscrowd"]), "bbox": [xmin, ymin, width, height]})
    return entries


def _f1(
    detections: NDArray[np.float64], truth: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Return the F1 score of one image's rows of `_columns`, the wrong detections and the missed objects.

    Detections match in order of their scores, each the unmatched box of its class with the largest overlap.
    """
    is_crowd = truth[:, _IS_CROWD] > 0
    crowds, objects = truth[is_crowd], truth[~is_crowd]
    detections = detections[detections[:, _SCORE] >= MIN_SCORE]
    detections = detections[np.argsort(-detections[:, _SCORE], kind="stable")]
    is_unmatched = np.ones(len(objects), bool)
    true_positives = 0
    wrong = []
    for number, detection in enumerate(detections):
        is_candidate = is_unmatched & (objects[:, _CLASS] == detection[_CLASS])
        common, own, others = _areas(detection, objects)
        iou = np.where(is_candidate, common / np.maximum(own + others - common, np.finfo(float).tiny), 0)
        if len(iou) and iou.max() >= SAME_OBJECT_IOU:
            is_unmatched[iou.argmax()] = False
            true_positives += 1
            continue
        # As pycocotools: a detection inside a crowd is neither right nor wrong; its overlap is over its own area.
        common, own, _ = _areas(detection, crowds)
        is_in_crowd = (crowds[:, _CLASS] == detection[_CLASS]) & (common >= SAME_OBJECT_IOU * own)
        if not np.any(is_in_crowd):
            wrong.append(number)
    counted = 2 * true_positives + len(wrong) + int(is_unmatched.sum())
    return 2 * true_positives / counted if counted else 1.0, detections[wrong], objects[is_unmatched]


def _confused(detections: NDArray[np.float64], objects: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return true and predicted class of each object that a detection of another class matches.

    Args:
        detections: rows of `_columns` that match no object of their class, best score first.
        objects: rows of `_columns` that no detection of their class matches.
    """
    pairs, is_left = [], np.ones(len(objects), bool)
    for detection in detections:
        if not is_left.any():
            break
        common, own, others = _areas(detection, objects)
        iou = np.where(is_left, common / np.maximum(own + others - common, np.finfo(float).tiny), 0)
        best = int(iou.argmax())
        if iou[best] >= SAME_OBJECT_IOU:
            is_left[best] = False
            pairs.append((int(objects[best, _CLASS]), int(detection[_CLASS])))
    return pairs


def _areas(
    one: NDArray[np.float64], many: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float, NDArray[np.float64]]:
    """Return the intersections of rows of `_columns` with one of them, its area, and their areas."""
    low, high = slice(2, 4), slice(4, 6)
    common = np.minimum(one[high], many[:, high]) - np.maximum(one[low], many[:, low])
    own, others = one[high] - one[low], many[:, high] - many[:, low]
    return np.prod(np.maximum(common, 0), 1), float(np.prod(own)), np.prod(others, 1)


def _mean(precision: NDArray[np.float64]) -> float | None:
    """Return the mean of the values that count; None without any."""
    counted = precision[precision > -1]
    return float(counted.mean()) if counted.size else None


def _number(value: np.float64) -> float | None:
    return None if value == -1 else float(value)


class WholeCocoMetrics(CocoMetrics):
    """COCO metrics of pictures with any number of objects: all detections count, not the best 100 of a picture.

    The names of the last recalls are `AR@all`, `AR small` and so on. Pictures are added by `add_picture`.
    """

    def add_picture(
        self,
        picture_id: int,
        detections: NDArray[np.float64],
        truth: NDArray[np.float64],
        regions: NDArray[np.float64] | None = None,
    ) -> None:
        """Add one picture.

        Args:
            picture_id: id, which orders pictures.
            detections: float64 [n, 6]: class, ymin, xmin, ymax, xmax in pixels, score.
            truth: float64 [m, 7]: class, ymin, xmin, ymax, xmax, area in pixels², 1 for a crowd.
            regions: float64 [k, 4]: ignored regions, ymin, xmin, ymax, xmax; None without any.
        """
        self._ids.append(picture_id)
        found, boxes = (
            np.column_stack([np.full(len(rows), len(self._ids)), rows]) for rows in (detections, truth)
        )
        ignored = np.zeros((0, 4)) if regions is None else regions
        counted, objects = (self._outside(rows, ignored) for rows in (found, boxes))
        self.kept.append(np.flatnonzero(counted))
        self.kept_objects.append(np.flatnonzero(objects))
        self._add(found[counted], boxes[objects], ignored)

    def result(self) -> dict[str, Any]:
        """Return the numbers of `CocoMetrics`, with `AR@all` in place of `AR@100`."""
        return {name.replace("AR@100", "AR@all"): value for name, value in super().result().items()}

    def _evaluate(self, kind: str = "bbox") -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        with contextlib.redirect_stdout(io.StringIO()):
            from pycocotools import mask as run_lengths
            from pycocotools.cocoeval import COCOeval

            own = {"mask_iou": staticmethod(run_lengths.iou)}
            sparse = type("SparseCocoEval", (SparseMatching, COCOeval), own)
            evaluation = sparse(*self._sides(), iouType=kind)
            most = max((len(rows) for rows in self._detections), default=0)
            evaluation.params.maxDets = [1, 10, max(100, most)]
            evaluation.evaluate()
            evaluation.accumulate()
        precision, recall = evaluation.eval["precision"], evaluation.eval["recall"]
        # `summarize` looks for a limit of 100 detections and gives -1 without it.
        areas = range(precision.shape[3])
        stats = [
            precision[..., _ALL_AREAS, -1],
            *(precision[at, ..., _ALL_AREAS, -1] for at in (0, 5)),
            *(precision[..., area, -1] for area in areas[1:]),
            *(recall[..., _ALL_AREAS, limit] for limit in range(3)),
            *(recall[..., area, -1] for area in areas[1:]),
        ]
        means = [values[values > -1].mean() if (values > -1).any() else -1.0 for values in stats]
        return np.array(means), precision[..., _ALL_AREAS, -1]


BooleanMask = NDArray[np.bool_]
PERCENTILE = 95.0


class SegmentationMetrics:
    """Dice and the 95th percentile of surface distances, per class and example; IoU of each class over all examples.

    Dice and distances do not count the background. A class that is neither true nor predicted in an example does not
    count for it. If only one of both is empty, Dice is 0 and the distance is the diagonal of the image. Both are
    averaged over the examples of each class, then over classes.

    IoU counts the voxels of all examples together, and the background is one of the classes: true positives /
    (true positives + false positives + false negatives), as PASCAL VOC and Cityscapes evaluate scenes. `miou` is its
    mean over the classes that are true or predicted anywhere (Everingham et al., "The Pascal Visual Object Classes
    Challenge: A Retrospective", 2015, section 3.4). A class of a few examples weighs as much there as any other.

    Padding does not count: metrics use the `extent` of a volume or clip and the `size` of a picture, if the batch has
    them.

    Args:
        labels: names of the classes, background first.
        kind: kind of image. Distances are in millimeters for volumes (by `spacing_mm`) and in pixels for pictures.
            Clips have no distances, because frames and pixels have no common unit.
        hausdorff: measure distances.
        ignore_label: true label of voxels that do not count; None counts all.
        regions: unions of classes whose Dice is measured too; None for none.
    """

    def __init__(
        self,
        labels: tuple[str, ...],
        *,
        kind: str,
        hausdorff: bool = True,
        ignore_label: int | None = None,
        regions: ClassRegions | None = None,
    ) -> None:
        self._ignore_label, self._regions = ignore_label, regions
        self._region_dice: list[NDArray[np.float64]] = []
        self.labels, self._distance = labels, _DISTANCES[kind] if hausdorff else None
        self.examples = 0
        self._table = np.zeros((len(labels), len(labels)), np.int64)
        self._dice: list[NDArray[np.float64]] = []
        self._distances: list[NDArray[np.float64]] = []

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add the valid, labelled rows of a batch and return the mean Dice of each row.

        Args:
            predictions: `label`, class indices [batch, (depth,) height, width].
            truth: `label` on the same grid; `labelled` and `valid`, bool [batch]; `spacing_mm` [batch, 3] of volumes,
                `extent` [batch, 2, 3] of volumes and clips, `size` [batch, 2] of pictures.
        """
        scores = np.full(len(truth["label"]), np.nan)
        for row in self.counted_rows(truth):
            region = self.source_region(truth, row)
            predicted, true = predictions["label"][row][region], truth["label"][row][region]
            known: Any = slice(None) if self._ignore_label is None else true != self._ignore_label
            table = confusion_table(predicted[known], true[known], len(self.labels))
            distances = None
            if self._distance is not None:
                spacing = self._distance.spacing(truth, row)
                # Background in both, so that ignored voxels have no surface.
                if self._ignore_label is not None:
                    predicted, true = np.where(known, predicted, 0), np.where(known, true, 0)
                distances = hausdorff_per_class(predicted, true, len(self.labels), spacing)
            self.add_example(table, distances)
            dice = dice_of_table(table)
            if not np.isnan(dice).all():
                scores[row] = np.nanmean(dice)
        return scores

    def counted_rows(self, truth: Host) -> list[int]:
        """Return the numbers of the rows of a batch that are valid and labelled.

        Args:
            truth: truth of a batch, as for `update`.
        """
        counts = np.ones(len(truth["label"]), bool)
        for key in ("valid", "labelled"):
            counts &= np.asarray(truth.get(key, True), bool)
        rows: list[int] = np.flatnonzero(counts).tolist()
        return rows

    def add_example(self, table: NDArray[np.int64], distances: NDArray[np.float64] | None) -> None:
        """Add one example.

        Args:
            table: voxels that count by true and predicted class, as of `confusion_table`.
            distances: surface distances, float64 [classes - 1]; None if they were not measured.
        """
        self.examples += 1
        self._table += table
        self._dice.append(dice_of_table(table))
        if self._regions is not None:
            self._region_dice.append(self._regions.of_table(table))
        if distances is not None:
            self._distances.append(distances)

    def result(self) -> dict[str, Any]:
        """Return `dice`, `miou`, `hausdorff95_mm` (`hausdorff95_pixels` for pictures), and `examples`.

        `dice_per_class`, `iou_per_class` (with the background) and `hausdorff95_mm_per_class` have the classes by name,
        `dice_per_region` the regions. A class without examples is None and does not enter the mean.
        Without any class, `dice` is 0.
        """
        per_class = _means_by_name(self.labels[1:], self._dice)
        iou = [None if np.isnan(value) else float(value) for value in iou_of_table(self._table)]
        means: dict[str, Any] = {
            "dice": _mean_of_known(per_class.values()) or 0.0,
            "dice_per_class": per_class,
            "miou": _mean_of_known(iou),
            "iou_per_class": dict(zip(self.labels, iou, strict=True)),
        }
        if self._regions is not None:
            means["dice_per_region"] = _means_by_name(self._regions.names, self._region_dice)
        if self._distance is not None:
            name = self._distance.name
            per_class = _means_by_name(self.labels[1:], self._distances)
            means |= {name: _mean_of_known(per_class.values()), f"{name}_per_class": per_class}
        return {**means, "examples": self.examples}

    def source_region(self, truth: Host, row: int) -> tuple[slice, ...]:
        """Return the part of a row's image that shows the source, without padding.

        Args:
            truth: truth of a batch, as for `update`.
            row: number of the row.
        """
        # A crop may begin after the scan does, and then its extent begins below 0.
        if "extent" in truth:
            return tuple(slice(max(0, start), stop) for start, stop in truth["extent"][row].T.tolist())
        if "size" in truth:
            return tuple(slice(stop) for stop in truth["size"][row].tolist())
        return (slice(None),) * (truth["label"].ndim - 1)


def _spacing_mm(truth: Host, row: int) -> tuple[float, ...]:
    spacing = tuple(np.asarray(truth.get("spacing_mm", np.zeros((row + 1, 3)))[row], np.float64).tolist())
    if not min(spacing) > 0:
        name = f"example {join_id(truth['id'][row])}" if "id" in truth else f"row {row} of a batch"
        raise UsageError(
            f"{name}: expected a spacing_mm above 0 along each axis, got {spacing}; to train without distances, set "
            "task.hausdorff=false"
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
"""Name and spacing of distances by kind of image; None without distances."""


def confusion_table(predicted: NDArray[Any], true: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Return the number of voxels of each true and predicted class, int64 [true class, predicted class]."""
    pairs = np.bincount(true.ravel().astype(np.int64) * classes + predicted.ravel(), minlength=classes**2)
    return pairs.reshape(classes, classes)


def dice_of_table(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the Dice of every class except the background; NaN if a class is neither predicted nor true.

    Args:
        table: voxels by true and predicted class, as of `confusion_table`, or a sum over parts of an image.

    Returns:
        float64 [classes - 1].

    >>> dice_of_table(confusion_table(np.array([1, 1, 0, 2]), np.array([1, 0, 0, 0]), 4)).round(3).tolist()
    [0.667, 0.0, nan]
    """
    both, sizes = np.diag(table)[1:], (table.sum(0) + table.sum(1))[1:]
    dice = np.full(len(sizes), np.nan)
    np.divide(2.0 * both, sizes, out=dice, where=sizes > 0)
    return dice


def iou_of_table(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the IoU of every class, the background first; NaN if a class is neither predicted nor true.

    Args:
        table: voxels by true and predicted class, as of `confusion_table`, or a sum of such tables.

    Returns:
        float64 [classes], 0 to 1: the Jaccard index.

    >>> iou_of_table(confusion_table(np.array([1, 1, 0, 2]), np.array([1, 0, 0, 0]), 4)).round(3).tolist()
    [0.333, 0.5, 0.0, nan]
    """
    both = np.diag(table)
    either = table.sum(0) + table.sum(1) - both
    iou = np.full(len(both), np.nan)
    np.divide(both, either, out=iou, where=either > 0)
    return iou


def hausdorff_per_class(
    predicted: NDArray[Any], true: NDArray[Any], classes: int, spacing: Sequence[float]
) -> NDArray[np.float64]:
    """Return `hausdorff95` of every class except the background, float64 [classes - 1]; NaN if both are empty."""
    # scipy.ndimage takes 0.1 s to import, which detectors and classifiers do not need.
    from scipy import ndimage

    distances = np.full(classes - 1, np.nan)
    boxes_of = (ndimage.find_objects(labels.astype(np.int32), classes - 1) for labels in (predicted, true))
    for index, boxes in enumerate(zip(*boxes_of, strict=True)):
        found = [box for box in boxes if box is not None]
        # No surface to measure to. MONAI gives infinity here, which no mean survives.
        if len(found) == 1:
            distances[index] = _diagonal(true.shape, spacing)
        elif found:
            # Both surfaces are inside the common bounding box, so its outside does not matter.
            box = tuple(
                slice(min(one.start, other.start), max(one.stop, other.stop))
                for one, other in zip(*found, strict=True)
            )
            distances[index] = hausdorff95(predicted[box] == index + 1, true[box] == index + 1, spacing)
    return distances


def hausdorff95(one: BooleanMask, other: BooleanMask, spacing: Sequence[float]) -> float:
    """Return the larger of the two directed 95th percentiles of surface distances.

    The surface of a mask is its voxels with a face toward the outside or the image's edge. Distances are between
    voxel centers, and percentiles are interpolated linearly, as in MONAI.

    Args:
        one: first mask.
        other: second mask, in the same shape.
        spacing: distance of voxel centers along each axis; the result has its unit.

    Returns:
        The distance; NaN if both masks are empty, the image's diagonal if only one is.

    >>> hausdorff95(np.array([[1, 0, 0, 0]], bool), np.array([[0, 0, 0, 1]], bool), (1.0, 2.5))
    7.5
    """
    if not (one.any() and other.any()):
        return _diagonal(one.shape, spacing) if one.any() or other.any() else float("nan")
    from scipy import ndimage

    surfaces = [mask & ~ndimage.binary_erosion(mask) for mask in (one, other)]
    return max(
        float(np.percentile(ndimage.distance_transform_edt(~target, sampling=spacing)[surface], PERCENTILE))
        for surface, target in (surfaces, surfaces[::-1])
    )


def _diagonal(shape: Sequence[int], spacing: Sequence[float]) -> float:
    return float(np.linalg.norm(np.multiply(shape, spacing)))


def _means_by_name(names: Sequence[str], rows: Sequence[NDArray[np.float64]]) -> dict[str, float | None]:
    """Return the mean of each column of [example, name] over the examples that have it; None without one."""
    columns = np.array(rows).reshape(-1, len(names)).T
    means = (
        _mean_of_known(None if np.isnan(value) else float(value) for value in column) for column in columns
    )
    return dict(zip(names, means, strict=True))


def _mean_of_known(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
