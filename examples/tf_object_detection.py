"""Read boxes with the parsers of the TF Object Detection API and of Model Garden, and compare them with the source.

Both read tf.train.Example with the keys below and an encoded image, hence `encoding="jpeg"`. `object_detection_api` is
what TfExampleDecoder returns; `model_garden` what the decoder and the RetinaNet parser make of the same keys. Point the
real ones at the shards, and `label_map_path` at the label_map.pbtxt beside them.

    pip install 'halofeed[convert,tf]'
    python examples/tf_object_detection.py
"""

import json
import tempfile
from pathlib import Path

import tensorflow as tf
from drawn import draw_boxes

import halofeed

SIDES = [f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax")]
FEATURES = {
    **{key: tf.io.FixedLenFeature((), tf.string) for key in ("image/encoded", "image/source_id")},
    **{key: tf.io.FixedLenFeature((), tf.int64) for key in ("image/height", "image/width")},
    **{key: tf.io.RaggedFeature(tf.float32) for key in [*SIDES, "image/object/area"]},
    **{key: tf.io.RaggedFeature(tf.int64) for key in ("image/object/class/label", "image/object/is_crowd")},
    "image/object/class/text": tf.io.RaggedFeature(tf.string),
}


def object_detection_api(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    found = tf.io.parse_single_example(serialized, FEATURES)
    return {
        "image": tf.io.decode_image(found["image/encoded"], channels=3, expand_animations=False),
        "source_id": found["image/source_id"],
        "groundtruth_boxes": tf.stack([found[side] for side in SIDES], -1),
        "groundtruth_classes": found["image/object/class/label"],
        "names": found["image/object/class/text"],
        "groundtruth_is_crowd": tf.cast(found["image/object/is_crowd"], tf.bool),
        "groundtruth_area": found["image/object/area"],
    }


def model_garden(serialized: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    found = object_detection_api(serialized)
    used = tf.logical_not(found["groundtruth_is_crowd"])  # RetinaNet's parser skips crowds in training
    size = tf.cast(tf.tile(tf.shape(found["image"])[:2], [2]), tf.float32)
    boxes = tf.boolean_mask(found["groundtruth_boxes"], used) * size
    classes = tf.boolean_mask(found["groundtruth_classes"], used)
    source_id = tf.strings.to_number(found["source_id"], tf.int64)
    return found["image"], {"boxes": boxes, "classes": classes, "source_id": source_id}


def main(folder: Path) -> None:
    draw_boxes(folder / "cards")
    size = {"resize": "keep-aspect", "min_dimension": 128, "max_dimension": 128, "pad": True}
    data = halofeed.convert(folder / "cards", folder / "data", layout="coco", encoding="jpeg", **size)
    document = json.loads((folder / "cards/annotations/instances_test.json").read_text())
    by_hand = len(document["annotations"])

    shards = tf.data.TFRecordDataset(tf.io.gfile.glob(f"{data.path}/*-test.tfrecord-*"))
    decoded = list(shards.map(object_detection_api))
    assert sum(len(one["groundtruth_boxes"]) for one in decoded) == by_hand
    for one in decoded:
        numbers = one["groundtruth_classes"].numpy()
        assert [data.class_names[number].encode() for number in numbers] == one["names"].numpy().tolist()

    parsed = list(shards.map(model_garden))
    assert sum(len(target["boxes"]) for _, target in parsed) == by_hand
    assert all(image.shape == (128, 128, 3) for image, _ in parsed)
    assert all(float(tf.reduce_max(target["boxes"])) <= 128 for _, target in parsed)
    print(f"{len(parsed)} test pictures with {by_hand} boxes, as annotated, by both parsers")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
