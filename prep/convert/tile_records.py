"""Converter of pictures into tiles: records of one picture, read in bands of rows and yielded one after the other.

    file ──> level ──> band of rows ──> window ──> scale ──> orientation ──> values ──> record
                       (decoded once)   (per tile, in threads)

Memory is that of a few bands, however large the picture is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.converted_record import Record
from halofeed.prep.convert.picture_records import size_features
from halofeed.prep.convert.picture_tasks import annotated_orientation
from halofeed.prep.convert.tallies import PictureFacts, PictureTally, sum_pixels
from halofeed.prep.convert.tile_labels import LabelsOfTiles
from halofeed.prep.convert.tile_objects import TileObjects
from halofeed.prep.convert.tile_tasks import ClassesOfTiles, TileAnnotations, TiledPicture
from halofeed.prep.convert.tile_values import TileValues, plan_values
from halofeed.prep.formats.picture import DecodedImage, ReadOptions
from halofeed.prep.formats.picture.image import apply_orientation
from halofeed.prep.formats.region.region_formats import open_regions
from halofeed.prep.formats.region.region_reader import RegionFacts, RegionReader
from halofeed.prep.formats.region.region_rows import Band, RowReader, column_ranges, enough_level
from halofeed.prep.formats.region.world_files import world_georeference
from halofeed.prep.geometry.picture_tiles import PictureTile, PictureTiles, plan_picture_tiles, scale_size
from halofeed.prep.geometry.resize import ResizePlan, Size, displayed_size
from halofeed.prep.options.option import copy_options
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.tiles import tile_overlap_of
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.encode import ENCODERS
from halofeed.prep.voxels.tile_pixels import pad_tile, scale_window, source_window
from halofeed.schemas import keys
from halofeed.schemas.file_layout import SELECTION
from halofeed.schemas.identity import example_id
from halofeed.schemas.tfexample import Value
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory

BAND_BYTES = 64 << 20
"""Most bytes of a band that has several columns of tiles; a wider picture is read in several parts."""
_TILES_AT_ONCE = 4
"""Tiles that exist beside the bands, for each thread."""
_HASH_SHARES = 1 << 32

MapInOrder = Callable[[Callable[["_Job"], "Record | None"], Iterable["_Job"]], Iterator["Record | None"]]
"""Function like `map`, which may call in threads."""


ANNOTATIONS: Mapping[str, Callable[[TiledPicture, SourceFiles, ReserveMemory, int], TileAnnotations]] = {
    "classification": ClassesOfTiles,
    "detection": TileObjects,
    "segmentation": LabelsOfTiles,
}
"""Annotations by the names of `halofeed.schemas.tasks.TASKS`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Job:
    """A tile, and what its record is made of.

    Args:
        stored: plan of the tile on the grid of the file, before the orientation.
        band: rows of the level that hold it.
        part: part of the annotations that it shows.
    """

    tile: PictureTile
    stored: ResizePlan
    band: Band
    part: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class _Source:
    """Facts that all tiles of a picture share; `orientation` leads from the grid of the annotations to the display."""

    reference: SourceExample
    facts: RegionFacts
    tiles: PictureTiles
    level: int
    values: TileValues
    annotations: TileAnnotations
    features: dict[str, Value]
    orientation: int

    @property
    def level_size(self) -> Size:
        """Stored (height, width) of the level that is read."""
        return self.facts.levels[self.level]


