"""Which classes the rows of a table give to one picture."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence

from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.rows import Row
from halofeed.schemas.errors import AnnotationsError, SourceError

_SEPARATORS = ("|", ";", ",")
"""Characters at which people write several classes into one cell."""
_MOST_NAMED = 5


def listed_classes(cell: str) -> tuple[str, ...] | None:
    """The classes of a cell that holds a list, as JSON or as Python writes it; None where it is plain text.

    >>> listed_classes('["hat", "coat"]'), listed_classes("['hat']"), listed_classes("[]"), listed_classes("[hat]")
    (('hat', 'coat'), ('hat',), (), None)
    """
    if not (cell.startswith("[") and cell.endswith("]")):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list) and all(
            isinstance(one, str | int) and not isinstance(one, bool) for one in found
        ):
            return tuple(str(one).strip() for one in found)
    return None


def check_separators(places: Mapping[str, str], options: LayoutOptions) -> None:
    """Refuse a class whose parts are classes of other rows, where nobody said whether it is several.

    Args:
        places: of each class, as a row writes it, the first place.

    Raises:
        AnnotationsError: with the option that says it.
    """
    if options.class_separator != "auto":
        return
    for cell, place in places.items():
        for separator in _SEPARATORS:
            parts = [part.strip() for part in cell.split(separator)]
            if len(parts) > 1 and all(part and part in places for part in parts):
                raise AnnotationsError(
                    f"{place}: class {cell!r} looks like {len(parts)} classes, as each part is a class of other rows; "
                    f"say --class-separator {separator!r}, or none if it is one class"
                )


def classes_of(source: str, rows: Sequence[Row], options: LayoutOptions) -> tuple[str, ...]:
    """The classes of one picture, each once.

    Raises:
        AnnotationsError: there are several, and nobody said that they shall be kept.
        SourceError: a row has no class; an empty list stands for none where several are kept.
    """
    if len(rows) == 1 and len(only := written_classes(rows[0], options)) == 1:
        return (only[0],)
    places: dict[str, str] = {}
    lacking = None
    for row in rows:
        found = written_classes(row, options)
        lacking = lacking or (None if found else row)
        for name in found:
            places.setdefault(name, row.place)
    if lacking is not None and (places or options.several_classes == "refuse" or not _is_empty_list(lacking)):
        raise SourceError("annotation", "row has no class", lacking.place)
    if len(places) > 1 and options.several_classes == "refuse":
        count = "two" if len(places) == 2 else f"{len(places)}"
        named = " and ".join(f"{name!r} ({place})" for name, place in [*places.items()][:_MOST_NAMED])
        more = ", ..." if len(places) > _MOST_NAMED else ""
        raise AnnotationsError(
            f"{source}: {count} values of class: {named}{more}; an image has one class; --several-classes keep keeps "
            "them all"
        )
    return tuple(places)


def _is_empty_list(row: Row) -> bool:
    return listed_classes(row.cell("class")) == ()


def written_classes(row: Row, options: LayoutOptions) -> list[str]:
    """The classes that one row gives; SourceError where one has no name."""
    cell = row.cell("class")
    listed = listed_classes(cell)
    if listed is None:
        separator = options.class_separator
        if separator in ("auto", "none") or not cell:
            return [cell] if cell else []
        # Blanks alone part as people see them: several are one.
        listed = tuple(part.strip() for part in cell.split(separator if separator.strip() else None))
    if not all(listed):
        raise SourceError("annotation", "class has no name", f"{row.place}: {cell!r}"[:200])
    return list(listed)
