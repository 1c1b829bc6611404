"""Statistics of records counted from the records themselves, for a data set that holds a part of another's records.

A record does not hold all that a conversion knew of its source: its notes, what was lost, or the volume of a class that
is in no record. These figures are left out. Recounted pixels are those that are stored, so that a JPEG gives its own.
Shards that are kept whole are not recounted, and keep the figures of the conversion.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.stored_records import (
    ClassCounts,
    class_counts,
    extent_of,
    integer_of,
    is_volumetric,
    label_map,
    stored_image,
)
from halofeed.inspection.verify_record import ShardCounts
from halofeed.prep.convert.tallies import count_values, cut_of, sum_pixels
from halofeed.prep.voxels.counts import ValueCounts, merge_counts
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Intensities, PixelSums, Statistics
from halofeed.schemas.tfexample import Decoded

_ALWAYS = ("records", "labels", "boxes_per_image", "ignored_per_image", "padding", "largest", "tiles", "cut")
_OF_LABELS = ("labelled", "label_voxels", "foreground_voxels")
_OF_VALUES = ("pixels", "intensities")
RECOUNTED = frozenset((*_ALWAYS, *_OF_LABELS, *_OF_VALUES))
"""Figures that records give; `only_recounted` leaves the others out."""


def only_recounted(statistics: Statistics) -> Statistics:
    """Return the figures that records give.

    >>> only_recounted(Statistics(records=3, notes={"a": 1}))
    ... # doctest: +ELLIPSIS
    Statistics(records=3, ... notes=None, ...)
    """
    return replace(
        statistics, **{name: None for name in vars(statistics) if name not in RECOUNTED and name != "records"}
    )


@dataclass(kw_only=True)
class Recount:
    """Counts of the records of one shard.

    Args:
        max_boxes: number of boxes that the loader pads to.
    """

    manifest: Manifest
    max_boxes: int
    _counts: ShardCounts = field(init=False)
    _pixels: PixelSums = field(default_factory=PixelSums)
    _body: list[ValueCounts] = field(default_factory=list)
    _foreground: list[ValueCounts] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._counts = ShardCounts(manifest=self.manifest)

    def add(self, features: Decoded) -> None:
        """Count a record."""
        label = label_map(features, self.manifest)
        has_label = label is not None and bool(integer_of(features, keys.LABELLED))
        classes = class_counts(label, self.manifest) if label is not None and has_label else ClassCounts()
        self._counts.add(features, classes)
        image = stored_image(features, self.manifest)
        if image is None:
            return
        if is_volumetric(self.manifest):
            self._add_volume(features, image, label if has_label else None)
        else:
            self._pixels = self._pixels.merge(_pixel_sums(features, image, self.manifest))

    def _add_volume(self, features: Decoded, image: NDArray[Any], label: NDArray[Any] | None) -> None:
        """Count the values of a volume above the smallest one that it shows."""
        extent = extent_of(features)
        inside = image if extent is None else image[tuple(slice(*pair) for pair in extent.T.tolist())]
        store = self.manifest.field("image").dtype
        least = float(as_numbers(inside[..., 0], store).min()) if inside.size else 0.0
        ignored = self.manifest.ignore_label
        if label is not None and ignored is not None:
            label = np.where(label == ignored, 0, label)
        body, foreground = count_values(image, store, label, least)
        self._body.append(body)
        self._foreground.append(foreground)

    def statistics(self) -> Statistics:
        """Return the figures of the records so far."""
        found = self._counts.found()
        boxes = {int(count): images for count, images in (found.boxes_per_image or {}).items()}
        found = replace(found, pixels=self._pixels, cut=cut_of(boxes, self.max_boxes))
        if is_volumetric(self.manifest):
            intensities = Intensities(
                body=merge_counts(self._body).to_json(), foreground=merge_counts(self._foreground).to_json()
            )
            found = replace(found, intensities=intensities, cut=found.cut if found.boxes_per_image else None)
        return found


def _pixel_sums(features: Decoded, image: NDArray[Any], manifest: Manifest) -> PixelSums:
    """Return the sums of the pixels of a picture, or of the frames of a clip, without padding."""
    if image.dtype not in (np.uint8, np.uint16):
        return PixelSums()
    height, width = (integer_of(features, key) or 0 for key in keys.UNPADDED_SIDES)
    shown = image[..., :height, :width, :]
    rows = np.ascontiguousarray(shown).reshape(-1, *shown.shape[-2:])
    histogram, count, sums, squares = sum_pixels(rows)
    return PixelSums(
        count=count,
        sum=tuple(sums.tolist()),
        sum_squares=tuple(squares.tolist()),
        histogram=tuple(map(tuple, histogram.tolist())),
    )
