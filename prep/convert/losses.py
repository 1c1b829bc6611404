"""Measurement of what a conversion does to the information of one source, for the ledger of losses.

Each function adds to a `LedgerCounter`. The names of counts are those that `halofeed.schemas.losses` reads. Their cost
is at most 2 % of a conversion, so they use histograms that exist, samples, and sizes rather than pixels.
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
_FEW_VOXELS: Final = 8
_ALIKE: Final = 16
"""Largest ratio of the sizes of objects of one label that may be of one class."""
_MOST_LEVELS: Final = 16
"""Levels that a window keeps above which it loses no contrast; HU in the widest preset have 255, SUV in a window in HU
have 10."""
_BOX_PIXELS: Final = 1024
_ROUNDING: Final = 1e-3
"""Pixels by which float32 coordinates are off."""
_ONE_PIXEL: Final = 1.0
_MOST_INSTANCES: Final = 255
_MOST_LINKED: Final = {2: 1 << 14, 3: 1 << 16}
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
    if (levels is not None and levels.before > 1) or not is_flat(source):
        text = levels.text() if levels is not None else "several values become 1"
        ledger.count("flattened_records", 1, f"{source_name(name)}: {text}")


def add_object_levels(
    ledger: LedgerCounter, pixels: NDArray[Any], boxes: Sequence[Box], options: ReadOptions, name: str
) -> None:
    """Add the objects within whose boxes 16-bit values differ and their 8-bit values do not.

    Args:
        pixels: 16-bit samples [height, width, channel] as displayed.
        boxes: objects in displayed pixels.
        options: conversion of the samples.
    """
    for box in boxes:
        rows = slice(max(0, math.floor(box.ymin)), math.ceil(box.ymax))
        part = pixels[rows, max(0, math.floor(box.xmin)) : math.ceil(box.xmax)]
        step = max(1, math.isqrt(part.shape[0] * part.shape[1] // _BOX_PIXELS))
        part = part[::step, ::step]
        levels = levels_of(part, options) if part.size else None
        if levels is None:
            continue
        ledger.count("level_objects")
        if levels.is_flat:
            ledger.count(
                "flattened_objects", 1, f"{source_name(name)}: {levels.text()} in a box of {box.label!r}"
            )


def add_objects(
    ledger: LedgerCounter,
    boxes: Sequence[Box],
    stored: NDArray[np.float64],
    name: str,
) -> None:
    """Add the sizes and the flags of the stored objects of a picture.

    Args:
        boxes: these objects in source pixels.
        stored: [object, 4], their boxes in stored pixels: ymin, xmin, ymax, xmax.
    """
    if not boxes:
        return
    tiny = shrunk = 0
    first_tiny = first_small = ""
    sides_before, sides_after = map(ledger.sizes, ("object_sides_before", "object_sides_after"))
    for box, (ymin, xmin, ymax, xmax) in zip(boxes, stored.tolist(), strict=True):
        before = min(box.ymax - box.ymin, box.xmax - box.xmin)
        after = min(ymax - ymin, xmax - xmin)
        sides_before[bin_size(before + _ROUNDING)] += 1
        sides_after[bin_size(after + _ROUNDING)] += 1
        # An object that was as small in its source lost nothing.
        if after + _ROUNDING < 2 * LEAST_SIDE and before >= 2 * after:
            sizes = (box.xmax - box.xmin, box.ymax - box.ymin), (xmax - xmin, ymax - ymin)
            shrunk += 1
            first_small = first_small or _shrunk(name, *sizes)
            if after + _ROUNDING < LEAST_SIDE:
                tiny += 1
                first_tiny = first_tiny or _shrunk(name, *sizes)
        if box.is_crowd or box.difficult or box.group_of:
            for flag, counted in FLAGS.items():
                ledger.count(counted, getattr(box, flag), source_name(name))
    ledger.count("objects", len(boxes))
    ledger.count("object_records")
    ledger.count("tiny_objects", tiny, first_tiny)
    ledger.count("small_objects", shrunk, first_small)
    ledger.count("tiny_object_records", tiny == len(boxes), first_tiny)
    ledger.count("crowd_only_records", all(box.is_crowd for box in boxes), source_name(name))


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
    if len(lost) == len(known):
        ledger.count("emptied_label_records", 1, source_name(name))


def add_structure_sizes(ledger: LedgerCounter, when: str, sizes: Iterable[float]) -> None:
    """Add the sizes of structures in pixels or voxels, `when` "before" or "after"."""
    for size in sizes:
        ledger.bin(f"structure_sizes_{when}", bin_size(size))


def add_instances(ledger: LedgerCounter, label: NDArray[Any], counts: Mapping[int, int], name: str) -> None:
    """Add whether the values of a label without class names may number objects.

    Values that number objects count up from 1 in each label, and each is one connected region. Organs are one region
    each too, but the same organs are in each label. So `halofeed.schemas.losses` compares the numbers between labels.

    Args:
        label: values [height, width], [frame, height, width] or [depth, height, width].
        counts: pixels or voxels of each value.
    """
    values = sorted(value for value in counts if value)
    if not values:
        return
    ledger.count("valued_records")
    ledger.bin("values_in_label", values[-1])
    if values != list(range(1, len(values) + 1)) or len(values) > _MOST_INSTANCES:
        return
    planes = label[None] if label.ndim == 2 else label
    while planes.size > _MOST_LINKED[label.ndim]:
        planes = planes[:: 2 if len(planes) > 8 else 1, ::2, ::2]
    planes = np.ascontiguousarray(planes)
    for value in values:
        if _regions(planes == value) > 1:
            return
    ledger.count("numbered_records", 1, f"{source_name(name)}: values 1 to {values[-1]}")
    if len(values) > 1:
        sizes = [counts[value] for value in values]
        ledger.count("several_numbered_records")
        # Parts of one structure, such as a tumor in its organ, touch. Objects lie apart somewhere.
        ledger.count("apart_records", _regions(planes > 0) > 1)
        ledger.count("alike_records", max(sizes) <= _ALIKE * min(sizes))


def _regions(planes: NDArray[np.bool_]) -> int:
    """Return the number of connected regions [depth, height, width], with diagonal neighbors; at most 2."""
    used = np.flatnonzero(planes.any(axis=(1, 2)))
    if not len(used):
        return 0
    planes = planes[used[0] : used[-1] + 1]
    parents = [0]

    def root(one: int) -> int:
        while parents[one] != one:
            one = parents[one]
        return one

    before: NDArray[Any] | None = None
    for plane in planes:
        found, regions = cv2.connectedComponents(plane.view(np.uint8), connectivity=8)
        offset = len(parents) - 1
        parents += range(offset + 1, offset + found)
        numbered = np.where(regions > 0, regions + offset, 0)
        if before is not None:
            both = (before > 0) & (numbered > 0)
            for one, other in np.unique(np.stack([before[both], numbered[both]], 1), axis=0).tolist():
                parents[root(other)] = root(one)
        before = numbered
    return len({root(one) for one in range(1, len(parents))})


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
    if window is not None and found.after > _MOST_LEVELS:
        # A wide window rounds the noise of one tissue, which loses nothing.
        found = replace(found, loss=0.0)
    whole = measure_levels(values, values, values)
    inside = 1.0 if window is None else share_inside(values, window)
    return replace(found, before=whole.before, low=whole.low, high=whole.high, inside=inside)


def add_scan_values(
    ledger: LedgerCounter,
    image: NDArray[Any],
    plans: Sequence[IntensityPlan],
    labels: NDArray[Any] | None,
    name: str,
) -> tuple[Levels, ...]:
    """Add what a window and the stored type do to the values of a scan; return the levels of each channel.

    Args:
        image: [depth, height, width, channel].
        plans: plan of each channel.
        labels: class ids [depth, height, width]; None without a label.
    """
    found = tuple(scan_levels(image[..., at], plan) for at, plan in enumerate(plans))
    worst = max(found, key=lambda levels: (levels.is_flat, levels.loss))
    add_levels(ledger, worst, name)
    narrow = min(found, key=lambda levels: levels.inside)
    if narrow.inside < LEAST_INSIDE and narrow.before > 2:
        text = f"{narrow.inside:.2%} of the values above the background, up to {narrow.high:g}, are in the window"
        ledger.count("outside_window_records", 1, f"{source_name(name)}: {text}")
    if labels is not None:
        _add_labelled_values(ledger, image[..., 0], plans[0], labels, name)
    return found


def _add_labelled_values(
    ledger: LedgerCounter, image: NDArray[Any], plan: IntensityPlan, labels: NDArray[Any], name: str
) -> None:
    where = sampling(image.shape)
    inside = image[where][labels[where] != 0]
    if plan.window is None or inside.size < _FEW_VOXELS:
        return
    ledger.count("windowed_label_records")
    low, high = float(inside.min()), float(inside.max())
    if low < high and (high <= plan.window.low or low >= plan.window.high):
        text = (
            f"labeled voxels have {low:g} to {high:g}, the window {plan.window.low:g} to {plan.window.high:g}"
        )
        ledger.count("flattened_label_records", 1, f"{source_name(name)}: {text}")


def add_units(ledger: LedgerCounter, image: NDArray[Any], is_ct: bool, name: str) -> None:
    """Add whether the values of a scan [depth, height, width] cannot be what a scanner measures."""
    if problem := units_problem(image, is_ct=is_ct):
        ledger.count("implausible_scans", 1, f"{source_name(name)}: {problem}")


def flat_channels(stored: NDArray[Any], suspected: Collection[int]) -> set[int]:
    """Return which of these channels of a record [depth, height, width, channel] have one value."""
    return {at for at in suspected if stored[..., at].min() == stored[..., at].max()}
