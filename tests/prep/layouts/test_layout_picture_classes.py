"""Annotations that give a picture a class and no place, in each layout that has them."""

import csv
import io
import json

import pytest

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.contract import LayoutOptions, as_listing
from halofeed.prep.layouts import find_layout
from halofeed.prep.sources.files import LocalFiles
from tests.support.annotation_writer import draw
from tests.support.layout_references import list_references, write_files

BOX = (10, 20, 40, 60)


def cvat(pictures):
    images = "".join(
        f'<image id="0" name="{name}" width="96" height="64">'
        + "".join(f'<tag label="{one}"/>' for one in classes)
        + "".join(f'<box label="{one}" xtl="10" ytl="20" xbr="40" ybr="60"/>' for one in boxes)
        + "</image>"
        for name, (classes, boxes) in pictures.items()
    )
    return {"a.xml": f"<annotations><version>1.1</version>{images}</annotations>"}


def label_studio(pictures):
    def task(name, classes, boxes):
        sides = {"x": 10, "y": 20, "width": 30, "height": 40}
        results = [{"type": "choices", "value": {"choices": classes}}] if classes else []
        results += [
            {"type": "rectanglelabels", "value": {**sides, "rectanglelabels": [one]}} for one in boxes
        ]
        return {"data": {"image": name}, "annotations": [{"result": results}]}

    return {"a.json": [task(name, *written) for name, written in pictures.items()]}


def labelme(pictures):
    def document(name, classes, boxes):
        points = [[10, 20], [40, 60]]
        shapes = [{"label": one, "shape_type": "rectangle", "points": points} for one in boxes]
        return {"imagePath": name, "shapes": shapes, "flags": dict.fromkeys(classes, True) | {"other": False}}

    return {f"{name[:-4]}.json": document(name, *written) for name, written in pictures.items()}


def supervisely(pictures):
    def document(classes, boxes):
        points = {"exterior": [[10, 20], [40, 60]], "interior": []}
        objects = [{"classTitle": one, "geometryType": "rectangle", "points": points} for one in boxes]
        return {
            "size": {"height": 64, "width": 96},
            "tags": [{"name": one} for one in classes],
            "objects": objects,
        }

    return {f"{name}.json": document(*written) for name, written in pictures.items()}


def createml(pictures):
    sides = {"x": 25, "y": 40, "width": 30, "height": 40}
    return {
        "a.json": [
            {
                "image": name,
                "annotations": [{"label": one, "coordinates": sides} for one in boxes]
                or [{"label": one} for one in classes],
            }
            for name, (classes, boxes) in pictures.items()
        ]
    }


def via_entries(pictures):
    shape = {"name": "rect", "x": 10, "y": 20, "width": 30, "height": 40}
    return [
        {
            "filename": name,
            "file_attributes": {"caption": name, "class": dict.fromkeys(classes, True)},
            "regions": [{"shape_attributes": shape, "region_attributes": {"class": one}} for one in boxes],
        }
        for name, (classes, boxes) in pictures.items()
    ]


def via(pictures):
    return {"a.json": {one["filename"]: one for one in via_entries(pictures)}}


def via_csv(pictures):
    columns = ("filename", "file_attributes", "region_shape_attributes", "region_attributes")
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(columns)
    for entry in via_entries(pictures):
        for one in entry["regions"] or [{"shape_attributes": {}, "region_attributes": {}}]:
            cells = (entry["file_attributes"], one["shape_attributes"], one["region_attributes"])
            rows.writerow([entry["filename"], *map(json.dumps, cells)])
    return {"a.csv": text.getvalue()}


def coco(pictures, **place):
    names = sorted({one for written in pictures.values() for part in written for one in part})
    images = [{"id": number, "file_name": name} for number, name in enumerate(pictures, start=1)]
    annotations = []
    for number, (classes, boxes) in enumerate(pictures.values(), start=1):
        annotations += [{"image_id": number, "category_id": names.index(one), **place} for one in classes]
        bbox = {"bbox": [10, 20, 30, 40]}
        annotations += [{"image_id": number, "category_id": names.index(one), **bbox} for one in boxes]
    annotations = [{"id": number, **one} for number, one in enumerate(annotations, start=1)]
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    return {"instances.json": {"images": images, "annotations": annotations, "categories": categories}}


