"""Where in a volume the patient is, and where a label lies: boxes of voxels, and the crop to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Grid, Shape, Triple
from halofeed.prep.geometry.volume import Plan, plan_window, triple
from halofeed.schemas.errors import SourceError, UsageError

CT_FOREGROUND_HU: Final = -500.0
"""Between air (-1000) and fat (-100); the lungs within the body change nothing about its extent."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of voxels: from `start` up to, without, `stop`, along depth, height and width."""

    start: Shape
    stop: Shape

    def __post_init__(self) -> None:
        if any(low >= high for low, high in zip(self.start, self.stop, strict=True)):
            raise UsageError(f"box: expected starts below stops, got {self.start} to {self.stop}")

    @property
    def shape(self) -> Shape:
        """Voxels along each axis."""
        return triple([high - low for low, high in zip(self.start, self.stop, strict=True)])

    @property
    def center(self) -> Triple:
        """The voxel in the middle; a half lies between two."""
        depth, height, width = ((low + high - 1) / 2 for low, high in zip(self.start, self.stop, strict=True))
        return depth, height, width


def foreground_box(array: NDArray[Any], threshold: float) -> Box | None:
    """The smallest box that holds every voxel above the threshold; None if there is none.

    The rule is the outermost voxels in each direction, whatever they belong to: a table under the patient counts.

    Args:
        array: [depth, height, width], or with channels, of which the first is looked at.
        threshold: `CT_FOREGROUND_HU`, or `mean_of` an MR scan.
    """
    return _box_where(array[..., 0] if array.ndim == 4 else array, lambda plane: plane > threshold)


def label_box(mask: NDArray[Any]) -> Box | None:
    """The smallest box that holds every voxel of all classes but 0; None if there is none."""
    return _box_where(mask, lambda plane: plane != 0)


def _box_where(array: NDArray[Any], wanted: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> Box | None:
    # Slice by slice along the axis whose slices lie together in memory; the answer is put back in order.
    order = sorted(range(3), key=lambda axis: -abs(array.strides[axis]))
    turned = array.transpose(order)
    slices = np.zeros(turned.shape[0], bool)
    rows, columns = (np.zeros(size, bool) for size in turned.shape[1:])
    for number, plane in enumerate(turned):
        found = wanted(plane)
        here = found.any(axis=1)
        slices[number] = here.any()
        if slices[number]:
            rows |= here
            columns |= found.any(axis=0)
    if not slices.any():
        return None
    places = [np.flatnonzero(line) for line in (slices, rows, columns)]
    ranges = [(int(place[0]), int(place[-1]) + 1) for place in places]
    low, high = ([ranges[order.index(axis)][end] for axis in range(3)] for end in (0, 1))
    return Box(start=triple(low), stop=triple(high))


def mean_of(array: NDArray[Any]) -> float:
    """The mean of all voxels: the threshold that parts an MR scan, which has no fixed unit, from its background."""
    return sum(float(np.sum(plane, dtype=np.float64)) for plane in array) / array.size


def carry_box(plan: Plan, box: Box | None) -> Box | None:
    """The box of the target's voxels that a box of the source's reaches into; None where it was cropped away.

    So a box found in an array as it was stored serves after turning and resampling; where none was found there is none.
    """
    if box is None:
        return None
    corners = np.indices((2, 2, 2)).reshape(3, 8).T
    edges = np.where(corners == 0, np.array(box.start) - 0.5, np.array(box.stop) - 0.5)
    inverse = np.linalg.inv(plan.to_source)
    moved = edges @ inverse[:3, :3].T + inverse[:3, 3] + 0.5
    low = np.maximum(np.floor(moved.min(axis=0) + 1e-6), 0).astype(int)
    high = np.minimum(np.ceil(moved.max(axis=0) - 1e-6), plan.target.shape).astype(int)
    if (low >= high).any():
        return None
    return Box(start=triple(low.tolist()), stop=triple(high.tolist()))


def plan_foreground_crop(grid: Grid, box: Box | None) -> Plan:
    """Crops to a box; without one there is nothing to crop to.

    Raises:
        SourceError: no box.
    """
    if box is None:
        raise SourceError("geometry", "no foreground found")
    return plan_window(grid, box.start, box.shape)
