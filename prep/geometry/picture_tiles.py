"""Plan of the tiles that cover a picture larger than a record. No pixel is read here.

The grid is computed in pixels of the scaled, displayed picture, because a grid in source pixels would put the tiles of
a scaled picture between pixels:

    columns of 10, tiles of 4, overlap of at least 1     0 1 2 3 4 5 6 7 8 9
                                                         └─────┘   └─────┘
                                                               └─────┘
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from halofeed.prep.geometry.resize import ResizePlan, Size
from halofeed.prep.geometry.volume_plan import tile_starts
from halofeed.system.errors import SourceError, UsageError
from halofeed.system.wording import plural


@dataclass(frozen=True, kw_only=True)
class PictureTile:
    """One tile of a picture.

    Args:
        number: number of the tile in its picture from 0, row by row.
        plan: sizes and origin of the tile; its `output_size` is the size of the record.
    """

    number: int
    plan: ResizePlan


@dataclass(frozen=True, kw_only=True)
class PictureTiles:
    """Grid of tiles over one picture: as few as possible, evenly spaced, and no pixel is left out.

    Args:
        source_size: displayed (height, width) of the source.
        scaled_size: (height, width) after scaling.
        tile_size: (height, width) of a record.
        tops, lefts: first row of each row of tiles, and first column of each column of tiles, in the scaled picture.
    """

    source_size: Size
    scaled_size: Size
    tile_size: Size
    tops: tuple[int, ...]
    lefts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tops) * len(self.lefts)

    def __iter__(self) -> Iterator[PictureTile]:
        return map(self.tile, range(len(self)))

    def tile(self, number: int) -> PictureTile:
        """Return a tile by its number."""
        row, column = divmod(number, len(self.lefts))
        origin = self.tops[row], self.lefts[column]
        height, width = (min(side, tile) for side, tile in zip(self.scaled_size, self.tile_size, strict=True))
        plan = ResizePlan(
            source_size=self.source_size,
            resized_size=(height, width),
            output_size=self.tile_size,
            scaled_size=self.scaled_size,
            origin=origin,
        )
        return PictureTile(number=number, plan=plan)

    @property
    def seen_again(self) -> float:
        """Share of the stored pixels that are padding, or that an earlier tile shows already."""
        stored = len(self) * math.prod(self.tile_size)
        return 1 - math.prod(self.scaled_size) / stored


def plan_picture_tiles(
    source_size: Size, tile_size: Size, overlap: Size = (0, 0), scaled_size: Size | None = None
) -> PictureTiles:
    """Plan tiles that cover a picture; neighbors share at least `overlap` pixels along each axis.

    A picture that is smaller than a tile along an axis is padded at its end and has one tile there.

    Args:
        source_size: displayed (height, width) of the picture.
        tile_size: (height, width) of a tile.
        overlap: shared pixels along each axis, less than `tile_size`.
        scaled_size: size of the picture after scaling; default: `source_size`.

    Raises:
        UsageError: the overlap is negative, or not below the side of a tile.

    >>> tiles = plan_picture_tiles((6000, 6000), (1024, 1024), (128, 128))
    >>> len(tiles), tiles.tops[:3], tiles.tops[-1]
    (49, (0, 829, 1659), 4976)
    """
    for name, side, shared in zip(("height", "width"), tile_size, overlap, strict=True):
        if side < 1 or not 0 <= shared < side:
            raise UsageError(
                f"tiles: expected an overlap of 0 to {plural(side - 1, 'pixel')} of {name} {side}, got {shared}"
            )
    scaled = scaled_size or source_size
    tops, lefts = (
        tuple(tile_starts(max(side, tile), tile, shared))
        for side, tile, shared in zip(scaled, tile_size, overlap, strict=True)
    )
    return PictureTiles(
        source_size=source_size, scaled_size=scaled, tile_size=tile_size, tops=tops, lefts=lefts
    )


def scale_size(source_size: Size, factor: tuple[float, float]) -> Size:
    """Return a size after scaling by a factor along the height and the width, rounded.

    Raises:
        SourceError: a side would round to 0 pixels.

    >>> scale_size((6000, 4001), (0.5, 0.5))
    (3000, 2001)
    """
    height, width = (math.floor(side * scale + 0.5) for side, scale in zip(source_size, factor, strict=True))
    if min(height, width) < 1:
        detail = (
            f"{source_size[0]}×{source_size[1]} pixels by {factor[0]:g} and {factor[1]:g}; take a larger --scale, or a "
            "smaller --gsd-m, which is in meters: 5e-7 is 0.5 µm"
        )
        raise SourceError("resize", "picture would become too small", detail)
    return height, width
