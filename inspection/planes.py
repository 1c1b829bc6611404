"""Volumes as pictures: the gray level of each stored value, and three planes in radiological view.

axial               depth fixed     patient's right on the left, anterior up
coronal             height fixed    patient's right on the left, superior up
sagittal            width fixed     anterior on the left, superior up
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_facts import counts_of
from halofeed.inspection.stored_records import (
    VOLUME_AXES,
)
from halofeed.inspection.thumbnails import overlay, picture_uri
from halofeed.prep.options.volumes import VolumeOptions
from halofeed.prep.voxels.counts import ValueCounts, percentile
from halofeed.prep.voxels.intensity import IntensityPlan, IntensityWindow, as_numbers
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Statistics
from halofeed.system.errors import UsageError

_LOW, _HIGH = 1.0, 99.0
"""Percentiles shown as black and white if the recipe has no window."""
_ALL_BYTES = "0 to 255, as stored."


@dataclass(frozen=True, kw_only=True)
class Display:
    """Mapping of stored values to gray levels.

    Args:
        dtype: dtype of the stored values.
        low, high: stored values shown as black and white.
        slope, intercept: conversion to `unit`: value = slope * stored + intercept.
        unit: "HU" or "value".
        window: window of the recipe, in `unit`; None if it has none.
        words: sentence that says what is black and white, and why.
    """

    dtype: str
    low: float
    high: float
    slope: float = 1.0
    intercept: float = 0.0
    unit: str = "value"
    window: IntensityWindow | None
    words: str

    def gray(self, stored: NDArray[Any]) -> NDArray[np.uint8]:
        """Convert stored values to gray levels, 0 to 255."""
        values = as_numbers(stored, self.dtype).astype(np.float32)
        scaled = (values - self.low) * (255 / max(self.high - self.low, 1e-12))
        return np.asarray(np.rint(np.clip(np.nan_to_num(scaled), 0, 255)).astype(np.uint8))

    def value(self, stored: float) -> float:
        """Convert a stored value to `unit`."""
        return self.slope * stored + self.intercept


def recipe_window(recipe: Mapping[str, Any]) -> IntensityWindow | None:
    """Return the recipe's window for all scans, in stored values; None without one, or if values are normalized."""
    if recipe.get("normalize"):
        return None
    ends: tuple[float, ...] = tuple(recipe.get("window_hu") or ())
    try:
        # The recipe of a stranger's data set may contradict itself.
        return VolumeOptions(window=recipe.get("window"), window_hu=ends).fixed_window()
    except UsageError:
        return None


def display_of(manifest: Manifest, statistics: Statistics) -> Display:
    """Return the display of a data set's volumes; `statistics` are those of all splits together."""
    dtype = manifest.field("image").dtype
    window = recipe_window(manifest.recipe)
    in_hu = window is not None and manifest.recipe.get("window_unit", "hu") == "hu"
    # Stored values of CT are Hounsfield units, unless they were normalized.
    is_ct = set(statistics.modalities or ()) == {"CT"} and not manifest.recipe.get("normalize")
    unit = "HU" if in_hu or is_ct else "value"
    slope, intercept = (
        IntensityPlan(store=dtype, window=window).scale if dtype == "uint8" and window else (1.0, 0.0)
    )
    low, high, words = _gray_range(manifest.recipe, statistics, dtype, window, " HU" if unit == "HU" else "")
    return Display(
        dtype=dtype,
        low=low,
        high=high,
        slope=slope,
        intercept=intercept,
        unit=unit,
        window=window,
        words=f"Black to white is {words}",
    )


def _gray_range(
    recipe: Mapping[str, Any],
    statistics: Statistics,
    dtype: str,
    window: IntensityWindow | None,
    in_unit: str,
) -> tuple[float, float, str]:
    """Return the stored values shown as black and white, and a phrase that explains them."""
    of_window = f"{window.low:g} to {window.high:g}{in_unit}, the recipe's window" if window else ""
    if dtype == "uint8":
        # A conversion to uint8 has mapped its window to 0 to 255 already.
        ends: tuple[float, ...] = tuple(recipe.get("window_percentiles") or ())
        if window:
            return 0, 255, f"{of_window}, stored as 0 to 255."
        if len(ends) == 2:
            span = f"from its {ends[0]:g}th to its {ends[1]:g}th percentile"
            return 0, 255, f"each scan's own window, {span}, stored as 0 to 255."
        return 0, 255, _ALL_BYTES
    if window:
        return window.low, window.high, f"{of_window}."
    body, foreground = counts_of(statistics, "body"), counts_of(statistics, "foreground")
    if not body.total:
        return 0, 1, "0 to 1: no values were counted."
    low, high, why = _counted_range(body, foreground)
    return low, high, f"{low:,.4g} to {high:,.4g}{in_unit}: the recipe has no window, so {why}."


