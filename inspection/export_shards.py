"""Exporters into large shards of pictures of any task, and WebDataset's tar files, the simplest of them.

Classes and categories count from 0 in the order of the data set's ids, as readers expect; a label image has the ids.
"""

from __future__ import annotations

import io
import json
import tarfile
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from halofeed.inspection.export_pictures import TURNED, BoxExporter
from halofeed.inspection.export_records import ExportedData, ExportRecord, unique_name
from halofeed.inspection.stated_facts import stated_facts, stated_fields
from halofeed.inspection.stored_records import integer_of, label_map
from halofeed.prep.voxels.encode import encode_png
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.storage.paths import save_text
from halofeed.system.wording import plural


@dataclass(frozen=True, kw_only=True)
class ExportedPicture:
    """Content of a record.

    Args:
        extension: ".jpg" or ".png"; ".nii.gz" of a scan.
        data: file of the picture or scan without padding.
        values: one value by the name of `ShardsExporter.kind`:
            label: class.
            labels: list of classes.
            objects: lists of equal length: `bbox` (x, y, width, height in pixels), `category`, `area` in square pixels,
                and `corners` (x and y of four, in pixels) if the data set has them.
            mask: PNG file of class ids [height, width], or NIfTI file of those of a scan, or None.
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

    HOLDS_SOURCE_GRID = False
    KEEPS = frozenset({"areas", TURNED})
    SHARD_BYTES: ClassVar[int] = 500_000_000
    """A shard that has reached this size is closed."""

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        manifest = data.manifest
        names = self._spelled()
        # A label image keeps its ids, which a table of classes explains.
        if manifest.task == "segmentation":
            self.kind, self._numbers = "mask", {label: label for label in names}
        else:
            several = any(field.name == "labels" for field in manifest.fields)
            self.kind = "objects" if manifest.task == "detection" else "labels" if several else "label"
            self._numbers = {label: number for number, label in enumerate(names)}
        self.has_corners = any(field.name == "corners" for field in manifest.fields)
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
        # Readers take the split from the name of a file.
        if record.split != self._split or self._shard_bytes >= self.SHARD_BYTES:
            self.close_shard()
            self._shards = self._shards + 1 if record.split == self._split else 0
            self._split, self._shard_bytes = record.split, 0
            self.open_shard(self._split, self._shards)
        picture = self._content(record)
        self._shard_bytes += picture.size
        self.write(record, picture)

    def _content(self, record: ExportRecord) -> ExportedPicture:
        extension, data = self._picture(record, self._grid(record))
        return ExportedPicture(extension=extension, data=bytes(data), values=self._values(record))

    def _values(self, record: ExportRecord) -> dict[str, Any]:
        if self.kind == "mask":
            return {"mask": self._mask(record)}
        if self.kind == "objects":
            objects = self._objects(record)
            corners = objects.corners
            boxes = np.concatenate([corners[:, 1::-1], (corners[:, 2:] - corners[:, :2])[:, ::-1]], axis=1)
            area = objects.numbers(keys.OBJECT_AREA).astype(np.float64).tolist()
            category = [self._numbers[label] for label in objects.labels]
            columns = {"bbox": boxes.tolist(), "category": category, "area": area}
            if self.has_corners:
                columns["corners"] = objects.outlines.reshape(-1, 8).tolist()
            return {"objects": columns}
        labels: Any = record.features[keys.CLASS_LABEL]
        found = [self._numbers[int(label)] for label in labels]
        return {"label": found[0]} if self.kind == "label" else {"labels": found}

    def _stated(self, record: ExportRecord) -> dict[str, Any]:
        return stated_facts(record.features, stated_fields(self._manifest), self._grid(record))

    def _mask(self, record: ExportRecord) -> bytes | None:
        """Return the label image of a record without padding as a PNG file; None if it has none."""
        label = label_map(record.features, self._manifest)
        if label is None or not integer_of(record.features, keys.LABELLED):
            return None
        height, width = self._grid(record).size
        return encode_png(np.ascontiguousarray(label[:height, :width, None]), 0)

    def write_class_table(self) -> None:
        """Write classes.json, the class names by number, which `halofeed convert` reads."""
        names = {str(number): name for number, name in self.names.items()}
        text = json.dumps(names, indent=1, ensure_ascii=False) + "\n"
        save_text(self._folder / "classes.json", text, encoding="utf-8")

    @abstractmethod
    def open_shard(self, split: str, number: int) -> None:
        """Begin a shard; the numbers of a split count from 0."""

    @abstractmethod
    def write(self, record: ExportRecord, picture: ExportedPicture) -> None:
        """Write a record into the open shard."""

    @abstractmethod
    def close_shard(self) -> None:
        """Complete the open shard, if there is one."""


class WebDatasetExporter(ShardsExporter):
    """Exporter of tar files in which the files of a record follow each other."""

    WAITING_BYTES: ClassVar[int] = 64_000_000
    """Records without boxes wait for one with boxes up to this size."""

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        self._tar: tarfile.TarFile | None = None
        self._used: set[str] = set()
        self._waiting: list[tuple[ExportRecord, ExportedPicture]] = []
        self._waits_for_boxes = False
        self.callback(self.close_shard)

    def open_shard(self, split: str, number: int) -> None:
        """Begin SPLIT-000000.tar."""
        path = self._folder / f"{split}-{number:06d}.tar"
        self._tar = tarfile.open(path, "x", format=tarfile.GNU_FORMAT)  # noqa: SIM115 - closed by close_shard
        self._waits_for_boxes = number == 0 and self.kind == "objects"

    def write(self, record: ExportRecord, picture: ExportedPicture) -> None:
        """Add the files of a record; the first record of a split has boxes, if one of those in the first shard has.

        Hugging Face's datasets (5.2.0) takes the types of a split from its first five records, and cannot load boxes
        after empty lists.
        """
        if not self._waits_for_boxes:
            self._write_files(record, picture)
        elif picture.values["objects"]["bbox"]:
            self._waits_for_boxes = False
            self._write_files(record, picture)
            self._write_waiting()
        else:
            self._waiting.append((record, picture))
            # The waiting records are in memory.
            if sum(other.size for _, other in self._waiting) > self.WAITING_BYTES:
                self._write_waiting()

    def _write_waiting(self) -> None:
        if self._waits_for_boxes and self._waiting:
            self.notes.append(
                f"{self._waiting[0][0].split}: the first {plural(len(self._waiting), 'record')} have no boxes, so that "
                "Hugging Face's datasets, which takes types from the first five, cannot load boxes after them; for "
                "that library use --to parquet"
            )
        self._waits_for_boxes = False
        for record, picture in self._waiting:
            self._write_files(record, picture)
        self._waiting = []

    def _write_files(self, record: ExportRecord, picture: ExportedPicture) -> None:
        """Add the files of a record in the order of their names."""
        assert self._tar is not None
        key = unique_name(record.name.replace(".", "_"), record.id, self._used)
        height, width = self._grid(record).size
        about = {"id": record.id, "height": height, "width": width}
        about |= {name: value for name, value in self._stated(record).items() if value is not None}
        files = {picture.extension[1:]: picture.data}
        for kind, value in picture.values.items():
            if kind == "label":
                files["cls"] = str(value).encode()
            elif kind == "mask":
                files |= {} if value is None else {"mask.png": value}
            else:
                files["json"] = json.dumps(about | {kind: value}).encode()
        for extension, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{key}.{extension}")
            member.size = len(data)
            self._tar.addfile(member, io.BytesIO(data))

    def close_shard(self) -> None:
        """Complete the open tar file."""
        if self._tar is not None:
            self._write_waiting()
            self._tar.close()
            self._tar = None

    def finish(self) -> None:
        """Complete the last tar file, and write classes.json."""
        self.close_shard()
        self.write_class_table()
