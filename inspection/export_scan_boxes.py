"""Exporter of boxes in volumes: a table that the layout scan-boxes reads again.

boxes.csv    a row for each object of the sources, and one without numbers for each scan without an object:
    filename              path of the scan below the folder that was converted
    class, split
    xmin ... zmax         complete box in continuous voxels of the file, x along its fastest axis
    x_mm, y_mm, z_mm      center in millimeters to the right, to anterior and to superior (RAS+)
    size_x_mm ...         sides along the axes of the file
    ignored               1 if every record that shows the object ignores it

An object that several tiles show has one row.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from halofeed.inspection.export_records import ExportedData, Exporter, ExportRecord
from halofeed.inspection.scan_objects import StoredObjects, centers_mm, sizes_mm
from halofeed.inspection.stored_records import affine_of, text_of
from halofeed.schemas import keys
from halofeed.storage.paths import open_path
from halofeed.system.errors import CorruptFileError

_HEADER = (
    *("filename", "class", "split", "xmin", "ymin", "zmin", "xmax", "ymax", "zmax"),
    *("x_mm", "y_mm", "z_mm", "size_x_mm", "size_y_mm", "size_z_mm", "ignored"),
)
_DECIMALS = 4
_BLANK = 13
"""Cells of a scan without an object after its file, class and split."""


class ScanBoxExporter(Exporter):
    """Exporter of boxes in volumes as a table in voxels of the sources and in millimeters."""

    TASK, KIND = "detection", "volume"
    HOLDS_SOURCE_GRID = NAMES_SOURCES = True

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        self._rows: dict[tuple[str, int], list[str]] = {}
        self._scans: dict[str, str] = {}
        self.notes.append("boxes.csv names the scans by their paths below the folder that was converted")

    def add(self, record: ExportRecord) -> None:
        """Take the objects of a record."""
        features = record.features
        objects, affine = StoredObjects.of(features), affine_of(features, keys.SOURCE_AFFINE)
        name, numbers = text_of(features, keys.FILENAME), features.get(keys.OBJECT_INDEX, np.zeros(0))
        if objects is None or affine is None or name is None:
            raise CorruptFileError(
                f"{self._data.files}: {record.name} of {record.split}: expected boxes and an affine; run "
                f"`halofeed verify {self._data.files}`"
            )
        self._scans[name] = record.split
        sides = sizes_mm(objects.source_boxes, affine)[:, ::-1]
        centers = centers_mm(objects.source_boxes, affine)
        order = [2, 1, 0, 5, 4, 3]
        for row, number in enumerate(np.asarray(numbers, np.int64).tolist()):
            values = np.concatenate([objects.source_boxes[row][order], centers[row], sides[row]])
            ignored = bool(objects.ignored[row])
            known = self._rows.get((name, number))
            if known is not None:
                ignored &= known[-1] == "1"
            label = self._manifest.labels[int(objects.ids[row])]
            cells = [f"{value:.{_DECIMALS}f}".rstrip("0").rstrip(".") for value in values.tolist()]
            self._rows[name, number] = [name, label, record.split, *cells, str(int(ignored))]

    def finish(self) -> None:
        """Write the table."""
        with_objects = {name for name, _ in self._rows}
        empty = [
            [name, "", split, *[""] * _BLANK]
            for name, split in self._scans.items()
            if name not in with_objects
        ]
        with open_path(self._folder / "boxes.csv", "x", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(_HEADER)
            table.writerows([*(row for _, row in sorted(self._rows.items())), *empty])
