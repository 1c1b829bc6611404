"""Protocol of the readers of regions: facts of a file, and windows of its pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import NOTHING_STATED, Size, StatedFacts

COLOR_BANDS = {"gray": 1, "gray-alpha": 2, "rgb": 3, "rgba": 4, "bands": None}
"""Number of bands of each value of `RegionFacts.color`; None: any number."""


@dataclass(frozen=True, kw_only=True)
class Georeference:
    """Position of the pixels of level 0 on a map.

    Args:
        to_map: (a, b, c, d, e, f): x = a * column + b * row + c and y = d * column + e * row + f. Columns and rows are
            continuous: the outer corner of the first pixel is (0, 0), and its center is (0.5, 0.5).
        crs: "EPSG:32633" if the file has a code, else WKT; "" if the coordinate system is unknown.

    >>> Georeference(to_map=(10.0, 0.0, 500000.0, 0.0, -10.0, 5200000.0), crs="EPSG:32633").map_point(0.5, 2.5)
    (500025.0, 5199995.0)
    """

    to_map: tuple[float, float, float, float, float, float]
    crs: str = ""

    def map_point(self, row: float, column: float) -> tuple[float, float]:
        """Return the (x, y) on the map of a continuous position in pixels."""
        a, b, c, d, e, f = self.to_map
        return a * column + b * row + c, d * column + e * row + f

    def transform_text(self) -> str:
        """Return `to_map` as a text with every digit.

        >>> Georeference(to_map=(0.5, 0.0, 500000.0, 0.0, -0.5, 5200000.0)).transform_text()
        '0.5, 0.0, 500000.0, 0.0, -0.5, 5200000.0'
        """
        return ", ".join(map(repr, self.to_map))


@dataclass(frozen=True, kw_only=True)
class RegionFacts:
    """Facts of a picture file that its header states.

    Args:
        levels: (height, width) of each resolution as stored, from the largest; level 0 is the full resolution.
        bands: values per pixel.
        dtype: NumPy name of the stored values: "uint8", "uint16", "int16", "float32" and others.
        color: meaning of the bands: "gray", "gray-alpha", "rgb", "rgba", or "bands" for anything else.
        row_steps: rows that are decoded together in each level: the height of a tile or strip; 1 for decoders that
            read row by row.
        column_steps: columns that are decoded together in each level; () if any can be read alone.
        orientation: EXIF orientation, 1 to 8. The reader does not apply it.
        in_order: whether the rows of level 0 can be read only once, from top to bottom, as in JPEG and PNG.
        georeference: position on a map; None if the file has none.
        nodata: value per band that marks a missing pixel; None if the file has none.
        pixel_size_m: (height, width) of a pixel of level 0 in meters; None if the file does not state it.
        notes: what was chosen or left out, for the statistics.
        fills_depth: whether 16-bit values use all bits, so that a dark picture is dark.
        stated: what the file states beside the pixels.

    >>> RegionFacts(levels=((300, 400), (150, 200)), bands=3, dtype="uint8", color="rgb", row_steps=(64, 64)).size
    (300, 400)
    """

    levels: tuple[Size, ...]
    bands: int
    dtype: str
    color: str
    row_steps: tuple[int, ...]
    column_steps: tuple[int, ...] = ()
    orientation: int = 1
    in_order: bool = False
    georeference: Georeference | None = None
    nodata: tuple[float, ...] | None = None
    pixel_size_m: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    fills_depth: bool = False
    stated: StatedFacts = NOTHING_STATED

    def __post_init__(self) -> None:
        if self.color not in COLOR_BANDS:
            raise ValueError(f"color: expected one of {', '.join(COLOR_BANDS)}, got {self.color!r}")
        if COLOR_BANDS[self.color] not in (None, self.bands):
            raise ValueError(f"bands: expected {COLOR_BANDS[self.color]} for {self.color}, got {self.bands}")
        if not self.levels or len(self.row_steps) != len(self.levels):
            raise ValueError(f"row_steps: expected one per level, got {self.row_steps} for {self.levels}")
        if self.nodata is not None and len(self.nodata) != self.bands:
            raise ValueError(f"nodata: expected {self.bands} values, got {len(self.nodata)}")

    @property
    def size(self) -> Size:
        """(height, width) of the full resolution, as stored."""
        return self.levels[0]


class RegionReader(Protocol):
    """Open picture file from which windows are read.

    Every method raises `SourceError` (stage `read` or `decode`) for a file that is damaged or has changed.
    One thread at a time calls a reader.
    """

    @property
    def facts(self) -> RegionFacts:
        """Facts of the header."""

    def read_bytes(self, level: int, height: int, width: int) -> int:
        """Return the maximum memory of `read` for a window of this size, in bytes, beside the returned array."""

    def read(self, level: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return the pixels of a window: [height, width, bands], stored dtype, C order.

        Args:
            level: number of the level, 0 for the full resolution.
            top: first row.
            left: first column.
            height: rows; the window must be inside the level.
            width: columns.
        """

    def read_valid(
        self, level: int, top: int, left: int, height: int, width: int
    ) -> NDArray[np.bool_] | None:
        """Return which pixels of a window exist: bool [height, width]; None if all do.

        A pixel does not exist if its value is nodata, or if the mask of the file excludes it. For a file with
        `facts.in_order`, the window must be the one of the last `read`.
        """

    def close(self) -> None:
        """Release the file and the memory."""


def check_window(facts: RegionFacts, level: int, top: int, left: int, height: int, width: int) -> None:
    """Check that a window is inside a level.

    Raises:
        ValueError: the level does not exist, or the window is empty or extends beyond it.

    >>> facts = RegionFacts(levels=((300, 400),), bands=1, dtype="uint8", color="gray", row_steps=(1,))
    >>> check_window(facts, 0, 200, 0, 101, 400)
    Traceback (most recent call last):
    ValueError: window of rows 200 to 301, columns 0 to 400: expected one inside level 0 of 300 x 400
    """
    if not 0 <= level < len(facts.levels):
        raise ValueError(f"level {level}: expected 0 to {len(facts.levels) - 1}")
    rows, columns = facts.levels[level]
    is_inside = 0 <= top < top + height <= rows and 0 <= left < left + width <= columns
    if not is_inside:
        window = f"rows {top} to {top + height}, columns {left} to {left + width}"
        raise ValueError(f"window of {window}: expected one inside level {level} of {rows} x {columns}")
