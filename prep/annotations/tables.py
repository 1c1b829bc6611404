"""Reader of table rows from CSV and JSONL files, with checks of the columns."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

from halofeed.errors import AnnotationsError, UsageError
from halofeed.prep.annotations.class_names import class_number
from halofeed.prep.annotations.columns import CORNERS, ColumnMapping, has_columns, normalize_name
from halofeed.prep.annotations.container_rows import FAULT, parquet_rows, usable_rows, webdataset_rows
from halofeed.prep.annotations.contract import LayoutOptions, is_split_name, report_unreadable
from halofeed.prep.annotations.suggest_layout import advice_for_bytes, layout_hint
from halofeed.prep.annotations.table_forms import (
    Row,
    TableForm,
    find_form,
    find_google_form,
    is_description,
    is_metadata,
)
from halofeed.prep.annotations.tfrecord_rows import tfrecord_rows
from halofeed.prep.sources.containers import check_shards, container_kind
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles, SourceStream
from halofeed.system.wording import plural

MAX_CACHED_BYTES = 4 << 20
"""Largest table to keep in memory. Its parsed rows take a hundred times as many bytes."""
_CHUNK_BYTES = 1 << 20
_ATTRIBUTE = "attribute "
"""Start of the names of cells in columns without a known meaning, which no known column has."""
_NO_HEADER = "the table has no header line; its two columns were taken for filename and class"
_YES_NO = {**dict.fromkeys(("0", "0.0", "false"), False), **dict.fromkeys(("1", "1.0", "true"), True)}
_SEPARATOR = re.compile(r'"?sep=([,;|\t])"?[,;\s]*')
_FIRST_LINE = re.compile(r"\S[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]*")

RowFault = tuple[str, str]
"""Reason and detail of a row that cannot be used."""
_Entry = tuple[int, Mapping[str, object], RowFault | None]
"""Number of the line, values by column, and fault of a row."""
_CONTAINER_ROWS = {"parquet": parquet_rows, "tar": webdataset_rows, "tfrecord": tfrecord_rows}
"""Reader of each kind of container file; its rows become the lines of a JSONL table."""


class TableText:
    """Text of one table, which can be read several times. The rows of a container file are JSON, one a line.

    Raises:
        AnnotationsError: the table is unreadable or is not UTF-8; or, at the end of a later pass, it has changed.
    """

    def __init__(self, files: SourceFiles, name: str, options: LayoutOptions) -> None:
        self.files, self._name = files, name
        self._cached: bytes | None
        if (kind := container_kind(name)) != "":
            rows = usable_rows(name, _CONTAINER_ROWS[kind](files, name, options))
            lines = (json.dumps(row, default=lambda value: repr(value)[:80]) for row in rows)
            self._cached = "".join(f"{line}\n" for line in lines).encode()
        else:
            with report_unreadable(files, name):
                head = files.head(name, MAX_CACHED_BYTES + 1)
            self._cached = head if len(head) <= MAX_CACHED_BYTES else None
        self._digest = self._check_text()

    @property
    def path(self) -> str:
        """Return the location of the table, for a command."""
        return f"{self.files.root}/{self._name}"

    @property
    def is_cached(self) -> bool:
        """Return whether the table is small enough to stay in memory."""
        return self._cached is not None and len(self._cached) <= MAX_CACHED_BYTES

    def lines(self, newline: str) -> io.TextIOWrapper:
        """Return a stream of text lines without a byte order mark; `newline` has the meaning it has for `open`."""
        # Invalid UTF-8 here means that the file changed; the digest at the end detects that.
        stream = io.BufferedReader(_CheckedStream(self._open(), self._check_unchanged))
        return io.TextIOWrapper(stream, "utf-8-sig", "replace", newline)

    def _open(self) -> SourceStream:
        if self._cached is not None:
            return io.BytesIO(self._cached)
        with report_unreadable(self.files, self._name):
            return self.files.open(self._name)

    def _check_text(self) -> str:
        digest, start = hashlib.sha256(), 0
        decoder = codecs.getincrementaldecoder("utf-8")()
        with report_unreadable(self.files, self._name), closing(self._open()) as stream:
            try:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    decoder.decode(chunk)
                    start += len(chunk)
                chunk = b""
                decoder.decode(chunk, final=True)
            except UnicodeDecodeError as error:
                # The decoder prepends the incomplete character of the previous chunk.
                at, wrong = start + len(chunk) - len(error.object) + error.start, error.object[error.start]
                fix = advice_for_bytes(self._cached or b"", self.path)
                raise AnnotationsError(
                    f"{self._name}: expected UTF-8 text, byte {at} is 0x{wrong:02x}; {fix}"
                ) from error
        return digest.hexdigest()

    def _check_unchanged(self, digest: str) -> None:
        if digest != self._digest:
            raise AnnotationsError(
                f"{self._name} in {self.files.root}: it was changed while it was read; run the same command again "
                "once it is finished"
            )


class _CheckedStream(io.RawIOBase):
    """Stream that calls `check` at its end with the digest of everything read."""

    def __init__(self, stream: SourceStream, check: Callable[[str], None]) -> None:
        self._stream, self._check = stream, check
        self._chunk, self._digest = memoryview(b""), hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._chunk:
            self._chunk = memoryview(self._stream.read(_CHUNK_BYTES))
            self._digest.update(self._chunk)
            if not self._chunk:
                self._check(self._digest.hexdigest())
        size = min(len(buffer), len(self._chunk))
        buffer[:size], self._chunk = self._chunk[:size], self._chunk[size:]
        return size

    def close(self) -> None:
        self._stream.close()
        super().close()


@dataclass(frozen=True, kw_only=True)
class ColumnRules:
    """Columns that a table needs.

    Args:
        required: columns that must exist.
        together: columns that must either all exist or all be absent.
        text: columns in which an object or a list makes the table invalid; in other columns it makes only the row
            faulty.
        lists: columns of `text` that may hold a list nevertheless; it becomes JSON text.
        expected: description of the columns for messages.
        spellings: accepted spellings of each column, see `columns`.
        read: maps (table, header) to the meaning of the columns.
        options: options for reading container files.
    """

    required: tuple[str, ...]
    together: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    expected: str
    spellings: Mapping[str, Sequence[Sequence[str]]]
    read: Callable[[str, Sequence[str]], ColumnMapping]
    options: LayoutOptions


@dataclass(kw_only=True, slots=True)  # not frozen: creation takes a third of the time
class TableRow:
    """Row of a table: its location, its cells by column, and the fault of its form."""

    file: str
    line: int
    cells: dict[str, str]
    fault: RowFault | None = None

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def cell(self, column: str) -> str:
        return self.cells.get(column, "")

    @property
    def attributes(self) -> dict[str, str]:
        """Return the cells of columns without a known meaning, by their names; {} where no groups are needed."""
        start = len(_ATTRIBUTE)
        return {name[start:]: text for name, text in self.cells.items() if name.startswith(_ATTRIBUTE)}


def shared_attributes(rows: Sequence[TableRow]) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of the attributes that all rows of an image have in common."""
    found = rows[0].attributes
    for row in rows[1:]:
        others = row.attributes
        found = {name: value for name, value in found.items() if others.get(name) == value}
    return tuple(found.items())


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of one file.

    Args:
        file: name of the file.
        header: columns from the first line, or keys of any object.
        columns: known columns, under the names that `Row.cell` accepts.
        unread: columns without a known meaning.
        rows: rows of the file. A large file is parsed again for each iteration.
        note: note about the interpretation of the table.
    """

    file: str
    header: tuple[str, ...]
    columns: tuple[str, ...]
    unread: tuple[str, ...]
    rows: Iterable[TableRow]
    note: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes for its images, such as its unread columns."""
        unread = [column for column in self.unread if column]
        message = f"columns of {self.file} that are not read: {', '.join(unread)}" if unread else ""
        return tuple(filter(None, (message, self.note)))


