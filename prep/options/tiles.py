"""Options of pictures that are cut into tiles: their scale, their objects and their values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from halofeed.prep.geometry.resize import Size
from halofeed.prep.options.option import Need, option, problems_of

KEEP, DROP = "keep", "drop"


def cuts_pictures(recipe: Any) -> bool:
    """Return True if the recipe cuts pictures into tiles; scans have tiles of their own, and clips have none."""
    return bool(recipe.fit == "tiles" and recipe.depth is None and recipe.frames is None)


PICTURE_TILES = Need("--fit tiles", cuts_pictures, why="without pictures and {}; add that, or leave it out")

_CUT_OBJECTS = Need("--fit tiles", lambda recipe: cuts_pictures(recipe) or recipe.depth is not None)


@dataclass(frozen=True, kw_only=True)
class TileOptions:
    """Options of pictures that --fit tiles cuts into records of --height x --width."""

    OPTION_GROUP: ClassVar[str] = "large pictures (--fit tiles)"
    NEEDS: ClassVar[Need] = PICTURE_TILES

    scale: float = option(
        1.0,
        "scale the picture by this factor before it is cut, e.g. 0.5; a pyramid is read at the level that is enough",
        omitted=True,
    )
    gsd_m: float = option(
        0.0,
        "scale the picture to this ground sample distance in meters per pixel, e.g. 0.5; the file states its own",
        omitted=True,
    )
    min_visible: float = option(
        0.3,
        "share of an object's box that a tile must show, 0 to 1. An object that it shows less of stays in the tile, "
        "flagged as ignored (is_crowd), so that it is neither learned nor counted as background; the same for boxes in "
        "volumes, in tiles and crops",
        needs=(_CUT_OBJECTS, Need("boxes", lambda recipe: recipe.may_hold_boxes())),
        omitted=True,
    )
    empty_tiles: str = option(
        KEEP,
        "tiles without an object, or whose label is background only: keep all, drop all, or keep this share of them, "
        "e.g. 0.1, chosen by a stable hash",
        omitted=True,
    )
    bands: tuple[int, ...] = option(
        (),
        "bands of the file that become channels, in order, counted from 1, e.g. 4,3,2; default: all, which --channels "
        "must match",
        omitted=True,
    )
    value_range: tuple[float, ...] = option(
        (),
        "values of more than 8 bits: the low and the high end that become 0 and 255, e.g. 0,3000; see "
        "--window-percentiles for a range of each picture",
        omitted=True,
    )

    def tile_problems(self) -> Iterator[str]:
        """Yield a message for each of these options that has a wrong value or contradicts another of them."""
        yield from self._tile_scale_problems()
        yield from self._tile_content_problems()

    def _tile_scale_problems(self) -> list[str]:
        return problems_of(
            (
                not 0 < self.scale <= 64,
                f"--scale {self.scale:g}: expected a factor above 0 and at most 64, such as 0.5",
            ),
            (
                self.gsd_m and not 0 < self.gsd_m < math.inf,
                f"--gsd-m {self.gsd_m:g}: expected meters per pixel above 0, such as 0.5",
            ),
            (self.gsd_m and self.scale != 1, "--scale and --gsd-m both scale the picture; give one of them"),
        )

    def _tile_content_problems(self) -> list[str]:
        numbers = self.bands
        return problems_of(
            (
                not 0 <= self.min_visible <= 1,
                f"--min-visible {self.min_visible:g}: expected a share from 0 to 1, such as 0.3",
            ),
            (
                self.empty_tile_share() is None,
                f"--empty-tiles {self.empty_tiles}: expected {KEEP}, {DROP}, or a share between 0 and 1 such as 0.1",
            ),
            (
                numbers and (min(numbers) < 1 or len({*numbers}) < len(numbers)),
                f"--bands {','.join(map(str, numbers))}: expected different numbers from 1 on, such as 4,3,2",
            ),
            (
                self.value_range and not self._has_ends(),
                f"--value-range {','.join(f'{end:g}' for end in self.value_range)}: expected a low and a higher end, "
                "such as 0,3000",
            ),
        )

    def ranges_values(self) -> bool:
        """Return True if a range of values becomes 0 to 255, whose scale each record states."""
        return bool(self.value_range or self.window_percentiles)  # type: ignore[attr-defined]

    def _has_ends(self) -> bool:
        return len(self.value_range) == 2 and -math.inf < self.value_range[0] < self.value_range[1] < math.inf

    def empty_tile_share(self) -> float | None:
        """Return the share of empty tiles to keep; None if the option has another form."""
        if self.empty_tiles in (KEEP, DROP):
            return float(self.empty_tiles == KEEP)
        try:
            share = float(self.empty_tiles)
        except ValueError:
            return None
        return share if 0 <= share <= 1 else None


def tile_overlap_of(recipe: Any) -> Size:
    """Return --tile-overlap of pictures, (height, width); zeros where it is left out."""
    overlap = recipe.tile_overlap
    return (int(overlap[0]), int(overlap[1])) if len(overlap) == 2 else (0, 0)
