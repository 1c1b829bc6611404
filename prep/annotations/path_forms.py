"""Paths as tables: paths of one form are cut into fields, and each field is a column.

volume-3_slice_010.png        volume | 3 | slice | 010
volume-3_slice_011.png   ->   volume | 3 | slice | 011
volume-4_slice_010.png        volume | 4 | slice | 010
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

_FIELD = re.compile(r"[^\W_]+")
_TWO_NUMBERS = re.compile(r"([^\W\d_]*)(\d+)([^\W\d_]+)(\d+)([^\W\d_]*)")
"""Two numbers, each behind letters: v1f20."""
IMAGE_SIZE = re.compile(r"\d{2,5}x\d{2,5}")
"""Size of a picture in its name, which repeats by its nature."""


@dataclass(frozen=True, kw_only=True)
class PathForm:
    """Paths of one form, as a table with a column for each field.

    Args:
        sources: the paths.
        classes: classes of each path.
        columns: values of each field, in the order of the paths.
        separators: text before the first column, between the columns, and behind the last one.
    """

    sources: Sequence[str]
    classes: Mapping[str, str]
    columns: Sequence[Sequence[str]]
    separators: tuple[str, ...]


def path_fields(path: str, whole: Container[tuple[int, int]] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a path and the text around them.

    Args:
        whole: (number of folders, place among them) of folders that are one field.

    >>> path_fields("a/P1_0.png"), path_fields("car-turn/7.png", {(1, 0)})
    ((('a', 'P1', '0', 'png'), ('', '/', '_', '.', '')), (('car-turn', '7', 'png'), ('', '/', '.', '')))
    """
    *folders, name = path.split("/")
    fields: list[str] = []
    around = [""]
    for place, part in enumerate((*folders, name)):
        is_whole = (len(folders), place) in whole and place < len(folders)
        inner = [part] if is_whole else _FIELD.findall(part)
        first, *more = ("", "") if is_whole else _FIELD.split(part)
        around[-1] += first
        around += more
        fields += inner
        around[-1] += "/" if place < len(folders) else ""
    return tuple(fields), tuple(around)


def whole_folders(paths: Iterable[str]) -> set[tuple[int, int]]:
    """Return the folders whose names have different forms, such as bear and car-turn, so that each is one field."""
    forms: dict[tuple[int, int], set[tuple[str, ...]]] = {}
    for path in paths:
        folders = path.split("/")[:-1]
        for place, folder in enumerate(folders):
            forms.setdefault((len(folders), place), set()).add(tuple(_FIELD.split(folder)))
    return {place for place, some in forms.items() if len(some) > 1}


def path_forms(classes: Mapping[str, str], cuts_letters: bool = False) -> list[PathForm]:
    """Return the tables of paths that have the same text between their fields.

    Args:
        classes: classes by path.
        cuts_letters: cut letters from digits: austin12.png, 12L.png.
    """
    by_form: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
    whole = whole_folders(classes)
    for source in classes:
        fields, separators = path_fields(source, whole)
        by_form.setdefault(separators, {})[source] = fields
    # One path of a form shows nothing that repeats.
    return [
        _form(separators, fields_of, classes, cuts_letters)
        for separators, fields_of in by_form.items()
        if len(fields_of) > 1
    ]


def _form(
    separators: Sequence[str],
    fields_of: Mapping[str, Sequence[str]],
    classes: Mapping[str, str],
    cuts_letters: bool,
) -> PathForm:
    """Return the table of paths with these fields, with two columns for fields that hold two values."""
    columns: list[Sequence[str]] = []
    between = [separators[0]]
    for column, after in zip(zip(*fields_of.values(), strict=True), separators[1:], strict=True):
        parts = _cut_column(column)
        # A column that was cut into two numbers has its letters in place already.
        if cuts_letters and len(parts) == 1:
            parts = _cut_letters(column)
        columns += parts
        between += [""] * (len(parts) - 1) + [after]
    return PathForm(
        sources=list(fields_of),
        classes={source: classes[source] for source in fields_of},
        columns=columns,
        separators=tuple(between),
    )


