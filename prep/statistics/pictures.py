"""What a conversion counts of pictures, per record and per shard.

Everything is a sum of integers, so that the parts may be merged in any grouping and give the same totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.statistics import Cut, Padding, PixelSums, Statistics

ROW_STEP = 8
"""Pixel statistics are taken from each eighth row: of all rows they cost a sixth of a whole conversion."""
_CHUNK_PIXELS = 1 << 24
"""OpenCV counts in float32, which is exact up to here."""
_CHUNK_LABELS = 1 << 20
_WIDE_PIXELS = 1 << 18


ImageSums = tuple[NDArray[np.int64], int, NDArray[np.int64], NDArray[np.int64]]
"""Of one image's pixels: histogram [channel, 256], count, sums [channel], sums of squares [channel]."""


def sum_pixels(pixels: NDArray[Any]) -> ImageSums:
    """The sums of each `ROW_STEP`th row of uint8 or uint16 pixels [height, width, channel]."""
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
    """Voxels of each value that occurs in uint8 or uint16 [...], with any strides; a part at a time."""
    counts = np.zeros(1 << 8 * labels.itemsize, np.int64)
    # In the order of memory: flattening would copy a volume that is seen reversed.
    reversed_axes = tuple(axis for axis, stride in enumerate(labels.strides) if stride < 0)
    labels = np.flip(labels, reversed_axes)
    labels = labels.transpose(sorted(range(labels.ndim), key=lambda axis: -labels.strides[axis]))
    for part in [labels.reshape(-1)] if labels.flags.c_contiguous else labels:
        flat = np.ravel(part)
        for start in range(0, len(flat), _CHUNK_LABELS):
            _add_labels(counts, flat[start : start + _CHUNK_LABELS])
    return {int(value): int(counts[value]) for value in np.flatnonzero(counts)}


def _add_labels(counts: NDArray[np.int64], flat: NDArray[Any]) -> None:
    """Add how often each value occurs, counting runs of equal words of 8 bytes: classes lie in one piece."""
    each = 8 // flat.itemsize
    words = flat[: len(flat) // each * each].view(np.uint64)
    rest = flat[len(words) * each :]
    changes = np.flatnonzero(words[1:] != words[:-1])
    if len(words) and len(changes) < len(words) // 4:
        ends = np.append(changes, len(words) - 1)
        lengths = np.diff(ends, prepend=-1)
        found = np.bincount(words[ends].view(flat.dtype), np.repeat(lengths, each), len(counts))
        counts += found.astype(np.int64)
    else:
        rest = flat
    counted = cv2.calcHist([rest.reshape(-1, 1)], [0], None, [len(counts)], [0, len(counts)])
    counts += counted.ravel().astype(np.int64)


def bin_side(side: int) -> int:
    """A side length rounded to 5 significant bits, so that few distinct sizes are kept.

    >>> bin_side(1), bin_side(31), bin_side(533), bin_side(4032)
    (1, 31, 544, 4096)
    """
    step = 1 << max(0, side.bit_length() - 5)
    return (side + step // 2) // step * step


@lru_cache(maxsize=4096)
def _size_and_ratio(source_size: tuple[int, int]) -> tuple[str, str]:
    height, width = source_size
    return f"{bin_side(height)}x{bin_side(width)}", f"{round(20 * width / height) / 20:.2f}"


@dataclass(kw_only=True)
class Facts:
    """What is counted of one record; `is_tile`: its source has an earlier one."""

    pixel_sums: ImageSums
    stored_size: tuple[int, int]
    picture_size: tuple[int, int]
    source_size: tuple[int, int]
    labels: list[int]
    boxes: int | None
    box_counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    labelled: bool | None = None
    label_voxels: Mapping[int, int] = field(default_factory=dict)
    is_tile: bool = False


@dataclass(kw_only=True)
class PictureTally:
    """Counts the records of a shard."""

    max_boxes: int
    records: int = 0
    pixel_sums: ImageSums | None = None
    stored_pixels: int = 0
    picture_pixels: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    boxes_per_image: Counter[int] = field(default_factory=Counter)
    boxes: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    source_sizes: Counter[str] = field(default_factory=Counter)
    aspect_ratios: Counter[str] = field(default_factory=Counter)
    largest: tuple[int, int] = (0, 0)
    labelled: int | None = None
    label_voxels: Counter[int] = field(default_factory=Counter)
    tiles: int = 0

    def add(self, facts: Facts) -> None:
        """Count one record."""
        self.records += 1
        self.tiles += facts.is_tile
        histogram, count, sums, squares = facts.pixel_sums
        if self.pixel_sums is None:
            self.pixel_sums = histogram.copy(), count, sums.copy(), squares.copy()
        else:
            of_all = self.pixel_sums
            self.pixel_sums = of_all[0] + histogram, of_all[1] + count, of_all[2] + sums, of_all[3] + squares
        self.stored_pixels += facts.stored_size[0] * facts.stored_size[1]
        self.picture_pixels += facts.picture_size[0] * facts.picture_size[1]
        for label in facts.labels:
            self.labels[label] += 1
        if facts.labelled is not None:
            self.labelled = (self.labelled or 0) + facts.labelled
        for value, voxels in facts.label_voxels.items():
            self.label_voxels[value] += voxels
        if facts.boxes is not None:
            self.boxes_per_image[facts.boxes] += 1
        for name, count in facts.box_counts.items():
            self.boxes[name] += count
        for note in facts.notes:
            self.notes[note] += 1
        for warning in facts.warnings:
            self.warnings[warning] += 1
        size, ratio = _size_and_ratio(facts.source_size)
        self.source_sizes[size] += 1
        self.aspect_ratios[ratio] += 1
        self.largest = (
            max(self.largest[0], facts.stored_size[0]),
            max(self.largest[1], facts.stored_size[1]),
        )

    def statistics(self) -> Statistics:
        """What was counted."""
        over = {count: images for count, images in self.boxes_per_image.items() if count > self.max_boxes}
        pixels = PixelSums()
        if self.pixel_sums is not None:
            histogram, count, sums, squares = self.pixel_sums
            pixels = PixelSums(
                count=count,
                sum=tuple(sums.tolist()),
                sum_squares=tuple(squares.tolist()),
                histogram=tuple(map(tuple, histogram.tolist())),
            )
        counted = Statistics(
            records=self.records,
            pixels=pixels,
            padding=Padding(
                stored_pixels=self.stored_pixels, padded_pixels=self.stored_pixels - self.picture_pixels
            ),
            labels=in_order(self.labels),
            boxes_per_image=in_order(self.boxes_per_image),
            boxes=in_order(self.boxes),
            cut=Cut(
                images=sum(over.values()),
                boxes=sum((count - self.max_boxes) * images for count, images in over.items()),
            ),
            notes=in_order(self.notes),
            warnings=in_order(self.warnings) or None,
            tiles=self.tiles or None,
            source_sizes=in_order(self.source_sizes),
            aspect_ratios=in_order(self.aspect_ratios),
            largest=self.largest,
        )
        if self.labelled is None:
            return counted
        return replace(
            counted,
            labelled=self.labelled,
            label_voxels=in_order(self.label_voxels),
            foreground_voxels=sum(count for value, count in self.label_voxels.items() if value),
        )


def in_order(counts: Mapping[Any, int]) -> dict[str, int]:
    """Counts above 0 as JSON, by ascending key."""
    return {str(key): counts[key] for key in sorted(counts) if counts[key]}
