"""Roles of the columns of a class table: which are the values, the names and the colors.

A grid has a row for each class. What its columns hold decides what they are:

- number: whole numbers, all distinct
- name: texts, all distinct
- color: `#rrggbb`, `r,g,b` in one cell, or three neighboring columns of 0 to 255
- others: alpha, visibility, groups; they are not read
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from halofeed.prep.annotations.class_rows import ClassRow, ClassTable, is_background

INTEGER = re.compile(r"[+-]?\d+")
REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
NAME_HEADERS = (
    *("name", "class", "class name", "label name", "label", "title", "structure", "text", "category"),
    *("categories", "classes", "labels"),
)
"""Usual titles of the column of names, the most certain first."""
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
"""Usual titles of the column of values, the most certain first."""
_HEX = re.compile(r"(?:#|0x)?([0-9a-f]{6})(?:[0-9a-f]{2})?", re.IGNORECASE)
"""Color in hexadecimal, with or without an alpha behind it."""
_TRIPLE = re.compile(
    r"(?:rgba?)?[\[(]?\s*(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})(?:[\s,]+[\d.]+)?\s*[\])]?", re.IGNORECASE
)
"""Color as CSS, Python and spreadsheets write it: rgb(255, 0, 0), [255 0 0], 255,0,0."""


class UnclearTableError(Exception):
    """A grid has no single reading; the text says why."""


@dataclass(frozen=True, kw_only=True)
class ClassGrid:
    """Cells of a table: texts, numbers, or lists of numbers.

    Args:
        header: names of the columns; () if the file has none.
        rows: cells of each row, all of one length.
        places: place of each row.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    places: tuple[str, ...]

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return len(self.rows[0])

    def column(self, at: int) -> list[Any]:
        """Return the cells of a column."""
        return [row[at] for row in self.rows]

    def title(self, at: int) -> str:
        """Return the header of a column, with blanks for underscores and in lower case."""
        return self.header[at].strip(" <>*").replace("_", " ").lower() if self.header else ""

    def holds_numbers(self, at: int) -> bool:
        """Return whether all cells of a column are numbers."""
        return all(REAL.fullmatch(str(cell)) for cell in self.column(at))


def table_of_grid(where: str, grid: ClassGrid, first: int) -> ClassTable:
    """Return the classes of a grid by the roles of its columns; without numbers and colors, the first is `first`.

    Raises:
        UnclearTableError: two columns may be the values or the names.
    """
    colors, used = _colors(grid)
    free = [at for at in range(grid.width) if at not in used]
    names = _name_column(grid, free)
    number = _value_column(grid, [at for at in free if at != names])
    rows = _rows(grid, names, colors)
    # Values that the table states count more than its order and its colors.
    if number is not None:
        values = [int(cell) for cell in grid.column(number)]
        return ClassTable(where=where, rows=_with_values(rows, values), is_numbered=True)
    _check_no_repeats(grid, [at for at in free if at != names])
    # Neither values nor colors: a list of names with other columns, such as group or description.
    if colors is None and not used:
        values = [*range(first, first + len(rows))]
        return ClassTable(where=where, rows=_with_values(rows, values), is_numbered=False)
    return _in_order_of_colors(where, rows)


def _rows(grid: ClassGrid, names: int, colors: Sequence[int] | None) -> list[ClassRow]:
    """Return the classes with their positions as values."""
    shades: Sequence[int | None] = colors if colors is not None else [None] * len(grid.rows)
    written = zip(grid.column(names), shades, grid.places, strict=True)
    return [
        ClassRow(value=at, name=str(name).strip(), color=color, place=place)
        for at, (name, color, place) in enumerate(written)
    ]


def _with_values(rows: Sequence[ClassRow], values: Sequence[int]) -> tuple[ClassRow, ...]:
    return tuple(replace(row, value=value) for row, value in zip(rows, values, strict=True))


def _in_order_of_colors(where: str, rows: Sequence[ClassRow]) -> ClassTable:
    """Return the table of a color image, which has no values: they follow from the order, the background is 0."""
    zero = next((row for row in rows if is_background(row.name)), None)
    # In VOC's palette and CVAT's labelmap.txt black is the background, so it is in a table that names none.
    zero = zero or next((row for row in rows if row.color == 0), None)
    others = iter(range(1, len(rows) + 1))
    placed = tuple(replace(row, value=0 if row is zero else next(others)) for row in rows)
    return ClassTable(where=where, rows=placed, is_numbered=False, is_in_order=zero is rows[0])


# Values and names -----------------------------------------------------------------------------------------


