"""Columns of tables of boxes in scans: the scan, the class, and the forms of a box."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from halofeed.prep.annotations.columns import ColumnMapping, normalize_name
from halofeed.prep.annotations.table_forms import TableForm
from halofeed.system.errors import AnnotationsError

LUNA16_COLUMNS: Final = ("seriesuid", "coordx", "coordy", "coordz", "diametermm")
_UNIT_SUFFIX = re.compile(r"(?P<name>.+?)(?P<unit>mm|vox|voxels?|px|pixels?|idx|index)?")
_AXES = "xyz"
_SIDES = {"x": "width", "y": "height", "z": "depth"}

_NAMES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "scan": (
        (
            "filename",
            "image",
            "scan",
            "volume",
            "imagename",
            "imagepath",
            "filepath",
            "scanname",
            "volumename",
        ),
        ("seriesuid", "seriesinstanceuid", "seriesid"),
        ("case", "caseid", "scanid", "imageid", "volumeid", "file", "path", "id"),
    ),
    "class": (
        ("class",),
        ("classname", "label", "labelname", "category", "categoryname", "cls"),
        ("classid", "labelid"),
    ),
    "split": (("split",),),
    "ignored": (("ignored", "ignore", "iscrowd", "crowd"),),
    "group": (("group", "groupid"), ("patient", "patientid", "subject", "subjectid")),
}
"""Spellings of the columns beside the coordinates, in ranks: the first rank with a match decides."""
_STATED: Final = {
    "image": "scan",
    "label": "class",
    "split": "split",
    "group": "group",
    "is_crowd": "ignored",
}
"""Our names of the meanings of --column."""
SCAN_SPELLINGS: Final = {"scan": _NAMES["scan"]}
_Spellings = Mapping[str, tuple[str, ...]]
_LOW: _Spellings = {
    axis: (f"{axis}min", f"min{axis}", f"{axis}1", f"{axis}start", f"bbox{axis}min", f"low{axis}")
    for axis in _AXES
}
_HIGH: _Spellings = {
    axis: (f"{axis}max", f"max{axis}", f"{axis}2", f"{axis}end", f"bbox{axis}max", f"high{axis}")
    for axis in _AXES
}
_CENTER: _Spellings = {
    axis: (
        f"coord{axis}",
        f"center{axis}",
        f"{axis}center",
        f"c{axis}",
        f"{axis}c",
        f"centre{axis}",
        f"{axis}centre",
        axis,
    )
    for axis in _AXES
}
_SIZE: _Spellings = {
    axis: (f"size{axis}", f"{axis}size", f"d{axis}", f"{side[0]}", side, f"extent{axis}", f"length{axis}")
    for axis, side in _SIDES.items()
}
_DIAMETER, _RADIUS = ("diameter", "diam"), ("radius",)


@dataclass(frozen=True, kw_only=True)
class BoxForm:
    """Columns of a box in a table.

    Args:
        kind: "corners", "corner-size", "center-size", "diameter" or "radius".
        first: columns of x, y and z of the low corner or the center.
        second: columns of the high corner or the sizes along x, y and z, or the one column of a diameter or radius.
        unit: unit that the names of the columns state: "mm", "voxels", or "" for none.
    """

    kind: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    unit: str

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the box."""
        return (*self.first, *self.second)


def find_box_form(header: Sequence[str]) -> BoxForm | None:
    """Return how a table's header writes boxes of scans; None if it lacks an axis or a size.

    >>> find_box_form(["seriesuid", "coordX", "coordY", "coordZ", "diameter_mm"]).kind
    'diameter'
    >>> find_box_form(["filename", "class", "xmin", "ymin", "xmax", "ymax"]) is None
    True
    >>> find_box_form(["scan", "x_mm", "y_mm", "z_mm", "width", "height", "depth"]).unit
    'mm'
    """
    named: dict[str, str] = {}
    of_column: dict[str, str] = {}
    for column in header:
        found = _UNIT_SUFFIX.fullmatch(normalize_name(column))
        if found is None:
            continue
        named.setdefault(found["name"], column)
        of_column[column] = {"mm": "mm", None: ""}.get(found["unit"], "voxels")
    for kind, first, second in _forms():
        columns = [
            next((named[name] for name in names if name in named), None) for names in (*first, *second)
        ]
        if None in columns:
            continue
        chosen = tuple(column for column in columns if column is not None)
        units = Counter(of_column[column] for column in chosen if of_column[column])
        return BoxForm(
            kind=kind, first=chosen[:3], second=chosen[3:], unit=next(iter(units)) if len(units) == 1 else ""
        )
    return None


