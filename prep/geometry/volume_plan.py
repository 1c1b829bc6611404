"""Plans for the grid of a volume: resample, crop or pad, and cut into patches. No voxel moves here.

A plan is a source grid, a target grid and the steps between them. There are two kinds of step:

    View      voxels are copied unchanged: axes permuted and reversed, borders cropped or padded
    Resample  target voxels are between source voxels

Every step updates the affine, so `target.affine` always has the position of a voxel in the patient, and
`Plan.to_source` the corresponding source voxel. Adjacent views are merged, so any number of them costs one copy.

Tiles are patches that overlap and together cover a volume that is larger than the static shape:

axis of 10, tiles of 4, overlap of at least 1:      0 1 2 3 4 5 6 7 8 9
                                                    └─────┘   └─────┘
                                                          └─────┘          start at 0, 3, 6
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halofeed.prep.geometry.scan import Grid, Triple, VolumeShape
from halofeed.prep.geometry.taps import known_kernel
from halofeed.system.errors import SourceError, UsageError
from halofeed.system.wording import plural

Matrix = NDArray[np.float64]
"""float64 [4, 4]: target voxel (depth, height, width, 1) to source voxel."""
Ranges = tuple[tuple[int, int], ...]
"""(start, stop) per axis; stop is exclusive."""
SliceWise = Literal["auto", "always", "never"]

MASK_KERNELS: Final = ("nearest", "onehot-linear")
ANISOTROPY: Final = 3.0
"""If the spacings differ by more than this factor, resampling is slice by slice, as in nnU-Net v2."""
MAX_VOXELS: Final = 1 << 32
"""Maximum voxels of a planned grid; a header with a spacing of kilometers would exceed it."""
SAME_SPACING_VOXELS: Final = 1e-3
"""An axis is not resampled if no voxel would move by more than this fraction of a voxel."""
AGREE_MM: Final = 1e-3
_SIDE_MULTIPLE: Final = 16
"""Multiple of a proposed side: a U-Net of five levels halves each side four times. Sides below 64 use half of it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AxisView:
    """Step that copies voxels unchanged.

    Along target axis a, target voxel t is source voxel first[a] + direction[a]·t of source axis order[a].

    Args:
        shape: shape of the target.
        first: source voxel of target voxel 0, per target axis.
        order: source axis, per target axis.
        direction: 1 or -1, per target axis.
        inside: range of target voxels that have a source voxel, per target axis; the others are padding.
    """

    shape: VolumeShape
    first: VolumeShape
    inside: Ranges
    order: VolumeShape = (0, 1, 2)
    direction: VolumeShape = (1, 1, 1)

    @property
    def matrix(self) -> Matrix:
        """Map from target voxel to source voxel."""
        matrix = np.zeros((4, 4))
        for axis in range(3):
            matrix[self.order[axis], [axis, 3]] = self.direction[axis], self.first[axis]
        matrix[3, 3] = 1
        return matrix

    @property
    def pads(self) -> bool:
        """True if some target voxels have no source voxel."""
        return self.inside != full_ranges(self.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Resample:
    """Step that interpolates between voxels.

    Args:
        shape: shape of the target.
        matrix: map from target voxel to source voxel.
        image_kernels: "nearest", "linear" or "cubic" per axis. If `matrix` mixes axes, all three are "nearest" or all
            three are "linear".
        mask_kernel: "nearest" or "onehot-linear".
        antialias: whether image and one-hot kernels are widened along axes that shrink.
    """

    shape: VolumeShape
    matrix: Matrix
    image_kernels: tuple[str, str, str] = ("linear", "linear", "linear")
    mask_kernel: str = "nearest"
    antialias: bool = False

    @property
    def separable(self) -> bool:
        """True if each axis is sampled independently."""
        linear = self.matrix[:3, :3]
        return not (linear - np.diag(np.diag(linear))).any()


@dataclass(frozen=True, kw_only=True, eq=False)
class VolumePlan:
    """Steps from the voxels of one grid to those of another.

    Args:
        source: grid before the steps.
        target: grid after the steps; its affine maps to the same millimeters.
        steps: steps in order; empty if the grids are the same.
    """

    source: Grid
    target: Grid
    steps: tuple[AxisView | Resample, ...]

    @property
    def to_source(self) -> Matrix:
        """Map from target voxel to source voxel; integers if nothing is resampled."""
        matrix = np.eye(4)
        for step in self.steps:
            matrix = matrix @ step.matrix
        return matrix

    @property
    def resamples(self) -> bool:
        """True if values are interpolated."""
        return any(isinstance(step, Resample) for step in self.steps)


def plan_volume_step(grid: Grid, step: AxisView | Resample) -> VolumePlan:
    """Return the plan with one step."""
    if int(np.prod([int(size) for size in step.shape], dtype=object)) > MAX_VOXELS:
        detail = f"{grid.shape} voxels would become {step.shape}; --spacing-mm is in millimeters"
        raise SourceError("geometry", "volume would become too large", detail)
    target = Grid(shape=step.shape, affine=grid.affine @ step.matrix)
    return VolumePlan(source=grid, target=target, steps=(step,))


def plan_nothing(grid: Grid) -> VolumePlan:
    """Return the plan that does not change a volume."""
    return VolumePlan(source=grid, target=grid, steps=())


def join_plans(plans: Sequence[VolumePlan]) -> VolumePlan:
    """Join plans in order, and merge adjacent views.

    Raises:
        UsageError: there is no plan, or a plan starts from another grid than that of the previous target.
    """
    if not plans:
        raise UsageError("compose: expected at least one plan")
    for before, after in pairwise(plans):
        if not grids_agree(before.target, after.source):
            raise UsageError(
                f"compose: a plan from {describe_grid(after.source)} follows one to {describe_grid(before.target)}"
            )
    steps: list[AxisView | Resample] = []
    for step in (step for plan in plans for step in plan.steps):
        previous = steps[-1] if steps else None
        # Two views are one view, which is copied once.
        if isinstance(step, AxisView) and isinstance(previous, AxisView):
            steps[-1] = _join(previous, step)
        else:
            steps.append(step)
    return VolumePlan(source=plans[0].source, target=plans[-1].target, steps=tuple(steps))


def full_ranges(shape: VolumeShape) -> Ranges:
    """Return the ranges of a complete volume."""
    return tuple((0, size) for size in shape)


def _join(first: AxisView, second: AxisView) -> AxisView:
    """Return the view that is equal to `first` followed by `second`."""
    order, direction, start, inside = [], [], [], []
    for axis in range(3):
        middle = second.order[axis]
        order.append(first.order[middle])
        direction.append(first.direction[middle] * second.direction[axis])
        start.append(first.first[middle] + first.direction[middle] * second.first[axis])
        low, high = first.inside[middle]
        origin = second.first[axis]
        # A reversed axis counts the unpadded range from its other end.
        if second.direction[axis] > 0:
            low, high = low - origin, high - origin
        else:
            low, high = origin - high + 1, origin - low + 1
        low, high = max(low, second.inside[axis][0]), min(high, second.inside[axis][1])
        inside.append((low, high) if low < high else (0, 0))
    return AxisView(
        shape=second.shape,
        order=triple(order),
        direction=triple(direction),
        first=triple(start),
        inside=tuple(inside),
    )


def triple(values: Sequence[int]) -> VolumeShape:
    """Convert three integers to a tuple."""
    first, second, third = values
    return int(first), int(second), int(third)


def grids_agree(a: Grid, b: Grid) -> bool:
    """Return whether two grids have the same shape and the same voxel positions, within `AGREE_MM`."""
    return a.shape == b.shape and distance_mm(a, b) <= AGREE_MM


def distance_mm(a: Grid, b: Grid) -> float:
    """Return the largest distance between voxels with the same index in two grids of the same shape."""
    return float(np.linalg.norm(_corner_offsets_mm(a, b), axis=1).max())


def distance_voxels(a: Grid, b: Grid) -> float:
    """Return the largest such distance along one axis of the first grid, as a fraction of its voxel size."""
    return float(np.abs(np.linalg.solve(a.affine[:3, :3], _corner_offsets_mm(a, b).T)).max())


def _corner_offsets_mm(a: Grid, b: Grid) -> NDArray[np.float64]:
    corners = np.indices((2, 2, 2)).reshape(3, 8).T * (np.array(a.shape) - 1)
    return b.to_mm(corners) - a.to_mm(corners)


def describe_grid(grid: Grid) -> str:
    """Return shape and spacing as text for messages."""
    shape = "×".join(str(size) for size in grid.shape)
    return f"{shape} voxels of {'×'.join(f'{spacing:.4g}' for spacing in grid.spacing_mm)} mm"


# Spacing


def plan_resample(
    grid: Grid,
    spacing_mm: Triple,
    *,
    image_kernel: str = "linear",
    mask_kernel: str = "nearest",
    slice_wise: SliceWise = "auto",
    antialias: bool = True,
) -> VolumePlan:
    """Plan to sample the same field of view at another spacing.

    The new spacing is exact. The new size is round(extent / spacing), at least 1, and the center of the volume does not
    move: its outer edges move by at most a quarter of a new voxel each. (nnU-Net and scikit-image stretch the new
    voxels to keep the edges, which gives each scan another spacing.)

    Args:
        grid: grid of the volume.
        spacing_mm: distance between neighbors along depth, height and width.
        image_kernel: "linear" or "cubic".
        mask_kernel: "nearest", or "onehot-linear": each class is interpolated and the largest value wins.
        slice_wise: whether the axis with the largest spacing uses the nearest slice. "auto": only if the largest
            spacing is over 3 times the smallest, before or else after resampling, and only one axis has it.
        antialias: whether to widen the kernel along axes that shrink, so that each source voxel counts.
    """
    if min(spacing_mm) <= 0 or not np.isfinite(spacing_mm).all():
        raise UsageError(f"spacing_mm: expected three numbers above 0, got {spacing_mm}")
    ratios, shape = [], []
    for size, old, new in zip(grid.shape, grid.spacing_mm, spacing_mm, strict=True):
        # Spacings that differ by rounding in the file would resample a whole scan by nothing.
        same = abs(new / old - 1) * size < SAME_SPACING_VOXELS
        ratios.append(1.0 if same else new / old)
        shape.append(size if same else max(1, int(np.floor(round(size * old / new, 4) + 0.5))))
    low_axis = _low_resolution_axis(grid.spacing_mm, spacing_mm, slice_wise)
    return _plan_axes(grid, triple(shape), ratios, image_kernel, mask_kernel, low_axis, antialias)


def plan_stretch(
    grid: Grid,
    shape: VolumeShape,
    *,
    image_kernel: str = "linear",
    mask_kernel: str = "nearest",
    antialias: bool = True,
) -> VolumePlan:
    """Plan to sample the same field of view, edge to edge, with another number of voxels and any spacing."""
    _check_shape(shape)
    ratios = [old / new for old, new in zip(grid.shape, shape, strict=True)]
    return _plan_axes(grid, shape, ratios, image_kernel, mask_kernel, None, antialias)


def _plan_axes(
    grid: Grid,
    shape: VolumeShape,
    ratios: Sequence[float],
    image_kernel: str,
    mask_kernel: str,
    low_axis: int | None,
    antialias: bool,
) -> VolumePlan:
    """Plan to resample each axis about the center of the volume; a ratio is source voxels per target voxel."""
    known_kernel(image_kernel)
    if mask_kernel not in MASK_KERNELS:
        raise UsageError(f"mask kernel {mask_kernel!r} is not known; choose from {', '.join(MASK_KERNELS)}")
    # A step that changes nothing would cost a copy of the volume.
    if shape == grid.shape and all(ratio == 1 for ratio in ratios):
        return plan_nothing(grid)
    matrix = np.diag([*ratios, 1.0])
    matrix[:3, 3] = [
        (old - 1) / 2 - ratio * (new - 1) / 2
        for old, new, ratio in zip(grid.shape, shape, ratios, strict=True)
    ]
    first, second, third = ("nearest" if axis == low_axis else image_kernel for axis in range(3))
    step = Resample(
        shape=shape,
        matrix=matrix,
        image_kernels=(first, second, third),
        mask_kernel=mask_kernel,
        antialias=antialias,
    )
    return plan_volume_step(grid, step)


def _low_resolution_axis(old: Sequence[float], new: Sequence[float], slice_wise: SliceWise) -> int | None:
    """Return the axis that uses the nearest slice instead of interpolation, if any."""
    if slice_wise not in ("auto", "always", "never"):
        raise UsageError(f"slice_wise: expected auto, always or never, got {slice_wise!r}")
    if slice_wise == "never":
        return None
    for spacing in (old, new):
        largest = max(spacing)
        axes = [axis for axis in range(3) if spacing[axis] > largest * (1 - 1e-4)]
        # nnU-Net's rule (`get_lowres_axis`, ANISO_THRESHOLD): the spacing before resampling decides, else that after.
        if slice_wise == "always":
            return axes[0]
        if largest / min(spacing) > ANISOTROPY * (1 + 1e-4):
            return axes[0] if len(axes) == 1 else None
    return None


# Crop and pad


def plan_crop_or_pad(grid: Grid, shape: VolumeShape, center: ArrayLike | None = None) -> VolumePlan:
    """Plan to crop or pad each axis to `shape`.

    An odd voxel goes to the start of the axis, for both padding and cropping, so that cropping undoes padding:

        4 -> 7   p p 0 1 2 3 p        7 -> 4   (0 1) 2 3 4 5 (6)

    Args:
        grid: grid of the volume.
        shape: target (depth, height, width).
        center: voxel of this grid, possibly fractional, to place in the middle; default: the center of the volume.
            It is moved as far as needed to avoid padding a long axis and cropping a short axis.
    """
    _check_shape(shape)
    middle = np.asarray((np.array(grid.shape) - 1) / 2 if center is None else center, np.float64).reshape(3)
    if not np.isfinite(middle).all():
        raise UsageError(f"center: expected a voxel, got {middle.tolist()}")
    starts = []
    for at, old, new in zip(middle.tolist(), grid.shape, shape, strict=True):
        wanted = at - (new - 1) / 2
        away_from_zero = int(np.copysign(np.floor(abs(wanted) + 0.5), wanted))
        starts.append(min(max(away_from_zero, min(0, old - new)), max(0, old - new)))
    return plan_window(grid, triple(starts), shape)


def plan_window(grid: Grid, start: VolumeShape, shape: VolumeShape) -> VolumePlan:
    """Plan the window of `shape` that starts at voxel `start`; voxels outside the volume are padding."""
    # The window is the complete volume.
    if start == (0, 0, 0) and shape == grid.shape:
        return plan_nothing(grid)
    inside = []
    for origin, new, old in zip(start, shape, grid.shape, strict=True):
        # Positions before voxel 0 or after the last one are padding.
        low, high = max(0, -origin), min(new, old - origin)
        inside.append((low, high) if low < high else (0, 0))
    return plan_volume_step(grid, AxisView(shape=shape, first=start, inside=tuple(inside)))


def _check_shape(shape: Sequence[Any]) -> None:
    if len(shape) != 3 or min(shape) < 1:
        raise UsageError(f"shape: expected a depth, height and width of at least 1, got {tuple(shape)}")


# Tiles


@dataclass(frozen=True, kw_only=True, eq=False)
class VolumeTile:
    """One patch of a volume.

    Args:
        number: index from 0, with depth slowest and width fastest.
        origin: first voxel of the patch in the volume; negative if it starts with padding.
        plan: plan from the volume to the patch.
    """

    number: int
    origin: VolumeShape
    plan: VolumePlan


def round_up_side(side: float) -> int:
    """Return the smallest side of a static shape that holds this many voxels and that a U-Net can halve.

    >>> [round_up_side(side) for side in (42.0, 64.0000001, 101)]
    [48, 64, 112]
    """
    multiple = _SIDE_MULTIPLE if side > 4 * _SIDE_MULTIPLE else _SIDE_MULTIPLE // 2
    # 1e-6: resampled sizes such as 64.0000001 are whole numbers except for rounding.
    return multiple * math.ceil(side / multiple - 1e-6)


def tile_starts(size: int, tile: int, overlap: int) -> list[int]:
    """Return the starts of the tiles of an axis that is at least one tile long: as few as possible, evenly spaced.

    >>> tile_starts(10, 4, 1)
    [0, 3, 6]
    """
    gaps = -(-(size - tile) // (tile - overlap))
    return [round(number * (size - tile) / gaps) for number in range(gaps + 1)] if gaps else [0]


def plan_tiles(grid: Grid, shape: VolumeShape, overlap: VolumeShape = (0, 0, 0)) -> tuple[VolumeTile, ...]:
    """Plan patches of `shape` that cover the volume; neighbors share at least `overlap` voxels along each axis.

    An axis shorter than its tile is padded around its center and has one tile.

    Args:
        grid: grid of the volume.
        shape: shape of each patch.
        overlap: shared voxels per axis, less than `shape`.
    """
    for name, side, shared in zip(("depth", "height", "width"), shape, overlap, strict=True):
        if side < 1 or not 0 <= shared < side:
            raise UsageError(
                f"tiles: expected an overlap of 0 to {plural(side - 1, 'voxel')} of {name} {side}, got {shared}"
            )
    padded = plan_crop_or_pad(grid, triple([max(sizes) for sizes in zip(grid.shape, shape, strict=True)]))
    start = [round(first) for first in padded.to_source[:3, 3].tolist()]
    starts = [
        [first + begin for begin in tile_starts(size, side, shared)]
        for first, size, side, shared in zip(start, padded.target.shape, shape, overlap, strict=True)
    ]
    return tuple(
        VolumeTile(number=number, origin=triple(origin), plan=plan_window(grid, triple(origin), shape))
        for number, origin in enumerate(product(*starts))
    )
