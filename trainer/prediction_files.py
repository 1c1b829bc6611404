"""Which files do predictions become: one writer a task, and names that cannot leave their folder."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from halofeed.errors import JobError, UsageError
from halofeed.prep.sources.file_names import extension_of
from halofeed.system.atomic_files import atomic_write
from halofeed.trainer.record_metadata import RecordMetadata, SplitMetadata
from halofeed.trainer.source_grid import (
    boxes_in_source,
    coco_results,
    labels_in_source,
    picture_labels_in_source,
    write_nifti,
    write_png,
)
from halofeed.trainer.windows import TileBlender, Tile

DETECTIONS, CATEGORIES, CLASSES = "detections.json", "categories.json", "classes.csv"
LONGEST_NAME = 150
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_PROBABILITY_DECIMALS = 6

Row = Mapping[str, NDArray[Any]]
"""One record's predictions, without the batch axis."""


class PredictionWriter(ExitStack):
    """Takes the predictions of one record after the other; what it has opened is closed at the end of the block.

    Args:
        folder: where to.
        metadata: of the split.
        labels: names by id.
    """

    def __init__(self, folder: Path, metadata: SplitMetadata, labels: Mapping[int, str]) -> None:
        super().__init__()
        self._folder, self._metadata, self._labels = folder, metadata, labels

    @abstractmethod
    def add(self, record: RecordMetadata, row: Row) -> None:
        """Write, or keep, what was predicted for a record."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Write what is left; gives what predictions.json says of the files."""


class DetectionWriter(PredictionWriter):
    """`detections.json`, a COCO results file, and `categories.json`, the names of its category ids.

    Entries are written as they come.
    """

    def __init__(self, folder: Path, metadata: SplitMetadata, labels: Mapping[int, str]) -> None:
        super().__init__(folder, metadata, labels)
        self._size = metadata.manifest.field("image").shape[:2]
        self._count = 0
        atomic_write(folder / CATEGORIES, (json.dumps(written_labels(labels), indent=1) + "\n").encode())
        self._stream = self.enter_context((folder / DETECTIONS).open("x", encoding="utf-8"))

    def add(self, record: RecordMetadata, row: Row) -> None:
        """Write the first `num_detections` boxes."""
        used = slice(int(row["num_detections"]))
        boxes = boxes_in_source(
            row["boxes"][used], record.numbers["transform"], self._size, record.source_size
        )
        for entry in coco_results(record.id, boxes, row["classes"][used], row["scores"][used]):
            self._stream.write(",\n" if self._count else "[\n")
            self._stream.write(json.dumps(entry))
            self._count += 1

    def finish(self) -> dict[str, Any]:
        """End the list."""
        self._stream.write("\n]\n" if self._count else "[]\n")
        return {"detections": DETECTIONS, "categories": CATEGORIES, "boxes": self._count}


class ClassificationWriter(PredictionWriter):
    """`classes.csv`: id, key, the most probable class and its probability, then the probability of every class."""

    def __init__(self, folder: Path, metadata: SplitMetadata, labels: Mapping[int, str]) -> None:
        super().__init__(folder, metadata, labels)
        self._names = [labels.get(label, f"class {label}") for label in range(max(labels) + 1)]
        file = folder / CLASSES
        stream = self.enter_context(file.open("x", newline="", encoding="utf-8", errors="surrogateescape"))
        self._writer = csv.writer(stream)
        self._writer.writerow(["id", "key", "class", "probability", *(f"p({name})" for name in self._names)])

    def add(self, record: RecordMetadata, row: Row) -> None:
        """Write one line."""
        shares = [
            round(value, _PROBABILITY_DECIMALS) for value in row["probabilities"].astype(float).tolist()
        ]
        label = int(row["label"])
        self._writer.writerow([record.id, record.key, self._names[label], shares[label], *shares])

    def finish(self) -> dict[str, Any]:
        """Nothing is left."""
        return {"classes": CLASSES}


class SegmentationWriter(PredictionWriter):
    """One file of class indices a source, on the source's own grid: `KEY.nii.gz` of a scan, `KEY.png` of a picture.

    Of a scan that was converted in tiles, its tiles' probabilities are blended. Memory: one scan at a time if the
    tiles of a scan come one after the other, else all scans that are begun; see `TileBlender` and `labels_in_source`.

    Raises:
        UsageError: two sources whose files would have one name.
    """

    def __init__(self, folder: Path, metadata: SplitMetadata, labels: Mapping[int, str]) -> None:
        super().__init__(folder, metadata, labels)
        shape = metadata.manifest.field("image").shape
        self._shape = (shape[0], shape[1], shape[2]) if len(shape) == 4 else None
        self._tiles: dict[str, dict[int, Tile]] = {}
        keys: dict[str, int] = {}
        for record in metadata:
            keys.setdefault(record.key, record.id)
            if self._shape is not None:
                tile = record.tile(self._shape)
                self._tiles.setdefault(record.key, {})[tile.number] = tile
        self._names = file_names(keys, ".png" if self._shape is None else ".nii.gz")
        self._begun: dict[str, TileBlender] = {}
        self._files: list[dict[str, Any]] = []

    def add(self, record: RecordMetadata, row: Row) -> None:
        """Write a picture's or a scan's file, once its last tile has come."""
        predicted = _predicted(row)
        if self._shape is None:
            write_png(self._file(record), _picture_labels(record, predicted))
            return
        tiles = self._tiles[record.key]
        tile = record.tile(self._shape)
        if len(tiles) == 1:
            label = labels_in_source(predicted, tile.grid, record.source_grid, tile.extent)
        else:
            if record.key not in self._begun:
                self._begun[record.key] = TileBlender(tiles, max(self._labels) + 1)
            blend = self._begun[record.key]
            blend.add(tile.number, predicted)
            if not blend.complete:
                return
            label = labels_in_source(*self._begun.pop(record.key).result(), record.source_grid)
        write_nifti(self._file(record), label, record.numbers["source_affine"])

    def finish(self) -> dict[str, Any]:
        """Check that every scan is whole."""
        if self._begun:
            key, blend = next(iter(self._begun.items()))
            raise JobError(f"{key}: tiles {blend.awaited} were not predicted; its mask cannot be made")
        return {"masks": self._files}

    def _file(self, record: RecordMetadata) -> Path:
        name = self._names[record.key]
        self._files.append({"file": name, **_named(record)})
        return self._folder / name


