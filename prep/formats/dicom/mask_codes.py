"""Codes of segments and structures, such as SCT:10200004 of SNOMED CT for the liver: what they show, in any language.

A code is written as its coding scheme and its value with a colon between, one with a modifier as
SCT:64033007+SCT:7771000: a kidney, the left one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import Elements, integer, items

_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,16}:[A-Za-z0-9_.-]{1,64}")


def is_code(written: str) -> bool:
    """Return whether a class of the user's choice has the form of a code.

    >>> is_code("SCT:10200004"), is_code("SRT:T-62000"), is_code("GTV: primary")
    (True, True, False)
    """
    return all(_CODE.fullmatch(part) for part in written.split("+"))


def segment_codes(elements: Elements) -> dict[int, tuple[str, ...]]:
    """Return the codes of each segment by its number, the most specific first; segments without a code have none.

    Source: DICOM PS3.3 C.8.20.4 (Segment Description Macro): the Segmented Property Type says what a segment shows, and
    its modifier on which side.
    """
    codes = {
        integer(item, headers.SEGMENT_NUMBER): (*_codes(item, headers.PROPERTY_CODES),)
        for item in items(elements, headers.SEGMENTS)
    }
    return {number: of_segment for number, of_segment in codes.items() if of_segment}


def structure_codes(elements: Elements, numbers: Mapping[int, int]) -> dict[int, tuple[str, ...]]:
    """Return the codes of each structure by its number; structures without a code have none.

    Source: DICOM PS3.3 C.8.8.8 (RT ROI Observations): the RT ROI Identification Code says what a structure shows.

    Args:
        elements: elements of the file.
        numbers: number of each structure by its stored number.
    """
    codes: dict[int, tuple[str, ...]] = {}
    for item in items(elements, headers.OBSERVATIONS):
        number = numbers.get(integer(item, headers.CONTOURS_OF))
        found = [*_codes(item, headers.STRUCTURE_CODES), *_codes(item, headers.PROPERTY_CODES)]
        # Several observations may describe one structure.
        if number is not None and found:
            codes[number] = (*codes.get(number, ()), *found)
    return codes


def _codes(item: Elements, tag: int) -> Iterator[str]:
    for code in items(item, tag):
        written = _written(code)
        modifiers = [_written(one) for one in items(code, headers.MODIFIER_CODES)]
        if written:
            yield from (f"{written}+{one}" for one in modifiers if one)
            yield written


def _written(code: Elements) -> str:
    scheme, value = (headers.text(code, tag) for tag in (headers.CODING_SCHEME, headers.CODE_VALUE))
    return f"{scheme}:{value}" if scheme and value else ""
