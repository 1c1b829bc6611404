"""Real World Value Mappings: the physical values of stored values, such as an ADC in mm2/s.

    stored value ──(Modality LUT: Rescale Slope)──────> what a display shows, or HU, or the unit of PET
    stored value ──(Real World Value Mapping)─────────> a quantity with a unit

Both start from the stored values (PS3.3 C.7.6.16.2.11 and C.11.1), so that only one of them is applied:

- In CT and PET the rescale is the quantity that the image object defines (PS3.3 C.8.2.1, C.8.9.4). It stays.
- Elsewhere a rescale of a type other than unspecified is a quantity, and stays.
- Otherwise the mapping is the only one with a unit. highdicom applies it too, by default, in place of the rescale.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import Elements, damaged_file, finite_number, items
from halofeed.system.errors import SourceError

DAMAGED = "damaged"
AUTO, STORED = "auto", "stored"
"""Values of --real-world-values: the only mapping of a frame, or none."""
HOUNSFIELD = ("HU", "[hnsf'U]")
"""The unit of CT as a rescale type, and in UCUM."""
_UNIT = re.compile(r"[A-Za-z0-9_/*.%{}\[\]()'^+-]{1,16}")
_UNSPECIFIED = ("", "US")
_OWN_QUANTITY = ("CT", "PT")
_SAME = 1e-6


@dataclass(frozen=True, kw_only=True)
class Rescale:
    """Conversion of stored values: value = `slope` * stored + `intercept`.

    Args:
        slope, intercept: numbers of the equation.
        kind: rescale type, or the unit of a real world value mapping; "" if the file gives none.
        mapped: first and last stored value that have a real world value; None if all have one.
        is_mapping: whether it is a real world value mapping, and no rescale.
        table: float64 values of the stored values from `mapped[0]` to `mapped[1]`, in place of the equation; or b"".
    """

    slope: float
    intercept: float
    kind: str
    mapped: tuple[float, float] | None = None
    table: bytes = b""
    is_mapping: bool = False

    @property
    def is_identity(self) -> bool:
        """True if all values are those stored."""
        return (self.slope, self.intercept) == (1.0, 0.0) and not self.table


def _unit_of(item: Elements) -> str:
    """Return the code of the unit; "other" for a text that is no unit, since it may identify someone."""
    codes = [headers.text(code, headers.CODE_VALUE) for code in items(item, headers.MEASUREMENT_UNITS)[:1]]
    unit = codes[0] if codes else ""
    return unit if not unit or _UNIT.fullmatch(unit) else "other"


def _end(item: Elements, tags: Sequence[int], is_signed: bool) -> float | None:
    """Return one end of the mapped range; with an implicit VR its sign is that of the pixels."""
    value = next((found for tag in tags if (found := finite_number(item, tag)) is not None), None)
    # The VR is US or SS by the Pixel Representation (PS3.6); a file of implicit VR leaves it out, and we read US.
    return value - 65536 if value is not None and is_signed and 32768 <= value < 65536 else value


def read_mappings(groups: Sequence[Elements], is_signed: bool) -> tuple[Rescale, ...]:
    """Return the real world value mappings of a frame; the first group that has any counts.

    A damaged mapping has the kind "damaged"; it matters only to a frame that needs it.

    Args:
        groups: the functional groups of the frame, the shared ones, and the file itself.
        is_signed: whether the stored values are signed.
    """
    written = next((found for one in groups if (found := items(one, headers.REAL_WORLD_MAPPINGS))), ())
    mappings = []
    for item in written:
        try:
            mappings.append(_read_mapping(item, is_signed))
        except SourceError:
            # Frames whose rescale is the quantity do not need it, so that it refuses no scan here.
            mappings.append(Rescale(slope=0.0, intercept=0.0, kind=DAMAGED))
    return tuple(dict.fromkeys(mappings))


def _read_mapping(item: Elements, is_signed: bool) -> Rescale:
    mapped = _mapped_range(item, is_signed)
    slope, intercept = (
        finite_number(item, tag) for tag in (headers.REAL_WORLD_SLOPE, headers.REAL_WORLD_INTERCEPT)
    )
    if slope is not None and intercept is not None:
        mapping = Rescale(slope=slope, intercept=intercept, kind=_unit_of(item), is_mapping=True)
        # An identity leaves all values as stored, also those outside of the mapped range.
        return mapping if mapping.is_identity else replace(mapping, mapped=mapped)
    values = headers.number_array(item, headers.REAL_WORLD_TABLE)
    # PS3.3 C.7.6.16.2.11: the table has an entry for each stored value from the first to the last mapped one.
    if mapped is None or not len(values) or len(values) != mapped[1] - mapped[0] + 1:
        raise damaged_file("a real world value mapping with a table of another length than its range")
    return Rescale(
        slope=1.0, intercept=0.0, kind=_unit_of(item), mapped=mapped, table=values.tobytes(), is_mapping=True
    )


def _mapped_range(item: Elements, is_signed: bool) -> tuple[float, float] | None:
    """Return the first and the last stored value that are mapped; None if the file does not state both."""
    first, last = (_end(item, tags, is_signed) for tags in (headers.FIRST_MAPPED, headers.LAST_MAPPED))
    return None if first is None or last is None else (first, last)


def choose_rescale(
    rescale: Rescale | None, mappings: Sequence[Rescale], modality: str, choice: str
) -> Rescale | None:
    """Return the conversion of a frame's stored values: its rescale, or one of its mappings.

    Args:
        rescale: slope and intercept of the frame; None if it has none.
        mappings: its real world value mappings.
        modality: modality of the file.
        choice: "auto", "stored" for no mapping, the unit of a mapping, or its number from 1.

    Raises:
        SourceError: the frame has several mappings and the choice is none of them.
    """
    if not mappings or choice == STORED:
        return rescale
    if choice == AUTO and rescale is not None and _is_quantity(rescale, mappings, modality):
        return rescale
    chosen = _find_mapping(mappings, choice)
    if chosen is None:
        raise _no_single_mapping(mappings, choice)
    if chosen.kind == DAMAGED:
        detail = f"--real-world-values {STORED} takes the values as they are stored"
        raise SourceError("read", "real world value mapping is damaged", detail)
    # UCUM writes the unit of CT as [hnsf'U]; the loader and the windows know it as HU.
    return replace(chosen, kind=HOUNSFIELD[0]) if chosen.kind == HOUNSFIELD[1] else chosen


def _is_quantity(rescale: Rescale, mappings: Sequence[Rescale], modality: str) -> bool:
    """Return whether the rescaled values are a quantity already, so that no mapping is needed."""
    # CT and PET define the quantity of their rescale (PS3.3 C.8.2.1, C.8.9.4); elsewhere its type does (C.11.1.1.2).
    if modality in _OWN_QUANTITY or rescale.kind not in _UNSPECIFIED:
        return True
    # Classic MR of Philips repeats the rescale as a mapping (https://github.com/rordenlab/dcm2niix/issues/493).
    return all(_is_same(rescale, one) for one in mappings)


def _find_mapping(mappings: Sequence[Rescale], choice: str) -> Rescale | None:
    """Return the mapping that the choice names by number or by unit; None unless it names exactly one."""
    if choice.isdecimal() and 1 <= int(choice) <= len(mappings):
        return mappings[int(choice) - 1]
    fitting = [one for one in mappings if choice in (AUTO, one.kind)]
    return fitting[0] if len(fitting) == 1 else None


def _no_single_mapping(mappings: Sequence[Rescale], choice: str) -> SourceError:
    """Return the error for a choice that matches none, or several, of the mappings."""
    units = ", ".join(f"{number}: {one.kind or 'no unit'}" for number, one in enumerate(mappings, start=1))
    units_differ = len({one.kind for one in mappings}) == len(mappings)
    example = mappings[0].kind if units_differ and mappings[0].kind else "1"
    fix = f"--real-world-values {example} takes the first; --real-world-values {STORED} takes none"
    reason = "several real world value mappings" if choice == AUTO else "no such real world value mapping"
    return SourceError("read", reason, f"{units}; {fix}")


def _is_same(rescale: Rescale, mapping: Rescale) -> bool:
    """Return whether a mapping is the rescale, apart from the digits of a decimal text."""
    pairs = ((rescale.slope, mapping.slope), (rescale.intercept, mapping.intercept))
    return not mapping.table and all(abs(a - b) <= _SAME * max(abs(a), abs(b)) for a, b in pairs)


def apply_table(values: NDArray[Any], rescale: Rescale) -> NDArray[np.float64]:
    """Return the float64 real world values of stored integers within the mapped range of a table.

    >>> table = np.array([0.5, 2.0]).tobytes()
    >>> apply_table(np.array([8, 7]), Rescale(slope=1, intercept=0, kind="", mapped=(7, 8), table=table)).tolist()
    [2.0, 0.5]
    """
    assert rescale.mapped is not None
    entries = np.frombuffer(rescale.table, np.float64)
    places = np.clip(values.astype(np.int64) - int(rescale.mapped[0]), 0, len(entries) - 1)
    return np.asarray(entries[places])


def check_mapped(values: NDArray[Any], padding: NDArray[np.bool_] | None, rescale: Rescale | None) -> None:
    """Raise SourceError if a stored value that is no padding has no real world value (PS3.3 C.7.6.16.2.11.1.2)."""
    if rescale is None or rescale.mapped is None:
        return
    first, last = rescale.mapped
    outside = (values < first) | (values > last)
    if padding is not None:
        outside &= ~padding
    if outside.any():
        found = values[outside]
        detail = (
            f"{len(found):,} stored values of {found.min():g} to {found.max():g}, mapped are {first:g} to {last:g}; "
            f"--real-world-values {STORED} takes the values as they are stored"
        )
        raise SourceError("decode", "values without a real world value", detail)
