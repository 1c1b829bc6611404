"""Windows of a picture file that its tiles need, before the orientation of the file is applied.

Tiles form a grid, so rows and columns of tiles are planned, and not each tile: 60,000 tiles have 500 of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from halofeed.prep.formats.picture.image import MIRRORED, UPSIDE_DOWN
from halofeed.prep.geometry.picture_tiles import PictureTile, PictureTiles
from halofeed.prep.geometry.resize import Size, displayed_size

_MARGIN = 2
"""Pixels beyond the reach of the triangle filter, for rounding."""


@dataclass(frozen=True, kw_only=True)
class TileSpan:
    """Rows of a file that a row of tiles needs; or its columns, for a column of tiles.

    Args:
        first, end: first pixel in the file, and the one after the last.
        shown: first pixel in the displayed level.
        number: number of the row or column of tiles in the displayed picture.
    """

    first: int
    end: int
    shown: int
    number: int


@dataclass(frozen=True, kw_only=True)
class TileWindows:
    """Windows of a level in the order of the file: of each of its rows, and of each of its columns.

    Args:
        is_turned: whether rows of the file are displayed as columns.
    """

    tiles: PictureTiles
    rows: tuple[TileSpan, ...]
    columns: tuple[TileSpan, ...]
    is_turned: bool

    def tile(self, row: TileSpan, column: TileSpan) -> PictureTile:
        """Return the tile in a row and a column of the file."""
        down, across = (column, row) if self.is_turned else (row, column)
        return self.tiles.tile(down.number * len(self.tiles.lefts) + across.number)

    def corner(self, row: TileSpan, column: TileSpan) -> tuple[int, int]:
        """Return the first row and the first column of a window in the displayed level."""
        return (column.shown, row.shown) if self.is_turned else (row.shown, column.shown)


def axis_window(side: int, scaled: int, start: int, part: int) -> tuple[int, int]:
    """Return the first pixel along one axis that a part of a scaled axis needs, and the one after the last.

    Args:
        side, scaled: pixels of the complete axis, before and after scaling.
        start, part: first pixel and number of pixels of the part, after scaling.

    >>> axis_window(80, 40, 20, 10), axis_window(80, 80, 20, 10)
    ((36, 64), (20, 30))
    """
    if side == scaled:
        return start, start + part
    ratio = side / scaled
    reach = math.ceil(max(ratio, 1.0)) + _MARGIN
    return max(0, math.floor(start * ratio) - reach), min(side, math.ceil((start + part) * ratio) + reach)


def tile_windows(tiles: PictureTiles, level: Size, orientation: int) -> TileWindows:
    """Plan the windows of a level of the file.

    Args:
        level: (height, width) of the level as stored.
        orientation: EXIF orientation of the file, 1 to 8.
    """
    shown = displayed_size(orientation, level)
    axes = [
        _spans(starts, side, scaled, tile, is_reversed=orientation in reverses)
        for starts, side, scaled, tile, reverses in zip(
            (tiles.tops, tiles.lefts),
            shown,
            tiles.scaled_size,
            tiles.tile_size,
            (UPSIDE_DOWN, MIRRORED),
            strict=True,
        )
    ]
    is_turned = orientation >= 5
    rows, columns = reversed(axes) if is_turned else axes
    return TileWindows(tiles=tiles, rows=rows, columns=columns, is_turned=is_turned)


def _spans(
    starts: Sequence[int], side: int, scaled: int, tile: int, *, is_reversed: bool
) -> tuple[TileSpan, ...]:
    spans = []
    for number, start in enumerate(starts):
        first, end = axis_window(side, scaled, start, min(scaled, tile))
        stored = (side - end, side - first) if is_reversed else (first, end)
        spans.append(TileSpan(first=stored[0], end=stored[1], shown=first, number=number))
    return tuple(reversed(spans)) if is_reversed else tuple(spans)
