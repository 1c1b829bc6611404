"""Exporter of Parquet files as Hugging Face's `datasets` reads and writes them.

data/SPLIT-00000-of-00002.parquet    a row per picture or scan, see `ParquetExporter`
README.md                            data set card: splits and columns in YAML, license, citation, class ids of masks
croissant.json                       sizes and SHA-256 of the files, and the record set `default`

Sources: `datasets.Features` for the schema's metadata, and the Hub's page "Data files Configuration" for the card.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from halofeed.inspection.export_records import NO_TEXT, ExportedData, ExportRecord, yaml_text
from halofeed.inspection.export_shards import ExportedPicture, ShardsExporter
from halofeed.inspection.export_volumes import check_complete_scans, stored_scan
from halofeed.inspection.stated_facts import stated_fields
from halofeed.prep.formats.volume.nifti import nifti_bytes
from halofeed.schemas.croissant import (
    MARK,
    array_terms,
    class_records,
    croissant_text,
    field_source,
    file_object,
    file_set,
    record_field,
    record_set,
)
from halofeed.schemas.file_layout import CROISSANT
from halofeed.schemas.kinds import BODY_PART, LATERALITY, SPACING, VIEW
from halofeed.schemas.manifest import Manifest
from halofeed.storage.paths import open_path, save_text
from halofeed.system.errors import UsageError

_MEDIA_TYPE = "application/x-parquet"
_FILES = "parquet-files"
_SPLIT = r"data/(.*)-\d+-of-\d+\.parquet"
_FILE_FEATURES = {"picture": {"_type": "Image"}, "volume": {"_type": "Nifti"}}
"""Feature of `datasets` for a file, by the kind of image; tried with version 5.2.0."""
_FILE_TYPES = {feature["_type"] for feature in _FILE_FEATURES.values()}


class _HashedFile(io.RawIOBase):
    """File that is written once from its beginning, with the SHA-256 and the number of its bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream, self._sha256, self.size_bytes = stream, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def write(self, data: Any) -> int:
        content = memoryview(data).cast("B")
        self._stream.write(content)
        self._sha256.update(content)
        self.size_bytes += len(content)
        return len(content)

    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def close(self) -> None:
        self._stream.close()
        super().close()


@dataclass(frozen=True, kw_only=True)
class _Shard:
    path: Path
    split: str
    rows: int
    array_bytes: int
    size_bytes: int
    sha256: str


