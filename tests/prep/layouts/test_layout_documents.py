"""Files of annotation tools: what a picture has, and what an object of each tool becomes."""

import base64
import io
import json
import math
import zlib

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import AnnotationsError
from halofeed.prep.layouts import LAYOUTS
from tests.support.annotation_writer import draw
from tests.support.layout_references import list_references, write_files

CAR = ("car", 10, 8, 40, 30)
TRAIN = [f"train/t{number}.jpg" for number in range(3)]
CASES = {
    "labelme": (["a.jpg"], CAR, "displayed"),
    "cvat": (["images/a.jpg"], CAR, "displayed"),
    "createml": (TRAIN, ("a", *CAR[1:]), None),
    "kitti": (["training/image_2/000001.png"], ("Car", *CAR[1:]), None),
    "via": (TRAIN, ("a", *CAR[1:]), None),
    "label-studio": (["a.jpg"], ("car", 0.104, 0.125, 0.414, 0.465), "displayed"),
    "supervisely": (["ds0/img/a.jpg"], ("car", 10, 8, 41, 31), None),
    "wider": (["WIDER_train/images/0--Parade/0_P_1.jpg"], ("face", *CAR[1:]), None),
}
XML = '<annotations>{}<image id="0" name="a.png" width="96" height="64">{}</image></annotations>'
DOCUMENTS = {
    "labelme": ("a.json", lambda one: {"imagePath": "a.png", "imageHeight": 64, "shapes": one}),
    "cvat": ("a.xml", lambda one: XML.format("", "".join(one))),
    "createml": ("c.json", lambda one: [{"imagefilename": "a.png", "annotation": one}]),
    "kitti": ("a.txt", "\n".join),
    "via": ("v.json", lambda one: {"a.png9": {"filename": "a.png", "regions": one}}),
    "label-studio": ("t.json", lambda one: [task("s3://bucket/dir/a.png", {"result": one})]),
    "supervisely": ("a.json", lambda one: {"size": {"height": 64, "width": 96}, "objects": one}),
}
NO_BOX = "shape is no box"
TRIANGLE = [[1, 2], [9, 2], [5, 8]]
CIRCLE = {"name": "circle", "cx": 20, "cy": 30, "r": 5}
PERCENT = {"x": 10, "y": 20, "width": 30, "height": 40}
PNG = io.BytesIO()
Image.new("1", (7, 5)).save(PNG, "PNG")


def told(one):
    """The reason of a problem, or the boxes (label, xmin, ymin, xmax, ymax) and the reasons of bad objects."""
    if one.problem:
        return one.problem[1]
    boxes = [(b.label, *(round(side, 3) for side in (b.xmin, b.ymin, b.xmax, b.ymax))) for b in one.boxes]
    return boxes + [reason for reason, _ in one.bad_objects]


def shape(kind, *points, label="hat", **more):
    return {"label": label, "shape_type": kind, "points": list(points), **more}


def region(kind="hat", **shape_attributes):
    return {"shape_attributes": shape_attributes, "region_attributes": {"kind": kind}}


def turned_corners(x, y, width, height, degrees):
    """The corners of a rectangle about its center, turned by a rotation matrix."""
    sides = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (width / 2, height / 2)
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return sides @ np.array([[cosine, sine], [-sine, cosine]]) + (x, y)


def result(kind, *labels, **value):
    return {"type": kind, "value": {kind: list(labels), **value}}


def task(image, *annotations):
    return {"data": {"image": image}, "annotations": list(annotations), "predictions": [{"result": [1]}]}


def figure(kind, *points, **more):
    points = {"exterior": list(points), "interior": []}
    return {"classTitle": "hat", "geometryType": kind, "points": points, "tags": [{"value": 0.5}], **more}


def bitmap(data):
    return figure("bitmap", bitmap={"origin": [3, 4], "data": base64.b64encode(data).decode()})


