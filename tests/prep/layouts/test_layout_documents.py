"""Files of annotation tools: what a picture has, and what an object of each tool becomes."""

import base64
import csv
import io
import json
import math
import zlib

import pytest
from PIL import Image

from halofeed.errors import AnnotationsError
from halofeed.prep.layouts import LAYOUTS
from tests.support.annotation_writer import draw
from tests.support.layout_references import list_references, write_files


def png(width, height):
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


def told(one):
    """The reason of a problem, or the boxes (label, xmin, ymin, xmax, ymax) and the reasons of bad objects."""
    if one.problem:
        return one.problem[1]
    boxes = [(b.label, *(round(side, 3) for side in (b.xmin, b.ymin, b.xmax, b.ymax))) for b in one.boxes]
    return boxes + [reason for reason, _ in one.bad_objects]


def labelme(*shapes, **more):
    return {"imagePath": "a.png", "imageHeight": 64, "imageWidth": 96, "shapes": list(shapes), **more}


def shape(kind, *points, label="hat", **more):
    return {"label": label, "shape_type": kind, "points": list(points), **more}


def region(attributes=None, **shape_attributes):
    attributes = {"kind": "hat"} if attributes is None else attributes
    return {"shape_attributes": shape_attributes, "region_attributes": attributes}


def result(kind, labels=("hat",), **value):
    return {"type": kind, "value": {kind: list(labels), **value}}


def task(image, *annotations):
    return {"data": {"image": image}, "annotations": list(annotations), "predictions": [{"result": [1]}]}


def figure(kind, *points, **more):
    points = {"exterior": list(points), "interior": []}
    return {"classTitle": "hat", "geometryType": kind, "points": points, "tags": [{"value": 0.5}], **more}


BITMAP = base64.b64encode(zlib.compress(png(7, 5))).decode()
NO_BOX = "shape is no box"
TRIANGLE = [[1, 2], [9, 2], [5, 8]]
CAR = ("car", (10, 8, 40, 30))
TRAIN = [f"train/t{number}.jpg" for number in range(3)]
CASES = {
    "labelme": (["a.jpg"], *CAR, "displayed"),
    "cvat": (["images/a.jpg"], *CAR, "displayed"),
    "createml": (TRAIN, "a", CAR[1], None),
    "label-studio": (["a.jpg"], "car", (0.104, 0.125, 0.414, 0.465), "displayed"),
    "supervisely": (["ds0/img/a.jpg"], "car", (10, 8, 41, 31), None),
    "via": (TRAIN, "a", CAR[1], None),
    "kitti": (["training/image_2/000001.png"], "Car", CAR[1], None),
}
XML = '<annotations>{}<image id="0" name="a.png" width="96" height="64">{}</image></annotations>'


@pytest.mark.parametrize("case", CASES)
def test_the_files_of_each_tool_give_the_box_that_was_drawn(test_data, case):
    names, label, box, grid = CASES[case]
    found = list_references(case, test_data / "cases" / case.replace("-", "_"))
    assert {one.source: told(one) for one in found} == {name: [(label, *box)] for name in names}
    assert {one.grid for one in found} == {grid}
    for layout in LAYOUTS.keys() - {case}:
        with pytest.raises(AnnotationsError, match=f"(?s)take --layout {case}"):
            list_references(layout, test_data / "cases" / case.replace("-", "_"))


