"""Outliers among scans and the structures of label maps: units, spacings, missing classes, volumes and mean values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.mask_faults import MaskTable, has_label_maps, mask_faults
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.robust import FEWEST, Limits, unusual
from halofeed.inspection.review.suspects import Suspect, SuspectKind
from halofeed.inspection.stored_records import is_volumetric
from halofeed.schemas import measures

_USUAL_CLASS: Final = 0.95
"""Share of the labeled records from which a class is usual."""
_UNIT: Final = Limits(least=np.log(3), fewest=10, quantile=0.75, largest_share=0.25)
_OFFSET: Final = Limits(least=0.4, fewest=10, quantile=0.75, largest_share=0.25)
"""Limits of units. They are properties of a source of scans, so a quarter of the scans may have another one. 0 to 255
instead of -1000 to 400 is a factor of 5 of the range, and an offset of 1024 is 0.7 of the range."""
_SPACING: Final = Limits(least=np.log(1.8))
_VOLUME: Final = Limits(least=np.log(1.7))
_VALUE: Final = Limits(least=1.0)
_LEAST_VALUE: Final = 0.03
"""Difference of mean values that matters, as a share of the range of a scan: 40 of 1,400 HU."""


class ScanKind(SuspectKind):
    """Kinds of unusual scans."""

    # fmt: off
    UNIT = ("other intensity unit", "The range of its values differs from the others by a factor or an offset.",
        "Convert it apart, with --offset-hu where HU are stored without their offset, or correct the source.")
    SPACING = ("other spacing", "Its voxels are far smaller or larger than those of the other scans.",
        "Check the header; --spacing-mm resamples all scans to one spacing.")
    MISSING = ("missing class", "Nearly all other labels have the class.",
        "Look whether the structure was removed or its label was forgotten.")
    VOLUME = ("rare volume of a class", "The class is far smaller or larger than in the other scans.",
        "Look whether the label is complete, and of the right structure.")
    VALUE = ("rare mean value of a class", "The mean of the scan within the class is far from that of the other scans.",
        "Look whether the label is of the right structure, or lies beside it.")
    # fmt: on


def scan_outliers(reviewed: ReviewedSet) -> Iterator[Suspect]:
    """Yield the scans with other units and spacings, and the labels with unusual structures."""
    other_units = np.zeros(len(reviewed), bool)
    if is_volumetric(reviewed.manifest):
        for suspect_record, suspect in _units(reviewed):
            other_units[suspect_record] = True
            yield suspect
        yield from _spacings(reviewed)
    if has_label_maps(reviewed):
        table = MaskTable.read(reviewed)
        yield from _missing(reviewed, table)
        yield from mask_faults(reviewed, table)
        if is_volumetric(reviewed.manifest):
            yield from _volumes(reviewed, table)
            yield from _values(reviewed, table, ~other_units)


def _suspect(reviewed: ReviewedSet, kind: ScanKind, record: int, score: float, words: str) -> Suspect:
    return Suspect(kind=kind, places=(reviewed.place(record),), score=abs(score), words=words)


def _units(reviewed: ReviewedSet) -> Iterator[tuple[int, Suspect]]:
    """Yield the scans whose values have another range, or another lowest value, than the others."""
    low, high = reviewed.measure(measures.LOW_VALUE), reviewed.measure(measures.HIGH_VALUE)
    ranges = high - low
    # A scan of one value has no unit.
    varied = ranges > 0
    if not varied.any():
        return
    logs = np.full(len(ranges), np.nan)
    logs[varied] = np.log(ranges[varied])
    usual_range, usual_low = float(np.median(ranges[varied])), float(np.nanmedian(low[varied]))
    factors = unusual(logs, _UNIT)
    offsets = unusual(np.where(varied, low / usual_range, np.nan), _OFFSET)
    for record in np.flatnonzero((np.abs(factors) > 1) | (np.abs(offsets) > 1)).tolist():
        score = max(abs(float(factors[record])), abs(float(offsets[record])))
        words = (
            f"values from {low[record]:g} to {high[record]:g} (1st and 99th percentile), "
            f"usual {usual_low:g} to {usual_low + usual_range:g}"
        )
        yield record, _suspect(reviewed, ScanKind.UNIT, record, score, words)


def _spacings(reviewed: ReviewedSet) -> Iterator[Suspect]:
    columns = np.stack([reviewed.measure(name) for name in measures.SPACINGS_MM], 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.stack([unusual(np.log(column), _SPACING) for column in columns.T], 1)
    found = np.flatnonzero((np.abs(scores) > 1).any(1)).tolist()
    usual = _millimeters(np.nanmedian(columns, 0)) if found else ""
    for record in found:
        score = float(np.abs(scores[record]).max())
        words = f"voxels of {_millimeters(columns[record])} mm (depth x height x width), usual {usual}"
        yield _suspect(reviewed, ScanKind.SPACING, record, score, words)


def _millimeters(sides: NDArray[np.float64]) -> str:
    return " x ".join(f"{side:.3g}" for side in sides.tolist())


def _missing(reviewed: ReviewedSet, table: MaskTable) -> Iterator[Suspect]:
    """Yield the labels without a class that nearly all others have."""
    count = len(table.labeled)
    if count < FEWEST:
        return
    for identity, rows in table.of_class.items():
        having = {row.record for row in rows}
        # A crop may cut a class off; what the source has is measured.
        volumes = reviewed.measure(measures.of_class(measures.CLASS_MM3, identity))
        lacking = [
            record
            for record in table.labeled.tolist()
            if record not in having and not np.isfinite(volumes[record])
        ]
        if not lacking or len(lacking) > (1 - _USUAL_CLASS) * count:
            continue
        words = f"no {_name(reviewed, identity)}, which {count - len(lacking):,} of {count:,} labels have"
        for record in lacking:
            yield _suspect(reviewed, ScanKind.MISSING, record, 1.0, words)


def _volumes(reviewed: ReviewedSet, table: MaskTable) -> Iterator[Suspect]:
    """Yield the structures of unusual volume; what an edge cuts is not too small."""
    for identity, rows in table.of_class.items():
        volumes = reviewed.measure(measures.of_class(measures.CLASS_MM3, identity))
        is_cut = np.zeros(len(volumes), bool)
        is_cut[[row.record for row in rows if any(row.faces)]] = True
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = unusual(np.log(volumes), _VOLUME)
        for record in np.flatnonzero((scores > 1) | ((scores < -1) & ~is_cut)).tolist():
            usual = float(np.nanmedian(volumes)) / 1000
            words = f"{_name(reviewed, identity)} of {volumes[record] / 1000:,.3g} ml, usual {usual:,.3g} ml"
            yield _suspect(reviewed, ScanKind.VOLUME, record, float(scores[record]), words)


def _values(reviewed: ReviewedSet, table: MaskTable, one_unit: NDArray[np.bool_]) -> Iterator[Suspect]:
    """Yield the structures of unusual mean value, among the scans of one unit."""
    ranges = reviewed.measure(measures.HIGH_VALUE) - reviewed.measure(measures.LOW_VALUE)
    if not np.isfinite(ranges[one_unit]).any():
        return
    least = max(_LEAST_VALUE * float(np.nanmedian(ranges[one_unit])), np.finfo(np.float32).tiny)
    for identity in table.of_class:
        means = reviewed.measure(measures.of_class(measures.CLASS_MEAN, identity))
        scores = unusual(np.where(one_unit, means / least, np.nan), _VALUE)
        for record in np.flatnonzero(np.abs(scores) > 1).tolist():
            usual = float(np.nanmedian(means[one_unit]))
            words = f"mean value {means[record]:.4g} within {_name(reviewed, identity)}, usual {usual:.4g}"
            yield _suspect(reviewed, ScanKind.VALUE, record, float(scores[record]), words)


def _name(reviewed: ReviewedSet, identity: int) -> str:
    return repr(reviewed.manifest.labels.get(identity, str(identity)))
