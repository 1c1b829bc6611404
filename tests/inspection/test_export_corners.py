"""Corners of objects in every export, on report pages and in `inspect`; exports that hold them give them back."""

import json
import re
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from halofeed.inspection.describe_record import describe_record
from halofeed.inspection.export_data import EXPORTERS, export_data
from halofeed.inspection.html.report import write_report
from halofeed.inspection.serve.record_columns import RecordQuery
from halofeed.inspection.serve.served_set import ServedSet
from halofeed.inspection.verify import verify
from halofeed.inspection.verify_record import record_problems
from halofeed.loader import Loader
from halofeed.loader.contact_sheet import draw_batch
from halofeed.schemas import keys
from halofeed.schemas.kinds import KINDS
from halofeed.schemas.manifest import read_manifest
from tests.support.conversions import read_all, run_convert

H, W = 40, 60
TURNED = [[20, 5, 38, 11, 34, 23, 16, 17], [50, 30, 66, 30, 66, 38, 50, 38]]
"""x and y of a turned object, and of one that exceeds the picture."""
UPRIGHT = [5, 25, 15, 25, 15, 35, 5, 35]
ROWS = [(TURNED[0], "large vehicle", 1), (TURNED[1], "ship", 2), (UPRIGHT, "ship", 0)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write a set of two pictures with a table, which has classes with blanks, and convert it."""
    root = tmp_path_factory.mktemp("corners")
    (root / "in").mkdir()
    rows = []
    for split in ("train", "val"):
        name = f"{split}.png"
        pixels = np.random.default_rng(len(name)).integers(0, 256, (H, W, 3), np.uint8)
        cv2.imwrite(str(root / "in" / name), pixels)
        for corners, label, level in ROWS:
            x, y = corners[::2], corners[1::2]
            rows.append(
                {
                    "filename": name,
                    "split": split,
                    "class": label,
                    "xmin": min(x),
                    "ymin": min(y),
                    "xmax": max(x),
                    "ymax": max(y),
                    "corners": corners,
                    "difficult": int(level > 0),
                    "truncated": int(level == 2),
                }
            )
    (root / "in/t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"layout": "jsonl", "height": H, "width": W, "encoding": "png", "keep": ("corners",)}
    return Path(run_convert(root / "in", root / "out", **options).folder)


def corners_of(folder):
    """Return x and y in pixels of the corners of each split's objects, and their labels and flags."""
    found = {}
    for split in ("train", "val"):
        (features,) = read_all(Path(folder), (split,)).values()
        shares = np.stack([features[key] for key in keys.CORNER_POINTS], axis=-1).reshape(-1, 4, 2)
        points = (shares * [H, W])[..., ::-1].reshape(-1, 8)
        names = [bytes(text).decode() for text in features[keys.OBJECT_CLASS_TEXT]]
        flags = [features[key].tolist() for key in (keys.OBJECT_DIFFICULT, keys.OBJECT_TRUNCATED)]
        found[split] = points, names, flags, features[keys.OBJECT_AREA]
    return found


def test_a_table_gives_the_corners_that_it_says(data):
    for points, names, flags, area in corners_of(data).values():
        np.testing.assert_allclose(points, [corners for corners, *_ in ROWS], atol=1e-4)
        assert names == [label for _, label, _ in ROWS] and flags == [[1, 1, 0], [0, 1, 0]]
        np.testing.assert_allclose(area, [240, 128, 100], rtol=1e-5)
    assert verify(data).problems == ()


KEEPING = ("coco", "yolo", "dota", "parquet", "webdataset")


@pytest.mark.parametrize("to", KEEPING)
def test_corners_are_the_same_again(data, tmp_path, to):
    notes = export_data(data, to, tmp_path / "out").notes
    assert not any("corners of turned objects" in note or " areas" in note for note in notes)
    layout = {"parquet": "jsonl"}.get(to, to)
    options = {"height": H, "width": W, "encoding": "png", "keep": ("corners",), "layout": layout}
    again = corners_of(run_convert(tmp_path / "out", tmp_path / "again", **options).folder)
    for split, (points, names, flags, area) in corners_of(data).items():
        if to == "yolo":  # Ultralytics refuses the picture of a corner outside
            assert any("2 objects with corners outside of the picture" in note for note in notes)
            points = points.clip(0, [W, H] * 4)
            area = [area[0], 80, area[2]]
        if to == "dota":
            names = [name.replace(" ", "-") for name in names]
        np.testing.assert_allclose(again[split][0], points, atol=1e-4)
        assert again[split][1] == names
        if to in ("coco", "dota"):
            assert again[split][2] == flags
        np.testing.assert_allclose(again[split][3], area, rtol=1e-4)


def test_targets_without_a_place_for_corners_count_the_turned_objects(data, tmp_path):
    for to in set(EXPORTERS) - {*KEEPING, "folders", "nifti", "scan-boxes"}:
        notes = export_data(data, to, tmp_path / to).notes
        assert any("2 corners of turned objects" in note for note in notes)


def test_files_hold_corners_as_their_readers_expect_them(data, tmp_path):
    for to in ("dota", "yolo", "coco", "webdataset"):
        export_data(data, to, tmp_path / to)
    (dota,) = (tmp_path / "dota/train/labelTxt").glob("*.txt")
    assert dota.read_text().splitlines() == [
        "imagesource:null",
        "gsd:null",
        "20 5 38 11 34 23 16 17 large-vehicle 1",
        "50 30 66 30 66 38 50 38 ship 2",
        "5 25 15 25 15 35 5 35 ship 0",
    ]
    (yolo,) = (tmp_path / "yolo/labels/train").glob("*.txt")
    rows = [line.split() for line in yolo.read_text().splitlines()]
    # verify_image_label of Ultralytics: nine values, none below 0 or above 1.
    assert [len(row) for row in rows] == [9, 9, 9]
    assert all(0 <= float(value) <= 1 for row in rows for value in row[1:])
    coco = json.loads((tmp_path / "coco/annotations/instances_train.json").read_text())
    assert [one["segmentation"] for one in coco["annotations"]] == [[corners] for corners, *_ in ROWS]
    with tarfile.open(tmp_path / "webdataset/train-000000.tar") as archive:
        (name,) = (one for one in archive.getnames() if one.endswith(".json"))
        assert json.load(archive.extractfile(name))["objects"]["corners"] == [one for one, *_ in ROWS]


def test_the_source_grid_has_the_corners_of_the_source(data, tmp_path):
    small = run_convert(
        data.parents[2] / "in",
        tmp_path / "half",
        layout="jsonl",
        height=H // 2,
        width=W // 3,
        keep=("corners",),
    )
    export_data(small.folder, "coco", tmp_path / "coco", grid="source")
    coco = json.loads((tmp_path / "coco/annotations/instances_train.json").read_text())
    for one, (corners, *_) in zip(coco["annotations"], ROWS, strict=True):
        np.testing.assert_allclose(one["segmentation"][0], corners, atol=1e-4)


def test_pages_show_and_inspect_draw_and_say_the_turn(data, tmp_path):
    write_report(data, tmp_path / "page.html", sources=str(data.parents[2] / "in"))
    page = (tmp_path / "page.html").read_text()
    drawn = re.findall(r'<polygon [^>]*points="([^"]*)"', page)
    assert drawn.count("20.00,5.00 38.00,11.00 34.00,23.00 16.00,17.00") >= 4
    text = describe_record(data, "train:0")
    assert re.search(r"large vehicle .*difficult, turned by 18°", text)
    assert len(re.findall("turned by", text)) == 1
    batch = Loader(data, batch_size=1, include=["corners"]).batch(0)
    assert batch["corners"].shape[-1] == 8


def test_sheets_of_batches_draw_the_outline_of_a_turned_object(data, tmp_path):
    image = np.zeros((1, H, W, 3), np.uint8)
    batch = Loader(data, split="train", batch_size=1, include=["corners"], training=False).batch(0)
    drawn = draw_batch({**batch, "image": image}, KINDS["picture"], ["", "large vehicle", "ship"], side=240)
    plain = draw_batch(
        {name: value for name, value in batch.items() if name != "corners"} | {"image": image},
        KINDS["picture"],
        ["", "large vehicle", "ship"],
        side=240,
    )
    # Margins of a sheet are gray; a picture pixel is 4 of the sheet's.
    top, left = (int(first) for first in np.argwhere((drawn == 0).all(axis=-1)).min(axis=0))
    x, y = (np.array(TURNED[0]).reshape(4, 2)[:2].mean(axis=0) * 4).astype(int)
    near = np.s_[top + y - 2 : top + y + 3, left + x - 2 : left + x + 3]
    assert drawn[near].max() > 100
    assert plain[near].max() == 0


def test_damaged_corners_of_a_record_are_named(data):
    manifest = read_manifest(data)
    (features,) = read_all(data, ("train",)).values()
    features.pop("split")
    assert not [*record_problems(features, manifest)]
    x1 = "image/object/corners/x1"
    for damaged, said in (
        ({x1: features[x1][:2]}, f"{x1} 2"),
        ({x1: np.array([np.nan, 0, 0], np.float32)}, f"{x1}: value 0 is nan"),
        ({x1: np.array([1, 2, 3])}, x1),
    ):
        assert any(said in problem for problem in record_problems({**features, **damaged}, manifest))
    del features[x1]
    assert any(x1 in problem for problem in record_problems(features, manifest))


def test_served_records_have_the_outlines_of_their_objects(data):
    page = ServedSet(data).records(RecordQuery(), 1)
    points = re.findall(r'<polygon[^>]*points="([^"]*)"', page)
    # Each outline is drawn twice, as a halo and as a line, in both records.
    assert len(points) == 2 * 2 * len(ROWS)
    drawn = {tuple(float(number) for number in re.split("[ ,]", one)) for one in points}
    for corners, _, _ in ROWS:
        assert any(np.allclose(one, corners, atol=0.01) for one in drawn), corners
