"""Measurement of what a conversion does to the information of one source, for the ledger of losses.

Each function adds to a `LedgerCounter`, under names that `halofeed.prep.convert.loss_findings` reads. They use
histograms that exist, samples, and sizes rather than pixels. They take 1.6 % of a conversion's processor time for 53
photographs with boxes and 0.9 % for a CT of 26 slices; tiny scans (about 36 x 50 x 35 voxels) take more, by one profile
5 %.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import ReadOptions, levels_of
from halofeed.prep.sources.example import Box
from halofeed.prep.voxels.counts import ValueCounts
from halofeed.prep.voxels.intensity import (
    LEAST_INSIDE,
    IntensityPlan,
    as_numbers,
    sampling,
    share_inside,
    units_problem,
)
from halofeed.prep.voxels.levels import Levels, measure_levels
from halofeed.schemas.ledger import LedgerCounter, bin_size

FLAGS: Final = {"is_crowd": "crowd_objects", "difficult": "difficult_objects", "group_of": "group_objects"}
"""Flags that keep an object out of training, here or in other programs, and the names of their counts."""
LEAST_SIDE: Final = 2
"""Stored pixels of an object's shorter side below which it shows nothing."""
FEW_VOXELS: Final = 8
"""Labeled voxels of a scan below which their values say nothing about a window."""
_SATURATED: Final = 0.99
"""Share of labeled voxels at one end of a window; the others are the blurred edge of the structure."""
_ALIKE: Final = 16
"""Largest ratio of the sizes of objects of one label that may be of one class."""
_MAX_LEVELS: Final = 16
"""Levels that a window keeps above which it loses no contrast; HU in the widest preset have 255, SUV in a window in HU
have 10."""
_BOX_PIXELS, _LABEL_PIXELS, _MAX_CLASSES = 1024, 1 << 16, 64
"""Pixels of a box and of a label image that are sampled, and classes of it that are measured."""
_ROUNDING: Final = 1e-3
"""Pixels by which float32 coordinates are off."""
_ONE_PIXEL: Final = 1.0
_MANY: Final = 32
"""Values of a label above which they number objects even if some numbers are missing, as after objects at the edge were
deleted, or if all objects touch, as cells of a tissue do. Jaws have 32 teeth, which touch."""
_COUNTED_UP: Final = 0.9
_MAX_LINKED_VALUES: Final = 32
_MAX_LINKED: Final = {2: 1 << 14, 3: 1 << 14}
"""Pixels and voxels of a label, by its axes, above which connected regions are found in a sample."""


def source_name(source: str) -> str:
    """Return a source's name as text that every file can hold."""
    return source.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def add_levels(ledger: LedgerCounter, levels: Levels, source: str) -> None:
    """Add the levels of an image whose values were stored with fewer bits or in a window."""
    ledger.count("level_records")
    ledger.bin("levels_before", bin_size(levels.before))
    ledger.bin("levels_after", bin_size(levels.after))
    ledger.extend("values_before", levels.low, levels.high)
    if levels.is_lost:
        ledger.count("contrast_lost_records", 1, f"{source_name(source)}: {levels.text()}")


