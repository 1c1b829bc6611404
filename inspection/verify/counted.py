"""Do a shard's statistics say what its records hold?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from halofeed.inspection.stored.features import integer_of
from halofeed.inspection.stored.geometry import extent_of
from halofeed.inspection.stored.labels import ClassCounts, is_volumetric, label_field
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Padding, Statistics
from halofeed.schemas.tfexample import Decoded


@dataclass(kw_only=True)
class Counts:
    """A shard's statistics as its records give them."""

    manifest: Manifest
    records: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    boxes_per_image: Counter[str] = field(default_factory=Counter)
    stored_pixels: int = 0
    pixels: int = 0
    largest: tuple[int, int] = (0, 0)
    tiles: int = 0
    labelled: int = 0
    label_voxels: Counter[str] = field(default_factory=Counter)
    foreground: int = 0

    def add(self, features: Decoded, classes: ClassCounts) -> None:
        """Count one record; `classes` are those of its label map."""
        height, width, unpadded_height, unpadded_width = (
            integer_of(features, key) or 0 for key in (*keys.SIDES, *keys.UNPADDED_SIDES)
        )
        stored, pixels = height * width, unpadded_height * unpadded_width
        if is_volumetric(self.manifest):
            stored *= integer_of(features, keys.DEPTH) or 0
            extent = extent_of(features)
            pixels = 0 if extent is None else int(np.prod(extent[1] - extent[0]))
        objects = features.get(keys.OBJECT_CLASS_LABEL)
        labels = features.get(keys.CLASS_LABEL) if objects is None else objects
        found = labels.tolist() if isinstance(labels, np.ndarray) else []
        if objects is not None:
            self.boxes_per_image[str(len(objects))] += 1
        if label_field(self.manifest) is not None and integer_of(features, keys.LABELLED):
            found = list(classes.voxels)
            self.labelled += 1
            self.label_voxels.update({str(value): count for value, count in classes.voxels.items()})
            self.foreground += classes.foreground
        self.records += 1
        self.labels.update(map(str, found))
        self.stored_pixels += stored
        self.pixels += pixels
        self.largest = (max(self.largest[0], height), max(self.largest[1], width))
        self.tiles += bool(integer_of(features, keys.TILE))

    def found(self) -> Statistics:
        """What the records say."""
        counted = Statistics(
            records=self.records,
            labels=dict(self.labels),
            boxes_per_image=dict(self.boxes_per_image),
            padding=Padding(stored_pixels=self.stored_pixels, padded_pixels=self.stored_pixels - self.pixels),
            largest=self.largest,
            tiles=self.tiles or None,
        )
        if is_volumetric(self.manifest):
            counted = replace(counted, boxes_per_image=None, tiles=self.tiles)
        # A shard without records need not say that none is labelled.
        if label_field(self.manifest) is None or not self.records:
            return counted
        voxels = dict(self.label_voxels)
        return replace(
            counted, labelled=self.labelled, label_voxels=voxels, foreground_voxels=self.foreground
        )

    def problems(self, statistics: Statistics) -> Iterator[str]:
        """In what the stored statistics differ from the records."""
        stored = statistics.to_json()
        for name, value in self.found().to_json().items():
            if stored.get(name) != value:
                yield f"statistics.{name}: the records give {value!r:.300}, stored is {stored.get(name)!r:.300}"
