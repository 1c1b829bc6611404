"""Layouts with ignored regions: VisDrone, CrowdHuman, KITTI and COCO give them apart from the objects."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.prep.options.recipe import Recipe
from halofeed.system.errors import AnnotationsError
from tests.support.annotation_writer import draw
from tests.support.conversions import read_all, run_convert
from tests.support.layout_references import list_references, write_files

DRONE = "VisDrone2019-DET"


def told(example):
    """Return the objects of an example as class, x, y, x, y and flags, and its regions as x, y, x, y."""
    objects = [
        (box.label, box.xmin, box.ymin, box.xmax, box.ymax, box.is_crowd, box.truncated, box.occluded)
        for box in example.boxes
    ]
    return objects, [(xmin, ymin, xmax, ymax) for ymin, xmin, ymax, xmax in example.ignored_regions]


def test_visdrone_gives_objects_crowds_and_regions_and_splits_by_its_folders(tmp_path):
    names = [f"{DRONE}-{split}/images/{name}.jpg" for split, name in (("train", 1), ("val", 2), ("val", 3))]
    draw(tmp_path, *names, size=(96, 128))
    rows = [
        *("10,20,40,30,1,4,0,0", "5,6,7,8,1,1,1,2,", "1,1,9,9,0,3,0,0"),
        *("60,10,20,30,0,0,0,0", " 80 , 50 , 30 , 30 , 0 , 11 , 0 , 0", "70,70,5,5,1,11,0,0"),
    ]
    write_files(
        tmp_path,
        {
            f"{DRONE}-train/annotations/1.txt": "\n".join(rows),
            f"{DRONE}-val/annotations/2.txt": "",
            f"{DRONE}-val/annotations/3.txt": "3,3,4,4,1,10,0,0\r\n",
            f"{DRONE}-val/readme.txt": "VisDrone",
        },
    )
    found = {one.source: one for one in list_references("visdrone", tmp_path)}
    first, second, third = (found[name] for name in names)
    objects = [
        ("car", 10, 20, 50, 50, False, False, False),
        ("pedestrian", 5, 6, 12, 14, False, True, True),
        ("bicycle", 1, 1, 10, 10, True, False, False),
        ("others", 70, 70, 75, 75, False, False, False),
    ]
    assert told(first) == (objects, [(60, 10, 80, 40), (80, 50, 110, 80)])
    assert told(second) == ([], []) and told(third)[0][0][0] == "motor"
    assert [one.split for one in (first, second, third)] == ["train", "val", "val"]
    assert "ignored regions" in first.notes[0] and not third.notes


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,2,3,4,1,4,0", "row is no object"),
        ("1,2,3,4,1,4,0,0,0,0", "row is no object"),
        ("1,2,3,4,1,12,0,0", "category is unknown"),
        ("1,2,3,4,0.7,4,-1,-1", "score is not 0 or 1"),
        ("1,2,-3,4,1,4,0,0", "box is inverted"),
        ("1,2,-3,4,0,0,0,0", "box is inverted"),
        ("1,x,3,4,1,4,0,0", "not a number"),
    ],
)
def test_a_faulty_row_of_visdrone_is_dropped_by_name(tmp_path, row, reason):
    draw(tmp_path, "images/1.jpg", size=(96, 128))
    write_files(tmp_path, {"annotations/1.txt": f"5,6,7,8,1,1,0,0\n{row}\n"})
    (one,) = list_references("visdrone", tmp_path)
    assert len(one.boxes) == 1 and [fault for fault, _ in one.bad_objects] == [reason]
    assert "annotations/1.txt" in one.bad_objects[0][1]


def person(box, *, tag="person", **more):
    x, y, width, height = box
    boxes = {"fbox": box, "vbox": [x + 1, y + 1, width - 2, height - 2], "hbox": [x + 2, y, 4, 5]}
    return {"tag": tag, **boxes, **more}


def write_crowdhuman(root):
    names = ["273271,c9db000d5146c15", "283554,35288000ea56d5ef"]
    draw(root, *(f"Images/{name}.jpg" for name in names), size=(96, 128))
    lines = [
        {
            "ID": names[0],
            "gtboxes": [
                person([10, 20, 30, 40], extra={"box_id": 0, "occ": 1}, head_attr={"ignore": 0, "occ": 0}),
                person([50, 20, 30, 40], extra={"box_id": 1, "ignore": 1}, head_attr={}),
                person([60, 30, 20, 20], extra={"box_id": 2}, head_attr={"ignore": 1}),
                person([90, 60, 20, 30], tag="mask", extra={"ignore": 1}),
            ],
        },
        {"ID": names[1], "gtboxes": []},
    ]
    write_files(root, {"annotation_val.odgt": "".join(json.dumps(one) + "\n" for one in lines)})
    return [f"Images/{name}.jpg" for name in names]


@pytest.mark.parametrize(
    ("choice", "objects", "regions"),
    [
        (
            "full",
            [("person", 10, 20, 40, 60, True), ("person", 60, 30, 80, 50, False)],
            [(50, 20, 80, 60), (90, 60, 110, 90)],
        ),
        (
            "visible",
            [("person", 11, 21, 39, 59, True), ("person", 61, 31, 79, 49, False)],
            [(51, 21, 79, 59), (91, 61, 109, 89)],
        ),
        ("head", [("head", 12, 20, 16, 25, True)], [(52, 20, 56, 25), (62, 30, 66, 35), (92, 60, 96, 65)]),
    ],
)
def test_crowdhuman_gives_the_box_that_was_asked_for_and_ignores_masks(tmp_path, choice, objects, regions):
    first, second = write_crowdhuman(tmp_path)
    found = {one.source: one for one in list_references("crowdhuman", tmp_path, person_box=choice)}
    shown, ignored = told(found[first])
    assert [(*one[:5], one[-1]) for one in shown] == objects and ignored == regions
    assert told(found[second]) == ([], []) and found[first].split == found[second].split == "val"


def test_a_damaged_line_of_crowdhuman_and_the_option_for_another_layout_are_refused(tmp_path):
    write_crowdhuman(tmp_path)
    with (tmp_path / "annotation_val.odgt").open("a") as stream:
        stream.write('{"ID": 7, "gtboxes": []}\n')
    with pytest.raises(AnnotationsError, match="line 3: expected an object with ID and a list gtboxes"):
        list_references("crowdhuman", tmp_path, "annotation_val.odgt")
    with pytest.raises(UsageError, match="--person-box has no effect without --layout crowdhuman"):
        Recipe(layout="coco", person_box="head", height=8, width=8).check_used()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_row_of_a_table_with_ignored_is_a_region_and_needs_no_class(tmp_path, form):
    draw(tmp_path, "a.png", "b.png", size=(96, 128))
    columns = ("filename", "class", "xmin", "ymin", "xmax", "ymax", "ignored")
    rows = [
        *(
            ("a.png", "hat", 1, 2, 11, 14, 0),
            ("a.png", "", 20, 30, 40, 60, 1),
            ("a.png", "hat", 5, 6, 9, 10, 1),
        ),
        ("b.png", "hat", 3, 4, 9, 10, ""),
    ]
    if form == "csv":
        text = "\n".join(",".join(map(str, row)) for row in (columns, *rows))
    else:
        text = "\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in rows)
    write_files(tmp_path, {f"t.{form}": text})
    first, second = list_references(form, tmp_path)
    assert [box[:5] for box in told(first)[0]] == [("hat", 1, 2, 11, 14)]
    assert told(first)[1] == [(20, 30, 40, 60), (5, 6, 9, 10)]
    assert len(second.boxes) == 1 and not second.ignored_regions


CATEGORIES = [{"id": 1, "name": "hat"}, {"id": 4, "name": "region"}]


def write_coco(root, annotations, categories=CATEGORIES):
    draw(root, "a.png", size=(96, 128))
    image = {"id": 1, "file_name": "a.png", "height": 96, "width": 128}
    rows = [
        {"id": at, "image_id": 1, "category_id": 1, "bbox": [at, 2, 10, 12], "area": 120, "iscrowd": 0, **one}
        for at, one in enumerate(annotations, start=1)
    ]
    document = {"images": [image], "annotations": rows, "categories": categories}
    write_files(root, {"a.json": json.dumps(document)})


def test_an_object_of_coco_with_ignore_is_a_region_and_a_crowd_keeps_its_class(tmp_path):
    flags = [
        {"ignore": 1},
        {"ignore": 0},
        {"ignore": 1, "iscrowd": 1},
        {"ignore": True, "category_id": 4},
        {},
    ]
    write_coco(tmp_path, flags)
    (one,) = list_references("coco", tmp_path)
    objects, regions = told(one)
    assert [(box[1], box[5]) for box in objects] == [(2, False), (3, True), (5, False)]
    assert regions == [(1, 2, 11, 14), (4, 2, 14, 14)] and "ignored regions" in one.notes[0]


@pytest.mark.parametrize("category", [4, -1, None])
def test_a_category_that_only_regions_have_is_no_class(tmp_path, category):
    write_coco(tmp_path / "src", [{}, {"ignore": 1, "category_id": category}])
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="coco", height=96, width=128)
    names = {1: "hat"} if category == 4 else {1: "hat", 2: "region"}
    assert done.manifest.labels == names and not done.manifest.rejected


def test_data_sets_without_regions_have_no_key_of_them(tmp_path):
    write_coco(tmp_path / "src", [{"ignore": 0}])
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="coco", height=96, width=128)
    (record,) = read_all(Path(done.folder), ["train"]).values()
    assert not any(key.startswith("image/ignored") for key in record)
    assert b"ignored" not in (Path(done.folder) / "manifest.json").read_bytes()


@given(st.lists(st.tuples(*[st.integers(0, 40)] * 4, st.integers(0, 1), st.integers(0, 11)), max_size=12))
def test_every_row_of_visdrone_is_one_object_or_one_region(tmp_path_factory, rows):
    root = tmp_path_factory.mktemp("rows")
    draw(root, "images/1.png", size=(96, 128))
    lines = [f"{x},{y},{w + 2},{h + 2},{score},{label},0,0" for x, y, w, h, score, label in rows]
    write_files(root, {"annotations/1.txt": "\n".join(lines)})
    (one,) = list_references("visdrone", root)
    regions = [row for row in rows if row[5] == 0 or row[4:] == (0, 11)]
    expected = [(x, y, x + w + 2, y + h + 2) for x, y, w, h, *_ in regions]
    assert told(one)[1] == expected
    assert [box.is_crowd for box in one.boxes] == [row[4] == 0 for row in rows if row not in regions]
