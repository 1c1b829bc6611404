"""Keypoints lie where they were drawn, and what else can be kept of each object is in records and batches."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import AnnotationsError
from halofeed.inspection.describe_dataset import describe_record
from halofeed.inspection.verify import verify
from halofeed.inspection.verify_record import kept_problems
from halofeed.loader import FlipLeftRight, Loader
from tests.support.annotation_writer import boxed, voc_object, voc_text
from tests.support.annotation_writer import draw as draw_plain
from tests.support.conversions import read_all, run_convert

KEY = "image/object/keypoint"
NAMES = ["nose", "left_eye", "right_eye", "tail"]
COLORS = np.array([(250, 20, 20), (20, 250, 20), (20, 20, 250)], np.uint8)
POINTS = [(21, 12), (70, 33), (46, 50)]
"""x, y of the pixel in the middle of each colored square; the fourth keypoint is not labeled."""
HEIGHT, WIDTH = 64, 96


def draw(root: Path, name: str = "a.png", orientation: int = 1) -> Path:
    """A picture of colored squares as the file stores it."""
    root.mkdir(parents=True, exist_ok=True)
    pixels = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
    for (x, y), color in zip(POINTS, COLORS, strict=True):
        pixels[y - 4 : y + 5, x - 4 : x + 5] = color
    exif = Image.Exif()
    if orientation > 1:
        exif[0x0112] = orientation
    Image.fromarray(pixels).save(root / name, exif=exif)
    return root


def document(root: Path, annotations: list[dict[str, Any]], **more: Any) -> None:
    plain = {"image_id": 1, "category_id": 1, "bbox": [10, 5, 70, 50]}
    objects = [{"id": number, **plain, **one} for number, one in enumerate(annotations, start=1)]
    categories = [{"id": 1, "name": "cat", "keypoints": NAMES, "skeleton": [[1, 2], [1, 3]]}]
    content = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": objects, "categories": categories}
    (root / "instances.json").write_text(json.dumps(content | more))


def flat(points: list[tuple[float, float]], visibility: int = 2) -> list[float]:
    return [number for x, y in points for number in (x, y, visibility)] + [0, 0, 0]


def only_record(done: Any) -> dict[str, Any]:
    (record,) = read_all(Path(done.folder), ["train"]).values()
    return record


def convert(source: Path, out: Path, **options: Any) -> Any:
    return run_convert(source, out, **{"layout": "coco", "keep": ("keypoints",)} | options)


def kept(folder: Path, annotations: list[dict[str, Any]], **more: Any) -> tuple[Any, dict[str, Any]]:
    """What becomes of a picture with these annotations: the conversion, and its record."""
    source = draw(folder / "src")
    document(source, annotations, **more)
    done = convert(source, folder / "out")
    return done, only_record(done)


def stored_points(record: dict[str, Any]) -> np.ndarray:
    return np.stack([record[f"{KEY}/x"], record[f"{KEY}/y"]], axis=1)


def found_squares(record: dict[str, Any], shape: tuple[int, int]) -> np.ndarray:
    """x, y of the middle of each color in the stored picture, as shares of its sides."""
    pixels = np.frombuffer(record["image/encoded"][0], np.uint8).reshape(*shape, 3).astype(int)
    middles = []
    for color in COLORS:
        rows, columns = np.nonzero(np.abs(pixels - color).max(-1) < 60)
        middles.append(((columns.mean() + 0.5) / shape[1], (rows.mean() + 0.5) / shape[0]))
    return np.array(middles)


HOW = {
    "resized": ({"height": 192, "width": 160}, (192, 160), POINTS),
    "padded": (
        {"resize": "keep-aspect", "min_dimension": 160, "max_dimension": 208, "pad": True},
        (208, 208),
        POINTS,
    ),
    # A quarter turn to the right: x goes down, and the last row comes first.
    "displayed": (
        {"height": 192, "width": 128, "annotation_grid": "displayed"},
        (192, 128),
        [(HEIGHT - 1 - y, x) for x, y in POINTS],
    ),
}
TURNS = [*((turned, "resized") for turned in range(1, 9)), (6, "padded"), (6, "displayed")]


@pytest.mark.parametrize(("orientation", "how"), TURNS)
def test_points_lie_on_what_was_drawn_after_resizing_padding_turning(tmp_path, orientation, how):
    options, shape, points = HOW[how]
    source = draw(tmp_path / "src", orientation=orientation)
    box = [5, 5, 50, 70] if how == "displayed" else [10, 5, 70, 50]
    document(source, [{"keypoints": flat(points), "num_keypoints": 3, "bbox": box}])
    done = convert(source, tmp_path / "out", **options)
    record = only_record(done)
    stored = stored_points(record)
    assert (np.abs(stored[:3] - found_squares(record, shape)) * shape[::-1]).max() < 0.4
    # What is not labeled is no place, wherever the corner goes.
    assert stored[3].tolist() == [0, 0]
    assert record[f"{KEY}/visibility"].tolist() == [2, 2, 2, 0] and record[f"{KEY}/num"].tolist() == [3]
    assert [bytes(name).decode() for name in record[f"{KEY}/text"]] == NAMES
    assert verify(done.folder).ok


def test_coordinates_with_fractions_are_points_and_whole_numbers_are_pixels(tmp_path):
    source = draw(tmp_path / "src")
    middles = [(x + 0.5, y + 0.5) for x, y in POINTS]
    records = []
    for number, points in enumerate((POINTS, middles)):
        document(source, [{"keypoints": flat(points)}])
        done = convert(source, tmp_path / str(number))
        records.append((only_record(done), done.manifest.splits["train"].statistics.warnings or {}))
    (whole, said_of_whole), (fractions, said) = records
    assert stored_points(whole).tolist() == stored_points(fractions).tolist()
    assert not said_of_whole and any("keypoints have fractions" in warning for warning in said)
    shares = [((x + 0.5) / WIDTH, (y + 0.5) / HEIGHT) for x, y in POINTS]
    document(source, [{"keypoints": flat(shares), "bbox": [0.1, 0.1, 0.8, 0.8]}])
    stored = stored_points(only_record(convert(source, tmp_path / "out", height=128, width=192)))
    assert np.abs(stored[:3] - shares).max() < 1e-6 and stored[3].tolist() == [0, 0]


def test_points_go_with_their_object_and_lie_under_the_names_of_every_category(tmp_path):
    outside = {"bbox": [200, 5, 10, 10], "keypoints": flat([(1, 1)] * 3)}
    crowd = {"iscrowd": 1, "keypoints": [0] * 12, "num_keypoints": 0}
    other = {"category_id": 2}
    objects = [outside, {"keypoints": flat(POINTS, 1), "num_keypoints": 3}, crowd, {}, other]
    categories = [{"id": 1, "name": "cat", "keypoints": NAMES}, {"id": "2", "name": "box"}]
    done, record = kept(tmp_path, objects, categories=categories)
    assert record[f"{KEY}/num"].tolist() == [3, 0, 0, 0]
    # As many points for each object, so that readers find those of each.
    assert record[f"{KEY}/visibility"].reshape(4, 4).tolist() == [[1, 1, 1, 0], *[[0] * 4] * 3]
    assert not record[f"{KEY}/x"].reshape(4, 4)[1:].any()
    assert [bytes(name).decode() for name in record[f"{KEY}/text"]] == NAMES * 4
    assert verify(done.folder).ok
    assert "3 of 4 keypoints" in describe_record(done.folder, "train:0")
    fish = {"id": 7, "name": "fish", "keypoints": ["fin"]}
    several = [fish, {"id": 1, "name": "cat", "keypoints": NAMES}]
    objects = [{"category_id": 7, "keypoints": [5, 6, 2]}, {"keypoints": flat(POINTS)}]
    _, record = kept(tmp_path / "fish", objects, categories=several)
    assert [bytes(name).decode() for name in record[f"{KEY}/text"]] == [*NAMES, "fin"] * 2
    assert record[f"{KEY}/visibility"].reshape(2, 5).tolist() == [[0, 0, 0, 0, 2], [2, 2, 2, 0, 0]]


@pytest.mark.parametrize(
    ("keypoints", "reason"),
    [
        (flat(POINTS)[:-1], "keypoints are not three numbers for each name"),
        (flat(POINTS)[:-3], "keypoints are not three numbers for each name"),
        ({"nose": [1, 2]}, "keypoints are not three numbers for each name"),
        ([*flat(POINTS)[:-1], 0.7], "visibility of a keypoint is not 0, 1 or 2"),
        ([float("nan"), *flat(POINTS)[1:]], "number is not finite"),
        (["left", *flat(POINTS)[1:]], "not a number"),
    ],
)
def test_an_object_whose_keypoints_cannot_be_read_is_dropped_by_name(tmp_path, keypoints, reason):
    done, record = kept(tmp_path, [{"keypoints": keypoints}, {"keypoints": flat(POINTS)}])
    assert record[f"{KEY}/num"].tolist() == [3]
    assert done.manifest.splits["train"].statistics.boxes == {f"dropped as {reason}": 1}
    plain = only_record(convert(tmp_path / "src", tmp_path / "plain", keep=()))
    assert len(plain["image/object/class/label"]) == 2
    assert not [key for key in plain if key.startswith(KEY)]


def test_odd_keypoints_are_kept_with_a_word(tmp_path):
    annotations = [{"keypoints": [150, 12, 2, 70, 33, 0, 46, 50, 2, 0, 0, 0], "num_keypoints": 4}]
    done, record = kept(tmp_path, annotations)
    assert record[f"{KEY}/visibility"].tolist() == [2, 0, 2, 0]
    assert record[f"{KEY}/x"][0] == pytest.approx(150.5 / WIDTH)
    assert record[f"{KEY}/x"][1] == pytest.approx(70.5 / WIDTH)
    said = " ".join(done.manifest.splits["train"].statistics.warnings)
    assert "outside of the picture" in said and "visibility 0" in said and "num_keypoints" in said
    assert verify(done.folder).ok


def test_keypoints_whose_names_are_no_list_of_different_ones_are_refused(tmp_path):
    source = draw(tmp_path / "src")
    annotation = {"keypoints": [1, 2, 2]}
    for names, message in (("nose", "expected a list of names, got 'nose'"), (["a", "a"], "'a' comes twice")):
        document(source, [annotation], categories=[{"id": 1, "name": "cat", "keypoints": names}])
        with pytest.raises(AnnotationsError, match=message):
            convert(source, tmp_path / "out")
        convert(source, tmp_path / message[:5], keep=(), overwrite=True)


def test_verify_names_what_is_wrong_with_keypoints(tmp_path):
    done, record = kept(tmp_path, [{"keypoints": flat(POINTS)}, {"keypoints": flat(POINTS)}])
    assert not list(kept_problems(record, done.manifest))
    nan = record[f"{KEY}/x"].copy()
    nan[1] = np.nan
    for part, value, message in (
        ("x", nan, "x: point 1 is nan"),
        ("y", record[f"{KEY}/y"][:-1], "y 7"),
        ("num", np.array([3]), "expected one for each of 2 boxes, got 1"),
        ("num", np.array([3, 1]), "num: box 1: 1, but 3 of its points are labeled"),
        ("visibility", np.array([2, 2, 2, 0, 2, 2, 3, 0]), "point 6: expected 0, 1 or 2, got 3"),
        ("text", [*record[f"{KEY}/text"][:-1], memoryview(b"x")], "box 1 has other names than box 0"),
        ("text", record[f"{KEY}/visibility"], "text: expected bytes values"),
    ):
        (problem,) = kept_problems({**record, f"{KEY}/{part}": value}, done.manifest)
        assert message in problem
    fewer = {key: value for key, value in record.items() if key != f"{KEY}/num"}
    assert list(kept_problems(fewer, done.manifest)) == [f"{KEY}/num is missing"]
    assert not list(kept_problems({}, dataclasses.replace(done.manifest, recipe={})))


def test_readers_of_tensorflow_datasets_are_told_of_what_is_kept(tmp_path):
    done, record = kept(tmp_path, [{"keypoints": flat(POINTS)}])
    told = json.loads((Path(done.folder) / "features.json").read_text())["featuresDict"]["features"]
    assert set(told) == set(record) - {"split"}
    assert told[f"{KEY}/x"]["sequence"]["feature"]["tensor"]["dtype"] == "float32"
    assert told[f"{KEY}/num"]["sequence"]["feature"]["tensor"]["dtype"] == "int64"


def load(folder: str, *names: str) -> dict[str, np.ndarray]:
    for augment in ((), (FlipLeftRight(1.0),)):
        loader = Loader(folder, split="train", batch_size=1, include=names, augment=augment, shuffle=False)
        batch = loader.batch(0)
    return {name: batch[name][0, : batch["num_boxes"][0]] for name in names}


def test_voc_keeps_what_is_occluded_and_the_pose(tmp_path):
    source = draw_plain(tmp_path / "src", "a.png")
    said = "<pose>{}</pose><occluded>1</occluded>"
    rows = [((30, 2, 38, 8), said.format("Left")), ((2, 2, 8, 8), said.format("Rear")), ((2, 2, 8, 8), "")]
    objects = [voc_object(boxed("a.png", box), inside) for box, inside in rows]
    (source / "a.xml").write_text(voc_text("a.png", "".join(objects)))
    done = run_convert(source, tmp_path / "out", layout="voc", keep=("occluded", "view"))
    (record,) = read_all(Path(done.folder), ["train"]).values()
    assert [bytes(view) for view in record["image/object/view"]] == [b"Rear", b""]
    assert load(done.folder, "occluded")["occluded"].tolist() == [True, False]
    assert verify(done.folder).ok
    plain = run_convert(source, tmp_path / "plain", layout="voc")
    (record,) = read_all(Path(plain.folder), ["train"]).values()
    assert not {"image/object/view", "image/object/occluded"} & set(record)


def test_coco_keeps_its_own_category_ids_and_what_cvat_calls_occluded(tmp_path):
    source = draw_plain(tmp_path / "src", "a.png")
    plain = {"image_id": 1, "bbox": [2, 3, 8, 6]}
    objects = [
        {"id": 1, "category_id": 90, "attributes": {"occluded": True}, **plain},
        {"id": 2, "category_id": 17, "attributes": {"occluded": False}, **plain},
    ]
    categories = [{"id": 17, "name": "cat"}, {"id": 90, "name": "toothbrush"}]
    document = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": objects, "categories": categories}
    (source / "instances.json").write_text(json.dumps(document))
    done = run_convert(source, tmp_path / "out", layout="coco", keep=("category_id", "occluded"))
    found = load(done.folder, "source_classes", "occluded")
    assert found["source_classes"].tolist() == [90, 17] and found["occluded"].tolist() == [True, False]
    assert verify(done.folder).ok and done.manifest.field("source_classes").optional


def test_tables_keep_open_images_groups(tmp_path):
    source = draw_plain(tmp_path / "src", "a.png")
    rows = "a.png,hat,2,2,8,8,1,0\na.png,hat,3,2,8,8,0,1\n"
    (source / "t.csv").write_text(f"filename,class,xmin,ymin,xmax,ymax,IsGroupOf,IsOccluded\n{rows}")
    done = run_convert(source, tmp_path / "out", layout="csv", keep=("group_of", "occluded"))
    left = run_convert(source, tmp_path / "left", layout="csv").manifest.splits["train"].statistics.warnings
    assert "columns of t.csv that --keep would keep: group_of, occluded" in left
    found = load(done.folder, "group_of", "occluded")
    assert found["group_of"].tolist() == [True, False] and found["occluded"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("choice", "crowds"), [("keep", [True, False]), ("drop", [False]), ("objects", [False] * 2)]
)
def test_a_group_of_open_images_is_a_crowd_of_its_class(tmp_path, choice, crowds):
    source = draw_plain(tmp_path / "src", "a.png")
    rows = "a.png,hat,2,2,8,8,1\na.png,hat,3,2,8,8,0\n"
    (source / "t.csv").write_text(f"filename,class,xmin,ymin,xmax,ymax,IsGroupOf\n{rows}")
    done = run_convert(source, tmp_path / "out", layout="csv", boxes_crowd=choice)
    batch = Loader(done.folder, batch_size=1).batch(0)
    assert batch["is_crowd"][0, : batch["num_boxes"][0]].tolist() == crowds
