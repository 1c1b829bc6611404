"""CSV and JSONL tables, those that do not fit into memory too."""

import csv
import errno
import json
import random
import re
import shlex
import subprocess
import unicodedata
from functools import partial
from pathlib import Path

import pytest

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations import tables
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.layouts import find_layout
from halofeed.prep.sources.files import LocalFiles
from halofeed.storage import spill
from halofeed.storage.spill import ExternalSort
from halofeed.system.resource_errors import FIXES, describe_error
from tests.support.allocations import traced
from tests.support.layout_references import list_references, outcome, write_files

read = partial(list_references, "csv")


def write(root: Path, text: str | bytes, *images: str, table: str = "labels.csv") -> None:
    write_files(root, {table: text, **dict.fromkeys(images, "x")})


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_delimiters_marks_quotes_and_blank_lines_do_not_matter(tmp_path, delimiter, start, end):
    lines = [
        ["filename", "class", "split", "group"],
        [f'"a{delimiter} b.jpg"', '"say ""hat"""', "train", "p1"],
        [],
        ["c.jpg", "coat", "test", ""],
    ]
    text = start + end.join(delimiter.join(line) for line in lines) + end
    write(tmp_path, text, name := f"a{delimiter} b.jpg", "c.jpg")
    first, second = read(tmp_path, "labels.csv")
    assert (first.source, first.label, first.split, first.group) == (name, 'say "hat"', "train", "p1")
    assert (second.label, second.split, second.group) == ("coat", "test", None)


CORNERS = "filename,class,xmin,ymin,xmax,ymax\n"
OPEN_IMAGES = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsInside\n"
)
BOXES = "filename,width,height,class,xmin,ymin,xmax,ymax,is_crowd,difficult,truncated,area,id\n"


def test_rows_need_not_be_adjacent_and_tables_of_open_images_are_read_as_published(tmp_path):
    rows = "a.jpg,10,20,hat,1,2,3,4,1,,,5.5,17\nb.jpg,0,0,,,,,,,,,,18\na.jpg,10,20,coat,0.5,0,10,20,,true,1,,17\n"
    write(tmp_path, BOXES + rows, "a.jpg", "b.jpg")
    first, second = read(tmp_path, "labels.csv")
    assert first.key == "17" and first.declared_size == (20, 10) and first.label is None
    assert first.boxes is not None and [box.label for box in first.boxes] == ["hat", "coat"]
    assert first.boxes[0].is_crowd and first.boxes[0].area == 5.5 and not first.boxes[0].truncated
    assert first.boxes[1].difficult and first.boxes[1].truncated and first.boxes[1].xmin == 0.5
    assert second.boxes == () and second.declared_size is None and second.problem is None
    rows = "0a1b,xclick,/m/01,1,0.1,0.5,0.2,0.75,0,1,0,0\n9f.2,xclick,/m/02,1,0,1,0,1,-1,-1,-1,-1\n"
    write(tmp_path / "b", OPEN_IMAGES + rows, "validation/0a1b.jpg", "validation/9f.2.jpg")
    references = {one.source: one for one in read(tmp_path / "b", "labels.csv", keep=("group_of",))}
    (first,), (second,) = (references[f"validation/{name}.jpg"].boxes or () for name in ("0a1b", "9f.2"))
    assert (first.xmin, first.ymin, first.xmax, first.ymax) == (0.1, 0.2, 0.5, 0.75) and first.truncated
    assert not second.group_of and not second.truncated
    assert references["validation/0a1b.jpg"].normalized


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a.jpg,1,1,hat,x,0,1,1,,,,,", "not a number"),
        ("a.jpg,1,1,hat,1_0,0,11,1,,,,,", "not a number"),
        ("a.jpg,1,1,hat,nan,0,1,1,,,,,", "number is not finite"),
        ("a.jpg,1,1,hat,0,0,1e999,1,,,,,", "number is not finite"),
        ("a.jpg,1,1,hat,5,0,1,1,,,,,", "box is inverted"),
        ("a.jpg,1,1,hat,,0,1,1,,,,,", "row has no complete box"),
        ("a.jpg,1,1,hat,,,,,,,,,", "picture has a class without a box"),
        ("a.jpg,1,1,,0,0,1,1,,,,,", "box has no class"),
        ("a.jpg,1,1,hat,0,0,1,1,maybe,,,,", "flag is neither 0 nor 1"),
        ("a.jpg,1.5,1,hat,0,0,1,1,,,,,", "size is not whole pixels"),
        ("a.jpg,1,1,hat,0,0,1,1", "row has the wrong number of cells"),
        ("a.jpg,1,1,hat,0,0,1,1,,,,,\na.jpg,1,2,hat,0,0,1,1,,,,,", "rows disagree about the size"),
    ],
)
def test_a_faulty_row_is_its_images_problem_and_names_the_line(tmp_path, row, reason):
    write(tmp_path, f"{BOXES}good.jpg,1,1,hat,0,0,1,1,,,,,\n{row}\n", "a.jpg", "good.jpg")
    faulty, good = read(tmp_path, "labels.csv", on_bad_object="reject")
    assert good.problem is None
    assert faulty.source == "a.jpg" and faulty.problem is not None
    assert faulty.problem[:2] == ("annotation", reason)
    assert "labels.csv:" in faulty.problem[2] or reason == "size is not whole pixels"


