"""Channels of one image in several files: comparison of their grids, and resampling to the grid of one of them.

--channel-grid resample takes the grid of the first channel, resample:NAME that of another one:

CT    512 x 512 x 300 ──────────────────────> 512 x 512 x 300 ──┐
PET   128 x 128 x 200 ── linear ────────────> 512 x 512 x 300 ──┴──> 2 channels
zones 160 x 160 x  40 ── nearest voxel, because its values are areas of a few whole numbers, as labels are
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.tallies import NOTED_SHARE
from halofeed.prep.geometry.orientation import offset_between, plan_canonical, plan_onto, tolerance_for
from halofeed.prep.geometry.scan import Finding, Grid, Scan
from halofeed.prep.geometry.volume_plan import VolumePlan, describe_grid
from halofeed.prep.sources.file_names import extension_of
from halofeed.prep.voxels.label_volumes import CT_FOREGROUND_HU
from halofeed.prep.voxels.resample import apply_image, apply_mask, view_of
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError

Voxels = NDArray[Any]
_WHERE_IT_LIES = "--channel-grid resample brings further channels onto the first one's"
_BACKGROUNDS: Final = {"CT": (CT_FOREGROUND_HU, -1024.0), "PT": (0.0, 0.0), "NM": (0.0, 0.0)}
"""By modality: the largest value of a scan's darkest voxel if the scan shows background, and the value of background:
air in Hounsfield units, no activity. A CT that was cropped to an organ has no air."""
_MAX_AREAS: Final = 256
"""Most distinct values of a channel that may hold labels; TotalSegmentator's have 118."""
_LEAST_ALIKE: Final = 0.75
"""Least share of neighbors with the same value, of those that are both above the background, in a channel of labels.
It was 0.96 to 1 in 20 masks (hippocampus, spleen, TotalSegmentator), at most 0.083 in 8-bit MR, and 0.18 in Poisson
noise of mean 3."""
_SAMPLED_PLANES: Final = 16


def reference_channel(paths: Sequence[str], rule: str) -> int:
    """Return the number of the channel whose grid all channels get, counted from 0.

    A name is a part of the path that only this channel has (CT in C1__CT.nii.gz beside C1__PT.nii.gz), or else the
    number of the channel. Where several paths have it, the shortest name counts (T1w in a_T1w beside a_ce-gd_T1w).
    `named_channel` reads the names of the data set before.

    Args:
        paths: path of each channel, in order.
        rule: value of --channel-grid.

    Raises:
        SourceError: the name is that of no channel.

    >>> [reference_channel(["a/x_0000.nii.gz", "a/x_0001.nii.gz"], f"resample:{name}") for name in ("0001", "1", "0")]
    [1, 1, 0]
    """
    _, _, name = rule.partition(":")
    if not name:
        return 0
    parts, wanted = [_parts(path) for path in paths], _parts(name)
    having = sorted((len(of_one), at) for at, of_one in enumerate(parts) if wanted and wanted <= of_one)
    if len(having) == 1 or (having and having[0][0] < having[1][0]):
        return having[0][1]
    if name.isdecimal() and int(name) < len(paths):
        return int(name)
    shared = frozenset.intersection(*parts)
    own = ", ".join("_".join(sorted(of_one - shared)) or str(at) for at, of_one in enumerate(parts))
    listed = (
        f"{name!r} of --channel-grid {rule}; the channels of this scan are {own}, or 0 to {len(paths) - 1}"
    )
    raise SourceError("geometry", "no channel has this name", listed)


def named_channel(names: Sequence[str], rule: str) -> int | None:
    """Return the number of the channel that --channel-grid names as the data set does; None if no or several names fit.

    Args:
        names: name of each channel in the annotations, such as nnU-Net's `channel_names`.
        rule: value of --channel-grid.

    >>> named_channel(["CT", "PET"], "resample:pet"), named_channel(["CT", "PET"], "resample:T1")
    (1, None)
    """
    _, _, name = rule.partition(":")
    having = [at for at, one in enumerate(names) if one.casefold() == name.casefold()]
    return having[0] if len(having) == 1 else None


def _parts(path: str) -> frozenset[str]:
    stem = path.removesuffix(extension_of(path)).lower()
    return frozenset(filter(None, re.split("[^a-z0-9]+", stem)))


def plan_channel(canonical: Grid, scan: Scan, rule: str, tolerance_voxels: float) -> VolumePlan | None:
    """Return the plan that brings a channel to the grid of the reference channel; None if it has this grid.

    Args:
        canonical: canonical grid of the reference channel.
        scan: another channel, in any order of axes.
        rule: see --channel-grid.
        tolerance_voxels: offset along each axis, as a fraction of a voxel, within which the grids are the same.

    Raises:
        SourceError: the grids differ, and the rule is "refuse".
    """
    grid = plan_canonical(scan.grid).target
    offset, apart = offset_between(canonical, grid)
    # Programs round affines to float32, so that equal grids differ in the last digits.
    if offset <= tolerance_voxels:
        return None
    if rule != "refuse":
        # The kernel is widened where a fine channel meets a coarse grid, as --spacing-mm does it.
        return plan_onto(grid, canonical, antialias=True)
    detail = f"{describe_grid(canonical)}, {describe_grid(grid)}{apart}; {_WHERE_IT_LIES}"
    raise SourceError("geometry", "channels lie on different grids", detail + tolerance_for(offset))


