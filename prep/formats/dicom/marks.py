"""What tells the images of one series apart beside their places: phase, echo, b-value, acquisition, time.

A mark is a name that people know and a value that can be compared and sorted: magnitude before phase in every series,
whatever else its image type says. Values are compared while files are sorted out, and written nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import Element, Elements
from halofeed.schemas.errors import SourceError

Mark = float | str | tuple[float, ...]
Marks = Mapping[str, Mark]

IMAGE_TYPE, ACQUISITION_NUMBER, TRIGGER_TIME = "image type", "acquisition number", "trigger time"
ACQUISITION_TIME, CONTENT_TIME, INSTANCE_NUMBER = "acquisition time", "content time", "instance number"

NUMBERS: Mapping[str, tuple[int, ...]] = {
    "temporal position": (headers.TEMPORAL_POSITION, headers.TEMPORAL_INDEX),
    "temporal offset": (headers.TEMPORAL_OFFSET,),
    "frame reference time": (headers.FRAME_REFERENCE_TIME,),
    "cardiac phase": (headers.CARDIAC_PHASE,),
    TRIGGER_TIME: (headers.TRIGGER_TIME, headers.TRIGGER_DELAY),
    "echo number": (headers.ECHO_NUMBERS,),
    "echo time": (headers.ECHO_TIME, headers.EFFECTIVE_ECHO_TIME),
    "inversion time": (headers.INVERSION_TIME,),
    "flip angle": (headers.FLIP_ANGLE,),
    "b-value": (headers.DIFFUSION_B_VALUE,),
    "gradient direction": (headers.GRADIENT_DIRECTION,),
    "tube voltage": (headers.TUBE_VOLTAGE,),
    ACQUISITION_NUMBER: (headers.FRAME_ACQUISITION_NUMBER, headers.ACQUISITION_NUMBER),
    INSTANCE_NUMBER: (headers.INSTANCE_NUMBER,),
}
"""By name: the elements that say it, the first that a file has."""
TEXTS: Mapping[str, tuple[int, ...]] = {
    IMAGE_TYPE: (headers.FRAME_TYPE, headers.IMAGE_TYPE),
    "complex component": (headers.COMPLEX_COMPONENT,),
    "reconstruction kernel": (headers.KERNEL,),
    "stack": (headers.STACK_ID,),
}
KINDS = (*(name for name in NUMBERS if name != INSTANCE_NUMBER), *TEXTS)
"""Marks whose values are the same for all images of one volume, in the order in which volumes are sorted."""
TIMES = (TRIGGER_TIME, ACQUISITION_TIME, CONTENT_TIME)
"""Marks whose values may be of single images; then their order alone counts."""
PASSES = frozenset((IMAGE_TYPE, ACQUISITION_NUMBER, TRIGGER_TIME, ACQUISITION_TIME, CONTENT_TIME))
"""Marks that may differ between the passes in which one volume is taken, such as every other slice first."""

DIGITS = re.compile(r"(\d{2})(\d{2})?(\d{2})?(\.\d{1,6})?")


def marks_of(groups: Sequence[Elements]) -> Marks:
    """The marks of the frame that these elements describe together; the first that has a value counts."""

    def find(tags: Sequence[int]) -> tuple[Elements, int] | None:
        return next(((part, tag) for tag in tags for part in groups if _has_value(part, tag)), None)

    found: dict[str, Mark] = {}
    for name, tags in NUMBERS.items():
        if place := find(tags):
            values = _numbers(*place)
            if values is not None:
                found[name] = values if len(values) > 1 else values[0]
    for name, tags in TEXTS.items():
        if place := find(tags):
            found[name] = _sortable(headers.text(*place))
    if place := find((headers.DIMENSION_INDEX,)):
        for number, value in enumerate(_numbers(*place) or (), start=1):
            found[f"dimension {number}"] = value
    moments = {
        ACQUISITION_TIME: (headers.ACQUISITION_DATE, headers.ACQUISITION_TIME),
        CONTENT_TIME: (headers.CONTENT_DATE, headers.CONTENT_TIME),
    }
    for name, (day, time) in moments.items():
        if place := find((time,)):
            days = find((day,))
            seconds = _seconds(headers.text(*place), headers.text(*days) if days else "")
            if seconds is not None:
                found[name] = seconds
    if place := find((headers.FRAME_MOMENT, headers.FRAME_REFERENCE_MOMENT, headers.ACQUISITION_MOMENT)):
        text = headers.text(*place)
        seconds = _seconds(re.split(r"[+-]", text[8:])[0], text[:8])
        if seconds is not None:
            found[ACQUISITION_TIME] = seconds
    return found


def _sortable(text: str) -> str:
    """A text in the order of its words and numbers.

    >>> sorted(["Stack 10", "stack 2"], key=_sortable)
    ['stack 2', 'Stack 10']
    """
    return re.sub(r"\d+", lambda number: number[0].zfill(16), text.upper())


def _has_value(elements: Elements, tag: int) -> bool:
    element = elements.get(tag)
    return isinstance(element, Element) and bool(element.data.strip(b" \0") or element.vr in headers.NUMBERS)


def _numbers(elements: Elements, tag: int) -> tuple[float, ...] | None:
    """Numbers that matter only to tell images apart: None where they are none."""
    try:
        return headers.numbers(elements, tag, None)
    except SourceError:
        return None


def _seconds(time: str, day: str) -> float | None:
    """A time of day as DICOM writes it, with its date, in seconds; None where it is none.

    >>> _seconds("101530.5", ""), _seconds("1015", "00010102"), _seconds("noon", "")
    (36930.5, 123300.0, None)
    """
    parts = DIGITS.fullmatch(time.strip())
    if parts is None:
        return None
    hours, minutes, seconds, fraction = parts.groups()
    total = 3600 * int(hours) + 60 * int(minutes or 0) + int(seconds or 0) + float(fraction or 0)
    try:
        days = date(int(day[:4]), int(day[4:6]), int(day[6:8])).toordinal() - 1
    except ValueError:
        days = 0
    return total + 86400 * days
