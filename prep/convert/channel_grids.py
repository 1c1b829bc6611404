"""Channels of one image in several files: comparison of their grids, and resampling to the grid of the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.tallies import NOTED_SHARE
from halofeed.prep.geometry.orientation import offset_between, plan_canonical, plan_onto, tolerance_for
from halofeed.prep.geometry.scan import Finding, Grid, Scan
from halofeed.prep.geometry.volume_plan import VolumePlan, describe_grid
from halofeed.prep.voxels.resample import apply_image, apply_mask, view_of
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError

Voxels = NDArray[Any]
_WHERE_IT_LIES = "--channel-grid resample brings further channels onto the first one's"


def plan_channel(canonical: Grid, scan: Scan, rule: str, tolerance_voxels: float) -> VolumePlan | None:
    """Return the plan that brings a further channel to the grid of the first; None if it has this grid.

    Args:
        canonical: canonical grid of the first channel.
        scan: the further channel, in any order of axes.
        rule: "refuse" or "resample", see --channel-grid.
        tolerance_voxels: offset along each axis, as a fraction of a voxel, within which the grids are the same.

    Raises:
        SourceError: the grids differ, and the rule is "refuse".
    """
    grid = plan_canonical(scan.grid).target
    offset, apart = offset_between(canonical, grid)
    # Programs round affines to float32, so that equal grids differ in the last digits.
    if offset <= tolerance_voxels:
        return None
    if rule == "resample":
        # The kernel is widened where a fine channel meets a coarse grid, as --spacing-mm does it.
        return plan_onto(grid, canonical, antialias=True)
    detail = f"{describe_grid(canonical)}, {describe_grid(grid)}{apart}; {_WHERE_IT_LIES}"
    raise SourceError("geometry", "channels lie on different grids", detail + tolerance_for(offset))


def bring_channel(plan: VolumePlan | None, scan: Scan, voxels: Voxels) -> tuple[Voxels, tuple[Finding, ...]]:
    """Return the voxels of a channel on the first channel's canonical grid, and what was done.

    Voxels that the channel does not cover get its smallest value.

    Args:
        plan: see `plan_channel`.
        scan: the channel.
        voxels: [depth, height, width, channel] as stored.

    Raises:
        SourceError: the channel is completely outside the first.
    """
    values = view_of(plan_canonical(scan.grid), voxels)
    if plan is None:
        return values, ()
    file = scan.files[0] if scan.files else ""
    covered = apply_mask(plan, np.broadcast_to(np.uint8(1), plan.source.shape))
    uncovered = 1 - float(np.count_nonzero(covered)) / covered.size
    # Grids without a common region are not registered.
    if uncovered == 1:
        detail = f"{file}; it is another patient's, or its affine was lost: correct the pair or the file"
        raise SourceError("geometry", "channel lies outside of the first", detail)
    filled = [apply_image(plan, values[..., at], _least(values[..., at])) for at in range(values.shape[3])]
    finding = Finding.corrected(FindingName.CHANNEL_ON_ANOTHER_GRID, "resampled, linear")
    image = filled[0][..., None] if len(filled) == 1 else np.stack(filled, axis=3)
    # A margin of less than 1 % shows no organ.
    if uncovered <= NOTED_SHARE:
        return image, (finding,)
    beyond = Finding.noted(FindingName.CHANNEL_SMALLER, f"{uncovered:.1%} of the first scan")
    return image, (finding, beyond)


def resampled_bytes(plans: Sequence[VolumePlan | None], scans: Sequence[Scan]) -> int:
    """Return the bytes of further channels that are held beside the image while they are resampled."""
    held = [0]
    for plan, scan in zip(plans, scans, strict=True):
        if plan is not None:
            voxels, item = int(np.prod(scan.grid.shape)), np.dtype(scan.dtype).itemsize
            # The stored voxels, a copy in order of the axes for sheared grids, and the map of covered voxels.
            held.append(voxels * (2 * item * scan.channels) + int(np.prod(plan.target.shape)))
    return sum(held)


def _least(values: Voxels) -> float:
    return float(values.min())