@dataclass(frozen=True)
class _LazyRows:
    """Rows that are parsed again for each iteration."""

    read: Callable[[], Iterator[TableRow]]

    def __iter__(self) -> Iterator[TableRow]:
        return self.read()


def read_tables(
    form: str, annotations: SourceFiles, annotation_file: str | None, rule: ColumnRules, images: SourceFiles
) -> list[Table]:
    """Return the named table, or all tables of a form of `_FORMS` in the folder of the annotations.

    Raises:
        AnnotationsError: a table is damaged or lacks a column.
        UsageError: no table has a column to ignore.
    """
    _, read = _FORMS[form]
    names = _table_files(annotations, annotation_file, form)
    if images.root != annotations.root and (inside := [name for name in names if is_container(name)]):
        raise AnnotationsError(f"{inside[0]}: the pictures are inside this file; leave --images out")
    try:
        tables = [read(name, TableText(annotations, name, rule.options), rule) for name in names]
    except AnnotationsError as error:
        if len(names) == 1 or container_kind(names[0]):
            raise
        listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise AnnotationsError(f"{error}; of {listed} name the one to read with --source") from error
    _check_ignored_columns(tables, rule.options.ignore_columns)
    return tables


def _check_ignored_columns(tables: Sequence[Table], ignored: Sequence[str]) -> None:
    """Raise UsageError if no table has a column to ignore, since its name is probably misspelled."""
    header = dict.fromkeys(column for table in tables for column in table.header)
    there = set(map(normalize_name, header))
    if missing := [column for column in ignored if normalize_name(column) not in there]:
        raise UsageError(f"--ignore-columns {','.join(missing)}: no table has it; found {', '.join(header)}")


