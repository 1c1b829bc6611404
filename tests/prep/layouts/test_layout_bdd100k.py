"""Frames of BDD100K and Scalabel: boxes, outlines, curves and run lengths, of three forms of files."""

import json
import math

import numpy as np
import pytest

from halofeed.errors import AnnotationsError
from halofeed.prep.voxels.masks import draw_mask
from tests.support.annotation_writer import draw
from tests.support.layout_references import by_source, detected, list_references, write_files

BOX = {"x1": 2.5, "y1": 3, "x2": 9, "y2": 8}
SQUARE = [[2, 3], [12, 3], [12, 9], [2, 9]]
OUTLINE = {"vertices": SQUARE, "types": "LLLL", "closed": True}

TRIANGLE = {"vertices": [[14, 2], [18, 2], [18, 5]], "types": "LLL", "closed": True}


def label(category="car", **more):
    return {"id": "7", "category": category, **more}


def frame(name, *labels, **more):
    return {"name": name, "timestamp": 10000, "labels": list(labels), **more}


def outcomes(one):
    """The reason of a problem, or (label, corners) of each box and the reason of each bad object."""
    if one.problem:
        return one.problem[1]
    boxes = [(box.label, box.xmin, box.ymin, box.xmax, box.ymax) for box in one.boxes]
    return boxes + [reason for reason, _ in one.bad_objects]


OBJECTS = [
    (label(box2d=BOX), ("car", 2.5, 3, 9, 8)),
    (label(poly2d=[OUTLINE]), ("car", 2, 3, 12, 9)),
    (
        label(poly2d=[OUTLINE, {**OUTLINE, "vertices": [[14, 2], [18, 2], [18, 5]], "types": "LLL"}]),
        ("car", 2, 2, 18, 9),
    ),
    (label(poly2d=[[2, 3, "L"], [12, 3, "L"], [12, 9, "L"]]), ("car", 2, 3, 12, 9)),
    (label(rle={"size": [16, 24], "counts": [35, 4, 12, 4, 329]}), ("car", 2, 3, 4, 7)),
    (label(box2d=BOX, poly2d=[OUTLINE]), ("car", 2.5, 3, 9, 8)),
    (label(poly2d=[{**OUTLINE, "closed": False}]), "shape is no box"),
    (label(box3d={"alpha": 0}), "shape is no box"),
    (label(box2d={"x1": 1}), "not a number"),
    (label(box2d={**BOX, "x2": 1}), "box is inverted"),
    (label(None, box2d=BOX), "box has no class"),
    (label(poly2d=[{**OUTLINE, "types": "LCC"}]), "types of vertices are damaged"),
    (7, "box has no class"),
]


@pytest.mark.parametrize("case", range(len(OBJECTS)))
def test_a_label_is_a_box_or_a_named_fault(tmp_path, case):
    written, outcome = OBJECTS[case]
    # A box with fractions, so that the corners of all are positions.
    write_files(tmp_path, {"a.json": json.dumps([frame("a.jpg", label(box2d=BOX), written)])})
    draw(tmp_path, "a.jpg")
    (one,) = list_references("bdd100k", tmp_path, classes=("car",))
    assert sorted(outcomes(one), key=str) == sorted([("car", 2.5, 3, 9, 8), outcome], key=str)


def test_whole_numbers_are_pixels_that_belong_to_the_box(tmp_path):
    write_files(tmp_path, {"a.json": json.dumps([frame("a.jpg", label(box2d={**BOX, "x1": 2.0}))])})
    draw(tmp_path, "a.jpg")
    assert outcomes(*list_references("bdd100k", tmp_path)) == [("car", 2, 3, 10, 9)]


def test_curves_become_lines_that_follow_them(tmp_path):
    # A circle of four cubic curves, whose control points are at 0.5523 of the radius.
    x, y, radius, near = 12, 8, 6, 6 * 0.5523
    turns = [(1, 0), (0, 1), (-1, 0), (0, -1)]
    points, types = [[x + radius, y]], "L"
    for (a, b), (c, d) in zip(turns, [*turns[1:], turns[0]], strict=True):
        first = [x + radius * a + near * c, y + radius * b + near * d]
        second = [x + radius * c + near * a, y + radius * d + near * b]
        points += [first, second, [x + radius * c, y + radius * d]]
        types += "CCC"
    outline = {"vertices": points, "types": types, "closed": True}
    write_files(tmp_path, {"a.json": json.dumps([frame("a.jpg", label(poly2d=[outline]))])})
    draw(tmp_path, "a.jpg")
    (one,) = list_references("bdd100k", tmp_path, masks=True)
    (box,) = one.boxes
    assert (box.xmin, box.ymin, box.xmax, box.ymax) == pytest.approx((6, 2, 18, 14), abs=0.01)
    rows, columns = np.mgrid[:16, :24] + 0.5
    inside = np.hypot(rows - y, columns - x) < radius
    assert (draw_mask(box.mask, (16, 24)) != inside).mean() < 0.02
    assert box.area == pytest.approx(math.pi * radius**2, rel=0.02)


