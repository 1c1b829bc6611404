"""Train RF-DETR by its own Lightning module on halofeed's batches.

pip install 'halofeed[convert]' 'rfdetr[train]'
python examples/rf_detr_trainer.py

Checked with rfdetr 1.11.2 and torch 2.15.0. The model begins with random weights, so nothing is downloaded.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytorch_lightning
from drawn import draw_boxes
from rfdetr.config import RFDETRNanoConfig, TrainConfig
from rfdetr.training.module_model import RFDETRModelModule

import halofeed
from halofeed.loader import FlipLeftRight

SIDE = 64


def main(folder: Path) -> None:
    draw_boxes(folder / "boxes", images=16)
    data = halofeed.convert(folder / "boxes", folder / "data", layout="coco", height=SIDE, width=SIDE)
    batches = halofeed.torch.rf_detr(data.loader("train", batch_size=4, seed=1, augment=[FlipLeftRight()]))

    pytorch_lightning.seed_everything(0)
    model = RFDETRNanoConfig(
        pretrain_weights=None,
        device="cpu",
        resolution=SIDE,
        num_classes=len(batches.class_names),
        group_detr=1,  # small, for a quick example
        num_queries=30,
        num_select=30,
    )
    options = {"dataset_dir": str(folder), "output_dir": str(folder / "run"), "tensorboard": False}
    options |= {"batch_size": 4, "multi_scale": False, "lr": 3e-4, "lr_encoder": 3e-4, "use_ema": False}
    losses = []

    class Losses(pytorch_lightning.Callback):
        """Keeps the loss of each step."""

        def on_train_batch_end(self, trainer, module, outputs, batch, number):
            losses.append(float(outputs["loss"]))

    trainer = pytorch_lightning.Trainer(
        max_steps=10,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Losses()],
    )
    trainer.fit(RFDETRModelModule(model, TrainConfig(**options)), train_dataloaders=batches)
    first, last = sum(losses[:3]) / 3, sum(losses[-3:]) / 3
    assert last < first, losses
    print(f"loss {first:.2f}, then {last:.2f}, in {len(losses)} steps")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
