"""nnU-Net: `nnUNetDataLoader` in as many processes as its trainer starts, on cases as its preprocessing writes them.

Cases of 128 x 160 x 160 voxels in float32, compressed by Blosc2; 2 patches of 96^3 a batch, a third of them with
foreground, and targets at three scales. First only with mirrored axes, then with all of nnU-Net's transforms, in which
ours calls the same code in threads of one process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from batchgenerators.dataloading.nondet_multi_threaded_augmenter import NonDetMultiThreadedAugmenter
from batchgeneratorsv2.transforms.spatial.mirroring import MirrorTransform
from batchgeneratorsv2.transforms.utils.compose import ComposeTransforms
from batchgeneratorsv2.transforms.utils.deep_supervision_downsampling import DownsampleSegForDSTransform
from batchgeneratorsv2.transforms.utils.remove_label import RemoveLabelTansform
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params, nnUNetDatasetBlosc2
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.default_n_proc_DA import get_allowed_n_proc_DA
from nnunetv2.utilities.label_handling.label_handling import LabelManager
from volumes import draw_volume

import halofeed
from own_loaders.comparison import Compared, largest_difference

PACKAGES = ("torch", "nnunetv2", "batchgeneratorsv2", "blosc2")
SHAPE, PATCH, BATCH, FOREGROUND = (128, 160, 160), (96, 96, 96), 2, 0.33
SCALES = [[1.0] * 3, [0.5] * 3, [0.25] * 3]
MIRRORED = (0, 1, 2)


def write_cases(folder: Path, count: int) -> None:
    """Write cases as nnU-Net's preprocessing does, by its own function."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    base = draw_volume(SHAPE).astype(np.float32)
    grid = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij"), -1)
    blocks, chunks = comp_blosc2_params((1, *SHAPE), PATCH)
    for number in range(count):
        label = np.zeros((1, *SHAPE), np.int8)
        for organ in (1, 2):
            center = generator.uniform(0.2, 0.8, 3) * SHAPE
            label[0][np.linalg.norm(grid - center, axis=-1) < 20] = organ
        data = ((base + 60 * (label[0] > 0) + generator.normal(0, 3, SHAPE)) / 400).astype(np.float32)[None]
        locations = {organ: np.argwhere(label == organ)[::20] for organ in (1, 2)}
        nnUNetDatasetBlosc2.save_case(
            data, label, {"class_locations": locations}, str(folder / f"case_{number:03d}"),
            chunks=chunks, blocks=blocks,
        )  # fmt: skip


def mirror_only() -> Any:
    """Return nnU-Net's transforms without those that change values or resample."""
    return ComposeTransforms(
        [MirrorTransform(MIRRORED), RemoveLabelTansform(-1, 0), DownsampleSegForDSTransform(SCALES)]
    )


def all_transforms() -> Any:
    """Return the transforms of nnU-Net's trainer for this patch size."""
    turn = (-30.0 / 360 * 2 * np.pi, 30.0 / 360 * 2 * np.pi)
    return nnUNetTrainer.get_training_transforms(
        PATCH, turn, SCALES, MIRRORED, False, use_mask_for_norm=[False], foreground_labels=[1, 2]
    )


def own_loader(folder: Path, transforms: Any) -> Any:
    """Return nnU-Net's loader in its processes."""
    labels = LabelManager({"background": 0, "liver": 1, "tumor": 2}, regions_class_order=None)
    loader = nnUNetDataLoader(
        nnUNetDatasetBlosc2(str(folder)), BATCH, PATCH, PATCH, labels,
        oversample_foreground_percent=FOREGROUND, transforms=transforms,
    )  # fmt: skip
    processes = get_allowed_n_proc_DA()
    return NonDetMultiThreadedAugmenter(
        loader,
        None,
        processes,
        num_cached=max(6, processes // 2),
        seeds=None,
        pin_memory=False,
        wait_time=0.002,
    )


def same_patches(folder: Path) -> str:
    """Return by how much patches at the places that ours has drawn differ from nnU-Net's crops of them."""
    from acvl_utils.cropping_and_padding.bounding_boxes import crop_and_pad_nd

    from halofeed.loader.forms.nnunet_form import copy_patch

    dataset = nnUNetDatasetBlosc2(str(folder))
    options = halofeed.torch.PatchOptions(
        patch_size=PATCH, foreground=FOREGROUND, deep_supervision_scales=SCALES
    )
    own, ours = {}, {}
    for number, start in enumerate([(0, 0, 0), (-20, 40, 90), (50, -3, 64), (31, 32, 63)]):
        data, label, _, _ = dataset.load_case(dataset.identifiers[number])
        box = [[at, at + side] for at, side in zip(start, PATCH, strict=True)]
        own[number, 0] = crop_and_pad_nd(data, box, 0).ravel()
        target = torch.from_numpy(crop_and_pad_nd(label, box, -1, cast_cropped_to=np.int16))
        target[target < 0] = 0
        scaled = DownsampleSegForDSTransform(SCALES)(segmentation=target)["segmentation"]
        cut, mask = np.empty((1, *PATCH), np.float32), np.empty((1, *PATCH), np.int16)
        copy_patch(data, start, (False,) * 3, cut, 0)
        copy_patch(label[:], start, (False,) * 3, mask, -1)
        ours[number, 0] = cut.ravel()
        for scale, expected in enumerate(scaled, start=1):
            own[number, scale] = expected.numpy().ravel()
            ours[number, scale] = halofeed.loader.forms.nnunet_form.scaled_label(
                mask.clip(0)[None], options.deep_supervision_scales[scale - 1]
            ).ravel()
    return f"4 patches, partly outside, and targets at 3 scales differ by {largest_difference(own, ours):.1g}"


def cases(folder: Path, count: int) -> tuple[str, list[Compared]]:
    """Return what the comparison of patches found, and the cases."""
    folder = folder / "preprocessed"
    if not folder.exists():
        write_cases(folder, max(8, count // 32))
    torch.set_num_threads(1)  # as in nnU-Net's workers

    def ours_loader(**options: Any) -> Any:
        transforms = options.pop("transforms", None)
        chosen = halofeed.torch.PatchOptions(patch_size=PATCH, foreground=FOREGROUND, **options)
        patches = halofeed.torch.nnunet(folder, chosen, batch_size=BATCH, transforms=transforms)
        for name in patches._cases.identifiers:  # decompressed once, which is not counted
            patches._cases[name]
        return patches

    def close(loader: Any) -> None:
        if isinstance(loader, NonDetMultiThreadedAugmenter):
            loader._finish()

    def rows(batch: Any) -> int:
        return len(batch["data"])

    mirrored = Compared(
        title="96^3 patches, mirrored",
        own=lambda: own_loader(folder, mirror_only()),
        ours=lambda: ours_loader(mirror_axes=MIRRORED, deep_supervision_scales=SCALES),
        rows=rows,
        close=close,
    )
    all_of_them = Compared(
        title="96^3 patches, all transforms of nnU-Net",
        own=lambda: own_loader(folder, all_transforms()),
        ours=lambda: ours_loader(transforms=all_transforms()),
        rows=rows,
        close=close,
    )
    return same_patches(folder), [mirrored, all_of_them]