def _table_files(annotations: SourceFiles, annotation_file: str | None, form: str) -> list[str]:
    if annotation_file is not None:
        return [annotation_file]
    extensions, _ = _FORMS[form]
    for extension in extensions:
        found = [path for path in annotations.sizes() if "/" not in path and path.lower().endswith(extension)]
        if found:
            return [path for path in found if not is_description(path)] or found
    below = [path for path in annotations.sizes() if path.lower().endswith(extensions)]
    for extension in extensions:
        if metadata := [path for path in below if is_metadata(path) and path.lower().endswith(extension)]:
            return metadata
    if below and all(map(described_folder, below)) and len({path.split("/")[1] for path in below}) == 1:
        return below
    if containers := container_files(form, annotations):
        check_shards(containers)
        return containers
    if not extensions:
        raise AnnotationsError(
            f"{annotations.root}: no .{_CONTAINER_FORMS[form]} file lies below it; name the folder of such files"
            + layout_hint(annotations, form)
        )
    there = f" ({', '.join(below[:3])}{', ...' if len(below) > 3 else ''} lie below it)" if below else ""
    raise AnnotationsError(
        f"{annotations.root}: no {' or '.join(extensions)} file lies straight in it{there}; name the table itself"
        + ("" if below else layout_hint(annotations, form))
    )


def container_files(form: str, annotations: SourceFiles, annotation_file: str | None = None) -> list[str]:
    """Return the container files of a form in any folder, or the named file if it is one."""
    paths = annotations.sizes() if annotation_file is None else [annotation_file]
    return [path for path in paths if container_kind(path) == _CONTAINER_FORMS.get(form)]


def is_container(table: str) -> bool:
    """Return whether the pictures of a table are inside it; metadata.parquet names files."""
    return container_kind(table) != "" and not is_metadata(table)


def described_folder(table: str) -> str:
    """Return the folder that a table describes: its own for metadata and in a split folder (Roboflow); else "".

    >>> described_folder("valid/_annotations.csv"), described_folder("tables/boxes.csv"), described_folder("boxes.csv")
    ('valid', '', '')
    >>> described_folder("data/test/metadata.csv")
    'data/test'
    """
    folder = table.rpartition("/")[0]
    return folder if is_metadata(table) or is_split_name(folder) else ""


