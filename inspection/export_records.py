"""Records of a data set as exporters see them: one at a time, checked, with a file name of their own."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from halofeed.errors import CorruptFileError, UsageError
from halofeed.inspection.dataset_files import DatasetFiles
from halofeed.inspection.stored_records import (
    bytes_of,
    class_counts,
    integer_of,
    label_map,
    stored_image,
    text_of,
)
from halofeed.inspection.stored_shard import StoredShard
from halofeed.inspection.verify_record import record_problems, segmentation_problems
from halofeed.prep.sources.file_names import safe_name
from halofeed.prep.voxels.encode import encode_png
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded

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

    @property
    def stored_size(self) -> tuple[int, int]:
        """Height and width of the stored picture, with its padding."""
        height, width = (integer_of(self.features, key) or 0 for key in keys.SIDES)
        return height, width

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the picture without padding."""
        sides = zip(keys.UNPADDED_SIDES, self.stored_size, strict=True)
        height, width = (integer_of(self.features, key) or side for key, side in sides)
        return height, width


@dataclass(frozen=True, kw_only=True)
class ExportedData:
    """A data set to export."""

    files: DatasetFiles
    manifest: Manifest

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
                    for problem in self._problems(features):
                        place = f"{self.files.path(shard.file)}: record {row}"
                        raise CorruptFileError(f"{place}: {problem}; run `halofeed verify {self.files}`")
                    identity = int(text_of(features, keys.SOURCE_ID) or 0)
                    name = unique_name(safe_name(text_of(features, keys.KEY_SOURCE) or ""), identity, used)
                    yield ExportRecord(id=identity, split=split, name=name, features=features)

    def _problems(self, features: Decoded) -> Iterator[str]:
        yield from record_problems(features, self.manifest)
        label = label_map(features, self.manifest)
        counts = None if label is None else class_counts(label, self.manifest)
        yield from segmentation_problems(features, self.manifest, counts)

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
    while name.casefold() in used:
        name = f"{name}-{identity}"
    used.add(name.casefold())
    return name


def folder_names(labels: Mapping[int, str]) -> dict[int, str]:
    """Return a folder name by class id: no separator, no control character, no leading dot.

    >>> folder_names({0: "cat", 1: "../Cat", 2: "Hund (Köter)"})
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
        left_out: number of values that the target has no place for, by their kind.
        notes: what a reader of the result must know.

    Raises:
        UsageError: the target cannot hold such records.
    """

    TASK: ClassVar[str]
    KIND: ClassVar[str] = "picture"

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__()
        self._folder, self._manifest = folder, data.manifest
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []
        image = data.manifest.field("image")
        if self.KIND == "picture" and image.dtype not in ("uint8", "uint16"):
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

    def _count_renamed(self, names: Mapping[int, str]) -> None:
        labels = self._manifest.labels
        self.left_out["spellings of class names"] += sum(names[label] != labels[label] for label in labels)

    def _picture(self, record: ExportRecord) -> tuple[str, bytes | memoryview]:
        """Return extension and file of a picture without padding: the stored JPEG or PNG if it has none, else a PNG."""
        image = self._manifest.field("image")
        data: bytes | memoryview | None = bytes_of(record.features, keys.ENCODED)
        assert data is not None  # `record_problems` has found it
        extension: str = ".jpg" if image.encoding == "jpeg" else ".png"
        if image.encoding == "raw" or record.size != record.stored_size:
            pixels = stored_image(record.features, self._manifest)
            assert pixels is not None
            height, width = record.size
            extension, data = ".png", encode_png(np.ascontiguousarray(pixels[:height, :width]), 0)
        return extension, data

    def _write_picture(self, record: ExportRecord, folder: str) -> str:
        """Write the picture of a record; return its name."""
        extension, data = self._picture(record)
        path = self._folder / folder / f"{record.name}{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
        return path.name