def test_every_row_and_every_image_is_accounted_for(tmp_path):
    text = "filename,class\na.jpg,hat\nmissing.jpg,hat\n,hat\ntwin.jpg,hat\nnone.jpg,\n"
    write(tmp_path, text, "a.jpg", "extra.jpg", "none.jpg", "x/twin.jpg", "y/twin.jpg")
    assert outcome(read(tmp_path)) == {
        "a.jpg": None,
        "missing.jpg": "image file not found",
        "labels.csv:4": "row names no file",
        "twin.jpg": "file name is ambiguous",
        "none.jpg": "row has no class",
        **dict.fromkeys(("extra.jpg", "x/twin.jpg", "y/twin.jpg"), "image has no annotation"),
    }


def hugging(name, **objects):
    return json.dumps({"file_name": name, "objects": objects}) + "\n"


def vertex(name, use, kind, *written):
    line = {"imageGcsUri": f"gs://b/{name}", kind: written if kind[-1] == "s" else written[0]}
    line["dataItemResourceLabels"] = {"aiplatform.googleapis.com/ml_use": use}
    return json.dumps(line) + "\n"


OBJECTS = {"bbox": [[1, 2, 8, 6], [3, 3, 2, 2]], "category": [0, 1], "id": [3, 4], "area": [48, 4]}
NESTED = [("0", 1, 2, 9, 8), ("1", 3, 3, 5, 5)]
HAT, CAP, DRAWN = {"displayName": "hat"}, {"displayName": "cap"}, "boundingBoxAnnotations"
SHARES = {**HAT, "xMin": "0.1", "yMin": 0.2, "xMax": 0.5, "yMax": 0.6}
AUTOML = (
    "TRAIN,gs://b/x/a.jpg,hat\nTEST,gs://b/x/b.jpg,,,,,,,,,\nvalidation,gs://b/x/d.jpg\n"
    "UNASSIGNED,gs://b/x/c.jpg,hat,0.1,0.1,0.4,0.1,0.4,0.6,0.1,0.6\n"
    ",gs://b/x/c.jpg,hat,0.1,0.1,0.4,0.2,0.4,0.6,0.1,0.6\n"
)
CELLS = '{"filename": "a.jpg", "class": 3, "extra": ["not", {"looked": "at"}]}\n'
FAULTS = [
    (
        "labels.csv",
        "document,name\na.jpg,hat\n",
        "labels.csv: no column filename, class; found document, name",
    ),
    ("labels.csv", "filename,class,xmin\na.jpg,hat,1\n", "no column ymin, xmax, ymax.*filename, class, xmin"),
    ("labels.csv", "filename,class,class\n", "class comes twice"),
    ("labels.csv", "", "no column filename, class.*found nothing"),
    ("labels.csv", "filename,class,split\na.jpg,hat,a\na.jpg,hat,b\n", "two values of split: .*labels.csv:3"),
    ("labels.csv", b"filename,class\n\xff.jpg,hat\n", "UTF-8.*byte 15.*0xff.*save it as UTF-8"),
    ("labels.csv", "filename,class\na.jpg,h\0at\n", "labels.csv:2: .*NUL"),
    ("labels.csv", "filename,label\n", "labels.csv: a header and no rows"),
    (
        "tables/boxes.csv",
        f"{CORNERS}a.jpg,hat,1,2,9,8\n",
        "tables/boxes.csv lie below it.; name the table itself",
    ),
    ("t.jsonl", '{"filename": "a.jpg", "class": "hat"}\n{nonsense\n', "t.jsonl:2"),
    (
        "t.jsonl",
        CELLS + '{"filename": "a.jpg", "class": {}}',
        "t.jsonl:2: class: expected text .*got an object",
    ),
    (
        "t.jsonl",
        CELLS + '{"filename": ["a.jpg"]}',
        "t.jsonl:2: filename: expected text or a number, got a list",
    ),
    (
        "t.jsonl",
        CELLS + '{"filename": "a.jpg", "group": {}}',
        "t.jsonl:2: group: expected text .*got an object",
    ),
    (
        "t.jsonl",
        CELLS + r'{"filename": "a.jpg", "class": "h\u0000at"}',
        "t.jsonl:2: class: holds a NUL character",
    ),
    ("m.jsonl", hugging("a.jpg", bbox=[[1, 2, 3, 4]], label=[]), "jsonl:1: .* got 1 bbox, 0 label"),
    ("m.jsonl", hugging("a.jpg", **OBJECTS, points=[[], []]), "column points would not be read"),
    ("m.jsonl", vertex("a.jpg", "test", "polygonAnnotations", HAT), "jsonl:1: .*got polygonAnnotations"),
    ("m.jsonl", vertex("a.jpg", "fold", DRAWN), "jsonl:1: .*got 'fold'"),
    ("m.csv", AUTOML + "TRIAN,gs://b/x/a.jpg,hat\n", "m.csv:6: expected a set"),
]


