"""Reader of class tables: files that name classes, recognized by their form and not by their names.

    text     ──> lines ──> cells ──┐
    JSON, YAML, XML ──> entries ───┴──> grid ──> roles of its columns ──> ClassTable

A grid has a row for each class. What its columns hold decides what they are:

- number: whole numbers, all distinct
- name: texts, all distinct
- color: `#rrggbb`, `r,g,b` in one cell, or three neighboring columns of 0 to 255
- others: alpha, visibility, groups; they are not read

Sources of the forms: CVAT and Datumaro `labelmap.txt`, labelme `labels.txt`, ITK-SNAP label descriptions, color tables
of 3D Slicer, FreeSurfer and MRtrix, `class_dict.csv`, Roboflow `_classes.csv`, BIDS `dseg.tsv`, FSL atlases, COCO
categories, Supervisely `meta.json`, Hugging Face `features`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from xml.etree.ElementTree import Element

from halofeed.errors import AnnotationsError

BACKGROUND_NAMES = ("background", "__background__", "_background_")
IGNORE_NAMES = ("ignore", "__ignore__", "_ignore_")
"""Names that mean pixels without a class wherever they are: nnU-Net's and labelme's."""
VOID_NAMES = (
    *IGNORE_NAMES,
    "void",
    "unlabeled",
    "unlabelled",
    "ignored",
    "dontcare",
    "don't care",
    "ignore label",
)
"""Names that only hint at pixels without a class: some data sets train on them."""
IGNORED_VALUES = (255, 65535)
"""What -1 becomes in unsigned label images of 8 and 16 bits."""
_NUMBER_HEADERS = (
    "value",
    "pixel value",
    "id",
    "index",
    "class id",
    "label id",
    "category id",
    "no.",
    "no",
    "label",
)
_NAME_HEADERS = (
    *("name", "class", "class name", "label name", "label", "title", "structure", "text", "category"),
    *("categories", "classes", "labels"),
)
_TABLE_KEYS = (
    "names",
    "name",
    "labels",
    "label",
    "classes",
    "categories",
    "id2label",
    "label_names",
    "tools",
)
_COMMENTS = ("#", ";", "//", "%")
_INTEGER = re.compile(r"[+-]?\d+")
_REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_HEX = re.compile(r"(?:#|0x)?([0-9a-f]{6})(?:[0-9a-f]{2})?", re.IGNORECASE)
_TRIPLE = re.compile(
    r"(?:rgba?)?[\[(]?\s*(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})(?:[\s,]+[\d.]+)?\s*[\])]?", re.IGNORECASE
)
_TITLE = re.compile(r"\[[^\[\],]+\]")
_COMMENT_TAIL = re.compile(r"\s(?:#|//|;|%)\s.*")
_EDGE_MARKS = re.compile(r"^[^\w\s]+(?=\s)|^\W?\d+[^\w\s]+(?=\s)|(?<=\w)[^\w\s)\]!?.+\"']+$")
"""Marks at the edges of names: bullets and arrows, numbers with a mark, and ends such as a comma."""
_LIST_MARKS = re.compile(rf"{_EDGE_MARKS.pattern}|[,;:=|\t{{}}]")
"""Marks in lines without columns: those at edges, and what divides cells in usual tables."""
_WORDS = re.compile(r'"[^"]*"|\'[^\']*\'|\S+')


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """Class of a table.

    Args:
        value: value in label files.
        name: its name.
        color: RRGGBB as an integer; None if the table has no colors.
        place: the file and the place in it, for messages.
        alias: another name of the class, or None.
    """

    value: int
    name: str
    color: int | None = None
    place: str = ""
    alias: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClassTable:
    """Classes that a file names, in its order.

    Args:
        where: the file, for messages.
        rows: the classes; values and names are checked by `LabelMap`.
        is_numbered: whether the file has the values; else they follow from the order of the rows.
        is_in_order: whether the values of a table without numbers are the positions of its rows, from 0.

    >>> table = read_class_table("labelmap.txt", "# label:color_rgb:parts:actions\\nbackground:0,0,0::\\ncat:255,0,0::")
    >>> table.names, table.colors
    ({0: 'background', 1: 'cat'}, {0: 0, 16711680: 1})
    >>> read_class_table("labels.txt", "__ignore__\\n_background_\\ncat").ignored
    {-1: '__ignore__'}
    """

    where: str
    rows: tuple[ClassRow, ...]
    is_numbered: bool
    is_in_order: bool = True

    @cached_property
    def names(self) -> dict[int, str]:
        """Return the names by value, with the background and ignored values."""
        return {row.value: row.name for row in self.rows}

    @cached_property
    def colors(self) -> dict[int, int]:
        """Return the value of each color; {} if some rows have no color or two share one."""
        colors = {row.color: row.value for row in self.rows if row.color is not None}
        return colors if len(colors) == len(self.rows) else {}

    @cached_property
    def ignored(self) -> dict[int, str]:
        """Return the names by value of pixels without a class.

        A negative value cannot be a class. The word "ignore" says it; words such as "void" say it for a value that
        is -1 of an unsigned type.
        """
        return {row.value: row.name for row in self.rows if is_ignored(row.value, row.name)}

    @cached_property
    def background(self) -> int | None:
        """Return the value of the background; None if the table does not name it."""
        return next((row.value for row in self.rows if is_background(row.name)), None)

    def with_background(self) -> ClassTable:
        """Return the table whose value 0 is called background."""
        rows = (row if row.value else replace(row, name=BACKGROUND_NAMES[0]) for row in self.rows)
        return replace(self, rows=tuple(rows))

    def counted_from_1(self) -> ClassTable:
        """Return the table with each value one higher."""
        return replace(self, rows=tuple(replace(row, value=row.value + 1) for row in self.rows))

    def place(self, value: int) -> str:
        """Return the file and the place in it that name a value, for messages."""
        return next((row.place for row in self.rows if row.value == value), self.where)


def is_background(name: str) -> bool:
    """Return whether a name means the background."""
    return name.strip().lower() in BACKGROUND_NAMES


def is_ignored(value: int, name: str) -> bool:
    """Return whether a class of a table is none: pixels that no loss may count.

    >>> is_ignored(-1, "other"), is_ignored(3, "ignore"), is_ignored(255, "void"), is_ignored(11, "void")
    (True, True, True, False)
    """
    word = name.strip().lower()
    return (
        value < 0 or (value > 0 and word in IGNORE_NAMES) or (value in IGNORED_VALUES and word in VOID_NAMES)
    )


def is_void_name(name: str) -> bool:
    """Return whether a name hints at pixels without a class."""
    return name.strip().lower() in VOID_NAMES


class _UnclearError(Exception):
    """A grid has no single reading; the text says why."""


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """Cells of a table: texts, numbers, or lists of numbers.

    Args:
        header: names of the columns; () if the file has none.
        rows: cells of each row, all of one length.
        places: place of each row.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    places: tuple[str, ...]

    def column(self, at: int) -> list[Any]:
        """Return the cells of a column."""
        return [row[at] for row in self.rows]

    def title(self, at: int) -> str:
        """Return the header of a column, with blanks for underscores and in lower case."""
        return self.header[at].strip(" <>*").replace("_", " ").lower() if self.header else ""


