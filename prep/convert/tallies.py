"""Statistics of converted records, per record and per shard, and the share of a scan that its records cover."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, product
from operator import add
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Finding, Grid, VolumeShape
from halofeed.prep.geometry.volume_plan import AxisView, Ranges, VolumePlan, full_ranges
from halofeed.prep.voxels.counts import ValueCounts, count_intensities, merge_counts
from halofeed.prep.voxels.intensity import as_numbers, in_memory_order
from halofeed.prep.voxels.label_volumes import CT_FOREGROUND_HU
from halofeed.schemas.color_planes import color_window
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.fields import count_set_members
from halofeed.schemas.findings import FindingName, finding_key
from halofeed.schemas.ledger import LedgerCounter
from halofeed.schemas.statistics import Cut, Intensities, Padding, PixelSums, Statistics

ROW_STEP = 8
"""Pixel statistics use every eighth row, because all rows would take a sixth of a conversion's time."""
_CHUNK_PIXELS = 1 << 24
"""OpenCV counts in float32, which is exact up to this number."""
_CHUNK_LABELS = 1 << 20
"""Labels that are counted at once, which limits the memory of the runs."""
_WIDE_PIXELS = 1 << 18
"""16-bit pixels that are converted to int64 at once, which limits the memory of the squares."""


ImageSums = tuple[NDArray[np.int64], int, NDArray[np.int64], NDArray[np.int64]]
"""Pixel sums of one image: histogram [channel, 256], count, sums [channel], sums of squares [channel]."""
_COMPARED_PIXELS = 1 << 16
"""Pixels that are compared at a time, so that their differences stay in the cache."""


