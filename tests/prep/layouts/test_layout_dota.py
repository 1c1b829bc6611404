"""DOTA's label files: what each line means, which picture a file describes, and how the layout is recognized."""

from pathlib import Path

import numpy as np
import pytest
from shapely.geometry import Polygon

from halofeed.errors import AnnotationsError
from halofeed.schemas import keys
from tests.support.annotation_writer import draw
from tests.support.conversions import read_all, run_convert
from tests.support.layout_references import by_source, detected, list_references, write_files

HEADER = "imagesource:GoogleEarth\ngsd:0.146343590398\n"
PLANE = "27 24 28.5 23 29 25 27.5 25.5 plane 0"
SHIP = "3 3 9 3 9 7 3 7 ship 1"


def kit_objects(text):
    """Return name, difficult, corners and area of each object as `parse_dota_poly` of DOTA_devkit has them."""
    found = []
    for line in text.splitlines():
        words = line.strip().split(" ")
        if len(words) < 9:
            continue
        points = [(float(words[at]), float(words[at + 1])) for at in range(0, 8, 2)]
        found.append((words[8], words[9] if len(words) > 9 else "0", points, Polygon(points)))
    return found


@pytest.mark.parametrize("header", ["", HEADER, "acquisition dates:None\nimagesource:GF\ngsd:null\n"])
def test_objects_are_those_of_the_development_kit(tmp_path, header):
    random = np.random.default_rng(3)
    rows = []
    while len(rows) < 40:
        corners = random.uniform(-5, 60, (4, 2)).round(1)
        if Polygon(corners).is_valid:
            sides = " ".join(map(str, corners.reshape(-1)))
            rows.append(f"{sides} {random.choice(['plane', 'small-vehicle'])} {len(rows) % 3}")
    text = header + "\r\n".join([*rows, "1 2 3 2 3 4 1 4 ship"]) + "\n"
    write_files(tmp_path, {"train/labelTxt/P0.txt": text, "train/images/P0.png": "x"})
    (one,) = list_references("dota", tmp_path, keep=("corners",), box_units="pixels")
    assert one.source == "train/images/P0.png" and one.split == "train" and not one.bad_objects
    for box, (name, difficult, points, polygon) in zip(one.boxes, kit_objects(text), strict=True):
        assert (box.label, box.difficult, box.truncated) == (name, difficult != "0", difficult == "2")
        assert np.array_equal(np.reshape(box.corners, (4, 2)), points)
        assert (box.xmin, box.ymin, box.xmax, box.ymax) == polygon.bounds
        assert box.area == pytest.approx(polygon.area)


FAULTS = {
    "9 9 1 9 9 9 1 9 plane 0": "sides between corners cross",
    "1 1 9 9 9 1 1 9 plane 0": "sides between corners cross",
    "1 1 5 5 9 9 3 3 plane 0": "corners enclose no area",
    "7 7 7 7 7 7 9 9 plane 0": "corners enclose no area",
    "2 2 2 2 2 2 2 2 plane 0": "corners enclose no area",
    "1 1 9 1 9 9 1 9 plane 3": "level of difficulty is unknown",
    "1 1 9 1 9 9 1 9 large vehicle 0": "row is no object",
    "1 1 9 1 9 9 plane 0": "row is no object",
    "1 1 9 1 9 nan 1 9 plane 0": "number is not finite",
    "1 1 9 1 9 1,5 1 9 plane 0": "not a number",
}


@pytest.mark.parametrize("keep", [(), ("corners",)])
def test_bad_objects_are_named_and_dropped_or_reject_their_picture(tmp_path, keep):
    text = HEADER + "\n".join([*FAULTS, PLANE])
    write_files(tmp_path, {"labelTxt/P0.txt": text, "images/P0.png": "x"})
    (one,) = list_references("dota", tmp_path, keep=keep)
    assert [box.label for box in one.boxes] == ["plane"]
    # The first row has two equal corners twice, whose sides lie on each other and do not cross.
    expected = ["corners enclose no area", *list(FAULTS.values())[1:]]
    assert [reason for reason, _ in one.bad_objects] == expected
    assert all("labelTxt/P0.txt: object " in detail for _, detail in one.bad_objects)
    (one,) = list_references("dota", tmp_path, keep=keep, on_bad_object="reject")
    assert one.problem[1] == expected[0]


@pytest.mark.parametrize(
    ("text", "distance"),
    [
        ("0.146343590398", 0.146343590398),
        ("null", None),
        ("None", None),
        ("0.0", None),
        ("", None),
        ("1e999", None),
    ],
)
def test_the_ground_sample_distance_is_kept_and_texts_that_say_nothing_are_none(tmp_path, text, distance):
    write_files(tmp_path, {"labelTxt/P0.txt": f"imagesource:GF\ngsd:{text}\n{PLANE}", "images/P0.png": "x"})
    (one,) = by_source("dota", tmp_path).values()
    assert one.gsd_m == distance and len(one.boxes) == 1
    (one,) = list_references("dota", tmp_path, needs_groups=True)
    assert ("imagesource", "GF") in one.attributes


