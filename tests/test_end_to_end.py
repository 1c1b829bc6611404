"""The real data sets are converted completely: every picture, box and label, as another reader sees them."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from halofeed.pipelines.convert import Conversion
from tests.support.conversions import boxes_in_source, read_all, read_split, run_convert, shard_paths
from tests.support.level_rows import levels, others

KEPT = {"resize": "keep-aspect", "min_dimension": 64, "max_dimension": 112}
RECIPES: dict[str, dict[str, Any]] = {
    "stretched": {"height": 64, "width": 96, "interpolation": "tf2-nearest"},
    "padded": KEPT | {"pad": True, "pad_value": (7, 8, 9), "interpolation": "tf2-nearest"},
    "unpadded": KEPT | {"encoding": "jpeg"},
}
DETECTION = {"cards": "voc", "bccd": "voc", "coco": "coco"}
FOLDERS = {"cards": "cards_voc", "bccd": "bccd_voc", "coco": "coco_ccby"}
CASES = [(name, recipe) for name in DETECTION for recipe in RECIPES]
QUICK = [("cards", "stretched"), ("bccd", "stretched"), *(("coco", recipe) for recipe in RECIPES)]


@pytest.fixture(scope="session")
def clothing(test_data, tmp_path_factory) -> Conversion:
    out = tmp_path_factory.mktemp("clothing")
    options = {"height": 48, "width": 36, "shards": 3, "interpolation": "tf2-nearest"}
    return run_convert(test_data / "images/clothing", out, layout="folders", **options)


@pytest.fixture(scope="session")
def detection(test_data, tmp_path_factory):
    """detection(name, recipe) converts once and keeps the result."""
    made: dict[tuple[str, str], Conversion] = {}

    def get(name: str, recipe: str) -> Conversion:
        if (name, recipe) not in made:
            source = test_data / "detection" / FOLDERS[name]
            out = tmp_path_factory.mktemp(f"{name}-{recipe}")
            options = {"name": name, "layout": DETECTION[name], "shards": 2} | RECIPES[recipe]
            made[name, recipe] = run_convert(source, out, masks=name == "coco", **options)
        return made[name, recipe]

    return get


# Independent, slow readers of the annotations -----------------------------------------------------------


def read_voc(root: Path) -> dict[str, list[tuple[str, list[float]]]]:
    """By stem of the XML: (class, [ymin, xmin, ymax, xmax] in continuous pixels), in the file's order."""
    found = {}
    for path in root.rglob("*.xml"):
        objects = []
        for text in re.findall(r"<object>(.*?)</object>", path.read_text(), re.DOTALL):
            first = {
                tag: re.search(rf"<{tag}>\s*(.*?)\s*</{tag}>", text).group(1)
                for tag in ("name", "xmin", "ymin", "xmax", "ymax")
            }
            xmin, ymin, xmax, ymax = (int(first[tag]) for tag in ("xmin", "ymin", "xmax", "ymax"))
            objects.append((first["name"], [ymin - 1, xmin - 1, ymax, xmax]))
        found[path.stem] = objects
    return found


def read_coco(root: Path) -> dict[str, list[tuple[str, list[float]]]]:
    """As `read_voc`, by stem of the picture."""
    document = json.loads((root / "instances.json").read_text())
    names = {category["id"]: category["name"] for category in document["categories"]}
    stems = {image["id"]: Path(image["file_name"]).stem for image in document["images"]}
    found: dict[str, list[tuple[str, list[float]]]] = {stem: [] for stem in stems.values()}
    for entry in document["annotations"]:
        x, y, width, height = entry["bbox"]
        found[stems[entry["image_id"]]].append((names[entry["category_id"]], [y, x, y + height, x + width]))
    return found


def read_truth(name: str, test_data: Path) -> dict[str, list[tuple[str, list[float]]]]:
    root = test_data / "detection" / FOLDERS[name]
    return read_coco(root) if DETECTION[name] == "coco" else read_voc(root)


# Counts -------------------------------------------------------------------------------------------------


def box_total(done: Conversion) -> int:
    return sum(sum(split.statistics.labels.values()) for split in done.manifest.splits.values())


def test_clothing_has_every_picture_in_its_split_and_class(clothing, test_data):
    manifest = clothing.manifest
    records = {name: split.records for name, split in manifest.splits.items()}
    assert records == {"test": 144, "train": 1000, "validation": 146}
    assert len(manifest.labels) == 10 and manifest.task == "classification" and not manifest.rejected
    paths = (test_data / "images/clothing").rglob("*.jpg")
    on_disk = Counter((path.parts[-3], path.parts[-2]) for path in paths)
    stored = Counter(
        (name, bytes(features["image/class/text"][0]).decode())
        for name in manifest.splits
        for features in read_split(Path(clothing.folder), name)
    )
    assert stored == on_disk
    for name, split in manifest.splits.items():
        by_name = {manifest.labels[int(key)]: count for key, count in split.statistics.labels.items()}
        assert by_name == {label: count for (of, label), count in on_disk.items() if of == name}