@dataclass(frozen=True, kw_only=True)
class TileConverter:
    """Converter of pictures into tiles, for one recipe and one label map."""

    recipe: Recipe
    task: str
    labels: LabelMap

    @cached_property
    def _read_options(self) -> ReadOptions:
        return copy_options(ReadOptions, self.recipe, background=self.recipe.backdrop(), may_be_uint16=True)

    def new_tally(self) -> PictureTally:
        """Return a tally for the facts of records."""
        return PictureTally(max_boxes=self.recipe.max_boxes)

    def records(
        self, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory | None = None
    ) -> tuple[Record, ...]:
        """Return all tiles of one picture at once; see `stream`."""
        return tuple(self.stream(reference, files, reserve or self.recipe.reserve_alone(), map, 1))

    def stream(
        self,
        reference: SourceExample,
        files: SourceFiles,
        reserve: ReserveMemory,
        map_in_order: MapInOrder,
        threads: int,
    ) -> Iterator[Record]:
        """Yield the tiles of one picture that the recipe keeps.

        Args:
            reserve: called with the number of bytes before pixels are read.
            map_in_order: function like `map` that makes the tiles, perhaps in threads.
            threads: number of threads that decode blocks of a file.

        Raises:
            SourceError: this picture cannot be converted. The tiles that were yielded before must be dropped.
        """
        reader = open_regions(files, reference.source, threads)
        try:
            source = self._plan(reference, files, reader, reserve, threads)
            self._reserve(source, reader, reserve, threads)
            jobs = self._jobs(source, reader)
            kept: Record | None = None
            dropped = 0
            for record in map_in_order(lambda job: self._record(source, job), jobs):
                if record is None:
                    dropped += 1
                    continue
                if kept is not None:
                    yield kept
                kept = record
            yield from self._last(kept, dropped, source)
        finally:
            reader.close()

    def _last(self, kept: Record | None, dropped: int, source: _Source) -> Iterator[Record]:
        """Yield the last record with what is known of the complete picture only."""
        if kept is None:
            raise SourceError(
                SELECTION,
                "all tiles are empty",
                f"none of {dropped:,} holds an object or a label; --empty-tiles keep converts them",
            )
        bad_objects = source.annotations.finish(kept.facts)
        facts = kept.facts
        facts.ledger.count("sources")
        facts.ledger.count("empty_tiles_dropped", dropped)
        facts.counts_source = True
        facts.notes += source.facts.notes
        facts.warnings += source.reference.notes
        yield replace(kept, bad_objects=(*kept.bad_objects, *bad_objects))

    def _plan(
        self,
        reference: SourceExample,
        files: SourceFiles,
        reader: RegionReader,
        reserve: ReserveMemory,
        threads: int,
    ) -> _Source:
        """Plan the tiles of a picture by its header and its annotations."""
        recipe, facts = self.recipe, reader.facts
        displayed = displayed_size(facts.orientation, facts.size)
        scaled = scale_size(displayed, self._factor(facts, reference.gsd_m))
        tiles = plan_picture_tiles(displayed, (recipe.height, recipe.width), tile_overlap_of(recipe), scaled)
        # Rows of level 0 of a file that is read in order can be read only once.
        needed = displayed_size(facts.orientation, scaled)
        level = 0 if facts.in_order else enough_level(facts.levels, needed)
        values = plan_values(
            recipe, self._read_options, facts, lambda: open_regions(files, reference.source, threads)
        )
        header = DecodedImage(
            pixels=np.empty((0, 0, 1), np.uint8),
            orientation=facts.orientation,
            stored_size=facts.size,
            scale=1,
            notes=facts.notes,
        )
        grid = reference.grid if recipe.annotation_grid == "auto" else recipe.annotation_grid
        orientation, warning = annotated_orientation(reference.declared_size, header, grid)
        picture = TiledPicture(
            recipe=recipe,
            labels=self.labels,
            reference=reference,
            image=header,
            tiles=tiles,
            grid=grid,
            orientation=orientation,
            warning=warning,
        )
        place = facts.georeference or world_georeference(files, reference.source)
        features: dict[str, Value] = {
            keys.TILE_WHOLE: np.array(scaled),
            keys.CRS: (place.crs if place else "").encode(),
            keys.GEOTRANSFORM: (place.transform_text() if place else "").encode(),
        }
        if values.range is not None:
            scales, offsets = values.range.scale
            features[keys.INTENSITY_SCALE] = np.array(scales, np.float32)
            features[keys.INTENSITY_OFFSET] = np.array(offsets, np.float32)
        return _Source(
            reference=reference,
            facts=facts,
            tiles=tiles,
            level=level,
            values=values,
            annotations=ANNOTATIONS[self.task](picture, files, reserve, threads),
            features=features,
            orientation=orientation,
        )

    def _factor(self, facts: RegionFacts, annotated_gsd_m: float | None) -> tuple[float, float]:
        """Return the scale along the height and the width of the displayed picture.

        The size of a pixel that a file states counts more than one in its annotations.
        """
        recipe = self.recipe
        if not recipe.gsd_m:
            return recipe.scale, recipe.scale
        pixel_size_m = facts.pixel_size_m or (annotated_gsd_m and (annotated_gsd_m, annotated_gsd_m))
        if not pixel_size_m:
            raise SourceError(
                "decode",
                "no ground sample distance",
                "the file states no size of a pixel in meters, which --gsd-m needs; take --scale",
            )
        height, width = (size / recipe.gsd_m for size in pixel_size_m)
        return (width, height) if facts.orientation >= 5 else (height, width)

    def _jobs(self, source: _Source, reader: RegionReader) -> Iterator[_Job]:
        """Yield the tiles with their bands, in the order of the file's rows.

        Tiles of one row are neighbors in the file, unless its orientation exchanges rows and columns.
        """
        orientation = source.facts.orientation
        placed = [(tile, file_grid_plan(tile.plan, orientation)) for tile in source.tiles]
        placed.sort(key=lambda one: one[1].origin)
        rows = [list(group) for _, group in groupby(placed, key=lambda one: one[1].origin[0])]
        readers: list[tuple[int, int, RowReader]] = []
        windows = [[source_window(plan, source.level_size) for _, plan in row] for row in rows]
        if rows:
            readers = self._column_readers(source, reader, windows[0])
        for number, row in enumerate(rows):
            top, bottom = _extent(windows[number])
            next_top = _extent(windows[number + 1])[0] if number + 1 < len(rows) else source.level_size[0]
            for first, last, columns in readers:
                band = columns.rows(top, bottom, next_top)
                for tile, plan in row[first:last]:
                    part = source.annotations.cut(tile)
                    yield _Job(tile=tile, stored=plan, band=band, part=part)
                del band

    def _column_readers(
        self, source: _Source, reader: RegionReader, windows: Sequence[tuple[int, int, int, int]]
    ) -> list[tuple[int, int, RowReader]]:
        """Return the readers of columns with the numbers of their tiles in a row."""
        facts, bands = source.facts, source.values.bands
        ends = [(left, left + width) for _, left, _, width in windows]
        top, bottom = _extent(windows)
        row_bytes = np.dtype(facts.dtype).itemsize * facts.bands
        # The rows of a file that is read in order pass by only once.
        limit = math.inf if facts.in_order else BAND_BYTES
        groups = column_ranges(ends, row_bytes, bottom - top + facts.row_steps[source.level], limit)
        return [
            (
                first,
                last,
                RowReader(
                    reader,
                    source.level,
                    (0, source.level_size[1]) if facts.in_order else (ends[first][0], ends[last - 1][1]),
                    bands,
                ),
            )
            for first, last in groups
        ]

    def _reserve(self, source: _Source, reader: RegionReader, reserve: ReserveMemory, threads: int) -> None:
        """Reserve the memory of the bands, of a read, and of the tiles that exist at the same time."""
        recipe, facts = self.recipe, source.facts
        plans = [file_grid_plan(tile.plan, facts.orientation) for tile in source.tiles]
        height = max(source_window(plan, source.level_size)[2] for plan in plans)
        rows = min(source.level_size[0], height + facts.row_steps[source.level])
        windows = sorted({source_window(plan, source.level_size)[1::2] for plan in plans})
        row_bytes = np.dtype(facts.dtype).itemsize * facts.bands
        ends = [(left, left + width) for left, width in windows]
        limit = math.inf if facts.in_order else BAND_BYTES
        widest = max(
            ends[last - 1][1] - ends[first][0] for first, last in column_ranges(ends, row_bytes, rows, limit)
        )
        band = rows * widest * row_bytes
        # The rows that all parts of a wide picture keep for the next row of tiles.
        overlap = min(rows, height + facts.row_steps[source.level]) * source.level_size[1] * row_bytes
        shared = overlap * tile_overlap_of(recipe)[0] // max(1, recipe.height)
        pixels = recipe.height * recipe.width * recipe.channels * np.dtype(recipe.dtype).itemsize
        tiles = _TILES_AT_ONCE * (threads + 2) * 3 * pixels
        read = reader.read_bytes(source.level, rows, widest)
        reserve(3 * band + shared + read + tiles + source.annotations.held_bytes)

    def _record(self, source: _Source, job: _Job) -> Record | None:
        """Return the record of a tile; None if it is empty and not kept."""
        recipe, tile, reference = self.recipe, job.tile, source.reference
        features: dict[str, Value] = {}
        facts = PictureFacts(
            pixel_sums=sum_pixels(np.empty((0, 0, recipe.channels), np.uint8)),
            stored_size=tile.plan.output_size,
            picture_size=tile.plan.resized_size,
            source_size=tile.plan.source_size,
            labels=[],
            boxes=None,
            is_tile=tile.number > 0,
            counts_source=False,
        )
        has_content = source.annotations.add(tile, job.part, features, facts)
        if not has_content and not self._keeps_empty(reference, tile.number):
            return None
        window = source_window(job.stored, source.level_size)
        pixels, valid = job.band.cut(*window)
        pixels, valid = scale_window(pixels, valid, window, job.stored, source.level_size)
        channels, notes = source.values.apply(pixels)
        facts.notes = notes
        fill = recipe.padding()
        if valid is not None and not valid.all():
            channels = np.where(valid[..., None], channels, np.array(fill, channels.dtype))
        shown = apply_orientation(channels, source.facts.orientation)
        facts.pixel_sums = sum_pixels(np.ascontiguousarray(shown))
        stored = pad_tile(shown, tile.plan.output_size, fill)
        encoded = ENCODERS[recipe.encoding](stored, recipe.jpeg_quality)
        features |= {
            keys.ENCODED: encoded,
            keys.FORMAT: recipe.encoding.encode(),
            keys.TILE: np.array([tile.number]),
            keys.TILE_ORIGIN: np.array(tile.plan.origin),
            **source.features,
            **size_features(tile.plan, source.orientation),
        }
        if recipe.encoding != "raw":
            features[keys.KEY_SHA256] = hashlib.sha256(encoded).hexdigest().encode()
        return Record.of(reference, features, facts, number=tile.number)

    def _keeps_empty(self, reference: SourceExample, number: int) -> bool:
        """Return whether an empty tile is kept, by a hash that depends on its source and number only."""
        share = self.recipe.empty_tile_share()
        if share in (0.0, 1.0):
            return share == 1
        text = f"empty tile {example_id(reference.key, number)}"
        digest = hashlib.sha256(text.encode()).digest()
        return int.from_bytes(digest[:4], "big") < (share or 0) * _HASH_SHARES