def _name_column(grid: ClassGrid, free: Sequence[int]) -> int:
    """Return the column of the names; raise UnclearTableError if there is none, or several."""
    texts = [at for at in free if not grid.holds_numbers(at)]
    # Classes may be called 1, 2, 3, but only a header can say that these are names.
    columns = texts or [at for at in free if grid.header and _is_numbering(grid.column(at))]
    distinct = [at for at in columns if len(set(map(str, grid.column(at)))) == len(grid.rows)]
    # `LabelMap` reports a repeated name, so a column with a title is chosen even if it repeats one.
    titled = [at for at in columns if grid.title(at) in NAME_HEADERS]
    found = _only_or_titled(grid, distinct or titled, NAME_HEADERS, "names")
    if found is None:
        raise UnclearTableError("no column has a different name in each row")
    return found


def _value_column(grid: ClassGrid, columns: Sequence[int]) -> int | None:
    """Return the column of the values, None without one; raise UnclearTableError if there are several."""
    numbers = [at for at in columns if _is_numbering(grid.column(at))]
    return _only_or_titled(grid, numbers, _NUMBER_HEADERS, "values")


def _only_or_titled(grid: ClassGrid, columns: Sequence[int], headers: Sequence[str], what: str) -> int | None:
    """Return the only column, or the one with the most certain title; None if there is none.

    Raises:
        UnclearTableError: there are several, and the header does not decide.
    """
    if len(columns) < 2:
        return next(iter(columns), None)
    titles = [grid.title(at) for at in columns]
    best = next((header for header in headers if header in titles), None)
    if best is not None and titles.count(best) == 1:
        return columns[titles.index(best)]
    shown = " and ".join(str(grid.header[at] if grid.header else f"column {at + 1}") for at in columns[:3])
    first = ", ".join(repr(str(grid.rows[0][at])) for at in columns[:3])
    raise UnclearTableError(f"{grid.places[0]}: {shown} may each be the {what} of the classes ({first})")


def _check_no_repeats(grid: ClassGrid, columns: Sequence[int]) -> None:
    """Refuse columns that are the values by their title or place, and have one value twice."""
    for at in columns:
        cells = [str(cell) for cell in grid.column(at)]
        if all(map(INTEGER.fullmatch, cells)) and (not grid.header or grid.title(at) in _NUMBER_HEADERS):
            twice = next(cell for cell in cells if cells.count(cell) > 1)
            raise UnclearTableError(
                f"{grid.places[cells.index(twice)]}: value {twice} has several names; give each one"
            )


def _is_numbering(cells: Sequence[Any]) -> bool:
    if not all(INTEGER.fullmatch(str(cell)) for cell in cells):
        return False
    return len({int(cell) for cell in cells}) == len(cells)


# Colors ---------------------------------------------------------------------------------------------------


def color_in_cell(cell: Any) -> int | None:
    """Return a color that is written in one cell; None for other text.

    >>> [color_in_cell(cell) for cell in ("#ff0000", "255,0,0", [255, 0, 0, 255], "0", "100000", "300,0,0")]
    [16711680, 16711680, 16711680, None, None, None]
    """
    channels = _channels_in_list(cell) if isinstance(cell, list) else _channels_in_text(str(cell).strip())
    # Three small numbers may also be counts or coordinates: beyond 255 or with fractions they are no color.
    if len(channels) != 3 or not all(0 <= one <= 255 and one == int(one) for one in channels):
        return None
    return _packed_color(*map(int, channels))


def _channels_in_list(cell: Sequence[Any]) -> Sequence[float]:
    """Return red, green and blue of a list, which may have an alpha behind them; [] for another list."""
    is_color = len(cell) in (3, 4) and all(type(one) in (int, float) for one in cell)
    return cell[:3] if is_color else []


def _channels_in_text(text: str) -> Sequence[int]:
    """Return red, green and blue of a text; () if it is no color."""
    # A text of six digits may be a number, so hexadecimal needs # or 0x.
    if (found := _HEX.fullmatch(text)) and text.lower().startswith(("#", "0x")):
        return tuple(bytes.fromhex(found[1]))
    triple = _TRIPLE.fullmatch(text)
    return tuple(map(int, triple.groups())) if triple else ()


def _bare_hexadecimal(cell: Any) -> int | None:
    """Return a color in hexadecimal with or without a mark; None for any other cell."""
    found = _HEX.fullmatch(str(cell))
    return int(found[1], 16) if found else None


def _packed_color(red: int, green: int, blue: int) -> int:
    return red << 16 | green << 8 | blue


