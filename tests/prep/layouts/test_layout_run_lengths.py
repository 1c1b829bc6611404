"""Tables of run lengths become the masks that were drawn, by whatever rule their numbers follow."""

import csv
import io
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.run_length_columns import holds_run_lengths
from halofeed.prep.convert.label_image import read_label_image
from halofeed.prep.voxels.masks import draw_mask
from halofeed.prep.voxels.run_lengths import RunRule, compress_counts, mask_of_runs, parse_runs
from tests.support.annotation_writer import draw
from tests.support.conversions import halofeed_here, read_split, run_convert
from tests.support.layout_references import detected, list_references

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # of pycocotools with NumPy 2
Mask = NDArray[np.bool_]
SIZE = (40, 64)


def pairs(mask: Mask, order: str = "F", origin: int = 1, relative: bool = False) -> str:
    """The run lengths of a mask, pixel by pixel."""
    written, end = [], 0
    at = 0
    for inside, run in groupby(mask.flatten(order=order).tolist()):  # type: ignore[arg-type]
        length = len(list(run))
        if inside:
            written += [at - end if relative else at + origin, length]
            end = at + length
        at += length
    return " ".join(map(str, written))


def ellipse(y: int, x: int, size: tuple[int, int] = SIZE, radii: tuple[int, int] = (6, 9)) -> Mask:
    rows, columns = np.mgrid[: size[0], : size[1]]
    return ((rows - y) / radii[0]) ** 2 + ((columns - x) / radii[1]) ** 2 <= 1


def box_of(mask: Mask) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero(mask)
    return rows.min(), columns.min(), rows.max() + 1, columns.max() + 1


DRAWN = {
    "a.png": [ellipse(3, 10), ellipse(30, 40)],
    "b.png": [ellipse(20, 60), ellipse(20, 4)],
    "c.png": [],
    "d.png": [ellipse(38, 30) & ~ellipse(38, 30, radii=(2, 3))],
}


def write_table(path: Path, rows: Iterable[Iterable[object]], delimiter: str = ",") -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    path.write_text(text.getvalue())


def write(root: Path, name_of: Callable[[str], str] = str, empty: str = "", **rule: Any) -> None:
    draw(root, *DRAWN, size=SIZE)
    rows = [
        (name_of(name), pairs(mask, **rule) if mask is not None else empty)
        for name, masks in DRAWN.items()
        for mask in masks or [None]
    ]
    write_table(root / "train.csv", [("ImageId", "EncodedPixels"), *rows])


def read(root: Path, **options: Any) -> dict[str, Any]:
    return {one.source: one for one in list_references("run-lengths", root, **options)}


RULES = {
    "Kaggle's": {},
    "SIIM's": {"relative": True, "origin": 0},
    "along the rows": {"order": "C"},
    "from 0": {"origin": 0},
    "along the rows from 0": {"order": "C", "origin": 0},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name_of", [str, lambda name: name[:-4]], ids=["names", "stems"])
def test_each_rule_gives_the_drawn_masks(tmp_path, rule, name_of):
    write(tmp_path, name_of, empty="-1" if rule == "SIIM's" else "", **RULES[rule])
    assert detected(tmp_path) == "run-lengths"
    found = read(tmp_path, masks=True)
    for name, masks in DRAWN.items():
        boxes = found[name].boxes
        assert [(box.ymin, box.xmin, box.ymax, box.xmax) for box in boxes] == list(map(box_of, masks))
        assert [box.area for box in boxes] == [mask.sum() for mask in masks]
        for box, mask in zip(boxes, masks, strict=True):
            assert np.array_equal(draw_mask(box.mask, SIZE), mask)
            assert np.array_equal(coco_mask.decode(box.mask), mask)
    assert not any(one.problem for one in found.values())


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_masks_come_back_from_their_runs_by_every_rule(data):
    size = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=size[0] * size[1], max_size=size[0] * size[1]))
    )
    mask = mask.reshape(size)
    order, origin = data.draw(st.sampled_from("FC")), data.draw(st.integers(0, 1))
    relative = data.draw(st.booleans())
    rule = RunRule(
        order="columns" if order == "F" else "rows", origin=0 if relative else origin, relative=relative
    )
    text = pairs(mask, order, origin, relative)
    found = mask_of_runs(parse_runs(text), rule, size) if text else None
    if found is None:
        assert not mask.any()
        return
    assert np.array_equal(coco_mask.decode(found.code), mask)
    assert found.box == box_of(mask) and found.area == mask.sum()
    expected = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
    assert found.code["counts"] == bytes(expected).decode()


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=8))
def test_compressed_counts_are_those_of_pycocotools(counts):
    packed = coco_mask.frPyObjects({"size": [1, sum(counts)], "counts": counts}, 1, sum(counts))
    assert compress_counts(counts) == bytes(packed["counts"]).decode()


