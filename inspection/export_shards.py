"""Pictures of any task as exporters of shards see them: a file, and a class, classes, objects or a label image.

Classes and categories count from 0 in the order of the data set's ids, as readers expect; a label image has the ids.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from halofeed.inspection.export_pictures import BoxExporter
from halofeed.inspection.export_records import ExportedData, ExportRecord, text_names
from halofeed.inspection.stored_records import integer_of, label_map
from halofeed.prep.voxels.encode import encode_png
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class ExportedPicture:
    """Content of a record.

    Args:
        extension: ".jpg" or ".png".
        data: file of the picture without padding.
        values: one value by the name of `ShardsExporter.kind`:
            label: class.
            labels: list of classes.
            objects: lists of equal length: `bbox` (x, y, width, height in pixels), `category`, `area` in square pixels.
            mask: PNG file of class ids [height, width], or None.
    """

    extension: str
    data: bytes
    values: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of the files, and an estimate for the numbers."""
        objects = self.values.get("objects", {"bbox": ()})["bbox"]
        return len(self.data) + len(self.values.get("mask") or b"") + 64 * (1 + len(objects))


class ShardsExporter(BoxExporter):
    """Base class of exporters that write pictures of any task into a few large files for each split.

    Attributes:
        kind: what records hold beside the picture, see `ExportedPicture`.
        names: class name by its number in the export.
    """

    KEEPS = frozenset({"areas"})
    SHARD_BYTES: ClassVar[int] = 500_000_000
    """A shard that has reached this size is closed."""

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        manifest = data.manifest
        names = text_names(dict(sorted(manifest.labels.items())))
        self._count_renamed(names)
        if manifest.task == "segmentation":
            self.kind, self._numbers = "mask", {label: label for label in names}
        else:
            several = any(field.name == "labels" for field in manifest.fields)
            self.kind = "objects" if manifest.task == "detection" else "labels" if several else "label"
            self._numbers = {label: number for number, label in enumerate(names)}
        self.names = {self._numbers[label]: name for label, name in names.items()}
        if manifest.ignore_label is not None:
            self.notes.append(f"the value {manifest.ignore_label} of a mask is an unknown pixel")
        self._split, self._shards, self._shard_bytes = "", 0, 0

    @classmethod
    def takes(cls, manifest: Manifest) -> bool:
        """Return whether a data set holds pictures, of any task."""
        return manifest.kind.name == "picture"

    def add(self, record: ExportRecord) -> None:
        """Write a record into the open shard, or into a new one if the split is another or the shard is full."""
        if record.split != self._split or self._shard_bytes >= self.SHARD_BYTES:
            self.close_shard()
            self._shards = self._shards + 1 if record.split == self._split else 0
            self._split, self._shard_bytes = record.split, 0
            self.open_shard(self._split, self._shards)
        extension, data = self._picture(record)
        picture = ExportedPicture(extension=extension, data=bytes(data), values=self._values(record))
        self._shard_bytes += picture.size
        self.write(record, picture)

    def _values(self, record: ExportRecord) -> dict[str, Any]:
        if self.kind == "mask":
            return {"mask": self._mask(record)}
        if self.kind == "objects":
            objects = self._objects(record)
            corners = objects.corners
            boxes = np.concatenate([corners[:, 1::-1], (corners[:, 2:] - corners[:, :2])[:, ::-1]], axis=1)
            area = objects.numbers(keys.OBJECT_AREA).astype(np.float64).tolist()
            category = [self._numbers[label] for label in objects.labels]
            return {"objects": {"bbox": boxes.tolist(), "category": category, "area": area}}
        labels: Any = record.features[keys.CLASS_LABEL]
        found = [self._numbers[int(label)] for label in labels]
        return {"label": found[0]} if self.kind == "label" else {"labels": found}

    def _mask(self, record: ExportRecord) -> bytes | None:
        """Return the label image of a record without padding as a PNG file; None if it has none."""
        label = label_map(record.features, self._manifest)
        if label is None or not integer_of(record.features, keys.LABELLED):
            return None
        height, width = record.size
        return encode_png(np.ascontiguousarray(label[:height, :width, None]), 0)

    @abstractmethod
    def open_shard(self, split: str, number: int) -> None:
        """Begin a shard; the numbers of a split count from 0."""

    @abstractmethod
    def write(self, record: ExportRecord, picture: ExportedPicture) -> None:
        """Write a record into the open shard."""

    @abstractmethod
    def close_shard(self) -> None:
        """Complete the open shard, if there is one."""