def test_three_corners_and_a_repeated_one_are_a_triangle(tmp_path):
    write_files(tmp_path, {"labelTxt/P0.txt": "1 1 9 1 9 1 5 7 plane 0", "images/P0.png": "x"})
    (one,) = list_references("dota", tmp_path, keep=("corners",))
    assert one.boxes[0].area == 24 and one.boxes[0].corners == (1, 1, 9, 1, 9, 1, 5, 7)


PLACES = {
    "version 1.0": ("train/labelTxt/{}.txt", "train/images/{}.png"),
    "version 1.5": ("train/labelTxt-v1.5/DOTA-v1.5_train/{}.txt", "train/images/{}.png"),
    "version 2.0": ("val/labelTxt-v2.0/DOTA-v2.0_val/{}.txt", "val/images/{}.png"),
    "Ultralytics": ("labels/train_original/{}.txt", "images/train/{}.jpg"),
    "flat": ("labelTxt/{}.txt", "images/{}.tif"),
    "beside": ("a/{}.txt", "a/{}.png"),
}


@pytest.mark.parametrize("place", PLACES)
def test_label_files_describe_the_picture_of_their_name_in_each_form_of_a_release(tmp_path, place):
    label, image = PLACES[place]
    files = {label.format("P7"): HEADER + PLANE, label.format("P8"): HEADER, image.format("P7"): "x"}
    write_files(tmp_path, files | {image.format("P8"): "x", "README.txt": "DOTA of 2018\n"})
    found = by_source("dota", tmp_path)
    assert {source: len(one.boxes) for source, one in found.items()} == {
        image.format("P7"): 1,
        image.format("P8"): 0,
    }
    assert {one.split for one in found.values()} == {"val" if "2.0" in place else "train"}
    assert detected(tmp_path) == "dota"


def test_one_name_in_two_splits_means_the_picture_beside_its_label_file(tmp_path):
    files = {f"{split}/labelTxt/P0.txt": row for split, row in (("train", PLANE), ("val", SHIP))}
    write_files(tmp_path, files | {f"{split}/images/P0.png": "x" for split in ("train", "val", "test")})
    found = by_source("dota", tmp_path)
    assert [box.label for box in found["train/images/P0.png"].boxes] == ["plane"]
    assert [box.label for box in found["val/images/P0.png"].boxes] == ["ship"]
    assert found["test/images/P0.png"].problem[1] == "image has no annotation"


def test_a_folder_without_such_a_file_and_a_damaged_file_are_refused_by_name(tmp_path):
    write_files(tmp_path / "a", {"labels/a.txt": "0 0.5 0.5 0.1 0.1", "images/a.png": "x"})
    with pytest.raises(AnnotationsError, match=r"x1 y1 x2 y2 x3 y3 x4 y4 class difficult.*--layout yolo"):
        list_references("dota", tmp_path / "a")
    write_files(tmp_path / "b", {"labelTxt/a.txt": b"\xff\xfe\x00", "images/a.png": "x"})
    with pytest.raises(AnnotationsError, match="label file is no text"):
        list_references("dota", tmp_path / "b")


def test_a_conversion_without_keep_has_upright_boxes_and_counts_what_was_turned(tmp_path):
    draw(tmp_path / "in/train/images", "P0.png", size=(40, 60))
    options = {"height": 40, "width": 60, "layout": "dota"}
    write_files(tmp_path / "in/train", {"labelTxt/P0.txt": f"{HEADER}{PLANE}\n{SHIP}\n"})
    done = run_convert(tmp_path / "in", tmp_path / "out", **options)
    assert {field.name for field in done.manifest.fields}.isdisjoint({"corners"})
    assert done.manifest.splits["train"].statistics.boxes["oriented, made upright"] == 1
    dropped = run_convert(tmp_path / "in", tmp_path / "dropped", oriented_boxes="drop", **options)
    assert dropped.manifest.rejected == {"object: box is oriented": 1}
    kept = run_convert(tmp_path / "in", tmp_path / "kept", keep=("corners",), **options)
    assert kept.manifest.field("corners").shape == (kept.manifest.field("boxes").shape[0], 8)
    (features,) = read_all(Path(kept.folder), ("train",)).values()
    stored = np.stack([features[key] for key in keys.CORNER_POINTS], axis=-1).reshape(-1, 4, 2)
    sides = [[float(side) for side in row.split()[:8]] for row in (PLANE, SHIP)]
    np.testing.assert_allclose(stored[..., ::-1] * [60, 40], np.reshape(sides, (-1, 4, 2)), atol=1e-5)
