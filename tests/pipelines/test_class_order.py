"""Do classes that are numbers come in the order of their numbers, from every layout that orders names?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halofeed.prep.layouts import LayoutOptions, class_masks
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import AnnotationsError
from tests.support.annotation_writer import boxed, draw, voc_object, voc_text, write_annotations
from tests.support.conversions import read_all, run_convert

NUMBERS = [str(number) for number in range(12)]


def folders(root: Path) -> None:
    draw(root, *(f"{name}/a.png" for name in NUMBERS))


def csv(root: Path) -> None:
    draw(root, *(f"{name}.png" for name in NUMBERS))
    (root / "t.csv").write_text("filename,class\n" + "".join(f"{name}.png,{name}\n" for name in NUMBERS))


def jsonl(root: Path) -> None:
    draw(root, *(f"{name}.png" for name in NUMBERS))
    rows = ({"filename": f"{name}.png", "class": int(name)} for name in NUMBERS)
    (root / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))


def voc(root: Path) -> None:
    draw(root, "a.png")
    objects = "".join(voc_object(boxed("a.png", (2, 2, 8, 8), name)) for name in NUMBERS)
    (root / "a.xml").write_text(voc_text("a.png", objects))


def boxes(root: Path) -> None:
    draw(root, "a.png")
    write_annotations(root, "csv", [boxed("a.png", (2, 2, 8, 8), name) for name in NUMBERS])


@pytest.mark.parametrize(
    ("layout", "source", "first"),
    [("folders", folders, 0), ("csv", csv, 0), ("jsonl", jsonl, 0), ("voc", voc, 1), ("csv", boxes, 1)],
    ids=["folders", "csv", "jsonl", "voc", "csv of boxes"],
)
def test_classes_that_are_numbers_stand_in_the_order_of_their_numbers(tmp_path, layout, source, first):
    source(tmp_path / "src")
    done = run_convert(tmp_path / "src", tmp_path / "out", layout=layout)
    assert done.manifest.labels == {number + first: name for number, name in enumerate(NUMBERS)}
    if first == 0:
        for record in read_all(Path(done.folder), ["train"]).values():
            assert str(int(record["image/class/label"][0])) == bytes(record["image/class/text"][0]).decode()


def test_masks_whose_names_are_numbers_have_their_order(tmp_path):
    draw(tmp_path, "s1/ct.png", *(f"s1/segmentations/{name}.png" for name in ("1", "2", "10")))
    files = LocalFiles(tmp_path)
    values = class_masks.label_values(files, files, None, LayoutOptions())
    assert dict(values) == {0: "background", 1: "1", 2: "2", 3: "10"}


def test_numbers_and_texts_together_put_the_numbers_first(tmp_path):
    names = ("10", "9", "2.5", "-1", "other", "10 cards")
    draw(tmp_path / "src", *(f"{name}/a.png" for name in names))
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="folders")
    assert list(done.manifest.labels.values()) == ["-1", "2.5", "9", "10", "10 cards", "other"]


@pytest.mark.parametrize("other", ["1.0", "01", "+1"])
def test_one_number_written_in_two_ways_is_refused(tmp_path, other):
    draw(tmp_path / "src", *(f"{name}/a.png" for name in ("0", "1", other)))
    with pytest.raises(AnnotationsError, match=r"are one number, written in two ways.*--label-map"):
        run_convert(tmp_path / "src", tmp_path / "out", layout="folders")
    (tmp_path / "map.json").write_text(json.dumps({"0": 0, "1": 1, other: 2}))
    done = run_convert(
        tmp_path / "src", tmp_path / "out", layout="folders", label_map=str(tmp_path / "map.json")
    )
    assert done.manifest.labels == {0: "0", 1: "1", 2: other}
