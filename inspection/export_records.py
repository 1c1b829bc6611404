"""Records of a data set as exporters see them: one at a time, checked, each with a unique file name."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from halofeed.inspection.dataset_files import DatasetFiles
from halofeed.inspection.export_grid import PictureGrid, SourcePictures, picture_grid
from halofeed.inspection.stored_records import (
    StoredShard,
    bytes_of,
    stored_image,
    text_of,
)
from halofeed.inspection.stored_values import FORMS
from halofeed.inspection.verify_record import record_problems
from halofeed.prep.sources.file_names import safe_name
from halofeed.prep.voxels.encode import encode_png
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded
from halofeed.storage.paths import open_path
from halofeed.system.errors import CorruptFileError, UsageError

NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that no text file may hold: control characters and lone surrogates."""
_NO_FOLDER = re.compile(rf"{NO_TEXT.pattern}|[/\\]")
_FOLDER_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """One record, without a difference from its manifest.

    Args:
        name: file name without extension, which no other record of the data set has, ignoring case.
    """

    id: int
    split: str
    name: str
    features: Decoded


@dataclass(frozen=True, kw_only=True)
class ExportedData:
    """A data set to export.

    Args:
        grid: one of `halofeed.inspection.export_grid.GRIDS`.
        images: source pictures to copy; None if they are not available.
    """

    files: DatasetFiles
    manifest: Manifest
    grid: str = "stored"
    images: SourcePictures | None = None

    def records(self) -> Iterator[ExportRecord]:
        """Yield every record in the order of splits and shards; memory: one record, and the names of all.

        Raises:
            CorruptFileError: a record is damaged, or differs from the manifest.
        """
        used: set[str] = set()
        for split, shards in self.manifest.splits.items():
            for shard in shards.shards:
                stored = StoredShard(self.files, shard)
                for row in range(shard.records):
                    features = stored.features(row)
                    for problem in record_problems(features, self.manifest):
                        place = f"{self.files.path(shard.file)}: record {row}"
                        raise CorruptFileError(f"{place}: {problem}; run `halofeed verify {self.files}`")
                    identity = int(text_of(features, keys.SOURCE_ID) or 0)
                    name = unique_name(safe_name(text_of(features, keys.KEY_SOURCE) or ""), identity, used)
                    yield ExportRecord(id=identity, split=split, name=name, features=features)

    def small_features(self, wanted: Collection[str]) -> Iterator[Decoded]:
        """Yield the values of a few small features of every record."""
        for split in self.manifest.splits.values():
            for shard in split.shards:
                stored = StoredShard(self.files, shard)
                yield from (stored.small_features(row, wanted) for row in range(shard.records))


def unique_name(wanted: str, identity: int, used: set[str]) -> str:
    """Return a name that is not among the used ones, ignoring case, and add it to them.

    >>> used: set[str] = set()
    >>> unique_name("a", 1, used), unique_name("A", 2, used), unique_name("a-2", 3, used)
    ('a', 'A-2', 'a-2-3')
    """
    name = wanted
    # Names that differ in case are one file on macOS and Windows.
    while name.casefold() in used:
        name = f"{name}-{identity}"
    used.add(name.casefold())
    return name


def class_folder_names(labels: Mapping[int, str]) -> dict[int, str]:
    """Return a folder name by class id: no separator, no control character, no leading dot.

    >>> class_folder_names({0: "cat", 1: "../Cat", 2: "Hund (Köter)"})
    {0: 'cat', 1: '_Cat', 2: 'Hund (Köter)'}
    """
    used: set[str] = set()
    plain = {label: _NO_FOLDER.sub("_", name).lstrip(".") for label, name in labels.items()}
    return {
        label: unique_name(name[:_FOLDER_CHARACTERS] or "class", label, used) for label, name in plain.items()
    }


def text_names(labels: Mapping[int, str]) -> dict[int, str]:
    """Return a different class name by id that a text file may hold.

    >>> text_names({1: "cat", 2: " cat", 3: "a\\nb"})
    {1: 'cat', 2: 'cat-2', 3: 'a?b'}
    """
    names: dict[int, str] = {}
    for label, name in labels.items():
        clean = NO_TEXT.sub("?", name).strip() or "class"
        # Names that differ only in what a text file cannot hold would become one class.
        while clean in names.values():
            clean = f"{clean}-{label}"
        names[label] = clean
    return names


