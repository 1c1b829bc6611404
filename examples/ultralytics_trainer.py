"""Train a YOLO model with Ultralytics' own trainer and validator on halofeed's batches.

pip install 'halofeed[convert]' ultralytics
python examples/ultralytics_trainer.py

Checked with ultralytics 8.4.190 and torch 2.15.0. The model is built from its description, so nothing is downloaded.
"""

import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("YOLO_OFFLINE", "true")

from drawn import draw_boxes
from ultralytics.models.yolo.detect import DetectionTrainer

import halofeed
from halofeed.loader import FlipLeftRight, Mosaic

SIDE = 128


def main(folder: Path) -> None:
    draw_boxes(folder / "boxes", images=24)
    data = halofeed.convert(
        folder / "boxes",
        folder / "data",
        layout="coco",
        resize="keep-aspect",
        min_dimension=SIDE,
        max_dimension=SIDE,
        pad=True,
        pad_value=114,
    )
    # Ultralytics takes the names from its file and checks that the folders exist; nothing else is read there.
    names = json.dumps(data.class_names[1:])  # without the background
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: boxes\nval: boxes\nnames: {names}\n")
    losses = []

    class Trainer(DetectionTrainer):
        """Ultralytics' trainer with another source of batches."""

        def get_dataloader(self, dataset_path, batch_size=16, rank=0, mode="train"):
            if mode == "val":
                return halofeed.torch.ultralytics(data.loader("test", batch_size=batch_size, training=False))
            augment = [Mosaic(SIDE, SIDE), FlipLeftRight()]
            return halofeed.torch.ultralytics(
                data.loader("train", batch_size=batch_size, seed=1, augment=augment)
            )

    options = {"imgsz": SIDE, "batch": 8, "epochs": 6, "close_mosaic": 2, "optimizer": "SGD", "lr0": 0.01}
    options |= {"amp": False, "plots": False, "workers": 0, "device": "cpu", "pretrained": False, "nbs": 8}
    options |= {"project": str(folder / "runs"), "warmup_epochs": 0, "seed": 0, "verbose": False}
    trainer = Trainer(
        overrides={"model": "yolo11n.yaml", "data": str(folder / "data.yaml"), "task": "detect", **options}
    )
    trainer.add_callback("on_train_epoch_end", lambda one: losses.append(float(sum(one.tloss.values()))))
    trainer.train()
    assert losses[-1] < losses[0], losses
    print(f"loss {losses[0]:.2f}, then {losses[-1]:.2f}, in {len(losses)} epochs")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