class ParquetExporter(ShardsExporter):
    """Exporter of Parquet; memory: one group of rows, of at most `GROUP_ROWS` or about `GROUP_BYTES`.

    Columns: `image_id`, int64; `image`, struct {bytes, path}; by the task `label`, int64; `labels`, list of int64;
    `objects`, struct of the lists in `ExportedPicture`; or `mask`, struct {bytes, path}, which is null without a mask.
    Where sources state them `spacing_mm`, list of two float64, and the texts `laterality`, `view` and `body_part`.
    Scans and their masks are NIfTI files without padding, as those of `NiftiExporter`.
    """

    GROUP_ROWS: ClassVar[int] = 100
    GROUP_BYTES: ClassVar[int] = 32 << 20

    def __init__(self, folder: Path, data: ExportedData) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise UsageError(f"{data.files}: Parquet files need pyarrow: pip install pyarrow") from error
        super().__init__(folder, data)
        self._is_volume = data.manifest.kind.name == "volume"
        if self._is_volume:
            check_complete_scans(data)
        self._pyarrow, self._parquet = pyarrow, parquet
        self._features = self._huggingface_features()
        about = json.dumps({"info": {"features": self._features}})
        columns = {name: self._arrow_type(feature) for name, feature in self._features.items()}
        self._schema = pyarrow.schema(columns, metadata={"huggingface": about})
        self._rows: list[dict[str, Any]] = []
        self._group_bytes = self._shard_rows = self._array_bytes = 0
        self._written: list[_Shard] = []
        self._file: _HashedFile | None = None
        (folder / "data").mkdir()
        self.callback(self.close_shard)

    @classmethod
    def takes(cls, manifest: Manifest) -> bool:
        """Return whether a data set holds pictures of any task, or scans with labels."""
        return super().takes(manifest) or (manifest.kind.name == "volume" and manifest.task == "segmentation")

    def _content(self, record: ExportRecord) -> ExportedPicture:
        if not self._is_volume:
            return super()._content(record)
        scan = stored_scan(record, self._data)
        files = {what: nifti_bytes(voxels, scan.affine) for what, voxels in scan.arrays.items()}
        values = {"mask": files.get("label")}
        return ExportedPicture(extension=".nii.gz", data=files["image"], values=values)

    def _huggingface_features(self) -> dict[str, Any]:
        """Return the columns in the form of `datasets.Features.to_dict`."""
        numbers = {name: {"dtype": name, "_type": "Value"} for name in ("int64", "float64")}
        label = {"names": list(self.names.values()), "_type": "ClassLabel"}
        of_file = _FILE_FEATURES[self._manifest.kind.name]
        kinds: dict[str, Any] = {
            "label": label,
            "labels": _list_of(label),
            "objects": {
                "bbox": _list_of(_list_of(numbers["float64"])),
                "category": _list_of(label),
                "area": _list_of(numbers["float64"]),
                **({"corners": _list_of(_list_of(numbers["float64"]))} if self.has_corners else {}),
            },
            "mask": of_file,
        }
        text = {"dtype": "string", "_type": "Value"}
        stated = {
            field.name: text if field.encoding == "text" else _list_of(numbers["float64"])
            for field in stated_fields(self._manifest)
        }
        return {"image_id": numbers["int64"], "image": of_file, self.kind: kinds[self.kind], **stated}

    def _arrow_type(self, feature: Mapping[str, Any]) -> Any:
        of, kind = self._pyarrow, feature.get("_type")
        if kind is None:
            return of.struct({name: self._arrow_type(part) for name, part in feature.items()})
        if kind == "Sequence":
            return of.list_(self._arrow_type(feature["feature"]))
        if kind in _FILE_TYPES:
            return of.struct({"bytes": of.binary(), "path": of.string()})
        types = {"float64": of.float64, "string": of.string}
        return types.get(feature.get("dtype", ""), of.int64)()

    def open_shard(self, split: str, number: int) -> None:
        """Begin a file; its name has no count of files before `finish`."""
        self._path = self._folder / "data" / f"{split}-{number:05d}.parquet"
        self._file = _HashedFile(open_path(self._path, "xb"))
        self._writer = self._parquet.ParquetWriter(self._file, self._schema)
        self._shard_rows = self._array_bytes = 0

    def write(self, record: ExportRecord, picture: ExportedPicture) -> None:
        """Add a row, and write the group of rows if it is large enough."""
        values = dict(picture.values)
        if data := values.get("mask"):
            extension = ".nii.gz" if self._is_volume else ".png"
            values["mask"] = {"bytes": data, "path": f"{record.name}{extension}"}
        image = {"bytes": picture.data, "path": f"{record.name}{picture.extension}"}
        stated = {} if self._is_volume else self._stated(record)
        self._rows.append({"image_id": record.id, "image": image, **values, **stated})
        self._group_bytes += picture.size
        # A reader holds one group of rows in memory.
        if len(self._rows) >= self.GROUP_ROWS or self._group_bytes >= self.GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        table = self._pyarrow.Table.from_pylist(self._rows, schema=self._schema)
        self._writer.write_table(table, row_group_size=len(self._rows))
        self._shard_rows += len(self._rows)
        self._array_bytes += table.nbytes
        self._rows, self._group_bytes = [], 0

    def close_shard(self) -> None:
        """Write the last group of rows, and complete the file."""
        if (file := self._file) is None:
            return
        self._file = None
        with file:
            if self._rows:
                self._write_group()
            self._writer.close()
        shard = _Shard(
            path=self._path,
            split=self._path.name.rpartition("-")[0],
            rows=self._shard_rows,
            array_bytes=self._array_bytes,
            size_bytes=file.size_bytes,
            sha256=file.sha256(),
        )
        self._written.append(shard)

    def finish(self) -> None:
        """Complete the last file, name the files, and write the card and croissant.json."""
        if self.kind == "mask":  # datasets has no feature for the classes of a label image
            self.write_class_table()
        self.close_shard()
        shards: dict[str, list[_Shard]] = {}
        for shard in self._written:
            shards.setdefault(shard.split, []).append(shard)
        names: dict[str, _Shard] = {}
        for split, parts in shards.items():
            for number, shard in enumerate(parts):
                name = f"data/{split}-{number:05d}-of-{len(parts):05d}.parquet"
                shard.path.rename(self._folder / name)
                names[name] = shard
        save_text(self._folder / "README.md", self._card(shards), encoding="utf-8")
        save_text(self._folder / CROISSANT, self._croissant(names), encoding="utf-8")

    def _card(self, shards: Mapping[str, list[_Shard]]) -> str:
        manifest = self._manifest
        text = f"{manifest.name} {manifest.version}: {manifest.task}, {MARK}."
        parts = ["---", *_yaml_lines(self._about(shards)), "---", "", f"# {manifest.name}", "", text]
        for title, option in (("License", "license"), ("Citation", "citation")):
            if said := manifest.recipe.get(option):
                lines = [NO_TEXT.sub("?", line) for line in said.splitlines()]
                parts += _card_block(title, lines)
        # `datasets` has no feature for the classes of a mask, so only this page names them.
        if self.kind == "mask":
            unknown = {} if manifest.ignore_label is None else {manifest.ignore_label: "(unknown)"}
            values = [f"{number}  {name}" for number, name in (self.names | unknown).items()]
            parts += _card_block("Values of masks", values)
        return "\n".join(parts) + "\n"

    def _about(self, shards: Mapping[str, list[_Shard]]) -> dict[str, Any]:
        """Return the metadata of the card: `dataset_info` and `configs`, as the Hub and `datasets` read them."""
        splits = [
            {
                "name": split,
                "num_bytes": sum(shard.array_bytes for shard in parts),
                "num_examples": sum(shard.rows for shard in parts),
            }
            for split, parts in shards.items()
        ]
        configs = [{"split": split, "path": f"data/{split}-*"} for split in shards]
        return {
            "pretty_name": self._manifest.name,
            "dataset_info": {
                "features": _yaml_features(self._features),
                "splits": splits,
                "download_size": sum(shard.size_bytes for shard in self._written),
                "dataset_size": sum(shard.array_bytes for shard in self._written),
            },
            "configs": [{"config_name": "default", "data_files": configs}],
        }

    def _croissant(self, shards: Mapping[str, _Shard]) -> str:
        files = [
            file_object(name, _MEDIA_TYPE, shard.size_bytes, shard.sha256) for name, shard in shards.items()
        ]
        every = file_set(_FILES, [_MEDIA_TYPE], ["data/*.parquet"], "rows of all splits")
        split = record_field(
            "default/split",
            "sc:Text",
            "split, in the name of the file",
            source=field_source(_FILES, regex=_SPLIT, fileProperty="fullpath"),
        )
        records = [
            *class_records(self.names),
            record_set("default", [split, *_croissant_fields("default", self._features)]),
        ]
        return croissant_text(self._manifest, distribution=[*files, every], record_sets=records)