def _counted_range(body: ValueCounts, foreground: ValueCounts) -> tuple[float, float, str]:
    """Return a range that shows the labeled voxels, or without any all voxels, and why it was chosen."""
    low, high = percentile(body, _LOW), percentile(body, _HIGH)
    why = f"the {_LOW:g}st to {_HIGH:g}th percentile above each scan's least value"
    if foreground.total:
        # Wider by half on each side, so that the surroundings of labeled voxels are visible too.
        inner = percentile(foreground, _LOW), percentile(foreground, _HIGH)
        room = (inner[1] - inner[0]) / 2
        # Labeled voxels of a single value have no spread to widen.
        if room > 0:
            low = max(percentile(body, 0.1), inner[0] - room)
            high = min(percentile(body, 99.9), inner[1] + room)
            why = f"the {_LOW:g}st to {_HIGH:g}th percentile of the labeled voxels, widened by half on either side"
    # Voxels of a single value have no range.
    if low >= high:
        low, high = float(body.values[0]), float(body.values[0]) + 1
    return low, high, why


def display_of_run(recipe: Mapping[str, Any], image: NDArray[Any]) -> Display:
    """Return the display of a run's volume [depth, height, width, channel]: the recipe's window, or percentiles."""
    window = recipe_window(recipe)
    words = f"{window.low:g} to {window.high:g}, the recipe's window." if window else _ALL_BYTES
    # Bytes are shown as they are: the conversion has applied the window.
    if image.dtype == np.uint8:
        low, high = 0.0, 255.0
    elif window is not None:
        low, high = window.low, window.high
    else:
        values = image[..., 0]
        finite = values[np.isfinite(values)]
        low, high = np.percentile(finite, (_LOW, _HIGH)).tolist() if finite.size else (0.0, 1.0)
        words = f"each image's {_LOW:g}st to {_HIGH:g}th percentile."
    # An image of a single value has no range.
    high = high if high > low else low + 1
    return Display(
        dtype=str(image.dtype), low=low, high=high, window=window, words=f"Black to white is {words}"
    )


PLANES = {"axial": (0, (1, 2)), "coronal": (1, (0, 2)), "sagittal": (2, (0, 1))}
"""For each plane the fixed axis, and the axes that run down and across, both reversed."""
_FLAT_RATIO = 4


@dataclass(frozen=True, kw_only=True)
class Plane:
    """One plane as pictures.

    Args:
        name: key of `PLANES`.
        caption: name, and the index along the fixed axis with the axis' length.
        uri: data: URI of the gray picture.
        masks: data: URI of the classes of each label, to lay over the picture; None if it has no class here.
        size_mm: (down, across), without padding.
        sides: first letters of the patient's directions at the left, right, top and bottom; "" if unknown.
    """

    name: str
    caption: str
    uri: str
    masks: tuple[str | None, ...]
    size_mm: tuple[float, float]
    sides: str

    @property
    def ratio(self) -> float:
        """Return width over height."""
        return self.size_mm[1] / self.size_mm[0]

    @property
    def shown_sides(self) -> list[tuple[str, str]]:
        """Return each side ("l", "r", "t" or "b") to label, with its letter."""
        # A flat picture has no room for letters at the top and bottom, a narrow one none at the left and right.
        room = "lr" if self.ratio > _FLAT_RATIO else "tb" if self.ratio < 1 / _FLAT_RATIO else "lrtb"
        return [(side, letter) for side, letter in zip("lrtb", self.sides, strict=False) if side in room]


@dataclass(frozen=True, kw_only=True)
class ShownVolume:
    """A volume, and what of it to show.

    Args:
        voxels: [depth, height, width, channel]; the first channel is shown.
        ranges: range of each axis to show.
        steps_mm: distance between voxels along each axis.
        directions: for each axis, the patient's directions at its low and high end; () if unknown.
    """

    voxels: NDArray[Any]
    ranges: tuple[slice, ...]
    steps_mm: Sequence[float]
    directions: Sequence[tuple[str, str]]


