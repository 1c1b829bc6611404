"""Reader of table rows from CSV and JSONL files, with checks of the columns."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice
from typing import Any

from halofeed.prep.annotations.class_marks import OptionsNeededError, class_columns_form
from halofeed.prep.annotations.class_names import class_number
from halofeed.prep.annotations.columns import CORNERS, ColumnMapping, has_columns, normalize_name
from halofeed.prep.annotations.container_rows import FAULT, parquet_rows, usable_rows, webdataset_rows
from halofeed.prep.annotations.contract import LayoutOptions, is_split_name, report_unreadable
from halofeed.prep.annotations.croissant_rows import croissant_rows
from halofeed.prep.annotations.flagged_boxes import flagged_boxes_form
from halofeed.prep.annotations.stated_columns import check_stated, parse_columns, single_columns
from halofeed.prep.annotations.suggest_layout import advice_for_bytes
from halofeed.prep.annotations.table_files import is_container, table_files
from halofeed.prep.annotations.table_forms import (
    TableForm,
    find_form,
    find_google_form,
)
from halofeed.prep.annotations.tfrecord_rows import tfrecord_rows
from halofeed.prep.sources.containers import container_kind
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles, SourceStream
from halofeed.system.errors import AnnotationsError, UsageError
from halofeed.system.wording import plural

MAX_CACHED_BYTES = 4 << 20
"""Largest table to keep in memory. Its parsed rows take a hundred times as many bytes."""
_CHUNK_BYTES = 1 << 20
"""Bytes to read at once."""
_ATTRIBUTE = "attribute "
"""Start of the names of cells in columns without a known meaning, which no known column has."""
_NO_HEADER = "the table has no header line; its two columns were taken for filename and class"
_SEPARATOR = re.compile(r'"?sep=([,;|\t])"?[,;\s]*')
_FIRST_LINE = re.compile(r"\S[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]*")

_FOUND_BY_READERS = {
    **dict.fromkeys(("tfrecord", "array_record"), ("image", "label")),
    "croissant": ("image",),
}
"""Meanings of `--column` that the readers of some files find by themselves."""
_MEANINGS = {"filename": "image", "class": "label", "image": "image", "label": "label"}
"""Word of `--column` for each column that a table needs."""

RowFault = tuple[str, str]
"""Reason and detail of a row that cannot be used."""
_Entry = tuple[int, Mapping[str, object], RowFault | None]
"""Number of the line, values by column, and fault of a row."""
_CONTAINER_ROWS = {
    "parquet": parquet_rows,
    "tar": webdataset_rows,
    "tfrecord": tfrecord_rows,
    "array_record": tfrecord_rows,
}
"""Reader of each kind of container file; its rows become the lines of a JSONL table."""


class TableText:
    """Text of one table, which can be read several times. The rows of a container file are JSON, one a line.

    Raises:
        AnnotationsError: the table is unreadable or is not UTF-8; or, at the end of a later pass, it has changed.
    """

    def __init__(self, files: SourceFiles, name: str, options: LayoutOptions, form: str = "") -> None:
        self.files, self._name = files, name
        self._cached: bytes | None
        read = croissant_rows if form == "croissant" else _CONTAINER_ROWS.get(container_kind(name))
        self.holds_rows = read is not None
        # A container is read once, completely: its rows name ranges of its bytes.
        if read is not None:
            rows = usable_rows(name, read(files, name, options))
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
        # The rows of a container are made in memory, and may be more.
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
            # At the end: a table that changed between two passes would give boxes to other pictures.
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
        read: maps (table, header, column of each meaning that the user names) to the meaning of the columns.
        options: options for reading container files.
        form: maps the rows of a JSONL file to the form of those that hold several objects; None for plain rows.
    """

    required: tuple[str, ...]
    together: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    expected: str
    spellings: Mapping[str, Sequence[Sequence[str]]]
    read: Callable[[str, Sequence[str], Mapping[str, str]], ColumnMapping]
    options: LayoutOptions
    form: Callable[[Iterable[Mapping[str, object]]], TableForm | None] = lambda _: None

    def stated(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return the columns of each meaning that the user names, as far as the columns of a table have them."""
        found = parse_columns(self.options.column)
        # The reader of TFRecord files finds the features that the user names, and calls them by their usual names.
        # So does that of Croissant the field of the pictures.
        kind = "croissant" if name.endswith(".json") else container_kind(name)
        of_features = _FOUND_BY_READERS.get(kind, ())
        return {meaning: columns for meaning, columns in found.items() if meaning not in of_features}


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
        classes: all classes of the table in their order, where its header names them.
        has_members: whether its rows may name members of other files.
    """

    file: str
    header: tuple[str, ...]
    columns: tuple[str, ...]
    unread: tuple[str, ...]
    rows: Iterable[TableRow]
    note: str = ""
    classes: tuple[str, ...] = ()
    has_members: bool = False

    def notes(self, group_column: str | None) -> tuple[str, ...]:
        """Return the notes for its images, such as its unread columns; --group-column reads one of them."""
        unread = [column for column in self.unread if column and column != group_column]
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
    """Return the named table, or all tables of a form of `_READERS` in the folder of the annotations.

    Raises:
        AnnotationsError: a table is damaged or lacks a column.
        UsageError: no table has a column to ignore.
    """
    read, names = _READERS[form], table_files(annotations, annotation_file, form)
    # Paths of members are below the folder of their container.
    if images.root != annotations.root and (inside := [name for name in names if is_container(name)]):
        raise AnnotationsError(f"{inside[0]}: the pictures are inside this file; leave --images out")
    try:
        tables = [read(name, TableText(annotations, name, rule.options, form), rule) for name in names]
    except AnnotationsError as error:
        # One of several tables may be another project's; options are those of all tables of a set.
        if len(names) == 1 or container_kind(names[0]) or isinstance(error, OptionsNeededError):
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


@dataclass(frozen=True, kw_only=True)
class _CsvLines:
    """Lines of a CSV file with their cells, which can be read several times.

    Args:
        name: name of the file, for messages.
        text: its text.
        delimiter: delimiter of the cells.
        skipped: number of lines before the first row.
    """

    name: str
    text: TableText
    delimiter: str
    skipped: int

    def written(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the number and the cells of each line that is not blank."""
        with self.text.lines("") as lines:
            reader = csv.reader(lines, delimiter=self.delimiter)
            lines_of_cells = ((reader.line_num, cells) for cells in reader if any(map(str.strip, cells)))
            try:
                yield from islice(lines_of_cells, self.skipped, None)
            except csv.Error as error:
                raise AnnotationsError(
                    f"{self.name}:{reader.line_num}: not readable as CSV: {error}"
                ) from error

    def by_place(self) -> Iterator[_Entry]:
        """Yield the rows of a table without a header, with the places of the cells as columns."""
        for line, cells in self.written():
            yield line, dict(zip(map(str, count()), cells, strict=False)), None

    def under(self, header: Sequence[str]) -> Iterator[_Entry]:
        """Yield the rows by column; a row with too few or too many cells has a fault."""
        for line, cells in self.written():
            # Spreadsheets write empty cells behind the last column.
            if len(cells) > len(header) and not any(cells[len(header) :]):
                cells = cells[: len(header)]
            fault = None
            # A cell that is missing or too many shifts the others under wrong columns.
            if len(cells) != len(header):
                fault = (
                    "row has the wrong number of cells",
                    f"{plural(len(cells), 'cell')} under {plural(len(header), 'column')}",
                )
            yield line, dict(zip(header, cells, strict=False)), fault


def _read_csv(name: str, text: TableText, rule: ColumnRules) -> Table:
    """Return the table of a CSV file; a row with too few or too many cells has a fault."""
    with text.lines("") as lines:
        delimiter, skipped = _delimiter(lines, rule)
    lines_of_file = _CsvLines(name=name, text=text, delimiter=delimiter, skipped=skipped)
    header = [cell.strip() for cell in next(lines_of_file.written(), (0, []))[1]]
    may_have_form = "class" in rule.required  # published forms are those of classes and boxes
    note = ""
    if any(map(is_image_name, header)):  # a picture's name is not a title, so the first line is a row
        google = find_google_form(name, lines_of_file.written) if may_have_form else None
        if google is not None:
            check_stated(name, google.columns, rule.stated(name))
            return _converted(name, google, lines_of_file.by_place, rule, text)
        header, note = _infer_header(name, header, rule, text), _NO_HEADER
    else:
        lines_of_file = replace(lines_of_file, skipped=skipped + 1)
    entries = partial(lines_of_file.under, header)
    form = None
    if may_have_form and not rule.options.column:  # the user's words come first
        form = find_form(text.files, name, header, {}) or flagged_boxes_form(
            name, header, lines_of_file.written
        )
    form = form or _find_form(name, header, entries, rule, text)
    if form is not None:
        table = _converted(name, form, entries, rule, text)
        # The columns of classes are those of the file, which --ignore-columns may name.
        return replace(table, header=tuple(header)) if form.classes else table
    plain = TableForm(convert=lambda _, row: (row,), columns=tuple(header), note=note)
    return _converted(name, plain, entries, rule, text, is_plain_csv=True)


def _find_form(
    name: str,
    header: Sequence[str],
    entries: Callable[[], Iterator[_Entry]],
    rule: ColumnRules,
    text: TableText,
) -> TableForm | None:
    """Return the published form of a table of classes or boxes, or that of a column for each class; None for others.

    Raises:
        AnnotationsError: the table lacks a column that the user names, or its columns of classes are unclear.
    """
    stated = rule.stated(name)
    # Published forms are those of classes and boxes.
    form = find_form(text.files, name, header, single_columns(stated)) if "class" in rule.required else None
    several = () if "class" in rule.required else stated.get("label", ())[1:]
    if several:
        raise AnnotationsError(
            f"{name}: columns {', '.join(stated['label'])} are named as label; a picture has one label image: name "
            "one column"
        )
    if form is None and "class" in rule.required:
        form = _find_class_columns(name, header, entries, rule)
    resolved = form.resolves if form is not None else frozenset()
    check_stated(name, header, {key: columns for key, columns in stated.items() if key not in resolved})
    return form


def _find_class_columns(
    name: str, header: Sequence[str], entries: Callable[[], Iterator[_Entry]], rule: ColumnRules
) -> TableForm | None:
    """Return the form of a table with a column for each class; None for other tables."""
    if len(set(header)) < len(header):
        return None
    try:
        mapping = rule.read(name, header, _in_header(header, rule.stated(name)))
    except AnnotationsError:  # the same error comes again, where the table is read as a plain one
        return None
    return class_columns_form(name, header, mapping, entries, rule.options)


def _in_header(header: Sequence[str], stated: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the columns that the user names and a header has, the first one of several classes.

    Another message names those that it lacks.
    """
    return {meaning: columns[0] for meaning, columns in stated.items() if columns[0] in header}


def _infer_header(name: str, cells: Sequence[str], rule: ColumnRules, text: TableText) -> list[str]:
    """Return the columns of a table without a header line, if it has only a file name and a class."""
    is_pair = len(cells) == 2 and is_image_name(cells[0]) and not is_image_name(cells[1])
    # A file name and one other cell have only one meaning.
    if is_pair and rule.required == ("filename", "class"):
        return ["filename", "class"]
    guessed = _guess_header(cells, rule)
    command = shlex.join(["sed", "-i", f"1i {','.join(guessed)}", text.path])
    raise AnnotationsError(
        f"{name}: the first line is no header: it holds {', '.join(cells)}; expected {rule.expected}; add a header "
        f"with {command} if that is the order of the columns, else with their true names"
    )


def _guess_header(cells: Sequence[str], rule: ColumnRules) -> list[str]:
    """Return the likely columns of a first row, by the kinds of its cells; each column once."""
    of_masks = "label" in rule.required
    remaining = ["image", "label", "split"] if of_masks else ["filename", "class", "split", *CORNERS]
    guessed = []
    for place, cell in enumerate(cells, start=1):
        known = next((kind for kind in _kinds_of(cell) if cell and kind in remaining), None)
        if known is not None:
            remaining.remove(known)
        guessed.append(known or f"unused{place}")
    return guessed


def _kinds_of(cell: str) -> tuple[str, ...]:
    """Return the columns that a cell may belong to, in their usual order."""
    if is_image_name(cell):
        return ("image", "label", "filename")
    if class_number(cell) is not None:
        return CORNERS
    return ("split",) if is_split_name(cell) else ("class",)


def _delimiter(lines: Iterable[str], rule: ColumnRules) -> tuple[str, int]:
    """Return the delimiter of the cells and the number of lines before the header (spreadsheets write `sep=;`)."""
    found = next(filter(None, map(_FIRST_LINE.search, lines)), None)
    header = found[0] if found else ""
    # Excel takes the delimiter from such a line.
    if declared := _SEPARATOR.fullmatch(header):
        return declared[1], 1
    # Names of columns and classes may hold other delimiters, so the one that shows the needed columns comes first.
    stated = set(chain(*parse_columns(rule.options.column).values()))
    for delimiter in (",", ";", "\t"):
        if stated and stated <= set(map(str.strip, next(csv.reader([header], delimiter=delimiter), []))):
            return delimiter, 0
        if has_columns(next(csv.reader([header], delimiter=delimiter), []), rule.required, rule.spellings):
            return delimiter, 0
    counts = {delimiter: header.count(delimiter) for delimiter in (",", ";", "\t")}
    return max(counts, key=lambda delimiter: counts[delimiter]), 0


def _check_columns(
    name: str, header: Sequence[str], rule: ColumnRules, path: str, form: TableForm
) -> ColumnMapping:
    """Return the meaning of the columns; raise AnnotationsError if one is missing, duplicated or ambiguous.

    Args:
        form: form of the rows, which may know the meanings of columns.
        path: location of a CSV file that a command in a message may change; "" for any other table.
    """
    found = f"found {', '.join(header) or 'nothing'}; expected {rule.expected}"
    # Case does not divide columns, see `columns.normalize_name`.
    counts = Counter(column.lower() for column in header if column)
    if twice := sorted(column for column, number in counts.items() if number > 1):
        raise AnnotationsError(f"{name}: column {', '.join(twice)} comes twice; {found}")
    stated = {**form.named, **single_columns(rule.stated(name), form.resolves)}
    mapping = rule.read(name, header, stated)
    missing = [column for column in rule.required if column not in mapping.known]
    # The columns of a tar file are extensions, so that the words differ.
    if missing == ["class"] and container_kind(name) == "tar":
        raise AnnotationsError(
            f"{name}: no sample has a class; expected KEY.cls, or KEY.json with label or objects, beside KEY.jpg; "
            f"found {', '.join(header)}"
        )
    missing += _incomplete(rule.together, mapping.known)
    if missing:
        fix = _class_fix(missing, mapping, path) or _column_fix(missing, mapping)
        raise AnnotationsError(f"{name}: no column {', '.join(missing)}; {found}{fix}")
    return mapping


def _incomplete(together: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the absent ones of columns that belong together; [] if all of them are absent."""
    absent = [column for column in together if column not in known]
    return absent if len(absent) < len(together) else []


def _class_fix(missing: Sequence[str], mapping: ColumnMapping, path: str) -> str:
    """Return the command that adds a column class to a table of boxes; "" where that is not all that is missing."""
    if missing != ["class"] or "xmin" not in mapping.known or not path:
        return ""
    # The carriage returns of Windows go first, or the new cells would follow them.
    command = ["sed", "-i", r"s/\r$//; 1s/$/,class/; 2,$s/$/,object/", path]
    return f"; where all objects are of one class, add it with {shlex.join(command)}"


def _column_fix(missing: Sequence[str], mapping: ColumnMapping) -> str:
    """Return how to name the columns that are missing; "" where the table has no other ones."""
    meanings = [_MEANINGS[column] for column in missing if column in _MEANINGS]
    if len([column for column in mapping.unread if column]) < len(meanings) or len(meanings) < len(missing):
        return ""
    named = ",".join(f"{meaning}=COLUMN" for meaning in meanings)
    return f"; if a column of another name holds it, name it with --column {named}"


def _read_jsonl(name: str, text: TableText, rule: ColumnRules) -> Table:
    """Return the table of a JSONL file; absent keys and null are empty cells."""
    is_container = text.holds_rows

    def entries() -> Iterator[_Entry]:
        with text.lines("\n") as lines:
            for line, written in enumerate(lines, start=1):
                # Editors end a file with an empty line.
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
    form = _find_form(name, header, entries, rule, text) or rule.form(entry for _, entry, _ in entries())
    plain = TableForm(convert=lambda _, row: (row,), columns=tuple(header))
    return _converted(name, form or plain, entries, rule, text)


def _json_fix(written: str) -> str:
    """Return what to do about a line that is no JSON."""
    if written.lstrip().startswith(("{'", "{\\'")):
        return "it is written as Python prints a dict: write each line with json.dumps"
    # json.dump with indent writes one document over several lines.
    if written.strip() in ("[", "{"):
        return "one document over several lines: write each object in a line of its own, without a list around them"
    return "write each line with json.dumps"


def _keys(entries: Iterable[_Entry]) -> list[str]:
    header: dict[str, None] = {}
    for _, entry, _ in entries:
        # Most lines have no new key.
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
                yield line, one, fault or _fault_in(one)

    header = list(form.columns) or _keys(converted())
    mapping = _check_columns(name, header, rule, text.path if is_plain_csv else "", form)
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
        classes=form.classes,
        has_members=text.holds_rows and container_kind(name) == "",
    )


def _fault_in(row: Mapping[str, object]) -> RowFault | None:
    """Return the fault that a conversion found in a row."""
    fault = row.get(FAULT)
    return (str(fault[0]), str(fault[1])) if isinstance(fault, tuple) else None


def _cell_reader(
    name: str, mapping: ColumnMapping, rule: ColumnRules
) -> Callable[[int, Mapping[str, object]], dict[str, str]]:
    """Return a function that maps (line number, written values) to cells by known column."""
    names = {column: known for known, column in mapping.columns.items()}
    # The loop over cells runs for each row of tables with 10^6 rows: it calls a function for unusual values only.
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
    # If a list became text, each different list would be another class.
    if is_text and isinstance(value, dict | list) and not (may_list and isinstance(value, list)):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise AnnotationsError(f"{place}: {column}: expected text or a number, got {kind}")
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    # Paths and records end texts at NUL.
    if is_text and "\0" in text:
        raise AnnotationsError(f"{place}: {column}: holds a NUL character: {text!r}; remove it")
    return text


_READERS = {
    "csv": _read_csv,
    **dict.fromkeys(("jsonl", "tfrecord", "webdataset", "croissant"), _read_jsonl),
}
"""Reader of each form. The rows of container files are lines of JSON, see `TableText`."""