SIZES = {"original_width": 100, "original_height": 200}
OBJECTS = {
    "labelme": [
        (shape("rectangle", [9, 8], [1, 2]), (1, 2, 9, 8)),
        (shape("rectangle", [1, 2], [9, 2], [9, 8], [1, 8]), (1, 2, 9, 8)),
        (shape(None, *TRIANGLE), (1, 2, 9, 8)),
        (shape("circle", [20, 20], [23, 24]), (15, 15, 25, 25)),
        (shape("mask", [3, 4], [9.4, 8], mask=base64.b64encode(PNG.getvalue()).decode()), (3, 4, 10, 9)),
        (shape("rotation", [5, 0], [10, 5], [5, 10], [0, 5]), (0, 0, 10, 10)),
        (shape("rectangle", [5, 0], [10, 5], [5, 10], [0, 5]), (0, 0, 10, 10)),
        (shape("rectangle", [1, 2], [9, 3], [9, 8], [1, 8]), "shape has no 2 points"),
        (shape("polygon", [1, 2], [3, 4]), "polygon has fewer than 3 points"),
        (shape("polygon", [1, 2], [3, math.nan], [5, 6]), "number is not finite"),
        (shape("polygon", *TRIANGLE, label=" "), "box has no class"),
        (shape("mask", [3, 4], [9, 8], mask="no"), "bitmap is no PNG"),
        (shape("star", *TRIANGLE), NO_BOX),
        ([], "shape is no object"),
    ],
    "cvat": [
        ('<polygon label="hat" points="1,2;9,2;5,8"/>', (1, 2, 9, 8)),
        ('<ellipse label="hat" cx="20" cy="30" rx="8" ry="4" rotation="90"/>', (16, 22, 24, 38)),
        ('<mask label="hat" rle="1, 2" left="3" top="4" width="7" height="5"/>', (3, 4, 10, 9)),
        ('<box label="hat" xtl="1" ytl="2" xbr="9" ybr="8" rotation="180"/>', (1, 2, 9, 8)),
        ('<box label="hat" xtl="1" ytl="2" xbr="9" ybr="8" rotation="30"/>', (0.036, 0.402, 9.964, 9.598)),
        ('<polygon label="hat" points="1,2;9"/>', "points are no list of [x, y]"),
        ('<skeleton label="hat"><points label="1" points="1,2"/></skeleton>', NO_BOX),
    ],
    "createml": [
        ({"label": "hat", "coordinates": {"x": 25, "y": 40, "width": 30, "height": 40}}, (10, 20, 40, 60)),
        ({"label": "hat", "coordinates": PERCENT | {"width": -8}}, "box is inverted"),
        ({"label": "hat"}, "object has no box"),
    ],
    "kitti": [
        (f"hat 0.5 1 -10 1 2 9 8{' 0' * 7}", (1, 2, 9, 8)),
        (f"hat 0.5 1 -10 1 2 9 8{' 0' * 8}", "row is no object"),
    ],
    "via": [
        (region(name="rect", **PERCENT), (10, 20, 40, 60)),
        (region(name="polygon", all_points_x=[1, 9, 5], all_points_y=[2, 2, 8]), (1, 2, 9, 8)),
        (region(name="ellipse", cx=20, cy=30, rx=8, ry=4, theta=math.pi / 2), (16, 22, 24, 38)),
        (region({"hat": True, "cap": False}, **CIRCLE), (15, 25, 25, 35)),
        (region({"hat": True, "cap": True}, **CIRCLE), "box has no class"),
        (region(name="polygon", all_points_x=[1, 9, 5], all_points_y=[2, 2]), "points are no two lists"),
        (region(**CIRCLE | {"r": -1}), "box is inverted"),
        (region(name="point", cx=20, cy=30), NO_BOX),
    ],
    "label-studio": [
        (result("rectanglelabels", "hat", **PERCENT), (0.1, 0.2, 0.4, 0.6)),
        (result("polygonlabels", "hat", points=[[10, 20], [90, 20], [50, 80]]), (0.1, 0.2, 0.9, 0.8)),
        # Turned about the first corner: to the left of it and below on a picture 100 wide and 200 high.
        ({**result("rectanglelabels", "hat", **PERCENT, rotation=30), **SIZES}, (-0.3, 0.2, 0.36, 0.621)),
        ({**result("rectanglelabels", "hat", **PERCENT, rotation=180), **SIZES}, (-0.2, -0.2, 0.1, 0.2)),
        (result("rectanglelabels", "hat", **PERCENT, rotation=5), "size of the picture is missing"),
        (result("labels", "hat", "cap", **PERCENT), "object has several classes"),
        (result("rectangle", **PERCENT), "box has no class"),
        (result("ellipselabels", "hat", x=10, y=20, radiusX=1, radiusY=2), NO_BOX),
        ({**result("labels", "hat", x=1), "image_rotation": 90}, "picture was turned in Label Studio"),
    ],
    "supervisely": [
        (figure("rectangle", [8, 2], [1, 7]), (1, 2, 9, 8)),
        (figure("polygon", *TRIANGLE), (1.5, 2.5, 9.5, 8.5)),
        (bitmap(zlib.compress(PNG.getvalue())), (3, 4, 10, 9)),
        (bitmap(b"x"), "bitmap is no PNG"),
        (figure("line", *TRIANGLE), NO_BOX),
    ],
    "supervisely, with fractions": [(figure("rectangle", [8.5, 2], [1, 7]), (1, 2, 8.5, 7))],
}