# Boxes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "recipe"), others(CASES, QUICK))
def test_stored_boxes_lie_on_their_annotations(detection, test_data, name, recipe):
    done = detection(name, recipe)
    truth = read_truth(name, test_data)
    records = read_all(Path(done.folder), list(done.manifest.splits))
    assert len(records) == len(truth)
    worst, count = 0.0, 0
    for source, features in records.items():
        size = [float(features[f"image/source/{side}"][0]) for side in ("height", "width")]
        expected = [
            (label, box)
            for label, box in truth[Path(source).stem]
            # VOC writes the two empty ones with xmin == xmax or ymin == ymax, of a first pixel to itself
            if name != "bccd" or (box[2] - box[0] > 1 and box[3] - box[1] > 1)
        ]
        texts = [bytes(text).decode() for text in features["image/object/class/text"]]
        labels = [done.manifest.labels[int(number)] for number in features["image/object/class/label"]]
        assert texts == labels == [label for label, _ in expected], source
        if expected:
            boxes = np.clip([box for _, box in expected], 0, size * 2)
            difference = np.abs(boxes_in_source(features) - boxes)
            worst, count = max(worst, float(difference.max())), count + len(boxes)
    assert count == box_total(done)
    assert done.manifest.rejected == ({"object: box has zero area": 2} if name == "bccd" else {})
    assert worst < 0.01, f"{worst} pixels; float32 is finer than that"


# Pixels -------------------------------------------------------------------------------------------------


def nearest(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The slow way: each stored pixel takes the source pixel that holds its center."""
    steps = [np.float32(source / out) for source, out in zip(pixels.shape, (height, width), strict=False)]
    rows = [min(int(np.float32(y + 0.5) * steps[0]), pixels.shape[0] - 1) for y in range(height)]
    columns = [min(int(np.float32(x + 0.5) * steps[1]), pixels.shape[1] - 1) for x in range(width)]
    return np.stack([np.stack([pixels[row, column] for column in columns]) for row in rows])


def displayed(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def stored_pixels(features: dict[str, Any]) -> np.ndarray:
    shape = int(features["image/height"][0]), int(features["image/width"][0]), 3
    return np.frombuffer(features["image/encoded"][0], np.uint8).reshape(shape)


def test_raw_pixels_of_clothing_are_those_of_pillow(clothing, test_data):
    records = read_all(Path(clothing.folder), ["validation"])
    for source in sorted(records)[::5]:
        expected = nearest(displayed(test_data / "images/clothing" / source), 48, 36)
        assert np.array_equal(stored_pixels(records[source]), expected), source


@pytest.mark.parametrize("name", others(sorted(DETECTION), ["cards", "coco"]))
def test_padded_pixels_are_those_of_pillow_and_padding_holds_its_value(detection, test_data, name):
    done = detection(name, "padded")
    records = read_all(Path(done.folder), list(done.manifest.splits))
    for source in sorted(records)[:: len(records) // 12]:
        features = records[source]
        pixels = stored_pixels(features)
        assert pixels.shape == (112, 112, 3)
        image = displayed(test_data / "detection" / FOLDERS[name] / source)
        height, width = (int(features[f"image/unpadded/{side}"][0]) for side in ("height", "width"))
        short, long = sorted(image.shape[:2])
        scale = min(64 / short, 112 / long)
        assert [height, width] == [round(side * scale) for side in image.shape[:2]]
        assert np.array_equal(pixels[:height, :width], nearest(image, height, width)), source
        assert (pixels[height:] == (7, 8, 9)).all() and (pixels[:, width:] == (7, 8, 9)).all()


def test_an_unpadded_jpeg_is_the_picture(detection, test_data):
    records = read_all(Path(detection("cards", "unpadded").folder), ["test"])
    for source in sorted(records)[::9]:
        pixels = tf.io.decode_jpeg(bytes(records[source]["image/encoded"][0])).numpy()
        image = Image.fromarray(displayed(test_data / "detection/cards_voc" / source))
        small = np.asarray(image.resize(pixels.shape[1::-1], Image.Resampling.BILINEAR), np.int16)
        assert np.abs(pixels - small).mean() < 5, source  # JPEG's loss, on noise as fine as its blocks
        assert min(pixels.shape[:2]) == 64 or max(pixels.shape[:2]) == 112


# TensorFlow reads the same --------------------------------------------------------------------------------


def same_as_tensorflow(done: Conversion) -> int:
    """Every record and every key, by tf.data and tf.io.parse_single_example, against our own reader."""
    folder, count = Path(done.folder), 0
    for split in done.manifest.splits:
        paths = [str(path) for path in shard_paths(folder, split)]
        for data, ours in zip(tf.data.TFRecordDataset(paths), read_split(folder, split), strict=True):
            assert set(tf.train.Example.FromString(data.numpy()).features.feature) >= set(ours)
            kinds = {key: tf.string if isinstance(v, list) else v.dtype.name for key, v in ours.items()}
            spec = {key: tf.io.VarLenFeature(kind) for key, kind in kinds.items()}
            parsed = tf.io.parse_single_example(data, spec)
            for key, value in ours.items():
                found = parsed[key].values.numpy()
                if isinstance(value, list):
                    assert found.tolist() == [bytes(item) for item in value], key
                else:
                    assert found.dtype == value.dtype and found.tobytes() == value.tobytes(), key
            count += 1
    return count


@pytest.mark.long
def test_tensorflow_reads_every_clothing_record(clothing):
    assert same_as_tensorflow(clothing) == 1290


TO_READ = levels(("coco", "stretched", 53), long=[("cards", "padded", 363), ("bccd", "unpadded", 364)])


@pytest.mark.parametrize(("name", "recipe", "count"), TO_READ)
def test_tensorflow_reads_every_detection_record(detection, name, recipe, count):
    assert same_as_tensorflow(detection(name, recipe)) == count
