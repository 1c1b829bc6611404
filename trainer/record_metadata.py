"""Metadata of records (key, source file, grids), read without pixels and joined to predictions by record id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.decode import read_bytes, read_numbers, read_text
from halofeed.loader.reading import StoredMask
from halofeed.loader.record import stored_record
from halofeed.loader.shards import Shards
from halofeed.loader.store.open_store import open_store
from halofeed.prep.formats.region.region_reader import Georeference
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_plan import triple
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tasks import IGNORED_SOURCE_BOXES, MASKS
from halofeed.system.errors import UsageError
from halofeed.trainer.picture_bands import PlacedTile
from halofeed.trainer.windows import WindowTile

_NOT_READ = ("id", "masks")
_OBJECTS = ("classes", "index", "source_boxes", "source_area", "source_is_crowd")
"""Fields that describe the complete objects of a tile."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordMetadata:
    """Metadata of one record.

    Args:
        id: id of the record.
        key: name of the record in the source data.
        source: file or folder that it was read from, relative to the folder of images.
        numbers: optional numeric fields by name, such as `transform`, `affine` and `source_shape`.
        texts: other text fields by name, such as `crs` and `geotransform`.
    """

    id: int
    key: str
    source: str
    numbers: Mapping[str, NDArray[Any]]
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def georeference(self) -> Georeference | None:
        """Place of the source picture on a map; None if it is unknown."""
        if not (text := self.texts.get("geotransform", "")):
            return None
        a, b, c, d, e, f = map(float, text.split(","))
        return Georeference(to_map=(a, b, c, d, e, f), crs=self.texts.get("crs", ""))

    @property
    def source_size(self) -> tuple[int, int]:
        """Height and width of a picture's file, in pixels."""
        return int(self.numbers["source_height"]), int(self.numbers["source_width"])

    @property
    def picture_size(self) -> tuple[int, int]:
        """Height and width of a picture without the padding of its record."""
        return int(self.numbers["unpadded_height"]), int(self.numbers["unpadded_width"])

    @property
    def whole_size(self) -> tuple[int, int]:
        """Height and width of the scaled, displayed picture of which the record is a tile."""
        height, width = self.numbers["tile_whole"].tolist()
        return height, width

    @property
    def source_grid(self) -> Grid:
        """Grid of a volume's source, with the axes of the file, the slowest first."""
        shape = triple(self.numbers["source_shape"].tolist())
        return Grid(shape=shape, affine=self.numbers["source_affine"].astype(np.float64))

    def tile(self, shape: tuple[int, int, int]) -> WindowTile:
        """Return the part of its scan that a volume shows; `shape` is the record's."""
        return WindowTile(
            number=int(self.numbers["tile"]),
            origin=triple(self.numbers["tile_origin"].tolist()),
            extent=self.numbers["extent"].astype(np.int64),
            grid=Grid(shape=shape, affine=self.numbers["affine"].astype(np.float64)),
        )


