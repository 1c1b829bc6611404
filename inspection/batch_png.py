"""PNG of one training batch, as the loader and the augmentations produce it."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import numpy as np

from halofeed.inspection.training_batches import TrainingBatches
from halofeed.loader import Loader
from halofeed.loader.augment import build_augmentations
from halofeed.loader.contact_sheet import draw_batch
from halofeed.loader.device import AUGMENTATIONS, augment_on_device, device_keys
from halofeed.loader.store.open_store import open_store
from halofeed.prep.voxels.encode import encode_png
from halofeed.schemas.partition import Partition
from halofeed.storage.atomic_files import atomic_write
from halofeed.system.errors import UsageError


def write_batch(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    batches: TrainingBatches,
    *,
    step: int = 0,
    seed: int = 0,
    partition: str = "",
    side: int = 320,
) -> Path:
    """Draw one batch of a data set's training stream.

    Args:
        folder: folder or address of the data set.
        output: PNG file to write.
        batches: training batches of which one is drawn.
        step: number of the batch.
        seed: parameter of `Loader`.
        partition: split of images over cores to draw as lines, such as "image=1,4,1,1"; "" draws none.
        side: longer side of each image in the PNG, in pixels.

    Returns:
        the path of the PNG.

    Raises:
        UsageError: `output` does not end in .png, and as `Loader`.
        PartitionError: the partition does not fit the images.
    """
    file = Path(output)
    if file.suffix.lower() != ".png":
        raise UsageError(f"{file}: a batch is written as PNG; name a .png file")
    manifest = open_store(folder).manifest()
    drawn_fields = [field.name for field in manifest.fields if field.name in ("masks", "corners", "source")]
    on_device = build_augmentations(batches.device_augment, AUGMENTATIONS, "device_augment")
    loader = Loader(
        folder,
        split=batches.split,
        batch_size=batches.batch_size,
        seed=seed,
        augment=build_augmentations(batches.augment),
        include=[*drawn_fields, *(device_keys(manifest) if on_device else ())],
    )
    shape = loader.spec["image"].shape
    parts = None
    if partition:
        # Only the image's parts are drawn, so the number of cores is the product of its parts.
        counts = re.search(
            r"(?:^|;)\s*image\s*=\s*([0-9]+(?:\s*,\s*[0-9]+)*|none)\s*(?:;|$)", partition, re.I
        )
        if counts is None:
            raise UsageError(
                f"--partition {partition}: expected whole numbers of parts along each axis of the image, such as "
                f"image={','.join(map(str, (1, 2, *(1 for _ in shape[2:]))))}"
            )
        if counts[1].lower() != "none":
            cores = math.prod(map(int, counts[1].split(",")))
            known = Partition.parse(f"image={counts[1]}", cores_per_replica=cores)
            parts = known.resolve({"image": shape})["image"]
    batch = loader.batch(step)
    if on_device:
        changed = augment_on_device(batch, on_device, seed=seed, values=batches.values)["image"]
        stored = batch["image"].dtype
        # The device computes in floats; bytes are drawn as the loader stores them.
        batch["image"] = np.asarray(changed.round() if stored.kind == "u" else changed, stored)
    drawn = draw_batch(batch, loader.kind, loader.class_names, split=parts, side=side)
    atomic_write(file, bytes(encode_png(drawn, 0)))
    return file
