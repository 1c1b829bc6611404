"""Ignored regions are left out of the loss and of the metrics, for every class."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from halofeed.loader import Loader
from halofeed.trainer.detection.anchors import Level, retinanet_anchors
from halofeed.trainer.detection.matcher import Matcher, match_boxes
from halofeed.trainer.detection.merge_tiles import MergeRule
from halofeed.trainer.metrics import COCO_METRICS, CocoMetrics
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.tasks.detection import Detection
from halofeed.trainer.whole_pictures import whole_picture_metrics
from tests.support.conversions import run_convert
from tests.support.training import random_boxes

LABELS = ("cup", "spoon", "plate")
ANCHORS = [
    retinanet_anchors((64, 48), grid, stride=stride, scale=2.0)
    for stride, grid in ((8, (8, 6)), (16, (4, 3)), (32, (2, 1)))
]


def share_inside(box, region):
    """Return the share of a box's area that is inside of a region."""
    height = max(0.0, min(box[2], region[2]) - max(box[0], region[0]))
    width = max(0.0, min(box[3], region[3]) - max(box[1], region[1]))
    return height * width / ((box[2] - box[0]) * (box[3] - box[1]))


@jax.jit
def matched(boxes, is_box, is_crowd, regions):
    levels = [level[None] for level in ANCHORS]
    return match_boxes(Matcher(unmatched_threshold=0.4), levels, boxes, is_box, is_crowd, regions)


def test_an_anchor_that_matches_no_object_and_is_half_in_a_region_is_neither_object_nor_background():
    boxes = np.array([[[0.05, 0.1, 0.3, 0.4], [0.6, 0.5, 0.9, 0.95]]], np.float32)
    regions = np.array([[[0.0, 0.0, 0.5, 1.0], [0.8, 0.1, 1.0, 0.5], [0.0, 0.0, 0.0, 0.0]]], np.float32)
    all_boxes, none = np.ones((1, 2), bool), np.zeros((1, 2), bool)
    found = matched(boxes, all_boxes, none, regions)
    without = matched(boxes, all_boxes, none, np.zeros_like(regions))
    counts = dict.fromkeys((-2, -1, 0, 1), 0)
    for anchors, ours, plain in zip(ANCHORS, found, without, strict=True):
        for index in np.ndindex(*anchors.shape[:3]):
            match = int(plain[(0, *index)])
            is_inside = any(share_inside(anchors[index], region) >= 0.5 for region in regions[0, :2])
            expected = -2 if match < 0 and is_inside else match
            assert int(ours[(0, *index)]) == expected
            counts[expected] += 1
    assert min(counts.values()) > 0, counts


def test_the_loss_is_that_of_a_crowd_in_the_place_of_each_region():
    random = np.random.default_rng(4)
    task = Detection(labels=LABELS)
    levels = [
        Level(
            class_logits=random.normal(0, 2, (2, *level.shape[:3], 3)).astype(np.float32),
            box_codes=random.normal(0, 1, (2, *level.shape)).astype(np.float32),
            anchors=level,
        )
        for level in ANCHORS[1:]
    ]
    boxes = random_boxes(random, 2, 5)
    regions = np.tile(np.array([[0, 0, 0.5, 0.6], [0.4, 0.3, 1, 1]], np.float32), (2, 1, 1))
    batch = {
        "boxes": boxes,
        "classes": random.integers(1, 4, (2, 5)).astype(np.int32),
        "num_boxes": np.array([5, 3], np.int32),
        "is_crowd": np.zeros((2, 5), bool),
        "valid": np.ones(2, bool),
    }
    # The crowds come first, so that the second picture has them among its boxes too.
    as_crowds = {
        **batch,
        "boxes": np.concatenate([regions, boxes], 1),
        "classes": np.concatenate([np.ones((2, 2), np.int32), batch["classes"]], 1),
        "num_boxes": batch["num_boxes"] + 2,
        "is_crowd": np.concatenate([np.ones((2, 2), bool), batch["is_crowd"]], 1),
    }
    padded = np.concatenate([regions, np.zeros((2, 3, 4), np.float32)], 1)
    loss = jax.jit(task.loss)
    ours, _ = loss(levels, {**batch, "ignored_boxes": padded})
    assert float(ours) == pytest.approx(float(loss(levels, as_crowds)[0]), rel=1e-6)
    assert abs(float(ours) - float(loss(levels, batch)[0])) > 1e-4


