"""CSV and JSONL tables."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import unicodedata
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from halofeed.schemas.errors import AnnotationsError, Problem
from tests.support.layout_references import list_references, outcome, write_files

read = partial(list_references, "csv")


def write(root: Path, text: str | bytes, *images: str, table: str = "labels.csv") -> None:
    write_files(root, {table: text, **dict.fromkeys(images, "x")})


def test_cards_tables_give_670_boxes_as_they_are_written(test_data: Path) -> None:
    root = test_data / "detection" / "cards_voc"
    references = read(root)
    expected: dict[tuple[str, str], list[tuple[object, ...]]] = {}
    for split in ("train", "test"):
        with open(root / f"{split}_labels.csv", newline="") as lines:
            for row in csv.DictReader(lines):
                box = (row["class"], *(float(row[side]) for side in ("xmin", "ymin", "xmax", "ymax")))
                expected.setdefault((split, Path(row["filename"]).stem), []).append(box)
    assert len(references) == 363 == len(expected)
    assert sum(map(len, expected.values())) == 670
    for reference in references:
        assert reference.problem is None and reference.boxes is not None
        written = expected[reference.split, Path(reference.source).stem]
        assert [(box.label, box.xmin, box.ymin, box.xmax, box.ymax) for box in reference.boxes] == written
        assert reference.source.split("/")[0] == reference.split
        assert (root / reference.source).is_file()


def test_one_named_table_is_the_only_one_read(test_data: Path) -> None:
    references = read(test_data / "detection" / "cards_voc", "test_labels.csv")
    assert {reference.split for reference in references} == {"test"}
    assert len(references) == 67
    assert all(reference.problem is None for reference in references)


def test_every_odd_image_is_found_through_a_table(test_data: Path, tmp_path: Path) -> None:
    images = test_data / "odd" / "images"
    suffixes = (".jpg", ".jpeg", ".png", ".webp")
    found = (path for path in images.rglob("*") if path.suffix.lower() in suffixes)
    paths = sorted(str(path.relative_to(images)) for path in found)
    write(tmp_path, "filename,class\n" + "".join(f"{path},odd\n" for path in paths))
    references = read(tmp_path, "labels.csv", images=images)
    assert [reference.source for reference in references] == paths
    assert all(reference.label == "odd" and reference.problem is None for reference in references)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_delimiters_marks_quotes_and_blank_lines_do_not_matter(
    tmp_path: Path, delimiter: str, start: str, end: str
) -> None:
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


BOXES = "filename,width,height,class,xmin,ymin,xmax,ymax,is_crowd,difficult,truncated,area,id\n"


def test_rows_of_an_image_need_not_be_adjacent_and_an_empty_row_has_no_boxes(tmp_path: Path) -> None:
    rows = "a.jpg,10,20,hat,1,2,3,4,1,,,5.5,17\nb.jpg,0,0,,,,,,,,,,18\na.jpg,10,20,coat,0.5,0,10,20,,true,1,,17\n"
    write(tmp_path, BOXES + rows, "a.jpg", "b.jpg")
    first, second = read(tmp_path, "labels.csv")
    assert first.key == "17" and first.declared_size == (20, 10) and first.label is None
    assert first.boxes is not None and [box.label for box in first.boxes] == ["hat", "coat"]
    assert first.boxes[0].is_crowd and first.boxes[0].area == 5.5 and not first.boxes[0].truncated
    assert first.boxes[1].difficult and first.boxes[1].truncated and first.boxes[1].xmin == 0.5
    assert second.boxes == () and second.declared_size is None and second.problem is None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a.jpg,1,1,hat,x,0,1,1,,,,,", "not a number"),
        ("a.jpg,1,1,hat,1_0,0,11,1,,,,,", "not a number"),
        ("a.jpg,1,1,hat,nan,0,1,1,,,,,", "number is not finite"),
        ("a.jpg,1,1,hat,0,0,1e999,1,,,,,", "number is not finite"),
        ("a.jpg,1,1,hat,5,0,1,1,,,,,", "box is inverted"),
        ("a.jpg,1,1,hat,,0,1,1,,,,,", "row has no complete box"),
        ("a.jpg,1,1,hat,,,,,,,,,", "row has no complete box"),
        ("a.jpg,1,1,,0,0,1,1,,,,,", "box has no class"),
        ("a.jpg,1,1,hat,0,0,1,1,maybe,,,,", "flag is neither 0 nor 1"),
        ("a.jpg,1.5,1,hat,0,0,1,1,,,,,", "size is not whole pixels"),
        ("a.jpg,1,1,hat,0,0,1,1", "row has the wrong number of cells"),
        ("a.jpg,1,1,hat,0,0,1,1,,,,,\na.jpg,1,2,hat,0,0,1,1,,,,,", "rows disagree about the size"),
    ],
)
def test_a_faulty_row_is_its_images_problem_and_names_the_line(tmp_path: Path, row: str, reason: str) -> None:
    write(tmp_path, f"{BOXES}good.jpg,1,1,hat,0,0,1,1,,,,,\n{row}\n", "a.jpg", "good.jpg")
    faulty, good = read(tmp_path, "labels.csv", on_bad_object="reject")
    assert good.problem is None
    assert faulty.source == "a.jpg" and faulty.problem is not None
    assert faulty.problem[:2] == ("annotation", reason)
    assert "labels.csv:" in faulty.problem[2] or reason == "size is not whole pixels"


def test_every_row_and_every_image_is_accounted_for(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("document,name\na.jpg,hat\n", ["labels.csv", "no column filename, class", "document, name"]),
        ("filename,class,xmin\na.jpg,hat,1\n", ["no column ymin, xmax, ymax", "filename, class, xmin"]),
        ("filename,class,class\n", ["class comes twice"]),
        ("", ["no column filename, class", "found nothing"]),
        (
            "filename,class\na.jpg,hat\na.jpg,coat\n",
            ["a.jpg", "'hat' (labels.csv:2)", "'coat' (labels.csv:3)"],
        ),
        ("filename,class,split\na.jpg,hat,train\na.jpg,hat,test\n", ["two values of split", "labels.csv:3"]),
        (b"filename,class\n\xff.jpg,hat\n", ["UTF-8", "byte 15", "0xff"]),
    ],
)
def test_faults_of_a_table_name_the_file_and_the_cure(tmp_path: Path, text: str, words: list[str]) -> None:
    write(tmp_path, text, "a.jpg")
    with pytest.raises(AnnotationsError) as caught:
        read(tmp_path, "labels.csv")
    for word in words:
        assert word in str(caught.value)


def test_detection_needs_box_columns(tmp_path: Path) -> None:
    write(tmp_path, "filename,class\na.jpg,hat\n", "a.jpg")
    with pytest.raises(AnnotationsError, match="no columns xmin,ymin,xmax,ymax; found filename, class"):
        read(tmp_path, "labels.csv", task="detection")


def test_images_in_another_folder_must_be_named(tmp_path: Path) -> None:
    write(tmp_path, "filename,class\na.jpg,hat\n")
    with pytest.raises(AnnotationsError, match="name the folder that holds the images"):
        read(tmp_path, "labels.csv")


def test_jsonl_gives_what_the_same_csv_gives(tmp_path: Path, test_data: Path) -> None:
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


def test_jsonl_null_bools_and_absent_keys(tmp_path: Path) -> None:
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
    write(tmp_path, '{"filename": "a.jpg", "class": "hat"}\n{nonsense\n', table="bad.jsonl")
    with pytest.raises(AnnotationsError, match=r"bad\.jsonl:2"):
        list_references("jsonl", tmp_path, "bad.jsonl")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"filename": "a.jpg", "class": {"name": "hat"}}, "class: expected text or a number, got an object"),
        ({"filename": ["a.jpg"], "class": "hat"}, "filename: expected text or a number, got a list"),
        ({"filename": "a.jpg", "class": "", "group": {}}, "group: expected text or a number, got an object"),
        ({"filename": "a.jpg", "class": "h\0at"}, "class: holds a NUL character"),
    ],
)
def test_cells_that_are_no_text_are_refused_by_line_and_column(tmp_path: Path, row: Any, said: str) -> None:
    good = json.dumps({"filename": "a.jpg", "class": 3, "extra": ["not", {"looked": "at"}]})
    write(tmp_path, f"{good}\n{json.dumps(row)}\n", "a.jpg", table="labels.jsonl")
    with pytest.raises(AnnotationsError, match=rf"labels\.jsonl:2: {said}"):
        list_references("jsonl", tmp_path)


def test_a_nul_character_in_a_csv_is_refused_by_line_and_column(tmp_path: Path) -> None:
    write(tmp_path, "filename,class\na.jpg,h\0at\n", "a.jpg")
    with pytest.raises(AnnotationsError, match=r"labels\.csv:2: .*NUL"):
        read(tmp_path)


OPEN_IMAGES = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsInside\n"
)


def test_a_table_of_open_images_is_read_as_it_is_published(tmp_path: Path) -> None:
    rows = "0a1b,xclick,/m/01,1,0.1,0.5,0.2,0.75,0,1,0,0\n9f.2,xclick,/m/02,1,0,1,0,1,-1,-1,-1,-1\n"
    write(tmp_path, OPEN_IMAGES + rows, "validation/0a1b.jpg", "validation/9f.2.jpg")
    references = {one.source: one for one in read(tmp_path, "labels.csv", keep=("group_of",))}
    (first,), (second,) = (references[f"validation/{name}.jpg"].boxes or () for name in ("0a1b", "9f.2"))
    assert (first.xmin, first.ymin, first.xmax, first.ymax) == (0.1, 0.2, 0.5, 0.75) and first.truncated
    assert not second.group_of and not second.truncated
    assert references["validation/0a1b.jpg"].normalized


def lost(root: Path) -> Problem:
    """What is wrong with the one row that means no picture."""
    problems = [one.problem for one in read(root, "labels.csv") if one.problem]
    (only,) = [problem for problem in problems if problem[0] == "annotation"]
    return only


def test_an_id_that_is_the_name_of_two_pictures_is_neither(tmp_path: Path) -> None:
    write(tmp_path, "image_id,label\n7,hat\n", "a/7.jpg", "b/7.png")
    assert lost(tmp_path)[1] == "file name is ambiguous"


def test_a_picture_of_another_extension_is_named_and_not_taken(tmp_path: Path) -> None:
    write(tmp_path, "filename,label\na.png,hat\n", "a.jpg")
    assert "a.jpg has that name and another extension" in lost(tmp_path)[2]


def test_empty_cells_beyond_the_header_are_none(tmp_path: Path) -> None:
    write(tmp_path, "filename,label\na.jpg,hat,\nb.jpg,hat,,\nc.jpg,hat,x\n", "a.jpg", "b.jpg", "c.jpg")
    assert [one.source for one in read(tmp_path) if one.problem is None] == ["a.jpg", "b.jpg"]


def test_a_table_without_rows_and_one_that_is_none_are_refused_with_the_cure(tmp_path: Path) -> None:
    write(tmp_path, "filename,label\n", "a.jpg")
    with pytest.raises(AnnotationsError, match=r"labels\.csv: a header and no rows"):
        read(tmp_path)
    write(tmp_path, "/m/01,Airplane\n", table="descriptions.csv")
    with pytest.raises(
        AnnotationsError, match=r"descriptions\.csv, labels\.csv name the one to read with --source"
    ):
        read(tmp_path)


CORNERS = "filename,class,xmin,ymin,xmax,ymax\n"


def test_tables_in_folders_of_splits_speak_of_the_images_beside_them(tmp_path: Path) -> None:
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


def test_tables_in_other_folders_are_named_and_none_is_read(tmp_path: Path) -> None:
    write(tmp_path, f"{CORNERS}a.jpg,hat,1,2,9,8\n", "a.jpg", table="tables/boxes.csv")
    with pytest.raises(AnnotationsError, match=r"tables/boxes\.csv lie below it.; name the table itself"):
        read(tmp_path)


def test_accents_may_be_composed_or_taken_apart(tmp_path: Path) -> None:
    table, file = (unicodedata.normalize(form, "größe.jpg") for form in ("NFC", "NFD"))
    write(tmp_path, f"{CORNERS}{table},hat,1,2,9,8\n", file)
    (only,) = read(tmp_path)
    assert only.problem is None and only.source == file


def test_classes_that_differ_in_case_or_blanks_alone_are_warned_of(tmp_path: Path) -> None:
    write(tmp_path, "filename,class\na.jpg,Red hat\nb.jpg,red  hat\nc.jpg,coat\n", "a.jpg", "b.jpg", "c.jpg")
    notes = {one.source: one.notes for one in read(tmp_path)}
    said = "classes of their own that differ in case or blanks alone: 'Red hat', 'red  hat'"
    assert notes == {"a.jpg": (said,), "b.jpg": (said,), "c.jpg": ()}


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ("caf\u00e9", "cafe\u0301", "U+00E9"),  # NFC and NFD
        ("dog", "d\u043eg", "U+043E"),  # Cyrillic
        ("alpha", "\u03b1lpha", "U+03B1"),  # Greek
        ("red hat", "red\u00a0hat", "U+00A0"),
        ("hat", "h\u200bat", "U+200B"),
        ("hat", "\u202ahat\u202c", "U+202A U+202C"),
        ("\uff48at", "hat", "U+FF48"),  # NFKC
        ("T-shirt", "T\u2010shirt", "U+2010"),
        ("left_kidney", "left kidney", "'left_kidney'"),
        ("traffic-light", "Traffic_Light", "'traffic-light'"),
    ],
)
def test_classes_that_look_alike_are_warned_of_with_what_differs(
    tmp_path: Path, one: str, other: str, shown: str
) -> None:
    write(tmp_path, f"filename,class\na.jpg,{one}\nb.jpg,{other}\nc.jpg,coat\n", "a.jpg", "b.jpg", "c.jpg")
    notes = {found.source: found.notes for found in read(tmp_path)}
    assert notes["a.jpg"] == notes["b.jpg"] and not notes["c.jpg"]
    assert "classes of their own that look alike: " in notes["a.jpg"][0] and shown in notes["a.jpg"][0]


@pytest.mark.parametrize(
    "names", [("-1", "1"), ("caf\u00e9", "cafe"), ("ab", "a-b"), ("\u72ac", "\u732b"), ("0", "O")]
)
def test_classes_that_can_be_told_from_each_other_are_not_warned_of(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    write(tmp_path, f"filename,class\na.jpg,{names[0]}\nb.jpg,{names[1]}\n", "a.jpg", "b.jpg")
    assert not any(one.notes for one in read(tmp_path))


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
def test_tables_without_a_header_with_a_separator_and_with_a_column_a_class_are_read(
    tmp_path: Path, text: str
) -> None:
    write(tmp_path, text, *CLASSES)
    references = read(tmp_path)
    assert {one.source: one.label for one in references} == CLASSES
    assert any("no header line" in note for one in references for note in one.notes) is (text == ROWS)


def test_a_row_of_several_ones_has_several_classes_and_one_of_none_has_none(tmp_path: Path) -> None:
    write(tmp_path, "filename,hat,coat\na.jpg,1,1\nb.jpg,0,0\n", "a.jpg", "b.jpg")
    with pytest.raises(AnnotationsError, match=r"two values of class: 'hat'.*--several-classes keep"):
        read(tmp_path)
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
        ("TRAIN,gs://x/a.jpg,hat,1,2,,,9,8,,\n", {}, [(1, 2, 9, 8, "hat")]),  # Google's AutoML
        ('image_id,bbox\na,"[1, 2, 8, 6]"\n', {"box_form": "corner-size"}, [(1, 2, 9, 8, "object")]),
        ("filename,xmin,ymin,xmax,ymax\r\na.jpg,1,2,9,8\r\n", {}, [(1, 2, 9, 8, "object")]),
    ],
)
def test_the_command_for_a_table_without_header_or_class_makes_it_readable(
    tmp_path: Path, text: str, options: dict[str, str], boxes: list[tuple[object, ...]]
) -> None:
    write(tmp_path, text, "a.jpg", "b.jpg")
    with pytest.raises(AnnotationsError) as raised:
        read(tmp_path, **options)
    command = re.search(r"sed -i '[^']+' \S+", str(raised.value))
    assert command is not None
    subprocess.run(shlex.split(command[0]), check=True)
    found = [box for one in read(tmp_path, **options) for box in one.boxes or ()]
    assert [(box.xmin, box.ymin, box.xmax, box.ymax, box.label) for box in found] == boxes
