"""tf.data over TFRecords of tf.train.Example, as tutorials write it and tuned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from peers.common import Case, Source

SHARDS = 8


def write(source: Source, folder: Path) -> None:
    """Eight TFRecord files; arrays as their bytes."""

    def feature(value: Any) -> Any:
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        data = value if isinstance(value, bytes) else value.tobytes()
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))

    (folder / "count").write_text(str(len(source)))
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(folder / f"{shard}.tfrecord")) as writer:
            for number in range(shard, len(source), SHARDS):
                features = {key: feature(value) for key, value in source[number].items()}
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


def batches(folder: Path, case: Case, way: str) -> Iterator[Any]:
    """Both shuffle with a buffer of all records, as they are in the file."""
    files = sorted(map(str, folder.glob("*.tfrecord")))
    count = int((folder / "count").read_text())
    if way == "tutorial":
        data = tf.data.TFRecordDataset(files).shuffle(count).repeat()
        data = data.map(lambda record: example_of(record, case, as_float=True))
        return data.batch(case.batch_size).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
    options = tf.data.Options()
    options.deterministic = False
    data = tf.data.Dataset.from_tensor_slices(files).shuffle(SHARDS)
    data = data.interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False
    )
    data = data.shuffle(count).repeat()
    data = data.map(
        lambda record: example_of(record, case, as_float=False), num_parallel_calls=tf.data.AUTOTUNE
    )
    data = data.batch(case.batch_size, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE)
    return data.prefetch(tf.data.AUTOTUNE).with_options(options).as_numpy_iterator()


def example_of(record: Any, case: Case, as_float: bool) -> dict[str, Any]:
    """Parsed, decoded, cropped and flipped where the case says so."""
    keys = ["image", "label"] if case.has_labels else ["image"]
    spec = {key: tf.io.FixedLenFeature((), tf.string) for key in keys}
    found = tf.io.parse_single_example(record, {**spec, "number": tf.io.FixedLenFeature((), tf.int64)})
    if case.is_encoded:
        image = tf.io.decode_jpeg(found["image"], channels=3, dct_method="INTEGER_ACCURATE")
    else:
        image = tf.reshape(tf.io.decode_raw(found["image"], case.dtype), case.shape)
    example = {"number": found["number"], "image": tf.ensure_shape(image, case.shape)}
    if case.has_labels:
        example["label"] = tf.reshape(tf.io.decode_raw(found["label"], "uint8"), case.shape[:-1])
    return finished(example, case, as_float)


def finished(example: dict[str, Any], case: Case, as_float: bool) -> dict[str, Any]:
    """Cropped and flipped where the case says so, and as float32 where tutorials make it so."""
    if case.crop:
        axes = len(case.crop)
        room = tf.constant([full - size + 1 for full, size in zip(case.shape, case.crop, strict=False)])
        starts = tf.cast(tf.random.uniform([axes]) * tf.cast(room, tf.float32), tf.int32)
        mirrored = tf.random.uniform([axes]) < 0.5
        for key in ("image", "label"):
            if key not in example:
                continue
            rest = len(example[key].shape) - axes
            cut = tf.slice(
                example[key], tf.pad(starts, [[0, rest]]), [*case.crop, *example[key].shape[axes:]]
            )
            for axis in range(axes) if axes == 3 else [1]:
                cut = tf.cond(
                    mirrored[axis],
                    lambda array=cut, axis=axis: tf.reverse(array, [axis]),
                    lambda cut=cut: cut,
                )
            example[key] = cut
    if as_float:
        integer = case.dtype == "uint8"
        image = example["image"]
        example["image"] = (
            tf.image.convert_image_dtype(image, tf.float32) if integer else tf.cast(image, tf.float32)
        )
    return example
