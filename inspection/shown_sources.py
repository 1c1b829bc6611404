"""Source files as they are drawn: their records put together, with the truth on the same grid.

Tiles of a picture become one picture of at most `CANVAS_SIDE` pixels: colors are averaged, classes are those at the
centers of the drawn pixels. Tiles of a scan become one scan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.stored_records import (
    affine_of,
    array_of,
    extent_of,
    integer_of,
    label_map,
    spacing_of,
    stored_image,
)
from halofeed.inspection.stored_values import decode_stored
from halofeed.prep.geometry.resize import apply_to_boxes
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_plan import triple
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded
from halofeed.system.errors import CorruptFileError

CANVAS_SIDE = 2048
"""Longest side of a drawn picture of tiles, in pixels."""
_EMPTY = 128
"""Gray of a picture where no tile was stored."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownSource:
    """The grid on which a source is drawn, with what its records hold there.

    Args:
        shape: shape of the grid, without channels.
        image: pixels or voxels [*shape, channel]; without them one value for all.
        label: class of each pixel or voxel [*shape]; None without a label.
        ignored: pixels or voxels whose class does not count; None if there are none.
        to_source: [2, 3], from (y, x, 1) on the grid of a picture to pixels of its file.
        grid: grid of a volume.
        spacing_mm: distance of its voxels.
    """

    shape: tuple[int, ...]
    image: NDArray[Any]
    label: NDArray[Any] | None = None
    ignored: NDArray[np.bool_] | None = None
    to_source: NDArray[np.float64] | None = None
    grid: Grid | None = None
    spacing_mm: tuple[float, ...] | None = None


def _pixels(features: Decoded, manifest: Manifest) -> NDArray[Any]:
    """Return the image of a record as numbers."""
    stored = stored_image(features, manifest)
    if stored is None:
        raise ValueError("image/encoded is missing or has another size")
    return as_numbers(stored, manifest.field("image").dtype)


