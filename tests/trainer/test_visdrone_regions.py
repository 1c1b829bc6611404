"""VisDrone's rule for ignored regions, beside the published tool's steps pixel by pixel."""

import numpy as np
import pytest

from halofeed.system.errors import UsageError
from halofeed.trainer.detection.visdrone_regions import outside_regions
from halofeed.trainer.metrics import CocoMetrics
from halofeed.trainer.tasks.detection import Detection

HEIGHT, WIDTH = 40, 50


def kept_by_the_tool(boxes, regions):
    """The steps of dropObjectsInIgr.m, with a map of the picture whose pixels are numbered from 1."""
    ignored = np.zeros((HEIGHT + 1, WIDTH + 1), bool)
    for ymin, xmin, ymax, xmax in regions.tolist():
        x, y, w, h = (max(1, int(v)) for v in (xmin, ymin, xmax - xmin, ymax - ymin))
        for row in range(y, min(HEIGHT, y + h) + 1):
            for column in range(x, min(WIDTH, x + w) + 1):
                ignored[row, column] = True
    kept = []
    for ymin, xmin, ymax, xmax in boxes.tolist():
        x, y, w, h = (max(1, int(np.floor(v + 0.5))) for v in (xmin, ymin, xmax - xmin, ymax - ymin))
        inside = 0
        # The sums of the four corners leave out the row and the column of the top left one.
        for row in range(y + 1, min(HEIGHT, y + h) + 1):
            for column in range(x + 1, min(WIDTH, x + w) + 1):
                inside += bool(ignored[row, column])
        kept.append(inside / (h * w) < 0.5)
    return np.array(kept, bool)


def drawn(generator, count, largest):
    low = np.stack([generator.integers(0, HEIGHT - 1, count), generator.integers(0, WIDTH - 1, count)], 1)
    high = np.minimum(low + generator.integers(1, largest, (count, 2)), (HEIGHT, WIDTH))
    return np.concatenate([low, high], axis=1).astype(np.float64)


@pytest.mark.parametrize("seed", range(12))
def test_boxes_are_kept_as_by_the_published_tool(seed):
    generator = np.random.default_rng(seed)
    regions, boxes = drawn(generator, seed % 5, 30), drawn(generator, 60, 14)
    boxes[:, 2:] += generator.uniform(-0.4, 0.4, (60, 2)) * (boxes[:, 2:] < (HEIGHT, WIDTH))
    np.testing.assert_array_equal(outside_regions(boxes, regions), kept_by_the_tool(boxes, regions))


def test_two_regions_together_remove_an_object_and_a_detection_that_no_single_one_holds():
    boxes = np.array([[[0.1, 0.1, 0.5, 0.5], [0.6, 0.6, 0.9, 0.9]]])
    side = {"image_size": np.array([[100, 100]])}
    found = {"boxes": boxes, "classes": np.array([[1, 1]]), "scores": np.array([[0.9, 0.8]]), **side}
    found["num_detections"] = np.array([2])
    truth = {"boxes": boxes, "classes": np.array([[1, 2]]), "is_crowd": np.zeros((1, 2), bool)}
    truth |= {"area": np.array([[1600.0, 900.0]]), "num_boxes": np.array([2])}
    # Each region covers 40 % of the first box.
    truth["ignored_boxes"] = np.array([[[0.1, 0.1, 0.26, 0.5], [0.34, 0.1, 0.5, 0.5]]])
    results = {}
    for rule in ("coco", "visdrone"):
        metrics = CocoMetrics(("cup", "spoon"), rule)
        metrics.update(found, truth)
        results[rule] = metrics.result()["AP"]
    # The class of the removed object has nothing to count; the second detection is wrong for either rule.
    assert results["coco"]["cup"] == pytest.approx(1.0) and results["visdrone"]["cup"] is None
    assert results["coco"]["spoon"] == results["visdrone"]["spoon"] == 0


def test_the_task_takes_a_rule_by_name():
    assert Detection(labels=("cup",), region_rule="visdrone").metrics().region_rule == "visdrone"
    with pytest.raises(UsageError, match="region_rule: expected one of coco, visdrone"):
        Detection(labels=("cup",), region_rule="kitti")