def write_classes(root: Path, fused: bool, empty: str = "") -> dict[str, Mask]:
    """Pictures with the masks of classes 1, 2 and 10, one row for each; class 1 of a.png has two rows."""
    truth = {
        "a.png": [("1", ellipse(10, 10)), ("1", ellipse(30, 10)), ("2", ellipse(30, 40))],
        "b.png": [("10", ellipse(20, 30))],
        "c.png": [],
    }
    draw(root, *truth, size=SIZE)
    rows: list[tuple[str, ...]] = []
    for name, masks in truth.items():
        absent = [label for label in ("1", "2", "10") if label not in dict(masks)]
        cells = [(label, pairs(mask)) for label, mask in masks] + [(label, empty) for label in absent]
        rows += [(f"{name}_{label}", cell) if fused else (name, label, cell) for label, cell in cells]
    header = ("ImageId_ClassId", "EncodedPixels") if fused else ("ImageId", "ClassId", "EncodedPixels")
    write_table(root / "train.csv", [header, *rows])
    ids = {"1": 1, "2": 2, "10": 3}
    return {
        name: sum((ids[label] * mask.astype(np.uint8) for label, mask in masks), np.zeros(SIZE, np.uint8))
        for name, masks in truth.items()
    }


@pytest.mark.parametrize("fused", [True, False])
def test_rows_of_classes_become_label_images(tmp_path, fused):
    expected = write_classes(tmp_path / "in", fused)
    words = ("--task", "segmentation", "--resize", "none", "--encoding", "png")
    done = halofeed_here("convert", "--source", tmp_path / "in", "--out", tmp_path, "--name", "out", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    records = list(read_split(tmp_path / "out" / "1.0.0", "train"))
    found = {
        Path(bytes(one["image/filename"][0]).decode()).name: read_label_image(
            bytes(one["image/label"][0]), 1 << 20
        )
        for one in records
    }
    assert {name: label.tolist() for name, label in found.items()} == {
        name: label.tolist() for name, label in expected.items()
    }


def test_classes_of_rows_are_chosen_and_tiled_as_those_of_label_images(tmp_path):
    expected = write_classes(tmp_path / "in", fused=True)
    run_convert(
        tmp_path / "in",
        tmp_path / "tiles",
        layout="run-lengths",
        task="segmentation",
        map_classes=("10=2",),
        fit="tiles",
        height=20,
        width=32,
        resize="fixed-shape",
    )
    pixels = np.zeros(3, np.int64)
    for one in read_split(tmp_path / "tiles" / "set" / "1.0.0", "train"):
        label = np.frombuffer(one["image/label"][0], np.uint8)
        pixels += np.bincount(label, minlength=3)
    whole = np.concatenate([label.reshape(-1) for label in expected.values()])
    assert pixels.tolist() == np.bincount(np.where(whole == 3, 2, whole), minlength=3).tolist()


def test_rows_of_objects_have_the_class_behind_the_name(tmp_path):
    write_classes(tmp_path, fused=True, empty="nan")
    found = read(tmp_path)
    assert {name: [box.label for box in one.boxes] for name, one in found.items()} == {
        "a.png": ["1", "1", "2"],
        "b.png": ["10"],
        "c.png": [],
    }


def test_squares_follow_kaggles_rule_with_a_note_and_an_option(tmp_path):
    size = (48, 48)
    mask = ellipse(10, 30, size)
    draw(tmp_path, "a.png", size=size)
    write_table(tmp_path / "a.csv", [("id", "rle"), ("a.png", pairs(mask, "C"))])
    (one,) = read(tmp_path).values()
    assert one.boxes[0].ymin == box_of(mask)[1] and "--run-lengths rows" in " ".join(one.notes)
    (one,) = read(tmp_path, run_lengths="rows").values()
    assert one.boxes[0].ymin == box_of(mask)[0] and "--run-lengths" not in " ".join(one.notes)


def test_a_sample_submission_is_no_annotation(tmp_path):
    write(tmp_path)
    draw(tmp_path, "test/t.png", "test/u.png", size=SIZE)
    rows = [("ImageId", "EncodedPixels"), ("t.png", "1 1"), ("u.png", "1 1")]
    write_table(tmp_path / "sample_submission.csv", rows)
    found = read(tmp_path)
    assert found["test/t.png"].problem[1] == "image has no annotation" and len(found["a.png"].boxes) == 2
    with pytest.raises(AnnotationsError, match="all of its masks are the same"):
        list_references("run-lengths", tmp_path, "sample_submission.csv")


def test_bad_runs_are_named_with_their_row(tmp_path):
    draw(tmp_path, "a.png", size=SIZE)
    good = pairs(ellipse(20, 20))
    faults = {
        f"{good} 3": "no pairs of whole numbers",
        f"{good} 9999 3": "do not fit the picture",
        "5 4 7 2 100 2": "do not fit the picture",
    }
    for cell, reason in faults.items():
        write_table(tmp_path / "t.csv", [("image", "rle"), *[("a.png", good)] * 3, ("a.png", cell)])
        (one,) = read(tmp_path).values()
        assert len(one.boxes) == 3 and reason in one.bad_objects[0][0] and "row 4" in one.bad_objects[0][1]
        (one,) = read(tmp_path, on_bad_object="reject").values()
        assert reason in one.problem[1]
        (one,) = read(tmp_path, task="segmentation").values()
        assert reason in one.problem[1]


def test_pictures_of_another_size_are_refused(tmp_path):
    write(tmp_path)
    for name in DRAWN:
        draw(tmp_path, name, size=(10, 16))
    with pytest.raises(AnnotationsError, match=r"leave their pictures .*--images"):
        read(tmp_path)
    write_table(tmp_path / "train.csv", [("a", "rle", "height", "width"), ("a.png", "1 9", 40, 64)])
    assert read(tmp_path)["a.png"].problem[1] == "declared size is not the picture's"


def test_two_columns_of_runs_and_no_column_of_pictures_are_refused(tmp_path):
    draw(tmp_path, "a.png", size=SIZE)
    mask = pairs(ellipse(20, 20))
    write_table(tmp_path / "t.csv", [("image", "one", "two"), ("a.png", mask, mask)])
    with pytest.raises(AnnotationsError, match="one and two hold run lengths; --ignore-columns two"):
        read(tmp_path)
    assert len(read(tmp_path, ignore_columns=("two",))["a.png"].boxes) == 1
    write_table(tmp_path / "t.csv", [("image", "one"), ("x.png", mask)])
    with pytest.raises(AnnotationsError, match="no column names a picture"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a,rle\nx.jpg,\ny.jpg,7 2\n", True),
        ("a,rle\nx.jpg,\n", False),
        ("a;b\nx.jpg;1 2 9 3 20 4\n", True),
        ("a,bbox\nx.jpg,1 2 9 3\n", False),
        ("a,points\nx.jpg,1.5 2 9 3 20 4\n", False),
        ("a,words\nx.jpg,1 2 9 3 20 4\ny.jpg,a cat\n", False),
        ("a,b\nx.jpg," + "7 1 " * 9 + "12", True),
        ("a,b\nx.jpg," + "7 1 " * 9 + "12 1", True),
        ("", False),
    ],
)
def test_a_table_of_runs_shows_in_its_first_lines(text, holds):
    assert holds_run_lengths(text) is holds