OBJECTS = [
    ("labelme", shape("rectangle", [9, 8], [1, 2]), (1, 2, 9, 8)),
    ("labelme", shape("rectangle", [1, 2], [9, 2], [9, 8], [1, 8]), (1, 2, 9, 8)),
    ("labelme", shape("rectangle", [1, 2], [9, 3], [9, 8], [1, 8]), "shape has no 2 points"),
    ("labelme", shape(None, *TRIANGLE), (1, 2, 9, 8)),
    ("labelme", shape("polygon", [1, 2], [3, 4]), "polygon has fewer than 3 points"),
    ("labelme", shape("circle", [20, 20], [23, 24]), (15, 15, 25, 25)),
    (
        "labelme",
        shape("mask", [3, 4], [9.4, 8], mask=base64.b64encode(png(7, 5)).decode()),
        (3, 4, 10, 9),
    ),
    ("labelme", shape("mask", [3, 4], [9, 8], mask="no"), "bitmap is no PNG"),
    ("labelme", shape("point", [3, 4]), NO_BOX),
    ("labelme", shape("linestrip", *TRIANGLE), NO_BOX),
    ("labelme", shape("star", *TRIANGLE), NO_BOX),
    ("labelme", shape("polygon", [1, 2], [3, math.nan], [5, 6]), "number is not finite"),
    ("labelme", shape("polygon", *TRIANGLE, label=" "), "box has no class"),
    ("labelme", [], "shape is no object"),
    ("cvat", '<polygon label="hat" points="1,2;9,2;5,8"/>', (1, 2, 9, 8)),
    ("cvat", '<polygon label="hat" points="1,2;9"/>', "points are no list of [x, y]"),
    ("cvat", '<ellipse label="hat" cx="20" cy="30" rx="8" ry="4" rotation="90"/>', (16, 22, 24, 38)),
    ("cvat", '<mask label="hat" rle="1, 2" left="3" top="4" width="7" height="5"/>', (3, 4, 10, 9)),
    ("cvat", '<box label="hat" xtl="1" ytl="2" xbr="9" ybr="8" rotation="30"/>', "box is rotated"),
    ("cvat", '<box label="hat" xtl="1" ytl="2" xbr="9" ybr="8" rotation="180"/>', (1, 2, 9, 8)),
    ("cvat", '<box label="hat" xtl="1" ytl="2" xbr="9"/>', "not a number"),
    ("cvat", '<skeleton label="hat"><points label="1" points="1,2"/></skeleton>', NO_BOX),
    ("cvat", '<cuboid label="hat" xtl1="1"/>', NO_BOX),
    ("createml", {"label": "hat", "coordinates": {"x": 5, "y": 5, "width": 8, "height": 6}}, (1, 2, 9, 8)),
    ("createml", {"label": "hat", "coordinates": {"x": 5, "y": 5, "width": 8}}, "not a number"),
    (
        "createml",
        {"label": "hat", "coordinates": {"x": 5, "y": 5, "width": -8, "height": 6}},
        "box is inverted",
    ),
    ("createml", {"label": "hat"}, "object has no box"),
    ("via", region(name="rect", x=1, y=2, width=8, height=6), (1, 2, 9, 8)),
    ("via", region(name="polygon", all_points_x=[1, 9, 5], all_points_y=[2, 2, 8]), (1, 2, 9, 8)),
    ("via", region(name="polygon", all_points_x=[1, 9, 5], all_points_y=[2, 2]), "points are no two lists"),
    ("via", region(name="circle", cx=20, cy=30, r=5), (15, 25, 25, 35)),
    ("via", region(name="circle", cx=20, cy=30, r=-5), "box is inverted"),
    ("via", region(name="ellipse", cx=20, cy=30, rx=8, ry=4, theta=math.pi / 2), (16, 22, 24, 38)),
    ("via", region(name="point", cx=20, cy=30), NO_BOX),
    (
        "via",
        region({"kind": {"hat": True, "cap": False}}, name="circle", cx=20, cy=30, r=5),
        (15, 25, 25, 35),
    ),
    (
        "via",
        region({"kind": {"hat": True, "cap": True}}, name="circle", cx=20, cy=30, r=5),
        "box has no class",
    ),
    ("via", region({}, name="circle", cx=20, cy=30, r=5), "box has no class"),
    ("label-studio", result("rectanglelabels", x=10, y=20, width=30, height=40), (0.1, 0.2, 0.4, 0.6)),
    ("label-studio", result("rectanglelabels", x=10, y=20, width=9, height=9, rotation=5), "box is rotated"),
    ("label-studio", result("polygonlabels", points=[[10, 20], [90, 20], [50, 80]]), (0.1, 0.2, 0.9, 0.8)),
    ("label-studio", result("keypointlabels", x=10, y=20, width=1), NO_BOX),
    ("label-studio", result("ellipselabels", x=10, y=20, radiusX=1, radiusY=2), NO_BOX),
    ("label-studio", result("labels", ["hat", "cap"], points=[]), "object has several classes"),
    ("label-studio", result("rectangle", [], x=10, y=20, width=30, height=40), "box has no class"),
    ("supervisely", figure("rectangle", [8, 2], [1, 7]), (1, 2, 9, 8)),
    ("supervisely", figure("rectangle", [8.5, 2], [1, 7]), (1, 2, 8.5, 7)),
    ("supervisely", figure("polygon", *TRIANGLE), (1.5, 2.5, 9.5, 8.5)),
    ("supervisely", figure("bitmap", bitmap={"origin": [3, 4], "data": BITMAP}), (3, 4, 10, 9)),
    ("supervisely", figure("bitmap", bitmap={"origin": [3, 4], "data": "eA=="}), "bitmap is no PNG"),
    ("supervisely", figure("line", *TRIANGLE), NO_BOX),
    ("kitti", f"hat 0.5 1 -10 1 2 9 8{' 0' * 7}", (1, 2, 9, 8)),
    ("kitti", f"hat 0.5 1 -10 1 2 9 8{' 0' * 8}", "row is no object"),
    ("kitti", f"hat 0.5 1 -10 1 2 9 x{' 0' * 7}", "not a number"),
]


