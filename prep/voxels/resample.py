"""Application of plans to arrays: views, resampling and borders, with each voxel of the result written once.

Resampling reads each source slice once. Besides source and result, it holds a few float slices. If the source is
stored in another order of axes, blocks of 16 slices are copied at a time. Two resampling steps also hold the volume
between them. A source in another order of axes that is sampled through a sheared affine is copied first.

All arithmetic is multiplication and addition in a fixed order, so every processor gives the same voxels.

Copies between orders of axes use OpenCV. NumPy copies transposed and reversed axes voxel by voxel: 345 MB/s for a
volume stored by sagittal slices, against 12,900 MB/s in order. OpenCV transposes planes in blocks: 2,100 MB/s, and
5,300 to 13,700 MB/s for reversed axes (int16 [100, 512, 512], one core).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.taps import Taps, axis_taps, nearest_indices, positions, snap
from halofeed.prep.geometry.volume_plan import AxisView, Matrix, Ranges, Resample, VolumePlan, full_ranges
from halofeed.system.errors import UsageError

BLOCK_SLICES: Final = 16
SLAB_BYTES: Final = 1 << 23
"""Bytes of float32 weights that one-hot sampling holds at a time; a single slice may be larger."""
_TIE: Final = 1e-6
"""Weights of two classes count as equal if they differ by less, because of float32."""


def reached(step: Resample, source: Sequence[int]) -> Ranges:
    """Return, per axis, the target voxels within half a voxel of a separable step's source; the others are filled."""
    ranges = []
    for axis in range(3):
        coordinates = _axis_positions(step, axis)
        inside = np.flatnonzero((coordinates >= -0.5) & (coordinates <= source[axis] - 0.5))
        ranges.append((int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0))
    return tuple(ranges)


def _axis_positions(step: Resample, axis: int) -> NDArray[np.float64]:
    return positions(step.matrix[axis, axis], step.matrix[axis, 3], step.shape[axis])


def _image_taps(step: Resample, source: Sequence[int], ranges: Ranges) -> list[Taps]:
    taps = []
    for axis, (size, kernel, part) in enumerate(zip(source, step.image_kernels, ranges, strict=True)):
        widen = step.matrix[axis, axis] if step.antialias else 1.0
        taps.append(axis_taps(_axis_positions(step, axis), size, kernel, widen).cut(*part))
    return taps


def _nearest_voxels(step: Resample, source: Sequence[int], ranges: Ranges) -> list[NDArray[np.int64]]:
    return [
        nearest_indices(_axis_positions(step, axis), size)[start:stop]
        for axis, (size, (start, stop)) in enumerate(zip(source, ranges, strict=True))
    ]


def sample_image(source: NDArray[Any], step: Resample, ranges: Ranges, out: NDArray[Any]) -> None:
    """Write the target voxels within `ranges` of a separable step to `out`, rounded half to even.

    Args:
        source: [depth, height, width], any strides.
        step: separable step.
        ranges: target voxels, within `reached`.
        out: array with the shape of the ranges and the dtype of the source, any strides.
    """
    _weighted_sums(source, _image_taps(step, source.shape, ranges), out)


def sample_mask(source: NDArray[Any], step: Resample, ranges: Ranges, out: NDArray[Any]) -> None:
    """Write class values like `sample_image`; every result is a value of the source."""
    if step.mask_kernel == "onehot-linear":
        _sample_onehot(source, step, ranges, out)
    else:
        _copy_nearest(source, _nearest_voxels(step, source.shape, ranges), out)


def work_dtype(dtype: np.dtype[Any]) -> Any:
    """Return the float type for sums of values of a dtype."""
    small = dtype.itemsize <= 2 or dtype == np.float32
    return np.float32 if small else np.float64


