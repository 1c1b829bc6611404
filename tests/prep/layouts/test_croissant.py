"""The records of Croissant documents are the pictures, classes and boxes that mlcroissant reads."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from halofeed.errors import AnnotationsError
from halofeed.prep.layouts import SourceExample
from tests.support.croissant_sets import (
    IMAGE,
    PICTURES,
    SETS,
    document,
    field,
    file_object,
    file_set,
    joined,
    of_column,
    of_files,
    record_set,
)
from tests.support.layout_references import detected, list_references, write_files


def read(root: Path, **options: Any) -> list[SourceExample]:
    found = list_references("croissant", root, **options)
    assert all(one.problem is None for one in found), [one.problem for one in found]
    return found


@pytest.mark.parametrize("kind", SETS)
def test_pictures_classes_and_splits_are_those_of_the_records(tmp_path, kind):
    SETS[kind](tmp_path)
    found = read(tmp_path)
    files = write_files(tmp_path, {})
    assert {(files.read(one.source), one.label, one.split) for one in found} == {
        (data, "cat" if number % 2 else "dog", "train" if number < 3 else "test")
        for number, data in enumerate(PICTURES.values())
    }
    assert detected(tmp_path) == "croissant"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("kind", SETS)
def test_mlcroissant_reads_the_same_records(tmp_path, kind):
    croissant = pytest.importorskip("mlcroissant")
    SETS[kind](tmp_path)
    (path,) = tmp_path.glob("*.json")
    files = write_files(tmp_path, {})
    ours = []
    for one in read(tmp_path):
        pixels = cv2.imdecode(np.frombuffer(files.read(one.source), np.uint8), cv2.IMREAD_COLOR)
        ours.append((int(pixels[0, 0, 0]), one.label, one.split))
    theirs = [
        (
            int(np.asarray(row["images/image"])[0, 0, 0]),
            row["images/label"].decode(),
            row["images/split"].decode(),
        )
        for row in croissant.Dataset(str(path)).records("images")
    ]
    assert sorted(ours) == sorted(theirs)


def test_classes_of_an_enumeration_boxes_in_a_format_and_splits_by_reference(tmp_path):
    table = b"file,class_id,box,part\np0.png,1,1 2 8 6,t\np1.png,0,2 2 4 4,v\np0.png,0,3 3 2 2,t\n"
    classes = record_set(
        "classes",
        field("classes/id", "sc:Integer"),
        field("classes/name", "sc:Text"),
        dataType="sc:Enumeration",
        key={"@id": "classes/id"},
        data=[{"classes/id": 0, "classes/name": "coat"}, {"classes/id": 1, "classes/name": "hat"}],
    )
    splits = record_set(
        "splits",
        field("splits/name", "sc:Text"),
        dataType="cr:Split",
        data=[{"splits/name": "t"}, {"splits/name": "v"}],
    )
    join = {"fileObject": {"@id": "t.csv"}, "extract": {"column": "file"}}
    records = record_set(
        "images",
        IMAGE,
        field("images/name", "sc:Text", of_files("pictures", "filename"), references=join),
        field("images/label", "sc:Integer", of_column("t.csv", "class_id"), references={"@id": "classes/id"}),
        field("images/part", "sc:Text", of_column("t.csv", "part"), references={"@id": "splits/name"}),
        field("images/bbox", "cr:BoundingBox", of_column("t.csv", "box", format="XYWH")),
    )
    files = [file_object("t.csv", table, "text/csv"), file_set("pictures", "*.png", "image/png")]
    pictures = {name: PICTURES[name] for name in ("p0.png", "p1.png")}
    contents = {"t.csv": table, "c.json": document(files, [classes, splits, records]), **pictures}
    write_files(tmp_path, contents)
    found = {one.source: one for one in read(tmp_path)}
    boxes = {
        name: [(box.label, box.xmin, box.ymin, box.xmax, box.ymax) for box in one.boxes or ()]
        for name, one in found.items()
    }
    assert boxes == {"p0.png": [("hat", 1, 2, 9, 8), ("coat", 3, 3, 5, 5)], "p1.png": [("coat", 2, 2, 6, 6)]}
    assert {name: one.split for name, one in found.items()} == {"p0.png": "t", "p1.png": "v"}
    write_files(tmp_path, {"c.json": contents["c.json"].replace('"XYWH"', '"XYZ"')})  # type: ignore[union-attr]
    with pytest.raises(AnnotationsError, match=r"field images/bbox: expected a format of its box.*got XYZ"):
        read(tmp_path)


@pytest.mark.parametrize("form", ["XYXY", "XYWH", "CENTER_XYWH", "YXYX", "REL_XYXY", "REL_YXYX"])
def test_each_format_of_a_box_has_the_same_corners(tmp_path, form):
    width, height = (30, 20) if form.startswith("REL_") else (1, 1)
    xmin, ymin, xmax, ymax = 3 / width, 4 / height, 9 / width, 10 / height
    numbers = {
        "XYXY": (xmin, ymin, xmax, ymax),
        "XYWH": (xmin, ymin, xmax - xmin, ymax - ymin),
        "CENTER_XYWH": ((xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin),
        "YXYX": (ymin, xmin, ymax, xmax),
    }[form.removeprefix("REL_")]
    rows = json.dumps({"file": "p0.png", "label": "hat", "box": numbers}).encode() + b"\n"
    records = record_set(
        "images",
        field("images/image", "sc:ImageObject", of_column("t.jsonl", "file")),
        field("images/label", "sc:Text", of_column("t.jsonl", "label")),
        field("images/box", "cr:BoundingBox", of_column("t.jsonl", "box", format=form)),
    )
    files = [file_object("t.jsonl", rows, "application/jsonlines")]
    write_files(
        tmp_path, {"t.jsonl": rows, "c.json": document(files, [records]), "p0.png": PICTURES["p0.png"]}
    )
    (only,) = read(tmp_path)
    (box,) = only.boxes or ()
    # Shares become pixels once the size of the picture is read.
    assert np.allclose((box.xmin, box.ymin, box.xmax, box.ymax), (xmin, ymin, xmax, ymax))


def test_masks_are_label_images(tmp_path):
    records = record_set(
        "images",
        field("images/image", "sc:ImageObject", of_column("t.csv", "file")),
        field("images/mask", "sc:ImageObject", of_column("t.csv", "mask")),
    )
    records["field"][1]["dataType"] = ["sc:ImageObject", "cr:SegmentationMask"]
    table = b"file,mask\np0.png,m0.png\n"
    files = [file_object("t.csv", table, "text/csv")]
    pictures = {"p0.png": PICTURES["p0.png"], "m0.png": PICTURES["p1.png"]}
    write_files(tmp_path, {"t.csv": table, "c.json": document(files, [records]), **pictures})
    (only,) = list_references("croissant", tmp_path, task="segmentation")
    assert (only.source, only.mask, only.problem) == ("p0.png", "m0.png", None)


def test_files_that_are_not_there_and_what_is_unclear_are_named_with_a_way(tmp_path):
    joined(tmp_path)
    path = tmp_path / "metadata.json"
    text = path.read_text()
    faults = {
        '"1.0.0"': ('"1.0.0"', ""),
        "pics/*.png": (
            "else/*.png",
            r"pictures: no file else/\*\.png lies below .*; download the data set there",
        ),
        "croissant/1.1": ("croissant/0.8", r"conformsTo: expected Croissant 1\.0 or 1\.1, got 0\.8"),
        '"filename"': ('"lines"', r"fileProperty 'lines' is not read; expected content, fullpath, filename"),
        '"regex"': ('"replace"', "transform replace is not read"),
        "sc:ImageObject": ("sc:Text", "no record set has a field of the type sc:ImageObject; found images"),
        '"column": "name"}}': ('"column": "name"}, "x": 1}', ""),
    }
    for old, (new, words) in faults.items():
        assert old in text, old
        path.write_text(text.replace(old, new))
        if words:
            with pytest.raises(AnnotationsError, match=words):
                read(tmp_path)
        else:
            assert len(read(tmp_path)) == 4
    path.write_text(text.replace('"references"', '"remarks"'))
    with pytest.raises(AnnotationsError, match=r"nothing joins pictures with labels\.csv; add references"):
        read(tmp_path)
    path.write_text(text[:-20])
    with pytest.raises(AnnotationsError, match=r"metadata\.json: not readable as JSON"):
        read(tmp_path)
    write_files(tmp_path, {"metadata.json": text, "other.json": text})
    with pytest.raises(
        AnnotationsError, match=r"several files of Croissant: metadata\.json, other\.json; name"
    ):
        read(tmp_path)
    assert len(list_references("croissant", tmp_path, "other.json")) == 4


def test_one_of_several_record_sets_is_named_by_its_field(tmp_path):
    joined(tmp_path)
    path = tmp_path / "metadata.json"
    found = json.loads(path.read_text())
    other = json.loads(
        json.dumps(found["recordSet"][0]).replace("images/", "again/").replace('"images"', '"again"')
    )
    found["recordSet"].append(other)
    path.write_text(json.dumps(found))
    with pytest.raises(
        AnnotationsError, match=r"several record sets .* images, again; .* --column image=images/image"
    ):
        read(tmp_path)
    assert len(read(tmp_path, column=("image=again/image",))) == 4


def test_pictures_inside_an_archive_are_read_where_it_was_unpacked_or_the_command_is_said(tmp_path):
    archive = file_object("data.zip", b"PK\x03\x04", "application/zip")
    pictures = file_set("pictures", "pics/*.png", "image/png", containedIn={"@id": "data.zip"})
    label = field("images/label", "sc:Text", of_files("pictures", "filename", "p(.)"))
    text = document([archive, pictures], [record_set("images", IMAGE, label)])
    write_files(tmp_path, {"c.json": text, "data.zip": b"PK\x03\x04"})
    with pytest.raises(
        AnnotationsError, match=r"pics/\*\.png is inside data\.zip; unpack .* unzip .*data\.zip -d"
    ):
        read(tmp_path)
    write_files(tmp_path, {f"data/pics/{name}": data for name, data in PICTURES.items()})
    assert [one.label for one in read(tmp_path)] == ["0", "1", "2", "3"]
