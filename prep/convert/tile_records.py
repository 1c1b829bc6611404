"""Converter of pictures into tiles: records of one picture, read in bands of rows and yielded one after the other.

    file ──> level ──> band of rows ──> window ──> orientation ──> values ──> scale ──> record
                       (decoded once)   (per tile, in threads)

This is the order of steps of a picture that is not cut, whose pixels a tile must have.

Memory is that of a few bands, however large the picture is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.converted_record import HELD_BYTES, Record
from halofeed.prep.convert.drawn_boxes import with_drawn_boxes
from halofeed.prep.convert.picture_records import (
    DICOM_WARNINGS,
    size_features,
    stated_features,
    stated_fields_of,
    with_frame,
)
from halofeed.prep.convert.picture_tasks import annotated_orientation
from halofeed.prep.convert.record_measures import picture_measures
from halofeed.prep.convert.tallies import (
    PictureFacts,
    PictureTally,
    count_differences,
    loaded_colors,
    sum_pixels,
)
from halofeed.prep.convert.tile_labels import LabelsOfTiles
from halofeed.prep.convert.tile_objects import TileObjects
from halofeed.prep.convert.tile_tasks import ClassesOfTiles, TileAnnotations, TiledPicture
from halofeed.prep.convert.tile_values import TileValues, plan_values
from halofeed.prep.formats.picture import DecodedImage
from halofeed.prep.formats.picture.image import apply_orientation
from halofeed.prep.formats.region.region_formats import open_regions
from halofeed.prep.formats.region.region_reader import RegionFacts, RegionReader
from halofeed.prep.formats.region.region_rows import Band, RowReader, column_ranges, enough_level
from halofeed.prep.formats.region.world_files import world_georeference
from halofeed.prep.geometry.picture_tiles import PictureTile, PictureTiles, plan_picture_tiles, scale_size
from halofeed.prep.geometry.resize import Size, displayed_size
from halofeed.prep.geometry.tile_windows import TileSpan, TileWindows, tile_windows
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.tiles import tile_overlap_of
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.encode import ENCODERS
from halofeed.prep.voxels.signatures import sign_picture
from halofeed.prep.voxels.tile_pixels import pad_tile, scale_bytes, scale_window
from halofeed.schemas import keys
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.file_layout import SELECTION
from halofeed.schemas.identity import example_id
from halofeed.schemas.tfexample import Value
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory

BAND_BYTES, STRIPED_BAND_BYTES = 64 << 20, 192 << 20
"""Most bytes of a band that has several columns of tiles, and of one of strips, which are as wide as the picture.

