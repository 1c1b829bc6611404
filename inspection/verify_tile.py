"""Checks of one tile of a picture: its place in the picture, its transform, and what leads to the complete objects."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from halofeed.inspection.stored_records import array_of, integer_of
from halofeed.prep.geometry.picture_tiles import plan_picture_tiles
from halofeed.prep.geometry.resize import ResizePlan, Size, displayed_size, stored_to_file
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded

_RELATIVE, _PIXELS = 1e-5, 1e-2
"""Differences of transforms that float32 and large pictures cause."""


def tile_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    """Yield each problem of a tile of a picture; nothing for other records."""
    if manifest.kind.name != "picture" or not any(field.name == "tile_whole" for field in manifest.fields):
        return
    yield from _object_problems(features)
    origin, whole = (array_of(features, key, "i") for key in (keys.TILE_ORIGIN, keys.TILE_WHOLE))
    number = integer_of(features, keys.TILE)
    sides = [integer_of(features, key) for key in (*keys.UNPADDED_SIDES, *keys.SIDES, *keys.SOURCE_SIDES)]
    # The check of the fields reports what is missing or has another length.
    if (
        origin is None
        or whole is None
        or len(origin) != 2
        or len(whole) != 2
        or number is None
        or None in sides
    ):
        return
    shown, stored, source = ((sides[at] or 0, sides[at + 1] or 0) for at in (0, 2, 4))
    place: Size = (int(origin[0]), int(origin[1]))
    scaled: Size = (int(whole[0]), int(whole[1]))
    if any(
        start < 0 or start + side > length for start, side, length in zip(place, shown, scaled, strict=True)
    ):
        yield f"{keys.TILE_ORIGIN}: a part of {list(shown)} at {list(place)} leaves the picture of {list(scaled)}"
        return
    yield from _grid_problems(manifest, number, place, scaled)
    yield from _transform_problems(features, place, scaled, shown, stored, source)


def _grid_problems(manifest: Manifest, number: int, origin: Size, whole: Size) -> Iterator[str]:
    """Yield a problem if a tile is not where the recipe's grid has it."""
    recipe = manifest.recipe
    overlap = tuple(recipe.get("tile_overlap") or (0, 0))
    tiles = plan_picture_tiles(whole, (recipe["height"], recipe["width"]), (overlap[0], overlap[1]))
    if not 0 <= number < len(tiles):
        yield f"{keys.TILE}: expected 0 to {len(tiles) - 1} of a picture of {list(whole)}, got {number}"
    elif (expected := tiles.tile(number).plan.origin) != origin:
        yield f"{keys.TILE_ORIGIN}: expected {list(expected)} of tile {number}, got {list(origin)}"


def _transform_problems(
    features: Decoded, origin: Size, whole: Size, shown: Size, stored: Size, source: Size
) -> Iterator[str]:
    """Yield a problem if the transform is that of no EXIF orientation of a tile at this place."""
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