def _cut_column(column: Sequence[str]) -> list[Sequence[str]]:
    """Return the column, or two if each value is two numbers after the same letters, such as v1f20.

    >>> _cut_column(["v1f20", "v12f3"]), _cut_column(["640x480", "1024x768"]), _cut_column(["53e4", "7f12"])
    ([['v1', 'v12'], ['f20', 'f3']], [['640x480', '1024x768']], [['53e4', '7f12']])
    """
    # Sizes have two numbers that belong together.
    if all(map(IMAGE_SIZE.fullmatch, column)):
        return [column]
    matches = [_TWO_NUMBERS.fullmatch(value) for value in column]
    # Letters that differ, as in 53e4 and 7f12, are those of hashes.
    if not all(matches) or len({(one[1], one[3], one[5]) for one in matches if one}) > 1:
        return [column]
    return [[one[1] + one[2] for one in matches if one], [one[3] + one[4] + one[5] for one in matches if one]]


def _cut_letters(column: Sequence[str]) -> list[Sequence[str]]:
    """Return the column, or two if each value is letters before a number, or a number before letters.

    >>> _cut_letters(["ulm1", "bonn12"]), _cut_letters(["10L", "12R"]), _cut_letters(["P1", "P2"])
    ([['ulm', 'bonn'], ['1', '12']], [['10', '12'], ['L', 'R']], [['P1', 'P2']])
    """
    for form in (r"([^\W\d_]+)([0-9]+)", r"([0-9]+)([^\W\d_]+)"):
        matches = [re.fullmatch(form, value) for value in column]
        if all(matches):
            parts = [[one[number] for one in matches if one] for number in (1, 2)]
            # Letters that are the same for all, as in P1 and P2, name no group.
            if all(len(set(part)) > 1 for part in parts):
                return list(parts)
    return [column]


def are_whole_numbers(values: Iterable[str]) -> bool:
    """Return whether all values are digits, which Python also finds in other scripts."""
    return all(value.isascii() and value.isdigit() for value in values)


# Patterns -------------------------------------------------------------------------------------------------


def group_patterns(found: Sequence[tuple[PathForm, int]], count: int) -> Iterable[str]:
    """Yield patterns for --group-pattern, simple ones first.

    Args:
        found: tables of paths, with the column of the group.
        count: number of all paths, of which some may have other forms.
    """
    parts: list[tuple[str, str]] = []
    for form, place in found:
        rest = re.escape(form.separators[place + 1]) + "".join(
            _written(form, other) + re.escape(form.separators[other + 1])
            for other in range(place + 1, len(form.columns))
        )
        parts.append((_written(form, place), rest))
    if len(parts) == 1 and len(found[0][0].sources) == count:
        (head, rest), (form, place) = parts[0], found[0]
        # A search may find such a text further in front; the second pattern is bound to the start of the path.
        yield f"({head}){rest}$"
        yield f"^{_before(form, place)}({head}){rest}$"
    parts = list(dict.fromkeys(parts))
    # The group of a path of another form is the path itself.
    heads = "|".join(f"{head}(?={rest}$)" for head, rest in parts)
    wholes = "|".join(f"{head}{rest}" for head, rest in parts)
    wholes = f"(?:{wholes})" if len(parts) > 1 else wholes
    yield f"({heads}|^(?!.*{wholes}$).+)"
    yield f"(?<![^/])({heads}|^(?!(?:.*/)?{wholes}$).+)"


def _before(form: PathForm, place: int) -> str:
    return re.escape(form.separators[0]) + "".join(
        _written(form, other) + re.escape(form.separators[other + 1]) for other in range(place)
    )


def _written(form: PathForm, place: int) -> str:
    """Return a pattern for the values of a column: the value itself, numbers, or letters and digits."""
    values = set(form.columns[place])
    if len(values) == 1:
        return re.escape(next(iter(values)))
    if are_whole_numbers(values):
        return "[0-9]+"
    if not all(map(_FIELD.fullmatch, values)):  # a folder that is one field, see `whole_folders`
        return "[^/]+"
    if (head := _common_head(values)) is not None:
        return f"{re.escape(head)}[0-9]+"
    # Where letters are cut from digits, no sign separates the two columns.
    is_cut = not form.separators[place + 1] or (place > 0 and not form.separators[place])
    return r"[^\W\d_]+" if is_cut and all(map(str.isalpha, values)) else r"[^\W_]+"


def _common_head(values: Collection[str]) -> str | None:
    """Return the letters before the number of each value, if these are the same; None for other values.

    >>> _common_head(["P1", "P12"]), _common_head(["P1", "Q1"]), _common_head(["P1a"])
    ('P', None, None)
    """
    matches = [re.fullmatch(r"([^\W\d_]*)[0-9]+", value) for value in values]
    heads = {match and match[1] for match in matches}
    return heads.pop() if len(heads) == 1 else None
