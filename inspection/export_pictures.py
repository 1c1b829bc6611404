"""Exporters of pictures with classes or boxes.

folders    SPLIT/CLASS/NAME.png
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from halofeed.errors import UsageError
from halofeed.inspection.export_records import (
    ExportedData,
    Exporter,
    ExportRecord,
    folder_names,
)
from halofeed.prep.annotations.contract import is_split_name
from halofeed.schemas import keys
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES

_AREA_TOLERANCE = 1e-3
_FLAGS = {**keys.OBJECT_FLAGS, **{name: OPTIONAL_ATTRIBUTES[name] for name in ("occluded", "group_of")}}


class FoldersExporter(Exporter):
    """Exporter of class folders, SPLIT/CLASS/NAME; a folder has a class's name, without characters of paths."""

    TASK = "classification"

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        if any(field.name == "labels" for field in data.manifest.fields):
            raise UsageError(
                f"{data.files}: a picture may have several classes, and a file lies in one folder; read the data set "
                "with halofeed.loader"
            )
        self._names = folder_names(data.manifest.labels)
        self._count_renamed(self._names)
        if not all(map(is_split_name, data.manifest.splits)):
            self.notes.append(
                "the first folders are splits with unusual names: convert them with --split-folders yes"
            )

    def add(self, record: ExportRecord) -> None:
        """Write the picture into its class's folder."""
        labels: Any = record.features[keys.CLASS_LABEL]
        self._write_picture(record, f"{record.split}/{self._names[int(labels[0])]}")

    def finish(self) -> None:
        """Write nothing more."""
