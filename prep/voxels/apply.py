"""What a plan makes of an array: views, samples and borders, each voxel of the result written once.

Held at a time are the source, the result, and a few slices. Two resampling steps hold the volume between them
too, and a source stored in another order of axes that is sampled through a sheared affine is copied first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.volume import Plan, Ranges, Resample, View, whole
from halofeed.prep.voxels.copying import copy_voxels, in_order
from halofeed.prep.voxels.resample import reached, sample_affine, sample_image, sample_mask
from halofeed.schemas.errors import UsageError


def apply_image(plan: Plan, array: NDArray[Any], fill: float, spare: bool = False) -> NDArray[Any]:
    """The image on the plan's target grid.

    Args:
        array: of the source grid, [depth, height, width] or [depth, height, width, channel]; any strides.
        fill: for padding, in the array's unit: -1024 is air in HU.
        spare: the array is not needed any more, and its memory may become the result's.

    Returns:
        C-contiguous, of the array's dtype; integers are rounded half to even. The array itself where the plan does
        nothing to it.
    """
    return _apply(plan, array, fill, interpolate=True, spare=spare)


def apply_mask(plan: Plan, mask: NDArray[Any], spare: bool = False, fill: int = 0) -> NDArray[Any]:
    """The class values [depth, height, width] on the plan's target grid, of the mask's dtype; padding is `fill`."""
    if mask.ndim != 3 or mask.dtype.kind not in "iu":
        raise UsageError(f"mask: expected integers [depth, height, width], got {mask.dtype} {mask.shape}")
    return _apply(plan, mask, fill, interpolate=False, spare=spare)


def apply_sets(plan: Plan, sets: NDArray[Any], classes: int, spare: bool = False) -> NDArray[Any]:
    """As `apply_mask` for sets of so many classes: each class is sampled as a mask of its own."""
    if not plan.resamples:
        return apply_mask(plan, sets, spare=spare)
    result = np.zeros(plan.target.shape, sets.dtype)
    for bit in range(classes):
        inside = (sets >> sets.dtype.type(bit) & sets.dtype.type(1)).astype(np.uint8, copy=False)
        if inside.any():
            result |= apply_mask(plan, inside, spare=True).astype(sets.dtype, copy=False) << sets.dtype.type(
                bit
            )
    return result


def view_of(plan: Plan, array: NDArray[Any]) -> NDArray[Any]:
    """The voxels as a plan of views orders and crops them, without a copy.

    Raises:
        UsageError: the plan pads or resamples.
    """
    _check(plan, array)
    for step in plan.steps:
        if isinstance(step, Resample) or step.pads:
            raise UsageError("view_of: padding and resampling need a copy; use apply_image or apply_mask")
        array = _look(step, array)
    return array


def _check(plan: Plan, array: NDArray[Any]) -> None:
    if array.shape[:3] != plan.source.shape or array.ndim not in (3, 4):
        raise UsageError(f"array: expected {plan.source.shape}, or that and channels, got {array.shape}")


def _apply(plan: Plan, array: NDArray[Any], fill: float, *, interpolate: bool, spare: bool) -> NDArray[Any]:
    _check(plan, array)
    if array.dtype.kind not in "iuf" or array.dtype == np.float16:
        raise UsageError(f"array: expected integers, float32 or float64, got {array.dtype}")
    if array.dtype.kind != "f" and (not np.isfinite(fill) or int(np.array(fill).astype(array.dtype)) != fill):
        raise UsageError(f"fill: {fill} is no value of {array.dtype}")
    if array.ndim == 3:
        return _run(plan, array, fill, interpolate, spare)
    if array.shape[3] == 1:
        return _run(plan, array[..., 0], fill, interpolate, spare)[..., None]
    if not plan.steps:
        return np.ascontiguousarray(array)
    result = np.empty((*plan.target.shape, array.shape[3]), array.dtype)
    for channel in range(array.shape[3]):
        result[..., channel] = _run(plan, array[..., channel], fill, interpolate, False)
    return result


def _run(plan: Plan, array: NDArray[Any], fill: float, interpolate: bool, spare: bool) -> NDArray[Any]:
    steps = list(plan.steps)
    while steps:
        step = steps.pop(0)
        after = steps[0] if steps else None
        if isinstance(step, View) and not step.pads:
            array = _look(step, array)
            continue
        if isinstance(step, View):
            written = step
        elif isinstance(after, View):  # what it crops away is never sampled
            written = after
            del steps[0]
        else:
            written = View(shape=step.shape, first=(0, 0, 0), inside=whole(step.shape))
        result = np.empty(written.shape, array.dtype)
        opening, ranges = _opening(written, result)
        if isinstance(step, View):
            copy_voxels(array[_slices(ranges)], opening)
        else:
            _sample(array, step, ranges, opening, fill, interpolate)
        _fill_borders(result, written.inside, fill)
        array = result
    return in_order(array, spare)


def _sample(
    array: NDArray[Any], step: Resample, ranges: Ranges, opening: NDArray[Any], fill: float, interpolate: bool
) -> None:
    if not opening.size:
        return
    if not step.separable:
        matrix = step.matrix.copy()
        matrix[:3, 3] += matrix[:3, :3] @ [start for start, _ in ranges]
        sample_affine(array, matrix, opening, fill, interpolate)
        return
    found = tuple(
        (max(low, start), min(high, stop))
        for (low, high), (start, stop) in zip(reached(step, array.shape), ranges, strict=True)
    )
    inner = tuple((low - start, high - start) for (low, high), (start, _) in zip(found, ranges, strict=True))
    if any(low >= high for low, high in found):
        opening[...] = fill
        return
    sample = sample_image if interpolate else sample_mask
    sample(array, step, found, opening[_slices(inner)])
    _fill_borders(opening, inner, fill)


def _slices(ranges: Ranges) -> tuple[slice, ...]:
    return tuple(slice(*ends) for ends in ranges)


def _look(view: View, array: NDArray[Any]) -> NDArray[Any]:
    """The target of a view without padding, as strides over its source."""
    turned = array.transpose(*view.order, *range(3, array.ndim))
    cuts = []
    for first, direction, size in zip(view.first, view.direction, view.shape, strict=True):
        end = first + direction * size
        cuts.append(slice(first, end if end >= 0 else None, direction))
    return turned[tuple(cuts)]


def _opening(view: View, target: NDArray[Any]) -> tuple[NDArray[Any], Ranges]:
    """The part of a view's target that is not padding, in the order of the source's axes, and where it was there."""
    part = target[_slices(view.inside)]
    ranges: list[tuple[int, int]] = [(0, 0)] * 3
    for axis in range(3):
        low, high = view.inside[axis]
        ends = [view.first[axis] + view.direction[axis] * end for end in (low, high - 1)]
        ranges[view.order[axis]] = (min(ends), max(ends) + 1) if low < high else (0, 0)
    turned = part[tuple(slice(None, None, direction) for direction in view.direction)]
    return turned.transpose(*np.argsort(view.order)), tuple(ranges)


def _fill_borders(target: NDArray[Any], inside: Ranges, fill: float) -> None:
    if any(low >= high for low, high in inside):
        target[...] = fill
        return
    for axis, (low, high) in enumerate(inside):
        across = np.moveaxis(target, axis, 0)
        across[:low] = fill
        across[high:] = fill
        target = np.moveaxis(across[low:high], 0, axis)