def read_class_table(name: str, text: str, first: int = 0, way: str = "") -> ClassTable:
    """Return the classes of a file of text lines or cells.

    Args:
        name: path of the file, for messages.
        text: its content.
        first: value of the first name of a list without numbers.
        way: how the user can name the classes clearly; default: a .json file.

    Raises:
        AnnotationsError: the file can be read in two ways, or in none; says how to make it clear.
    """
    way = way or _WAY
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    content = [(number, line) for number, line in lines if line and not _is_comment(line)]
    comments = [(number, line) for number, line in lines if _is_comment(line)]
    unclear = ""
    for split in _SPLITTERS:
        try:
            grid = _grid_of_lines(name, content, comments, split)
            if grid is not None:
                table = _table_of_grid(name, grid, first)
                _check_names(table.rows, _EDGE_MARKS, way)
                return table
        except _UnclearError as error:
            unclear = unclear or str(error)
    if unclear:
        raise AnnotationsError(f"{unclear if unclear.startswith(name) else f'{name}: {unclear}'}; {way}")
    _check_no_numbers(name, content, way)
    table = _table_of_list(name, _without_quotes(lines), first, way)
    _check_names(table.rows, _LIST_MARKS, way)
    return table


_WAY = 'write a .json file with the name and the value of each class, such as {"liver": 1, "tumor": 2}'


