"""Where did a record come from, and under which name does a person know it? Read without its pixels.

Text goes to no device and grids need not: what predictions need of them is joined on the host, by the record's id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import UsageError
from halofeed.loader.decode import read_numbers, read_text
from halofeed.loader.gather import Shards
from halofeed.loader.store.choose import open_store
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume import triple
from halofeed.schemas.manifest import Manifest
from halofeed.trainer.windows import Tile

_NOT_READ = ("id", "masks")


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordMetadata:
    """One record's origin.

    Args:
        id: of the record.
        key: the source's own name for it.
        source: the file or folder that it was read from, below the folder of images.
        numbers: the optional fields of numbers by name, such as `transform`, `affine` and `source_shape`.
    """

    id: int
    key: str
    source: str
    numbers: Mapping[str, NDArray[Any]]

    @property
    def source_size(self) -> tuple[int, int]:
        """Of a picture: height and width of the file's own pixels."""
        return int(self.numbers["source_height"]), int(self.numbers["source_width"])

    @property
    def picture_size(self) -> tuple[int, int]:
        """Of a picture: height and width without the padding of its record."""
        return int(self.numbers["unpadded_height"]), int(self.numbers["unpadded_width"])

    @property
    def source_grid(self) -> Grid:
        """Of a volume: the grid of its source, axes as the file lists its voxels, the slowest index first."""
        shape = triple(self.numbers["source_shape"].tolist())
        return Grid(shape=shape, affine=self.numbers["source_affine"].astype(np.float64))

    def tile(self, shape: tuple[int, int, int]) -> Tile:
        """Of a volume: which part of its scan it is; `shape` is the record's."""
        return Tile(
            number=int(self.numbers["tile"]),
            origin=triple(self.numbers["tile_origin"].tolist()),
            extent=self.numbers["extent"].astype(np.int64),
            grid=Grid(shape=shape, affine=self.numbers["affine"].astype(np.float64)),
        )


class SplitMetadata:
    """The metadata of the records of a split, by their number or their id.

    Memory: some 100 bytes a record; metadata are parsed when they are asked for, and no pixel is read.

    Args:
        path: the version's folder.
        split: its name.

    Raises:
        UsageError, ManifestError, CorruptFileError: as `halofeed.loader.Loader`.
    """

    def __init__(self, path: str | Path, split: str) -> None:
        store = open_store(path)
        self.manifest: Manifest = store.manifest()
        self._shards = Shards(store, self.manifest, split, "always")
        self._numbers = {identity: number for number, identity in enumerate(self._shards.all_ids().tolist())}
        fields = [field for field in self.manifest.fields if field.optional and field.name not in _NOT_READ]
        self._text = [field for field in fields if field.encoding == "text"]
        self._values = [field for field in fields if field.encoding == "value"]
        self._keys = frozenset(key for field in (*self._text, *self._values) for key in field.keys)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[RecordMetadata]:
        return map(self.of_record, range(len(self)))

    @property
    def has_tiles(self) -> bool:
        """Whether any record is one of several tiles of a scan."""
        is_volume = any(field.name == "tile" for field in self._values)
        return is_volume and any(int(origin.numbers["tile"]) for origin in self)

    def of_record(self, number: int) -> RecordMetadata:
        """The origin of the record of that number, in stored order."""
        record = self._shards.record(number)
        features = record.features(self._keys)
        text = {field.name: read_text(field, features, record) for field in self._text}
        numbers = {field.name: read_numbers(field, features, record) for field in self._values}
        return RecordMetadata(id=record.id, key=text["key"], source=text["source"], numbers=numbers)

    def of_id(self, identity: int) -> RecordMetadata:
        """The origin of the record of that id; UsageError if the split has none."""
        if identity not in self._numbers:
            raise UsageError(f"id {identity}: no record of this split; the predictions are of other data")
        return self.of_record(self._numbers[identity])
