"""Published forms of tables whose rows are converted first: Hugging Face, Google, Open Images and Kaggle's wheat.

The converted rows have columns that `columns` knows, so that all tables are read by the same rules.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.columns import normalize_name
from halofeed.prep.annotations.contract import read_required
from halofeed.prep.sources.files import SourceFiles

METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Tables of a Hugging Face image folder, each for the pictures in its own folder and below."""
BOX_LIST = "bbox_xywh"
"""Column with x, y, width and height of a box in one list."""
_CLASS_KEYS = ("category", "categories", "class", "classes", "label", "labels", "categoryname", "categoryid")
_PICTURE_KEYS = ("id", "image_id", "file_name", "width", "height", "split", "group")
"""Keys that mean the picture in a row, and an object inside `objects`."""
_BOX_KEYS = ("bbox", "bboxes", "box", "boxes")

Row = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class TableForm:
    """Conversion of the rows of a published form.

    Args:
        convert: maps (file and line, row) to the converted rows.
        columns: columns of the converted rows; () if they depend on the rows.
        note: remark for the user.
    """

    convert: Callable[[str, Row], Iterable[Row]]
    columns: tuple[str, ...] = ()
    note: str = ""


def find_form(files: SourceFiles, name: str, header: Sequence[str]) -> TableForm | None:
    """Return the published form of a table with this header, or None for a plain table."""
    known = {normalize_name(column): column for column in header}
    if "filename" in known and "objects" in known:
        return TableForm(convert=lambda place, row: _hugging_face_rows(place, row, known["objects"]))
    return None


# Hugging Face ---------------------------------------------------------------------------------------------


def _hugging_face_rows(place: str, row: Row, column: str) -> Iterator[Row]:
    """Yield a row for each object of {"bbox": [...], "categories": [...]} or of a list of objects.

    The convention is that of the object detection guides of Hugging Face datasets: a box is x, y, width, height.
    """
    rest = {key: value for key, value in row.items() if key != column}
    objects = _parsed(row[column]) if column in row else None
    if isinstance(objects, list) and all(isinstance(one, dict) for one in objects):
        keys = dict.fromkeys(key for one in objects for key in one)
        objects = {key: [one.get(key) for one in objects] for key in keys}
    if objects in (None, "", {}) or (
        isinstance(objects, dict) and {*map(type, objects.values())} == {type(None)}
    ):
        yield {**rest, BOX_LIST: "", "class": ""}
        return
    expected = (
        'expected {"bbox": [[x, y, width, height], ...], "category": [...]} with one value for each object'
    )
    if not isinstance(objects, dict) or not all(isinstance(one, list) for one in objects.values()):
        raise AnnotationsError(f"{place}: {column}: {expected}, got {objects!r:.80}")
    boxes, classes = (
        [key for key in objects if normalize_name(key) in known] for known in (_BOX_KEYS, _CLASS_KEYS)
    )
    lengths = {len(one) for one in objects.values()}
    if len(boxes) != 1 or len(classes) != 1 or len(lengths) != 1:
        found = ", ".join(f"{len(one)} {key}" for key, one in objects.items())
        raise AnnotationsError(f"{place}: {column}: {expected}, got {found}")
    for values in zip(*objects.values(), strict=True):
        own = dict(zip(objects, values, strict=True))
        box, label = own.pop(boxes[0]), own.pop(classes[0])
        more = {f"object_{key}" if key in _PICTURE_KEYS else key: value for key, value in own.items()}
        yield {**more, **rest, BOX_LIST: box, "class": label}
    if lengths == {0}:
        yield {**rest, BOX_LIST: "", "class": ""}


def _parsed(value: object) -> object:
    """Return a value that a cell of a CSV file holds as JSON or as a Python literal."""
    if not isinstance(value, str):
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            return read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return value.strip()


def parquet_as_jsonl(name: str, files: SourceFiles) -> bytes:
    """Return the rows of a Parquet file as JSON objects, one a line; bytes are unread values."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise AnnotationsError(
            f"{name}: a Parquet file needs pyarrow: pip install pyarrow, or write it as metadata.jsonl"
        ) from error
    try:
        table = parquet.ParquetFile(pyarrow.BufferReader(read_required(files, name)))
        if pictures := [field.name for field in table.schema_arrow if "binary" in str(field.type)]:
            raise AnnotationsError(
                f"{name}: column {pictures[0]} holds the bytes of pictures; expected file_name: save the pictures as "
                "files, with their names in metadata.jsonl"
            )
        batches = (batch.to_pylist() for batch in table.iter_batches())
        lines = [
            json.dumps(row, default=lambda value: repr(value)[:80]) for batch in batches for row in batch
        ]
    except pyarrow.ArrowException as error:
        raise AnnotationsError(f"{name}: not readable as Parquet: {error}; write the file anew") from error
    return "".join(f"{line}\n" for line in lines).encode()
