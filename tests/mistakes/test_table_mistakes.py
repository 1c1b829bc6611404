"""Do everyday mistakes with tables, paths and boxes end in what, where and the cure, before a record is written?"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import annotation_writer
from tests.support.annotation_writer import boxed, coco_of_one, voc_object, voc_text
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
    sized = {"images": [{"id": 1, "file_name": "a.png", "width": 60, "height": 40}], **changes}
    document = coco_of_one(*({"bbox": box} for box in boxes), **sized)
    return table(json.dumps(document), *options, name="instances.json", layout="coco")


@preparing
def voc(root: Path, *boxes: str, options=(), pictures=("a.png",)) -> list[object]:
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


NOTHING = "rejected because of the annotations"
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
    "an archive for a folder": usage(
        apart("a.png", at="images.zip", source="a.png", images="images.zip"),
        r"images\.zip: it is a file; name the folder .* unpack an archive",
    ),
    "paths of a folder that is not there": refused(
        table([HEADER, "cam1/a.png,hat,1,2,30,20", "cam2/a.png,hat,1,2,30,20"], pictures=["all/a.png"]),
        NOTHING,
        r"all/a\.png is the image of 'cam[12]/a\.png'",
    ),
    # what a table is
    "one list for lines of JSON": refused(
        table('[{"filename": "a.png", "class": "hat"}]', name="boxes.jsonl", layout="jsonl"),
        r"boxes\.jsonl:1: expected a JSON object, got list",
    ),
    # values
    "width and height that are exchanged": refused(
        table([f"{HEADER},width,height", f"{ROW},40,60", "b.png,hat,1,2,30,20,40,60"]),
        r"a\.png: annotations say 40 wide and 60 high",
        "exchange width and height",
    ),
    # options
    "VOC files whose pictures are elsewhere": refused(
        voc("1 3 9 9", pictures=["z.png"]), NOTHING, "neither 'a.png' nor an image called 'a'"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_tables_paths_or_boxes_ends_before_a_record_is_written(tmp_path, name):
    check(MISTAKES[name], tmp_path)