class ClipMaskWriter(PredictionWriter):
    """A PNG of class indices for each frame of a clip, of the source's size: `KEY/CLIP/FRAME.png`.

    CLIP counts the clips of a source from 0, FRAME the frames of a clip. In predictions.json stands when each is shown
    (`times_s`), -1 where nobody knows.

    Raises:
        UsageError: two sources whose files would have one name.
    """

    def __init__(self, folder: Path, metadata: SplitMetadata, labels: Mapping[int, str]) -> None:
        super().__init__(folder, metadata, labels)
        self._names = file_names({record.key: record.id for record in metadata}, "")
        self._files: list[dict[str, Any]] = []

    def add(self, record: RecordMetadata, row: Row) -> None:
        """Write the frames of a clip."""
        name = f"{self._names[record.key]}/{int(record.numbers['tile'])}"
        (self._folder / name).mkdir(parents=True)
        for number, frame in enumerate(_predicted(row)):
            write_png(self._folder / name / f"{number:04d}.png", _picture_labels(record, frame))
        times = record.numbers["times_s"].tolist()
        self._files.append({"folder": name, **_named(record), "times_s": times})

    def finish(self) -> dict[str, Any]:
        """Nothing is left."""
        return {"masks": self._files}


def _predicted(row: Row) -> NDArray[Any]:
    return row["probabilities" if "probabilities" in row else "label"]


def _picture_labels(record: RecordMetadata, predicted: NDArray[Any]) -> NDArray[Any]:
    transform = record.numbers["transform"]
    return picture_labels_in_source(predicted, transform, record.source_size, record.picture_size)


def _named(record: RecordMetadata) -> dict[str, str]:
    return {"key": printable(record.key), "source": printable(record.source)}


MASK_WRITERS: dict[str, type[PredictionWriter]] = {
    "picture": SegmentationWriter,
    "volume": SegmentationWriter,
    "clip": ClipMaskWriter,
}
"""By kind of image."""

WRITERS: dict[str, Callable[[Path, SplitMetadata, Mapping[int, str]], PredictionWriter]] = {
    "detection": DetectionWriter,
    "classification": ClassificationWriter,
    "segmentation": lambda folder, metadata, labels: MASK_WRITERS[metadata.manifest.kind.name](
        folder, metadata, labels
    ),
}
"""By task."""


def printable(text: str) -> str:
    """Text that can be written as UTF-8: bytes of a file's name that are not are shown as \\xNN.

    >>> printable("a" + chr(0xDCFF))
    'a\\\\xff'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def file_names(keys: Mapping[str, int], extension: str) -> dict[str, str]:
    """A file name for each key that leads nowhere but into its folder.

    A key loses its extension; what is no letter, digit, dot, dash or underscore becomes an underscore. Keys that
    would share a name, in upper and lower case too, have their id behind it.

    Args:
        keys: each with its record's id.
        extension: of the files.

    Raises:
        UsageError: two keys share a name even so.

    >>> file_names({"a/b.nii.gz": 1, "../B": 2, "a_b": 3}, ".png")
    {'a/b.nii.gz': 'a_b-1.png', '../B': 'B.png', 'a_b': 'a_b-3.png'}
    """
    plain = {key: _safe(key) for key in keys}
    counts = Counter(name.casefold() for name in plain.values())
    names = {
        key: name if counts[name.casefold()] == 1 else f"{name}-{keys[key]}" for key, name in plain.items()
    }
    owners: dict[str, str] = {}
    for key, name in names.items():
        other = owners.setdefault(name.casefold(), key)
        if other != key:
            raise UsageError(f"{other} and {key}: would both become {name}{extension}; give one another id")
    return {key: f"{name}{extension}" for key, name in names.items()}


def _safe(key: str) -> str:
    name = _UNSAFE.sub("_", key.removesuffix(extension_of(key))).strip("._") or "source"
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        name = f"{name[:LONGEST_NAME]}-{digest}"
    return name


def written_labels(labels: Mapping[int, str]) -> list[dict[str, Any]]:
    """Class names by id, for predictions.json."""
    return [{"id": label, "name": name} for label, name in sorted(labels.items())]


def rows_of(batch: Mapping[str, NDArray[Any]], valid: Iterable[bool]) -> list[tuple[int, Row]]:
    """The rows of a batch that are real, each with its number."""
    return [
        (row, {key: value[row] for key, value in batch.items()}) for row, real in enumerate(valid) if real
    ]
