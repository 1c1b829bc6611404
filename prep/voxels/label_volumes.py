"""Operations on label volumes: merge the masks of classes, find the box of the foreground."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Grid, OverlapRule, Triple, VolumeShape
from halofeed.prep.geometry.volume_plan import VolumePlan, plan_window, triple
from halofeed.system.errors import SourceError, UsageError
from halofeed.system.wording import plural

CT_FOREGROUND_HU: Final = -500.0
"""Between air (-1000) and fat (-100); the lungs inside the body do not change its box."""


@dataclass(frozen=True, kw_only=True)
class VoxelBox:
    """Box of voxels from `start` up to, but not including, `stop`, along depth, height and width."""

    start: VolumeShape
    stop: VolumeShape

    def __post_init__(self) -> None:
        if any(low >= high for low, high in zip(self.start, self.stop, strict=True)):
            raise UsageError(f"box: expected starts below stops, got {self.start} to {self.stop}")

    @property
    def shape(self) -> VolumeShape:
        """Voxels along each axis."""
        return triple([high - low for low, high in zip(self.start, self.stop, strict=True)])

    @property
    def center(self) -> Triple:
        """Voxel in the middle; .5 is between two voxels."""
        depth, height, width = ((low + high - 1) / 2 for low, high in zip(self.start, self.stop, strict=True))
        return depth, height, width


def foreground_box(array: NDArray[Any], threshold: float) -> VoxelBox | None:
    """Return the smallest box that holds every voxel above the threshold; None if there is none.

    Every voxel counts, whatever it belongs to, including a table under the patient.

    Args:
        array: [depth, height, width], or with channels, of which only the first is used.
        threshold: `CT_FOREGROUND_HU`, or `mean_intensity` an MR scan.
    """
    return _box_where(array[..., 0] if array.ndim == 4 else array, lambda plane: plane > threshold)


def label_box(mask: NDArray[Any]) -> VoxelBox | None:
    """Return the smallest box that holds every voxel of all classes except 0; None if there is none."""
    return _box_where(mask, lambda plane: plane != 0)


def _box_where(array: NDArray[Any], wanted: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> VoxelBox | None:
    # Iterate along the axis whose slices are contiguous in memory, and restore the order of axes at the end.
    order = sorted(range(3), key=lambda axis: -abs(array.strides[axis]))
    ordered = array.transpose(order)
    slices = np.zeros(ordered.shape[0], bool)
    rows, columns = (np.zeros(size, bool) for size in ordered.shape[1:])
    for number, plane in enumerate(ordered):
        found = wanted(plane)
        row_hits = found.any(axis=1)
        slices[number] = row_hits.any()
        # The columns of empty planes, most of a scan with a small organ, are not looked at.
        if slices[number]:
            rows |= row_hits
            columns |= found.any(axis=0)
    if not slices.any():
        return None
    places = [np.flatnonzero(line) for line in (slices, rows, columns)]
    ranges = [(int(place[0]), int(place[-1]) + 1) for place in places]
    low, high = ([ranges[order.index(axis)][end] for axis in range(3)] for end in (0, 1))
    return VoxelBox(start=triple(low), stop=triple(high))


def mean_intensity(array: NDArray[Any]) -> float:
    """Return the mean of all voxels: the threshold between the body and the background of an MR scan."""
    return sum(float(np.sum(plane, dtype=np.float64)) for plane in array) / array.size


def transform_box(plan: VolumePlan, box: VoxelBox | None) -> VoxelBox | None:
    """Return the target voxels that a box of source voxels overlaps; None without a box or if it is cropped away.

    So a box found in the stored array remains valid after reorientation and resampling.
    """
    if box is None:
        return None
    corners = np.indices((2, 2, 2)).reshape(3, 8).T
    edges = np.where(corners == 0, np.array(box.start) - 0.5, np.array(box.stop) - 0.5)
    inverse = np.linalg.inv(plan.to_source)
    moved = edges @ inverse[:3, :3].T + inverse[:3, 3] + 0.5
    low = np.maximum(np.floor(moved.min(axis=0) + 1e-6), 0).astype(int)
    high = np.minimum(np.ceil(moved.max(axis=0) - 1e-6), plan.target.shape).astype(int)
    # A crop before may have removed the box.
    if (low >= high).any():
        return None
    return VoxelBox(start=triple(low.tolist()), stop=triple(high.tolist()))


def plan_foreground_crop(grid: Grid, box: VoxelBox | None) -> VolumePlan:
    """Plan to crop to a box.

    Raises:
        SourceError: there is no box.
    """
    if box is None:
        raise SourceError("geometry", "no foreground found")
    return plan_window(grid, box.start, box.shape)


OVERLAP_HINT = "--class-overlap last or first decides, channels keeps both"
MAX_CLASS = 65535


def overlap_error(what: str, numbers: Iterable[int], voxels: int) -> SourceError:
    """Return the error for a mask with voxels in several segments or structures."""
    listed = ", ".join(map(str, sorted(numbers)))
    detail = (
        f"{plural(voxels, 'voxel is', 'voxels are')} in more than one of the {what} {listed}; {OVERLAP_HINT}"
    )
    return SourceError("annotation", f"{what} overlap", detail)


def classes_of_colors(
    values: NDArray[Any], numbers: Mapping[int, int], where: str = "--label-colors"
) -> NDArray[Any]:
    """Return the class number of each color.

    Args:
        values: colors [..., 3] of 8 bits.
        numbers: number of each color, as an integer RRGGBB.
        where: table or option that names the colors, for messages.

    Raises:
        SourceError: stage `annotation`: a color has no number.

    >>> classes_of_colors(np.array([[255, 0, 0], [0, 0, 0]], np.uint8), {0xFF0000: 3, 0: 0})
    array([3, 0], dtype=uint8)
    """
    red, green, blue = (values[..., band].astype(np.int32) for band in range(3))
    codes = red << 16 | green << 8 | blue
    present = np.unique(codes).tolist()
    if unknown := [f"{code:06x}" for code in present if code not in numbers]:
        listed = ", ".join(unknown[:10]) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
        detail = (
            f"{listed}; add {unknown[0]}=CLASS to --label-colors, {unknown[0]}=background, or ignore their pixels with "
            f"--ignore-label {','.join(unknown[:10])}"
            if where == "--label-colors"
            else f"{listed}: not in {where}; add them there"
        )
        raise SourceError("annotation", "label has colors without a class", detail)
    numbered = [numbers[code] for code in present]
    # -1 marks pixels without a class in some tables.
    dtype = np.int32 if min(numbered) < 0 else np.uint8 if max(numbers.values()) < 256 else np.uint16
    return np.asarray(np.array(numbered, dtype)[np.searchsorted(present, codes)])


def classes_of_segments(values: NDArray[Any], segments: Mapping[int, int]) -> NDArray[Any]:
    """Return the value of each pixel's class, 0 for pixels without a segment.

    Args:
        values: colors [..., 3] of 8 bits; a color is the segment R + 256 G + 65536 B.
        segments: class value of each segment.

    Raises:
        SourceError: stage `annotation`: the picture has a segment that is not listed, or lacks one that is.

    >>> classes_of_segments(np.array([[4, 0, 0], [0, 1, 0], [0, 0, 0]], np.uint8), {4: 2, 256: 1})
    array([2, 1, 0], dtype=uint8)
    >>> for segments in ({4: 2}, {4: 2, 256: 1, 9: 1}):
    ...     try:
    ...         classes_of_segments(np.array([[4, 0, 0], [0, 1, 0]], np.uint8), segments)
    ...     except SourceError as error:
    ...         print(error.reason, error.detail[:5])
    label image has segments that are not listed ids 2
    label image lacks segments that are listed ids 9
    """
    red, green, blue = (values[..., band].astype(np.int32) for band in range(3))
    codes = red | green << 8 | blue << 16
    present = np.unique(codes).tolist()
    for reason, ids in (
        (
            "label image has segments that are not listed",
            [one for one in present if one and one not in segments],
        ),
        ("label image lacks segments that are listed", sorted(segments.keys() - set(present))),
    ):
        if ids:
            listed = ", ".join(map(str, ids[:10])) + (f" and {len(ids) - 10} more" if len(ids) > 10 else "")
            detail = f"ids {listed}; the picture and segments_info must be those of one image"
            raise SourceError("annotation", reason, detail)
    table = np.array([segments.get(code, 0) for code in present])
    return np.asarray(table.astype(np.min_scalar_type(table.max()))[np.searchsorted(present, codes)])


def merge_class_masks(
    masks: Iterable[tuple[int, NDArray[Any]]], overlap: OverlapRule = "refuse", *, may_repeat: bool = False
) -> tuple[NDArray[Any], int]:
    """Merge masks of one class each. Only one mask is held at a time, so `masks` may read them lazily.

    Args:
        masks: (class value from 1 to 65535, bool or integer [depth, height, width] of 0 and one other value).
        overlap: value of a voxel in several masks: "refuse" raises, "last" and "first" select a mask, "channels"
            is the union (each value is a set of classes).
        may_repeat: whether several masks may have the same value; they are then joined.

    Returns:
        The labels, uint8 [depth, height, width], or uint16 if a class value is above 255; 0 is the background. And
        the number of times that a later mask claimed a voxel of another class.

    Raises:
        SourceError: stage `annotation`: masks overlap, have different shapes, or hold several values.

    >>> merge_class_masks([(1, np.array([[[1, 1, 0]]])), (2, np.array([[[0, 9, 9]]]))], "last")
    (array([[[1, 2, 2]]], dtype=uint8), 1)
    """
    if overlap not in ("refuse", "last", "first", "channels"):
        raise UsageError(f"overlap={overlap!r}: expected 'refuse', 'last', 'first' or 'channels'")
    labels: NDArray[Any] | None = None
    seen: set[int] = set()
    overlapped = 0
    for value, mask in masks:
        if not 1 <= value <= MAX_CLASS or (value in seen and not may_repeat):
            raise UsageError(f"class value {value}: expected each value from 1 to {MAX_CLASS} at most once")
        seen.add(value)
        inside = _inside(mask, value)
        del mask  # else it stays in memory while the next one is read
        if labels is None:
            labels = np.zeros(inside.shape, np.uint8)
        if inside.shape != labels.shape:
            detail = f"class {value}: expected {_sides(labels.shape)} voxels, got {_sides(inside.shape)}"
            raise SourceError("annotation", "masks of one scan differ in shape", detail)
        # Most data sets have fewer than 256 classes, whose labels take a byte each.
        if value > 255 and labels.dtype == np.uint8:
            labels = labels.astype(np.uint16)
        overlapped += _draw_class(labels, inside, value, overlap)
        del inside
    if labels is None:
        raise UsageError("masks: expected at least one, got none")
    return labels, overlapped


def _draw_class(labels: NDArray[Any], inside: NDArray[np.bool_], value: int, overlap: OverlapRule) -> int:
    """Draw a class into labels; return the number of its voxels that another class has, 0 for sets of classes."""
    if overlap == "channels":
        np.bitwise_or(labels, labels.dtype.type(value), out=labels, where=inside)
        return 0
    earlier = labels[inside]
    claimed = earlier[(earlier != 0) & (earlier != value)]
    if claimed.size and overlap == "refuse":
        others = ", ".join(map(str, np.unique(claimed).tolist()))
        detail = f"{plural(claimed.size, 'voxel')} of class {value} are in class {others} too; {OVERLAP_HINT}"
        raise SourceError("annotation", "masks of one scan overlap", detail)
    if overlap == "first":
        inside = inside & (labels == 0)
    labels[inside] = value
    return int(claimed.size)


def merge_labels(labels: NDArray[Any], more: NDArray[Any], overlap: OverlapRule) -> tuple[NDArray[Any], int]:
    """Merge two label volumes on one grid, and count the voxels with different classes.

    Args:
        labels: first label volume [depth, height, width].
        more: second label volume.
        overlap: value of those voxels: "refuse" raises, "last" is the class of the second volume, "first" that of the
            first, "channels" both (the labels are sets of classes).

    Raises:
        SourceError: stage `annotation`: there are such voxels, and `overlap` is "refuse".

    >>> merge_labels(np.array([[[1, 1, 0]]]), np.array([[[0, 2, 2]]]), "first")
    (array([[[1, 1, 2]]]), 1)
    """
    if labels.shape != more.shape:
        detail = f"{_sides(labels.shape)} and {_sides(more.shape)} voxels"
        raise SourceError("annotation", "masks of one scan differ in shape", detail)
    # The union of sets holds both classes, so that nothing is lost.
    if overlap == "channels":
        return labels | more, 0
    differ = (labels != 0) & (more != 0) & (labels != more)
    voxels = int(np.count_nonzero(differ))
    if voxels and overlap == "refuse":
        pairs = sorted({*zip(labels[differ].tolist(), more[differ].tolist(), strict=True)})
        listed = ", ".join(f"{first} and {second}" for first, second in pairs[:5])
        detail = f"{plural(voxels, 'voxel is', 'voxels are')} of classes {listed}; {OVERLAP_HINT}"
        raise SourceError("annotation", "masks of one scan overlap", detail)
    taken = (more != 0) if overlap == "last" else (more != 0) & (labels == 0)
    return np.where(taken, more, labels), voxels


def _inside(mask: NDArray[Any], value: int) -> NDArray[np.bool_]:
    if mask.ndim != 3 or mask.dtype.kind not in "bui":
        raise UsageError(
            f"mask of class {value}: expected bool or integer [d, h, w], got {mask.dtype} {mask.shape}"
        )
    # One value, such as 1 or 255, is inside; several values would be several classes with unknown names.
    if mask.dtype == np.bool_ or not mask.size:
        return mask.astype(np.bool_, copy=False)
    lowest, highest = int(mask.min()), int(mask.max())
    inside: NDArray[np.bool_] = mask != 0
    if lowest < 0 or np.count_nonzero(inside) != (np.count_nonzero(mask == highest) if highest else 0):
        detail = f"class {value}: expected 0 and one other, got values from {lowest} to {highest}"
        raise SourceError("annotation", "mask of one class holds several values", detail)
    return inside


def _sides(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
