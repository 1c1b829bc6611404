"""How tables are read: CSV and JSONL with one image or one box a row."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from halofeed.prep.annotations.images import ImageIndex
from halofeed.prep.annotations.layout import (
    LayoutOptions,
    check_order,
    declared_size,
    in_order,
    number,
    problem_of,
    read_whole,
    split_in_file_name,
)
from halofeed.prep.annotations.reference import Box, Reference
from halofeed.prep.sources import SourceFiles
from halofeed.schemas.errors import AnnotationsError, SourceError

IMAGE_COLUMNS = ("filename", "class")
BOX_COLUMNS = ("xmin", "ymin", "xmax", "ymax")
_TEXT_COLUMNS = (*IMAGE_COLUMNS, "split", "group", "id")
"""What must be text; a number that is none is a fault of its row alone, and other columns may hold anything."""
_FLAGS = {"": False, "0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table: where it stands, its cells by column, and what is wrong with its form."""

    file: str
    line: int
    cells: dict[str, str]
    fault: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def cell(self, column: str) -> str:
        return self.cells.get(column, "")


def list_csv_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[Reference]:
    """Every image of the CSV file, or of all CSV files straight in the folder.

    Columns: `filename,class[,split,group,id]`, or `filename,class,xmin,ymin,xmax,ymax[,width,height]` with
    one box a row, in pixels from the corner of the image; a row without class and box is an image without
    objects. More columns for boxes: area, is_crowd, difficult, truncated. Without a split column the file's
    name says it (train for `train_labels.csv`). UTF-8, a byte order mark allowed; comma, semicolon or tab,
    whichever makes the header line readable.

    Raises:
        AnnotationsError: if columns are missing, or one image has two classes, splits, groups or ids.
    """
    names = _table_files(annotations, annotation_file, (".csv", ".tsv"))
    tables = [read_csv(name, read_whole(annotations, name)) for name in names]
    yield from _references(tables, images, annotation_file is not None, options)


def list_jsonl_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[Reference]:
    """Every image of the JSONL file or files: one object a line, with the keys of the CSV columns."""
    names = _table_files(annotations, annotation_file, (".jsonl", ".ndjson"))
    tables = [read_jsonl(name, read_whole(annotations, name)) for name in names]
    yield from _references(tables, images, annotation_file is not None, options)


def _table_files(
    annotations: SourceFiles, annotation_file: str | None, extensions: tuple[str, ...]
) -> list[str]:
    if annotation_file is not None:
        return [annotation_file]
    for extension in extensions:
        found = [path for path in annotations.sizes() if "/" not in path and path.lower().endswith(extension)]
        if found:
            return found
    raise AnnotationsError(
        f"{annotations.root}: no {' or '.join(extensions)} file lies straight in it; name the table itself"
    )


