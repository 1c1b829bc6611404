"""Are splits, labels and ids settled, or refused, before a picture is read and a file written?"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import AnnotationsError, HalofeedError, JobError, UsageError
from halofeed.prep.layouts import LayoutOptions, pairs
from halofeed.prep.sources.files import LocalFiles
from tests.support.annotation_writer import boxed, draw, voc_object, voc_text, write_annotations
from tests.support.conversions import draw_folders, read_all, rejected_entries, run_convert
from tests.support.layout_sources import LAYOUT_SOURCES

FOLDERS = {"layout": "folders"}


@pytest.fixture
def source(tmp_path) -> Path:
    return draw_folders(tmp_path / "src", 24)


def splits_of(done: Any) -> dict[str, str]:
    records = read_all(Path(done.folder), list(done.manifest.splits))
    return {source: features["split"] for source, features in records.items()}


def fails_and_writes_nothing(kind, match: str, source: Path, out: Path, **options) -> None:
    with pytest.raises(kind, match=match):
        run_convert(source, out, **options)
    assert not out.exists()


def test_shares_divide_the_images_of_each_class(source, tmp_path):
    shares = {"train": 0.5, "validation": 0.25, "test": 0.25}
    given = tuple(f"{name}={share}" for name, share in shares.items())
    done = run_convert(source, tmp_path / "out", split_shares=given, split_seed=3, **FOLDERS)
    found = splits_of(done)
    assert Counter(found.values()) == {"train": 12, "validation": 6, "test": 6}


def count_reads(monkeypatch) -> Counter[str]:
    """Count how often this process reads each local source file."""
    counts: Counter[str] = Counter()
    read = LocalFiles.read_range

    def counted(files: LocalFiles, path: str, start: int, stop: int | None) -> bytes:
        counts[path] += 1
        return read(files, path, start, stop)

    monkeypatch.setattr(LocalFiles, "read_range", counted)
    return counts


@pytest.mark.parametrize(
    ("name", "most"), [("csv", 1), ("jsonl", 1), ("coco", 1), ("voc", 1), ("msd", 3), ("nnunet", 3)]
)
def test_planning_reads_each_annotation_file_once(name, most, tmp_path, monkeypatch):
    # dataset.json is small: its channels are checked before the listing, and its classes are read after it.
    (tmp_path / "src").mkdir()
    drawn = LAYOUT_SOURCES[name](tmp_path / "src")
    counts = count_reads(monkeypatch)
    run_convert(tmp_path / "src", tmp_path / "out", **drawn.options)
    annotations = drawn.tables or drawn.labels
    assert {path: counts[path] for path in annotations} == dict.fromkeys(annotations, most)


def test_planning_reads_data_yaml_of_yolo_once(tmp_path, monkeypatch):
    source = draw(tmp_path / "src", "images/a.png")
    (source / "labels").mkdir()
    (source / "labels/a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (source / "data.yaml").write_text("names: [hat, unused]\n")
    counts = count_reads(monkeypatch)
    done = run_convert(source, tmp_path / "out", layout="yolo")
    assert (counts["data.yaml"], counts["labels/a.txt"]) == (1, 1)
    assert [*done.manifest.labels.values()] == ["hat", "unused"]


def draw_panoptic(root: Path) -> Path:
    """Draw a picture with one segment of id 5, which is the class cat, and write its panoptic file."""
    draw(root / "images", "a.png")
    (root / "annotations/panoptic_train").mkdir(parents=True)
    pixels = np.zeros((16, 24, 3), np.uint8)
    pixels[:4, :6, 0] = 5
    Image.fromarray(pixels).save(root / "annotations/panoptic_train/a.png")
    segment = {"id": 5, "category_id": 9, "bbox": [0, 0, 6, 4], "area": 24, "iscrowd": 0}
    document = {
        "images": [{"id": 7, "file_name": "a.png"}],
        "annotations": [{"image_id": 7, "file_name": "a.png", "segments_info": [segment]}],
        "categories": [{"id": 9, "name": "cat", "isthing": 1}],
    }
    (root / "annotations/panoptic_train.json").write_text(json.dumps(document))
    return root


def test_planning_reads_a_panoptic_file_once_and_colors_of_its_segments_are_no_classes(tmp_path, monkeypatch):
    source = draw_panoptic(tmp_path / "src")
    # The color of segment 5 is that of a class in a table that belongs to other label images.
    (source / "labelmap.txt").write_text("# label:color_rgb:parts:actions\ndog:5,0,0::\nbackground:0,0,0::\n")
    counts = count_reads(monkeypatch)
    done = run_convert(source, tmp_path / "out", layout="coco", task="segmentation")
    assert counts["annotations/panoptic_train.json"] == 1
    assert [*done.manifest.labels.values()] == ["background", "cat"]


def test_wrong_options_are_refused_and_nothing_is_written(source, tmp_path):
    for options, kind, match in (
        ({"split_shares": ("train",)}, UsageError, "expected name=share"),
        ({"split_shares": ("tr ain=1",)}, UsageError, "split 'tr ain': expected letters"),
        ({"split_shares": ("Train=0.5", "train=0.5")}, UsageError, "upper and lower case"),
        ({"split_lists": ("train=/no/such/list.txt",)}, UsageError, "/no/such/list.txt"),
        ({"split_lists": ("train.txt",)}, UsageError, "expected name=file"),
        ({"task": "detection"}, UsageError, "layout folders serves classification"),
        (
            {"keep": ("pose",)},
            UsageError,
            "some of category_id, corners, group_of, keypoints, occluded, view",
        ),
    ):
        fails_and_writes_nothing(kind, match, source, tmp_path / "out", **{**FOLDERS, **options})


def test_every_unknown_label_is_named_with_its_count_and_a_place(source, tmp_path):
    draw_folders(tmp_path / "more", 2)
    (tmp_path / "more/hat").rename(source / "glove")
    (tmp_path / "labels.txt").write_text("shirt\n")
    with pytest.raises(AnnotationsError) as caught:
        run_convert(source, tmp_path / "out", label_map=str(tmp_path / "labels.txt"), **FOLDERS)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("2 labels of the data are not in") and "known: shirt" in lines[0]
    said = "  '{0}': {1}, first in {0}/0000.jpg"
    assert lines[1:3] == [said.format("glove", "1 time"), said.format("hat", "12 times")]
    assert lines[3] == "add them there, or take them out of the data"
    assert not (tmp_path / "out/set").exists()
    os.rename(source / "hat", os.fsencode(source) + b"/caf\xe9")
    fails_and_writes_nothing(AnnotationsError, "UTF-8", source, tmp_path / "none", **FOLDERS)


def test_two_sources_with_one_id_are_both_named(source, tmp_path):
    """7 and "7" are one id, since an id in a file name or a table is a text."""
    files = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.jpg"))
    images = [{"id": 7, "file_name": files[0]}, {"id": "7", "file_name": files[1]}]
    document = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "hat"}]}
    (source / "instances.json").write_text(json.dumps(document))
    words = f"(?s)id 7.*{files[0]}.*{files[1]}"
    fails_and_writes_nothing(JobError, words, source, tmp_path / "out", layout="coco")


@pytest.mark.parametrize("layout", ["folders", "csv", "jsonl", "coco", "voc"])
def test_an_empty_source_is_refused(tmp_path, layout):
    (tmp_path / "src").mkdir()
    fails_and_writes_nothing(HalofeedError, str(tmp_path), tmp_path / "src", tmp_path / "out", layout=layout)


def test_a_split_whose_every_input_is_rejected_stays_as_an_empty_one(tmp_path):
    draw_folders(tmp_path / "src/train", 4)
    draw_folders(tmp_path / "src/test", 2, broken=2)
    manifest = run_convert(tmp_path / "src", tmp_path / "out", layout="folders", shards=2).manifest
    assert {name: split.records for name, split in manifest.splits.items()} == {"test": 0, "train": 4}
    assert manifest.rejected and sum(manifest.rejected.values()) == 2


def table(folder: Path, *rows: str) -> Path:
    """A CSV table over one drawn image a row."""
    draw_folders(folder, len(rows))
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
    lines = [f"{file},{row}" for file, row in zip(files, rows, strict=True)]
    (folder / "labels.csv").write_text("\n".join(["filename,class,split", *lines]) + "\n")
    return folder / "labels.csv"


@pytest.mark.parametrize(
    ("splits", "match"),
    [
        (("train", "tr ain"), "split 'tr ain': expected letters"),
        (("train", "all"), "split 'all': "),
        (("Train", "train"), r"splits 'Train' and 'train' differ only in upper and lower case.*rename one"),
    ],
)
def test_split_names_of_the_data_that_cannot_be_file_names_are_the_datas_fault(tmp_path, splits, match):
    source = table(tmp_path / "src", *(f"hat,{split}" for split in splits))
    fails_and_writes_nothing(AnnotationsError, match, source, tmp_path / "out", layout="csv")


NUMBERS = [str(number) for number in range(12)]


@pytest.mark.parametrize(
    ("layout", "first"), [("folders", 0), ("csv", 0), ("jsonl", 0), ("voc", 1), ("csv", 1)]
)
def test_classes_that_are_numbers_stand_in_the_order_of_their_numbers(tmp_path, layout, first):
    folder = "{}/" if layout == "folders" else ""
    draw(tmp_path / "src", *(f"{folder.format(name)}{name}.png" for name in NUMBERS))
    if first:
        boxes = [boxed(f"{name}.png", (2, 2, 8, 8), name) for name in NUMBERS]
        write_annotations(tmp_path / "src", layout, boxes)
    elif layout != "folders":
        rows = [json.dumps({"filename": f"{name}.png", "class": int(name)}) for name in NUMBERS]
        table = ["filename,class", *(f"{name}.png,{name}" for name in NUMBERS)]
        (tmp_path / f"src/t.{layout}").write_text("\n".join(table if layout == "csv" else rows))
    done = run_convert(tmp_path / "src", tmp_path / "out", layout=layout)
    assert done.manifest.labels == {number + first: name for number, name in enumerate(NUMBERS)}
    if first == 0:
        for record in read_all(Path(done.folder), ["train"]).values():
            assert str(int(record["image/class/label"][0])) == bytes(record["image/class/text"][0]).decode()


def test_numbers_come_before_texts_and_number_masks_too(tmp_path):
    names = ("10", "9", "2.5", "-1", "other", "10 cards")
    draw(tmp_path / "src", *(f"{name}/a.png" for name in names))
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="folders")
    assert list(done.manifest.labels.values()) == ["-1", "2.5", "9", "10", "10 cards", "other"]
    draw(tmp_path / "masks", "s1/ct.png", *(f"s1/segmentations/{name}.png" for name in ("1", "2", "10")))
    files = LocalFiles(tmp_path / "masks")
    values = pairs.class_mask_values(files, files, None, LayoutOptions())
    assert dict(values) == {0: "background", 1: "1", 2: "2", 3: "10"}


@pytest.mark.parametrize("other", ["1.0", "01", "+1"])
def test_one_number_written_in_two_ways_is_refused(tmp_path, other):
    draw(tmp_path / "src", *(f"{name}/a.png" for name in ("0", "1", other)))
    with pytest.raises(AnnotationsError, match=r"are one number, written in two ways.*--label-map"):
        run_convert(tmp_path / "src", tmp_path / "out", layout="folders")
    (tmp_path / "map.json").write_text(json.dumps({"0": 0, "1": 1, other: 2}))
    done = run_convert(tmp_path / "src", tmp_path / "out", label_map=str(tmp_path / "map.json"), **FOLDERS)
    assert done.manifest.labels == {0: "0", 1: "1", 2: other}


def draw_voc(root: Path, *names: str) -> None:
    """Annotations/NAME.xml and JPEGImages/NAME.png; the XML says the file's name without its folders, as VOC does."""
    draw(root / "JPEGImages", *(f"{name}.png" for name in names))
    for name in names:
        xml = root / "Annotations" / f"{name}.xml"
        xml.parent.mkdir(parents=True, exist_ok=True)
        xml.write_text(voc_text(f"{Path(name).name}.png", voc_object(boxed(name, (3, 2, 20, 8)))))


