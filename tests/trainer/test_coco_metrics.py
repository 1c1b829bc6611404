"""The metrics of detections are those of pycocotools on the same boxes."""

import contextlib
import io
import json

import numpy as np
import pytest

from halofeed.trainer.metrics import COCO_METRICS, CocoMetrics

LABELS = ("cup", "spoon", "plate")
HEIGHT, WIDTH = 480, 640
PIXELS, SIZE = np.array([HEIGHT, WIDTH, HEIGHT, WIDTH]), np.array([[HEIGHT, WIDTH]], np.int32)


def as_coco(image, side, row, index):
    """A box of a batch as both of COCO's files have it."""
    ymin, xmin, ymax, xmax = (side["boxes"][row, index].astype(float) * PIXELS).tolist()
    bbox = [xmin, ymin, xmax - xmin, ymax - ymin]
    return {"image_id": image, "category_id": int(side["classes"][row, index]), "bbox": bbox}


def random_boxes(generator, *shape):
    low, size = generator.random((2, *shape, 2))
    return np.concatenate([low * 0.7, low * 0.7 + 0.02 + size * size * 0.28], -1).astype(np.float32)


def random_evaluation(seed, batches=3, batch=4, boxes=6, detections=12):
    """Batches of truth and of detections near it, with crowds, empty images and rows that are not valid."""
    generator = np.random.default_rng(seed)
    for number in range(batches):
        truth = {
            "boxes": random_boxes(generator, batch, boxes),
            "classes": generator.integers(1, 4, (batch, boxes)).astype(np.int32),
            "num_boxes": generator.integers(0, boxes + 1, batch).astype(np.int32),
            "is_crowd": generator.random((batch, boxes)) < 0.15,
            "valid": np.array([True] * batch if number < batches - 1 else [True, False, True, False]),
        }
        sides = (truth["boxes"][..., 2:] - truth["boxes"][..., :2]) * [HEIGHT, WIDTH]
        truth["area"] = np.float32(sides.prod(-1) * generator.uniform(0.6, 1, (batch, boxes)))
        near = np.tile(truth["boxes"], (1, 2, 1)) + generator.normal(0, 0.004, (batch, detections, 4))
        right, others = (
            generator.random((batch, detections)) < 0.7,
            generator.integers(1, 4, (batch, detections)),
        )
        predictions = {
            "boxes": np.clip(near, 0, 1).astype(np.float32),
            "scores": generator.random((batch, detections)).astype(np.float32),
            "classes": np.where(right, np.tile(truth["classes"], (1, 2)), others).astype(np.int32),
            "num_detections": generator.integers(0, detections + 1, batch).astype(np.int32),
            "image_size": SIZE.repeat(batch, 0),
        }
        yield predictions, truth


def as_files(folder, evaluation):
    """The same as a COCO annotation file and a COCO results file."""
    images, annotations, results = [], [], []
    for predictions, truth in evaluation:
        for row in np.flatnonzero(truth["valid"]).tolist():
            image = {"id": len(images) + 1, "width": WIDTH, "height": HEIGHT}
            images.append(image)
            for index in range(truth["num_boxes"][row]):
                more = {
                    "area": float(truth["area"][row, index]),
                    "iscrowd": int(truth["is_crowd"][row, index]),
                }
                more["id"] = len(annotations) + 1
                annotations.append(as_coco(image["id"], truth, row, index) | more)
            for index in range(predictions["num_detections"][row]):
                score = float(predictions["scores"][row, index])
                results.append({**as_coco(image["id"], predictions, row, index), "score": score})
    categories = [{"id": index, "name": name} for index, name in enumerate(LABELS, 1)]
    document = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    (folder / "truth.json").write_text(json.dumps(document))
    (folder / "results.json").write_text(json.dumps(results))
    return str(folder / "truth.json"), str(folder / "results.json")


def by_pycocotools(truth_file, results_file):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def run(category=None):
        evaluation = COCOeval(truth, results, "bbox")
        if category is not None:
            evaluation.params.catIds = [category]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        return evaluation.stats

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(truth_file)
        results = truth.loadRes(results_file)
        return run(), {name: run(index)[:2] for index, name in enumerate(LABELS, 1)}


