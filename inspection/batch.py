"""How does a batch look that training would take? One PNG."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from halofeed.loader import Loader
from halofeed.loader.augment import build_augmentations
from halofeed.loader.store.choose import open_store
from halofeed.prep.voxels.encode import encode_png
from halofeed.schemas.beside import write_whole
from halofeed.schemas.errors import UsageError
from halofeed.schemas.partition import Partition


def write_batch(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    split: str = "train",
    step: int = 0,
    batch_size: int = 8,
    seed: int = 0,
    augment: Sequence[Mapping[str, object]] = (),
    partition: str = "",
    side: int = 320,
) -> Path:
    """Draw one batch of a data set's training stream.

    Args:
        folder: the version's.
        output: the PNG to write.
        split, step, batch_size, seed: as of a `Loader`.
        augment: tables of augmentations, as in a training recipe.
        partition: how images are split, such as "image=1,4,1,1"; "" draws no lines.
        side: the longer side of each image shown, in pixels.

    Returns:
        the file that was written.

    Raises:
        UsageError: a name that is no .png, and as `Loader`.
        PartitionError: the partition does not fit the images.
    """
    file = Path(output)
    if file.suffix.lower() != ".png":
        raise UsageError(f"{file}: a batch is written as PNG; name a .png")
    manifest = open_store(folder).manifest()
    masks = ["masks"] if any(field.name == "masks" for field in manifest.fields) else []
    loader = Loader(
        folder,
        split=split,
        batch_size=batch_size,
        seed=seed,
        augment=build_augmentations(augment),
        include=masks,
    )
    shape = loader.spec["image"].shape
    parts = None
    if partition:
        counts = re.findall(r"image=([0-9]+(?:,[0-9]+)*)", partition)
        cores = 1
        for count in counts[0].split(",") if counts else ():
            cores *= int(count)
        parts = Partition.parse(partition, cores_per_replica=cores).resolve({"image": shape})["image"]
    drawn = loader.picture(step, split=parts, side=side)
    write_whole(file, bytes(encode_png(drawn, 0)))
    return file
