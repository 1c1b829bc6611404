"""Train a detection model of torchvision, and bring its boxes back to the source pictures.

pip install 'halofeed[convert]' torch torchvision
python examples/torchvision_detection.py

Checked with torch 2.15.0 and torchvision 0.29.2.
"""

import tempfile
from pathlib import Path

import torch
from drawn import draw_boxes
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

import halofeed
from halofeed.loader import FlipLeftRight


def main(folder: Path) -> None:
    draw_boxes(folder / "boxes", images=24)
    data = halofeed.convert(
        folder / "boxes",
        folder / "data",
        layout="coco",
        resize="keep-aspect",
        min_dimension=96,
        max_dimension=128,
        pad=True,
    )
    train = halofeed.torch.detection(data.loader("train", batch_size=4, seed=1, augment=[FlipLeftRight()]))

    # The model has one output for each of `class_names`, of which the first is the background.
    torch.manual_seed(0)
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=len(train.class_names),
        trainable_backbone_layers=6,
        min_size=96,
        max_size=128,
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    losses = []
    for _ in range(3):  # each iteration of `train` is one epoch
        for images, targets in train:
            loss = sum(model(images, targets).values())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5)
            optimizer.step()
            losses.append(loss.item())
    first, last = sum(losses[:4]) / 4, sum(losses[-4:]) / 4
    assert last < first, losses

    # Evaluation: every record once, in stored order. `source_boxes` gives pixels of the source file.
    test = halofeed.torch.detection(data.loader("test", batch_size=4, training=False))
    model.eval()
    pictures = 0
    with torch.no_grad():
        for images, targets in test:
            for found, target in zip(model(images), targets, strict=True):
                boxes = halofeed.torch.source_boxes(found["boxes"], target["transform"])
                assert len(boxes) == len(found["scores"])
                pictures += 1
    assert pictures == len(data.loader("test", batch_size=1).records)
    print(f"loss {first:.2f}, then {last:.2f}, in {len(losses)} steps; boxes of {pictures} test pictures")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