def write_lists(root: Path, **lists: str) -> None:
    (root / "ImageSets/Main").mkdir(parents=True)
    for name, entries in lists.items():
        (root / "ImageSets/Main" / f"{name}.txt").write_text("\n".join(entries.split()) + "\n")


def splits_of_voc(folder: str, names: list[str]) -> dict[str, str]:
    return {
        source.removeprefix("JPEGImages/").removesuffix(".png"): record["split"]
        for source, record in read_all(Path(folder), names).items()
    }


@pytest.mark.parametrize(
    "entry", ["{}.png", "JPEGImages/{}.png", "D:\\voc\\JPEGImages\\{}.png", "./{}", "Annotations/{}.xml"]
)
def test_entries_of_lists_may_have_extensions_and_folders_above(tmp_path: Path, entry: str) -> None:
    draw_voc(tmp_path / "src", "cam1/a", "cam2/a", "v1.2")
    first, *others = (entry.format(name) for name in ("cam1/a", "cam2/a", "v1.2"))
    write_lists(tmp_path / "src", train=first, val=" ".join(others))
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="voc", max_rejected=0)
    assert splits_of_voc(done.folder, ["train", "val"]) == {"cam1/a": "train", "cam2/a": "val", "v1.2": "val"}


def test_lists_that_share_names_are_all_listed_and_can_be_chosen(tmp_path):
    draw_voc(tmp_path / "src", *"abcd")
    write_lists(tmp_path / "src", train="a b c", val="d", mini="a b", hat_train="a", all="a b c d")
    with pytest.raises(AnnotationsError) as caught:
        run_convert(tmp_path / "src", tmp_path / "out", layout="voc")
    for words in (
        "ImageSets/Main: an image has one split, and lists share names",
        "mini and train (a, 2 in all)",
        "all and val (d)",
        "choose lists with --image-sets of all (4), hat_train, mini (2), train (3), val (1)",
        "--split-shares",
    ):
        assert words in str(caught.value)
    options = {"layout": "voc", "image_sets": ("mini", "val")}
    done = run_convert(tmp_path / "src", tmp_path / "out", **options)
    assert splits_of_voc(done.folder, ["mini", "val"]) == {"a": "mini", "b": "mini", "d": "val"}
    options["image_sets"] = ("mini", "all")
    with pytest.raises(AnnotationsError, match=r"mini and all \(a, 2 in all\)"):
        run_convert(tmp_path / "src", tmp_path / "other", **options)


