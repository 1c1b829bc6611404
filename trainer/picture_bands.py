"""Blending of a picture's predictions from overlapping tiles, by bands of rows.

    ┌────────┬──┬────────┐
    │ tile 0 │  │ tile 1 │  band 0 is complete after tiles 0 and 1
    ├────────┼──┼────────┤  ----
    ├────────┼──┼────────┤  band 1, the rows that both rows of tiles show, is complete after tile 3
    │ tile 2 │  │ tile 3 │
    └────────┴──┴────────┘

Tiles of a picture come row by row, so memory is that of the rows of one tile, however large the picture is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Grid
from halofeed.system.errors import UsageError
from halofeed.trainer.mask_rule import GAUSSIAN, MaskRule
from halofeed.trainer.source_grid import centers_affine, labels_in_source
from halofeed.trainer.windows import window_weight

_MARGIN = 2
"""Rows of a band that are kept for the next one: a row of the source is interpolated between two rows."""

Size = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class PlacedTile:
    """Part of the scaled, displayed picture that a tile shows, without its padding.

    Args:
        origin: (top, left).
        size: (height, width).
    """

    origin: Size
    size: Size


@dataclass(frozen=True, kw_only=True, eq=False)
class BlendedRows:
    """Complete rows of a picture.

    Args:
        top: first row.
        probabilities: float32 [row, column, class]; zeros where no tile shows the picture.
        is_shown: bool [row, column], where a tile shows the picture.
        true: class indices [row, column] of the ground truth; None without one.
    """

    top: int
    probabilities: NDArray[np.float32]
    is_shown: NDArray[np.bool_]
    true: NDArray[np.uint16] | None


class _Strip:
    """Sums of rows between two neighboring borders of tiles."""

    def __init__(self, rows: int, width: int, classes: int) -> None:
        self.sums = np.zeros((classes, rows, width), np.float32)
        self.weights = np.zeros((rows, width), np.float32)
        self.true: NDArray[np.uint16] | None = None

    def band(self, top: int) -> BlendedRows:
        """Return the averages; the sums are overwritten."""
        is_shown = self.weights > 0
        self.sums /= np.maximum(self.weights, np.finfo(np.float32).tiny)
        return BlendedRows(
            top=top, probabilities=np.moveaxis(self.sums, 0, -1), is_shown=is_shown, true=self.true
        )


class BandBlender:
    """Class probabilities of one picture, averaged over its tiles.

    Memory: 4 * (classes + 1) bytes per pixel of the rows that incomplete rows of tiles show. Tiles may come in any
    order, which takes more memory.

    Args:
        tiles: all tiles of the picture in the data by their number.
        whole: (height, width) of the scaled, displayed picture.
        tile_size: (height, width) of a record.
        classes: number of classes, or of regions.
        weights: weights of a tile's pixels, one of `WINDOW_WEIGHTS`.
    """

    def __init__(
        self,
        tiles: Mapping[int, PlacedTile],
        whole: Size,
        tile_size: Size,
        classes: int,
        weights: str = GAUSSIAN,
    ) -> None:
        self._tiles, self._missing, self._width, self._classes = tiles, set(tiles), whole[1], classes
        self._weight = window_weight(tile_size, weights)
        tops = {tile.origin[0] for tile in tiles.values()}
        ends = {tile.origin[0] + tile.size[0] for tile in tiles.values()}
        self._borders = sorted({0, whole[0]} | tops | ends)
        self._awaited = [0] * (len(self._borders) - 1)
        for tile in tiles.values():
            for strip in self._strips_of(tile):
                self._awaited[strip] += 1
        self._open: dict[int, _Strip] = {}
        self._next = 0

    @property
    def missing(self) -> list[int]:
        """Numbers of the tiles that have not been added yet."""
        return sorted(self._missing)

    def add(
        self, number: int, predicted: NDArray[np.generic], true: NDArray[np.generic] | None = None
    ) -> Iterator[BlendedRows]:
        """Add one tile, and yield the bands that are complete by it, from top to bottom.

        Args:
            number: number of the tile.
            predicted: probabilities [height, width, class], or class indices [height, width].
            true: class indices [height, width] of the ground truth.

        Raises:
            UsageError: the tile was added before, or is not in the picture.
        """
        if number not in self._missing:
            raise UsageError(f"tile {number}: was added twice, or is not in this picture")
        self._missing.remove(number)
        tile = self._tiles[number]
        (top, left), (_, width) = tile.origin, tile.size
        for index in self._strips_of(tile):
            first, last = self._borders[index], self._borders[index + 1]
            if index not in self._open:
                self._open[index] = _Strip(last - first, self._width, self._classes)
            rows, columns = slice(first - top, last - top), slice(left, left + width)
            self._add_rows(self._open[index], columns, rows, predicted, true)
            self._awaited[index] -= 1
        yield from self._complete()

    def _add_rows(
        self,
        strip: _Strip,
        columns: slice,
        rows: slice,
        predicted: NDArray[np.generic],
        true: NDArray[np.generic] | None,
    ) -> None:
        shown = predicted[rows, : columns.stop - columns.start]
        weight = self._weight[rows, : columns.stop - columns.start]
        for label, sums in enumerate(strip.sums):
            of_class = shown == label if shown.ndim == 2 else shown[..., label].astype(np.float32)
            sums[:, columns] += weight * of_class
        strip.weights[:, columns] += weight
        if true is not None:
            if strip.true is None:
                strip.true = np.zeros(strip.weights.shape, np.uint16)
            # Tiles of one picture are cut from one label, so they agree.
            strip.true[:, columns] = true[rows, : columns.stop - columns.start]

    def _strips_of(self, tile: PlacedTile) -> range:
        top, height = tile.origin[0], tile.size[0]
        return range(*(int(np.searchsorted(self._borders, row)) for row in (top, top + height)))

    def _complete(self) -> Iterator[BlendedRows]:
        while self._next < len(self._awaited) and not self._awaited[self._next]:
            top, bottom = self._borders[self._next], self._borders[self._next + 1]
            # Rows of which all tiles were dropped are background.
            strip = self._open.pop(self._next, None) or _Strip(bottom - top, self._width, self._classes)
            self._next += 1
            yield strip.band(top)


class BandLabels:
    """Class of each pixel of a source file, written from the bands of its scaled, displayed picture.

    Args:
        out: integers [height, width] in pixels of the file, which are overwritten.
        whole: (height, width) of the scaled, displayed picture.
        transform: [2, 3], transform of any tile to the file, whose signs are those of the EXIF orientation.
        rule: rule by which blended regions become classes.
    """

    def __init__(
        self,
        out: NDArray[np.generic],
        whole: Size,
        transform: NDArray[np.float32],
        rule: MaskRule = MaskRule(),  # noqa: B008
    ) -> None:
        self._rule = rule
        self._out, self._whole = _displayed(out, transform), whole
        self._scale = [shown / side for shown, side in zip(self._out.shape, whole, strict=True)]
        self._kept: NDArray[Any] | None = None
        self._done = 0

    def add(self, band: BlendedRows) -> None:
        """Write the rows that this band completes; bands come from top to bottom."""
        rows, top = self._rule.labels(band.probabilities), band.top
        if self._kept is not None:
            rows, top = np.concatenate([self._kept, rows]), top - len(self._kept)
        bottom = top + len(rows)
        end = self._out.shape[0]
        if bottom < self._whole[0]:
            # The last row whose center is above that of the last row but one.
            end = max(self._done, int(np.floor((bottom - 1.5) * self._scale[0] + 0.5)))
        if end > self._done:
            self._write(rows, top, end)
        needed = max(_MARGIN, bottom - int(self._done / self._scale[0]) + _MARGIN)
        self._kept = rows[-needed:].copy()

    def _write(self, rows: NDArray[Any], top: int, end: int) -> None:
        down, right = self._scale
        to_file = np.array([[down, 0, down * top], [0, right, 0]])
        stored = Grid(shape=(1, *rows.shape[:2]), affine=centers_affine(to_file))
        part = Grid(
            shape=(1, end - self._done, self._out.shape[1]),
            affine=centers_affine(np.array([[1.0, 0, self._done], [0, 1, 0]])),
        )
        self._out[self._done : end] = labels_in_source(rows[None], stored, part)[0]
        self._done = end


def _displayed(out: NDArray[np.generic], transform: NDArray[np.float32]) -> NDArray[np.generic]:
    """Return a view of an array in pixels of the file whose axes are those of the displayed picture."""
    matrix = np.asarray(transform, np.float64).reshape(2, 3)
    # EXIF 2.3, Orientation: 5 to 8 exchange rows and columns.
    if matrix[0, 0] == 0:
        return out.T[:: int(np.sign(matrix[1, 0])), :: int(np.sign(matrix[0, 1]))]
    return out[:: int(np.sign(matrix[0, 0])), :: int(np.sign(matrix[1, 1]))]
