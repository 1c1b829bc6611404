"""How the label images of one picture, one or a mask for each class, become class indices in the file's grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.tasks.label_image import read_label_image, renumbered
from halofeed.prep.geometry.scan import Overlap
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.memory import Need, unlimited
from halofeed.prep.sources.reference import Reference
from halofeed.prep.statistics.pictures import count_labels
from halofeed.prep.tasks.labels import LabelMap
from halofeed.prep.voxels.merge import merge_class_masks, merge_labels

OVERLAPPED = "pixels of several classes are those of the {} one, as --class-overlap says"


def read_picture_labels(
    recipe: Recipe, labels: LabelMap, reference: Reference, files: SourceFiles, need: Need = unlimited
) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """The class indices [height, width], None where the picture has none; and what a person should know of them.

    Args:
        need: told how many bytes this takes, before pixels are decoded.

    Raises:
        SourceError: a label image cannot be read, holds unknown classes, or they overlap where that is refused.
    """
    several = len(reference.mask_paths) > 1

    def read(path: str) -> NDArray[Any]:
        # What is merged is held beside the next one; of their classes there are copies while they are counted.
        return read_label_image(
            files.read(path), recipe.max_pixels, lambda alone: need((3 if several else 2) * alone)
        )

    found, overlapped = merged_labels(recipe, labels, reference, read)
    return found, (OVERLAPPED.format(recipe.class_overlap),) if overlapped else ()


def merged_labels(
    recipe: Recipe, labels: LabelMap, reference: Reference, read: Callable[[str], NDArray[Any]]
) -> tuple[NDArray[Any] | None, int]:
    """The class indices [height, width] of all masks, None where there are none; and how many pixels have several.

    Args:
        read: the values of the mask of a path.

    Raises:
        SourceError: as `read_picture_labels`.
    """
    overlap: Overlap = recipe.class_overlap  # type: ignore[assignment]
    overlapped = 0
    found: NDArray[Any] | None = None
    if reference.class_masks:
        masks = ((labels.id_of(name), read(path)[None]) for name, path in reference.class_masks)
        merged = merge_class_masks(masks, overlap, may_repeat=bool(recipe.map_classes))
        found, overlapped = merged.labels[0], sum(merged.overlapped.values())
    for path in reference.masks:
        image = read(path)
        present = count_labels(image) if image.dtype == np.uint8 else np.unique(image).tolist()
        image = renumbered(image, labels.ids_of_values(present), labels.dtype)
        if found is not None:
            image, voxels = merge_labels(found, image, overlap)
            overlapped += voxels
        found = image
    return found, overlapped
