"""Parser of untrusted JSON within limits, and JSON documents with their own checksum."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from halofeed.schemas.limits import DIGITS, NESTING
from halofeed.system.checksum import crc32c


def parse_json(text: str | bytes, max_values: int, *, finite: bool = True) -> Any:
    """Parse a JSON document of at most `max_values` values; the names in an object must be unique.

    Args:
        text: the document.
        max_values: largest number of values.
        finite: refuse NaN and Infinity; else they are read in the form in which Python writes them.

    Raises:
        ValueError: the text is not JSON, or exceeds `halofeed.schemas.limits`; the message says what is wrong.

    >>> parse_json('{"a": [1, 2.5]}', 10)
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1e400}', 10)
    Traceback (most recent call last):
        ...
    ValueError: 1e400 is larger than any float64
    """
    # Each value except the first follows one of these.
    marks: tuple[Any, ...] = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    if sum(map(text.count, marks)) > max_values:
        raise ValueError(f"it holds more than {max_values:,} values")
    try:
        document = json.loads(
            text,
            object_pairs_hook=_refuse_repeated,
            parse_constant=_refuse_constant if finite else float,
            parse_float=_finite if finite else float,
            parse_int=_short,
        )
    except RecursionError:  # json.loads recurses for each level
        raise ValueError("it is nested too deeply") from None
    _check_nesting(document)
    return document


def _check_nesting(document: Any) -> None:
    level = [document]
    for _ in range(NESTING + 1):
        level = [value for value in level if isinstance(value, dict | list)]
        if not level:
            return
        members = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for inside in members for value in inside if isinstance(value, dict | list)]
    raise ValueError(f"it is nested deeper than {NESTING}")


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # RFC 8259, section 4: what a repeated name means depends on the reader.
    document = dict(pairs)
    if len(document) != len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r:.60} is there twice in one object")
    return document


def _refuse_constant(name: str) -> NoReturn:
    # RFC 8259, section 6: numbers that are not finite are not JSON, although Python's json writes them.
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.60} is larger than any float64")
    return value


def _short(text: str) -> int:
    # Converting a long decimal takes quadratic time (CVE-2020-10735).
    if len(text) > DIGITS:
        raise ValueError(f"{text:.20}... has {len(text):,} digits; at most {DIGITS} are read")
    return int(text)


CHECKSUM = "crc32c"


def checksum_of(document: Mapping[str, Any]) -> int:
    """Return the CRC32C of the document's members except `crc32c`, in one fixed form."""
    members = {name: value for name, value in document.items() if name != CHECKSUM}
    return crc32c(json.dumps(members, sort_keys=True, separators=(",", ":")).encode())


def with_json_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the checksum of its JSON form, in which names that are numbers become text.

    >>> with_json_checksum({"step": 10})
    {'step': 10, 'crc32c': 538019656}
    """
    return {**document, CHECKSUM: checksum_of(json.loads(json.dumps(document)))}


def check_json_checksum(document: Any, *, required: bool = False) -> Any:
    """Check and remove the checksum of a document; return a document without a checksum, or a non-object, unchanged.

    Args:
        document: the parsed document.
        required: refuse an object without a checksum.

    Raises:
        ValueError: the checksum does not match the document.

    >>> check_json_checksum({"step": 11, "crc32c": 538019656})
    Traceback (most recent call last):
        ...
    ValueError: its checksum is wrong, so it was changed after it was written
    """
    if not isinstance(document, dict) or (CHECKSUM not in document and not required):
        return document
    if document.get(CHECKSUM) != checksum_of(document):
        raise ValueError("its checksum is wrong, so it was changed after it was written")
    return {name: value for name, value in document.items() if name != CHECKSUM}
