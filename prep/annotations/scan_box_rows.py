"""Boxes and spheres of scans in the rows of a table: the forms of their columns, and the units of their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.scan_box_columns import BoxForm
from halofeed.prep.annotations.tables import TableRow
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_boxes import place_in_source
from halofeed.prep.sources.example import Box
from halofeed.system.errors import AnnotationsError, SourceError

VOXELS, MM_RAS, MM_LPS, AUTO = "voxels", "mm-ras", "mm-lps", "auto"
UNITS: Final = (VOXELS, MM_RAS, MM_LPS)
"""Units of coordinates: continuous voxels of the file; millimeters to the right, anterior and superior (NIfTI); and to
the left, posterior and superior (DICOM, ITK)."""


@dataclass(frozen=True, kw_only=True)
class WrittenBox:
    """Box of a row in the unit of its table: x, y and z of both corners, whether it encloses a sphere, and its flag."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    is_sphere: bool
    label: str
    is_ignored: bool = False

    def in_unit(self, unit: str) -> Box:
        """Return the box, whose numbers have a unit of `UNITS`."""
        (x1, y1, z1), (x2, y2, z2) = self.low, self.high
        space = "voxels" if unit == VOXELS else "sphere" if self.is_sphere else "mm"
        if unit == MM_LPS:
            x1, x2, y1, y2 = -x2, -x1, -y2, -y1
        return Box(
            xmin=x1,
            ymin=y1,
            zmin=z1,
            xmax=x2,
            ymax=y2,
            zmax=z2,
            label=self.label,
            space=space,
            is_crowd=self.is_ignored,
        )


def is_blank(row: TableRow, form: BoxForm) -> bool:
    """Return whether a row has no box, which means that its scan has no object."""
    return not any(row.cell(column) for column in form.columns)


def read_box(row: TableRow, form: BoxForm, label: str) -> WrittenBox:
    """Return the box of a row.

    Raises:
        SourceError: a cell is no finite number, a size is negative, or corners are exchanged.
    """
    numbers = [_number(row, column) for column in form.columns]
    low, high = _CORNERS_OF[form.kind](np.array(numbers[:3]), np.array(numbers[3:]))
    if (low > high).any():
        raise SourceError("annotation", "box is inverted", f"{row.place}: {', '.join(form.columns)}")
    return WrittenBox(
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        is_sphere=form.kind in ("diameter", "radius"),
        label=label,
        is_ignored=row.cell("ignored").lower() in ("1", "true", "yes"),
    )


def _number(row: TableRow, column: str) -> float:
    """Return the finite number in a cell; raise SourceError if it is none."""
    try:
        number = float(row.cell(column))
    except ValueError as error:
        detail = f"{row.place}: {column}: {row.cell(column)!r}"
        raise SourceError("annotation", "coordinate of a box is no number", detail) from error
    if not math.isfinite(number):
        raise SourceError("annotation", "coordinate of a box is not finite", f"{row.place}: {column}")
    return number


_Corner = NDArray[np.float64]
_CORNERS_OF: Mapping[str, Callable[[_Corner, _Corner], tuple[_Corner, _Corner]]] = {
    "corners": lambda low, high: (low, high),
    "corner-size": lambda low, size: (low, low + size),
    "center-size": lambda center, size: (center - size / 2, center + size / 2),
    "diameter": lambda center, diameter: (center - diameter / 2, center + diameter / 2),
    "radius": lambda center, radius: (center - radius, center + radius),
}
"""Functions from the first three numbers of a form and the others to the low and the high corner."""


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
        in_source = place_in_source([one.in_unit(unit) for one in written], grid)
        centers = (in_source[:, :3] + in_source[:, 3:]) / 2
        inside += int(((centers >= 0) & (centers <= np.array(grid.shape))).all(axis=1).sum())
        places += [tuple(row) for row in in_source.tolist()]
    return inside / max(1, len(places)), places
