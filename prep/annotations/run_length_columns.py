"""Columns of a table of run lengths, found by what their cells hold, and the rows of such a table."""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from posixpath import basename, splitext

from halofeed.prep.annotations.columns import SPELLINGS, match_columns, normalize_name
from halofeed.prep.sources.file_names import is_image_name
from halofeed.system.errors import AnnotationsError

_RUNS = re.compile(r"\d+ +\d+( +\d+ +\d+)*")
_NAMES = frozenset(("encodedpixels", "encodedpixel", "rle", "rlemask", "maskrle", "runlengths", "runlength"))
"""Hints: usual names of a column of run lengths. Numbers of other columns may come in pairs too."""
_LEAST_NUMBERS = 6
"""Numbers of the longest cell of a column of run lengths without such a name; a box has four."""
_LEAST_SHARE = 0.9
"""Share of the cells of a column without a usual name that must be run lengths; others are single errors."""
EMPTY = frozenset(("", "-1", "nan", "none", "null"))
"""Cells of a picture without an object: empty, as pandas writes them, or SIIM's -1."""
_KNOWN = ("class", "width", "height", "split", "group")
SAMPLE_ROWS = 2000
"""Rows in which columns are recognized (an estimate)."""
_MAX_CELL = min(sys.maxsize, 1 << 30)
"""Characters of a cell. Runs of large pictures have more than the 131,072 that Python's csv allows by default."""


@dataclass(frozen=True, kw_only=True)
class RunColumns:
    """Places of the columns of a table of run lengths.

    Args:
        runs: place of the run lengths.
        picture: place of the names of pictures.
        known: place of each further column by its meaning: class, width, height, split, group.
        class_behind_name: whether a name is followed by `_` and the class, as in `0002cc93b.jpg_1`.
        unread: names of the other columns.
    """

    runs: int
    picture: int
    known: dict[str, int]
    class_behind_name: bool
    unread: tuple[str, ...]


def holds_run_lengths(text: str) -> bool:
    """Return whether the beginning of a file is that of a table of run lengths.

    >>> holds_run_lengths("ImageId,EncodedPixels\\na.jpg,1 3 9 4\\nb.jpg,\\n")
    True
    >>> holds_run_lengths("image_id,bbox\\na.jpg,1 3 9 4\\n"), holds_run_lengths("a,b\\nc.jpg,1 2 9 2 14 3\\n")
    (False, True)
    """
    lines = text.splitlines()
    if len(lines) > 1 and not text.endswith("\n"):  # the end of a large file is cut off
        lines = lines[:-1] if len(lines) > 2 else [lines[0], _whole_pairs(lines[1])]
    rows = list(islice(cells_of(lines), SAMPLE_ROWS))
    return len(rows) > 1 and bool(_places_of_runs(rows[0], rows[1:]))


