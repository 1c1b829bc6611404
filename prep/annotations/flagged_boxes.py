"""Tables of boxes whose only class is a column of 0 and 1: 1 with a box, 0 with empty cells.

RSNA's tables of radiographs have this form:

patientId,x,y,width,height,Target
0004cfab,,,,,0
00436515,264,152,213,379,1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from halofeed.prep.annotations.class_names import class_number
from halofeed.prep.annotations.columns import SPELLINGS, normalize_name
from halofeed.prep.annotations.table_forms import BOX_LIST, Row, TableForm

_BOXES = (("x", "y", "width", "height"), ("x", "y", "w", "h"), ("xmin", "ymin", "xmax", "ymax"))
_PICTURE = "patientid"
"""Column that names the picture where no other column does: one picture of each patient, named by the patient."""
_SLACK_PIXELS = 1


def flagged_boxes_form(
    name: str, header: Sequence[str], rows: Callable[[], Iterable[tuple[int, list[str]]]]
) -> TableForm | None:
    """Return the form of a table of boxes with a column of 0 and 1 in place of a class; None for other tables.

    Args:
        name: name of the table, for the note.
        header: its columns.
        rows: returns the number and the cells of each line.
    """
    known = {normalize_name(column): place for place, column in enumerate(header)}
    box = next((sides for sides in _BOXES if set(sides) <= known.keys()), None)
    of_picture = _picture_column(known)
    # A class in words says more than a flag.
    if box is None or of_picture is None or _named(known, "class"):
        return None
    places = [known[side] for side in box]
    flags = [place for place in range(len(header)) if place not in (*places, known[of_picture])]
    flags = _flags_of_boxes(rows(), len(header), places, flags)
    if len(flags) != 1:
        return None
    (flag,) = flags
    label, is_corner_size = header[flag], _is_corner_size(rows(), len(header), places, box)

    def convert(_: str, row: Row) -> Iterator[Row]:
        cells = [row[column] for column in header]
        sides = [cells[place] for place in places]
        rest = {
            column: cell
            for place, (column, cell) in enumerate(zip(header, cells, strict=True))
            if place not in (*places, flag, known[of_picture])
        }
        written: Mapping[str, object] = dict(zip((header[place] for place in places), sides, strict=True))
        if is_corner_size:
            written = {BOX_LIST: f"[{', '.join(map(str, sides))}]" if str(sides[0]).strip() else ""}
        is_object = class_number(str(cells[flag]).strip()) == 1
        yield {**rest, "filename": cells[known[of_picture]], **written, "class": label if is_object else ""}

    others = [
        column for place, column in enumerate(header) if place not in (*places, flag, known[of_picture])
    ]
    shown = [BOX_LIST] if is_corner_size else [header[place] for place in places]
    return TableForm(
        convert=convert,
        columns=(*others, "filename", *shown, "class"),
        note=f"boxes of {name} were taken for the class {label}, a column that is 1 where a row has a box"
        + (
            ", with x and y of the upper left corner, as centers would leave the pictures"
            if is_corner_size
            else ""
        ),
    )


def may_hold_flagged_boxes(header: Sequence[str]) -> bool:
    """Return whether a table has the columns of a picture and of a box, and one more that may be the flag.

    >>> may_hold_flagged_boxes("patientId,x,y,width,height,Target".split(","))
    True
    """
    known = {normalize_name(column): place for place, column in enumerate(header)}
    box = next((sides for sides in _BOXES if set(sides) <= known.keys()), None)
    is_whole = box is not None and len(known) == len(header) == len(box) + 2
    return is_whole and _picture_column(known) is not None and not _named(known, "class")


def _named(known: Mapping[str, int], column: str) -> bool:
    return any(spelling in known for rank in SPELLINGS[column] for spelling in rank)


def _picture_column(known: Mapping[str, int]) -> str | None:
    """Return the column that names the pictures."""
    named = next((spelling for rank in SPELLINGS["filename"] for spelling in rank if spelling in known), None)
    return named or (_PICTURE if _PICTURE in known else None)


def _flags_of_boxes(
    rows: Iterable[tuple[int, list[str]]], width: int, places: Sequence[int], flags: Sequence[int]
) -> list[int]:
    """Return the columns that are 1 in each row with a box, and 0 in each row without one; [] without both kinds."""
    left, seen = list(flags), set[bool]()
    for _, cells in rows:
        # A row of another length is a fault, which the table's reader reports.
        if len(cells) != width:
            continue
        boxed = [bool(cells[place].strip()) for place in places]
        if len(set(boxed)) > 1:
            return []
        seen.add(boxed[0])
        left = [place for place in left if class_number(cells[place].strip()) == int(boxed[0])]
        if not left:
            return []
    return left if len(seen) == 2 else []


def _is_corner_size(
    rows: Iterable[tuple[int, list[str]]], width: int, places: Sequence[int], box: Sequence[str]
) -> bool:
    """Return whether x and y are a corner: as the center, half of a box would lie outside of its picture."""
    if box[2] == "xmax":
        return False
    for _, cells in rows:
        numbers = [class_number(cells[place].strip()) for place in places if len(cells) == width]
        known = [number for number in numbers if number is not None]
        if len(known) < len(places):
            continue
        x, y, across, down = known
        if x < across / 2 - _SLACK_PIXELS or y < down / 2 - _SLACK_PIXELS:
            return True
    return False
