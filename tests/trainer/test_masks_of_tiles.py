"""Masks of objects that several tiles show are joined in pixels of the source, in predictions and in metrics."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from halofeed.loader import Loader
from halofeed.schemas.manifest import read_manifest
from halofeed.trainer.detection import sparse_coco
from halofeed.trainer.mask_metrics import MASK_METRICS, WholeMaskMetrics
from halofeed.trainer.object_masks import PlacedMask
from halofeed.trainer.predict import PredictionOptions, predict_batches
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.tasks.detection import Detection
from halofeed.trainer.whole_pictures import whole_picture_metrics
from tests.support.object_masks import convert_objects
from tests.support.training import facts_of

# pycocotools makes arrays in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIZES = [(60, 90), (33, 47), (120, 50)]
Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def tiled(tmp_path_factory) -> tuple[Path, Path]:
    """Pictures with masks, as tiles of half an object's overlap; the folder of annotations, and the version."""
    root = tmp_path_factory.mktemp("tiled")
    data = convert_objects(root, SIZES, fit="tiles", tile_overlap=(8, 8), min_visible=0.0, max_boxes=8)
    return root / "source", data


def predictions_of(data: Path, noise: float = 0.0) -> Iterator[tuple[Arrays, Arrays]]:
    """The pieces of objects in the tiles as a model predicts them; with noise, masks have holes and some are lost."""
    generator = np.random.default_rng(3)
    include = ["masks", "transform", "source_height", "source_width", "visible", "area"]
    loader = Loader(data, split="train", batch_size=3, training=False, include=include)
    for step in range(loader.steps):
        batch = loader.batch(step)
        rows = len(batch["id"])
        hidden = generator.random(batch["masks"].shape) < noise
        lost = generator.random(batch["classes"].shape) < noise / 3
        predictions = {
            "boxes": batch["boxes"],
            "classes": batch["classes"],
            # The complete piece of an object is more certain than a part of it.
            "scores": np.where(lost, 0.01, 0.4 + 0.5 * batch["visible"]).astype(np.float32),
            "num_detections": batch["num_boxes"],
            "masks": np.where(hidden, 0, 255 * batch["masks"]).astype(np.uint8),
            "mask_stride": np.full(rows, 1),
            "image_size": np.tile(batch["image"].shape[1:3], (rows, 1)),
        }
        yield predictions, batch


def written(folder: Path, data: Path, noise: float, **options: Any) -> dict[str, Any]:
    manifest = read_manifest(data)
    facts = facts_of("detection", manifest.labels, manifest.field("image").shape)
    return predict_batches(
        predictions_of(data, noise), data, "train", folder, facts=facts, options=PredictionOptions(**options)
    )


def renumbered(folder: Path, source: Path) -> tuple[COCO, Path]:
    """The annotations of the source, with the ids of pictures that `predict` wrote."""
    truth, document = COCO(), json.loads((source / "annotations.json").read_text())
    ids = {Path(one["file_name"]).name: one["id"] for one in json.loads((folder / "images.json").read_text())}
    old = {one["id"]: ids[one["file_name"]] for one in document["images"]}
    for one in document["images"]:
        one["id"] = old[one["id"]]
    for one in document["annotations"]:
        one["image_id"] = old[one["image_id"]]
    document["images"].sort(key=lambda one: one["id"])
    truth.dataset = {"info": {}, **document}
    truth.createIndex()
    return truth, folder / "detections.json"


def test_the_pieces_of_an_object_become_its_mask_in_the_source(tiled, tmp_path, capsys):
    source, data = tiled
    assert written(tmp_path / "found", data, 0.0)["records"] > 20
    truth, file = renumbered(tmp_path / "found", source)
    found = {(one["image_id"], *one["bbox"]): one["segmentation"] for one in json.loads(file.read_text())}
    annotations = truth.dataset["annotations"]
    assert len(found) == len(annotations) == 12
    for one in annotations:
        segmentation = found[one["image_id"], *map(float, one["bbox"])]
        assert np.array_equal(coco_masks.decode(segmentation), coco_masks.decode(one["segmentation"]))


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_mask_metrics_of_whole_pictures_are_those_of_pycocotools_on_the_source(
    tiled, noise, tmp_path, capsys, monkeypatch
):
    source, data = tiled
    monkeypatch.setattr(sparse_coco, "_TABLE_VALUES", 3)
    metrics = whole_picture_metrics(
        Detection(labels=("disc", "ring"), masks=True), SplitMetadata(data, "train")
    )
    for batch in predictions_of(data, noise):
        metrics.update(*batch)
    result = metrics.result()
    written(tmp_path / "found", data, noise, min_score=0.0)
    truth, file = renumbered(tmp_path / "found", source)
    expected = COCOeval(truth, truth.loadRes(str(file)), "segm")
    expected.evaluate()
    expected.accumulate()
    expected.summarize()
    names = [name.replace("AR@100", "AR@all") for name in MASK_METRICS]
    found = [-1 if result[name] is None else result[name] for name in names]
    assert found == pytest.approx(list(expected.stats))
    assert result["mask mAP"] == pytest.approx(1) if not noise else 0.1 < result["mask mAP"] < 0.9
    assert result["examples"] == 3 and result["tiles"] > 20


