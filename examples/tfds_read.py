"""Read a data set with TensorFlow Datasets: the folder that `halofeed convert` writes is a TFDS builder's.

pip install 'halofeed[convert,tf]' tensorflow-datasets
python examples/tfds_read.py
"""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from drawn import draw_photos

import halofeed


def main(folder: Path) -> None:
    draw_photos(folder / "photos")
    data = halofeed.convert(
        folder / "photos", folder / "data", layout="folders", height=32, width=32, encoding="png"
    )
    builder = tfds.builder_from_directory(data.path)
    names = builder.info.features["image/class/label"].names
    counts = Counter()
    records = data.loader("test", batch_size=1).records
    examples = tfds.as_numpy(builder.as_dataset(split="test"))
    for record, example in zip(records, examples, strict=True):
        counts[names[example["image/class/label"]]] += 1
        np.testing.assert_array_equal(example["image/encoded"], record["image"])

    by_hand = {one.name: len(list(one.iterdir())) for one in (folder / "photos" / "test").iterdir()}
    assert counts == by_hand
    for image, label in builder.as_dataset(split="train", as_supervised=True).take(1):
        print(f"TFDS read {dict(counts)} and pairs of an image {image.shape} and a label {int(label)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
