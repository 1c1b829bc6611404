"""The metrics of detections are those of pycocotools on the same boxes."""

import contextlib
import io
import json

import numpy as np
import pytest
from PIL import Image

from halofeed.trainer.data import evaluation_loader
from halofeed.trainer.evaluate import summary_lines
from halofeed.trainer.metrics import COCO_METRICS, CocoMetrics
from halofeed.trainer.predict import PredictionOptions, predict_batches
from halofeed.trainer.tasks.detection import Detection
from tests.support.conversions import run_convert
from tests.support.training import facts_of

LABELS = ("cup", "spoon", "plate")


def random_boxes(generator, *shape):
    low, size = generator.random((2, *shape, 2))
    return np.concatenate([low * 0.7, low * 0.7 + 0.02 + size * size * 0.28], -1).astype(np.float32)


def write_pictures(folder, generator):
    """Pictures of many sizes with objects of COCO's three sizes, crowds, and pictures without objects."""
    images, annotations = [], []
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    for number in range(1, 12):
        size = generator.integers(150, 420, 2)
        image = {"id": 2**62 - 31 * number, "file_name": f"{number}.png"}
        images.append({**image, "width": int(size[0]), "height": int(size[1])})
        Image.fromarray(np.full(size[::-1], 20 * number, np.uint8)).save(folder / f"images/{number}.png")
        for _ in range(generator.integers(0, 9)):
            side = np.round(size * generator.uniform(0.03, 0.7, 2), 2)
            corner = np.round((size - side) * generator.random(2), 2)
            one = {"id": len(annotations) + 1, "image_id": image["id"], "bbox": [*corner, *side]}
            one |= {"area": round(float(side.prod() * generator.uniform(0.6, 1)), 2)}
            one |= {"iscrowd": int(generator.random() < 0.15), "category_id": int(generator.integers(1, 4))}
            annotations.append(one)
    categories = [{"id": index, "name": name} for index, name in enumerate(LABELS, 1)]
    document = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations/instances_train.json").write_text(json.dumps(document))
    return str(folder / "annotations/instances_train.json")


def detections_near(generator, truth, count=240):
    """More detections than count per picture, with equal scores and with boxes that reach into the padding."""
    rows = len(truth["boxes"])
    chosen = (generator.random((rows, count)) * np.maximum(truth["num_boxes"], 1)[:, None]).astype(int)
    near = np.take_along_axis(truth["boxes"], chosen[..., None], 1)
    near = near + np.tile(near[..., 2:] - near[..., :2], 2) * generator.normal(0, 0.06, near.shape)
    boxes = np.where(generator.random((rows, count, 1)) < 0.9, near, random_boxes(generator, rows, count))
    classes = np.take_along_axis(truth["classes"], chosen, 1)
    is_right = generator.random((rows, count)) < 0.8
    return {
        "boxes": np.clip(boxes, 0, 1).astype(np.float32),
        "scores": (generator.integers(1, 400, (rows, count)) / 400).astype(np.float32),
        "classes": np.where(is_right, classes, generator.integers(1, 4, (rows, count))).astype(np.int32),
        "num_detections": generator.choice([0, count], rows, p=[0.1, 0.9]).astype(np.int32),
        "image_size": np.tile(np.array(truth["image"].shape[1:3], np.int32), (rows, 1)),
    }


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


KEEP_ASPECT = {"resize": "keep-aspect", "min_dimension": 96, "max_dimension": 128, "pad": True}


