"""Do everyday mistakes with tables, paths and boxes end in what, where and the cure, before a record is written?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.mistakes.support import Mistake, check

HEADER = "filename,class,xmin,ymin,xmax,ymax"
Prepare = Callable[[Path], list[object]]


def draw(root: Path, *names: str) -> None:
    """Pictures 60 wide and 40 high."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 60, 3), 90, np.uint8)).save(root / name)


def table(
    text: str | bytes | Sequence[str],
    *more: object,
    name: str = "boxes.csv",
    pictures: Sequence[str] = ("a.png", "b.png"),
    layout: str = "csv",
) -> Prepare:
    """A table beside its pictures, given by its name."""

    def prepare(root: Path) -> list[object]:
        draw(root, *pictures)
        data = text if isinstance(text, bytes | str) else "".join(f"{line}\n" for line in text)
        (root / name).write_bytes(data.encode() if isinstance(data, str) else data)
        options = [str(option).replace("ROOT", str(root)) for option in more]
        return ["--layout", layout, "--source", root / name, *options]

    return prepare


def coco(*boxes: list[float], options: Sequence[object] = (), **changes: Any) -> Prepare:
    """Instances of one class on a.png."""
    document: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "a.png", "width": 60, "height": 40}],
        "annotations": [
            {"id": number, "image_id": 1, "category_id": 1, "bbox": box} for number, box in enumerate(boxes)
        ],
        "categories": [{"id": 1, "name": "hat"}],
    }
    return table(json.dumps({**document, **changes}), *options, name="instances.json", layout="coco")


def voc(*boxes: str, options: Sequence[object] = (), pictures: Sequence[str] = ("a.png",)) -> Prepare:
    """One XML file with these boxes, "xmin ymin xmax ymax" each."""

    def prepare(root: Path) -> list[object]:
        draw(root, *pictures)
        objects = ""
        for box in boxes:
            sides = zip(("xmin", "ymin", "xmax", "ymax"), box.split(), strict=True)
            corners = "".join(f"<{side}>{value}</{side}>" for side, value in sides)
            objects += f"<object><name>hat</name><bndbox>{corners}</bndbox></object>"
        text = f"<annotation><filename>a.png</filename>{objects}</annotation>"
        (root / "a.xml").write_text(text)
        return ["--layout", "voc", "--source", root, *options]

    return prepare


def rows(count: int, cells: str) -> list[str]:
    return [HEADER, *[f"a.png,hat,{cells}"] * count]


def in_another_folder(root: Path) -> list[object]:
    draw(root, "pictures/a.png", "other/z.png")
    (root / "boxes.csv").write_text(f"{HEADER}\na.png,hat,1,2,30,20\n")
    return ["--layout", "csv", "--source", root / "boxes.csv", "--images", root / "other"]


def images_are_missing(root: Path) -> list[object]:
    draw(root, "pictures/a.png")
    (root / "tables").mkdir()
    (root / "tables" / "boxes.csv").write_text(f"{HEADER}\na.png,hat,1,2,30,20\n")
    return ["--layout", "csv", "--source", root / "tables" / "boxes.csv"]


def images_is_an_archive(root: Path) -> list[object]:
    draw(root, "a.png")
    (root / "images.zip").write_bytes(b"PK\x03\x04")
    (root / "boxes.csv").write_text(f"{HEADER}\na.png,hat,1,2,30,20\n")
    return ["--layout", "csv", "--source", root / "boxes.csv", "--images", root / "images.zip"]


def outside_of_images(root: Path) -> list[object]:
    draw(root, "day1/a.png", "day2/z.png")
    (root / "boxes.csv").write_text(f"{HEADER}\n{root}/day1/a.png,hat,1,2,30,20\n")
    return ["--layout", "csv", "--source", root / "boxes.csv", "--images", root / "day2"]


def folder_without_table(root: Path) -> list[object]:
    draw(root, "a.png")
    return ["--layout", "csv", "--source", root]


def folders_swapped(root: Path) -> list[object]:
    draw(root, "pictures/a.png")
    (root / "tables").mkdir()
    (root / "tables" / "boxes.csv").write_text(f"{HEADER}\na.png,hat,1,2,30,20\n")
    return ["--layout", "csv", "--source", root / "pictures", "--images", root / "tables"]


def the_table_is_not_there(root: Path) -> list[object]:
    return ["--layout", "csv", "--source", root / "boxes.csv"]


NOTHING = "nothing was converted: all"
ROW = "a.png,hat,1,2,30,20"
SHARES = ["a.png,hat,0.1,0.1,0.5,0.5"]

