"""Gray values of a DICOM picture as they are displayed.

stored value --(modality LUT or rescale)--> value --(VOI LUT or window)--> fraction 0 to 1 --(MONOCHROME1)--> level

The steps are those of PS3.3 C.11.1 and C.11.2. A step of a pixel depends on its stored value alone, so that up to 16
bits are converted by one table of all stored values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import Elements, damaged_file, items
from halofeed.prep.formats.dicom.picture_header import PictureHeader, rescale_of, window_pairs
from halofeed.prep.formats.dicom.values import stored_range
from halofeed.prep.voxels.intensity import WINDOWS
from halofeed.system.errors import SourceError

NO_VIEW = "none"
"""Value of --window for the complete range of the values, without a VOI LUT or window of the file."""
_FUNCTIONS = ("LINEAR", "LINEAR_EXACT", "SIGMOID")
_LEVELS = 65535
_BLOCK = 1 << 18


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueTable:
    """Table of values: entry 0 is that of `first` and of all smaller inputs (PS3.3 C.11.1.1, C.11.2.1.1).

    Args:
        first: first mapped input.
        entries: unsigned outputs [entry].
        bits: bits of an output.
    """

    first: int
    entries: NDArray[np.uint16]
    bits: int

    def apply(self, values: NDArray[Any]) -> NDArray[np.uint16]:
        """Return the outputs of values of any shape; a fraction is cut off, as pydicom does."""
        places = np.clip(np.trunc(values - float(self.first)), 0, len(self.entries) - 1)
        return np.asarray(self.entries[places.astype(np.int64)])


@dataclass(frozen=True, kw_only=True)
class VoiWindow:
    """Window of values: `center` and `width`, and the function between its ends (PS3.3 C.11.2.1.2, C.11.2.1.3)."""

    center: float
    width: float
    function: str = "LINEAR"

    @property
    def is_valid(self) -> bool:
        """True if the width is one that its function can have."""
        return self.width >= 1 if self.function == "LINEAR" else self.width > 0

    def apply(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the fractions 0 to 1 of values of any shape.

        >>> VoiWindow(center=2, width=5).apply(np.array([-1.0, 0, 1.5, 4])).tolist()
        [0.0, 0.125, 0.5, 1.0]
        """
        if self.function == "SIGMOID":
            with np.errstate(over="ignore"):
                return np.asarray(1 / (1 + np.exp(-4 * (values - self.center) / self.width)))
        # LINEAR counts whole values: its ends are half a value within those of LINEAR_EXACT.
        shift, less = (0.5, 1.0) if self.function == "LINEAR" else (0.0, 0.0)
        center, width = self.center - shift, self.width - less
        if not width:
            return np.asarray((values > center).astype(np.float64))
        return np.asarray(np.clip((values - center) / width + 0.5, 0, 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class GrayPlan:
    """Conversion of the stored values of a gray frame into levels.

    Args:
        table: modality LUT; None without one.
        rescale: slope and intercept in place of a table; None without one.
        view: VOI LUT or window; None for the complete range of the values.
        low, high: range of the values, which becomes 0 to 1 without a view.
        inverted: whether the lowest value is displayed in white.
        is_plain: whether levels of 8 bits hold all values.
        fills_depth: whether the file states the range of its values, so that a dark picture is dark.
        views: number of VOI LUTs and windows of the file.
        ignored_windows: number of windows whose width is no width.
    """

    table: ValueTable | None
    rescale: tuple[float, float] | None
    view: ValueTable | VoiWindow | None
    low: float
    high: float
    inverted: bool
    is_plain: bool
    fills_depth: bool
    views: int
    ignored_windows: int

    def levels(self, values: NDArray[Any]) -> NDArray[np.uint16] | NDArray[np.uint8]:
        """Return the levels of stored values [height, width]: 0 to 255 if `is_plain`, else 0 to 65535."""
        if values.dtype.itemsize > 2:
            flat, found = values.reshape(-1), np.empty(values.size, np.uint16)
            for start in range(0, values.size, _BLOCK):
                found[start : start + _BLOCK] = self._computed(flat[start : start + _BLOCK])
            return found.reshape(values.shape)
        # All values of the word in the order of their bits, so that the table needs no offset.
        unsigned = np.dtype(f"u{values.dtype.itemsize}")
        every = np.arange(1 << 8 * unsigned.itemsize, dtype=unsigned).view(values.dtype)
        return np.asarray(self._computed(every)[values.view(unsigned)])

    def _computed(self, stored: NDArray[Any]) -> NDArray[Any]:
        fraction = self._fractions(self.modality_values(stored))
        if self.inverted:
            fraction = 1 - fraction
        peak, dtype = (255, np.uint8) if self.is_plain else (_LEVELS, np.uint16)
        return np.rint(fraction * peak).astype(dtype)

    def modality_values(self, stored: NDArray[Any]) -> NDArray[np.float64]:
        """Return the values of stored values of any shape, after the modality LUT or the rescale."""
        if self.table is not None:
            return self.table.apply(stored).astype(np.float64)
        slope, intercept = self.rescale or (1.0, 0.0)
        return stored.astype(np.float64) * slope + intercept

    def _fractions(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        if isinstance(self.view, VoiWindow):
            return self.view.apply(values)
        if isinstance(self.view, ValueTable):
            return self.view.apply(values) / ((1 << self.view.bits) - 1)
        return np.asarray(np.clip((values - self.low) / (self.high - self.low), 0, 1))


def plan_gray(header: PictureHeader, frame: int, choice: str | None = None) -> GrayPlan:
    """Plan the conversion of a gray frame.

    Args:
        header: header of the picture.
        frame: number of the frame, from 0.
        choice: which VOI LUT or window: None for the first one, the number of another one from 1, its explanation in
            the file, "none", a window as center/width, or the name of a window in Hounsfield units.

    Raises:
        SourceError: a table or a window is damaged, or the file has no such window.
    """
    groups, stored = header.groups(frame), header.stored
    table, rescale = _modality_of(groups, header)
    low, high = _range_of(header, table, rescale)
    views, ignored = ([], 0) if _is_own(choice) else _views_of(groups, header, may_be_negative=low < 0)
    view = _chosen_view(choice, views, groups, header)
    is_identity = table is None and (rescale is None or rescale == (1.0, 0.0))
    # 16 bits are what writers state that do not know better; fewer bits are those of the detector.
    states_range = view is not None or table is not None or stored.bits_stored < 8 * stored.word_bytes
    shape = headers.text(header.elements, headers.PRESENTATION_SHAPE).upper()
    return GrayPlan(
        table=table,
        rescale=rescale,
        view=view,
        low=low,
        high=high,
        # PS3.3 C.7.6.3.1.2 and C.11.6: a radiograph of MONOCHROME1 states both, and is inverted once.
        inverted=header.color == "MONOCHROME1" or shape == "INVERSE",
        is_plain=view is None and is_identity and stored.bits_stored <= 8,
        fills_depth=states_range or stored.bits_stored <= 8 or stored.signed,
        views=len(views),
        ignored_windows=ignored,
    )


def _is_own(choice: str | None) -> bool:
    """Return whether the range is the user's own, which needs nothing of the file's windows: they may be damaged."""
    return choice is not None and (choice == NO_VIEW or "/" in choice)


def _modality_of(
    groups: Sequence[Elements], header: PictureHeader
) -> tuple[ValueTable | None, tuple[float, float] | None]:
    """Return the modality LUT, or without one the slope and the intercept of the rescale; None for what is absent.

    PS3.3 C.11.1: a file has one of the two. The table counts where a file has both.
    """
    table = _modality_table(groups, header)
    rescale = None if table is not None else rescale_of(groups)
    if rescale is not None and rescale[0] == 0:
        raise SourceError("read", "rescale slope is 0")
    return table, rescale


def _range_of(
    header: PictureHeader, table: ValueTable | None, rescale: tuple[float, float] | None
) -> tuple[float, float]:
    """Return the range of the values that the stored bits can hold, after the modality LUT or the rescale."""
    if table is not None:
        return 0.0, float((1 << table.bits) - 1)
    slope, intercept = rescale or (1.0, 0.0)
    ends = [value * slope + intercept for value in stored_range(header.stored)]
    return min(ends), max(ends)


def _modality_table(groups: Sequence[Elements], header: PictureHeader) -> ValueTable | None:
    tables = (item for elements in groups for item in items(elements, headers.MODALITY_LUT)[:1])
    return next((_value_table(item, signed=header.stored.signed) for item in tables), None)


def _views_of(
    groups: Sequence[Elements], header: PictureHeader, *, may_be_negative: bool
) -> tuple[list[ValueTable | VoiWindow], int]:
    """Return the VOI LUTs, then the windows of a frame; and the number of windows that are left out."""
    tables = next((found for elements in groups if (found := items(elements, headers.VOI_TABLES))), ())
    signed = header.stored.signed or may_be_negative
    views: list[ValueTable | VoiWindow] = [
        _value_table(item, signed=signed) for item in tables if headers.TABLE_DATA in item
    ]
    function = _function_of(groups)
    windows = [VoiWindow(center=at, width=width, function=function) for at, width in window_pairs(groups)]
    valid = [window for window in windows if window.is_valid]
    return [*views, *valid], len(windows) - len(valid)


def _function_of(groups: Sequence[Elements]) -> str:
    texts = (headers.text(elements, headers.WINDOW_FUNCTION).upper() for elements in groups)
    function = next(filter(None, texts), _FUNCTIONS[0])
    if function not in _FUNCTIONS:
        detail = f"read are {', '.join(_FUNCTIONS)}; --window none leaves the windows of the files out"
        raise SourceError("decode", "VOI LUT function is not supported", detail)
    return function


def _value_table(item: Elements, *, signed: bool) -> ValueTable:
    """Return a modality LUT or a VOI LUT.

    Args:
        item: item of its sequence.
        signed: whether its inputs may be negative, where the VR does not tell.
    """
    count, first, bits = table_descriptor(item, headers.TABLE_DESCRIPTOR, signed=signed)
    entries = table_entries(item, headers.TABLE_DATA, count)
    if not 1 <= bits <= 16:
        raise damaged_file(f"a table of values of {bits} bits")
    used = int(entries.max(initial=0)).bit_length()
    # Some writers state 16 bits and use those of the detector, 10 to 14: their pictures would be dark.
    is_misstated = used > bits or (bits == 16 and 8 < used <= 14)
    return ValueTable(first=first, entries=entries, bits=used if is_misstated else bits)


def table_descriptor(elements: Elements, tag: int, *, signed: bool) -> tuple[int, int, int]:
    """Return the number of entries, the first mapped input and the bits of an entry (PS3.3 C.11.1.1).

    Raises:
        SourceError: the element is absent, or has not three numbers.
    """
    element = elements.get(tag)
    if not isinstance(element, headers.Element) or len(element.data) < 6:
        raise damaged_file(f"element {headers.format_tag(tag)} is not 3 numbers")
    count, first, bits = np.frombuffer(element.data, "<u2" if element.little else ">u2", 3).tolist()
    # The first and the third number are unsigned, whatever the VR is; 0 entries are 65536.
    is_signed = element.vr == "SS" or signed
    return count or 1 << 16, first - 65536 if is_signed and first >= 32768 else first, bits


def table_entries(elements: Elements, tag: int, count: int) -> NDArray[np.uint16]:
    """Return the entries of a table, which are bytes or words by their length.

    Raises:
        SourceError: there are fewer than `count`.
    """
    element = elements.get(tag)
    data = element.data if isinstance(element, headers.Element) else b""
    little = not isinstance(element, headers.Element) or element.little
    # PS3.3 C.7.6.3.1.6: entries of 8 bits are stored in words, or, in files of earlier writers, in bytes.
    if count <= len(data) < 2 * count:
        return np.frombuffer(data, np.uint8, count).astype(np.uint16)
    if len(data) < count:
        raise damaged_file(f"a table of {len(data)} bytes for {count} entries")
    return np.frombuffer(data, "<u2" if little else ">u2", count).astype(np.uint16)


def _chosen_view(
    choice: str | None,
    views: Sequence[ValueTable | VoiWindow],
    groups: Sequence[Elements],
    header: PictureHeader,
) -> ValueTable | VoiWindow | None:
    """Return the view that the user chose, or the first one.

    Raises:
        SourceError: the file has no such view.
    """
    if choice is None:
        return views[0] if views else None
    if choice == NO_VIEW:
        return None
    if choice.isdecimal():
        if not 1 <= int(choice) <= len(views):
            raise _no_view(f"--window {choice}: the file has {len(views)}", len(views))
        return views[int(choice) - 1]
    if "/" in choice:
        center, _, width = choice.partition("/")
        return VoiWindow(center=float(center), width=float(width), function="LINEAR_EXACT")
    return _named_view(choice, views, groups, header)


def _named_view(
    name: str, views: Sequence[ValueTable | VoiWindow], groups: Sequence[Elements], header: PictureHeader
) -> ValueTable | VoiWindow:
    texts = next(filter(None, (headers.text(elements, headers.WINDOW_NAMES) for elements in groups)), "")
    names = [text.strip().upper() for text in texts.split("\\")]
    windows = [view for view in views if isinstance(view, VoiWindow)]
    if name.upper() in names and len(names) == len(windows):
        return windows[names.index(name.upper())]
    is_ct = headers.text(header.elements, headers.MODALITY) == "CT" and rescale_of(groups) is not None
    if name in WINDOWS and is_ct:
        window = WINDOWS[name]
        center, width = (window.low + window.high) / 2, window.high - window.low
        return VoiWindow(center=center, width=width, function="LINEAR_EXACT")
    raise _no_view(f"--window {name}: the file names no such window", len(views))


def _no_view(why: str, count: int) -> SourceError:
    cure = f"take --window 1 to {count}, or none" if count else "leave --window out, or take --window none"
    return SourceError("decode", "DICOM file has no such window", f"{why}; {cure}")