def _colors(grid: ClassGrid) -> tuple[list[int] | None, set[int]]:
    """Return the color of each row, or None, and the columns that are colors or belong to them."""
    return _colors_in_one_column(grid) or _colors_in_three_columns(grid)


def _colors_in_one_column(grid: ClassGrid) -> tuple[list[int], set[int]] | None:
    for at in range(grid.width):
        # A title says what six digits are, so they need no mark.
        readers = (color_in_cell, _bare_hexadecimal) if "color" in grid.title(at) else (color_in_cell,)
        for read in readers:
            colors = [color for color in map(read, grid.column(at)) if color is not None]
            if len(colors) == len(grid.rows):
                return colors, {at}
    return None


def _colors_in_three_columns(grid: ClassGrid) -> tuple[list[int] | None, set[int]]:
    channels = _titled_channels(grid)
    # Titled columns are colors in any range.
    if channels and not all(_is_band(grid.column(at)) for at in channels):
        return _colors_of_fractions(grid, channels), {*channels}
    if not channels:
        start = _start_of_channels(grid)
        if start is None:
            return None, set()
        channels = [start, start + 1, start + 2]
    colors = [_packed_color(*(int(row[at]) for at in channels)) for row in grid.rows]
    # Numbers behind a color belong to it: alpha, and the visibility of ITK-SNAP's label descriptions.
    behind = takewhile(grid.holds_numbers, range(max(channels) + 1, grid.width))
    return colors, {*channels, *behind}


def _colors_of_fractions(grid: ClassGrid, channels: Sequence[int]) -> list[int] | None:
    """Return colors of 0 to 1, as plotting libraries write them; None for other numbers."""
    shares = [[float(row[at]) for at in channels] for row in grid.rows]
    if not all(0 <= share <= 1 for row in shares for share in row):
        return None
    return [_packed_color(*(round(255 * share) for share in row)) for row in shares]


def _titled_channels(grid: ClassGrid) -> list[int]:
    """Return three neighboring columns whose titles are red, green and blue, in this order; [] if there are none.

    OpenCV's users write blue first.
    """
    for at in range(grid.width - 2):
        three = range(at, at + 3)
        titles = {grid.title(band).removeprefix("color ")[:1]: band for band in three}
        if titles.keys() == {"r", "g", "b"} and all(map(grid.holds_numbers, three)):
            return [titles[band] for band in "rgb"]
    return []


def _start_of_channels(grid: ClassGrid) -> int | None:
    """Return the first of three neighboring columns that hold red, green and blue; None if there are none."""
    runs = list(_neighbors([at for at in range(grid.width) if grid.holds_numbers(at)]))
    # A number without number columns beside it, as before a name, is the value; otherwise a run may begin with it.
    has_number = any(len(one) == 1 for one in runs)
    for run in runs:
        start = _start_in_run(grid, run, has_number=has_number)
        # Numbers beyond 255 are no channels, so that the next run may be.
        if start is not None and all(_is_band(grid.column(start + band)) for band in range(3)):
            return start
    return None


def _neighbors(places: Sequence[int]) -> Iterator[list[int]]:
    """Yield the runs of consecutive numbers.

    >>> list(_neighbors([0, 2, 3, 4]))
    [[0], [2, 3, 4]]
    """
    run: list[int] = []
    for place in places:
        if run and place != run[-1] + 1:
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def _is_band(cells: Sequence[Any]) -> bool:
    return all(INTEGER.fullmatch(str(cell)) and 0 <= int(cell) <= 255 for cell in cells)


def _start_in_run(grid: ClassGrid, run: Sequence[int], *, has_number: bool) -> int | None:
    """Return where the channels begin in a run of columns of numbers: in front, or behind the value of the class.

    Raises:
        UnclearTableError: four columns may be a value and a color, or a color and its alpha.
    """
    if len(run) < 3:
        return None
    # Three numbers are a color; a fourth is its alpha if the value is in another column.
    if len(run) == 3 or has_number:
        return run[0]
    first, last = grid.column(run[0]), grid.column(run[-1])
    if not _is_numbering(first):  # a channel has one value for several classes, a value of a class has not
        return run[0]
    numbers = [int(cell) for cell in first]
    counts_up = numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    # 0 and 255, or 0 and 1, are the transparent and the opaque alpha of color tables, and usual channels as well.
    may_be_alpha = len(run) == 4 and {float(cell) for cell in last} <= {0.0, 1.0, 255.0}
    if may_be_alpha and not counts_up:
        raise UnclearTableError(
            f"{grid.places[0]}: its four numbers may be a value and a color, or a color and its alpha"
        )
    return run[1]
