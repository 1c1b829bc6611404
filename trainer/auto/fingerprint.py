"""Fingerprint of a data set: what its manifest measured, as far as a plan depends on it.

The name and the idea are nnU-Net's (Isensee et al. 2021, "dataset fingerprint"). This file does not import JAX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from halofeed.prep.convert.normalize_like import holds_hounsfield_units
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import NameCounts, Statistics
from halofeed.trainer.auto.unet_plan import target_spacing


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Measured properties of the images and labels of the splits to train on.

    Args:
        task: task of the data set.
        kind: kind of image, a key of `halofeed.schemas.kinds.KINDS`.
        records: number of records to train on.
        stored_shape: shape of a record, channel last.
        spacing_mm: spacing of the records along each spatial axis; ones for pictures, clips and scans of unknown
            spacing.
        best_spacing_mm: spacing that `target_spacing` chooses from the sources; equal to `spacing_mm` where no source
            states one.
        common_spacing: whether all records have one spacing.
        median_shape: median size of an image along each spatial axis in the records' spacing, at most `stored_shape`.
        largest_shape: largest size of an image along each spatial axis in the records' spacing, before it was cropped.
        structures: mean number of voxels of each class but the background, in the records that show it, by name.
        foreground_share: share of the labeled voxels that are not background.
        lost_share: largest share of a class, or of the scans, that no record shows.
        padded_share: share of the stored voxels that is padding.
        most_boxes: largest number of boxes in a record, as the loader gives them.
        is_ct: whether the scans are CT in Hounsfield units, without a window.
    """

    task: str
    kind: str
    records: int
    stored_shape: tuple[int, ...]
    spacing_mm: tuple[float, ...]
    best_spacing_mm: tuple[float, ...]
    common_spacing: bool = True
    median_shape: tuple[int, ...]
    largest_shape: tuple[int, ...]
    structures: Mapping[str, float]
    foreground_share: float = 0.0
    lost_share: float = 0.0
    padded_share: float = 0.0
    most_boxes: int = 0
    is_ct: bool = False

    @property
    def sides(self) -> tuple[int, ...]:
        """Spatial sides of a record."""
        return self.stored_shape[:-1]

    def structure_sides(self) -> tuple[int, ...]:
        """Return the side along each axis, in voxels, of a ball with the volume of the largest class.

        The largest class bounds the context that a patch must show. Classes that consist of many parts count as one
        ball, which is more than they need.
        """
        if not self.structures:
            return (1,) * len(self.sides)
        voxels = max(self.structures.values())
        if len(self.sides) == 2:
            diameter = 2 * math.sqrt(voxels / math.pi)
        else:
            diameter = (6 * voxels * math.prod(self.spacing_mm) / math.pi) ** (1 / 3)
        return tuple(max(1, round(diameter / one)) for one in self.spacing_mm)


def fingerprint_of(manifest: Manifest, split: str) -> Fingerprint:
    """Return the fingerprint of a split, or of several that a plus joins.

    Args:
        manifest: manifest of the data set.
        split: split to train on.

    Raises:
        UsageError: there is no such split.
    """
    statistics = manifest.split(split).statistics
    shape = manifest.field("image").shape
    axes = len(shape) - 1
    spacing, best, common = _spacings(manifest, statistics, axes)
    median, largest = _shapes(statistics, shape[:-1], spacing)
    stored = statistics.padding.stored_pixels if statistics.padding else 0
    return Fingerprint(
        task=manifest.task,
        kind=manifest.kind.name,
        records=manifest.split(split).records,
        stored_shape=tuple(shape),
        spacing_mm=spacing,
        best_spacing_mm=best,
        common_spacing=common,
        median_shape=median,
        largest_shape=largest,
        structures=_structures(manifest, statistics),
        foreground_share=_share(statistics.foreground_voxels, sum((statistics.label_voxels or {}).values())),
        lost_share=_lost_share(statistics),
        padded_share=_share(statistics.padding.padded_pixels if statistics.padding else 0, stored),
        most_boxes=_most_boxes(manifest, statistics),
        is_ct=manifest.kind.name == "volume" and holds_hounsfield_units(manifest),
    )


