"""What a conversion counts of volumes, per record and per shard; everything is a sum, as in `prep.statistics`.

Values are counted in every eighth row of each slice; voxels of classes are all counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Finding, Grid, Shape
from halofeed.prep.statistics.counts import Counts, count_intensities, merge_counts
from halofeed.prep.statistics.coverage import Coverage
from halofeed.prep.statistics.pictures import in_order
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas.statistics import Intensities, Padding, PixelSums, Statistics

ROW_STEP = 8


@dataclass(frozen=True, kw_only=True)
class VolumeFacts:
    """What is counted of one record; of a scan that is cut into tiles, its first tile counts the scan.

    Args:
        shape: of the record.
        inside_voxels: those that show the scan, not padding.
        label_voxels: per class that occurs; empty where there is no label.
        foreground_voxels: those of any class, each once.
        body, foreground: how often values occur above the least one, and where the label is not 0.
        sized: of the whole scan before it was brought to the static shape.
        coverage: what all records of the scan together show of it.
    """

    shape: Shape
    inside_voxels: int
    labelled: bool
    label_voxels: Mapping[int, int]
    foreground_voxels: int
    body: Counts
    foreground: Counts
    first_of_scan: bool
    source: Grid
    modality: str
    findings: tuple[Finding, ...]
    sized: Shape
    coverage: Coverage


def count_values(
    image: NDArray[Any], store: str, labels: NDArray[Any] | None, least: float
) -> tuple[Counts, Counts]:
    """The counts of the body and of the foreground of stored [depth, height, width, channel], first channel."""
    rows = as_numbers(image[:, ::ROW_STEP, :, 0], store)
    body = count_intensities(rows, above=least)
    if labels is None:
        return body, merge_counts(())
    return body, count_intensities(rows, mask=labels[:, ::ROW_STEP])


@dataclass(kw_only=True)
class VolumeTally:
    """Counts the records of a shard."""

    records: int = 0
    labelled: int = 0
    stored_voxels: int = 0
    inside_voxels: int = 0
    foreground_voxels: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    label_voxels: Counter[int] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    modalities: Counter[str] = field(default_factory=Counter)
    spacings_mm: Counter[str] = field(default_factory=Counter)
    source_shapes: Counter[str] = field(default_factory=Counter)
    tiles: int = 0
    scan_mm3: int = 0
    scan_cut_mm3: int = 0
    label_mm3: Counter[int] = field(default_factory=Counter)
    label_cut_mm3: Counter[int] = field(default_factory=Counter)
    largest_scan: Shape = (0, 0, 0)
    body: Counts = field(default_factory=lambda: merge_counts(()))
    foreground: Counts = field(default_factory=lambda: merge_counts(()))
    largest: Shape = (0, 0, 0)

    def add(self, facts: VolumeFacts) -> None:
        """Count one record."""
        self.records += 1
        self.labelled += facts.labelled
        self.stored_voxels += int(np.prod(facts.shape))
        self.inside_voxels += facts.inside_voxels
        for value, voxels in facts.label_voxels.items():
            self.labels[value] += 1
            self.label_voxels[value] += voxels
        self.foreground_voxels += facts.foreground_voxels
        self.body = merge_counts([self.body, facts.body])
        self.foreground = merge_counts([self.foreground, facts.foreground])
        self.largest = facts.shape
        if not facts.first_of_scan:
            self.tiles += 1
            return
        for finding in facts.findings:
            self.findings[f"{finding.name} ({finding.treatment})"] += 1
        self.modalities[facts.modality or "unknown"] += 1
        depth_mm, height_mm, width_mm = facts.source.spacing_mm
        self.spacings_mm[f"{depth_mm:.2f}x{height_mm:.2f}x{width_mm:.2f}"] += 1
        self.source_shapes["x".join(map(str, facts.source.shape))] += 1
        self.scan_mm3 += facts.coverage.scan_mm3
        self.scan_cut_mm3 += facts.coverage.cut_mm3
        self.label_mm3.update(facts.coverage.class_mm3)
        self.label_cut_mm3.update(facts.coverage.class_cut_mm3)
        depth, height, width = map(max, self.largest_scan, facts.sized)
        self.largest_scan = depth, height, width

    def statistics(self) -> Statistics:
        """What was counted; of values the intensities, and no sums of pixels."""
        return Statistics(
            records=self.records,
            pixels=PixelSums(),
            padding=Padding(
                stored_pixels=self.stored_voxels, padded_pixels=self.stored_voxels - self.inside_voxels
            ),
            labels=in_order(self.labels),
            label_voxels=in_order(self.label_voxels),
            foreground_voxels=self.foreground_voxels,
            labelled=self.labelled,
            intensities=Intensities(body=self.body.to_json(), foreground=self.foreground.to_json()),
            findings=in_order(self.findings),
            modalities=in_order(self.modalities),
            spacings_mm=in_order(self.spacings_mm),
            source_shapes=in_order(self.source_shapes),
            tiles=self.tiles,
            scan_mm3=self.scan_mm3,
            scan_cut_mm3=self.scan_cut_mm3,
            label_mm3=in_order(self.label_mm3),
            label_cut_mm3=in_order(self.label_cut_mm3),
            largest=self.largest[1:],
            largest_scan=self.largest_scan,
        )
