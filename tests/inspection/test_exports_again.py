"""Every export of every task that is converted again has the same classes, ids, boxes and splits."""

import json
import tarfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from halofeed.inspection.export_data import EXPORTERS
from halofeed.schemas import keys
from halofeed.schemas.manifest import read_manifest
from tests.inspection.test_export_data import H, W, draw, export
from tests.support.conversions import read_all, run_convert
from tests.support.dataset_writer import Drawn, write_dataset

OF_BOTH = ("parquet", "webdataset")
CASES = [
    *((to, "classification") for to in EXPORTERS if to in ("folders", *OF_BOTH)),
    *((to, "detection") for to in EXPORTERS if to not in ("folders", "nifti", "scan-boxes")),
]


def drawn_without_the_first_class(task: str) -> list[Drawn]:
    """Draw examples none of which has the first class; the first examples have no boxes."""
    made = draw(task)
    for number, one in enumerate(made):
        if one.label is not None:
            vars(one)["label"] = max(1, one.label)
        else:
            count = 0 if number % 8 < 6 and number < 6 else len(one.classes)
            vars(one).update(
                classes=[max(2, label) for label in one.classes][:count], boxes=one.boxes[:count]
            )
    return made


def content(folder: Path) -> dict[bytes, tuple[Any, ...]]:
    """Return the split, classes and corners of each record, by its pixels."""
    found = {}
    for split in ("train", "val"):
        for one in read_all(folder, (split,)).values():
            classes = one.get("image/object/class/label", one.get("image/class/label"))
            texts = one.get("image/object/class/text", one.get("image/class/text"))
            corners = [one.get(f"image/object/bbox/{side}", ()) for side in ("ymin", "xmin", "ymax", "xmax")]
            key = bytes(one["image/encoded"][0])
            found[key] = split, list(classes), [bytes(text) for text in texts], np.array(corners)
    return found


@pytest.mark.parametrize(("to", "task"), CASES)
def test_classes_ids_boxes_and_splits_are_the_same_again(tmp_path: Path, to: str, task: str) -> None:
    drawn = drawn_without_the_first_class(task)
    data = write_dataset(tmp_path / "data", drawn, task=task, encoding="png")
    said = export(data, to, tmp_path / "out")
    given: dict[str, Any] = {"height": H - 1, "width": W, "layout": {"parquet": "jsonl"}.get(to, to)}
    first = run_convert(tmp_path / "out", tmp_path / "first", **given)
    assert not first.manifest.rejected
    before = read_manifest(data).labels
    if to == "dota":  # a blank ends a class in its rows
        before = {label: name.replace(" ", "-") for label, name in before.items()}
    kept = list(before.values())
    if to == "folders":  # no folder can say that a class has no pictures
        kept = kept[1:]
        assert "no pictures" in said or "no folder" in said
    assert list(first.manifest.labels.values()) == kept
    records = content(Path(first.folder))
    assert len(records) == len(drawn)
    for one in drawn:
        split, classes, texts, corners = records[one.pixels[: H - 1].tobytes()]
        expected = [one.label] if one.label is not None else list(one.classes)
        assert split == one.split and [text.decode() for text in texts] == [
            before[label] for label in expected
        ]
        ids = {name: number for number, name in first.manifest.labels.items()}
        assert classes == [ids[before[label]] for label in expected]
        if one.boxes is not None and len(one.boxes):
            limits = np.array([H - 1, W] * 2)
            wanted = np.minimum(one.boxes * [H, W, H, W], limits) / limits
            np.testing.assert_allclose(corners.T, wanted, atol=1e-5)


def test_the_first_record_of_a_split_in_webdataset_has_boxes_or_a_note_says_that_none_has(
    tmp_path: Path,
) -> None:
    drawn = drawn_without_the_first_class("detection")
    for one in drawn:
        if one.split == "val":
            vars(one).update(classes=[], boxes=one.boxes[:0])
    said = export(write_dataset(tmp_path / "data", drawn, task="detection"), "webdataset", tmp_path / "out")
    assert "val: the first 5 records have no boxes" in said and "train:" not in said
    with tarfile.open(tmp_path / "out/train-000000.tar") as archive:
        first = next(member for member in archive if member.name.endswith(".json"))
        assert json.load(archive.extractfile(first))["objects"]["bbox"]
        assert len(archive.getnames()) == 16