@pytest.mark.parametrize("case", CASES)
def test_the_files_of_each_tool_give_the_box_that_was_drawn(test_data, case):
    names, box, grid = CASES[case]
    root = test_data / "cases" / case.replace("-", "_")
    found = {one.source: (told(one), one.grid) for one in list_references(case, root)}
    assert found == dict.fromkeys(names, ([box], grid))
    for layout in LAYOUTS.keys() - {case}:
        with pytest.raises(AnnotationsError, match=f"(?s)take --layout {case}"):
            list_references(layout, root)


@pytest.mark.parametrize("case", OBJECTS)
def test_an_object_is_a_box_or_a_named_fault(tmp_path, case):
    items, outcomes = zip(*OBJECTS[case], strict=True)
    layout = case.partition(",")[0]
    name, document = DOCUMENTS[layout]
    made = document(items)
    write_files(tmp_path, {name: made if isinstance(made, str) else json.dumps(made)})
    draw(tmp_path, "a.png", size=(64, 96))
    (one,) = list_references(layout, tmp_path)
    assert told(one) == [out if isinstance(out, str) else ("hat", *out) for out in outcomes]


def test_parts_of_one_group_are_one_object_of_several_polygons(tmp_path):
    far = [[x + 50, y + 40] for x, y in TRIANGLE]
    shapes = [shape("polygon", *points, group_id=1) for points in (TRIANGLE, far)]
    shapes += [shape("rectangle", [1, 2], [9, 8], group_id=1), shape("point", [1, 1], label="__ignore__")]
    write_files(tmp_path, {"a.json": json.dumps({"imagePath": "a.png", "shapes": shapes})})
    draw(tmp_path, "a.png", size=(64, 96))
    (one,) = list_references("labelme", tmp_path)
    assert told(one) == [("hat", 1, 2, 59, 48), ("hat", 1, 2, 9, 8)] and len(one.notes) == 2
    (one,) = list_references("labelme", tmp_path, masks=True)
    assert one.boxes[0].mask == [[side for point in points for side in point] for points in (TRIANGLE, far)]
    assert told(one)[1:] == ["object has no segmentation"]


@pytest.mark.parametrize("line", [shape("linestrip", [1, 1], [70, 1]), shape("polygon", [1, 1], [70, 1])])
def test_a_part_without_an_area_is_left_out_and_counted_and_the_object_stays(tmp_path, line):
    shapes = [{**line, "group_id": 1}, shape("polygon", *TRIANGLE, group_id=1)]
    write_files(tmp_path, {"a.json": json.dumps({"imagePath": "a.png", "shapes": shapes})})
    draw(tmp_path, "a.png", size=(64, 96))
    for masks in (False, True):
        (one,) = list_references("labelme", tmp_path, masks=masks)
        assert told(one) == [("hat", 1, 2, 9, 8)] and one.boxes[0].lost_parts == 1
        assert any("1 part without an area" in note for note in one.notes)
    (one,) = list_references("labelme", tmp_path, on_bad_object="reject")
    assert one.problem


OVAL = [[30 + 20 * math.cos(turn), 30 + 10 * math.sin(turn)] for turn in np.arange(0, 6.28, 0.4)]


@pytest.mark.parametrize(
    ("points", "share"),
    [
        *((turned_corners(50, 40, 40, 10, turn), True) for turn in (1, 15, 45, 80, 100, 179)),
        *((np.round(turned_corners(50, 40, 40, 10, turn)), True) for turn in (15, 45, 80)),
        *((turned_corners(50, 40, 40, 10, turn), False) for turn in (0, 90, 180, 270)),
        ([[10, 10], [50, 12], [60, 40], [5, 30]], False),
        ([[10, 10], [50, 20], [50, 40], [10, 30]], False),
        (OVAL, False),
        (TRIANGLE, False),
    ],
)
def test_a_polygon_is_an_oriented_box_by_its_geometry_alone(tmp_path, points, share):
    points = np.asarray(points, float).tolist()
    shapes = [shape("polygon", *points), shape("rectangle", [1, 2], [9, 8])]
    write_files(tmp_path, {"a.json": json.dumps({"imagePath": "a.png", "shapes": shapes})})
    draw(tmp_path, "a.png", size=(64, 96))
    (one,) = list_references("labelme", tmp_path)
    x, y = np.transpose(points)
    area = abs(np.dot(x, np.roll(y, -1)) - np.dot(np.roll(x, -1), y)) / 2
    assert one.boxes[0].area == pytest.approx(area) and one.boxes[1].area is None
    found = one.boxes[0].turned_share
    assert found == pytest.approx(area / ((max(x) - min(x)) * (max(y) - min(y)))) if share else found is None
    assert any("oriented boxes (1 of 2 objects)" in note for note in one.notes) == share
    (one,) = list_references("labelme", tmp_path, oriented_boxes="drop")
    assert [reason for reason, _ in one.bad_objects] == ["box is oriented"] * share


