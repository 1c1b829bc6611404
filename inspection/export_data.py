"""Export of a data set to formats that other programs read; `halofeed convert` reads all but shards again.

    OUT/export.json    the data set's name and version, the target, records by split, and what was left out
    OUT/.halofeed      list of the files that halofeed wrote (halofeed.storage.owned_files)

Each exporter's module shows its other files.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from halofeed.inspection.dataset_files import DatasetFiles, open_files, open_manifest
from halofeed.inspection.export_dota import DotaExporter
from halofeed.inspection.export_grid import GRIDS, SourcePictures
from halofeed.inspection.export_parquet import ParquetExporter
from halofeed.inspection.export_pictures import CocoExporter, FoldersExporter, VocExporter
from halofeed.inspection.export_records import ExportedData, Exporter
from halofeed.inspection.export_scan_boxes import ScanBoxExporter
from halofeed.inspection.export_shards import WebDatasetExporter
from halofeed.inspection.export_volumes import NiftiExporter
from halofeed.inspection.export_yolo import YoloExporter
from halofeed.schemas.manifest import Manifest
from halofeed.storage.paths import save_text
from halofeed.storage.result_folder import ResultFolder
from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean

EXPORTERS: dict[str, type[Exporter]] = {
    "folders": FoldersExporter,
    "coco": CocoExporter,
    "yolo": YoloExporter,
    "voc": VocExporter,
    "dota": DotaExporter,
    "nifti": NiftiExporter,
    "scan-boxes": ScanBoxExporter,
    "parquet": ParquetExporter,
    "webdataset": WebDatasetExporter,
}
"""Exporters by the names of `--to`."""
_MARKER = "export.json"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Export:
    """Result of an export: number of records, and what the user must know."""

    records: int
    notes: tuple[str, ...]


def targets_of(manifest: Manifest) -> list[str]:
    """Return the targets that hold records of a data set."""
    return [name for name, exporter in EXPORTERS.items() if exporter.takes(manifest)]


ExportProgress = Callable[[int, int], None]
"""Called with (records exported, all records)."""


def export_data(
    path: str | os.PathLike[str],
    target: str,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    grid: str = "stored",
    images: str | None = None,
    progress: ExportProgress = lambda done, total: None,
) -> Export:
    """Write all records of a data set in another format.

    Args:
        path: folder or address of the data set.
        target: name in `EXPORTERS`.
        folder: output folder, written atomically.
        overwrite: replace an earlier export.
        grid: "stored", the grid of the records, or "source", that of the files they were converted from.
        images: folder of the converted pictures, which are copied if the grid is that of the source.
        progress: callback for the number of exported records.

    Raises:
        UsageError: the target is unknown or does not hold such records, the folder holds other files, or a record does
            not prove the grid of its source.
        CorruptFileError: a record is damaged.
    """
    if target not in EXPORTERS:
        raise UsageError(
            f"--to {target}: {did_you_mean(target, EXPORTERS)}expected one of {', '.join(EXPORTERS)}"
        )
    files = open_files(path)
    manifest = open_manifest(files)
    # `verify` reports files that do not belong to a data set.
    if Path(str(files)).resolve() in Path(folder).resolve().parents:
        raise UsageError(
            f"--out {folder}: lies in the data set that is exported; name a folder outside of it"
        )
    exporter = EXPORTERS[target]
    _check_takes(target, files, manifest)
    _check_grid(target, grid, images)
    _check_bands(target, grid, files, manifest)
    pictures = None if images is None else SourcePictures(images)
    data = ExportedData(files=files, manifest=manifest, grid=grid, images=pictures)
    total = sum(split.records for split in manifest.splits.values())
    output = ResultFolder(path=Path(folder), marker=_MARKER, holds="exported data", overwrite=overwrite)
    records: Counter[str] = Counter(dict.fromkeys(manifest.splits, 0))
    with output.replaced() as temporary, exporter(temporary, data) as writer:
        for record in data.records():
            writer.add(record)
            records[record.split] += 1
            progress(records.total(), total)
        writer.finish()
        document = {
            "format": _FORMAT,
            "to": target,
            "grid": grid,
            "data_name": manifest.name,
            "data_version": manifest.version,
            "records": records,
            "left_out": writer.left_out,
        }
        save_text(temporary / _MARKER, json.dumps(document, indent=1) + "\n")
    return Export(records=records.total(), notes=(*_notes(target, data, writer), *writer.notes))


def _notes(target: str, data: ExportedData, writer: Exporter) -> Iterator[str]:
    """Yield what any exporter leaves out, and the pictures that are not copied."""
    if lost := ", ".join(f"{count:,} {what}" for what, count in writer.left_out.items() if count):
        yield f"left out, since {target} has no place for them: {lost}"
    if data.grid == "source" and data.images is None and writer.KIND == "picture":
        yield (
            "no picture is copied: the files name the converted pictures by their paths; add --images with the folder "
            "that was converted to copy them"
        )


def _check_takes(target: str, files: DatasetFiles, manifest: Manifest) -> None:
    """Raise UsageError if a target does not hold records of this task and kind; it names one that does."""
    if EXPORTERS[target].takes(manifest):
        return
    what = f"records of {manifest.task} with the kind of image {manifest.kind.name}"
    if not (fitting := targets_of(manifest)):
        raise UsageError(f"{files}: no target of export holds {what}; read it with halofeed.loader")
    raise UsageError(f"{files}: holds {what}, which {target} does not take; use --to {fitting[0]}")


def _check_bands(target: str, grid: str, files: DatasetFiles, manifest: Manifest) -> None:
    """Raise UsageError for stored pictures of more channels than a PNG holds."""
    channels = manifest.field("image").shape[-1]
    if grid == "stored" and manifest.kind.name == "picture" and channels not in (1, 3, 4):
        raise UsageError(
            f"{files}: its pictures have {channels} channels, which the PNG files of {target} do not hold; read "
            "them with halofeed.loader, or convert three bands with --bands 1,2,3"
        )


def _check_grid(target: str, grid: str, images: str | None) -> None:
    """Raise UsageError for a grid that a target does not hold, or source pictures that it needs or does not need."""
    exporter = EXPORTERS[target]
    if grid not in GRIDS:
        raise UsageError(f"--grid {grid}: expected {' or '.join(GRIDS)}")
    if images is not None and (grid == "stored" or exporter.KIND != "picture"):
        raise UsageError(f"--images {images}: is of pictures on the grid of their source; leave it out")
    if grid == "source" and not exporter.HOLDS_SOURCE_GRID:
        raise UsageError(
            f"--grid source: {target} holds records on the stored grid alone, which is the default"
        )
    if grid == "source" and images is None and not exporter.NAMES_SOURCES:
        raise UsageError(
            f"--grid source: {target} holds the pictures themselves; add --images with the folder that was "
            "converted"
        )