def coco_with_empty_places(pictures):
    return coco(pictures, bbox=[], segmentation=[])


def table(pictures):
    rows = ["filename,class,xmin,ymin,xmax,ymax"]
    for name, (classes, boxes) in pictures.items():
        rows += [f"{name},{one},,,," for one in classes] + [f"{name},{one},10,20,40,60" for one in boxes]
        rows += [] if classes or boxes else [f"{name},,,,,"]
    return {"a.csv": "\n".join(rows)}


def voc(pictures):
    def document(name, classes, boxes):
        place = "<bndbox><xmin>10</xmin><ymin>20</ymin><xmax>40</xmax><ymax>60</ymax></bndbox>"
        objects = [f"<object><name>{one}</name></object>" for one in classes]
        objects += [f"<object><name>{one}</name>{place}</object>" for one in boxes]
        return f"<annotation><filename>{name}</filename>{''.join(objects)}</annotation>"

    return {f"{name[:-4]}.xml": document(name, *written) for name, written in pictures.items()}


WRITERS = {
    "cvat": cvat,
    "label-studio": label_studio,
    "labelme": labelme,
    "supervisely": supervisely,
    "createml": createml,
    "via": via,
    "via, csv": via_csv,
    "coco": coco,
    "coco, empty places": coco_with_empty_places,
}


def read(root, case, pictures, **options):
    written = (WRITERS | {"csv": table, "voc": voc})[case](pictures)
    draw(root, *pictures, size=(64, 96))
    write_files(
        root, {name: one if isinstance(one, str) else json.dumps(one) for name, one in written.items()}
    )
    listed = list_references(case.partition(",")[0], root, **options)
    return {one.source: one for one in listed if one.source in pictures}


@pytest.mark.parametrize("case", WRITERS)
def test_a_source_of_classes_alone_is_read_for_classification(tmp_path, case):
    pictures = {"1.png": (["cat"], []), "2.png": (["dog"], []), "3.png": (["cat"], [])}
    for task in (None, "classification"):
        found = read(tmp_path, case, pictures, task=task)
        assert {name: (one.label, one.boxes) for name, one in found.items()} == {
            "1.png": ("cat", None),
            "2.png": ("dog", None),
            "3.png": ("cat", None),
        }
    with pytest.raises(AnnotationsError, match="take --task classification"):
        read(tmp_path, case, pictures, task="detection")


@pytest.mark.parametrize("case", WRITERS)
def test_several_classes_are_a_choice_and_no_class_a_problem(tmp_path, case):
    pictures = {"1.png": (["cat", "dog"], []), "2.png": (["dog"], []), "3.png": ([], [])}
    found = read(tmp_path, case, pictures)
    assert "--several-classes keep" in found["1.png"].problem[2] and found["2.png"].label == "dog"
    assert found["3.png"].problem
    found = read(tmp_path, case, pictures, several_classes="keep")
    assert sorted(found["1.png"].labels) == ["cat", "dog"]


@pytest.mark.parametrize("case", [*WRITERS, "csv", "voc"])
def test_a_picture_with_a_class_and_without_its_box_is_no_picture_without_objects(tmp_path, case):
    pictures = {
        "boxed.png": ([], ["cat"]),
        "unboxed.png": (["cat"], []),
        "other.png": (["dog"], []),
        "empty.png": (["empty"], []),
        "free.png": (["frei"], []),
        "plain.png": ([], []),
    }
    found = read(tmp_path, case, pictures, empty_classes=("frei",))
    problems = {name: one.problem[1] for name, one in found.items() if one.problem}
    assert problems == dict.fromkeys(("unboxed.png", "other.png"), "picture has a class without a box")
    assert all(found[name].boxes == () for name in ("empty.png", "free.png", "plain.png"))
    assert "--empty-classes dog" in found["other.png"].problem[2]
    assert "--empty-classes" not in found["unboxed.png"].problem[2]
    assert not any(one.bad_objects for one in found.values())
    assert read(tmp_path, case, pictures)["free.png"].problem


