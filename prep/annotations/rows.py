"""How tables are taken apart: the rows of CSV and JSONL files, whatever their columns mean."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

from halofeed.prep.annotations.layout import read_whole
from halofeed.prep.annotations.recognize import hint
from halofeed.prep.sources import SourceFiles
from halofeed.schemas.errors import AnnotationsError


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns a table must have.

    Args:
        required: all of them must be there.
        together: all of them, or none.
        text: in these an object or a list makes the table useless; elsewhere it is a fault of its row.
        expected: what the message says of them.
    """

    required: tuple[str, ...]
    together: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    expected: str


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


@dataclass(frozen=True, kw_only=True)
class Table:
    """All rows of one file; `columns` is what its header, or any of its objects, names."""

    file: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


CSV_EXTENSIONS = (".csv", ".tsv")
JSONL_EXTENSIONS = (".jsonl", ".ndjson")


def read_csv_tables(annotations: SourceFiles, annotation_file: str | None, rule: Columns) -> list[Table]:
    """The CSV file that was named, or all straight in the folder."""
    names = _table_files(annotations, annotation_file, CSV_EXTENSIONS)
    return [read_csv(name, read_whole(annotations, name), rule) for name in names]


def read_jsonl_tables(annotations: SourceFiles, annotation_file: str | None, rule: Columns) -> list[Table]:
    """The JSONL file that was named, or all straight in the folder."""
    names = _table_files(annotations, annotation_file, JSONL_EXTENSIONS)
    return [read_jsonl(name, read_whole(annotations, name), rule) for name in names]


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
        + hint(annotations, extensions[0][1:])
    )


def _decode(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AnnotationsError(
            f"{name}: expected UTF-8 text, byte {error.start} is 0x{data[error.start]:02x}; save it as UTF-8"
        ) from error


def read_csv(name: str, data: bytes, rule: Columns) -> Table:
    """The rows of a CSV file; a row with too few or too many cells keeps that as its fault."""
    delimiter = _delimiter(name, data, rule)
    reader = csv.reader(io.StringIO(_decode(name, data), newline=""), delimiter=delimiter)
    columns: tuple[str, ...] | None = None
    rows = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if columns is None:
                columns = _check_columns(name, [cell.strip().lower() for cell in cells], rule)
                continue
            fault = "" if len(cells) == len(columns) else f"{len(cells)} cells under {len(columns)} columns"
            by_column = {
                column: _cell(f"{name}:{reader.line_num}", column, cell, rule)
                for column, cell in zip(columns, cells, strict=False)
            }
            rows.append(Row(file=name, line=reader.line_num, cells=by_column, fault=fault))
    except csv.Error as error:
        raise AnnotationsError(f"{name}:{reader.line_num}: not readable as CSV: {error}") from error
    return Table(file=name, columns=columns or _check_columns(name, [], rule), rows=tuple(rows))


def _delimiter(name: str, data: bytes, rule: Columns) -> str:
    header = next((line for line in _decode(name, data).splitlines() if line.strip()), "")
    for delimiter in (",", ";", "\t"):
        cells = {cell.strip().lower() for cell in next(csv.reader([header], delimiter=delimiter), [])}
        if cells.issuperset(rule.required):
            return delimiter
    return ","


def _check_columns(name: str, columns: Sequence[str], rule: Columns) -> tuple[str, ...]:
    missing = [column for column in rule.required if column not in columns]
    if any(column in columns for column in rule.together):
        missing += [column for column in rule.together if column not in columns]
    twice = sorted({column for column in columns if column and columns.count(column) > 1})
    if missing or twice:
        fault = f"no column {', '.join(missing)}" if missing else f"column {', '.join(twice)} comes twice"
        raise AnnotationsError(
            f"{name}: {fault}; found {', '.join(columns) or 'nothing'}; expected {rule.expected}"
        )
    return tuple(columns)


def read_jsonl(name: str, data: bytes, rule: Columns) -> Table:
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
        cells = {key: _cell(f"{name}:{line}", key, value, rule) for key, value in entry.items()}
        rows.append(Row(file=name, line=line, cells=cells))
    return Table(file=name, columns=_check_columns(name, list(columns), rule), rows=tuple(rows))


def _cell(place: str, column: str, value: object, rule: Columns) -> str:
    """A value as text; AnnotationsError where it can be none."""
    if value is None:
        return ""
    if column in rule.text and isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise AnnotationsError(f"{place}: {column}: expected text or a number, got {kind}")
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    if column in rule.text and "\0" in text:
        raise AnnotationsError(f"{place}: {column}: holds a NUL character: {text!r}; remove it")
    return text
