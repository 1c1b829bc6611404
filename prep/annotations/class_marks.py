"""Tables with a column for each class, and what the values in these columns mean.

    filename,hat,coat
    a.jpg,1,0             0 and 1; true and false
    b.jpg,-1,1            -1 means no where no column has a 0 (CelebA), and is unclear beside 0 (uncertain in CheXpert)
    c.jpg,,1              nothing means no where the columns hold nothing else but 1, and is unclear beside 0 and -1

`--class-marks no=-1,reject=blank` states what a value means.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from halofeed.prep.annotations.columns import CORNERS, ColumnMapping, normalize_name
from halofeed.prep.annotations.container_rows import FAULT
from halofeed.prep.annotations.contract import LayoutOptions, is_split_name
from halofeed.prep.annotations.stated_columns import no_such_column, parse_columns
from halofeed.prep.annotations.table_forms import Row, TableForm
from halofeed.system.errors import AnnotationsError, UsageError
from halofeed.system.wording import did_you_mean

_MEANINGS = ("yes", "no", "reject")
_BLANK = "blank"
_MARKS = frozenset(("", "0", "1", "-1"))
"""Values of columns of classes, as `_mark` writes them."""
_WORDS = {"true": "1", "false": "0", "nan": "", "none": "", "null": ""}
"""Other texts of these values: those of JSON, Python and pandas."""


class OptionsNeededError(AnnotationsError):
    """A table may be read in several ways, and the message names all options that it needs, to be typed once."""


Entries = Callable[[], Iterable[tuple[int, Mapping[str, object], tuple[str, str] | None]]]
"""Function that returns (line, row, fault) of each row."""


def parse_class_marks(written: Sequence[str]) -> dict[str, str]:
    """Return the meaning of each value in `--class-marks MEANING=VALUE`.

    Raises:
        UsageError: a meaning is unknown, or a value has two.

    >>> parse_class_marks(["no=-1", "reject=blank"])
    {'-1': 'no', '': 'reject'}
    """
    found: dict[str, str] = {}
    for text in written:
        meaning, sign, value = (part.strip() for part in text.partition("="))
        if not sign or meaning not in _MEANINGS:
            near = did_you_mean(meaning, _MEANINGS)
            raise UsageError(
                f"--class-marks {text}: {near}expected yes=VALUE, no=VALUE or reject=VALUE, such as no=-1 or no=blank"
            )
        mark = "" if value == _BLANK else _mark(value)
        if found.setdefault(mark, meaning) != meaning:
            raise UsageError(
                f"--class-marks {text}: {value} means {found[mark]} already; leave one of them out"
            )
    return found


def _mark(value: object) -> str:
    """Return a cell in one form for all ways to write it.

    >>> [_mark(one) for one in (" 1.0", True, None, -1.0, "X", float("nan"), 0)]
    ['1', '1', '', '-1', 'x', '', '0']
    """
    # A list or an object is no mark, and cannot be a key of the cache.
    return _mark_of(value) if isinstance(value, str | int | float | None) else repr(value)


@lru_cache(maxsize=4096)
def _mark_of(value: str | float | None) -> str:
    text = str("" if value is None else value).strip().lower()
    # 1.0, as pandas writes a column of numbers with gaps.
    return _WORDS.get(text, text).removesuffix(".0")


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Columns of classes in a table.

    Args:
        names: columns, which are the classes.
        values: every value in them.
        most: most values in one row that are 1.
        others: columns without a known meaning that hold other values.
    """

    names: tuple[str, ...]
    values: frozenset[str]
    most: int = 0
    others: tuple[str, ...] = ()


def class_columns_form(
    name: str, header: Sequence[str], mapping: ColumnMapping, entries: Entries, options: LayoutOptions
) -> TableForm | None:
    """Return the form of a table with a column for each class; None for other tables.

    Args:
        name: name of the table, for messages.
        header: its columns, which are distinct.
        mapping: meaning of the columns, without those of classes.
        entries: returns the rows.
        options: options, of which `column` may name the columns and `class_marks` what their values mean.

    Raises:
        AnnotationsError: a value may have two meanings, or only some columns may be classes.
    """
    # Without a picture no row can be read, which another message tells.
    if "filename" not in mapping.known:
        return None
    given = parse_class_marks(options.class_marks)
    stated = parse_columns(options.column).get("label", ())
    columns: _Columns | None
    if len(stated) > 1:
        columns = _stated_columns(name, header, stated, entries, given)
    else:
        found = _possible_columns(mapping, options)
        columns = _columns_of(found, entries, given) if found and not stated else None
    if columns is None:
        return None
    meanings, unclear = _meanings(columns, given)
    if columns.others or unclear:
        raise OptionsNeededError(_ask(name, columns, unclear, options))
    note = _note(name, columns, given)
    others = _other_columns(header, mapping, columns.names)
    return _form(columns.names, meanings, others, note, mapping.columns["filename"])


def _possible_columns(mapping: ColumnMapping, options: LayoutOptions) -> tuple[str, ...]:
    """Return the columns that may be a class each; () if there are classes, boxes or splits."""
    found = tuple(column for column in mapping.unread if column and column not in options.ignore_columns)
    # One column of 0 and 1 may be any flag.
    if {"class", "xmin"} & set(mapping.known) or len(found) < 2:
        return ()
    # is_train and is_test are splits.
    if any(is_split_name(normalize_name(column).removeprefix("is")) for column in found):
        return ()
    return found