def test_lanes_and_areas_beside_boxes_are_left_out_with_a_note(tmp_path):
    lane = label("lane/road curb", poly2d=[{**OUTLINE, "closed": False}])
    area = label("area/drivable", poly2d=[OUTLINE])
    rider = label("rider", box2d=BOX, poly2d=[OUTLINE])
    frames = [frame("a.jpg", label(box2d=BOX), lane, area, rider), frame("b.jpg"), frame("c.jpg", area)]
    frames[1]["labels"] = None
    write_files(tmp_path, {"det_val.json": json.dumps(frames)})
    draw(tmp_path, "images/a.jpg", "images/b.jpg", "images/c.jpg")
    found = by_source("bdd100k", tmp_path)
    assert {name: outcomes(one) for name, one in found.items()} == {
        "images/a.jpg": [("car", 2.5, 3, 9, 8), ("rider", 2.5, 3, 9, 8)],
        "images/b.jpg": [],
        "images/c.jpg": [],
    }
    assert {one.split for one in found.values()} == {"val"}
    assert "area/drivable, lane/road curb" in found["images/a.jpg"].notes[0]
    chosen = by_source("bdd100k", tmp_path, classes=("area/drivable",), masks=True)
    assert outcomes(chosen["images/c.jpg"]) == [("area/drivable", 2, 3, 12, 9)]


def test_what_files_of_single_pictures_have_in_common_decides_for_each(tmp_path):
    area = label("area/drivable", poly2d=[[*point, "L"] for point in SQUARE])
    whole = label(box2d={"x1": 1, "y1": 2, "x2": 3, "y2": 4})
    objects = {"a": [area], "b": [whole, area], "c": [label(box2d=BOX)]}
    files = {
        name: {"name": name, "frames": [{"timestamp": 1, "objects": one}]} for name, one in objects.items()
    }
    write_files(tmp_path, {f"{name}.json": json.dumps(one) for name, one in files.items()})
    draw(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    found = by_source("bdd100k", tmp_path)
    assert [outcomes(one) for one in found.values()] == [[], [("car", 1, 2, 3, 4)], [("car", 2.5, 3, 9, 8)]]
    assert [len(one.notes) for one in found.values()] == [1, 1, 0]


def test_flags_groups_sizes_and_classes_are_those_of_the_file(tmp_path):
    flags = (
        {"occluded": True, "truncated": False},
        {"crowd": True},
        {"ignored": True, "truncated": True},
        {},
    )
    labels = [label("bus", box2d=BOX, attributes=one) for one in flags]
    tree = [{"name": "vehicle", "subcategories": [{"name": "truck"}, {"name": "bus"}]}, {"name": "rider"}]
    config = {"imageSize": {"height": 16, "width": 24}, "categories": tree}
    frames = [frame(f"{video}-{at}.jpg", *labels, videoName=video) for video in "uv" for at in (1, 2)]
    files = {"all.json": json.dumps({"frames": frames, "groups": None, "config": config})}
    write_files(tmp_path, files)
    draw(tmp_path, *(f"images/train/{one['videoName']}/{one['name']}" for one in frames))
    assert detected(tmp_path) == "bdd100k"
    found = by_source("bdd100k", tmp_path)
    assert {name: one.group for name, one in found.items()} == {name: name[13] for name in found}
    one = found["images/train/u/u-1.jpg"]
    kept = [(box.occluded, box.truncated, box.is_crowd) for box in one.boxes]
    assert kept == [(True, False, False), (False, False, True), (False, True, True), (False, False, False)]
    assert one.declared_size == (16, 24) and one.split == "train"


def test_a_file_of_one_picture_belongs_to_the_picture_of_its_name(tmp_path):
    first = {"name": "0000f77c", "frames": [{"timestamp": 1, "objects": [label(box2d=BOX)]}]}
    second = {"name": "b.jpg", "labels": [label(box2d=BOX)], "attributes": {"weather": "rainy"}}
    several = {"name": "c", "frames": [{"timestamp": at, "objects": []} for at in (1, 2)]}
    files = {"labels/train/0000f77c.json": first, "labels/val/b.json": second, "labels/val/c.json": several}
    write_files(tmp_path, {name: json.dumps(one) for name, one in files.items()})
    draw(tmp_path, "images/train/0000f77c.jpg", "images/val/b.jpg", "images/val/c.jpg")
    found = by_source("bdd100k", tmp_path, needs_groups=True)
    assert {name: (one.split, outcomes(one)) for name, one in found.items()} == {
        "images/train/0000f77c.jpg": ("train", [("car", 2.5, 3, 9, 8)]),
        "images/val/b.jpg": ("val", [("car", 2.5, 3, 9, 8)]),
        "images/val/c.jpg": ("val", "file has several frames"),
    }
    assert ("weather", "rainy") in found["images/val/b.jpg"].attributes


def test_entries_that_are_no_frames_are_faults_and_other_documents_are_refused(tmp_path):
    frames = [frame("a.jpg", label(box2d=BOX)), 7, {"name": "b.jpg", "labels": {}}, frame("gone.jpg")]
    write_files(tmp_path, {"a.json": json.dumps(frames)})
    draw(tmp_path, "a.jpg", "b.jpg")
    found = {one.source: outcomes(one) for one in list_references("bdd100k", tmp_path)}
    assert found == {
        "a.jpg": [("car", 2.5, 3, 9, 8)],
        "a.json": "entry is no frame",
        "b.jpg": "entry is no frame",
        "gone.jpg": "image file not found",
    }
    write_files(tmp_path, {"a.json": json.dumps([{"name": "a.jpg", "boxes": []}])})
    with pytest.raises(AnnotationsError, match="expected JSON of BDD100K or Scalabel"):
        list_references("bdd100k", tmp_path)
