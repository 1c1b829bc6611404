"""Boxes and spheres of scans in the rows of a table: the forms of their columns, and the units of their numbers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from halofeed.prep.annotations.columns import ColumnMapping, normalize_name
from halofeed.prep.annotations.tables import TableRow
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_boxes import boxes_in_source
from halofeed.prep.sources.example import Box
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import plural

VOXELS, MM_RAS, MM_LPS, AUTO = "voxels", "mm-ras", "mm-lps", "auto"
UNITS: Final = (VOXELS, MM_RAS, MM_LPS)
"""Units of coordinates: continuous voxels of the file; millimeters to the right, anterior and superior (NIfTI); and to
the left, posterior and superior (DICOM, ITK)."""
_UNIT_SUFFIX = re.compile(r"(?P<name>.+?)(?P<unit>mm|vox|voxels?|px|pixels?|idx|index)?")
_AXES = "xyz"
_SIDES = {"x": "width", "y": "height", "z": "depth"}

_NAMES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "scan": (
        ("filename", "image", "scan", "volume", "imagename", "imagepath", "filepath", "scanname", "volumename"),
        ("seriesuid", "seriesinstanceuid", "seriesid"),
        ("case", "caseid", "scanid", "imageid", "volumeid", "file", "path", "id"),
    ),
    "class": (
        ("class",),
        ("classname", "label", "labelname", "category", "categoryname", "cls"),
        ("classid", "labelid"),
    ),
    "split": (("split",),),
    "group": (("group", "groupid"), ("patient", "patientid", "subject", "subjectid")),
}
"""Spellings of the columns beside the coordinates, in ranks: the first rank with a match decides."""
_LOW = {axis: (f"{axis}min", f"min{axis}", f"{axis}1", f"{axis}start", f"bbox{axis}min", f"low{axis}") for axis in _AXES}
_HIGH = {axis: (f"{axis}max", f"max{axis}", f"{axis}2", f"{axis}end", f"bbox{axis}max", f"high{axis}") for axis in _AXES}
_CENTER = {
    axis: (f"coord{axis}", f"center{axis}", f"{axis}center", f"c{axis}", f"{axis}c", f"centre{axis}", f"{axis}centre", axis)
    for axis in _AXES
}
_SIZE = {
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
        columns = [next((named[name] for name in names if name in named), None) for names in (*first, *second)]
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


def read_scan_columns(name: str, header: Sequence[str]) -> ColumnMapping:
    """Return the meaning of the columns of a table of boxes in scans; the columns of the box have their own names.

    Raises:
        AnnotationsError: several columns may name the scan.
    """
    form = find_box_form(header)
    of_box = set(form.columns) if form else set()
    columns: dict[str, str] = {column: column for column in of_box}
    for known, ranks in _NAMES.items():
        for rank in ranks:
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


def find_scan_column(header: Sequence[str]) -> str | None:
    """Return the column that names the scan; None without one."""
    try:
        return read_scan_columns("", header).columns.get("scan")
    except AnnotationsError:
        return None


@dataclass(frozen=True, kw_only=True)
class WrittenBox:
    """Box of a row in the unit of its table: x, y and z of both corners, and whether it encloses a sphere."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    is_sphere: bool
    label: str

    def in_unit(self, unit: str) -> Box:
        """Return the box, whose numbers have a unit of `UNITS`."""
        (x1, y1, z1), (x2, y2, z2) = self.low, self.high
        if unit == VOXELS:
            space = "voxels"
        else:
            space = "sphere" if self.is_sphere else "mm"
        if unit == MM_LPS:
            x1, x2, y1, y2 = -x2, -x1, -y2, -y1
        return Box(xmin=x1, ymin=y1, zmin=z1, xmax=x2, ymax=y2, zmax=z2, label=self.label, space=space)


def is_blank(row: TableRow, form: BoxForm) -> bool:
    """Return whether a row has no box, which means that its scan has no object."""
    return not any(row.cell(column) for column in form.columns)


