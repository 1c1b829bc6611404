"""`halofeed diff` finds every planted change between two versions, and nothing else."""

import copy
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import halofeed
from halofeed.errors import UsageError
from halofeed.inspection.compare_records import RecordPair, compare_records
from halofeed.inspection.compare_versions import compare_versions, same_classes
from halofeed.inspection.stored_records import StoredShard
from halofeed.inspection.version_difference import (
    ComparedVersion,
    VersionDifference,
    head_line,
    shards_line,
    version_names,
)
from halofeed.schemas import keys
from halofeed.schemas.fields import Field
from tests.support.conversions import draw_folders, halofeed_here, run_convert

SIZE = (30, 40)


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*SIZE, 3)).astype(np.uint8)


class CocoSet:
    """Pictures with boxes and polygons in a folder, as a document that tests edit."""

    def __init__(self, count: int = 16) -> None:
        self.pixels = {number: picture(number) for number in range(count)}
        images = [
            {"id": n, "file_name": f"{n}.png", "width": SIZE[1], "height": SIZE[0]} for n in range(count)
        ]
        self.document: dict[str, Any] = {
            "images": images,
            "categories": [{"id": 1, "name": "hat"}, {"id": 2, "name": "coat"}],
            "annotations": [
                self.box(n, 10 * n + k, 2 + 12 * k, 3, 9, 11) for n in range(count) for k in range(3)
            ],
        }
        self.splits = {n: "test" if n % 4 == 0 else "train" for n in range(count)}

    @staticmethod
    def box(image: int, identity: int, x: float, y: float, width: float, height: float) -> dict[str, Any]:
        polygon = [x, y, x + width, y, x + width, y + height, x, y + height]
        return {
            "id": identity,
            "image_id": image,
            "category_id": 1 + identity % 2,
            "iscrowd": 0,
            "bbox": [x, y, width, height],
            "area": width * height,
            "segmentation": [polygon],
        }

    def of(self, image: int) -> list[dict[str, Any]]:
        return [one for one in self.document["annotations"] if one["image_id"] == image]

    def remove(self, image: int) -> None:
        del self.pixels[image], self.splits[image]
        document = self.document
        document["images"] = [one for one in document["images"] if one["id"] != image]
        document["annotations"] = [one for one in document["annotations"] if one["image_id"] != image]

    def converted(self, folder: Path, **options: Any) -> str:
        folder.mkdir()
        for number, pixels in self.pixels.items():
            Image.fromarray(pixels).save(folder / f"{number}.png")
        (folder / "annotations.json").write_text(json.dumps(self.document))
        lists = []
        for split in ("train", "test"):
            file = folder / f"{split}.list"
            file.write_text("".join(f"{n}.png\n" for n, one in self.splits.items() if one == split))
            lists.append(f"{split}={file}")
        given = {"layout": "coco", "shards": 2, "height": 30, "width": 40, "masks": True} | options
        source = folder / "annotations.json"
        return run_convert(source, folder / "out", split_lists=tuple(lists), **given).folder


def kinds(found: VersionDifference) -> dict[int, set[str]]:
    return {one.id: set(one.kinds) for one in found.examples}


def plant_pixels(data: CocoSet) -> dict[int, set[str]]:
    data.pixels[1][3, 5] ^= 1
    return {1: {"pixels"}}


def plant_class(data: CocoSet) -> dict[int, set[str]]:
    box = data.of(2)[1]
    box["category_id"] = 3 - box["category_id"]
    return {2: {"boxes"}}


def plant_moved_box(data: CocoSet) -> dict[int, set[str]]:
    data.of(3)[0]["bbox"][0] += 1
    return {3: {"boxes"}}


def plant_mask(data: CocoSet) -> dict[int, set[str]]:
    data.of(5)[2]["segmentation"][0][5] -= 4
    return {5: {"mask"}}


def plant_split(data: CocoSet) -> dict[int, set[str]]:
    data.splits[6] = "test"
    return {6: {"split"}}


