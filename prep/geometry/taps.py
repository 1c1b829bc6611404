"""Interpolation tables for one axis: source voxels and weights of each target voxel.

source centers   0       1       2       3          target voxel t is at source position
                 ├───────┼───────┼───────┤          ratio · t + offset
target centers      0         1         2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.system.errors import UsageError

Float64 = NDArray[np.float64]

POSITION_STEP: Final = 2.0**-14
"""Source positions are rounded to this fraction of a voxel, an error of at most 3e-5 voxels. So the last digits of an
affine, which differ between file formats, affect neither a nearest voxel nor the rounding of a half."""


def _triangle(distance: Float64) -> Float64:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _cubic(distance: Float64) -> Float64:
    """Keys' cubic convolution with a = -1/2 (Keys 1981, doi:10.1109/TASSP.1981.1163711)."""
    x = np.abs(distance)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


AXIS_KERNELS: Final[Mapping[str, tuple[float, Callable[[Float64], Float64]]]] = {
    "linear": (1.0, _triangle),
    "cubic": (2.0, _cubic),
}
"""Name: (reach in voxels on each side, function from distance to weight). "nearest" uses no weights."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Taps:
    """Source voxels and weights of one axis.

    Args:
        index: int64 [target, tap], source voxels within the volume; the edge voxel repeats beyond the edge.
        weight: float64 [target, tap]; each row sums to 1.
    """

    index: NDArray[np.int64]
    weight: Float64

    def cut(self, start: int, stop: int) -> Taps:
        """Return the taps of a range of target voxels."""
        return Taps(index=self.index[start:stop], weight=self.weight[start:stop])

    def moved(self, start: int) -> Taps:
        """Return the same taps for a source without its first `start` voxels."""
        return Taps(index=self.index - start, weight=self.weight)

    @property
    def is_identity(self) -> bool:
        """True if the target voxels are consecutive source voxels."""
        index = self.index[:, 0]
        return self.index.shape[1] == 1 and bool((np.diff(index) == 1).all())


def positions(ratio: float, offset: float, count: int) -> Float64:
    """Return the positions of `count` target voxels, in source voxels, rounded to `POSITION_STEP`."""
    return snap(ratio * np.arange(count, dtype=np.float64) + offset)


def snap(coordinates: Float64) -> Float64:
    """Round coordinates to `POSITION_STEP`."""
    return np.asarray(np.rint(coordinates / POSITION_STEP) * POSITION_STEP, np.float64)


def nearest_indices(coordinates: Float64, count: int) -> NDArray[np.int64]:
    """Return the nearest of `count` voxels to each coordinate of an axis, starting at its first target voxel.

    Ties alternate between the later and the earlier voxel. The usual rule, always the later one, would shift the
    volume by up to half a voxel: at half the resolution every coordinate is a tie.

    >>> nearest_indices(np.array([-0.5, 0.49, 0.5, 9.0]), 3).tolist()
    [0, 0, 0, 2]
    """
    tie = coordinates - np.floor(coordinates) == 0.5
    earlier = tie & (np.cumsum(tie) % 2 == 0)
    return np.asarray(np.clip(np.floor(coordinates + 0.5) - earlier, 0, count - 1).astype(np.int64))


def axis_taps(coordinates: Float64, count: int, kernel: str, widen: float = 1.0) -> Taps:
    """Return the taps of target voxels at `coordinates` for an axis of `count` source voxels.

    Args:
        coordinates: float64 [target], in source voxels.
        count: number of source voxels.
        kernel: "nearest", or a name in `AXIS_KERNELS`.
        widen: factor by which the kernel is stretched: the ratio when shrinking with antialiasing, else 1.

    >>> taps = axis_taps(np.array([0.25]), 4, "linear")
    >>> taps.index.tolist(), taps.weight.tolist()
    ([[0, 1]], [[0.75, 0.25]])
    """
    if kernel == "nearest":
        return Taps(index=nearest_indices(coordinates, count)[:, None], weight=np.ones((len(coordinates), 1)))
    reach, weigh = known_kernel(kernel)
    widen = max(widen, 1.0)
    first = np.floor(coordinates - reach * widen) + 1
    index = first[:, None] + np.arange(max(1, int(np.ceil(2 * reach * widen))))
    weight = weigh((index - coordinates[:, None]) / widen)
    used = weight.any(axis=0)
    index, weight = index[:, used], weight[:, used]
    weight = weight / weight.sum(axis=1, keepdims=True)
    return Taps(index=np.clip(index, 0, count - 1).astype(np.int64), weight=weight)


def known_kernel(name: str) -> tuple[float, Callable[[Float64], Any]]:
    """Return the kernel with this name; UsageError lists the known ones."""
    if name not in AXIS_KERNELS:
        raise UsageError(f"kernel {name!r} is not known; choose from nearest, {', '.join(AXIS_KERNELS)}")
    return AXIS_KERNELS[name]
