"""torchvision: CocoDetection with the transforms of references/detection (`--use-v2 --data-augmentation hflip`).

Defaults of references/detection/train.py: 2 pictures a batch, 4 workers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torchvision import datasets
from torchvision.transforms import v2

import halofeed
from halofeed.loader import FlipLeftRight
from own_loaders.comparison import Compared, converted_pictures, largest_difference

PACKAGES = ("torch", "torchvision", "pycocotools")
BATCH, WORKERS = 2, 4


def collate(batch: list[Any]) -> tuple[Any, ...]:
    """Return images and targets, as references/detection/utils.py does."""
    return tuple(zip(*batch, strict=True))


def own_loader(folder: Path, flip: float, batch_size: int, workers: int = WORKERS) -> Any:
    """Return torch's DataLoader over torchvision's COCO data set."""
    steps = [
        v2.RandomHorizontalFlip(flip),
        v2.PILToTensor(),
        v2.ToDtype(torch.float, scale=True),
        v2.ConvertBoundingBoxFormat("XYXY"),
        v2.SanitizeBoundingBoxes(),
        v2.ToPureTensor(),
    ]
    data = datasets.CocoDetection(
        str(folder / "images"), str(folder / "coco.json"), transforms=v2.Compose(steps)
    )
    data = datasets.wrap_dataset_for_transforms_v2(data, target_keys=["boxes", "labels", "image_id"])
    return torch.utils.data.DataLoader(
        data, batch_size=batch_size, shuffle=True, num_workers=workers, collate_fn=collate
    )


def boxes_and_images(batches: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return [label, box] and the pixels of each image, by the image's id."""
    boxes, images = {}, {}
    for pictures, targets in batches:
        for picture, target in zip(pictures, targets, strict=True):
            key = int(target["image_id"])
            boxes[key] = torch.cat([target["labels"][:, None], target["boxes"]], 1).numpy().copy()
            if len(images) < 16 or key in images:
                images[key] = picture.numpy().copy()
    return boxes, images


def cases(folder: Path, count: int) -> tuple[str, list[Compared]]:
    """Return what the comparison of boxes found, and the cases."""
    data = converted_pictures(folder, count)
    plain = halofeed.torch.detection(data.loader("train", batch_size=8))
    ours, our_images = boxes_and_images(plain)
    own, _ = boxes_and_images(own_loader(folder, 0, 8))
    single = dict(own_loader(folder, 0, 1, 0).dataset[key - 1] for key in ()) if not our_images else {}
    source = own_loader(folder, 0, 1, 0).dataset
    for key in our_images:
        single[key] = source[key - 1][0].numpy()
    pixels = largest_difference(
        {key: value.ravel() for key, value in single.items()},
        {key: value.ravel() for key, value in our_images.items()},
    )
    found = (
        f"{len(own)} pictures: boxes and labels differ by {largest_difference(own, ours):.1g} pixels at most, "
        f"values of {len(single)} pictures by {pixels * 255:.2g} of 255"
    )

    def case(title: str, batch_size: int, **options: Any) -> Compared:
        return Compared(
            title=title,
            own=lambda: own_loader(folder, 0.5, batch_size),
            ours=lambda: halofeed.torch.detection(
                data.loader("train", batch_size=batch_size, augment=[FlipLeftRight()]), **options
            ),
            rows=lambda batch: len(batch[0]),
        )

    return found, [
        case("flip, 2 a batch, float32", BATCH),
        case("flip, 16 a batch, float32", 16),
        case("flip, 16 a batch, ours uint8", 16, images="uint8"),
    ]