@pytest.mark.parametrize(("table", "text", "words"), FAULTS)
def test_faults_of_a_table_name_the_file_and_the_cure(tmp_path, table, text, words):
    write(tmp_path, text, "a.jpg", table=table)
    with pytest.raises(AnnotationsError, match=f"(?s){words}"):
        list_references(table.partition(".")[2], tmp_path)


def test_tables_without_boxes_or_images_are_refused_with_the_cure(tmp_path):
    write(tmp_path, "filename,class\na.jpg,hat\n", "a.jpg")
    with pytest.raises(AnnotationsError, match="no columns xmin,ymin,xmax,ymax; found filename, class"):
        read(tmp_path, "labels.csv", task="detection")
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(AnnotationsError, match="name the folder that holds the images"):
        read(tmp_path, "labels.csv")


def test_jsonl_gives_what_the_same_csv_gives_and_one_named_table_is_read_alone(tmp_path, test_data):
    cards = test_data / "detection" / "cards_voc"
    for split in ("train", "test"):
        with (
            open(cards / f"{split}_labels.csv", newline="") as lines,
            open(tmp_path / f"{split}_labels.jsonl", "w") as out,
        ):
            for row in csv.DictReader(lines):
                entry = {key: int(value) if value.isdigit() else value for key, value in row.items()}
                print(json.dumps(entry), file=out)
    assert list_references("jsonl", tmp_path, images=cards) == read(cards)
    references = read(cards, "test_labels.csv")
    assert {(one.split, one.problem) for one in references} == {("test", None)} and len(references) == 67


def test_jsonl_null_bools_and_absent_keys(tmp_path):
    lines = [
        {"filename": "a.jpg", "class": "hat", "xmin": 0, "ymin": 0, "xmax": 4.5, "ymax": 2, "is_crowd": True},
        {"filename": "b.jpg", "class": None, "xmin": None},
        {"filename": "c.jpg"},
        {"filename": "d.jpg", "class": "hat", "xmin": 0, "ymin": [1], "xmax": 4.5, "ymax": 2},
    ]
    write(tmp_path, "\n".join(map(json.dumps, lines)), "a.jpg", "b.jpg", "c.jpg", "d.jpg", table="t.jsonl")
    first, second, third, fourth = list_references("jsonl", tmp_path, "t.jsonl", on_bad_object="reject")
    assert first.boxes is not None and first.boxes[0].is_crowd and first.boxes[0].xmax == 4.5
    assert second.boxes == () == third.boxes
    assert fourth.problem is not None and fourth.problem[1] == "not a number"


