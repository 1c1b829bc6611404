"""What programs show of ignored regions: verify, inspect, its parser, reports, drawn batches and exports."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

from halofeed.inspection.describe_dataset import describe_dataset
from halofeed.inspection.describe_record import describe_record
from halofeed.inspection.html.run_gallery import ExampleBoxes, match_predictions
from halofeed.inspection.shown_sources import SHOWN, TRUTH
from halofeed.inspection.verify import verify
from halofeed.inspection.verify_record import record_problems
from halofeed.loader import Loader
from halofeed.loader.contact_sheet import draw_batch
from halofeed.schemas import keys
from halofeed.schemas.manifest import read_manifest
from tests.support.annotation_writer import draw
from tests.support.conversions import halofeed_here, read_all, read_split, run_convert
from tests.support.layout_references import write_files
from tests.support.parser_check import check_parser

SIZE = (60, 80)
ROWS = {
    "a": "10,20,30,20,1,4,0,0\n40,10,30,40,0,0,0,0\n",
    "b": "5,6,20,20,1,1,0,0\n",
    "c": "0,0,10,60,0,0,0,0\n70,50,30,30,0,11,0,0\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("shown")
    draw(root / "in", *(f"images/{name}.png" for name in ROWS), size=SIZE)
    write_files(root / "in", {f"annotations/{name}.txt": rows for name, rows in ROWS.items()})
    done = run_convert(root / "in", root / "out", layout="visdrone", encoding="png", height=60, width=80)
    return done.folder


def test_a_set_with_regions_is_sound_and_the_program_of_inspect_reads_them(folder):
    report = verify(folder)
    assert report.ok, report.problems
    field = read_manifest(folder).field("ignored_boxes")
    assert field.shape == (2, 4) and not field.optional
    check_parser(folder)


@pytest.mark.parametrize(
    ("key", "change", "expected"),
    [
        (0, lambda sides: np.float32([1.5, *sides[1:]]), "expected 0 to 1, got 1.5"),
        (0, lambda sides: sides[:1], "expected lists of one length"),
        (2, lambda sides: sides * 0, "is more than ymax 0.0"),
        (1, lambda sides: np.float32([np.nan, *sides[1:]]), "not a valid float32"),
        (1, None, "image/ignored/bbox/xmin is missing"),
    ],
)
def test_damaged_regions_are_named(folder, key, change, expected):
    features = dict(read_all(Path(folder), ["train"])["images/c.png"])
    name = keys.IGNORED_CORNERS[key]
    del features["split"]
    if change is None:
        del features[name]
    else:
        features[name] = change(features[name])
    found = list(record_problems(features, read_manifest(folder)))
    assert any(expected in problem for problem in found), found


def test_descriptions_count_and_list_regions(folder):
    assert "ignored regions: 3 in 2 images" in describe_dataset(folder)
    shown = [describe_record(folder, f"train:{number}") for number in range(3)]
    (two,) = (text for text in shown if "images/c.png" in text)
    rows = [line.split() for line in two.splitlines() if "ignored region" in line]
    assert [row[3:7] for row in rows] == [["0.0", "0.0", "60.0", "10.0"], ["50.0", "70.0", "60.0", "80.0"]]
    assert sum("ignored region" in text for text in shown) == 2


def test_pages_and_batches_draw_regions(folder, tmp_path):
    page = tmp_path / "r.html"
    done = halofeed_here("report", folder, "--output", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    sections = {part.partition('"')[0]: part for part in text.split('<section id="')}
    # In the source and in the record, each with its outline below.
    assert sections["samples"].count('<rect class="region"') == 2 * 2 * 3
    assert sections["contents"].count('<rect class="region"') == 2 * 3
    loader = Loader(folder, batch_size=3, training=False, include=["source"])
    batch = loader.batch(0)
    drawn = draw_batch(batch, loader.kind, loader.class_names, side=80)
    plain = draw_batch(
        {**batch, "ignored_boxes": batch["ignored_boxes"] * 0}, loader.kind, loader.class_names, side=80
    )
    regions = sum(np.prod((boxes[2:] - boxes[:2]) * SIZE) for boxes in batch["ignored_boxes"].reshape(-1, 4))
    assert abs((drawn != plain).any(-1).sum() - regions) < 0.1 * regions


def boxes_of(corners, classes, regions=()):
    corners = np.array(corners, np.float64).reshape(-1, 4)
    count = len(corners)
    return ExampleBoxes(
        corners=corners,
        classes=np.array(classes, np.int64),
        scores=np.linspace(0.9, 0.5, count),
        crowd=np.zeros(count, bool),
        regions=np.array(regions, np.float64).reshape(-1, 4),
    )


def test_a_drawn_prediction_in_a_region_is_not_wrong():
    truth = boxes_of([[0, 0, 0.4, 0.4]], [1], [[0.5, 0.5, 1, 1], [0, 0.5, 0.2, 1]])
    predicted = boxes_of(
        [[0, 0, 0.4, 0.4], [0.6, 0.6, 0.9, 0.9], [0.3, 0.5, 0.6, 0.9], [0, 0.6, 0.4, 0.8]], [1, 2, 1, 2]
    )
    # Shares of their areas in a region: none, all, a third, and half.
    assert match_predictions(truth, predicted).right.tolist() == [True, True, False, True]
    without = boxes_of([[0, 0, 0.4, 0.4]], [1])
    assert match_predictions(without, predicted).right.tolist() == [True, False, False, False]


def test_cocos_export_lets_pycocotools_ignore_detections_in_regions(folder, tmp_path):
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    out = tmp_path / "coco"
    done = halofeed_here("export", folder, "--to", "coco", "--out", out)
    assert "3 ignored regions became a crowd of each class" in done.stderr
    file = out / "annotations/instances_train.json"
    document = json.loads(file.read_text())
    image = {one["file_name"][-5]: one["id"] for one in document["images"]}
    boxes = [
        ("a", 4, [10, 20, 30, 20]),
        ("b", 1, [5, 6, 20, 20]),
        ("a", 4, [45, 15, 20, 20]),
        ("c", 1, [0, 5, 10, 20]),
    ]
    results = [
        {"image_id": image[name], "category_id": label, "bbox": box, "score": 0.5 + at / 10}
        for at, (name, label, box) in enumerate(boxes)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(file))
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    assert evaluation.stats[0] == pytest.approx(1)
    # Converted again, a region is a crowd of each class, which training leaves out as well.
    again = run_convert(out, tmp_path / "again", layout="coco", encoding="png", height=60, width=80)
    batch = Loader(again.folder, batch_size=3, training=False).batch(0)
    assert batch["is_crowd"].sum() == 3 * 10


@pytest.mark.parametrize("to", ["yolo", "voc", "dota", "parquet", "webdataset"])
def test_targets_without_a_word_for_regions_say_what_they_left_out(folder, tmp_path, to):
    pytest.importorskip({"parquet": "pyarrow"}.get(to, "numpy"))
    done = halofeed_here("export", folder, "--to", to, "--out", tmp_path / to)
    assert done.returncode == 0 and "3 ignored regions" in done.stderr
    found = json.loads((tmp_path / to / "export.json").read_text())
    assert found["left_out"]["ignored regions"] == 3


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("fit", ["whole", "tiles"])
def test_a_picture_that_is_put_together_has_each_region_once(tmp_path, fit, orientation):
    draw(tmp_path / "in", "images/a.jpg", size=SIZE, orientation=orientation)
    write_files(tmp_path / "in", {"annotations/a.txt": ROWS["c"] + ROWS["a"]})
    options = {"fit": "tiles", "height": 32, "width": 32, "tile_overlap": (8, 8)} if fit == "tiles" else {}
    options |= {"annotation_grid": "stored", "encoding": "png"}
    done = run_convert(
        tmp_path / "in", tmp_path / "out", layout="visdrone", **{"height": 64, "width": 64, **options}
    )
    assert not [problem for problem in verify(done.folder).problems if "ignored" in str(problem)]
    records = list(read_split(Path(done.folder), "train"))
    manifest = read_manifest(done.folder)
    shown = SHOWN["picture"](records, manifest, True)
    found = TRUTH["detection"](records, shown, manifest)["truth_ignored_boxes"]
    height, width = SIZE
    # Regions as x, y, width and height in the file, which the conversion clips to the picture.
    written = np.array([[0, 0, 10, 60], [70, 50, 10, 10], [40, 10, 30, 40]], float)
    corners = written[:, [1, 0, 3, 2]]
    corners[:, 2:] += corners[:, :2]
    expected = corners / [height, width, height, width]
    if orientation == 6:  # the file's left column is the first row, from right to left
        top, left, bottom, right = expected.T
        expected = np.stack([left, 1 - bottom, right, 1 - top], axis=1)
    order = [np.lexsort(boxes.T[::-1].round(3)) for boxes in (found, expected)]
    np.testing.assert_allclose(found[order[0]], expected[order[1]], atol=1e-5)
