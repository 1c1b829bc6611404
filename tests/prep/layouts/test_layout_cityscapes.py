"""Cityscapes and data sets of its form: label images by ids, objects by polygons, cities as groups."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import AnnotationsError
from halofeed.loader import Loader
from tests.support.annotation_writer import draw
from tests.support.conversions import run_convert
from tests.support.layout_references import by_source, detected, make, outcome, write_files

PICTURE = "leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png"
TRUTH = "gtFine/train/aachen/aachen_000000_000019_gtFine"
BOTH = "leftImg8bit/val/munster/munster_000000_000019_leftImg8bit.png"
SQUARE = [[2, 3], [12, 3], [12, 9], [2, 9]]


def polygons(*labels: str, size=(16, 24), **more) -> str:
    objects = [{"label": label, "polygon": SQUARE, **more} for label in labels]
    return json.dumps({"imgHeight": size[0], "imgWidth": size[1], "objects": objects})


def save_label(root: Path, name: str, values) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8)).save(root / name)


def labels_of(folder) -> tuple[dict[int, str], int, np.ndarray]:
    loader = Loader(folder, split="train", batch_size=1, training=False)
    return loader.manifest.labels, loader.ignore_label, loader.records[0]["label"]


def test_ids_keep_their_numbers_and_those_that_are_not_evaluated_are_ignored(tmp_path, capsys):
    draw(tmp_path / "in", PICTURE, size=(4, 9))
    values = np.arange(36).reshape(4, 9) % 34
    save_label(tmp_path / "in", f"{TRUTH}_labelIds.png", values)
    done = run_convert(tmp_path / "in", tmp_path / "out", layout="cityscapes", height=4, width=9)
    names, ignored, stored = labels_of(done.folder)
    evaluated = {7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole"}
    evaluated |= {19: "traffic light", 20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky"}
    evaluated |= {24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train"}
    evaluated |= {32: "motorcycle", 33: "bicycle"}
    assert {value: name for value, name in names.items() if value} == evaluated
    assert np.array_equal(stored, np.where(np.isin(values, [*evaluated]), values, ignored))
    assert "9 parking" in capsys.readouterr().err
    mapped = run_convert(
        tmp_path / "in",
        tmp_path / "one",
        layout="cityscapes",
        height=4,
        width=9,
        map_classes=("parking=parking",),
    )
    names, ignored, stored = labels_of(mapped.folder)
    parking = {name: value for value, name in names.items()}["parking"]
    assert set(names.values()) == {"background", "parking", *evaluated.values()}
    assert np.array_equal(stored == parking, values == 9) and (stored[values == 4] == ignored).all()
    chosen = run_convert(
        tmp_path / "in", tmp_path / "two", layout="cityscapes", height=4, width=9, classes=("parking", "road")
    )
    names, _, stored = labels_of(chosen.folder)
    assert names == {0: "background", 1: "parking", 2: "road"}
    assert {1: values == 9, 2: values == 7}[1][stored == 1].all() and (values == 7)[stored == 2].all()


def test_training_ids_come_before_ids_and_255_is_ignored(tmp_path):
    draw(tmp_path / "in", PICTURE, size=(4, 5))
    values = [*range(19), 255]
    save_label(tmp_path / "in", f"{TRUTH}_labelTrainIds.png", np.reshape(values, (4, 5)))
    save_label(tmp_path / "in", f"{TRUTH}_labelIds.png", np.full((4, 5), 7))
    save_label(tmp_path / "in", f"{TRUTH}_color.png", np.zeros((4, 5, 3)))
    write_files(tmp_path / "in", {f"{TRUTH}_polygons.json": polygons("car")})
    assert detected(tmp_path / "in") == "cityscapes"
    done = run_convert(tmp_path / "in", tmp_path / "out", layout="cityscapes", height=4, width=5)
    names, ignored, stored = labels_of(done.folder)
    assert ignored == 255 and stored.ravel().tolist() == values
    assert (names[0], names[13], names[18], len(names)) == ("road", "car", "bicycle", 19)


def test_cities_are_groups_and_pictures_without_a_label_are_listed(tmp_path):
    names = [
        PICTURE,
        BOTH,
        "leftImg8bit/val/munster/b_leftImg8bit.png",
        "leftImg8bit/test/bonn/c_leftImg8bit.png",
    ]
    make(
        tmp_path,
        *names,
        f"{TRUTH}_labelIds.png",
        "gtFine/val/munster/munster_000000_000019_gtFine_labelIds.png",
    )
    make(tmp_path, "gtFine/val/munster/gone_gtFine_labelIds.png")
    found = by_source("cityscapes", tmp_path)
    assert outcome(found) == {
        "gtFine/val/munster/gone_gtFine_labelIds.png": "label has no image",
        names[3]: None,
        PICTURE: f"{TRUTH}_labelIds.png",
        names[2]: "image has no label",
        BOTH: "gtFine/val/munster/munster_000000_000019_gtFine_labelIds.png",
    }
    assert (found[BOTH].split, found[BOTH].group, found[PICTURE].group) == ("val", "munster", "aachen")


@pytest.mark.parametrize(
    ("image", "label", "group"),
    [
        ("leftImg8bit/aachen/a_leftImg8bit.png", "gtFine/aachen/a_gtFine_labelIds.png", "aachen"),
        ("x/leftImg8bit/val/b/a_leftImg8bit.png", "y/gtFine/val/b/a_gtFine_labelIds.png", "b"),
        ("val/leftImg8bit/b/a_leftImg8bit.png", "val/gtFine/b/a_gtFine_labelIds.png", "b"),
        ("rgb_anon/train/G1/G1_f_000247_rgb_anon.png", "gt/train/G1/G1_f_000247_gt_labelIds.png", "G1"),
        (
            "leftImg8bit/train_extra/b/a_leftImg8bit.png",
            "gtCoarse/train_extra/b/a_gtCoarse_labelIds.png",
            "b",
        ),
        (
            "leftImg8bit_foggy/val/b/a_leftImg8bit_foggy_beta_0.02.png",
            "gtFine/val/b/a_gtFine_labelIds.png",
            "b",
        ),
        ("leftImg8bit/val/a_leftImg8bit.jpg", "gtFine/val/a_gtFine_labelIds.png", None),
        ("b/a.png", "b/a_gtFine_labelIds.png", "b"),
        ("a_leftImg8bit.png", "a_gtFine_labelIds.png", None),
    ],
)
def test_a_label_is_found_in_the_same_folders_below_the_split(tmp_path, image, label, group):
    other = "leftImg8bit/train/other/a_leftImg8bit.png"
    make(
        tmp_path, image, label, other, other.replace("leftImg8bit", "gtFine").replace(".png", "_labelIds.png")
    )
    found = by_source("cityscapes", tmp_path)
    assert outcome(found)[image] == label and found[image].group == group


def test_equal_names_in_other_folders_are_other_pictures_and_fine_labels_come_first(tmp_path):
    pictures = [f"leftImg8bit/{place}/f1_leftImg8bit.png" for place in ("train/0", "val/0", "val/1")]
    labels = [f"{tag}/train/0/f1_{tag}_labelIds.png" for tag in ("gtCoarse", "gtFine")]
    make(tmp_path, *pictures, *labels)
    found = by_source("cityscapes", tmp_path)
    assert outcome(found) == {pictures[0]: labels[1], pictures[1]: None, pictures[2]: None}
    assert [found[name].group for name in pictures] == ["train/0", "val/0", "1"]
    found = by_source("cityscapes", tmp_path, source_splits=False)
    assert [found[name].group for name in pictures] == ["0", "0", "1"]


def test_objects_are_polygons_of_countable_classes_and_groups_are_crowds(tmp_path):
    draw(tmp_path, PICTURE, BOTH, "leftImg8bit/val/munster/d_leftImg8bit.png")
    labels = ["road", "car", "cargroup", "polegroup", "sky", "autorickshaw", "license plate", "out of roi"]
    write_files(
        tmp_path,
        {
            f"{TRUTH}_polygons.json": polygons(*labels),
            "gtFine/val/munster/munster_000000_000019_gtFine_polygons.json": polygons(
                "ego vehicle", "out of roi"
            ),
            "gtFine/val/munster/d_gtFine_polygons.json": polygons("car", deleted=1),
        },
    )
    assert detected(tmp_path) == "cityscapes"
    found = by_source("cityscapes", tmp_path, task="detection")
    boxes = [(box.label, box.is_crowd) for box in found[PICTURE].boxes]
    assert boxes == [("car", False), ("car", True), ("autorickshaw", False)]
    box = found[PICTURE].boxes[0]
    assert (box.xmin, box.ymin, box.xmax, box.ymax) == (2, 3, 12, 9)
    assert "road 1" in found[PICTURE].notes[0] and found[PICTURE].declared_size == (16, 24)
    assert found[BOTH].problem[1:] == (
        "image has no annotation",
        "gtFine/val/munster/munster_000000_000019_gtFine_polygons.json: only ego vehicle, out of roi",
    )
    assert found["leftImg8bit/val/munster/d_leftImg8bit.png"].boxes == ()
    found = by_source("cityscapes", tmp_path, task="detection", classes=("road",), masks=True)
    assert found[PICTURE].boxes[0].mask == [[side for point in SQUARE for side in point]]
    with pytest.raises(AnnotationsError, match="take --task detection"):
        by_source("cityscapes", tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "malformed JSON"),
        ('{"imgHeight": 4, "imgWidth": 4, "objects": {}}', "not the polygons of Cityscapes"),
        (polygons("car", size=(1.5, 2)), "size is not whole pixels"),
        ("", "malformed JSON"),
    ],
)
def test_damaged_polygons_are_a_fault_of_their_picture(tmp_path, content, reason):
    draw(tmp_path, PICTURE)
    write_files(tmp_path, {f"{TRUTH}_polygons.json": content})
    found = by_source("cityscapes", tmp_path, task="detection")
    assert found[PICTURE].problem[1] == reason and TRUTH in found[PICTURE].problem[2]


def test_a_folder_without_pairs_is_refused_with_what_was_expected(tmp_path):
    make(tmp_path, "a/b.png", "c/d_gtFine_labelIds.png")
    with pytest.raises(AnnotationsError, match=r"expected leftImg8bit/SPLIT/CITY/a_leftImg8bit\.png"):
        by_source("cityscapes", tmp_path)
    make(tmp_path, "c/d.png")
    with pytest.raises(AnnotationsError, match=r"_polygons\.json.*take --task segmentation"):
        by_source("cityscapes", tmp_path, task="detection")