def bring_channel(plan: VolumePlan | None, scan: Scan, voxels: Voxels) -> tuple[Voxels, tuple[Finding, ...]]:
    """Return the voxels of a channel on the reference channel's canonical grid, and what was done.

    Voxels that the channel does not cover get its background: its smallest value, or that of its modality where the
    channel shows no background.

    Args:
        plan: see `plan_channel`.
        scan: the channel.
        voxels: [depth, height, width, channel] as stored.

    Raises:
        SourceError: the channel is completely outside the reference channel.
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
    del covered
    channels = [values[..., at] for at in range(values.shape[3])]
    brought, findings, fills = zip(*(_brought(plan, scan, one) for one in channels), strict=True)
    image = brought[0][..., None] if len(brought) == 1 else np.stack(brought, axis=3)
    # A margin of less than 1 % shows no organ.
    if uncovered <= NOTED_SHARE:
        return image, findings
    filled = " and ".join(f"{value:g}" for value in dict.fromkeys(fills))
    detail = f"{uncovered:.1%} of the other scan gets {filled}"
    return image, (*findings, Finding.noted(FindingName.CHANNEL_SMALLER, detail))


def _brought(plan: VolumePlan, scan: Scan, values: Voxels) -> tuple[Voxels, Finding, float]:
    """Return one channel [depth, height, width] on the target grid, what was done, and the value of its background."""
    areas = count_areas(values)
    if areas:
        # Between labels 1 and 3 lies no label 2.
        whole = values if values.dtype.kind in "iu" else values.astype(np.int32)
        fill = int(min(0, whole.min()))
        moved = apply_mask(plan, whole, fill=fill).astype(values.dtype, copy=False)
        done = f"resampled, nearest voxel, for {areas} values in areas, as labels are"
        return moved, Finding.corrected(FindingName.CHANNEL_ON_ANOTHER_GRID, done), fill
    background = background_of(scan.modality, float(values.min()))
    if values.dtype.kind in "iu":
        needed = np.promote_types(values.dtype, np.min_scalar_type(int(background)))
        values = values.astype(needed, copy=False)
    moved = apply_image(plan, values, background)
    return moved, Finding.corrected(FindingName.CHANNEL_ON_ANOTHER_GRID, "resampled, linear"), background


def background_of(modality: str, least: float) -> float:
    """Return the value of voxels outside of a scan with this smallest value.

    >>> background_of("CT", -3024.0), background_of("CT", 20.0), background_of("MR", 20.0)
    (-3024.0, -1024.0, 20.0)
    """
    darkest, background = _BACKGROUNDS.get(modality, (least, least))
    # Padding of scanners, -2000 and -3024 in CT, is background too.
    return least if least <= darkest else background


def count_areas(values: Voxels) -> int:
    """Return the number of values of a channel that holds labels; 0 for a channel of intensities.

    Labels are few whole numbers, and a voxel's neighbor mostly has the same one.

    Args:
        values: [depth, height, width].

    >>> count_areas(np.repeat(np.arange(3), 8).reshape(1, 1, 24)), count_areas(np.arange(24).reshape(1, 1, 24) % 3)
    (3, 0)
    """
    chosen = np.linspace(0, len(values) - 1, min(len(values), _SAMPLED_PLANES)).astype(np.int64)
    planes = values[chosen]
    if values.dtype.kind == "f" and not np.array_equal(planes, np.rint(planes)):
        return 0
    found = np.unique(planes)
    if not 1 < len(found) <= _MAX_AREAS:
        return 0
    above = planes != found[0]
    both = above[..., 1:] & above[..., :-1]
    alike = np.count_nonzero(both & (planes[..., 1:] == planes[..., :-1]))
    # Two values are a mask; scattered pairs of equal neighbors alone prove nothing.
    return len(found) if alike and alike >= _LEAST_ALIKE * np.count_nonzero(both) else 0


def resampled_bytes(plans: Sequence[VolumePlan | None], scans: Sequence[Scan]) -> int:
    """Return the bytes of channels that are held beside the image while they are resampled."""
    held = [0]
    for plan, scan in zip(plans, scans, strict=True):
        if plan is not None:
            voxels, item = int(np.prod(scan.grid.shape)), np.dtype(scan.dtype).itemsize
            # The stored voxels, a copy in order of the axes for sheared grids or of another type for labels and
            # backgrounds, and the map of covered voxels.
            held.append(voxels * (2 * item * scan.channels) + int(np.prod(plan.target.shape)))
    return sum(held)
