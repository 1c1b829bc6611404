"""A column that the user names has the meaning that the user gives it, in every kind of table."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks.containers import tar_of
from benchmarks.containers import tfrecord_of as tfrecord_file
from halofeed.errors import AnnotationsError, UsageError
from halofeed.prep.annotations.class_marks import parse_class_marks
from halofeed.prep.annotations.stated_columns import parse_columns
from halofeed.prep.layouts import SourceExample
from tests.support.layout_references import detected, list_references, make, write_files

PICTURE = cv2.imencode(".png", np.full((4, 6, 3), 9, np.uint8))[1].tobytes()
ROWS: dict[str, list[object]] = {
    "isic_id": ["a.png", "b.png"],
    "label": ["skin", "skin"],
    "fine_label": ["mole", "wart"],
    "patient": ["1", "2"],
}


def csv_of(rows: Mapping[str, list[object]], mark: str = ",") -> str:
    lines = [list(rows), *([str(cell) for cell in row] for row in zip(*rows.values(), strict=True))]
    return "".join(f"{mark.join(line)}\n" for line in lines)


def jsonl_of(rows: Mapping[str, list[object]]) -> str:
    return "".join(
        json.dumps(dict(zip(rows, row, strict=True))) + "\n" for row in zip(*rows.values(), strict=True)
    )


def parquet_of(rows: Mapping[str, list[object]]) -> bytes:
    """Write rows as Parquet; the column of pictures has their bytes."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    cells = {
        name: [PICTURE if str(cell).endswith(".png") else cell for cell in row] for name, row in rows.items()
    }
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table(cells), stream)
    return stream.getvalue()


def webdataset_of(rows: Mapping[str, list[object]]) -> bytes:
    members: dict[str, bytes | str] = {}
    for number, row in enumerate(zip(*rows.values(), strict=True)):
        document = dict(zip(rows, row, strict=True))
        del document["isic_id"]
        members |= {f"{number}.png": PICTURE, f"{number}.json": json.dumps(document).encode()}
    return tar_of(members)


def tfrecord_of(rows: Mapping[str, list[object]]) -> bytes:
    """Write rows as tf.train.Examples with keys of their own, as Kaggle's TFRecord sets have them."""
    records = []
    for row in zip(*rows.values(), strict=True):
        cells = dict(zip(rows, row, strict=True))
        features = {name: [str(cell).encode()] for name, cell in cells.items()} | {"isic_id": [PICTURE]}
        records.append(features)
    return tfrecord_file(records)


TABLES: dict[str, tuple[str, str, Callable[[Mapping[str, list[object]]], str | bytes]]] = {
    "csv": ("csv", "t.csv", csv_of),
    "tsv": ("csv", "t.csv", lambda rows: csv_of(rows, "\t")),
    "jsonl": ("jsonl", "t.jsonl", jsonl_of),
    "parquet": ("jsonl", "t.parquet", parquet_of),
    "tfrecord": ("tfrecord", "t.tfrecord", tfrecord_of),
}


def labels(found: list[SourceExample]) -> list[str | None]:
    assert all(one.problem is None for one in found), [one.problem for one in found]
    return [one.label for one in found]


@pytest.mark.parametrize("kind", TABLES)
def test_named_columns_are_read_in_every_table_in_place_of_usual_names(tmp_path, kind):
    layout, name, write = TABLES[kind]
    make(tmp_path, *(() if kind in ("parquet", "tfrecord") else ("a.png", "b.png")))
    write_files(tmp_path, {name: write(ROWS)})
    named = {"column": ("image=isic_id", "label=fine_label")}
    assert labels(list_references(layout, tmp_path, **named)) == ["mole", "wart"]
    # Other words for the meanings, and a group in place of --group-column.
    found = list_references(layout, tmp_path, column=("filename=isic_id", "class=label", "group=patient"))
    assert labels(found) == ["skin", "skin"] and [one.group for one in found] == ["1", "2"]


@pytest.mark.parametrize("kind", TABLES)
def test_a_wrong_column_is_refused_with_the_nearest_and_all_columns(tmp_path, kind):
    layout, name, write = TABLES[kind]
    make(tmp_path, "a.png", "b.png")
    write_files(tmp_path, {name: write(ROWS)})
    words = rf"{name}: --column label=fine_lable: .*did you mean fine_label\? found"
    with pytest.raises(AnnotationsError, match=words):
        list_references(layout, tmp_path, column=("image=isic_id", "label=fine_lable"))
    with pytest.raises(
        AnnotationsError, match=r"--column image=isicid: no such column; did you mean isic_id\? found"
    ):
        list_references(layout, tmp_path, column=("image=isicid", "label=fine_label"))


