"""Reader of class tables in text: lines that name classes, recognized by their form and not by the file's name.

    text     ──> lines ──> cells ──┐
    JSON, YAML, XML ──> entries ───┴──> grid ──> roles of its columns ──> ClassTable

`class_documents` reads the entries, `class_columns` the grids. Sources of the forms: CVAT and Datumaro `labelmap.txt`,
labelme `labels.txt`, ITK-SNAP label descriptions, color tables of 3D Slicer, FreeSurfer and MRtrix, `class_dict.csv`,
Roboflow `_classes.csv`, BIDS `dseg.tsv`, FSL atlases, COCO categories, Supervisely `meta.json`, Hugging Face
`features`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from halofeed.prep.annotations.class_columns import (
    NAME_HEADERS,
    REAL,
    ClassGrid,
    UnclearTableError,
    color_in_cell,
    table_of_grid,
)
from halofeed.prep.annotations.class_rows import (
    ClassRow,
    ClassTable,
    first_value,
    is_background,
    is_void_name,
)
from halofeed.system.errors import AnnotationsError

CLEAR_FORM = 'write a .json file with the name and the value of each class, such as {"liver": 1, "tumor": 2}'
"""How to write classes so that they have one reading."""
_COMMENTS = ("#", ";", "//", "%")
"""Marks of comments: those of shells, INI files, C and MATLAB."""
_TITLE = re.compile(r"\[[^\[\],]+\]")
"""Title of a section of an INI file; a list such as [cat, dog] has a comma."""
_COMMENT_TAIL = re.compile(r"\s(?:#|//|;|%)\s.*")
"""Comment behind a name: its mark is between blanks, unlike in "C#" or "50%"."""
_EDGE_MARKS = re.compile(r"^[^\w\s]+(?=\s)|^\W?\d+[^\w\s]+(?=\s)|(?<=\w)[^\w\s)\]!?.+\"']+$")
"""Marks at the edges of names: bullets and arrows, numbers with a mark, and ends such as a comma."""
_LIST_MARKS = re.compile(rf"{_EDGE_MARKS.pattern}|[,;:=|\t{{}}]")
"""Marks in lines without columns: those at edges, and what divides cells in usual tables."""
_WORDS = re.compile(r'"[^"]*"|\'[^\']*\'|\S+')
_Line = tuple[int, str]
"""Number of a line, and its text without the blanks around it."""


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
    way = way or CLEAR_FORM
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    content = [(number, line) for number, line in lines if line and not _is_comment(line)]
    comments = [(number, line) for number, line in lines if _is_comment(line)]
    table, marks = _table_of_columns(name, content, comments, first, way), _EDGE_MARKS
    if table is None:
        _check_no_numbers(name, content, way)
        table, marks = _table_of_list(name, _without_quotes(lines), first, way), _LIST_MARKS
    _check_names(table.rows, marks, way)
    return table


def _table_of_columns(
    name: str, content: Sequence[_Line], comments: Sequence[_Line], first: int, way: str
) -> ClassTable | None:
    """Return the classes of lines with columns by the first splitter that finds these; None if none does.

    Raises:
        AnnotationsError: no splitter gives one reading, and one gives several.
    """
    unclear = ""
    for split in _SPLITTERS:
        try:
            grid = _grid_of_lines(name, content, comments, split)
            if grid is not None:
                return table_of_grid(name, grid, first)
        except UnclearTableError as error:
            unclear = unclear or str(error)
    if unclear:
        raise AnnotationsError(f"{unclear if unclear.startswith(name) else f'{name}: {unclear}'}; {way}")
    return None


# Lines with columns ---------------------------------------------------------------------------------------


def _is_comment(line: str) -> bool:
    """Return whether a line is a comment, or the title of a section, in a file whose other lines have columns.

    >>> [_is_comment(line) for line in ("# a", "[labels]", "#ff0000 liver", "liver")]
    [True, True, False, False]
    """
    # Titles of sections come from INI files and Darknet's configurations.
    if _TITLE.fullmatch(line):
        return True
    return line.startswith(_COMMENTS) and color_in_cell(line.split()[0]) is None


def _without_quotes(lines: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
    """Return the lines without the quotes that are around each of them."""
    texts = [line for _, line in lines if line]
    for quote in "\"'":
        # Quotes around some names only are part of these, or a mistake that should show.
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
        # A class called "cat # pet" would match no annotation.
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
        # CSV quotes cells with delimiters in them; the colons of labelmap.txt know no quotes.
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
    texts = [at for at, word in enumerate(words) if not REAL.fullmatch(word) and not word.startswith("#")]
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
"""Delimiters in the order in which they are tried: those that names hardly ever contain come first."""


def _grid_of_lines(
    name: str, content: Sequence[_Line], comments: Sequence[_Line], split: _Split
) -> ClassGrid | None:
    """Return the cells of the lines; None if they have no columns of numbers or colors with this splitter."""
    rows = _rows_of_one_width([split(line) for _, line in content])
    if not rows:
        return None
    places = tuple(f"{name}:{number}" for number, _ in content)
    if _begins_with_header(rows):
        header, rows, places = tuple(rows[0]), rows[1:], places[1:]
    else:
        header = _header_of_comments(comments, split, len(rows[0]))
    # Without a column of values or colors the marks between the cells may be parts of names.
    if not any(all(map(_is_value, column)) for column in zip(*rows, strict=True)):
        return None
    if split is _split_words and _is_name_and_number(rows):
        # Names such as "class 1" and "class 2" share their text. Different texts may be names with their values.
        if len({row[0] for row in rows}) == len(rows):
            raise UnclearTableError(
                f"{places[0]}: {' '.join(rows[0])!r} may be a name, or a name and its value"
            )
        return None
    return ClassGrid(header=header, rows=tuple(map(tuple, rows)), places=places)


def _rows_of_one_width(rows: list[list[str]]) -> list[list[str]]:
    """Return the rows with cells for all columns; [] if they have one column, or different numbers of them."""
    widths = [len(row) for row in rows]
    # One cell a line is a list of names.
    if max(widths, default=0) < 2:
        return []
    # A header may name columns that no row fills, as that of Datumaro's labelmap.txt names parts and actions.
    if len(set(widths[1:])) == 1 and widths[0] > widths[1]:
        return [row + [""] * (widths[0] - len(row)) for row in rows]
    return rows if len(set(widths)) == 1 else []


def _begins_with_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row has no value and no color, and the second has one."""
    return len(rows) > 1 and not any(map(_is_value, rows[0])) and any(map(_is_value, rows[1]))


