"""Predictions and metrics of whole pictures from the tiles that a conversion makes of them."""

import csv
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halofeed.loader import Loader
from halofeed.system.console import StatusLine
from halofeed.trainer.detection.merge_tiles import MergeRule
from halofeed.trainer.predict import PredictionOptions, predict_batches
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.tasks.classification import Classification
from halofeed.trainer.tasks.detection import Detection
from halofeed.trainer.whole_pictures import whole_picture_metrics
from tests.support.conversions import draw_folders, run_convert
from tests.support.training import facts_of

LABELS = ("cup", "spoon")
SIZES = {1: (300, 400), 2: (60, 50), 3: (129, 200)}
TILES = {"fit": "tiles", "height": 64, "width": 64, "tile_overlap": (16, 16)}


def write_pictures(folder):
    """Pictures with objects across borders, a small one inside a large one, and a crowd; the annotations by picture."""
    generator = np.random.default_rng(0)
    images, annotations = [], []
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    for number, (height, width) in SIZES.items():
        images.append({"id": number, "file_name": f"{number}.png", "height": height, "width": width})
        Image.fromarray(np.full((height, width, 3), 90, np.uint8)).save(folder / f"images/{number}.png")
        places = np.stack(np.meshgrid(np.arange(4, width - 40, 44), np.arange(4, height - 40, 44)), -1)
        for left, top in places.reshape(-1, 2).tolist():
            sides = generator.integers(12, 40, 2).tolist()
            one = {"id": len(annotations) + 1, "image_id": number, "bbox": [left, top, *sides]}
            one |= {"area": sides[0] * sides[1], "iscrowd": int(generator.random() < 0.1)}
            annotations.append({**one, "category_id": int(generator.integers(1, 3))})
        if number == 1:
            inner = {
                "id": len(annotations) + 1,
                "image_id": 1,
                "bbox": [6, 6, 4, 4],
                "area": 16,
                "iscrowd": 0,
            }
            annotations.append({**inner, "category_id": annotations[0]["category_id"]})
    categories = [{"id": index, "name": name} for index, name in enumerate(LABELS, 1)]
    document = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations/instances_train.json").write_text(json.dumps(document))
    return folder


def found_by_tile(done):
    """What a detector that sees each piece perfectly gives, and the ground truth of each batch."""
    names = ["transform", "source_height", "source_width", "visible", "area"]
    loader = Loader(done.folder, split="train", batch_size=4, training=False, include=names)
    for step in range(loader.steps):
        batch = loader.batch(step)
        scores = (0.5 + 0.4 * batch["visible"]).astype(np.float32)
        size = np.tile(np.array([64, 64], np.int32), (len(batch["id"]), 1))
        predictions = {
            "boxes": batch["boxes"],
            "classes": batch["classes"],
            "scores": scores,
            "image_size": size,
        }
        yield {**predictions, "num_detections": batch["num_boxes"]}, batch