@pytest.mark.parametrize("case", ["cvat", "label-studio", "labelme", "supervisely", "via", "via, csv"])
def test_a_tag_of_pictures_with_boxes_of_other_classes_is_an_attribute(tmp_path, case):
    pictures = {"1.png": (["night"], ["cat"]), "2.png": (["night"], []), "3.png": ([], ["cat"])}
    found = read(tmp_path, case, pictures)
    assert [len(found[name].boxes) for name in pictures] == [1, 0, 1]
    assert all("night" in found[name].notes[-1] for name in ("1.png", "2.png"))


def camera_traps(root, **options):
    """Pictures of two places: a cat with a box, a cat without one, an empty one, and one with a cat and a dog."""
    names = ("cat.png", "far.png", "empty.png", "both.png")
    classes = (("cat",), ("cat",), ("empty",), ("cat", "dog"))
    categories = {"empty": 0, "cat": 5, "dog": 9, "hare": 11}
    annotations = [
        {"image_id": name, "category_id": categories[one], **({"bbox": [10, 20, 30, 40]} if place else {})}
        for name, some, place in zip(names, classes, (True, False, False, True), strict=True)
        for one in some
    ]
    document = {
        "images": [{"id": name, "file_name": name, "location": name[0] < "e"} for name in names],
        "annotations": [{"id": number, **one} for number, one in enumerate(annotations)],
        "categories": [{"id": number, "name": name} for name, number in categories.items()],
    }
    draw(root, *names, size=(64, 96))
    write_files(root, {"camtrap.json": json.dumps(document)})
    return {one.source: one for one in list_references("coco", root, **options)}


def test_camera_traps_with_some_boxes_give_classes_or_boxes(tmp_path):
    found = camera_traps(tmp_path)
    assert {name: one.boxes and [box.label for box in one.boxes] for name, one in found.items()} == {
        "cat.png": ["cat"],
        "far.png": None,
        "empty.png": (),
        "both.png": ["cat", "dog"],
    }
    assert "--task classification" in found["far.png"].problem[2]
    found = camera_traps(tmp_path, task="classification")
    assert {name: one.label for name, one in found.items() if not one.problem} == {
        "cat.png": "cat",
        "far.png": "cat",
        "empty.png": "empty",
    }
    assert "--several-classes keep" in found["both.png"].problem[2]
    found = camera_traps(tmp_path, task="classification", several_classes="keep")
    assert found["both.png"].labels == ("cat", "dog") and found["empty.png"].labels == ("empty",)


def list_classes(layout, root, **options):
    """The classes that a layout returns, by their values."""
    files = LocalFiles(root)
    listing = as_listing(find_layout(layout).list_references(files, files, None, LayoutOptions(**options)))
    while True:
        try:
            next(listing)
        except StopIteration as end:
            return end.value()


def test_a_category_of_pictures_without_objects_is_no_class_of_objects(tmp_path):
    camera_traps(tmp_path)
    assert list_classes("coco", tmp_path) == {1: "cat", 2: "dog", 3: "hare"}
    assert list(list_classes("coco", tmp_path, task="classification").values()) == [
        "empty",
        "cat",
        "dog",
        "hare",
    ]


def test_a_coco_file_of_pictures_alone_does_not_stop_those_of_other_splits(tmp_path):
    pictures = {f"{number}.png": (["cat" if number % 2 else "dog"], []) for number in range(4)}
    (document,) = coco(pictures).values()
    draw(tmp_path, *pictures, "4.png", size=(64, 96))
    bare = {"images": [{"id": 9, "file_name": "4.png"}], "info": {}}
    write_files(tmp_path, {"train2019.json": json.dumps(document), "test2019.json": json.dumps(bare)})
    found = {one.source: one for one in list_references("coco", tmp_path)}
    assert [found[name].label for name in pictures] == ["dog", "cat", "dog", "cat"]
    assert found["4.png"].problem[1] == "image has no annotation"
    (tmp_path / "train2019.json").write_text(json.dumps(bare))
    with pytest.raises(AnnotationsError, match="annotations is no list"):
        list_references("coco", tmp_path)