def yaml_text(text: str) -> str:
    """Return text as a YAML scalar in double quotes; JSON's escapes are YAML's.

    >>> yaml_text('say "no"' + chr(0x2028))
    '"say \\\\"no\\\\"\\\\U00002028"'
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in quoted)


class Exporter(ExitStack):
    """Base class of exporters: a context manager that gets one record at a time.

    Args:
        folder: empty output folder.
        data: data set to export.

    Attributes:
        HOLDS_SOURCE_GRID: whether the target holds records on the grid of their source.
        NAMES_SOURCES: whether the target can name source pictures that are not copied.
        DISPLAYED: whether readers of the target apply the EXIF orientation of a picture before its annotations.
        left_out: number of values that the target has no place for, by their kind.
        turned: number of source pictures with an EXIF orientation, by the `--annotation-grid` of their annotations.
        notes: what a reader of the result must know.

    Raises:
        UsageError: the target cannot hold such records.
    """

    TASK: ClassVar[str]
    KIND: ClassVar[str] = "picture"
    HOLDS_SOURCE_GRID: ClassVar[bool] = False
    NAMES_SOURCES: ClassVar[bool] = False
    DISPLAYED: ClassVar[bool] = False

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__()
        self._folder, self._data, self._manifest = folder, data, data.manifest
        self.left_out: Counter[str] = Counter()
        self.turned: Counter[str] = Counter()
        self.notes: list[str] = []
        image = data.manifest.field("image")
        is_picture = data.manifest.kind.name == "picture"
        if is_picture and data.grid == "stored" and image.dtype not in ("uint8", "uint16"):
            raise UsageError(
                f"{data.files}: expected pictures of 8 or 16 bits, which PNG holds, got {image.dtype}"
            )

    @classmethod
    def takes(cls, manifest: Manifest) -> bool:
        """Return whether the target holds records of this task and kind."""
        return manifest.task == cls.TASK and manifest.kind.name == cls.KIND

    @abstractmethod
    def add(self, record: ExportRecord) -> None:
        """Write the files of a record."""

    @abstractmethod
    def finish(self) -> None:
        """Write the files that describe all records."""

    def _spelled(self, spell: Callable[[Mapping[int, str]], dict[int, str]] = text_names) -> dict[int, str]:
        """Return the class names as the target spells them, by id; names that it changes count as left out."""
        labels = dict(sorted(self._manifest.labels.items()))
        names = spell(labels)
        self.left_out["spellings of class names"] += sum(names[label] != labels[label] for label in labels)
        return names

    def _grid(self, record: ExportRecord) -> PictureGrid:
        """Return the grid to which a picture is exported."""
        with self._naming(record):
            return picture_grid(record.features, self._data.grid, displayed=self.DISPLAYED)

    @contextmanager
    def _naming(self, record: ExportRecord) -> Iterator[None]:
        """Name the record in a UsageError of the block."""
        try:
            yield
        except UsageError as error:
            place = f"{self._data.files}: {record.name} of {record.split} (id {record.id})"
            raise UsageError(f"{place}: {error}, or use --grid stored") from error

    def _picture(self, record: ExportRecord, grid: PictureGrid) -> tuple[str, bytes | memoryview]:
        """Return extension and file of a stored picture without padding: its JPEG or PNG if it has none, else a PNG."""
        image = self._manifest.field("image")
        data: bytes | memoryview | None = bytes_of(record.features, keys.ENCODED)
        assert data is not None  # `record_problems` has found it
        extension = FORMS[image.encoding].extension
        # A stored JPEG or PNG holds the padding too.
        if not image.is_file or grid.size != grid.stored_size:
            pixels = stored_image(record.features, self._manifest)
            assert pixels is not None
            height, width = grid.size
            extension, data = ".png", encode_png(np.ascontiguousarray(pixels[:height, :width]), 0)
        return extension, data

    def _write_picture(self, record: ExportRecord, grid: PictureGrid, folder: str) -> str:
        """Write a picture and return its name in the folder.

        On the source's grid the source file is copied; without `ExportedData.images` its path is returned.
        """
        if grid.is_stored:
            extension, data = self._picture(record, grid)
        else:
            orientation = grid.orientation
            if self._data.images is not None:
                extension, data, orientation = self._data.images.read(record.features, grid)
            # Readers of YOLO turn a picture before its boxes; those of the other targets do not.
            if orientation != 1 and not self.DISPLAYED:
                self.turned["stored" if grid.orientation != 1 else "displayed"] += 1
            if self._data.images is None:
                return text_of(record.features, keys.FILENAME) or ""
        path = self._folder / folder / f"{record.name}{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_path(path, "xb") as file:
            file.write(data)
        return path.name
