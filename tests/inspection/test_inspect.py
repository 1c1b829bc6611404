"""Does inspect say what is in a data set, and in a record?"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.errors import CorruptFileError, ManifestError, UsageError
from halofeed.inspection.describe_dataset import describe_dataset, describe_record
from halofeed.inspection.describe_record import find_record
from halofeed.prep.convert.tallies import ROW_STEP
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.identity import example_id
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfrecord import read_records
from tests.support.dataset_writer import LABELS, draw_examples, write_dataset
from tests.support.set_writer import refusal
from tests.support.volume_report_writer import draw_scan, write_segmentation

REJECTED = [refusal("b.jpg", "decode", "truncated")] * 2


def write(folder: Path, task: str = "detection", encoding: str = "raw", **more: Any) -> tuple[Path, list]:
    examples = draw_examples(task, {"train": 9, "test": 3}, varied=encoding != "raw")
    more = {"shards": 3, "rejected": REJECTED, **more}
    return write_dataset(folder, examples, task=task, encoding=encoding, **more), examples


def test_the_description_names_fields_splits_labels_boxes_padding_rejects_and_recipe(tmp_path: Path) -> None:
    folder, examples = write(tmp_path)
    text = re.sub(" +", " ", describe_dataset(folder))
    boxes = sum(len(example.boxes) for example in examples if example.split == "train")
    assert text.startswith("tiny 1.0.0: detection, 12 records, ")
    for expected in (
        "boxes float32 3 x 4 box, coordinate list image/object/bbox/ymin and 3 more",
        f"train: {boxes} boxes in 9 images, ",
        "Hund (Köter)",
        "12.5 % of them padding; largest 8 x 12",
        "2 x decode: truncated",
        "at the default: see recipe in manifest.json",
        "Written by halofeed 0.1.0",
        "cut by the loader: ",
        f"(per channel, of every {ROW_STEP}th row, without padding)",
    ):
        assert expected in text, text
    counts = [int(line.split()[-2]) for line in text.splitlines() if "bird" in line]
    assert counts == [sum(e.classes.count(5) for e in examples if e.split == "train")]


def _listed_options(folder: Path) -> list[str]:
    text = describe_dataset(folder).split("\nRecipe\n")[1].split("\n\n")[0]
    return [line.strip() for line in text.splitlines()]


def test_only_options_that_differ_from_the_defaults_of_their_kind_are_listed(tmp_path: Path) -> None:
    pictures = Recipe(layout="voc", max_boxes=3).to_json()
    volumes = Recipe(depth=20, dtype="uint8", window_hu=(-160, 240)).to_json()  # one channel, as volumes have
    first = write(tmp_path / "a", recipe=pictures)[0]
    second = write_segmentation(tmp_path / "b", [draw_scan("a", shape=(20, 28, 34))], recipe=volumes)
    for folder, recipe, changed in (
        (first, pictures, ['layout: "voc"', "max_boxes: 3"]),
        (
            second,
            volumes,
            ["depth: 20", 'dtype: "uint8"', "height: 28", "width: 34", "window_hu: [-160, 240]"],
        ),
    ):
        rest = f"({len(recipe) - len(changed)} more options at the default: see recipe in manifest.json)"
        assert sorted(_listed_options(folder)) == sorted([*changed, rest])


@pytest.mark.parametrize(
    ("task", "encoding"), [("detection", "png"), ("classification", "jpeg"), ("detection", "raw")]
)
def test_every_record_is_described_in_shard_order(tmp_path: Path, task: str, encoding: str) -> None:
    folder, examples = write(tmp_path, task, encoding, masks=task == "detection")
    boxed = task == "detection"
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
    by_id = {example_id(example.key): example for example in examples}
    for split, content in manifest.splits.items():
        number = 0
        for shard in content.shards:
            for offset, _ in read_records((folder / shard.file).read_bytes(), shard.file):
                text = describe_record(folder, f"{split}:{number}")
                assert f"{shard.file}, record " in text and f" byte {offset:,}\n" in text
                (identity,) = re.findall(r"(?m)^  id +(\d+)$", text)
                example = by_id.pop(int(identity))
                height, width, channels = example.pixels.shape
                assert f"  image   {height} x {width} x {channels} uint8, {encoding}, " in text
                assert f"key {example.key!r}" in text
                boxes = zip(example.boxes if boxed else (), example.classes, strict=True)
                for row, (box, label) in enumerate(boxes):
                    pixels = " ".join(f"{v:.1f}" for v in box.astype(float) * np.array([height, width] * 2))
                    assert f"\n {row} {label} {LABELS[task][label]} {pixels} " in re.sub(" +", " ", text)
                number += 1
    assert not by_id


def test_a_wrong_record_is_refused_with_those_there_are(tmp_path: Path) -> None:
    folder, _ = write(tmp_path)
    for record, message in (
        ("train:9", "train has 9 records; known numbers: 0 to 8"),
        ("train", "expected SPLIT:NUMBER, such as test:0"),
        ("valid:1", "no split 'valid' in tiny; known: test, train"),
        *((f"train:{number}", "expected SPLIT:NUMBER") for number in ("-1", "٣", "9" * 5000)),
    ):
        with pytest.raises(UsageError, match=message):
            describe_record(folder, record)


def test_a_folder_without_a_data_set_and_damaged_files_give_readable_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder; name the version"):
        describe_dataset(tmp_path / "nothing")
    folder, _ = write(tmp_path)
    shard, number = find_record(Manifest.from_json((folder / "manifest.json").read_bytes()), "train:0")
    path = folder / shard.file
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CorruptFileError, match=f"record {number} at byte 0: the file ends inside the record"):
        describe_record(folder, "train:0")
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        describe_dataset(folder)


def test_what_a_terminal_would_obey_is_escaped(tmp_path: Path) -> None:
    name = {"image/filename": b"\x1b[31m\xff.jpg"}
    folder, _ = write(tmp_path, alter=lambda example, features: features | name)
    assert "source  \\x1b[31m\\udcff.jpg" in describe_record(folder, "train:0")


def test_an_empty_split_and_an_image_without_boxes_are_described(tmp_path: Path) -> None:
    examples = draw_examples("detection", {"train": 2}, max_boxes=0)
    folder = write_dataset(tmp_path, examples, task="detection")
    assert "0 boxes in 2 images, 0 to 0 per image" in describe_dataset(folder)
    assert "Boxes, in pixels of the stored image\n  none" in describe_record(folder, "train:1")
