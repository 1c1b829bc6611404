"""Rows of Parquet files, as Hugging Face datasets publishes them: pictures as bytes, and the names of classes.

The schema's metadata describe the features of the columns:
https://huggingface.co/docs/datasets/about_dataset_features
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.container_rows import ContainerRow, choose_picture, picture_row
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.sources.containers import describe_member
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.members import Member
from halofeed.prep.sources.parquet import MAX_GROUP_BYTES, open_parquet, unreadable_parquet

_ROWS_AT_ONCE = 64
_OTHER_MEDIA = ("Audio", "Video", "Pdf", "Nifti")
_NUMBER_DIGITS = 6


def parquet_rows(files: SourceFiles, name: str, options: LayoutOptions) -> Iterator[ContainerRow]:
    """Yield the rows of a Parquet file, with the paths of members for the bytes of pictures.

    Raises:
        AnnotationsError: the file is damaged; the bytes of pictures are inside lists; or a row group is too large.
    """
    file = open_parquet(files, name)
    features = _features(file)
    columns = _picture_columns(file, name, features)
    chosen = choose_picture(name, list(columns), options) if columns else None
    _check_groups(file, name, columns)
    row = 0
    try:
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            for written in batch.to_pylist():
                values = _named(written, features)
                found: dict[str, str | None] = {}
                for column, leaf in columns.items():
                    found[column] = _member_path(name, values.pop(column), row, leaf)
                yield _row(values, found, chosen, options)
                row += 1
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise unreadable_parquet(name, error) from error


def _row(
    values: ContainerRow,
    found: Mapping[str, str | None],
    chosen: tuple[str, str | None] | None,
    options: LayoutOptions,
) -> ContainerRow:
    if chosen is None:
        return values
    picture, label = chosen
    others = {column: path for column, path in found.items() if column not in chosen}
    return picture_row({**values, **others}, found[picture] or "", found[label] if label else None, options)


def parquet_class_names(files: SourceFiles, name: str) -> tuple[str, ...]:
    """Return the names of the one feature ClassLabel of a Parquet file in their order; () for none or several."""
    found = set(_class_names(_features(open_parquet(files, name))))
    return next(iter(found)) if len(found) == 1 else ()


def _features(file: Any) -> dict[str, Any]:
    """Return the features that the schema's metadata describe; {} without them."""
    written = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(written)["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _class_names(feature: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(feature, list):
        feature = dict(enumerate(feature))
    if isinstance(feature, dict):
        if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list):
            yield tuple(map(str, feature["names"]))
        else:
            for one in feature.values():
                yield from _class_names(one)


def _named(value: Any, feature: Any) -> Any:
    """Return a value with names for the numbers of its ClassLabels; None for -1, which means no label."""
    if isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    elif isinstance(feature, dict) and feature.get("_type") in ("Sequence", "LargeList", "List"):
        feature = feature.get("feature")
    if not isinstance(feature, dict) or value is None:
        return value
    if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list):
        return _name_of(value, feature["names"])
    if isinstance(value, list):
        return [_named(one, feature) for one in value]
    if isinstance(value, dict):
        return {key: _named(one, feature.get(key)) for key, one in value.items()}
    return value


def _name_of(value: Any, names: list[Any]) -> Any:
    if isinstance(value, list):
        return [_name_of(one, names) for one in value]
    if value is None or value == -1:
        return None
    return str(names[value]) if isinstance(value, int) and 0 <= value < len(names) else str(value)


def _picture_columns(file: Any, name: str, features: Mapping[str, Any]) -> dict[str, int]:
    """Return the columns with pictures, and the number of the leaf that holds their bytes.

    Raises:
        AnnotationsError: bytes lie inside lists.
    """
    leaves = {file.schema.column(number).path: number for number in range(len(file.schema))}
    found = {}
    for field in file.schema_arrow:
        feature = features.get(field.name)
        kind = feature.get("_type") if isinstance(feature, dict) else None
        if "binary" not in str(field.type) or kind in _OTHER_MEDIA:
            continue
        leaf = leaves.get(field.name, leaves.get(f"{field.name}.bytes"))
        if leaf is None:
            raise AnnotationsError(
                f"{name}: column {field.name} holds the bytes of several pictures in a row; expected one a row: "
                "write a row for each picture"
            )
        found[field.name] = leaf
    return found


def _check_groups(file: Any, name: str, columns: Mapping[str, int]) -> None:
    for group in range(file.num_row_groups):
        for column, leaf in columns.items():
            size = file.metadata.row_group(group).column(leaf).total_uncompressed_size
            if size > MAX_GROUP_BYTES:
                raise AnnotationsError(
                    f"{name}: row group {group} has {size:,} bytes in column {column}, and a group is decoded at once; "
                    f"at most {MAX_GROUP_BYTES:,} are read: write the file anew with row_group_size=100"
                )


def _member_path(name: str, value: Any, row: int, leaf: int) -> str | None:
    """Return the path of the picture in a cell: bytes, or a struct of bytes and path, of which one may be absent."""
    written = value.get("path") if isinstance(value, dict) else None
    data = value.get("bytes") if isinstance(value, dict) else value
    if data is None:
        return written
    stem = f"{row:0{_NUMBER_DIGITS}d}"
    if written:
        stem += "-" + str(written).replace("\\", "/").rpartition("/")[2]
    member: Member = describe_member(name, stem, data, row, leaf)
    return member.path
