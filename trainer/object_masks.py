"""Masks of objects in pixels of the source file, as COCO's run lengths.

    positions of the mask head          pixels of the record          pixels of the source
    every `stride`-th pixel     <──      inverse transform     <──      center of each pixel

Each source pixel takes the value between the four positions around it, so that the border of a mask is finer than the
positions. Only the part of the source is computed that can be inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halofeed.prep.voxels.run_lengths import compress_counts
from halofeed.system.errors import UsageError
from halofeed.trainer.detection.pixel_boxes import HALF_LEVEL
from halofeed.trainer.record_metadata import RecordMetadata

RunLengths = dict[str, Any]
"""COCO's compressed form: {"size": [height, width], "counts": "..."}."""
PlacedMask = tuple[int, int, NDArray[np.bool_]]
"""First row, first column, and pixels from there on."""
_Line = tuple[int, NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskPlacement:
    """Place of a record in its source.

    Args:
        transform: [2, 3], the record's transform, as for `boxes_in_source`; the axes of both are parallel.
        image_size: (height, width) of the record's image, including padding.
        source_size: (height, width) of the source file's own pixels.

    Raises:
        UsageError: the transform turns by other angles than quarters.
    """

    transform: NDArray[np.float64]
    image_size: tuple[int, int]
    source_size: tuple[int, int]

    def __post_init__(self) -> None:
        straight, turned = (abs(self.transform[:, :2][[0, 1], axes]).max() for axes in ([0, 1], [1, 0]))
        if min(straight, turned) > 1e-6 * max(straight, turned):
            raise UsageError(
                f"transform: expected one of parallel axes, got {self.transform.tolist()}; predict records without "
                "augmentation"
            )

    @property
    def is_turned(self) -> bool:
        """Return whether rows of the source are columns of the record."""
        return bool(abs(self.transform[0, 1]) > abs(self.transform[0, 0]))

    def mask(self, levels: NDArray[np.uint8], stride: int) -> PlacedMask:
        """Return the mask of one object in the source: its first row and column, and its pixels from there.

        Args:
            levels: [row, column], 255 times the probability at every `stride`-th pixel of the record; more than
                `HALF_LEVEL` between the four positions around the center of a source pixel is inside.
            stride: pixels between two positions.
        """
        (top, rows), (left, columns), values = self._near(levels, stride)
        between = _interpolated(values, rows / stride - 0.5)
        return top, left, _interpolated(between.T, columns / stride - 0.5).T > HALF_LEVEL

    def nearest(self, mask: NDArray[np.uint8]) -> PlacedMask:
        """Return the same of a mask [height, width] of 0 and 1, by the pixel that contains a source pixel's center."""
        (top, rows), (left, columns), values = self._near(mask, 1)
        return top, left, values[np.floor(rows).astype(int)][:, np.floor(columns).astype(int)] > 0

    def _near(self, values: NDArray[Any], stride: int) -> tuple[_Line, _Line, NDArray[Any]]:
        """Return the source rows and columns that can be inside, and the values, with rows of the source as rows."""
        if self.is_turned:
            values = values.T
        spans = [np.flatnonzero(values.any(axis)) for axis in (1, 0)]
        if not len(spans[0]):
            return (0, np.zeros(0)), (0, np.zeros(0)), values
        rows, columns = (self._line(axis, stride, spans[axis]) for axis in (0, 1))
        return rows, columns, values

    def _line(self, axis: int, stride: int, span: NDArray[np.int64]) -> _Line:
        """Return the first source row (or column) near a span of positions, and where each is in the record."""
        of_record = 1 - axis if self.is_turned else axis
        scale, offset = self.transform[axis, of_record], self.transform[axis, 2]
        place = (np.arange(self.source_size[axis]) + 0.5 - offset) / scale
        # A tile shows a part of its source, and its masks end with it.
        shown = (place > 0) & (place < self.image_size[of_record])
        reached = (place > (span[0] - 0.5) * stride) & (place < (span[-1] + 1.5) * stride)
        near = np.flatnonzero(shown & reached)
        if not len(near):
            return 0, np.zeros(0)
        return int(near[0]), place[near[0] : near[-1] + 1]


def placement_in_source(record: RecordMetadata, image_size: Sequence[int]) -> MaskPlacement:
    """Return the place of a record of a picture in its source."""
    height, width = image_size
    return MaskPlacement(
        transform=np.asarray(record.numbers["transform"], np.float64).reshape(2, 3),
        image_size=(height, width),
        source_size=record.source_size,
    )


def _interpolated(values: NDArray[Any], positions: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return rows between the rows of an array, by their positions; beyond the first and the last they are these."""
    positions = positions.clip(0, len(values) - 1)
    low = np.floor(positions).astype(np.int64)
    share = (positions - low)[:, None].astype(np.float32)
    high = np.minimum(low + 1, len(values) - 1)
    first = values[low].astype(np.float32)
    return np.asarray(first + share * (values[high] - first), np.float32)


def encode_at(top: int, left: int, mask: NDArray[np.bool_], size: Sequence[int]) -> RunLengths:
    """Return a mask [row, column] that begins at (top, left) of a picture as COCO's compressed run lengths.

    >>> encode_at(1, 1, np.ones((2, 1), bool), (3, 3))
    {'size': [3, 3], 'counts': '423'}
    """
    height, width = size
    # Run lengths go down the columns. A pixel of nothing above and below each column ends its runs.
    columns = np.zeros((mask.shape[1], mask.shape[0] + 2), np.bool_)
    columns[:, 1:-1] = mask.T
    changes = np.flatnonzero(np.diff(columns.reshape(-1)))
    column, row = np.divmod(changes, columns.shape[1])
    changes = (left + column) * height + top + row
    # A run to the bottom of the picture goes on at the top of the next column.
    goes_on = np.flatnonzero(changes[1:-1:2] == changes[2::2])
    changes = np.delete(changes, np.concatenate([2 * goes_on + 1, 2 * goes_on + 2]))
    counts = np.diff(changes, prepend=0, append=height * width).tolist()
    # A mask that ends with the picture has no last run.
    if len(counts) > 1 and not counts[-1]:
        counts.pop()
    return {"size": [height, width], "counts": compress_counts(counts)}


def union(masks: Sequence[PlacedMask]) -> PlacedMask:
    """Return the pixels that are inside any of several masks of one picture, as the pieces of an object in its tiles.

    >>> top, left, pixels = union([(0, 1, np.ones((1, 1), bool)), (1, 0, np.ones((1, 1), bool))])
    >>> top, left, pixels.astype(int).tolist()
    (0, 0, [[0, 1], [1, 0]])
    """
    shown = [one for one in masks if one[2].size]
    if len(shown) < 2:
        return shown[0] if shown else (0, 0, np.zeros((0, 0), np.bool_))
    top, left = min(row for row, _, _ in shown), min(column for _, column, _ in shown)
    bottom = max(row + len(part) for row, _, part in shown)
    right = max(column + part.shape[1] for _, column, part in shown)
    pixels = np.zeros((bottom - top, right - left), np.bool_)
    for first_row, first_column, part in shown:
        rows, columns = first_row - top, first_column - left
        pixels[rows : rows + part.shape[0], columns : columns + part.shape[1]] |= part
    return top, left, pixels


def predicted_masks(masks: NDArray[np.uint8], stride: int, placement: MaskPlacement) -> list[RunLengths]:
    """Return masks [detection, row, column] of `Detection.predict` in pixels of the source."""
    return [encode_at(*placement.mask(levels, stride), placement.source_size) for levels in masks]


def true_masks(masks: NDArray[np.uint8], placement: MaskPlacement) -> list[RunLengths]:
    """Return masks [object, height, width] of 0 and 1 of a record in pixels of the source, by the nearest pixel."""
    return [encode_at(*placement.nearest(mask), placement.source_size) for mask in masks]


def box_mask(box: ArrayLike, size: Sequence[int]) -> RunLengths:
    """Return the pixels whose centers are in a box (ymin, xmin, ymax, xmax in pixels) as run lengths."""
    top, left, bottom, right = np.ceil(np.asarray(box, np.float64) - 0.5).astype(int).tolist()
    return encode_at(top, left, np.ones((bottom - top, right - left), np.bool_), size)


def object_numbers(masks: NDArray[Any], level: float) -> NDArray[np.uint16]:
    """Return the number, from 1, of the first mask that contains each pixel; 0 for none.

    Args:
        masks: [object, height, width].
        level: value above which a pixel is inside.

    >>> object_numbers(np.array([[[0, 1]], [[1, 1]]]), 0).tolist()
    [[2, 1]]
    """
    found = np.zeros(masks.shape[1:], np.uint16)
    for number in range(len(masks), 0, -1):
        found[masks[number - 1] > level] = number
    return found
