"""Train, evaluate and predict with Keras, and check its metrics against a count by hand.

pip install 'halofeed[convert,tf]'
python examples/keras_fit.py
"""

import tempfile
from pathlib import Path

import keras
import numpy as np
from drawn import draw_photos

import halofeed
from halofeed.loader import FlipLeftRight


def main(folder: Path) -> None:
    draw_photos(folder / "photos")
    data = halofeed.convert(folder / "photos", folder / "data", layout="folders", height=32, width=32)
    train = data.loader("train", batch_size=8, seed=1, augment=[FlipLeftRight()])
    test = data.loader("test", batch_size=8, training=False)

    model = keras.Sequential(
        [
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(len(data.class_names)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, weighted_metrics=["accuracy"])
    # halofeed has shuffled the records, so Keras must not buffer and shuffle the batches again.
    model.fit(train.dataset(as_supervised=True), epochs=6, shuffle=False, verbose=0)

    # 21 test pictures in batches of 8: the last batch has 5, and the padding is left out.
    measured = model.evaluate(test.dataset(as_supervised=True), return_dict=True, verbose=0)["accuracy"]
    scores = model.predict(test.dataset(as_supervised=True), verbose=0)
    truth = [int(record["label"]) for record in test.records]
    by_hand = float(np.mean(scores.argmax(1) == truth))
    assert len(scores) == test.num_records == 21
    assert abs(measured - by_hand) < 1e-6, (measured, by_hand)
    print(f"accuracy {measured:.3f} of {len(scores)} test pictures, the same as counted by hand")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