def _is_name_and_number(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether blanks part one text and one number behind it, as in names such as "class 1"."""
    return all(len(row) == 2 and not _is_value(row[0]) for row in rows)


def _header_of_comments(comments: Sequence[_Line], split: _Split, width: int) -> tuple[str, ...]:
    """Return the last comment that has a word for each column, such as `#No. name R G B A`; () if there is none."""
    # The last one is right above the rows: FreeSurfer and 3D Slicer write several lines of comments.
    for _, line in reversed(comments):
        bare = line.lstrip("#;%/ ")
        words = [word.strip("<>") for word in bare.replace(":", " ").replace(",", " ").split()]
        cells = split(bare)
        for found in (cells, words):
            if len(found) == width and not any(map(_is_value, found)):
                return tuple(found)
    return ()


def _is_value(cell: Any) -> bool:
    return REAL.fullmatch(str(cell)) is not None or color_in_cell(cell) is not None


def _check_no_numbers(name: str, content: Sequence[_Line], way: str) -> None:
    """Refuse lines if most, but not all, begin with a number or end in several.

    They are a table of which one line was written wrong; as a list, its numbers would become parts of the names.
    """
    rows = [
        (number, line, _split_words(line.replace(",", " ").replace(":", " "))) for number, line in content
    ]
    numbered = [
        number
        for number, _, cells in rows
        if len(cells) > 1 and (_is_value(cells[0]) or _is_value(cells[-2]))
    ]
    # Half of the lines: in a list of names a few may begin or end with a number.
    if 0 < len(content) < 2 * len(numbered):
        other = next(((number, line) for number, line, _ in rows if number not in numbered), content[0])
        raise AnnotationsError(
            f"{name}:{other[0]}: {other[1]!r}: expected the same columns in each line: a value, a name, and maybe a "
            f"color; {way}"
        )


# Lists of names -------------------------------------------------------------------------------------------


def _table_of_list(name: str, lines: Sequence[_Line], first: int, way: str) -> ClassTable:
    """Return the classes of a list of names: their values follow from their order."""
    while lines and not lines[-1][1]:  # blank lines at the end of a file name nothing
        lines = lines[:-1]
    names = [(number, line) for number, line in lines if line and not _is_comment(line)]
    comments = [(number, line) for number, line in lines if _is_comment(line)]
    # Blank lines around comments are usual, so they count only in a file without comments.
    if comments:
        _refuse_unclear_comments(name, names, comments, way)
    else:
        _refuse_blank_line(name, lines, first)
    _refuse_title(name, names, way)
    names, start = _names_from(names, first)
    rows = (
        ClassRow(value=value, name=line, place=f"{name}:{number}")
        for value, (number, line) in enumerate(names, start)
    )
    return ClassTable(where=name, rows=tuple(rows), is_numbered=False)


def _refuse_unclear_comments(name: str, names: Sequence[_Line], comments: Sequence[_Line], way: str) -> None:
    """Refuse lines that may be comments or classes, unless all of them are above the background.

    A list that is known to begin with the background or labelme's __ignore__ proves that lines above are comments.
    """
    starts = bool(names) and (is_background(names[0][1]) or is_void_name(names[0][1]))
    if not (starts and comments[-1][0] < names[0][0]):
        number, line = comments[0]
        raise AnnotationsError(
            f"{name}:{number}: {line!r} may be a comment or a class, and each line counts; delete the line if it is a "
            f"comment, else {way}"
        )


def _refuse_blank_line(name: str, lines: Sequence[_Line], first: int) -> None:
    """Refuse a blank line between names: whether it counts decides the values of all names below it."""
    blank = next((number for number, line in lines if not line), None)
    if blank is not None:
        raise AnnotationsError(
            f"{name}:{blank}: blank line, and each line counts; remove it if the name below it is class "
            f"{first + blank - 1}, else write the name of class {first + blank - 1} into it"
        )


def _refuse_title(name: str, names: Sequence[_Line], way: str) -> None:
    """Refuse a first line that is a usual title of such a column, if the next name does not contain it.

    In "label 1, label 2" below "label" the first line is more likely a class of the same kind.
    """
    title = names[0][1].replace("_", " ").lower() if names else ""
    if len(names) > 1 and title in NAME_HEADERS and title not in names[1][1].lower():
        number, line = names[0]
        raise AnnotationsError(
            f"{name}:{number}: {line!r} may be the title of the column or a class; delete the line if it is a title, "
            f"else {way}"
        )


def _names_from(names: list[_Line], first: int) -> tuple[list[_Line], int]:
    """Return the names that are classes, and the value of the first one."""
    start = first_value(names[0][1], first) if names else first
    begins_at_background = len(names) > 1 and is_background(names[1][1])
    # Detection counts classes from 1, so that __ignore__ above a class is no class and not the value -1.
    if start < 0 and first > 0 and not begins_at_background:
        return names[1:], first
    return names, start