def drawn_batch(seed):
    """Return a batch's ground truth with regions, and detections near both and elsewhere."""
    random = np.random.default_rng(seed)
    rows, objects, count = 6, 7, 60
    boxes, regions = (random_boxes(random, rows, many).clip(0, 1) for many in (objects, 3))
    regions[:, 2] = 0  # padding
    chosen = np.concatenate([boxes, regions[:, :2]], 1)[:, random.integers(0, objects + 2, count)]
    near = chosen + np.tile(chosen[..., 2:] - chosen[..., :2], 2) * random.normal(0, 0.1, chosen.shape)
    near = np.where(
        (near[..., :2] < near[..., 2:]).all(-1, keepdims=True), near, random_boxes(random, rows, count)
    )
    truth = {
        "boxes": boxes,
        "classes": random.integers(1, 4, (rows, objects)).astype(np.int32),
        "num_boxes": random.integers(0, objects + 1, rows).astype(np.int32),
        "is_crowd": random.random((rows, objects)) < 0.15,
        "area": (np.prod(boxes[..., 2:] - boxes[..., :2], -1) * 200 * 200).astype(np.float32),
        "ignored_boxes": regions,
    }
    predictions = {
        "boxes": near.clip(0, 1).astype(np.float32),
        "scores": random.permutation(rows * count).reshape(rows, count).astype(np.float32) / (rows * count),
        "classes": random.integers(1, 4, (rows, count)).astype(np.int32),
        "num_detections": np.full(rows, count, np.int32),
        "image_size": np.full((rows, 2), 200, np.int32),
    }
    return predictions, truth


def result_of(predictions, truth):
    metrics = CocoMetrics(LABELS)
    scores = metrics.update(predictions, truth)
    return scores, metrics.result()


@pytest.mark.parametrize("seed", range(5))
def test_metrics_are_those_of_pycocotools_with_a_crowd_of_each_class_in_each_region(seed):
    predictions, truth = drawn_batch(seed)
    rows, regions = len(truth["boxes"]), truth["ignored_boxes"][:, :2]
    crowds = np.repeat(regions, len(LABELS), axis=1)
    by_hand = {
        "boxes": np.concatenate([crowds, truth["boxes"]], 1),
        "classes": np.concatenate([np.tile([1, 2, 3], (rows, 2)), truth["classes"]], 1),
        "num_boxes": truth["num_boxes"] + crowds.shape[1],
        "is_crowd": np.concatenate([np.ones((rows, 6), bool), truth["is_crowd"]], 1),
        "area": np.concatenate([np.ones((rows, 6), np.float32), truth["area"]], 1),
    }
    scores, result = result_of(predictions, truth)
    expected_scores, expected = result_of(predictions, by_hand)
    np.testing.assert_allclose(scores, expected_scores)
    plain = {name: value for name, value in truth.items() if name != "ignored_boxes"}
    assert result["mAP@0.5"] != result_of(predictions, plain)[1]["mAP@0.5"]
    for name in COCO_METRICS:
        # The area of a crowd decides for which sizes it counts, and that of a region is its own.
        if name.rpartition(" ")[2] not in ("small", "medium", "large"):
            assert result[name] == pytest.approx(expected[name], abs=1e-12), name


def slow_precision(predictions, truth, label):
    """Return AP at IoU 0.5 of a class, by COCO's 101 recalls, one detection after the other."""
    found, objects = [], 0
    for row in range(len(truth["boxes"])):
        count = truth["num_boxes"][row]
        own = [i for i in range(count) if truth["classes"][row, i] == label]
        objects += sum(not truth["is_crowd"][row, i] for i in own)
        taken = set()
        for at in np.argsort(-predictions["scores"][row]):
            if predictions["classes"][row, at] != label:
                continue
            box = predictions["boxes"][row, at].astype(float)
            if not (box[:2] < box[2:]).all():
                continue
            overlaps = {}
            for i in own:
                other = truth["boxes"][row, i].astype(float)
                common = share_inside(box, other) * np.prod(box[2:] - box[:2])
                iou = common / (np.prod(box[2:] - box[:2]) + np.prod(other[2:] - other[:2]) - common)
                if not truth["is_crowd"][row, i] and i not in taken and iou >= 0.5:
                    overlaps[i] = iou
            score = predictions["scores"][row, at]
            if overlaps:
                taken.add(max(overlaps, key=overlaps.get))
                found.append((score, True))
                continue
            crowds = [truth["boxes"][row, i] for i in own if truth["is_crowd"][row, i]]
            regions = [one for one in truth["ignored_boxes"][row] if (one[:2] < one[2:]).all()]
            if not any(share_inside(box, other.astype(float)) >= 0.5 for other in (*crowds, *regions)):
                found.append((score, False))
    found.sort(reverse=True)
    right = np.cumsum([is_right for _, is_right in found])
    precision = right / np.arange(1, len(found) + 1)
    recall = right / objects
    points = [precision[recall >= level - 1e-12].max(initial=0) for level in np.linspace(0, 1, 101)]
    return float(np.mean(points))


