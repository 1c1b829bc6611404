"""Rules by which nnU-Net plans a U-Net: spacing, patches, strides and kernels. Pure functions of shapes and spacings.

Source: Isensee et al., "nnU-Net", Nature Methods 2021, and its code, nnunetv2/experiment_planning:
`determine_fullres_target_spacing` and `get_plans_for_configuration` in default_experiment_planner.py, and
`get_pool_and_conv_props` in network_topology.py. nnU-Net pads a patch that exceeds the image; a crop here cannot exceed
the record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SMALLEST_FEATURE_MAP = 4
"""Least size of an axis at the coarsest level (nnU-Net's UNet_featuremap_min_edge_length)."""
ANISOTROPY = 3.0
"""Ratio of spacings from which a scan has thick slices (nnU-Net's ANISO_THRESHOLD)."""
LARGEST_PATCH = {2: 2048**2, 3: 256**3}
"""Most pixels or voxels of a patch, by the number of axes, as nnU-Net's first patch."""
_POOLED = 2.0
"""Axes are pooled, and get kernels of 3, while their spacing is below this multiple of the smallest one."""


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """Strides and kernels of a U-Net for a patch.

    Args:
        strides: factor of each axis at each halving, finest first.
        kernels: size of the convolutions along each axis at each size; one more than strides.
    """

    strides: tuple[tuple[int, ...], ...]
    kernels: tuple[tuple[int, ...], ...]

    @property
    def depth(self) -> int:
        """Number of sizes."""
        return len(self.kernels)

    @property
    def divisors(self) -> tuple[int, ...]:
        """Factor by which each axis shrinks altogether; sizes must divide by it."""
        return tuple(map(math.prod, zip(*self.strides, strict=True)))

    @property
    def is_plain(self) -> bool:
        """True if every axis is halved every time and every kernel is 3, as in a U-Net without these options."""
        return {size for row in self.strides for size in row} == {2} and {
            size for row in self.kernels for size in row
        } == {3}


def target_spacing(
    median: Sequence[float], tenth: Sequence[float], sizes: Sequence[float]
) -> tuple[float, ...]:
    """Return the spacing to resample scans to: the median, and finer along the axis of thick slices.

    Args:
        median: median spacing along each axis in mm.
        tenth: 10th percentile of the spacings along each axis.
        sizes: median size along each axis in voxels.

    >>> target_spacing((5.0, 0.8, 0.8), (2.5, 0.7, 0.7), (30, 512, 512))
    (2.5, 0.8, 0.8)
    >>> target_spacing((1.0, 1.0, 1.0), (0.5, 1.0, 1.0), (36, 50, 35))
    (1.0, 1.0, 1.0)
    """
    worst = max(range(len(median)), key=lambda axis: median[axis])
    others = [axis for axis in range(len(median)) if axis != worst]
    coarsest, most = max(median[axis] for axis in others), min(sizes[axis] for axis in others)
    # Slices that are thick and few: their interpolation would invent most of the voxels.
    if median[worst] <= ANISOTROPY * coarsest or sizes[worst] * ANISOTROPY >= most:
        return tuple(median)
    found = list(median)
    found[worst] = max(tenth[worst], coarsest)
    return tuple(found)


def pooling_of(spacing: Sequence[float], patch: Sequence[int]) -> Pooling | None:
    """Return the strides and kernels for a patch; None if no axis can be halved.

    An axis is halved while it keeps `SMALLEST_FEATURE_MAP` values and its spacing is below twice the smallest one. Its
    kernels are 1 until its spacing is below twice the smallest one.

    >>> pooling_of((5.0, 0.8, 0.8), (16, 64, 64)).strides
    ((1, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2))
    >>> pooling_of((5.0, 0.8, 0.8), (16, 64, 64)).kernels
    ((1, 3, 3), (1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3))
    >>> pooling_of((1.0, 1.0), (7, 7)) is None
    True
    """
    axes = range(len(patch))
    spacing_now, size_now, kernel = list(spacing), list(patch), [1] * len(patch)
    strides: list[tuple[int, ...]] = []
    kernels: list[tuple[int, ...]] = []
    while True:
        pooled = [axis for axis in axes if size_now[axis] >= 2 * SMALLEST_FEATURE_MAP]
        finest = min((spacing_now[axis] for axis in pooled), default=0.0)
        pooled = [axis for axis in pooled if spacing_now[axis] < _POOLED * finest]
        # A single axis is halved only while that leaves it 1.5 times the least size.
        if not pooled or (len(pooled) == 1 and size_now[pooled[0]] < 3 * SMALLEST_FEATURE_MAP):
            break
        kernel = [
            3 if size == 3 or spacing_now[axis] < _POOLED * min(spacing_now) else 1
            for axis, size in enumerate(kernel)
        ]
        kernels.append(tuple(kernel))
        strides.append(tuple(2 if axis in pooled else 1 for axis in axes))
        for axis in pooled:
            spacing_now[axis] *= 2
            size_now[axis] = -(-size_now[axis] // 2)
    if not strides:
        return None
    # The coarsest size has kernels of 3 always.
    return Pooling(strides=tuple(strides), kernels=(*kernels, (3,) * len(patch)))


def fitting_patch(
    spacing: Sequence[float], patch: Sequence[int], limit: Sequence[int]
) -> tuple[tuple[int, ...], Pooling] | None:
    """Return a patch near these sizes that divides by its own strides, with them; None if there is none.

    Sizes are rounded up as in nnU-Net, and down where the record is too small for that.

    >>> fitting_patch((1.0, 1.0, 1.0), (36, 50, 35), (48, 64, 48))[0]
    (40, 56, 40)
    >>> fitting_patch((1.0, 1.0, 1.0), (36, 50, 35), (36, 50, 35))[0]
    (32, 48, 32)
    """
    sizes = tuple(patch)
    while pooling := pooling_of(spacing, sizes):
        fitted = tuple(
            -(-size // divisor) * divisor
            if -(-size // divisor) * divisor <= most
            else size // divisor * divisor
            for size, divisor, most in zip(sizes, pooling.divisors, limit, strict=True)
        )
        if all(now >= size for now, size in zip(fitted, sizes, strict=True)):
            return fitted, pooling
        # A smaller patch may be halved less often.
        sizes = tuple(map(min, fitted, sizes))
    return None


def patches(
    spacing: Sequence[float], median_shape: Sequence[int], limit: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Pooling]]:
    """Yield patches with their strides and kernels, the largest first.

    The first one has equal sides in mm, at most `LARGEST_PATCH` voxels, and is at most the median image. Each next one
    is smaller by a divisor along the axis that covers most of the median image.

    Args:
        spacing: spacing along each axis.
        median_shape: median size of an image along each axis.
        limit: largest size of a patch along each axis, the record's.
    """
    inverse = [1 / one for one in spacing]
    scale = (LARGEST_PATCH[len(spacing)] / math.prod(inverse)) ** (1 / len(spacing))
    sizes = tuple(
        max(1, min(round(scale * one), median, most))
        for one, median, most in zip(inverse, median_shape, limit, strict=True)
    )
    while min(sizes) >= 1 and (found := fitting_patch(spacing, sizes, limit)):
        patch, pooling = found
        yield patch, pooling
        limit = patch  # rounding up must not add along another axis what was taken from one
        # As nnU-Net: shrink the axis whose patch covers most of the median image.
        axis = max(range(len(patch)), key=lambda axis: patch[axis] / median_shape[axis])
        sizes = tuple(
            size - (pooling.divisors[axis] if number == axis else 0) for number, size in enumerate(patch)
        )
