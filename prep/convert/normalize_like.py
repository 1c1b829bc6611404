"""Window and normalization of a conversion from the labeled voxels of an earlier one.

This is nnU-Net's scheme for CT (Isensee et al., Nature Methods 2021, supplementary note 2): clip to the percentiles 0.5
and 99.5 of the foreground of all training cases, subtract its mean, and divide by its standard deviation.
"""

from __future__ import annotations

from dataclasses import replace

from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.volumes import default_dtype
from halofeed.prep.voxels.counts import ValueCounts, mean_and_deviation, percentile
from halofeed.prep.voxels.intensity import IntensityWindow, Standardization
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Intensities, Statistics
from halofeed.system.errors import UsageError

PERCENTILES = (0.5, 99.5)
_LEAST_OF_CT = -50
"""Value of fat and air, in Hounsfield units; scans of other modalities seldom have values below 0."""


def holds_hounsfield_units(manifest: Manifest) -> bool:
    """Return whether the records have Hounsfield units, without a window or a normalization of the conversion.

    No scan may state another modality than CT, and some values must be those of fat or air. NIfTI and similar files
    state no modality, so that the values alone show it; phase images of MR with values below 0 are taken for CT.
    """
    if any(manifest.recipe.get(name) for name in ("window", "window_hu", "window_percentiles", "normalize")):
        return False
    total = Statistics.total(split.statistics for split in manifest.splits.values())
    body = ValueCounts.from_json((total.intensities or Intensities()).body)
    is_ct = set(total.modalities or ()) <= {"CT", "unknown"}
    return is_ct and bool(body.total) and bool(body.values[0] < _LEAST_OF_CT)


def foreground_scheme(manifest: Manifest, split: str) -> tuple[IntensityWindow, Standardization]:
    """Return the window and the normalization from the labeled voxels of a split, in the unit of its records.

    Raises:
        UsageError: the split has no labeled voxels with counted values.
    """
    counts = ValueCounts.from_json((manifest.split(split).statistics.intensities or Intensities()).foreground)
    ends = [percentile(counts, percent) for percent in PERCENTILES] if counts.total else [0.0, 0.0]
    # A deviation of 0 cannot divide.
    if ends[0] >= ends[1]:
        raise UsageError(
            f"{manifest.name} {manifest.version}, split {split}: no labeled voxels whose values differ; its statistics "
            "cannot normalize anything"
        )
    mean, deviation = mean_and_deviation(counts)
    return IntensityWindow(low=ends[0], high=ends[1]), Standardization(mean=mean, deviation=deviation)


def normalized_like(recipe: Recipe, manifest: Manifest, split: str = "train") -> Recipe:
    """Return the recipe with the window and the normalization from an earlier conversion's labeled voxels.

    Raises:
        UsageError: the recipe has a window or a normalization, or is not for volumes; or the earlier conversion changed
            the values or has no labeled voxels.
    """
    if not recipe.rules.joins_files:
        raise UsageError(
            "--normalize-like is for volumes; leave it out, or add --depth, --height and --width"
        )
    if recipe.normalize or recipe.window_percentiles or recipe.fixed_window():
        raise UsageError(
            "--normalize-like: gives the window and the normalization; leave --window, --window-hu, "
            "--window-percentiles and --normalize out"
        )
    before = Recipe.from_json(manifest.recipe)
    # The counts of clipped or scaled values have lost the percentiles of the scans.
    if before.normalize or before.window_percentiles or before.fixed_window():
        raise UsageError(
            f"--normalize-like: {manifest.name} {manifest.version} has a window or is normalized, so its statistics "
            "are not those of the scans; name a conversion without either"
        )
    window, standard = foreground_scheme(manifest, split)
    return replace(
        recipe,
        window_hu=(window.low, window.high),
        window_unit="any",
        normalize=f"{standard.mean:.6g}/{standard.deviation:.6g}",
        dtype="float32" if recipe.dtype == default_dtype(recipe) else recipe.dtype,
    )