@pytest.mark.parametrize("seed", range(5))
def test_precision_is_that_of_a_slow_reading_of_the_rule(seed):
    predictions, truth = drawn_batch(seed + 10)
    _, result = result_of(predictions, truth)
    for number, label in enumerate(LABELS, start=1):
        # Boxes are rounded to thousandths of a pixel, which may decide at the limit; no drawn one is there.
        assert result["AP@0.5"][label] == pytest.approx(slow_precision(predictions, truth, number), abs=1e-9)


def test_detections_of_any_class_in_a_region_across_tiles_are_not_wrong(tmp_path):
    size, region = (200, 300), [90, 20, 200, 90]  # x, y, width, height: parts of several tiles
    Image.fromarray(np.full((*size, 3), 90, np.uint8)).save(tmp_path / "1.png")
    boxes = [([10, 10, 30, 30], 1), ([20, 120, 40, 40], 2), ([120, 140, 36, 30], 1)]
    common = {"image_id": 1, "iscrowd": 0}
    annotations = [
        {**common, "id": at, "bbox": box, "area": box[2] * box[3], "category_id": label}
        for at, (box, label) in enumerate(boxes, start=1)
    ]
    ignored = {**common, "id": 9, "bbox": region, "area": 1, "category_id": 7, "ignore": 1}
    images = [{"id": 1, "file_name": "1.png", "height": size[0], "width": size[1]}]
    names = [{"id": 1, "name": "cup"}, {"id": 2, "name": "spoon"}, {"id": 7, "name": "unsure"}]
    extra = [[x, y, 40, 36] for x in (96, 150, 210) for y in (30, 66)]
    results = {}
    for name, rows in (("plain", annotations), ("ignored", [*annotations, ignored])):
        source = tmp_path / name
        source.mkdir()
        Image.open(tmp_path / "1.png").save(source / "1.png")
        categories = names[: 2 + (name == "ignored")]
        document = {"images": images, "annotations": rows, "categories": categories}
        (source / "a.json").write_text(json.dumps(document))
        done = run_convert(
            source,
            tmp_path / f"{name}_out",
            layout="coco",
            fit="tiles",
            height=64,
            width=64,
            tile_overlap=(16, 16),
        )
        # A category that only ignored regions have is no class.
        assert done.manifest.labels == {1: "cup", 2: "spoon"}
        metadata = SplitMetadata(done.folder, "train")
        metrics = whole_picture_metrics(Detection(labels=("cup", "spoon")), metadata, MergeRule())
        include = ["transform", "source_height", "source_width"]
        loader = Loader(done.folder, split="train", batch_size=4, training=False, include=include)
        for step in range(loader.steps):
            metrics.update(perfect(loader.batch(step), boxes, extra), loader.batch(step))
        results[name] = metrics.result()
    assert results["ignored"]["mAP"] == pytest.approx(1.0)
    assert results["plain"]["mAP"] < 0.8


def perfect(batch, boxes, extra):
    """Return what a detector of whole objects finds in each tile that shows all of them, and extra ones first."""
    found = [
        *((box, label, 0.5) for box, label in boxes),
        *((box, 1 + at % 2, 0.9) for at, box in enumerate(extra)),
    ]
    rows = len(batch["id"])
    out = np.zeros((rows, len(found), 4), np.float32)
    scores, classes, counts = (
        np.zeros((rows, len(found))),
        np.ones((rows, len(found)), int),
        np.zeros(rows, int),
    )
    for row in range(rows):
        top, left = -batch["transform"][row][:, 2]
        for (x, y, width, height), label, score in found:
            corners = np.array([y + top, x + left, y + top + height, x + left + width])
            cut = corners.clip(0, 64)
            if (cut[2:] - cut[:2] < 1).any():
                continue
            at = counts[row]
            out[row, at], scores[row, at], classes[row, at] = cut / 64, score, label
            counts[row] += 1
    return {
        "boxes": out,
        "scores": scores.astype(np.float32),
        "classes": classes.astype(np.int32),
        "num_detections": counts.astype(np.int32),
        "image_size": np.full((rows, 2), 64, np.int32),
    }