def sum_pixels(pixels: NDArray[Any]) -> ImageSums:
    """Return the sums of every `ROW_STEP`th row of uint8 or uint16 pixels [height, width, channel]."""
    pixels = pixels[::ROW_STEP]
    height, width, channels = pixels.shape
    rows = max(1, _CHUNK_PIXELS // max(1, width))
    histogram = np.zeros((channels, 256), np.int64)
    if pixels.dtype == np.uint8:
        for top in range(0, height, rows):
            part = pixels[top : top + rows]
            for channel in range(channels):
                counted = cv2.calcHist([part], [channel], None, [256], [0, 256])
                histogram[channel] += counted.ravel().astype(np.int64)
        values = np.arange(256, dtype=np.int64)
        return histogram, height * width, histogram @ values, histogram @ values**2
    sums, squares = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
    rows = max(1, _WIDE_PIXELS // max(1, width))
    for top in range(0, height, rows):
        wide = pixels[top : top + rows].reshape(-1, channels).astype(np.int64)
        for channel in range(channels):
            histogram[channel] += np.bincount(wide[:, channel] >> 8, minlength=256)
        sums += wide.sum(0)
        squares += (wide**2).sum(0)
    return histogram, height * width, sums, squares


def count_labels(labels: NDArray[Any]) -> dict[int, int]:
    """Return the number of voxels of each value in uint8 or uint16 [...] with any strides, counted in chunks."""
    counts = np.zeros(1 << 8 * labels.itemsize, np.int64)
    labels, _ = in_memory_order(labels)  # flattening would copy a reversed view of a volume
    for part in [labels.reshape(-1)] if labels.flags.c_contiguous else labels:
        flat = np.ravel(part)
        for start in range(0, len(flat), _CHUNK_LABELS):
            _add_labels(counts, flat[start : start + _CHUNK_LABELS])
    return {int(value): int(counts[value]) for value in np.flatnonzero(counts)}


def _add_labels(counts: NDArray[np.int64], flat: NDArray[Any]) -> None:
    """Add the counts of each value; count runs of equal 8-byte words, because classes are contiguous."""
    each = 8 // flat.itemsize
    words = flat[: len(flat) // each * each].view(np.uint64)
    rest = flat[len(words) * each :]
    changes = np.flatnonzero(words[1:] != words[:-1])
    # Where classes are large, runs are few; noise, such as numbers of instances, is counted value by value.
    if len(words) and len(changes) < len(words) // 4:
        ends = np.append(changes, len(words) - 1)
        lengths = np.diff(ends, prepend=-1)
        found = np.bincount(words[ends].view(flat.dtype), np.repeat(lengths, each), len(counts))
        counts += found.astype(np.int64)
    else:
        rest = flat
    counted = cv2.calcHist([rest.reshape(-1, 1)], [0], None, [len(counts)], [0, len(counts)])
    counts += counted.ravel().astype(np.int64)


def loaded_colors(encoding: str, pixels: NDArray[Any], value: bytes | memoryview) -> NDArray[np.uint8] | None:
    """Return the pixels that the loader makes of a stored value, uint8 [height, width, 3].

    Args:
        encoding: encoding of the picture.
        pixels: the picture, uint8 [height, width, 3].
        value: the stored value.

    Returns:
        The pixels; None for encodings without color planes.
    """
    if not ENCODINGS[encoding].holds_planes:
        return None
    height, width = pixels.shape[:2]
    return color_window(np.frombuffer(value, np.uint8), (height, width), ((0, height), (0, width)))


def count_differences(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how many numbers of two pictures [height, width, channel] differ by 0 to 255 levels, int64 [256].

    >>> count_differences(np.zeros((1, 2, 1), np.uint8), np.array([[[0], [3]]], np.uint8))[:4].tolist()
    [1, 0, 0, 1]
    """
    counts, rows = np.zeros(256, np.int64), max(1, _COMPARED_PIXELS // max(1, first.shape[1]))
    for top in range(0, len(first), rows):
        part = cv2.absdiff(first[top : top + rows], second[top : top + rows])
        counts += cv2.calcHist([part.reshape(1, -1)], [0], None, [256], [0, 256]).ravel().astype(np.int64)
    return counts


def bin_side(side: int) -> int:
    """Round a side length to 5 significant bits, which limits the number of distinct sizes.

    >>> bin_side(1), bin_side(31), bin_side(533), bin_side(4032)
    (1, 31, 544, 4096)
    """
    step = 1 << max(0, side.bit_length() - 5)
    return (side + step // 2) // step * step


@lru_cache(maxsize=4096)
def _size_and_ratio(source_size: tuple[int, int]) -> tuple[str, str]:
    height, width = source_size
    return f"{bin_side(height)}x{bin_side(width)}", f"{round(20 * width / height) / 20:.2f}"


def in_order(counts: Mapping[Any, int]) -> dict[str, int]:
    """Return the counts above 0 for JSON, sorted by key."""
    return {str(key): counts[key] for key in sorted(counts) if counts[key]}


@dataclass(kw_only=True)
class PictureFacts:
    """Facts about one record for the statistics.

    `is_tile` says that its source has an earlier record, and `counts_source` that it counts the size of its source.
    `stated` are the fields of `kinds.STATED_FIELDS` that the record has.
    """

    pixel_sums: ImageSums
    stored_size: tuple[int, int]
    picture_size: tuple[int, int]
    source_size: tuple[int, int]
    labels: list[int]
    boxes: int | None
    ignored_regions: int = 0
    box_counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    labelled: bool | None = None
    label_voxels: Mapping[int, int] = field(default_factory=dict)
    is_tile: bool = False
    counts_source: bool = True
    ledger: LedgerCounter = field(default_factory=LedgerCounter)
    color_errors: NDArray[np.int64] | None = None
    stated: tuple[str, ...] = ()


_COUNTS = (
    *("labels", "boxes_per_image", "boxes", "notes", "warnings", "source_sizes", "aspect_ratios"),
    *("label_voxels", "ignored_per_image", "stated"),
)


class PictureTally:
    """Statistics of the records of a shard; the names of figures are those in `Statistics`."""

    def __init__(self, max_boxes: int) -> None:
        self._max_boxes = max_boxes
        self._counts: dict[str, Counter[Any]] = {name: Counter() for name in _COUNTS}
        self._records = self._tiles = self._stored_pixels = self._picture_pixels = 0
        self._labelled: int | None = None
        self._pixel_sums: ImageSums | None = None
        self._color_errors: NDArray[np.int64] | None = None
        self._largest: tuple[int, ...] = (0, 0)
        self._ledger = LedgerCounter()

    def add(self, facts: PictureFacts) -> None:
        """Count one record."""
        counts = self._counts
        self._records += 1
        self._ledger.add(facts.ledger)
        self._tiles += facts.is_tile
        if self._pixel_sums is not None:
            histogram, count, sums, squares = map(add, self._pixel_sums, facts.pixel_sums)
            self._pixel_sums = histogram, count, sums, squares
        else:
            self._pixel_sums = facts.pixel_sums
        if facts.color_errors is not None:
            known = 0 if self._color_errors is None else self._color_errors
            self._color_errors = known + facts.color_errors
        self._stored_pixels += facts.stored_size[0] * facts.stored_size[1]
        self._picture_pixels += facts.picture_size[0] * facts.picture_size[1]
        counts["labels"].update(facts.labels)
        counts["boxes"].update(facts.box_counts)
        counts["notes"].update(facts.notes)
        counts["warnings"].update(facts.warnings)
        counts["stated"].update(facts.stated)
        counts["label_voxels"].update(facts.label_voxels)
        # None: the task has no label images; False: this picture has none.
        if facts.labelled is not None:
            self._labelled = (self._labelled or 0) + facts.labelled
        if facts.boxes is not None:
            counts["boxes_per_image"][facts.boxes] += 1
        if facts.ignored_regions:
            counts["ignored_per_image"][facts.ignored_regions] += 1
        size, ratio = _size_and_ratio(facts.source_size)
        counts["source_sizes"][size] += facts.counts_source
        counts["aspect_ratios"][ratio] += facts.counts_source
        self._largest = tuple(map(max, self._largest, facts.stored_size))

    def statistics(self) -> Statistics:
        """Return the statistics, with None where no record of the task has a figure."""
        pixels = PixelSums()
        if self._pixel_sums is not None:
            histogram, count, sums, squares = self._pixel_sums
            pixels = PixelSums(
                count=count,
                sum=tuple(sums.tolist()),
                sum_squares=tuple(squares.tolist()),
                histogram=tuple(map(tuple, histogram.tolist())),
            )
        padded = self._stored_pixels - self._picture_pixels
        named: dict[str, Any] = {name: in_order(counts) for name, counts in self._counts.items()}
        for name in ("warnings", "ignored_per_image", "stated"):
            named[name] = named[name] or None
        if self._color_errors is not None:
            named["color_errors"] = in_order(dict(enumerate(self._color_errors.tolist())))
        if self._labelled is None:
            del named["label_voxels"]
        else:
            voxels = self._counts["label_voxels"]
            named |= {"labelled": self._labelled, "foreground_voxels": voxels.total() - voxels[0]}
        return Statistics(
            **named,
            records=self._records,
            pixels=pixels,
            padding=Padding(stored_pixels=self._stored_pixels, padded_pixels=padded),
            cut=cut_of(self._counts["boxes_per_image"], self._max_boxes),
            tiles=self._tiles or None,
            largest=self._largest,
            ledger=self._ledger.ledger(),
        )


def cut_of(boxes_per_image: Mapping[int, int], max_boxes: int) -> Cut:
    """Return how many images have more than `max_boxes` boxes, and how many boxes these are beyond it.

    >>> cut_of({0: 5, 3: 2, 4: 1}, 2)
    Cut(images=3, boxes=4)
    """
    over = {boxes - max_boxes: images for boxes, images in boxes_per_image.items() if boxes > max_boxes}
    return Cut(images=sum(over.values()), boxes=sum(boxes * images for boxes, images in over.items()))


NOTED_SHARE: Final = 0.01
"""Share of a class outside the records above which a scan gets the finding."""

_EDGE: Final = 1e-6
_MAX_SAMPLES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Volumes in mm³ of a scan and of each class except the background; `cut` volumes are in no record.

    Args:
        class_voxels: voxels of each class in the scan.
        class_cut_voxels: those that are in no record.
        voxel_mm3: volume of one of them, of 6 significant digits: libraries of linear algebra differ in the last bits.
        cut_share: share of the scan's field of view that is in no record, 0 to 1.
        body_cut_share: share of the scan's body that is in no record, 0 to 1.
    """

    scan_mm3: int
    cut_mm3: int
    class_mm3: Mapping[int, int]
    class_cut_mm3: Mapping[int, int]
    class_voxels: Mapping[int, int]
    class_cut_voxels: Mapping[int, int]
    voxel_mm3: float
    cut_share: float = 0.0
    body_cut_share: float = 0.0

    def exact_mm3(self) -> dict[int, float]:
        """Return the volume of each class without a rounding to whole mm³, which a scan of 0.02 mm has few of."""
        return {value: count * self.voxel_mm3 for value, count in self.class_voxels.items()}

    def findings(self) -> tuple[Finding, ...]:
        """Return a finding where a class lost more than `NOTED_SHARE`."""
        # Whole mm³ would round a structure of a microscope's scan away.
        shares = {
            value: cut / self.class_voxels[value] for value, cut in self.class_cut_voxels.items() if cut
        }
        worst = max(shares.values(), default=0.0)
        if worst <= NOTED_SHARE:
            return ()
        return (Finding.noted(FindingName.CLASS_CUT_OFF, f"up to {worst:.1%} of one"),)


def shown_by(plan: VolumePlan) -> Ranges:
    """Return the part of the plan's target that shows the source and is no padding."""
    last = plan.steps[-1] if plan.steps else None
    return last.inside if isinstance(last, AxisView) else full_ranges(plan.target.shape)


def measure_coverage(
    grid: Grid,
    plans: Sequence[VolumePlan],
    labels: NDArray[Any] | None,
    channels: Sequence[int] = (),
    *,
    image: NDArray[Any] | None = None,
) -> Coverage:
    """Measure what the records of one scan leave out, all tiles together.

    Args:
        grid: grid of the scan, from which each plan leads to a record.
        labels: class ids [depth, height, width] on that grid, below 65,536; None without a label.
        channels: class id of each bit, for labels that are sets of classes.
        image: scan [depth, height, width] on that grid, to measure its body.
    """
    if labels is not None and labels.dtype.itemsize > 2:
        labels = labels.astype(np.uint16)
    voxel_mm3 = abs(float(np.linalg.det(grid.affine[:3, :3])))
    shares = _shares(grid.shape, plans)
    kept = _kept_share(grid, plans, shares)
    total, shown = ({}, {}) if labels is None else _count_classes(labels, plans, shares)
    if channels:
        total, shown = count_set_members(total, channels), count_set_members(shown, channels)
    scan_mm3 = math.prod(grid.shape) * voxel_mm3
    return Coverage(
        scan_mm3=round(scan_mm3),
        cut_mm3=round(scan_mm3 * (1 - kept)),
        class_mm3={value: max(1, round(count * voxel_mm3)) for value, count in total.items() if value},
        class_cut_mm3={
            value: round((count - shown.get(value, 0)) * voxel_mm3) for value, count in total.items() if value
        },
        class_voxels={value: count for value, count in total.items() if value},
        class_cut_voxels={
            value: max(0, round(count - shown.get(value, 0))) for value, count in total.items() if value
        },
        voxel_mm3=float(f"{voxel_mm3:.6g}"),
        cut_share=1 - kept,
        body_cut_share=0.0 if image is None or kept >= 1 else _body_cut_share(image, shares, plans),
    )


def _kept_share(
    grid: Grid, plans: Sequence[VolumePlan], shares: Sequence[NDArray[np.float64]] | None
) -> float:
    """Return the share of a grid's voxels that records show; from evenly spaced ones where axes have no shares."""
    if shares is not None:
        return math.prod(float(share.mean()) for share in shares)
    step = _sampling_step(math.prod(grid.shape))
    sampled = np.stack(np.meshgrid(*(np.arange(0, side, step) for side in grid.shape), indexing="ij"), -1)
    return float(_inside(sampled.reshape(-1, 3), plans).mean())


def _count_classes(
    labels: NDArray[Any], plans: Sequence[VolumePlan], shares: Sequence[NDArray[np.float64]] | None
) -> tuple[Mapping[int, int], Mapping[int, float]]:
    """Return the voxels of each class, and those that records show."""
    if shares is not None:
        return _count_shown(labels, shares)
    total, lost = count_labels(labels), _count_lost(labels, plans)
    return total, {value: count - lost[value] for value, count in total.items()}


def _body_cut_share(
    image: NDArray[Any], shares: Sequence[NDArray[np.float64]] | None, plans: Sequence[VolumePlan]
) -> float:
    """Return the share of the body's voxels that no record shows, from evenly spaced samples of large scans.

    The body is the part above -500 HU, or above the mean of a scan without values below that.
    """
    step = _sampling_step(image.size)
    sample = image[::step, ::step, ::step]
    is_ct = float(sample.min()) <= CT_FOREGROUND_HU
    body = sample > (CT_FOREGROUND_HU if is_ct else float(sample.mean(dtype=np.float64)))
    # A scan of one value has no body.
    if not body.any():
        return 0.0
    if shares is None:
        return 1 - float(_inside(np.argwhere(body) * step, plans).mean())
    # Each voxel of the body counts with the product of its shares along the axes.
    depth, height, width = (share[::step] for share in shares)
    return max(0.0, 1 - float(depth @ (body @ width @ height)) / int(body.sum()))


def _sampling_step(voxels: int) -> int:
    return max(1, math.ceil(math.cbrt(voxels / _MAX_SAMPLES)))


def percent_cut(share: float) -> int:
    """Return a share in percent, rounded up.

    >>> percent_cut(0.0), percent_cut(0.002), percent_cut(8 / 9)
    (0, 1, 89)
    """
    return math.ceil(100 * share - _EDGE)


def _shares(shape: VolumeShape, plans: Sequence[VolumePlan]) -> list[NDArray[np.float64]] | None:
    """Return the share of each source voxel's side that the targets show, along each axis; None for oblique plans."""
    # Tiles overlap and together cover one box, so its ends along each axis are enough.
    low, high = [math.inf] * 3, [-math.inf] * 3
    for plan in plans:
        matrix = plan.to_source
        steps = np.diag(matrix)[:3]
        if (np.abs(matrix[:3, :3] - np.diag(steps)) > _EDGE * np.abs(steps).max()).any() or (
            steps <= 0
        ).any():
            return None
        for axis, (first, last) in enumerate(shown_by(plan)):
            low[axis] = min(low[axis], matrix[axis, 3] + (first - 0.5) * steps[axis])
            high[axis] = max(high[axis], matrix[axis, 3] + (last - 0.5) * steps[axis])
    return [
        np.clip(np.minimum(np.arange(side) + 0.5, b) - np.maximum(np.arange(side) - 0.5, a), 0, 1).round(6)
        for a, b, side in zip(low, high, shape, strict=True)
    ]


def _count_shown(
    labels: NDArray[Any], shares: Sequence[NDArray[np.float64]]
) -> tuple[Counter[int], Counter[int]]:
    """Count each value, and how much of it is shown, by blocks of equal shares."""
    total, shown = Counter[int](), Counter[int]()
    blocks = []
    for share in shares:
        edges = [0, *(np.flatnonzero(np.diff(share)) + 1).tolist(), len(share)]
        blocks.append([(slice(a, b), float(share[a])) for a, b in pairwise(edges)])
    for (depth, a), (height, b), (width, c) in product(*blocks):
        for value, count in count_labels(labels[depth, height, width]).items():
            total[value] += count
            shown[value] += count * (a * b * c)  # type: ignore[assignment]
    return total, shown


def _count_lost(labels: NDArray[Any], plans: Sequence[VolumePlan]) -> Counter[int]:
    """Count the voxels of each value that no record of an oblique plan shows, slice by slice."""
    lost: Counter[int] = Counter()
    for depth, plane in enumerate(labels):
        rows, columns = np.nonzero(plane)
        points = np.stack([np.full(len(rows), depth), rows, columns], 1)
        outside = ~_inside(points, plans)
        # Most slices of a record are shown completely.
        if outside.any():
            lost.update(plane[rows[outside], columns[outside]].tolist())
    return lost


def _inside(points: NDArray[Any], plans: Sequence[VolumePlan]) -> NDArray[np.bool_]:
    """Return which source voxels [n, 3] any plan's target shows."""
    found = np.zeros(len(points), bool)
    for plan in plans:
        matrix = np.linalg.inv(plan.to_source)
        there = points @ matrix[:3, :3].T + matrix[:3, 3]
        low, high = np.array(shown_by(plan), float).T - 0.5
        found |= ((there >= low - _EDGE) & (there <= high + _EDGE)).all(axis=1)
    return found


_SUMS = ("records", "labelled", "foreground_voxels", "tiles", "scan_mm3", "scan_cut_mm3")
_VOLUME_COUNTS = (
    *("labels", "label_voxels", "findings", "modalities", "spacings_mm", "source_shapes"),
    *("label_mm3", "label_cut_mm3", "scan_cut_percents", "body_cut_percents"),
)


@dataclass(frozen=True, kw_only=True)
class ObjectFacts:
    """Facts about the objects of a volume's record.

    Args:
        labels: class id of each object that the record shows.
        counts: numbers of objects by what the conversion did to them; those of the scan are in its first record.
        sizes_mm: numbers of objects of the scan by their longest side, in whole millimeters, rounded up; in the first
            record alone.
    """

    labels: tuple[int, ...]
    counts: Mapping[str, int]
    sizes_mm: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class VolumeFacts:
    """Facts about one record for the statistics; the first tile of a scan has those of the scan.

    Args:
        shape: shape of the record.
        inside_voxels: number of voxels that show the scan and are no padding.
        label_voxels: voxels of each class that occurs; empty without a label.
        foreground_voxels: number of voxels with any class.
        body: counts of the values above the minimum.
        foreground: counts of the values where the label is not 0.
        sized: shape of the scan before it is fitted to the static shape.
        coverage: what all records of the scan show of it.
        ledger: what the conversion did to the information of the scan, for the first of its records.
        objects: facts about the record's objects; None for segmentation.
    """

    shape: VolumeShape
    inside_voxels: int
    labelled: bool
    label_voxels: Mapping[int, int]
    foreground_voxels: int
    body: ValueCounts
    foreground: ValueCounts
    first_of_scan: bool
    source: Grid
    modality: str
    findings: tuple[Finding, ...]
    sized: VolumeShape
    coverage: Coverage
    ledger: LedgerCounter = field(default_factory=LedgerCounter)
    objects: ObjectFacts | None = None

    @property
    def levels(self) -> int:
        """Number of counted values, with the smallest one; more than 1 shows that the record has several."""
        return len(self.body.values) + 1


def count_values(
    image: NDArray[Any], store: str, labels: NDArray[Any] | None, least: float
) -> tuple[ValueCounts, ValueCounts]:
    """Return the counts of the body and the foreground in stored [depth, height, width, channel], first channel."""
    rows = as_numbers(image[:, ::ROW_STEP, :, 0], store)
    body = count_intensities(rows, above=least)
    if labels is None:
        return body, merge_counts(())
    return body, count_intensities(rows, mask=labels[:, ::ROW_STEP])


_OF_LABEL_MAPS = ("labelled", "foreground_voxels", "label_voxels", "label_mm3", "label_cut_mm3")
"""Figures of volumes that only records with a label map have."""


class VolumeTally:
    """Statistics of the records of a shard; the names of figures are those in `Statistics`.

    Args:
        max_boxes: number of boxes that the loader pads to; None for records with a label map.
    """

    def __init__(self, max_boxes: int | None = None) -> None:
        self._max_boxes = max_boxes
        self._objects: dict[str, Counter[Any]] = {
            name: Counter() for name in ("boxes_per_image", "boxes", "box_sizes_mm")
        }
        self._sums: dict[str, Any] = dict.fromkeys(_SUMS, 0)
        self._counts: dict[str, Counter[Any]] = {name: Counter() for name in _VOLUME_COUNTS}
        self._stored_voxels = self._inside_voxels = 0
        self._body = self._foreground = merge_counts(())
        self._largest: VolumeShape = (0, 0, 0)
        self._largest_scan: tuple[int, ...] = (0, 0, 0)
        self._ledger = LedgerCounter()

    def add(self, facts: VolumeFacts) -> None:
        """Count one record."""
        sums, counts = self._sums, self._counts
        sums["records"] += 1
        sums["labelled"] += facts.labelled
        sums["foreground_voxels"] += facts.foreground_voxels
        counts["labels"].update(facts.label_voxels.keys())
        if facts.objects is not None:
            counts["labels"].update(facts.objects.labels)
            self._objects["boxes_per_image"][len(facts.objects.labels)] += 1
            self._objects["boxes"].update(facts.objects.counts)
            self._objects["box_sizes_mm"].update(facts.objects.sizes_mm)
        counts["label_voxels"].update(facts.label_voxels)
        self._stored_voxels += int(np.prod(facts.shape))
        self._inside_voxels += facts.inside_voxels
        self._body = merge_counts([self._body, facts.body])
        self._foreground = merge_counts([self._foreground, facts.foreground])
        self._largest = facts.shape
        if not facts.first_of_scan:
            sums["tiles"] += 1
            return
        self._ledger.add(facts.ledger)
        counts["findings"].update(finding_key(finding.name, finding.treatment) for finding in facts.findings)
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
        """Return the statistics, with intensities instead of sums of pixels."""
        padded = self._stored_voxels - self._inside_voxels
        figures: dict[str, Any] = {name: in_order(counts) for name, counts in self._counts.items()}
        figures |= self._sums
        if self._max_boxes is not None:
            figures = {name: value for name, value in figures.items() if name not in _OF_LABEL_MAPS}
            figures |= {name: in_order(counts) for name, counts in self._objects.items()}
            figures["cut"] = cut_of(self._objects["boxes_per_image"], self._max_boxes)
        return Statistics(
            **figures,
            pixels=PixelSums(),
            padding=Padding(stored_pixels=self._stored_voxels, padded_pixels=padded),
            intensities=Intensities(body=self._body.to_json(), foreground=self._foreground.to_json()),
            largest=self._largest[1:],
            largest_scan=self._largest_scan,
            ledger=self._ledger.ledger(),
        )
