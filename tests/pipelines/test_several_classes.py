"""Are pictures of several classes refused by name, or kept whole: records, statistics, loader, inspection?"""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.errors import AnnotationsError
from halofeed.inspection.describe_dataset import describe_dataset, describe_record
from halofeed.inspection.html.report import write_report
from halofeed.inspection.verify import verify
from halofeed.inspection.verify_record import record_problems
from halofeed.loader import Loader
from halofeed.schemas.manifest import read_manifest
from halofeed.trainer.task import DataFacts, data_facts
from tests.support.annotation_writer import draw
from tests.support.conversions import read_all, run_convert
from tests.support.parser_check import check_parser

PICTURES = {"a.png": ["coat", "hat"], "b.png": ["hat"], "c.png": ["shoe", "hat", "coat"], "d.png": ["shoe"]}
ROWS = [(name, label) for name, labels in PICTURES.items() for label in labels]
BOXES = [f"{n},{one},1,2,9,8" for n, labels in PICTURES.items() for one in [*labels, labels[0]]]
LISTS = [{"filename": name, "class": labels} for name, labels in PICTURES.items()]
CELLS = [f"{name},{' | '.join(labels)}" for name, labels in PICTURES.items()]
FORMS: dict[str, tuple[str, str, list[Any], dict[str, str]]] = {
    "several rows of CSV": ("csv", "", [f"{name},{label}" for name, label in ROWS], {}),
    "one cell of CSV": ("csv", "", CELLS, {"class_separator": "|"}),
    "a list in a cell of CSV": ("csv", "", [f'{name},"{labels}"' for name, labels in PICTURES.items()], {}),
    "several rows of JSONL": ("jsonl", "", [{"filename": name, "class": label} for name, label in ROWS], {}),
    "a list in JSONL": ("jsonl", "", LISTS, {}),
    "boxes of several classes": ("csv", ",xmin,ymin,xmax,ymax", BOXES, {"task": "classification"}),
}
"""By name: the layout, further columns, the rows and the options."""


def write(root: Path, form: str = "several rows of CSV") -> dict[str, Any]:
    """The pictures and their classes in this form; the options of their conversion."""
    draw(root, *PICTURES)
    layout, columns, rows, options = FORMS[form]
    lines = rows if layout == "csv" else map(json.dumps, rows)
    head = [f"filename,class{columns}"] if layout == "csv" else []
    (root / f"t.{layout}").write_text("\n".join([*head, *lines]) + "\n")
    return {"layout": layout, **options}


@pytest.fixture
def kept(tmp_path: Path) -> Any:
    options = write(tmp_path / "src")
    return run_convert(tmp_path / "src", tmp_path / "out", several_classes="keep", **options)


def test_the_columns_of_classes_are_the_columns_of_labels_also_where_all_are_0(tmp_path):
    draw(tmp_path / "src", "a.png", "b.png")
    (tmp_path / "src" / "t.csv").write_text("filename,shoe,hat,blank,coat\na.png,1,0,0,1\nb.png,0,1,0,0\n")
    options = {"layout": "csv", "several_classes": "keep"}
    done = run_convert(tmp_path / "src", tmp_path / "all", **options)
    assert [*done.manifest.labels.values()] == ["shoe", "hat", "blank", "coat"]
    found = Loader(done.folder, batch_size=2, training=False).batch(0)["labels"]
    assert sorted(found.tolist()) == [[0, 1, 0, 0], [1, 0, 0, 1]]
    done = run_convert(tmp_path / "src", tmp_path / "some", drop_classes=("blank", "hat"), **options)
    assert [*done.manifest.labels.values()] == ["shoe", "coat"]