def document(layout, item, folder=""):
    """The files of one picture a.png with one object."""
    files = {
        "labelme": lambda: {"a.json": labelme(item)},
        "cvat": lambda: {"a.xml": XML.format("", item)},
        "kitti": lambda: {"a.txt": item},
        "supervisely": lambda: {"a.json": {"size": {"height": 64, "width": 96}, "objects": [item]}},
        "label-studio": lambda: {"t.json": [task("s3://bucket/dir/a.png", {"result": [item]})]},
        "via": lambda: {"v.json": {"a.png9": {"filename": "a.png", "regions": [item]}}},
        "createml": lambda: {"c.json": [{"imagefilename": "a.png", "annotation": [item]}]},
    }[layout]()
    return {folder + name: one if isinstance(one, str) else json.dumps(one) for name, one in files.items()}


@pytest.mark.parametrize(("layout", "item", "outcome"), OBJECTS)
def test_an_object_is_a_box_or_a_named_fault(tmp_path, layout, item, outcome):
    write_files(tmp_path, document(layout, item))
    draw(tmp_path, "a.png", size=(64, 96))
    (one,) = list_references(layout, tmp_path)
    expected = outcome if isinstance(outcome, str) else ("hat", *outcome)
    assert told(one) == [expected]


def test_parts_of_one_group_are_one_object_of_several_polygons(tmp_path):
    far = [[x + 50, y + 40] for x, y in TRIANGLE]
    parts = [shape("polygon", *points, group_id=1) for points in (TRIANGLE, far)]
    others = [shape("rectangle", [1, 2], [9, 8], group_id=1), shape("point", [1, 1], label="__ignore__")]
    write_files(tmp_path, {"a.json": json.dumps(labelme(*parts, *others))})
    draw(tmp_path, "a.png", size=(64, 96))
    (one,) = list_references("labelme", tmp_path)
    assert told(one) == [("hat", 1, 2, 59, 48), ("hat", 1, 2, 9, 8)] and len(one.notes) == 2
    (one,) = list_references("labelme", tmp_path, masks=True)
    assert one.boxes[0].mask == [[side for point in points for side in point] for points in (TRIANGLE, far)]
    assert told(one)[1:] == ["object has no segmentation"]


def test_pictures_are_found_by_names_splits_by_folders_and_faults_listed(tmp_path):
    draw(tmp_path, *(f"train/img/{name}.png" for name in "abcd"), "val/img/e.png", size=(64, 96))
    item = shape("rectangle", [1, 2], [9, 8])
    files = {
        "train/a.json": labelme(item, imagePath="..\\train\\img\\a.png"),
        "train/img/b.json": labelme(item, imagePath="gone.png"),
        "train/c.json": labelme(item, imagePath="img/d.png"),
        "train/d.json": labelme(item, imagePath="img/d.png"),
        "val/e.json": labelme(item, imagePath="/home/x/val/img/e.png", imageHeight=65),
        "val/other.json": {"imagePath": 3},
    }
    write_files(tmp_path, {name: json.dumps(one) for name, one in files.items()} | {"val/f.json": "{"})
    found = list_references("labelme", tmp_path)
    shared, box = "picture is annotated several times", [("hat", 1, 2, 9, 8)]
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
    def track(*frames, more=""):
        box = '<box frame="{}" outside="{}" xtl="1" ytl="2" xbr="9" ybr="8" occluded="1"/>'
        return f'<track label="hat" {more}>' + "".join(box.format(*one) for one in frames) + "</track>"

    meta = "<meta><task><start_frame>0</start_frame><stop_frame>8</stop_frame>"
    meta += "<frame_filter>step=2</frame_filter></task></meta>"
    video = f"<annotations>{meta}{track((0, 0), (2, 0), (4, 1))}{track((2, 0))}</annotations>"
    names = [f"v/images/frame_{number:06}.PNG" for number in (0, 2, 4, 6)]
    draw(tmp_path, *names, "w/images/Val/b.png", "w/images/frame_000001.jpg", size=(64, 96))
    project = XML.format(track((0, 0), (2, 1)), "").replace('name="a', 'subset="Val" name="b')
    write_files(tmp_path, {"v/annotations.xml": video, "w/annotations.xml": project})
    listed = list_references("cvat", tmp_path)
    found = {one.source: (one.split, told(one)) for one in listed}
    assert {one.group for one in listed} == {None, "v/annotations.xml", "w/annotations.xml"}
    boxes = [("hat", 1, 2, 9, 8)]
    assert found == {
        **dict(zip(names, [("train", many) for many in (boxes, boxes * 2, [], [])], strict=True)),
        "w/images/Val/b.png": ("Val", []),
        "w/images/frame_000001.jpg": ("train", "track has no box on a frame"),
        "w/annotations.xml#frame_000000": ("train", "image file not found"),
        "w/annotations.xml#frame_000002": ("train", "image file not found"),
    }


