"""Checks of one tile of a picture: its place in the picture, its transform, and what leads to the complete objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from halofeed.inspection.stored_records import array_of, integer_of
from halofeed.prep.geometry.picture_tiles import plan_picture_tiles
from halofeed.prep.geometry.resize import ResizePlan, Size, displayed_size, stored_to_file
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded

_RELATIVE, _PIXELS = 1e-5, 1e-2
"""Differences of transforms that float32 and large pictures cause."""


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Place of a tile: its number, its origin in the scaled picture, and sizes as (height, width)."""

    number: int
    origin: Size
    whole: Size
    shown: Size
    stored: Size
    source: Size


def tile_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    """Yield each problem of a tile of a picture; nothing for other records."""
    if manifest.kind.name != "picture" or not any(field.name == "tile_whole" for field in manifest.fields):
        return
    yield from _object_problems(features)
    place = _place_of(features)
    # The check of the fields reports what is missing or has another length.
    if place is None:
        return
    ends = (start + side for start, side in zip(place.origin, place.shown, strict=True))
    if min(place.origin) < 0 or any(end > side for end, side in zip(ends, place.whole, strict=True)):
        shown, origin, whole = map(list, (place.shown, place.origin, place.whole))
        yield f"{keys.TILE_ORIGIN}: a part of {shown} at {origin} leaves the picture of {whole}"
        return
    yield from _grid_problems(manifest, place.number, place.origin, place.whole)
    yield from _transform_problems(features, place)


def _place_of(features: Decoded) -> _Place | None:
    """Return the place of a tile; None if a number is missing."""
    origin, whole = (_size_of(features, key) for key in (keys.TILE_ORIGIN, keys.TILE_WHOLE))
    number = integer_of(features, keys.TILE)
    shown, stored, source = (
        (integer_of(features, height), integer_of(features, width))
        for height, width in (keys.UNPADDED_SIDES, keys.SIDES, keys.SOURCE_SIDES)
    )
    if origin is None or whole is None or number is None or None in (*shown, *stored, *source):
        return None
    known = [(height or 0, width or 0) for height, width in (shown, stored, source)]
    return _Place(number=number, origin=origin, whole=whole, shown=known[0], stored=known[1], source=known[2])


def _size_of(features: Decoded, key: str) -> Size | None:
    values = array_of(features, key, "i")
    return None if values is None or len(values) != 2 else (int(values[0]), int(values[1]))


def _grid_problems(manifest: Manifest, number: int, origin: Size, whole: Size) -> Iterator[str]:
    """Yield a problem if a tile is not where the recipe's grid has it."""
    recipe = manifest.recipe
    overlap = tuple(recipe.get("tile_overlap") or (0, 0))
    tiles = plan_picture_tiles(whole, (recipe["height"], recipe["width"]), (overlap[0], overlap[1]))
    if not 0 <= number < len(tiles):
        yield f"{keys.TILE}: expected 0 to {len(tiles) - 1} of a picture of {list(whole)}, got {number}"
    elif (expected := tiles.tile(number).plan.origin) != origin:
        yield f"{keys.TILE_ORIGIN}: expected {list(expected)} of tile {number}, got {list(origin)}"


def _transform_problems(features: Decoded, place: _Place) -> Iterator[str]:
    """Yield a problem if the transform is that of no EXIF orientation of a tile at this place."""
    origin, whole, shown, stored, source = (
        place.origin,
        place.whole,
        place.shown,
        place.stored,
        place.source,
    )
    transform = array_of(features, keys.TRANSFORM)
    if transform is None or len(transform) != 6 or min(shown) < 1 or min(source) < 1:
        return
    if any(out < part for out, part in zip(stored, shown, strict=True)):
        return  # the check of the sides reports this
    for orientation in range(1, 9):
        plan = ResizePlan(
            source_size=displayed_size(orientation, source),
            resized_size=shown,
            output_size=stored,
            scaled_size=whole,
            origin=origin,
        )
        if np.allclose(transform, stored_to_file(plan, orientation), rtol=_RELATIVE, atol=_PIXELS):
            return
    yield f"{keys.TRANSFORM}: {transform.tolist()} does not lead from {list(origin)} of {list(whole)} to {list(source)}"


def _object_problems(features: Decoded) -> Iterator[str]:
    """Yield each problem of the numbers and the visible shares of a tile's objects."""
    index, visible = features.get(keys.OBJECT_INDEX), features.get(keys.OBJECT_VISIBLE)
    if isinstance(index, np.ndarray) and len(index) and ((np.diff(index) <= 0).any() or index[0] < 0):
        yield f"{keys.OBJECT_INDEX}: expected rising numbers from 0, got {index.tolist()!s:.200}"
    if isinstance(visible, np.ndarray):
        # The negated comparison rejects NaN too.
        for box in np.flatnonzero(~((visible > 0) & (visible <= 1 + 1e-6))):
            yield f"{keys.OBJECT_VISIBLE}: box {box}: expected a share above 0 to 1, got {visible[box]}"