def test_an_id_that_is_the_name_of_two_pictures_is_neither(tmp_path):
    """Nor is a picture of another extension taken."""
    write(tmp_path / "a", "image_id,label\n7,hat\n", "a/7.jpg", "b/7.png")
    assert outcome(read(tmp_path / "a"))["7"] == "file name is ambiguous"
    write(tmp_path / "b", "filename,label\na.png,hat\n", "a.jpg")
    (lost,) = [one.problem for one in read(tmp_path / "b") if one.source == "a.png"]
    assert "a.jpg has that name and another extension" in lost[2]


def test_empty_cells_beyond_the_header_are_none_and_accents_composed_or_taken_apart(tmp_path):
    write(tmp_path, "filename,label\na.jpg,hat,\nb.jpg,hat,,\nc.jpg,hat,x\n", "a.jpg", "b.jpg", "c.jpg")
    assert [one.source for one in read(tmp_path) if one.problem is None] == ["a.jpg", "b.jpg"]
    table, file = (unicodedata.normalize(form, "größe.jpg") for form in ("NFC", "NFD"))
    write(tmp_path / "b", f"{CORNERS}{table},hat,1,2,9,8\n", file)
    (only,) = read(tmp_path / "b")
    assert only.problem is None and only.source == file


def test_tables_in_folders_of_splits_speak_of_the_images_beside_them(tmp_path):
    for split in ("train", "valid"):
        rows = f"1.jpg,{split},1,2,9,8\nlost.jpg,{split},1,2,9,8\n"
        write(tmp_path, f"{CORNERS}{rows}", f"{split}/1.jpg", table=f"{split}/_annotations.csv")
    (tmp_path / "train/lost.jpg").write_bytes(b"x")
    references = {one.source: one for one in read(tmp_path)}
    for split in ("train", "valid"):
        one = references[f"{split}/1.jpg"]
        assert one.split == split and [box.label for box in one.boxes or ()] == [split]
    assert [box.label for box in references["train/lost.jpg"].boxes or ()] == ["train"]
    lost = references["valid/lost.jpg"]
    assert lost.split == "valid" and lost.problem is not None and lost.problem[1] == "image file not found"


ALIKE = [
    *(("caf\u00e9", "cafe\u0301", "U+00E9"), ("\uff48at", "hat", "U+FF48")),  # NFC and NFD, NFKC
    *(("dog", "d\u043eg", "U+043E"), ("alpha", "\u03b1lpha", "U+03B1")),  # Cyrillic, Greek
    *(("red hat", "red\u00a0hat", "U+00A0"), ("hat", "h\u200bat", "U+200B")),
    *(("hat", "\u202ahat\u202c", "U+202A U+202C"), ("T-shirt", "T\u2010shirt", "U+2010")),
    *(("left_kidney", "left kidney", "'left_kidney'"), ("traffic-light", "Traffic_Light", "'traffic-light'")),
    *((one, other, "") for one, other in (("-1", "1"), ("caf\u00e9", "cafe"), ("ab", "a-b"), ("0", "O"))),
    ("\u72ac", "\u732b", ""),
    ("Red hat", "red  hat", "differ in case or blanks alone: 'Red hat', 'red  hat'"),
]


@pytest.mark.parametrize(("one", "other", "shown"), ALIKE)
def test_classes_that_look_alike_are_warned_of_with_what_differs(tmp_path, one, other, shown):
    write(tmp_path, f"filename,class\na.jpg,{one}\nb.jpg,{other}\nc.jpg,coat\n", "a.jpg", "b.jpg", "c.jpg")
    notes = {found.source: found.notes for found in read(tmp_path)}
    assert notes["a.jpg"] == notes["b.jpg"] and not notes["c.jpg"]
    how = "" if shown.startswith("differ") else "look alike: "
    for note in notes["a.jpg"]:
        assert f"classes of their own that {how}" in note and shown in note
    assert bool(notes["a.jpg"]) == bool(shown)


def test_the_column_of_groups_is_not_called_unread(tmp_path):
    write(tmp_path, "filename,class,site,age\na.jpg,hat,ulm,3\n", "a.jpg")
    assert read(tmp_path)[0].notes == ("columns of labels.csv that are not read: site, age",)
    (kept,) = read(tmp_path, group_column="site")
    assert kept.notes == ("columns of labels.csv that are not read: age",)