def test_pictures_are_found_by_names_splits_by_folders_and_faults_listed(tmp_path):
    draw(tmp_path, *(f"train/img/{name}.png" for name in "abcd"), "val/img/e.png", size=(64, 96))
    named = {"train/a": "..\\train\\img\\a.png", "train/img/b": "gone.png", "val/e": "/home/val/img/e.png"}
    named |= {"train/c": "img/d.png", "train/d": "img/d.png", "val/other": None}
    shapes = [shape("rectangle", [1, 2], [9, 8])]
    files = {f"{file}.json": {"imagePath": name, "shapes": shapes} for file, name in named.items()}
    files["val/other.json"].pop("shapes")
    write_files(tmp_path, {name: json.dumps(one) for name, one in files.items()} | {"val/f.json": "{"})
    shared, box = "several annotations name one image", [("hat", 1, 2, 9, 8)]
    found = list_references("labelme", tmp_path)
    assert [len(one.notes) for one in found] == [0, 1, 0, 0, 0, 0, 1]
    assert [(one.source, one.split, told(one)) for one in found] == [
        ("train/img/a.png", "train", box),
        ("train/img/b.png", "train", box),
        ("train/img/c.png", "train", "image has no annotation"),
        ("train/img/d.png", "train", shared),
        ("train/img/d.png", "train", shared),
        ("val/f.json", "val", "malformed JSON"),
        ("val/img/e.png", "val", box),
    ]
    with pytest.raises(AnnotationsError, match=r"other.json: expected a JSON file of labelme"):
        list_references("labelme", tmp_path, "val/other.json")


def test_tracks_of_cvat_are_the_boxes_of_frames_and_subsets_are_splits(tmp_path):
    def track(*frames):
        box = '<box frame="{}" outside="{}" xtl="1" ytl="2" xbr="9" ybr="8" occluded="1"/>'
        return '<track label="hat">' + "".join(box.format(*one) for one in frames) + "</track>"

    meta = "<meta><task><start_frame>0</start_frame><stop_frame>8</stop_frame>"
    meta += "<frame_filter>step=2</frame_filter></task></meta>"
    video = f"<annotations>{meta}{track((0, 0), (2, 0), (4, 1))}{track((2, 0))}</annotations>"
    names = [f"v/images/frame_{number:06}.PNG" for number in (0, 2, 4, 6)]
    draw(tmp_path, *names, "w/images/Val/b.png", "w/images/frame_000001.jpg", size=(64, 96))
    project = XML.format(track((0, 0), (2, 1)), "").replace('name="a', 'subset="Val" name="b')
    write_files(tmp_path, {"v/annotations.xml": video, "w/annotations.xml": project})
    listed = list_references("cvat", tmp_path)
    assert {one.group for one in listed} == {None, "v/annotations.xml", "w/annotations.xml"}
    boxes = [("hat", 1, 2, 9, 8)]
    assert {one.source: (one.split, told(one)) for one in listed} == {
        **dict(zip(names, [("train", many) for many in (boxes, boxes * 2, [], [])], strict=True)),
        "w/images/Val/b.png": ("Val", []),
        "w/images/frame_000001.jpg": ("train", boxes),
        "w/annotations.xml#frame_000000": ("train", "image file not found"),
    }


def test_labels_of_kitti_belong_to_the_images_of_their_folder_and_dont_care_is_no_object(tmp_path):
    draw(tmp_path, "training/image_2/1.png", "training/image_3/1.png", size=(64, 96))
    rows = [f"{one} -10 1 2 9 8{' -1' * 7}" for one in ("Car 0 3", "Van 0.2 2", "DontCare -1 -1")]
    write_files(tmp_path, {"training/label_2/1.txt": "\n".join(rows), "training/calib/1.txt": "P0: 1 0\n"})
    (one, other) = list_references("kitti", tmp_path)
    assert told(one) == [("Car", 1, 2, 9, 8), ("Van", 1, 2, 9, 8)] and one.split == "training" and one.notes
    assert [(box.occluded, box.truncated) for box in one.boxes] == [(False, False), (True, True)]
    assert one.ignored_regions == ((2, 1, 8, 9),)
    assert (other.source, told(other)) == ("training/image_3/1.png", "image has no annotation")


