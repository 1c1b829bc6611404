"""Exporter of WebDataset's tar files, which `webdataset.WebDataset` and Hugging Face's `datasets` read.

SPLIT-000000.tar    for each picture KEY.jpg or KEY.png, and by the task KEY.cls (number of a class), KEY.json (`labels`
                    or `objects` with bbox, category and area) or KEY.mask.png (class ids)
classes.json        class names by their numbers

Equal records give equal bytes: members have no time, owner or order of their own. KEY is the record's file name without
dots, since a key ends at the first dot.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from halofeed.inspection.export_records import ExportedData, ExportRecord, unique_name
from halofeed.inspection.export_shards import ExportedPicture, ShardsExporter


class WebDatasetExporter(ShardsExporter):
    """Exporter of tar files in which the files of a record follow each other."""

    def __init__(self, folder: Path, data: ExportedData) -> None:
        super().__init__(folder, data)
        self._tar: tarfile.TarFile | None = None
        self._used: set[str] = set()
        self.callback(self.close_shard)

    def open_shard(self, split: str, number: int) -> None:
        """Begin SPLIT-000000.tar."""
        path = self._folder / f"{split}-{number:06d}.tar"
        self._tar = tarfile.open(path, "x", format=tarfile.GNU_FORMAT)  # noqa: SIM115 - closed by close_shard

    def write(self, record: ExportRecord, picture: ExportedPicture) -> None:
        """Add the files of a record in the order of their names."""
        assert self._tar is not None
        key = unique_name(record.name.replace(".", "_"), record.id, self._used)
        height, width = record.size
        about = {"id": record.id, "height": height, "width": width}
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
            self._tar.close()

    def finish(self) -> None:
        """Complete the last tar file, and write classes.json."""
        self.close_shard()
        names = {str(number): name for number, name in self.names.items()}
        text = json.dumps(names, indent=1, ensure_ascii=False) + "\n"
        (self._folder / "classes.json").write_text(text, encoding="utf-8")