def test_shares_make_the_lists_irrelevant_unless_they_choose_the_images(tmp_path):
    draw_voc(tmp_path / "src", *"abcdefgh")
    write_lists(tmp_path / "src", train="a b c", val="d", mini="a d")
    options = {"layout": "voc", "split_shares": ("train=0.5", "test=0.5"), "max_rejected": 0}
    done = run_convert(tmp_path / "src", tmp_path / "out", **options)
    assert set(splits_of_voc(done.folder, ["train", "test"])) == set("abcdefgh")
    chosen = run_convert(tmp_path / "src", tmp_path / "few", image_sets=("train", "val", "mini"), **options)
    assert set(splits_of_voc(chosen.folder, list(chosen.manifest.splits))) == set("abcd")
    lists = [f"{name}={tmp_path / name}.txt" for name in ("one", "two")]
    (tmp_path / "one.txt").write_text("a\nb\n")
    (tmp_path / "two.txt").write_text("c\n")
    own = run_convert(tmp_path / "src", tmp_path / "own", layout="voc", split_lists=tuple(lists))
    assert splits_of_voc(own.folder, ["one", "two"]) == {"a": "one", "b": "one", "c": "two"}
    assert {entry["reason"] for entry in rejected_entries(own.folder)} == {"in no split list"}