def cut_planes(
    volume: ShownVolume,
    labels: Sequence[Callable[[Any], NDArray[Any]] | None],
    positions: tuple[int, int, int],
    display: Display,
    ranks: Mapping[int, int],
    side: int,
) -> list[Plane]:
    """Cut three planes out of a volume, drawn to one scale in millimeters.

    Args:
        volume: volume to cut.
        labels: functions from an index of [depth, height, width] to class indices, to lay over it; None for none.
        positions: index of each plane along its fixed axis.
        display: values shown as black and white.
        ranks: color number of each class.
        side: approximate length in pixels of the longest side of a plane.
    """
    spans = zip(volume.ranges, volume.steps_mm, strict=True)
    lengths = [(part.stop - part.start) * step for part, step in spans]
    directions = volume.directions
    scale = side / max(lengths)
    planes = []
    for name, (fixed, (down, across)) in PLANES.items():
        size_mm = (lengths[down], lengths[across])
        size = (max(1, round(size_mm[0] * scale)), max(1, round(size_mm[1] * scale)))
        at = tuple(positions[axis] if axis == fixed else volume.ranges[axis] for axis in range(3))
        gray = resize_gray(display.gray(volume.voxels[..., 0][at][::-1, ::-1]), size)
        masks = [None if label is None else overlay(label(at)[::-1, ::-1], ranks, size) for label in labels]
        ends = [*directions[across][::-1], *directions[down][::-1]] if directions else []
        planes.append(
            Plane(
                name=name,
                caption=f"{name}, {VOLUME_AXES[fixed]} {positions[fixed]} of {volume.voxels.shape[fixed]}",
                uri=picture_uri(gray[..., None]),
                masks=tuple(masks),
                size_mm=size_mm,
                sides="".join(end[0].upper() for end in ends),
            )
        )
    return planes


def center_of(label: NDArray[Any], extent: NDArray[np.int64]) -> tuple[int, int, int]:
    """Return the index of each plane: the centroid of all labeled voxels, moved to the nearest labeled plane.

    The centroid of two lungs is between them, and its sagittal plane would show neither. Without labeled voxels
    the result is the middle of `extent`, the part without padding.
    """
    per_axis = [np.zeros(size, np.int64) for size in label.shape]
    for depth in range(len(label)):
        inside = label[depth] != 0
        per_axis[1] += inside.sum(axis=1)
        per_axis[2] += inside.sum(axis=0)
        per_axis[0][depth] = np.count_nonzero(inside)
    total = int(per_axis[0].sum())
    if not total:
        depth, height, width = (
            min(max(0, (first + last) // 2), size - 1)
            for first, last, size in zip(*extent.tolist(), label.shape, strict=True)
        )
        return depth, height, width
    center = []
    for counts in per_axis:
        used = np.flatnonzero(counts)
        middle = float((np.arange(len(counts)) * counts).sum() / total)
        center.append(int(used[np.argmin(np.abs(used - middle))]))
    return center[0], center[1], center[2]


def resize_gray(gray: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resize a gray picture [height, width]: average areas to shrink an axis, interpolate linearly to enlarge one."""
    smaller = (min(size[0], gray.shape[0]), min(size[1], gray.shape[1]))
    result = np.ascontiguousarray(gray)
    for wanted, kernel in ((smaller, cv2.INTER_AREA), (size, cv2.INTER_LINEAR)):
        if result.shape != wanted:
            result = np.asarray(cv2.resize(result, wanted[::-1], interpolation=kernel), np.uint8)
    return result


def find_worst_planes(
    shape: tuple[int, ...], truth: NDArray[Any] | None, predicted: NDArray[Any] | None
) -> tuple[int, int, int]:
    """Return the plane along each axis with the most wrong voxels; without any, those of `center_of`.

    >>> truth = np.zeros((3, 4, 5), int)
    >>> predicted = truth.copy()
    >>> predicted[2, 1, :3] = 1
    >>> find_worst_planes(truth.shape, truth, predicted)
    (2, 1, 0)
    """
    if truth is not None and predicted is not None:
        wrong = truth != predicted
        if wrong.any():
            depth, height, width = (
                int(np.argmax(wrong.sum(axis=others))) for others in ((1, 2), (0, 2), (0, 1))
            )
            return depth, height, width
    label = truth if truth is not None else predicted if predicted is not None else np.zeros(shape, np.uint8)
    return center_of(label, np.array([[0] * len(shape), shape]))