# Text -----------------------------------------------------------------------------------------------------


def _is_comment(line: str) -> bool:
    """Return whether a line is a comment, or the title of a section, in a file whose other lines have columns.

    >>> [_is_comment(line) for line in ("# a", "[labels]", "#ff0000 liver", "liver")]
    [True, True, False, False]
    """
    if _TITLE.fullmatch(line):
        return True
    return line.startswith(_COMMENTS) and _color_of_cell(line.split()[0]) is None


def _without_quotes(lines: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
    """Return the lines without the quotes that are around each of them."""
    texts = [line for _, line in lines if line]
    for quote in "\"'":
        if texts and all(
            len(one) > 2 and one[0] == quote == one[-1] and quote not in one[1:-1] for one in texts
        ):
            return [(number, line[1:-1]) for number, line in lines]
    return lines


def _check_names(rows: Sequence[ClassRow], marks: re.Pattern[str], way: str) -> None:
    """Refuse names with a comment behind them, and names that all have a mark which may not belong to them.

    A mark in a few names is a part of these, such as the comma of ImageNet's "tench, Tinca tinca". In all names (or all
    but the first, which may be a title), the mark more likely divides each name from something else.
    """
    for row in rows:
        if tail := _COMMENT_TAIL.search(row.name):
            raise AnnotationsError(
                f"{row.place}: {row.name!r} may be a name, or a name and a comment; delete {tail[0].strip()!r} if it "
                f"is a comment, else {way}"
            )
    found = [set(marks.findall(row.name)) for row in rows]
    shared = set.intersection(*(found[1:] or found)) if found else set()
    if shared:
        mark = min(shared, key=lambda one: rows[-1].name.find(one))
        raise AnnotationsError(
            f"{rows[-1].place}: {rows[-1].name!r}: {mark!r} is in each line, and may divide names from "
            f"something else, or be a part of them; {way}"
        )


_Split = Callable[[str], list[str]]


def _split_cells(delimiter: str) -> _Split:
    def split(line: str) -> list[str]:
        if delimiter in ",;\t":
            cells = next(csv.reader(io.StringIO(line), delimiter=delimiter, skipinitialspace=True), [])
        else:
            cells = line.split(delimiter)
        return _without_empty_end([cell.strip().strip("\"'") for cell in cells])

    return split


def _without_empty_end(cells: list[str]) -> list[str]:
    while cells and not cells[-1]:
        cells = cells[:-1]
    return cells


def _split_words(line: str) -> list[str]:
    """Return the numbers before a name, the name with its blanks, and the numbers and colors after it.

    >>> _split_words("2 Left-Cerebral White Matter 245 245 245 0"), _split_words('1 255 0 0 1 1 1 "Label 1"')
    (['2', 'Left-Cerebral White Matter', '245', '245', '245', '0'], ['1', '255', '0', '0', '1', '1', '1', 'Label 1'])
    """
    words = _WORDS.findall(line)
    texts = [at for at, word in enumerate(words) if not _REAL.fullmatch(word) and not word.startswith("#")]
    if not texts:
        return words
    start, stop = texts[0], texts[-1] + 1
    return [*words[:start], " ".join(words[start:stop]).strip("\"'"), *words[stop:]]


_SPLITTERS: tuple[_Split, ...] = (
    _split_cells("\t"),
    _split_cells(";"),
    _split_cells(":"),
    _split_cells("="),
    _split_cells(","),
    _split_words,
)


def _grid_of_lines(
    name: str, content: Sequence[tuple[int, str]], comments: Sequence[tuple[int, str]], split: _Split
) -> _Grid | None:
    """Return the cells of the lines; None if they have no columns of numbers or colors with this splitter."""
    rows = [split(line) for _, line in content]
    widths = {len(row) for row in rows}
    if not rows or max(widths) < 2:
        return None
    if len(widths) > 1 and len({len(row) for row in rows[1:]}) == 1 and len(rows[0]) > len(rows[1]):
        rows = [rows[0], *([*row, *[""] * (len(rows[0]) - len(row))] for row in rows[1:])]
        widths = {len(rows[0])}
    if len(widths) > 1:
        return None
    places = tuple(f"{name}:{number}" for number, _ in content)
    header: tuple[str, ...] = ()
    body = rows
    if len(rows) > 1 and not any(map(_is_value, rows[0])) and any(map(_is_value, rows[1])):
        header, body, places = tuple(rows[0]), rows[1:], places[1:]
    else:
        header = _header_of_comments(comments, split, len(rows[0]))
    if not any(all(_is_value(row[at]) for row in body) for at in range(len(body[0]))):
        return None
    if split is _split_words and _is_name_and_number(body):
        if len({row[0] for row in body}) == len(body):
            raise _UnclearError(f"{places[0]}: {' '.join(body[0])!r} may be a name, or a name and its value")
        return None
    return _Grid(header=header, rows=tuple(map(tuple, body)), places=places)


def _is_name_and_number(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether blanks part one text and one number behind it, as in names such as "class 1"."""
    return all(len(row) == 2 and not _is_value(row[0]) for row in rows)


def _header_of_comments(comments: Sequence[tuple[int, str]], split: _Split, width: int) -> tuple[str, ...]:
    """Return the last comment that has a word for each column, such as `#No. name R G B A`; () if there is none."""
    for _, line in reversed(comments):
        bare = line.lstrip("#;%/ ")
        words = [word.strip("<>") for word in bare.replace(":", " ").replace(",", " ").split()]
        cells = split(bare)
        for found in (cells, words):
            if len(found) == width and not any(map(_is_value, found)):
                return tuple(found)
    return ()


def _is_value(cell: Any) -> bool:
    return _REAL.fullmatch(str(cell)) is not None or _color_of_cell(cell) is not None


def _check_no_numbers(name: str, content: Sequence[tuple[int, str]], way: str) -> None:
    """Refuse lines of which most, but not all, begin with a number or end in several."""
    rows = [
        (number, line, _split_words(line.replace(",", " ").replace(":", " "))) for number, line in content
    ]
    numbered = [
        number
        for number, _, cells in rows
        if len(cells) > 1 and (_is_value(cells[0]) or _is_value(cells[-2]))
    ]
    if 0 < len(content) < 2 * len(numbered):
        other = next(((number, line) for number, line, _ in rows if number not in numbered), content[0])
        raise AnnotationsError(
            f"{name}:{other[0]}: {other[1]!r}: expected the same columns in each line: a value, a name, and maybe a "
            f"color; {way}"
        )


def _table_of_list(name: str, lines: Sequence[tuple[int, str]], first: int, way: str) -> ClassTable:
    """Return the classes of a list of names: their values follow from their order."""
    while lines and not lines[-1][1]:
        lines = lines[:-1]
    names = [(number, line) for number, line in lines if not _is_comment(line)]
    commented = [(number, line) for number, line in lines if _is_comment(line)]
    blank = next((number for number, line in lines if not line), None)
    if blank is not None and not commented:
        raise AnnotationsError(
            f"{name}:{blank}: blank line, and each line counts; remove it if the name below it is class "
            f"{first + blank - 1}, else write the name of class {first + blank - 1} into it"
        )
    named = [(number, line) for number, line in names if line]
    # A list that is known to begin with the background or labelme's __ignore__ proves that lines above are comments.
    starts = bool(named) and (is_background(named[0][1]) or is_void_name(named[0][1]))
    if commented and not (starts and commented[-1][0] < named[0][0]):
        number, line = commented[0]
        raise AnnotationsError(
            f"{name}:{number}: {line!r} may be a comment or a class, and each line counts; delete the line if it is a "
            f"comment, else {way}"
        )
    title = named[0][1].replace("_", " ").lower() if named else ""
    if len(named) > 1 and title in _NAME_HEADERS and title not in named[1][1].lower():
        number, line = named[0]
        raise AnnotationsError(
            f"{name}:{number}: {line!r} may be the title of the column or a class; delete the line if it is a title, "
            f"else {way}"
        )
    # labelme2voc.py: the first class of the list has the number -1.
    start = -1 if named and named[0][1].lower() in IGNORE_NAMES else first
    if start < 0 and first > 0 and not (len(named) > 1 and is_background(named[1][1])):
        named, start = named[1:], first
    return ClassTable(
        where=name,
        rows=tuple(
            ClassRow(value=value, name=line, place=f"{name}:{number}")
            for value, (number, line) in enumerate(named, start)
        ),
        is_numbered=False,
    )


# Documents ------------------------------------------------------------------------------------------------


def read_class_document(name: str, document: Any, first: int = 0) -> ClassTable:
    """Return the classes of a document of dicts, lists and scalars, from JSON, YAML or XML.

    Args:
        name: path of the file, for messages.
        document: its content.
        first: value of the first name of a list without numbers.

    Raises:
        AnnotationsError: the document names no classes, or different ones in several places.

    >>> read_class_document("c.json", {"classes": [{"title": "cat", "color": "#FF0000"}]}).colors
    {16711680: 1}
    >>> read_class_document("c.json", {"1": "spleen", "2": "kidney"}).names
    {1: 'spleen', 2: 'kidney'}
    """
    if isinstance(document, dict) and isinstance(document.get("names"), dict) and "first_id" in document:
        document = document["names"]  # the form of `LabelMap.to_json`, which has other dicts beside the names
    found: dict[str, ClassTable] = {}
    unclear = ""
    for path, part in _parts(document, ""):
        try:
            table = _table_of_part(name, path, part, first)
        except _UnclearError as error:
            unclear = unclear or f"{path or 'the document'}: {error}"
            continue
        if table is not None:
            found[path] = table
    named = {path: table for path, table in found.items() if path.rpartition(".")[2] in _TABLE_KEYS}
    chosen = [*(named or found).values()]
    if not chosen:
        problem = f"{unclear}; " if unclear else ""
        raise AnnotationsError(
            f'{name}: {problem}expected ["hat", ...], {{"hat": 1, ...}} or {{"1": "hat", ...}}'
        )
    if any(table.names != chosen[0].names for table in chosen):
        places = [path or "the document" for path in named or found][:3]
        raise AnnotationsError(f"{name}: {' and '.join(places)} name different classes; {_WAY}")
    return chosen[0]


def _parts(document: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the lists and dicts of a document with their paths, the outer ones first."""
    if isinstance(document, list | dict):
        yield path, document
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _parts(value, f"{path}.{key}" if path else str(key))


def _table_of_part(name: str, path: str, part: Any, first: int) -> ClassTable | None:
    """Return the classes of a list or dict; None if it has none."""
    place = f"{name}#{path}" if path else name
    if isinstance(part, list) and part and all(isinstance(one, str) for one in part):
        lines = [(number, one.strip()) for number, one in enumerate(part, 1)]
        start = -1 if lines[0][1].lower() in IGNORE_NAMES else first
        rows = (ClassRow(value=value, name=one, place=place) for value, (_, one) in enumerate(lines, start))
        return ClassTable(where=name, rows=tuple(rows), is_numbered=False)
    if isinstance(part, dict) and part and (pairs := pairs_of_dict(part)) is not None:
        numbered = (ClassRow(value=value, name=one, place=place) for value, one in pairs)
        return ClassTable(where=name, rows=tuple(numbered), is_numbered=True)
    grid = _grid_of_part(place, part)
    return None if grid is None else _table_of_grid(name, grid, first)


def pairs_of_dict(part: Mapping[str, Any]) -> list[tuple[int, str]] | None:
    """Return (value, name) of a dict with the names or the values as keys; None if it is neither."""
    if all(type(one) is int for one in part.values()):
        return [(one, key) for key, one in part.items()]
    if all(isinstance(one, str) for one in part.values()):
        if all(_INTEGER.fullmatch(key) for key in part):
            return [(int(key), one) for key, one in part.items()]
        if all(_INTEGER.fullmatch(one) for one in part.values()):
            return [(int(one), key) for key, one in part.items()]
    return None


def _grid_of_part(place: str, part: Any) -> _Grid | None:
    if isinstance(part, list):
        return _grid_of_dicts(place, part) if part and all(isinstance(one, dict) for one in part) else None
    if not part:
        return None
    if all(isinstance(one, dict) for one in part.values()):
        return _grid_of_dicts(place, [{"": key, **one} for key, one in part.items()])
    if all(isinstance(one, str) for one in part.values()) and all(map(_color_of_cell, part)):
        part = {one: color for color, one in part.items()}  # A2D2 has {"#ff0000": "Car 1"}
    has_names = not all(_INTEGER.fullmatch(str(key)) for key in part)
    if has_names and all(_color_of_cell(one) is not None for one in part.values()):
        rows = tuple(part.items())
        return _Grid(header=("name", "color"), rows=rows, places=(place,) * len(rows))
    return None


def _grid_of_dicts(place: str, entries: Sequence[Mapping[str, Any]]) -> _Grid | None:
    """Return the grid of entries with the same keys; keys that some entries lack are left out."""
    shared = [key for key in entries[0] if all(key in one for one in entries)]
    cells = [
        key
        for key in shared
        if all(
            isinstance(one[key], str | int | float) or _color_of_cell(one[key]) is not None for one in entries
        )
    ]
    has_text = any(all(isinstance(one[key], str) for one in entries) for key in cells)
    if not has_text:
        return None
    rows = tuple(tuple(one[key] for key in cells) for one in entries)
    places = tuple(f"{place}[{number}]" for number in range(len(entries)))
    return _Grid(header=tuple(cells), rows=rows, places=places)


def xml_entries(root: Element) -> dict[str, Any]:
    """Return the elements of an XML file that come several times, as dicts of their attributes, texts and children.

    FSL's atlases number their labels from 0, while their label images count them from 1
    (fsl.data.atlases.AtlasLabel): `index` is the value only in an atlas of type Label, or beside a `value`.
    """
    found: dict[str, Any] = {}
    kind = (root.findtext("header/type") or "").strip().lower()
    for parent in root.iter():
        children = [child for child in parent if child.tag == (parent[0].tag)]
        entries = [_xml_entry(child) for child in children]
        if not entries or len(entries) < len(parent):
            continue
        if root.tag == "atlas" and kind.startswith("prob") and all("value" not in one for one in entries):
            entries = [{**one, "index": int(one["index"]) + 1} for one in entries if "index" in one]
        found[f"{parent.tag}.{children[0].tag}s"] = entries
    return found


def _xml_entry(element: Element) -> dict[str, Any]:
    text = (element.text or "").strip()
    parts = {child.tag: (child.text or "").strip() for child in element}
    return {**element.attrib, **({"name": text} if text else {}), **parts}


# Roles of columns -----------------------------------------------------------------------------------------


def _color_of_cell(cell: Any) -> int | None:
    """Return a color that is written in one cell; None if it is none.

    >>> [_color_of_cell(cell) for cell in ("#ff0000", "255,0,0", [255, 0, 0, 255], "0", "100000", "300,0,0")]
    [16711680, 16711680, 16711680, None, None, None]
    """
    if isinstance(cell, list):
        numbers = cell[:3] if len(cell) in (3, 4) and all(type(one) in (int, float) for one in cell) else []
    else:
        text = str(cell).strip()
        if (found := _HEX.fullmatch(text)) and (text[0] == "#" or text[:2].lower() == "0x"):
            return int(found[1], 16)
        triple = _TRIPLE.fullmatch(text)
        numbers = [int(triple[at]) for at in (1, 2, 3)] if triple else []
    if len(numbers) != 3 or not all(0 <= one <= 255 and one == int(one) for one in numbers):
        return None
    red, green, blue = map(int, numbers)
    return red << 16 | green << 8 | blue


def _table_of_grid(where: str, grid: _Grid, first: int) -> ClassTable:
    """Return the classes of a grid by the roles of its columns; without numbers and colors, the first is `first`.

    Raises:
        _UnclearError: two columns may be the values or the names.
    """
    columns = range(len(grid.rows[0]))
    colors, used = _colors(grid)
    numbers = [at for at in columns if at not in used and _is_numbering(grid.column(at))]
    texts = [
        at
        for at in columns
        if at not in used and not all(_REAL.fullmatch(str(cell)) for cell in grid.column(at))
    ]
    names = _one_of(grid, texts or [at for at in numbers if grid.header], _NAME_HEADERS, "names")
    if names is None:
        raise _UnclearError("no column has a different name in each row")
    number = _one_of(grid, [at for at in numbers if at != names], _NUMBER_HEADERS, "values")
    values = None if number is None else [int(cell) for cell in grid.column(number)]
    if number is None:
        _check_no_repeats(grid, [at for at in columns if at not in used and at != names])
    if number is None and colors is None:
        values = None if used else [*range(first, first + len(grid.rows))]
        table = _table(where, grid, values, [str(cell).strip() for cell in grid.column(names)], None)
        return replace(table, is_numbered=False)
    return _table(where, grid, values, [str(cell).strip() for cell in grid.column(names)], colors)


def _check_no_repeats(grid: _Grid, columns: Sequence[int]) -> None:
    """Refuse columns that are the values by their title or place, and have one value twice."""
    for at in columns:
        cells = [str(cell) for cell in grid.column(at)]
        if all(map(_INTEGER.fullmatch, cells)) and (not grid.header or grid.title(at) in _NUMBER_HEADERS):
            twice = next(cell for cell in cells if cells.count(cell) > 1)
            raise _UnclearError(
                f"{grid.places[cells.index(twice)]}: value {twice} has several names; give each one"
            )


def _is_numbering(cells: Sequence[Any]) -> bool:
    return all(_INTEGER.fullmatch(str(cell)) for cell in cells) and len({int(cell) for cell in cells}) == len(
        cells
    )


def _one_of(grid: _Grid, columns: Sequence[int], headers: Sequence[str], what: str) -> int | None:
    """Return the column of the names or values; None if there is none.

    Raises:
        _UnclearError: there are several, and the header does not decide.
    """
    if what == "names":
        columns = [at for at in columns if len(set(map(str, grid.column(at)))) == len(grid.rows)] or [
            at for at in columns if grid.title(at) in headers
        ]
    if len(columns) < 2:
        return next(iter(columns), None)
    titled = [at for header in headers for at in columns if grid.title(at) == header]
    same = titled and sum(grid.title(at) == grid.title(titled[0]) for at in columns) == 1
    if not same:
        shown = " and ".join(
            str(grid.header[at] if grid.header else f"column {at + 1}") for at in columns[:3]
        )
        first = ", ".join(repr(str(grid.rows[0][at])) for at in columns[:3])
        raise _UnclearError(f"{grid.places[0]}: {shown} may each be the {what} of the classes ({first})")
    return titled[0]


def _colors(grid: _Grid) -> tuple[list[int] | None, set[int]]:
    """Return the color of each row, or None, and the columns that are colors or belong to them."""
    columns = range(len(grid.rows[0]))
    for at in columns:
        found = [_color_of_cell(cell) for cell in grid.column(at)]
        plain = [_HEX.fullmatch(str(cell)) for cell in grid.column(at)]
        if all(color is not None for color in found):
            return [color for color in found if color is not None], {at}
        if "color" in grid.title(at) and all(plain):
            return [int(one[1], 16) for one in plain if one], {at}
    titled = _titled_channels(grid)
    if titled and not all(_is_band(grid.column(at)) for at in titled):
        return _colors_of_fractions(grid, titled), {*titled}
    start = min(titled) if titled else _start_of_channels(grid)
    if start is None:
        return None, set()
    bands = [[int(cell) for cell in grid.column(at)] for at in titled or range(start, start + 3)]
    rest = set()
    for at in range(start + 3, len(grid.rows[0])):  # alpha, visibility
        if not all(_REAL.fullmatch(str(cell)) for cell in grid.column(at)):
            break
        rest.add(at)
    colors = [red << 16 | green << 8 | blue for red, green, blue in zip(*bands, strict=True)]
    return colors, {start, start + 1, start + 2, *rest}


def _colors_of_fractions(grid: _Grid, channels: Sequence[int]) -> list[int] | None:
    """Return colors of 0 to 1, as plotting libraries write them; None for other numbers."""
    shares = [[float(row[at]) for at in channels] for row in grid.rows]
    if not all(0 <= share <= 1 for row in shares for share in row):
        return None
    bands = [[round(255 * share) for share in row] for row in shares]
    return [red << 16 | green << 8 | blue for red, green, blue in bands]


def _titled_channels(grid: _Grid) -> list[int]:
    """Return three neighboring columns whose titles are red, green and blue, in this order; [] if there are none.

    OpenCV's users write blue first.
    """
    for at in range(len(grid.rows[0]) - 2):
        titles = {grid.title(band).removeprefix("color ")[:1]: band for band in range(at, at + 3)}
        numbers = all(_REAL.fullmatch(str(cell)) for band in range(at, at + 3) for cell in grid.column(band))
        if titles.keys() == {"r", "g", "b"} and numbers:
            return [titles[band] for band in "rgb"]
    return []


def _start_of_channels(grid: _Grid) -> int | None:
    """Return the first of three neighboring columns that hold red, green and blue; None if there are none."""
    width = len(grid.rows[0])
    runs: list[list[int]] = []
    for at in range(width):
        if not all(_REAL.fullmatch(str(cell)) for cell in grid.column(at)):
            continue
        if runs and runs[-1][-1] == at - 1:
            runs[-1].append(at)
        else:
            runs.append([at])
    for run in runs:
        start = _start_in_run(grid, run, has_number=any(len(one) == 1 for one in runs))
        if start is not None and all(_is_band(grid.column(start + band)) for band in range(3)):
            return start
    return None


def _is_band(cells: Sequence[Any]) -> bool:
    return all(_INTEGER.fullmatch(str(cell)) and 0 <= int(cell) <= 255 for cell in cells)


def _start_in_run(grid: _Grid, run: Sequence[int], *, has_number: bool) -> int | None:
    """Return where the channels begin in a run of columns of numbers: in front, or behind the value of the class.

    Raises:
        _UnclearError: four columns may be a value and a color, or a color and its alpha.
    """
    if len(run) < 3:
        return None
    if len(run) == 3 or has_number:
        return run[0]
    first, last = grid.column(run[0]), grid.column(run[-1])
    if not _is_numbering(first):
        return run[0]
    numbers = [int(cell) for cell in first]
    counts_up = numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    may_be_alpha = len(run) == 4 and {float(cell) for cell in last} <= {0.0, 1.0, 255.0}
    if may_be_alpha and not counts_up:
        raise _UnclearError(
            f"{grid.places[0]}: its four numbers may be a value and a color, or a color and its alpha"
        )
    return run[1]


def _table(
    where: str, grid: _Grid, values: Sequence[int] | None, names: Sequence[str], colors: Sequence[int] | None
) -> ClassTable:
    """Return the table; without values they follow from the order, with the background at 0."""
    shades: Sequence[int | None] = colors if colors is not None else [None] * len(names)
    rows = [
        ClassRow(value=at, name=name, color=color, place=place)
        for at, (name, color, place) in enumerate(zip(names, shades, grid.places, strict=True))
    ]
    if values is not None:
        numbered = (replace(row, value=value) for row, value in zip(rows, values, strict=True))
        return ClassTable(where=where, rows=tuple(numbered), is_numbered=True)
    # A color image has no numbers: black is the background if the table does not name it.
    zero = next((row for row in rows if is_background(row.name)), None)
    zero = zero or next((row for row in rows if row.color == 0), None)
    others = iter(range(1, len(rows) + 1))
    placed = tuple(
        row if row is zero and row.value == 0 else replace(row, value=0 if row is zero else next(others))
        for row in rows
    )
    return ClassTable(where=where, rows=placed, is_numbered=False, is_in_order=zero is rows[0])


def describe_colors(table: ClassTable) -> str:
    """Return the value of --label-colors that a table's colors are.

    >>> describe_colors(read_class_table("c.csv", "name,r,g,b\\nsky,0,0,255\\nvoid,0,0,0"))
    '0000ff=sky'
    """
    pairs = [(row.color, row.name) for row in table.rows if row.color]
    return ",".join(f"{color:06x}={name}" for color, name in pairs)
