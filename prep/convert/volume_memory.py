"""What converting one scan takes, worked out from headers before a voxel is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from halofeed.prep.geometry.orientation import plan_orthogonal
from halofeed.prep.geometry.scan import Grid, Mask, Scan
from halofeed.prep.geometry.volume import Plan, View, plan_resample
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.memory import with_margin

MOVED_PLANE, COMPUTED_PLANE, SAMPLED_PLANE, OBLIQUE_PLANE = 2, 32, 40, 240
"""For each voxel of a slice, as volumes are gone through slice by slice: where voxels are moved, where windows are
applied in floats, where voxels are sampled along the axes, and where along others."""
BESIDES = 24 << 20
"""Counts and tables of fixed sizes."""
_STORED_BYTES = {"uint8": 1, "int16": 2, "bfloat16": 2, "float32": 4}


def held_bytes(scans: Sequence[Scan]) -> int:
    """The bytes of files that are held until the scans are read."""
    return sum(scan.held_bytes for scan in scans)


def label_bytes(scans: Sequence[Scan], grid: Grid, mask: Mask, merged_bytes: int, *, several: bool) -> int:
    """The most that is held while one mask of a scan is read and merged with those before it.

    Args:
        scans: opened, not yet read.
        merged_bytes: what the masks before it have become.
        several: whether it is merged with others.
    """
    own, scans_own = math.prod(mask.grid.shape), math.prod(grid.shape)
    moved = 4 * scans_own if mask.grid.shape != grid.shape else 0
    merging = 5 * scans_own if several else 0
    working = max(mask.read_bytes, mask.value_bytes * own * 2 + moved, mask.value_bytes * own + merging)
    planes = SAMPLED_PLANE if moved else MOVED_PLANE
    planes *= max(_plane(mask.grid.shape), _plane(grid.shape))
    return with_margin(held_bytes(scans) + merged_bytes + mask.held_bytes + working + planes + BESIDES)


def conversion_bytes(recipe: Recipe, canonical: Plan, scans: Sequence[Scan], label_item_bytes: int) -> int:
    """The most that is held while scans of one grid, and their labels, become records.

    Args:
        canonical: how the scan is turned.
        scans: opened; each one is a part of the channels.
        label_item_bytes: of a voxel of the labels; 0 where there are none.
    """
    grid = canonical.target
    voxels, channels = math.prod(grid.shape), sum(scan.channels for scan in scans)
    item = np.result_type(*(np.dtype(scan.dtype) for scan in scans)).itemsize
    stored = _STORED_BYTES[recipe.dtype]
    image, labels = voxels * channels * item, voxels * label_item_bytes
    sampled, chain, count = _targets(recipe, grid)
    target = chain[-1]
    record = target * (channels * stored + label_item_bytes)
    before = (count - 1) * record
    kept = image + labels if count > 1 else 0
    moved = max(first + second for first, second in pairwise([0, *chain]))
    if _stays(recipe, canonical, scans, sampled):
        moved = 0
    # A source through which an oblique grid is sampled is put in order before.
    ordered = voxels if sampled == OBLIQUE_PLANE else 0
    reading = held_bytes(scans) + sum(scan.read_bytes for scan in scans)
    # Channels of several files are put together; what is declared wider than it is, is narrowed.
    again = image if len(scans) > 1 else image // 2 if item == 4 else 0
    as_it_is = recipe.dtype == "int16" == scans[0].dtype and len(scans) == 1 and recipe.fixed_window() is None
    stages = [
        reading + labels + again,
        image + labels + before + (moved + ordered) * item + target * (channels - 1) * item,
        kept + labels + before + target * channels * (stored if as_it_is else item + stored),
        kept + labels + before + target * channels * stored + (moved + ordered) * label_item_bytes,
        kept + before + record,
    ]
    if recipe.fixed_window() is not None and stored <= 2 and item <= 2:
        stages.append(image + labels + voxels * channels * stored)
    in_floats = item == 4 or stored == 4 or recipe.dtype == "bfloat16"
    planes = max(sampled, COMPUTED_PLANE if in_floats else MOVED_PLANE)
    planes *= max(_plane(grid.shape), _plane((recipe.depth or 1, recipe.height, recipe.width)))
    return with_margin(max(stages) + planes + BESIDES)


def _stays(recipe: Recipe, canonical: Plan, scans: Sequence[Scan], sampled: int) -> bool:
    """Whether the record's voxels are the scan's, which change places in their own memory at most."""
    return (
        not sampled
        and canonical.target.shape == (recipe.depth, recipe.height, recipe.width)
        and all(isinstance(step, View) and step.order == (0, 1, 2) for step in canonical.steps)
        and sum(scan.channels for scan in scans) == 1
        and scans[0].read_bytes > 0
    )


def _plane(shape: Sequence[int]) -> int:
    """The voxels of the largest slice along any axis."""
    return math.prod(shape) // min(shape)


def _targets(recipe: Recipe, grid: Grid) -> tuple[int, list[int], int]:
    """How voxels are sampled, as bytes for each one of a slice; the voxels of each array on the way to a record, that
    among them; and how many records there are at most.

    A crop to the foreground, which only voxels can tell, makes none of them more.
    """
    shape = (recipe.depth or 1, recipe.height, recipe.width)
    plan = plan_orthogonal(grid)
    sampled, chain = 0, []
    if plan.resamples:
        sampled = OBLIQUE_PLANE
        chain.append(math.prod(plan.target.shape))
    if spacing := recipe.spacing():
        plan = plan_resample(plan.target, spacing, slice_wise=recipe.slice_wise)  # type: ignore[arg-type]
        if plan.resamples:
            sampled = max(sampled, SAMPLED_PLANE)
            chain.append(math.prod(plan.target.shape))
    if recipe.fit == "stretch":
        return max(sampled, SAMPLED_PLANE), [*chain, math.prod(shape)], 1
    # The last array is written through the window of the record, and is never whole.
    chain = [*chain[:-1], math.prod(shape)]
    if recipe.fit != "tiles":
        return sampled, chain, 1
    counts = (
        -(-max(0, size - side) // (side - shared)) + 1
        for size, side, shared in zip(plan.target.shape, shape, recipe.overlap(), strict=True)
    )
    return sampled, chain, math.prod(counts)