def plant_added_box(data: CocoSet) -> dict[int, set[str]]:
    data.document["annotations"].append(data.box(7, 900, 1, 20, 5, 6))
    return {7: {"boxes"}}


def plant_removed_box(data: CocoSet) -> dict[int, set[str]]:
    data.document["annotations"].remove(data.of(9)[1])
    return {9: {"boxes"}}


def plant_crowd(data: CocoSet) -> dict[int, set[str]]:
    data.of(10)[0]["iscrowd"] = 1
    return {10: {"boxes"}}


def plant_removed(data: CocoSet) -> dict[int, set[str]]:
    data.remove(11)
    return {11: {"removed"}}


def plant_added(data: CocoSet) -> dict[int, set[str]]:
    data.pixels[77], data.splits[77] = picture(77), "train"
    data.document["images"].append({"id": 77, "file_name": "77.png", "width": SIZE[1], "height": SIZE[0]})
    return {77: {"added"}}


def plant_split_and_pixels(data: CocoSet) -> dict[int, set[str]]:
    data.pixels[12][0, 0] ^= 255
    data.splits[12] = "train"
    return {12: {"split", "pixels"}}


PLANTS = [
    *(
        plant_pixels,
        plant_class,
        plant_moved_box,
        plant_mask,
        plant_split,
        plant_added_box,
        plant_removed_box,
    ),
    *(plant_crowd, plant_removed, plant_added, plant_split_and_pixels),
]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> str:
    return CocoSet().converted(tmp_path_factory.mktemp("earlier") / "src")


@pytest.mark.parametrize("seed", range(6))
def test_some_planted_changes_are_found_and_nothing_else(earlier, tmp_path, seed):
    generator = random.Random(seed)
    data, expected = CocoSet(), {}
    for plant in PLANTS if seed == 0 else generator.sample(PLANTS, generator.randrange(1, 5)):
        expected |= plant(data)
    later = data.converted(tmp_path / "src")
    found = compare_versions(earlier, later)
    assert kinds(found) == expected
    assert (found.options, found.classes, found.facts, found.rejected) == ((), (), (), ())
    back = compare_versions(later, earlier)
    swapped = {"added": "removed", "removed": "added"}
    assert kinds(back) == {
        one: {swapped.get(kind, kind) for kind in found} for one, found in expected.items()
    }


def test_equal_versions_are_the_same_and_no_record_is_read(earlier, tmp_path, monkeypatch):
    later = CocoSet().converted(tmp_path / "src")
    monkeypatch.setattr(StoredShard, "__init__", lambda *_: pytest.fail("a shard was opened"))
    found = compare_versions(earlier, later)
    assert found.is_empty and found.shards == (4, 4)


def test_only_records_of_other_checksums_are_read(earlier, tmp_path, monkeypatch):
    data = CocoSet()
    plant_pixels(data)
    later = data.converted(tmp_path / "src")
    read = []
    features = StoredShard.features
    monkeypatch.setattr(StoredShard, "features", lambda self, row: (read.append(row), features(self, row))[1])
    assert kinds(compare_versions(earlier, later)) == {1: {"pixels"}} and len(read) == 2


def test_a_renamed_class_is_one_change_of_the_classes(earlier, tmp_path):
    data = CocoSet()
    data.document["categories"][0]["name"] = "cap"
    found = compare_versions(earlier, data.converted(tmp_path / "src"))
    assert found.examples == ()
    (renamed,) = found.classes
    assert (renamed.name, renamed.before, renamed.after) == ("1", "hat", "cap")


def test_classes_of_other_numbers_are_no_change_of_the_records(earlier, tmp_path):
    data = CocoSet()
    data.document["categories"] = [{"id": 1, "name": "coat"}, {"id": 2, "name": "hat"}]
    for one in data.document["annotations"]:
        one["category_id"] = 3 - one["category_id"]
    found = compare_versions(earlier, data.converted(tmp_path / "src"))
    assert [one.name for one in found.classes] == ["1", "2"]
    # The number of the category in COCO is stored, and it is another one.
    assert {kind for one in found.examples for kind in one.kinds} <= {"boxes"}
    assert all("source_label" in text for one in found.examples for _, text in one.changes)


