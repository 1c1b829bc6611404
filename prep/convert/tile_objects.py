"""Objects of a picture that is cut into tiles: the rules for them once per source, and the features of each tile.

TileObjects(picture)       boxes that the rules keep, on the grid of the whole
  .add(tile, features)     pieces of the objects that a tile shows: boxes, masks, keypoints, attributes
  .unseen()                objects that no tile shows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.loss_measures import add_keypoints, add_objects, source_name
from halofeed.prep.convert.object_features import (
    annotated_boxes,
    box_policy,
    boxes_to_place,
    count_changes,
    count_unusable,
    describe_box,
    kept_features,
    region_features,
    regions_to_place,
    scale_of,
    select_regions,
)
from halofeed.prep.convert.picture_tasks import BadObjects
from halofeed.prep.convert.tallies import PictureFacts
from halofeed.prep.convert.tile_tasks import TiledPicture
from halofeed.prep.geometry.boxes import (
    corner_features,
    keypoint_features,
    select_boxes,
)
from halofeed.prep.geometry.picture_tiles import PictureTile
from halofeed.prep.geometry.resize import (
    ResizePlan,
    apply_affine,
    apply_to_boxes,
    area_factor,
    displayed_size,
    displayed_to_file,
    invert_affine,
    stored_to_file,
)
from halofeed.prep.geometry.tile_pieces import (
    VISIBLE_ROUNDING,
    ObjectGrid,
    Pieces,
    TileWindow,
    is_inside,
)
from halofeed.prep.sources.example import Box, Keypoint
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.masks import MASK_CHUNK, ParsedMask, encode_mask_png
from halofeed.schemas import keys
from halofeed.schemas.file_layout import ZERO_AREA
from halofeed.schemas.ledger import LedgerCounter
from halofeed.schemas.tfexample import Value
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory

PIECES: Final = "cut by the rim of a tile"
IGNORED: Final = "ignored in a tile that shows less than --min-visible"
OBJECT_BYTES: Final = 1024
"""Bytes of an object with its arrays and its box, without its mask."""
IN_NO_TILE: Final = "object is in no tile"


class TileObjects:
    """Objects of one picture, of which each tile takes the pieces that it shows.

    Raises:
        SourceError: the annotations cannot be used, before any tile is made.
    """

    def __init__(
        self,
        picture: TiledPicture,
        files: SourceFiles | None = None,
        reserve: ReserveMemory | None = None,
        threads: int = 1,
    ) -> None:
        recipe, reference = picture.recipe, picture.reference
        self._picture, self._whole = picture, picture.whole
        size = self._whole.source_size
        self._boxes = boxes_to_place(recipe, reference, picture.orientation, size)
        self._selected = select_boxes(
            annotated_boxes(self._boxes), size, picture.orientation, box_policy(recipe)
        )
        bad_masks: list[tuple[str, str]] = []
        kept, self._masks = self._parse_masks(bad_masks)
        self._rows = self._selected.kept[kept]
        self._kept = [self._boxes[index] for index in self._rows]
        self._bad_objects = (*reference.bad_objects, *bad_masks)
        self._place(kept)
        regions = regions_to_place(reference, picture.orientation, size)
        shown = select_regions(regions, size, picture.orientation)
        self._regions = ObjectGrid(shown * np.array(self._whole.scale * 2), self._whole.scaled_size)
        to_file = displayed_to_file(picture.orientation, displayed_size(picture.orientation, size))
        self._complete_regions = apply_to_boxes(to_file, shown)
        self._seen = np.zeros(len(self._rows), np.bool_)
        self._pixels: dict[int, int] = {}
        self._empty_masks: set[int] = set()

    def _parse_masks(self, bad: list[tuple[str, str]]) -> tuple[list[int], list[ParsedMask]]:
        """Return the rows of the selected boxes with a sound mask, all without --masks, and the masks."""
        rows = range(len(self._selected.kept))
        recipe = self._picture.recipe
        if not recipe.masks:
            return list(rows), []
        size = displayed_size(self._picture.orientation, self._whole.source_size)
        sound: list[int] = []
        masks: list[ParsedMask] = []
        for row in rows:
            index = self._selected.kept[row]
            try:
                masks.append(ParsedMask.of(self._boxes[index].mask, size))
                sound.append(row)
            except SourceError as error:
                if recipe.on_bad_object == "reject":
                    raise
                bad.append((error.reason, f"box {index + 1}: {error.detail}"))
        return sound, masks

    def _place(self, kept: Sequence[int]) -> None:
        """Set the boxes and areas of the kept objects on the grids of the whole and of the file."""
        whole, orientation = self._whole, self._picture.orientation
        displayed = self._selected.boxes[kept]
        self._grid = ObjectGrid(displayed * np.array(whole.scale * 2), whole.scaled_size)
        file_size = displayed_size(orientation, whole.source_size)
        to_file = displayed_to_file(orientation, file_size)
        source_boxes = apply_to_boxes(to_file, displayed)
        annotated, sides = self._selected.areas[kept], displayed[:, 2:] - displayed[:, :2]
        areas = np.where(np.isnan(annotated), sides[:, 0] * sides[:, 1], annotated)
        self._source_boxes = source_boxes.astype(np.float32)
        self._source_areas = areas.astype(np.float32)
        self._areas = areas / area_factor(stored_to_file(whole, orientation))
        self._crowds = np.array([box.is_crowd for box in self._kept], np.bool_)
        self._ids = np.array([self._picture.labels.id_of(box.label) for box in self._kept], np.int64)

    @property
    def held_bytes(self) -> int:
        """Memory of the objects, and of drawing a mask."""
        masks = sum(mask.held_bytes for mask in self._masks)
        return OBJECT_BYTES * len(self._boxes) + masks + (40 * MASK_CHUNK if masks else 0)

    def cut(self, tile: PictureTile) -> Pieces:
        """Return the pieces of objects that a tile shows."""
        return self._grid.pieces(TileWindow.of(tile.plan))

    def add(self, tile: PictureTile, part: Pieces, features: dict[str, Value], facts: PictureFacts) -> bool:
        """Add the features of the objects that a tile shows, and return whether it shows any."""
        recipe, plan, pieces = self._picture.recipe, tile.plan, part
        areas = self._areas[pieces.rows] * pieces.visible
        if recipe.masks:
            pieces, areas, features[keys.OBJECT_MASK] = self._draw(pieces, plan)
        rows = pieces.rows
        boxes = [self._kept[row] for row in rows]
        is_ignored = pieces.visible < recipe.min_visible - VISIBLE_ROUNDING
        is_crowd = self._crowds[rows] | is_ignored
        normalized = np.clip(pieces.boxes / np.array(plan.output_size * 2), 0, 1).astype(np.float32)
        features.update(zip(keys.BOX_CORNERS, normalized.T, strict=True))
        features[keys.OBJECT_AREA] = areas.astype(np.float32)
        names = self._picture.labels.names
        ids = self._ids[rows]
        features[keys.OBJECT_CLASS_LABEL] = ids
        features[keys.OBJECT_CLASS_TEXT] = [names[identity].encode() for identity in ids.tolist()]
        for name, key in keys.OBJECT_FLAGS.items():
            features[key] = np.array([getattr(box, name) for box in boxes], np.int64)
        features[keys.OBJECT_IS_CROWD] = is_crowd.astype(np.int64)
        features.update(self._source_features(pieces))
        features.update(kept_features(boxes, recipe.keep))
        if "corners" in recipe.keep:
            features.update(corner_features(boxes, plan, self._picture.orientation))
        if "keypoints" in recipe.keep:
            features.update(self._keypoints(boxes, plan))
        self._seen[rows] = True
        regions = self._regions.pieces(TileWindow.of(plan))
        complete = self._complete_regions[regions.rows]
        features.update(region_features(regions.boxes, plan.output_size, complete))
        facts.ignored_regions = len(regions.rows)
        facts.boxes = len(rows)
        facts.labels.extend(ids.tolist())
        facts.box_counts = {
            what: count
            for what, count in (
                (PIECES, int(np.count_nonzero(pieces.visible < 1 - VISIBLE_ROUNDING))),
                (IGNORED, int(np.count_nonzero(is_ignored & ~self._crowds[rows]))),
            )
            if count
        }
        return len(rows) > 0

    def _source_features(self, pieces: Pieces) -> dict[str, Value]:
        """Return the features that lead from pieces to the complete objects of the source."""
        rows = pieces.rows
        return {
            keys.OBJECT_INDEX: self._rows[rows],
            keys.OBJECT_VISIBLE: pieces.visible.astype(np.float32),
            **dict(zip(keys.OBJECT_SOURCE_CORNERS, self._source_boxes[rows].T, strict=True)),
            keys.OBJECT_SOURCE_AREA: self._source_areas[rows],
            keys.OBJECT_SOURCE_IS_CROWD: self._crowds[rows].astype(np.int64),
        }

    def _draw(self, pieces: Pieces, plan: ResizePlan) -> tuple[Pieces, NDArray[np.float64], list[bytes]]:
        """Return the pieces that the masks of their objects show, their areas, and their masks.

        A piece without a pixel of the mask is left out, unless the mask has no pixel in the whole picture either.
        """
        drawn: list[bytes] = []
        shares: list[float] = []
        shown: list[int] = []
        for at, (row, visible) in enumerate(zip(pieces.rows.tolist(), pieces.visible.tolist(), strict=True)):
            mask = self._masks[row].stored(plan, self._picture.orientation)
            pixels = int(np.count_nonzero(mask))
            is_cut = visible < 1
            total = self._mask_pixels(row) if is_cut or not pixels else pixels
            if not pixels and total:
                continue
            if not total:
                self._empty_masks.add(row)
            drawn.append(encode_mask_png(mask))
            shares.append(pixels / total if is_cut and total else visible)
            shown.append(at)
        left = Pieces(rows=pieces.rows[shown], boxes=pieces.boxes[shown], visible=pieces.visible[shown])
        return left, self._areas[left.rows] * np.array(shares, np.float64), drawn

    def _mask_pixels(self, row: int) -> int:
        """Return the number of pixels of an object's mask in the whole picture, which is counted once."""
        if row not in self._pixels:
            self._pixels[row] = self._masks[row].count(self._whole, self._picture.orientation)
        return self._pixels[row]

    def _keypoints(self, boxes: Sequence[Box], plan: ResizePlan) -> Mapping[str, Value]:
        """Return the features of the keypoints of a tile's objects; those outside the tile are not labeled."""
        orientation = self._picture.orientation
        to_stored, window = invert_affine(stored_to_file(plan, orientation)), TileWindow.of(plan)

        def shown(box: Box) -> tuple[Keypoint, ...]:
            if not box.keypoints:
                return ()
            points = np.array([(point.y, point.x) for point in box.keypoints], np.float64)
            inside = is_inside(apply_affine(to_stored, points) + window.origin, window)
            return tuple(
                point if is_shown else Keypoint(name=point.name)
                for point, is_shown in zip(box.keypoints, inside.tolist(), strict=True)
            )

        features, _ = keypoint_features([shown(box) for box in boxes], plan, orientation)
        return features

    def finish(self, facts: PictureFacts) -> BadObjects:
        """Add what concerns the picture and not one of its tiles, to the facts of its last record.

        Returns:
            (reason, detail) of each annotated object that is dropped, or that no tile shows.
        """
        picture, ledger = self._picture, facts.ledger
        source = picture.reference.source
        scale = self._whole.scale
        add_objects(ledger, self._kept, self._grid.boxes, scale, source)
        if "keypoints" in picture.recipe.keep:
            add_keypoints(ledger, self._kept, scale_of(self._whole, picture.orientation), source)
            facts.warnings += (KEYPOINTS_BEYOND,) if self._has_points_beyond() else ()
        self._add_cut_objects(ledger)
        unusable = count_unusable(self._bad_objects, self._selected.counts, picture.recipe)
        ledger.count("emptied_object_records", unusable > 0 and not self._kept, source_name(source))
        counts = {**self._selected.counts, **count_changes(self._bad_objects, self._kept)}
        facts.box_counts = {
            what: counts.get(what, 0) + facts.box_counts.get(what, 0)
            for what in {**counts, **facts.box_counts}
        }
        empty = [(ZERO_AREA, describe_box(index, self._boxes[index])) for index in self._selected.zero_area]
        if picture.warning and picture.reference.boxes:
            facts.warnings += (picture.warning,)
        return (*self._bad_objects, *empty, *self._unseen(ledger))

    def _has_points_beyond(self) -> bool:
        """Return whether a labeled keypoint is outside the picture, so that no tile has it."""
        _, leave = keypoint_features(
            [box.keypoints for box in self._kept], self._whole, self._picture.orientation
        )
        return leave

    def _add_cut_objects(self, ledger: LedgerCounter) -> None:
        """Add the objects that every tile cuts, and those of which every tile shows too little."""
        tiles, grid = self._picture.tiles, self._grid
        size = TileWindow.of(tiles.tile(0).plan).size
        along = grid.most_visible((tiles.tops, tiles.lefts), size)
        most = along.prod(axis=1)
        # Crowds are ignored in any case.
        counted = ~self._crowds
        limit = self._picture.recipe.min_visible
        sides = grid.boxes[:, 2:] - grid.boxes[:, :2]
        for name, hit in (
            ("cut_objects", counted & (most < 1 - VISIBLE_ROUNDING)),
            ("ignored_objects", counted & (most < limit - VISIBLE_ROUNDING)),
        ):
            rows = np.flatnonzero(hit)
            if not len(rows):
                continue
            first = rows[0]
            height, width = sides[first].tolist()
            example = (
                f"{source_name(self._picture.reference.source)}: object {self._rows[first] + 1} of "
                f"{width:.5g} x {height:.5g} pixels (width x height), of which one tile shows at most {most[first]:.0%}"
            )
            ledger.count(name, len(rows), example)
            for axis, side in enumerate(("heights", "widths")):
                cut = rows[along[rows, axis] < 1 - VISIBLE_ROUNDING]
                if len(cut):
                    ledger.extend(f"{name.removesuffix('s')}_{side}", *_ends(sides[cut, axis]))
        ledger.count("tiled_objects", int(np.count_nonzero(counted)))

    def _unseen(self, ledger: LedgerCounter) -> BadObjects:
        """Return (reason, detail) of each object that no tile shows, and count masks without a pixel."""
        ledger.count("empty_masks", len(self._empty_masks), source_name(self._picture.reference.source))
        return tuple(
            (IN_NO_TILE, f"{describe_box(self._rows[row], self._kept[row], fix='')}")
            for row in np.flatnonzero(~self._seen)
        )


KEYPOINTS_BEYOND: Final = "keypoints that are labeled and lie outside of the picture are in no tile"


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values.min()), float(values.max())
