"""Reader of class tables in documents of dicts, lists and scalars: JSON, YAML and XML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from halofeed.prep.annotations.class_columns import (
    INTEGER,
    ClassGrid,
    UnclearTableError,
    color_in_cell,
    table_of_grid,
)
from halofeed.prep.annotations.class_rows import ClassRow, ClassTable, first_value
from halofeed.prep.annotations.class_tables import CLEAR_FORM
from halofeed.system.errors import AnnotationsError

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
"""Keys of class tables, which decide where several parts of a document can be one."""


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
    found, unclear = _tables_in(name, _names_of_label_map(document), first)
    named = {path: table for path, table in found.items() if path.rpartition(".")[2] in _TABLE_KEYS}
    chosen = named or found
    if not chosen:
        problem = f"{unclear}; " if unclear else ""
        raise AnnotationsError(
            f'{name}: {problem}expected ["hat", ...], {{"hat": 1, ...}} or {{"1": "hat", ...}}'
        )
    table = next(iter(chosen.values()))
    # Two parts may name the same classes (id2label and label2id of Hugging Face models); else one must be chosen.
    if any(other.names != table.names for other in chosen.values()):
        places = [path or "the document" for path in chosen][:3]
        raise AnnotationsError(f"{name}: {' and '.join(places)} name different classes; {CLEAR_FORM}")
    return table


def _names_of_label_map(document: Any) -> Any:
    """Return the names in the form of `LabelMap.to_json`, which has other dicts beside them; else the document."""
    # `aliases` and `values` beside the names would be read as separate tables.
    if isinstance(document, dict) and isinstance(document.get("names"), dict) and "first_id" in document:
        return document["names"]
    return document


def _tables_in(name: str, document: Any, first: int) -> tuple[dict[str, ClassTable], str]:
    """Return the class tables by their paths in a document, and why the first unclear part is not a table."""
    found: dict[str, ClassTable] = {}
    unclear = ""
    for path, part in _parts(document, ""):
        try:
            table = _table_of_part(name, path, part, first)
        except UnclearTableError as error:
            unclear = unclear or f"{path or 'the document'}: {error}"
            continue
        if table is not None:
            found[path] = table
    return found, unclear


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
    if not part:
        return None
    # The order of a list is its values, as in a file of lines.
    if isinstance(part, list) and _are_texts(part):
        names = [one.strip() for one in part]
        return _table(name, place, enumerate(names, first_value(names[0], first)), is_numbered=False)
    if isinstance(part, dict) and (pairs := pairs_of_dict(part)) is not None:
        return _table(name, place, pairs, is_numbered=True)
    grid = _grid_of_list(place, part) if isinstance(part, list) else _grid_of_dict(place, part)
    return None if grid is None else table_of_grid(name, grid, first)


def _table(name: str, place: str, pairs: Iterable[tuple[int, str]], *, is_numbered: bool) -> ClassTable:
    rows = (ClassRow(value=value, name=one, place=place) for value, one in pairs)
    return ClassTable(where=name, rows=tuple(rows), is_numbered=is_numbered)


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(one, str) for one in values)


def _are_dicts(values: Iterable[Any]) -> bool:
    return all(isinstance(one, dict) for one in values)


def pairs_of_dict(part: Mapping[str, Any]) -> list[tuple[int, str]] | None:
    """Return (value, name) of a dict with the names or the values as keys; None if it is neither."""
    if all(type(one) is int for one in part.values()):  # not a bool, which is an int in Python
        return [(one, key) for key, one in part.items()]
    if not _are_texts(part.values()):
        return None
    # Where keys and values are numbers, the keys are the values, as in the Decathlon's dataset.json.
    if all(map(INTEGER.fullmatch, part)):
        return [(int(key), one) for key, one in part.items()]
    if all(map(INTEGER.fullmatch, part.values())):
        return [(int(one), key) for key, one in part.items()]
    return None


def _grid_of_list(place: str, part: Sequence[Any]) -> ClassGrid | None:
    return _grid_of_entries(place, part) if _are_dicts(part) else None


def _grid_of_dict(place: str, part: Mapping[str, Any]) -> ClassGrid | None:
    # The keys are the names or values of the entries: {"1": {"name": "cat"}}.
    if _are_dicts(part.values()):
        return _grid_of_entries(place, [{"": key, **one} for key, one in part.items()])
    if _are_texts(part.values()) and _are_colors(part):
        part = {one: color for color, one in part.items()}  # A2D2 has {"#ff0000": "Car 1"}
    # Keys that are numbers would be values, and the dict may be anything, such as the sizes of pictures.
    has_names = not all(INTEGER.fullmatch(str(key)) for key in part)
    if not has_names or not _are_colors(part.values()):
        return None
    rows = tuple(part.items())
    return ClassGrid(header=("name", "color"), rows=rows, places=(place,) * len(rows))


def _are_colors(values: Iterable[Any]) -> bool:
    return all(color_in_cell(one) is not None for one in values)


def _grid_of_entries(place: str, entries: Sequence[Mapping[str, Any]]) -> ClassGrid | None:
    """Return the grid of entries with the same keys; keys that some entries lack are left out."""
    shared = [key for key in entries[0] if all(key in one for one in entries)]
    columns = {key: [one[key] for one in entries] for key in shared}
    # A list or dict in a cell describes something other than the class, unless the list is a color.
    columns = {key: cells for key, cells in columns.items() if all(map(_is_cell, cells))}
    if not any(map(_are_texts, columns.values())):
        return None
    places = tuple(f"{place}[{number}]" for number in range(len(entries)))
    return ClassGrid(header=tuple(columns), rows=tuple(zip(*columns.values(), strict=True)), places=places)


def _is_cell(value: Any) -> bool:
    return isinstance(value, str | int | float) or color_in_cell(value) is not None


# XML ------------------------------------------------------------------------------------------------------


def xml_entries(root: Element) -> dict[str, Any]:
    """Return the elements of an XML file that come several times, as dicts of their attributes, texts and children."""
    counts_from_1 = _is_probability_atlas(root)
    found: dict[str, Any] = {}
    for parent in root.iter():
        children = list(parent)
        # Children of several kinds are fields of one thing, such as the header of an atlas.
        if not children or any(child.tag != children[0].tag for child in children):
            continue
        entries = [_xml_entry(child) for child in children]
        if counts_from_1 and all("value" not in one for one in entries):
            entries = [{**one, "index": int(one["index"]) + 1} for one in entries if "index" in one]
        found[f"{parent.tag}.{children[0].tag}s"] = entries
    return found


def _is_probability_atlas(root: Element) -> bool:
    """Return whether an XML file is an atlas of FSL whose labels are numbered from 0.

    The label images of an atlas of probabilities count from 1 (fsl.data.atlases.AtlasLabel): `index` is the value only
    in an atlas of type Label, or beside a `value`.
    """
    kind = (root.findtext("header/type") or "").strip().lower()
    return root.tag == "atlas" and kind.startswith("prob")


def _xml_entry(element: Element) -> dict[str, Any]:
    text = (element.text or "").strip()
    parts = {child.tag: (child.text or "").strip() for child in element}
    return {**element.attrib, **({"name": text} if text else {}), **parts}
