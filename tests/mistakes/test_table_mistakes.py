"""Do everyday mistakes with tables, paths and boxes end in what, where and the cure, before a record is written?"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import annotation_writer
from tests.support.annotation_writer import boxed, voc_object, voc_text
from tests.support.mistakes import Prepare, check, preparing, refused, usage

draw = partial(annotation_writer.draw, size=(40, 60))
HEADER = "filename,class,xmin,ymin,xmax,ymax"


@preparing
def table(
    root: Path,
    text: str | bytes | Sequence[str],
    *more: object,
    name: str = "boxes.csv",
    pictures: Sequence[str] = ("a.png", "b.png"),
    layout: str = "csv",
) -> list[object]:
    """A table beside its pictures, given by its name."""
    draw(root, *pictures)
    data = text if isinstance(text, bytes | str) else "".join(f"{line}\n" for line in text)
    (root / name).write_bytes(data.encode() if isinstance(data, str) else data)
    options = [str(option).replace("ROOT", str(root)) for option in more]
    return ["--layout", layout, "--source", root / name, *options]


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


@preparing
def voc(
    root: Path, *boxes: str, options: Sequence[object] = (), pictures: Sequence[str] = ("a.png",)
) -> list[object]:
    """One XML file with these boxes, "xmin ymin xmax ymax" each."""
    draw(root, *pictures)
    objects = "".join(voc_object(boxed("a.png", box.split())) for box in boxes)
    (root / "a.xml").write_text(voc_text("a.png", objects))
    return ["--layout", "voc", "--source", root, *options]


def rows(count: int, cells: str) -> list[str]:
    return [HEADER, *[f"a.png,hat,{cells}"] * count]


@preparing
def apart(root: Path, *pictures: str, at: str, source: str = "", images: str = "") -> list[object]:
    """A table of one row at `at`, apart from its pictures; the source is the table unless said."""
    draw(root, *pictures)
    (root / at).parent.mkdir(exist_ok=True)
    (root / at).write_text(f"{HEADER}\na.png,hat,1,2,30,20\n")
    given = ["--layout", "csv", "--source", root / (source or at)]
    return [*given, "--images", root / images] if images else given


@preparing
def images_is_an_archive(root: Path) -> list[object]:
    (root / "images.zip").write_bytes(b"PK\x03\x04")
    return apart("a.png", at="boxes.csv", images="images.zip")(root)


@preparing
def folder_without_table(root: Path) -> list[object]:
    draw(root, "a.png")
    return ["--layout", "csv", "--source", root]


NOTHING = "nothing was converted: all"
ROW = "a.png,hat,1,2,30,20"

MISTAKES = {
    # paths
    "the images of another folder": refused(
        apart("pictures/a.png", "other/z.png", at="boxes.csv", images="other"),
        NOTHING,
        "image file not found",
        r"boxes\.csv:2: 'a\.png' below",
        "folder is .*other; --images",
    ),
    "no --images where the table lies apart": refused(
        apart("pictures/a.png", at="tables/boxes.csv"),
        "no image file lies below .*tables",
        "name the folder that holds the images",
    ),
    "an archive for a folder": usage(images_is_an_archive(), r"images\.zip: no such folder; name the folder"),
    "file names alone with --images /": usage(
        table([HEADER, ROW], "--images", "/"),
        "/: every file of this machine would be listed; name the folder",
    ),
    "a folder of tables with --images /": usage(
        lambda root: [*table([HEADER, ROW])(root)[:3], root, "--images", "/"],
        "/: every file of this machine would be listed; name the folder",
    ),
    "a folder without a table": refused(folder_without_table(), "no .csv or .tsv file lies straight in it"),
    "paths of a folder that is not there": refused(
        table([HEADER, "cam1/a.png,hat,1,2,30,20", "cam2/a.png,hat,1,2,30,20"], pictures=["all/a.png"]),
        NOTHING,
        r"all/a\.png is the image of 'cam[12]/a\.png'",
    ),
    # what a table is
    "a table saved as UTF-16": refused(
        table(f"{HEADER}\n{ROW}\n".encode("utf-16")), r"boxes\.csv: expected UTF-8 text", "save it as UTF-8"
    ),
    "COCO under --layout csv": refused(
        table('{"images": [], "annotations": [], "categories": []}', name="instances.json"),
        r"instances\.json: no column filename",
        "expected filename,class",
    ),
    "a table under --layout coco": refused(
        table([HEADER, ROW], layout="coco"), r"boxes\.csv: expected COCO instances as JSON"
    ),
    "one list for lines of JSON": refused(
        table('[{"filename": "a.png", "class": "hat"}]', name="boxes.jsonl", layout="jsonl"),
        r"boxes\.jsonl:1: expected a JSON object, got list",
    ),
    # columns
    "x, y, w, h": refused(
        table(["filename,class,x,y,w,h", ROW]),
        "column x, y, w, h would not be read",
        "--box-form",
        "corner-size",
        "--ignore-columns x,y,w,h",
    ),
    "a typo in a corner": refused(
        table(["filename,class,xmin,ymin,xmax,ymxa", ROW]), "no column ymax; found filename", "ymxa"
    ),
    "a column twice": refused(table(["filename,class,class", "a.png,hat,hat"]), "column class comes twice"),
    # values
    "width and height that are exchanged": refused(
        table([f"{HEADER},width,height", f"{ROW},40,60", "b.png,hat,1,2,30,20,40,60"]),
        r"a\.png: annotations say 40 wide and 60 high",
        "exchange width and height",
    ),
    # options
    "an option of tables for VOC": usage(
        voc("1 3 9 9", options=["--split-folders", "yes"]),
        "--split-folders has no effect without --layout folders",
        "leave it out",
    ),
    "a grid of annotations for volumes": usage(
        table([HEADER, ROW], "--annotation-grid", "displayed", "--depth", "8"),
        "--annotation-grid has no effect with --depth; leave one of them out",
    ),
    "VOC files whose pictures are elsewhere": refused(
        voc("1 3 9 9", pictures=["z.png"]), NOTHING, "neither 'a.png' nor an image called 'a'"
    ),
    "two classes in one cell": refused(
        table(["filename,class", "a.png,hat", "b.png,coat", "c.png,hat|coat"]),
        r"boxes\.csv:4: class 'hat\|coat' looks like 2 classes",
        r"--class-separator '\|', or none",
    ),
    "boxes of 0 and 1 alone": refused(
        table(rows(1, "0,0,1,1")),
        "every box runs from 0 to 1",
        "--box-units pixels or --box-units normalized",
    ),
    "corners under COCO's bbox": refused(
        coco([31, 22, 55, 38], [3, 4, 20, 30]),
        "leave their image as x, y, width, height",
        "--box-form corners",
    ),
    "turned boxes in COCO": refused(
        coco(annotations=[{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9], "rotation": 30}]),
        "annotations have rotation, which would not be read",
        "--ignore-columns rotation",
    ),
    "VOC that counts from 0": refused(
        voc("0 3 9 9", "12 8 24 36"), "1 of 2 boxes begin below 1, the first in a.png", "--box-origin 0"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_tables_paths_or_boxes_ends_before_a_record_is_written(
    tmp_path: Path, name: str
) -> None:
    check(MISTAKES[name], tmp_path)