def test_options_and_statistics_are_compared(earlier, tmp_path):
    found = compare_versions(earlier, CocoSet().converted(tmp_path / "src", license="CC0-1.0", max_boxes=7))
    assert {(one.name, one.before, one.after) for one in found.options} == {
        ("license", "", "CC0-1.0"),
        ("max_boxes", 100, 7),
    }
    assert found.examples == ()
    data = CocoSet()
    plant_removed_box(data)
    found = compare_versions(earlier, data.converted(tmp_path / "two"))
    changed = {one.name: (one.before, one.after) for one in found.statistics}
    assert changed["train.boxes_per_image.2"] == (None, 1)
    assert changed["train.boxes_per_image.3"] == (12, 11)


def test_a_pixel_of_a_mask_is_named_by_its_classes(tmp_path):
    def converted(folder: Path, masks: dict[int, np.ndarray]) -> str:
        for number, mask in masks.items():
            for name, pixels in (("images", picture(number)), ("masks", mask)):
                (folder / "src" / name).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / "src" / name / f"{number}.png")
        patterns = {"image_pattern": "images/{id}.png", "label_pattern": "masks/{id}.png"}
        given = {
            "layout": "pairs",
            "height": 30,
            "width": 40,
            "shards": 1,
            "task": "segmentation",
            **patterns,
        }
        return run_convert(folder / "src", folder / "out", **given).folder

    masks = {
        number: np.repeat(np.arange(3, dtype=np.uint8), 10)[:, None].repeat(40, 1) for number in range(4)
    }
    before = converted(tmp_path / "one", masks)
    changed = copy.deepcopy(masks)
    changed[2][0, 0] = 2
    found = compare_versions(before, converted(tmp_path / "two", changed))
    ((only,),) = [one.changes for one in found.examples]
    assert only[0] == "mask" and only[1].startswith("1 pixel of 1,200 (background to 2 1")
    assert found.examples[0].source == "images/2.png"


def test_another_label_is_a_change_and_another_file_of_the_same_pixels_is_none(tmp_path):
    def converted(folder: Path, label: str, level: int) -> str:
        folder.mkdir()
        for number in range(6):
            Image.fromarray(picture(number)).save(
                folder / f"{number}.png", compress_level=level if number == 3 else 6
            )
        rows = "".join(f"{n},{n}.png,{label if n == 1 else ('hat', 'coat')[n % 2]}\n" for n in range(6))
        (folder / "table.csv").write_text(f"id,filename,class\n{rows}")
        given = {"layout": "csv", "height": 30, "width": 40, "shards": 2}
        return run_convert(folder / "table.csv", folder / "out", **given).folder

    before = converted(tmp_path / "one", "coat", 6)
    found = compare_versions(before, converted(tmp_path / "two", "hat", 1))
    assert kinds(found) == {1: {"label"}}
    assert found.examples[0].changes == (("label", "coat before, hat now"),)


def test_the_command_writes_text_json_and_a_page(earlier, tmp_path):
    data = CocoSet()
    for plant in PLANTS:
        plant(data)
    data.pixels[13][:] = 0
    data.document["images"][0]["file_name"] = "0.png"
    later = data.converted(tmp_path / "src")
    done = halofeed_here("diff", earlier, later, "--json", tmp_path / "d.json", "--html", tmp_path / "d.html")
    assert done.returncode == 0, done.stderr
    assert "Added: 1 example" in done.stdout and "In another split: 2 examples" in done.stdout
    document = json.loads((tmp_path / "d.json").read_text())
    assert document["counts"] == halofeed.diff(earlier, later).counts
    assert {one["id"] for one in document["examples"]} == {1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 77}
    page = (tmp_path / "d.html").read_text()
    assert "77.png" in page and "pixels: 1 pixel of 1,200" in page and "http" not in page
    printed = halofeed_here("diff", earlier, later, "--json", "-")
    assert json.loads(printed.stdout) == document
    same = halofeed_here("diff", earlier, earlier)
    assert "the same records, options, classes and statistics" in same.stdout


