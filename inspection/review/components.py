"""Connected components of the classes of pictures and volumes, with their pixels and boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.regions import region_numbers

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Components:
    """Connected components of a label image, numbered from 1 over all classes.

    Args:
        numbers: number of the component of each pixel, 0 where there is none, int32 [depth, height, width].
        classes: class of each component, int64 [component].
        sizes: pixels of each component, int64 [component].
        boxes: first and one past the last index along each axis, int64 [component, 2, 3].
    """

    numbers: NDArray[np.int32]
    classes: NDArray[np.int64]
    sizes: NDArray[np.int64]
    boxes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.classes)


def components_of(labels: NDArray[np.integer], where: Mask, least: int = 1) -> Components:
    """Return the components of a label image, with the neighbors of `find_regions`.

    Args:
        labels: class of each pixel, [depth, height, width].
        where: pixels that belong to components, bool [depth, height, width].
        least: components of fewer pixels are left out.

    >>> found = components_of(np.array([[[1, 0, 2, 2]]]), np.array([[[True, False, True, True]]]))
    >>> found.classes.tolist(), found.sizes.tolist(), found.numbers.tolist()
    ([1, 2], [1, 2], [[[1, 0, 2, 2]]])
    """
    # Of regions, 0 is the background, which may be a class here: where a run predicts it in place of an object.
    values = np.where(where, labels.astype(np.int64) + 1, 0)
    regions = region_numbers(values)
    classes = np.zeros(int(regions.max(initial=-1)) + 1, np.int64)
    classes[regions.ravel()] = values.ravel() - 1
    sizes = np.bincount(regions.ravel(), minlength=len(classes))
    kept = np.flatnonzero((classes >= 0) & (sizes >= least))
    table = np.zeros(len(classes), np.int32)
    table[kept] = np.arange(1, len(kept) + 1)
    numbers = table[regions]
    places = np.nonzero(numbers)
    rows = numbers[places] - 1
    boxes = np.zeros((len(kept), 2, 3), np.int64)
    boxes[:, 0] = np.array(numbers.shape)
    for axis, indices in enumerate(places):
        np.minimum.at(boxes[:, 0, axis], rows, indices)
        np.maximum.at(boxes[:, 1, axis], rows, indices + 1)
    return Components(numbers=numbers, classes=classes[kept], sizes=sizes[kept], boxes=boxes)
