"""Exporter of segmented volumes.

images/NAME.nii.gz    voxels of the record without padding; values of the source where the record states the scale
labels/NAME.nii.gz    class indices; missing for a scan without a label
dataset.json          class names and lists of files, as the Medical Segmentation Decathlon has them
volumes.csv           columns id, image, label and split, with the split's own name

On the grid of the source there are labels/NAME.nii.gz, and volumes.csv, whose images are the paths of the sources.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError, UsageError
from halofeed.inspection.export_grid import label_in_source
from halofeed.inspection.export_records import ExportedData, Exporter, ExportRecord
from halofeed.inspection.stored_records import (
    affine_of,
    array_of,
    class_channels,
    extent_of,
    integer_of,
    label_map,
    stored_image,
    text_of,
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
    HOLDS_SOURCE_GRID = NAMES_SOURCES = True

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        if data.manifest.recipe.get("fit") == "tiles":
            raise self._tiles()
        if class_channels(data.manifest):
            raise UsageError(
                f"{data.files}: a voxel may have several classes, and a label file has one for each voxel; convert the "
                "scans again with --class-overlap last"
            )
        self._in_source = data.grid == "source"
        for name in _FOLDERS.values() if not self._in_source else [_FOLDERS["label"]]:
            (folder / name).mkdir()
        table = self.enter_context((folder / "volumes.csv").open("x", newline="", encoding="utf-8"))
        self._table = csv.writer(table)
        self._table.writerow(("id", *_FOLDERS, "split"))
        self._lists: dict[str, list[dict[str, str]]] = {part: [] for part in MSD_SPLITS}
        others = [split for split in data.manifest.splits if split not in _LISTS]
        if self._in_source:
            self.notes.append(
                "volumes.csv names the scans by their paths below the folder that was converted; to convert them, copy "
                "it and labels/ there"
            )
        elif others:
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
        paths = {what: f"{folder}/{record.name}.nii.gz" for what, folder in _FOLDERS.items()}
        if not integer_of(features, keys.LABELLED):
            del paths["label"]
        if self._in_source:
            paths["image"] = text_of(features, keys.FILENAME) or ""
            if "label" in paths:
                with self._naming(record):
                    label, affine = label_in_source(label, features, manifest.ignore_label)
                write_nifti(self._folder / paths["label"], label, affine)
        else:
            extent = extent_of(features)
            low, high = ([0, 0, 0], label.shape) if extent is None else extent.tolist()
            inside = tuple(slice(first, last) for first, last in zip(low, high, strict=True))
            affine[:3, 3] += affine[:3, :3] @ low
            voxels = self._values(record, as_numbers(stored[inside], manifest.field("image").dtype))
            arrays = {"image": voxels[..., 0] if voxels.shape[3] == 1 else voxels, "label": label[inside]}
            for what, path in paths.items():
                write_nifti(self._folder / path, arrays[what], affine)
        self._table.writerow((record.name, *(paths.get(what, "") for what in _FOLDERS), record.split))
        self._lists[_LISTS.get(record.split, "training")].append(paths)

    def _values(self, record: ExportRecord, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the source where the record states scale and offset, else the stored ones."""
        scale = array_of(record.features, keys.INTENSITY_SCALE)
        offset = array_of(record.features, keys.INTENSITY_OFFSET)
        if scale is None or offset is None:
            return stored
        return np.asarray(stored * scale.astype(np.float64) + offset, np.float32)

    def finish(self) -> None:
        """Write dataset.json, which lists no scans that were not written."""
        if self._in_source:
            return
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
