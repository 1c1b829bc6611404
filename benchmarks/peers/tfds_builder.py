"""TensorFlow Datasets: a builder of one's own, prepared as TFRecords."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from peers.common import Case, Source
from peers.tf_data import finished


def builder_of(folder: Path, source: Source | None = None) -> Any:
    """The data set below a folder; of a source where it is to be prepared."""
    if source is None:
        return tfds.builder_from_directory(str(folder / "compared" / "1.0.0"))
    first = source[0]
    features: dict[str, Any] = {"number": tf.int64}
    for key in ("image", "label"):
        if key not in first:
            continue
        value = first[key]
        is_file = isinstance(value, bytes)
        features[key] = (
            tfds.features.Image(encoding_format="jpeg")
            if is_file
            else tfds.features.Tensor(shape=value.shape, dtype=value.dtype.type, encoding="bytes")
        )

    class Compared(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            for number in range(len(source)):
                example = source[number]
                if source.is_encoded:
                    example["image"] = io.BytesIO(example["image"])
                yield number, example

    return Compared(data_dir=str(folder))


def write(source: Source, folder: Path) -> None:
    """As TFDS divides it into shards."""
    builder_of(folder, source).download_and_prepare()


def batches(folder: Path, case: Case) -> Iterator[Any]:
    """Files in random order, then a buffer of all records; JPEG files are decoded after it."""
    builder = builder_of(folder)
    data = builder.as_dataset(
        split="train",
        shuffle_files=True,
        decoders={"image": tfds.decode.SkipDecoding()} if case.is_encoded else None,
        read_config=tfds.ReadConfig(try_autocache=False),
    )

    def example_of(example: dict[str, Any]) -> dict[str, Any]:
        if case.is_encoded:
            image = tf.io.decode_jpeg(example["image"], channels=3, dct_method="INTEGER_ACCURATE")
            example = {**example, "image": tf.ensure_shape(image, case.shape)}
        return finished(dict(example), case, as_float=False)

    data = data.shuffle(builder.info.splits["train"].num_examples).repeat()
    data = data.map(example_of, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(case.batch_size).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