def test_members_of_tar_files_are_named_by_their_extensions_and_keys(tmp_path):
    write_files(tmp_path, {"t.tar": webdataset_of(ROWS)})
    assert labels(list_references("webdataset", tmp_path, column=("label=fine_label",))) == ["mole", "wart"]
    members = {"0.left.png": PICTURE, "0.right.png": PICTURE, "0.cls": b"hat"}
    write_files(tmp_path, {"t.tar": tar_of(members)})
    (found,) = list_references("webdataset", tmp_path, column=("image=right.png",))
    assert found.label == "hat" and "right" in found.source
    with pytest.raises(
        AnnotationsError, match=r"--column image=rigt\.png: did you mean right\.png\? its members are"
    ):
        list_references("webdataset", tmp_path, column=("image=rigt.png",))


def tfds_set(root: Path) -> None:
    """Write a record of TFDS with two classes, a text and two pictures."""
    names = {"label_a": ["hat"], "label_b": ["cat", "dog"]}
    feature: dict[str, object] = {one: {"classLabel": {"numClasses": "2"}} for one in names}
    feature |= {"kind": {"text": {}}, "left": {"image": {}}, "right": {"image": {}}}
    write_files(
        root,
        {
            "features.json": json.dumps({"featuresDict": {"features": feature}}),
            **{f"{one}.labels.txt": "\n".join(texts) + "\n" for one, texts in names.items()},
            "x-train.tfrecord-00000-of-00001": tfrecord_file(
                [
                    {
                        "left": PICTURE,
                        "right": PICTURE[:-1] + b"x",
                        "label_a": np.array([0]),
                        "label_b": np.array([1]),
                        "kind": b"fruit",
                    }
                ]
            ),
        },
    )


def test_features_of_tfds_are_named(tmp_path):
    tfds_set(tmp_path)
    with pytest.raises(AnnotationsError, match=r"name it, such as --column image=left, or rename"):
        list_references("tfrecord", tmp_path)
    with pytest.raises(
        AnnotationsError, match=r"several features are classes.* such as --column label=label_a"
    ):
        list_references("tfrecord", tmp_path, column=("image=left",))
    found = {}
    for label in ("label_a", "label_b", "kind"):
        (only,) = list_references("tfrecord", tmp_path, column=("image=right", f"label={label}"))
        found[label] = only.label
    assert found == {"label_a": "hat", "label_b": "dog", "kind": "fruit"}
    with pytest.raises(
        AnnotationsError, match=r"--column label=label_c: no such column; did you mean label_"
    ):
        list_references("tfrecord", tmp_path, column=("image=left", "label=label_c"))


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (("label",), "expected MEANING=COLUMN, such as label=fine_label"),
        (("lable=x",), r"no meaning 'lable'; did you mean label\? expected one of image, label"),
        (("image=a", "filename=b"), "filename comes twice, first as 'a'"),
        (("label=a", "label=a"), "label comes twice"),
        (("image=a", "label=a"), "'a' is named as image and as label"),
    ],
)
def test_wrong_words_of_the_option_are_refused_with_a_way(written, words):
    with pytest.raises(UsageError, match=words):
        parse_columns(written)
    assert parse_columns(("image=a", "id=a", "group=a"))["id"] == ("a",)