def measured(evaluation):
    metrics = CocoMetrics(LABELS)
    scores = [metrics.update(predictions, truth) for predictions, truth in evaluation]
    return metrics.result(), np.concatenate(scores)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_numbers_are_those_of_pycocotools_on_json_files(tmp_path, seed, capsys):
    evaluation = list(random_evaluation(seed))
    result, _ = measured(evaluation)
    assert capsys.readouterr().out == ""
    stats, by_class = by_pycocotools(*as_files(tmp_path, evaluation))
    assert 0.1 < stats[0] < 0.9
    for name, value in zip(COCO_METRICS, stats, strict=True):
        assert result[name] == pytest.approx(value, abs=1e-12), name
    for label, (precision, at_half) in by_class.items():
        assert result["AP"][label] == pytest.approx(precision, abs=1e-12)
        assert result["AP@0.5"][label] == pytest.approx(at_half, abs=1e-12)
    assert result["examples"] == 10


def test_rows_that_are_not_valid_count_nothing():
    evaluation = list(random_evaluation(6))
    cut = [
        tuple({name: values[pair[1]["valid"]] for name, values in side.items()} for side in pair)
        for pair in evaluation
    ]
    (result, scores), (expected, of_valid) = measured(evaluation), measured(cut)
    assert result == expected
    np.testing.assert_array_equal(scores[~np.isnan(scores)], of_valid)


def test_where_there_is_nothing_to_count_a_number_is_none_and_without_detections_precision_is_zero():
    evaluation = list(random_evaluation(7))
    for _, truth in evaluation:
        truth["num_boxes"][:] = 0
    result, scores = measured(evaluation)
    assert {result[name] for name in COCO_METRICS} == {None} and set(result["AP"].values()) == {None}
    assert set(scores[~np.isnan(scores)]) <= {0.0, 1.0}
    empty = CocoMetrics(LABELS).result()
    assert empty["mAP"] is None and empty["examples"] == 0
    evaluation = list(random_evaluation(8))
    for predictions, _ in evaluation:
        predictions["num_detections"][:] = 0
    result, _ = measured(evaluation)
    assert result["mAP"] == 0 and result["AR@100"] == 0


def row_score(truth_boxes, crowds, detections):
    """Boxes and detections as (class, box in pixels of 100) and (class, score, box)."""

    def boxes_of(entries):
        return np.array([[entry[-1] for entry in entries]], np.float32).reshape(1, -1, 4) / 100

    def column(entries, at, dtype):
        return np.array([[entry[at] for entry in entries]], dtype).reshape(1, -1)

    predictions = {"boxes": boxes_of(detections), "scores": column(detections, 1, np.float32)}
    predictions |= {"classes": column(detections, 0, np.int32), "num_detections": np.array([len(detections)])}
    predictions["image_size"] = np.array([[100, 100]])
    truth = {"boxes": boxes_of(truth_boxes), "classes": column(truth_boxes, 0, np.int32)}
    truth |= {"num_boxes": np.array([len(truth_boxes)]), "is_crowd": np.array([crowds], bool).reshape(1, -1)}
    truth["area"] = np.ones((1, len(truth_boxes)), np.float32)
    return float(CocoMetrics(LABELS).update(predictions, truth)[0])


def test_a_row_scores_the_f1_of_its_sure_detections():
    cup, spoon = (1, [10, 10, 30, 30]), (2, [50, 50, 90, 90])
    assert row_score([], [], []) == 1
    assert row_score([], [], [(1, 0.29, [0, 0, 9, 9])]) == 1
    assert row_score([], [], [(1, 0.31, [0, 0, 9, 9])]) == 0
    assert row_score([cup], [False], []) == 0
    assert row_score([cup, spoon], [False, False], [(1, 0.9, [10, 10, 30, 28])]) == pytest.approx(2 / 3)
    twice = [(1, 0.5, [10, 10, 30, 29]), (1, 0.8, [10, 10, 30, 30])]
    assert row_score([cup], [False], twice) == pytest.approx(2 / 3)
    assert row_score([cup], [False], [(2, 0.9, [10, 10, 30, 30])]) == 0
    assert row_score([cup, spoon], [False, True], [(1, 0.9, cup[1]), (2, 0.9, [55, 55, 60, 60])]) == 1
