"""Connected components of label images of pictures and volumes."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

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
    """Return the components of a label image: 8 neighbors within a slice, and the pixel above and below.

    Args:
        labels: class of each pixel, [depth, height, width].
        where: pixels that belong to components, bool [depth, height, width].
        least: components of fewer pixels are left out.

    >>> found = components_of(np.array([[[1, 0, 2, 2]]]), np.array([[[True, False, True, True]]]))
    >>> found.classes.tolist(), found.sizes.tolist(), found.numbers.tolist()
    ([1, 2], [1, 2], [[[1, 0, 2, 2]]])
    """
    numbers, classes, count = np.zeros(labels.shape, np.int32), list[int](), 0
    for label in np.unique(labels[where]).tolist():
        pixels = (labels == label) & where
        found, added = _numbered(pixels)
        numbers[pixels] = found[pixels] + count
        classes += [label] * added
        count += added
    return _listed(numbers, np.array(classes, np.int64), least)


def _numbered(pixels: Mask) -> tuple[NDArray[np.int32], int]:
    """Number the components of a mask from 1; return their count."""
    numbers, count = np.zeros(pixels.shape, np.int32), 0
    links = []
    for depth, of_slice in enumerate(pixels):
        added, numbered = cv2.connectedComponents(of_slice.astype(np.uint8), connectivity=8)
        numbers[depth][of_slice] = numbered[of_slice] + count
        count += added - 1
        if depth:
            both = of_slice & pixels[depth - 1]
            links.append(np.unique(np.stack([numbers[depth - 1][both], numbers[depth][both]], 1), axis=0))
    if not links:
        return numbers, count
    roots = _joined(count, np.concatenate(links).tolist())
    kept, renumbered = np.unique(roots[1:], return_inverse=True)
    table = np.concatenate([[0], renumbered + 1]).astype(np.int32)
    return table[numbers], len(kept)


def _joined(count: int, links: list[list[int]]) -> NDArray[np.int64]:
    """Return the least number that each of the numbers from 0 to `count` is linked to, by union and find."""
    parents = list(range(count + 1))

    def root(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    for one, other in links:
        first, second = sorted((root(one), root(other)))
        parents[second] = first
    return np.array([root(at) for at in range(count + 1)], np.int64)


def _listed(numbers: NDArray[np.int32], classes: NDArray[np.int64], least: int) -> Components:
    """Remove small components, number the others anew, and measure them."""
    sizes = np.bincount(numbers.ravel(), minlength=len(classes) + 1)[1:]
    kept = np.flatnonzero(sizes >= least)
    table = np.zeros(len(classes) + 1, np.int32)
    table[kept + 1] = np.arange(1, len(kept) + 1)
    numbers = table[numbers]
    places = np.nonzero(numbers)
    at = numbers[places] - 1
    boxes = np.zeros((len(kept), 2, 3), np.int64)
    boxes[:, 0] = np.array(numbers.shape)
    for axis, indices in enumerate(places):
        np.minimum.at(boxes[:, 0, axis], at, indices)
        np.maximum.at(boxes[:, 1, axis], at, indices + 1)
    return Components(numbers=numbers, classes=classes[kept], sizes=sizes[kept], boxes=boxes)
