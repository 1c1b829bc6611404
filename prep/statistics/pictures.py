"""What a conversion counts of pictures, per record and per shard.

Everything is a sum of integers, so that the parts may be merged in any grouping and give the same totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.voxels.memory_order import in_memory_order
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
    labels, _ = in_memory_order(labels)  # flattening would copy a volume that is seen reversed
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


def in_order(counts: Mapping[Any, int]) -> dict[str, int]:
    """Counts above 0 as JSON, by ascending key."""
    return {str(key): counts[key] for key in sorted(counts) if counts[key]}


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


_COUNTS = (
    *("labels", "boxes_per_image", "boxes", "notes", "warnings", "source_sizes", "aspect_ratios"),
    "label_voxels",
)


class PictureTally:
    """Counts the records of a shard, each figure by its name in `Statistics`."""

    def __init__(self, max_boxes: int) -> None:
        self._max_boxes = max_boxes
        self._counts: dict[str, Counter[Any]] = {name: Counter() for name in _COUNTS}
        self._records = self._tiles = self._stored_pixels = self._picture_pixels = 0
        self._labelled: int | None = None
        self._pixel_sums: ImageSums | None = None
        self._largest: tuple[int, ...] = (0, 0)

    def add(self, facts: Facts) -> None:
        """Count one record."""
        counts = self._counts
        self._records += 1
        self._tiles += facts.is_tile
        if self._pixel_sums is not None:
            histogram, count, sums, squares = map(add, self._pixel_sums, facts.pixel_sums)
            self._pixel_sums = histogram, count, sums, squares
        else:
            self._pixel_sums = facts.pixel_sums
        self._stored_pixels += facts.stored_size[0] * facts.stored_size[1]
        self._picture_pixels += facts.picture_size[0] * facts.picture_size[1]
        counts["labels"].update(facts.labels)
        counts["boxes"].update(facts.box_counts)
        counts["notes"].update(facts.notes)
        counts["warnings"].update(facts.warnings)
        counts["label_voxels"].update(facts.label_voxels)
        if facts.labelled is not None:
            self._labelled = (self._labelled or 0) + facts.labelled
        if facts.boxes is not None:
            counts["boxes_per_image"][facts.boxes] += 1
        size, ratio = _size_and_ratio(facts.source_size)
        counts["source_sizes"][size] += 1
        counts["aspect_ratios"][ratio] += 1
        self._largest = tuple(map(max, self._largest, facts.stored_size))

    def statistics(self) -> Statistics:
        """What was counted; None for what no record of this task has."""
        pixels = PixelSums()
        if self._pixel_sums is not None:
            histogram, count, sums, squares = self._pixel_sums
            pixels = PixelSums(
                count=count,
                sum=tuple(sums.tolist()),
                sum_squares=tuple(squares.tolist()),
                histogram=tuple(map(tuple, histogram.tolist())),
            )
        over = {
            boxes - self._max_boxes: images
            for boxes, images in self._counts["boxes_per_image"].items()
            if boxes > self._max_boxes
        }
        padded = self._stored_pixels - self._picture_pixels
        named: dict[str, Any] = {name: in_order(counts) for name, counts in self._counts.items()}
        named["warnings"] = named["warnings"] or None
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
            cut=Cut(images=sum(over.values()), boxes=sum(boxes * images for boxes, images in over.items())),
            tiles=self._tiles or None,
            largest=self._largest,
        )
