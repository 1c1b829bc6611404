"""Exporter of segmented volumes.

images/NAME.nii.gz    voxels of the record without padding; values of the source where the record states the scale
labels/NAME.nii.gz    class indices; missing for a scan without a label
dataset.json          class names and lists of files, as the Medical Segmentation Decathlon has them
volumes.csv           columns id, image, label and split, with the split's own name
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError, UsageError
from halofeed.inspection.export_records import ExportedData, Exporter, ExportRecord
from halofeed.inspection.stored_records import (
    affine_of,
    array_of,
    class_channels,
    extent_of,
    integer_of,
    label_map,
    stored_image,
)
from halofeed.prep.formats.volume.nifti import write_nifti
from halofeed.prep.layouts.msd import MSD_SPLITS, NAME
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas import keys

_LISTS = {split: part for part, split in MSD_SPLITS.items()} | {"val": "validation"}
"""List of dataset.json by split; other splits are in `training`."""
_FOLDERS = {"image": "images", "label": "labels"}


class NiftiExporter(Exporter):
    """Exporter of volumes as NIfTI, whose affine leads to the patient; each record is a complete scan."""

    TASK, KIND = "segmentation", "volume"

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        self._data = data
        if data.manifest.recipe.get("fit") == "tiles":
            raise self._tiles()
        if class_channels(data.manifest):
            raise UsageError(
                f"{data.files}: a voxel may have several classes, and a label file has one for each voxel; convert the "
                "scans again with --class-overlap last"
            )
        for name in _FOLDERS.values():
            (folder / name).mkdir()
        table = self.enter_context((folder / "volumes.csv").open("x", newline="", encoding="utf-8"))
        self._table = csv.writer(table)
        self._table.writerow(("id", *_FOLDERS, "split"))
        self._lists: dict[str, list[dict[str, str]]] = {part: [] for part in MSD_SPLITS}
        if others := [split for split in data.manifest.splits if split not in _LISTS]:
            self.notes.append(
                f"dataset.json lists {', '.join(others)} as training; volumes.csv has the splits"
            )

    def _tiles(self) -> UsageError:
        return UsageError(
            f"{self._data.files}: its records are overlapping tiles of scans, and a file is a complete scan; convert "
            "the scans again with --fit crop-or-pad"
        )

    def add(self, record: ExportRecord) -> None:
        """Write the image and the label of a record."""
        features, manifest = record.features, self._manifest
        if integer_of(features, keys.TILE):
            raise self._tiles()
        stored, label = stored_image(features, manifest), label_map(features, manifest)
        affine = affine_of(features)
        if stored is None or label is None or affine is None:
            raise CorruptFileError(
                f"{self._data.files}: {record.name} of {record.split}: expected an image, a label and an affine; run "
                f"`halofeed verify {self._data.files}`"
            )
        extent = extent_of(features)
        low, high = ([0, 0, 0], label.shape) if extent is None else extent.tolist()
        inside = tuple(slice(first, last) for first, last in zip(low, high, strict=True))
        affine[:3, 3] += affine[:3, :3] @ low
        voxels = self._values(record, as_numbers(stored[inside], manifest.field("image").dtype))
        arrays = {"image": voxels[..., 0] if voxels.shape[3] == 1 else voxels}
        if integer_of(features, keys.LABELLED):
            arrays["label"] = label[inside]
        files = {what: f"{_FOLDERS[what]}/{record.name}.nii.gz" for what in arrays}
        for what, array in arrays.items():
            write_nifti(self._folder / files[what], array, affine)
        self._table.writerow((record.name, *(files.get(what, "") for what in _FOLDERS), record.split))
        self._lists[_LISTS.get(record.split, "training")].append(files)

    def _values(self, record: ExportRecord, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the source where the record states scale and offset, else the stored ones."""
        scale = array_of(record.features, keys.INTENSITY_SCALE)
        offset = array_of(record.features, keys.INTENSITY_OFFSET)
        if scale is None or offset is None:
            return stored
        return np.asarray(stored * scale.astype(np.float64) + offset, np.float32)

    def finish(self) -> None:
        """Write dataset.json."""
        labels, ignored = dict(self._manifest.labels), self._manifest.ignore_label
        names = labels if ignored is None else labels | {ignored: "ignore"}
        channels = self._manifest.field("image").shape[-1]
        modality = self._manifest.recipe.get("channel_order") or [f"channel {n}" for n in range(channels)]
        document = {
            "name": self._manifest.name,
            "description": f"{self._manifest.name} {self._manifest.version}",
            "tensorImageSize": "3D" if channels == 1 else "4D",
            "modality": {str(number): name for number, name in enumerate(modality)},
            "labels": {str(label): name for label, name in sorted(names.items())},
            "numTraining": len(self._lists["training"]),
            "numTest": len(self._lists["test"]),
            **self._lists,
        }
        (self._folder / NAME).write_text(json.dumps(document, indent=1) + "\n")