@pytest.mark.parametrize(
    ("earlier", "later", "words"),
    [
        (("cards", "1.0.0", "a"), ("cards", "1.1.0", "b"), "cards 1.0.0 and 1.1.0: 4 and 3 records"),
        (("cards", "1.0.0", "a"), ("hats", "1.0.0", "b"), "cards 1.0.0 and hats 1.0.0: 4 and 3 records"),
        (("cards", "1.0.0", "a"), ("hats", "2.0.0", "b"), "cards 1.0.0 and hats 2.0.0: 4 and 3 records"),
        (("cards", "1.0.0", "a"), ("cards", "1.0.0", "part/b"), "a and part/b: 4 and 3 records"),
    ],
)
def test_two_versions_have_names_that_differ(earlier, later, words):
    one, other = (
        ComparedVersion(name=name, version=version, folder=folder, records=records)
        for (name, version, folder), records in ((earlier, 4), (later, 3))
    )
    found = SimpleNamespace(earlier=one, later=other, shards=(2, 1))
    assert head_line(found) == words
    first, second = version_names(found)
    assert first != second and shards_line(found) == f"1 of 2 shards of {second} are those of {first}"


def test_two_kinds_of_images_are_refused(earlier, tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        compare_versions(earlier, tmp_path / "nothing")
    draw_folders(tmp_path / "src", 4)
    other = run_convert(tmp_path / "src", tmp_path / "out", layout="folders").folder
    found = compare_versions(earlier, other)
    assert found.counts["removed"] == 16 and {one.name for one in found.facts} >= {"task"}


def test_a_class_is_the_same_by_name_or_by_number():
    assert same_classes({1: "a", 2: "b"}, {1: "b", 2: "a"}) == {1: 2, 2: 1}
    assert same_classes({1: "a", 2: "b"}, {1: "b"}) == {2: 1}
    assert same_classes({1: "a"}, {1: "b", 2: "c"}) == {1: 1}


def masks_of(names: str, folder: Path, *bands: tuple[int, ...]) -> str:
    """Convert pictures with label images of named classes, in bands of one value each."""
    for number, values in enumerate(bands):
        mask = np.resize(np.repeat(np.array(values, np.uint8), 40), SIZE)
        for name, pixels in (("images", picture(number)), ("masks", mask)):
            (folder / "src" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / "src" / name / f"{number}.png")
    classes = {str(number): name for number, name in enumerate(names.split(), start=1)}
    (folder / "classes.json").write_text(json.dumps(classes))
    given = {"layout": "pairs", "height": 30, "width": 40, "shards": 2, "task": "segmentation"}
    given |= {"image_pattern": "images/{id}.png", "label_pattern": "masks/{id}.png"}
    file = str(folder / "classes.json")
    return run_convert(folder / "src", folder / "out", label_map=file, **given).folder


def mask_changes(found: VersionDifference) -> dict[str, str]:
    return {one.source: dict(one.changes)["mask"] for one in found.examples}


def test_equal_label_images_whose_numbers_are_other_classes_now_differ(tmp_path):
    bands = (0, 1), (0, 3)
    before = masks_of("hat coat bag", tmp_path / "one", *bands)
    found = compare_versions(before, masks_of("coat hat bag", tmp_path / "two", *bands))
    assert mask_changes(found) == {"images/0.png": "600 pixels of 1,200 (hat to coat 600)"}
    same = masks_of("coat hat bag", tmp_path / "three", (0, 2), (0, 3))
    assert compare_versions(before, same).examples == ()
    renamed = masks_of("cap coat bag", tmp_path / "four", *bands)
    assert compare_versions(before, renamed).examples == ()


def test_a_class_that_has_the_number_of_a_removed_one_is_another_class(tmp_path):
    before = masks_of("hat coat", tmp_path / "one", (0, 1), (0, 2), (1, 2))
    later = masks_of("coat", tmp_path / "two", (0, 1), (0, 1), (0, 1))
    assert mask_changes(compare_versions(before, later)) == {
        "images/0.png": "600 pixels of 1,200 (hat to coat 600)",
        "images/2.png": "600 pixels of 1,200 (hat to background 600)",
    }


def test_sets_of_classes_are_compared_by_class_where_their_bits_are_others(tmp_path):
    field = Field(
        name="label",
        keys=(keys.LABEL,),
        dtype="uint8",
        axes=("height", "width", "class"),
        shape=(1, 4, 2),
        encoding="sets",
    )
    earlier, later = (
        SimpleNamespace(labels=labels, fields=(field,), ignore_label=None, kind=SimpleNamespace(axes=()))
        for labels in ({1: "tumor", 2: "core"}, {1: "core", 2: "edema"})
    )
    records = [
        {keys.LABEL: [memoryview(bytes(values))], keys.LABELLED: np.array([1])}
        for values in ((0, 1, 2, 3), (0, 1, 1, 1))
    ]
    pair = RecordPair(
        before=records[0],
        after=records[1],
        earlier=earlier,
        later=later,
        classes=same_classes(earlier.labels, later.labels),
    )
    assert not pair.keeps_numbers
    assert compare_records(pair) == [
        ("mask", "2 pixels of 4 (tumor to core 1, core + tumor to core 1)"),
    ]


def test_a_box_of_a_removed_class_is_named_by_it(earlier, tmp_path):
    data = CocoSet()
    data.document["categories"].pop(0)
    boxes = data.document["annotations"]
    data.document["annotations"] = [one for one in boxes if one["category_id"] == 2]
    found = compare_versions(earlier, data.converted(tmp_path / "src"))
    texts = [text for one in found.examples for _, text in one.changes if "removed" in text]
    assert texts == ["box removed (hat)"] * sum(one["category_id"] == 1 for one in boxes)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            np.array([0.1234567, 0]),
            np.array([0.1234568, 0]),
            ["was 0.1234567 (value 1), now 0.1234568 (value 1)"],
        ),
        (np.arange(40), np.r_[np.arange(39), 99], ["was 39 (value 20), now 99 (value 20)"]),
        (np.arange(4), np.array([0, 9, 2, 3]), ["was 0, 1, now 0, 9"]),
        (
            [b"left" * 20, b""],
            [b"left" * 19 + b"right", b""],
            ["was ...leftleftleftleftleftleft, now ...leftleft"],
        ),
        (np.arange(6), np.arange(6), []),
        (np.arange(2), np.arange(2.0), ["was 0 (int64), now 0 (float64)", "was 1 (int64), now 1 (float64)"]),
    ],
)
def test_values_of_objects_are_compared_exactly_and_object_by_object(before, after, words):
    def record(values: Any) -> dict[str, Any]:
        sides = dict.fromkeys(keys.BOX_CORNERS[:2], np.array([0.1, 0.5]))
        sides |= dict.fromkeys(keys.BOX_CORNERS[2:], np.array([0.4, 0.9]))
        return {**sides, keys.OBJECT_CLASS_LABEL: np.array([1, 1]), "image/object/keypoint/x": values}

    manifest = SimpleNamespace(labels={1: "hat"}, ignore_label=None, fields=(), kind=SimpleNamespace(axes=()))
    pair = RecordPair(
        before=record(before), after=record(after), earlier=manifest, later=manifest, classes={1: 1}
    )
    texts = [text for _, text in compare_records(pair)]
    assert len(texts) == len(words)
    assert all(word in text for word, text in zip(words, texts, strict=True)), texts