def _stated_columns(
    name: str, header: Sequence[str], stated: Sequence[str], entries: Entries, given: Mapping[str, str]
) -> _Columns:
    """Return the columns that the user names; raise AnnotationsError if one is missing or holds other values."""
    for column in stated:
        if column not in header:
            raise no_such_column(name, "label", column, header)
    for line, row, fault in entries():
        for column in stated if fault is None else ():
            if (mark := _mark(row.get(column))) not in _MARKS and mark not in given:
                value = str(row.get(column)).strip()
                fix = shlex.join(["--class-marks", f"yes={value}"])
                raise AnnotationsError(
                    f"{name}:{line}: column {column} holds {value[:80]!r} and is named as a class; expected "
                    f"1, 0, -1 or nothing; say what it means, such as {fix}, or name one column of classes"
                )
    found = _columns_of(stated, entries, given)
    return found or _Columns(names=tuple(stated), values=frozenset())


def _columns_of(columns: Sequence[str], entries: Entries, given: Mapping[str, str]) -> _Columns | None:
    """Return which of some columns hold the values of classes alone; None if fewer than two do."""
    known = _MARKS | given.keys()
    values: dict[str, set[str]] = {column: set() for column in columns}
    others: dict[str, None] = {}
    most = 0
    for _, row, fault in entries():
        if fault is not None:
            continue
        yes = 0
        for column in [column for column in values if column not in others]:
            mark = _mark(row.get(column))
            # A column with any other value is a measure or a name, and not a class.
            if mark not in known:
                others[column] = None
            else:
                values[column].add(mark)
                yes += mark == "1"
        most = max(most, yes)
    # A column without any value says nothing.
    names = tuple(column for column in columns if column not in others and values[column] - {""})
    if len(names) < 2:
        return None
    found = frozenset().union(*(values[column] for column in names))
    return _Columns(names=names, values=found, most=most, others=tuple(others))


def _meanings(columns: _Columns, given: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the meaning of each value in columns of classes, and the values that may have two."""
    meanings = {"1": "yes", "0": "no", **given}
    values = columns.values - given.keys()
    # CelebA has 1 and -1 alone; CheXpert's -1, beside 0, is a finding of which the report is not certain.
    if "0" not in columns.values:
        meanings.setdefault("-1", "no")
    # Marks alone: 1 where a class is present, and nothing elsewhere.
    if not columns.values & {"0", "-1"}:
        meanings.setdefault("", "no")
    return meanings, sorted(value for value in values if value not in meanings)


def _ask(name: str, columns: _Columns, unclear: Sequence[str], options: LayoutOptions) -> str:
    """Return the message with all options that a table of columns of classes needs."""
    words = []
    if columns.others:
        words += ["--column", ",".join(f"label={column}" for column in columns.names)]
    if columns.most > 1 and options.several_classes == "refuse":
        words += ["--several-classes", "keep"]
    marks = [one or _BLANK for one in unclear]
    no, reject = (",".join(f"{meaning}={one}" for one in marks) for meaning in ("no", "reject"))
    if unclear:
        words += ["--class-marks", no]
    command = shlex.join(words)
    listed = ", ".join(columns.others[:5])
    held = " and ".join(one or "nothing" for one in unclear)
    beside = " and ".join(one for one in ("0", "1", "-1") if one in columns.values and one not in unclear)
    asked = f"columns of classes hold {held} beside {beside}, which may mean no, uncertain or unknown"
    others = "leaves out the pictures with it, and yes=VALUE takes a value for yes"
    if not columns.others:
        return f"{name}: {asked}; {command} takes it for no, --class-marks {reject} {others}"
    marked = f"; {asked}: {no} takes it for no, {reject} {others}" if unclear else ""
    return (
        f"{name}: no column class. Columns {', '.join(columns.names[:5])} hold only 0, 1, -1 or nothing, as columns of "
        f"classes do, and {listed} hold other values; if these are the classes: {command}{marked}"
    )


def _note(name: str, columns: _Columns, given: Mapping[str, str]) -> str:
    held = " or ".join(one or "nothing" for one in sorted(columns.values, key=_order))
    # Without a 0, -1 or nothing is what the other columns say.
    no = [one or "nothing" for one in ("-1", "") if one in columns.values - given.keys()]
    taken = f", and {' and '.join(no)} was taken for no" if no else ""
    return f"columns of {name} were taken for classes, as all hold {held}{taken}: {', '.join(columns.names)}"


def _order(mark: str) -> tuple[bool, str]:
    return not mark, mark


def _other_columns(header: Sequence[str], mapping: ColumnMapping, names: Sequence[str]) -> tuple[str, ...]:
    left_out = {*names, *(mapping.columns.get(side) for side in CORNERS)}
    # The column of the result is called class.
    return tuple(column for column in header if column not in left_out and column.lower() != "class")


def _form(
    names: tuple[str, ...], meanings: Mapping[str, str], others: tuple[str, ...], note: str, picture: str
) -> TableForm:
    def convert(_: str, row: Row) -> Iterator[Row]:
        found = {column: meanings[_mark(row.get(column))] for column in names}
        marked = [column for column, meaning in found.items() if meaning == "yes"]
        result: dict[str, Any] = {column: row[column] for column in others if column in row}
        result["class"] = json.dumps(marked)
        if rejected := [column for column, meaning in found.items() if meaning == "reject"]:
            shown = ", ".join(f"{column} is {row.get(column) or 'blank'}" for column in rejected[:3])
            result[FAULT] = ("value of a class leaves the picture out", shown)
        yield result

    return TableForm(
        convert=convert,
        columns=(*others, "class"),
        note=note,
        classes=names,
        resolves=frozenset(("label",)),
        named={"image": picture},
    )