@pytest.mark.parametrize("rule", ["coco", "visdrone"])
def test_detections_in_ignored_regions_of_whole_pictures_do_not_count(rule, capsys):
    def square(top: int, left: int) -> PlacedMask:
        return top, left, np.ones((10, 10), np.bool_)

    def measured(regions: list[list[float]]) -> dict[str, Any]:
        metrics = WholeMaskMetrics(("disc",), rule)
        metrics.add_masked_picture(
            7,
            # The false detection has the higher score, and comes first among the masks.
            np.array([[1, 30, 30, 40, 40, 0.9], [1, 5, 5, 15, 15, 0.8]]),
            np.array([[1, 5.0, 5, 15, 15, 100, 0]]),
            np.array(regions, float).reshape(-1, 4),
            masks=[square(30, 30), square(5, 5)],
            true=[square(5, 5)],
            size=(50, 60),
        )
        return metrics.result()

    assert measured([])["mask mAP"] == pytest.approx(0.5)
    found = measured([[28, 28, 45, 45]])
    assert [found["mask mAP"], found["mAP"]] == pytest.approx([1, 1])


def test_objects_for_which_a_batch_has_no_room_keep_their_true_masks(tmp_path, capsys):
    whole, few = (
        convert_objects(
            tmp_path / str(count), SIZES, fit="tiles", tile_overlap=(8, 8), min_visible=0.0, max_boxes=count
        )
        for count in (8, 1)
    )
    assert max(map(int, read_manifest(few).splits["train"].statistics.boxes_per_image)) > 1
    truth = dict(zip("ab", (list(predictions_of(one)) for one in (whole, few)), strict=True))
    metrics = whole_picture_metrics(
        Detection(labels=("disc", "ring"), masks=True), SplitMetadata(few, "train")
    )
    # Predictions of everything, beside batches that hold the first object of each tile.
    for (predictions, _), (_, batch) in zip(truth["a"], truth["b"], strict=True):
        metrics.update(predictions, batch)
    assert metrics.result()["mask mAP"] == pytest.approx(1)


def test_without_true_masks_boxes_of_whole_pictures_are_measured_alone(tiled):
    data = tiled[1]
    metrics = whole_picture_metrics(
        Detection(labels=("disc", "ring"), masks=True), SplitMetadata(data, "train")
    )
    for predictions, truth in predictions_of(data):
        metrics.update(predictions, {key: value for key, value in truth.items() if key != "masks"})
    result = metrics.result()
    assert result["mAP"] == pytest.approx(1) and "mask mAP" not in result


def polygon_area(rings: list[list[list[float]]]) -> float:
    """Area of the outer ring without its holes."""
    outer, *holes = (
        abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairwise(ring))) / 2 for ring in rings
    )
    return outer - sum(holes)


def test_geojson_has_the_outlines_of_joined_masks(tiled, tmp_path):
    data = tiled[1]
    out = tmp_path / "found"
    document = written(out, data, 0.4, geojson=True)
    masks = json.loads((out / "detections.json").read_text())
    images = {one["id"]: one["file_name"] for one in json.loads((out / "images.json").read_text())}
    kinds = set()
    for listed in document["geojson"]:
        features = json.loads((out / listed["file"]).read_text())["features"]
        of_picture = [one for one in masks if images[one["image_id"]] == listed["source"]]
        assert len(features) == len(of_picture) > 0
        areas, boxes = [], []
        for feature in features:
            geometry = feature["geometry"]
            kinds.add(geometry["type"])
            polygons = (
                geometry["coordinates"] if geometry["type"] == "MultiPolygon" else [geometry["coordinates"]]
            )
            areas.append(sum(map(polygon_area, polygons)))
            points = np.concatenate([rings[0] for rings in polygons])
            boxes.append([*points.min(0), *np.ptp(points, axis=0)])
        assert areas == pytest.approx([float(coco_masks.area(one["segmentation"])) for one in of_picture])
        assert np.allclose(boxes, [coco_masks.toBbox(one["segmentation"]) for one in of_picture])
    assert kinds == {"Polygon", "MultiPolygon"}
