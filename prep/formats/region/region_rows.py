"""Bands of rows of a picture file, read once from top to bottom, out of which tiles are cut.

level        ┌──────────────┐
first band   │▒▒▒▒▒▒▒▒▒▒▒▒▒▒│
             │██████████████│   rows of two bands are kept from the first one, and not decoded again
second band  │▒▒▒▒▒▒▒▒▒▒▒▒▒▒│
             └──────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.region.region_reader import RegionReader
from halofeed.prep.geometry.resize import Size

Pixels = NDArray[Any]
Valid = NDArray[np.bool_] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """Rows of a level, or some of their columns.

    Args:
        top, left: position in the level.
        pixels: [height, width, channel].
        valid: bool [height, width], False for missing pixels; None if none is missing.
    """

    top: int
    left: int
    pixels: Pixels
    valid: Valid

    def cut(self, top: int, left: int, height: int, width: int) -> tuple[Pixels, Valid]:
        """Return a window, given in pixels of the level, and which of its pixels exist."""
        rows = slice(top - self.top, top - self.top + height)
        columns = slice(left - self.left, left - self.left + width)
        valid = None if self.valid is None else self.valid[rows, columns]
        return self.pixels[rows, columns], valid


class RowReader:
    """Reader of bands of one range of columns of a level. Each row is decoded once.

    Args:
        reader: open file.
        level: number of the level.
        columns: first column, and the one after the last.
        bands: numbers of the bands to keep, from 0; None for all.
        finds_missing: whether to read which pixels are missing.
    """

    def __init__(
        self,
        reader: RegionReader,
        level: int,
        columns: tuple[int, int],
        bands: Sequence[int] | None = None,
        *,
        finds_missing: bool = True,
    ) -> None:
        self._reader, self._level, self._finds_missing = reader, level, finds_missing
        self._left, self._right = columns
        self._bands = None if bands is None else list(bands)
        self._step = reader.facts.row_steps[level]
        self._held: Band | None = None

    def rows(self, top: int, bottom: int, next_top: int) -> Band:
        """Return the rows from `top` to `bottom`, and keep those from `next_top` on for the next call.

        Args:
            top: first row; not above the `next_top` of the call before.
            bottom: the row after the last one.
            next_top: first row of the next call.
        """
        held, self._held = self._held, None
        height, _ = self._reader.facts.levels[self._level]
        # Rows are decoded in steps, so what is left of a step is kept and not decoded again.
        end = min(height, -(-bottom // self._step) * self._step)
        band = self._joined(held, top, end)
        if next_top < end:
            self._held = Band(
                top=next_top,
                left=self._left,
                pixels=_kept(band.pixels, next_top - top),
                valid=None if band.valid is None else _kept(band.valid, next_top - top),
            )
        return band

    def _joined(self, held: Band | None, top: int, end: int) -> Band:
        """Return the rows from `top` to `end`: those that are held, and new ones."""
        first = top if held is None else held.top + len(held.pixels)
        if held is not None and first >= end:
            pixels, valid = held.cut(top, self._left, end - top, self._right - self._left)
            return Band(top=top, left=self._left, pixels=pixels, valid=valid)
        # A reader of rows in order must read the rows between two bands too.
        pixels, valid = self._read(first, end)
        if held is None or first <= top:
            return Band(
                top=top, left=self._left, pixels=pixels[top - first :], valid=_rest(valid, top - first)
            )
        before, before_valid = held.cut(top, self._left, first - top, self._right - self._left)
        if valid is None and before_valid is None:
            return Band(top=top, left=self._left, pixels=np.concatenate([before, pixels]), valid=None)
        every = [
            np.ones(part.shape[:2], np.bool_) if one is None else one
            for part, one in ((before, before_valid), (pixels, valid))
        ]
        return Band(
            top=top,
            left=self._left,
            pixels=np.concatenate([before, pixels]),
            valid=np.concatenate(every),
        )

    def _read(self, first: int, end: int) -> tuple[Pixels, Valid]:
        window = (self._level, first, self._left, end - first, self._right - self._left)
        pixels = self._reader.read(*window)
        valid = self._reader.read_valid(*window) if self._finds_missing else None
        return (pixels if self._bands is None else pixels[..., self._bands]), valid


def _rest(valid: Valid, first: int) -> Valid:
    return None if valid is None else valid[first:]


def _kept(lines: NDArray[Any], first: int) -> NDArray[Any]:
    """Return the rows from `first` on, as a copy if that frees more memory than it takes.

    A block may have more rows than many bands, up to those of the complete picture, and each band would copy what is
    left of it.
    """
    left = lines[first:]
    owner = lines if lines.base is None else lines.base
    return left.copy() if 2 * left.nbytes < owner.nbytes else left


def column_ranges(
    windows: Sequence[tuple[int, int]], row_bytes: int, band_rows: int, limit_bytes: float
) -> list[tuple[int, int]]:
    """Group neighboring windows of columns, so that a band of each group has at most `limit_bytes`.

    Args:
        windows: first column of each tile, and the one after its last, in order.
        row_bytes: bytes of one pixel.
        band_rows: rows of a band.
        limit_bytes: most bytes of a band with several windows.

    Returns:
        The number of the first window of each group, and that after its last.

    >>> column_ranges([(0, 10), (8, 18), (16, 26)], 1, 10, 200)
    [(0, 2), (2, 3)]
    """
    groups: list[tuple[int, int]] = []
    first = 0
    for number in range(1, len(windows) + 1):
        is_last = number == len(windows)
        if is_last or (windows[number][1] - windows[first][0]) * row_bytes * band_rows > limit_bytes:
            groups.append((first, number))
            first = number
    return groups


def enough_level(levels: Sequence[Size], needed: Size) -> int:
    """Return the smallest level that has at least the needed (height, width); level 0 if none has.

    >>> enough_level([(400, 400), (200, 200), (100, 100)], (150, 150))
    1
    """
    found = 0
    for number, size in enumerate(levels):
        if size[0] >= needed[0] and size[1] >= needed[1] and size <= levels[found]:
            found = number
    return found