@dataclass(frozen=True, kw_only=True)
class Table:
    """All rows of one file; `columns` is what its header, or any of its objects, names."""

    file: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def _decode(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AnnotationsError(
            f"{name}: expected UTF-8 text, byte {error.start} is 0x{data[error.start]:02x}; save it as UTF-8"
        ) from error


def read_csv(name: str, data: bytes) -> Table:
    """The rows of a CSV file; a row with too few or too many cells keeps that as its fault."""
    reader = csv.reader(io.StringIO(_decode(name, data), newline=""), delimiter=_delimiter(name, data))
    columns: tuple[str, ...] | None = None
    rows = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if columns is None:
                columns = _check_columns(name, [cell.strip().lower() for cell in cells])
                continue
            fault = "" if len(cells) == len(columns) else f"{len(cells)} cells under {len(columns)} columns"
            by_column = {
                column: _cell(f"{name}:{reader.line_num}", column, cell)
                for column, cell in zip(columns, cells, strict=False)
            }
            rows.append(Row(file=name, line=reader.line_num, cells=by_column, fault=fault))
    except csv.Error as error:
        raise AnnotationsError(f"{name}:{reader.line_num}: not readable as CSV: {error}") from error
    return Table(file=name, columns=columns or _check_columns(name, []), rows=tuple(rows))


def _delimiter(name: str, data: bytes) -> str:
    header = next((line for line in _decode(name, data).splitlines() if line.strip()), "")
    for delimiter in (",", ";", "\t"):
        cells = {cell.strip().lower() for cell in next(csv.reader([header], delimiter=delimiter), [])}
        if cells.issuperset(IMAGE_COLUMNS):
            return delimiter
    return ","


def _check_columns(name: str, columns: Sequence[str]) -> tuple[str, ...]:
    missing = [column for column in IMAGE_COLUMNS if column not in columns]
    boxes = [column for column in BOX_COLUMNS if column in columns]
    if boxes:
        missing += [column for column in BOX_COLUMNS if column not in columns]
    twice = sorted({column for column in columns if column and columns.count(column) > 1})
    if missing or twice:
        fault = f"no column {', '.join(missing)}" if missing else f"column {', '.join(twice)} comes twice"
        raise AnnotationsError(
            f"{name}: {fault}; found {', '.join(columns) or 'nothing'}; expected "
            f"{','.join(IMAGE_COLUMNS)} for one image a row, with {','.join(BOX_COLUMNS)} for one box a row"
        )
    return tuple(columns)


def read_jsonl(name: str, data: bytes) -> Table:
    """The rows of a JSONL file; absent keys and null are empty cells."""
    rows = []
    columns: dict[str, None] = {}
    for line, text in enumerate(_decode(name, data).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise AnnotationsError(f"{name}:{line}: expected one JSON object a line: {error}") from error
        if not isinstance(entry, dict):
            raise AnnotationsError(f"{name}:{line}: expected a JSON object, got {type(entry).__name__}")
        columns.update(dict.fromkeys(entry))
        cells = {key: _cell(f"{name}:{line}", key, value) for key, value in entry.items()}
        rows.append(Row(file=name, line=line, cells=cells))
    return Table(file=name, columns=_check_columns(name, list(columns)), rows=tuple(rows))


def _cell(place: str, column: str, value: object) -> str:
    """A value as text; AnnotationsError where it can be none."""
    if value is None:
        return ""
    if column in _TEXT_COLUMNS and isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise AnnotationsError(f"{place}: {column}: expected text or a number, got {kind}")
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    if column in _TEXT_COLUMNS and "\0" in text:
        raise AnnotationsError(f"{place}: {column}: holds a NUL character: {text!r}; remove it")
    return text


def _references(
    tables: Iterable[Table], images: SourceFiles, one_file: bool, options: LayoutOptions
) -> Iterator[Reference]:
    tables = list(tables)
    index = ImageIndex(images)
    with_boxes = _has_boxes(tables, options.task)
    by_source: dict[str, list[tuple[Row, str]]] = {}
    listed: list[Reference] = []
    for table in tables:
        split = split_in_file_name(table.file) or "train"
        for row in table.rows:
            try:
                if not row.cell("filename"):
                    raise SourceError("annotation", "row names no file", row.place)
                source = index.find(row.cell("filename"))
                by_source.setdefault(source, []).append((row, row.cell("split") or split))
            except SourceError as error:
                named = row.cell("filename") or row.place
                fault = (error.stage, error.reason, f"{row.place}: {error.detail}")
                listed.append(Reference(source=named, key=row.cell("id") or row.place, problem=fault))
    if tables and any(table.rows for table in tables) and not by_source:
        index.check_any_image(tables[0].file)
    listed += [_reference(source, rows, with_boxes) for source, rows in by_source.items()]
    listed += index.without_annotation(by_source.keys(), beside_used=one_file)
    yield from in_order(listed)


def _has_boxes(tables: Sequence[Table], task: str | None) -> bool:
    boxed = [table for table in tables if "xmin" in table.columns]
    plain = [table for table in tables if "xmin" not in table.columns]
    if task == "classification":
        return False
    if plain and (boxed or task == "detection"):
        raise AnnotationsError(
            f"{plain[0].file}: no columns {','.join(BOX_COLUMNS)}; found {', '.join(plain[0].columns)}; "
            "detection needs one box a row in every table"
        )
    return bool(boxed)


def _agree(source: str, rows: Sequence[tuple[Row, str]], column: str, values: Iterable[str]) -> str:
    first: tuple[Row, str] | None = None
    for (row, _), value in zip(rows, values, strict=True):
        if first is not None and value != first[1]:
            raise AnnotationsError(
                f"{source}: two values of {column}: {first[1]!r} ({first[0].place}) and {value!r} "
                f"({row.place}); an image has one {column}"
            )
        first = first or (row, value)
    return first[1] if first else ""


def _reference(source: str, rows: Sequence[tuple[Row, str]], with_boxes: bool) -> Reference:
    for row, _ in rows:
        if row.fault:
            fault = ("annotation", "row has the wrong number of cells", f"{row.place}: {row.fault}")
            return Reference(source=source, key=source, split=rows[0][1], problem=fault)
    split = _agree(source, rows, "split", [split for _, split in rows])
    group = _agree(source, rows, "group", [row.cell("group") for row, _ in rows]) or None
    key = _agree(source, rows, "id", [row.cell("id") for row, _ in rows]) or source
    label = None
    if not with_boxes:
        label = _agree(source, rows, "class", [row.cell("class") for row, _ in rows])
    try:
        if not with_boxes:
            if not label:
                raise SourceError("annotation", "row has no class", rows[0][0].place)
            return Reference(source=source, key=key, split=split, group=group, label=label)
        boxes = [box for row, _ in rows if (box := _box(row)) is not None]
        return Reference(
            source=source,
            key=key,
            split=split,
            group=group,
            boxes=tuple(boxes),
            declared_size=_size([row for row, _ in rows]),
        )
    except SourceError as error:
        return Reference(source=source, key=key, split=split, group=group, problem=problem_of(error))


def _size(rows: Sequence[Row]) -> tuple[int, int] | None:
    sizes = {declared_size(row.cell("height"), row.cell("width")) for row in rows}
    if len(sizes) > 1:
        detail = f"{rows[0].place} and others: {sorted(str(size) for size in sizes)}"
        raise SourceError("annotation", "rows disagree about the size", detail)
    return sizes.pop()


def _box(row: Row) -> Box | None:
    """The box of a row; None where the row says that the image has no objects."""
    coordinates = [row.cell(column) for column in BOX_COLUMNS]
    if not row.cell("class") and not any(coordinates):
        return None
    if not row.cell("class"):
        raise SourceError("annotation", "box has no class", row.place)
    if not all(coordinates):
        raise SourceError("annotation", "row has no complete box", f"{row.place}: {','.join(coordinates)}")
    xmin, ymin, xmax, ymax = (number(row.cell(column), f"{row.place} {column}") for column in BOX_COLUMNS)
    area = row.cell("area")
    box = Box(
        ymin=ymin,
        xmin=xmin,
        ymax=ymax,
        xmax=xmax,
        label=row.cell("class"),
        is_crowd=_flag(row, "is_crowd"),
        difficult=_flag(row, "difficult"),
        truncated=_flag(row, "truncated"),
        area=number(area, f"{row.place} area") if area else None,
    )
    return check_order(box, row.place)


def _flag(row: Row, column: str) -> bool:
    text = row.cell(column).lower()
    if text not in _FLAGS:
        raise SourceError("annotation", "flag is neither 0 nor 1", f"{row.place} {column} is {text!r}")
    return _FLAGS[text]