def _read_csv(name: str, text: TableText, rule: ColumnRules) -> Table:
    """Return the table of a CSV file; a row with too few or too many cells has a fault."""
    with text.lines("") as lines:
        delimiter, skipped = _delimiter(lines, rule)

    def written() -> Iterator[tuple[int, list[str]]]:
        with text.lines("") as lines:
            reader = csv.reader(lines, delimiter=delimiter)
            lines_of_cells = ((reader.line_num, cells) for cells in reader if any(map(str.strip, cells)))
            try:
                yield from islice(lines_of_cells, skipped, None)
            except csv.Error as error:
                raise AnnotationsError(f"{name}:{reader.line_num}: not readable as CSV: {error}") from error

    def cells_by_place() -> Iterator[_Entry]:
        for line, cells in written():
            yield line, dict(zip(map(str, count()), cells, strict=False)), None

    header = [cell.strip() for cell in next(written(), (0, []))[1]]
    note = ""
    if any(map(is_image_name, header)):
        google = find_google_form(name, written) if "class" in rule.required else None
        if google is not None:
            return _converted(name, google, cells_by_place, rule, text)
        header, note = _infer_header(name, header, rule, text), _NO_HEADER
    else:
        skipped += 1

    def entries() -> Iterator[_Entry]:
        for line, cells in written():
            if len(cells) > len(header) and not any(cells[len(header) :]):
                cells = cells[: len(header)]
            fault = None
            if len(cells) != len(header):
                fault = (
                    "row has the wrong number of cells",
                    f"{plural(len(cells), 'cell')} under {plural(len(header), 'column')}",
                )
            yield line, dict(zip(header, cells, strict=False)), fault

    if "class" in rule.required:
        if form := find_form(text.files, name, header):
            return _converted(name, form, entries, rule, text)
        if form := _one_hot_form(name, header, rule, written):
            return replace(_converted(name, form, entries, rule, text), header=tuple(header))
    plain = TableForm(convert=lambda _, row: (row,), columns=tuple(header), note=note)
    return _converted(name, plain, entries, rule, text, is_plain_csv=True)


def _infer_header(name: str, cells: Sequence[str], rule: ColumnRules, text: TableText) -> list[str]:
    """Return the columns of a table without a header line, if it has only a file name and a class."""
    is_pair = len(cells) == 2 and is_image_name(cells[0]) and not is_image_name(cells[1])
    if is_pair and rule.required == ("filename", "class"):
        return ["filename", "class"]
    remaining = {"filename": 1, "class": 1, "split": 1, "xmin": 1, "ymin": 1, "xmax": 1, "ymax": 1}
    if "label" in rule.required:
        remaining = {"image": 1, "label": 1, "split": 1}
    guessed = []
    for place, cell in enumerate(cells, start=1):
        kinds: tuple[str, ...] = ("split",) if is_split_name(cell) else ("class",)
        if is_image_name(cell):
            kinds = ("image", "label", "filename")
        elif class_number(cell) is not None:
            kinds = CORNERS
        known = next((kind for kind in kinds if cell and remaining.pop(kind, 0)), f"unused{place}")
        guessed.append(known)
    command = shlex.join(["sed", "-i", f"1i {','.join(guessed)}", text.path])
    raise AnnotationsError(
        f"{name}: the first line is no header: it holds {', '.join(cells)}; expected {rule.expected}; add a header "
        f"with {command} if that is the order of the columns, else with their true names"
    )


