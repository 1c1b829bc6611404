"""What converting one picture takes, worked out from its header before it is decoded."""

from __future__ import annotations

import numpy as np

from halofeed.prep.formats.picture import Footprint
from halofeed.prep.geometry.resize import ResizePlan
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.memory import with_margin
from halofeed.prep.sources.reference import Reference
from halofeed.prep.voxels.kernels import resize_bytes
from halofeed.prep.voxels.masks import mask_bytes

BOX_BYTES = 2048
"""Of an object with its features."""
_ENCODED = {"raw": 0.0, "jpeg": 1.0, "png": 2.7}
"""What encoding takes at most besides the pixels, in shares of these: of a PNG that cannot be made smaller its channels
swapped, and the file twice over."""


def picture_bytes(
    recipe: Recipe,
    reference: Reference,
    file_bytes: int,
    label_bytes: int,
    footprint: Footprint,
    plan: ResizePlan,
) -> int:
    """The most that is held at a time while one picture becomes a record.

    Args:
        file_bytes: of its file.
        label_bytes: of its label image, as class indices; 0 where it has none.
        footprint: what reading it takes.
        plan: of the displayed picture.
    """
    sample_bytes = np.dtype(recipe.dtype).itemsize
    channels = recipe.channels
    resized, output = plan.resized_size, plan.output_size
    moved = resized != footprint.size or output != resized
    output_pixels = output[0] * output[1]
    output_bytes = output_pixels * channels * sample_bytes
    held = file_bytes + label_bytes
    working = (
        resize_bytes((*footprint.size, channels), resized, recipe.interpolation, sample_bytes) if moved else 0
    )
    stages = [
        footprint.peak_bytes,
        footprint.pixel_bytes + working + output_bytes * moved,
        output_bytes + round(output_bytes * _ENCODED[recipe.encoding]),
    ]
    if label_bytes:
        encoded = 0 if recipe.encoding == "raw" else 3
        label = label_bytes // max(1, plan.source_size[0] * plan.source_size[1])
        picked = resized[0] * plan.source_size[1] * label
        stages.append(output_bytes * 2 + picked + output_pixels * max(1, label) * (2 + encoded))
    boxes = reference.boxes or ()
    if recipe.masks and boxes:
        drawn = max(mask_bytes(box.mask, plan) for box in boxes)
        stages.append(2 * output_bytes + drawn)
    return with_margin(held + max(stages) + BOX_BYTES * len(boxes))
