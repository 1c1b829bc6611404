"""Scores of predictions in source pixels, the same code for all sides.

A side writes, into its folder of predictions:

- boxes, instances: `detections.json`, results of COCO with `image` (the example's name) in place of `image_id`
- regions: `NAME.png`, a class for each pixel of the source
- scans: `NAME.nii.gz`, a class for each voxel of the source
- classes: `classes.json`, the number of the class of each name
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask as run_lengths
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from result_rows.public_sets import Example, Task

Scores = Mapping[str, float]


def score_objects(task: Task, folder: Path) -> Scores:
    """Average precision of boxes or masks by pycocotools, and for masks the score of the Data Science Bowl.

    COCO's limit of 100 objects a picture is raised to 1,000: some pictures have 375 nuclei.
    """
    examples = task.of("test")
    ids = {one.name: number for number, one in enumerate(examples, start=1)}
    kind = "segm" if task.kind == "instances" else "bbox"
    found = [
        {**{key: value for key, value in one.items() if key != "image"}, "image_id": ids[one["image"]]}
        for one in json.loads((folder / "detections.json").read_text())
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = _coco_document(task, examples, ids)
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(found), kind) if found else None
        if evaluation is None:
            return {"AP@0.5": 0.0, "AP": 0.0}
        evaluation.params.maxDets = [1, 100, 1000]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    valid = precision > -1
    scores = {
        "AP@0.5": float(precision[0][valid[0]].mean()),
        "AP": float(np.where(valid, precision, 0).sum() / valid.sum()),
    }
    if kind == "segm":
        scores["TP/(TP+FP+FN)@0.5"] = bowl_score(examples, found, ids)
    return scores


def _coco_document(task: Task, examples: list[Example], ids: Mapping[str, int]) -> dict[str, Any]:
    annotations = []
    for one in examples:
        for row in one.objects:
            area = (
                float(run_lengths.area(row["segmentation"]))
                if "segmentation" in row
                else row["bbox"][2] * row["bbox"][3]
            )
            annotations.append(
                {**row, "id": len(annotations) + 1, "image_id": ids[one.name], "area": area, "iscrowd": 0}
            )
    return {
        "images": [{"id": ids[one.name], "height": one.size[0], "width": one.size[1]} for one in examples],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in enumerate(task.class_names, start=1)],
    }


def bowl_score(
    examples: list[Example], found: list[dict[str, Any]], ids: Mapping[str, int], score: float = 0.5
) -> float:
    """Mean over pictures of TP / (TP + FP + FN) at IoU 0.5, of predictions with at least this score.

    It is the measure of the Data Science Bowl 2018 at one threshold, and of StarDist's paper. Two masks of one side
    may overlap, so a true object counts once, for the prediction with the highest IoU.
    """
    by_image: dict[int, list[Any]] = {}
    for one in found:
        if one["score"] >= score:
            by_image.setdefault(one["image_id"], []).append(one["segmentation"])
    values = []
    for one in examples:
        predicted, true = by_image.get(ids[one.name], []), [row["segmentation"] for row in one.objects]
        hits = 0
        if predicted and true:
            overlaps = run_lengths.iou(predicted, true, [0] * len(true))
            pairs = sorted(np.argwhere(overlaps > 0.5).tolist(), key=lambda pair: -overlaps[tuple(pair)])
            rows, columns = set(), set()
            for row, column in pairs:
                if row not in rows and column not in columns:
                    rows.add(row)
                    columns.add(column)
            hits = len(rows)
        values.append(hits / max(len(predicted) + len(true) - hits, 1))
    return float(np.mean(values))


def read_labels(file: str | Path) -> NDArray[np.uint8]:
    """Read a label image. DRIVE's are GIF, which OpenCV does not read."""
    with Image.open(file) as image:
        return np.asarray(image.convert("L") if image.mode not in ("P", "L") else image)


def score_regions(task: Task, folder: Path) -> Scores:
    """Mean IoU over classes, of all pixels of the test, and F1 of the second of two classes."""
    count = len(task.class_names)
    table = np.zeros((count, count), np.int64)
    for one in task.of("test"):
        true, predicted = read_labels(one.label), read_labels(folder / f"{one.name}.png")
        if count == 2:
            true = (true > 127).astype(np.uint8)
        counted = np.ones(true.shape, bool) if task.ignored is None else true != task.ignored
        if one.region:
            counted &= read_labels(one.region) > 127
        pairs = true[counted].astype(np.int64) * count + np.minimum(predicted[counted], count - 1)
        table += np.bincount(pairs, minlength=count * count).reshape(count, count)
    shared = np.diag(table)
    union = table.sum(0) + table.sum(1) - shared
    scores = {"mIoU": float(np.mean(shared[union > 0] / union[union > 0]))}
    if count == 2:
        scores["F1"] = float(2 * shared[1] / (table.sum(0)[1] + table.sum(1)[1]))
    return scores


def score_scans(task: Task, folder: Path) -> Scores:
    """Mean Dice over classes and scans, on the scans' own grids; absent in both counts as 1."""
    values = []
    for one in task.of("test"):
        true = np.asarray(nibabel.load(one.label).dataobj).round().astype(int)
        predicted = np.asarray(nibabel.load(folder / f"{one.name}.nii.gz").dataobj).round().astype(int)
        for label in range(1, len(task.class_names)):
            total = int((true == label).sum() + (predicted == label).sum())
            values.append(2 * int(((true == label) & (predicted == label)).sum()) / total if total else 1.0)
    return {"Dice": float(np.mean(values))}


def score_classes(task: Task, folder: Path) -> Scores:
    """Share of right classes."""
    predicted = json.loads((folder / "classes.json").read_text())
    return {"accuracy": float(np.mean([predicted[one.name] == one.number for one in task.of("test")]))}


SCORES: Mapping[str, Callable[[Task, Path], Scores]] = {
    "boxes": score_objects,
    "instances": score_objects,
    "regions": score_regions,
    "scans": score_scans,
    "classes": score_classes,
}
