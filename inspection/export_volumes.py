"""Exporter of segmented volumes.

images/NAME.nii.gz    voxels of the record without padding; values of the source where the record states the scale
labels/NAME.nii.gz    class indices; missing for a scan without a label
dataset.json          class names and lists of files, as the Medical Segmentation Decathlon has them
volumes.csv           columns id, image, label and split, with the split's own name

On the grid of the source there are labels/NAME.nii.gz, and volumes.csv, whose images are the paths of the sources. A
label is sampled at the centers of the source's voxels (nearest voxel).
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from halofeed.prep.geometry.orientation import FIELD_OF_VIEW_VOXELS, plan_onto
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_plan import triple
from halofeed.prep.layouts.msd import MSD_SPLITS, NAME
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.prep.voxels.resample import apply_mask
from halofeed.schemas import keys
from halofeed.schemas.tfexample import Decoded
from halofeed.storage.paths import open_path, save_text
from halofeed.system.errors import CorruptFileError, UsageError

_LISTS = {split: part for part, split in MSD_SPLITS.items()} | {"val": "validation"}
"""List of dataset.json by split; other splits are in `training`."""
_FOLDERS = {"image": "images", "label": "labels"}


class NiftiExporter(Exporter):
    """Exporter of volumes as NIfTI, whose affine leads to the patient; each record is a complete scan."""

    TASK, KIND = "segmentation", "volume"
    HOLDS_SOURCE_GRID = NAMES_SOURCES = True

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        check_complete_scans(data)
        self._in_source = data.grid == "source"
        for name in _FOLDERS.values() if not self._in_source else [_FOLDERS["label"]]:
            (folder / name).mkdir()
        table = self.enter_context(open_path(folder / "volumes.csv", "x", newline="", encoding="utf-8"))
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

    def add(self, record: ExportRecord) -> None:
        """Write the image and the label of a record."""
        features = record.features
        paths = {what: f"{folder}/{record.name}.nii.gz" for what, folder in _FOLDERS.items()}
        # A label file of zeros would be background for a loss.
        if not integer_of(features, keys.LABELLED):
            del paths["label"]
        if self._in_source:
            paths["image"] = text_of(features, keys.FILENAME) or ""
            self._write_in_source(record, paths)
        else:
            scan = stored_scan(record, self._data)
            for what, path in paths.items():
                write_nifti(self._folder / path, scan.arrays[what], scan.affine)
        self._table.writerow((record.name, *(paths.get(what, "") for what in _FOLDERS), record.split))
        self._lists[_LISTS.get(record.split, "training")].append(paths)

    def _write_in_source(self, record: ExportRecord, paths: Mapping[str, str]) -> None:
        """Write the label on the grid of the source, whose image is not copied."""
        _, label, _ = _stored_parts(record, self._data)
        if "label" in paths:
            with self._naming(record):
                in_source, affine = label_in_source(label, record.features, self._manifest.ignore_label)
            write_nifti(self._folder / paths["label"], in_source, affine)

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
        save_text(self._folder / NAME, json.dumps(document, indent=1) + "\n")


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredScan:
    """Arrays "image" and "label" of a record without padding, and their affine; no label for a scan without one."""

    arrays: Mapping[str, NDArray[Any]]
    affine: NDArray[np.float64]


def check_complete_scans(data: ExportedData) -> None:
    """Raise UsageError for records that are tiles of scans, or whose voxels may have several classes."""
    if data.manifest.recipe.get("fit") == "tiles":
        raise _tiles(data)
    if class_channels(data.manifest):
        raise UsageError(
            f"{data.files}: a voxel may have several classes, and a label file has one for each voxel; convert the "
            "scans again with --class-overlap last"
        )


def stored_scan(record: ExportRecord, data: ExportedData) -> StoredScan:
    """Return the image and the label of a record; the image has the values of the source where the record states them.

    Raises:
        UsageError: the record is a tile of a scan.
        CorruptFileError: the record lacks one of them.
    """
    stored, label, affine = _stored_parts(record, data)
    inside, low = _unpadded(record.features, label.shape)
    voxels = _source_values(record, as_numbers(stored[inside], data.manifest.field("image").dtype))
    # The Medical Segmentation Decathlon has three axes for one channel (its `tensorImageSize` is 3D then).
    arrays = {"image": voxels[..., 0] if voxels.shape[3] == 1 else voxels}
    if integer_of(record.features, keys.LABELLED):
        arrays["label"] = label[inside]
    return StoredScan(arrays=arrays, affine=_moved(affine, low))


def _stored_parts(
    record: ExportRecord, data: ExportedData
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
    features, manifest = record.features, data.manifest
    if integer_of(features, keys.TILE):
        raise _tiles(data)
    stored, label = stored_image(features, manifest), label_map(features, manifest)
    affine = affine_of(features)
    if stored is None or label is None or affine is None:
        raise CorruptFileError(
            f"{data.files}: {record.name} of {record.split}: expected an image, a label and an affine; run "
            f"`halofeed verify {data.files}`"
        )
    return stored, label, affine


def _tiles(data: ExportedData) -> UsageError:
    return UsageError(
        f"{data.files}: its records are overlapping tiles of scans, and a file is a complete scan; convert the scans "
        "again with --fit crop-or-pad"
    )


def _source_values(record: ExportRecord, stored: NDArray[Any]) -> NDArray[Any]:
    """Return the values of the source where the record states scale and offset, else the stored ones."""
    scale = array_of(record.features, keys.INTENSITY_SCALE)
    offset = array_of(record.features, keys.INTENSITY_OFFSET)
    # Only scans whose values were scaled one by one state their scale.
    if scale is None or offset is None:
        return stored
    return np.asarray(stored * scale.astype(np.float64) + offset, np.float32)


def _unpadded(features: Decoded, shape: tuple[int, ...]) -> tuple[tuple[slice, ...], list[int]]:
    """Return the part of a volume without padding, and the index of its first voxel."""
    extent = extent_of(features)
    low, high = ([0] * len(shape), shape) if extent is None else extent.tolist()
    return tuple(slice(first, last) for first, last in zip(low, high, strict=True)), low


def label_in_source(
    label: NDArray[Any], features: Decoded, ignored: int | None
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return a record's label on the grid of its source, and the affine of the source.

    Args:
        label: class indices [depth, height, width] of the record.
        features: features of the record.
        ignored: class index for voxels that the record does not show; None if the data set has none.

    Returns:
        Class indices in the source's shape, with the axes of its file, the slowest first; and float64 [4, 4].

    Raises:
        UsageError: the record lacks the grid of its source, or shows only a part of it, so that the class of the other
            voxels is not known.
    """
    affine, source_affine = affine_of(features), affine_of(features, keys.SOURCE_AFFINE)
    shape = array_of(features, keys.SOURCE_SHAPE, "i")
    if affine is None or source_affine is None or shape is None or shape.shape != (3,) or shape.min() < 1:
        raise UsageError("it lacks the shape or the affine of its source")
    inside, low = _unpadded(features, label.shape)
    shown = label[inside]
    source = Grid(shape=triple(shape.tolist()), affine=source_affine)
    # With an ignored class, the voxels that the record does not show get that class.
    if ignored is None:
        _check_all_shown(Grid(shape=triple(shown.shape), affine=_moved(affine, low)), source)
        # The voxels at the ends are repeated: a conversion may have rounded the field of view.
        shown, low = np.pad(shown, 1, mode="edge"), [first - 1 for first in low]
    stored = Grid(shape=triple(shown.shape), affine=_moved(affine, low))
    return apply_mask(plan_onto(stored, source), shown, fill=ignored or 0), source_affine


def _check_all_shown(shown: Grid, source: Grid) -> None:
    ends = np.array([[*end, 1] for end in itertools.product(*((0, side - 1) for side in source.shape))])
    places = (ends @ np.linalg.solve(shown.affine, source.affine).T)[:, :3]
    beyond = float(np.maximum(-places, places - np.array(shown.shape) + 1).max())
    # A conversion may have rounded the field of view by that much.
    if beyond > FIELD_OF_VIEW_VOXELS:
        raise UsageError(
            f"it shows a part of its source, which reaches {beyond:.1f} voxels beyond it, and the class of these "
            "voxels is not known; convert the scans with --fit stretch"
        )


def _moved(affine: NDArray[np.float64], first: Any) -> NDArray[np.float64]:
    """Return the affine of the voxels that begin at `first`."""
    moved = affine.copy()
    moved[:3, 3] += affine[:3, :3] @ np.asarray(first)
    return moved