def test_named_sides_lists_and_objects_are_boxes(tmp_path):
    make(tmp_path, "a.jpg")
    box = [(1.0, 2.0, 9.0, 8.0, "hat")]
    tables: dict[str, tuple[str, dict[str, object]]] = {
        "corners": (
            "pic,kind,xl,yt,xr,yb\na.jpg,hat,1,2,9,8\n",
            {"column": ("xmin=xl", "ymin=yt", "xmax=xr", "ymax=yb")},
        ),
        "one corner": ("pic,kind,xmin,ymin,xr,ymax\na.jpg,hat,1,2,9,8\n", {"column": ("xmax=xr",)}),
        "sides": (
            "pic,kind,px,py,pw,ph\na.jpg,hat,1,2,8,6\n",
            {"column": ("x=px", "y=py", "w=pw", "h=ph"), "box_form": "corner-size"},
        ),
        "sides beside corners": (
            "pic,kind,px,py,pw,ph,xmin,ymin,xmax,ymax\na.jpg,hat,5,5,8,6,0,0,1,1\n",
            {"column": ("x=px", "y=py", "w=pw", "h=ph"), "box_form": "center-size"},
        ),
        "a list": (
            'pic,kind,region\na.jpg,hat,"[1, 2, 8, 6]"\n',
            {"column": ("bbox=region",), "box_form": "corner-size"},
        ),
        "one of two lists": (
            'pic,kind,bbox,fine\na.jpg,hat,"[0, 0, 1, 1]","[1, 2, 8, 6]"\n',
            {"column": ("bbox=fine",), "box_form": "corner-size"},
        ),
    }
    found = {}
    for name, (text, options) in tables.items():
        write_files(tmp_path, {"t.csv": text})
        named = {**options, "column": ("image=pic", "label=kind", *options["column"])}  # type: ignore[misc]
        (only,) = list_references("csv", tmp_path, "t.csv", **named)
        found[name] = [(one.xmin, one.ymin, one.xmax, one.ymax, one.label) for one in only.boxes or ()]
    assert found == dict.fromkeys(tables, box)
    row = {"pic": "a.jpg", "things": {"area_box": [[1, 2, 8, 6]], "kind": ["hat"]}}
    write_files(tmp_path, {"t.jsonl": json.dumps(row) + "\n"})
    named = {"column": ("image=pic", "objects=things", "bbox=area_box", "label=kind")}
    (only,) = list_references("jsonl", tmp_path, "t.jsonl", **named)
    assert [(one.xmin, one.ymin, one.xmax, one.ymax, one.label) for one in only.boxes or ()] == box


@pytest.mark.parametrize("write", [csv_of, jsonl_of])
def test_columns_of_label_images_are_named(tmp_path, write):
    make(tmp_path, "a.nii.gz", "a_seg.nii.gz")
    rows = {"ct_file": ["a.nii.gz"], "mask": ["none.nii.gz"], "organ_file": ["a_seg.nii.gz"]}
    name = "t.csv" if write is csv_of else "t.jsonl"
    write_files(tmp_path, {name: write(rows)})
    named = ("image=ct_file", "label=organ_file")
    (found,) = list_references(name[2:], tmp_path, name, task="segmentation", column=named)
    assert (found.source, found.mask) == ("a.nii.gz", "a_seg.nii.gz")
    with pytest.raises(AnnotationsError, match="a picture has one label image: name one column"):
        list_references(name[2:], tmp_path, name, task="segmentation", column=(*named, "label=mask"))


# A column for each class ----------------------------------------------------------------------------------

MARKS = {
    "0 and 1": ["1 0", "0 1", "0 0"],
    "fractions": ["1.0 0.0", "0.0 1.0", "0.0 0.0"],
    "truth": ["true false", "False True", "false FALSE"],
    "-1 is no, as no column holds 0": ["1 -1", "-1 1", "-1 -1"],
    "nothing is no, as there are only marks": ["1 ", " 1", " "],
}
SETS = [("hat",), ("coat",), ()]


def of_marks(root: Path, lines: list[str], **options: object) -> list[SourceExample]:
    rows = "".join(f"{'abc'[at]}.jpg,{line.replace(' ', ',')}\n" for at, line in enumerate(lines))
    make(root, *(f"{'abc'[at]}.jpg" for at in range(len(lines))))
    write_files(root, {"t.csv": "image,hat,coat\n" + rows})
    return list_references("csv", root, "t.csv", **{"several_classes": "keep", **options})


@pytest.mark.parametrize("kind", MARKS)
def test_the_values_of_all_columns_show_what_they_mean(tmp_path, kind):
    found = of_marks(tmp_path, MARKS[kind])
    assert [one.labels for one in found] == SETS
    assert detected(tmp_path) == "csv"
    (note,) = found[0].notes
    assert ("was taken for no" in note) is (" no, " in kind)


