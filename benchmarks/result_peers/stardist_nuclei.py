"""StarDist 2-D with its own defaults (32 rays, grid 2), as its example of the Data Science Bowl trains it."""

from __future__ import annotations

import json
import time

import numpy as np
from budget import of_split, read_arguments, write_log
from csbdeep.utils import normalize
from PIL import Image
from pycocotools import mask as run_lengths
from stardist.models import Config2D, StarDist2D


def read_example(one: dict) -> tuple[np.ndarray, np.ndarray]:
    """Return normalized pixels, float32 [height, width, 3], and the number of the object of each pixel."""
    pixels = normalize(
        np.asarray(Image.open(one["picture"]).convert("RGB"), np.float32), 1, 99.8, axis=(0, 1)
    )
    label = np.zeros(pixels.shape[:2], np.int32)
    for number, row in enumerate(one["objects"], start=1):
        label[run_lengths.decode(row["segmentation"]) > 0] = number
    return pixels, label


def main() -> None:
    """Train for the budget, and write the objects of the test."""
    import tensorflow

    task, out, budget, seed = read_arguments(__doc__)
    tensorflow.keras.utils.set_random_seed(seed)
    random = np.random.default_rng(seed)
    pairs = [read_example(one) for one in of_split(task, "train") if min(one["size"]) >= 256]
    order = random.permutation(len(pairs))
    held = len(pairs) // 10
    train, tune = [pairs[at] for at in order[held:]], [pairs[at] for at in order[:held]]
    settings = Config2D(
        n_rays=32, grid=(2, 2), n_channel_in=3, train_patch_size=(256, 256), train_batch_size=4,
        train_tensorboard=False, train_steps_per_epoch=20, train_epochs=1, train_learning_rate=3e-4,
    )  # fmt: skip
    model = StarDist2D(settings, name="nuclei", basedir=str(out / "stardist"))
    model.prepare_for_training()

    def augment(pixels: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turns = int(random.integers(4))
        pixels, label = np.rot90(pixels, turns), np.rot90(label, turns)
        if random.random() < 0.5:
            pixels, label = pixels[:, ::-1], label[:, ::-1]
        return pixels * random.uniform(0.6, 2) + random.uniform(-0.2, 0.2), label

    # StarDist counts epochs. The first shows what one takes; the second call trains as many as the budget has.
    started = time.process_time()
    model.train([one for one, _ in train], [label for _, label in train],
                validation_data=([tune[0][0]], [tune[0][1]]), augmenter=augment, epochs=1)  # fmt: skip
    cost = time.process_time() - started
    epochs = max(int((budget.minutes * 60 - time.process_time()) / cost), 1)
    model.train([one for one, _ in train], [label for _, label in train],
                validation_data=([tune[0][0]], [tune[0][1]]), augmenter=augment, epochs=epochs)  # fmt: skip
    budget.steps = 20 * (epochs + 1)
    model.optimize_thresholds([one for one, _ in tune], [label for _, label in tune])
    trained = time.process_time()
    rows = []
    for one in of_split(task, "test"):
        pixels, _ = read_example({**one, "objects": []})
        label, found = model.predict_instances(pixels)
        for number, score in enumerate(found["prob"], start=1):
            mask = label == number
            if mask.any():
                shape = run_lengths.encode(np.asfortranarray(mask, np.uint8))
                rows.append(
                    {
                        "image": one["name"], "category_id": 1, "score": float(score),
                        "bbox": run_lengths.toBbox(shape).tolist(),
                        "segmentation": {"size": shape["size"], "counts": shape["counts"].decode()},
                    }
                )  # fmt: skip
    (out / "detections.json").write_text(json.dumps(rows))
    budget.notes["threshold"] = float(model.thresholds.prob)
    write_log(out, budget, ("stardist", "tensorflow-cpu"), model.keras_model.count_params(), trained)


if __name__ == "__main__":
    main()