def test_exports_of_via_in_every_form_are_the_same_and_an_ambiguous_class_is_refused(tmp_path):
    draw(tmp_path, "a.png", "b.png", size=(64, 96))
    one = {"shape_attributes": CIRCLE, "region_attributes": {"color": "red", "Type": "hat"}}
    entries = {"b": {"filename": "b.png", "regions": []}, "a": {"filename": "a.png", "regions": [one]}}
    project = {"_via_img_metadata": entries | {"a": {"filename": "a.png", "regions": {"0": one}}}}
    cells = ",".join('"' + json.dumps(part).replace('"', '""') + '"' for part in one.values())
    table = f"#filename,region_shape_attributes,region_attributes\na.png,{cells}\nb.png,{{}},{{}}\n"
    write_files(tmp_path, {"v.json": json.dumps(entries), "p.json": json.dumps(project), "v.csv": table})
    for name in ("v.json", "p.json", "v.csv", None):  # None: all three, which say the same
        found = list_references("via", tmp_path, name)
        assert [told(one) for one in found] == [[("hat", 15, 25, 25, 35)], []]
        assert [len(one.notes) for one in found] == [int(name is None)] * 2
    one["region_attributes"]["class"] = "cap"
    write_files(tmp_path, {"v.json": json.dumps(entries)})
    with pytest.raises(AnnotationsError, match=r"color, Type, class; rename the one of the class to class"):
        list_references("via", tmp_path, "v.json")
    with pytest.raises(AnnotationsError, match=r"v\.csv is VIA's .*take --layout via"):
        list_references("csv", tmp_path, "v.csv")


def test_tasks_of_label_studio_give_the_one_annotation_that_counts(tmp_path):
    draw(tmp_path, *(f"{name}.png" for name in "abcde"), size=(64, 96))
    box = result("rectanglelabels", "hat", **PERCENT)
    parts = [{**result("rectangle", **PERCENT), "id": "r"}, {**result("labels", "hat", x=10), "id": "r"}]
    used, cancelled = {"result": [box]}, {"result": [], "was_cancelled": True}
    tasks = [
        task("/data/upload/7/0123abcd-a%2Epng", cancelled, used),
        task("/data/local-files/?d=some/b.png", used, {"result": [], "ground_truth": True}),
        task("http://host/c.png?x=1", used, used),
        task("d.png", cancelled),
        task("e.png", {"result": [*parts, {"type": "choices", "value": {"choices": ["x"]}}]}),
        {"data": {"one": "a.png", "two": "b.png"}, "annotations": []},
    ]
    write_files(tmp_path, {"val.json": json.dumps(tasks)})
    boxes = [("hat", 0.1, 0.2, 0.4, 0.6)]
    assert {(one.source, one.split): told(one) for one in list_references("label-studio", tmp_path)} == {
        ("a.png", "val"): boxes,
        ("b.png", "val"): [],
        ("c.png", "val"): "task has several annotations",
        ("d.png", "val"): "image has no annotation",
        ("e.png", "val"): boxes,
        ("val.json", "val"): "task has no single picture",
    }


def test_pictures_without_faces_invalid_faces_and_lists_of_wider_face_that_do_not_add_up(tmp_path):
    name, faces = "s/wider_face_val_bbx_gt.txt", "1 2 8 6 2 0 0 1 2 0 \n10 10 5 5 0 0 0 0 0 0 \n"
    text = f"0--P/a.jpg\n0\n0 0 0 0 0 0 0 0 0 0 \n0--P/b.jpg\n2\n{faces}"
    pictures = [f"WIDER_{split}/images/0--P/{one}.jpg" for split in ("test", "val") for one in "ab"]
    write_files(tmp_path, {name: text, "s/readme.txt": "x", **dict.fromkeys(pictures, "x")})
    *unlisted, none, two = list_references("wider", tmp_path)
    assert [one.problem[1] for one in unlisted] == ["image has no annotation"] * 2
    assert (none.boxes, none.split, two.source) == ((), "val", pictures[3])
    assert told(two) == [("face", 1, 2, 9, 8), ("face", 10, 10, 15, 15)]
    assert [(box.difficult, box.occluded) for box in two.boxes] == [(True, True), (False, False)]
    for wrong, line in (("\n1\n", "line 7"), ("\n3\n", "line 7"), ("\nx\n", "line 4")):
        write_files(tmp_path, {name: text.replace("\n2\n", wrong)})
        with pytest.raises(AnnotationsError, match=f"no list of faces .{name}: {line}: "):
            list_references("wider", tmp_path)