def _forms() -> Iterable[tuple[str, list[tuple[str, ...]], list[tuple[str, ...]]]]:
    """Yield (kind, spellings of the first three columns, of the others) of each form, the least ambiguous first."""
    low, high, center, size = ([of[axis] for axis in _AXES] for of in (_LOW, _HIGH, _CENTER, _SIZE))
    yield "corners", low, high
    yield "corner-size", low, size
    yield "center-size", center, size
    yield "diameter", center, [_DIAMETER]
    yield "radius", center, [_RADIUS]


def read_scan_columns(
    name: str, header: Sequence[str], stated: Mapping[str, str] = MappingProxyType({})
) -> ColumnMapping:
    """Return the meaning of the columns of a table of boxes in scans; the columns of the box have their own names.

    Args:
        name: name of the table, for messages.
        header: columns of the table.
        stated: column of each meaning that the user names with --column; `image` is the scan, and `label` the class.

    Raises:
        AnnotationsError: several columns may name the scan, or the user names a column without a meaning here.
    """
    form = find_box_form(header)
    of_box = set(form.columns) if form else set()
    columns: dict[str, str] = {column: column for column in of_box}
    if unknown := [meaning for meaning in stated if meaning not in _STATED]:
        raise AnnotationsError(
            f"--column {unknown[0]}: of boxes in volumes it names {', '.join(_STATED)}; leave it out, and name the "
            "sides xmin,ymin,zmin,xmax,ymax,zmax in the table"
        )
    columns |= {_STATED[meaning]: column for meaning, column in stated.items()}
    for known, ranks in _NAMES.items():
        for rank in () if known in columns else ranks:
            found = [column for column in header if normalize_name(column) in rank and column not in of_box]
            if len(found) > 1:
                raise AnnotationsError(
                    f"{name}: columns {', '.join(found)} may all be the {known}; rename those that are not"
                )
            if found:
                columns[known] = found[0]
                break
    known_columns = set(columns.values())
    return ColumnMapping(columns=columns, unread=tuple(c for c in header if c not in known_columns))


def listed_boxes_form(rows: Iterable[Mapping[str, object]]) -> TableForm | None:
    """Return the form of rows that hold all boxes of a scan as a list of objects; None for one box per row.

    The names of an object's numbers say what they are. A list of six numbers could be two corners, or a corner or a
    center with sizes, and is not read.

    >>> row = {"image": "a.nii", "findings": [{"x": 1, "y": 2, "z": 3, "diameter_mm": 4}]}
    >>> [*listed_boxes_form([row]).convert("", row)]
    [{'image': 'a.nii', 'x': 1, 'y': 2, 'z': 3, 'diameter_mm': 4}]
    """
    for row in rows:
        for key, value in row.items():
            objects = value if isinstance(value, list) else ()
            if any(isinstance(one, dict) and find_box_form([*one]) for one in objects):
                return TableForm(convert=partial(_rows_of_list, key))
    return None


def _rows_of_list(key: str, place: str, row: Mapping[str, object]) -> Iterable[Mapping[str, object]]:
    """Yield a row for each object of a scan; one without a box if there is none, which says that it has no object."""
    rest = {name: value for name, value in row.items() if name != key}
    objects = row.get(key) or []
    if not isinstance(objects, list) or not all(isinstance(one, dict) for one in objects):
        raise AnnotationsError(f"{place}: {key}: expected a list of objects, such as those of other rows")
    yield from ({**rest, **one} for one in objects) if objects else (rest,)


def find_scan_column(header: Sequence[str]) -> str | None:
    """Return the column that names the scan; None without one."""
    try:
        return read_scan_columns("", header).columns.get("scan")
    except AnnotationsError:
        return None


def is_luna16(header: Sequence[str]) -> bool:
    """Return whether a table has the columns of LUNA16's annotations.csv.

    >>> is_luna16(["seriesuid", "coordX", "coordY", "coordZ", "diameter_mm"]), is_luna16(["seriesuid", "coordX"])
    (True, False)
    """
    return set(LUNA16_COLUMNS) <= set(map(normalize_name, header))


def describe_columns(header: Sequence[str]) -> str:
    """Return what a table of boxes in scans must have, and what it has."""
    return (
        f"found {', '.join(header) or 'nothing'}; expected a column of the scan, such as "
        "filename, and xmin,ymin,zmin,xmax,ymax,zmax, or x,y,z with width,height,depth or diameter"
    )