_ABOUT = {
    "image_id": "id of the record",
    "image": "picture",
    "label": "class, see the record set classes",
    "labels": "classes, see the record set classes",
    "bbox": "x, y, width and height of each box in pixels",
    "category": "class of each box, see the record set classes",
    "area": "area of each object in square pixels",
    "corners": "x and y of the four corners of each object in pixels",
    "mask": "picture of class ids, see the record set classes",
    SPACING: "distance between rows and between columns of the pixels in millimeters",
    LATERALITY: "side of the body: L, R, B for both, U for unpaired",
    VIEW: "view, such as PA or MLO",
    BODY_PART: "part of the body, such as CHEST",
}


_INNER_LENGTHS = {"bbox": 4, "corners": 8}
"""Number of values of each object in a column with a list of lists."""
_CROISSANT_TYPES = {"Image": "ImageObject", "Nifti": "MediaObject"}
_VALUE_TYPES = {"float64": "Float", "string": "Text"}


def _card_block(title: str, lines: list[str]) -> list[str]:
    """Return a section of the card whose lines Markdown shows as they are."""
    return ["", f"## {title}", "", *(f"    {line}" for line in lines)]


def _list_of(feature: Mapping[str, Any]) -> dict[str, Any]:
    return {"feature": feature, "_type": "Sequence"}


