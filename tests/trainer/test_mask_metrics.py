"""Mask AP of an evaluation is that of pycocotools on the files that `predict` writes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from halofeed.loader import Loader
from halofeed.loader.batch import join_id
from halofeed.schemas.manifest import read_manifest
from halofeed.trainer.mask_metrics import MASK_METRICS, MaskMetrics
from halofeed.trainer.object_masks import MaskPlacement, true_masks
from halofeed.trainer.predict import PredictionOptions, predict_batches
from tests.support import training
from tests.support.object_masks import SIZES, convert_objects

# pycocotools makes arrays in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SQUARE = [(32, 32)] * 4
SHAPES: dict[str, dict[str, Any]] = {
    "as stored": {"sizes": SQUARE},
    "stretched": {"sizes": SIZES},
    "padded": {
        "sizes": SIZES,
        "resize": "keep-aspect",
        "min_dimension": 24,
        "max_dimension": 40,
        "pad": True,
    },
}
Arrays = dict[str, np.ndarray]


def predictions_of(data: Path, noise: float, stride: int) -> Iterator[tuple[Arrays, Arrays]]:
    """The truth as a model predicts it: with errors of boxes and masks, and some masks of nothing."""
    generator = np.random.default_rng(5)
    include = ["masks", "transform", "source_height", "source_width"]
    loader = Loader(data, split="train", batch_size=2, training=False, include=include)
    for step in range(loader.steps):
        batch = loader.batch(step)
        rows, count = batch["classes"].shape
        levels = batch["masks"][:, :, stride // 2 :: stride, stride // 2 :: stride] * np.uint8(255)
        hidden = generator.random(levels.shape) < noise
        jitter = noise * 0.1 * generator.standard_normal(batch["boxes"].shape)
        yield (
            {
                "boxes": np.clip(batch["boxes"] + jitter, 0, 1).astype(np.float32),
                "classes": batch["classes"],
                "scores": np.sort(generator.random((rows, count)))[:, ::-1].astype(np.float32),
                "num_detections": batch["num_boxes"],
                "masks": np.where(hidden, 0, levels),
                "mask_stride": np.full(rows, stride),
                "image_size": np.tile(batch["image"].shape[1:3], (rows, 1)),
            },
            batch,
        )


def evaluated(pairs: Iterator[tuple[Arrays, Arrays]], labels: dict[int, str]) -> dict[str, Any]:
    metrics = MaskMetrics(tuple(labels.values()))
    for predictions, truth in pairs:
        metrics.update(predictions, truth)
    return metrics.result()


def written(folder: Path, data: Path, noise: float, stride: int) -> Path:
    manifest = read_manifest(data)
    facts = training.facts_of("detection", manifest.labels, manifest.field("image").shape)
    pairs = predictions_of(data, noise, stride)
    predict_batches(pairs, data, "train", folder, facts=facts, options=PredictionOptions(min_score=0.0))
    return folder / "detections.json"


def coco_numbers(truth: COCO, file: Path, kind: str) -> list[float]:
    found = COCOeval(truth, truth.loadRes(str(file)), kind)
    found.evaluate()
    found.accumulate()
    found.summarize()
    return [*found.stats]


def truth_of_records(data: Path) -> COCO:
    """Objects of the records in pixels of the source, as an annotation file of COCO."""
    images, annotations = [], []
    for _, batch in predictions_of(data, 0, 1):
        for row in np.flatnonzero(batch["valid"]).tolist():
            size = int(batch["source_height"][row]), int(batch["source_width"][row])
            transform = batch["transform"][row].astype(float)
            placement = MaskPlacement(
                transform=transform, image_size=batch["image"].shape[1:3], source_size=size
            )
            image = int(join_id(batch["id"][row]))
            images.append({"id": image, "height": size[0], "width": size[1]})
            count = int(batch["num_boxes"][row])
            scale = abs(np.linalg.det(transform[:, :2]))
            for at, mask in enumerate(true_masks(batch["masks"][row][:count], placement)):
                entry = {"id": len(annotations) + 1, "image_id": image, "iscrowd": 0, "segmentation": mask}
                entry["category_id"] = int(batch["classes"][row, at])
                annotations.append(
                    {
                        **entry,
                        "area": round(float(batch["area"][row, at]) * scale, 2),
                        "bbox": [0, 0, 1, 1],
                    }
                )
    truth = COCO()
    names = read_manifest(data).labels
    categories = [{"id": label, "name": name} for label, name in names.items()]
    images.sort(key=lambda image: image["id"])
    truth.dataset = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    truth.createIndex()
    return truth


@pytest.mark.parametrize(("noise", "stride"), [(0.3, 1), (0.1, 2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_mask_metrics_are_those_of_pycocotools_on_the_written_file(shape, noise, stride, tmp_path, capsys):
    data = convert_objects(tmp_path, **SHAPES[shape])
    found = evaluated(predictions_of(data, noise, stride), read_manifest(data).labels)
    file = written(tmp_path / "found", data, noise, stride)
    expected = coco_numbers(truth_of_records(data), file, "segm")
    assert [-1 if found[name] is None else found[name] for name in MASK_METRICS] == pytest.approx(expected)
    assert 0.05 < found["mask mAP"] < 0.99
    assert found["mAP"] is not None and found["mAP"] != found["mask mAP"]


def test_true_masks_of_pictures_of_the_records_size_score_a_perfect_map_against_the_source(tmp_path, capsys):
    data = convert_objects(tmp_path, sizes=SQUARE)
    file = written(tmp_path / "found", data, 0.0, 1)
    truth = COCO(str(tmp_path / "source" / "annotations.json"))
    images = json.loads((tmp_path / "found" / "images.json").read_text())
    assert {one["id"] for one in images} == set(truth.imgs)
    assert coco_numbers(truth, file, "segm")[0] == pytest.approx(1.0)
    assert evaluated(predictions_of(data, 0.0, 1), read_manifest(data).labels)["mask mAP"] == pytest.approx(
        1.0
    )


def test_without_true_masks_only_boxes_are_measured(tmp_path):
    data = convert_objects(tmp_path)
    pairs = [
        (predictions, {name: value for name, value in truth.items() if name != "masks"})
        for predictions, truth in predictions_of(data, 0.0, 1)
    ]
    found = evaluated(iter(pairs), read_manifest(data).labels)
    assert found["mAP"] == pytest.approx(1.0)
    assert not [name for name in found if name.startswith("mask")]


def test_boxes_below_the_score_have_no_mask_and_are_not_written(tmp_path):
    data = convert_objects(tmp_path)
    manifest = read_manifest(data)
    facts = training.facts_of("detection", manifest.labels, manifest.field("image").shape)
    predict_batches(
        predictions_of(data, 0.0, 1),
        data,
        "train",
        tmp_path / "found",
        facts=facts,
        options=PredictionOptions(min_score=0.5),
    )
    entries = json.loads((tmp_path / "found" / "detections.json").read_text())
    assert entries and all(entry["score"] >= 0.5 and entry["segmentation"]["counts"] for entry in entries)


@pytest.mark.parametrize(("rule", "detections", "objects"), [("coco", 3, 4), ("visdrone", 2, 2)])
def test_masks_stay_with_their_boxes_beside_ignored_regions(rule, detections, objects):
    corners = np.array([[0, 0], [16, 16], [0, 16]])
    masks, boxes = np.zeros((1, 3, 32, 32), np.uint8), np.zeros((1, 3, 4), np.float32)
    for number, (top, left) in enumerate(corners.tolist()):
        masks[0, number, top : top + 8, left : left + 8] = 1
        boxes[0, number] = np.array([top, left, top + 8, left + 8]) / 32
    shared = {"boxes": boxes, "classes": np.ones((1, 3), int), "num_boxes": np.array([3])}
    truth = {
        **shared,
        "masks": masks,
        "area": np.full((1, 3), 64.0),
        "is_crowd": np.zeros((1, 3)),
        # The first object is inside.
        "ignored_boxes": np.array([[[0, 0, 0.3, 0.3]]]),
    }
    predictions = {
        **shared,
        "masks": masks * np.uint8(255),
        "mask_stride": np.array([1]),
        "num_detections": np.array([3]),
        "scores": np.array([[0.9, 0.8, 0.7]]),
        "image_size": np.array([[32, 32]]),
    }
    metrics = MaskMetrics(("cell",), rule)
    metrics.update(predictions, truth)
    assert metrics.result()["mask mAP"] == pytest.approx(1.0)
    assert [len(side.dataset["annotations"]) for side in metrics._sides()] == [objects, detections]
