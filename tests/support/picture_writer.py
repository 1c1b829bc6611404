"""Write small picture data sets with the schema's own parts, without the converter."""

import cv2
import numpy as np

from halofeed.prep.voxels.encode import ENCODERS
from tests.support.set_writer import (
    Record,
    encode_pixels,
    image_format,
    picture_features,
    stored_features,
    write_set,
)

FILL = (9, 8, 7, 6)


def draw_examples(count, *, frame=(24, 32), channels=3, dtype="uint8", seed=0, vary=True, task="detection"):
    """Random pictures, up to the frame's size, with 0 to 6 random boxes each in whole pixels."""
    rng = np.random.default_rng(seed)
    top = np.iinfo(dtype).max
    examples = []
    for number in range(count):
        size = [int(rng.integers(side // 2, side + 1)) for side in frame] if vary else list(frame)
        small = rng.integers(0, top + 1, (5, 5, channels)).astype(dtype)
        pixels = cv2.resize(small, size[::-1], interpolation=cv2.INTER_LINEAR).reshape(*size, channels)
        boxes = []
        for _ in range(int(rng.integers(0, 7))):
            (ymin, ymax), (xmin, xmax) = (np.sort(rng.choice(side + 1, 2, replace=False)) for side in size)
            boxes.append((ymin, xmin, ymax, xmax))
        identity, label = 1000 + 7 * number if number % 2 else 2**62 + number, int(rng.integers(0, 5))
        classes, is_crowd = rng.integers(1, 300, len(boxes)), rng.integers(0, 2, len(boxes))
        examples.append(example_of(identity, pixels, boxes, classes, is_crowd, label=label, task=task))
    return examples


def example_of(identity, pixels, boxes, classes, is_crowd, *, label=0, task="detection"):
    """One picture with its objects, or with its label."""
    objects = {"classes": np.asarray(classes), "is_crowd": np.asarray(is_crowd)}
    objects["boxes"] = np.array(boxes, np.int64).reshape(-1, 4)
    return {"id": identity, "pixels": pixels, "label": label, "task": task, **objects}


def features_of(example, *, frame, encoding, pad, masks):
    """The tf.train.Example features of one example, its boxes normalized to the stored picture."""
    pixels = example["pixels"]
    height, width, channels = pixels.shape
    stored = pixels
    if pad:
        stored = np.full((*frame, channels), FILL[:channels], pixels.dtype)
        stored[:height, :width] = pixels
    boxes = example["boxes"]
    encoded, key = encode_pixels(stored, encoding), str(example["id"])
    file = f"folder/ünïcode {key}.jpg"
    features = stored_features(key, example["id"], encoded, encoding, stored.shape[:2], file=file)
    features |= picture_features((height, width), (height * 2, width * 2), (2, 0, 1, 0, 2, -3))
    if example["task"] == "classification":
        return {**features, "image/class/label": np.array([example["label"]])}
    for column, corner in enumerate(("ymin", "xmin", "ymax", "xmax")):
        features[f"image/object/bbox/{corner}"] = np.float32(boxes[:, column] / stored.shape[column % 2])
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    features["image/object/area"] = areas.astype(np.float32)
    features["image/object/class/label"] = example["classes"]
    features["image/object/is_crowd"] = example["is_crowd"]
    features["image/object/difficult"] = 1 - example["is_crowd"]
    features["image/object/truncated"] = np.zeros(len(boxes), np.int64)
    if masks:
        pictures = np.zeros((len(boxes), *stored.shape[:2], 1), np.uint8)
        for picture, (ymin, xmin, ymax, xmax) in zip(pictures, boxes, strict=True):
            picture[ymin:ymax, xmin:xmax] = 1
        features["image/object/mask"] = [bytes(ENCODERS["png"](picture, 95)) for picture in pictures]
    return features


def write_splits(
    folder, splits, *, frame=(24, 32), encoding="raw", pad=True, shards=3, max_boxes=4, masks=False
):
    """Write a whole data set, each split's examples dealt in runs over the shards; returns its folder."""

    def record(example):
        features = features_of(example, frame=frame, encoding=encoding, pad=pad, masks=masks)
        return Record(id=example["id"], features=features)

    dealt = {}
    for split, examples in splits.items():
        parts = np.array_split(np.arange(len(examples)), shards)
        dealt[split] = [[record(examples[place]) for place in part] for part in parts]
    first = next(example for examples in splits.values() for example in examples)
    shape, dtype = (*frame, first["pixels"].shape[2]), str(first["pixels"].dtype)
    image = image_format(shape, dtype, encoding, pad_value=FILL[: shape[2]])
    given = {"task": first["task"], "image": image, "labels": {}}
    return write_set(folder, dealt, **given, max_boxes=max_boxes, masks=masks)
