"""How much of a scan and of its classes lies outside the records that a plan makes of it.

That is asked of the source, before anything is resampled, so that no interpolation blurs the answer: of each source
voxel the share counts that lies within the parts of records that show the scan. Where axes mix (a tilted gantry), its
center decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Finding, Grid, Shape
from halofeed.prep.geometry.volume import Plan, Ranges, View, whole
from halofeed.prep.statistics.pictures import count_labels
from halofeed.prep.voxels.foreground import CT_FOREGROUND_HU
from halofeed.schemas.class_sets import count_members

CLASS_CUT: Final = "a class is cut off"
"""The finding's name."""
NOTED_SHARE: Final = 0.01
"""A scan has the finding where more than this share of one of its classes is outside."""

_EDGE: Final = 1e-6
_MOST_SAMPLED: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Volumes in mm³, of the scan and of each class but the background; `cut` is what no record shows.

    Args:
        cut_share, body_cut_share: 0 to 1, of the scan's field of view, and of its body.
    """

    scan_mm3: int
    cut_mm3: int
    class_mm3: Mapping[int, int]
    class_cut_mm3: Mapping[int, int]
    cut_share: float = 0.0
    body_cut_share: float = 0.0

    def findings(self) -> tuple[Finding, ...]:
        """A finding where a class lost more than is worth no word."""
        shares = {value: cut / self.class_mm3[value] for value, cut in self.class_cut_mm3.items() if cut}
        worst = max(shares.values(), default=0.0)
        if worst <= NOTED_SHARE:
            return ()
        return (Finding(name=CLASS_CUT, treatment="noted", detail=f"up to {worst:.1%} of one"),)


def shown_by(plan: Plan) -> Ranges:
    """The part of the plan's target that shows the source, and is no padding."""
    last = plan.steps[-1] if plan.steps else None
    return last.inside if isinstance(last, View) else whole(plan.target.shape)


def measure_coverage(
    grid: Grid,
    plans: Sequence[Plan],
    labels: NDArray[Any] | None,
    channels: Sequence[int] = (),
    *,
    image: NDArray[Any] | None = None,
) -> Coverage:
    """What the records of one scan leave out, all its tiles together.

    Args:
        grid: of the scan, from which each of `plans` leads to a record.
        labels: class ids [depth, height, width] on that grid, each below 65,536, or None.
        channels: of labels that are sets of classes, the id of each bit.
        image: the scan [depth, height, width] on that grid; left out, its body is not measured.
    """
    if labels is not None and labels.dtype.itemsize > 2:
        labels = labels.astype(np.uint16)
    voxel_mm3 = abs(float(np.linalg.det(grid.affine[:3, :3])))
    shares = _shares(grid.shape, plans)
    total: Mapping[int, float] = {}
    shown: Mapping[int, float] = {}
    if shares is None:
        step = _sampling_step(math.prod(grid.shape))
        sampled = np.stack(np.meshgrid(*(np.arange(0, side, step) for side in grid.shape), indexing="ij"), -1)
        kept = float(_inside(sampled.reshape(-1, 3), plans).mean())
        if labels is not None:
            total = count_labels(labels)
            lost = _lost_one_by_one(labels, plans)
            shown = {value: count - lost[value] for value, count in total.items()}
    else:
        kept = math.prod(float(share.mean()) for share in shares)
        if labels is not None:
            total, shown = _count_shown(labels, shares)
    if channels:
        total, shown = count_members(total, channels), count_members(shown, channels)
    scan_mm3 = math.prod(grid.shape) * voxel_mm3
    return Coverage(
        scan_mm3=round(scan_mm3),
        cut_mm3=round(scan_mm3 * (1 - kept)),
        class_mm3={value: max(1, round(count * voxel_mm3)) for value, count in total.items() if value},
        class_cut_mm3={
            value: round((count - shown.get(value, 0)) * voxel_mm3) for value, count in total.items() if value
        },
        cut_share=1 - kept,
        body_cut_share=0.0 if image is None or kept >= 1 else _body_cut_share(image, shares, plans),
    )


