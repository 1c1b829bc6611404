"""Keras on PyTorch or JAX without TensorFlow: fit, evaluate and predict on a PyDataset.

pip install 'halofeed[convert]' keras torch
KERAS_BACKEND=torch python examples/keras_without_tensorflow.py

Checked with keras 3.15.1, torch 2.15.0 and jax 0.10.2.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
from drawn import draw_photos

import halofeed
from halofeed.loader import FlipLeftRight, RandomCrop


def main(folder: Path) -> None:
    draw_photos(folder / "photos")
    data = halofeed.convert(folder / "photos", folder / "data", layout="folders", height=32, width=32)
    train = data.loader("train", batch_size=8, seed=1, augment=[FlipLeftRight(), RandomCrop(24, 24)])
    test = data.loader("test", batch_size=8, training=False, augment=[RandomCrop(24, 24)])

    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Rescaling(1 / 255),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(len(data.class_names), activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(halofeed.keras_batches(train), epochs=8, verbose=0).history
    losses = history["loss"]
    assert losses[-1] < 0.7 * losses[0], losses
    _, accuracy = model.evaluate(halofeed.keras_batches(test), verbose=0)
    scores = model.predict(halofeed.keras_batches(test), verbose=0)

    # Counted by hand: predictions are in the order of the records.
    right = sum(
        int(row.argmax() == record["label"]) for row, record in zip(scores, test.records, strict=True)
    )
    assert abs(accuracy - right / len(scores)) < 1e-6
    print(
        f"{keras.backend.backend()}: loss {losses[0]:.2f}, then {losses[-1]:.2f}; {right} of {len(scores)} right"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