def cells_of(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the cells of the lines of a table that are not blank; the first line shows the delimiter.

    Raises:
        AnnotationsError: a line is not readable as CSV.
    """
    lines = iter(lines)
    first = next((line for line in lines if line.strip()), "")
    reader = csv.reader(chain([first], lines), delimiter=max(",;\t", key=first.count))
    while True:
        # The limit is one of the process, and other tables keep theirs.
        limit = csv.field_size_limit(_MAX_CELL)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise AnnotationsError(
                f"line {reader.line_num}: not readable as CSV: {error}; correct it"
            ) from error
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        if any(map(str.strip, cells)):
            yield [cell.strip() for cell in cells]


def _whole_pairs(line: str) -> str:
    """Return a line without the number that is cut off at its end, and without half of a pair."""
    line = line.rpartition(" ")[0]
    return line.rpartition(" ")[0] if re.split(r"[,;\t]", line)[-1].count(" ") % 2 == 0 else line


def _places_of_runs(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[int]:
    """Return the places of the columns whose cells are run lengths or empty; those with a usual name come alone."""
    filled: Counter[int] = Counter()
    sizes: dict[int, list[int]] = {}
    for row in rows:
        for place, cell in enumerate(row[: len(header)]):
            if cell.lower() not in EMPTY:
                filled[place] += 1
                if _RUNS.fullmatch(cell):
                    sizes.setdefault(place, []).append(cell.count(" ") + 1)
    named = [place for place in sizes if normalize_name(header[place]) in _NAMES]
    return named or [
        place
        for place, found in sizes.items()
        if len(found) >= _LEAST_SHARE * filled[place] and max(found) >= _LEAST_NUMBERS
    ]


def find_columns(
    name: str, rows: Sequence[Sequence[str]], stems: Collection[str], ignored: Sequence[str]
) -> RunColumns | None:
    """Return the columns of a table by its first rows; None for a table without run lengths.

    Args:
        name: name of the table, for messages.
        rows: header and first rows.
        stems: names of the pictures, with and without their extensions.
        ignored: columns to ignore.

    Raises:
        AnnotationsError: several columns hold run lengths, or none names pictures.
    """
    header, *body = rows
    passed = set(map(normalize_name, ignored))
    runs = [place for place in _places_of_runs(header, body) if normalize_name(header[place]) not in passed]
    if not runs:
        return None
    if len(runs) > 1:
        listed = " and ".join(header[place] for place in runs)
        raise AnnotationsError(
            f"{name}: columns {listed} hold run lengths; --ignore-columns {header[runs[-1]]} takes the other one"
        )
    picture, behind = _column_of_pictures(name, body, len(header), runs[0], stems)
    others = [column for place, column in enumerate(header) if column and place not in (runs[0], picture)]
    wanted = {key: SPELLINGS[key] for key in _KNOWN if not (behind and key == "class")}
    columns = match_columns(name, others, wanted, ignored).columns
    return RunColumns(
        runs=runs[0],
        picture=picture,
        known={key: header.index(column) for key, column in columns.items()},
        class_behind_name=behind,
        unread=tuple(column for column in others if column not in columns.values()),
    )


def _column_of_pictures(
    name: str, body: Sequence[Sequence[str]], columns: int, runs: int, stems: Collection[str]
) -> tuple[int, bool]:
    """Return the place of the column that names pictures, and whether classes follow the names."""
    shares = {
        place: _shares_of_names([row[place] for row in body if len(row) > place], stems)
        for place in range(columns)
        if place != runs
    }
    picture = max(shares, key=lambda place: max(shares[place]), default=-1)
    if picture < 0 or not max(shares[picture]):
        first = ", ".join(cell[:40] for cell in body[0])
        raise AnnotationsError(
            f"{name}: no column names a picture, such as in the row {first}; name the folder of the pictures with "
            "--images"
        )
    plain, suffixed = shares[picture]
    return picture, suffixed > plain


def _shares_of_names(cells: Sequence[str], stems: Collection[str]) -> tuple[float, float]:
    """Return the share of cells that name pictures, and of those that do so without what follows their last `_`."""
    plain = sum(_is_name(cell, stems) for cell in cells)
    suffixed = sum("_" in cell and _is_name(cell.rpartition("_")[0], stems) for cell in cells)
    count = max(1, len(cells))
    return plain / count, suffixed / count


def _is_name(cell: str, stems: Collection[str]) -> bool:
    name = basename(cell.replace("\\", "/"))
    return bool(name) and (name in stems or (is_image_name(name) and splitext(name)[0] in stems))


def is_one_mask(cells: Iterable[str]) -> bool:
    """Return whether all of several masks are the same, as the placeholders of a sample submission are.

    >>> is_one_mask(["1 1", "1 1"]), is_one_mask(["1 1", "2 1"]), is_one_mask(["1 1"])
    (True, False, False)
    """
    count, first = 0, ""
    for cell in cells:
        if cell.lower() in EMPTY:
            continue
        if count and cell != first:
            return False
        count, first = count + 1, cell
    return count > 1