def _croissant_fields(record: str, features: Mapping[str, Any], column: str = "") -> Iterator[dict[str, Any]]:
    """Yield a field for each column, and for each part of a structure."""
    for name, feature in features.items():
        # A structure has a field for each of its parts.
        if "_type" not in feature:
            yield from _croissant_fields(record, feature, name)
            continue
        is_file, more = feature["_type"] in _FILE_TYPES, {}
        path = "bytes" if is_file else name if column else ""
        # A list of lists, such as boxes, is one array of its innermost values.
        depth = 0
        while feature["_type"] == "Sequence":
            feature, depth = feature["feature"], depth + 1
        if depth:
            more = array_terms("-1" if depth == 1 else f"-1,{_INNER_LENGTHS[name]}")
        value = _VALUE_TYPES.get(feature.get("dtype", ""), "Integer")
        kind = _CROISSANT_TYPES.get(feature["_type"], value)
        source = field_source(_FILES, json_path=path, column=column or name)
        yield record_field(f"{record}/{name}", f"sc:{kind}", _ABOUT[name], source=source, **more)


def _yaml_features(features: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return columns in the form of a card, which is that of `datasets.Features._to_yaml_list`."""
    return [{"name": name, **_yaml_feature(feature)} for name, feature in features.items()]


def _yaml_feature(feature: Mapping[str, Any]) -> dict[str, Any]:
    kind = feature.get("_type")
    if kind is None:
        return {"struct": _yaml_features(feature)}
    if kind == "Sequence":
        inner = _yaml_feature(feature["feature"])
        return {"sequence": inner["dtype"] if isinstance(inner.get("dtype"), str) else inner}
    if kind == "ClassLabel":
        names = {str(number): name for number, name in enumerate(feature["names"])}
        return {"dtype": {"class_label": {"names": names}}}
    return {"dtype": kind.lower() if kind in _FILE_TYPES else feature["dtype"]}


def _yaml_lines(value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of a YAML document of objects, lists, texts and integers.

    >>> list(_yaml_lines({"a": [{"b": 1, "0": "no"}]}))
    ['a:', '- b: 1', '  "0": "no"']
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            # A key such as 0 or "a b" needs quotes to be read as text.
            name = key if key.isidentifier() else yaml_text(key)
            if isinstance(item, Mapping | list):
                yield f"{indent}{name}:"
                yield from _yaml_lines(item, indent if isinstance(item, list) else f"{indent}  ")
            else:
                yield f"{indent}{name}: {_yaml_scalar(item)}"
        return
    for item in value:
        lines = _yaml_lines(item) if isinstance(item, Mapping | list) else iter([_yaml_scalar(item)])
        yield f"{indent}- {next(lines)}"
        yield from (f"{indent}  {line}" for line in lines)


def _yaml_scalar(value: Any) -> str:
    return yaml_text(value) if isinstance(value, str) else str(value)