@pytest.mark.parametrize("resize", [KEEP_ASPECT, {"height": 90, "width": 120}], ids=["padded", "rescaled"])
def test_the_numbers_are_those_of_pycocotools_on_the_files_of_predict(tmp_path, resize, capsys):
    generator, out = np.random.default_rng(0), tmp_path / "predicted"
    truth_file = write_pictures(tmp_path / "source", generator)
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="coco", **resize)
    task = Detection(labels=LABELS)
    batches = [*evaluation_loader(done.folder, "train", 4, task).batches()]
    evaluation = [(detections_near(generator, batch), batch) for batch in batches]
    facts = facts_of("detection", done.manifest.labels, done.manifest.field("image").shape)
    every_box = PredictionOptions(min_score=0)
    predict_batches(evaluation, done.folder, "train", out, facts=facts, options=every_box)
    capsys.readouterr()
    metrics = task.metrics()
    for predictions, truth in evaluation:
        metrics.update(predictions, truth)
    result = metrics.result()
    assert capsys.readouterr().out == ""
    stats, by_class = by_pycocotools(truth_file, str(out / "detections.json"))
    assert all(0.1 < value < 0.95 for value in stats), stats
    assert [result[name] for name in COCO_METRICS] == pytest.approx(stats, abs=1e-12)
    for label, (precision, at_half) in by_class.items():
        assert result["AP"][label] == pytest.approx(precision, abs=1e-12)
        assert result["AP@0.5"][label] == pytest.approx(at_half, abs=1e-12)
    assert result["examples"] == 11


def row_score(truth_boxes, crowds, detections, metrics=None):
    """The score of boxes and detections as (class, box in pixels of 100) and (class, score, box)."""

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
    return float((metrics or CocoMetrics(LABELS)).update(predictions, truth)[0])


def test_where_there_is_nothing_to_count_a_number_is_none_and_without_detections_precision_is_zero():
    metrics = CocoMetrics(LABELS)
    assert metrics.result()["mAP"] is None and metrics.result()["examples"] == 0
    row_score([], [], [(1, 0.9, [0, 0, 9, 9])], metrics)
    result = metrics.result()
    assert {result[name] for name in COCO_METRICS} == {None} and set(result["AP"].values()) == {None}
    row_score([(1, [10, 10, 30, 30])], [False], [], metrics)
    result = metrics.result()
    assert result["mAP"] == 0 and result["AR@100"] == 0


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


def test_objects_found_as_another_class_are_counted_by_true_and_predicted_class():
    """A cup is found, and as a spoon too; two spoons are seen as plates; one object is found with a low score alone."""
    metrics = CocoMetrics(LABELS)
    truth = [(1, 0.0), (2, 0.2), (2, 0.4), (3, 0.6)]
    found = [(2, 0.0, 0.95), (1, 0.0, 0.9), (3, 0.21, 0.8), (3, 0.4, 0.7), (1, 0.41, 0.6), (1, 0.6, 0.2)]
    found += [(3, 0.8, 0.9)]

    def boxes(places):
        return np.array([[[0.0, left, 0.1, left + 0.1] for left in places]], np.float32)

    predictions = {
        "boxes": boxes([left for _, left, _ in found]),
        "classes": np.array([[label for label, *_ in found]], np.int32),
        "scores": np.array([[score for *_, score in found]], np.float32),
        "num_detections": np.array([len(found)], np.int32),
        "image_size": np.array([[100, 100]], np.int32),
    }
    objects = {
        "boxes": boxes([left for _, left in truth]),
        "classes": np.array([[label for label, _ in truth]], np.int32),
        "num_boxes": np.array([len(truth)], np.int32),
        "is_crowd": np.zeros((1, len(truth)), bool),
        "area": np.full((1, len(truth)), 100.0, np.float32),
    }
    metrics.update(predictions, objects)
    assert metrics.result()["confused"] == [{"true": "spoon", "predicted": "plate", "count": 2}]
    metrics.update(predictions, {**objects, "classes": objects["classes"] % 3 + 1})
    # Classes of the truth are now spoon, plate, plate, cup: the cup is seen as nothing, since 0.2 is no sure score.
    assert metrics.result()["confused"] == [{"true": "spoon", "predicted": "plate", "count": 2}]
    assert "confused: spoon as plate 2" in summary_lines(metrics.result())