def test_values_in_json_and_parquet_are_marks_too(tmp_path):
    make(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    rows = {"image": ["a.jpg", "b.jpg", "c.jpg"], "hat": [1, 0, False], "coat": [False, True, 0.0]}
    write_files(tmp_path, {"t.jsonl": jsonl_of(rows)})
    found = list_references("jsonl", tmp_path, "t.jsonl", several_classes="keep")
    assert [one.labels for one in found] == SETS
    rows = {"image": ["a.png", "b.png", "c.png"], "hat": [1.0, None, 0.0], "coat": [0.0, 1.0, None]}
    write_files(tmp_path, {"t.parquet": parquet_of(rows)})
    marks = {"several_classes": "keep", "class_marks": ("no=blank",)}
    assert [one.labels for one in list_references("jsonl", tmp_path, "t.parquet", **marks)] == SETS


@pytest.mark.parametrize(
    ("lines", "no", "rejected"),
    [
        (["1 0", "-1 1", "0 0"], "no=-1", ["b.jpg"]),
        (["1 0", " 1", "0 0"], "no=blank", ["b.jpg"]),
        (["1 0", "-1 1", "0 "], "no=blank,no=-1", ["b.jpg", "c.jpg"]),
        (["1 -1", "-1 1", " -1"], "no=blank", ["c.jpg"]),
    ],
)
def test_a_value_that_may_mean_two_things_is_asked_for(tmp_path, lines, no, rejected):
    with pytest.raises(AnnotationsError, match=f"--class-marks {no} takes it for no") as caught:
        of_marks(tmp_path, lines)
    assert no.replace("no", "reject") in str(caught.value)
    taken = of_marks(tmp_path, lines, class_marks=tuple(no.split(",")))
    assert [one.labels for one in taken] == SETS and not any(one.problem for one in taken)
    left = of_marks(tmp_path, lines, class_marks=tuple(no.replace("no", "reject").split(",")))
    assert [one.source for one in left if one.problem] == rejected
    yes = of_marks(tmp_path, lines, class_marks=tuple(no.replace("no", "yes").split(",")))
    assert sum(len(one.labels or ()) for one in yes) > 2


def test_columns_that_may_be_classes_beside_others_are_offered_and_can_be_named(tmp_path):
    make(tmp_path, "a.jpg", "b.jpg")
    text = "image,age,Pleural Effusion,Mass,class\na.jpg,40,1,0,x\nb.jpg,50,1,1,y\n"
    write_files(tmp_path, {"t.csv": text.replace(",class", "").replace(",x", "").replace(",y", "")})
    with pytest.raises(AnnotationsError, match=r"'label=Pleural Effusion,label=Mass' --several-classes keep"):
        list_references("csv", tmp_path)
    named = {"column": ("label=Mass", "label=Pleural Effusion"), "several_classes": "keep"}
    for one in (text, text.replace(",class", "").replace(",x", "").replace(",y", "")):
        write_files(tmp_path, {"t.csv": one})
        found = list_references("csv", tmp_path, **named)
        assert [set(one.labels or ()) for one in found] == [
            {"Pleural Effusion"},
            {"Pleural Effusion", "Mass"},
        ]
    write_files(tmp_path, {"t.csv": text.replace(",1,1,", ",2,1,")})
    with pytest.raises(
        AnnotationsError, match=r"t\.csv:3: column Pleural Effusion holds '2'.*--class-marks yes=2"
    ):
        list_references("csv", tmp_path, **named)
    found = list_references("csv", tmp_path, **named, class_marks=("yes=2",))
    assert [set(one.labels or ()) for one in found] == [{"Pleural Effusion"}, {"Pleural Effusion", "Mass"}]


def test_one_message_names_all_options_of_a_table_and_they_read_all_tables_of_the_set(tmp_path):
    header = "Path,Age,Edema,Fracture"
    paths = [f"{split}/{number}.jpg" for split in ("train", "valid") for number in (1, 2)]
    make(tmp_path, *paths)
    write_files(
        tmp_path,
        {
            "train.csv": f"{header}\n{paths[0]},40,1.0,-1.0\n{paths[1]},50,,0.0\n",
            "valid.csv": f"{header}\n{paths[2]},60,1.0,1.0\n{paths[3]},70,0.0,0.0\n",
        },
    )
    with pytest.raises(AnnotationsError) as caught:
        list_references("csv", tmp_path)
    with pytest.raises(AnnotationsError) as detecting:
        detected(tmp_path)
    for message in (str(caught.value), str(detecting.value)):
        assert "label=Edema,label=Fracture --class-marks no=blank,no=-1;" in message
        assert "reject=blank,reject=-1 leaves out" in message and "--source" not in message
    named = {"column": ("label=Edema", "label=Fracture"), "class_marks": ("no=blank", "no=-1")}
    found = {one.source: one for one in list_references("csv", tmp_path, **named, several_classes="keep")}
    assert [found[path].labels for path in paths] == [("Edema",), (), ("Edema", "Fracture"), ()]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (("-1",), "expected yes=VALUE, no=VALUE or reject=VALUE"),
        (("rejekt=-1",), r"did you mean reject\?"),
        (("no=-1", "yes=-1.0"), "-1.0 means no already"),
    ],
)
def test_wrong_marks_are_refused_with_a_way(written, words):
    with pytest.raises(UsageError, match=words):
        parse_class_marks(written)