ROWS = "a.jpg,hat\nb.jpg,coat\nc.jpg,hat\n"
CLASSES = {"a.jpg": "hat", "b.jpg": "coat", "c.jpg": "hat"}


@pytest.mark.parametrize(
    "text",
    [
        ROWS,  # no header
        "sep=,\nfilename,class\n" + ROWS,
        "sep=;\n" + ("filename,class\n" + ROWS).replace(",", ";"),
        "filename, hat, coat\na.jpg, 1, 0\nb.jpg, 0, 1\nc.jpg, 1, 0\n",  # Roboflow's _classes.csv
    ],
)
def test_tables_without_a_header_with_a_separator_and_with_a_column_a_class_are_read(tmp_path, text):
    write(tmp_path, text, *CLASSES)
    references = read(tmp_path)
    assert {one.source: one.label for one in references} == CLASSES
    assert any("no header line" in note for one in references for note in one.notes) is (text == ROWS)


def test_a_row_of_several_ones_has_several_classes_and_one_of_none_has_none(tmp_path):
    write(tmp_path, ",filename,hat,coat\n6,a.jpg,1,1\n7,b.jpg,0,0\n", "a.jpg", "b.jpg")  # with pandas' index
    kept = read(tmp_path, several_classes="keep")
    assert [one.labels for one in kept] == [("hat", "coat"), ()]
    assert kept[0].notes == ("columns of labels.csv were taken for classes, as all hold 0 or 1: hat, coat",)
    for column in ("is_train", "score"):
        write(tmp_path, f"filename,hat,{column}\na.jpg,1,0\nb.jpg,0,{2 * (column == 'score')}\n")
        with pytest.raises(AnnotationsError, match="no column class"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("text", "options", "boxes"),
    [
        ("a.jpg,1,2,9,8,hat\nb.jpg,2,2,7,9,coat\n", {}, [(1, 2, 9, 8, "hat"), (2, 2, 7, 9, "coat")]),
        ('image_id,bbox\na,"[1, 2, 8, 6]"\n', {"box_form": "corner-size"}, [(1, 2, 9, 8, "object")]),
        ("filename,xmin,ymin,xmax,ymax\r\na.jpg,1,2,9,8\r\n", {}, [(1, 2, 9, 8, "object")]),
    ],
)
def test_the_command_for_a_table_without_header_or_class_makes_it_readable(tmp_path, text, options, boxes):
    write(tmp_path, text, "a.jpg", "b.jpg")
    with pytest.raises(AnnotationsError) as raised:
        read(tmp_path, **options)
    command = re.search(r"sed -i '[^']+' \S+", str(raised.value))
    assert command is not None
    subprocess.run(shlex.split(command[0]), check=True)
    found = [box for one in read(tmp_path, **options) for box in one.boxes or ()]
    assert [(box.xmin, box.ymin, box.xmax, box.ymax, box.label) for box in found] == boxes


