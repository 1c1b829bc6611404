"""MONAI: the transforms of its spleen tutorial but for the spacing and the foreground crop, and flips.

Scans of 96 x 128 x 128 voxels; 2 scans a batch and 4 crops of 64^3 of each, with 4 workers, as in the tutorial. Its
Dataset reads compressed NIfTI files for each batch; its CacheDataset keeps all scans in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import monai.data
import monai.transforms as mt
import numpy as np
import torch

import halofeed
from halofeed.loader import FlipDepth, FlipLeftRight, FlipUpDown, RandomCrop
from own_loaders.comparison import Compared, converted_volumes, largest_difference

PACKAGES = ("torch", "monai", "nibabel")
SHAPE, PATCH, SCANS, CROPS, WORKERS = (96, 128, 128), 64, 2, 4, 4
WINDOW = (-57.0, 164.0)
KEYS = ("image", "label")


def transforms(is_plain: bool) -> Any:
    """Return MONAI's transforms; plain ones only read and scale."""
    steps = [
        mt.LoadImaged(keys=KEYS),
        mt.EnsureChannelFirstd(keys=KEYS),
        mt.ScaleIntensityRanged("image", *WINDOW, 0.0, 1.0, clip=True),
        mt.Orientationd(keys=KEYS, axcodes="RAS", labels=None),
    ]
    if not is_plain:
        patch = (PATCH,) * 3
        steps.append(mt.RandCropByPosNegLabeld(KEYS, "label", patch, pos=1, neg=1, num_samples=CROPS))
        steps += [mt.RandFlipd(KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)]
    return mt.Compose(steps)


def files_of(folder: Path) -> list[dict[str, str]]:
    """Return the image and label of each scan."""
    images = sorted((folder / "scans").glob("image_*.nii.gz"))
    return [
        {"image": str(path), "label": str(path.with_name(path.name.replace("image", "label")))}
        for path in images
    ]


def cases(folder: Path, count: int) -> tuple[str, list[Compared]]:
    """Return what the comparison of voxels found, and the cases."""
    count = max(8, count // 16)
    data = converted_volumes(folder, count, SHAPE)
    files = files_of(folder)
    own = {}
    for number, one in enumerate(monai.data.Dataset(files[:8], transforms(is_plain=True))):
        # MONAI's axes are x, y and z, ours z, y and x.
        own[number] = np.concatenate([one[key][0].numpy().transpose(2, 1, 0).ravel() for key in KEYS])
    ours = {}
    loader = data.loader(
        "train", batch_size=4, training=False, include=["key"], where=[str(n) for n in range(8)]
    )
    keys = {loader.stored(number).id: loader.records[number]["key"] for number in range(8)}
    for batch in halofeed.torch.monai(loader, scale_range=WINDOW):
        for row, identity in enumerate(batch["id"].tolist()):
            parts = [batch[key][row, 0].numpy().ravel().astype(np.float32) for key in KEYS]
            ours[int(keys[identity])] = np.concatenate(parts)
    found = f"{len(own)} scans: voxels and labels differ by {largest_difference(own, ours):.1g} at most"
    cached = monai.data.CacheDataset(files, transforms(is_plain=False), progress=False)

    def own_loader(dataset: Any) -> Any:
        return monai.data.DataLoader(dataset, batch_size=SCANS, shuffle=True, num_workers=WORKERS)

    def ours_loader() -> Any:
        augment = [
            RandomCrop(PATCH, PATCH, PATCH, foreground=0.5),
            FlipDepth(),
            FlipUpDown(),
            FlipLeftRight(),
        ]
        loader = data.loader("train", batch_size=SCANS * CROPS, augment=augment)
        return halofeed.torch.monai(loader, scale_range=WINDOW)

    def case(title: str, dataset: Any) -> Compared:
        return Compared(
            title=title,
            own=lambda: own_loader(dataset),
            ours=ours_loader,
            rows=lambda batch: len(batch["image"]),
        )

    torch.set_num_threads(1)  # as in MONAI's workers
    return found, [
        case("crops of 64^3, flips; Dataset", monai.data.Dataset(files, transforms(is_plain=False))),
        case("crops of 64^3, flips; CacheDataset", cached),
    ]
