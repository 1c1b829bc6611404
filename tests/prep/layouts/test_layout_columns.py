"""Does a column that people write reach the record, is one that does not named, and is no box ever lost?"""

import json
from pathlib import Path
from typing import Any

import pytest

from halofeed.errors import AnnotationsError, UsageError
from halofeed.prep.annotations.columns import SPELLINGS
from halofeed.prep.layouts import SourceExample
from tests.support.annotation_writer import coco_of_one
from tests.support.layout_references import list_references, make


def read(root: Path, header: str, *rows: str, layout: str = "csv", **options: Any) -> list[SourceExample]:
    make(root, "a.jpg", "b.jpg")
    if layout == "csv":
        (root / "t.csv").write_text("\n".join([header, *rows]) + "\n")
    else:
        keys = header.split(",")
        lines = [json.dumps(dict(zip(keys, row.split(","), strict=True))) for row in rows]
        (root / "t.jsonl").write_text("\n".join(lines) + "\n")
    found = list_references(layout, root, f"t.{layout}", **options)
    return [one for one in found if one.problem is None or one.problem[0] != "selection"]


def corners(reference: SourceExample) -> list[tuple[float, ...]]:
    assert reference.boxes is not None and reference.problem is None, reference
    return [(box.xmin, box.ymin, box.xmax, box.ymax) for box in reference.boxes]


SPELLED = [
    *("filename,class,xmin,ymin,xmax,ymax", "file_name,label,x_min,y_min,x_max,y_max"),
    *("Image Path,Category,X1,Y1,X2,Y2", "image,label,x0,y0,x1,y1", "path,class_id,left,top,right,bottom"),
    *("FILE,cls,xtl,ytl,xbr,ybr", "image_name,class-name,bbox_xmin,bbox_ymin,bbox_xmax,bbox_ymax"),
    "img,category_name,Xmin,Ymin,Xmax,Ymax",
]


@pytest.mark.parametrize("layout", ["csv", "jsonl"])
@pytest.mark.parametrize("header", SPELLED)
def test_known_spellings_of_columns_are_taken(tmp_path, layout, header):
    (only,) = read(tmp_path, header, "a.jpg,hat,10,20,30,50", layout=layout)
    assert corners(only) == [(10, 20, 30, 50)] and only.boxes and only.boxes[0].label == "hat"
    assert only.notes == ()
    every = [spelling for ranks in SPELLINGS.values() for rank in ranks for spelling in rank]
    assert len(every) == len(set(every)), "no spelling stands under two columns"


@pytest.mark.parametrize("crowd", ["is_crowd", "iscrowd", "IsCrowd", "crowd"])
def test_cocos_spelling_of_a_crowd_is_taken(tmp_path, crowd):
    header = f"filename,class,xmin,ymin,xmax,ymax,{crowd},isDifficult,is_truncated,isOccluded"
    (only,) = read(tmp_path, header, "a.jpg,hat,10,20,30,50,1,1,1,1")
    (box,) = only.boxes or ()
    assert box.is_crowd and box.difficult and box.truncated and box.occluded


CORNERS = "xmin,ymin,xmax,ymax"
UNREAD = [  # columns of which those before the bar are named
    *("class,x,y,w,h|", "class,x,y|,width,height", "class,bbox|", "class,points|", "class,polygon|"),
    *("label,segmentation|", "class,cx,cy|", "class,x_centre,y_centre|", "class,left|,top,width,height"),
    *("class,bbox_x,bbox_y|,width,height", f"class,rotation|,{CORNERS}", f"class,polygon|,{CORNERS}"),
]


@pytest.mark.parametrize("layout", ["csv", "jsonl"])
@pytest.mark.parametrize("columns", UNREAD)
def test_columns_that_may_hold_boxes_are_refused_by_name_of_the_option(tmp_path, layout, columns):
    row = ",".join(["a.jpg", "hat", *["1"] * columns.count(",")])
    with pytest.raises(AnnotationsError) as caught:
        read(tmp_path, f"filename,{columns.replace('|', '')}", row, layout=layout)
    message = str(caught.value)
    assert "--box-form" in message or "no column" in message
    assert all(name in message for name in columns.partition("|")[0].split(",")[1:])


FORMS = [
    ("filename,class,x,y,w,h", "corner-size", "10,20,20,30"),
    ("filename,class,x,y,width,height", "corner-size", "10,20,20,30"),
    ("filename,class,xmin,ymin,w,h", "auto", "10,20,20,30"),
    ("filename,class,left,top,w,h", "auto", "10,20,20,30"),
    ("filename,class,left,top,w,h,a", "auto", "10,20,20,30,7"),
    ("filename,class,left,top,width,height", "corner-size", "10,20,20,30"),
    ("filename,class,x,y,w,h", "center-size", "20,35,20,30"),
    ("filename,class,x_center,y_center,w,h", "auto", "20,35,20,30"),
    ("filename,class,x_center,y_center,width,height", "center-size", "20,35,20,30"),
    ("filename,class,bbox", "corner-size", '"[10, 20, 20, 30]"'),
    ("filename,class,bbox", "corners", '"[10.0, 20.0, 30, 50]"'),
    ("filename,class,bbox", "center-size", "20 35 20 30"),
    ("filename,class,box", "corners", '"(10, 20, 30, 50)"'),
]


