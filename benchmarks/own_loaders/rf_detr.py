"""RF-DETR: `RFDETRDataModule.train_dataloader` of RFDETRNano, with 4 pictures a batch and 2 workers, its defaults.

Pictures are resized to 544 x 544, its largest scale, and flipped. Its other branch, which resizes, crops and resizes
again, is off (`scale_jitter=False`). Ours are converted at that size, with the filter that RF-DETR uses.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from rfdetr.config import RFDETRNanoConfig, TrainConfig
from rfdetr.training.module_data import RFDETRDataModule

import halofeed
from halofeed.loader import FlipLeftRight
from own_loaders.comparison import Compared, draw_pictures, largest_difference

PACKAGES = ("torch", "rfdetr", "torchvision")
SIDE, BATCH = 544, 4


def own_module(folder: Path) -> Any:
    """Return RF-DETR's data module on the pictures as Roboflow lays them out."""
    model = RFDETRNanoConfig(pretrain_weights=None, device="cpu", num_classes=3)
    train = TrainConfig(
        dataset_dir=str(folder), output_dir=str(folder / "out"), tensorboard=False, scale_jitter=False
    )
    module = RFDETRDataModule(model, train)
    module.setup("fit")
    return module


def objects_of(batches: Any, pictures: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return [label, box] of each picture, and the pixels of the first ones, by the image's id."""
    boxes, pixels = {}, {}
    for nested, targets in batches:
        for row, target in enumerate(targets):
            key = int(target["image_id"])
            boxes[key] = np.concatenate([target["labels"][:, None].numpy(), target["boxes"].numpy()], axis=1)
            if key <= pictures:
                pixels[key] = nested.tensors[row].numpy().ravel()
    return boxes, pixels


def cases(folder: Path, count: int) -> tuple[str, list[Compared]]:
    """Return what the comparison of boxes found, and the cases."""
    if not (folder / "coco.json").exists():
        draw_pictures(folder, count)
    roboflow = folder / "roboflow"
    if not roboflow.exists():
        document = json.loads((folder / "coco.json").read_text())
        for split in ("train", "valid", "test"):
            (roboflow / split).mkdir(parents=True)
            for image in document["images"]:
                name = Path(image["file_name"]).name
                os.link(folder / "images/train" / name, roboflow / split / name)
                image["file_name"] = name
            (roboflow / split / "_annotations.coco.json").write_text(json.dumps(document))
        halofeed.convert(
            folder / "coco.json", folder / "detr_data", layout="coco", images=folder / "images", name="detr",
            height=SIDE, width=SIDE, encoding="raw", split_shares={"train": 1},
        )  # fmt: skip
    data = halofeed.open(folder / "detr_data" / "detr")
    module = own_module(roboflow)
    own_boxes, own_pixels = {}, {}
    # Without the flip: the data set's steps before it, and RF-DETR's conversion of boxes, are those of validation.
    module._dataset_val._transforms.transforms[0] = _square(SIDE)
    for number in range(64):
        image, target = module._dataset_val[number]
        key = int(target["image_id"])
        own_boxes[key] = np.concatenate([target["labels"][:, None].numpy(), target["boxes"].numpy()], axis=1)
        if number < 8:
            own_pixels[key] = image.numpy().ravel()
    plain = halofeed.torch.rf_detr(data.loader("train", batch_size=8, training=False))
    boxes, pixels = objects_of(plain, 8)
    boxes = {key: boxes[key] for key in own_boxes}
    pixels = {key: pixels[key] for key in own_pixels}
    moved = SIDE * largest_difference(own_boxes, boxes)
    found = (
        f"{len(boxes)} pictures: labels and boxes differ by {moved:.1g} pixels at "
        f"most, values of {len(pixels)} pictures by {largest_difference(own_pixels, pixels) * 0.226 * 255:.1f} of 255"
    )

    def ours_loader() -> Any:
        return halofeed.torch.rf_detr(data.loader("train", batch_size=BATCH, augment=[FlipLeftRight()]))

    return found, [
        Compared(
            title=f"{SIDE} x {SIDE}, flip, 4 a batch",
            own=lambda: own_module(roboflow).train_dataloader(),
            ours=ours_loader,
            rows=lambda batch: len(batch[0].tensors),
        )
    ]


def _square(side: int) -> Any:
    """Return RF-DETR's resize of validation at another side."""
    from rfdetr.datasets.coco import make_coco_transforms_square_div_64

    return make_coco_transforms_square_div_64("val", side).transforms[0]
