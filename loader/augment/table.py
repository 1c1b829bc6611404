"""Table of the augmentations."""

from __future__ import annotations

from collections.abc import Callable

from halofeed.loader.augment.augmented_example import Augmentation, Combination
from halofeed.loader.augment.crop_and_resize import (
    RandomCropImage,
    RandomResizedCrop,
    ScaleJitter,
    SsdRandomCrop,
)
from halofeed.loader.augment.flips_and_crops import FlipDepth, FlipLeftRight, FlipUpDown, RandomCrop, Rotate90
from halofeed.loader.augment.mosaic import MixUp, Mosaic
from halofeed.loader.augment.warps import ElasticDeformation, PadAndCrop, RandAugmentMoves, RandomRotation

AUGMENTATIONS: dict[str, Callable[..., Augmentation | Combination]] = {
    kind.__name__: kind
    for kind in (
        FlipLeftRight,
        FlipUpDown,
        FlipDepth,
        Rotate90,
        RandomCrop,
        RandomCropImage,
        RandomResizedCrop,
        SsdRandomCrop,
        ScaleJitter,
        RandomRotation,
        PadAndCrop,
        RandAugmentMoves,
        ElasticDeformation,
        Mosaic,
        MixUp,
    )
}
"""Augmentations by their names in configurations."""