@pytest.mark.parametrize(("header", "form", "cells"), FORMS)
def test_other_ways_to_write_a_box_are_read_where_named_or_unambiguous(tmp_path, header, form, cells):
    (only,) = read(tmp_path, header, f"a.jpg,hat,{cells}", box_form=form)
    assert corners(only) == [(10, 20, 30, 50)] and only.declared_size is None


def test_lists_that_hold_a_box_are_read_as_their_form_says(tmp_path):
    make(tmp_path, "a.jpg")
    row = {"file_name": "a.jpg", "label": "hat", "bbox": [10, 20, 20, 30], "width": 100, "height": 90}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    (only,) = list_references("jsonl", tmp_path, "t.jsonl", box_form="corner-size")
    assert corners(only) == [(10, 20, 30, 50)] and only.declared_size == (90, 100)


def test_a_list_that_holds_no_box_is_a_bad_object(tmp_path):
    for cells in ('"[1, 2, 3]"', "wide", '"[1, 2, 3, ""x""]"', '"{""x"": 1}"'):
        (only,) = read(tmp_path, "filename,class,bbox", f"a.jpg,hat,{cells}", box_form="corners")
        assert only.boxes == () and [reason for reason, _ in only.bad_objects] == ["not a number"]


def test_columns_that_nothing_is_made_of_are_listed_and_can_be_left_out_by_name(tmp_path):
    header = "filename,class,xmin,ymin,xmax,ymax,color,camera"
    (only,) = read(tmp_path, header, "a.jpg,hat,1,2,3,4,red,left")
    assert only.notes == ("columns of t.csv that are not read: color, camera",)
    (scan,) = read(tmp_path, "image,label,color", "a.jpg,b.jpg,red", task="segmentation")
    assert scan.notes == ("columns of t.csv that are not read: color",)
    (only,) = read(tmp_path, "filename,class,x,y,w,h", "a.jpg,hat,1,2,3,4", task="classification")
    assert only.label == "hat" and only.boxes is None
    assert only.notes == ("columns of t.csv that are not read: x, y, w, h",)
    header, row = "filename,class,xmin,ymin,xmax,ymax,polygon,split", "a.jpg,hat,1,2,3,4,xx,test"
    (only,) = read(tmp_path, header, row, ignore_columns=("polygon", "Split"))
    assert corners(only) == [(1, 2, 3, 4)] and only.split == "train"
    with pytest.raises(UsageError, match="--ignore-columns poligon: no table has it; found filename"):
        read(tmp_path, header, row, ignore_columns=("polygon", "poligon"))


@pytest.mark.parametrize(
    "header", ["filename,label,category,xmin,ymin,xmax,ymax", "file,path,class,xmin,ymin,xmax,ymax"]
)
def test_two_columns_that_can_be_one_are_refused(tmp_path, header):
    with pytest.raises(AnnotationsError, match=r"both be (class|filename); rename .* --ignore-columns"):
        read(tmp_path, header, "a.jpg,hat,cap,1,2,3,4")


def coco(root: Path, *boxes: list[float], **more: Any) -> None:
    (root / "a.jpg").write_bytes(b"x")
    sized = [{"id": 1, "file_name": "a.jpg", "height": 100, "width": 100}]
    (root / "instances.json").write_text(
        json.dumps(coco_of_one(*({"bbox": box, **more} for box in boxes), images=sized))
    )


def read_coco(root: Path, **options: Any) -> SourceExample:
    (only,) = list_references("coco", root, **options)
    return only


@pytest.mark.parametrize("key", ["iscrowd", "is_crowd", "isCrowd", "crowd"])
def test_every_spelling_of_a_crowd_of_coco_is_taken(tmp_path, key):
    coco(tmp_path, [1, 2, 3, 4], **{key: 1})
    assert [box.is_crowd for box in read_coco(tmp_path).boxes or ()] == [True]


def test_outlines_corners_and_other_modes_under_cocos_name_are_refused_by_name_of_the_option(tmp_path):
    coco(tmp_path, [1, 2, 3, 4], score=0.5, attributes={"worn": True})
    assert read_coco(tmp_path).notes == (
        "keys of annotations in instances.json that are not read: attributes, score",
    )
    coco(tmp_path, [1, 2, 3, 4], rotation=30)
    assert corners(read_coco(tmp_path, ignore_columns=("rotation",))) == [(1, 2, 4, 6)]
    coco(tmp_path, [60, 70, 90, 95], [10, 20, 30, 50])
    with pytest.raises(AnnotationsError, match=r"1 of 2 bboxes leave their image.*--box-form corners"):
        read_coco(tmp_path)
    assert corners(read_coco(tmp_path, box_form="corners")) == [(60, 70, 90, 95), (10, 20, 30, 50)]
    assert corners(read_coco(tmp_path, box_form="corner-size"))[1] == (10, 20, 40, 70)
    coco(tmp_path, [60, 70, 30, 25], [10, 20, 20, 30])
    assert corners(read_coco(tmp_path)) == [(60, 70, 90, 95), (10, 20, 30, 50)]
    coco(tmp_path, [10, 20, 30, 50], bbox_mode=0)
    assert corners(read_coco(tmp_path, box_form="corners")) == [(10, 20, 30, 50)]