def _one_hot_form(
    name: str, header: Sequence[str], rule: ColumnRules, rows: Callable[[], Iterator[tuple[int, list[str]]]]
) -> TableForm | None:
    """Return the form of a table with a column of 0 and 1 for each class; None for other tables."""
    if any(header.count(column) > 1 for column in header):
        return None
    try:
        mapping = rule.read(name, header)
    except AnnotationsError:
        return None
    places = {column: header.index(column) for column in mapping.unread if column}
    if {"class", "xmin"} & set(mapping.known) or "filename" not in mapping.known or len(places) < 2:
        return None
    if any(is_split_name(normalize_name(column).removeprefix("is")) for column in places):
        return None
    found = False
    for _, cells in rows():
        found = True
        if len(cells) < len(header) or any(
            cells[place].strip().lower() not in _YES_NO for place in places.values()
        ):
            return None

    def convert(_: str, row: Row) -> Iterator[Row]:
        marked = [column for column in places if _YES_NO[str(row[column]).strip().lower()]]
        yield {**{column: row[column] for column in others}, "class": json.dumps(marked)}

    sides = {mapping.columns.get(side) for side in CORNERS}
    others = [column for column in header if column not in mapping.unread and column not in sides]
    note = f"columns of {name} were taken for classes, as all hold 0 or 1: {', '.join(places)}"
    return TableForm(convert=convert, columns=(*others, "class"), note=note) if found else None


def _delimiter(lines: Iterable[str], rule: ColumnRules) -> tuple[str, int]:
    """Return the delimiter of the cells and the number of lines before the header (spreadsheets write `sep=;`)."""
    found = next(filter(None, map(_FIRST_LINE.search, lines)), None)
    header = found[0] if found else ""
    if declared := _SEPARATOR.fullmatch(header):
        return declared[1], 1
    for delimiter in (",", ";", "\t"):
        if has_columns(next(csv.reader([header], delimiter=delimiter), []), rule.required, rule.spellings):
            return delimiter, 0
    counts = {delimiter: header.count(delimiter) for delimiter in (",", ";", "\t")}
    return max(counts, key=lambda delimiter: counts[delimiter]), 0


def _check_columns(name: str, header: Sequence[str], rule: ColumnRules, path: str) -> ColumnMapping:
    """Return the meaning of the columns; raise AnnotationsError if one is missing, duplicated or ambiguous.

    Args:
        path: location of a CSV file that a command in a message may change; "" for any other table.
    """
    found = f"found {', '.join(header) or 'nothing'}; expected {rule.expected}"
    folded = [column.lower() for column in header if column]
    if twice := sorted({column for column in folded if folded.count(column) > 1}):
        raise AnnotationsError(f"{name}: column {', '.join(twice)} comes twice; {found}")
    mapping = rule.read(name, header)
    missing = [column for column in rule.required if column not in mapping.known]
    if missing == ["class"] and container_kind(name) == "tar":
        raise AnnotationsError(
            f"{name}: no sample has a class; expected KEY.cls, or KEY.json with label or objects, beside KEY.jpg; "
            f"found {', '.join(header)}"
        )
    if any(column in mapping.known for column in rule.together):
        missing += [column for column in rule.together if column not in mapping.known]
    if missing:
        fix = ""
        if missing == ["class"] and "xmin" in mapping.known and path:
            command = ["sed", "-i", r"s/\r$//; 1s/$/,class/; 2,$s/$/,object/", path]
            fix = f"; where all objects are of one class, add it with {shlex.join(command)}"
        raise AnnotationsError(f"{name}: no column {', '.join(missing)}; {found}{fix}")
    return mapping


def _read_jsonl(name: str, text: TableText, rule: ColumnRules) -> Table:
    """Return the table of a JSONL file; absent keys and null are empty cells."""
    is_container = container_kind(name) != ""

    def entries() -> Iterator[_Entry]:
        with text.lines("\n") as lines:
            for line, written in enumerate(lines, start=1):
                if written.isspace():
                    continue
                try:
                    entry = json.loads(written.removesuffix("\n"))
                except (ValueError, RecursionError) as error:
                    fault = f"expected one JSON object a line: {error}; {_json_fix(written)}"
                    raise AnnotationsError(f"{name}:{line}: {fault}") from error
                if not isinstance(entry, dict):
                    fault = f"expected a JSON object, got {type(entry).__name__}"
                    raise AnnotationsError(f"{name}:{line}: {fault}")
                reason = entry.pop(FAULT, None) if is_container else None
                yield line, entry, None if reason is None else (reason[0], reason[1])

    header = _keys(entries())
    form = find_form(text.files, name, header) if "class" in rule.required else None
    plain = TableForm(convert=lambda _, row: (row,), columns=tuple(header))
    return _converted(name, form or plain, entries, rule, text)