class SplitMetadata:
    """Metadata of the records of a split, by number or id, parsed on access.

    Memory: about 100 bytes per record.

    Args:
        path: version folder of the data set.
        split: name of the split.

    Raises:
        UsageError, ManifestError, CorruptFileError: as `halofeed.loader.Loader`.
    """

    def __init__(self, path: str | Path, split: str) -> None:
        store = open_store(path)
        self.manifest: Manifest = store.manifest()
        self.split = split
        self._shards = Shards(store, self.manifest, split, "always")
        self._numbers = {
            record_id: number for number, record_id in enumerate(self._shards.all_ids().tolist())
        }
        fields = [one for one in self.manifest.fields if one.optional and one.name not in _NOT_READ]
        self._text = [field for field in fields if field.encoding == "text"]
        self._values = [field for field in fields if field.encoding == "value"]
        self._keys = frozenset(key for field in (*self._text, *self._values) for key in field.keys)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[RecordMetadata]:
        return map(self.of_record, range(len(self)))

    @property
    def dropped_tiles(self) -> int:
        """Number of tiles that the conversion left out of pictures of the split, because they were empty.

        Nothing is predicted there, so false detections in them are not counted. A picture of which no tile was kept is
        not among them; rejected.jsonl lists it.
        """
        ledger = self.manifest.split(self.split).statistics.ledger
        return 0 if ledger is None else ledger.count("empty_tiles_dropped")

    @property
    def has_tiles(self) -> bool:
        """True if any record is one of several tiles of a scan."""
        has_field = any(one.name == "tile" for one in self._values)
        return has_field and any(int(record.numbers["tile"]) for record in self)

    def picture_tiles(self) -> dict[str, dict[int, PlacedTile]]:
        """Return the tiles of each picture, by the picture's key and the number of the tile."""
        tiles: dict[str, dict[int, PlacedTile]] = {}
        for record in self:
            top, left = record.numbers["tile_origin"].tolist()
            tile = PlacedTile(origin=(top, left), size=record.picture_size)
            tiles.setdefault(record.key, {})[int(record.numbers["tile"])] = tile
        return tiles

    def tiles(self) -> dict[str, dict[int, WindowTile]]:
        """Return the tiles of each scan of volumes, by the scan's key and the number of the tile."""
        shape = triple(self.manifest.field("image").shape[:3])
        tiles: dict[str, dict[int, WindowTile]] = {}
        for record in self:
            tile = record.tile(shape)
            tiles.setdefault(record.key, {})[tile.number] = tile
        return tiles

    def of_record(self, number: int) -> RecordMetadata:
        """Return the metadata of a record by its number in stored order."""
        record = stored_record(self._shards, number)
        features = record.features(self._keys)
        text = {field.name: read_text(field, features, record) for field in self._text}
        numbers = {field.name: read_numbers(field, features, record) for field in self._values}
        key, source = text.pop("key"), text.pop("source")
        return RecordMetadata(id=record.id, key=key, source=source, numbers=numbers, texts=text)

    def of_id(self, record_id: int) -> RecordMetadata:
        """Return the metadata of a record by its id; raise UsageError if the split does not have it."""
        return self.of_record(self._number(record_id))

    def objects(self, record_id: int) -> dict[str, NDArray[Any]]:
        """Return the objects of a tile of a picture, each [object, ...]: class, number in the source, complete box."""
        record = stored_record(self._shards, self._number(record_id))
        fields = [self.manifest.field(name) for name in _OBJECTS]
        features = record.features(frozenset(key for field in fields for key in field.keys))
        return {field.name: read_numbers(field, features, record) for field in fields}

    def object_masks(self, record_id: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the mask [height, width] of each object of a record with masks, in the order of `objects`."""
        record = stored_record(self._shards, self._number(record_id))
        (key,) = self.manifest.field(MASKS).keys
        shape = self.manifest.field("image").shape[:2]
        for number, file in enumerate(read_bytes(key, record.features(frozenset([key])), record)):
            yield StoredMask(record, number, file, shape).decode()

    def box_sides(self, number: int) -> NDArray[np.float64]:
        """Return heights and widths [box, 2] of the objects of a picture but crowds, in pixels of the record."""
        record = stored_record(self._shards, number)
        fields = [self.manifest.field(name) for name in ("boxes", "is_crowd")]
        features = record.features(frozenset(key for field in fields for key in field.keys))
        boxes, is_crowd = (read_numbers(field, features, record) for field in fields)
        sides: NDArray[np.float64] = (boxes[:, 2:] - boxes[:, :2]).astype(np.float64)
        sides *= self.manifest.field("image").shape[:2]
        return sides[~is_crowd & (sides > 0).all(-1)]

    def complete_regions(self, record_id: int) -> set[tuple[float, ...]]:
        """Return the complete ignored regions of which a tile shows parts: ymin, xmin, ymax, xmax in source pixels."""
        field = next((one for one in self.manifest.fields if one.name == IGNORED_SOURCE_BOXES), None)
        if field is None:
            return set()
        record = stored_record(self._shards, self._number(record_id))
        features = record.features(frozenset(field.keys))
        sides = read_numbers(field, features, record)
        return set(map(tuple, sides.tolist()))

    def _number(self, record_id: int) -> int:
        if record_id not in self._numbers:
            raise UsageError(f"id {record_id}: no record of this split; the predictions are of other data")
        return self._numbers[record_id]