LABELS = "ImageID,Source,LabelName,Confidence\na,v,/m/1,1\na,v,/m/2,0\nb,v,/m/3,1\n"
FORMS = {
    "train/metadata.jsonl": (hugging("a.jpg", **OBJECTS), {"train/a.jpg": ("train", NESTED)}),
    "d/test/metadata.jsonl": (
        hugging("x/a.jpg", bbox=[[1, 2, 8, 6]], label=["0"]) + hugging("c.jpg", bbox=[], label=[]),
        {"d/test/x/a.jpg": ("test", NESTED[:1]), "d/test/c.jpg": ("test", [])},
    ),
    "metadata.csv": (
        "file_name,label\ntrain/a.jpg,hat\ntest/b.jpg,coat\n",
        {"train/a.jpg": ("train", ("hat",)), "test/b.jpg": ("test", ("coat",))},
    ),
    "automl.csv": (
        AUTOML,
        {
            "x/a.jpg": ("train", []),
            "x/b.jpg": ("test", []),
            "x/c.jpg": ("train", [("hat", 0.1, 0.1, 0.4, 0.6), "not a number"]),
            "x/d.jpg": ("validation", []),
        },
    ),
    "automl_classes.csv": (
        "gs://b/a.jpg,hat\nTRAINING,gs://b/b.jpg,hat,coat\n",
        {"a.jpg": ("train", ("hat",)), "b.jpg": ("train", ("hat", "coat"))},
    ),
    "vertex.jsonl": (
        vertex("a.jpg", "test", DRAWN, SHARES) + vertex("b.jpg", "training", DRAWN),
        {"a.jpg": ("test", [("hat", 0.1, 0.2, 0.5, 0.6)]), "b.jpg": ("train", [])},
    ),
    "vertex_classes.jsonl": (
        vertex("a.jpg", "validation", "classificationAnnotation", HAT)
        + vertex("b.jpg", "test", "classificationAnnotations", HAT, CAP),
        {"a.jpg": ("validation", ("hat",)), "b.jpg": ("test", ("hat", "cap"))},
    ),
    "validation-labels.csv": (
        LABELS,
        {"a.jpg": ("validation", ("Hat",)), "b.jpg": ("validation", ("/m/3",))},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_published_tables_are_read_as_they_are(tmp_path, name):
    text, expected = FORMS[name]
    write_files(tmp_path, {name: text, **dict.fromkeys(expected, "x")})
    if name.startswith("validation"):
        write_files(tmp_path, {"class-descriptions-boxable.csv": "/m/1,Hat\n/m/3,Cap\n/m/4,Cap\n"})
    keep = {"several_classes": "keep"} if isinstance([*expected.values()][-1][1], tuple) else {}
    found = {}
    for one in list_references(name.rpartition(".")[2], tmp_path, **keep):
        boxes = [(box.label, box.xmin, box.ymin, box.xmax, box.ymax) for box in one.boxes or ()]
        found[one.source] = (one.split, one.labels or [*boxes, *(bad[0] for bad in one.bad_objects)])
    assert found == expected


def test_metadata_in_parquet_are_those_of_jsonl_and_pictures_in_lists_are_refused(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, row in (
        ("metadata", {"file_name": "a.jpg", "objects": OBJECTS}),
        ("packed", {"image": [b"x"]}),
    ):
        parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / f"{name}.parquet")
    write(tmp_path, hugging("a.jpg", **OBJECTS), "a.jpg", table="plain.jsonl")
    plain, packed = (list_references("jsonl", tmp_path, name) for name in ("plain.jsonl", "metadata.parquet"))
    assert plain[0].boxes == packed[0].boxes and len(plain[0].boxes or ()) == 2
    with pytest.raises(AnnotationsError, match="column image holds the bytes of several pictures"):
        list_references("jsonl", tmp_path, "packed.parquet")


def draw(root, layout, lines, files):
    write_files(root, {name: "x" * (len(name) % 7) for name in files})
    header = ("filename", "class", "split", "group")
    if layout == "csv":
        text = "\ufeff" + "\n".join(",".join(line) for line in (header, *lines)) + "\n"
    else:
        text = "".join(json.dumps(dict(zip(header, line, strict=True))) + "\n" for line in lines)
    (root / f"table.{layout}").write_text(text)


def listed(root, layout, **options):
    return list_references(layout, root, f"table.{layout}", task="classification", **options)


@pytest.mark.parametrize("layout", ["csv", "jsonl"])
def test_the_same_references_and_faults_come_of_a_table_that_is_not_held(tmp_path, monkeypatch, layout):
    generator = random.Random(3)
    files = [place.format(number) for number in range(60) for place in ("a/{:03d}.jpg", "b/{:03d}.JPG")]
    files += ["c/only.jpg", "d/1.jpg"]
    classes = ["hat", "Hat", "coat"]
    lines = [[name, generator.choice(classes), "train", f"g{name[-5]}"] for name in files[:100]]
    lines += [["b/007.jpg", "hat", "train", "g7"], ["only.jpg", "coat", "train", "g"]]
    lines += [["a/900.jpg", "hat", "train", ""]]
    lines += [["a/900.jpg", "hat", "train", ""], ["", "hat", "train", ""], ["a/./058.jpg", "", "train", "g8"]]
    lines += [[line[0], "boot", *line[2:]] for line in generator.sample(lines[:60], 25)]
    generator.shuffle(lines)
    draw(tmp_path, layout, lines, files)
    options = {"several_classes": "keep"}
    held = listed(tmp_path, layout, **options)
    assert sum(one.problem is not None for one in held) > 10 and sum(bool(one.notes) for one in held) > 10
    with pytest.raises(AnnotationsError, match="two values of class") as told:
        listed(tmp_path, layout)
    monkeypatch.setattr(tables, "MAX_CACHED_BYTES", 5)
    monkeypatch.setattr(spill, "SORT_CHUNK", 7)
    assert listed(tmp_path, layout, **options) == held
    with pytest.raises(AnnotationsError, match=re.escape(str(told.value))):
        listed(tmp_path, layout)


def fill(records, count):
    for number in range(count):
        records.add((f"{number * 7919 % count:08d}", number, ("hat", None)))
    last, found = ("", -1), 0
    for text, number, _ in records:
        assert last < (text, number)
        last, found = (text, number), found + 1
    return found


def test_sorting_on_a_full_disk_says_so_and_names_that_are_no_text_sort_by_their_characters(monkeypatch):
    monkeypatch.setattr(spill, "SORT_CHUNK", 2)
    names = ["b", "a\udcff", "a\uffff", "a\ud7ff", "a\U0001f600", "a"]
    records = ExternalSort()
    for number, name in enumerate(names):
        records.add((name, number, [name]))
    assert [text for text, _, _ in records] == sorted(names)
    assert [value for _, _, value in records] == [[name] for name in sorted(names)]
    records._database.execute("pragma max_page_count = 10")
    with pytest.raises(OSError, match="temporary file: database or disk is full") as refused:
        fill(records, 10_000)
    assert describe_error(refused.value).endswith(FIXES[errno.ENOSPC])


@pytest.mark.parametrize("layout", ["csv", "jsonl"])
@pytest.mark.parametrize("change", ["longer", "shorter", "other", "no text"])
def test_a_table_that_changes_between_two_passes_is_noticed(tmp_path, monkeypatch, layout, change):
    monkeypatch.setattr(tables, "MAX_CACHED_BYTES", 5)
    files = [f"{number}.jpg" for number in range(30)]
    draw(tmp_path, layout, [[name, "hat", "train", ""] for name in files], files)
    table = tmp_path / f"table.{layout}"
    before = table.read_bytes()
    line = before.splitlines(keepends=True)[-1]
    changed = {"longer": before + line, "shorter": before.removesuffix(line)}
    changed |= {"other": before.replace(b"29", b"28"), "no text": before.replace(b"29", b"\xff\xff")}
    passes = []

    def opens(files, path, opened=LocalFiles.open):
        passes.append(path)
        if len(passes) == 2:
            table.write_bytes(changed[change])
        return opened(files, path)

    monkeypatch.setattr(LocalFiles, "open", opens)
    with pytest.raises(AnnotationsError, match="changed while it was read"):
        listed(tmp_path, layout)


def test_a_large_table_is_not_held_and_sorting_it_takes_a_part_of_its_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_CACHED_BYTES", 1 << 16)
    monkeypatch.setattr(spill, "SORT_CHUNK", 1_000)
    (tmp_path / "a.jpg").touch()
    (tmp_path / "table.csv").write_text("filename,class,note\n" + f"a.jpg,hat,{'x' * 1_000}\n" * 20_000)
    sources = LocalFiles(tmp_path)
    with traced() as found:
        (only,) = find_layout("csv").list_references(sources, sources, "table.csv", LayoutOptions())
    assert only.label == "hat" and found.peak < 12_000_000  # of 20 MB of text
    monkeypatch.setattr(spill, "SORT_CHUNK", 2_000)
    with traced() as found:
        assert fill(ExternalSort(), 80_000) == 80_000
    assert found.peak < 80_000 * 20  # a record takes 200 bytes


@pytest.mark.parametrize("size", [1 << 22, 5])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\xff", b"\xe2\x82"])
def test_the_first_byte_that_is_no_text_is_named(tmp_path, monkeypatch, size, start, end):
    monkeypatch.setattr(tables, "MAX_CACHED_BYTES", size)
    monkeypatch.setattr(tables, "_CHUNK_BYTES", 7)
    text = start + "filename,class\né€.jpg,hat\n".encode()
    (tmp_path / "table.csv").write_bytes(text + end)
    with pytest.raises(AnnotationsError, match=f"byte {len(text)} is 0x{end[0]:02x}"):
        listed(tmp_path, "csv")