def test_labels_of_kitti_belong_to_the_images_of_their_folder_and_dont_care_is_no_object(tmp_path):
    draw(
        tmp_path,
        *(f"training/image_{camera}/1.png" for camera in (2, 3)),
        "testing/image_2/2.png",
        size=(64, 96),
    )
    rows = [
        f"{name} {flags} -10 1 2 9 8{' -1' * 7}"
        for name, flags in [("Car", "0 3"), ("Van", "0.2 2"), ("DontCare", "-1 -1")]
    ]
    write_files(tmp_path, {"training/label_2/1.txt": "\n".join(rows), "training/calib/1.txt": "P0: 1 0\n"})
    found = list_references("kitti", tmp_path)
    no_label = "image has no annotation"
    assert {one.source: told(one) for one in found} == {
        "testing/image_2/2.png": no_label,
        "training/image_2/1.png": [("Car", 1, 2, 9, 8), ("Van", 1, 2, 9, 8)],
        "training/image_3/1.png": no_label,
    }
    assert [(box.occluded, box.truncated) for box in found[1].boxes] == [(False, False), (True, True)]
    assert found[1].split == "training" and found[1].notes


def test_exports_of_via_in_every_form_are_the_same_and_an_ambiguous_class_is_refused(tmp_path):
    draw(tmp_path, "a.png", "b.png", size=(64, 96))
    regions = [region({"color": "red", "Type": "hat"}, name="circle", cx=20, cy=30, r=5)]
    entries = {
        name: {"filename": f"{name}.png", "regions": many} for name, many in (("a", regions), ("b", []))
    }
    rows = [["#filename", "region_count", "region_shape_attributes", "region_attributes"]]
    rows += [["a.png", 1, *map(json.dumps, regions[0].values())], ["b.png", 0, "{}", "{}"]]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    numbered = {**entries, "a": {"filename": "a.png", "regions": {"0": regions[0]}}}
    for name, one in {
        "v.json": entries,
        "p.json": {"_via_img_metadata": numbered},
        "v.csv": text.getvalue(),
    }.items():
        write_files(tmp_path, {name: one if isinstance(one, str) else json.dumps(one)})
        found = list_references("via", tmp_path, name)
        assert [told(one) for one in found] == [[("hat", 15, 25, 25, 35)], []]
    regions[0]["region_attributes"]["class"] = "cap"
    write_files(tmp_path, {"v.json": json.dumps(entries | {"c": {"filename": "c.png", "regions": 3}})})
    with pytest.raises(
        AnnotationsError, match="attributes color, Type, class; rename the one of the class to class"
    ):
        list_references("via", tmp_path, "v.json")
    with pytest.raises(AnnotationsError, match=r"v\.csv is VIA's .*take --layout via"):
        list_references("csv", tmp_path, "v.csv")


def test_tasks_of_label_studio_give_the_one_annotation_that_counts(tmp_path):
    draw(tmp_path, *(f"{name}.png" for name in "abcdef"), size=(64, 96))
    box = result("rectanglelabels", x=10, y=20, width=30, height=40)
    parts = [{**result("rectangle", [], **box["value"]), "id": "r"}, {**result("labels", x=10), "id": "r"}]
    used, cancelled = {"result": [box]}, {"result": [], "was_cancelled": True}
    tasks = [
        task("/data/upload/7/0123abcd-a%2Epng", cancelled, used),
        task("/data/local-files/?d=some/b.png", used, {"result": [], "ground_truth": True}),
        task("http://host/c.png?x=1", used, used),
        task("d.png", cancelled),
        task("e.png", {"result": [*parts, {"type": "choices", "value": {"choices": ["x"]}}]}),
        task("f.png", {"result": [{**box, "image_rotation": 90}]}),
        {"data": {"one": "a.png", "two": "b.png"}, "annotations": []},
    ]
    write_files(tmp_path, {"val.json": json.dumps(tasks)})
    found = {one.source: told(one) for one in list_references("label-studio", tmp_path)}
    boxes = [("hat", 0.1, 0.2, 0.4, 0.6)]
    assert found == {
        "a.png": boxes,
        "b.png": [],
        "c.png": "task has several annotations",
        "d.png": "image has no annotation",
        "e.png": boxes,
        "f.png": ["picture was turned in Label Studio"],
        "val.json": "task has no single picture",
    }
    assert {one.split for one in list_references("label-studio", tmp_path)} == {"val"}