@pytest.mark.parametrize(("to", "layout"), [("parquet", "jsonl"), ("webdataset", "webdataset")])
def test_label_images_have_the_same_classes_and_values_again(tmp_path: Path, to: str, layout: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 12, 16, 3), np.uint8)
    labels = np.random.default_rng(1).choice(np.array([0, 2], np.uint8), (4, 12, 16))
    for number in range(4):
        for folder, array in (("images", pixels), ("masks", labels)):
            (tmp_path / "in" / folder).mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(tmp_path / f"in/{folder}/{number}.png"), array[number])
    table = tmp_path / "names.json"
    table.write_text('{"background": 0, "liver": 1, "tumor": 2}')
    given: dict[str, Any] = {"height": 12, "width": 16, "task": "segmentation"}
    patterns = {"image_pattern": "images/{id}.png", "label_pattern": "masks/{id}.png"}
    first = run_convert(
        tmp_path / "in", tmp_path / "a", layout="pairs", label_map=str(table), **patterns, **given
    )
    said = export(Path(first.folder), to, tmp_path / "out")
    second = run_convert(tmp_path / "out", tmp_path / "b", layout=layout, **given)
    assert not second.manifest.rejected and not said.count("left out")
    assert second.manifest.labels == first.manifest.labels
    before, after = (
        {
            bytes(one["image/encoded"][0]): bytes(one[keys.LABEL][0])
            for one in read_all(Path(done.folder), ("train",)).values()
        }
        for done in (first, second)
    )
    assert before == after and len(before) == 4


@pytest.mark.parametrize(
    ("to", "kept"),
    [
        ("coco", {"source_id", "object/area", "object/is_crowd", "object/difficult"}),
        ("webdataset", {"source_id", "object/area"}),
        ("parquet", {"object/area"}),
        ("voc", {"object/difficult"}),
        ("yolo", set()),
    ],
)
def test_ids_areas_and_flags_are_the_same_again_where_the_format_holds_them_and_said_elsewhere(
    tmp_path: Path, to: str, kept: set[str]
) -> None:
    def flagged(one: Drawn, features: dict[str, Any]) -> dict[str, Any]:
        count = np.arange(len(one.classes))
        flags = {"is_crowd": count % 2, "difficult": count % 3 % 2, "area": count + 5.0}
        return features | {f"image/object/{name}": values for name, values in flags.items()}

    data = write_dataset(
        tmp_path / "data", draw("detection"), task="detection", encoding="png", alter=flagged
    )
    said = export(data, to, tmp_path / "out")
    given: dict[str, Any] = {"height": H - 1, "width": W, "layout": {"parquet": "jsonl"}.get(to, to)}
    first = run_convert(tmp_path / "out", tmp_path / "first", **given)
    after = {
        bytes(one["image/encoded"][0]): one for one in read_all(Path(first.folder), ("train", "val")).values()
    }
    expected = {one["image/source_id"][0]: one for one in read_all(Path(data), ("train", "val")).values()}
    by_pixels = {
        cv2.imdecode(np.frombuffer(one["image/encoded"][0], np.uint8), -1)[: H - 1, :, ::-1].tobytes(): one
        for one in expected.values()
    }
    assert after.keys() == by_pixels.keys()
    for pixels, one in by_pixels.items():
        for name in kept:
            found, wanted = (record[f"image/{name}"] for record in (after[pixels], one))
            assert list(map(_plain, found)) == list(map(_plain, wanted)), name
    for name, word in (("area", "areas"), ("is_crowd", "is_crowd flags"), ("difficult", "difficult flags")):
        assert (word in said) is (f"object/{name}" not in kept)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytes | memoryview) else float(value)
