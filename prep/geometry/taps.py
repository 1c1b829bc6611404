"""Which source voxels a target voxel looks at along one axis, and with what weights: kernels as tables.

source centers   0       1       2       3          target voxel t lies at source position
                 ├───────┼───────┼───────┤          ratio · t + offset
target centers      0         1         2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import UsageError

Float64 = NDArray[np.float64]

POSITION_STEP: Final = 2.0**-14
"""Source positions are rounded to this part of a voxel (at most 3e-5 voxels off), so that the last digits of an
affine, which differ between file formats, decide neither a nearest voxel nor the rounding of a half."""


def _triangle(distance: Float64) -> Float64:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _cubic(distance: Float64) -> Float64:
    """Keys' cubic convolution with a = -1/2 (Keys 1981, doi:10.1109/TASSP.1981.1163711)."""
    x = np.abs(distance)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


KERNELS: Final[Mapping[str, tuple[float, Callable[[Float64], Float64]]]] = {
    "linear": (1.0, _triangle),
    "cubic": (2.0, _cubic),
}
"""By name: the reach in voxels to each side, and the weight at a distance. "nearest" is no weighing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Taps:
    """The voxels and weights of one axis.

    Args:
        index: int64 [target, tap], source voxels within the volume; past its edge the edge voxel repeats.
        weight: float64 [target, tap]; each row sums to 1.
    """

    index: NDArray[np.int64]
    weight: Float64

    def cut(self, start: int, stop: int) -> Taps:
        """The taps of some of the target voxels."""
        return Taps(index=self.index[start:stop], weight=self.weight[start:stop])

    def moved(self, start: int) -> Taps:
        """The same taps of a source of which the voxels before `start` are left out."""
        return Taps(index=self.index - start, weight=self.weight)

    @property
    def is_identity(self) -> bool:
        """Whether each target voxel is one source voxel, one after the other."""
        index = self.index[:, 0]
        return self.index.shape[1] == 1 and bool((np.diff(index) == 1).all())


def positions(ratio: float, offset: float, count: int) -> Float64:
    """Where `count` target voxels lie, in source voxels, to `POSITION_STEP`."""
    return snap(ratio * np.arange(count, dtype=np.float64) + offset)


def snap(coordinates: Float64) -> Float64:
    """Coordinates rounded to `POSITION_STEP`."""
    return np.asarray(np.rint(coordinates / POSITION_STEP) * POSITION_STEP, np.float64)


def nearest(coordinates: Float64, count: int) -> NDArray[np.int64]:
    """The nearest of `count` voxels to each coordinate of an axis, from its first target voxel on.

    Of two voxels equally near, the later and the earlier are taken in turn. Always the later one, as is usual,
    would move everything by up to half a voxel: halving the resolution makes every coordinate a tie.

    >>> nearest(np.array([-0.5, 0.49, 0.5, 9.0]), 3).tolist()
    [0, 0, 0, 2]
    """
    tie = coordinates - np.floor(coordinates) == 0.5
    earlier = tie & (np.cumsum(tie) % 2 == 0)
    return np.asarray(np.clip(np.floor(coordinates + 0.5) - earlier, 0, count - 1).astype(np.int64))


def axis_taps(coordinates: Float64, count: int, kernel: str, widen: float = 1.0) -> Taps:
    """The taps of target voxels at `coordinates` in an axis of `count` source voxels.

    Args:
        coordinates: float64 [target], in source voxels.
        kernel: "nearest", or a name in `KERNELS`.
        widen: by how much the kernel is stretched: the ratio when shrinking with antialiasing, else 1.

    >>> taps = axis_taps(np.array([0.25]), 4, "linear")
    >>> taps.index.tolist(), taps.weight.tolist()
    ([[0, 1]], [[0.75, 0.25]])
    """
    if kernel == "nearest":
        return Taps(index=nearest(coordinates, count)[:, None], weight=np.ones((len(coordinates), 1)))
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
    """The kernel of that name; UsageError lists the known ones."""
    if name not in KERNELS:
        raise UsageError(f"kernel {name!r} is not known; choose from nearest, {', '.join(KERNELS)}")
    return KERNELS[name]