def _extent(windows: Sequence[tuple[int, int, int, int]]) -> tuple[int, int]:
    """Return the first row of windows, and the row after the last."""
    return min(top for top, *_ in windows), max(top + height for top, _, height, _ in windows)


def file_grid_plan(plan: ResizePlan, orientation: int) -> ResizePlan:
    """Return the plan of a tile on the grid of the file, before the orientation is applied, without padding.

    >>> plan = ResizePlan(
    ...     source_size=(30, 40), resized_size=(10, 10), output_size=(10, 10), scaled_size=(30, 40), origin=(0, 5)
    ... )
    >>> file_grid_plan(plan, 3).origin, file_grid_plan(plan, 6).origin
    ((20, 25), (25, 0))
    """
    (top, left), (height, width) = plan.origin, plan.resized_size
    rows, columns = plan.scaled_size
    # First rows and columns counted from the other end, for orientations that reverse an axis.
    below, beside = rows - top - height, columns - left - width
    origins = {
        1: (top, left),
        2: (top, beside),
        3: (below, beside),
        4: (below, left),
        5: (left, top),
        6: (beside, top),
        7: (beside, below),
        8: (left, below),
    }
    size = displayed_size(orientation, plan.resized_size)
    return ResizePlan(
        source_size=displayed_size(orientation, plan.source_size),
        resized_size=size,
        output_size=size,
        scaled_size=displayed_size(orientation, plan.scaled_size),
        origin=origins[orientation],
    )
