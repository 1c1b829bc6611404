"""Columns that the user names: `--column label=fine_label` says which column of a table has a meaning.

A meaning is a name of `MEANINGS`. The same names serve every kind of table: CSV, JSONL, Parquet, the members of
WebDataset and the features of TFRecord files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from halofeed.system.errors import AnnotationsError, UsageError
from halofeed.system.wording import did_you_mean, nearest_name

MEANINGS = (
    *("image", "label", "split", "group", "id", "width", "height"),
    *("xmin", "ymin", "xmax", "ymax", "x", "y", "w", "h", "bbox", "objects"),
    *("area", "is_crowd", "difficult", "truncated", "occluded", "group_of", "corners"),
)
"""Names of meanings, in the order of the messages."""
_ALSO = {
    **dict.fromkeys(("filename", "file_name", "file", "path", "picture", "scan"), "image"),
    **dict.fromkeys(("class", "classes", "labels", "category", "mask"), "label"),
}
"""Other words for a meaning: those that the tables themselves use."""
_MAX_FOUND = 30
_SHARED = ("id", "group", "split")
"""Meanings that a column may have beside another one: the id of a picture may be its file name."""

Stated = Mapping[str, tuple[str, ...]]
"""Columns by their meaning; only a label may have several, one for each class."""


def parse_columns(written: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the columns of each meaning in `--column MEANING=COLUMN`.

    Raises:
        UsageError: a meaning is unknown, is given twice, or two meanings have one column.

    >>> parse_columns(["label=fine_label", "filename=isic_id"])
    {'label': ('fine_label',), 'image': ('isic_id',)}
    >>> parse_columns(["label=MEL", "label=NV"])
    {'label': ('MEL', 'NV')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in written:
        name, sign, column = (part.strip() for part in text.partition("="))
        if not sign or not column:
            raise UsageError(f"--column {text}: expected MEANING=COLUMN, such as label=fine_label")
        meaning = _ALSO.get(name.lower(), name.lower())
        if meaning not in MEANINGS:
            near = nearest_name(name, (*MEANINGS, *_ALSO))
            hint = f"did you mean {near}? " if near else ""
            raise UsageError(
                f"--column {text}: no meaning {name!r}; {hint}expected one of {', '.join(MEANINGS)}"
            )
        columns = found.get(meaning, ())
        if column in columns or (columns and meaning != "label"):
            raise UsageError(
                f"--column {text}: {name} comes twice, first as {columns[0]!r}; leave one of them out"
            )
        found[meaning] = (*columns, column)
    _refuse_shared(found)
    return found


def _refuse_shared(found: Stated) -> None:
    owners: dict[str, str] = {}
    for meaning, columns in found.items():
        for column in columns:
            if meaning in _SHARED:
                continue
            # The file name as the class of a picture would make each picture its own class.
            if (owner := owners.setdefault(column, meaning)) != meaning:
                raise UsageError(
                    f"--column: {column!r} is named as {owner} and as {meaning}; leave one of them out"
                )


def check_stated(name: str, header: Sequence[str], stated: Stated) -> None:
    """Raise AnnotationsError if a table lacks a column that the user names; the message has the nearest ones.

    >>> check_stated("t.csv", ["image", "fine_label"], {"label": ("fine_lable",)})
    Traceback (most recent call last):
        ...
    halofeed.system.errors.AnnotationsError: t.csv: --column label=fine_lable: no such column; did you mean \
fine_label? found image, fine_label
    """
    for meaning, columns in stated.items():
        for column in columns:
            if column not in header:
                raise no_such_column(name, meaning, column, header)


def no_such_column(name: str, meaning: str, column: str, known: Collection[str]) -> AnnotationsError:
    """Return the error about a column that the user names and a file lacks."""
    named = [one for one in known if one]
    more = ", ..." if len(named) > _MAX_FOUND else ""
    found = ", ".join(named[:_MAX_FOUND]) + more or "none"
    # A part of a name is less like it than the spelling check asks for.
    longer = next((one for one in named if column.casefold() in one.casefold()), None)
    near = f"did you mean {longer}? " if longer else did_you_mean(column, named)
    return AnnotationsError(f"{name}: --column {meaning}={column}: no such column; {near}found {found}")


def single_columns(stated: Stated, without: Collection[str] = ()) -> dict[str, str]:
    """Return the column of each meaning that has one, but of those in `without`.

    >>> single_columns({"label": ("MEL", "NV"), "image": ("isic_id",)})
    {'image': 'isic_id'}
    """
    return {
        meaning: columns[0]
        for meaning, columns in stated.items()
        if len(columns) == 1 and meaning not in without
    }