MISTAKES = {
    # paths
    "the images of another folder": Mistake(
        prepare=in_another_folder,
        says=(
            NOTHING,
            "image file not found",
            r"boxes\.csv:2: 'a\.png' below",
            "folder is .*other; --images",
        ),
        exit_code=1,
    ),
    "no --images where the table lies apart": Mistake(
        prepare=images_are_missing,
        says=("no image file lies below .*tables", "name the folder that holds the images"),
        exit_code=1,
    ),
    "an archive for a folder": Mistake(
        prepare=images_is_an_archive, says=(r"images\.zip: no such folder; name the folder",)
    ),
    "absolute paths beside --images": Mistake(
        prepare=outside_of_images, says=("lies outside --images", "--images .* holds both"), exit_code=1
    ),
    "file names alone with --images /": Mistake(
        prepare=table([HEADER, ROW], "--images", "/"),
        says=("/: every file of this machine would be listed; name the folder",),
    ),
    "a folder of tables with --images /": Mistake(
        prepare=lambda root: [*table([HEADER, ROW])(root)[:3], root, "--images", "/"],
        says=("/: every file of this machine would be listed; name the folder",),
    ),
    "a folder without a table": Mistake(
        prepare=folder_without_table, says=("no .csv or .tsv file lies straight in it",), exit_code=1
    ),
    "--source and --images swapped": Mistake(
        prepare=folders_swapped, says=("pictures: no .csv or .tsv file", "name the table itself"), exit_code=1
    ),
    "a table that is not there": Mistake(
        prepare=the_table_is_not_there, says=(r"--source .*boxes\.csv: no such f",)
    ),
    "paths of a folder that is not there": Mistake(
        prepare=table(
            [HEADER, "cam1/a.png,hat,1,2,30,20", "cam2/a.png,hat,1,2,30,20"], pictures=["all/a.png"]
        ),
        says=(NOTHING, r"all/a\.png is the image of 'cam[12]/a\.png'"),
        exit_code=1,
    ),
    # what a table is
    "a spreadsheet for a table": Mistake(
        prepare=table(b"PK\x03\x04\x14\x00\x06\x00\x08\x00\xff\xfe", name="boxes.xlsx"),
        says=(r"boxes\.xlsx: ", "expected UTF-8 text|spreadsheet", "CSV|UTF-8"),
        exit_code=1,
    ),
    "a table saved as UTF-16": Mistake(
        prepare=table(f"{HEADER}\n{ROW}\n".encode("utf-16")),
        says=(r"boxes\.csv: expected UTF-8 text", "save it as UTF-8"),
        exit_code=1,
    ),
    "no header": Mistake(
        prepare=table(["a.png,1,2,30,20,hat", "b.png,1,2,30,20,hat"]),
        says=("no column filename, class", "found a.png, 1, 2", "expected filename,class"),
        exit_code=1,
    ),
    "COCO under --layout csv": Mistake(
        prepare=table('{"images": [], "annotations": [], "categories": []}', name="instances.json"),
        says=(r"instances\.json: no column filename", "expected filename,class"),
        exit_code=1,
    ),
    "a table under --layout coco": Mistake(
        prepare=table([HEADER, ROW], layout="coco"),
        says=(r"boxes\.csv: expected COCO instances as JSON",),
        exit_code=1,
    ),
    "one list for lines of JSON": Mistake(
        prepare=table('[{"filename": "a.png", "class": "hat"}]', name="boxes.jsonl", layout="jsonl"),
        says=(r"boxes\.jsonl:1: expected a JSON object, got list",),
        exit_code=1,
    ),
    # columns
    "x, y, w, h": Mistake(
        prepare=table(["filename,class,x,y,w,h", ROW]),
        says=("column x, y, w, h would not be read", "--box-form", "corner-size", "--ignore-columns x,y,w,h"),
        exit_code=1,
    ),
    "a bbox column": Mistake(
        prepare=table(["filename,class,bbox", 'a.png,hat,"[1, 2, 30, 20]"']),
        says=("column bbox would not be read", "--box-form"),
        exit_code=1,
    ),
    "a typo in a corner": Mistake(
        prepare=table(["filename,class,xmin,ymin,xmax,ymxa", ROW]),
        says=("no column ymax; found filename", "ymxa"),
        exit_code=1,
    ),
    "a typo in the class": Mistake(
        prepare=table(["filename,clas,xmin,ymin,xmax,ymax", ROW]),
        says=("no column class; found filename, clas",),
        exit_code=1,
    ),
    "two columns of classes": Mistake(
        prepare=table(["filename,label,category,xmin,ymin,xmax,ymax", "a.png,hat,cap,1,2,30,20"]),
        says=("label and category can both be class; rename one", "--ignore-columns category"),
        exit_code=1,
    ),
    "a column twice": Mistake(
        prepare=table(["filename,class,class", "a.png,hat,hat"]),
        says=("column class comes twice",),
        exit_code=1,
    ),
    "a misspelled column to ignore": Mistake(
        prepare=table([HEADER, ROW], "--ignore-columns", "color"),
        says=("--ignore-columns color: no table has it; found filename",),
    ),
    "a form of boxes that the table has not": Mistake(
        prepare=table([HEADER, ROW], "--box-form", "center-size"),
        says=("--box-form center-size needs columns x, y, w and h", "found filename, class, xmin"),
        exit_code=1,
    ),
    "classes only where boxes are asked for": Mistake(
        prepare=table(["filename,class", "a.png,hat"], "--task", "detection"),
        says=("no columns xmin,ymin,xmax,ymax", "detection needs one box a row"),
        exit_code=1,
    ),
    "masks without the task": Mistake(
        prepare=table(["image,label", "a.png,b.png"]),
        says=("no column filename", "image,label need --task segmentation"),
        exit_code=1,
    ),
    # rows
    "two classes of one picture": Mistake(
        prepare=table(["filename,class", "a.png,hat", "a.png,coat"]),
        says=("two values of class: 'hat' .*:2. and 'coat' .*:3.", "an image has one class"),
        exit_code=1,
    ),
    "two classes in one cell": Mistake(
        prepare=table(["filename,class", "a.png,hat", "b.png,coat", "c.png,hat|coat"]),
        says=(r"boxes\.csv:4: class 'hat\|coat' looks like 2 classes", r"--class-separator '\|', or none"),
        exit_code=1,
    ),
    "one picture in two splits": Mistake(
        prepare=table([f"{HEADER},split", f"{ROW},train", f"{ROW},test"]),
        says=("two values of split: 'train'", "one split"),
        exit_code=1,
    ),
    "commas for decimal points": Mistake(
        prepare=table([HEADER.replace(",", ";"), *["a.png;hat;1,5;2,5;30,5;20,5"] * 10]),
        says=("10 of 10 objects cannot be used", "not a number", "xmin is '1,5'", "correct the annotations"),
        exit_code=1,
    ),
    "corners that are exchanged": Mistake(
        prepare=table(rows(10, "30,20,1,2")),
        says=("10 of 10 objects cannot be used", "box is inverted", "x from 30 to 1"),
        exit_code=1,
    ),
    "width and height that are exchanged": Mistake(
        prepare=table([f"{HEADER},width,height", f"{ROW},40,60", "b.png,hat,1,2,30,20,40,60"]),
        says=(r"a\.png: annotations say 40 wide and 60 high", "exchange width and height"),
        exit_code=1,
    ),
    # numbers
    "boxes of 0 and 1 alone": Mistake(
        prepare=table(rows(1, "0,0,1,1")),
        says=("every box runs from 0 to 1", "--box-units pixels or --box-units normalized"),
        exit_code=1,
    ),
    "pixels said to be shares": Mistake(
        prepare=table(rows(10, "1,2,30,20"), "--box-units", "normalized"),
        says=("10 of 10 objects cannot be used", "--box-units normalized expects 0 to 1"),
        exit_code=1,
    ),
    "shares said to be pixels by a few rows": Mistake(
        prepare=table([HEADER, *SHARES * 20, "b.png,hat,1,2,30,20"]),
        says=("20 of 21 objects cannot be used", "box lies within the first pixel", "--box-units"),
        exit_code=1,
    ),
    "corners under COCO's bbox": Mistake(
        prepare=coco([31, 22, 55, 38], [3, 4, 20, 30]),
        says=("leave their image as x, y, width, height", "--box-form corners"),
        exit_code=1,
    ),
    "captions for instances": Mistake(
        prepare=coco(annotations=[{"id": 1, "image_id": 1, "category_id": 1, "caption": "a hat"}]),
        says=("no annotation has a bbox", "expected an instances file"),
        exit_code=1,
    ),
    "turned boxes in COCO": Mistake(
        prepare=coco(
            annotations=[{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9], "rotation": 30}]
        ),
        says=("annotations have rotation, which would not be read", "--ignore-columns rotation"),
        exit_code=1,
    ),
    "VOC that counts from 0": Mistake(
        prepare=voc("0 3 9 9", "12 8 24 36"),
        says=("1 of 2 boxes begin below 1, the first in a.png", "--box-origin 0"),
        exit_code=1,
    ),
    "an option of tables for VOC": Mistake(
        prepare=voc("1 3 9 9", options=["--box-form", "corners"]),
        says=("--box-form has no effect without --layout csv, jsonl or coco; add that, or leave it out",),
    ),
    "a grid of annotations for volumes": Mistake(
        prepare=table([HEADER, ROW], "--annotation-grid", "displayed", "--depth", "8"),
        says=("--annotation-grid has no effect without pictures, that is without --depth",),
    ),
    "VOC files whose pictures are elsewhere": Mistake(
        prepare=voc("1 3 9 9", pictures=["z.png"]),
        says=(NOTHING, "neither 'a.png' nor an image called 'a'"),
        exit_code=1,
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_with_tables_paths_or_boxes_ends_before_a_record_is_written(
    mistake: Mistake, tmp_path: Path
) -> None:
    check(mistake, tmp_path)