@pytest.mark.parametrize("form", FORMS)
def test_every_class_of_a_picture_is_in_its_record_its_batch_and_the_counts(tmp_path, form):
    options = write(tmp_path / "src", form)
    done = run_convert(tmp_path / "src", tmp_path / "out", several_classes="keep", **options)
    assert done.manifest.task == "classification"
    assert done.manifest.labels == {0: "coat", 1: "hat", 2: "shoe"}
    for name, record in read_all(Path(done.folder), ["train"]).items():
        assert [bytes(text).decode() for text in record["image/class/text"]] == sorted(PICTURES[name])
        expected = [number for number, label in done.manifest.labels.items() if label in PICTURES[name]]
        assert record["image/class/label"].tolist() == expected
    assert done.manifest.splits["train"].statistics.labels == {"0": 2, "1": 3, "2": 2}
    assert verify(done.folder).ok
    check_parser(done.folder)
    batch = Loader(done.folder, split="train", batch_size=5, include=("source",), shuffle=False).batch(0)
    assert batch["labels"].dtype == np.uint8 and "label" not in batch
    for row in np.flatnonzero(batch["valid"]):
        labels = sorted(PICTURES[batch["source"][row]])
        assert [done.manifest.labels[at] for at in np.flatnonzero(batch["labels"][row])] == labels
        assert set(batch["labels"][row].tolist()) <= {0, 1}
    told = json.loads((Path(done.folder) / "features.json").read_text())["featuresDict"]["features"]
    assert all("sequence" in told[f"image/class/{part}"] for part in ("label", "text"))


def test_a_picture_said_to_have_no_class_has_none_and_a_row_without_one_is_rejected(tmp_path):
    source = draw(tmp_path / "src", *PICTURES)
    rows = [("a.png", ["hat", "coat"]), ("b.png", []), ("c.png", ""), ("d.png", "hat")]
    (source / "t.jsonl").write_text("\n".join(json.dumps({"filename": n, "class": c}) for n, c in rows))
    done = run_convert(source, tmp_path / "out", layout="jsonl", several_classes="keep")
    assert done.manifest.rejected == {"annotation: row has no class": 1}
    assert "write [] if the image has none" in (Path(done.folder) / "rejected.jsonl").read_text()
    counts = {"a.png": 2, "b.png": 0, "d.png": 1}
    records = read_all(Path(done.folder), ["train"])
    assert {name: len(record["image/class/label"]) for name, record in records.items()} == counts
    assert verify(done.folder).ok
    batch = Loader(done.folder, split="train", batch_size=3, include=("source",), shuffle=False).batch(0)
    assert dict(zip(batch["source"], batch["labels"].sum(1).tolist(), strict=True)) == counts
    number = list(batch["source"]).index("b.png")
    assert "label   no class" in describe_record(done.folder, f"train:{number}")


def test_a_cell_has_the_classes_that_the_separator_says(tmp_path):
    source = draw(tmp_path / "src", *PICTURES)

    def converted(out: str, a: str, c: str, **options: Any) -> Any:
        rows = f"filename,class\na.png,{a}\nb.png,coat\nc.png,{c}\nd.png,hat\n"
        (source / "t.csv").write_text(rows)
        return run_convert(source, tmp_path / out, layout="csv", **options)

    one = converted("one", "hat", "hat|coat", class_separator="none")
    assert sorted(one.manifest.labels.values()) == ["coat", "hat", "hat|coat"]
    assert "hat|cape" in converted("other", "hat", "hat|cape").manifest.labels.values()
    parted = converted("parted", "hat", "hat||coat", class_separator="|", several_classes="keep")
    assert parted.manifest.rejected == {"annotation: class has no name": 1}
    blanks = converted("blanks", "hat  coat", "hat", class_separator=" ", several_classes="keep")
    assert sorted(blanks.manifest.labels.values()) == ["coat", "hat"]


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        ("scab rust,scab,rust", " "),
        ("a+b,a,b", "+"),
        ("a / b,a,b", "/"),
        ("a&b,a,b", "&"),
        ("a_b,a,b", "_"),
        ("a-b,a,b", "-"),
        ("a -- b,a,b", "--"),
        ("a、b,a,b", "、"),
        ("hot dog,hot,dog", " "),
        ("a und b,a,b", " und "),
        ("scab and rust,rust,scab and rust and mildew,scab", " and "),
        # No part is a cell of its own.
        ("sun sea,sea road,sun road,sun sea road,road sun", " "),
    ],
)
def test_any_separator_that_the_cells_prove_is_refused_with_options_that_work(tmp_path, cells, separator):
    names = cells.split(",")
    source = draw(tmp_path / "src", *(f"{number}.png" for number in range(len(names))))
    rows = "".join(f"{number}.png;{name}\n" for number, name in enumerate(names))
    (source / "t.csv").write_text(f"filename;class\n{rows}")
    with pytest.raises(AnnotationsError, match=r"looks like \d classes") as raised:
        run_convert(source, tmp_path / "out", layout="csv")
    words = shlex.split(
        str(raised.value).partition("; use ")[2].partition(" for several")[0].replace("=", " ")
    )
    assert words == ["--class-separator", separator, "--several-classes", "keep"]
    several = run_convert(
        source, tmp_path / "a", layout="csv", class_separator=separator, several_classes="keep"
    )
    whole = run_convert(source, tmp_path / "b", layout="csv", class_separator="none")
    assert sorted(whole.manifest.labels.values()) == sorted(set(names))
    assert not any(separator in name for name in several.manifest.labels.values())