@pytest.fixture(scope="module")
def tiled(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiled")
    source = write_pictures(root / "source")
    kept = run_convert(source, root / "kept", layout="coco", max_boxes=20, **TILES)
    dropped = run_convert(source, root / "dropped", layout="coco", max_boxes=20, empty_tiles="drop", **TILES)
    scaled = run_convert(
        source, root / "scaled", layout="coco", max_boxes=20, scale=0.5, min_visible=0.0, **TILES
    )
    return source, {"kept": kept, "dropped": dropped, "scaled": scaled}


@pytest.mark.parametrize("name", ["kept", "dropped", "scaled"])
def test_every_object_is_found_once_in_pixels_of_the_source(tiled, tmp_path, name):
    source, done = tiled[0], tiled[1][name]
    facts = facts_of("detection", done.manifest.labels, done.manifest.field("image").shape)
    document = predict_batches(found_by_tile(done), done.folder, "train", tmp_path / "p", facts=facts)
    truth = json.loads((source / "annotations/instances_train.json").read_text())
    images = {one["id"]: one for one in json.loads((tmp_path / "p/images.json").read_text())}
    assert {(one["height"], one["width"]) for one in images.values()} == set(SIZES.values())
    found = [
        (images[one["image_id"]]["file_name"], one["category_id"], *np.round(one["bbox"], 1).tolist())
        for one in json.loads((tmp_path / "p/detections.json").read_text())
    ]
    expected = [
        (f"images/{one['image_id']}.png", one["category_id"], *map(float, one["bbox"]))
        for one in truth["annotations"]
    ]
    assert sorted(found) == sorted(expected) and document["boxes"] == len(expected)
    assert document["sources"] == 3 < document["records"]
    assert document["merge"] == {"method": "shared", "overlap": "iou", "threshold": 0.3}


@pytest.mark.parametrize("name", ["kept", "dropped", "scaled"])
def test_whole_pictures_score_one_and_tiles_count_by_themselves(tiled, name):
    done = tiled[1][name]
    metadata = SplitMetadata(done.folder, "train")
    metrics = whole_picture_metrics(Detection(labels=LABELS), metadata)
    for predictions, truth in found_by_tile(done):
        scores = metrics.update(predictions, truth)
        assert np.isfinite(scores[truth["valid"]]).all()
    result = metrics.result()
    assert result["mAP"] == result["AR@all"] == pytest.approx(1.0)
    assert result["examples"] == 3 and result["tiles"] == len(metadata)


def test_pieces_that_are_not_merged_are_counted_as_wrong_and_low_scores_are_left_out(tiled, tmp_path):
    done = tiled[1]["kept"]
    metadata = SplitMetadata(done.folder, "train")
    metrics = whole_picture_metrics(Detection(labels=LABELS), metadata, MergeRule(method="none"))
    for batch in found_by_tile(done):
        metrics.update(*batch)
    assert metrics.result()["mAP"] < 0.95
    facts = facts_of("detection", done.manifest.labels, done.manifest.field("image").shape)
    options = PredictionOptions(rule=MergeRule(method="none"), min_score=0.8, geojson=True)
    out = tmp_path / "p"
    document = predict_batches(found_by_tile(done), done.folder, "train", out, facts=facts, options=options)
    found = json.loads((out / "detections.json").read_text())
    assert min(one["score"] for one in found) >= 0.8
    features = [len(json.loads((out / one["file"]).read_text())["features"]) for one in document["geojson"]]
    assert sum(features) == len(found) and len(features) == 3


def test_the_class_of_a_picture_is_that_of_the_mean_over_its_tiles(tmp_path):
    draw_folders(tmp_path / "source", 6, side=60)
    options = {"layout": "folders", "fit": "tiles", "height": 24, "width": 24, "tile_overlap": (4, 4)}
    done = run_convert(tmp_path / "source", tmp_path / "out", **options)
    metadata = SplitMetadata(done.folder, "train")
    generator, pairs = np.random.default_rng(0), []
    for batch in Loader(done.folder, batch_size=4, training=False).batches():
        probabilities = generator.dirichlet([1, 1], len(batch["id"]))
        pairs.append(({"probabilities": probabilities, "label": probabilities.argmax(1)}, batch))
    facts = facts_of("classification", done.manifest.labels, done.manifest.field("image").shape)
    predict_batches(pairs, done.folder, "train", tmp_path / "p", facts=facts)
    metrics = whole_picture_metrics(Classification(labels=("hat", "shirt")), metadata)
    means: dict[str, list] = {}
    for predictions, truth in pairs:
        metrics.update(predictions, truth)
        for probabilities, halves, valid in zip(
            predictions["probabilities"], truth["id"], truth["valid"], strict=True
        ):
            if valid:
                record = metadata.of_id(int(halves.astype(np.uint64)[0] << np.uint64(32) | halves[1]))
                means.setdefault(record.key, []).append(probabilities)
    with (tmp_path / "p/classes.csv").open(newline="") as stream:
        rows = {row["key"]: row for row in csv.DictReader(stream)}
    assert set(rows) == set(means) and len(rows) == 6 < len(metadata)
    for key, parts in means.items():
        assert float(rows[key]["p(hat)"]) == pytest.approx(np.mean(parts, axis=0)[0], abs=1e-6)
    right = sum(rows[key]["class"] in key for key in rows)
    result = metrics.result()
    assert result["examples"] == 6 and result["accuracy"] == pytest.approx(right / 6)
    assert result["tiles"] == len(metadata)


def test_tiles_that_were_left_out_are_counted_and_progress_counts_the_others(tmp_path, monkeypatch):
    lines = list[str]()

    class Line(StatusLine):
        def update(self, text: Any) -> None:
            lines.append(text(0.0))

    monkeypatch.setattr("halofeed.trainer.predict.StatusLine", Line)
    Image.fromarray(np.full((200, 300, 3), 90, np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "boxes.csv").write_text("filename,class,xmin,ymin,xmax,ymax\na.png,cup,10,10,30,30\n")
    table = tmp_path / "boxes.csv"
    kept, dropped = (
        run_convert(table, tmp_path / empty, layout="csv", max_boxes=20, empty_tiles=empty, **TILES)
        for empty in ("keep", "drop")
    )
    records = [SplitMetadata(done.folder, "train") for done in (kept, dropped)]
    assert len(records[1]) == 1 and records[1].dropped_tiles == len(records[0]) - 1
    metrics = whole_picture_metrics(Detection(labels=("cup",)), records[1])
    for batch in found_by_tile(dropped):
        metrics.update(*batch)
    assert metrics.result()["tiles_dropped"] == len(records[0]) - 1
    facts = facts_of("detection", dropped.manifest.labels, dropped.manifest.field("image").shape)
    document = predict_batches(found_by_tile(dropped), dropped.folder, "train", tmp_path / "p", facts=facts)
    assert document["tiles_dropped"] == len(records[0]) - 1
    assert lines == ["1 of 1 picture predicted"]
    lines.clear()
    predict_batches(found_by_tile(kept), kept.folder, "train", tmp_path / "all", facts=facts)
    count = len(records[0])
    assert lines[0] == f"1 of {count} tiles; 0 of 1 picture predicted" and len(lines) == count
