"""What a conversion counts of volumes, per record and per shard; everything is a sum, as in `prep.statistics`.

Values are counted in every eighth row of each slice; voxels of classes are all counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Finding, Grid, Shape
from halofeed.prep.statistics.counts import Counts, count_intensities, merge_counts
from halofeed.prep.statistics.coverage import Coverage, percent_cut
from halofeed.prep.statistics.pictures import in_order
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas.statistics import Intensities, Padding, PixelSums, Statistics

ROW_STEP = 8
_SUMS = ("records", "labelled", "foreground_voxels", "tiles", "scan_mm3", "scan_cut_mm3")
_COUNTS = (
    *("labels", "label_voxels", "findings", "modalities", "spacings_mm", "source_shapes"),
    *("label_mm3", "label_cut_mm3", "scan_cut_percents", "body_cut_percents"),
)


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


class VolumeTally:
    """Counts the records of a shard, each figure by its name in `Statistics`."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = dict.fromkeys(_SUMS, 0)
        self._counts: dict[str, Counter[Any]] = {name: Counter() for name in _COUNTS}
        self._stored_voxels = self._inside_voxels = 0
        self._body = self._foreground = merge_counts(())
        self._largest: Shape = (0, 0, 0)
        self._largest_scan: tuple[int, ...] = (0, 0, 0)

    def add(self, facts: VolumeFacts) -> None:
        """Count one record."""
        sums, counts = self._sums, self._counts
        sums["records"] += 1
        sums["labelled"] += facts.labelled
        sums["foreground_voxels"] += facts.foreground_voxels
        counts["labels"].update(facts.label_voxels.keys())
        counts["label_voxels"].update(facts.label_voxels)
        self._stored_voxels += int(np.prod(facts.shape))
        self._inside_voxels += facts.inside_voxels
        self._body = merge_counts([self._body, facts.body])
        self._foreground = merge_counts([self._foreground, facts.foreground])
        self._largest = facts.shape
        if not facts.first_of_scan:
            sums["tiles"] += 1
            return
        counts["findings"].update(f"{finding.name} ({finding.treatment})" for finding in facts.findings)
        counts["modalities"][facts.modality or "unknown"] += 1
        counts["spacings_mm"]["x".join(f"{side:.2f}" for side in facts.source.spacing_mm)] += 1
        counts["source_shapes"]["x".join(map(str, facts.source.shape))] += 1
        sums["scan_mm3"] += facts.coverage.scan_mm3
        sums["scan_cut_mm3"] += facts.coverage.cut_mm3
        counts["scan_cut_percents"][percent_cut(facts.coverage.cut_share)] += 1
        counts["body_cut_percents"][percent_cut(facts.coverage.body_cut_share)] += 1
        counts["label_mm3"].update(facts.coverage.class_mm3)
        counts["label_cut_mm3"].update(facts.coverage.class_cut_mm3)
        self._largest_scan = tuple(map(max, self._largest_scan, facts.sized))

    def statistics(self) -> Statistics:
        """What was counted; of values the intensities, and no sums of pixels."""
        padded = self._stored_voxels - self._inside_voxels
        counted: dict[str, Any] = {name: in_order(counts) for name, counts in self._counts.items()}
        return Statistics(
            **self._sums,
            **counted,
            pixels=PixelSums(),
            padding=Padding(stored_pixels=self._stored_voxels, padded_pixels=padded),
            intensities=Intensities(body=self._body.to_json(), foreground=self._foreground.to_json()),
            largest=self._largest[1:],
            largest_scan=self._largest_scan,
        )