def _json_fix(written: str) -> str:
    """Return what to do about a line that is no JSON."""
    if written.lstrip().startswith(("{'", "{\\'")):
        return "it is written as Python prints a dict: write each line with json.dumps"
    if written.strip() in ("[", "{"):
        return "one document over several lines: write each object in a line of its own, without a list around them"
    return "write each line with json.dumps"


def _keys(entries: Iterable[_Entry]) -> list[str]:
    header: dict[str, None] = {}
    for _, entry, _ in entries:
        if not entry.keys() <= header.keys():
            header.update(dict.fromkeys(entry))
    return list(header)


def _converted(
    name: str,
    form: TableForm,
    entries: Callable[[], Iterator[_Entry]],
    rule: ColumnRules,
    text: TableText,
    *,
    is_plain_csv: bool = False,
) -> Table:
    """Return the table of the rows that a form makes of the written rows."""

    def converted() -> Iterator[_Entry]:
        for line, entry, fault in entries():
            for one in (entry,) if fault else form.convert(f"{name}:{line}", entry):
                yield line, one, fault

    header = list(form.columns) or _keys(converted())
    mapping = _check_columns(name, header, rule, text.path if is_plain_csv else "")
    cells_of = _cell_reader(name, mapping, rule)

    def rows() -> Iterator[TableRow]:
        for line, entry, fault in converted():
            yield TableRow(file=name, line=line, cells=cells_of(line, entry), fault=fault)

    return Table(
        file=name,
        header=tuple(header),
        columns=mapping.known,
        unread=mapping.unread,
        rows=tuple(rows()) if text.is_cached else _LazyRows(rows),
        note=form.note,
    )


def _cell_reader(
    name: str, mapping: ColumnMapping, rule: ColumnRules
) -> Callable[[int, Mapping[str, object]], dict[str, str]]:
    """Return a function that maps (line number, written values) to cells by known column."""
    names = {column: known for known, column in mapping.columns.items()}
    read = [
        (column, names.get(column, "") in rule.text, names.get(column, "") in rule.lists)
        for column in dict.fromkeys([*names, *mapping.box])
    ]
    unread = [column for column in mapping.unread if column] if rule.options.needs_groups else []

    def cells(line: int, written: Mapping[str, object]) -> dict[str, str]:
        texts = {}
        for column, is_text, may_list in read:
            if column in written:
                value = written[column]
                if type(value) is str and "\0" not in value:
                    texts[column] = value.strip()
                else:
                    texts[column] = _cell(f"{name}:{line}", column, value, is_text, may_list)
        known = mapping.cells(texts)
        for column in unread:
            value = written.get(column)
            if isinstance(value, str | int | float):
                known[_ATTRIBUTE + column] = str(value).strip()
        return known

    return cells


def _cell(place: str, column: str, value: object, is_text: bool, may_list: bool) -> str:
    """Return a value as text; raise AnnotationsError if the column cannot hold it."""
    if value is None:
        return ""
    if is_text and isinstance(value, dict | list) and not (may_list and isinstance(value, list)):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise AnnotationsError(f"{place}: {column}: expected text or a number, got {kind}")
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    if is_text and "\0" in text:
        raise AnnotationsError(f"{place}: {column}: holds a NUL character: {text!r}; remove it")
    return text


_FORMS = {
    "csv": ((".csv", ".tsv"), _read_csv),
    "jsonl": ((".jsonl", ".ndjson", "metadata.parquet"), _read_jsonl),
    "tfrecord": ((), _read_jsonl),
    "webdataset": ((), _read_jsonl),
}
"""File extensions and reader of each form."""
_CONTAINER_FORMS = {"jsonl": "parquet", "tfrecord": "tfrecord", "webdataset": "tar"}
"""Kind of the container files that a form reads, in any folder."""
