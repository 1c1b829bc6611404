"""Do a shard's statistics say what its records hold?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from halofeed.inspection.stored.features import integer_of
from halofeed.inspection.stored.geometry import extent_of
from halofeed.inspection.stored.labels import ClassCounts
from halofeed.schemas import keys
from halofeed.schemas.statistics import Padding, Statistics
from halofeed.schemas.tfexample import Decoded


@dataclass(kw_only=True)
class Counts:
    """A shard's statistics as its records give them."""

    records: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    boxes_per_image: Counter[str] = field(default_factory=Counter)
    stored_pixels: int = 0
    pixels: int = 0
    largest: tuple[int, int] = (0, 0)
    tiles: int = 0

    def add(self, counted: Mapping[str, Any]) -> None:
        """Count one record, of which `count_of` says what there is."""
        self.records += 1
        self.tiles += counted["is_tile"]
        self.labels.update(map(str, counted["labels"]))
        if counted["boxes"] is not None:
            self.boxes_per_image[str(counted["boxes"])] += 1
        self.stored_pixels += counted["stored_pixels"]
        self.pixels += counted["pixels"]
        height, width = counted["size"]
        self.largest = (max(self.largest[0], height), max(self.largest[1], width))

    def found(self) -> Statistics:
        """What the records say."""
        return Statistics(
            records=self.records,
            labels=dict(self.labels),
            boxes_per_image=dict(self.boxes_per_image),
            padding=Padding(stored_pixels=self.stored_pixels, padded_pixels=self.stored_pixels - self.pixels),
            largest=self.largest,
            tiles=self.tiles or None,
        )

    def problems(self, statistics: Statistics) -> Iterator[str]:
        """In what the stored statistics differ from the records."""
        stored = statistics.to_json()
        for name, value in self.found().to_json().items():
            if stored.get(name) != value:
                yield f"statistics.{name}: the records give {value!r:.300}, stored is {stored.get(name)!r:.300}"


@dataclass(kw_only=True)
class VoxelCounts(Counts):
    """A shard of segmentation's statistics as its records give them."""

    volumes: bool
    labelled: int = 0
    label_voxels: Counter[str] = field(default_factory=Counter)
    foreground: int = 0

    def add_record(self, features: Decoded, classes: ClassCounts) -> None:
        """Count one record; `classes` are those of its label."""
        counted = dict(count_of(features))
        if integer_of(features, keys.LABELLED):
            self.labelled += 1
            counted["labels"] = list(classes.voxels)
            self.label_voxels.update({str(value): count for value, count in classes.voxels.items()})
            self.foreground += classes.foreground
        if self.volumes:
            counted["stored_pixels"] *= integer_of(features, keys.DEPTH) or 0
            extent = extent_of(features)
            counted["pixels"] = 0 if extent is None else int(np.prod(extent[1] - extent[0]))
        self.add(counted)

    def found(self) -> Statistics:
        """What the records say."""
        found = super().found()
        if self.volumes:
            found = replace(found, boxes_per_image=None, tiles=self.tiles)
        if not self.records:
            return found  # a shard without records need not say so
        voxels = dict(self.label_voxels)
        return replace(found, labelled=self.labelled, label_voxels=voxels, foreground_voxels=self.foreground)


def count_of(features: Decoded) -> Mapping[str, Any]:
    """What the statistics count of a record: labels, boxes (None where it has no lists of them) and pixels.

    Those of segmentation are counted by `halofeed.inspection.segmentation`.
    """
    sizes = [integer_of(features, key) or 0 for key in (*keys.SIDES, *keys.UNPADDED_SIDES)]
    objects = features.get(keys.OBJECT_CLASS_LABEL)
    labels = features.get(keys.CLASS_LABEL) if objects is None else objects
    return {
        "labels": labels.tolist() if isinstance(labels, np.ndarray) else [],
        "boxes": None if objects is None else len(objects),
        "stored_pixels": sizes[0] * sizes[1],
        "pixels": sizes[2] * sizes[3],
        "size": (sizes[0], sizes[1]),
        "is_tile": bool(integer_of(features, keys.TILE)),
    }