def iterate_slices(source: NDArray[Any], used: Sequence[int]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield slices by ascending number; copy blocks of them if the voxels of a slice are far apart in memory."""
    strides = [abs(stride) for stride in source.strides]
    # Slices that are contiguous in memory are read one by one.
    if strides[0] >= strides[1] >= strides[2]:
        yield from ((number, source[number]) for number in used)
        return
    start, block = 0, source[:0]
    for number in used:
        if number >= start + len(block):
            start, part = number, source[number : number + BLOCK_SLICES]
            block = np.empty(part.shape, part.dtype)
            copy_voxels(part, block)
        yield number, block[number - start]


# Weighted sums along each axis
#
# A target slice is a sum of source slices, and each of them is resampled in its plane, before or after the sum:
# whichever is less often. A source slice is read once, and a sum is stored as soon as its last slice was added, so that
# a few planes are in memory. The loop stays whole, because its branches share the state of these sums.


def _weighted_sums(source: NDArray[Any], taps: Sequence[Taps], out: NDArray[Any]) -> None:
    """Sum weighted source slices into each target slice; add each source slice as soon as it is read."""
    depth, height, width = taps
    parts = _contributions(depth)
    last = {target: number for number, targets in parts.items() for target in targets}
    terms = Counter(target for targets in parts.values() for target in targets)
    top, bottom = int(height.index.min()), int(height.index.max()) + 1
    left, right = int(width.index.min()), int(width.index.max()) + 1
    rows, columns = height.moved(top), width.moved(left)
    same_rows, same_columns = rows.is_identity, columns.is_identity
    work = work_dtype(source.dtype)

    def in_plane(values: NDArray[Any]) -> NDArray[Any]:
        if not same_rows:
            values = _sum_rows(values, rows)
        if not same_columns:
            values = cv2.transpose(_sum_rows(cv2.transpose(values), columns))
        return np.asarray(values).reshape(len(rows.index), len(columns.index))

    plane_first = len(parts) < len(depth.index)
    sums: dict[int, NDArray[Any]] = {}
    for number, voxels in iterate_slices(source, sorted(parts)):
        values = np.ascontiguousarray(voxels[top:bottom, left:right], dtype=work)
        # With fewer source slices than target slices, resampling the former is less work.
        if plane_first:
            values = in_plane(values)
        for target, weight in parts[number].items():
            if target not in sums:
                sums[target] = values if terms[target] == 1 and weight == 1 else values * work(weight)
            else:
                sums[target] += values * work(weight)
            if last[target] == number:
                done = sums.pop(target)
                store_rounded(done if plane_first else in_plane(done), out[target])


def _contributions(depth: Taps) -> dict[int, dict[int, float]]:
    """Return {source slice: {target slice: weight}}."""
    parts: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for target, taps in enumerate(zip(depth.index.tolist(), depth.weight.tolist(), strict=True)):
        for index, weight in zip(*taps, strict=True):
            if weight:
                parts[index][target] += weight
    return dict(sorted(parts.items()))


def _sum_rows(values: NDArray[Any], taps: Taps) -> NDArray[Any]:
    weights = taps.weight.astype(values.dtype)
    total = values.take(taps.index[:, 0], axis=0)
    if taps.index.shape[1] == 1:
        return total
    total *= weights[:, :1]
    part = np.empty_like(total)
    for tap in range(1, taps.index.shape[1]):
        values.take(taps.index[:, tap], axis=0, out=part, mode="clip")
        part *= weights[:, tap : tap + 1]
        total += part
    return total


def store_rounded(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Write sums to `out`; round integers half to even and clip them to the dtype."""
    # Cubic kernels overshoot, so that sums may be beyond the dtype.
    if out.dtype.kind in "iu" and values.dtype.kind == "f":
        limits = np.iinfo(out.dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    np.copyto(out, values, casting="unsafe")


# Masks


def _copy_nearest(source: NDArray[Any], voxels: Sequence[NDArray[np.int64]], out: NDArray[Any]) -> None:
    depth, height, width = voxels
    targets = np.split(np.arange(len(depth)), np.flatnonzero(np.diff(depth)) + 1)
    for (_, plane), same in zip(iterate_slices(source, np.unique(depth).tolist()), targets, strict=True):
        out[same[0]] = plane.take(height, axis=0).take(width, axis=1)
        for target in same[1:]:
            out[target] = out[same[0]]


def _sample_onehot(source: NDArray[Any], step: Resample, ranges: Ranges, out: NDArray[Any]) -> None:
    """Write the class with the largest weight; among equal weights, prefer the class of the nearest voxel."""
    taps = _image_taps(step, source.shape, ranges)
    closest_voxels = _nearest_voxels(step, source.shape, ranges)
    slices = max(1, SLAB_BYTES // (4 * out.shape[1] * out.shape[2]))
    for start in range(0, len(out), slices):
        stop = min(start + slices, len(out))
        depth, slab = taps[0].cut(start, stop), out[start:stop]
        low, high = int(depth.index.min()), int(depth.index.max()) + 1
        part, depth = source[low:high], depth.moved(low)
        _copy_nearest(source, [closest_voxels[0][start:stop], *closest_voxels[1:]], slab)
        classes = np.unique(part)
        # The nearest voxels, which were copied, are right in slabs of one class.
        if len(classes) == 1:
            continue
        closest = slab.copy()
        best = np.zeros(slab.shape, np.float32)
        weight = np.empty(slab.shape, np.float32)
        for value in classes:
            _weighted_sums((part == value).view(np.uint8), [depth, *taps[1:]], weight)
            wins = (weight > best + _TIE) | ((weight >= best - _TIE) & (closest == value))
            slab[wins] = value
            best[wins] = weight[wins]


# Affine sampling


def sample_affine(
    source: NDArray[Any], matrix: Matrix, out: NDArray[Any], fill: float, interpolate: bool
) -> None:
    """Write to each voxel of `out` the value at source position matrix @ (depth, height, width, 1).

    Args:
        source: [depth, height, width], any strides.
        matrix: map from target voxel to source voxel.
        out: target array.
        fill: value of voxels more than half a voxel outside the source.
        interpolate: whether to interpolate linearly; else the nearest voxel is used.
    """
    # `take` needs flat memory.
    if not source.flags.c_contiguous:
        ordered = np.empty(source.shape, source.dtype)
        copy_voxels(source, ordered)
        source = ordered
    flat, sizes = source.reshape(-1), np.array(source.shape)
    height, width = (np.arange(size, dtype=np.float64) for size in out.shape[1:])
    work = work_dtype(source.dtype)
    for depth in range(len(out)):
        coordinates = [
            snap(row[0] * depth + row[3] + row[1] * height[:, None] + row[2] * width) for row in matrix[:3]
        ]
        inside = np.ones(out.shape[1:], bool)
        for at, size in zip(coordinates, sizes, strict=True):
            inside &= (at >= -0.5) & (at <= size - 0.5)
        points = [at[inside] for at in coordinates]
        out[depth] = fill
        if len(points[0]):
            values = _linear(flat, points, sizes, work) if interpolate else _nearest(flat, points, sizes)
            found = np.empty(len(points[0]), out.dtype)
            store_rounded(values, found)
            out[depth][inside] = found


def _nearest(flat: NDArray[Any], points: Sequence[NDArray[Any]], sizes: NDArray[Any]) -> NDArray[Any]:
    depth, height, width = (
        np.clip(np.floor(at + 0.5), 0, size - 1).astype(np.int64)
        for at, size in zip(points, sizes, strict=True)
    )
    return np.asarray(flat.take((depth * sizes[1] + height) * sizes[2] + width))


def _linear(
    flat: NDArray[Any], points: Sequence[NDArray[Any]], sizes: NDArray[Any], work: Any
) -> NDArray[Any]:
    # Per axis: flat offset and weight of the lower voxel, and of the upper voxel if any point needs it.
    axes = []
    strides = (int(sizes[1] * sizes[2]), int(sizes[2]), 1)
    for at, size, stride in zip(points, sizes, strides, strict=True):
        at = np.clip(at, 0, size - 1)
        lower = np.floor(at)
        share = (at - lower).astype(work)
        taps = [(lower.astype(np.int64) * stride, 1 - share)]
        # Points on the planes of voxels, as in a shift by whole voxels along one axis, need no second voxel.
        if share.any():
            taps.append((np.minimum(lower.astype(np.int64) + 1, size - 1) * stride, share))
        axes.append(taps)
    total = np.zeros(len(points[0]), work)
    for first, first_weight in axes[0]:
        for second, second_weight in axes[1]:
            weight, offset = first_weight * second_weight, first + second
            for third, third_weight in axes[2]:
                total += flat.take(offset + third) * (weight * third_weight)
    return total


def apply_image(
    plan: VolumePlan, array: NDArray[Any], fill: float | Sequence[float], spare: bool = False
) -> NDArray[Any]:
    """Bring an image to the target grid of a plan.

    Args:
        plan: steps from the source grid to the target grid.
        array: [depth, height, width] or [depth, height, width, channel] on the source grid; any strides.
        fill: value of the padding, in the unit of the array: -1024 is air in HU; or the value of each channel.
        spare: whether the caller no longer needs the array, so that the result may use its memory.

    Returns:
        C-contiguous array of the same dtype; integers are rounded half to even. `array` itself if nothing changes.
    """
    return _apply(plan, array, fill, interpolate=True, spare=spare)


def apply_mask(plan: VolumePlan, mask: NDArray[Any], spare: bool = False, fill: int = 0) -> NDArray[Any]:
    """Bring class values [depth, height, width] to the target grid of a plan; padding is `fill`."""
    if mask.ndim != 3 or mask.dtype.kind not in "iu":
        raise UsageError(f"mask: expected integers [depth, height, width], got {mask.dtype} {mask.shape}")
    return _apply(plan, mask, fill, interpolate=False, spare=spare)


def apply_sets(plan: VolumePlan, sets: NDArray[Any], classes: int, spare: bool = False) -> NDArray[Any]:
    """Bring sets of classes to the target grid of a plan; each class is sampled as a separate mask."""
    # Views move sets as they are; a kernel would mix the bits of several classes.
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


def view_of(plan: VolumePlan, array: NDArray[Any]) -> NDArray[Any]:
    """Return the voxels in the order and crop of a plan of views, without a copy.

    Raises:
        UsageError: the plan pads or resamples.
    """
    _check_array(plan, array)
    for step in plan.steps:
        if isinstance(step, Resample) or step.pads:
            raise UsageError("view_of: padding and resampling need a copy; use apply_image or apply_mask")
        array = _apply_view(step, array)
    return array


def _check_array(plan: VolumePlan, array: NDArray[Any]) -> None:
    if array.shape[:3] != plan.source.shape or array.ndim not in (3, 4):
        raise UsageError(f"array: expected {plan.source.shape}, or that and channels, got {array.shape}")


def _apply(
    plan: VolumePlan,
    array: NDArray[Any],
    fill: float | Sequence[float],
    *,
    interpolate: bool,
    spare: bool,
) -> NDArray[Any]:
    _check_array(plan, array)
    fills = [fill] * math.prod(array.shape[3:]) if isinstance(fill, int | float) else [*fill]
    if array.dtype.kind not in "iuf" or array.dtype == np.float16:
        raise UsageError(f"array: expected integers, float32 or float64, got {array.dtype}")
    # A fraction or NaN would be stored as another number without an error.
    for one in fills if array.dtype.kind != "f" else ():
        if not np.isfinite(one) or int(np.array(one).astype(array.dtype)) != one:
            raise UsageError(f"fill: {one} is no value of {array.dtype}")
    # The steps are for one channel; several are computed one after the other.
    if array.ndim == 3:
        return _apply_steps(plan, array, fills[0], interpolate, spare)
    if array.shape[3] == 1:
        return _apply_steps(plan, array[..., 0], fills[0], interpolate, spare)[..., None]
    if not plan.steps:
        return np.ascontiguousarray(array)
    result = np.empty((*plan.target.shape, array.shape[3]), array.dtype)
    for channel, one in enumerate(fills):
        result[..., channel] = _apply_steps(plan, array[..., channel], one, interpolate, False)
    return result


def _apply_steps(
    plan: VolumePlan, array: NDArray[Any], fill: float, interpolate: bool, spare: bool
) -> NDArray[Any]:
    """Apply the steps to one channel. A view after a resampling step is merged into its output."""
    steps = list(plan.steps)
    while steps:
        step = steps.pop(0)
        after = steps[0] if steps else None
        # Without padding, a view is new strides over the same voxels.
        if isinstance(step, AxisView) and not step.pads:
            array = _apply_view(step, array)
            continue
        if isinstance(step, AxisView):
            written = step
        elif isinstance(after, AxisView):  # voxels that it crops away are not sampled
            written = after
            del steps[0]
        else:
            written = AxisView(shape=step.shape, first=(0, 0, 0), inside=full_ranges(step.shape))
        result = np.empty(written.shape, array.dtype)
        unpadded, ranges = _unpadded_part(written, result)
        if isinstance(step, AxisView):
            copy_voxels(array[_slices(ranges)], unpadded)
        else:
            _sample(array, step, ranges, unpadded, fill, interpolate)
        _fill_borders(result, written.inside, fill)
        array = result
    return make_contiguous(array, spare)


def _sample(
    array: NDArray[Any],
    step: Resample,
    ranges: Ranges,
    unpadded: NDArray[Any],
    fill: float,
    interpolate: bool,
) -> None:
    if not unpadded.size:
        return
    # An oblique grid mixes the axes: there are no weights per axis.
    if not step.separable:
        matrix = step.matrix.copy()
        matrix[:3, 3] += matrix[:3, :3] @ [start for start, _ in ranges]
        sample_affine(array, matrix, unpadded, fill, interpolate)
        return
    found = tuple(
        (max(low, start), min(high, stop))
        for (low, high), (start, stop) in zip(reached(step, array.shape), ranges, strict=True)
    )
    inner = tuple((low - start, high - start) for (low, high), (start, _) in zip(found, ranges, strict=True))
    # The range is beyond the source.
    if any(low >= high for low, high in found):
        unpadded[...] = fill
        return
    sample = sample_image if interpolate else sample_mask
    sample(array, step, found, unpadded[_slices(inner)])
    _fill_borders(unpadded, inner, fill)


def _slices(ranges: Ranges) -> tuple[slice, ...]:
    return tuple(slice(*ends) for ends in ranges)


def _apply_view(view: AxisView, array: NDArray[Any]) -> NDArray[Any]:
    """Return the target of a view without padding, as strides over its source."""
    ordered = array.transpose(*view.order, *range(3, array.ndim))
    cuts = []
    for first, direction, size in zip(view.first, view.direction, view.shape, strict=True):
        end = first + direction * size
        cuts.append(slice(first, end if end >= 0 else None, direction))
    return ordered[tuple(cuts)]


def _unpadded_part(view: AxisView, target: NDArray[Any]) -> tuple[NDArray[Any], Ranges]:
    """Return the part of a view's target that is not padding, in the source's order of axes, and its source range."""
    part = target[_slices(view.inside)]
    ranges: list[tuple[int, int]] = [(0, 0)] * 3
    for axis in range(3):
        low, high = view.inside[axis]
        ends = [view.first[axis] + view.direction[axis] * end for end in (low, high - 1)]
        ranges[view.order[axis]] = (min(ends), max(ends) + 1) if low < high else (0, 0)
    ordered = part[tuple(slice(None, None, direction) for direction in view.direction)]
    return ordered.transpose(*np.argsort(view.order)), tuple(ranges)


def _fill_borders(target: NDArray[Any], inside: Ranges, fill: float) -> None:
    if any(low >= high for low, high in inside):
        target[...] = fill
        return
    for axis, (low, high) in enumerate(inside):
        across = np.moveaxis(target, axis, 0)
        across[:low] = fill
        across[high:] = fill
        target = np.moveaxis(across[low:high], 0, axis)


_SAME_SIZE: Final = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.float64}
"""Types that OpenCV copies bit for bit, by size in bytes."""
_FLIPS: Final[Mapping[tuple[int, ...], Any]] = {(): None, (0,): 0, (1,): 1, (0, 1): -1}
"""OpenCV's flip codes, by the reversed axes of a plane."""
_SMALLEST_SIDE: Final = 16
"""NumPy copies smaller planes, because the call of OpenCV costs more than the copy."""


def make_contiguous(array: NDArray[Any], spare: bool = False) -> NDArray[Any]:
    """Return the array [depth, height, width] as C-contiguous; the array itself if it is.

    Args:
        array: [depth, height, width].
        spare: whether the caller no longer needs the array. If only some axes are reversed, the voxels are then
            swapped in place, which saves a second volume.
    """
    if array.flags.c_contiguous:
        return array
    if spare and (ordered := _flip_in_place(array)) is not None:
        return ordered
    result = np.empty(array.shape, array.dtype)
    copy_voxels(array, result)
    return result


def _flip_in_place(array: NDArray[Any]) -> NDArray[Any] | None:
    axes = tuple(axis for axis in range(3) if array.strides[axis] < 0)
    memory = np.flip(array, axes)
    # Other arrays have exchanged axes, or a dtype that OpenCV does not copy.
    if not (memory.flags.c_contiguous and memory.flags.writeable and memory.itemsize in _SAME_SIZE):
        return None
    # ravel and reshape, because OpenCV rejects an axis of one element with an unusual stride.
    planes = memory.ravel().view(_SAME_SIZE[memory.itemsize]).reshape(memory.shape)
    code = _FLIPS[tuple(axis - 1 for axis in axes if axis)]
    scratch = np.empty_like(planes[0])

    def flip(source: NDArray[Any], target: NDArray[Any]) -> None:
        if code is None:
            np.copyto(target, source)
        else:
            cv2.flip(source, code, dst=target)

    count = len(planes)
    for low in range((count + 1) // 2 if 0 in axes else count):
        high = count - 1 - low if 0 in axes else low
        flip(planes[high], scratch)
        if high != low:
            flip(planes[low], planes[high])
        np.copyto(planes[low], scratch)
    return memory


def copy_voxels(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy source [depth, height, width] to target of the same shape and dtype; both with any strides.

    >>> source = np.arange(8).reshape(2, 2, 2)
    >>> target = np.zeros_like(source)
    >>> copy_voxels(source[:, ::-1], target)
    >>> target.ravel().tolist()
    [2, 3, 0, 1, 6, 7, 4, 5]
    """
    if not target.size:
        return
    # Reverse the source instead of the target, and sort the axes in the order of the target's memory.
    reversed_axes = tuple(axis for axis in range(3) if target.strides[axis] < 0)
    source, target = np.flip(source, reversed_axes), np.flip(target, reversed_axes)
    order = sorted(range(3), key=lambda axis: -target.strides[axis])
    source, target = source.transpose(order), target.transpose(order)
    inner = _innermost_axis(source)
    if inner is None or not _gains_by_planes(source, target, inner):
        np.copyto(target, source)
        return
    # OpenCV turns planes in blocks that fit the cache; NumPy would read a voxel of each line at a time.
    same_size = _SAME_SIZE[source.itemsize]
    source, target = source.view(same_size), target.view(same_size)
    for index in range(source.shape[0 if inner else 1]):
        if inner:
            _copy_plane(source[index], target[index], transposed=inner == 1)
        else:
            _copy_plane(source[:, index], target[:, index], transposed=True)


def _innermost_axis(source: NDArray[Any]) -> int | None:
    """Return the only axis whose voxels are neighbors in memory; None if there is none, or several."""
    near = (abs(stride) == source.itemsize for stride in source.strides)
    inner = [axis for axis, is_near in enumerate(near) if is_near and source.shape[axis] > 1]
    return inner[0] if len(inner) == 1 else None


def _gains_by_planes(source: NDArray[Any], target: NDArray[Any], inner: int) -> bool:
    """Return whether OpenCV copies planes faster than NumPy copies the volume, and can do so bit for bit."""
    # Rows that are neighbors in both are copied by NumPy as fast as memory allows.
    if inner == 2 and source.strides[2] > 0:
        return False
    item = source.itemsize
    return item in _SAME_SIZE and source.dtype == target.dtype and target.strides[2] == item


def _copy_plane(source: NDArray[Any], target: NDArray[Any], transposed: bool) -> None:
    """Copy a plane whose rows (or columns if transposed) are contiguous, forwards or backwards."""
    reversed_axes = tuple(axis for axis in range(2) if source.strides[axis] < 0)
    forward = np.flip(source, reversed_axes)
    if transposed:
        forward = forward.T
    rows = forward.strides[0] >= forward.shape[1] * forward.itemsize
    # OpenCV takes rows that follow each other in memory, with or without gaps, and no overlapping ones.
    if (
        not rows
        or min(source.shape) < _SMALLEST_SIDE
        or target.strides[0] < target.shape[1] * target.itemsize
    ):
        np.copyto(target, source)
        return
    if transposed and not reversed_axes:
        cv2.transpose(forward, dst=target)
        return
    if transposed:
        forward = cv2.transpose(forward)
    if reversed_axes:
        cv2.flip(forward, _FLIPS[reversed_axes], dst=target)
    else:
        np.copyto(target, forward)