@pytest.mark.parametrize(
    "cells",
    [
        "T-shirt,shirt",
        "hot dog,dog",
        "red car,red bus,blue car,blue bus",
        "1.5,1,5",
        "Tomato__well,Apple__well",
    ],
)
def test_names_of_which_not_every_part_is_a_class_are_classes(tmp_path, cells):
    names = cells.split(",")
    source = draw(tmp_path / "src", *(f"{number}.png" for number in range(len(names))))
    (source / "t.csv").write_text(
        "filename,class\n" + "".join(f"{number}.png,{name}\n" for number, name in enumerate(names))
    )
    done = run_convert(source, tmp_path / "out", layout="csv")
    assert sorted(done.manifest.labels.values()) == sorted(names)


def test_one_class_said_twice_is_one_and_records_of_one_class_are_as_before(tmp_path):
    source = draw(tmp_path / "src", *PICTURES)
    (source / "t.csv").write_text("filename,class\n" + "".join(f"{name},hat\n" * 2 for name in PICTURES))
    done = run_convert(source, tmp_path / "out", layout="csv")
    assert [field.name for field in done.manifest.fields][:2] == ["image", "label"]
    for record in read_all(Path(done.folder), ["train"]).values():
        assert record["image/class/label"].tolist() == [0]
        assert [bytes(text) for text in record["image/class/text"]] == [b"hat"]


def test_boxes_have_one_class_each(tmp_path):
    source = tmp_path / "src"
    write(source, "boxes of several classes")
    corners = {"xmin": 1, "ymin": 1, "xmax": 9, "ymax": 9}
    rows = [{"filename": "a.png", "class": label, **corners} for label in (["hat", "coat"], ["hat"], "hat")]
    (source / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = run_convert(source, tmp_path / "boxes", layout="jsonl")
    assert done.manifest.splits["train"].statistics.boxes == {"dropped as box has no class or several": 1}
    assert done.manifest.labels == {1: "hat"}


def test_what_people_look_at_counts_every_class(kept, tmp_path):
    assert any("hat" in line and " 3 " in line for line in describe_dataset(kept.folder).splitlines())
    assert "labels" in describe_dataset(kept.folder)
    assert "0 coat, 1 hat" in "".join(describe_record(kept.folder, f"train:{number}") for number in range(4))
    text = Path(write_report(kept.folder, tmp_path / "report.html")).read_text()
    assert "halofeed train" in text and "1 for each class of a picture" in text
    facts = data_facts(read_manifest(kept.folder), "train")
    assert facts.multi_label and facts.names == ("coat", "hat", "shoe")
    assert DataFacts.from_json(facts.to_json()) == facts


def test_verify_names_what_is_wrong_with_several_classes(kept):
    record = read_all(Path(kept.folder), ["train"])["a.png"]
    key = "image/class/label"
    assert not list(record_problems(record, kept.manifest))
    for value, message in (
        (np.array([1, 0]), "ascending order"),
        (np.array([0, 0]), "ascending order"),
        (np.array([0, 7]), "7 is not in the manifest's labels"),
        (np.array([0]), "1 label, but 2 texts"),
        ([memoryview(b"0"), memoryview(b"1")], "expected int64 values"),
    ):
        assert any(message in problem for problem in record_problems({**record, key: value}, kept.manifest))