def weighted_percentile(values: Sequence[tuple[float, int]], share: float) -> float:
    """Return the smallest value at which a share of the counted values is reached; between two values, their mean.

    So the median of two scans is between them, as in nnU-Net, and not the smaller one.

    >>> weighted_percentile([(1.0, 3), (5.0, 1)], 0.5), weighted_percentile([(1.0, 3), (5.0, 1)], 0.9)
    (1.0, 5.0)
    >>> weighted_percentile([(26, 1), (30, 1)], 0.5)
    28.0
    """
    ordered, seen = sorted(values), 0
    needed = share * sum(count for _, count in ordered)
    for number, (value, count) in enumerate(ordered):
        seen += count
        if math.isclose(seen, needed) and number + 1 < len(ordered):
            return (value + ordered[number + 1][0]) / 2
        if seen >= needed:
            return value
    return ordered[-1][0]


def _columns(counts: NameCounts | None) -> list[list[tuple[float, int]]]:
    """Return the values of each axis with their counts, from names such as 2.00x1.50x1.50."""
    rows = [(tuple(map(float, name.split("x"))), count) for name, count in (counts or {}).items()]
    return [[(sizes[axis], count) for sizes, count in rows] for axis in range(3)] if rows else []


def _spacings(
    manifest: Manifest, statistics: Statistics, axes: int
) -> tuple[tuple[float, ...], tuple[float, ...], bool]:
    """Return the spacing of the records, the one that the sources suggest, and whether all records have one."""
    ones = (1.0,) * axes
    sources = [column for column in _columns(statistics.spacings_mm) if min(column)[0] > 0]
    stored = tuple(float(one) for one in manifest.recipe.get("spacing_mm") or ())
    if len(sources) != axes:
        return stored or ones, stored or ones, True
    median = tuple(weighted_percentile(column, 0.5) for column in sources)
    shapes = _columns(statistics.source_shapes)
    sizes = tuple(weighted_percentile(column, 0.5) for column in shapes) if shapes else ones
    best = target_spacing(median, tuple(weighted_percentile(column, 0.1) for column in sources), sizes)
    # Spacings of one data set differ in their last digits.
    common = bool(stored) or all(max(column)[0] <= 1.01 * min(column)[0] for column in sources)
    return stored or median, best, common


def _shapes(
    statistics: Statistics, sides: Sequence[int], spacing: Sequence[float]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the median and the largest size of an image in the records' spacing."""
    shapes, spacings = _columns(statistics.source_shapes), _columns(statistics.spacings_mm)
    if len(shapes) != len(sides) or len(spacings) != len(sides):
        return tuple(sides), tuple(sides)
    extents = [
        weighted_percentile(shape, 0.5) * weighted_percentile(own, 0.5)
        for shape, own in zip(shapes, spacings, strict=True)
    ]
    median = tuple(
        max(1, min(side, round(extent / one)))
        for side, extent, one in zip(sides, extents, spacing, strict=True)
    )
    largest = statistics.largest_scan or tuple(sides)
    return median, tuple(largest)


def _structures(manifest: Manifest, statistics: Statistics) -> dict[str, float]:
    """Return the mean size of each class but the background in voxels, of records that show it."""
    voxels, records = statistics.label_voxels or {}, statistics.labels or {}
    return {
        manifest.labels.get(int(label), f"class {label}"): count / max(1, records.get(label, 1))
        for label, count in voxels.items()
        if label != "0" and count
    }


def _most_boxes(manifest: Manifest, statistics: Statistics) -> int:
    most = max(map(int, statistics.boxes_per_image or {}), default=0)
    # The loader returns as many as there is room for.
    return min(most, manifest.field("boxes").shape[0]) if most else 0


def _share(part: int | None, whole: int) -> float:
    return (part or 0) / whole if whole else 0.0


def _lost_share(statistics: Statistics) -> float:
    whole, cut = statistics.label_mm3 or {}, statistics.label_cut_mm3 or {}
    shares = [_share(count, whole.get(label, 0)) for label, count in cut.items()]
    return max([_share(statistics.scan_cut_mm3, statistics.scan_mm3 or 0), *shares])
