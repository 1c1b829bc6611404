"""Mapping of stored voxel values to gray levels and to Hounsfield units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.prep.options.volumes import VolumeOptions
from halofeed.prep.voxels.counts import ValueCounts, percentile
from halofeed.prep.voxels.intensity import IntensityPlan, IntensityWindow, as_numbers
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Intensities, Statistics

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


def counts_of(statistics: Statistics, name: str) -> ValueCounts:
    """Return the counts of stored values in the "body" (all above each scan's minimum) or the "foreground"."""
    return ValueCounts.from_json(getattr(statistics.intensities or Intensities(), name))


def recipe_window(recipe: Mapping[str, Any]) -> IntensityWindow | None:
    """Return the recipe's window for all scans, in stored values; None without one, or if values are normalized."""
    if recipe.get("normalize"):
        return None
    ends: tuple[float, ...] = tuple(recipe.get("window_hu") or ())
    try:
        return VolumeOptions(window=recipe.get("window"), window_hu=ends).fixed_window()
    except UsageError:
        return None


def display_of(manifest: Manifest, statistics: Statistics) -> Display:
    """Return the display of a data set's volumes; `statistics` are those of all splits together."""
    dtype = manifest.field("image").dtype
    window = recipe_window(manifest.recipe)
    in_hu = window is not None and manifest.recipe.get("window_unit", "hu") == "hu"
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
        if window:
            return 0, 255, f"{of_window}, stored as 0 to 255."
        ends: tuple[float, ...] = tuple(recipe.get("window_percentiles") or ())
        if len(ends) == 2:
            span = f"from its {ends[0]:g}th to its {ends[1]:g}th percentile"
            return 0, 255, f"each scan's own window, {span}, stored as 0 to 255."
        return 0, 255, _ALL_BYTES
    if window:
        return window.low, window.high, f"{of_window}."
    body, foreground = counts_of(statistics, "body"), counts_of(statistics, "foreground")
    if not body.total:
        return 0, 1, "0 to 1: no values were counted."
    low, high = percentile(body, _LOW), percentile(body, _HIGH)
    why = f"the {_LOW:g}st to {_HIGH:g}th percentile above each scan's least value"
    if foreground.total:
        # Wider by half on each side, so that the surroundings of labelled voxels are visible too.
        inner = percentile(foreground, _LOW), percentile(foreground, _HIGH)
        room = (inner[1] - inner[0]) / 2
        if room > 0:
            low = max(percentile(body, 0.1), inner[0] - room)
            high = min(percentile(body, 99.9), inner[1] + room)
            why = f"the {_LOW:g}st to {_HIGH:g}th percentile of the labelled voxels, widened by half on either side"
    if low >= high:
        low, high = float(body.values[0]), float(body.values[0]) + 1
    return low, high, f"{low:,.4g} to {high:,.4g}{in_unit}: the recipe has no window, so {why}."


def display_of_run(recipe: Mapping[str, Any], image: NDArray[Any]) -> Display:
    """Return the display of a run's volume [depth, height, width, channel]: the recipe's window, or percentiles."""
    window = recipe_window(recipe)
    words = f"{window.low:g} to {window.high:g}, the recipe's window." if window else _ALL_BYTES
    if image.dtype == np.uint8:
        low, high = 0.0, 255.0
    elif window is not None:
        low, high = window.low, window.high
    else:
        values = image[..., 0]
        finite = values[np.isfinite(values)]
        low, high = np.percentile(finite, (_LOW, _HIGH)).tolist() if finite.size else (0.0, 1.0)
        words = f"each image's {_LOW:g}st to {_HIGH:g}th percentile."
    high = high if high > low else low + 1
    return Display(
        dtype=str(image.dtype), low=low, high=high, window=window, words=f"Black to white is {words}"
    )