def is_flat(pixels: NDArray[Any]) -> bool:
    """Return whether each channel of [..., channel] has one value; most images are decided by a few pixels.

    >>> is_flat(np.full((4, 4, 1), 7)), is_flat(np.arange(16).reshape(4, 4, 1))
    (True, False)
    """
    flat = pixels.reshape(-1, pixels.shape[-1]) if pixels.flags.c_contiguous else pixels
    sample = flat[:: max(1, len(flat) // 64)]
    if (sample != sample[:1]).any():
        return False
    return bool((pixels == pixels.reshape(-1, pixels.shape[-1])[0]).all())


def add_picture(
    ledger: LedgerCounter, stored: NDArray[Any], source: NDArray[Any], levels: Levels | None, name: str
) -> None:
    """Add whether a stored picture [height, width, channel] has one value, and whether its source had several."""
    if not is_flat(stored):
        return
    ledger.count("one_value_records", 1, source_name(name))
    # A source of one value, such as an empty scan, lost nothing.
    if (levels is not None and levels.before > 1) or not is_flat(source):
        text = levels.text() if levels is not None else "several values become 1"
        ledger.count("flattened_records", 1, f"{source_name(name)}: {text}")


def add_object_levels(
    ledger: LedgerCounter,
    pixels: NDArray[Any],
    corners: NDArray[np.float64],
    names: Sequence[str],
    options: ReadOptions,
    source: str,
) -> None:
    """Add the objects within whose boxes 16-bit values differ and 8 bits lose their contrast.

    Args:
        pixels: 16-bit samples [height, width, channel] as displayed.
        corners: [object, 4] in displayed pixels: ymin, xmin, ymax, xmax.
        names: class of each object.
        options: conversion of the samples.
    """
    limits = np.array(pixels.shape[:2] * 2)
    inner = np.clip(np.concatenate([np.floor(corners[:, :2]), np.ceil(corners[:, 2:])], axis=1), 0, limits)
    for (top, left, bottom, right), name in zip(inner.astype(int).tolist(), names, strict=True):
        part = pixels[top:bottom, left:right]
        step = max(1, math.isqrt(part.shape[0] * part.shape[1] // _BOX_PIXELS))
        _add_part_levels(ledger, part[::step, ::step], options, f"a box of {name!r}", source)


def add_label_levels(
    ledger: LedgerCounter, pixels: NDArray[Any], label: NDArray[Any], options: ReadOptions, source: str
) -> None:
    """Add the labeled regions within which 16-bit values differ and 8 bits lose their contrast, by class.

    Args:
        pixels: 16-bit samples [height, width, channel].
        label: class indices [height, width] on the same grid.
        options: conversion of the samples.
    """
    values, step = label.reshape(-1), max(1, label.size // _LABEL_PIXELS) | 1
    samples, values = pixels.reshape(label.size, -1)[::step], values[::step]
    for value in np.unique(values[values > 0])[:_MAX_CLASSES].tolist():
        _add_part_levels(ledger, samples[values == value][None], options, f"class {value}", source)


def _add_part_levels(
    ledger: LedgerCounter, part: NDArray[Any], options: ReadOptions, name: str, source: str
) -> None:
    levels = levels_of(part, options) if part.size else None
    # A box beyond the picture shows no sample.
    if levels is None:
        return
    ledger.count("level_objects")
    lost = "flattened_objects" if levels.is_flat else "contrast_lost_objects" if levels.is_lost else ""
    if lost:
        ledger.count(lost, 1, f"{source_name(source)}: {levels.text()} in {name}")


def add_objects(
    ledger: LedgerCounter,
    boxes: Sequence[Box],
    stored: NDArray[np.float64],
    scale: tuple[float, float],
    name: str,
) -> None:
    """Add the sizes and the flags of the stored objects of a picture.

    Args:
        boxes: these objects, for their flags.
        stored: [object, 4], their boxes in stored pixels: ymin, xmin, ymax, xmax.
        scale: stored pixels of a displayed pixel along (height, width). The size before is that of the visible part,
            because larger records do not show more of an object at the edge.
    """
    if not boxes:
        return
    tiny, small = _add_sides(ledger, stored, scale)
    first_tiny, first_small = (_shrunk(name, *one[0]) if one else "" for one in (tiny, small))
    for box in boxes:
        if box.is_crowd or box.difficult or box.group_of:
            for flag, counted in FLAGS.items():
                ledger.count(counted, getattr(box, flag), source_name(name))
    ledger.count("objects", len(boxes))
    ledger.count("object_records")
    ledger.count("tiny_objects", len(tiny), first_tiny)
    ledger.count("small_objects", len(small), first_small)
    ledger.count("tiny_object_records", len(tiny) == len(boxes), first_tiny)
    ledger.count("crowd_only_records", all(box.is_crowd for box in boxes), source_name(name))


def _add_sides(
    ledger: LedgerCounter, stored: NDArray[np.float64], scale: tuple[float, float]
) -> tuple[list[Sizes], list[Sizes]]:
    """Add the shorter side of each object; return the sizes of those that became tiny, and of those that shrank."""
    tiny, small = [], []
    sides_before, sides_after = map(ledger.sizes, ("object_sides_before", "object_sides_after"))
    for ymin, xmin, ymax, xmax in stored.tolist():
        height, width = ymax - ymin, xmax - xmin
        before = min(height / scale[0], width / scale[1])
        after = min(height, width)
        sides_before[bin_size(before + _ROUNDING)] += 1
        sides_after[bin_size(after + _ROUNDING)] += 1
        # An object that was as small in its source lost nothing; one without an area is so at any size.
        if before > 0 and after + _ROUNDING < 2 * LEAST_SIDE and before >= 2 * after:
            small.append(((width / scale[1], height / scale[0]), (width, height)))
            if after + _ROUNDING < LEAST_SIDE:
                tiny.append(small[-1])
    return tiny, small


Sizes = tuple[tuple[float, float], tuple[float, float]]
"""Width and height of an object before and after resizing."""


def _shrunk(name: str, before: tuple[float, float], after: tuple[float, float]) -> str:
    sizes = (
        f"{before[0]:.3g} x {before[1]:.3g} pixels (width x height) become {after[0]:.3g} x {after[1]:.3g}"
    )
    return f"{source_name(name)}: {sizes}"


def add_keypoints(ledger: LedgerCounter, boxes: Sequence[Box], scale: tuple[float, float], name: str) -> None:
    """Add the objects whose labeled keypoints differ in the source and fall onto one stored pixel.

    Args:
        scale: stored pixels of a source pixel along (height, width).
    """
    for box in boxes:
        points = [(point.y, point.x) for point in box.keypoints if point.visibility > 0]
        # One point, or several at one place, are one pixel in any record.
        if len(set(points)) < 2:
            continue
        ledger.count("keypoint_objects")
        rows, columns = zip(*points, strict=True)
        sides = (max(rows) - min(rows)) * scale[0], (max(columns) - min(columns)) * scale[1]
        if max(sides) < _ONE_PIXEL:
            ledger.count("one_pixel_keypoint_objects", 1, source_name(name))


def add_classes(ledger: LedgerCounter, before: Collection[int], after: Collection[int], name: str) -> None:
    """Add the classes of a label that no stored pixel or voxel has.

    Args:
        before: class ids in the source's label, 0 for the background.
        after: class ids in the records of the source.
    """
    known = {value for value in before if value}
    if not known:
        return
    lost = sorted(known.difference(after))
    ledger.count("classed_records")
    ledger.count("structures", len(known))
    if lost:
        listed = ", ".join(map(str, lost[:10]))
        ledger.count("vanished_structures", len(lost), f"{source_name(name)}: class {listed}")
    # A label without any class trains its source as background.
    if len(lost) == len(known):
        ledger.count("emptied_label_records", 1, source_name(name))


def add_structure_sizes(ledger: LedgerCounter, when: str, sizes: Iterable[float]) -> None:
    """Add the sizes of structures in pixels or voxels, `when` "before" or "after"."""
    for size in sizes:
        ledger.bin(f"structure_sizes_{when}", bin_size(size))


def add_instances(
    ledger: LedgerCounter,
    label: NDArray[Any],
    counts: Mapping[int, int],
    name: str,
    known: Collection[int] = (),
) -> None:
    """Add whether the values of a label without class names may number objects.

    Values that number objects count up from 1 in each label, and each is one connected region. Organs are one region
    each too, but the same organs are in each label. So `halofeed.prep.convert.loss_findings` compares the numbers
    between labels.

    Args:
        label: values [height, width], [frame, height, width] or [depth, height, width].
        counts: pixels or voxels of each value.
        known: values in the source's label, some of which resizing may have removed; default: those of `counts`.
    """
    values = sorted(value for value in known or counts if value)
    if not values:
        return
    ledger.count("valued_records")
    ledger.bin("values_in_label", values[-1])
    many = len(values) > _MANY
    # Of many objects, some may have been removed after they were numbered.
    if len(values) < (_COUNTED_UP if many else 1) * values[-1]:
        return
    planes = _shrink_to_link(label)
    # Evenly spaced values of many: each takes a pass over the label.
    if any(_regions(planes == value) > 1 for value in values[:: -(-len(values) // _MAX_LINKED_VALUES)]):
        return
    ledger.count("numbered_records", 1, f"{source_name(name)}: values 1 to {values[-1]}")
    sizes = sorted(counts[value] for value in values if counts.get(value))
    if len(sizes) > 1:
        ledger.count("several_numbered_records")
        # Parts of one structure, such as a tumor in its organ, touch. Separate objects have a gap somewhere.
        ledger.count("apart_records", many or _regions(planes > 0) > 1)
        # A few cut objects at the edge do not decide about many.
        few = len(sizes) // 10 if many else 0
        ledger.count("alike_records", sizes[-1 - few] <= _ALIKE * sizes[few])


def _shrink_to_link(label: NDArray[Any]) -> NDArray[Any]:
    """Return every second voxel of a label [depth, height, width], as often as needed to link its regions quickly."""
    planes = label[None] if label.ndim == 2 else label
    while planes.size > _MAX_LINKED[label.ndim]:
        planes = planes[:: 2 if len(planes) > 8 else 1, ::2, ::2]
    return np.ascontiguousarray(planes)


def _regions(planes: NDArray[np.bool_]) -> int:
    """Return the number of connected regions of [depth, height, width], with diagonal neighbors, by projections.

    Regions that overlap along all three axes count as one. Linking the regions of all slices takes 10 times as long.
    """
    axes = range(3 if len(planes) > 1 else 1)
    shadows = (np.ascontiguousarray(planes.any(axis=axis)).view(np.uint8) for axis in axes)
    return max(cv2.connectedComponents(shadow, connectivity=8)[0] - 1 for shadow in shadows)


def scan_levels(image: NDArray[Any], plan: IntensityPlan) -> Levels:
    """Return the levels of one channel of a scan [depth, height, width], in a sample of its voxels."""
    values = np.sort(image[sampling(image.shape)], axis=None)
    if plan.window is None and plan.store != "bfloat16" and plan.standard is None:
        # Without a window, int16 and float32 keep the values apart; fractions are checked when they are rounded.
        return measure_levels(values, values, values)
    wide, window = values.astype(np.float64), plan.window
    stored = as_numbers(plan.stored_values(wide), plan.store).astype(np.float64)
    slope, intercept = plan.scale
    # Values outside of the window became its ends on purpose; `inside` measures them.
    clipped = wide if window is None else np.clip(wide, window.low, window.high)
    found = measure_levels(clipped, stored, stored * slope + intercept)
    if window is not None and found.after > _MAX_LEVELS:
        # A wide window rounds the noise of one tissue, which loses nothing.
        found = replace(found, loss=0.0)
    whole = measure_levels(values, values, values)
    inside = 1.0 if window is None else share_inside(values, window)
    return replace(found, before=whole.before, low=whole.low, high=whole.high, inside=inside)


def add_scan_values(
    ledger: LedgerCounter,
    image: NDArray[Any],
    plans: Sequence[IntensityPlan],
    name: str,
) -> tuple[Levels, ...]:
    """Add what a window and the stored type do to the values of a scan; return the levels of each channel.

    Args:
        image: [depth, height, width, channel].
        plans: plan of each channel.
    """
    found = tuple(scan_levels(image[..., at], plan) for at, plan in enumerate(plans))
    worst = max(found, key=lambda levels: (levels.is_flat, levels.loss))
    add_levels(ledger, worst, name)
    narrow = min(found, key=lambda levels: levels.inside)
    # A scan of two values is a mask, whose values any window may leave out.
    if narrow.inside < LEAST_INSIDE and narrow.before > 2:
        text = f"{narrow.inside:.2%} of the values above the background, up to {narrow.high:g}, are in the window"
        ledger.count("outside_window_records", 1, f"{source_name(name)}: {text}")
    return found


def add_saturation(
    ledger: LedgerCounter,
    plan: IntensityPlan,
    body: ValueCounts,
    labeled: ValueCounts,
    levels: Levels,
    name: str,
) -> None:
    """Add which share of a scan's stored values is at the ends of the window, over all and within the label.

    Args:
        plan: plan of the first channel.
        body: counts of the stored values above the smallest, of all records of the scan.
        labeled: counts of those where the label is not 0.
        levels: levels of the first channel.
    """
    if plan.window is None:
        return
    ends = plan.stored(plan.window.low), plan.stored(plan.window.high)
    if body.total:
        ledger.bin("saturated_percents", round(100 * max(_share_of(body, end) for end in ends)))
    # A handful of voxels may be bone or air by chance.
    if labeled.total < FEW_VOXELS:
        return
    ledger.count("windowed_label_records")
    low, high = (_share_of(labeled, end) for end in ends)
    # A structure that is one value in the source too lost nothing.
    if max(low, high) > _SATURATED and levels.before > 1:
        side = f"above {plan.window.high:g}" if high > low else f"below {plan.window.low:g}"
        text = f"{max(low, high):.0%} of the labeled voxels lie {side}, an end of the window"
        ledger.count("flattened_label_records", 1, f"{source_name(name)}: {text}")


def _share_of(counts: ValueCounts, value: float) -> float:
    # Counts of float32 and bfloat16 have 12 significant bits.
    near = np.isclose(counts.values, value, rtol=2**-11, atol=0)
    return float(counts.counts[near].sum()) / counts.total


def add_units(ledger: LedgerCounter, image: NDArray[Any], name: str) -> None:
    """Add whether the values of a CT, or of a scan of unknown modality, cannot be Hounsfield units.

    Args:
        image: [depth, height, width, channel].
    """
    found = (units_problem(image[..., at]) for at in range(image.shape[3]))
    if problem := next(filter(None, found), ""):
        ledger.count("implausible_scans", 1, f"{source_name(name)}: {problem}")


def flat_channels(stored: NDArray[Any], suspected: Collection[int]) -> set[int]:
    """Return which of these channels of a record [depth, height, width, channel] have one value."""
    return {at for at in suspected if stored[..., at].min() == stored[..., at].max()}