def read_box(row: TableRow, form: BoxForm, label: str) -> WrittenBox:
    """Return the box of a row.

    Raises:
        SourceError: a cell is no finite number, a size is negative, or corners are exchanged.
    """
    numbers = []
    for column in form.columns:
        try:
            number = float(row.cell(column))
        except ValueError as error:
            detail = f"{row.place}: {column}: {row.cell(column)!r}"
            raise SourceError("annotation", "coordinate of a box is no number", detail) from error
        if not math.isfinite(number):
            raise SourceError("annotation", "coordinate of a box is not finite", f"{row.place}: {column}")
        numbers.append(number)
    first, second = numbers[:3], numbers[3:]
    if form.kind in ("diameter", "radius"):
        half = [second[0] * (0.5 if form.kind == "diameter" else 1.0)] * 3
    else:
        half = [size / 2 for size in second]
    if form.kind == "corners":
        low, high = first, second
    elif form.kind == "corner-size":
        low, high = first, [a + b for a, b in zip(first, second, strict=True)]
    else:
        low = [a - b for a, b in zip(first, half, strict=True)]
        high = [a + b for a, b in zip(first, half, strict=True)]
    if any(a > b for a, b in zip(low, high, strict=True)):
        raise SourceError("annotation", "box is inverted", f"{row.place}: {', '.join(form.columns)}")
    return WrittenBox(
        low=tuple(low), high=tuple(high), is_sphere=form.kind in ("diameter", "radius"), label=label
    )


_MIN_SHARE: Final = 0.9
"""Least share of the boxes whose center is in its scan in the right unit; annotations have some mistakes."""


def measure_unit(
    boxes: Mapping[str, Sequence[WrittenBox]],
    grid_of: Callable[[str], Grid | None],
    stated: str,
    place: str,
) -> str:
    """Return the only unit in which boxes lie in their scans.

    Units that place all boxes at the same voxels are one.

    Args:
        boxes: boxes of some scans.
        grid_of: maps a scan to its grid; None if it cannot be read.
        stated: unit in the names of the columns, "mm" or "voxels", or "".
        place: the table, for messages.

    Raises:
        AnnotationsError: no unit fits, or several do.
    """
    candidates = [unit for unit in UNITS if not stated or unit.startswith(stated)]
    shares: dict[str, float] = {}
    found: dict[str, list[tuple[float, ...]]] = {}
    for unit in candidates:
        inside, places = _places_in(unit, boxes, grid_of)
        shares[unit], found[unit] = inside, places
    fitting = [unit for unit in candidates if shares[unit] >= _MIN_SHARE]
    distinct = [unit for unit in fitting if not np.allclose(found[unit], found[fitting[0]], atol=1e-3)]
    if fitting and not distinct:
        return fitting[0]
    listed = ", ".join(f"{unit} {share:.0%}" for unit, share in shares.items())
    if not fitting:
        raise AnnotationsError(
            f"{place}: in no unit the boxes lie in their scans (share inside: {listed}); check that the table belongs "
            f"to these scans, or name the unit with --scan-box-units {candidates[0]}"
        )
    choices = " or ".join(f"--scan-box-units {unit}" for unit in (fitting[0], *distinct))
    raise AnnotationsError(
        f"{place}: the boxes lie in their scans in several units (share inside: {listed}); name theirs: {choices}"
    )


def _places_in(
    unit: str, boxes: Mapping[str, Sequence[WrittenBox]], grid_of: Callable[[str], Grid | None]
) -> tuple[float, list[tuple[float, ...]]]:
    """Return the share of boxes whose center is in its scan, and all boxes in voxels of their scans."""
    inside, places = 0, []
    for path, written in boxes.items():
        grid = grid_of(path)
        if grid is None:
            continue
        in_source = boxes_in_source([one.in_unit(unit) for one in written], grid)
        centers = (in_source[:, :3] + in_source[:, 3:]) / 2
        inside += int(((centers >= 0) & (centers <= np.array(grid.shape))).all(axis=1).sum())
        places += [tuple(row) for row in in_source.tolist()]
    return inside / max(1, len(places)), places


def describe_columns(header: Sequence[str]) -> str:
    """Return what a table of boxes in scans must have, and what it has."""
    return (
        f"found {', '.join(header) or 'nothing'} ({plural(len(header), 'column')}); expected a column of the scan, such "
        "as filename, and xmin,ymin,zmin,xmax,ymax,zmax, or x,y,z with width,height,depth or diameter"
    )