A wider picture is read in several parts."""
_JOBS_AHEAD = 4
"""Tiles that exist at the same time beside one for each thread: those that `OrderedThreads.map` makes ahead, the one
that is handed over, and the last one, which waits for what is known at the end."""
_BLOCK_BYTES = 16 << 20
"""Memory of a conversion of values, which is made in blocks."""
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
        row, column: window of the tile in the file.
        band: rows of the level that hold it.
        part: part of the annotations that it shows.
    """

    tile: PictureTile
    row: TileSpan
    column: TileSpan
    band: Band
    part: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class _Source:
    """Facts that all tiles of a picture share; `orientation` leads from the grid of the annotations to the display."""

    reference: SourceExample
    facts: RegionFacts
    tiles: PictureTiles
    windows: TileWindows
    level: int
    values: TileValues
    annotations: TileAnnotations
    features: dict[str, Value]
    orientation: int

    @property
    def level_size(self) -> Size:
        """Stored (height, width) of the level that is read."""
        return self.facts.levels[self.level]

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel of the file, and of the flag whether it exists."""
        return np.dtype(self.facts.dtype).itemsize * self.facts.bands + 1

    @property
    def band_rows(self) -> int:
        """Most rows of a band."""
        rows = max(row.end - row.first for row in self.windows.rows)
        return min(self.level_size[0], rows + self.facts.row_steps[self.level] - 1)

    @property
    def kept_rows(self) -> int:
        """Most rows of a band that are kept for the next one."""
        overlap = max((above.end - below.first for above, below in pairwise(self.windows.rows)), default=0)
        return min(self.level_size[0], overlap + self.facts.row_steps[self.level] - 1)

    def column_groups(self) -> list[tuple[int, int]]:
        """Return the columns of tiles that are read together, as (first, the one after the last)."""
        spans = [(column.first, column.end) for column in self.windows.columns]
        return column_ranges(spans, self.pixel_bytes, self.band_rows, self._band_limit)

    @property
    def _band_limit(self) -> float:
        """Most bytes of a band that has several columns of tiles."""
        # The rows of a file that is read in order pass by only once.
        if self.facts.in_order:
            return math.inf
        steps = self.facts.column_steps
        # Each group would decode the strips again: LZW strips of 20,000 columns took twice as long.
        is_striped = bool(steps) and steps[self.level] >= self.level_size[1]
        return STRIPED_BAND_BYTES if is_striped else BAND_BYTES

    def group_columns(self, first: int, last: int) -> tuple[int, int]:
        """Return the columns of the file, as (first, the one after the last), of a group of columns of tiles."""
        if self.facts.in_order:
            return 0, self.level_size[1]
        return self.windows.columns[first].first, self.windows.columns[last - 1].end


def _open_source(files: SourceFiles, reference: SourceExample, threads: int) -> RegionReader:
    """Open the picture of a reference, which may be a frame of a DICOM file."""
    if reference.frame is None:
        return open_regions(files, reference.source, threads)
    from halofeed.prep.formats.region.dicom_picture_regions import open_frame_regions  # takes 0.2 s

    return open_frame_regions(files, reference.source, reference.frame)


@dataclass(frozen=True, kw_only=True)
class TileConverter:
    """Converter of pictures into tiles, for one recipe and one label map."""

    recipe: Recipe
    task: str
    labels: LabelMap

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
        files = with_frame(self.recipe, reference, files, reserve)
        reference = with_drawn_boxes(reference, files, self.recipe, reserve)
        reader = _open_source(files, reference, threads)
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
            raise self._all_empty(source, dropped)
        bad_objects = source.annotations.finish(kept.facts)
        facts = kept.facts
        facts.ledger.count("sources")
        facts.ledger.count("empty_tiles_dropped", dropped)
        facts.counts_source = True
        facts.notes += tuple(note for note in source.facts.notes if note not in DICOM_WARNINGS)
        of_file = tuple(note for note in source.facts.notes if note in DICOM_WARNINGS)
        facts.warnings += (*source.reference.notes, *of_file)
        yield replace(kept, bad_objects=(*kept.bad_objects, *bad_objects))

    def _all_empty(self, source: _Source, dropped: int) -> SourceError:
        """Return the entry of a picture of which no tile is kept, with the first object that could not be used."""
        detail = f"none of {dropped:,} holds an object or a label; --empty-tiles keep converts them"
        bad_objects = source.annotations.finish(self._new_facts(source.tiles.tile(0)))
        if bad_objects:
            reason, which = bad_objects[0]
            detail += f". Dropped objects: {len(bad_objects):,}, the first: {reason} ({which})"
        return SourceError(SELECTION, "all tiles are empty", detail)

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
        values = plan_values(recipe, facts, lambda: _open_source(files, reference, threads), reserve)
        header = DecodedImage(
            pixels=np.empty((0, 0, 1), np.uint8),
            orientation=facts.orientation,
            stored_size=facts.size,
            scale=1,
            notes=facts.notes,
            stated=facts.stated,
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
        # All tiles of a picture have one scale.
        features |= stated_features(header, tiles.tile(0).plan)
        if values.range is not None:
            scales, offsets = values.range.scale
            features[keys.INTENSITY_SCALE] = np.array(scales, np.float32)
            features[keys.INTENSITY_OFFSET] = np.array(offsets, np.float32)
        return _Source(
            reference=reference,
            facts=facts,
            tiles=tiles,
            windows=tile_windows(tiles, facts.levels[level], facts.orientation),
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
                "the file states no size of a pixel in meters; leave --gsd-m out, or scale by a factor with --scale",
            )
        height, width = (size / recipe.gsd_m for size in pixel_size_m)
        return (width, height) if facts.orientation >= 5 else (height, width)

    def _jobs(self, source: _Source, reader: RegionReader) -> Iterator[_Job]:
        """Yield the tiles with their bands, in the order of the file's rows."""
        windows, height = source.windows, source.level_size[0]
        groups = [
            (
                windows.columns[first:last],
                RowReader(
                    reader,
                    source.level,
                    source.group_columns(first, last),
                    source.values.bands,
                    finds_missing=source.values.finds_missing,
                ),
            )
            for first, last in source.column_groups()
        ]
        next_tops = [*(row.first for row in windows.rows[1:]), height]
        for row, next_top in zip(windows.rows, next_tops, strict=True):
            for columns, row_reader in groups:
                band = row_reader.rows(row.first, row.end, next_top)
                for column in columns:
                    tile = windows.tile(row, column)
                    part = source.annotations.cut(tile)
                    yield _Job(tile=tile, row=row, column=column, band=band, part=part)
                del band

    def _reserve(self, source: _Source, reader: RegionReader, reserve: ReserveMemory, threads: int) -> None:
        """Reserve the memory of the bands, of a read, and of the tiles that exist at the same time."""
        jobs = min(threads + _JOBS_AHEAD, len(source.tiles))
        groups = source.column_groups()
        spans = [source.group_columns(first, last) for first, last in groups]
        widest = max(end - first for first, end in spans)
        # A band is freed with the last of its tiles, and tiles of several bands may be waiting.
        fewest = min(last - first for first, last in groups)
        rows = source.band_rows * min(len(groups) * len(source.windows.rows), -(-jobs // fewest) + 1)
        kept = 0
        if len(groups) == 1:
            # Bands of one block share it or copy less than half of it, so that rows are held twice at most.
            rows = min(rows, 2 * source.level_size[0])
        else:
            kept = source.kept_rows * sum(end - first for first, end in spans)
        # One more band is being joined from rows that are kept and rows that are read, unless all are read at once.
        joined = source.band_rows * (source.band_rows < source.level_size[0])
        held = ((rows + joined) * widest + kept) * source.pixel_bytes
        read = reader.read_bytes(source.level, source.band_rows, widest)
        reserve(held + read + self._tile_bytes(source, jobs, threads) + source.annotations.held_bytes)

    def _tile_bytes(self, source: _Source, jobs: int, threads: int) -> int:
        """Return the memory of tiles: of those that threads make, and of the records that wait."""
        recipe, windows = self.recipe, source.windows
        window = (
            max(row.end - row.first for row in windows.rows),
            max(column.end - column.first for column in windows.columns),
        )
        sample_bytes = np.dtype(recipe.dtype).itemsize
        # The window in the order of the display, and with the values of the record.
        values = math.prod(window) * (source.pixel_bytes + recipe.channels * sample_bytes)
        values += _BLOCK_BYTES * source.values.converts(source.facts)
        tile = recipe.height * recipe.width * recipe.channels * sample_bytes
        size = displayed_size(source.facts.orientation, source.tiles.tile(0).plan.resized_size)
        work = values + scale_bytes(window, size, recipe.channels, sample_bytes) + 3 * tile
        held = min(HELD_BYTES, len(source.tiles) * tile)
        return min(threads, jobs) * work + jobs * tile + held

    def _record(self, source: _Source, job: _Job) -> Record | None:
        """Return the record of a tile; None if it is empty and not kept."""
        recipe, tile, reference = self.recipe, job.tile, source.reference
        features: dict[str, Value] = {}
        facts = self._new_facts(tile)
        has_content = source.annotations.add(tile, job.part, features, facts)
        if not has_content and not self._keeps_empty(reference, tile.number):
            return None
        shown, facts.notes = self._pixels(source, job)
        facts.stated = stated_fields_of(source.features)
        stored = pad_tile(shown, tile.plan.output_size, recipe.padding())
        encoded = ENCODERS[recipe.encoding](stored, recipe.jpeg_quality)
        loaded = loaded_colors(recipe.encoding, stored, encoded)
        if loaded is not None:
            loaded = loaded[: shown.shape[0], : shown.shape[1]]
            facts.color_errors = count_differences(loaded, shown)
        compared = shown if loaded is None else loaded
        facts.pixel_sums = sum_pixels(compared)
        features |= {
            keys.ENCODED: encoded,
            keys.FORMAT: recipe.encoding.encode(),
            keys.TILE: np.array([tile.number]),
            keys.TILE_ORIGIN: np.array(tile.plan.origin),
            **source.features,
            **size_features(tile.plan, source.orientation),
        }
        if ENCODINGS[recipe.encoding].is_file:
            features[keys.KEY_SHA256] = hashlib.sha256(encoded).hexdigest().encode()
        signature = sign_picture(shown, reference.origin, reference.group)
        measures = picture_measures(compared, facts.pixel_sums)
        return Record.of(
            reference,
            features,
            facts,
            number=tile.number,
            encoding=recipe.encoding,
            signature=signature,
            measures=measures,
        )

    def _new_facts(self, tile: PictureTile) -> PictureFacts:
        """Return the facts of a record before its pixels and its annotations are known."""
        return PictureFacts(
            pixel_sums=sum_pixels(np.empty((0, 0, self.recipe.channels), np.uint8)),
            stored_size=tile.plan.output_size,
            picture_size=tile.plan.resized_size,
            source_size=tile.plan.source_size,
            labels=[],
            boxes=None,
            is_tile=tile.number > 0,
            counts_source=False,
        )

    def _pixels(self, source: _Source, job: _Job) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Return the pixels of a tile, C-contiguous and without padding, and notes of conversions."""
        row, column, orientation = job.row, job.column, source.facts.orientation
        pixels, valid = job.band.cut(row.first, column.first, row.end - row.first, column.end - column.first)
        pixels = apply_orientation(pixels, orientation)
        valid = None if valid is None else apply_orientation(valid, orientation)
        values, notes = source.values.apply(pixels)
        scaled, valid = scale_window(
            values,
            valid,
            source.windows.corner(row, column),
            job.tile.plan,
            displayed_size(orientation, source.level_size),
        )
        if valid is not None and not valid.all():
            scaled = np.where(valid[..., None], scaled, np.array(self.recipe.padding(), scaled.dtype))
        return np.ascontiguousarray(scaled), notes

    def _keeps_empty(self, reference: SourceExample, number: int) -> bool:
        """Return whether an empty tile is kept, by a hash that depends on its source and number only."""
        share = self.recipe.empty_tile_share()
        if share in (0.0, 1.0):
            return share == 1
        text = f"empty tile {example_id(reference.key, number)}"
        digest = hashlib.sha256(text.encode()).digest()
        return int.from_bytes(digest[:4], "big") < (share or 0) * _HASH_SHARES