def _body_cut_share(
    image: NDArray[Any], shares: Sequence[NDArray[np.float64]] | None, plans: Sequence[Plan]
) -> float:
    """The share of the voxels of the body that no record shows; of large scans evenly spaced voxels are sampled.

    The body is what lies above -500 HU, or above the mean of a scan without values below that.
    """
    step = _sampling_step(image.size)
    sample = image[::step, ::step, ::step]
    is_ct = float(sample.min()) <= CT_FOREGROUND_HU
    body = sample > (CT_FOREGROUND_HU if is_ct else float(sample.mean(dtype=np.float64)))
    if not body.any():
        return 0.0
    if shares is None:
        return 1 - float(_inside(np.argwhere(body) * step, plans).mean())
    depth, height, width = (share[::step] for share in shares)
    return max(0.0, 1 - float(depth @ (body @ width @ height)) / int(body.sum()))


def _sampling_step(voxels: int) -> int:
    return max(1, math.ceil(math.cbrt(voxels / _MOST_SAMPLED)))


def percent_cut(share: float) -> int:
    """A share in whole percent, rounded up.

    >>> percent_cut(0.0), percent_cut(0.002), percent_cut(8 / 9)
    (0, 1, 89)
    """
    return math.ceil(100 * share - _EDGE)


def _shares(shape: Shape, plans: Sequence[Plan]) -> list[NDArray[np.float64]] | None:
    """What share of each source voxel's side the plans' targets show, along each axis; None where axes mix."""
    low, high = [math.inf] * 3, [-math.inf] * 3
    for plan in plans:
        matrix = plan.to_source
        steps = np.diag(matrix)[:3]
        if (np.abs(matrix[:3, :3] - np.diag(steps)) > _EDGE * np.abs(steps).max()).any() or (
            steps <= 0
        ).any():
            return None
        for axis, (first, last) in enumerate(shown_by(plan)):
            low[axis] = min(low[axis], matrix[axis, 3] + (first - 0.5) * steps[axis])
            high[axis] = max(high[axis], matrix[axis, 3] + (last - 0.5) * steps[axis])
    return [
        np.clip(np.minimum(np.arange(side) + 0.5, b) - np.maximum(np.arange(side) - 0.5, a), 0, 1).round(6)
        for a, b, side in zip(low, high, shape, strict=True)
    ]


def _count_shown(
    labels: NDArray[Any], shares: Sequence[NDArray[np.float64]]
) -> tuple[Counter[int], Counter[int]]:
    """How often each value occurs, and how much of that is shown: a count for each block of equal shares."""
    total, shown = Counter[int](), Counter[int]()
    blocks = []
    for share in shares:
        edges = [0, *(np.flatnonzero(np.diff(share)) + 1).tolist(), len(share)]
        blocks.append([(slice(a, b), float(share[a])) for a, b in pairwise(edges)])
    for (depth, a), (height, b), (width, c) in product(*blocks):
        for value, count in count_labels(labels[depth, height, width]).items():
            total[value] += count
            shown[value] += count * (a * b * c)  # type: ignore[assignment]
    return total, shown


def _lost_one_by_one(labels: NDArray[Any], plans: Sequence[Plan]) -> Counter[int]:
    """The same for axes that are not parallel: each labeled voxel is asked, a slice at a time."""
    lost: Counter[int] = Counter()
    for depth, plane in enumerate(labels):
        rows, columns = np.nonzero(plane)
        points = np.stack([np.full(len(rows), depth), rows, columns], 1)
        outside = ~_inside(points, plans)
        if outside.any():
            lost.update(plane[rows[outside], columns[outside]].tolist())
    return lost


def _inside(points: NDArray[Any], plans: Sequence[Plan]) -> NDArray[np.bool_]:
    """Which source voxels [n, 3] any plan's target shows."""
    found = np.zeros(len(points), bool)
    for plan in plans:
        matrix = np.linalg.inv(plan.to_source)
        there = points @ matrix[:3, :3].T + matrix[:3, 3]
        low, high = np.array(shown_by(plan), float).T - 0.5
        found |= ((there >= low - _EDGE) & (there <= high + _EDGE)).all(axis=1)
    return found
