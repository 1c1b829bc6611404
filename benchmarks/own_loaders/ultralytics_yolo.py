"""Ultralytics: `build_yolo_dataset` and `build_dataloader` with 640 pixels; 16 pictures a batch and 8 workers.

These are the defaults of `yolo train`, of which `build_dataloader` starts at most one worker for each core. All of its
augmentations but the flip and the mosaic are off. Ultralytics keeps decoded pictures for its mosaics in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ultralytics.cfg import get_cfg
from ultralytics.data.build import build_dataloader, build_yolo_dataset
from ultralytics.utils import ops

import halofeed
from halofeed.loader import FlipLeftRight, Mosaic
from own_loaders.comparison import SIDE, Compared, converted_pictures, largest_difference

PACKAGES = ("torch", "ultralytics")
BATCH, WORKERS = 16, 8
OFF = ("hsv_h", "hsv_s", "hsv_v", "translate", "scale", "mosaic", "fliplr", "erasing", "auto_augment")


def own_loader(folder: Path, mode: str = "train", **chances: float) -> Any:
    """Return Ultralytics' data loader with these chances of augmentations, and no others."""
    options = {name: 0.0 for name in OFF if name != "auto_augment"} | chances
    cfg = get_cfg(overrides={"task": "detect", "imgsz": SIDE, **options})
    names = {0: "disc", 1: "square", 2: "triangle"}
    data = {"names": names, "nc": 3, "channels": 3, "path": str(folder)}
    dataset = build_yolo_dataset(cfg, str(folder / "images/train"), BATCH, data, mode=mode, stride=32)
    return build_dataloader(dataset, BATCH, WORKERS, shuffle=mode == "train", device="cpu")


def boxes_of(batches: Any) -> dict[Any, Any]:
    """Return [class, box in pixels of the source] by the number of each file."""
    found = {}
    for batch in batches:
        shape = tuple(batch["img"].shape[2:])
        for row, file in enumerate(batch["im_file"]):
            mine = batch["batch_idx"] == row
            boxes = ops.xywh2xyxy(batch["bboxes"][mine]) * SIDE
            boxes = ops.scale_boxes(shape, boxes, batch["ori_shape"][row], batch["ratio_pad"][row])
            found[int(Path(file).stem)] = np.concatenate([batch["cls"][mine].numpy(), boxes.numpy()], axis=1)
    return found


def pixels_of(batches: Any, files: int) -> dict[Any, Any]:
    """Return the pixels of the first files without their letterbox."""
    found = {}
    for batch in batches:
        for row, file in enumerate(batch["im_file"]):
            number = int(Path(file).stem)
            if number <= files:
                height, width = batch["ori_shape"][row]
                left, top = (round(pad) for pad in batch["ratio_pad"][row][1])
                found[number] = batch["img"][row][:, top : top + height, left : left + width].numpy().ravel()
    return found


def _mosaic(low: float, high: float) -> Mosaic:
    return Mosaic(SIDE, SIDE, scales=(low, high), center=(0.01, 0.99))


def cases(folder: Path, count: int) -> tuple[str, list[Compared]]:
    """Return what the comparison of boxes found, and the cases."""
    data = converted_pictures(folder, count)

    def plain() -> Any:
        return halofeed.torch.ultralytics(data.loader("train", batch_size=BATCH, training=False))

    own = own_loader(folder, "val")
    difference = largest_difference(boxes_of(own), boxes_of(plain()))
    pixels = largest_difference(pixels_of(own, 16), pixels_of(plain(), 16))
    own.close()
    found = (
        f"{len(own.dataset)} pictures: classes and boxes differ by {difference:.1g} pixels at most, "
        f"values of 16 pictures by {pixels:.2g} of 255"
    )

    def case(title: str, augment: list[Any], **chances: float) -> Compared:
        return Compared(
            title=title,
            own=lambda: own_loader(folder, **chances),
            ours=lambda: halofeed.torch.ultralytics(
                data.loader("train", batch_size=BATCH, augment=[*augment, FlipLeftRight()])
            ),
            rows=lambda batch: len(batch["img"]),
            close=lambda loader: loader.close(),
        )

    return found, [
        case("flip, 16 a batch", [], fliplr=0.5),
        # Ultralytics' point of a mosaic is anywhere in the image once it has cut the middle out of its canvas.
        case("mosaic and flip", [_mosaic(1.0, 1.0)], fliplr=0.5, mosaic=1.0),
        case("mosaic at scales 0.5 to 1.5, flip", [_mosaic(0.5, 1.5)], fliplr=0.5, mosaic=1.0, scale=0.5),
    ]