def _label(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    return label_map(features, manifest) if integer_of(features, keys.LABELLED) != 0 else None


def _sides(features: Decoded, names: Sequence[str]) -> tuple[int, int]:
    height, width = (integer_of(features, name) for name in names)
    if height is None or width is None:
        raise ValueError(f"{' or '.join(names)} is missing")
    return height, width


def _transform(features: Decoded) -> NDArray[np.float64]:
    values = array_of(features, keys.TRANSFORM)
    if values is None:
        raise ValueError(f"{keys.TRANSFORM} is missing")
    return values.reshape(2, 3).astype(np.float64)


def blank_image(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an image of one value, which takes no memory."""
    return np.broadcast_to(np.zeros((), np.uint8), (*shape, 1))


def _without_ignored(shown: ShownSource, manifest: Manifest) -> ShownSource:
    if shown.label is None or manifest.ignore_label is None:
        return shown
    ignored = shown.label == manifest.ignore_label
    return replace(shown, label=np.where(ignored, 0, shown.label), ignored=ignored)


def _flat_source(features: Sequence[Decoded], manifest: Manifest, with_pixels: bool) -> ShownSource:
    """Show a picture or a clip without its padding, or a picture of tiles as a whole."""
    if keys.TILE_WHOLE in features[0]:
        return _picture_of_tiles(features, manifest, with_pixels)
    record = features[0]
    height, width = _sides(record, keys.UNPADDED_SIDES)
    # A clip has frames before the sides.
    shown = np.s_[..., :height, :width]
    shape = (*manifest.field("image").shape[:-3], height, width)
    label = _label(record, manifest)
    pixels = _pixels(record, manifest)[(*shown, slice(None))] if with_pixels else blank_image(shape)
    found = ShownSource(
        shape=shape,
        image=pixels,
        label=None if label is None else np.asarray(label[shown]),
        to_source=_transform(record),
    )
    return _without_ignored(found, manifest)


def _picture_of_tiles(features: Sequence[Decoded], manifest: Manifest, with_pixels: bool) -> ShownSource:
    """Put the tiles of a picture together; where no tile was stored, the picture is gray and nothing counts."""
    whole = array_of(features[0], keys.TILE_WHOLE, "i")
    if whole is None or whole.shape != (2,) or whole.min() < 1:
        raise ValueError(f"{keys.TILE_WHOLE} is missing")
    scale = min(1.0, CANVAS_SIDE / int(whole.max()))
    shape = tuple(max(1, round(int(side) * scale)) for side in whole.tolist())
    steps = whole / np.array(shape)
    tiles = [_PlacedTile(*_tile_place(record), steps, shape) for record in features]
    is_shown = np.zeros(shape, bool)
    for tile in tiles:
        is_shown[tile.part] = True
    of_tile_to_source = _transform(features[0])
    turn = of_tile_to_source[:, :2]
    found = ShownSource(
        shape=shape,
        image=_canvas_of(features, tiles, manifest) if with_pixels else blank_image(shape),
        label=_classes_of(features, tiles, manifest),
        to_source=np.column_stack([turn * steps, of_tile_to_source[:, 2] - turn @ tiles[0].origin]),
    )
    found = _without_ignored(found, manifest)
    if is_shown.all():
        return found
    return replace(found, ignored=~is_shown if found.ignored is None else found.ignored | ~is_shown)


class _PlacedTile:
    """Place of a tile on a canvas.

    Args:
        origin: first pixel of the tile in the scaled, displayed picture, int [2].
        size: its size without padding, int [2].
        steps: pixels of that picture for each pixel of the canvas, float [2].
        shape: (height, width) of the canvas.
    """

    def __init__(
        self, origin: NDArray[Any], size: NDArray[Any], steps: NDArray[Any], shape: tuple[int, ...]
    ) -> None:
        self.origin, self._size, self._steps, self.canvas_shape = origin, size, steps, shape
        ends = (np.clip(np.rint(at / steps), 0, shape).astype(int) for at in (origin, origin + size))
        self._first, self._last = ends
        self.part = tuple(
            slice(*ends) for ends in zip(self._first.tolist(), self._last.tolist(), strict=True)
        )

    def add_pixels(self, canvas: NDArray[Any], pixels: NDArray[Any]) -> None:
        """Draw the pixels [height, width, channel] of the tile, averaged."""
        height, width = (self._last - self._first).tolist()
        # A tile smaller than a pixel of the canvas has no place of its own.
        if height and width:
            shown = np.ascontiguousarray(pixels[: self._size[0], : self._size[1]])
            small = cv2.resize(shown, (width, height), interpolation=cv2.INTER_AREA)
            canvas[self.part] = small.reshape(height, width, -1)

    def add_classes(self, canvas: NDArray[Any], label: NDArray[Any]) -> None:
        """Draw the classes [height, width] of the tile at the centers of the canvas' pixels."""
        rows, columns = (
            np.clip(((np.arange(first, last) + 0.5) * step - start).astype(int), 0, size - 1)
            for first, last, step, start, size in zip(
                self._first, self._last, self._steps, self.origin, self._size, strict=True
            )
        )
        canvas[self.part] = label[np.ix_(rows, columns)]


def _classes_of(
    features: Sequence[Decoded], tiles: Sequence[_PlacedTile], manifest: Manifest
) -> NDArray[Any] | None:
    """Draw the classes of tiles; None if a tile has no label."""
    canvas = np.zeros(tiles[0].canvas_shape, np.uint16)
    for record, tile in zip(features, tiles, strict=True):
        label = _label(record, manifest)
        if label is None:
            return None
        tile.add_classes(canvas, label)
    return canvas


def _canvas_of(features: Sequence[Decoded], tiles: Sequence[_PlacedTile], manifest: Manifest) -> NDArray[Any]:
    """Draw the pixels of tiles."""
    canvas: NDArray[Any] | None = None
    for record, tile in zip(features, tiles, strict=True):
        pixels = _pixels(record, manifest)
        # The first three channels are shown as colors, or the first one.
        pixels = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., :1]
        if canvas is None:
            canvas = np.full(
                (*tile.canvas_shape, pixels.shape[2]), _EMPTY if pixels.dtype == np.uint8 else 0, pixels.dtype
            )
        tile.add_pixels(canvas, pixels)
    assert canvas is not None
    return canvas


def _tile_place(features: Decoded) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first pixel of a tile in its scaled, displayed picture, and its size without padding, int [2]."""
    origin = array_of(features, keys.TILE_ORIGIN, "i")
    if origin is None or origin.shape != (2,):
        raise ValueError(f"{keys.TILE_ORIGIN} is missing")
    return origin, np.array(_sides(features, keys.UNPADDED_SIDES))


def _scan(features: Sequence[Decoded], manifest: Manifest, with_pixels: bool) -> ShownSource:
    """Put the tiles of a scan together, without padding."""
    places = [_scan_place(record) for record in features]
    low = np.min([extent[0] + origin for extent, origin in places], axis=0)
    high = np.max([extent[1] + origin for extent, origin in places], axis=0)
    shape = triple(np.maximum(high - low, 1).tolist())

    def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the values of the scan from those of its tiles."""
        result = np.zeros((*shape, *parts[0].shape[3:]), parts[0].dtype)
        for values, (extent, origin) in zip(parts, places, strict=True):
            inside, target = (
                tuple(slice(*ends) for ends in at.T.tolist()) for at in (extent, extent + origin - low)
            )
            result[target] = values[inside]
        return result

    labels = [label for record in features if (label := _label(record, manifest)) is not None]
    affine = affine_of(features[0])
    if affine is None:
        raise ValueError(f"{keys.AFFINE} is missing")
    affine[:3, 3] += affine[:3, :3] @ (low - places[0][1])
    found = ShownSource(
        shape=shape,
        image=joined([_pixels(record, manifest) for record in features])
        if with_pixels
        else blank_image(shape),
        label=joined(labels) if len(labels) == len(features) else None,
        grid=Grid(shape=shape, affine=affine),
        spacing_mm=_spacing_mm(features[0]),
    )
    return _without_ignored(found, manifest)


def _spacing_mm(features: Decoded) -> tuple[float, ...] | None:
    spacing = spacing_of(features)
    return None if spacing is None or (spacing <= 0).any() else tuple(spacing.astype(float).tolist())


def _scan_place(features: Decoded) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the part of a record without padding, int [2, 3], and the voxel of the scan at which it begins."""
    extent, origin = extent_of(features), array_of(features, keys.TILE_ORIGIN, "i")
    if extent is None:
        raise ValueError(f"{keys.EXTENT} is missing")
    return extent, np.zeros(3, np.int64) if origin is None else origin


SHOWN: Mapping[str, Callable[[Sequence[Decoded], Manifest, bool], ShownSource]] = {
    "picture": _flat_source,
    "clip": _flat_source,
    "volume": _scan,
}
"""Function that puts the records of a source together, by kind of image."""

ExampleArrays = dict[str, NDArray[Any]]


def _true_boxes(features: Sequence[Decoded], shown: ShownSource, manifest: Manifest) -> ExampleArrays:
    """Return the objects of a picture; those of tiles are complete, each once."""
    is_tiled = keys.TILE_WHOLE in features[0]
    corner_keys = keys.OBJECT_SOURCE_CORNERS if is_tiled else keys.BOX_CORNERS
    crowd_key = keys.OBJECT_SOURCE_IS_CROWD if is_tiled else keys.OBJECT_IS_CROWD
    rows: dict[Any, tuple[float, ...]] = {}
    for number, record in enumerate(features):
        columns = [_numbers(record, key) for key in (*corner_keys, keys.OBJECT_CLASS_LABEL)]
        count = len(columns[-1])
        crowd = _numbers(record, crowd_key)
        columns.append(crowd if len(crowd) == count else np.zeros(count))
        index = _numbers(record, keys.OBJECT_INDEX)
        for row, values in enumerate(np.column_stack(columns).tolist()):
            rows.setdefault(int(index[row]) if is_tiled else (number, row), tuple(values))
    found = np.array(list(rows.values()), np.float64).reshape(-1, 6)
    if is_tiled:
        corners = boxes_on(shown, found[:, :4])
    else:
        sides = np.array(manifest.field("image").shape[-3:-1], np.float64)
        corners = found[:, :4] * np.tile(sides / np.array(shown.shape[-2:]), 2)
    return {
        **_ignored_regions(features, shown, manifest),
        **({} if is_tiled else _true_objects(features[0], shown, manifest)),
        "truth_boxes": corners,
        "truth_classes": found[:, 4].astype(np.int64),
        "truth_is_crowd": found[:, 5] > 0,
        "truth_num_boxes": np.array(len(found)),
    }


def _true_objects(features: Decoded, shown: ShownSource, manifest: Manifest) -> ExampleArrays:
    """Return the number of the object, from 1, that each pixel of a picture shows; nothing without masks."""
    files = features.get(keys.OBJECT_MASK)
    if not isinstance(files, list) or not files:
        return {}
    height, width = shown.shape[-2:]
    rows, columns = manifest.field("image").shape[-3:-1]
    numbers = np.zeros((height, width), np.uint16)
    # As in predictions, the first of several objects is in front.
    for number in range(len(files), 0, -1):
        mask = decode_stored(files[number - 1], "png", (rows, columns))
        if mask is None or mask.shape[0] < height or mask.shape[1] < width:
            raise ValueError(f"mask {number} is no PNG of one channel and the picture's size")
        numbers[mask[:height, :width, 0] > 0] = number
    return {"truth_objects": numbers}


def _ignored_regions(features: Sequence[Decoded], shown: ShownSource, manifest: Manifest) -> ExampleArrays:
    """Return the ignored regions of a picture; those of tiles are complete, each once; nothing without any."""
    is_tiled = keys.TILE_WHOLE in features[0]
    side_keys = keys.IGNORED_SOURCE_CORNERS if is_tiled else keys.IGNORED_CORNERS
    rows = [
        tuple(row)
        for one in features
        for row in zip(*(_numbers(one, key) for key in side_keys), strict=False)
    ]
    if not rows:
        return {}
    found = np.array(sorted(set(rows)), np.float64)
    if is_tiled:
        return {"truth_ignored_boxes": boxes_on(shown, found)}
    sides = np.array(manifest.field("image").shape[-3:-1], np.float64)
    return {"truth_ignored_boxes": found * np.tile(sides / np.array(shown.shape[-2:]), 2)}


def _numbers(features: Decoded, key: str) -> NDArray[np.float64]:
    value = features.get(key)
    return value.astype(np.float64) if isinstance(value, np.ndarray) else np.zeros(0)


def boxes_on(shown: ShownSource, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return boxes [box, 4] in pixels of the file as shares of the drawn picture."""
    assert shown.to_source is not None
    if not len(boxes):
        return np.zeros((0, 4))
    turn = np.linalg.inv(shown.to_source[:, :2])
    # The inverse of a quarter turn has no more zeros than the inverse of its numbers has digits.
    turn[np.abs(turn) < 1e-12 * np.abs(turn).max()] = 0
    from_source = np.column_stack([turn, -turn @ shown.to_source[:, 2]]).reshape(6)
    return apply_to_boxes(from_source, boxes) / np.tile(np.array(shown.shape, np.float64), 2)


def _true_class(features: Sequence[Decoded], shown: ShownSource, manifest: Manifest) -> ExampleArrays:
    if any(field.encoding == "classes" for field in manifest.fields):
        return {"truth_labels": _class_flags(features[0], max(manifest.labels) + 1)}
    label = integer_of(features[0], keys.CLASS_LABEL)
    if label is None:
        raise CorruptFileError(f"{keys.CLASS_LABEL}: expected one class")
    return {"truth_label": np.array(label)}


def _class_flags(features: Decoded, classes: int) -> NDArray[np.uint8]:
    """Return 1 for each class of a picture that may have several, uint8 [class]."""
    found = np.asarray(features[keys.CLASS_LABEL], np.int64)
    if len(found) and not 0 <= found.min() <= found.max() < classes:
        raise CorruptFileError(
            f"{keys.CLASS_LABEL}: expected classes from 0 to {classes - 1}, got {found.tolist()}"
        )
    return np.isin(np.arange(classes), found).astype(np.uint8)


def true_classes(features: Sequence[Decoded], shown: ShownSource, manifest: Manifest) -> ExampleArrays:
    """Return the classes of a mask, if there is one."""
    if shown.label is None:
        return {"truth_labelled": np.array(False)}
    return {"truth_label": shown.label, "truth_labelled": np.array(True)}


TRUTH: Mapping[str, Callable[[Sequence[Decoded], ShownSource, Manifest], ExampleArrays]] = {
    "detection": _true_boxes,
    "classification": _true_class,
    "segmentation": true_classes,
}
"""Function that returns the truth of a source, by task."""
