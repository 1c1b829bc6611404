"""Metrics of large pictures are those of pycocotools where its limit of 100 detections does not matter."""

import numpy as np
import pytest

from halofeed.trainer.metrics import COCO_METRICS, CocoMetrics, WholeCocoMetrics

LABELS = ("cup", "spoon")


def boxes(generator, count, side=300.0):
    low = generator.random((count, 2)) * side
    return np.round(np.concatenate([low, low + np.exp(generator.uniform(1, 5, (count, 2)))], 1), 3)


def pictures(generator, objects):
    """Pictures with crowds, equal scores, boxes beside their objects, and detections of nothing."""
    for number in range(6):
        count = 0 if number == 2 else objects
        truth = np.column_stack([generator.integers(1, 3, count), boxes(generator, count)])
        area = (truth[:, 3:5] - truth[:, 1:3]).prod(1)
        truth = np.column_stack([truth, area.round(2), generator.random(count) < 0.15])
        near = np.repeat(truth[:, :5], 3, axis=0)
        near[:, 1:] += generator.normal(0, 2, (len(near), 4))
        near[:, 3:5] = np.maximum(near[:, 3:5], near[:, 1:3] + 1)
        found = np.concatenate([near, np.column_stack([generator.integers(1, 3, 9), boxes(generator, 9)])])
        scores = generator.integers(1, 20, len(found)) / 20
        yield number + 7, np.column_stack([found.round(3), scores]), truth


@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_those_of_pycocotools(seed):
    generator = np.random.default_rng(seed)
    whole = WholeCocoMetrics(LABELS)
    for picture in pictures(generator, 25):
        whole.add_picture(*picture)
    found = whole.result()
    # The same boxes and limits by pycocotools' own matching and summary.
    stats, precision = CocoMetrics._evaluate(whole)
    assert [found[name.replace("@100", "@all")] for name in COCO_METRICS] == pytest.approx(stats, abs=0)
    assert np.array_equal(precision, whole._evaluate()[1]) and found["mAP"] > 0.1
    assert found["examples"] == 6


def test_all_of_a_thousand_objects_count():
    places = np.stack(np.meshgrid(np.arange(40) * 20.0, np.arange(30) * 20.0), -1).reshape(-1, 2)
    rows = np.column_stack([np.ones(1200), places, places + 10])
    whole = WholeCocoMetrics(LABELS)
    scores = np.linspace(1, 0.1, 1200)
    whole.add_picture(
        1, np.column_stack([rows, scores]), np.column_stack([rows, np.full(1200, 100.0), np.zeros(1200)])
    )
    found = whole.result()
    assert found["mAP"] == found["AR@all"] == 1 and found["AR@10"] == pytest.approx(10 / 1200)
