"""Keras 3 without TensorFlow: a PyDataset as its documentation writes one, and `image_dataset_from_directory`.

The PyDataset reads files by `keras.utils.load_img` with Keras' default of one worker, in `fit`'s own data adapter. The
other is Keras' loader of class folders by Grain (`format="grain"`), if this Keras has it. Both give 32 pictures of
320 x 320 a batch, resized from files of 640, with a flip; ours are converted at that size.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

import halofeed
from halofeed.loader import FlipLeftRight
from own_loaders.comparison import Compared, draw_pictures, largest_difference

PACKAGES = ("keras", "pillow", "numpy")
SIDE, BATCH = 320, 32


class Pictures(keras.utils.PyDataset):
    """Pictures and labels of class folders, as in the documentation of PyDataset."""

    def __init__(self, files: list[Path], labels: list[int], flips: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.files, self.labels, self.flips = files, labels, flips

    def __len__(self) -> int:
        return -(-len(self.files) // BATCH)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        chosen = slice(number * BATCH, (number + 1) * BATCH)
        images = []
        for file in self.files[chosen]:
            image = keras.utils.img_to_array(
                keras.utils.load_img(file, target_size=(SIDE, SIDE), interpolation="bilinear"), dtype="uint8"
            )
            images.append(image[:, ::-1] if self.flips and np.random.random() < 0.5 else image)
        return np.stack(images), np.array(self.labels[chosen])


def batches_of(dataset: Any) -> Any:
    """Return an epoch as `fit` takes it on a backend other than TensorFlow."""
    adapter = PyDatasetAdapter(dataset, shuffle=True)

    class Epochs:
        """Epochs of the adapter."""

        def __iter__(self) -> Any:
            adapter.on_epoch_begin()
            yield from adapter.get_numpy_iterator()
            adapter.on_epoch_end()

    return Epochs()


def cases(folder: Path, count: int) -> tuple[str, list[Compared]]:
    """Return what the comparison of pixels found, and the cases."""
    if not (folder / "coco.json").exists():
        draw_pictures(folder, count)
    classes = folder / "classes"
    files = sorted((folder / "images/train").glob("*.jpg"))
    if not classes.exists():
        for number, file in enumerate(files):
            place = classes / f"class_{number % 3}" / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, place)
        halofeed.convert(
            classes, folder / "class_data", layout="folders", folders_are_classes=True, name="classes",
            height=SIDE, width=SIDE, kernel="antialias", encoding="raw", split_shares={"train": 1},
        )  # fmt: skip
    data = halofeed.open(folder / "class_data" / "classes")
    files = sorted(classes.rglob("*.jpg"))
    labels = [int(file.parent.name[-1]) for file in files]
    plain = data.loader("train", batch_size=BATCH, training=False, include=["key"])
    ours = {str(record["key"]): record["image"].ravel() for record in (plain.records[n] for n in range(16))}
    own = {}
    for key in ours:
        picture = keras.utils.load_img(classes / key, target_size=(SIDE, SIDE), interpolation="bilinear")
        own[key] = np.asarray(picture).ravel()
    found = f"16 pictures: values differ by {largest_difference(own, ours):.0f} of 255 at most"

    def ours_loader() -> Any:
        return batches_of(
            halofeed.keras_batches(data.loader("train", batch_size=BATCH, augment=[FlipLeftRight()]))
        )

    def case(title: str, own_loader: Any) -> Compared:
        return Compared(title=title, own=own_loader, ours=ours_loader, rows=lambda batch: len(batch[0]))

    compared = [case("flip, PyDataset of files, 1 worker", lambda: batches_of(Pictures(files, labels)))]
    if "format" in inspect.signature(keras.utils.image_dataset_from_directory).parameters:
        compared.append(
            case(
                "no flip; image_dataset_from_directory, Grain",
                lambda: keras.utils.image_dataset_from_directory(
                    str(classes), batch_size=BATCH, image_size=(SIDE, SIDE), format="grain", verbose=False
                ),
            )
        )
    return found, compared
